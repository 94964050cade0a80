"""The page of a run: its content, its sections, its notes about missing files, and that it loads nothing from other addresses."""

import itertools
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

from longscan.report import append_record, figures, page, results_report, run_report, svg
from longscan.report.examples import class_scores, example_section

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def read_page(path):
    return path.read_text("utf-8")


def headings(text: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", text)


def legends(text: str) -> list[list[str]]:
    """Return the names in the legend of every figure."""
    drawings = re.findall(r"<svg .*?</svg>", text, re.S)
    return [re.findall(r'<text[^>]* class="name">(.*?)</text>', drawing) for drawing in drawings]


class TagChecker(HTMLParser):
    """Check that every element is closed in order."""

    void = frozenset({"meta", "link", "br", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        """Skip an element of SVG that is closed where it begins."""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def finished_run_page(make_run, tmp_path_factory):
    return run_report(make_run(tmp_path_factory.mktemp("runs") / "full"))


def test_page_is_valid_html_without_addresses(finished_run_page):
    text = read_page(finished_run_page)
    assert finished_run_page.name == "report.html"
    assert [p.name for p in finished_run_page.parent.iterdir() if p.name.startswith(".")] == []
    assert not re.search(r"https?:|@import|url\(|<link(?! rel=\"icon\" href=\"data:,\")|\ssrc=|<script", text)
    assert len(text) < 400_000
    checker = TagChecker()
    checker.feed(text)
    assert checker.open == []


def test_page_of_finished_run_is_complete(finished_run_page):
    text = read_page(finished_run_page)
    scores = ("test accuracy", "0.9431", "best constant predictor", "0.1310", "0.9350", "6,112", "12 min 34 s", "2,000 steps")
    origin = ("cycle navigation, ma, seed 3", "block_options.a.phase_dt", "longscan train --config", "0123abc")
    assert [expected for expected in scores + origin if expected not in text] == []
    assert [names for names in legends(text) if names] == [
        ["model", "constant predictor"],
        ["train", "valid"],
        ["train", "valid", "constant predictor"],
        ["train"],
    ]
    assert headings(text) == ["Classes", "Lengths", "Learning curves", "Rotation angles", "Settings", "Machine and origin"]
    assert text.count("0.1310") == 1
    assert 'class="note"' not in text


def test_lines_have_the_recorded_numbers(make_run, tmp_path):
    folder = make_run(tmp_path, steps=20, every=10)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    train = [(r["step"], r["loss"]) for r in rows if r["split"] == "train"]
    text = read_page(run_report(folder))
    for step, loss in train:
        assert f"<title>step {step}: {loss:.5g}</title>" in text
    chart = figures.curves({"train": tuple(zip(*train, strict=True))}, "loss", constant=0.131)
    np.testing.assert_array_equal(chart.marks[0].y, [loss for _, loss in train])
    assert chart.references == [(True, 0.131, "6 4")]


@pytest.mark.parametrize(("rates", "top"), [((0.001, 0.001), 0.001), ((0.0, 0.003, 0.0001), 0.003), ((3e-7, 3e-7), 3e-7)])
def test_axis_of_learning_rate_ends_above_its_maximum(rates, top):
    chart = figures.curves({"train": (range(len(rates)), rates)}, "learning rate", from_zero=True)
    assert (chart.y.low, chart.y.high) == pytest.approx((0, 1.1 * top))
    assert "NaN" not in chart.render()


def test_axis_of_equal_values_starts_at_zero_and_includes_the_constant_score():
    flat = figures.curves({"train": ([1, 2], [0.5, 0.5])}, "accuracy", constant=0.6)
    assert (flat.y.low, flat.y.high) == pytest.approx((0, 0.66))
    for values in ([0.0, 0.0], [-1.0, -1.0], [0.5, 0.6], [np.nan, np.nan]):
        chart = figures.curves({"train": ([1, 2], values)}, "accuracy")
        assert chart.y.low is None
        assert "nan" not in chart.render()


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
    ],
)
def test_page_says_which_file_is_missing(make_run, tmp_path, file, message):
    folder = make_run(tmp_path, steps=5, every=5)
    (folder / file).unlink()
    assert message in read_page(run_report(folder))


def test_page_of_empty_directory_says_that_run_has_not_finished(tmp_path):
    assert "the run has not finished" in read_page(run_report(tmp_path))


def test_page_has_only_sections_that_apply(make_run, tmp_path):
    folder = make_run(tmp_path, steps=5, every=5, confusion=None, by_length=None)
    (folder / "angles.json").unlink()
    text = read_page(run_report(folder))
    assert headings(text) == ["Learning curves", "Settings", "Machine and origin"]
    assert "angle" not in text.split("</style>")[1].replace("angle_", "")


def test_page_says_which_lengths_have_no_examples(make_run, tmp_path):
    text = read_page(run_report(make_run(tmp_path, steps=5, every=5, by_length={"41-64": 0.5, "65-128": None})))
    assert "No test example has a length of 65-128." in text
    assert "<title>length 41-64: 0.5000</title>" in text


def test_lengths_without_examples_are_in_order(make_run, tmp_path):
    lengths = {f"{first}-{first + 9}": None for first in range(100, 200, 10)}
    text = read_page(run_report(make_run(tmp_path, steps=5, every=5, by_length={"41-64": 0.5, **lengths})))
    assert f"No test example has a length of {', '.join(lengths)}." in text


@pytest.mark.parametrize(
    ("task", "metric", "unit"),
    [
        ("series_forecast", "mae", "; in standard deviations of the training data</span>"),
        ("forecast/ETTh1", "mse", "; in standard deviations of the training data, squared</span>"),
        ("pendulum", "mse", "weights of the last step</span>"),
    ],
)
def test_errors_of_standardised_numbers_have_a_unit(make_run, tmp_path, task, metric, unit):
    text = read_page(run_report(make_run(tmp_path, steps=5, every=5, task=task, metric=metric, selected="last")))
    assert unit in text.partition("</div>")[0]


def test_simple_predictors_take_the_place_of_the_constant(make_run, tmp_path):
    folder = make_run(tmp_path, steps=5, every=5)
    (folder / "baselines.json").write_text('{"constant": 0.131, "seasonal_naive": 0.25, "persistence": 0.2}')
    text = read_page(run_report(folder))
    assert headings(text)[0] == "Simple predictors"
    assert 'best simple predictor</span><span class="value">0.2500</span><span class="remark">seasonal naive' in text
    drawn = re.findall(r"<title>([\w ]+): (0\.\d+)</title>", text.split("Simple predictors")[1].split("</svg>")[0])
    assert drawn == [("this run", "0.9431"), ("seasonal naive", "0.2500"), ("last value", "0.2000"), ("best constant", "0.1310")]
    for name in ("seasonal_naive", "persistence"):
        assert name not in text


def test_class_scores_are_those_of_scikit_learn():
    from sklearn.metrics import precision_recall_fscore_support

    matrix = np.array([[5, 1, 0], [2, 3, 4], [0, 0, 7]])
    true, predicted = (np.repeat(part.ravel(), matrix.ravel()) for part in np.indices((3, 3)))
    *expected, support = precision_recall_fscore_support(true, predicted)
    rows = class_scores(matrix.tolist(), ["a", "b", "c"])
    np.testing.assert_allclose(np.array([scores for _, scores, _ in rows[:3]]), np.transpose(expected))
    np.testing.assert_allclose(rows[3][1], np.mean(expected, axis=1))
    assert [count for _, _, count in rows] == [*support, 22]
    empty = class_scores([[2, 0, 0], [0, 1, 0], [0, 0, 0]], ["a", "b", "c"])
    assert empty[2] == ("c", (None, None, None), 0)
    assert empty[3] == ("mean of the classes", (1.0, 1.0, 1.0), 3)


def test_page_of_failed_run_has_figures_and_the_failure(make_run, tmp_path):
    text = read_page(
        run_report(make_run(tmp_path, steps=5, every=5, status="failed", failure="the loss is nan", value=None, scaled=None))
    )
    assert '<p class="failure">This run failed: the loss is nan.' in text
    assert "test accuracy" in text


def test_angles_are_strips_or_for_many_symbols_a_map(make_run, tmp_path):
    few = run_report(make_run(tmp_path / "few", steps=5, every=5, symbols=3, entries=16))
    many = run_report(make_run(tmp_path / "many", steps=5, every=5, symbols=40, entries=16))
    strips, cells = (read_page(path).split("Rotation angles")[1].split("</svg>")[0] for path in (few, many))
    assert "Block 2" in strips
    assert strips.count("<circle") > 3
    assert "<circle" not in cells
    shares = [float(share) for share in re.findall(r"<title>symbol 7, [-\d.]+°: ([\d.]+)%", cells)]
    assert sum(shares) == pytest.approx(100, abs=0.5)


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
    assert "</script>" not in text
    assert "true &lt;/script&gt;, predicted b" in text


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


def test_chart_places_values_by_its_scales():
    chart = svg.Chart(200, svg.Axis(low=0, high=10), svg.Axis(low=0, high=1))
    chart.line([0, 5, 10], [0, 0.5, 1], svg.COLOURS[0])
    path = re.findall(r'd="(M[^"]*)" fill="none" stroke="var\(--blue\)"', chart.render())[0]
    (x0, y0), (x1, y1), (x2, y2) = (map(float, point.split()) for point in re.split("[ML]", path)[1:])
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.11)
    assert 0 < x0 < x2 < svg.NARROW
    assert 0 < y2 < y0 < 200


