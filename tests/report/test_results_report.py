"""The report of all records: grouping, scales, intervals, failed runs, published figures."""

import re

import numpy as np
import pytest
from scipy import stats

from longscan.cli import main
from longscan.report import append_record, figures, fill_markdown, quick_markdown, results_markdown, results_report
from longscan.report.comparisons import compare, measurements
from longscan.report.published import _data, papers, published_ids, published_row, published_table, valid_score
from longscan.report.records import read_records, read_seeds
from longscan.report.results import SOURCES
from longscan.report.seeds import trained_together
from longscan.report.statistics import mean_interval


@pytest.fixture(scope="module")
def results(make_results, tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("results"))


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_mean_interval_is_that_of_students_t(n):
    values = np.random.default_rng(n).normal(size=n)
    mean, half = mean_interval(values.tolist())
    low, high = stats.t.interval(0.95, n - 1, loc=values.mean(), scale=stats.sem(values))
    np.testing.assert_allclose([mean - half, mean + half], [low, high], rtol=1e-12)


def test_mean_interval_of_one_value_is_none_and_of_no_value_raises():
    assert mean_interval([0.5]) == (0.5, None)
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([])


def test_entry_has_scaled_scores_and_number_of_failed_seeds(new_run_row):
    rows = [new_run_row(seed=i, value=0.5 + s / 2, scaled=s) for i, s in enumerate((1.0, 0.8))]
    rows.append(new_run_row(seed=2, value=None, scaled=None, status="failed"))
    (comparison,) = compare(rows)
    (entry,) = comparison.entries
    assert (entry.scores, entry.seeds, entry.failed, entry.constant) == ((1.0, 0.8), 2, 1, 0.0)
    assert entry.mean[0] == pytest.approx(0.9)
    assert [p["model"] for p in comparison.published] == ["xLSTM", "Mamba", "AUSSM", "AUSSM Hybrid"]


def test_repeated_seed_counts_once_with_mean_of_its_runs(new_run_row):
    scores = ((0, 1.0), (0, 0.6), (1, 0.9), (2, None), (2, 0.7), (3, None))
    rows = [
        new_run_row(seed=seed, scaled=s, value=s, status="failed" if s is None else "finished", date=f"2026-11-2{i}")
        for i, (seed, s) in enumerate(scores)
    ]
    ((entry,),) = (comparison.entries for comparison in compare(rows))
    assert entry.scores == pytest.approx((0.8, 0.9, 0.7))
    assert (entry.runs, entry.seeds, entry.failed) == (4, 3, 1)
    assert entry.mean == pytest.approx(mean_interval([0.8, 0.9, 0.7]))
    assert entry.notes == ("4 runs of 3 seeds: a seed counts once, with the mean of its runs",)


def test_runs_with_changed_recipe_are_separate_entry(new_run_row):
    command = "longscan train --config recipes/aussm/parity.yaml --training.seed {} --training.threads 1 --out runs/parity"
    rows = [new_run_row(seed=seed, command=command.format(seed)) for seed in (0, 1)]
    rows.append(new_run_row(command=command.format(0) + " --training.solved_at=0 --steps 9000"))
    (comparison,) = compare(rows)
    assert [(entry.setting, entry.seeds) for entry in comparison.entries] == [
        ("recipes/aussm/parity.yaml", 2),
        ("recipes/aussm/parity.yaml --training.solved_at 0 --steps 9000", 1),
    ]


def test_note_states_which_settings_a_single_run_changed(new_run_row):
    command = "longscan train --config recipes/aussm/parity.yaml --training.seed 0 --training.capture true --out runs/parity"

    def notes(command, **changes):
        (comparison,) = compare([new_run_row(command=command, **changes)])
        return comparison.entries[0].notes

    assert notes(command) == ()
    changed = command + " --training.steps 20 --model.d_model=8"
    assert notes(changed) == ("settings changed from those of recipes/aussm/parity.yaml: --training.steps 20 --model.d_model 8",)
    assert notes(changed, recipe=None) == ()
    # the settings of a published row, by `longscan reproduce`
    assert notes(changed + " --about.published='[\"r036\"]'") == ()


