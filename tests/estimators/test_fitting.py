"""The loop that fits a model, and what the estimators hand to it and read from it, with stubs in place of models."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from longscan.estimators import SSMClassifier, SSMForecaster, SSMRegressor, fitting, forecaster
from longscan.estimators.classifier import class_labels
from longscan.estimators.fitting import check_settings, minimise, seeded
from longscan.estimators.forecaster import _window_starts
from longscan.estimators.regressor import convert_targets
from longscan.estimators.series import pad_arrays

BRIEF = {"d_model": 4, "d_state": 2, "epochs": 1, "device": "cpu", "random_state": 0}


class Updates:
    """Record the values that the optimizer sees at each update."""

    def __init__(self):
        self.rates, self.gradients, self.optimizers = [], [], []

    def __call__(self, optimizer, *_):
        self.optimizers.append(optimizer)
        self.rates.append([group["lr"] for group in optimizer.param_groups])
        self.gradients.append(torch.cat([p.grad.flatten() for group in optimizer.param_groups for p in group["params"]]))


@pytest.fixture
def updates():
    seen = Updates()
    handle = register_optimizer_step_pre_hook(seen)
    yield seen
    handle.remove()


def run(model, loss_of, epoch, **options):
    options = {"epochs": 3, "batch_size": 2, "lr": 0.01, "weight_decay": 0.0, "random": np.random.RandomState(0)} | options
    return minimise(model, loss_of, epoch, **options)


def test_each_epoch_is_shown_in_its_own_order_once():
    model, shown, orders = nn.Linear(1, 1), [], []

    def epoch(random):
        orders.append(random.permutation(5))
        return orders[-1]

    def loss_of(rows):
        assert model.training
        shown.append(rows.tolist())
        return model.weight.sum() * 0 + float(len(shown))

    curve = run(model.eval(), loss_of, epoch)
    assert len(orders) == 3
    assert len({tuple(order) for order in orders}) == 3
    wanted = [order[first : first + 2].tolist() for order in orders for first in (0, 2, 4)]
    assert shown == wanted
    assert curve == [2, 5, 8], "the means over the updates of an epoch"
    assert not model.training
    again = np.random.RandomState(0)
    assert [again.permutation(5).tolist() for _ in range(3)] == [order.tolist() for order in orders]


@pytest.mark.parametrize(("slope", "norm"), [(0.25, 0.25), (1.5, 1.0), (400.0, 1.0)])
def test_gradients_are_clipped_at_norm_one_and_do_not_add_up(updates, slope, norm):
    model = nn.Linear(1, 1, bias=False)
    run(model, lambda _: slope * model.weight.sum(), lambda _: np.arange(4))
    assert [gradient.norm().item() for gradient in updates.gradients] == pytest.approx([norm] * 6, rel=1e-5)


def test_the_optimizer_is_fused_adamw_with_the_given_decay(updates):
    model = nn.Linear(1, 1)
    run(model, lambda _: model(torch.ones(1, 1)).sum(), lambda _: np.arange(1), epochs=1, weight_decay=0.25)
    (optimizer,) = updates.optimizers
    assert type(optimizer) is torch.optim.AdamW
    assert all(group["fused"] for group in optimizer.param_groups)
    assert {group["weight_decay"] for group in optimizer.param_groups} <= {0.0, 0.25}
    assert max(group["weight_decay"] for group in optimizer.param_groups) == 0.25
    assert optimizer.defaults["betas"] == (0.9, 0.999)


def test_a_short_run_starts_at_the_full_rate_and_one_of_forty_warms_up_for_four(updates):
    model = nn.Linear(1, 1)
    run(model, lambda _: model(torch.ones(1, 1)).sum(), lambda _: np.arange(1), lr=0.5)
    assert [rates[0] for rates in updates.rates] == pytest.approx([0.5, 0.375, 0.125])
    updates.rates.clear()
    run(model, lambda _: model(torch.ones(1, 1)).sum(), lambda _: np.arange(1), lr=0.5, epochs=40)
    cosine = [(1 + np.cos(np.pi * step / 40)) / 2 for step in range(40)]
    warm = [0.25, 0.5, 0.75] + [1.0] * 37
    assert [rates[0] for rates in updates.rates] == pytest.approx([0.5 * a * b for a, b in zip(cosine, warm, strict=True)])


def test_a_loss_that_is_not_finite_is_an_error(updates):
    model = nn.Linear(1, 1, bias=False)
    with pytest.raises(ValueError, match=r"^`lr` must be smaller, .*, got 0\.01, .* not a number in epoch 2 of 3"):
        run(model, lambda _: model.weight.sum() * (1.0 if len(updates.rates) < 4 else np.nan), lambda _: np.arange(6))


@pytest.mark.parametrize("kind", [SSMClassifier, SSMRegressor, SSMForecaster])
def test_a_fit_that_diverges_is_an_error_and_leaves_no_model(kind):
    X, y = np.random.default_rng(0).normal(size=(7, 9)), np.array([0, 1, 0, 1, 0, 1, 1])
    estimator = kind(**{**BRIEF, "epochs": 20}, lr=1e30)
    with pytest.raises(ValueError, match=r"^`lr` must be smaller, .*, got 1e\+30, .* became infinite or not a number"):
        estimator.set_params(horizon=2, window=3).fit(X[0]) if kind is SSMForecaster else estimator.fit(X, y)
    assert not hasattr(estimator, "model_")


def test_seeds_inside_and_the_state_outside():
    before = torch.get_rng_state()
    with seeded(3):
        first = torch.rand(2)
    with seeded(3):
        again = torch.rand(2)
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["epochs", "batch_size", "horizon", "window"])
def test_counts_are_at_least_one(name):
    estimator = SSMForecaster(**{name: 1})
    check_settings(estimator)
    estimator.set_params(**{name: 0})
    with pytest.raises(ValueError, match=f"^`{name}` must be a whole number of at least 1, got 0$"):
        check_settings(estimator)


@pytest.mark.parametrize("name", ["lr", "weight_decay"])
def test_rates_are_not_negative(name):
    check_settings(SSMClassifier(**{name: 0.0}))
    with pytest.raises(ValueError, match=f"^`{name}` must be a number of at least 0, got -0.1$"):
        check_settings(SSMClassifier(**{name: -0.1}))


def test_an_estimator_fits_on_permutations_of_its_series(monkeypatch):
    given = {}

    def stub(model, loss_of, epoch, **options):
        given.update(options, model=model, loss=loss_of(np.array([2, 0])).item())
        given["orders"] = [sorted(epoch(np.random.RandomState(seed)).tolist()) for seed in range(2)]
        given["differ"] = epoch(np.random.RandomState(0)).tolist() != epoch(np.random.RandomState(1)).tolist()
        return [0.5]

    monkeypatch.setattr(fitting, "minimise", stub)
    X = np.random.default_rng(0).normal(size=(7, 6))
    settings = {"epochs": 3, "batch_size": 5, "lr": 0.02, "weight_decay": 0.3}
    model = SSMRegressor("m", **{**BRIEF, **settings}).fit(X, np.arange(7.0))
    assert {name: given[name] for name in settings} == settings
    assert isinstance(given["random"], np.random.RandomState)
    assert given["orders"] == [list(range(7))] * 2
    assert given["differ"]
    assert model.loss_curve_ == [0.5]
    assert model.model_ is given["model"]
    inputs = torch.from_numpy(((X[[2, 0]] - X.mean()) / X.std()).astype(np.float32))[..., None]
    wanted = torch.tensor([[2.0], [0.0]])
    output = given["model"](inputs)
    target = (wanted - 3) / 2
    assert given["loss"] == pytest.approx(((output - target) ** 2).mean().item(), rel=1e-4)
    classes = SSMClassifier("m", **{**BRIEF, **settings}).fit(X, [4, 4, 9, 4, 9, 4, 4])
    assert classes.classes_.tolist() == [4, 9]
    wanted = torch.nn.functional.cross_entropy(given["model"](inputs), torch.tensor([1, 0]))
    assert given["loss"] == pytest.approx(wanted.item(), rel=1e-4)


class Sums(nn.Module):
    """Outputs the sum of a series, its number of valid steps and its elapsed time."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.batches = []

    def forward(self, inputs, *, valid, elapsed):
        self.batches.append(len(inputs))
        steps = torch.full((len(inputs),), float(inputs.shape[1])) if valid is None else valid.sum(1)
        passed = torch.zeros(len(inputs)) if elapsed is None else elapsed.sum(1)
        return torch.stack([inputs.sum((1, 2)), steps, passed], 1)


