"""Forecasts of a user's table: splits in time, levels, baselines, dates of answers, gaps and calendars."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from longscan.tasks.series import SeriesForecast
from longscan.tasks.series.clock import format_stamps
from longscan.tasks.series.forecast import _count_refits, _regress
from longscan.training.examples import _describe_forecast, find_examples
from longscan.training.parsing import make_settings
from longscan.training.run import build_model
from longscan.training.trainer import train
from made_up import table_to_forecast


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return SeriesForecast(**table_to_forecast(tmp_path_factory.mktemp("shops")))


def write(path, frame):
    frame.to_csv(path, index=False)
    return str(path)


def single(path, dates, **settings):
    frame = pd.DataFrame({"date": dates, "price": np.sin(np.arange(len(dates)) / 3) + np.arange(len(dates)) / 50})
    return SeriesForecast(path=write(path, frame), target=("price",), horizon=4, context=8, **settings)


def test_parts_follow_each_other_and_targets_do_not_overlap(task):
    store, length = task._data.store, 30
    for series in range(2):
        first, last = store.offsets[series : series + 2]
        targets = {}
        for part, starts in task._data.starts.items():
            own = starts[(starts >= first) & (starts + length <= last)]
            targets[part] = set((own[:, None] + np.arange(24, length)).ravel().tolist())
        assert max(targets["train"]) < min(targets["valid"])
        assert max(targets["valid"]) < min(targets["test"])
        assert max(targets["test"]) == last - 1
        assert len(targets["test"]) == 45


def test_statistics_are_those_of_the_training_rows(task):
    frame = pd.read_csv(task.path)
    train = pd.concat([part.iloc[:90] for _, part in frame.groupby("shop")])[["sales", "rain"]]
    np.testing.assert_allclose(task._data.statistics.mean, train.mean())
    np.testing.assert_allclose(task._data.statistics.scale, train.std(ddof=0))


@pytest.mark.parametrize("level", ["last", "season", "ridge"])
def test_forecast_of_the_target_is_the_future_in_units_of_the_table(task, level):
    task = replace(task, level=level)
    batch = task.batch("test", 0, 3)
    rows = task.decode(batch.targets, batch)
    start = int(task._data.starts["test"][0])
    sales = pd.read_csv(task.path)["sales"].to_numpy()
    answers = [row["sales"] for row in rows if row["example"] == 0]
    assert answers == pytest.approx(sales[start + 24 : start + 30].tolist(), rel=1e-4)
    past, ahead = task.past_and_ahead(batch, 0)
    assert past[:, 0].tolist() == pytest.approx(sales[start : start + 24].tolist(), rel=1e-4)
    assert ahead[:, 0].tolist() == pytest.approx(answers)


def test_baselines_are_those_of_the_windows(task):
    starts, data = task._data.starts["test"], task._data
    sales = (np.asarray(data.store.values[:, 0]) - data.statistics.mean[0]) / data.statistics.scale[0]
    ahead = sales[starts[:, None] + np.arange(24, 30)]
    found = task.baselines("test")
    assert list(found) == ["constant", "persistence", "seasonal_naive", "ridge"]
    assert found["persistence"] == pytest.approx(np.abs(ahead - sales[starts + 23][:, None]).mean(), rel=1e-4)
    assert found["seasonal_naive"] == pytest.approx(np.abs(ahead - sales[starts[:, None] + np.arange(6)]).mean(), rel=1e-4)
    assert found["constant"] == pytest.approx(min(np.abs(ahead - value).mean() for value in np.unique(ahead)), rel=1e-4)
    assert found["ridge"] < found["persistence"]


def test_ridge_continues_a_line(tmp_path):
    task = SeriesForecast(
        path=write(tmp_path / "line.csv", pd.DataFrame({"time": range(200), "x": np.arange(200.0)})), horizon=4, context=8
    )
    assert task.baselines("test")["ridge"] < 1e-3
    assert task.batch("test", 0, 2).targets.abs().max() < 1e-2


def test_new_file_is_forecast_from_its_last_rows(task, tmp_path):
    frame = pd.read_csv(task.path)
    path = write(tmp_path / "new.csv", frame[["rain", "hour", "shop", "sales"]].groupby("shop").head(100))
    batch = task.read_inputs(path)
    assert batch.targets is None
    assert batch.inputs.shape == (2, 30, 5)
    rows = task.add_times(task.decode(torch.zeros(2, 30, 1), batch), path)
    assert [row["id"] for row in rows] == ["s0"] * 6 + ["s1"] * 6
    assert [row["ahead"] for row in rows[:6]] == [1, 2, 3, 4, 5, 6]
    assert (rows[0]["date"], rows[5]["date"]) == ("2024-01-05 04:00:00", "2024-01-05 09:00:00")
    assert list(rows[0]) == ["id", "date", "ahead", "sales"]


def test_all_windows_of_a_new_file_have_the_actual_values(task):
    every = replace(task, predicted="windows")
    batch = every.read_inputs(task.path)
    rows = every.add_times(every.decode(torch.zeros(len(batch.inputs), 30, 1), batch), task.path)
    frame = pd.read_csv(task.path).set_index(["shop", "hour"])["sales"]
    known = [row for row in rows if row["sales_actual"] != ""]
    assert len(rows) - len(known) == 12  # the future of two series
    assert len({(row["id"], row["date"]) for row in rows}) == len(rows)
    for row in known[::17]:
        assert row["sales_actual"] == pytest.approx(frame[row["id"], row["date"]])
        assert pd.Timestamp(row["date"]) - pd.Timestamp(row["origin"]) == pd.Timedelta(hours=row["ahead"])


@pytest.mark.parametrize(
    ("frequency", "season", "following"),
    [
        ("h", 24, "2024-01-05 04:00:00"),
        ("MS", 12, "2032-05-01 00:00:00"),
        ("B", 5, "2024-05-20 00:00:00"),
        ("D", 7, "2024-04-10 00:00:00"),
    ],
)
def test_dates_continue_with_their_frequency(tmp_path, frequency, season, following):
    dates = pd.date_range("2024-01-01", periods=100, freq=frequency)
    context = {"context": 24} if season == 24 else {}
    task = replace(single(tmp_path / "a.csv", dates), **context)
    assert task._data.season == season
    expected = {"MS": "first days of months (MS), from", "B": "business days (B), from"}.get(frequency, "")
    assert dict(task.summary())["time"].startswith(expected)
    batch = task.read_inputs(task.path)
    rows = task.add_times(task.decode(torch.zeros(1, task.length, 1), batch), task.path)
    assert rows[0]["date"] == following


def test_missing_values_repeat_the_value_before(tmp_path):
    frame = pd.DataFrame({"date": pd.date_range("2024-01-01", periods=80), "x": np.arange(80.0)})
    frame.loc[10:11, "x"] = np.nan
    path = write(tmp_path / "a.csv", frame)
    with pytest.raises(ValueError, match=r"has 2 missing values, the first in step 11 of series '1', x; `missing='fill'`"):
        SeriesForecast(path=path, horizon=4, context=8).size("train")
    task = SeriesForecast(path=path, horizon=4, context=8, missing="fill")
    assert task._data.values[9:13, 0].tolist() == [9, 9, 9, 12]


def table_with_gaps(path):
    """Write a table of two targets in which eight rows lack a value of one of them."""
    draw = np.random.default_rng(1)
    frame = pd.DataFrame({"time": range(120), "x": draw.normal(size=120), "y": draw.normal(size=120)})
    for row, name in ((30, "x"), (90, "y"), (103, "x"), (104, "y"), *((row, "x") for row in range(116, 120))):
        frame.loc[row, name] = np.nan
    return write(path, frame)


def test_filled_targets_are_not_scored(tmp_path):
    task = SeriesForecast(path=table_with_gaps(tmp_path / "a.csv"), horizon=4, context=8, missing="fill", level="last")
    data = task._data
    assert np.flatnonzero(~data.measured).tolist() == [30, 90, 103, 104, 116, 117, 118, 119]
    gaps = {"train": [30], "valid": [90], "test": [103, 104, 116, 117, 118, 119]}
    for split, rows in gaps.items():
        starts = data.starts[split]
        assert len(starts) == {"train": 73, "valid": 9, "test": 20}[split], "without the window of the last four rows"
        absent = np.isin(starts[:, None] + np.arange(8, 12), rows)
        ahead = data.values[starts[:, None] + np.arange(8, 12)] - data.statistics.mean
        ahead /= data.statistics.scale
        last = (data.values[starts + 7] - data.statistics.mean) / data.statistics.scale
        errors = np.abs(ahead - last[:, None])[~absent]
        assert task.baselines(split)["persistence"] == pytest.approx(errors.mean(), rel=1e-5)
        medians = np.median(ahead[~absent], 0)
        assert task.baselines(split)["constant"] == pytest.approx(np.abs(ahead - medians)[~absent].mean(), rel=1e-5)
    batch = task.batch("test", 0, 20)
    assert batch.loss_mask[:, 8:].tolist() == (~absent).tolist()
    assert not batch.loss_mask[:, :8].any()
    metrics = task.metrics("test")
    task.update(metrics, torch.zeros_like(batch.targets), batch)
    assert metrics["mae"].compute().item() == pytest.approx(task.baselines("test")["persistence"], rel=1e-5)
    assert ("scored", "no step of the 8 rows where a target is missing") in task.summary()


def test_examples_with_filled_targets_have_intervals_of_the_other_steps(tmp_path):
    given = {"path": table_with_gaps(tmp_path / "a.csv"), "horizon": 4, "context": 8, "missing": "fill", "valid_fraction": 0.4}
    model = {"spec": "lru", "d_model": 4, "d_state": 2}
    settings = make_settings({"task": {"name": "series_forecast", **given}, "model": model})
    task = settings.task
    found = find_examples(build_model(settings), task, 5)
    assert 0.5 < found["coverage"] < 1
    first = next(row for row in (task.batch("test", step, 1) for step in range(20)) if not row.loss_mask[0, 8])
    described = _describe_forecast(build_model(settings), task, first, torch.ones(2, 4, 2), torch.arange(12) >= 8)
    assert described["variables"][0]["known"]["times"][-1] == 7
    assert described["variables"][0]["truth"]["times"] == first.loss_mask[0].nonzero()[:, 0].tolist()


def test_filled_targets_do_not_choose_the_penalty(tmp_path, monkeypatch):
    task = SeriesForecast(path=table_with_gaps(tmp_path / "a.csv"), horizon=4, context=8, missing="fill", valid_fraction=0.3)
    monkeypatch.setattr("longscan.tasks.series.forecast.PENALTIES", (1e9,))  # the forecast is then the last value
    error = _regress(task, np.zeros((0, 2)))[1]
    starts, data = task._data.starts["valid"], task._data
    values = (data.values - data.statistics.mean) / data.statistics.scale
    ahead = values[starts[:, None] + np.arange(8, 12)] - values[starts + 7][:, None]
    scored = data.measured[starts[:, None] + np.arange(8, 12)]
    assert not scored.all()
    assert error == pytest.approx(np.square(ahead)[scored].mean(), rel=1e-4)


def test_regression_is_that_of_the_measured_training_targets(tmp_path, monkeypatch):
    """With many fits, each step of the horizon has the least squares of the windows in which it was measured."""
    frame = pd.DataFrame({"time": range(300), "x": np.random.default_rng(1).normal(size=300).cumsum()})
    frame.loc[[*range(20, 24), *range(70, 90, 3), *range(120, 130)], "x"] = np.nan
    task = SeriesForecast(path=write(tmp_path / "a.csv", frame), horizon=4, context=8, missing="fill")
    monkeypatch.setattr("longscan.tasks.series.forecast.PENALTIES", (1e-9,))
    monkeypatch.setattr("longscan.tasks.series.forecast._count_refits", lambda _: 100)
    weights = _regress(task, np.zeros((0, 1)))[0].numpy()
    starts, data = task._data.starts["train"], task._data
    values = ((data.values - data.statistics.mean) / data.statistics.scale)[:, 0]
    windows = values[starts[:, None] + np.arange(12)] - values[starts + 7][:, None]
    measured = data.measured[starts[:, None] + np.arange(8, 12)]
    assert 0.6 < measured.mean() < 0.95
    for step in range(4):
        rows = measured[:, step]
        expected = np.linalg.lstsq(windows[rows, :7], windows[rows, 8 + step], rcond=None)[0]
        assert weights[:7, step] == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7])
def test_refits_leave_a_few_hundredths_of_the_error_of_the_first_fit(share, tmp_path, monkeypatch):
    random = np.random.default_rng(1)
    frame = pd.DataFrame({"time": range(2000), "x": np.sin(np.arange(2000) / 5) + random.normal(size=2000)})
    frame.loc[1:, "x"] = frame["x"][1:].where(random.random(1999) > share)
    task = SeriesForecast(path=write(tmp_path / "a.csv", frame), horizon=4, context=8, missing="fill")
    monkeypatch.setattr("longscan.tasks.series.forecast.PENALTIES", (1.0,))

    def weights(refits):
        monkeypatch.setattr("longscan.tasks.series.forecast._count_refits", lambda _: refits)
        return _regress(task, np.zeros((0, 1)))[0].double()

    needed = _count_refits(task._measured_ahead(task._data.starts["train"]).numpy())
    first, last, limit = weights(0), weights(needed), weights(200)
    assert (last - limit).norm() < 0.04 * (first - limit).norm()
    assert (weights(needed // 2) - limit).norm() > 0.08 * (first - limit).norm()


def test_refits_are_counted_by_the_step_with_most_missing_targets():
    for counts, refits in (((0, 0), 0), ((1, 0), 1), ((10, 20), 3), ((50, 0), 7), ((80, 10), 20), ((99, 0), 20), ((100, 0), 20)):
        assert _count_refits(np.arange(100)[:, None] >= np.array(counts)) == refits


def test_parts_without_a_measured_target_are_refused(tmp_path):
    frame = pd.DataFrame({"time": range(80), "x": np.sin(np.arange(80.0)), "y": np.cos(np.arange(80.0))})
    frame.loc[64:71, "x"] = np.nan
    frame.loc[72:, "y"] = np.nan
    path = write(tmp_path / "a.csv", frame)
    with pytest.raises(ValueError, match=r"a.csv must have a row with values of x, y in the part test, .* got none"):
        _ = SeriesForecast(path=path, horizon=4, context=8, missing="fill").d_input
    assert SeriesForecast(path=path, horizon=4, context=8, missing="fill", target=("x",)).size("test") == 8


def test_filled_values_are_no_actual_values(tmp_path):
    task = SeriesForecast(
        path=table_with_gaps(tmp_path / "a.csv"), horizon=4, context=8, missing="fill", predicted="windows", target=("x",)
    )
    batch = task.read_inputs(task.path)
    rows = task.add_times(task.decode(torch.zeros(len(batch.inputs), 12, 1), batch), task.path)
    actual = {row["time"]: row["x_actual"] for row in rows}
    assert [actual[str(row)] == "" for row in (102, 103, 104, 115, 116, 119)] == [False, True, False, False, True, True]


def test_tables_to_predict_have_the_kind_of_times_of_the_training_table(tmp_path):
    hours = pd.date_range("2024-01-01", periods=200, freq="h")
    frame = pd.DataFrame({"id": "a", "time": hours, "x": np.sin(np.arange(200) / 4)})
    task = SeriesForecast(path=write(tmp_path / "a.csv", frame), horizon=4, context=24)
    calendar = replace(task, calendar=True)
    tables = {
        "no times": frame[["id", "x"]],
        "numbers as times": frame.assign(time=range(200)),
        "dates with offsets to UTC": frame.assign(time=hours.tz_localize("Etc/GMT-5")),
    }
    for name, table in tables.items():
        path = write(tmp_path / "new.csv", table)
        with pytest.raises(ValueError, match=rf"new.csv must have dates without offsets to UTC, as the .* series, got {name}$"):
            calendar.read_inputs(path)
        if name == "dates with offsets to UTC":
            assert len(task.read_inputs(path).inputs) == 1, "without a calendar only the steps matter"
        else:
            with pytest.raises(ValueError, match=rf"new.csv must have dates, as the training series, got {name}$"):
                task.read_inputs(path)


def test_numbers_of_time_are_written_as_they_are_read():
    for number, text in (
        (1704067200.123456, "1704067200.123456"),
        (1704067200123457.0, "1704067200123457"),
        (0.1 + 0.2, "0.3"),
        (-2.0, "-2"),
        (1e-7, "1e-07"),
    ):
        assert format_stamps(np.array([number]), "numbers") == [text]


def test_uneven_steps_and_short_tables_are_errors(tmp_path):
    dates = pd.date_range("2024-01-01", periods=80, freq="h").delete([20, 21])
    with pytest.raises(ValueError, match=r"must be equal, got 1 that differ from 1:00:00, the first from 2024-01-01 19:00:00 to"):
        single(tmp_path / "a.csv", dates).size("train")
    local = pd.date_range("2026-03-27", periods=80, freq="h", tz="Europe/Berlin").tz_localize(None)
    with pytest.raises(ValueError, match=r"01:00:00 to 2026-03-29 03:00:00;.*; if the clocks were changed then, write"):
        single(tmp_path / "f.csv", local).size("train")
    with pytest.raises(ValueError, match=r"19:00:00 to 2026-01-01 21:00:00; asfreq and interpolate of pandas fill gaps$"):
        single(tmp_path / "g.csv", pd.date_range("2026-01-01", periods=80, freq="h").delete(20)).size("train")
    with pytest.raises(ValueError, match=r"`horizon` must be small enough for a window of 8 \+ 4 steps in the part train"):
        single(tmp_path / "b.csv", pd.date_range("2024-01-01", periods=12)).size("train")
    task = single(tmp_path / "c.csv", pd.date_range("2024-01-01", periods=80, freq="h"))
    short = write(tmp_path / "d.csv", pd.DataFrame({"date": pd.date_range("2024-05-01", periods=7, freq="h"), "price": range(7)}))
    with pytest.raises(ValueError, match="must have at least 8 rows of each series, the steps of the context, got 7"):
        task.read_inputs(short)
    daily = write(tmp_path / "e.csv", pd.DataFrame({"date": pd.date_range("2024-05-01", periods=9), "price": range(9)}))
    with pytest.raises(ValueError, match=r"must be equal, got 8 that differ from 1:00:00"):
        task.read_inputs(daily)


def table_with_known(path, rows=220, ahead=0):
    """Write an hourly table whose sales follow `promo`, which is known ahead; the last `ahead` rows have nothing else."""
    draw = np.random.default_rng(3)
    promo = (draw.random(rows) < 0.4).astype(float)
    sales = np.sin(np.arange(rows) / 24 * 2 * np.pi) + 3 * promo + 0.05 * draw.normal(size=rows)
    frame = pd.DataFrame({"date": pd.date_range("2024-03-01", periods=rows, freq="h"), "promo": promo, "sales": sales})
    frame["rain"] = draw.normal(size=rows)
    if ahead:
        frame.loc[rows - ahead :, ["sales", "rain"]] = np.nan
    return write(path, frame), frame


def known_task(path, **settings):
    return SeriesForecast(path=path, target=("sales",), known=("promo",), horizon=6, context=24, **settings)


def test_what_is_known_ahead_enters_inputs_and_the_regression(tmp_path):
    path, frame = table_with_known(tmp_path / "shop.csv")
    task = known_task(path, calendar=True)
    assert task.channel_names == (
        "sales", "rain", "ahead", "level of sales", "level of rain", "promo", "sine of day", "cosine of day"
    )  # fmt: skip
    batch = task.batch("test", 0, 3)
    start = int(task._data.starts["test"][0])
    train = frame["promo"][: round(220 * 0.7)]
    expected = (frame["promo"][start : start + 30] - train.mean()) / train.std(ddof=0)
    np.testing.assert_allclose(batch.inputs[0, :, 5], expected, rtol=1e-5)
    hours = (np.arange(start, start + 30) % 24) / 24 * 2 * np.pi
    np.testing.assert_allclose(batch.inputs[0, :, 6], np.sin(hours), atol=1e-5)
    assert batch.inputs[0, 24:, :2].abs().max() == 0
    blind = replace(task, known=(), calendar=False).baselines("test")["ridge"]
    assert task.baselines("test")["ridge"] < 0.2 * blind
    assert batch.targets[:, 24:].abs().mean() < 0.2 * blind  # what is left for the network
    assert ("known", "at the steps of the forecast: promo, sine of day, cosine of day") in task.summary()


def test_useless_columns_known_ahead_are_not_used_by_the_regression(tmp_path):
    path, _ = table_with_known(tmp_path / "shop.csv")
    task = SeriesForecast(path=path, target=("sales",), known=("rain",), horizon=6, context=24)
    blind = replace(task, known=(), channels=("sales",))
    assert task.baselines("test")["ridge"] == blind.baselines("test")["ridge"]


def test_rows_with_known_columns_alone_are_the_steps_of_the_forecast(tmp_path):
    path, frame = table_with_known(tmp_path / "shop.csv", ahead=8)
    task = known_task(path)
    assert len(task._data.store.values) == 212
    batch = task.read_inputs(path)
    assert batch.inputs.shape == (1, 30, 6)
    promo = frame["promo"].to_numpy()[188:218]
    assert np.corrcoef(batch.inputs[0, :, 5], promo)[0, 1] == pytest.approx(1)
    rows = task.add_times(task.decode(torch.zeros(1, 30, 1), batch), path)
    assert rows[0]["date"] == "2024-03-09 20:00:00"
    forecast = np.array([row["sales"] for row in rows])
    assert np.corrcoef(forecast, promo[24:])[0, 1] > 0.9
    short = write(tmp_path / "short.csv", frame[:217])
    with pytest.raises(ValueError, match=r"must have 6 rows after .*, with values of promo and empty other channels, got 5$"):
        task.read_inputs(short)
    with pytest.raises(ValueError, match="got 0"):
        task.read_inputs(write(tmp_path / "none.csv", frame[:212]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"known": ("sales",)}, "`known` must be other channels than those of target"),
        ({"known": ("snow",)}, "`known` must be a column of numbers of .*shop.csv"),
        ({"known": ("promo",), "channels": ("sales", "rain")}, "`known` must be some of the channels sales, rain"),
    ],
)
def test_columns_that_cannot_be_known_ahead_are_refused(tmp_path, settings, message):
    path, _ = table_with_known(tmp_path / "shop.csv")
    with pytest.raises(ValueError, match=message):
        _ = SeriesForecast(path=path, target=("sales",), horizon=6, **settings).d_input


def test_a_calendar_needs_dates(tmp_path):
    frame = pd.DataFrame({"time": range(200), "x": np.sin(np.arange(200.0))})
    task = SeriesForecast(path=write(tmp_path / "line.csv", frame), horizon=4, context=8, calendar=True)
    with pytest.raises(ValueError, match=r"`calendar` must be False, as .* has no dates"):
        _ = task.d_input


def test_all_windows_know_what_lies_ahead(tmp_path):
    path, _ = table_with_known(tmp_path / "shop.csv", ahead=6)
    every = known_task(path, predicted="windows")
    batch = every.read_inputs(path)
    rows = every.add_times(every.decode(torch.zeros(len(batch.inputs), 30, 1), batch), path)
    known = [row for row in rows if row["sales_actual"] != ""]
    assert len(rows) - len(known) == 6
    assert np.corrcoef([row["sales"] for row in known], [row["sales_actual"] for row in known])[0, 1] > 0.97


@pytest.mark.parametrize("zone", ["Europe/Berlin", "UTC"])
def test_dates_with_offsets_give_dates_in_utc_that_say_so(tmp_path, zone):
    """Across the change of the clocks hours are equal steps."""
    dates = pd.date_range("2024-03-29", periods=100, freq="h", tz=zone)
    task = single(tmp_path / "a.csv", dates)
    batch = task.read_inputs(task.path)
    rows = task.add_times(task.decode(torch.zeros(1, task.length, 1), batch), task.path)
    assert [row["date"] for row in rows][:2] == [str(dates[-1].tz_convert("UTC") + pd.Timedelta(hours=n)) for n in (1, 2)]
    assert dict(task.summary())["time"].endswith("+00:00")


def test_dates_with_and_without_offsets_are_not_mixed(tmp_path):
    dates = [str(date) for date in pd.date_range("2024-03-29", periods=100, freq="h", tz="UTC")]
    dates[60] = dates[60].removesuffix("+00:00")
    with pytest.raises(ValueError, match=r"'2024-03-31 12:00:00'"):
        single(tmp_path / "a.csv", dates).size("train")


@pytest.mark.parametrize(("rows", "valid", "test"), [(108, 12, 22), (60, 12, 12)])
def test_parts_of_short_tables_have_at_least_the_horizon(tmp_path, rows, valid, test):
    months = pd.date_range("2015-01-31", periods=rows, freq="ME")
    task = SeriesForecast(
        path=write(tmp_path / "a.csv", pd.DataFrame({"date": months, "x": np.sin(np.arange(rows))})), horizon=12, target=("x",)
    )
    assert (task.size("valid"), task.size("test")) == (valid - 11, test - 11)
    assert task._data.ranges.tolist() == [[0, rows - valid - test]]


@pytest.mark.parametrize(("end", "part"), [(300, "training"), (230, "test")])
def test_a_target_that_does_not_vary_is_refused(tmp_path, end, part):
    x = np.sin(np.arange(300.0))
    x[(0 if part == "training" else end) :] = 5.0
    task = SeriesForecast(path=write(tmp_path / "flat.csv", pd.DataFrame({"time": range(300), "x": x})), horizon=4, context=8)
    with pytest.raises(ValueError, match=f"`target` must be columns of which one varies in the {part} rows of .*flat.csv"):
        _ = task.d_input


@pytest.mark.parametrize(("level", "starts"), [("ridge", True), ("last", False)])
@pytest.mark.parametrize("head", ["affine", "mlp"])
def test_a_new_model_forecasts_what_the_regression_does(tmp_path, level, starts, head):
    given = {"name": "series_forecast", "level": level, **table_to_forecast(tmp_path)}
    settings = make_settings({"task": given, "model": {"spec": "lru", "d_model": 4, "d_state": 2, "head": head}})
    batch = settings.task.batch("test", 0, 3)
    with torch.no_grad():
        forecast = build_model(settings)(batch.inputs)
    assert (forecast.abs().max() == 0) == starts


def test_training_that_makes_forecasts_worse_ends_with_the_regression(tmp_path):
    training = {"steps": 4, "batch_size": 4, "lr": 10.0, "eval_every": 2, "select": "best", "device": "cpu"}
    task = {"name": "series_forecast", **table_to_forecast(tmp_path)}
    settings = make_settings({"task": task, "model": {"spec": "s4d", "d_model": 4}, "training": training})
    run = train(settings, tmp_path / "run", progress=False, command="")
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    first, *later = (row for row in rows if row["split"] == "valid")
    assert first["step"] == 0
    assert all(row["loss"] > first["loss"] for row in later)
    assert run.result["selected"] == "best"
    assert run.result["value"] == pytest.approx(settings.task.baselines("test")["ridge"], rel=1e-5)


@pytest.mark.parametrize(("frequency", "season"), [("MS", 12), ("BME", 12), ("BQE", 4), ("B", 5), ("YE", 1)])
def test_season_of_a_calendar_frequency(frequency, season, tmp_path):
    dates = pd.date_range("2001-01-01", periods=90, freq=frequency).strftime("%Y-%m-%d")
    assert single(tmp_path / "one.csv", dates)._data.season == season


def test_months_of_a_short_series_are_those_of_the_other_series(tmp_path):
    def months(start, count):
        return pd.DataFrame({"date": pd.date_range(start, periods=count, freq="MS"), "price": np.sin(np.arange(count))})

    frame = pd.concat([months("2010-01-01", 90), months("2012-05-01", 2), months("2013-01-01", 1)])
    frame["id"] = np.repeat(["long", "two", "one"], [90, 2, 1])
    task = SeriesForecast(path=write(tmp_path / "months.csv", frame), target=("price",), horizon=4, context=8)
    assert task._data.frequency == "MS"
    frame.loc[frame["id"] == "two", "date"] = pd.to_datetime(["2012-05-01", "2012-07-01"])
    with pytest.raises(ValueError, match="the steps of a forecast must be equal"):
        _ = SeriesForecast(path=write(tmp_path / "gap.csv", frame), target=("price",), horizon=4, context=8).length


def test_error_for_missing_values_says_what_a_forecast_does_with_them(tmp_path):
    frame = pd.DataFrame({"time": range(80), "price": np.sin(np.arange(80.0))})
    frame.loc[77:, "price"] = np.nan
    with pytest.raises(ValueError, match=r"has 3 missing values, .*; `missing='fill'` repeats the value before each$"):
        _ = SeriesForecast(path=write(tmp_path / "end.csv", frame), target=("price",), horizon=4, context=8).length