def test_tables_have_corrected_values_and_notes(tmp_path, new_run_row):
    corrected = {"reason": "it was persistence", "command": "correct", "commit": "0123abc", "date": "2026-11-23"}
    values = {"constant": 9.4, "constant_scaled": 0.0, "baselines": {"constant": 9.4, "persistence": 4.5}}
    row = new_run_row(paper=None, published=None, task="walker", metric="mse", value=0.5, constant=4.5)
    row |= {"corrected": corrected | {"values": values}, "replaced": "because of its test score", "chosen_on": "test"}
    append_record(tmp_path / "runs" / "rows.jsonl", row | {"note": "without the stop .67", "commit": "0123abc+changes"})
    text = results_markdown(tmp_path)
    notes = (
        "from a tree with uncommitted changes; recipe replaced: because of its test score; "
        "recipe made after test scores of other recipes had been seen; without the stop .67"
    )
    assert (
        f"| walker (protocol of AUSSM), mse | hybrid (ma) | 0.500 | 1 | 0 | 9.400 | persistence 4.500 | – | {notes} | `longscan"
        in text
    )


@pytest.mark.parametrize("kind", ["runs", "quick", "seeds", "bench"])
def test_rows_from_uncommitted_trees_are_marked_in_every_table(tmp_path, make_seeds, new_run_row, new_bench_row, kind):
    commit = {"commit": "0123abc456789+changes"}
    if kind == "seeds":
        make_seeds(tmp_path / "seeds" / "one.json", **commit)
    elif kind == "bench":
        append_record(tmp_path / "bench" / "rows.jsonl", new_bench_row(**commit))
        append_record(tmp_path / "bench" / "rows.jsonl", new_bench_row(backend="eager"))
    else:
        append_record(tmp_path / "runs" / "rows.jsonl", new_run_row(quick=kind == "quick", **commit))
    markdown = (quick_markdown if kind == "quick" else results_markdown)(tmp_path)
    assert "from a tree with uncommitted changes" in markdown
    page = results_report(tmp_path, tmp_path / "out.html").read_text("utf-8")
    assert "with uncommitted changes" in page.split("</style>")[1]


def test_a_quick_run_without_a_recipe_has_a_row(tmp_path, new_run_row):
    append_record(tmp_path / "runs" / "rows.jsonl", new_run_row(quick=True, recipe=None))
    assert "\n| – | " in quick_markdown(tmp_path)


def test_entries_of_two_recipes_have_different_names(new_run_row):
    rows = [new_run_row(recipe=r) for r in ("recipes/aussm/parity.yaml", "recipes/quick/parity.yaml", None)]
    (comparison,) = compare([*rows, new_run_row(model="Mamba", spec="mm")])
    assert [entry.name for entry in comparison.entries] == [
        "hybrid (ma), protocol of AUSSM, recipes/aussm/parity.yaml",
        "hybrid (ma), protocol of AUSSM, recipes/quick/parity.yaml",
        "hybrid (ma), protocol of AUSSM, 9000 steps",
        "Mamba (mm), protocol of AUSSM",
    ]


def test_scores_are_percentages_if_the_published_score_is(new_run_row):
    worms = new_run_row(task="EigenWorms", published="r070", value=0.86, scaled=0.825, constant=0.42, constant_scaled=0.275)
    (comparison,) = compare([worms])
    assert comparison.entries[0].scores == (82.5,)
    assert comparison.entries[0].constant == pytest.approx(27.5)


def test_missing_score_of_the_published_scale_raises(new_run_row):
    row = new_run_row()
    del row["scaled"]
    with pytest.raises(ValueError, match=r"parity \(seed 0\) must have 'scaled' for the comparison with r036, got none"):
        compare([row])


def test_unknown_published_id_raises(new_run_row):
    with pytest.raises(ValueError, match="r99999"):
        compare([new_run_row(published="r99999")])


def test_entry_of_only_failed_seeds_has_no_mean(new_run_row):
    (comparison,) = compare([new_run_row(status="failed", value=None, scaled=None)])
    assert comparison.entries[0].mean is None


