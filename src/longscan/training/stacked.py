"""Train several runs of one model in one process: their forward and backward passes run together under `torch.vmap`.

Each run has its own `Trainer` with schedule, data, logs, validations and checkpoints, and its folder is like that of a separate
run. Forward and backward passes and optimiser steps (`longscan.training.stacked_optimizer`) are computed for all runs together:
their parameters are stacked on a leading axis, the parameters of each model are views of the stacked ones, and the sum of the
losses is differentiated. As no model reads another one's parameters, the gradients are those of separate runs up to the rounding
of batched matrix products. On a GPU the kernels of small models leave most of the device unused, and one call for all models
takes little more time than one for a single model.

Runs that were resumed from different updates are first trained up to the same one, those that are furthest behind first: only
batches of the same step have the same number of examples, as the last batch of an epoch may be smaller.

If updates are captured and the training set of a task fits into memory (`Task.training_set`), the training sets of all runs are
stored on the GPU, and an update reads the indices of its examples: small models would otherwise wait for the host to make, stack
and copy a batch of each run. Runs with the same seed of the data read the same batches, which are made once. In float32 on a GPU,
`longscan.training.stacked_linear` computes the gradients of linear layers.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from longscan._errors import setting_error
from longscan.blocks import BatchNorm
from longscan.engine import GraphedStep, NonFiniteLossError, set_learning_rates
from longscan.models import SiameseModel
from longscan.tasks import Batch
from longscan.tasks.base import Split, rows_of_step
from longscan.training.batches import pad_batch
from longscan.training.evaluate import Scorer, Scores, evaluated_steps
from longscan.training.run import Run, build_model, is_run_folder
from longscan.training.settings import Settings
from longscan.training.stacked_linear import SplitLinear
from longscan.training.stacked_optimizer import StackedOptimizer
from longscan.training.trainer import (
    StepOutputs,
    Trainer,
    catch_signals,
    changed_settings,
    check_folder,
    is_over,
    open_accelerator,
)

MAX_RESIDENT_BYTES = 2**27  # largest training set of a run that is stored on the GPU
MAY_DIFFER = frozenset({"training.seed", "training.data_seed", "training.lr"})  # between runs that are trained together
CHECKPOINT_SHARE = 0.01  # largest fraction of the time for checkpoints at validations that are not the best so far


class StackableRun(NamedTuple):
    """One of the runs that are trained together.

    Attributes:
        settings: its settings, which differ from those of the other runs only in seeds and learning rates.
        folder: its folder; a run in it is resumed.
        command: the command in its result.
    """

    settings: Settings
    folder: Path
    command: str


def unstackable_reason(settings: Settings) -> str | None:
    """Return why runs of these settings cannot be trained together with other seeds, None if they can."""
    if settings.training.context > 1:
        return "training.context splits sequences over processes"
    if settings.training.shard:
        return "training.shard splits a model over processes"
    if settings.model.padding == "read":
        return "batches are padded to one length, which model.padding 'read' does not ignore"
    with torch.device("meta"):
        model = build_model(settings)
    if isinstance(model, SiameseModel):
        return "examples are pairs of sequences"
    for module in model.modules():
        if isinstance(module, nn.Dropout) and module.p:
            return "dropout uses one random generator for all runs of a process"
        if isinstance(module, BatchNorm):
            return "BatchNorm changes its statistics in the forward pass"
        if any(True for _ in module.buffers(recurse=False)):
            return f"all runs would read the buffers of {type(module).__name__} of the first one"
    if any(block.changes_length for block in model.stack):
        return "blocks that shorten sequences need batches of equal length"
    return None


def train_stacked(runs: Sequence[StackableRun]) -> list[Run]:
    """Train runs together, each from its last checkpoint or from the start, and test and report them; return all.

    A run that stops early, or whose loss is no longer finite, is closed, and the others continue. Validations that are not the
    best so far write a checkpoint only as often as `CHECKPOINT_SHARE` allows: small models validate every few seconds, one after
    another. The entry "stacked" of a result is the number of runs that began together, and "seconds" is the time of all of these.
    Raises SettingError for settings that cannot be met, KeyboardInterrupt after a checkpoint of each run if the process was asked
    to stop.
    """
    threads = torch.get_num_threads()
    with ExitStack() as exits:
        members = []
        for settings, folder, command in runs:
            if reason := unstackable_reason(settings):
                raise setting_error("runs", str(folder), f"runs that can be trained together ({reason})")
            for name, first, given in changed_settings(runs[0].settings, settings, MAY_DIFFER):
                if not name.startswith("task."):  # data may be split by the seed
                    raise setting_error(name, given, f"{first!r} as in {runs[0].folder}, whose run trains in the same process")
            resume = is_run_folder(folder)
            check_folder(folder, settings, resume=resume, overwrite=False)
            if not (resume and is_over(folder, settings)):
                accelerator = exits.enter_context(open_accelerator(settings.training, folder))
                trainer = Trainer(settings, folder, accelerator, command, resume=resume, progress=False, test=True)
                members.append(_Member(trainer))
        if runs[0].settings.training.threads:
            torch.set_num_threads(runs[0].settings.training.threads)
            exits.callback(torch.set_num_threads, threads)
        received = exits.enter_context(catch_signals())
        for member in members:
            exits.push(member.exits)
            member.open()
            member.trainer.result["stacked"] = len(members)
        while members := [member for member in members if not member.is_closed]:
            steps = sorted({member.step for member in members})
            behind = [member for member in members if member.step == steps[0]]
            _train_until_one_is_over(behind, received, steps[1] if len(steps) > 1 else None)
    return [Run(run.folder) for run in runs]


def _train_until_one_is_over(members: "list[_Member]", received: set[int], until: int | None) -> None:
    """Train runs that are at the same update until one of them is over, which is closed, or all have made `until` updates.

    Raises KeyboardInterrupt after checkpoints if a signal was received.
    """
    step = _StackedStep([member.trainer for member in members], [member.training_set() for member in members])
    with ExitStack() as exits:
        inputs: Iterator[Batch | Rows]
        if step.training_sets is not None:
            inputs = iter(step.next_rows, None)
        elif step.shares_batches:
            inputs = exits.enter_context(closing(members[0].trainer.training_batches()))
        else:
            inputs = map(stack_batches, zip(*(member.batches for member in members), strict=True))
        while members[0].step != until and not any(member.is_closed or member.trainer.is_over for member in members):
            if not received:
                _make_idle_steps(members, step, inputs, received, until)
            signals = set(received)  # the same for all runs, so that all save a checkpoint after this update
            for member, result in zip(members, step(next(inputs)), strict=True):
                member.end_step(result, signals)
            if signals:
                raise KeyboardInterrupt
    for member in members:
        if not member.is_closed and member.trainer.is_over:
            member.finish()


def _make_idle_steps(
    members: "list[_Member]",
    step: "_StackedStep",
    inputs: "Iterator[Batch | Rows]",
    received: set[int],
    until: int | None,
) -> None:
    """Make the updates after which no run has anything to do, up to the one before `until`, or until a signal is received.

    The host, which otherwise calls all runs after each update, would take longer than an update on the GPU.
    """
    count = min(member.trainer.idle_steps() for member in members)
    if until is not None:
        count = min(count, until - members[0].step - 1)
    for _ in range(count):
        step(next(inputs))
        for member in members:
            member.trainer.engine.step += 1
        if received:
            return


class _Member:
    """One of the trainers that train together, with its batches and the resources that it has open."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.exits, self.is_closed = trainer, ExitStack(), False
        trainer.checkpoint_share = CHECKPOINT_SHARE
        self.batches: Iterator[Batch] = iter(())

    @property
    def step(self) -> int:
        """The number of updates that the run has made."""
        return self.trainer.engine.step

    def open(self) -> None:
        """Restore the run and begin to make its batches."""
        self.batches = self.exits.enter_context(self.trainer.open())

    def training_set(self) -> Batch | None:
        """Return the training set if captured updates can take their examples from it on the GPU, else None."""
        training, settings = self.trainer.training, self.trainer.settings
        if not self.trainer.captures or self.trainer.accelerator.device.type != "cuda":
            return None
        if training.curriculum.start or training.late_lengths.share:
            return None
        task, seed = self.trainer.task, settings.data_seed
        return None if task.training_set_bytes(seed) > MAX_RESIDENT_BYTES else task.training_set(seed)

    def end_step(self, result: tuple[StepOutputs, Tensor, Tensor | None], signals: set[int]) -> None:
        """Pass the result of an update to the run, which ends as failed if its loss is not finite, and saves on signals."""
        self.trainer.received_signals = signals
        try:
            self.trainer.engine.end_step(*result)
        except NonFiniteLossError as error:
            self._close(error)
        except KeyboardInterrupt:
            if not signals:
                raise

    def finish(self) -> None:
        """Test the run and write its result."""
        try:
            self.trainer.engine.finish()
        except NonFiniteLossError as error:
            self._close(error)
        else:
            self._close(None)

    def _close(self, error: NonFiniteLossError | None) -> None:
        """Leave the context of the run, in which its result is written, also that of a failure."""
        self.is_closed = True
        self.exits.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)


