"""The index of pandas objects in fits and predictions, tools of scikit-learn, and time stamps of forecasts."""

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_predict, cross_val_score, train_test_split

from longscan.estimators import SSMClassifier, SSMForecaster, SSMRegressor, split_cases
from longscan.estimators.clock import to_seconds

BRIEF = {"d_model": 4, "d_state": 2, "epochs": 1, "device": "cpu", "random_state": 0}
AHEAD = {"horizon": 3, "window": 8, **BRIEF}
CASES = [f"case {i:02d}" for i in range(12)]
DATA = np.random.default_rng(0).normal(size=(12, 6, 2))
LONG = pd.concat({case: pd.DataFrame(series, columns=["level", "flow"]) for case, series in zip(CASES, DATA, strict=True)})
KINDS = pd.Series(list("abbabaabbaab"), index=CASES)
SIZES = pd.DataFrame({"length": np.arange(12.0), "width": np.arange(12.0) ** 2}, index=CASES)
HOURS = pd.date_range("2024-10-26 21:00", periods=60, freq="h", tz="Europe/Berlin")
LOAD = pd.Series(np.sin(np.arange(60) / 3), index=HOURS, name="load")


def test_predictions_have_the_index_of_cases():
    model = SSMClassifier(**BRIEF).fit(LONG, KINDS)
    probabilities = model.predict_proba(LONG)
    assert probabilities.index.tolist() == CASES
    assert probabilities.columns.tolist() == ["a", "b"]
    predicted = model.predict(LONG.iloc[::-1])
    assert predicted.index.tolist() == CASES[::-1], "cases are in the order of their first occurrence"
    assert predicted.sort_index().equals(model.predict(LONG))
    assert model.score(LONG, KINDS.sample(frac=1, random_state=0)) == (model.predict(LONG) == KINDS).mean()
    assert isinstance(model.set_params(output="numpy").predict(LONG), np.ndarray)
    table = pd.DataFrame(DATA[..., 0], index=CASES)
    table_model = SSMClassifier(**BRIEF).fit(table, KINDS)
    assert isinstance(table_model.predict(table), np.ndarray)
    assert table_model.set_params(output="pandas").predict(table).index.tolist() == CASES
    assert table_model.predict(DATA[..., 0]).index.tolist() == list(range(12)), "an array has no index"
    sizes = SSMRegressor(**BRIEF).fit(LONG, SIZES.sample(frac=1, random_state=0))
    assert sizes.predict(LONG).columns.tolist() == ["length", "width"]
    assert sizes.predict(LONG).index.tolist() == CASES
    array_model = SSMRegressor(**BRIEF).fit(DATA, SIZES.to_numpy())
    np.testing.assert_array_equal(sizes.predict(LONG), array_model.predict(DATA))
    assert sizes.score(LONG, SIZES.iloc[::-1]) == array_model.score(DATA, SIZES.to_numpy())
    with pytest.raises(ValueError, match="`y` must have the index of the cases of X"):
        model.score(LONG, KINDS.iloc[1:])
    with pytest.raises(ValueError, match="`y` must have 12 labels, one for each series, got 11"):
        model.score(LONG, KINDS.tolist()[1:])


def test_tools_of_scikit_learn_split_between_cases():
    parts, labels = split_cases(LONG.sample(frac=1, random_state=0)), KINDS.iloc[::-1]
    assert set(parts.index) == set(CASES)
    assert all(part.index.tolist() == list(range(6)) for part in parts)
    labels = labels.loc[parts.index]
    assert cross_val_score(SSMClassifier(**BRIEF), parts, labels, cv=3).shape == (3,)
    assert cross_val_score(SSMClassifier(**BRIEF), parts, labels, cv=3, scoring="roc_auc").shape == (3,)
    groups = np.arange(12) // 3
    assert np.isfinite(cross_val_score(SSMClassifier(**BRIEF), parts, labels, cv=GroupKFold(2), groups=groups)).all()
    assert cross_val_predict(SSMClassifier(**BRIEF), parts, labels, cv=3, method="predict_proba").shape == (12, 2)
    assert GridSearchCV(SSMClassifier(**BRIEF), {"d_model": [2, 4]}, cv=2).fit(parts, labels).best_params_["d_model"] in (2, 4)
    X_train, X_test, y_train, y_test = train_test_split(parts, labels, random_state=0)
    assert 0 <= SSMClassifier(**BRIEF).fit(X_train, y_train).score(X_test, y_test.iloc[::-1]) <= 1, "labels are aligned by index"
    with pytest.raises(ValueError, match=r"`X` must be a frame indexed by .*, got a ndarray"):
        split_cases(DATA)


