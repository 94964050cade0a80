"""The commands on a user's own file: train, predict and show, from CSV to answers with ids."""

import csv
import json
import re
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from command_lines import replace_options
from longscan.cli import main
from longscan.cli.fitting import _print_baselines
from longscan.tasks.series import labelled
from longscan.training import Run, trainer
from longscan.training.evaluate import error_quantiles
from made_up import labelled_series, table_to_forecast

QUICK = ["--steps", "3", "--model.d_model", "4", "--model.d_state", "2", "--training.device", "cpu", "--training.trackers", "[]"]
COLUMNS = ["--id", "unit", "--time", "second", "--channels", "force,speed"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(labelled_series(tmp_path_factory.mktemp("own"))["path"])


@pytest.fixture(scope="module")
def run(table: Path) -> str:
    out = str(table.parent / "run")
    assert main(["train", str(table), "--label", "kind", *COLUMNS, *QUICK, "--out", out]) == 0
    return out


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_predictions_have_ids_and_the_probabilities_of_all_classes(run, table, capsys):
    capsys.readouterr()
    assert main(["predict", run, str(table)]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert [row["id"] for row in rows] == [f"u{number}" for number in range(40)]
    assert list(rows[0]) == ["id", "class", "probability", "probability_a", "probability_b", "probability_c"]
    for row in rows:
        chances = {name: float(row[f"probability_{name}"]) for name in "abc"}
        assert sum(chances.values()) == pytest.approx(1)
        assert row["class"] == max(chances, key=chances.get)
        assert float(row["probability"]) == chances[row["class"]]


def test_folder_of_a_run_in_place_of_a_file_is_an_error(run, capsys):
    capsys.readouterr()
    assert main(["train", run, "--label", "kind"]) == 2
    error = capsys.readouterr().err
    assert "`FILE` must be your own file or folder of series, not the folder of a run, which `longscan train --resume" in error


def test_labels_of_a_file_to_predict_are_ignored_with_a_warning(run, table, tmp_path, capsys, caplog):
    frame = pd.read_csv(table)
    frame.assign(kind=None).to_csv(empty := tmp_path / "empty.csv", index=False)
    frame.assign(kind=range(len(frame))).to_csv(differing := tmp_path / "differing.csv", index=False)
    frame.drop(columns="kind").to_csv(without := tmp_path / "without.csv", index=False)
    capsys.readouterr()
    answers = []
    for file in (table, empty, differing, without):
        caplog.clear()
        assert main(["predict", run, str(file)]) == 0
        answers.append(capsys.readouterr().out)
        text = f"{file}: its labels are ignored; `longscan eval` scores the series that were read for training"
        assert caplog.messages == ([] if file == without else [text])
    assert answers == answers[:1] * 4


def test_what_was_understood_comes_first(table, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(table), "--label", "load", *COLUMNS, *QUICK, "--task.test_fraction", "0.25"]) == 0
    lines = capsys.readouterr().out.splitlines()
    named = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[:10]}
    assert named["series"] == "40, named by unit"
    assert named["channels"] == "2: force, speed"
    assert named["numbers"].startswith("in load: ")
    assert named["split"].startswith("24 train, 6 valid, 10 test series")
    assert named["training"].startswith("3 updates of 8 examples")
    assert lines[10].split() == ["run", "runs/units", "(`--out`)"]
    assert (tmp_path / "runs" / "units" / "report.html").is_file()
    task, model = Run("runs/units").settings.task, Run("runs/units").model()
    batch = task.batch("test", 0, task.size("test"))
    with torch.no_grad():
        output = model(batch.inputs, valid=batch.valid)
    answers, truth = (task.decode(values, batch) for values in (output, batch.targets))
    errors = [row["load"] - other["load"] for row, other in zip(answers, truth, strict=True)]
    rmse = sum(error**2 for error in errors) / len(errors)
    assert f"test root mean squared error of load, in its units: {rmse**0.5:.4g}" in lines
    assert main(["predict", "runs/units", str(table)]) == 0
    assert list(rows_of(capsys.readouterr().out)[0]) == ["id", "load"]