def test_measurements_are_ratios_to_longscan_of_the_same_day(results, new_bench_row):
    rows = [new_bench_row(), new_bench_row(backend=None, peer="loop", forward_ms=250.0, forward_backward_ms=None)]
    (comparison,) = measurements([*rows, new_bench_row(date="2026-11-20", forward_ms=1.0)])
    assert comparison.unit == "longscan cpu"
    assert [(t.name, t.ours, t.forward, t.forward_backward) for t in comparison.timings] == [
        ("longscan cpu", True, 1.0, 1.0),
        ("loop", False, 25.0, None),
    ]


def test_repeated_measurements_have_their_median(new_bench_row):
    rows = [new_bench_row(forward_ms=ms) for ms in (10.0, 11.0, 90.0)]
    (comparison,) = measurements([*rows, new_bench_row(backend=None, peer="loop", forward_ms=110.0)])
    assert [(t.forward, t.measurements) for t in comparison.timings] == [(1.0, 3), (10.0, 1)]


def test_variant_is_compared_with_the_plain_measurement(new_bench_row):
    (comparison,) = measurements([new_bench_row(), new_bench_row(variant="recompute", forward_backward_ms=50.0)])
    assert comparison.unit == "longscan cpu"
    assert [(t.name, t.ours, t.forward_backward) for t in comparison.timings] == [
        ("longscan cpu", True, 1.0),
        ("longscan cpu, recompute", True, 1.25),
    ]


def test_rows_of_figures_and_checks_are_in_no_table(new_bench_row):
    (comparison,) = measurements([new_bench_row(), new_bench_row(figure="length"), new_bench_row(check="phase")])
    assert [t.measurements for t in comparison.timings] == [1]


def test_page_has_measured_published_constant_and_failed_rows(results, tmp_path):
    text = results_report(results, tmp_path / "out.html").read_text("utf-8")
    text = text.split("</style>")[1].split("</main>")[0]
    rows = [re.sub(r"<[^>]+>", "|", r) for r in re.findall(r"<tr.*?</tr>", text)]
    assert any("hybrid (ma), protocol of AUSSM||0.851 ± 0.468||0.410 to 1.000||4||1||longscan" in r for r in rows)
    assert any("AUSSM Hybrid||1||" in r and "measured by the paper" in r for r in rows)
    assert any("best constant predictor||0.000" in r for r in rows)
    assert any("1-NN Euclidean||0.675" in r for r in rows)
    (failed,) = re.findall(r'<tr class="failed">.*?</tr>', text)
    assert ">failed</td>" in failed
    assert "10 runs" not in text
    assert "9 runs, of which 1 failed" in text
    assert any("plain torch loop||33.10 ×||47.50 ×" in r for r in rows)
    assert text.count("</svg>") == 4


def test_provenances_of_published_scores_have_a_text():
    assert {published_row(identity)["provenance"] for identity in published_ids()} == set(SOURCES)


def test_page_has_absolute_times_only_of_gpus(results, tmp_path):
    text = results_report(results, tmp_path / "out.html").read_text("utf-8").split("</style>")[1]
    sections = dict(zip(*[iter(re.split(r"<h3>(.*?)</h3>", text.split("Speed and memory</h2>")[1])[1:])] * 2, strict=True))
    assert {name: "forward ms" in section for name, section in sections.items()} == {
        "selective_scan: B 8, L 1024, D 256, N 16, float32, cpu, 2 threads": False,
        "unitary_scan: B 8, L 1024, D 256, N 16, float32, NVIDIA H100": True,
    }


