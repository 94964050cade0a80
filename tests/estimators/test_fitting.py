"""The training loop of estimators, and the arguments and results that they exchange with it, tested with stubs of models."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from longscan.estimators import SSMClassifier, SSMForecaster, SSMRegressor, fitting, forecaster
from longscan.estimators.classifier import class_labels
from longscan.estimators.fitting import check_settings, minimise, seeded
from longscan.estimators.regressor import convert_targets
from longscan.estimators.series import pad_arrays

BRIEF = {"d_model": 4, "d_state": 2, "epochs": 1, "device": "cpu", "random_state": 0}


class UpdateRecorder:
    """A hook that records the optimizers, learning rates and gradients of all updates."""

    def __init__(self):
        self.rates, self.gradients, self.optimizers = [], [], []

    def __call__(self, optimizer, *_):
        self.optimizers.append(optimizer)
        self.rates.append([group["lr"] for group in optimizer.param_groups])
        self.gradients.append(torch.cat([p.grad.flatten() for group in optimizer.param_groups for p in group["params"]]))


@pytest.fixture
def updates():
    recorder = UpdateRecorder()
    handle = register_optimizer_step_pre_hook(recorder)
    yield recorder
    handle.remove()


def call_minimise(model, loss_of, epoch, **options):
    options = {"epochs": 3, "batch_size": 2, "lr": 0.01, "weight_decay": 0.0, "random": np.random.RandomState(0)} | options
    return minimise(model, lambda rows: rows, loss_of, epoch, **options)


def test_each_epoch_has_its_own_order():
    model, batches, orders = nn.Linear(1, 1), [], []

    def epoch(random):
        orders.append(random.permutation(5))
        return orders[-1]

    def loss_of(rows):
        assert model.training
        batches.append(rows.tolist())
        return model.weight.sum() * 0 + float(len(batches))

    curve = call_minimise(model.eval(), loss_of, epoch)
    assert len(orders) == 3
    assert len({tuple(order) for order in orders}) == 3
    expected = [order[first : first + 2].tolist() for order in orders for first in (0, 2, 4)]
    assert batches == expected
    assert curve == [2, 5, 8], "the means over the updates of an epoch"
    assert not model.training
    generator = np.random.RandomState(0)
    assert [generator.permutation(5).tolist() for _ in range(3)] == [order.tolist() for order in orders]


@pytest.mark.parametrize(("scale", "norm"), [(0.25, 0.25), (1.5, 1.0), (400.0, 1.0)])
def test_gradients_are_clipped_to_norm_one_and_reset(updates, scale, norm):
    model = nn.Linear(1, 1, bias=False)
    call_minimise(model, lambda _: scale * model.weight.sum(), lambda _: np.arange(4))
    assert [gradient.norm().item() for gradient in updates.gradients] == pytest.approx([norm] * 6, rel=1e-5)


def test_optimizer_is_fused_adamw_with_the_given_decay(updates):
    model = nn.Linear(1, 1)
    call_minimise(model, lambda _: model(torch.ones(1, 1)).sum(), lambda _: np.arange(1), epochs=1, weight_decay=0.25)
    (optimizer,) = updates.optimizers
    assert type(optimizer) is torch.optim.AdamW
    assert all(group["fused"] for group in optimizer.param_groups)
    assert {group["weight_decay"] for group in optimizer.param_groups} <= {0.0, 0.25}
    assert max(group["weight_decay"] for group in optimizer.param_groups) == 0.25
    assert optimizer.defaults["betas"] == (0.9, 0.999)


def test_warmup_is_a_tenth_of_the_updates(updates):
    model = nn.Linear(1, 1)
    call_minimise(model, lambda _: model(torch.ones(1, 1)).sum(), lambda _: np.arange(1), lr=0.5)
    assert [rates[0] for rates in updates.rates] == pytest.approx([0.5, 0.375, 0.125])
    updates.rates.clear()
    call_minimise(model, lambda _: model(torch.ones(1, 1)).sum(), lambda _: np.arange(1), lr=0.5, epochs=40)
    cosine = [(1 + np.cos(np.pi * step / 40)) / 2 for step in range(40)]
    warm = [0.25, 0.5, 0.75] + [1.0] * 37
    assert [rates[0] for rates in updates.rates] == pytest.approx([0.5 * a * b for a, b in zip(cosine, warm, strict=True)])


def test_loss_that_is_not_finite_raises(updates):
    model = nn.Linear(1, 1, bias=False)
    with pytest.raises(ValueError, match=r"^`lr` must be smaller, .*, got 0\.01, .* not a number in epoch 2 of 3"):
        call_minimise(model, lambda _: model.weight.sum() * (1.0 if len(updates.rates) < 4 else np.nan), lambda _: np.arange(6))


@pytest.mark.parametrize("kind", [SSMClassifier, SSMRegressor, SSMForecaster])
def test_diverging_fit_raises_and_sets_no_model(kind):
    X, y = np.random.default_rng(0).normal(size=(7, 9)), np.array([0, 1, 0, 1, 0, 1, 1])
    estimator = kind(**{**BRIEF, "epochs": 20}, lr=1e30)
    with pytest.raises(ValueError, match=r"^`lr` must be smaller, .*, got 1e\+30, .* became infinite or not a number"):
        estimator.set_params(horizon=2, window=3).fit(X[0]) if kind is SSMForecaster else estimator.fit(X, y)
    assert not hasattr(estimator, "model_")


def test_seeded_restores_the_state_of_the_generator():
    before = torch.get_rng_state()
    with seeded(3):
        first = torch.rand(2)
    with seeded(3):
        repeated = torch.rand(2)
    assert torch.equal(first, repeated)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["epochs", "batch_size", "horizon", "window"])
def test_count_below_one_raises(name):
    estimator = SSMForecaster(**{name: 1})
    check_settings(estimator)
    estimator.set_params(**{name: 0})
    with pytest.raises(ValueError, match=f"^`{name}` must be a whole number of at least 1( or None)?, got 0$"):
        check_settings(estimator)


@pytest.mark.parametrize("name", ["lr", "weight_decay"])
def test_negative_rate_raises(name):
    check_settings(SSMClassifier(**{name: 0.0}))
    with pytest.raises(ValueError, match=f"^`{name}` must be a number of at least 0 or None, got -0.1$"):
        check_settings(SSMClassifier(**{name: -0.1}))


def test_estimator_passes_its_settings_and_loss_to_minimise(monkeypatch):
    recorded = {}

    def record_arguments(model, batch_of, loss_of, epoch, **options):
        recorded.update(options, model=model, loss=loss_of(batch_of(np.array([2, 0]))).item())
        recorded["orders"] = [sorted(epoch(np.random.RandomState(seed)).tolist()) for seed in range(2)]
        recorded["differ"] = epoch(np.random.RandomState(0)).tolist() != epoch(np.random.RandomState(1)).tolist()
        return [0.5]

    monkeypatch.setattr(fitting, "minimise", record_arguments)
    X = np.random.default_rng(0).normal(size=(7, 6))
    settings = {"epochs": 3, "batch_size": 5, "lr": 0.02, "weight_decay": 0.3}
    model = SSMRegressor("m", **{**BRIEF, **settings}).fit(X, np.arange(7.0))
    assert {name: recorded[name] for name in settings} == settings
    assert isinstance(recorded["random"], np.random.RandomState)
    assert recorded["orders"] == [list(range(7))] * 2
    assert recorded["differ"]
    assert model.loss_curve_ == [0.5]
    assert model.model_ is recorded["model"]
    inputs = torch.from_numpy(((X[[2, 0]] - X.mean()) / X.std()).astype(np.float32))[..., None]
    expected = torch.tensor([[2.0], [0.0]])
    output = recorded["model"](inputs)
    target = (expected - 3) / 2
    assert recorded["loss"] == pytest.approx(((output - target) ** 2).mean().item(), rel=1e-4)
    classes = SSMClassifier("m", **{**BRIEF, **settings}).fit(X, [4, 4, 9, 4, 9, 4, 4])
    assert classes.classes_.tolist() == [4, 9]
    expected = torch.nn.functional.cross_entropy(recorded["model"](inputs), torch.tensor([1, 0]))
    assert recorded["loss"] == pytest.approx(expected.item(), rel=1e-4)


class SumModel(nn.Module):
    """A model whose outputs are the sum of a series, its number of valid steps and its elapsed time."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.batches = []

    def forward(self, inputs, *, valid, elapsed):
        self.batches.append(len(inputs))
        steps = torch.full((len(inputs),), float(inputs.shape[1])) if valid is None else valid.sum(1)
        total_elapsed = torch.zeros(len(inputs)) if elapsed is None else elapsed.sum(1)
        return torch.stack([inputs.sum((1, 2)), steps, total_elapsed], 1)


