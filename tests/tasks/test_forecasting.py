"""Forecasting: windows, splits, layouts, baselines, dates, damaged tables, and real tables if present."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from longscan.tasks.forecasting import Forecast
from longscan.tasks.forecasting.baselines import DLinear, fitted_dlinear, seasonal_mean
from longscan.tasks.forecasting.tables import KNOWN_IRREGULAR_STEPS, read_dates, read_table
from made_up import table


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.csv").write_text(table(1000, 3))
    return tmp_path


def read_values(folder, name="mine"):
    return np.array([[float(x) for x in line.split(",")[1:]] for line in (folder / f"{name}.csv").read_text().split("\n")[1:-1]])


def make_task(folder, **settings):
    return Forecast(**{"dataset": "mine", "data_dir": str(folder), "context": 48, "horizon": 24, **settings})


def test_windows_and_splits_are_standardised_ranges_of_the_table(folder):
    task, values = make_task(folder), read_values(folder)
    mean, std = values[:700].mean(0), values[:700].std(0)
    assert [task.size(split) for split in task.splits] == [700 - 71, 100 + 48 - 71, 200 + 48 - 71]
    for split, first in (("train", None), ("valid", 652), ("test", 752)):
        batch = task.batch(split, 0, 1000)
        if first is None:
            continue
        last = task.size(split) - 1
        for row in (0, 5, last):
            start = first + row
            window = torch.from_numpy(((values[start : start + 72] - mean) / std).astype(np.float32))
            assert torch.allclose(batch.inputs[row], window[:48])
            assert batch.loss_mask[row].nonzero()[:, 0].tolist() == list(range(24, 48))
            assert torch.allclose(batch.targets[row][24:], window[48:])
    assert first + last + 72 == 1000, "the last window of test ends at the last row"


def test_append_layout_adds_empty_steps_after_the_context(folder):
    batch, shifted = make_task(folder, layout="append").batch("test", 0, 3), make_task(folder).batch("test", 0, 3)
    assert batch.inputs.shape == (3, 72, 4)
    assert torch.equal(batch.inputs[:, :48, :3], shifted.inputs)
    assert not batch.inputs[:, 48:, :3].any()
    assert torch.equal(batch.inputs[..., 3].sum(1), torch.full((3,), 24.0))
    assert torch.equal(batch.targets[batch.loss_mask], shifted.targets[shifted.loss_mask])


@pytest.mark.parametrize(("level", "period", "periods"), [("last", 1, 1), ("season", 7, 1), ("season", 7, 3)])
def test_level_is_subtracted_from_inputs_and_targets(folder, level, period, periods):
    plain, task = make_task(folder, layout="append"), make_task(folder, layout="append", level=level, season=7, periods=periods)
    plain_batch, batch = plain.batch("test", 0, 3), task.batch("test", 0, 3)
    final = sum(plain_batch.inputs[:, 48 - n * period : 48 - (n - 1) * period, :3] for n in range(1, periods + 1)) / periods
    last = torch.stack([final[:, (step - 48) % period] for step in range(72)], 1)
    assert batch.inputs.shape == (3, 72, task.d_input) == (3, 72, 7)
    assert torch.equal(batch.inputs[:, :48, :3], plain_batch.inputs[:, :48, :3] - batch.inputs[:, :48, 4:])
    assert not batch.inputs[:, 48:, :3].any()
    assert torch.equal(batch.inputs[..., 3], plain_batch.inputs[..., 3])
    assert torch.allclose(batch.inputs[..., 4:], last, atol=1e-6)
    assert torch.allclose((batch.targets + last)[batch.loss_mask], plain_batch.targets[plain_batch.loss_mask], atol=1e-6)
    assert task.baselines() == make_task(folder, season=7, periods=periods).baselines(), "errors do not depend on the level"
    whole = task.batch("test", 0, 1000)
    name = {"last": "persistence", "season": "seasonal_mean"}[level]
    assert whole.targets[:, 48:].abs().mean().item() == pytest.approx(task.baselines()[name], rel=1e-5)
    rows = task.decode(batch.targets, batch)
    expected = plain.decode(plain_batch.targets, plain_batch)
    assert [list(row) for row in rows] == [list(row) for row in expected]
    assert all(
        list(row.values()) == pytest.approx(list(expected_row.values()), abs=1e-6)
        for row, expected_row in zip(rows, expected, strict=True)
    )


def split_variables(series):
    """Reshape (B, L, C) to (B * C, L, 1) with the variables of a window in consecutive rows."""
    return series.transpose(1, 2).flatten(0, 1)[..., None]


def test_order_time_gives_training_windows_in_the_order_of_time(folder):
    task = make_task(folder, order="time")
    size, first, second = task.size("train"), task.batch("train", 0, 7), task.batch("train", 1, 7)
    assert torch.equal(first.inputs[1:, :-1], first.inputs[:-1, 1:]), "a window starts one row after the window before"
    assert torch.equal(second.inputs[0, :-1], first.inputs[-1, 1:])
    last, next_epoch = task.batch("train", size // 7, 7), task.batch("train", -(-size // 7), 7)
    assert len(last.inputs) == size % 7
    assert torch.equal(next_epoch.inputs, first.inputs), "the order is the same in every epoch"
    assert torch.equal(task.batch("valid", 0, 7).inputs, make_task(folder).batch("valid", 0, 7).inputs)


LAYOUTS = pytest.mark.parametrize(
    "settings", [{}, {"layout": "append"}, {"layout": "append", "level": "last"}], ids=["shift", "append", "last"]
)


@LAYOUTS
def test_channels_apart_makes_each_variable_an_example(folder, settings):
    whole, task = make_task(folder, **settings), make_task(folder, channels="apart", **settings)
    assert [task.size(split) for split in task.splits] == [3 * whole.size(split) for split in task.splits]
    assert (task.variables, task.d_output, task.d_input) == (("value",), 1, 1 + len(settings))
    joint, batch = whole.batch("test", 0, 4), task.batch("test", 0, 12)
    assert torch.equal(batch.targets, split_variables(joint.targets))
    assert torch.equal(batch.loss_mask, joint.loss_mask.repeat_interleave(3, 0))
    assert torch.equal(batch.inputs[..., :1], split_variables(joint.inputs[..., :3]))
    if settings:
        assert torch.equal(batch.inputs[..., 1], joint.inputs[..., 3].repeat_interleave(3, 0))
    if "level" in settings:
        assert torch.equal(batch.inputs[..., 2:], split_variables(joint.inputs[..., 4:]))
    middle = task.batch("test", 1, 5)  # starts in the middle of a window
    assert all(torch.equal(x, full[5:10]) for x, full in zip(middle, batch, strict=True) if x is not None)
    assert "1 of 3 variables, 48 steps" in task.describe(batch, 2)
    assert list(task.decode(batch.targets, batch)[0]) == ["example", "step", "value"]
    # An epoch of train has every variable of every window once.
    size = task.size("train")
    epoch, expected = task.batch("train", 0, size).targets, split_variables(whole.batch("train", 0, size // 3).targets)
    assert torch.equal(epoch.double().sum((1, 2)).sort()[0], expected.double().sum((1, 2)).sort()[0])


@LAYOUTS
def test_errors_are_the_same_with_channels_apart(folder, settings):
    whole, task = make_task(folder, **settings), make_task(folder, channels="apart", **settings)
    assert task.baselines() == whole.baselines()
    assert task.constant_score() == whole.constant_score()
    if not settings:
        assert task.fitted_baselines() == whole.fitted_baselines()
    perfect, last = task.metrics("test"), task.metrics("test")
    batches = [task.batch("test", step, 50) for step in range(task.num_batches("test", 50))]
    assert sum(len(batch.inputs) for batch in batches) == 3 * whole.size("test")
    for batch in batches:
        constant = torch.zeros(1) if "level" in settings else batch.inputs[:, 47:48, :1]
        task.update(perfect, batch.targets, batch)
        task.update(last, constant.expand_as(batch.targets), batch)
    assert perfect["mae"].compute().item() == 0
    assert last["mae"].compute().item() == pytest.approx(whole.baselines()["persistence"], rel=1e-5)


@LAYOUTS
def test_read_inputs_with_channels_apart_gives_one_example_per_variable(folder, tmp_path, settings):
    whole, task, path = make_task(folder, **settings), make_task(folder, channels="apart", **settings), tmp_path / "new.csv"
    path.write_text(table(60, 3, seed=1))
    joint, batch = whole.read_inputs(path), task.read_inputs(path)
    assert batch.targets is None
    assert batch.inputs.shape == (3, task.length, task.d_input)
    assert torch.equal(batch.inputs[..., :1], split_variables(joint.inputs[..., :3]))
    output = torch.randn(1, task.length, 3)
    rows = task.decode(split_variables(output), batch)
    named = whole.decode(output, joint)
    assert [(row["example"], row["step"], row["value"]) for row in rows] == [
        (number, row["step"], row[name]) for number, name in enumerate(whole.variables) for row in named
    ]
    path.write_text(table(60, 2))
    with pytest.raises(ValueError, match=r"new.csv must have the variables of mine, "):
        task.read_inputs(path)


def test_variants_have_the_windows_of_the_released_code(tmp_path):
    (tmp_path / "mine.csv").write_text(table(3000, 2))
    task = make_task(tmp_path, variant="384-96-96", context=None, horizon=None)
    batch = task.batch("train", 0, 2)
    assert batch.inputs.shape == (2, 384, 2)
    assert batch.loss_mask[0].nonzero()[:, 0].tolist() == list(range(192, 384))
    # The first 96 targets lie inside the window: the target of step t is the input of step t + 96.
    assert torch.equal(batch.targets[:, 192:288], batch.inputs[:, 288:])
    assert task.size("test") == 600 + 384 - 480 + 1
    whole = make_task(tmp_path, variant="720-720", context=None, horizon=None)
    with pytest.raises(
        ValueError, match=r"^`context` and `horizon` must fit into the .* rows of the split valid of mine, got 720 \+ 720 steps"
    ):
        whole.size("valid")


def test_last_incomplete_batch_is_scored(folder):
    task = make_task(folder)
    metrics = task.metrics("test")
    batches = [task.batch("test", step, 50) for step in range(task.num_batches("test", 50))]
    assert [len(batch.inputs) for batch in batches] == [50, 50, 50, 27]
    for batch in batches:
        last = batch.inputs[:, -1:].expand_as(batch.targets)
        task.update(metrics, last, batch)
    assert metrics["mae"].compute().item() == pytest.approx(task.baselines()["persistence"], rel=1e-5)


def test_baselines_are_ordered_and_seasonal_mean_repeats_seasons(folder):
    task = make_task(folder)
    scores = task.baselines() | task.fitted_baselines()
    assert scores["seasonal_naive"] < 0.3 < scores["persistence"]
    assert scores["dlinear"] < scores["seasonal_naive"]
    assert task.scaled(scores["constant"]) == 0
    contexts = torch.arange(10.0).view(1, 10, 1)
    assert seasonal_mean(contexts, 6, 4, 1).flatten().tolist() == [6, 7, 8, 9, 6, 7]
    assert seasonal_mean(contexts, 6, 4, 2).flatten().tolist() == [4, 5, 6, 7, 4, 5]
    assert seasonal_mean(contexts, 3, 4, 1, start=-2).flatten().tolist() == [8, 9, 6]
    assert torch.equal(seasonal_mean(contexts, 6, 4, 9), seasonal_mean(contexts, 6, 4, 2)), "as many periods as there are"
    assert seasonal_mean(contexts, 2, 11, 1).flatten().tolist() == [9, 9]


def test_dlinear_starts_as_a_mean_and_its_fit_is_deterministic():
    model = DLinear(30, 5)
    contexts = torch.randn(2, 30, 3)
    for layer in (model.trend, model.rest):
        torch.nn.init.zeros_(layer.bias)
    assert torch.allclose(model(contexts), contexts.mean(1, keepdim=True).expand(-1, 5, -1), atol=1e-5)
    rows = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    calls = []
    first = fitted_dlinear(rows, rows[:80], 30, 5, seed=3, epochs=2, on_progress=lambda *call: calls.append(call))
    repeated = fitted_dlinear(rows, rows[:80], 30, 5, seed=3, epochs=2)
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), repeated.state_dict().values(), strict=True))
    assert calls == [("dlinear", done, 12) for done in range(13)], "166 windows are 6 batches in each of two epochs"


def test_splits_of_ett_are_counted_in_months(tmp_path):
    (tmp_path / "ETTh1.csv").write_text(table(14_500, 7))
    task = make_task(tmp_path, dataset="ETTh1")
    assert task.size("test") == 2880 + 48 - 71
    assert task._row_range("test") == (11_520 - 48, 14_400)


def test_read_inputs_gives_the_last_window_of_a_table(folder, tmp_path):
    task, path = make_task(folder), tmp_path / "new.csv"
    path.write_text(table(60, 3, seed=1))
    batch = task.read_inputs(path)
    assert batch.inputs.shape == (1, 48, 3)
    assert batch.targets is None
    assert len(task.describe(batch).split()[0]) == 24, "bars of the context"
    rows = task.decode(torch.zeros(1, 48, 3), batch)
    assert [row["step"] for row in rows] == list(range(24, 48))
    for shape, message in (
        ((60, 2), "must have the variables of mine"),
        ((40, 3), "must have at least 48 rows, as the context has, got 40"),
    ):
        path.write_text(table(*shape))
        with pytest.raises(ValueError, match=f"new.csv {message}"):
            task.read_inputs(path)
    path.write_text(table(1, 3))
    for context, needed in ((1, "two rows, from which the step between rows is known"), (2, "2 rows, as the context has")):
        with pytest.raises(ValueError, match=f"new.csv must have at least {needed}, got 1"):
            make_task(folder, context=context, horizon=1).read_inputs(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.csv:1: the header must be 'date,NAME"),
        ("a,b\n1,2\n", "t.csv:1: the header must be"),
        ("date,b\n", "t.csv must have rows after the header, got none"),
        ("date,b,c\n2020-01-01,1,2\n2020-01-02,1\n", "t.csv:3: the line must have 3 columns, like the header, got 2"),
        ("date,b\n2020-01-01,1\n2020-01-02,one\n", "t.csv:3: values must be numbers"),
        ("date,b\n2020-01-01,1\n2020-01-02,1_0\n", "t.csv:3: values must be numbers, got '2020-01-02,1_0"),
        ("date,b\n2020-01-01,1\n2020-01-02,9007199254740993\n", r"t.csv:3: the line must contain whole numbers of at most 2\^53"),
        ("date,b\n1_0,1\n1_1,1\n", "t.csv:2: dates must be .* or numbers, the same in all lines, got '1_0'"),
        (f"date,b\n{2**63},1\n{2**63 + 1},1\n", f"t.csv:2: dates must be .* or numbers, .* got '{2**63}'"),
        (
            "date,b\n1,1\n2,\n",
            r"t.csv has 1 missing value \('\?', 'NaN' or nothing\) in 1 of its 2 rows, the first in line 3, b; ",
        ),
        (
            "date,b,c\n\n1,1,2\n2,2,nan\n3,?,\n",
            "t.csv has 3 missing values .* in 2 of its 3 rows, the first in line 4, c; missing",
        ),
        ("date,b\nx,1\nx,1e999\n", "t.csv:3: values must be at most .*, the largest of float32, got inf"),
        ("date,b\nx,1\nx,-1e39\n", r"t.csv:3: values must be at most 3.4e\+38, the largest of float32, got -1e\+39"),
        ("date,a,a\n2020-01-01,1,2\n", "t.csv:1: the names of columns must be unique, got 'a' 2 times"),
        (
            "date,b\n2020-01-01,1\n2020-13-45 99:00,1\n",
            "t.csv:3: dates must be ISO 8601, .*, got '2020-13-45 99:00'",
        ),
    ],
)
def test_damaged_table_raises(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_table(path)


def test_missing_values_of_a_table_are_filled_from_earlier_rows(tmp_path, caplog):
    path = tmp_path / "t.csv"
    path.write_text("date,b,c\n1,1,2\n2,?,3\n3,,NaN\n4,4,5\n")
    assert read_table(path, missing="fill").values.tolist() == [[1, 2], [1, 3], [1, 3], [4, 5]], "not from later rows"
    assert "3 missing values ('?', 'NaN' or nothing) in 2 of its 4 rows were filled with the last value before" in caplog.text
    path.write_text("date,b,c\n1,1,\n2,2,3\n")
    with pytest.raises(ValueError, match=r"t.csv:2: the first line must have a value of c, .*, got none"):
        read_table(path, missing="fill")
    with pytest.raises(ValueError, match=r"missing\b.* one of refuse, fill\b"):
        read_table(path, missing="mask")


def test_missing_values_raise_or_are_filled(folder):
    lines = (folder / "mine.csv").read_text().splitlines()
    whole = make_task(folder).batch("test", 0, 1).inputs[0, 0]
    for row in (10, 900):
        date, *rest = lines[row + 1].split(",")
        lines[row + 1] = ",".join([date, "", *rest[1:]])
    (folder / "gaps.csv").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"gaps.csv has 2 missing values .* the first in line 12, v0; missing='fill'"):
        make_task(folder, dataset="gaps").size("test")
    task = make_task(folder, dataset="gaps", missing="fill")
    assert torch.allclose(task.batch("test", 0, 1).inputs[0, 0], whole, atol=1e-2), "the statistics are of almost the same values"
    first = 900 - 752
    batch = task.batch("test", 0, 1000)
    assert batch.inputs[first, 0, 0] == batch.inputs[first - 1, 0, 0]
    with pytest.raises(ValueError, match=r"^`?missing\b.* one of refuse, fill\b"):
        make_task(folder, missing="mask")


@pytest.mark.parametrize("settings", [{}, {"layout": "append"}], ids=["shift", "append"])
@pytest.mark.parametrize(
    ("start", "step", "form"),
    [
        ("2024-02-27 22:00:00", "1h", "%Y-%m-%d %H:%M:%S"),
        ("2024-12-27", "1D", "%Y-%m-%d"),
        ("2024-01-09 22:00", "1h", "%m/%d/%Y %H:%M"),
        ("2024-01-09 22:00", "10min", "%d.%m.%Y %H:%M:%S"),
    ],
)
def test_add_times_gives_the_dates_of_forecasts(folder, tmp_path, caplog, settings, start, step, form):
    dates = pd.date_range(start, periods=60, freq=step)
    lines = table(60, 3, seed=1).splitlines()
    path = tmp_path / "new.csv"
    rows = [f"{date.strftime(form)},{line.split(',', 1)[1]}" for date, line in zip(dates, lines[1:], strict=True)]
    path.write_text("\n".join([lines[0], *rows]))
    task = make_task(folder, **settings)
    batch = task.read_inputs(path)
    rows_with_times = task.add_times(task.decode(torch.zeros(1, task.length, 3), batch), path)
    assert [row["ahead"] for row in rows_with_times] == list(range(1, 25)), "all dates are after the file"
    expected = pd.date_range(dates[-1], periods=25, freq=step)[1:]
    assert [row["date"] for row in rows_with_times] == [str(date) for date in expected.to_pydatetime()]
    assert list(rows_with_times[0]) == ["example", "step", "ahead", "date", "v0", "v1", "v2"]
    assert not caplog.records


def test_add_times_inside_the_file_gives_its_dates(tmp_path):
    (tmp_path / "mine.csv").write_text(table(3000, 2))
    task = make_task(tmp_path, variant="384-96-96", context=None, horizon=None)
    path = tmp_path / "new.csv"
    dates = pd.date_range("2024", periods=400, freq="h")
    values = table(400, 2).splitlines()[1:]
    path.write_text("date,v0,v1\n" + "\n".join(f"{d},{v.split(',', 1)[1]}" for d, v in zip(dates, values, strict=True)))
    rows_with_times = task.add_times(task.decode(torch.zeros(1, 384, 2), task.read_inputs(path)), path)
    assert [row["ahead"] for row in rows_with_times] == list(range(-95, 97))
    assert rows_with_times[0]["date"] == str(dates[-96])
    assert rows_with_times[95]["date"] == str(dates[-1]), "ahead 0 is the last row of the file"
    path.write_text(path.read_text().replace("2024-01-17 15:00:00", "2024-01-17 15:30:00"))
    with pytest.raises(
        ValueError, match=r"new.csv:401: the steps must be equal, got 1 of 399 that differ from 1:00:00, the first between"
    ):
        task.read_inputs(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda rows: [*rows[:5], rows[6], rows[5], *rows[7:]],
            r"mine.csv:7: the steps must be equal|mine.csv:8: the rows must be in the order of time",
        ),
        (lambda rows: [*rows[:5], *rows[4:]], r"mine.csv:7: each time stamp must occur once, got 1/1/2020 4:00 twice"),
        (
            lambda rows: [*rows[:5], *rows[55:]],
            r"mine.csv:7: the steps must be equal, got 1 of 949 that differ from 1:00:00, the first",
        ),
    ],
    ids=["swapped", "repeated", "gap"],
)
def test_rows_with_uneven_dates_raise(folder, change, message):
    header, *rows = (folder / "mine.csv").read_text().splitlines()
    (folder / "mine.csv").write_text("\n".join([header, *change(rows)]))
    with pytest.raises(ValueError, match=message):
        make_task(folder).size("train")


def test_known_irregular_steps_of_weather_are_accepted(tmp_path):
    """Autoformer's file has one row twice and lacks nine rows. The same steps in another table raise an error."""
    before = pd.date_range("2020-05-12", "2020-05-12 06:00", freq="10min")
    after = pd.date_range("2020-05-12 06:00", periods=2481, freq="10min")
    dates = [*before, *(date for date in after if not pd.Timestamp("2020-05-29 09:30") < date < pd.Timestamp("2020-05-29 11:10"))]
    text = "date,v\n" + "".join(f"{date},{number % 7}\n" for number, date in enumerate(dates))
    for name in ("weather", "other"):
        (tmp_path / f"{name}.csv").write_text(text)
    weather = read_table(tmp_path / "weather.csv", irregular=KNOWN_IRREGULAR_STEPS["weather"])
    assert len(weather.values) == len(dates)
    assert read_dates(tmp_path / "weather.csv", 1, KNOWN_IRREGULAR_STEPS["weather"])[-1] == str(dates[-1] + pd.Timedelta("10min"))
    with pytest.raises(ValueError, match=r"other.csv:39: each time stamp must occur once, got 2020-05-12 06:00:00 twice"):
        read_table(tmp_path / "other.csv")