def fitted(kind, **settings):
    estimator = kind(**{**BRIEF, **settings})
    estimator.model_, estimator.mean_, estimator.scale_ = Sums(), np.array([1.0]), np.array([2.0])
    estimator.time_unit_, estimator.n_channels_, estimator.channel_names_, estimator.has_times_ = 1.0, 1, None, False
    return estimator


def test_predictions_are_read_batch_by_batch():
    X = [np.array([3.0, 5.0]), np.array([1.0]), np.array([1.0, 1.0, 7.0])]
    model = fitted(SSMRegressor, batch_size=2)
    model.target_mean_, model.target_scale_, model._one_target = np.zeros(3), np.array([1.0, 10.0, 1.0]), False
    model.target_names_ = None
    assert model.predict(X).tolist() == [[3, 20, 0], [0, 10, 0], [3, 30, 0]]
    assert model.model_.batches == [2, 1]
    model._one_target = True
    assert model.predict(X).tolist() == [3, 0, 3]
    assert model.score(X, [3.0, 0.0, 3.0]) == 1
    assert model.score(X, [2.0, 2.0, 2.0 + 1e-9]) < 0
    labels = fitted(SSMClassifier, batch_size=3)
    labels.classes_ = np.array(["a", "b", "c"])
    assert labels.predict(X).tolist() == ["a", "b", "a"]
    assert labels.score(X, ["a", "b", "c"]) == pytest.approx(2 / 3)
    odds = np.exp([3.0, 2.0, 0.0])
    np.testing.assert_allclose(labels.predict_proba(X)[0], odds / odds.sum())
    with pytest.raises(ValueError, match=r"^`y` must have 3 labels, one for each series, got 2"):
        labels.score(X, ["a", "b"])
    with pytest.raises(ValueError, match=r"^`times` must be None as in fit, got times"):
        labels.predict(X, [[0, 1], [0], [0, 1, 2]])
    labels.has_times_ = True
    with pytest.raises(ValueError, match=r"^`times` must be given as in fit, got None"):
        labels.predict(X)