def make_fitted(kind, **settings):
    """Return an estimator with the attributes of a fit and a `SumModel`."""
    estimator = kind(**{**BRIEF, **settings})
    estimator.model_, estimator.mean_, estimator.scale_ = SumModel(), np.array([1.0]), np.array([2.0])
    estimator.time_unit_, estimator.n_channels_, estimator.channel_names_, estimator.has_times_ = 1.0, 1, None, False
    return estimator


def test_predictions_are_computed_in_batches():
    X = [np.array([3.0, 5.0]), np.array([1.0]), np.array([1.0, 1.0, 7.0])]
    model = make_fitted(SSMRegressor, batch_size=2)
    model.target_mean_, model.target_scale_, model._one_target = np.zeros(3), np.array([1.0, 10.0, 1.0]), False
    model.target_names_ = None
    assert model.predict(X).tolist() == [[3, 20, 0], [0, 10, 0], [3, 30, 0]]
    assert model.model_.batches == [2, 1]
    model._one_target = True
    assert model.predict(X).tolist() == [3, 0, 3]
    assert model.score(X, [3.0, 0.0, 3.0]) == 1
    assert model.score(X, [2.0, 2.0, 2.0 + 1e-9]) < 0
    classifier = make_fitted(SSMClassifier, batch_size=3)
    classifier.classes_ = np.array(["a", "b", "c"])
    assert classifier.predict(X).tolist() == ["a", "b", "a"]
    assert classifier.score(X, ["a", "b", "c"]) == pytest.approx(2 / 3)
    weights = np.exp([3.0, 2.0, 0.0])
    np.testing.assert_allclose(classifier.predict_proba(X)[0], weights / weights.sum())
    with pytest.raises(ValueError, match=r"^`y` must have 3 labels, one for each series, got 2"):
        classifier.score(X, ["a", "b"])
    with pytest.raises(ValueError, match=r"^`times` must be None as in fit, got times"):
        classifier.predict(X, [[0, 1], [0], [0, 1, 2]])
    classifier.has_times_ = True
    with pytest.raises(ValueError, match=r"^`times` must be given as in fit, got None"):
        classifier.predict(X)


