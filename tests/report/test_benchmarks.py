"""benchmarks/run.py with small sizes: selection of cases, rows, pages, figures, and rows of failed measurements."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from longscan.ops import _triton_launch
from longscan.report import read_records
from longscan.report.records import append_record

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import harness
import page
import run as command
import stack_share
from cases import (
    CASES,
    blocks,
    classification,
    forecasts,
    hard_series,
    loaders,
    long_series,
    regression,
    short_series,
    systems,
    unequal_classes,
)

ROOT = Path(__file__).parents[2]


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *argv: str) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmarks/run.py", "--quick", "--threads", "1", "--out", str(out), *argv])
    return command.main()


def test_cases_have_unique_names_and_can_be_selected():
    names = [f"{case.suite}/{case.name}" for case in CASES]
    assert len(set(names)) == len(names)
    assert {case.suite for case in command.selected(["cpu"])} == {"cpu"}
    assert [case.name for case in command.selected(["s6", "token"])] == ["s6", "token"]
    assert {case.name for case in command.selected(["systems/length S"])} >= {"length S5", "length S7", "length S6 (Mamba)"}
    with pytest.raises(SystemExit, match=r"`--only` must be a suite, .*, got 's66'"):
        command.selected(["s66"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_kernels_of_gpus_need_a_gpu_or_the_interpreter(monkeypatch, tmp_path):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(SystemExit, match=r"need a CUDA device; without one, `TRITON_INTERPRET=1 .* --quick --only gpu/linear`"):
        run(monkeypatch, tmp_path / "bench", "--only", "gpu/linear")


def test_without_ptx_kernels_are_compiled_for_any_gpu(monkeypatch, tmp_path):
    from longscan.ops import _triton_launch

    monkeypatch.setattr(_triton_launch, "special_functions", lambda _: True)
    assert run(monkeypatch, tmp_path, "--only", "token", "--limit", "0", "--without-ptx") == 0
    assert not _triton_launch.special_functions(torch.empty(0))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("system", systems.SYSTEMS, ids=lambda system: system.name)
def test_systems_have_equal_sizes(system):
    assert system.parameters == pytest.approx(600_000, rel=0.04)


def test_variants_have_the_sizes_of_the_thesis():
    sizes = {system.name: system.parameters for system in systems.VARIANTS}
    assert sizes["S6"] == sizes["S6, recompute"] == pytest.approx(587_000, rel=0.01)  # Table 3
    assert sizes["S6, rotary, learned"] - sizes["S6, rotary, fixed"] == 696  # section 14.3.2
    assert sizes["S6, bidirectional"] == sizes["S6, placebo"]
    assert sizes["S6, speed-matched"] == pytest.approx(1_200_000, rel=0.01)  # Table 6


def test_systems_are_measured_and_plotted(monkeypatch, tmp_path):
    out = tmp_path / "bench"
    assert run(monkeypatch, out, "--only", "systems/length S5", "systems/heads", "overhead") == 0
    rows = read_records(out / "systems.jsonl")
    assert {row["figure"] for row in rows} == {"length", "overhead", "heads"}
    refused = {row["variant"] for row in rows if "reason" in row}
    assert refused <= {"attention, cuDNN", "attention, memory-efficient"}, "kernels for a GPU"
    for row in rows:
        timed = row["forward_ms"] is not None and row["forward_backward_ms"] is not None
        assert timed != ("reason" in row)
    kernels = {row["variant"]: " ".join(row.get("kernels", ())) for row in rows if row["figure"] == "heads"}
    assert "flash" in kernels["attention"]
    assert "flash" in kernels["attention layer"]
    assert "flash" not in kernels["attention, no fused kernel"]
    assert (out / "systems.png").stat().st_size > 10_000
    text = (out / "systems.md").read_text("utf-8")
    for row in rows:
        assert f"| {row['variant']} |" in text
    (out / "systems.md").unlink()
    monkeypatch.setattr(page, "draw", lambda *_: None)  # takes seconds; the first call has drawn the figure
    assert run(monkeypatch, out, "--only", "systems", "--pages") == 0
    assert (out / "systems.md").read_text("utf-8") == text


@pytest.mark.parametrize("lengths", [[8], [8, 16, 32]])
def test_a_peak_below_what_can_be_measured_is_not_drawn(tmp_path, lengths):
    row = {"op": "toy", "peer": None, "backend": "cpu", "dtype": "float32", "forward_ms": 1.0, "peak_mib": -0.1}
    page.draw([row | {"shape": {"B": 2, "L": length}} for length in lengths], tmp_path / "toy.png")  # a warning is an error
    assert (tmp_path / "toy.png").stat().st_size > 1000


@pytest.mark.slow
def test_op_is_compared_with_its_peers(monkeypatch, tmp_path):
    assert run(monkeypatch, tmp_path / "bench", "--only", "aussm") == 0
    *rows, memory = read_records(tmp_path / "bench" / "cpu.jsonl")
    assert [row["peer"] for row in rows] == [
        None, "plain torch loop", "plain torch separable", "torch associative_scan, eager"
    ]  # fmt: skip
    assert all(0 < row["error_vs_float64"] < 1e-4 and len(row["forward_runs_ms"]) == 2 for row in rows)
    assert memory["extra_share"] == pytest.approx(memory["extra_mib"] / (memory["peak_mib"] - memory["extra_mib"]), rel=2)


def make_case(function, **more) -> harness.Case:
    x = torch.ones(2, 3)

    def build(_):
        return {"ours": harness.differentiable(function, [x]), "peer": harness.differentiable(torch.sin, [x], peer="peer")}

    def truth(_):
        return harness.differentiable(torch.sin, [x.double()]).results()

    shapes = [{"B": 2, "L": 3}, {"B": 2, "L": 6}]
    return harness.Case(suite="cpu", name="toy", op="toy", shapes=shapes, quick_shape=shapes[0], build=build, truth=truth, **more)


def test_incorrect_result_raises_before_timing():
    with pytest.raises(SystemExit, match="toy, ours: error"):
        harness.compare(make_case(lambda x: x.sin() + 1e-3), {"B": 2, "L": 3}, runs=1, quick=True)


def test_row_has_shortfall_of_needed_speed():
    case = make_case(torch.sin, needs={("peer", "forward"): 1e9}, limits=[(1e9, 1e-9)])
    row, _ = harness.compare(case, case.shapes[0], runs=1, quick=False)
    assert len(row["needed"]) == 3
    assert [text.partition(":")[0] for text in row["shortfall"]] == ["forward", "forward_backward"]


def test_longer_shapes_are_skipped_after_a_failure(monkeypatch):
    def fake_compare(case, shape, *, runs, quick):
        if shape["L"] > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return [{"forward_ms": 1.0, "forward_backward_ms": milliseconds}]

    monkeypatch.setattr(command, "compare", fake_compare)
    options = type("Options", (), {"quick": False, "end": float("inf"), "runs": 1})
    milliseconds = 1.0
    shape_rows = list(command.rows_of(make_case(torch.sin, may_fail=True), options))
    assert [rows[0].get("reason") for rows in shape_rows] == [None, "out of memory"]
    milliseconds = 3000.0
    shape_rows = list(command.rows_of(make_case(torch.sin, may_fail=True), options))
    assert [rows[0].get("reason") for rows in shape_rows] == [None, "over 4 s a call"]
    options.end = 0
    assert list(command.rows_of(make_case(torch.sin), options)) == []


def test_attempt_returns_runtime_errors_as_reasons_only():
    def fail(error: Exception) -> None:
        raise error

    assert harness.attempt(lambda: fail(RuntimeError("no kernel. More of it"))) == {"reason": "failed: no kernel"}
    with pytest.raises(KeyError):
        harness.attempt(lambda: fail(KeyError("forward_ms")))


def test_latest_row_of_a_measurement_is_used(monkeypatch, tmp_path):
    monkeypatch.setattr(page, "draw", lambda *_: None)
    for _ in range(2):
        run(monkeypatch, tmp_path / "bench", "--only", "systems/length LRU")
    rows = read_records(tmp_path / "bench" / "systems.jsonl")
    assert len(rows) == 2
    assert page.latest(tmp_path / "bench" / "systems.jsonl") == rows[1:]


def test_pages_have_the_recorded_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(page, "draw", lambda *_: None)
    (tmp_path / "bench").mkdir()
    for name in ("cpu", "gpu_scaling"):
        path = tmp_path / "bench" / f"{name}.jsonl"
        path.write_bytes((ROOT / "results/bench" / path.name).read_bytes())
        page.write_page(path)
        assert all(page.label_of(row) in path.with_suffix(".md").read_text("utf-8") for row in page.latest(path))


def test_blocks_with_the_weights_of_the_peer_give_its_results():
    shape = {"B": 2, "L": 5, "d_model": 8, "N": 4}
    assert max(harness.measure_errors(next(case for case in blocks.CASES if case.name == "block"), shape).values()) < 1e-5


def test_loader_row_has_batch_times(monkeypatch, tmp_path):
    recipe = str(ROOT / "recipes/aussm/parity.yaml")
    assert run(monkeypatch, tmp_path / "bench", "--only", "loaders", "--recipes", recipe) == 0
    (row,) = read_records(tmp_path / "bench" / "loaders.jsonl")
    assert row["variant"] == "aussm/parity"
    assert len(row["runs"]) == 3
    assert min(row["runs"]) <= row["batch_ms"] <= max(row["runs"])
    assert "| aussm/parity | " in (tmp_path / "bench" / "loaders.md").read_text("utf-8")


def test_update_time_is_that_of_the_fastest_gpu_run():
    runs = [
        {"recipe": "recipes/a/b.yaml", "device": device, "seconds": seconds, "steps": 10}
        for device, seconds in (("NVIDIA H200", 3.0), ("NVIDIA H200", 2.0), ("cpu", 1.0))
    ]
    assert loaders.update_ms("a/b", runs) == pytest.approx(200)
    assert loaders.update_ms("a/c", runs) is None


def test_missing_data_exit_with_a_message(monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match=r"cifar10.yaml: `task.data_dir` must be a folder with CIFAR-10"):
        run(monkeypatch, tmp_path / "bench", "--only", "loaders", "--recipes", str(ROOT / "recipes/afternoon/cifar10.yaml"))


def test_forecasts_have_a_row_for_each_case_and_are_not_measured_twice(monkeypatch, tmp_path):
    steps = np.arange(1200)
    random = np.random.default_rng(0)
    waves = {name: np.sin(2 * np.pi * steps / 24) + 0.1 * random.standard_normal(1200) for name in ("HUFL", "OT")}
    (tmp_path / "forecasting").mkdir()
    pd.DataFrame(waves, index=pd.Index(steps, name="date")).to_csv(tmp_path / "forecasting" / "ETTh1.csv")
    monkeypatch.setenv("LONGSCAN_DATA", str(tmp_path))
    names = ["forecasts/constant", "forecasts/seasonal_naive", "forecasts/ridge"]
    assert run(monkeypatch, tmp_path / "forecasts", "--only", *names) == 0
    rows = read_records(tmp_path / "forecasts" / "forecasts.jsonl")
    assert len(rows) == 6
    for channels in ("OT", "all"):
        errors = {row["model"]: row["mse"] for row in rows if row["channels"] == channels}
        assert 0.01 < errors["ridge"] < errors["seasonal naive"] < errors["constant"]
    text = (tmp_path / "forecasts" / "forecasts.md").read_text("utf-8")
    assert all(f"{row['mse']:.3f} / {row['mae']:.3f}" in text for row in rows)
    options = type("Options", (), {"quick": False, "end": float("inf"), "runs": 1, "out": tmp_path / "forecasts", "name": None})
    monkeypatch.setattr(forecasts, "SETS", forecasts.SETS[:1])
    monkeypatch.setattr(forecasts, "HORIZONS", (24,))
    assert list(forecasts.rows_of(options, name="constant")) == []
    # Rows that another default has replaced are measured again, and are not in the tables.
    replaced = [row | {"replaced": "because of its test errors"} for row in rows if row["model"] == "constant"]
    for row in replaced:
        append_record(tmp_path / "forecasts" / "replaced.jsonl", row)
    options.name = "replaced"
    monkeypatch.setattr(forecasts, "measure", lambda *case: case[1])
    assert list(forecasts.rows_of(options, name="constant")) == ["OT", "all"]
    assert forecasts.tables(replaced + rows) == forecasts.tables(rows)
    assert forecasts.tables(replaced) == forecasts.tables([])


def test_errors_on_short_series_are_those_of_the_better_naive_forecast(monkeypatch, tmp_path):
    months = np.arange(40)
    series = [short_series.Series(0.2 * months + 9 * np.sin(months * np.pi / 6), 12), short_series.Series(2.0 * np.arange(30), 1)]
    monkeypatch.setattr(short_series, "READERS", {"R": lambda: [*series, short_series.Series(np.ones(50), 1)]})
    names = ["short_series/last_value", "short_series/seasonal_naive", "short_series/mean_change"]
    assert run(monkeypatch, tmp_path / "short_series", "--only", *names) == 0
    found = {row["model"]: row["ratios"] for row in read_records(tmp_path / "short_series" / "short_series.jsonl")}
    assert found["seasonal naive"] == [1, 1]
    assert found["last value"][0] > 1
    assert found["last value"][1] == 1
    assert found["mean change"][1] == 0
    assert "| R | 2 |" in (tmp_path / "short_series" / "short_series.md").read_text("utf-8")
    assert 0 < short_series.error("SSMForecaster", series[0]) < short_series.error("seasonal naive", series[0])


def test_hard_series_are_what_their_names_say(monkeypatch):
    hours = np.arange(9000.0)
    table = np.stack([np.sin(hours * np.pi / 12), hours % 7], 1)
    monkeypatch.setattr(hard_series, "read_hours", lambda _: table)
    length, age = hard_series.LENGTH, hard_series.AGE
    for source in ("real", "made up"):
        plain, moved = (hard_series.GROUPS[f"{kind}, {source}"](1) for kind in ("no shift", "shift"))
        change = np.r_[moved.past, moved.ahead] - np.r_[plain.past, plain.ahead]
        np.testing.assert_allclose(change, hard_series.SHIFT * (np.arange(len(change)) >= length - age))
    for seed in range(4):
        rises = hard_series.trend(seed).past
        assert abs(np.corrcoef(rises, np.arange(length))[0, 1]) > 0.9
    gaps = hard_series.missing_hours(0)
    assert 0.7 * length < len(gaps.past) < 0.85 * length
    assert np.diff(gaps.times).max() > hard_series.MISSING_DAY
    np.testing.assert_allclose(hard_series.filled(gaps)[gaps.times.astype(int)], gaps.past)
    uneven = hard_series.uneven_times(0)
    assert np.diff(uneven.times).max() > 20
    assert len(hard_series.filled(uneven)) > length
    errors = {name: hard_series.error(name, hard_series.GROUPS["no shift, made up"](0)) for name in ("last value", "ridge")}
    assert errors["ridge"] < errors["last value"]
    repeated = hard_series.Series(table[: 2 * length, 0], table[2 * length : 2 * length + hard_series.HORIZON, 0])
    assert hard_series.error("seasonal naive", repeated) < 1 + 1e-9


def test_page_of_forecasts_has_the_recorded_rows():
    path = ROOT / "results" / "forecasts" / "forecasts.jsonl"
    tables = page.read_section(forecasts.PAGE, forecasts.SECTION)
    assert tables.strip() == (forecasts.tables(read_records(path)).strip() if path.exists() else "")


@pytest.mark.parametrize("case", [short_series, hard_series])
def test_page_of_forecasts_has_the_recorded_ratios(case):
    path = ROOT / "results" / "short_series" / f"{case.SECTION.replace(' ', '_')}.jsonl"
    written = page.read_section(case.PAGE, case.SECTION)
    assert written.strip() == (case.table(read_records(path)).strip() if path.exists() else "")


def test_classification_has_a_row_for_each_case_and_is_not_measured_twice(monkeypatch, tmp_path):
    random = np.random.default_rng(0)
    folder = tmp_path / "uea" / "BasicMotions"
    folder.mkdir(parents=True)
    for part in ("TRAIN", "TEST"):
        waves = [np.sin((0.4 + 0.5 * (row % 2)) * np.arange(20 + row) + random.uniform(0, 6)) for row in range(12)]
        lines = [",".join(f"{value:.4f}" for value in wave) + f":{row % 2}" for row, wave in enumerate(waves)]
        (folder / f"BasicMotions_{part}.ts").write_text("@classLabel true 0 1\n@data\n" + "\n".join(lines) + "\n")
    monkeypatch.setenv("LONGSCAN_DATA", str(tmp_path))
    classification.read_set.cache_clear()
    out = tmp_path / "classification"
    assert run(monkeypatch, out, "--only", "classification/SSMClassifier", "classification/constant") == 0
    rows = read_records(out / "classification.jsonl")
    assert {row["method"]: row["accuracy"] > 0.8 for row in rows} == {"SSMClassifier": True, "constant": False}
    text = (out / "classification.md").read_text("utf-8")
    assert all(f"| {row['method']} | 1 | {row['accuracy']:.3f} |" in text for row in rows)
    options = type("Options", (), {"quick": False, "end": float("inf"), "runs": 1, "out": out, "name": None})
    monkeypatch.setattr(classification, "SETS", ("BasicMotions",))
    assert list(classification.rows_of(options, name="constant")) == []
    classification.read_set.cache_clear()


def write_long_series(folder: Path) -> None:
    """Write events, bases and gestures of two classes that a classifier tells apart."""
    random = np.random.default_rng(0)
    events = folder / "events"
    events.mkdir()
    lists = {"train1K.txt": range(8), "test100.txt": range(8, 16)}
    for name, numbers in lists.items():
        (events / name).write_text("#sample #class\n" + "".join(f"{number}\t{number % 2}\n" for number in numbers))
        for number in numbers:
            x = random.integers(17 * (number % 2), 17 * (number % 2) + 17, 60)
            rows = np.stack([x, random.integers(0, 34, 60), np.zeros(60), np.zeros(60), np.arange(60)], 1)
            (events / f"{number}.bs2").write_bytes(rows.astype(np.uint8).tobytes())
    for region in ("ENm001", "ENm002"):
        (folder / "dna" / region).mkdir(parents=True)
        for species in long_series.SPECIES:
            bases = "".join(random.choice(list("ACGT"), 400))
            (folder / "dna" / region / f"{species}.{region}.fa").write_text(f">one\n{bases}\n")


def test_long_series_are_read_and_scored(monkeypatch, tmp_path):
    write_long_series(tmp_path)
    monkeypatch.setenv("LONGSCAN_DATA", str(tmp_path))
    for name, value in (("EVENTS_EACH", 8), ("BASES_STEPS", 100), ("BASES_TRAIN", 3), ("BASES_TEST", 2)):
        monkeypatch.setattr(long_series, name, value)
    events = long_series.read_events(train=True)
    assert events.labels.tolist() == [0, 1] * 4
    assert {len(part) for part in events.series} == {60}
    bases = long_series.read_bases(train=False)
    assert [part.shape for part in bases.series] == [(100, 4)] * 8
    assert all((part.sum(1) == 1).all() for part in bases.series)
    rows = [long_series.fit_and_score("events", name, 0, 1, False) for name in ("SSMClassifier", "constant")]
    assert [row["accuracy"] for row in rows] == [1.0, 0.5]
    assert all(row["peak_mib"] >= 0 for row in rows)
    table = long_series.table([row | {"commit": "0123456"} for row in rows])
    assert "| events | 60 | constant | 1 | 0.500 | 0.0 | 0.0 | " in table


def test_joined_gestures_have_a_majority(monkeypatch):
    kinds = np.repeat(np.arange(4), 5)
    part = classification.Part([np.full((6, 1), float(kind)) for kind in kinds], kinds)
    monkeypatch.setattr(long_series, "read_set", lambda _: (part, part))
    found = long_series.read_gestures(train=False)
    assert len(found.series) == long_series.GESTURES_TEST
    for values, label in zip(found.series, found.labels, strict=True):
        assert len(values) == 6 * long_series.GESTURES_JOINED
        assert (values == label).sum() == 6 * long_series.MAJORITY


def test_unequal_classes_are_thinned_and_scored_by_class(monkeypatch, tmp_path):
    labels = np.repeat(["a", "b", "c"], [20, 20, 3])
    part = classification.Part([np.full((6, 1), float(row)) for row in range(len(labels))], labels)
    thinned = unequal_classes.thin(part, 0.2, 0)
    assert np.unique(thinned.labels, return_counts=True)[1].tolist() == [20, 4, 3]
    assert all(labels[int(series[0, 0])] == label for series, label in zip(thinned.series, thinned.labels, strict=True))
    assert not np.array_equal(unequal_classes.thin(part, 0.2, 1).series, thinned.series)
    assert np.unique(unequal_classes.thin(part, 0.01, 0).labels).tolist() == ["a", "b", "c"]  # none is left out
    monkeypatch.setattr(unequal_classes, "SETS", {"made up": unequal_classes.Thinned("made up", kept=0.2)})
    monkeypatch.setattr(unequal_classes, "read_set", lambda _: (part, part))
    out = tmp_path / "classification"
    options = type("Options", (), {"quick": False, "end": float("inf"), "runs": 2, "out": out, "name": None})
    rows = list(unequal_classes.rows_of(options, name="constant"))
    assert [row["seed"] for row in rows] == [0, 1]  # another draw for each seed
    assert {row["balanced_accuracy"] for row in rows} == {1 / 3}
    assert {row["accuracy"] for row in rows} == {20 / 43}
    (row,) = (row for row in unequal_classes.table(rows).splitlines() if row.startswith("| made up"))
    assert row == "| made up | 3, 20 | 0.333 / 0.465 |"


def test_regression_has_a_row_for_each_case_and_is_not_measured_twice(monkeypatch, tmp_path):
    hours = np.arange(2000)
    table = pd.DataFrame({"date": hours, "WetBulbCelsius": np.sin(hours / 100), "other": np.cos(hours / 7)})
    (tmp_path / "forecasting").mkdir()
    table.to_csv(tmp_path / "forecasting" / "WTH.csv", index=False)
    monkeypatch.setenv("LONGSCAN_DATA", str(tmp_path))
    monkeypatch.setattr(regression, "SETS", {"WTH": regression.read_weather})
    out = tmp_path / "regression"
    assert run(monkeypatch, out, "--only", "regression/SSMRegressor", "regression/constant", "regression/ridge") == 0
    errors = {row["method"]: row["rmse"] for row in read_records(out / "regression.jsonl")}
    assert errors["SSMRegressor"] < errors["constant"]
    assert errors["ridge"] < errors["constant"]
    text = (out / "regression.md").read_text("utf-8")
    assert all(f"| {name} | 1 | {error:.4f} |" in text for name, error in errors.items())
    options = type("Options", (), {"quick": False, "end": float("inf"), "runs": 1, "out": out, "name": None})
    assert list(regression.rows_of(options, name="constant")) == []


@pytest.mark.parametrize(
    ("case", "file"),
    [
        (classification, "classification/classification.jsonl"),
        (regression, "regression/regression.jsonl"),
        (long_series, "classification/long_series.jsonl"),
        (unequal_classes, "classification/unequal_classes.jsonl"),
    ],
)
def test_tables_have_the_recorded_rows(case, file):
    path = ROOT / "results" / file
    written = page.read_section(case.PAGE, case.SECTION)
    assert written.strip() == (case.table(read_records(path)).strip() if path.exists() else "")
    methods = {row["method"] for row in read_records(path) if row["commit"].endswith("+changes")} if path.exists() else set()
    marked = written.partition("From trees with uncommitted changes: ")[2]
    assert set(re.findall(r"(?:^|, )([^,]+) \(\d+ of \d+ rows\)", marked)) == methods


@pytest.mark.parametrize(
    ("name", "file"), [("docs/howto/scale.md", "context_parallel.jsonl"), ("docs/automata.md", "automata/random.jsonl")]
)
def test_pages_name_rows_from_trees_with_uncommitted_changes(name, file):
    rows = (ROOT / "results" / file).read_text("utf-8").splitlines()
    count, text = sum("+changes" in row for row in rows), " ".join((ROOT / name).read_text("utf-8").split())
    words = "uncommitted changes"
    assert count == 0 or re.search(rf"\b{count} of [^.]*{words}|{words}[^.]*\b{count} of", text)


def test_share_of_a_stack_is_large_where_it_is_right_and_zero_where_it_is_wrong():
    labels = np.arange(30) % 2
    right = np.eye(2)[labels] * 0.8 + 0.1
    unsure, wrong = np.full((30, 2), 0.5), right[:, ::-1]
    assert stack_share.combine(unsure, right, labels)[1] == 1
    combined, weight = stack_share.combine(right, wrong, labels)
    assert weight == 0
    np.testing.assert_allclose(combined, right)


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        (["ssd_scan_backward=32,8192,4"], "ssd_scan_backward as many steps as the forward pass has, 64, got 32"),
        (["nothing=1,2,3"], "`--set` must begin with one of"),
        (["ssd_scan=1"], "`--set` must be ssd_scan=STEPS,LANES,WARPS"),
        (["ssd_scan=32,8192,4", "ssd_scan_backward=32,8192,4"], None),
    ],
)
def test_launches_that_would_not_be_used_are_refused(entries, error, monkeypatch, capsys):
    monkeypatch.setattr(_triton_launch, "TABLE", dict(_triton_launch.TABLE))
    parser = argparse.ArgumentParser()
    if error is None:
        harness.set_launches(parser, entries)
        assert _triton_launch.TABLE["ssd_scan_backward"].steps == 32
        return
    with pytest.raises(SystemExit):
        harness.set_launches(parser, entries)
    assert error in capsys.readouterr().err


def test_kernels_of_a_source_tree_are_imported_from_it_despite_an_editable_installation(tmp_path: Path) -> None:
    (tmp_path / "tree" / "src" / "longscan" / "ops").mkdir(parents=True)
    for folder in ("longscan", "longscan/ops"):
        (tmp_path / "tree" / "src" / folder / "__init__.py").touch()

    def import_from(tree: Path) -> subprocess.CompletedProcess[str]:
        program = f"import pathlib, kernels_old_new; kernels_old_new.import_from(pathlib.Path({str(tree)!r}))"
        command = [sys.executable, "-c", f"{program}; import longscan; print(longscan.__file__)"]
        return subprocess.run(command, cwd=ROOT / "benchmarks", capture_output=True, text=True, check=False)

    found = import_from(tmp_path / "tree")
    assert found.stdout.strip() == str(tmp_path / "tree" / "src" / "longscan" / "__init__.py"), found.stderr
    assert f"`TREE` must be a folder with src/longscan, got {tmp_path}" in import_from(tmp_path).stderr