def test_refit_on_a_cube_forgets_the_number_of_columns():
    model = SSMClassifier(**BRIEF).fit(pd.DataFrame(DATA[..., 0]).add_prefix("t"), KINDS.to_numpy())
    assert model.n_features_in_ == 6
    model.fit(DATA[..., :1], KINDS.to_numpy())
    assert model.predict(DATA[:, :4, 0]).shape == (12,), "a cube can have fewer steps than in fit"


def test_forecasts_of_frames_have_channel_names_and_dates():
    frame = pd.DataFrame({"load": LOAD, "sun": -LOAD})
    model = SSMForecaster(**AHEAD).fit(frame)
    forecast = model.predict()
    assert forecast.columns.tolist() == ["load", "sun"]
    assert forecast.index.equals(pd.date_range(HOURS[-1], periods=4, freq="h")[1:])
    reordered = model.predict(frame[["sun", "load"]])
    assert reordered.columns.tolist() == ["sun", "load"]
    pd.testing.assert_frame_equal(reordered[["load", "sun"]], forecast)
    np.testing.assert_array_equal(model.predict(frame.to_numpy()), forecast)
    with pytest.raises(ValueError, match=r"`y` must have the channels .*'sun'.*, got columns without 'sun'"):
        model.predict(frame.rename(columns={"sun": "rain"}))
    with pytest.raises(ValueError, match=r"`layout` must be set for series 0 of y with the shape"):
        SSMForecaster(**AHEAD).fit(frame.to_numpy().T)
    transposed = SSMForecaster(**AHEAD, layout="ncl").fit(frame.to_numpy().T)
    np.testing.assert_array_equal(transposed.predict(frame.to_numpy().T), forecast)


def test_series_with_another_step_than_in_fit_raises():
    model = SSMForecaster(**AHEAD).fit(LOAD)
    assert model.step_ == pd.tseries.frequencies.to_offset("h")
    assert model.predict(LOAD.iloc[:30]).index[0] == HOURS[30]
    assert model.predict(LOAD.iloc[:2]).index.equals(HOURS[2:5]), "the step is that of fit"
    assert model.predict(LOAD.tz_convert("Asia/Tokyo")).index.tz.key == "Asia/Tokyo"
    assert model.predict(LOAD.to_numpy()).shape == (3,)
    assert model.predict(LOAD.reset_index(drop=True)).index.tolist() == [60, 61, 62], "a range index has no step"
    for frequency in ("D", "30min"):
        with pytest.raises(ValueError, match=rf"`y` must have steps of h as in fit, got steps of {frequency}"):
            model.predict(LOAD.set_axis(pd.date_range("2024", periods=60, freq=frequency, tz="UTC")))
    with pytest.raises(ValueError, match=r"`y` must have steps of 2 as in fit"):
        SSMForecaster(**AHEAD).fit(LOAD.set_axis(range(0, 120, 2))).predict(LOAD.set_axis(np.arange(60) / 2))
    with pytest.raises(ValueError, match="`y` must have equal steps"):
        model.score(LOAD.drop(HOURS[9]))
    months = LOAD.set_axis(pd.date_range("2020-01-31", periods=60, freq="ME"))
    assert SSMForecaster(**AHEAD).fit(months).predict(months.iloc[:2]).index[0] == pd.Timestamp("2020-03-31")
    with pytest.raises(ValueError, match=r"`y` must have at least two rows, .*, got one row"):
        SSMForecaster(**AHEAD).fit(LOAD.to_numpy()).predict(LOAD.iloc[:1])