@pytest.mark.parametrize(
    ("output", "form", "expected_type"),
    [("auto", "list", np.ndarray), ("auto", "long", pd.Series), ("numpy", "long", np.ndarray), ("pandas", "list", pd.Series)],
)
def test_predictions_have_the_type_of_the_output_setting(output, form, expected_type):
    long = pd.DataFrame({0: [3.0, 5.0]}, index=pd.MultiIndex.from_tuples([("x", 0), ("x", 1)]))
    model = make_fitted(SSMClassifier, output=output)
    model.classes_ = np.array(["a", "b", "c"])
    X = long if form == "long" else [np.array([3.0, 5.0])]
    predictions = model.predict(X)
    assert type(predictions) is expected_type
    assert list(predictions) == ["a"]
    probabilities = model.predict_proba(X)
    assert type(probabilities) is (np.ndarray if expected_type is np.ndarray else pd.DataFrame)
    if expected_type is pd.Series:
        assert list(probabilities.columns) == ["a", "b", "c"]
        assert predictions.index.tolist() == (["x"] if form == "long" else [0])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["a", None, None], "^`y` must have a label in each row, got 2 of 3 missing, first row 1"),
        ([1.0, np.inf], "y"),
        (np.array(["a", 1], object), "^`y` must contain only text or only numbers, got labels of kind 'mixed-integer'"),
        ([0.5, 1.5], "^`y` is not a valid target: Unknown label type: continuous"),
        (np.zeros((2, 2)), "y should be a 1d array"),
    ],
    ids=str,
)
def test_invalid_labels_raise(y, message):
    with pytest.raises(ValueError, match=message):
        class_labels(y)


