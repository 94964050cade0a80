"""Properties of every estimator on generated series and settings."""

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

from longscan.estimators import SSMClassifier, SSMForecaster, SSMRegressor

TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}  # padding and batches change the order of sums in float32
KINDS = {"classifier": SSMClassifier, "regressor": SSMRegressor}
SPECS = ["mamba", "lru", "s5", "s4d", "aussm", "linoss", "ma"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def build_estimator(data: st.DataObject, kind: type) -> Any:
    """Return an estimator with generated settings whose `fit` makes about two updates."""
    return kind(
        spec=data.draw(st.sampled_from(SPECS), label="spec"),
        d_model=data.draw(st.sampled_from([2, 4, 6]), label="d_model"),
        d_state=data.draw(st.sampled_from([2, 4]), label="d_state"),
        epochs=1,
        batch_size=data.draw(st.sampled_from([3, 16]), label="batch_size"),
        device="cpu",
        random_state=data.draw(st.integers(0, 1000), label="random_state"),
    )


def draw_series(data: st.DataObject, kind: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Return four to nine series (L, C) of generated lengths, equal or not, with C < L, and a target for each."""
    random = np.random.default_rng(data.draw(st.integers(0, 10**6), label="series"))
    count, channels = data.draw(st.integers(4, 9), label="n"), data.draw(st.integers(1, 3), label="C")
    shortest = data.draw(st.integers(4, 20), label="shortest")
    lengths = shortest + (random.integers(0, 9, count) if data.draw(st.booleans(), label="unequal") else np.zeros(count, int))
    X = [random.normal(size=(length, channels)) * 10 ** random.uniform(-3, 3, channels) for length in lengths]
    y = np.array(["b", "a", "c"])[np.arange(count) % 3] if kind == "classifier" else random.normal(size=count)
    return X, y


def predict(model: Any, X: Any) -> np.ndarray:
    """Return the probabilities of classes or, of a regressor, the predictions."""
    return model.predict_proba(X) if hasattr(model, "predict_proba") else model.predict(X)


@every_kind
@given(data=st.data())
def test_predictions_do_not_depend_on_the_other_series(kind: str, data: st.DataObject) -> None:
    """Nor do they depend on their order; an estimator restored by pickle gives the same bits."""
    X, y = draw_series(data, kind)
    model = build_estimator(data, KINDS[kind]).fit(X, y)
    expected = predict(model, X)
    assert np.isfinite(expected).all()
    order = np.random.default_rng(len(X)).permutation(len(X))
    np.testing.assert_allclose(predict(model, [X[index] for index in order]), expected[order], **TOLERANCE)
    np.testing.assert_allclose(np.concatenate([predict(model, [series]) for series in X]), expected, **TOLERANCE)
    assert np.array_equal(predict(pickle.loads(pickle.dumps(model)), X), expected)


@every_kind
@given(data=st.data())
def test_predictions_do_not_depend_on_the_container_of_the_series(kind: str, data: st.DataObject) -> None:
    X, y = draw_series(data, kind)
    model = build_estimator(data, KINDS[kind])
    expected = predict(model.fit(X, y), X)
    names = [f"case {number}" for number in range(len(X))]
    forms: dict[str, Any] = {
        "frames": [pd.DataFrame(series) for series in X],
        "lists": [series.tolist() for series in X],
        "one frame": pd.concat({name: pd.DataFrame(series) for name, series in zip(names, X, strict=True)}),
    }
    if len({len(series) for series in X}) == 1:
        forms["an array"] = np.stack(X)
    name = data.draw(st.sampled_from(sorted(forms)), label="form")
    refitted = clone(model).fit(forms[name], y)
    assert np.array_equal(predict(refitted, forms[name]), expected), name
    assert np.array_equal(predict(model, forms[name]), expected), name


@every_kind
@given(data=st.data())
def test_refitting_with_the_same_seed_gives_the_same_bits(kind: str, data: st.DataObject) -> None:
    X, y = draw_series(data, kind)
    model = build_estimator(data, KINDS[kind])
    first = predict(model.fit(X, y), X)
    assert np.array_equal(predict(clone(model).fit(X, y), X), first)
    assert np.array_equal(predict(model.fit(X, y), X), first), "a second fit starts from new weights"


@given(data=st.data())
def test_forecasts_are_repeatable_and_depend_only_on_the_context(data: st.DataObject) -> None:
    """They are finite, as long as the horizon, and have the same bits from a clone and from a pickled copy."""
    random = np.random.default_rng(data.draw(st.integers(0, 10**6), label="series"))
    channels, horizon = data.draw(st.integers(1, 3), label="C"), data.draw(st.integers(1, 6), label="horizon")
    context = data.draw(st.integers(4, 12), label="context")
    y = random.normal(size=(context + horizon + data.draw(st.integers(1, 30), label="more"), channels)).cumsum(0)
    model = build_estimator(data, SSMForecaster).set_params(horizon=horizon, window=context)
    expected = np.asarray(model.fit(y).predict())
    assert expected.reshape(horizon, -1).shape == (horizon, channels)
    assert np.isfinite(expected).all()
    assert np.array_equal(np.asarray(clone(model).fit(y).predict()), expected)
    assert np.array_equal(np.asarray(pickle.loads(pickle.dumps(model)).predict()), expected)
    assert np.array_equal(np.asarray(model.predict(y)), expected)
    np.testing.assert_allclose(np.asarray(model.predict(y[-context:])), expected, **TOLERANCE)