def test_mixing_dates_with_and_without_time_zone_raises():
    model = SSMForecaster(**AHEAD).fit(LOAD)
    with pytest.raises(ValueError, match=r"`y` must have dates with the time zone Europe/Berlin as in fit, got no time zone"):
        model.predict(LOAD.set_axis(pd.date_range("2024", periods=60, freq="h")))
    with pytest.raises(
        ValueError, match=r"series 1 of `y` must have dates with the time zone .* as in series 0, got no time zone"
    ):
        SSMForecaster(**AHEAD).fit([LOAD, LOAD.set_axis(pd.date_range("2024", periods=60, freq="h"))])
    days = LOAD.set_axis(pd.date_range("2024-03-01", periods=60, freq="D"))
    for call in ("predict", "score"):
        with pytest.raises(
            ValueError, match=r"`y` must have dates with no time zone as in fit, got the time zone UTC; tz_convert"
        ):
            getattr(SSMForecaster(**AHEAD).fit(days), call)(days.tz_localize("UTC"))
    local = days.tz_localize("Europe/Berlin")
    model = SSMForecaster(**AHEAD).fit(local)
    elsewhere = model.predict(local.tz_convert("UTC"))
    assert elsewhere.index.equals(model.predict(local).index.tz_convert("UTC")), "days of Berlin over a change of the clock"
    np.testing.assert_array_equal(elsewhere.to_numpy(), model.predict(local).to_numpy())


def test_forecasts_after_a_fit_on_several_series():
    parts = [LOAD.iloc[:30], LOAD.iloc[20:]]
    model = SSMForecaster(**AHEAD).fit(parts)
    long = pd.concat(dict(zip("ab", parts, strict=True)))
    shuffled = SSMForecaster(**AHEAD).fit(long.sample(frac=1, random_state=0).sort_index(level=0, sort_remaining=False))
    pd.testing.assert_series_equal(model.predict(LOAD), shuffled.predict(LOAD))
    cube = SSMForecaster(**AHEAD).fit(np.stack([LOAD, LOAD])[..., None])
    np.testing.assert_array_equal(cube.predict(LOAD), SSMForecaster(**AHEAD).fit([LOAD, LOAD]).predict(LOAD))
    daily = LOAD.set_axis(pd.date_range("2024", periods=60, freq="D", tz="Europe/Berlin"))
    with pytest.raises(ValueError, match="series 1 of `y` must have steps of h as in series 0"):
        SSMForecaster(**AHEAD).fit([LOAD, daily])


def test_uneven_dates_are_read_as_times():
    gappy = LOAD.drop(HOURS[[9, 10, 40]])
    model = SSMForecaster(**AHEAD, spec="lru").fit(gappy, times="index")
    assert model.time_unit_ == 3600
    assert model.predict().index.equals(HOURS[-1] + pd.to_timedelta([1, 2, 3], unit="h"))
    ahead = HOURS[-1] + pd.to_timedelta([1, 5, 30], unit="h")
    forecast = model.predict(gappy, "index", ahead)
    assert forecast.index.equals(ahead)
    assert not np.allclose(forecast, model.predict())
    elapsed = np.asarray((gappy.index - gappy.index[0]).total_seconds())
    numbers = model.predict(gappy.to_numpy(), elapsed, elapsed[-1] + 3600 * np.array([1, 5, 30]))
    np.testing.assert_array_equal(numbers, forecast)
    with pytest.raises(ValueError, match="`times_ahead` must have 3 times, one for each step of the horizon, got 2"):
        model.predict(gappy, "index", ahead[:2])
    for wrong, kind in (
        ([1.0, 2.0, 3.0], "numbers"),
        (ahead.tz_localize(None), "dates without a time zone"),
        (ahead.tz_localize(None).to_period("h"), "periods"),
        (ahead - HOURS[0], "durations"),
    ):
        with pytest.raises(ValueError, match=f"`times_ahead` must be dates with a time zone, as the times before, got {kind}"):
            model.predict(gappy, "index", wrong)
    with pytest.raises(ValueError, match="`y` must be without duplicated time stamps, got 1"):
        SSMForecaster(**AHEAD).fit(pd.concat([gappy, gappy[-1:]]), times="index")
    months = pd.Series(np.sin(np.arange(40)), index=pd.period_range("2020-01", periods=42, freq="M").delete([5, 9]))
    assert (
        SSMForecaster(**AHEAD).fit(months, times="index").predict().index.equals(pd.period_range("2023-07", periods=3, freq="M"))
    )