@pytest.mark.parametrize(
    ("y", "kind"), [([1, 2], "i"), (np.array([1, 2], object), "i"), (np.array([True, False], object), "b"),
                    (np.array([1.0, 2.0], object), "f"), (["a", "b"], "U"), (np.array(["a", "b"], object), "O")], ids=str,
)  # fmt: skip
def test_class_labels_keep_values_and_dtype_kind(y, kind):
    assert class_labels(y).dtype.kind == kind
    assert class_labels(y).tolist() == list(y)


def test_targets_are_converted_to_float64_or_raise():
    assert convert_targets([1, 2]).dtype == np.float64
    assert convert_targets([[1, 2]]).shape == (1, 2)
    for y, message in (
        (["a"], "^`y` "),
        ([np.nan], "^`y` is not a valid target: Input y contains NaN"),
        (np.zeros(1, "datetime64[s]"), "^`y` "),
    ):
        with pytest.raises(ValueError, match=message):
            convert_targets(y)


def test_targets_are_standardised_by_column(monkeypatch):
    monkeypatch.setattr(fitting, "minimise", lambda *_, **__: [0.0])
    X = np.random.default_rng(0).normal(size=(4, 6))
    y = pd.DataFrame({"a": [0.0, 2.0, 0.0, 2.0], "b": [5.0] * 4})
    model = SSMRegressor(**BRIEF).fit(X, y)
    assert model.target_mean_.tolist() == [1, 5]
    assert model.target_scale_.tolist() == [1, 1]
    assert model.target_names_ == ("a", "b")
    assert model.predict(X).shape == (4, 2)
    assert SSMRegressor(**BRIEF).fit(X, y["a"] * 3).target_scale_.tolist() == [3]
    assert SSMRegressor(**BRIEF).fit(X, y["a"].to_numpy()).predict(X).shape == (4,)
    for invalid in (np.zeros((4, 1, 1)), np.zeros(3)):
        with pytest.raises(ValueError, match=r"^`y` "):
            SSMRegressor(**BRIEF).fit(X, invalid)
    with pytest.raises(ValueError, match=r"^`y` must have at least two classes, got the one class 'a'"):
        SSMClassifier(**BRIEF).fit(X, ["a"] * 4)
    for kind in (SSMClassifier, SSMRegressor):
        with pytest.raises(ValueError, match=r"requires y to be passed"):
            kind(**BRIEF).fit(X, None)


class ContinuingModel(nn.Module):
    """A model that forecasts the last value plus 1, 2, ... times the elapsed time ahead, and records its arguments."""

    backbone = SimpleNamespace(block_without_times=lambda: None)

    def __init__(self, horizon):
        super().__init__()
        self.weight, self.horizon, self.quantiles, self.calls = nn.Parameter(torch.zeros(1)), horizon, (), []

    def forward(self, past, *, elapsed, elapsed_ahead):
        self.calls.append((past, elapsed, elapsed_ahead))
        ahead = torch.ones(len(past), self.horizon) if elapsed_ahead is None else elapsed_ahead
        return past[:, -1:] + ahead.cumsum(1)[..., None] + 0 * self.weight


