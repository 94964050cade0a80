"""Streams: after every piece the prediction is that of `predict` for all steps so far."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError

from longscan.estimators import SSMClassifier, SSMRegressor, streams

BRIEF = {"d_model": 4, "d_state": 2, "epochs": 1, "device": "cpu", "random_state": 0}
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(9, 12, 2))
LABELS = np.array(["up", "down", "flat"] * 3)


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("spec", ["mamba", "lru s5"])
def test_stream_predicts_what_predict_does_for_the_steps_so_far(spec, pooling, monkeypatch):
    monkeypatch.setattr(streams, "MAX_PIECE", 3)
    model = SSMClassifier(spec, **BRIEF, pooling=pooling).fit(X, LABELS)
    stream, end = model.stream(), 0
    for piece in (X[0, :1], X[0, 1], X[0, 2:9], X[0, 9:12].tolist()):
        end += np.ndim(piece) == 1 or len(piece)
        label = stream.update(piece)
        assert stream.n_steps == end
        assert label == stream.predict() == model.predict([X[0, :end]])[0]
        np.testing.assert_allclose(stream.predict_proba(), model.predict_proba([X[0, :end]])[0], atol=1e-5)


def test_stream_of_a_regressor_has_the_units_and_shape_of_the_targets():
    table = X[..., 0]
    model = SSMRegressor(**BRIEF).fit(table, 100 + 30 * table.mean(1))
    stream = model.stream()
    for step in table[0, :4]:
        value = stream.update(step)
    assert value == pytest.approx(model.predict([table[0, :4]])[0], rel=1e-5)
    assert stream.update(pd.Series(table[0, 4:])) == pytest.approx(model.predict(table[:1])[0], rel=1e-5)
    several = SSMRegressor(**BRIEF).fit(X, RANDOM.normal(size=(9, 2)))
    np.testing.assert_allclose(several.stream().update(X[3]), several.predict(X[3:4])[0], rtol=1e-4)
    model.stream().update(table[1])
    assert stream.predict() == pytest.approx(model.predict(table[:1])[0], rel=1e-5), "streams are independent"
    expected = stream.predict()
    model.fit(table, -table.mean(1))
    assert stream.predict() == expected, "a later fit does not change a stream"


@pytest.mark.parametrize("dates", [False, True])
def test_stream_with_times(dates):
    times = RANDOM.exponential(2.0, (9, 12)).cumsum(1).round(3)
    stamps = [pd.Timestamp("2024-10-27", tz="Europe/Berlin") + pd.to_timedelta(row, unit="s") for row in times]
    given = stamps if dates else times
    model = SSMClassifier("lru", **BRIEF).fit(X, LABELS, given)
    stream = model.stream()
    stream.update(X[0, 0], given[0][0])
    stream.update(X[0, 1:4], given[0][1:4])
    rest = pd.DataFrame(X[0, 4:], index=given[0][4:])
    stream.update(rest.iloc[0], "index")
    stream.update(rest.iloc[1:], "index")
    np.testing.assert_allclose(stream.predict_proba(), model.predict_proba(X[:1], given[:1])[0], atol=1e-5)
    with pytest.raises(ValueError, match=r"^`times` must be in the order of time, after those of earlier steps, got times that"):
        stream.update(X[0, 0], given[0][0])
    with pytest.raises(ValueError, match=r"^`times` must be given as in fit, got None"):
        stream.update(X[0, 0])
    with pytest.raises(ValueError, match=r"^`times` must have 1 times, one for each step, got 12"):
        stream.update(X[0, 0], given[0])
    with pytest.raises(ValueError, match=r"^`times` must be the times of the steps, or 'index' with series of pandas"):
        stream.update(X[0, 0], "index")


@pytest.mark.parametrize("columns", [["level"], ["level", "flow"]])
def test_row_of_a_frame_is_one_step_at_its_time(columns):
    times = RANDOM.exponential(2.0, (9, 12)).cumsum(1).round(3)
    frames = [pd.DataFrame(row[:, : len(columns)], index=time, columns=columns) for row, time in zip(X, times, strict=True)]
    model = SSMClassifier("lru", **BRIEF).fit(frames, LABELS, "index")
    stream = model.stream()
    for i in range(12):
        stream.update(frames[0].iloc[i], "index")
    np.testing.assert_allclose(stream.predict_proba(), model.predict_proba(frames[:1], "index")[0], atol=1e-5)


def test_channels_with_names_and_other_layouts():
    frames = [pd.DataFrame(row, columns=["level", "flow"]) for row in X]
    model = SSMClassifier(**BRIEF).fit(frames, LABELS)
    expected = model.predict_proba(frames[:1])[0]
    stream = model.stream()
    for _, step in frames[0][["flow", "level"]].iterrows():
        stream.update(step)
    np.testing.assert_allclose(stream.predict_proba(), expected, atol=1e-5)
    channels_first = SSMClassifier(**BRIEF, layout="ncl").fit(X.transpose(0, 2, 1), LABELS).stream()
    channels_first.update(X[0, 0])
    channels_first.update(X[0, 1:].T)
    np.testing.assert_allclose(channels_first.predict_proba(), expected, atol=1e-5)


@pytest.mark.parametrize("has_times", [False, True])
def test_stream_is_as_before_after_steps_that_raise(has_times, monkeypatch):
    times = np.tile(np.arange(12.0), (9, 1)) if has_times else None
    model = SSMClassifier("lru", **BRIEF).fit(X, LABELS, times)
    stream, other = model.stream(), model.stream()
    of_steps = [None if times is None else times[0, part] for part in (slice(3), slice(3, 5), slice(3, 12))]
    stream.update(X[0, :3], of_steps[0])
    before = stream.predict_proba()

    def refuse(*_):
        raise ValueError("a prediction that is not finite")

    with monkeypatch.context() as patched:
        patched.setattr(streams, "check_predictions", refuse)
        with pytest.raises(ValueError, match="that is not finite"):
            stream.update(X[1, 3:5], of_steps[1])
    assert (stream.n_steps, stream.predict_proba().tolist()) == (3, before.tolist())
    stream.update(X[0, 3:], of_steps[2])
    other.update(X[0], None if times is None else times[0])
    np.testing.assert_allclose(stream.predict_proba(), other.predict_proba(), atol=1e-5)


def test_state_of_a_stream_does_not_grow():
    stream = SSMClassifier(**BRIEF).fit(X, LABELS).stream()
    stream.update(X[0])
    size = stream._state.nbytes
    stream.update(np.zeros((500, 2)))
    assert stream._state.nbytes == size


def test_invalid_streams_and_steps_raise():
    with pytest.raises(NotFittedError):
        SSMClassifier().stream()
    for kind in (SSMClassifier, SSMRegressor):
        both = kind("bidirectional", **BRIEF).fit(X, np.arange(9) % 3)
        with pytest.raises(ValueError, match=r"^`spec` must be one whose blocks run step by step, got 'bidirectional': .*0"):
            both.stream()
    stream = SSMClassifier(**BRIEF).fit(X, LABELS).stream()
    for predict in (stream.predict, stream.predict_proba):
        with pytest.raises(ValueError, match=r"^`update` must be called before a prediction, got no steps yet"):
            predict()
    for steps, message in (
        (np.zeros(3), "`steps` must have 2 channels as in fit, got 3"),
        (np.full(2, np.nan), "`steps` must contain only finite numbers"),
        (np.zeros((0, 2)), "`steps` must have the shape"),
        ([1e60, 0.0], "`steps` must be at most"),
        (["a", "b"], "`steps` must contain only real numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            stream.update(steps)
    with pytest.raises(ValueError, match=r"^`times` must be None as in fit, got times"):
        stream.update(np.zeros(2), 3.0)
    assert stream.n_steps == 0
    assert torch.is_tensor(stream._state.blocks[0][0])
