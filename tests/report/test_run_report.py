"""The page of a run: its content, its notes about missing files, and that it loads nothing from other addresses."""

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


def read_page(path: Path) -> str:
    """Return the page without the source of Plotly."""
    text = path.read_text("utf-8")
    assert text.count(get_plotlyjs()) == 1
    return text.replace(get_plotlyjs(), "")


def read_figures(text: str) -> list[dict]:
    return [json.loads(f) for f in re.findall(r'<script type="application/json" class="figure">(.*?)</script>', text, re.S)]


class TagChecker(HTMLParser):
    """Check that every element is closed in order."""

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
def finished_run_page(make_run, tmp_path_factory):
    return run_report(make_run(tmp_path_factory.mktemp("runs") / "full"))


def test_page_is_valid_html_without_addresses(finished_run_page):
    text = read_page(finished_run_page)
    assert finished_run_page.name == "report.html"
    assert [p.name for p in finished_run_page.parent.iterdir() if p.name.startswith(".")] == []
    assert not re.search(r"https?:|@import|url\(|<link(?! rel=\"icon\" href=\"data:,\")|\ssrc=", text)
    checker = TagChecker()
    checker.feed(text)
    assert checker.open == []


def test_page_of_finished_run_is_complete(finished_run_page):
    text = read_page(finished_run_page)
    scores = ("test accuracy", "0.9431", "best constant predictor", "0.1310", "0.9350", "6,112", "12 min 34 s", "2,000 steps")
    origin = ("cycle_navigation, ma, seed 3", "block_options.a.phase_dt", "longscan train --config", "0123abc")
    assert [expected for expected in scores + origin if expected not in text] == []
    names = [[t.get("name") for t in f["data"] if t.get("showlegend", True)] for f in read_figures(text)]
    assert names == [[None], ["model"], ["train", "valid"], ["train", "valid"], ["train"], ["0", "1", "2"]]
    assert "missing" not in text
    assert 'class="note"' not in text.split("</main>")[0]


def test_figures_have_the_recorded_numbers(make_run, tmp_path):
    folder = make_run(tmp_path, steps=20, every=10)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    drawn = read_figures(read_page(run_report(folder)))
    loss = next(f for f in drawn if f["layout"]["yaxis"]["title"]["text"] == "loss")
    expected = [r["loss"] for r in rows if r["split"] == "train"]
    data = loss["data"][0]["y"]
    values = np.frombuffer(base64.b64decode(data["bdata"]), data["dtype"])
    np.testing.assert_array_equal(values, expected)
    accuracy = next(f for f in drawn if f["layout"]["yaxis"]["title"]["text"] == "accuracy" and "shapes" in f["layout"])
    assert accuracy["layout"]["shapes"][0]["y0"] == 0.131


@pytest.mark.parametrize(("rates", "top"), [((0.001, 0.001), 0.001), ((0.0, 0.003, 0.0001), 0.003), ((3e-7, 3e-7), 3e-7)])
def test_axis_of_learning_rate_ends_above_its_maximum(make_run, tmp_path, rates, top):
    folder = make_run(tmp_path, steps=5, every=5)
    rows = [{"step": step, "split": "train", "loss": 1.0 / step, "lr": rate} for step, rate in enumerate(rates, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    axes = {f["layout"]["yaxis"]["title"]["text"]: f["layout"]["yaxis"] for f in read_figures(read_page(run_report(folder)))[2:4]}
    assert axes["learning rate"]["range"] == pytest.approx([0, 1.1 * top])
    assert "range" not in axes["loss"]


def test_axis_of_equal_values_starts_at_zero_and_includes_the_constant_score():
    flat = figures.curves({"train": ([1, 2], [0.5, 0.5])}, "accuracy", constant=0.6)
    assert flat.layout.yaxis.range == pytest.approx((0, 0.66))
    for values in ([0.0, 0.0], [-1.0, -1.0], [0.5, 0.6], [np.nan, np.nan]):
        assert figures.curves({"train": ([1, 2], values)}, "accuracy").layout.yaxis.range is None


def test_all_colours_are_in_the_style_sheet(finished_run_page):
    text = read_page(finished_run_page)
    named = set(re.findall(r"var\((--[\w-]+)\)", text.split("</style>")[1]))
    light, dark = re.search(r":root \{(.*?)\n\}", text, re.S)[1], re.search(r"dark\) \{\s*:root \{(.*?)\n  \}", text, re.S)[1]
    assert named <= set(re.findall(r"(--[\w-]+):", light))
    assert set(re.findall(r"(--[\w-]+):", dark)) == set(re.findall(r"(--[\w-]+):", light)) - {"--font", "--mono"}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("settings.yaml", "There is no settings.yaml"),
        ("metrics.jsonl", "There is no metrics.jsonl"),
        ("result.json", "the run has not finished"),
        ("angles.json", "No angles are recorded"),
    ],
)
def test_page_says_which_file_is_missing(make_run, tmp_path, file, message):
    folder = make_run(tmp_path, steps=5, every=5)
    (folder / file).unlink()
    assert message in read_page(run_report(folder))


