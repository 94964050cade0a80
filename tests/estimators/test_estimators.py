import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from longscan.estimators import SSMClassifier, SSMForecaster, SSMRegressor
from longscan.estimators.fitting import minimise

SMALL = {"d_model": 8, "d_state": 4, "epochs": 15, "lr": 0.02, "device": "cpu", "random_state": 0}
BRIEF = {**SMALL, "d_model": 4, "epochs": 1}


def make_waves(count: int, length: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return series of two channels, and labels that say whether the second channel is ahead of the first or behind it."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    start = random.uniform(0, 2 * np.pi, (count, 1))
    steps = np.arange(length) * 0.7
    second = np.where(labels[:, None] == 1, start + 1, start - 1)
    X = np.stack([np.sin(start + steps), np.sin(second + steps)], -1) + 0.1 * random.standard_normal((count, length, 2))
    return X, np.array(["behind", "ahead"])[labels]


def test_classifier_learns_and_beats_the_constant():
    X, y = make_waves(96)
    model = SSMClassifier(**SMALL).fit(X, y)
    X_test, y_test = make_waves(64, seed=1)
    assert model.score(X_test, y_test) > 0.9 > max(np.mean(y_test == "ahead"), np.mean(y_test == "behind"))
    assert model.classes_.tolist() == ["ahead", "behind"]
    probabilities = model.predict_proba(X_test)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert (model.predict(X_test) == model.classes_[probabilities.argmax(1)]).all()
    assert model.loss_curve_[-1] < 0.5 * model.loss_curve_[0]


def test_regressor_learns_and_beats_the_constant():
    random = np.random.default_rng(0)
    X = random.standard_normal((128, 12))
    y = 100 + 30 * X.mean(1)
    model = SSMRegressor(**{**SMALL, "epochs": 30}).fit(X[:96], y[:96])
    assert model.score(X[96:], y[96:]) > 0.8
    multioutput = SSMRegressor(**{**SMALL, "epochs": 2}).fit(X, np.stack([y, -y], 1))
    assert multioutput.predict(X[:3]).shape == (3, 2)


def test_predictions_do_not_depend_on_the_type_of_the_input():
    """The types are arrays, lists, lists of frames, and one frame indexed by series and time."""
    X, y = make_waves(12, 8)
    frame = pd.concat({name: pd.DataFrame(series, columns=["a", "b"]) for name, series in zip("lkjihgfedcba", X, strict=True)})
    inputs = [X, list(X), [pd.DataFrame(series) for series in X], frame, X.astype(np.float32), [series.tolist() for series in X]]
    labels = pd.Series(y, index=list("lkjihgfedcba"))
    fitted = [SSMClassifier(**BRIEF).fit(data, labels if data is frame else y) for data in inputs]
    expected = fitted[0].predict_proba(X)
    for data, model in zip(inputs, fitted, strict=True):
        np.testing.assert_allclose(model.predict_proba(data), expected, atol=1e-5)
    table = X[..., 0]
    regressor = SSMRegressor(**BRIEF).fit(table, np.arange(12.0))
    for data in (table, pd.DataFrame(table), list(table), [pd.Series(row) for row in table], table.tolist(), table[..., None]):
        np.testing.assert_allclose(regressor.predict(data), regressor.predict(table), atol=1e-4)


def test_predictions_of_unequal_lengths_equal_those_of_single_series():
    X, y = make_waves(10)
    ragged = [series[: 5 + index] for index, series in enumerate(X)]
    model = SSMClassifier(**BRIEF).fit(ragged, y)
    joint = model.predict_proba(ragged)
    single = np.concatenate([model.predict_proba([series]) for series in ragged])
    np.testing.assert_allclose(joint, single, atol=1e-5)


def test_predictions_do_not_depend_on_the_batch():
    X, y = make_waves(50)
    model = SSMClassifier(**BRIEF).fit(X, y)
    whole = model.predict_proba(X)
    np.testing.assert_allclose(np.concatenate([model.predict_proba(X[i : i + 7]) for i in range(0, 50, 7)]), whole, atol=1e-5)


def test_times_can_be_an_argument_or_the_index():
    X, y = make_waves(10, 8)
    random = np.random.default_rng(0)
    times = random.exponential(2.0, (10, 8)).cumsum(1)
    model = SSMClassifier("lru", **BRIEF).fit(X, y, times)
    assert model.time_unit_ == pytest.approx(np.median(np.diff(times, axis=1)))
    expected = model.predict_proba(X, times)
    assert not np.allclose(model.predict_proba(X, 3 * times), expected, atol=1e-3)
    frames = [pd.DataFrame(series, index=row) for series, row in zip(X, times, strict=True)]
    np.testing.assert_allclose(model.predict_proba(frames, "index"), expected, atol=1e-6)
    dates = [
        pd.DataFrame(s, index=pd.Timestamp("2024-01-01") + pd.to_timedelta(row, unit="s"))
        for s, row in zip(X, times, strict=True)
    ]
    of_dates = SSMClassifier("lru", **BRIEF).fit(dates, y, "index")  # after which numbers are seconds
    np.testing.assert_allclose(of_dates.predict_proba(X, times), expected, atol=1e-5)
    np.testing.assert_allclose(of_dates.predict_proba(dates, "index"), expected, atol=1e-5)
    zoned = [frame.tz_localize("Asia/Tokyo") for frame in dates]
    of_zone = SSMClassifier("lru", **BRIEF).fit(zoned, y, "index")
    np.testing.assert_allclose(of_zone.predict_proba(zoned, "index"), expected, atol=1e-5)
    shifted = [row + 5 for row in times]
    np.testing.assert_allclose(model.predict_proba(list(X), shifted), expected, atol=1e-5)
    even = SSMClassifier(**BRIEF).fit(X, y)
    regular = SSMClassifier(**BRIEF).fit(X, y, np.tile(np.arange(8) * 0.25, (10, 1)))
    np.testing.assert_allclose(regular.predict_proba(X, np.tile(np.arange(8) * 0.25, (10, 1))), even.predict_proba(X), atol=1e-5)


def test_same_seed_gives_the_same_model_and_restores_the_generator():
    X, y = make_waves(10, 8)
    state = torch.get_rng_state()
    first, second = (SSMClassifier(**BRIEF).fit(X, y) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(first.predict_proba(X), second.predict_proba(X))
    other_seed = SSMClassifier(**{**BRIEF, "random_state": 1}).fit(X, y)
    assert not np.allclose(first.predict_proba(X), other_seed.predict_proba(X))
    unpickled = pickle.loads(pickle.dumps(first))
    np.testing.assert_allclose(unpickled.predict_proba(X), first.predict_proba(X), atol=1e-6)
    network = first.network()
    with torch.no_grad():
        logits = network(torch.from_numpy(((X - first.mean_) / first.scale_).astype(np.float32)))
    np.testing.assert_allclose(torch.softmax(logits, 1).numpy(), first.predict_proba(X), atol=1e-5)
    assert network is not first.model_


def test_estimators_work_in_tools_of_scikit_learn():
    X, y = make_waves(24, 8)
    table = X[..., 1]
    assert cross_val_score(SSMClassifier(**BRIEF), table, y, cv=2).shape == (2,)
    search = GridSearchCV(SSMClassifier(**BRIEF), {"spec": ["mamba", "lru"], "lr": [0.01]}, cv=2).fit(table, y)
    assert search.best_params_["spec"] in ("mamba", "lru")
    pipeline = make_pipeline(FunctionTransformer(np.log1p), SSMClassifier(**BRIEF)).fit(np.abs(table), y)
    assert pipeline.predict(np.abs(table)).shape == (24,)


def test_spec_can_be_bidirectional_or_a_list_of_blocks():
    X, y = make_waves(10, 8)
    blocks = [{"layer": "s6", "block": "bidirectional", "options": {"variant": "own"}}, {"layer": None, "block": "feed_forward"}]
    for spec in ("bidirectional feed_forward", blocks):
        assert SSMClassifier(spec, **BRIEF, pooling="last").fit(X, y).predict(X).shape == (10,)


NO_DATE = np.array(["NaT", "2024-01-01", "2024-01-02"], "datetime64[D]")


@pytest.mark.parametrize(
    ("X", "times", "message"),
    [
        ([], None, "`X` must have at least one series, got none"),
        ([np.zeros((3, 2)), np.zeros((3, 1))], None, "series 1 of `X` must have 2 channels like the first, got 1"),
        ([np.zeros((3, 2)), np.full((3, 2), np.nan)], None, "series 1 of `X` must contain only finite numbers"),
        ([np.zeros((3, 2)), np.zeros((0, 2))], None, "series 1 of `X` must have the shape"),
        (
            [np.zeros((3, 2)), np.array([["a", "b"]])],
            None,
            "series 1 of `X` must contain only real numbers, got text, such as 'a'",
        ),
        (
            [np.zeros((3, 2)), np.zeros((3, 2), complex)],
            None,
            "series 1 of `X` must contain only real numbers, got dtype complex128",
        ),
        (
            [np.zeros((3, 2)), np.zeros((3, 2), "datetime64[s]")],
            None,
            r"series 1 of `X` must contain only real numbers, got dtype datetime64\[s\]",
        ),
        (np.zeros((2, 3, 1)), np.zeros((1, 3)), "`times` must have 2 series of times, got 1"),
        (np.zeros((2, 3, 1)), np.zeros((2, 2)), "series 0 of `times` must have 3 times, one for each step, got 2"),
        (np.zeros((2, 3, 1)), [[0, 1, 2], [0, 2, 1]], "series 1 of `times` must be in the order of time, got times that go back"),
        (np.zeros((2, 3, 1)), [[0, 1, 2], ["a", "b", "c"]], "series 1 of `times` must have times .*, got the kind 'string'"),
        (
            np.zeros((2, 3, 1)),
            [[0, 1, 2], NO_DATE],
            "series 1 of `times` must have a time stamp in each row, got 1 missing, first row 0",
        ),
        (np.zeros((2, 3, 1)), "index", "`times` must be the times of the steps, or 'index' with series of pandas, got 'index'"),
    ],
    ids=str,
)
def test_invalid_series_or_times_raise(X, times, message):
    with pytest.raises(ValueError, match=message):
        SSMClassifier(**BRIEF).fit(X, [0, 1], times)


@pytest.mark.parametrize(
    ("longest", "times", "warns"), [(5, None, True), (4, None, False), (5, "index", False)], ids=["gap", "weekend", "read"]
)
def test_uneven_times_of_an_index_that_are_not_read_are_warned_of(longest, times, warns, caplog):
    X, y = make_waves(8, 6)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta([0, 1, 2, 2 + longest, 3 + longest, 4 + longest], unit="D")
    SSMClassifier(**BRIEF).fit([pd.DataFrame(series, index=days) for series in X], y, times=times)
    assert ("X: its longest step is 5 median steps, which times='index' reads" in caplog.text) == warns
    assert bool(caplog.text) == warns


def test_data_that_differ_from_those_of_fit_raise():
    X, y = make_waves(8, 6)
    model = SSMClassifier(**BRIEF).fit(X, y)
    with pytest.raises(ValueError, match=r"`X` must have 2 channels as in fit, got 1$"):
        model.predict(X[..., :1])
    hint = r"two axes are \(cases, steps\), and a single series is X\[None\]"
    with pytest.raises(ValueError, match=f"`X` must have 2 channels as in fit, got 1; {hint}$"):
        model.predict(X[0])
    assert model.predict(X[0][None]).shape == (1,)
    with pytest.raises(ValueError, match="`times` must be None as in fit, got times"):
        model.predict(X, np.zeros((8, 6)))
    with pytest.raises(ValueError, match="`y` must have 8 labels, one for each series, got 7"):
        SSMClassifier(**BRIEF).fit(X, y[:7])
    with pytest.raises(ValueError, match=r"`y` must have the shape \(8,\) or \(8, K\), .*, got \(7,\)"):
        SSMRegressor(**BRIEF).fit(X, np.zeros(7))
    with pytest.raises(ValueError, match=r"`epochs` must be .*, got 0"):
        SSMClassifier(**{**BRIEF, "epochs": 0}).fit(X, y)
    with pytest.raises(ValueError, match="`spec` must be valid at position 1, got 'Z'"):
        SSMClassifier("Z", **BRIEF).fit(X, y)
    with pytest.raises(NotFittedError):
        SSMForecaster().predict(X[0])


def make_season(length: int) -> np.ndarray:
    return 5 + 2 * np.sin(np.arange(length) * 2 * np.pi / 12)


def test_forecaster_beats_the_last_value():
    y = make_season(200)
    model = SSMForecaster(horizon=6, window=24, **{**SMALL, "epochs": 25, "d_model": 16}).fit(y)
    assert model.score(make_season(300)) > 0.7
    assert model.score(np.full(60, 3.0)) <= 1
    forecast = model.predict()
    assert forecast.shape == (6,)
    assert np.abs(forecast - make_season(206)[200:]).mean() < 0.5


def test_forecasts_have_the_type_of_the_series():
    y = np.stack([make_season(60), -make_season(60)], 1)
    brief = {"horizon": 4, "window": 10, **BRIEF}
    model = SSMForecaster(**brief).fit(y)
    assert model.predict(y[:30]).shape == (4, 2)
    frame = pd.DataFrame(y, columns=["up", "down"])
    assert list(model.predict(frame).columns) == ["up", "down"]
    np.testing.assert_allclose(model.predict(frame), model.predict(y), atol=1e-5)
    several = SSMForecaster(**brief).fit([y, y[:20]])
    assert several.predict(y).shape == (4, 2)
    assert [forecast.shape for forecast in several.predict()] == [(4, 2), (4, 2)]
    np.testing.assert_allclose(model.predict(y), model.predict(y[-10:]), atol=1e-6)  # only the window is read
    refitted = copy.deepcopy(model).fit(y)
    np.testing.assert_allclose(refitted.predict(), model.predict(), atol=1e-6)


def test_forecasts_at_uneven_times_depend_on_the_times():
    random = np.random.default_rng(0)
    times = random.exponential(1.0, 80).cumsum()
    y = np.sin(times)
    model = SSMForecaster(horizon=3, window=10, **BRIEF).fit(y, times)
    ahead = times[-1] + np.array([1.0, 2.0, 3.0]) * model.time_unit_
    np.testing.assert_allclose(model.predict(y, times), model.predict(y, times, ahead), atol=1e-5)
    assert not np.allclose(model.predict(y, times, times[-1] + np.array([5.0, 9.0, 20.0])), model.predict(y, times))
    assert np.isfinite(model.score(y, times))
    with pytest.raises(ValueError, match="`times_ahead` must be in the order of time and start after the series ends"):
        model.predict(y, times, times[-4:-1])
    with pytest.raises(ValueError, match="`times_ahead` must be None, as fit had no times"):
        SSMForecaster(horizon=3, window=8, **BRIEF).fit(y).predict(y, times_ahead=times[-3:])


def test_blocks_that_take_no_elapsed_times_name_the_times():
    times = 2.0 ** np.arange(40)  # too uneven for equal steps, so that blocks read the times
    needed = r"`times` must be None, as block 1 \(s7\) takes no elapsed times, got times"
    with pytest.raises(ValueError, match=needed):
        SSMForecaster(horizon=3, window=8, **BRIEF, spec="mamba s7").fit(np.sin(np.arange(40)), times)
    with pytest.raises(ValueError, match=needed):
        SSMRegressor(**BRIEF, spec="mamba s7").fit(np.random.default_rng(0).random((4, 40)), np.arange(4.0), times=[times] * 4)


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        (np.zeros(4), {"horizon": 4}, "`y` must have a series of more steps than the horizon of 4, got at most 4"),
        (np.zeros(9), {"horizon": 0}, "`horizon` must be .*, got 0"),
        (np.zeros(9), {"horizon": 2, "spec": "bidirectional"}, "`spec` must be one whose blocks are causal, got 'bidirectional'"),
        (np.zeros(9), {"horizon": 2.5}, r"`horizon` must be a whole number of at least 1, got 2\.5"),
        ([], {}, "`y` must have at least one series, got none"),
    ],
    ids=str,
)
def test_invalid_series_to_forecast_raises(y, options, message):
    with pytest.raises(ValueError, match=message):
        SSMForecaster(**{**BRIEF, **options}).fit(y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 2.5}, r"`epochs` must be a whole number of at least 1 or None, got 2\.5"),
        ({"batch_size": 0}, "`batch_size` must be a whole number of at least 1 or None, got 0"),
        ({"lr": float("nan")}, "`lr` must be a number of at least 0 or None, got nan"),
        ({"weight_decay": -1.0}, r"`weight_decay` must be a number of at least 0 or None, got -1\.0"),
        ({"pooling": "none"}, "`pooling` must be one of mean, last or None, got 'none'"),
        ({"device": "tpu"}, "`device` must be 'auto' or a device of torch"),
        ({"device": "cuda:99"}, r"`device` must be one of the devices that torch finds here \(cpu\), got 'cuda:99'"),
        ({"device": "meta"}, r"`device` must be one of the devices that torch finds here \(cpu\), got 'meta'"),
        ({"layout": "lnc"}, "`layout` must be one of nlc, ncl or None, got 'lnc'"),
        ({"output": "polars"}, "`output` must be one of auto, numpy, pandas, got 'polars'"),
        ({"spec": 3}, "`spec` must be text or a list or None, got 3"),
    ],
    ids=str,
)
def test_invalid_setting_raises(options, message):
    with pytest.raises(ValueError, match=message):
        SSMClassifier(**{**BRIEF, **options}).fit(*make_waves(4, 6))