def test_line_is_interrupted_at_missing_values_and_on_a_logarithmic_axis_at_zero():
    for axis, values in ((svg.Axis(), [1, np.nan, 2]), (svg.Axis(log=True), [1, 0, 2]), (svg.Axis(), [1, None, 2])):
        chart = svg.Chart(200, svg.Axis(), axis)
        chart.line([0, 1, 2], values, svg.COLOURS[0])
        assert re.search(r'd="M[^ML]*M[^ML]*" fill="none" stroke="var\(--blue\)"', chart.render())


def test_line_of_one_point_is_a_circle():
    for values, circles in (([2.0], 1), ([np.nan, 2.0], 1), ([1.0, 2.0], 0), ([1.0, None, 2.0, 3.0, np.nan, 4.0], 2)):
        chart = svg.Chart(100, svg.Axis(), svg.Axis())
        chart.line(range(len(values)), values, svg.COLOURS[0])
        assert str(chart.render()).count("<circle") == circles


@pytest.mark.parametrize("values", [[2.2, 4.5], [5.5e-5, 9e-5], [3.0, 3.1], [1.0, 9.0], [1e-3, 1e6]])
def test_logarithmic_axis_has_ticks_for_every_range(values):
    chart = svg.Chart(300, svg.Axis(), svg.Axis(log=True))
    chart.line(range(2), values, svg.COLOURS[0])
    ticks = chart._scales()[1].ticks(6)
    assert len(ticks) >= 2
    assert all(values[0] / 4 < value < values[1] * 4 for value, _ in ticks)


