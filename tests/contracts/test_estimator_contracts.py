"""Properties of every estimator on generated series and settings: the form in which series are passed changes no prediction."""

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

from longscan.estimators import SSMClassifier, SSMForecaster, SSMRegressor

CLOSE = {"rtol": 1e-3, "atol": 1e-4}  # padding and batches change the order of sums in float32
KINDS = {"classifier": SSMClassifier, "regressor": SSMRegressor}
SPECS = ["mamba", "lru", "s5", "s4d", "aussm", "linoss", "ma"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def build(data: st.DataObject, kind: type) -> Any:
    """Return an estimator with generated settings whose fit makes about two updates."""
    return kind(
        spec=data.draw(st.sampled_from(SPECS), label="spec"),
        d_model=data.draw(st.sampled_from([2, 4, 6]), label="d_model"),
        d_state=data.draw(st.sampled_from([2, 4]), label="d_state"),
        epochs=1,
        batch_size=data.draw(st.sampled_from([3, 16]), label="batch_size"),
        device="cpu",
        random_state=data.draw(st.integers(0, 1000), label="random_state"),
    )


def series(data: st.DataObject, kind: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Return four to nine series (L, C) of generated lengths, equal or not, with C < L, and a target for each."""
    random = np.random.default_rng(data.draw(st.integers(0, 10**6), label="series"))
    count, channels = data.draw(st.integers(4, 9), label="n"), data.draw(st.integers(1, 3), label="C")
    shortest = data.draw(st.integers(4, 20), label="shortest")
    lengths = shortest + (random.integers(0, 9, count) if data.draw(st.booleans(), label="unequal") else np.zeros(count, int))
    X = [random.normal(size=(length, channels)) * 10 ** random.uniform(-3, 3, channels) for length in lengths]
    y = np.array(["b", "a", "c"])[np.arange(count) % 3] if kind == "classifier" else random.normal(size=count)
    return X, y


def answers(model: Any, X: Any) -> np.ndarray:
    return model.predict_proba(X) if hasattr(model, "predict_proba") else model.predict(X)


@every_kind
@given(data=st.data())
def test_predictions_do_not_depend_on_the_other_series(kind: str, data: st.DataObject) -> None:
    """Nor on order and batch; an estimator restored by pickle gives the same bits."""
    X, y = series(data, kind)
    model = build(data, KINDS[kind]).fit(X, y)
    wanted = answers(model, X)
    assert np.isfinite(wanted).all()
    order = np.random.default_rng(len(X)).permutation(len(X))
    np.testing.assert_allclose(answers(model, [X[place] for place in order]), wanted[order], **CLOSE)
    np.testing.assert_allclose(np.concatenate([answers(model, [one]) for one in X]), wanted, **CLOSE)
    assert np.array_equal(answers(pickle.loads(pickle.dumps(model)), X), wanted)


@every_kind
@given(data=st.data())
def test_the_form_of_the_series_changes_nothing(kind: str, data: st.DataObject) -> None:
    X, y = series(data, kind)
    model = build(data, KINDS[kind])
    wanted = answers(model.fit(X, y), X)
    index = [f"case {number}" for number in range(len(X))]
    forms: dict[str, Any] = {
        "frames": [pd.DataFrame(one) for one in X],
        "lists": [one.tolist() for one in X],
        "one frame": pd.concat({name: pd.DataFrame(one) for name, one in zip(index, X, strict=True)}),
    }
    if len({len(one) for one in X}) == 1:
        forms["an array"] = np.stack(X)
    name = data.draw(st.sampled_from(sorted(forms)), label="form")
    again = clone(model).fit(forms[name], y)
    assert np.array_equal(answers(again, forms[name]), wanted), name
    assert np.array_equal(answers(model, forms[name]), wanted), name


@every_kind
@given(data=st.data())
def test_the_same_seed_gives_the_same_bits(kind: str, data: st.DataObject) -> None:
    X, y = series(data, kind)
    model = build(data, KINDS[kind])
    one = answers(model.fit(X, y), X)
    assert np.array_equal(answers(clone(model).fit(X, y), X), one)
    assert np.array_equal(answers(model.fit(X, y), X), one), "a second fit starts afresh"


@given(data=st.data())
def test_forecasts_are_repeatable_and_depend_on_the_last_steps_only(data: st.DataObject) -> None:
    """They have the horizon's length and are finite; a clone and a copy by pickle give the same bits."""
    random = np.random.default_rng(data.draw(st.integers(0, 10**6), label="series"))
    channels, horizon = data.draw(st.integers(1, 3), label="C"), data.draw(st.integers(1, 6), label="horizon")
    context = data.draw(st.integers(4, 12), label="context")
    y = random.normal(size=(context + horizon + data.draw(st.integers(1, 30), label="more"), channels)).cumsum(0)
    model = build(data, SSMForecaster).set_params(horizon=horizon, window=context)
    wanted = np.asarray(model.fit(y).predict())
    assert wanted.reshape(horizon, -1).shape == (horizon, channels)
    assert np.isfinite(wanted).all()
    assert np.array_equal(np.asarray(clone(model).fit(y).predict()), wanted)
    assert np.array_equal(np.asarray(pickle.loads(pickle.dumps(model)).predict()), wanted)
    assert np.array_equal(np.asarray(model.predict(y)), wanted)
    np.testing.assert_allclose(np.asarray(model.predict(y[-context:])), wanted, **CLOSE)