def test_value_beyond_float32_after_standardising_raises(folder):
    header, *rows = (folder / "mine.csv").read_text().splitlines()
    rows = [f"{row.split(',')[0]},{number % 2 * 1e-9},0,0" for number, row in enumerate(rows)]
    rows[900] = rows[900].split(",")[0] + ",1e38,0,0"
    (folder / "mine.csv").write_text("\n".join([header, *rows]))
    with pytest.raises(ValueError, match=r"mine.csv: v0 in row 901 after the header must be .*, got 1e\+38, which is 2e\+47"):
        make_task(folder).size("train")


def test_quotes_byte_order_mark_and_empty_lines_are_accepted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes('\ufeff"date","T (°C)",b\r\n2020-01-01,1,2\r\n\r\n2020-01-02,3,4\r\n'.encode())
    assert read_table(path).values.tolist() == [[1, 2], [3, 4]]
    path.write_bytes("date,T (°C)\n2020-01-01,1\n".encode("latin-1"))
    assert read_table(path).variables == ("T (°C)",)


def test_table_with_the_wrong_number_of_variables_raises(tmp_path):
    (tmp_path / "WTH.csv").write_text(table(100, 21))
    with pytest.raises(ValueError, match=r"WTH.csv must have 12 variables, got 21; is it another table of the same name"):
        Forecast(data_dir=str(tmp_path)).size("train")
    with pytest.raises(
        FileNotFoundError, match=r"^`data_dir` must be a folder with NAME.csv: WTH of Informer2020.* without weather.csv"
    ):
        Forecast(data_dir=str(tmp_path), dataset="weather").size("train")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"context": 20}, "^`?layout.* append for a forecast longer than the context"),
        ({"context": 0}, "^`?context"),
        ({"season": 0}, "^`?season"),
        ({"dataset": "../mine"}, "^`?dataset"),
        (
            {"variant": "384-96-96", "context": None, "horizon": None, "layout": "append"},
            "^`?layout.* shift for the variant",
        ),
        ({"level": "mean"}, "^`?level.* one of kept, last"),
        ({"channels": "alone"}, "^`?channels.* one of together, apart"),
        ({"periods": 0}, "^`?periods.* at least 1"),
        ({"level": "last"}, "^`?level.* kept for layout shift"),
        (
            {"level": "season", "layout": "append", "season": 7, "context": 48, "horizon": 24},
            "^`?periods.* at most context / season, 6",
        ),
    ],
    ids=str,
)
def test_invalid_setting_raises(settings, message):
    with pytest.raises(ValueError, match=message):
        make_task(Path(), **settings)