def test_names_with_commas_are_given_in_double_quotes(table, tmp_path, capsys):
    """In --target and --known, too. The error for an unknown column shows names in the form in which they are given."""
    frame = pd.read_csv(table).rename(columns={"speed": "speed, mean"})
    frame.to_csv(file := tmp_path / "named.csv", index=False)
    words = ["show", str(file), "--id", "unit", "--time", "second", "--out", str(tmp_path / "shown.png")]
    assert main([*words, "--label", "load", "--channels", 'force, "speed, mean"']) == 0
    assert "channels  2: force, speed, mean" in capsys.readouterr().out
    channels = ["--channels", 'force,"speed, mean"', "--known", '"speed, mean"']
    assert main([*words, "--target", "force", "--horizon", "2", *channels]) == 0
    assert "known     at the steps of the forecast: speed, mean" in capsys.readouterr().out
    assert main([*words, "--label", "load", "--channels", "force,speed, mean"]) == 2
    assert """its columns are unit, second, force, "speed, mean", kind, load, got 'speed'""" in capsys.readouterr().err
    assert main(words) == 2
    assert 'one of unit, second, force, "speed, mean", kind, load in ' in capsys.readouterr().err
    assert main([*words, "--label", "load", "--channels", 'force,"speed']) == 2
    needed = "names of columns, separated by commas, of which those with a comma are in double quotes"
    assert f"`--channels` must be {needed}, got 'force,\"speed'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("higher", "value", "said"),
    [
        (True, 0.9, None),
        (True, 0.7999999, None),  # 0.8 as float32 may have it
        (True, 0.7, "on these test data ridge is better than the model"),
        (False, 0.9, "on these test data season and ridge are better than the model"),
        (False, 0.6, "on these test data season is better than the model"),
        (False, 0.5, None),
    ],
)
def test_predictors_that_are_better_than_the_model_are_named(higher, value, said, capsys):
    task = SimpleNamespace(higher_is_better=higher, baselines=lambda _: {"constant": 0.1, "season": 0.5, "ridge": 0.8})
    _print_baselines(task, value)
    assert capsys.readouterr().out.splitlines() == ["season: 0.5000", "ridge: 0.8000", *([] if said is None else [said])]


def test_errors_of_a_file_name_the_options_of_the_command(tmp_path, capsys):
    assert main(["train", "", "--label", "kind"]) == 2  # such as "$FILE" without a value
    assert "`FILE` must be a file or folder that exists, got ''" in capsys.readouterr().err
    path = tmp_path / "gap.csv"
    path.write_text("unit,second,force,kind\n" + "".join(f"u{i // 4},{i % 4},{'' if i == 5 else i},a\n" for i in range(40)))
    assert main(["train", str(path), "--label", "kind", "--id", "unit", "--time", "second"]) == 2
    assert "has 1 missing value" in (error := capsys.readouterr().err)
    assert "`--task.missing fill` interpolates them, `--task.missing mask` marks them" in error
    for argv, named in (
        (["--label", "kind", "--id", "unti"], "`--id` must be a column of"),
        (["--label", "kid", "--id", "unit"], "`--label` must be a column of"),
        (["--target", "force", "--horizon", "0"], "`--horizon` must be a whole number of at least 1"),
        (["--label", "kind", "--id", "unit", "--task.layout", "tall"], "`task.layout` must be one of"),
    ):
        assert main(["train", str(path), *argv]) == 2
        assert capsys.readouterr().err.startswith(f"longscan: {named}")