def test_learning_rate_warms_up_and_decays_as_a_cosine():
    """Over twenty updates the first rate is half of 0.01, and from the second on the rate follows a cosine."""
    model = torch.nn.Linear(1, 1)
    rates = []
    handle = register_optimizer_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    try:
        minimise(
            model, torch.from_numpy, lambda rows: model(torch.ones(len(rows), 1)).mean(), lambda random: random.permutation(10),
            epochs=4, batch_size=2, lr=0.01, weight_decay=0.0, random=np.random.RandomState(0),
        )  # fmt: skip
    finally:
        handle.remove()
    assert len(rates) == 20
    assert rates[:3] == pytest.approx([0.005, 0.00993844, 0.00975528], rel=1e-5)
    assert rates[10] == pytest.approx(0.005)
    assert rates[19] == pytest.approx(0.0000615583, rel=1e-5)
    assert rates[1:] == sorted(rates[1:], reverse=True)


def test_values_beyond_float32_raise_and_are_located():
    x = np.random.default_rng(0).normal(size=(20, 12))
    labels, large = np.arange(20) % 2, x.copy()
    large[3, 5] = 1e60
    message = r"series 3 of `X` must be at most 3.* in channel 0, the largest number of float32 .*, got 1e\+60 in step 5"
    for model in (SSMClassifier(**BRIEF).fit(x, labels), SSMRegressor(**BRIEF).fit(x, labels)):
        with pytest.raises(ValueError, match=message):
            model.predict(large)
    named = pd.DataFrame(np.stack([x[0], large[3]], 1), columns=["level", "flow"])
    with pytest.raises(ValueError, match=r"series 0 of `y` must be at most .* in channel 'flow', .*, got 1e\+60 in step 5"):
        SSMForecaster(horizon=2, window=5, **BRIEF).fit(named.clip(-9, 9)).predict(named)
    constant = np.full((20, 12), 1e60)
    constant[3, 5] += 1e50
    with pytest.raises(ValueError, match=r"series 0 of `X` must be at most .* in channel 0, .*, got 1e\+60 in step 0"):
        SSMClassifier(**BRIEF).fit(constant, labels)
    times = np.tile(np.arange(12.0), (20, 1))
    fitted = SSMClassifier(**BRIEF).fit(x, labels, times)
    times[4, 11] = 1e60
    with pytest.raises(
        ValueError, match=r"series 4 of `times` must be at most .* from step to step, .*, got 1e\+60 before step 11"
    ):
        fitted.predict(x, times)


def test_values_and_targets_of_the_scale_of_float64_are_fitted():
    x = np.random.default_rng(0).normal(size=(20, 12))
    labels = np.arange(20) % 2
    predicted = SSMRegressor(**BRIEF).fit(x, labels).predict(x)
    np.testing.assert_allclose(SSMRegressor(**BRIEF).fit(x, labels * 1e300).predict(x), predicted * 1e300, rtol=1e-6)
    np.testing.assert_allclose(SSMRegressor(**BRIEF).fit(x * 1e300, labels).predict(x * 1e300), predicted, rtol=1e-4)


@pytest.mark.parametrize("call", ["predict", "predict_proba", "score"])
def test_prediction_that_is_not_finite_raises(call):
    x, labels = np.random.default_rng(0).normal(size=(6, 5)), np.arange(6) % 2
    model = SSMClassifier(**BRIEF).fit(x, labels)
    with torch.no_grad():
        next(model.model_.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match=r"the prediction for series 0 of `X` is NaN or infinite \(6 of 6 are\)"):
        getattr(model, call)(x, *([labels] if call == "score" else []))