def test_to_seconds_keeps_nanoseconds_of_dates():
    """Seconds since 1970 in float64 would have a resolution of a quarter of a microsecond."""
    clock = pd.date_range("2024-01-01", periods=5, freq="250ns")
    np.testing.assert_allclose(np.diff(to_seconds(clock)), 2.5e-7, rtol=1e-12)


def test_to_seconds_keeps_differences_of_large_whole_numbers():
    """Nanoseconds since 1970 in float64 would have a resolution of 256."""
    stamps = 1_704_067_200_000_000_000 + 10 * np.arange(5)
    for clock in (pd.Index(stamps), pd.Index(stamps.astype(np.uint64))):
        assert to_seconds(clock).tolist() == [0, 10, 20, 30, 40]
    assert to_seconds(pd.Index([1.5, 2.5])).tolist() == [1.5, 2.5]
    assert to_seconds(pd.Index([-(2**60), 3 - 2**60])).tolist() == [0, 3]


def test_times_of_a_table_are_its_columns():
    """With times="index" of a frame; any other text, and "index" of an array, raise."""
    table, y = pd.DataFrame(np.random.default_rng(0).normal(size=(12, 8))), np.arange(12) % 2
    table.columns = [0.0, 1.0, 2.5, 3.0, 4.5, 5.0, 6.5, 7.0]
    settings = {"spec": "lru", "d_model": 4, "d_state": 2, "epochs": 1, "device": "cpu", "random_state": 0}
    model = SSMClassifier(**settings).fit(table, y, "index")
    given = SSMClassifier(**settings).fit(table, y, np.tile(np.asarray(table.columns), (12, 1)))
    np.testing.assert_allclose(model.predict_proba(table, "index"), given.predict_proba(table, np.tile(table.columns, (12, 1))))
    message = "`times` must be the times of the steps, or 'index' with series of pandas, got"
    for X, times in ((table, "columns"), (table, "z"), (table.to_numpy(), "index")):
        with pytest.raises(ValueError, match=message):
            SSMClassifier(**settings).fit(X, y, times)
    frame = pd.concat({number: pd.DataFrame({"x": row}) for number, row in enumerate(table.to_numpy())})
    for times in ("columns", "z"):
        with pytest.raises(ValueError, match="`times` must be None or 'index', as X is indexed by time, got a str"):
            SSMClassifier(**settings).fit(frame, y, times)


def test_dates_are_refused_after_a_fit_with_numbers_of_unknown_unit():
    draw = np.random.default_rng(0)
    X, y = draw.normal(size=(12, 11)), np.arange(12) % 2
    numbers = [draw.uniform(0.5, 2, 11).cumsum() for _ in X]
    dates = [pd.Timestamp("2024-01-01") + pd.to_timedelta(row, unit="s") for row in numbers]
    model = SSMClassifier(**BRIEF, spec="lru").fit(X, y, times=numbers)
    forecaster = SSMForecaster(**AHEAD, spec="lru").fit([*X, X[0]], times=[*numbers, numbers[0]])
    needed = r"^`times` must be numbers as in fit, whose unit is unknown, got datetime64\[ns\]$"
    for predict in (
        lambda: model.predict(X, times=dates),
        lambda: model.stream().update(X[0], times=dates[0]),
        lambda: forecaster.predict([*X], times=dates),
    ):
        with pytest.raises(ValueError, match=needed):
            predict()
    model = SSMClassifier(**BRIEF, spec="lru").fit(X, y, times=dates)
    durations = [pd.to_timedelta(row, unit="s") for row in numbers]
    for times in (durations, numbers):
        np.testing.assert_allclose(model.predict_proba(X, times=times), model.predict_proba(X, times=dates), rtol=1e-4)
    needed = "^series 1 of `times` must be of the kind of series 0, numbers or dates, got datetime64"
    with pytest.raises(ValueError, match=needed):
        SSMClassifier(**BRIEF, spec="lru").fit(X, y, times=[numbers[0], *dates[1:]])