@pytest.mark.parametrize(
    ("output", "given", "kind"),
    [("auto", "list", np.ndarray), ("auto", "long", pd.Series), ("numpy", "long", np.ndarray), ("pandas", "list", pd.Series)],
)
def test_the_form_of_predictions(output, given, kind):
    long = pd.DataFrame({0: [3.0, 5.0]}, index=pd.MultiIndex.from_tuples([("x", 0), ("x", 1)]))
    model = fitted(SSMClassifier, output=output)
    model.classes_ = np.array(["a", "b", "c"])
    X = long if given == "long" else [np.array([3.0, 5.0])]
    found = model.predict(X)
    assert type(found) is kind
    assert list(found) == ["a"]
    shares = model.predict_proba(X)
    assert type(shares) is (np.ndarray if kind is np.ndarray else pd.DataFrame)
    if kind is pd.Series:
        assert list(shares.columns) == ["a", "b", "c"]
        assert found.index.tolist() == (["x"] if given == "long" else [0])


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
def test_impossible_labels(y, message):
    with pytest.raises(ValueError, match=message):
        class_labels(y)


@pytest.mark.parametrize(
    ("y", "kind"), [([1, 2], "i"), (np.array([1, 2], object), "i"), (np.array([True, False], object), "b"),
                    (np.array([1.0, 2.0], object), "f"), (["a", "b"], "U"), (np.array(["a", "b"], object), "O")], ids=str,
)  # fmt: skip
def test_kinds_of_labels(y, kind):
    assert class_labels(y).dtype.kind == kind
    assert class_labels(y).tolist() == list(y)


