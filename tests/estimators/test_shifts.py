"""Level shifts at the end of a series: found where they exceed all errors of `fit`, and continued in the forecast."""

import numpy as np
import pytest

from longscan.estimators import SSMForecaster
from longscan.estimators.linear import fit_linear, usable_windows
from longscan.estimators.shifts import SHIFT_FACTOR, find_shifts, measure_errors, remove_shifts

SMALL = {"d_model": 4, "d_state": 2, "epochs": 1, "random_state": 0, "device": "cpu"}
HORIZON, LENGTH, AGE, SIZE = 24, 600, 14, 4.0


@pytest.fixture(scope="module")
def days() -> np.ndarray:
    """Return two channels of days with noise, (LENGTH + HORIZON, 2)."""
    steps = np.arange(LENGTH + HORIZON)[:, None]
    return np.sin(steps * np.pi / 12 + np.array([0.0, 2.0])) + 0.2 * np.random.default_rng(0).normal(size=(len(steps), 2))


def shift(values: np.ndarray, age: int = AGE, size: float = SIZE, end: int = LENGTH) -> np.ndarray:
    """Return the values with a step of the first channel `age` steps before `end`."""
    shifted = values.copy()
    shifted[end - age :, 0] += size
    return shifted


def test_a_shift_is_found_with_its_age_and_size(days):
    linear = fit_linear([days], HORIZON, usable_windows(np.array([len(days)]), HORIZON))
    limits = measure_errors([days], linear)
    for age in (3, AGE, HORIZON):
        past = np.stack([shift(days, age)[:LENGTH], days[:LENGTH]])
        ages, sizes = find_shifts(past, linear, limits)
        assert ages.tolist() == [[age, 0], [0, 0]]
        assert abs(sizes[0, 0] - SIZE) < 0.5
        np.testing.assert_allclose(remove_shifts(past, ages, sizes)[:, :, 0], days[None, :LENGTH, 0].repeat(2, 0), atol=0.5)
    assert not find_shifts(past[:, : linear.window + 1], linear, limits)[0].any()  # no age fits before the window


def test_limits_are_the_largest_errors_of_fit(days):
    linear = fit_linear([days], HORIZON, usable_windows(np.array([len(days)]), HORIZON))
    limits = measure_errors([days], linear)
    origins = np.arange(linear.window, len(days) - 2 * HORIZON)
    past = np.stack([days[at - linear.window : at] for at in origins])
    errors = np.stack([days[at : at + HORIZON] for at in origins]) - linear.forecast(past)
    np.testing.assert_allclose(limits.first, np.abs(errors[:, 0]).max(0))
    np.testing.assert_allclose(limits.mean[AGE - 1], np.abs(errors[:, :AGE].mean(1)).max(0))
    np.testing.assert_allclose(limits.deviation[-1], np.sqrt(np.square(errors.mean(1)).mean(0)))
    parts = [days[:300], days[300:]]  # windows of several series do not cross their ends
    both, each = measure_errors(parts, linear), [measure_errors([part], linear) for part in parts]
    np.testing.assert_allclose(both.first, np.maximum(each[0].first, each[1].first))
    assert measure_errors([days[: linear.window + 2 * HORIZON + 15]], linear) is None


@pytest.mark.parametrize("value", [0.0, -SIZE])
def test_a_repeated_value_at_the_end_is_no_level(days, value):
    linear = fit_linear([days], HORIZON, usable_windows(np.array([len(days)]), HORIZON))
    limits = measure_errors([days], linear)
    origins = range(300, LENGTH)
    for count in (3, 4, 8, 16, HORIZON):
        past = np.stack([days[end - 300 : end] for end in origins])
        past[:, -count:, 0] = value
        assert not find_shifts(past, linear, limits)[0].any(), count
        past[:, -1, 0] += 1e-9
        assert not value or find_shifts(past, linear, limits)[0].any(), "values that differ are a level"
    shifted = shift(days)[None, :LENGTH].copy()
    shifted[:, -3:, 0] = shifted[:, -3, :1]
    assert find_shifts(shifted, linear, limits)[0].tolist() == [[AGE, 0]], "a few equal values leave a shift that is older"


def test_both_conditions_are_needed(days):
    linear = fit_linear([days], HORIZON, usable_windows(np.array([len(days)]), HORIZON))
    limits = measure_errors([days], linear)
    past, outlier = shift(days)[None, :LENGTH], days[None, :LENGTH].copy()
    outlier[0, -AGE, 0] += SIZE
    assert find_shifts(past, linear, limits)[0].any()
    assert not find_shifts(outlier, linear, limits)[0].any()
    assert not find_shifts(past, linear, limits._replace(mean=100 * limits.mean))[0].any()
    assert not find_shifts(past, linear, limits._replace(first=100 * limits.first))[0].any()
    assert not find_shifts(shift(days, size=SHIFT_FACTOR * limits.mean[:, 0].min() / 2)[None, :LENGTH], linear, limits)[0].any()


def test_a_forecast_follows_a_shift(days, tmp_path):
    model = SSMForecaster(horizon=HORIZON, quantiles=(0.1, 0.9), **SMALL).fit(days[:500])
    assert model.shift_limits_ is not None
    plain, moved = model.predict(days[:LENGTH]), model.predict(shift(days)[:LENGTH])
    np.testing.assert_allclose(moved - plain, np.broadcast_to([SIZE, 0.0], plain.shape), atol=0.4)
    quantiles = [model.predict_quantiles(values) for values in (days[:LENGTH], shift(days)[:LENGTH])]
    np.testing.assert_allclose(quantiles[1][0] - quantiles[0][0], SIZE, atol=0.4)
    np.testing.assert_array_equal(quantiles[1][1], quantiles[0][1])
    both = model.predict([days[:LENGTH], shift(days)[:LENGTH], days[:90]])  # several, one of which is short
    np.testing.assert_allclose(both[1], moved, atol=1e-5)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(SSMForecaster.load(tmp_path / "model").predict(shift(days)[:LENGTH]), moved)
    limits, model.shift_limits_ = model.shift_limits_, None  # as in files of earlier versions
    np.testing.assert_array_equal(model.predict(days[:LENGTH]), plain)
    assert np.abs(model.predict(shift(days)[:LENGTH]) - plain)[-1, 0] < 0.6 * SIZE
    model.shift_limits_ = limits


def test_a_shift_in_the_last_steps_of_fit_is_followed(days):
    shifted = shift(days)
    model = SSMForecaster(horizon=HORIZON, **SMALL).fit(shifted[:LENGTH])
    assert np.abs(model.predict() - shifted[LENGTH:])[:, 0].mean() < 0.5
    assert SSMForecaster(horizon=HORIZON, **SMALL).fit(days[:60]).shift_limits_ is None  # too short
    times = np.arange(200) + 90.0 * (np.arange(200) // 20)  # with pauses that are too long to be filled
    assert SSMForecaster(horizon=4, **SMALL).fit(days[:200], times=times).shift_limits_ is None