class Rows(NamedTuple):
    """The tensors on the GPU that an update reads if the training sets are stored there.

    Attributes:
        numbers: (K, B) int64, the indices of the examples in the batch of each run.
        rates: (n_groups,), the learning rates of the parameter groups, block by block.
    """

    numbers: Tensor
    rates: Tensor


class Epoch(NamedTuple):
    """The orders of examples and the learning rates of all updates of an epoch, copied to the GPU together.

    Attributes:
        first_step: index of the epoch's first update.
        order: (K, N) int64, the indices of all examples of each run in the order of the epoch.
        rates: (n_updates, n_groups), the learning rates of each update.
    """

    first_step: int
    order: Tensor
    rates: Tensor


class _StackedStep:
    """The simultaneous update of several trainers.

    The parameters of the models become views of stacked ones, (K, ...) by name, which one `StackedOptimizer` changes.
    With `training.capture` on a CUDA device updates are captured as CUDA graphs.

    Args:
        trainers: the trainers, which have made the same number of updates.
        training_sets: the training set of each run, or None for runs that read batches.

    Attributes:
        training_sets: the training sets on the device of the models, as a batch of (K, N, ...), of which an update takes `Rows`.
            None if it takes a batch.
        shares_batches: whether an update takes one batch (B, ...) for all runs, which have the same seed of the data, instead of
            stacked ones (K, B, ...).
        splits_products: whether linear layers have the gradients of `SplitLinear`.
    """

    def __init__(self, trainers: Sequence[Trainer], training_sets: Sequence[Batch | None]) -> None:
        self.trainers = trainers
        first, self.device = trainers[0], trainers[0].accelerator.device
        self.own = [dict(trainer.model.named_parameters()) for trainer in trainers]
        self.parameters = {}
        for name, parameter in self.own[0].items():
            stacked = torch.stack([parameters[name].detach() for parameters in self.own])
            self.parameters[name] = stacked.requires_grad_(parameter.requires_grad)
            for parameters, values in zip(self.own, stacked.detach(), strict=True):
                parameters[name].data = values
        self.splits_products = self.device.type == "cuda" and first.training.precision == "float32"
        engines = [trainer.engine for trainer in trainers]
        optimizers, rates = [engine.optimizer for engine in engines], [trainer.training.lr for trainer in trainers]
        self.optimizer = StackedOptimizer(optimizers, self.own, self.parameters, first.training.clip or inf, rates)
        self._all_finite = torch.stack([engine.all_finite for engine in engines])
        for engine, is_finite in zip(engines, self._all_finite, strict=True):
            engine.all_finite = is_finite
        for trainer in trainers:
            trainer.score_validation = partial(self.validation_scores, trainer)
        self._scored_step, self._scores = -1, list[Scores]()
        self._step: Any = self.gradient_step
        if first.captures and self.device.type == "cuda":
            self._step = GraphedStep(self.gradient_step, self.device, required=bool(first.training.capture))
            for trainer in trainers:
                trainer.seconds_per_replay = self._step.seconds_per_replay

        self.training_sets: Batch | None = None
        self.shares_batches = len({(trainer.task, trainer.settings.data_seed) for trainer in trainers}) == 1
        if sets := [whole for whole in training_sets if whole is not None]:
            self.training_sets = stack_batches(sets).to(self.device)
            self._numbers_of_runs = torch.arange(len(trainers), device=self.device).unsqueeze(1)
            # All groups read their rates from one tensor, so that an update copies a single one.
            groups = [group for block in self.optimizer.blocks for group in block.adamw.param_groups]
            self._rates = torch.tensor([float(group["lr"]) for group in groups], device=self.device)
            for group, rate in zip(groups, self._rates, strict=True):
                group["lr"] = rate
            self.optimizer.share_learning_rates()
            self._epoch: Epoch | None = None

    def _set_learning_rates(self) -> None:
        """Give all parameter groups the learning rates of the next update."""
        for block, rate_of in zip(self.optimizer.blocks, self._schedules(), strict=True):
            set_learning_rates(block.adamw, partial(rate_of, self.trainers[0].engine.step))
        self.optimizer.share_learning_rates()

    def _schedules(self) -> list[Callable[[int, float], float]]:
        """Return for each block the function from an update and the scale of a group to its learning rate."""
        return [self.trainers[block.rows.start].engine.learning_rate for block in self.optimizer.blocks]

    def next_rows(self) -> Rows:
        """Return the indices of the examples of the next update, as `rows_of_step` returns them, and its learning rates."""
        first = self.trainers[0]  # the batches of the runs have the same sizes, and differ in the order of examples
        assert self.training_sets is not None
        batch_size, repeats = first.training.batch_size, first.training.batch_repeats
        steps = repeats * -(-self.training_sets.inputs.shape[1] // batch_size)  # of an epoch
        number, position = divmod(first.engine.step, steps)
        if self._epoch is None or self._epoch.first_step != number * steps:
            self._epoch = self._load_epoch(number, steps)
        start = position // repeats * batch_size
        return Rows(self._epoch.order[:, start : start + batch_size], self._epoch.rates[position])

    def _load_epoch(self, number: int, steps: int) -> Epoch:
        """Return an epoch of `steps` updates."""
        assert self.training_sets is not None
        size, first, start = self.training_sets.inputs.shape[1], self.trainers[0], number * steps
        orders = [rows_of_step(size, "train", number, size, trainer.settings.data_seed) for trainer in self.trainers]
        groups = [
            (rate_of, float(group.get("scale", 1.0)))
            for block, rate_of in zip(self.optimizer.blocks, self._schedules(), strict=True)
            for group in block.adamw.param_groups
        ]
        updates = range(start, min(start + steps, first.training.steps))
        rates = torch.tensor([[rate_of(step, scale) for rate_of, scale in groups] for step in updates], dtype=self._rates.dtype)
        order = torch.from_numpy(np.stack(orders))
        if self.device.type == "cuda":  # copies from page-locked memory are asynchronous
            order, rates = order.pin_memory(), rates.pin_memory()
        return Epoch(start, order.to(self.device, non_blocking=True), rates.to(self.device, non_blocking=True))

    def __call__(self, batch: Batch | Rows) -> list[tuple[StepOutputs, Tensor, Tensor | None]]:
        """Make an update of each model with its part of a batch; return outputs, loss and gradient norm for each engine."""
        if isinstance(batch, Batch):
            self._set_learning_rates()
            # The copies of captured updates are asynchronous if they start from page-locked memory.
            batch = batch.pin_memory() if isinstance(self._step, GraphedStep) else batch.to(self.device)
        results: list[tuple[StepOutputs, Tensor, Tensor | None]] = self._step(batch)
        return results

    def validation_scores(self, trainer: Trainer) -> Scores:
        """Return the scores of one run on its validation split.

        The runs validate at the same updates, and the scores of all are computed when the first one asks for its own.
        """
        if self._scored_step != trainer.engine.step:
            self._scored_step, self._scores = trainer.engine.step, self._score_all("valid")
        return self._scores[self.trainers.index(trainer)]

    @torch.no_grad()
    def _score_all(self, split: Split) -> list[Scores]:
        """Return the scores of each model on a split, as `evaluate` returns them for one model."""
        first = self.trainers[0]
        batch_size, model = first.training.batch_size, first.model
        scorers = [Scorer(trainer.task, split) for trainer in self.trainers]
        was_training = model.training
        model.eval()
        try:
            for step in evaluated_steps(first.task, split, batch_size, first.training.max_batches(split)):
                batches = [trainer.task.batch(split, step, batch_size, trainer.settings.data_seed) for trainer in self.trainers]
                batch = stack_batches(batches)
                if self.device.type == "cuda":
                    batch = batch.pin_memory()
                on_device = batch.to(self.device)
                with first.accelerator.autocast():
                    outputs = torch.vmap(self._forward)(self.parameters, _model_inputs(on_device))
                for k, (scorer, output) in enumerate(zip(scorers, outputs.unbind(), strict=True)):
                    scorer.add(output, _select_run(batch, k), _select_run(on_device, k))
        finally:
            model.train(was_training)
        return [scorer.scores() for scorer in scorers]

    def gradient_step(self, batch: Batch | Rows) -> list[tuple[StepOutputs, Tensor, Tensor | None]]:
        """Make the forward and backward pass and the optimiser step of all models."""
        if isinstance(batch, Rows):
            assert self.training_sets is not None
            self._rates.copy_(batch.rates)
            chosen = (self._numbers_of_runs, batch.numbers)
            batch = Batch(*(None if part is None else part[chosen] for part in self.training_sets))  # type: ignore[arg-type]
        elif self.shares_batches:
            count = len(self.trainers)
            batch = Batch(*(None if part is None else part.expand(count, *part.shape).contiguous() for part in batch))  # type: ignore[arg-type]
        for stacked in self.parameters.values():
            stacked.grad = None
        with self.trainers[0].accelerator.autocast(), SplitLinear() if self.splits_products else nullcontext():
            outputs = torch.vmap(self._forward)(self.parameters, _model_inputs(batch))
        losses, steps = [], []
        # unbind, not outputs[k]: its backward stacks the gradients once, that of an index fills a whole tensor for each model
        for k, (trainer, output) in enumerate(zip(self.trainers, outputs.unbind(), strict=True)):
            rows = _select_run(batch, k)
            training = trainer.training
            losses.append(trainer.task.loss(output, rows, training.loss_reduction, training.label_smoothing))
            steps.append(StepOutputs(output.detach(), rows, 1.0))
        together = torch.stack(losses)
        with torch.autograd.set_multithreading_enabled(False):  # as in Engine.gradient_step
            together.sum().backward()  # type: ignore[no-untyped-call]
        norms = self.optimizer.step()
        self._all_finite &= torch.isfinite(together.detach()) & torch.isfinite(norms)
        return list(zip(steps, together.detach(), norms, strict=True))

    def _forward(self, parameters: dict[str, Tensor], given: dict[str, Tensor]) -> Tensor:
        """Return the output of the model with other parameters."""
        output: Tensor = functional_call(self.trainers[0].model, parameters, (), given)
        return output


def _model_inputs(batch: Batch) -> dict[str, Tensor]:
    """Return the tensors of a batch that models read, by the names of their arguments."""
    return {name: x for name in ("inputs", "elapsed", "valid", "seq_idx") if (x := getattr(batch, name)) is not None}


def _select_run(batch: Batch, k: int) -> Batch:
    """Return the batch of run number `k` in a stacked batch."""
    return Batch(*(None if tensor is None else tensor[k] for tensor in batch))  # type: ignore[arg-type]


def stack_batches(batches: Sequence[Batch]) -> Batch:
    """Stack batches on a leading axis; shorter ones are padded on the right by invalid steps."""
    width = max(batch.inputs.shape[1] for batch in batches)
    if any(batch.inputs.shape[1] < width for batch in batches) or len({batch.valid is None for batch in batches}) > 1:
        batches = [pad_batch(batch, width) for batch in batches]
    parts = zip(*batches, strict=True)
    return Batch(*(None if all(x is None for x in part) else torch.stack(part) for part in parts))  # type: ignore[arg-type]
