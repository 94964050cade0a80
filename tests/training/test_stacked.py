"""Runs that are trained together: their folders are those of separate runs."""

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from longscan.engine import Callback, Engine, StepResult
from longscan.tasks import TASKS, Batch, classification
from longscan.training import Run, Settings, stacked_linear, train
from longscan.training.evaluate import Scores, evaluate
from longscan.training.run import build_model
from longscan.training.settings import CurriculumSettings, ModelSettings, SettingError, TrainingSettings
from longscan.training.stacked import StackableRun, _Member, _StackedStep, stack_batches, train_stacked, unstackable_reason
from longscan.training.trainer import Trainer
from made_up import MADE_UP

PARITY = {"suite": "aussm", "train_lengths": (3, 12), "eval_lengths": (13, 20), "valid_size": 16, "test_size": 16}
SERIES = {"train_size": 16, "valid_size": 8, "test_size": 8, "frames": 12}
TRAINING = {"steps": 12, "batch_size": 8, "eval_every": 4, "log_every": 1, "lr": 0.01, "device": "cpu", "trackers": []}


@pytest.fixture(autouse=True)
def _few_files(request: pytest.FixtureRequest) -> None:
    """Only the runs of one test write their examples of answers."""
    if request.function is not test_runs_are_those_of_separate_training:
        request.getfixturevalue("no_examples")


def settings(task: Any, spec: str, **training: Any) -> Settings:
    return Settings(
        task=task,
        model=ModelSettings(spec=spec, d_model=8, d_state=4, block_options={"s7": {"continuous": True}} if "s7" in spec else {}),
        training=TrainingSettings(**{**TRAINING, **training}),
    )


CASES = {
    "tokens": settings(TASKS["parity"](**PARITY), "ma", select="best", weight_decay=0.1, batch_repeats=2, best_by="loss"),
    "curriculum": settings(
        TASKS["parity"](**PARITY), "aussm", curriculum=CurriculumSettings(start=4, end=12, every=2, threshold=0.3), average=0.9
    ),
    "series": settings(TASKS["pendulum"](**SERIES), "s5 s7", schedule="cosine", select="best"),
    "time channel": settings(TASKS["pendulum"](**SERIES, elapsed="channel"), "gru mamba", clip=0.1),
    "bfloat16": settings(TASKS["pendulum"](**SERIES), "mamba", precision="bfloat16"),
}


def runs_of(case: Settings, folder: Path, seeds: int = 2) -> list[StackableRun]:
    return [
        StackableRun(replace(case, training=replace(case.training, seed=seed)), folder / str(seed), "a command")
        for seed in range(seeds)
    ]


def with_last_rate(runs: list[StackableRun], lr: float) -> list[StackableRun]:
    """Return runs of which the last one has another learning rate."""
    *others, last = runs
    return [*others, last._replace(settings=replace(last.settings, training=replace(last.settings.training, lr=lr)))]