def test_map_of_a_forecast_is_explained_as_that_of_a_number():
    line = {"times": [0, 1], "values": [0.0, 1.0]}
    relevance = {"names": ["x"], "times": [0, 1], "values": [[0.5, -0.2]]}
    variable = {"name": "x", "known": line, "truth": line, "answer": line}
    example = {"error": "median", "variables": [variable], "relevance": relevance}
    found = {"kind": "values", "n_examined": 3, "coverage": None, "examples": [example]}
    text = " ".join(map(str, example_section(found)))
    assert "Blue raises the number" in text
    assert "supports the answer" not in text
    text = " ".join(map(str, example_section(found | {"has_corrections": True})))
    assert "a ridge regression plus a correction by the network" in text
    assert "Blue raises the correction" in text


@pytest.mark.parametrize("key", ["n_examined", "looked_at"])  # the second is that of folders of earlier versions
def test_order_of_answers_names_wrong_ones_only_if_there_are_any(key):
    found = {"kind": "classes", key: 24, "wrong": 0, "examples": [{}]}
    _, text = itertools.islice(example_section(found), 2)
    assert "None of 24 test examples has a wrong answer. The least certain right ones come first." in str(text)
    _, text = itertools.islice(example_section(found | {"wrong": 2}), 2)
    assert "2 of 24 test examples have a wrong answer. The most certain wrong answers come first, then" in str(text)
    assert "standard deviations" not in str(text)
    _, text = itertools.islice(example_section(found | {"standardised": True}), 2)
    assert "come first. The values of a channel are in standard deviations of the training series." in str(text)


