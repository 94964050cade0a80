"""Training steps captured as a CUDA graph give the results of plain steps, or raise if they cannot be captured."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import made_up
from longscan.engine import Engine
from longscan.engine.graphed_step import WARMUP_CALLS, GraphedStep
from longscan.estimators import SSMClassifier, SSMForecaster, SSMRegressor
from longscan.layers import _cells
from longscan.layers._cells import run_fused_valid_steps
from longscan.models import STANDARD_BLOCKS, SequenceModel
from longscan.tasks import TASKS, Batch, Task
from longscan.tasks.base import Split
from longscan.tasks.lra import LraImage
from longscan.training import ModelSettings, Settings, TrainingSettings, train
from longscan.training.batches import pad_batch, widen_batches
from longscan.training.evaluate import predict
from longscan.training.records import result_row
from longscan.training.stacked import _Member
from longscan.training.trainer import Trainer
from run_files import have_equal_tensors, read_weights
from task_variants import make_small


def host_makes_no_training_batch(batch: Any) -> Any:
    """Return a method that makes the batches of a task except those for training after the first one, which checks the data."""

    def checked(task: Task, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        assert split != "train" or step == 0
        made: Batch = batch(task, split, step, batch_size, seed)
        return made

    return checked


@pytest.fixture
def settings() -> Settings:
    """Return settings of twelve updates of a small forecaster with dropout, warm-up and weight averaging."""
    model = ModelSettings(spec="m", d_model=8, d_state=2, backend="eager", block_options={"m": {"dropout": 0.1}})
    training = TrainingSettings(
        steps=12, batch_size=4, lr=0.01, schedule="cosine", warmup=4, average=0.9, eval_every=6, eval_batches=1, test_batches=1,
        log_every=1, device="auto", capture=True,
    )  # fmt: skip
    return Settings(task=TASKS["fitzhugh_nagumo"](train_size=24, valid_size=10, test_size=12), model=model, training=training)


def test_capture_on_the_cpu_does_not_change_the_weights(settings: Settings, tmp_path: Path) -> None:
    settings = replace(settings, training=replace(settings.training, device="cpu", steps=4, warmup=2, eval_every=2))
    captured = train(settings, tmp_path / "captured")
    plain = train(replace(settings, training=replace(settings.training, capture=False)), tmp_path / "plain")
    assert have_equal_tensors(read_weights(captured), read_weights(plain))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("backend", ["eager", "triton"])
def test_captured_training_equals_plain_training(settings: Settings, tmp_path: Path, backend: str) -> None:
    settings = replace(settings, model=replace(settings.model, backend=backend))
    captured = train(settings, tmp_path / "captured")
    plain = train(replace(settings, training=replace(settings.training, capture=False)), tmp_path / "plain")
    torch.testing.assert_close(read_weights(captured), read_weights(plain), rtol=1e-4, atol=1e-6)
    assert result_row(captured)["replayed_updates_per_second"] > 0
    assert "replayed_updates_per_second" not in result_row(plain)


def fail_to_capture(*_: object) -> None:
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize("required", [True, False])
def test_a_step_that_cannot_be_captured_runs_without_a_graph_unless_one_is_required(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, required: bool
) -> None:
    monkeypatch.setattr(GraphedStep, "_capture", fail_to_capture)
    monkeypatch.setattr(GraphedStep, "_run_on_side_stream", lambda step, batch: step._step(batch))
    ended: list[torch.device] = []
    monkeypatch.setattr("longscan.engine.graphed_step._end_capture_of_random_numbers", ended.append)
    batch = Batch(torch.ones(2, 3), torch.ones(2))
    step = GraphedStep(lambda batch: batch.inputs.sum().item(), torch.device("cpu"), required=required)
    assert [step(batch) for _ in range(WARMUP_CALLS)] == [6.0] * WARMUP_CALLS
    if required:
        with pytest.raises(RuntimeError, match="not permitted"):
            step(batch)
        assert len(ended) == 1  # other programs of the process go on with the generator
        return
    assert [step(batch), step(batch)] == [6.0, 6.0]
    (record,) = caplog.records  # one warning, and one attempt
    assert len(ended) == 1
    assert record.getMessage() == (
        "steps run without a CUDA graph, because one could not be captured: operation not permitted when stream is capturing"
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_loss_that_reads_a_value_is_trained_without_a_graph(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model has dropout, whose generator must go on after the capture that fails."""
    task = type(settings.task)
    loss = task.loss

    def read_loss(self: Any, *args: Any) -> torch.Tensor:
        value: torch.Tensor = loss(self, *args)
        assert value.item() >= 0
        return value

    monkeypatch.setattr(task, "loss", read_loss)
    plain, default = (replace(settings, training=replace(settings.training, capture=choice)) for choice in (False, None))
    runs = [train(chosen, tmp_path / name) for name, chosen in (("plain", plain), ("default", default))]
    torch.testing.assert_close(*map(read_weights, runs), rtol=1e-4, atol=1e-6)
    assert "replayed_updates_per_second" not in result_row(runs[1])
    with pytest.raises(RuntimeError):
        train(settings, tmp_path / "required")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_updates_are_captured_by_default(settings: Settings, tmp_path: Path) -> None:
    default = train(replace(settings, training=replace(settings.training, capture=None)), tmp_path / "default")
    assert result_row(default)["replayed_updates_per_second"] > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["parity", "repetition", "forecast"])