def test_columns_of_targets_are_matched_by_name():
    model = SSMRegressor(**BRIEF, output="numpy").fit(LONG, SIZES)
    assert model.score(LONG, SIZES[["width", "length"]]) == model.score(LONG, SIZES)
    assert model.score(LONG, SIZES.set_axis([0, 1], axis=1)) == model.score(LONG, SIZES), "numbers are no names"
    numbered = SSMRegressor(**BRIEF, output="numpy").fit(LONG, SIZES.set_axis([205, 101], axis=1))
    assert numbered.score(LONG, SIZES.set_axis([205, 101], axis=1)[[101, 205]]) == model.score(LONG, SIZES)
    plain = SSMRegressor(**BRIEF, output="numpy").fit(LONG, SIZES.set_axis([0, 1], axis=1))
    assert plain.score(LONG, SIZES) == plain.score(LONG, SIZES.set_axis([0, 1], axis=1)[[1, 0]]) == model.score(LONG, SIZES)
    curves = [
        SSMRegressor(**BRIEF).fit(LONG, SIZES, validation_data=(LONG, targets)).validation_curve_
        for targets in (SIZES, SIZES[["width", "length"]])
    ]
    assert curves[0] == curves[1]
    renamed = SIZES.rename(columns={"width": "depth"})
    with pytest.raises(ValueError, match=r"`y` must have the columns \['length', 'width'\] as in fit, got \['length', 'depth'\]"):
        model.score(LONG, renamed)
    with pytest.raises(ValueError, match=r"`y` must have the columns \['length', 'width'\] as in fit"):
        SSMRegressor(**BRIEF).fit(LONG, SIZES, validation_data=(LONG, renamed))


def test_labels_of_nullable_types_keep_their_type():
    large = pd.Series([2**53, 2**53 + 1, 5] * 4, index=CASES, dtype="Int64")  # float64 cannot tell the first two apart
    model = SSMClassifier(**BRIEF).fit(LONG, large)
    assert model.classes_.tolist() == [5, 2**53, 2**53 + 1]
    assert model.classes_.dtype == np.int64
    flags = pd.Series([True, False] * 6, index=CASES, dtype="boolean")
    assert SSMClassifier(**BRIEF).fit(LONG, flags).classes_.dtype == bool
    with pytest.raises(ValueError, match="`y` must have a label in each row, got 1 of 12 missing"):
        SSMClassifier(**BRIEF).fit(LONG, large.mask(large == 5, pd.NA).mask(large.index != CASES[2], 1))


@pytest.mark.parametrize("names", [[205, 101], [2.5, 0.5], ["level", 101]])
def test_channels_with_numbers_as_names_are_matched_by_them(names):
    sensors = [pd.DataFrame(series, columns=names) for series in DATA]
    model = SSMClassifier(**BRIEF).fit(sensors, KINDS.to_numpy())
    assert model.channel_names_ == tuple(names)
    expected = model.predict_proba(sensors)
    np.testing.assert_array_equal(model.predict_proba([frame[names[::-1]] for frame in sensors]), expected)
    np.testing.assert_array_equal(model.predict_proba(DATA), expected)
    mixed = [frame[names[::-1]] if number else frame for number, frame in enumerate(sensors)]
    np.testing.assert_array_equal(SSMClassifier(**BRIEF).fit(mixed, KINDS.to_numpy()).predict_proba(sensors), expected)
    with pytest.raises(ValueError, match=f"must have the channels .*, got columns without {names[0]!r} and with 300"):
        model.predict([frame.rename(columns={names[0]: 300}) for frame in sensors])