ROOT = Path(os.environ.get("LONGSCAN_TEST_DATA", "/nowhere")) / "forecasting"


@pytest.mark.skipif(not ROOT.is_dir(), reason="LONGSCAN_TEST_DATA names no folder with forecasting/")
@pytest.mark.parametrize(
    ("settings", "sizes", "persistence"),
    [
        ({"dataset": "WTH"}, [23_105, 2_789, 6_293], 0.7366),
        ({"dataset": "WTH", "variant": "384-96-96"}, [24_065, 3_413, 6_917], 0.6187),
        ({"dataset": "ETTh1", "context": 96, "horizon": 96}, [8_449, 2_785, 2_785], 0.713),  # as in Autoformer's and later tables
        ({"dataset": "weather", "context": 96, "horizon": 96}, [36_696, 5_175, 10_444], 0.254),
    ],
)
def test_real_tables_have_the_published_sizes(settings, sizes, persistence):
    task = Forecast(data_dir=str(ROOT), **settings)
    assert [task.size(split) for split in task.splits] == sizes
    assert task.baselines()["persistence"] == pytest.approx(persistence, abs=1e-3)


def test_dates_of_equal_steps_continue_with_these_steps_and_others_with_the_calendar(tmp_path):
    path = tmp_path / "t.csv"
    for days, later in (
        (("2023-07-01", "2023-08-01", "2023-09-01"), ["2023-10-02", "2023-11-02"]),  # 31 days twice
        (("2023-08-01", "2023-09-01", "2023-10-01"), ["2023-11-01", "2023-12-01"]),
    ):
        path.write_text("date,x\n" + "".join(f"{day},1\n" for day in days))
        assert [date[:10] for date in read_dates(path, 2)] == [*days, *later]