def test_captured_training_of_tasks_that_score_some_steps_equals_plain_training(
    settings: Settings, tmp_path: Path, name: str
) -> None:
    """Words of different lengths are padded to the widest so far, and the losses of all steps are computed."""
    settings = replace(settings, task=make_small(TASKS[name]))
    captured = train(settings, tmp_path / "captured")
    plain = train(replace(settings, training=replace(settings.training, capture=False)), tmp_path / "plain")
    torch.testing.assert_close(read_weights(captured), read_weights(plain), rtol=1e-4, atol=1e-6)
    assert result_row(captured)["replayed_updates_per_second"] > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("layer", ["gru", "lstm"])
def test_captured_training_of_padded_rows_in_fused_kernels_equals_plain_training(
    settings: Settings, tmp_path: Path, layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRU and LSTM run torch's kernel on the valid steps of padded words, in the graph as well."""
    model = replace(settings.model, spec=f"simple[{layer}]", backend="auto", block_options={})
    settings = replace(settings, task=make_small(TASKS["parity"]), model=model)
    padded = []

    def run_and_count(*args: Any) -> Any:
        padded.append(torch.cuda.is_current_stream_capturing())
        return run_fused_valid_steps(*args)

    monkeypatch.setattr(_cells, "run_fused_valid_steps", run_and_count)
    captured = train(settings, tmp_path / "captured")
    assert True in padded
    plain = train(replace(settings, training=replace(settings.training, capture=False)), tmp_path / "plain")
    torch.testing.assert_close(read_weights(captured), read_weights(plain), rtol=1e-4, atol=1e-6)
    assert result_row(captured)["replayed_updates_per_second"] > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_resumed_run_ends_as_one_that_was_not_stopped(settings: Settings, tmp_path: Path) -> None:
    training = replace(settings.training, schedule="constant", warmup=0)
    whole = replace(settings, training=training)
    train(replace(whole, training=replace(training, steps=6)), tmp_path / "parts")
    resumed, unstopped = train(whole, tmp_path / "parts", resume=True), train(whole, tmp_path / "whole")
    torch.testing.assert_close(read_weights(resumed), read_weights(unstopped), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", STANDARD_BLOCKS)
def test_training_step_creates_no_tensors_from_host_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy of such a tensor to the device cannot be captured in a CUDA graph."""
    model = SequenceModel.from_spec(name, d_model=8, d_state=4, d_input=2, d_output=3, backend="eager")
    x = torch.randn(2, 70, 2)

    def raise_error(*_: object, **__: object) -> torch.Tensor:
        raise AssertionError("a tensor was created from values on the host")

    for owner, name in ((torch, "tensor"), (torch, "as_tensor"), (torch, "from_numpy"), (torch.Tensor, "new_tensor")):
        monkeypatch.setattr(owner, name, raise_error)
    model(x).square().sum().backward()


def test_batches_are_padded_to_the_widest_so_far_with_the_same_loss() -> None:
    task = make_small(TASKS["parity"])
    batches = [task.at_length(length).batch("train", number, 4, 0) for number, length in enumerate((6, 12, 4, 8))]
    widened = list(widen_batches(batches))
    widths = [batch.inputs.shape[1] for batch in batches]
    assert [batch.inputs.shape[1] for batch in widened] == [max(widths[: n + 1]) for n in range(4)]
    assert len(set(widths)) > 2
    torch.manual_seed(0)
    sizes = {"d_model": 8, "d_state": 4, "vocab_size": task.vocab_size, "d_output": task.d_output}
    model = SequenceModel.from_spec("ma", pooling="none", **sizes)
    for narrow, wide in zip(batches, widened, strict=True):
        losses = [task.loss(predict(model, batch), batch) for batch in (narrow, wide)]
        torch.testing.assert_close(losses[1], losses[0])


def test_batches_of_equal_lengths_and_of_pairs_stay_as_they_are() -> None:
    pairs = [make_small(TASKS["lra_retrieval"], layout="pair").batch("train", number, 4, 0) for number in range(3)]
    series = [make_small(TASKS["forecast"]).batch("train", number, 4, 0) for number in range(2)]
    for batches in (pairs, series):
        assert all(after is before for after, before in zip(widen_batches(batches), batches, strict=True))


def test_padding_fills_each_tensor_that_has_steps() -> None:
    """Padding is not valid, not scored, and of the time and the sequence that change nothing. Probabilities have no steps."""
    steps = torch.arange(6).view(2, 3)
    batch = Batch(
        steps.float().unsqueeze(-1).repeat(1, 1, 2) + 1, steps, loss_mask=steps > 1, valid=steps != 2, elapsed=steps + 1.5,
        seq_idx=steps // 2,
    )  # fmt: skip
    padded = pad_batch(batch, 5)
    fill = {"inputs": 0, "targets": -100, "loss_mask": False, "valid": False, "elapsed": 1, "seq_idx": 0}
    for name, value in fill.items():
        before, after = getattr(batch, name), getattr(padded, name)
        assert after.shape == (2, 5, *before.shape[2:]), name
        assert after.dtype == before.dtype
        assert torch.equal(after[:, :3], before)
        assert (after[:, 3:] == value).all(), name
    whole = Batch(steps, torch.rand(2, 3))  # probabilities of three classes
    padded = pad_batch(whole, 4)
    assert padded.targets is whole.targets
    assert padded.valid is not None
    assert padded.valid.tolist() == [[True, True, True, False]] * 2
    assert (padded.elapsed, padded.seq_idx, padded.loss_mask) == (None, None, None)
    classes = Batch(steps, torch.tensor([1, 0]))
    assert pad_batch(classes, 4).targets is classes.targets
    numbers = Batch(steps, torch.rand(2, 3, 1))
    assert pad_batch(numbers, 4).targets.shape == (2, 4, 1)  # type: ignore[union-attr]
    others = Batch(steps, torch.rand(2, 2, 1))  # not a target for each step
    assert pad_batch(others, 4).targets is others.targets


def test_a_batch_as_wide_as_the_widest_is_not_padded() -> None:
    def batch(length: int) -> Batch:
        return Batch(torch.ones(2, length, dtype=torch.int64), valid=torch.ones(2, length, dtype=torch.bool))

    batches = [batch(3), batch(5), batch(5), batch(4)]
    widened = list(widen_batches(batches))
    assert [after is before for after, before in zip(widened, batches, strict=True)] == [True, True, True, False]
    assert widened[3].inputs.shape == (2, 5)


def with_pictures(settings: Settings, folder: Path, **training: Any) -> Settings:
    """Return settings of a classifier of the 90 training pictures that `made_up` writes, which make three batches an epoch."""
    folder.mkdir()
    made_up.lra_image(folder)
    model = replace(settings.model, pooling="mean", backend="auto")
    changed = replace(settings.training, batch_size=40, average=0.0, warmup=0, **training)
    return replace(settings, task=LraImage(data_dir=str(folder)), model=model, training=changed)


def test_examples_of_a_training_set_on_the_device_are_those_of_the_batches(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch of three batches, the last one smaller, and the beginning of the next."""
    settings = with_pictures(settings, tmp_path / "data", device="cpu", steps=4, eval_every=4)
    plain = train(settings, tmp_path / "plain")
    monkeypatch.setattr(Trainer, "find_training_set", lambda trainer: trainer.task.training_set())
    monkeypatch.setattr(LraImage, "batch", host_makes_no_training_batch(LraImage.batch))
    held = train(settings, tmp_path / "held")
    assert have_equal_tensors(read_weights(held), read_weights(plain))


@pytest.mark.parametrize("fits", [True, False])
def test_a_training_set_that_is_too_large_for_the_device_is_not_built(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    settings = with_pictures(settings, tmp_path / "data")
    task: Any = settings.task
    size, built = task.training_set_bytes(), []
    monkeypatch.setattr(LraImage, "training_set", lambda *_: built.append(task))
    accelerator = SimpleNamespace(device=torch.device("cuda"), num_processes=1)
    training = settings.training
    trainer: Any = SimpleNamespace(training=training, captures=True, accelerator=accelerator, task=task, settings=settings)
    for module, find in (
        ("trainer", lambda: Trainer.find_training_set(trainer)),
        ("stacked", lambda: _Member.training_set(cast("Any", SimpleNamespace(trainer=trainer)))),
    ):
        monkeypatch.setattr(f"longscan.training.{module}.MAX_RESIDENT_BYTES", size if fits else size - 1)
        assert find() is None
    assert len(built) == (2 if fits else 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_updates_take_pictures_from_the_device(settings: Settings, tmp_path: Path) -> None:
    settings = with_pictures(settings, tmp_path / "data", steps=24, eval_every=24)
    captured = train(settings, tmp_path / "captured")
    plain = train(replace(settings, training=replace(settings.training, capture=False)), tmp_path / "plain")
    torch.testing.assert_close(read_weights(captured), read_weights(plain), rtol=1e-4, atol=1e-6)


SERIES = np.random.default_rng(0).normal(size=(22, 40, 2)).cumsum(1)
FIT = {"d_model": 8, "d_state": 2, "epochs": 8, "batch_size": 8, "lr": 0.01, "random_state": 0}
DROPOUT = {"mamba": {"dropout": 0.1}}


def fit_estimator(case: str, device: str = "cuda") -> Any:
    """Return a fitted estimator whose blocks have dropout. The last batch of an epoch is smaller than the others."""
    if case == "classifier":
        return SSMClassifier("mamba", block_options=DROPOUT, device=device, **FIT).fit(SERIES, np.arange(22) % 2)
    if case == "regressor":
        return SSMRegressor("mamba", block_options=DROPOUT, device=device, **FIT).fit(
            SERIES, SERIES[:, :, 0].mean(1), sample_weight=np.arange(1.0, 23.0)
        )
    # The window is too long for a linear forecast, so that the blocks are trained for all epochs.
    model = SSMForecaster(4, 60, "mamba", block_options=DROPOUT, device=device, **FIT)
    return model.set_params(quantiles=(0.1, 0.9) if case == "quantiles" else None).fit(SERIES[:2].reshape(80, 2))


def record_replays(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list to which each training adds the number of its graphs and of their replays when it frees them."""
    recorded: list[tuple[int, int]] = []
    release = GraphedStep.release

    def record_and_release(step: GraphedStep) -> None:
        recorded.append((len(step._captures), step._n_replays))
        release(step)

    monkeypatch.setattr(GraphedStep, "release", record_and_release)
    return recorded


def capture_failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "CUDA graph" in message]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("case", ["classifier", "regressor", "forecaster", "quantiles"])
def test_captured_fits_of_estimators_have_the_losses_of_plain_fits(
    case: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each shape of a batch has its own graph; three updates of a shape are made before."""
    replays = record_replays(monkeypatch)
    captured = fit_estimator(case)
    assert capture_failures(caplog) == []
    assert len(replays) == (2 if case == "quantiles" else 1), "quantiles need another one, with a part held back"
    assert replays[-1] == (2, 8 * 3 - 2 * WARMUP_CALLS), "eight epochs of three updates"
    monkeypatch.setattr(Engine, "capture", lambda *_, **__: None)
    n_trainings = len(replays)
    plain = fit_estimator(case)
    assert len(replays) == n_trainings
    np.testing.assert_allclose(captured.loss_curve_, plain.loss_curve_, rtol=1e-3)
    predict = "predict_proba" if case == "classifier" else "predict"
    data = SERIES if case in ("classifier", "regressor") else SERIES[:2].reshape(80, 2)
    np.testing.assert_allclose(getattr(captured, predict)(data), getattr(plain, predict)(data), rtol=0.02, atol=0.02)


def fit_lengths(device: str) -> SSMRegressor:
    """Return a regressor of series of 8 to 40 steps with times, which stores the weights of the best epoch."""
    lengths = [40, 30, *range(8, 22), *range(8, 14)]
    X = [row[:length] for row, length in zip(SERIES, lengths, strict=True)]
    times = [np.arange(length) ** 1.1 for length in lengths]
    model = SSMRegressor("mamba", validation_fraction=0.2, device=device, **FIT)
    return model.set_params(batch_size=4, epochs=12, patience=12).fit(X, [row[:, 0].mean() for row in X], times)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_fit_to_series_of_different_lengths_has_the_losses_of_plain_fits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a GPU the series are padded to few lengths. On a CPU each batch is padded to its longest series."""
    replays = record_replays(monkeypatch)
    captured = fit_lengths("cuda")
    assert capture_failures(caplog) == []
    ((graphs, count),) = replays
    assert graphs > 1
    assert count > 12
    monkeypatch.setattr(Engine, "capture", lambda *_, **__: None)
    plain = fit_lengths("cuda")
    np.testing.assert_allclose(captured.loss_curve_, plain.loss_curve_, rtol=1e-3)
    curves = [[row["loss"] for row in model.validation_curve_ or ()] for model in (captured, plain)]
    assert len(curves[0]) == 12
    np.testing.assert_allclose(*curves, rtol=1e-2)
    np.testing.assert_allclose(fit_lengths("cpu").loss_curve_, plain.loss_curve_, rtol=1e-2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_fits_in_two_threads_have_the_losses_of_fits_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cases = ["classifier", "regressor"]
    alone = [fit_estimator(case).loss_curve_ for case in cases]
    replays = record_replays(monkeypatch)
    with ThreadPoolExecutor(2) as threads:
        together = list(threads.map(fit_estimator, cases))
    assert capture_failures(caplog) == []
    assert [graphs for graphs, _ in replays] == [2, 2]
    for model, expected in zip(together, alone, strict=True):
        np.testing.assert_allclose(model.loss_curve_, expected, rtol=1e-3)