def test_numbers_to_predict():
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
    for wrong in (np.zeros((4, 1, 1)), np.zeros(3)):
        with pytest.raises(ValueError, match=r"^`y` "):
            SSMRegressor(**BRIEF).fit(X, wrong)
    with pytest.raises(ValueError, match=r"^`y` must have at least two classes, got the one class 'a'"):
        SSMClassifier(**BRIEF).fit(X, ["a"] * 4)
    for kind in (SSMClassifier, SSMRegressor):
        with pytest.raises(ValueError, match=r"requires y to be passed"):
            kind(**BRIEF).fit(X, None)


class Continues(nn.Module):
    """Forecasts the last value plus 1, 2, ... times the elapsed time ahead; keeps what it was called with."""

    def __init__(self, horizon):
        super().__init__()
        self.weight, self.horizon, self.calls = nn.Parameter(torch.zeros(1)), horizon, []

    def forward(self, past, *, elapsed, elapsed_ahead):
        self.calls.append((past, elapsed, elapsed_ahead))
        ahead = torch.ones(len(past), self.horizon) if elapsed_ahead is None else elapsed_ahead
        return past[:, -1:] + ahead.cumsum(1)[..., None] + 0 * self.weight


@pytest.fixture
def stubbed(monkeypatch):
    """SSMForecaster with a model that is not fitted; gives what `minimise` was called with."""
    given = {}

    def stub(model, loss_of, epoch, **options):
        given.update(options, loss_of=loss_of, epoch=epoch)
        return [0.0]

    monkeypatch.setattr(forecaster, "minimise", stub)
    monkeypatch.setattr(
        forecaster.Forecaster, "from_spec", lambda _, **options: given.update(made=options) or Continues(options["horizon"])
    )
    return given