def test_thinned_line_keeps_its_extremes():
    y = np.random.default_rng(0).normal(size=100_000)
    y[70_000:70_100] = np.nan
    x, thinned = svg.thin(np.arange(100_000), y)
    assert len(x) <= svg.MAX_POINTS
    assert (np.diff(x) > 0).all()
    assert (np.nanmin(thinned), np.nanmax(thinned)) == (np.nanmin(y), np.nanmax(y))
    np.testing.assert_array_equal(svg.thin(np.arange(5), y[:5])[1], y[:5])


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0, 1, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (-3, 3, ["−2", "0", "2"]),
        (0, 30_000, ["0", "10,000", "20,000", "30,000"]),
        (0, 4e-6, ["0", "1 × 10⁻⁶", "2 × 10⁻⁶", "3 × 10⁻⁶", "4 × 10⁻⁶"]),
        (0.25, 0.26, ["0.250", "0.252", "0.254", "0.256", "0.258", "0.260"]),
    ],
)
def test_ticks_are_round_numbers(low, high, texts):
    count = {3: 3, 4: 3}.get(len(texts), 5)
    assert [text for _, text in svg.linear_ticks(low, high, count)] == texts


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (3, 3, ["3"]),
        (7, 2, ["2", "4", "6"]),
        (-0.3, -0.1, ["−0.30", "−0.25", "−0.20", "−0.15", "−0.10"]),
        (0, 1e-300, ["0", "0.5 × 10⁻³⁰⁰", "1.0 × 10⁻³⁰⁰"]),
        (-1e300, 1e300, ["−1 × 10³⁰⁰", "0", "1 × 10³⁰⁰"]),
        (-1.7e308, 1.7e308, ["−1 × 10³⁰⁸", "0", "1 × 10³⁰⁸"]),
        (0, 5e-324, ["0"]),
        (0, float("nan"), []),
        (float("-inf"), 0, []),
    ],
)
def test_ticks_of_extreme_ends(low, high, texts):
    assert [text for _, text in svg.linear_ticks(low, high, 4 if low == -0.3 else 3)] == texts


def test_ticks_of_percentages_have_short_texts():
    assert [text for _, text in svg.linear_ticks(0, 1, 2, percent=True)] == ["0 %", "50 %", "100 %"]
    assert [text for _, text in svg.linear_ticks(0, 1e-7, 2, percent=True)] == ["0 %", "0.5 × 10⁻⁵ %", "1.0 × 10⁻⁵ %"]
    assert [text for _, text in svg.linear_ticks(0, 2e30, 2, percent=True)] == ["0 %", "1 × 10³² %", "2 × 10³² %"]


EXTREMES = (0.0, 1.0, 1.0 + 1e-15, -1.0, 5e-324, 1e-300, -1e-300, 1e300, 1.7e308, -1.7e308, 1e17, float("nan"), float("inf"))


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.filterwarnings("error")
def test_charts_show_every_float(log):
    """Charts of runs that diverge: no error, and no coordinate is NaN or infinite."""
    for one, other in itertools.product(EXTREMES, EXTREMES):
        chart = svg.Chart(100, svg.Axis(log=log), svg.Axis(log=log))
        chart.line([one, other], [other, one], "red")
        chart.bars([0, 1], [one, other], "red")
        chart.intervals([1, one], [1, 2], [other, 1], "red")
        chart.cells([one, other], [0, 1], [0.5, 0.5], "red")
        chart.horizontal_line(one, "")
        text = str(chart.render())
        assert not re.search(r"\b(nan|inf)\b", text), (one, other)


def test_pictures_of_inspect_are_in_the_order_of_examples_and_layers(make_run, tmp_path):
    folder = make_run(tmp_path / "run")
    assert "attends to in time" not in read_page(run_report(folder))
    (folder / "inspection").mkdir()
    for name in ("test_10", "test_2_blocks_10_block_layer", "test_2_blocks_9_block_layer", "test_2", "notes"):
        (folder / "inspection" / f"{name}.png").write_bytes(b"\x89PNG")
    text = read_page(run_report(folder))
    assert "What the model attends to in time" in headings(text)
    assert re.findall(r'alt="(.*?)"', text) == [
        "Test example 2",
        "Test example 2, blocks 9 block layer",
        "Test example 2, blocks 10 block layer",
        "Test example 10",
    ]
    assert re.findall(r"<h3>(Test example .*?)</h3>", text) == ["Test example 2", "Test example 10"]
    checker = TagChecker()
    checker.feed(text)
    assert checker.open == []