def rows_of(run: Run) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def assert_close(found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    """Numbers are the same within a tolerance, all else is equal."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == (pytest.approx(value, rel=tolerance, abs=tolerance) if isinstance(value, float) else value), name


def assert_same_run(stacked: Run, separate: Run, tolerance: float) -> None:
    """Settings, logs, results, weights and optimisers are the same, numbers within a tolerance."""
    assert stacked.settings == separate.settings
    for row, expected in zip(rows_of(stacked), rows_of(separate), strict=True):
        assert_close(row, expected, tolerance)
    measured = {"seconds", "replayed_updates_per_second"}
    unlike = measured | {"stacked", "date", "commit", "confusion", "by_length", "test", "valid", "versions"}
    results = [{name: value for name, value in (run.result or {}).items() if name not in unlike} for run in (stacked, separate)]
    assert_close(results[0], results[1], tolerance)
    for name in sorted(path.relative_to(separate.folder) for path in separate.folder.glob("checkpoints/**/*.safetensors")):
        tensors, expected_tensors = load_file(stacked.folder / name), load_file(separate.folder / name)
        assert tensors.keys() == expected_tensors.keys()
        for key, expected_tensor in expected_tensors.items():
            torch.testing.assert_close(tensors[key], expected_tensor, rtol=tolerance, atol=tolerance)


class StopAt(Callback):
    """Stop a training after a number of updates."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        engine.stop_requested |= engine.step == self.step


@pytest.mark.parametrize("case", CASES, ids=str)
def test_runs_are_those_of_separate_training(case: str, tmp_path: Path) -> None:
    """Matrix products in batches round differently, which AdamW's first steps amplify where a gradient is nearly zero."""
    runs = runs_of(CASES[case], tmp_path / "together")
    for stacked, run in zip(train_stacked(runs), runs, strict=True):
        separate = train(run.settings, tmp_path / "separate" / run.folder.name, command="a command")
        assert_same_run(stacked, separate, 5e-2 if case == "bfloat16" else 1e-3)
        assert [(run.result or {}).get("stacked") for run in (stacked, separate)] == [2, None]
    assert rows_of(Run(runs[0].folder)) != rows_of(Run(runs[1].folder))


def test_one_update_has_the_gradients_of_separate_training(tmp_path: Path) -> None:
    """The logged norms of the first gradients, before anything is amplified, agree to the rounding of float32."""
    runs = runs_of(CASES["series"], tmp_path / "together", 3)
    for stacked, run in zip(train_stacked(runs), runs, strict=True):
        first, expected = (rows_of(one)[0] for one in (stacked, train(run.settings, tmp_path / "separate" / run.folder.name)))
        assert first["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
        assert first["loss"] == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("capture", [False, True])
def test_runs_on_a_gpu_are_those_of_separate_training(tmp_path: Path, capture: bool) -> None:
    """Graphs are captured at the fourth update, so that most of these updates are replayed."""
    case = settings(TASKS["pendulum"](**SERIES), "s7 mamba", device="cuda", capture=capture, average=0.9)
    runs = runs_of(case, tmp_path / "together", 3)
    for stacked, run in zip(train_stacked(runs), runs, strict=True):
        separate = train(run.settings, tmp_path / "separate" / run.folder.name, command="a command")
        assert_same_run(stacked, separate, 1e-2)
        rates = [(one.result or {}).get("replayed_updates_per_second", 0.0) for one in (stacked, separate)]
        assert [rate > 0 for rate in rates] == [capture, capture]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_updates_on_a_gpu_take_their_examples_from_the_training_sets(tmp_path: Path) -> None:
    """The last batch of an epoch is smaller and has a graph of its own."""
    task = TASKS["parity"](**PARITY | {"data": "samples", "train_size": 20})
    case = settings(task, "ma", steps=30, lr=1e-3, warmup=3, device="cuda", capture=True)
    runs = runs_of(case, tmp_path / "together", 3)
    for stacked, run in zip(train_stacked(runs), runs, strict=True):
        assert_same_run(stacked, train(run.settings, tmp_path / "separate" / run.folder.name, command="a command"), 1e-2)


class NoReads(TorchDispatchMode):
    """Raise an error where a step would read a value back to the host, which a CUDA graph does not allow."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        indices = args[1] if "index" in str(func) and len(args) > 1 and isinstance(args[1], list | tuple) else ()
        by_mask = any(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in indices)
        if by_mask or func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            raise AssertionError(f"{func} depends on values")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("is_in_graph", [True, False])
def test_captured_update_of_a_task_that_scores_some_steps_reads_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in_graph: bool
) -> None:
    case = settings(TASKS["parity"](**PARITY), "ma am")
    case = replace(case, model=replace(case.model, backend="eager"), training=replace(case.training, clip=1.0))
    trainers = [
        Trainer(run.settings, run.folder, Accelerator(cpu=True), "a command", resume=False, progress=False, test=True)
        for run in runs_of(case, tmp_path)
    ]
    step = _StackedStep(trainers, [None] * len(trainers))
    batch = stack_batches([trainer.task.batch("train", 0, 8, number) for number, trainer in enumerate(trainers)])
    step(batch)  # the optimiser creates its state
    monkeypatch.setattr(classification, "is_captured", lambda: is_in_graph)
    with NoReads(), nullcontext() if is_in_graph else pytest.raises(AssertionError, match="depends on values"):
        step(batch)


def test_updates_that_read_row_numbers_are_those_of_separate_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where captured updates take their examples from the training sets, and linear layers have split gradients.

    The last batch of an epoch is smaller, the rate has a warm-up and another value in one run, and one parameter group has a rate
    of its own.
    """
    monkeypatch.setattr(_Member, "training_set", lambda one: one.trainer.task.training_set(one.trainer.settings.data_seed))
    monkeypatch.setattr(_StackedStep, "splits_products", property(lambda _: True, lambda *_: None), raising=False)
    monkeypatch.setattr(stacked_linear, "SHORTEST_PIECE", 4)
    made: list[int] = []

    def record_sizes(batches: Sequence[Batch]) -> Batch:
        made.append(len(batches[0].inputs))
        return stack_batches(batches)

    monkeypatch.setattr("longscan.training.stacked.stack_batches", record_sizes)
    task = TASKS["parity"](**PARITY | {"data": "samples", "train_size": 20})
    case = settings(task, "ma", steps=10, lr=1e-3, warmup=3, lr_scale={"ssm": 0.5}, batch_repeats=2)
    runs = with_last_rate(runs_of(case, tmp_path / "together"), 3e-3)
    for stacked, run in zip(train_stacked(runs), runs, strict=True):
        assert_same_run(stacked, train(run.settings, tmp_path / "separate" / run.folder.name, command="a command"), 1e-3)
    assert made == [20, *6 * [8]]  # the training sets, no batch of them, and two batches of each of three validations


def test_runs_with_one_seed_of_the_data_read_batches_that_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run fails after five updates, and the others continue with the sixth batch. Each batch is used twice in a row.

    The last run has another learning rate.
    """
    task = TASKS["parity"](**PARITY)
    case = settings(task, "ma", steps=12, lr=1e-3, log_every=5, eval_every=6, batch_repeats=2, data_seed=7, prefetch=0)
    runs = with_last_rate(runs_of(case, tmp_path / "together", 3), 3e-3)
    made: list[int] = []
    batch, end_step = type(task).batch, Engine.end_step
    engines: list[Engine] = []

    def record(task: Any, split: Any, step: int, size: int, seed: int = 0) -> Batch:
        if split == "train":
            made.append(step)
        return batch(task, split, step, size, seed)

    def end(engine: Engine, *results: Any) -> Any:
        engines.extend([engine] * (engine not in engines))
        if engine is engines[0] and engine.step == 4:
            engine.all_finite.zero_()
        return end_step(engine, *results)

    with monkeypatch.context() as patch:
        patch.setattr(type(task), "batch", record)
        patch.setattr(Engine, "end_step", end)
        results = [run.result or {} for run in train_stacked(runs)]
    assert [(result["status"], result["steps"]) for result in results] == [("failed", 5), ("finished", 12), ("finished", 12)]
    first = [0] * len(runs)  # which each run makes to check its settings
    assert made == [*first, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    for run in runs[1:]:
        separate = train(run.settings, tmp_path / "separate" / run.folder.name, command="a command")
        assert_same_run(Run(run.folder), separate, 1e-3)


def test_runs_are_called_only_after_updates_with_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates that read row numbers are made in a row up to the next log, validation or checkpoint of the runs."""
    monkeypatch.setattr(_Member, "training_set", lambda one: one.trainer.task.training_set(one.trainer.settings.data_seed))
    ended: list[int] = []
    end_step: Any = Engine.end_step

    def end(engine: Engine, *results: Any) -> Any:
        ended.append(engine.step + 1)
        return end_step(engine, *results)

    task = TASKS["parity"](**PARITY | {"data": "samples", "train_size": 20})
    case = settings(task, "ma", steps=17, lr=1e-3, log_every=7, eval_every=5, checkpoint_every=12, select="best")
    runs = runs_of(case, tmp_path / "together")
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "end_step", end)
        train_stacked(runs)
    assert ended == [step for step in (1, 5, 7, 10, 12, 14, 15, 17) for _ in runs]
    for run in runs:
        separate = train(run.settings, tmp_path / "separate" / run.folder.name, command="a command")
        assert_same_run(Run(run.folder), separate, 1e-3)


def test_runs_catch_up_by_updates_without_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run is at update 4, at which the other one, which makes these updates alone, has nothing to do."""
    monkeypatch.setattr(_Member, "training_set", lambda one: one.trainer.task.training_set(one.trainer.settings.data_seed))
    task = TASKS["parity"](**PARITY | {"data": "samples", "train_size": 20})
    runs = runs_of(settings(task, "ma", steps=10, lr=1e-3, log_every=9, eval_every=9, checkpoint_every=9), tmp_path / "together")
    saving = replace(runs[0].settings, training=replace(runs[0].settings.training, checkpoint_every=4))
    train(saving, runs[0].folder, command="a command", callbacks=[StopAt(4)])
    (runs[0].folder / "result.json").unlink()
    sizes: list[int] = []
    gradient_step: Any = _StackedStep.gradient_step

    def record(step: _StackedStep, batch: Any) -> Any:
        sizes.append(len(step.trainers))
        return gradient_step(step, batch)

    monkeypatch.setattr(_StackedStep, "gradient_step", record)
    train_stacked(runs)
    assert sizes == [1] * 4 + [2] * 6


def test_validations_of_all_runs_are_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`evaluate`, which runs one model, scores the test splits alone."""
    splits: list[str] = []

    def record(model: Any, task: Any, split: str, **options: Any) -> Scores:
        splits.append(split)
        return evaluate(model, task, split, **options)

    monkeypatch.setattr("longscan.training.trainer.evaluate", record)
    train_stacked(runs_of(settings(TASKS["parity"](**PARITY), "ma"), tmp_path))
    assert splits == ["test", "test"]


def test_stacks_save_few_checkpoints_that_are_not_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If checkpoints may take a billionth of the time, only those of the first, best (2) and last validation are written."""
    saved: list[tuple[int, int]] = []
    save: Any = Trainer.save

    def record(trainer: Trainer, name: str) -> None:
        if name == "last":
            saved.append((trainer.training.seed, trainer.engine.step))
        save(trainer, name)

    monkeypatch.setattr(Trainer, "save", record)
    monkeypatch.setattr(Trainer, "_error", lambda trainer, _: (trainer.engine.step != 2, 0.0))
    task = TASKS["parity"](**PARITY)
    case = settings(task, "m", steps=10, eval_every=1, log_every=5)
    for share, steps in ((1e-9, [1, 2, 10]), (1.0, list(range(1, 11)))):
        monkeypatch.setattr("longscan.training.stacked.CHECKPOINT_SHARE", share)
        saved.clear()
        train_stacked(runs_of(case, tmp_path / str(share), 1))
        assert [step for _, step in saved] == steps


def test_runs_continue_after_a_signal(tmp_path: Path) -> None:
    """On SIGTERM all runs save a checkpoint of the same update, from which they continue, together or alone."""
    case = settings(TASKS["parity"](**PARITY), "ma", steps=60, eval_every=30, log_every=10, lr=1e-4)
    runs = runs_of(case, tmp_path / "together")

    def terminate() -> None:
        while not (runs[1].folder / "metrics.jsonl").exists() or not rows_of(Run(runs[1].folder)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        train_stacked(runs)
    thread.join()
    states = [json.loads((run.folder / "checkpoints/last/state.json").read_text()) for run in runs]
    assert 0 < states[0]["step"] == states[1]["step"] < 60
    assert not any((run.folder / "result.json").exists() for run in runs)
    train(runs[0].settings, runs[0].folder, resume=True, command="a command")
    train_stacked(runs)
    for run in runs:
        separate = train(run.settings, tmp_path / "separate" / run.folder.name, command="a command")
        assert_same_run(Run(run.folder), separate, 1e-3)


def test_runs_at_different_updates_catch_up_before_they_train_together(tmp_path: Path) -> None:
    """The last batch of an epoch is smaller, so that the batches of updates 5 and 1 could not be stacked."""
    case = settings(TASKS["pendulum"](**{**SERIES, "train_size": 20}), "s5", schedule="cosine", eval_every=2, steps=10)
    runs = runs_of(case, tmp_path / "together", 3)
    for run, step in zip(runs, (4, 10, 0), strict=True):
        if step:
            train(run.settings, run.folder, command="a command", callbacks=[StopAt(step)])
            (run.folder / "result.json").unlink()
    for stacked, run in zip(train_stacked(runs), runs, strict=True):
        assert_same_run(stacked, train(run.settings, tmp_path / "separate" / run.folder.name, command="a command"), 1e-3)


def test_a_run_that_ends_early_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run fails in its loss and one stops early; the third makes all updates."""
    end_step: Any = Engine.end_step
    runs = runs_of(CASES["tokens"], tmp_path, 3)
    engines: list[Engine] = []

    def end(engine: Engine, outputs: Any, loss: torch.Tensor, norm: torch.Tensor | None) -> Any:
        if engine not in engines:
            engines.append(engine)
        if engines.index(engine) == 0 and engine.step == 5:
            engine.all_finite.zero_()
        if engines.index(engine) == 1 and engine.step == 7:
            engine.stop_requested = True
        return end_step(engine, outputs, loss, norm)

    monkeypatch.setattr(Engine, "end_step", end)
    results = [run.result or {} for run in train_stacked(runs)]
    assert [(result["status"], result["steps"]) for result in results] == [("failed", 6), ("finished", 8), ("finished", 12)]
    monkeypatch.undo()
    separate = train(runs[2].settings, tmp_path / "separate", command="a command")
    assert_same_run(Run(runs[2].folder), separate, 1e-3)
    before = (runs[2].folder / "result.json").read_bytes()
    train_stacked(runs)
    assert (runs[2].folder / "result.json").read_bytes() == before, "a run that is over is left as it is"


def test_what_cannot_be_trained_together(tmp_path: Path) -> None:
    case = CASES["series"]
    for reason, model in {
        "dropout": ModelSettings(spec="s5", block_options={"s5": {"dropout": 0.1}}),
        "BatchNorm": ModelSettings(spec="s5", norm="batch"),
        "shorten": ModelSettings(spec="s5", block_options={"s5": {"stride": 2}}),
        "padding": ModelSettings(spec="s5", padding="read"),
    }.items():
        unlike = replace(case, model=model)
        assert reason in (unstackable_reason(unlike) or "")
        with pytest.raises(SettingError, match=rf"`runs` must be runs that can be trained together \(.*{reason}"):
            train_stacked(runs_of(unlike, tmp_path))
    assert unstackable_reason(case) is None
    first, second = runs_of(case, tmp_path)
    slower = second._replace(settings=replace(second.settings, training=replace(second.settings.training, precision="bfloat16")))
    with pytest.raises(SettingError, match=r"`training\.precision` must be 'float32' as in .*, whose run trains in the same"):
        train_stacked([first, slower])


def test_models_with_buffers_are_not_trained_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer may draw them from the seed, and the pass of all models would read those of the first one."""

    def build(case: Settings) -> Any:
        model = build_model(case)
        model.head.register_buffer("noise", torch.randn(3))
        return model

    monkeypatch.setattr("longscan.training.stacked.build_model", build)
    assert "would read the buffers of" in (unstackable_reason(CASES["series"]) or "")


def test_an_error_in_a_validation_leaves_the_mode_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    score_all: Any = _StackedStep._score_all
    modes: list[bool] = []

    def fail(*_: Any) -> None:
        raise RuntimeError("no scores")

    def score(step: _StackedStep, split: Any) -> Any:
        try:
            return score_all(step, split)
        finally:
            modes.append(step.trainers[0].model.training)

    monkeypatch.setattr(_StackedStep, "_score_all", score)
    monkeypatch.setattr("longscan.training.stacked.Scorer.add", fail)
    with pytest.raises(RuntimeError, match="no scores"):
        train_stacked(runs_of(CASES["series"], tmp_path))
    assert modes == [True]


def test_pairs_of_sequences_are_not_trained_together(tmp_path: Path) -> None:
    task = TASKS["lra_retrieval"](layout="pair", **MADE_UP["lra_retrieval"](tmp_path))
    pairs = Settings(task=task, model=ModelSettings(spec="mamba", d_model=4, head="mlp"), training=TrainingSettings())
    assert unstackable_reason(pairs) == "examples are pairs of sequences"


def test_shorter_batches_are_padded() -> None:
    task = TASKS["parity"](**PARITY)
    short, long = task.at_length(4).batch("train", 0, 8), task.at_length(12).batch("train", 1, 8)
    stacked = stack_batches([short, long])
    length = short.inputs.shape[1]
    assert stacked.inputs.shape == (2, *long.inputs.shape)
    assert torch.equal(stacked.inputs[0, :, :length], short.inputs)
    assert not stacked.valid[0, :, length:].any()
    assert not stacked.loss_mask[0, :, length:].any()
    assert torch.equal(stacked.valid[1], long.valid)


def test_class_probabilities_are_not_padded_even_if_there_are_as_many_classes_as_steps() -> None:
    batches = [Batch(torch.zeros(2, length, dtype=torch.int64), torch.full((2, 4), 0.25)) for length in (4, 6)]
    stacked = stack_batches(batches)
    assert stacked.targets.shape == (2, 2, 4)
    assert stacked.valid.sum((1, 2)).tolist() == [8, 12]


def test_batches_with_and_without_padding_are_stacked() -> None:
    valid = torch.tensor([[True, True, False]])
    first, second = Batch(torch.zeros(1, 3, 1)), Batch(torch.zeros(1, 3, 1), valid=valid)
    for batches, expected in (((first, second), [3, 2]), ((second, first), [2, 3])):
        assert stack_batches(batches).valid.sum((1, 2)).tolist() == expected
    with pytest.raises(TypeError):
        stack_batches([first, first._replace(elapsed=torch.ones(1, 3))])