def test_first_of_several_processes_prints_for_all(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("longscan.training.trainer.train", lambda *_, **__: None)
    monkeypatch.setenv("RANK", "1")
    assert main(["train", str(table), "--label", "kind", *COLUMNS, "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == ""


def test_uneven_steps_of_a_new_file_name_the_option_of_training(run, table, tmp_path, capsys):
    rows = pd.read_csv(table)
    rows["second"] *= 2
    rows.to_csv(tmp_path / "new.csv", index=False)
    assert main(["predict", run, str(tmp_path / "new.csv")]) == 2
    error = capsys.readouterr().err
    assert "must have 1 between steps, as the training series, got 915 steps of another length, the first, 2, in" in error
    assert error.endswith("in series 'u0'; models trained with --task.uneven elapsed or ignore accept it\n")


def test_missing_values_of_a_new_file_name_the_option_of_predict(run, table, tmp_path, capsys):
    rows = table.read_text("utf-8").splitlines()
    column = rows[0].split(",").index("force")
    words = rows[2].split(",")
    words[column] = "n/a"
    path = tmp_path / "new.csv"
    path.write_text("\n".join([*rows[:2], ",".join(words), *rows[3:]]) + "\n")
    assert main(["predict", run, str(path)]) == 2
    assert "has 1 missing value, the first in step 2 of series 'u0', force; `--missing fill` inter" in capsys.readouterr().err
    assert main(["predict", run, str(path), "--missing", "fill"]) == 0


def test_rows_of_a_new_file_out_of_order_are_to_be_sorted_in_the_file(run, table, tmp_path, capsys):
    header, *rows = table.read_text().splitlines()
    path = tmp_path / "new.csv"
    path.write_text("\n".join([header, *rows[::-1]]) + "\n")
    assert main(["predict", run, str(path)]) == 2
    assert capsys.readouterr().err.endswith("; sort the rows of the file\n"), "`predict` has no option for it"


def test_labels_and_layout_that_are_missing_name_the_options(table, tmp_path, capsys):
    assert main(["train", str(table), "--id", "unit", "--time", "second"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("longscan: `--label` must be the column of the labels, one of unit, second, force, speed,")
    assert error.endswith("or `--target` and `--horizon` must be given for a forecast, got None\n")
    path = tmp_path / "numbered.csv"
    rows = [f"u{i // 4},{i % 4},{i},{i},{i},{'ab'[i // 4 % 2]}\n" for i in range(40)]
    path.write_text("unit,frame,c1,c2,c3,kind\n" + "".join(rows))
    assert main(["train", str(path), "--label", "kind", "--id", "unit"]) == 2
    assert "as it also has 'frame'; if each row is a step of a series, `--task.layout` must be long" in capsys.readouterr().err


def test_overwrite_without_a_folder_replaces_the_run_of_the_file(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = ["train", str(table), "--label", "kind", *COLUMNS, *QUICK]
    for further in ([], ["--steps", "2"], ["--steps", "1", "--overwrite"]):
        assert main(replace_options(argv, *further)) == 0
    assert {path.name: Run(path).result["steps"] for path in Path("runs").iterdir()} == {"units": 1, "units-2": 2}


def test_summary_comes_before_the_progress_also_in_one_file(table, tmp_path, monkeypatch):
    argv, log = ["train", str(table), "--label", "kind", *COLUMNS, *QUICK, "--out", str(tmp_path / "run")], tmp_path / "log"
    # as Python opens them for a file: standard output is written in blocks, standard error in lines
    with log.open("a") as out, log.open("a", buffering=1) as err, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        assert main(argv) == 0
    kinds = [line.split()[0] for line in log.read_text().splitlines()]
    assert kinds.index("file") == 0
    assert kinds.index("run") < kinds.index("step")


def test_answers_in_a_format_that_is_not_written_are_an_error(run, table, tmp_path, capsys):
    for name in ("answers.xlsx", "answers.csv.gz", "answers.tsv"):
        assert main(["predict", run, str(table), "--out", str(tmp_path / name)]) == 2
        needed = f"`--out` must be a file whose name ends in .csv or .parquet, got '{tmp_path / name}'"
        assert needed in capsys.readouterr().err
        assert not (tmp_path / name).exists()
    picture = tmp_path / "picture.jpg"
    assert main(["show", run, "--out", str(picture)]) == 2
    assert f"`--out` must be a file whose name ends in .png, got '{picture}'" in capsys.readouterr().err
    assert not picture.exists()


def test_blocks_that_take_no_elapsed_times_are_an_error_before_the_run(table, tmp_path, capsys):
    argv = ["train", str(table), "--label", "kind", *COLUMNS, "--task.uneven", "elapsed", "--model.spec", "mamba s7"]
    assert main([*argv, "--out", str(tmp_path / "run")]) == 2
    needed = "`model.spec` must be blocks that take elapsed times, which task series_classes has (block 1 (s7) takes none), got"
    assert needed in capsys.readouterr().err
    assert not (tmp_path / "run" / "settings.yaml").exists()


def test_report_and_pictures_name_the_series_of_an_example(run, table, capsys):
    ids = [f"u{number}" for number in Run(run).settings.task._data.rows["test"].tolist()]
    examples = json.loads(Path(run, "examples.json").read_text())["examples"]
    by_length = dict(zip(ids, (len(batch) for batch in _test_series(run)), strict=True))
    assert examples
    assert [by_length[one["name"]] for one in examples] == [one["length"] for one in examples]
    page = Path(run, "report.html").read_text("utf-8")
    assert f"<h1>{table.name} (series classes), " in page
    assert Run(run).result["task"] == f"series_classes/{table.name}", "tables do not mix the runs of several files"
    assert all(f"%) · {one['name']}</h3>" in page or f"%)) · {one['name']}</h3>" in page for one in examples)


def _test_series(run):
    """Return the test series of a run, without padding."""
    batch = Run(run).settings.task.batch("test", 0, 100)
    return [batch.unpadded(row) for row in range(len(batch.inputs))]


def test_show_draws_a_file_and_a_run(run, table, tmp_path, capsys):
    for number, argv in enumerate(([str(table), "--label", "kind", *COLUMNS], [run])):
        picture = tmp_path / f"{number}.png"
        assert main(["show", *argv, "--out", str(picture), "--count", "2"]) == 0
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_run_continues_with_its_kind_of_labels_only(run, table, capsys):
    argv = ["train", str(table), "--label", "kind", *COLUMNS, "--resume", "--out", run, "--label-kind"]
    assert main([*argv, "class"]) == 0
    capsys.readouterr()
    assert main([*argv, "number"]) == 2
    assert "with finite numbers; one value is 'a'" in capsys.readouterr().err


def test_score_that_is_not_finite_is_an_error_of_one_line(table, tmp_path, capsys, monkeypatch):
    def evaluate(model, task, split, **options):
        scores = evaluate_model(model, task, split, **options)
        return scores._replace(values=dict.fromkeys(scores.values)) if split == "test" else scores

    evaluate_model = trainer.evaluate
    monkeypatch.setattr(trainer, "evaluate", evaluate)
    assert main(["train", str(table), "--label", "kind", *COLUMNS, *QUICK, "--out", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("no test accuracy, as answers are not finite; the report is")


def test_run_continues_and_refuses_changed_data(table, tmp_path, capsys):
    copy = tmp_path / "copy.csv"
    copy.write_bytes(table.read_bytes())
    out = str(tmp_path / "run")
    argv = ["train", str(copy), "--label", "kind", *COLUMNS]
    assert main([*argv, *QUICK, "--out", out]) == 0
    assert main([*argv, "--steps", "4", "--resume", "--out", out]) == 0
    assert main(["eval", out]) == 0
    assert main(["baselines", out, "--quick"]) == 0
    copy.write_text(re.sub(r"\.(\d)", lambda match: f".{(int(match[1]) + 1) % 10}", copy.read_text(), count=1))
    labelled._load.cache_clear()  # as in another process
    capsys.readouterr()
    assert main(["predict", out, str(table)]) == 2
    assert "the file has changed since the run began" in capsys.readouterr().err


@pytest.mark.parametrize(("select", "adds_nothing"), [("best", True), ("last", False)])
def test_a_network_that_adds_nothing_to_the_regression_is_named(select, adds_nothing, tmp_path, capsys):
    """With a large learning rate no update lowers the validation loss, so that the best weights are those before the first."""
    path, out = table_to_forecast(tmp_path)["path"], tmp_path / "run"
    columns = ["--target", "sales", "--horizon", "6", "--id", "shop", "--time", "hour", "--task.context", "24"]
    argv = [*columns, "--out", str(out), *QUICK, "--training.lr", "3", "--training.select", select]
    assert main(["train", str(path), *argv]) == 0
    printed, page = capsys.readouterr().out, (out / "report.html").read_text("utf-8")
    assert ("the forecast is that of ridge: no update" in printed) == adds_nothing
    assert ("no update of the network lowered the validation loss" in page) == adds_nothing
    assert ("What the last correction depends on." in page) != adds_nothing, "a map of zeros is left out"
    assert ("a ridge regression plus a correction by the network" in page) != adds_nothing
    opened = Run(out)
    task, model = opened.settings.task, opened.model()
    batch = task.batch("test", 0, task.size("test"))
    with torch.no_grad():
        errors = (task.in_units(model(batch.inputs), batch) - task.in_units(batch.targets, batch)).abs()[batch.loss_mask]
    assert f"test mean absolute error of sales, in its units: {float(errors.mean()):.4g}\n" in printed


def test_forecast_has_dates_and_every_window(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = table_to_forecast(tmp_path)["path"]
    argv = ["train", path, "--target", "sales", "--horizon", "6", "--id", "shop", "--time", "hour", "--task.context", "24"]
    assert main([*argv, *QUICK]) == 0
    assert "ridge: " in capsys.readouterr().out
    assert main(["predict", "runs/shops", path, "--every-window", "--out", "all.csv"]) == 0
    assert capsys.readouterr().out == "answers: all.csv\n"
    assert main(["predict", "runs/shops", path]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert [(row["id"], row["date"], row["ahead"]) for row in rows[::6]] == [
        ("s0", "2024-01-07 06:00:00", "1"),
        ("s1", "2024-01-07 06:00:00", "1"),
    ]
    every = rows_of(Path("all.csv").read_text())
    assert list(every[0]) == ["id", "origin", "date", "ahead", "sales", "sales_actual"]
    assert len(every) > len(rows)
    assert main(["show", "runs/shops", "--out", "a.png", "--count", "1"]) == 0
    capsys.readouterr()
    check_quantiles(path, rows, capsys)
    check_parquet(rows, capsys)


def test_columns_that_are_known_ahead(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = table_to_forecast(tmp_path)["path"]
    table = pd.read_csv(path)
    ahead = table.groupby("shop").tail(6).index
    assert main(["train", path, "--target", "sales", "--horizon", "6", "--id", "shop", "--time", "hour", "--known", "rain",
                 "--task.context", "24", "--task.calendar", "true", *QUICK]) == 0  # fmt: skip
    assert "at the steps of the forecast: rain, sine of day, cosine of day" in capsys.readouterr().out
    table.loc[ahead, "sales"] = None
    table.to_csv("ahead.csv", index=False)
    assert main(["predict", "runs/shops", "ahead.csv", "--quantiles", "0.1,0.9"]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert [row["date"] for row in rows] == pd.to_datetime(table["hour"][ahead]).astype(str).tolist()
    assert list(rows[0]) == ["id", "date", "ahead", "sales", "sales_q0.1", "sales_q0.9"]
    assert main(["show", "runs/shops", "--out", "a.png", "--count", "1"]) == 0
    assert main(["eval", "runs/shops"]) == 0
    assert main(["predict", "runs/shops", path]) == 2
    assert "must have 6 rows after the last value of series 's0', for the forecast, with values of" in capsys.readouterr().err


def check_quantiles(path: str, rows: list[dict[str, str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "runs/shops", path, "--quantiles", "0.1,0.5,0.9"]) == 0
    found = rows_of(capsys.readouterr().out)
    assert list(found[0]) == ["id", "date", "ahead", "sales", "sales_q0.1", "sales_q0.5", "sales_q0.9"]
    assert [row["sales"] for row in found] == [row["sales"] for row in rows]
    widths = [float(row["sales_q0.9"]) - float(row["sales_q0.1"]) for row in found]
    assert widths[:6] == pytest.approx(widths[6:], abs=1e-4)  # the same errors for each series
    assert min(widths) > 0.1
    # on the windows from which the quantiles come, 80 % of the actual values lie between them at each step
    task = Run("runs/shops").settings.task
    model = Run("runs/shops").model()
    batch = task.batch("valid", 0, task.size("valid"))
    ends = error_quantiles(model, [batch], [0.1, 0.9], 7)
    with torch.no_grad():
        errors = (batch.targets - model(batch.inputs))[:, -6:]
    assert ((errors >= ends[0]) & (errors <= ends[1])).float().mean((0, 2)).tolist() == pytest.approx([0.8] * 6, abs=0.1)
    for words, message in (("0.1,x", "must be numbers above 0 and below 1"), ("0.1,1", "must be different numbers above 0")):
        assert main(["predict", "runs/shops", path, "--quantiles", words]) == 2
        assert f"`--quantiles` {message}" in capsys.readouterr().err


def check_parquet(rows: list[dict[str, str]], capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["predict", "runs/shops", "shops.csv", "--out", "next.parquet"]
    if find_spec("pyarrow") is None:
        assert main(argv) == 2
        assert "needs the package pyarrow: pip install pyarrow, or longscan[parquet]" in capsys.readouterr().err
        return
    assert main(argv) == 0
    table = pd.read_parquet("next.parquet")
    assert table.columns.tolist() == ["id", "date", "ahead", "sales"]
    assert table["sales"].tolist() == pytest.approx([float(row["sales"]) for row in rows])


def test_quantiles_of_classes_are_refused(run, table, capsys):
    assert main(["predict", run, str(table), "--quantiles", "0.1"]) == 2
    assert "`--quantiles` must be left out, as the answers of task series_classes are not forecasts" in capsys.readouterr().err


def test_ambiguous_labels_are_a_question(table, tmp_path, capsys):
    words = table.read_text().replace(",a,", ",1,").replace(",b,", ",2,").replace(",c,", ",3,")
    (tmp_path / "whole.csv").write_text(words)
    assert main(["show", str(tmp_path / "whole.csv"), "--label", "kind", *COLUMNS]) == 2
    assert "`--label-kind` must be class or number" in capsys.readouterr().err
    argv = ["show", str(tmp_path / "whole.csv"), "--label", "kind", *COLUMNS, "--label-kind", "number"]
    assert main([*argv, "--out", str(tmp_path / "a.png"), "--count", "1"]) == 0


def test_options_of_a_file_need_one(capsys):
    assert main(["train", "--task", "parity", "--label", "kind", "--out", "x"]) == 2
    assert "`--label` must be left out, unless a FILE comes first" in capsys.readouterr().err
    assert main(["train", "nowhere.csv", "--label", "kind"]) == 2
    assert "`FILE` must be a file or folder that exists, got 'nowhere.csv'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "show"])
def test_a_file_and_a_task_that_reads_none_are_an_error(command, table, tmp_path, capsys):
    argv = [command, str(table), "--label", "kind", *COLUMNS, "--out", str(tmp_path / "out.png")]
    assert main([*argv, "--task", "parity"]) == 2
    needed = "`--task` must be left out with a FILE, or one of series_classes, series_values and series_forecast, got 'parity'"
    assert needed in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        (["--target", "x", "--horizon", "2"], "--task.context"),
        (["--label", "kind"], "--task.test_fraction"),
        (["--label", "kind", "--label-kind", "number"], "--task.label"),
    ],
)
def test_help_of_a_file_has_every_setting_of_its_task(tmp_path, capsys, options, setting):
    rows = [f"{series},{step},{step / 2},{'ab'[series % 2]}" for series in range(8) for step in range(6)]
    (tmp_path / "mine.csv").write_text("\n".join(["id,time,x,kind", *rows]) + "\n")
    assert main(["train", str(tmp_path / "mine.csv"), *options, "--help"]) == 0
    text = capsys.readouterr().out
    assert setting in text
    assert "--training.lr" in text
    assert main(["train", str(tmp_path / "none.csv"), *options, "--help"]) == 2
    assert "FILE" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["dtype", "device", "autocast"])
def test_answers_of_a_run_do_not_depend_on_settings_of_torch(setting, run, table):
    expected, scores = Run(run).predict(table), Run(run).evaluate()
    dtype = torch.get_default_dtype()
    contexts = {"device": torch.device("meta"), "autocast": torch.autocast("cpu", torch.bfloat16)}
    try:
        torch.set_default_dtype(torch.float64 if setting == "dtype" else dtype)
        with contexts.get(setting, nullcontext()):
            assert Run(run).predict(table) == expected
            assert Run(run).evaluate() == scores
            assert {(p.dtype, p.device.type) for p in Run(run).model().parameters()} == {(torch.float32, "cpu")}
    finally:
        torch.set_default_dtype(dtype)
