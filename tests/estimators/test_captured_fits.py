"""Fits whose updates are replayed, with a substitute for CUDA graphs that repeats the update on its static batch.

Tests of fits on a GPU are in tests/training/test_capture.py.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from longscan.engine import Engine, GraphedStep
from longscan.engine.graphed_step import Capture
from longscan.estimators import SSMClassifier, SSMForecaster, SSMRegressor, fitting, forecaster

BRIEF = {"d_model": 4, "d_state": 2, "epochs": 6, "batch_size": 4, "lr": 0.02, "device": "cpu", "random_state": 0}
LONG_WINDOW = {"horizon": 2, "window": 30}  # too long for a linear forecast, so that the blocks are trained for all epochs
CASES = ["classifier", "regressor", "forecaster", "quantiles"]


def series(count: int = 10, length: int = 12) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, length, 2))


def fit(case: str, **settings):
    """Return a fitted estimator that is trained on batches of four examples and smaller last ones."""
    settings = BRIEF | settings
    if case == "classifier":
        return SSMClassifier("mamba", **settings).fit(series(), np.arange(10) % 2)
    if case == "regressor":
        return SSMRegressor("mamba", **settings).fit(series(), series()[:, :, 0].mean(1), sample_weight=np.arange(1, 11))
    quantiles = (0.1, 0.9) if case == "quantiles" else None
    return SSMForecaster(**LONG_WINDOW, **settings, quantiles=quantiles).fit(series(1, 44)[0])


class Replays(list):
    """The shapes of the inputs of all replays; `released` counts the trainings whose graphs are freed."""

    released = 0


@pytest.fixture
def replay_updates(monkeypatch):
    """Return a function after whose call updates on the CPU are replayed, which returns their `Replays`."""

    def start():
        replays = Replays()

        def capture(step, batch):
            static = batch._make(None if tensor is None else tensor.clone() for tensor in batch)
            outputs = None, torch.full((), torch.nan), torch.full((), torch.nan)

            def replay():
                replays.append(tuple(static[0].shape[:2]))
                for written, value in zip(outputs[1:], step._step(static)[1:], strict=True):
                    written.copy_(value)

            return Capture(SimpleNamespace(replay=replay, reset=lambda: None), static, outputs)

        def release(step):
            replays.released += 1
            free(step)

        free = GraphedStep.release
        monkeypatch.setattr(fitting, "replays_updates", lambda device: device.type == "cpu")
        monkeypatch.setattr(GraphedStep, "_capture", capture)
        monkeypatch.setattr(GraphedStep, "_run_on_side_stream", lambda step, batch: step._step(batch))
        monkeypatch.setattr(GraphedStep, "_replay_timed", lambda _, graph: graph.replay())
        monkeypatch.setattr(GraphedStep, "release", release)
        return replays

    return start


def forbid_capture(*_, **__):
    raise AssertionError("an update was captured")


@pytest.mark.parametrize("case", CASES)
def test_fits_on_the_cpu_capture_nothing(case, monkeypatch):
    monkeypatch.setattr(Engine, "capture", forbid_capture)
    assert len(fit(case, epochs=1).loss_curve_) == 1


def test_updates_are_captured_on_a_cuda_device():
    assert fitting.replays_updates(torch.device("cuda", 1))
    assert not fitting.replays_updates(torch.device("cpu"))


@pytest.mark.parametrize("case", CASES)
def test_replayed_updates_have_the_losses_of_others(case, replay_updates):
    """The last batch of an epoch is smaller, so that there are two graphs, each after three updates of its shape."""
    plain = fit(case)
    replays = replay_updates()
    replayed = fit(case)
    np.testing.assert_allclose(replayed.loss_curve_, plain.loss_curve_, rtol=1e-4)
    rows = [shape[0] for shape in replays]
    if case in ("classifier", "regressor"):
        assert [rows.count(4), rows.count(2)] == [2 * 6 - 3, 6 - 3]
    assert len(set(rows)) == 2
    assert replays.released == (2 if case == "quantiles" else 1), "one for each training"
    assert all(parameter.grad is None for parameter in replayed.model_.parameters()), "they are in the memory of the graphs"


def test_best_weights_are_restored_after_replays(replay_updates):
    settings = {"validation_fraction": 0.3, "patience": 2, "lr": 0.1, "epochs": 20}
    plain = fit("classifier", **settings)
    replays = replay_updates()
    replayed = fit("classifier", **settings)
    assert replays
    assert len(plain.loss_curve_) < 20, "training is stopped early"
    np.testing.assert_allclose(replayed.loss_curve_, plain.loss_curve_, rtol=1e-3)
    np.testing.assert_allclose(replayed.predict_proba(series()), plain.predict_proba(series()), rtol=1e-3)


def test_series_of_many_lengths_are_padded_to_few(replay_updates):
    """A graph has one shape. Series of at most half of the longest are padded to half of it, and so on."""
    lengths = [21, 5, 7, 9, 3, 6, 8, 10, 4, 11, 2, 5]
    X = [row[:length] for row, length in zip(series(12, 21), lengths, strict=True)]
    times = [np.arange(length) ** 1.1 for length in lengths]
    settings = {**BRIEF, "batch_size": 2, "epochs": 8}
    plain = SSMRegressor("mamba", **settings).fit(X, lengths, times)
    replays = replay_updates()
    replayed = SSMRegressor("mamba", **settings).fit(X, lengths, times)
    np.testing.assert_allclose(replayed.loss_curve_, plain.loss_curve_, rtol=1e-3)
    assert len(replays) > 24, "most of 48 updates"
    assert {shape[1] for shape in replays} <= {21, 11, 6, 3}


def test_update_that_cannot_be_captured_is_made_without_a_graph(replay_updates, monkeypatch, caplog):
    plain = fit("regressor")
    replays = replay_updates()

    def fail(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(GraphedStep, "_capture", fail)
    monkeypatch.setattr("longscan.engine.graphed_step._end_capture_of_random_numbers", lambda _: None)
    np.testing.assert_allclose(fit("regressor").loss_curve_, plain.loss_curve_, rtol=1e-4)
    assert not replays
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == ["steps run without a CUDA graph"]


def test_graphs_of_a_fit_that_diverges_are_freed(replay_updates):
    replays = replay_updates()
    with pytest.raises(ValueError, match=r"^`lr` must be smaller"):
        fit("regressor", lr=1e30)
    assert replays.released == 1


@pytest.mark.parametrize("case", [*CASES, "lengths"])
def test_update_reads_no_values_and_creates_no_tensors_from_host_values(case, monkeypatch):
    """Copies between host and device cannot be captured in a CUDA graph."""
    losses = []

    def compute_loss(model, batch_of, loss_of, epoch, **_):
        batch = batch_of(epoch(np.random.RandomState(0))[:3])
        for module in model.modules():
            if hasattr(module, "backend"):
                module.backend = "eager"  # whose operations are those of PyTorch

        def raise_error(*_, **__):
            raise AssertionError("values are copied between host and device")

        with monkeypatch.context() as patched:
            for owner, name in ((torch, "tensor"), (torch, "as_tensor"), (torch, "from_numpy"), (torch.Tensor, "new_tensor")):
                patched.setattr(owner, name, raise_error)
            for name in ("item", "tolist", "__bool__", "__float__", "__int__"):
                patched.setattr(torch.Tensor, name, raise_error)
            for name in ("is_initialized", "is_current_stream_capturing"):
                patched.setattr(torch.cuda, name, lambda: True)
            loss = loss_of(batch)
            loss.backward()
        losses.append(loss.item())
        return [0.0]

    for module in (fitting, forecaster):
        monkeypatch.setattr(module, "minimise", compute_loss)
    if case == "lengths":
        X, times = [np.ones(4), np.arange(7.0), np.arange(3.0)], [np.arange(4.0), np.arange(7.0), np.arange(3.0)]
        SSMRegressor("mamba", **BRIEF).fit(X, [1.0, 2.0, 3.0], times)
    else:
        fit(case)
    assert np.isfinite(losses).all()
    assert losses