def test_rows_without_times_have_extra_memory_but_no_chart(tmp_path, new_bench_row):
    path = tmp_path / "results" / "bench" / "rows.jsonl"
    timeless = {"forward_ms": None, "forward_backward_ms": None, "error_vs_float64": None}
    append_record(path, new_bench_row(**timeless, peak_mib=207.8, extra_mib=71.8, extra_share=0.264))
    text = results_report(tmp_path / "results", tmp_path / "out.html").read_text("utf-8").split("</style>")[1].split("</main>")[0]
    assert "<svg" not in text
    header, row = [re.sub(r"<[^>]+>", "|", r) for r in re.findall(r"<tr.*?</tr>", text)]
    assert header == "||implementation||peak MiB||extra memory||measurements||"
    assert row == "||longscan cpu||207.8||26%||1||"
    assert "at most one half" in text
    assert "1 × is" not in text
    append_record(path, new_bench_row(shape={"L": 4}))
    append_record(path, new_bench_row(shape={"L": 4}, backend="eager"))
    text = results_report(tmp_path / "results", tmp_path / "out.html").read_text("utf-8").split("</style>")[1].split("</main>")[0]
    assert text.count("<svg") == 1
    assert text.count("extra memory</th>") == 1


def test_ratios_near_one_have_a_linear_axis_from_zero():
    near = figures.ratios({"plain": (None, 1.0), "recompute": (None, 1.19)}, "plain")
    far = figures.ratios({"plain": (None, 1.0), "loop": (30.0, None)}, "plain")
    assert (near.x.log, far.x.log) == (False, True)
    assert re.search(r">0\.0</text>", near.render())
    assert re.search(r">1</text>.*>20</text>", far.render())


def test_seeds_trained_together_are_compared_with_constant_and_published_scores(make_seeds, tmp_path):
    folder = tmp_path / "results"
    make_seeds(folder / "seeds" / "parity_mamba.json")
    text = results_report(folder, tmp_path / "out.html").read_text("utf-8").split("</style>")[1]
    rows = [re.sub(r"<[^>]+>", "|", r) for r in re.findall(r"<tr.*?</tr>", text)]
    cells = ["parity_mamba", "parity (protocol of AUSSM)", "Mamba (mm)", "3", "1, 0", "1.000", "-0.020 to 0.500", "0.022", "0.13"]
    assert f"||{'||'.join(cells)}||" in rows
    rate, every = re.findall(r"<svg .*?</svg>", text, re.S)
    assert re.findall(r": (\d of 3 seeds)</title>", rate) == ["0 of 3 seeds", "1 of 3 seeds", "1 of 3 seeds", "0 of 3 seeds"]
    names = re.findall(r'<text[^>]* class="name">(.*?)</text>', every)
    assert names == ["seed 0", "seed 1", "seed 2", "constant predictor", "published"]
    markdown = results_markdown(folder)
    row = (
        "| parity (protocol of AUSSM), 2,000 steps | Mamba (mm) | 3 | 1, 0 | 1.000 | -0.020 to 0.500 | 0.022 | 0.13 | – | `python"
    )
    assert row in markdown


def test_averaged_weights_are_scored_and_unpublished_model_has_no_published_score(make_seeds, tmp_path):
    row = {"step": 500, "train": [0.5], "loss": [1.0], "last": [0.1], "average": [0.999], "seconds": 7.0}
    make_seeds(tmp_path / "one.json", spec="s5*2", seeds=[4], rows=[row])
    (comparison,) = trained_together(read_seeds(tmp_path))
    assert (comparison.model, comparison.scores, comparison.successes, comparison.published) == ("s5*2", ((0.999,),), (1,), None)


def test_markdown_tables_have_the_same_numbers(results):
    text = results_markdown(results)
    assert (
        "| parity (protocol of AUSSM), scaled test accuracy | hybrid (ma) | 0.851 ± 0.468 | 4 | 1 | 0.000 | – | xLSTM 1, Mamba"
        in text
    )
    assert "| BasicMotions (archive), accuracy | hybrid (ma) | 0.975 | 1 | 0 | 0.250 | 1-NN Euclidean 0.675 | – |" in text
    assert "| plain torch loop | 33.1× | 47.5× | – | `make bench` |" in text