@pytest.fixture
def minimise_arguments(monkeypatch):
    """Replace `minimise` and the model of SSMForecaster by stubs, without a linear forecast; return their arguments."""
    recorded = {}

    def stub(model, batch_of, loss_of, epoch, **options):
        recorded.update(options, loss_of=lambda numbers: loss_of(batch_of(numbers)), epoch=epoch)
        return [0.0]

    monkeypatch.setattr(forecaster, "minimise", stub)
    monkeypatch.setattr(forecaster, "usable_windows", lambda *_: [])
    monkeypatch.setattr(
        forecaster.Forecaster,
        "from_spec",
        lambda _, **options: recorded.update(made=options) or ContinuingModel(options["horizon"]),
    )
    return recorded


@pytest.mark.parametrize(("horizon", "stride"), [(1, 1), (3, 1), (4, 1), (7, 1), (8, 2), (11, 2), (12, 3), (24, 6)])
def test_epoch_has_windows_at_distances_of_a_quarter_of_the_horizon(minimise_arguments, horizon, stride):
    y = np.random.default_rng(0).normal(size=100)
    SSMForecaster(horizon, 10, **BRIEF).fit(y)
    windows = 100 - 10 - horizon + 1
    chosen = minimise_arguments["epoch"](np.random.RandomState(0))
    assert len(chosen) == -(-windows // stride)
    assert len(set(chosen.tolist())) == len(chosen)
    assert 0 <= chosen.min() <= chosen.max() < windows
    assert chosen.tolist() != minimise_arguments["epoch"](np.random.RandomState(1)).tolist()


def test_loss_of_a_forecaster_is_scaled_by_each_window(minimise_arguments):
    y = np.random.default_rng(0).normal(size=(30, 2)) * [1, 5] + [0, 9]
    times = np.random.default_rng(1).exponential(2.0, 30).cumsum()
    model = SSMForecaster(3, 6, **{**BRIEF, "epochs": 4, "batch_size": 7, "lr": 0.5}).fit(y, times)
    assert {name: minimise_arguments[name] for name in ("epochs", "batch_size", "lr", "weight_decay")} == {
        "epochs": 4, "batch_size": 7, "lr": 0.5, "weight_decay": 0.01,
    }  # fmt: skip
    assert minimise_arguments["made"] == {
        "d_model": 4, "d_state": 2, "d_input": 2, "horizon": 3, "normalise": True,
        "linear_window": None, "linear_channels": "shared", "quantiles": None, "block_options": None, "blocks_window": None,
    }  # fmt: skip
    loss = minimise_arguments["loss_of"](np.array([4, 0])).item()
    past, elapsed, ahead = model.model_.calls[-1]
    assert past.shape == (2, 6, 2)
    z = (y - model.mean_) / model.scale_
    np.testing.assert_allclose(past[0], z[4:10], atol=1e-5)
    np.testing.assert_allclose(ahead[0], np.diff(times)[9:12] / model.time_unit_, rtol=1e-5)
    np.testing.assert_allclose(elapsed[0, 1:], np.diff(times)[4:9] / model.time_unit_, rtol=1e-5)
    assert elapsed[:, 0].tolist() == [1, 1]
    losses = []
    for start in (4, 0):
        unit = z[start : start + 6].std(0) + 1e-2
        forecast = z[start + 5] + (np.diff(times)[start + 5 : start + 8] / model.time_unit_).cumsum()[:, None]
        losses.append(np.abs(forecast / unit - z[start + 6 : start + 9] / unit).mean())
    assert loss == pytest.approx(np.mean(losses), rel=1e-4)


def test_window_is_shortened_for_a_short_series(minimise_arguments, caplog):
    y = np.arange(9.0)
    for horizon, length in ((4, 5), (8, 1)):
        model = SSMForecaster(horizon, 10, **BRIEF).fit(y)
        expected = f"has 9 steps, so windows of {length} steps are read before the horizon of {horizon}, not of 10"
        assert (model.window_, expected in caplog.text) == (length, True)
        minimise_arguments["loss_of"](np.array([0]))
        assert model.model_.calls[-1][0].shape[1] == length
        model.predict()
        assert model.model_.calls[-1][0].shape[1] == length
    with pytest.raises(ValueError, match=r"^`y` must have a series of more steps than the horizon of 9, got at most 9"):
        SSMForecaster(9, 10, **BRIEF).fit(y)


def test_forecast_reads_the_window_and_has_the_units_of_the_series(minimise_arguments):
    y = np.arange(20.0)
    model = SSMForecaster(3, 6, **BRIEF).fit(y)
    scale = model.scale_[0]
    np.testing.assert_allclose(model.predict(), 19 + scale * np.arange(1, 4), rtol=1e-5)
    assert model.model_.calls[-1][0].shape == (1, 6, 1)
    np.testing.assert_allclose(model.predict(y[:4]), 3 + scale * np.arange(1, 4), rtol=1e-5)
    assert model.model_.calls[-1][0].shape == (1, 4, 1)
    assert model.model_.calls[-1][1:] == (None, None)
    assert model.predict(y[:, None]).shape == (3, 1)


def test_score_of_a_forecaster_is_relative_to_the_last_value(minimise_arguments):
    """Forecasts start at 6, 9, ... and rise by one standard deviation a step."""
    y = np.arange(20.0)
    model = SSMForecaster(3, 6, **BRIEF).fit(y)
    scale = model.scale_[0]
    steps = np.arange(1, 4)
    expected = 1 - np.abs(scale * steps - steps).sum() / steps.sum()
    assert model.score(y) == pytest.approx(expected, rel=1e-5)
    assert model.score(y[:9]) == pytest.approx(expected, rel=1e-5)
    model.model_.calls.clear()
    model.score(y)
    assert [call[0].shape for call in model.model_.calls] == [(4, 6, 1)]
    assert model.score(y[:5]) == pytest.approx(expected, rel=1e-5), "the window is shorter for a short series"
    assert model.score(y[:4]) == pytest.approx(expected, rel=1e-5)
    for short in (3, 2):
        with pytest.raises(ValueError, match=rf"^`y` must have more steps than the horizon of 3, got {short}"):
            model.score(y[:short])
    assert model.score(np.full(9, 4.0)) == 0, "the score is 0 if the series is constant and the forecast is not"
    model.model_.forward = lambda past, **_: past[:, -1:].expand(-1, 3, -1)
    assert model.score(np.full(9, model.mean_[0])) == 1
    assert model.score(y) == pytest.approx(0, abs=1e-6)


def test_score_with_times_passes_the_gaps_ahead(minimise_arguments):
    times = np.array([0, 1, 3, 4, 6, 7, 9, 10.0, 12])
    model = SSMForecaster(2, 4, **BRIEF).fit(times, times)
    model.model_.calls.clear()
    model.score(times, times)
    ((_, _, gaps),) = model.model_.calls
    assert gaps.tolist() == [pytest.approx((np.diff(times)[cut - 1 : cut + 1] / model.time_unit_).tolist()) for cut in (4, 6)]


def test_times_ahead_are_passed_to_the_model_or_raise(minimise_arguments):
    times = np.array([0, 2, 4, 6, 8.0, 11])
    model = SSMForecaster(2, 4, **BRIEF).fit(times, times)
    assert model.time_unit_ == 2
    model.predict(times, times)
    assert model.model_.calls[-1][2].tolist() == [[1, 1]]
    model.predict(times, times, [12, 17])
    assert model.model_.calls[-1][2].tolist() == [[0.5, 2.5]]
    model.predict(times, times, [11, 11])
    assert model.model_.calls[-1][2].tolist() == [[0, 0]]
    for ahead, message in (
        ([12], r"^`times_ahead` must have 2 times, one for each step of the horizon, got 1"),
        ([12, 13, 14], r"^`times_ahead` must have 2 times, .*, got 3"),
        ([10, 12], r"^`times_ahead` must be in the order of time and start after the series ends"),
        ([13, 12], r"^`times_ahead` must be in the order of time and start after the series ends"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(times, times, ahead)
    with pytest.raises(ValueError, match=r"^`times` must be given as in fit, got None"):
        model.predict(times)


def test_forecasts_have_the_stamps_that_follow(minimise_arguments):
    y = np.arange(8.0)
    days = pd.date_range("2024-01-01", periods=8, freq="D")
    model = SSMForecaster(2, 4, **BRIEF).fit(pd.Series(y, days, name="a"))
    forecast = model.predict()
    assert forecast.name == "a"
    assert forecast.index.tolist() == [pd.Timestamp("2024-01-09"), pd.Timestamp("2024-01-10")]
    short = model.predict(pd.Series([1.0], days[:1]))
    assert short.index.tolist() == [pd.Timestamp("2024-01-02"), pd.Timestamp("2024-01-03")]
    counted = SSMForecaster(2, 4, **BRIEF).fit(y)
    with pytest.raises(ValueError, match=r"^`y` must have at least two rows, .*, got one row"):
        counted.predict(pd.Series([1.0], days[:1]))
    with pytest.raises(ValueError, match=r"^`y` must have steps of D as in fit"):
        model.predict(pd.Series(y[::2], days[::2]))
    timed = SSMForecaster(2, 4, **BRIEF).fit(pd.Series(y, days), "index")
    assert timed.step_ is None
    assert timed.predict().index.tolist() == forecast.index.tolist()
    months = pd.period_range("2024-01", periods=8, freq="M")
    for stamps, expected in ((months, ["2024-09", "2024-10"]), (months[[0, 2, 4, 6]], ["2024-09", "2024-11"])):
        series = pd.Series(y[: len(stamps)], stamps)
        assert [str(period) for period in SSMForecaster(2, 1, **BRIEF).fit(series, "index").predict().index] == expected
    waits = pd.Series(y, pd.to_timedelta(np.arange(8) * 10, unit="s"))
    expected = [pd.Timedelta(80, unit="s"), pd.Timedelta(90, unit="s")]
    assert SSMForecaster(2, 4, **BRIEF).fit(waits, "index").predict().index.tolist() == expected
    uneven = pd.Series(y, [0, 0.5, 1, 1.5, 2, 2.5, 3, 9])
    assert SSMForecaster(2, 4, **BRIEF).fit(uneven, "index").predict().index.tolist() == [9.5, 10]


def test_series_with_different_steps_raise(minimise_arguments):
    days = pd.date_range("2024-01-01", periods=8, freq="D")
    daily, every_other_day = pd.Series(np.arange(8.0), days), pd.Series(np.arange(4.0), days[::2])
    with pytest.raises(ValueError, match=r"^series 1 of `y` must have steps of D as in series 0"):
        SSMForecaster(2, 2, **BRIEF).fit([daily, every_other_day])
    model = SSMForecaster(2, 2, **BRIEF).fit([daily.iloc[:1], daily])
    assert model.step_ == days.freq


def test_windows_of_a_collection_have_values_and_gaps():
    collection = pad_arrays([np.arange(4.0)[:, None], np.arange(2.0)[:, None], 10 + np.arange(3.0)[:, None]])
    starts = np.array([[0, 0], [0, 1], [2, 0]])
    mean, scale = np.zeros(1), np.ones(1)
    windows = collection.standardise(mean, scale, 1.0, "X").windows(starts[1:], 3)
    assert windows.values[..., 0].tolist() == [[1, 2, 3], [10, 11, 12]]
    assert windows.lengths.tolist() == [3, 3]
    assert windows.gaps is None
    timed = collection.with_times([[0, 1, 2, 5], [0, 1], [4, 6, 9]])
    timed_windows = timed.standardise(mean, scale, 2.0, "X").windows(starts[1:], 3)
    assert timed_windows.gaps.tolist() == [[0.5, 0.5, 1.5], [0, 1, 1.5]]
    assert timed_windows.batch(np.arange(2), torch.device("cpu"))[2].tolist() == [[1, 0.5, 1.5], [1, 1, 1.5]]