DATES = [pd.Timestamp("2024-01-02"), pd.Timestamp("2024-01-01")]
LABELS = {
    "dates": DATES,
    "dates of a time zone": [date.tz_localize("Europe/Berlin") for date in DATES],
    "days": [date.date() for date in DATES],
    "periods": [date.to_period("D") for date in DATES],
    "durations": [pd.Timedelta("2h"), pd.Timedelta("1h")],
    "intervals": [pd.Interval(1, 2), pd.Interval(0, 1)],
    "tuples": [("b", 1), ("a", 1)],
    "a tuple and a number": [("b", 1), 3],
    "flags": [False, True],
    "a missing name": [float("nan"), "level"],
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_channels_with_any_names_are_matched_by_them(labels, tmp_path):
    columns = pd.Index(labels, tupleize_cols=False)
    sensors = [pd.DataFrame(series).set_axis(columns, axis=1) for series in DATA]
    model = SSMClassifier(**BRIEF).fit(sensors, KINDS.to_numpy())
    expected = model.predict_proba(sensors)
    model.save(tmp_path / "model")
    for other in (model, SSMClassifier.load(tmp_path / "model")):
        np.testing.assert_array_equal(other.predict_proba([frame.iloc[:, ::-1] for frame in sensors]), expected)
    renamed = [frame.set_axis(pd.Index([labels[0], "other"], tupleize_cols=False), axis=1) for frame in sensors]
    with pytest.raises(ValueError, match=r"series 0 of `X` must have the channels .*, got columns without .* and with 'other'"):
        model.predict(renamed)


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_forecasts_of_columns_with_any_names(labels):
    columns = pd.Index(labels, tupleize_cols=False)
    frame = pd.DataFrame(np.stack([LOAD, 100 - LOAD], 1)).set_axis(columns, axis=1)
    reordered = frame.iloc[:, ::-1]
    model = SSMForecaster(**AHEAD, quantiles=(0.1, 0.9)).fit(frame)
    assert model.predict().columns.equals(columns)
    pd.testing.assert_frame_equal(model.predict(reordered), model.predict().iloc[:, ::-1])
    quantiles = model.predict_quantiles()
    assert [str(name[0]) for name in quantiles.columns[::2]] == [str(label) for label in labels]
    np.testing.assert_array_equal(model.predict_quantiles(reordered), quantiles.iloc[:, [2, 3, 0, 1]])
    cases = pd.concat({"a": frame, "b": frame})
    assert model.predict(cases).columns.equals(columns)
    np.testing.assert_array_equal(model.predict_quantiles(cases).loc["a"], quantiles)
    assert model.backtest(frame, stride=30)["channel"].nunique(dropna=False) == 2


@pytest.mark.parametrize("labels", [*LABELS.values(), [1, 0]], ids=[*LABELS, "positions"])
def test_targets_with_any_names_are_matched_by_them(labels):
    targets = SIZES.set_axis(pd.Index(labels, tupleize_cols=False), axis=1)
    model = SSMRegressor(**BRIEF, output="numpy").fit(LONG, targets)
    assert model.score(LONG, targets.iloc[:, ::-1]) == model.score(LONG, targets)


@pytest.mark.parametrize("kind", ["days", "tuples", "intervals"])
def test_steps_of_a_table_in_another_order_raise(kind):
    steps = {
        "days": [day.date() for day in pd.date_range("2024-01-01", periods=5)],
        "tuples": [("step", number) for number in range(5)],
        "intervals": list(pd.interval_range(0, 5)),
    }[kind]
    table = pd.DataFrame(DATA[:, :5, 0]).set_axis(pd.Index(steps, tupleize_cols=False), axis=1)
    model = SSMClassifier(**BRIEF).fit(table, KINDS.to_numpy())
    model.predict(table)
    model.predict(table.to_numpy())
    with pytest.raises(ValueError, match=r"the columns of `X` must be (in the order of time|those of fit in their order)"):
        model.predict(table.iloc[:, ::-1])


@pytest.mark.parametrize("names", [["load", "sun"], [205, 101], [0, 1]])
def test_forecasts_of_frames_with_and_without_names_have_their_columns(names, tmp_path):
    values = np.stack([LOAD, 100 - LOAD], 1)
    named, plain = pd.DataFrame(values, columns=names), pd.DataFrame(values)
    model = SSMForecaster(**AHEAD, quantiles=(0.1, 0.9)).fit(named)
    model.save(tmp_path / "model.safetensors")
    forecast = model.predict()
    for other in (model, SSMForecaster.load(tmp_path / "model.safetensors")):
        reordered = other.predict(named[names[::-1]])
        assert reordered.columns.tolist() == names[::-1]
        pd.testing.assert_frame_equal(reordered[names], forecast)
    pd.testing.assert_frame_equal(model.predict(plain), forecast.set_axis([0, 1], axis=1))
    first, second = model.predict_quantiles([named, plain])
    np.testing.assert_array_equal(first, second)
    assert [frame.columns.get_level_values(0).unique().tolist() for frame in (first, second)] == [names, [0, 1]]
    cases = pd.concat({"a": plain, "b": plain})
    np.testing.assert_array_equal(model.predict(cases).loc["a"], forecast)
    assert model.backtest(plain, stride=30)["channel"].unique().tolist() == [0, 1]