def test_scores_and_baselines_have_the_unit_of_the_published_score(make_results, tmp_path):
    folder = make_results(tmp_path / "results")
    row = read_records(next((folder / "runs").glob("*.jsonl")))[0] | {"suite": None, "spec": "s5", "model": "s5"}
    swings = {"task": "pendulum", "paper": "S7", "published": ["r146"], "value": 0.0127, "constant": 0.4267}
    reviews = {"task": "lra_text", "paper": "THESIS", "published": ["r278"], "value": 0.888, "constant": 0.5}
    append_record(folder / "runs" / "units.jsonl", row | swings | {"baselines": {"gru": 0.0044}})
    append_record(folder / "runs" / "units.jsonl", row | reviews | {"baselines": {}})
    text = results_markdown(folder)
    assert "| pendulum, test MSE, 1e-3 | s5 | 12.700 | 1 | 0 | 426.700 | gru 4.400 | RKN 8.43," in text
    assert "| lra_text, test accuracy, % | s5 | 88.8 | 1 | 0 | 50.0 | – | s4(old) 76," in text


def test_pages_replace_the_file_behind_a_link(results, tmp_path):
    """A link, and a device such as /dev/null, is not replaced by a file."""
    (tmp_path / "page").write_text("<!-- results -->\n<!-- /results -->\n")
    (tmp_path / "link").symlink_to(tmp_path / "page")
    fill_markdown(tmp_path / "link", results)
    assert "| " in (tmp_path / "page").read_text("utf-8")
    results_report(results, tmp_path / "link")
    assert (tmp_path / "page").read_text("utf-8").startswith("<!doctype html>")
    assert (tmp_path / "link").is_symlink()


def test_fill_markdown_replaces_text_between_marks(results, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results -->\nold\n<!-- /results -->\nafter\n")
    for _ in range(2):
        fill_markdown(page, results)
        expected = f"before\n<!-- results -->\n\n{results_markdown(results)}\n<!-- /results -->\nafter\n"
        assert page.read_text("utf-8") == expected
    page.write_text("no marks")
    with pytest.raises(ValueError, match=r"must have the lines <!-- .*, once each"):
        fill_markdown(page, results)
    assert page.read_text() == "no marks"


def test_report_command_writes_page_and_markdown(make_results, tmp_path, capsys):
    folder, page = make_results(tmp_path / "results"), tmp_path / "page.md"
    page.write_text("<!-- results -->\n<!-- /results -->\n")
    assert main(["report", str(folder), "--markdown", str(page)]) == 0
    assert results_markdown(folder) in page.read_text("utf-8")
    assert main(["report", str(folder)]) == 0
    assert "<!doctype html>" in (folder / "report.html").read_text("utf-8")[:20]
    assert main(["report", str(folder), "--markdown", str(tmp_path / "nowhere.md")]) == 2
    assert "nowhere.md" in capsys.readouterr().err
    assert main(["report", str(folder), "--markdown", str(page), "--out", str(tmp_path / "page.html")]) == 2
    assert "`--out` must be left out with --markdown" in capsys.readouterr().err


def test_page_without_records_says_that_none_exist(tmp_path):
    text = results_report(tmp_path, tmp_path / "out.html").read_text("utf-8")
    assert "There is no record of a run" in text
    assert "There is no record of a measurement" in text
    assert results_markdown(tmp_path) == "No run is recorded yet.\n\nNo measurement is recorded yet.\n"


def test_missing_folder_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`results_dir` must be a directory .*nowhere"):
        results_report(tmp_path / "nowhere", tmp_path / "out.html")


def test_published_scores_are_complete_and_consistent():
    rows = _data()["results"]
    assert len(rows) == len({r["id"] for r in rows}) == 465
    assert {r["paper"] for r in rows} == set(papers())
    assert all(r["direction"] in ("higher", "lower", "none") for r in rows)
    corrected = {r["id"]: valid_score(r) for r in rows if valid_score(r) != r["value"]}
    assert corrected["r335"] == 54
    assert corrected["r326"] is None
    assert len(published_table("r036")) == 4


def test_new_record_changes_the_report(results, make_results, tmp_path, new_run_row):
    folder = make_results(tmp_path / "results")
    append_record(folder / "runs" / "more.jsonl", new_run_row(seed=5, value=0.75, scaled=0.5))
    assert "| 5 | 1 |" in results_markdown(folder)
    assert "| 5 | 1 |" not in results_markdown(results)
