"""The page of one run: what it shows, what it says is missing, that it needs nothing from outside."""

import base64
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from plotly.offline import get_plotlyjs

from longscan.report import append_record, figures, page, results_report, run_report

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def body_of(path: Path) -> str:
    """The page without Plotly's own source."""
    text = path.read_text("utf-8")
    assert text.count(get_plotlyjs()) == 1
    return text.replace(get_plotlyjs(), "")


def figures_of(text: str) -> list[dict]:
    return [json.loads(f) for f in re.findall(r'<script type="application/json" class="figure">(.*?)</script>', text, re.S)]


class Balance(HTMLParser):
    """Checks that every element is closed in order."""

    void = frozenset({"meta", "link", "br", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def full(make_run, tmp_path_factory):
    return run_report(make_run(tmp_path_factory.mktemp("runs") / "full"))


def test_the_page_is_one_balanced_file_that_names_no_address(full):
    text = body_of(full)
    assert full.name == "report.html"
    assert [p.name for p in full.parent.iterdir() if p.name.startswith(".")] == []
    assert not re.search(r"https?:|@import|url\(|<link(?! rel=\"icon\" href=\"data:,\")|\ssrc=", text)
    checker = Balance()
    checker.feed(text)
    assert checker.open == []


def test_a_finished_run_shows_everything(full):
    text = body_of(full)
    scores = ("test accuracy", "0.9431", "best constant predictor", "0.1310", "0.9350", "6,112", "12 min 34 s", "2,000 steps")
    origin = ("cycle_navigation, ma, seed 3", "block_options.a.phase_dt", "longscan train --config", "0123abc")
    assert [expected for expected in scores + origin if expected not in text] == []
    names = [[t.get("name") for t in f["data"] if t.get("showlegend", True)] for f in figures_of(text)]
    assert names == [[None], ["model"], ["train", "valid"], ["train", "valid"], ["train"], ["0", "1", "2"]]
    assert "missing" not in text
    assert 'class="note"' not in text.split("</main>")[0]


def test_figures_hold_the_recorded_numbers(make_run, tmp_path):
    folder = make_run(tmp_path, steps=20, every=10)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    drawn = figures_of(body_of(run_report(folder)))
    loss = next(f for f in drawn if f["layout"]["yaxis"]["title"]["text"] == "loss")
    expected = [r["loss"] for r in rows if r["split"] == "train"]
    data = loss["data"][0]["y"]
    values = np.frombuffer(base64.b64decode(data["bdata"]), data["dtype"])
    np.testing.assert_array_equal(values, expected)
    accuracy = next(f for f in drawn if f["layout"]["yaxis"]["title"]["text"] == "accuracy" and "shapes" in f["layout"])
    assert accuracy["layout"]["shapes"][0]["y0"] == 0.131


@pytest.mark.parametrize(("rates", "top"), [((0.001, 0.001), 0.001), ((0.0, 0.003, 0.0001), 0.003), ((3e-7, 3e-7), 3e-7)])
def test_the_axis_of_the_learning_rate_goes_from_zero_to_a_little_above_its_maximum(make_run, tmp_path, rates, top):
    folder = make_run(tmp_path, steps=5, every=5)
    rows = [{"step": step, "split": "train", "loss": 1.0 / step, "lr": rate} for step, rate in enumerate(rates, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    axes = {f["layout"]["yaxis"]["title"]["text"]: f["layout"]["yaxis"] for f in figures_of(body_of(run_report(folder)))[2:4]}
    assert axes["learning rate"]["range"] == pytest.approx([0, 1.1 * top])
    assert "range" not in axes["loss"]


def test_values_all_alike_stand_on_an_axis_from_zero_that_holds_the_constant_predictor():
    flat = figures.curves({"train": ([1, 2], [0.5, 0.5])}, "accuracy", constant=0.6)
    assert flat.layout.yaxis.range == pytest.approx((0, 0.66))
    for values in ([0.0, 0.0], [-1.0, -1.0], [0.5, 0.6], [np.nan, np.nan]):
        assert figures.curves({"train": ([1, 2], values)}, "accuracy").layout.yaxis.range is None


def test_every_colour_is_one_of_the_style_sheet(full):
    text = body_of(full)
    named = set(re.findall(r"var\((--[\w-]+)\)", text.split("</style>")[1]))
    light, dark = re.search(r":root \{(.*?)\n\}", text, re.S)[1], re.search(r"dark\) \{\s*:root \{(.*?)\n  \}", text, re.S)[1]
    assert named <= set(re.findall(r"(--[\w-]+):", light))
    assert set(re.findall(r"(--[\w-]+):", dark)) == set(re.findall(r"(--[\w-]+):", light)) - {"--font", "--mono"}


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("settings.yaml", "There is no settings.yaml"),
        ("metrics.jsonl", "There is no metrics.jsonl"),
        ("result.json", "the run has not finished"),
        ("angles.json", "No angles are recorded"),
    ],
)
def test_a_missing_file_is_said(make_run, tmp_path, file, said):
    folder = make_run(tmp_path, steps=5, every=5)
    (folder / file).unlink()
    assert said in body_of(run_report(folder))


def test_an_empty_directory_still_gives_a_page(tmp_path):
    assert "the run has not finished" in body_of(run_report(tmp_path))


def test_a_run_without_details_says_so(make_run, tmp_path):
    folder = make_run(tmp_path, steps=5, every=5, confusion=None, by_length=None)
    assert "neither a confusion matrix nor the score by length" in body_of(run_report(folder))


def test_a_length_without_examples_is_said(make_run, tmp_path):
    text = body_of(run_report(make_run(tmp_path, steps=5, every=5, by_length={"41-64": 0.5, "65-128": None})))
    assert "No test example has a length of 65-128." in text
    assert figures_of(text)[1]["data"][0]["x"] == ["41-64"]


def test_a_failed_run_keeps_its_figures_and_says_so(make_run, tmp_path):
    text = body_of(
        run_report(make_run(tmp_path, steps=5, every=5, status="failed", failure="the loss is nan", value=None, scaled=None))
    )
    assert '<p class="failure">This run failed: the loss is nan.' in text
    assert "test accuracy" in text


def test_no_angles_are_missed_without_an_aussm_layer(make_run, tmp_path):
    folder = make_run(tmp_path, steps=5, every=5)
    (folder / "angles.json").unlink()
    (folder / "settings.yaml").write_text("model: {spec: mm}\n")
    assert "angles" not in body_of(run_report(folder)).split("</style>")[1]


def test_many_symbols_become_a_map(make_run, tmp_path):
    folder = make_run(tmp_path, steps=5, every=5, symbols=40, entries=16)
    angles = figures_of(body_of(run_report(folder)))[-1]
    assert angles["data"][0]["type"] == "heatmap"
    assert len(angles["data"][0]["y"]) == 40


def test_a_last_line_cut_short_is_left_out_and_damage_is_named(make_run, tmp_path):
    folder = make_run(tmp_path, steps=5, every=5)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "spl')
    run_report(folder)
    (folder / "result.json").write_text("{")
    with pytest.raises(ValueError, match=r"result\.json is damaged"):
        run_report(folder)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`run_dir` must be the directory of a run, got .*nowhere"):
        run_report(tmp_path / "nowhere")


def test_text_from_files_cannot_become_markup(make_run, tmp_path):
    folder = make_run(tmp_path, steps=5, every=5, task="<script>alert(1)</script>", classes=["</script>", "b", "c", "d"])
    text = body_of(run_report(folder))
    assert "<script>alert" not in text
    assert figures_of(text)[0]["data"][0]["x"][0] == "</script>"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_chromium_draws_every_figure(full, tmp_path):
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--virtual-time-budget=10000"]
    command = [CHROMIUM, *flags, f"--user-data-dir={tmp_path}", "--dump-dom", full.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert len(re.findall(r'class="plot[^"]*js-plotly-plot', dom)) == len(figures_of(full.read_text("utf-8")))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_nothing_is_wider_than_the_page(make_results, make_seeds, tmp_path, new_run_row):
    folder = make_results(tmp_path / "results")
    append_record(folder / "runs" / "more.jsonl", new_run_row(command="longscan train " + "--setting.of.the.run value " * 20))
    append_record(folder / "runs" / "more.jsonl", new_run_row(device="NVIDIA H200, with a name of many words", commit="0" * 40))
    make_seeds(folder / "seeds" / "seeds.json")
    path = results_report(folder, tmp_path / "out.html")
    measure = "[...document.querySelectorAll('pre, .scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
    probe = f"<script>document.title = 'clipped ' + {measure};</script></body>"
    path.write_text(probe.join(path.read_text("utf-8").rsplit("</body>", 1)), "utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900", "--virtual-time-budget=10000"]
    command = [CHROMIUM, *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert re.search(r"<title>(.*?)</title>", dom)[1] == "clipped 0"


def test_pieces_of_a_page_escape_all_text_and_no_html():
    hostile = "<i a='b\">&"
    for piece in (
        page.heading(2, hostile),
        page.paragraph(hostile, "note"),
        page.code(hostile),
        page.tiles([(hostile, hostile, hostile)]),
        page.table([hostile], [[hostile]], [page.NUMBER], ["ours"]),
        page.page(hostile, [hostile]).split("</main>")[0],
    ):
        assert "<i" not in piece
        assert "&lt;i a=&#39;b&#34;&gt;&amp;" in piece
    assert page.group("", [page.heading(2, "a"), page.code("b")]) == "<div><h2>a</h2>\n<pre>b</pre></div>"
    assert page.table(["", ""], [["a", "b"]], ["", page.NUMBER], ["ours"]) == (
        '<div class="scroll"><table><tbody><tr class="ours"><td>a</td><td class="number">b</td></tr></tbody></table></div>'
    )