def test_page_of_empty_directory_says_that_run_has_not_finished(tmp_path):
    assert "the run has not finished" in read_page(run_report(tmp_path))


def test_page_mentions_missing_details(make_run, tmp_path):
    folder = make_run(tmp_path, steps=5, every=5, confusion=None, by_length=None)
    assert "neither a confusion matrix nor the score by length" in read_page(run_report(folder))


def test_page_says_which_lengths_have_no_examples(make_run, tmp_path):
    text = read_page(run_report(make_run(tmp_path, steps=5, every=5, by_length={"41-64": 0.5, "65-128": None})))
    assert "No test example has a length of 65-128." in text
    assert read_figures(text)[1]["data"][0]["x"] == ["41-64"]


def test_page_of_failed_run_has_figures_and_the_failure(make_run, tmp_path):
    text = read_page(
        run_report(make_run(tmp_path, steps=5, every=5, status="failed", failure="the loss is nan", value=None, scaled=None))
    )
    assert '<p class="failure">This run failed: the loss is nan.' in text
    assert "test accuracy" in text


def test_page_without_aussm_layer_does_not_mention_angles(make_run, tmp_path):
    folder = make_run(tmp_path, steps=5, every=5)
    (folder / "angles.json").unlink()
    (folder / "settings.yaml").write_text("model: {spec: mm}\n")
    assert "angles" not in read_page(run_report(folder)).split("</style>")[1]


def test_angles_of_many_symbols_are_a_heatmap(make_run, tmp_path):
    folder = make_run(tmp_path, steps=5, every=5, symbols=40, entries=16)
    angles = read_figures(read_page(run_report(folder)))[-1]
    assert angles["data"][0]["type"] == "heatmap"
    assert len(angles["data"][0]["y"]) == 40


def test_incomplete_last_line_is_ignored_and_damaged_result_raises(make_run, tmp_path):
    folder = make_run(tmp_path, steps=5, every=5)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "spl')
    run_report(folder)
    (folder / "result.json").write_text("{")
    with pytest.raises(ValueError, match=r"result\.json is damaged"):
        run_report(folder)


def test_missing_directory_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`run_dir` must be the directory of a run, got .*nowhere"):
        run_report(tmp_path / "nowhere")


def test_text_from_files_is_escaped(make_run, tmp_path):
    folder = make_run(tmp_path, steps=5, every=5, task="<script>alert(1)</script>", classes=["</script>", "b", "c", "d"])
    text = read_page(run_report(folder))
    assert "<script>alert" not in text
    assert read_figures(text)[0]["data"][0]["x"][0] == "</script>"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_chromium_draws_every_figure(finished_run_page, tmp_path):
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--virtual-time-budget=10000"]
    command = [CHROMIUM, *flags, f"--user-data-dir={tmp_path}", "--dump-dom", finished_run_page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert len(re.findall(r'class="plot[^"]*js-plotly-plot', dom)) == len(read_figures(finished_run_page.read_text("utf-8")))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_nothing_is_wider_than_its_element(make_results, make_seeds, tmp_path, new_run_row):
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


def test_elements_escape_text_but_not_html():
    hostile = "<i a='b\">&"
    for element in (
        page.heading(2, hostile),
        page.paragraph(hostile, "note"),
        page.code(hostile),
        page.tiles([(hostile, hostile, hostile)]),
        page.table([hostile], [[hostile]], [page.NUMBER], ["ours"]),
        page.page(hostile, [hostile]).split("</main>")[0],
    ):
        assert "<i" not in element
        assert "&lt;i a=&#39;b&#34;&gt;&amp;" in element
    assert page.group("", [page.heading(2, "a"), page.code("b")]) == "<div><h2>a</h2>\n<pre>b</pre></div>"
    assert page.table(["", ""], [["a", "b"]], ["", page.NUMBER], ["ours"]) == (
        '<div class="scroll"><table><tbody><tr class="ours"><td>a</td><td class="number">b</td></tr></tbody></table></div>'
    )