@pytest.mark.parametrize(("horizon", "stride"), [(1, 1), (3, 1), (4, 1), (7, 1), (8, 2), (11, 2), (12, 3), (24, 6)])
def test_an_epoch_shows_every_quarter_of_a_horizon(stubbed, horizon, stride):
    y = np.random.default_rng(0).normal(size=100)
    SSMForecaster(horizon, 10, **BRIEF).fit(y)
    windows = 100 - 10 - horizon + 1
    chosen = stubbed["epoch"](np.random.RandomState(0))
    assert len(chosen) == -(-windows // stride)
    assert len(set(chosen.tolist())) == len(chosen)
    assert 0 <= chosen.min() <= chosen.max() < windows
    assert chosen.tolist() != stubbed["epoch"](np.random.RandomState(1)).tolist()


def test_the_loss_of_a_forecaster_is_in_units_of_each_window(stubbed):
    y = np.random.default_rng(0).normal(size=(30, 2)) * [1, 5] + [0, 9]
    times = np.random.default_rng(1).exponential(2.0, 30).cumsum()
    model = SSMForecaster(3, 6, **{**BRIEF, "epochs": 4, "batch_size": 7, "lr": 0.5}).fit(y, times)
    assert {name: stubbed[name] for name in ("epochs", "batch_size", "lr", "weight_decay")} == {
        "epochs": 4, "batch_size": 7, "lr": 0.5, "weight_decay": 0.01,
    }  # fmt: skip
    assert stubbed["made"] == {"d_model": 4, "d_state": 2, "d_input": 2, "horizon": 3, "normalise": True}
    loss = stubbed["loss_of"](np.array([4, 0])).item()
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
        answer = z[start + 5] + (np.diff(times)[start + 5 : start + 8] / model.time_unit_).cumsum()[:, None]
        losses.append(np.abs(answer / unit - z[start + 6 : start + 9] / unit).mean())
    assert loss == pytest.approx(np.mean(losses), rel=1e-4)


def test_the_window_shrinks_with_a_short_series(stubbed, caplog):
    y = np.arange(9.0)
    for horizon, length in ((4, 5), (8, 1)):
        model = SSMForecaster(horizon, 10, **BRIEF).fit(y)
        wanted = f"has 9 steps, so windows of {length} steps are read before the horizon of {horizon}, not of 10"
        assert (model.window_, wanted in caplog.text) == (length, True)
        stubbed["loss_of"](np.array([0]))
        assert model.model_.calls[-1][0].shape[1] == length
        model.predict()
        assert model.model_.calls[-1][0].shape[1] == length
    with pytest.raises(ValueError, match=r"^`y` must have a series of more steps than the horizon of 9, got at most 9"):
        SSMForecaster(9, 10, **BRIEF).fit(y)


def test_a_forecast_reads_the_window_and_answers_in_the_units_of_the_series(stubbed):
    y = np.arange(20.0)
    model = SSMForecaster(3, 6, **BRIEF).fit(y)
    scale = model.scale_[0]
    np.testing.assert_allclose(model.predict(), 19 + scale * np.arange(1, 4), rtol=1e-5)
    assert model.model_.calls[-1][0].shape == (1, 6, 1)
    np.testing.assert_allclose(model.predict(y[:4]), 3 + scale * np.arange(1, 4), rtol=1e-5)
    assert model.model_.calls[-1][0].shape == (1, 4, 1)
    assert model.model_.calls[-1][1:] == (None, None)
    assert model.predict(y[:, None]).shape == (3, 1)


def test_the_score_of_a_forecaster(stubbed):
    """Forecasts start at 6, 9, ...; each rises by one deviation a step."""
    y = np.arange(20.0)
    model = SSMForecaster(3, 6, **BRIEF).fit(y)
    scale = model.scale_[0]
    steps = np.arange(1, 4)
    wanted = 1 - np.abs(scale * steps - steps).sum() / steps.sum()
    assert model.score(y) == pytest.approx(wanted, rel=1e-5)
    assert model.score(y[:9]) == pytest.approx(wanted, rel=1e-5)
    model.model_.calls.clear()
    model.score(y)
    assert [call[0].shape[1] for call in model.model_.calls] == [6] * 4
    assert model.score(y[:5]) == pytest.approx(wanted, rel=1e-5), "a shorter window where the series is short"
    assert model.score(y[:4]) == pytest.approx(wanted, rel=1e-5)
    for short in (3, 2):
        with pytest.raises(ValueError, match=rf"^`y` must have more steps than the horizon of 3, got {short}"):
            model.score(y[:short])
    assert model.score(np.full(9, 4.0)) == 0, "no skill where nothing changes and something was forecast"
    model.model_.forward = lambda past, **_: past[:, -1:].expand(-1, 3, -1)
    assert model.score(np.full(9, model.mean_[0])) == 1
    assert model.score(y) == pytest.approx(0, abs=1e-6)


def test_a_score_with_times_reads_the_gaps_ahead(stubbed):
    times = np.array([0, 1, 3, 4, 6, 7, 9, 10.0, 12])
    model = SSMForecaster(2, 4, **BRIEF).fit(times, times)
    model.model_.calls.clear()
    model.score(times, times)
    gaps = [call[2][0].tolist() for call in model.model_.calls]
    assert gaps == [pytest.approx((np.diff(times)[cut - 1 : cut + 1] / model.time_unit_).tolist()) for cut in (4, 6)]


def test_times_ahead(stubbed):
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


def test_the_stamps_of_forecasts(stubbed):
    y = np.arange(8.0)
    days = pd.date_range("2024-01-01", periods=8, freq="D")
    model = SSMForecaster(2, 4, **BRIEF).fit(pd.Series(y, days, name="a"))
    found = model.predict()
    assert found.name == "a"
    assert found.index.tolist() == [pd.Timestamp("2024-01-09"), pd.Timestamp("2024-01-10")]
    one = model.predict(pd.Series([1.0], days[:1]))
    assert one.index.tolist() == [pd.Timestamp("2024-01-02"), pd.Timestamp("2024-01-03")]
    counted = SSMForecaster(2, 4, **BRIEF).fit(y)
    with pytest.raises(ValueError, match=r"^`y` must have at least two rows, .*, got one row"):
        counted.predict(pd.Series([1.0], days[:1]))
    with pytest.raises(ValueError, match=r"^`y` must have steps of D as in fit"):
        model.predict(pd.Series(y[::2], days[::2]))
    timed = SSMForecaster(2, 4, **BRIEF).fit(pd.Series(y, days), "index")
    assert timed.step_ is None
    assert timed.predict().index.tolist() == found.index.tolist()
    months = pd.period_range("2024-01", periods=8, freq="M")
    for stamps, wanted in ((months, ["2024-09", "2024-10"]), (months[[0, 2, 4, 6]], ["2024-09", "2024-11"])):
        series = pd.Series(y[: len(stamps)], stamps)
        assert [str(period) for period in SSMForecaster(2, 1, **BRIEF).fit(series, "index").predict().index] == wanted
    waits = pd.Series(y, pd.to_timedelta(np.arange(8) * 10, unit="s"))
    wanted = [pd.Timedelta(80, unit="s"), pd.Timedelta(90, unit="s")]
    assert SSMForecaster(2, 4, **BRIEF).fit(waits, "index").predict().index.tolist() == wanted
    uneven = pd.Series(y, [0, 0.5, 1, 1.5, 2, 2.5, 3, 9])
    assert SSMForecaster(2, 4, **BRIEF).fit(uneven, "index").predict().index.tolist() == [9.5, 10]


def test_steps_of_several_series(stubbed):
    days = pd.date_range("2024-01-01", periods=8, freq="D")
    one, other = pd.Series(np.arange(8.0), days), pd.Series(np.arange(4.0), days[::2])
    with pytest.raises(ValueError, match=r"^series 1 of `y` must have steps of D as in series 0"):
        SSMForecaster(2, 2, **BRIEF).fit([one, other])
    model = SSMForecaster(2, 2, **BRIEF).fit([one.iloc[:1], one])
    assert model.step_ == days.freq
    with pytest.raises(ValueError, match=r"^`y` must be one series, got 2"):
        model.predict([one, one])
    with pytest.raises(ValueError, match=r"^`y` must be one series, got 2"):
        model.score([one, one])


def test_windows_of_a_collection():
    collection = pad_arrays([np.arange(4.0)[:, None], np.arange(2.0)[:, None], 10 + np.arange(3.0)[:, None]])
    starts = _window_starts(collection, 3)
    assert starts.tolist() == [[0, 0], [0, 1], [2, 0]]
    mean, scale = np.zeros(1), np.ones(1)
    found = collection.standardise(mean, scale, 1.0, "X").windows(starts[1:], 3)
    assert found.values[..., 0].tolist() == [[1, 2, 3], [10, 11, 12]]
    assert found.lengths.tolist() == [3, 3]
    assert found.gaps is None
    timed = collection.with_times([[0, 1, 2, 5], [0, 1], [4, 6, 9]])
    cut = timed.standardise(mean, scale, 2.0, "X").windows(starts[1:], 3)
    assert cut.gaps.tolist() == [[0.5, 0.5, 1.5], [0, 1, 1.5]]
    assert cut.batch(np.arange(2), torch.device("cpu"))[2].tolist() == [[1, 0.5, 1.5], [1, 1, 1.5]]
