"""The training of a run: `train` checks the folder and the device, `Trainer` makes the steps, validations and checkpoints.

A run can be killed at any moment and resumed with the same result. All that the rest of a run depends on is in checkpoints/last:
weights, optimiser, average, step, states of the random generators, the curriculum's length, the best validation. Batches and
learning rates are functions of the step. A resumed run first removes the rows of the logs that follow the checkpoint's step.
"""

import json
import logging
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence, Set
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import yaml
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, ProjectConfiguration, gather_object
from torch import Tensor, distributed, nn
from torch.optim import AdamW

import longscan.report
from longscan._errors import SettingError, names_argument, one_line, setting_error
from longscan._files import checked_path, lock_file, write_text
from longscan._types import checked_value
from longscan.blocks import BatchNorm
from longscan.distributed import watch_processes
from longscan.engine import Callback, Engine, NonFiniteLossError, Patience, StepResult, WeightAverage, copy_weights
from longscan.models.roles import optimizer_groups
from longscan.models.siamese import SiameseModel
from longscan.ops.dispatch import NATIVE
from longscan.tasks import Batch
from longscan.tasks.base import Split, rows_of_step
from longscan.training.batches import (
    LengthSchedule,
    RowNumbers,
    Share,
    SharedBatch,
    prefetch_batches,
    share_of,
    widen_batches,
)
from longscan.training.checkpoint import (
    find_checkpoint,
    gather_tensors,
    generator_states,
    optimizer_tensors,
    read_checkpoint,
    read_tensors,
    restore_generators,
    restore_optimizer,
    split_like,
    write_checkpoint,
    write_tensors,
)
from longscan.training.context import PiecePredictor, average_gradients, build_group, check_model
from longscan.training.evaluate import Scores, distributed_available, evaluate, finite_or_none, predict, symbol_angles
from longscan.training.examples import find_examples
from longscan.training.logs import Row, RunLog, TrackerLog, build_trackers, read_rows
from longscan.training.parsing import with_section
from longscan.training.processes import stop_signals
from longscan.training.progress import ProgressBar
from longscan.training.records import write_baselines
from longscan.training.run import (
    SETTINGS,
    Run,
    build_model,
    check_out,
    clear_run,
    describe_run,
    first_model,
    is_run_folder,
    load_weights,
)
from longscan.training.settings import ModelSettings, Settings, TrainingSettings, check_same_size
from longscan.training.task_checks import check_constant, check_task

if TYPE_CHECKING:
    from longscan.models import SequenceModel
    from longscan.training.run import TrainedModel

# Settings that a resumed run may be given with other values.
MAY_CHANGE = frozenset(
    f"training.{name}"
    for name in ("steps", "checkpoint_every", "device", "threads", "prefetch", "capture", "shard", "context", "trackers")
)
log = logging.getLogger("longscan")
MAX_RESIDENT_BYTES = 2**30  # of a training set that the device holds
# Names in checkpoints of version 0.1 -> names since.
RENAMED = {"longest": "max_length", "waited": "patience_used", "solved": "solved_evaluations", "averaged": "n_averaged"}


def train(
    settings: Settings,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    command: str | None = None,
    test: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train a model, test it and write a report; return the run, whose folder is `out`.

    Args:
        settings: everything that determines the result.
        out: folder of the run, created if needed.
        resume: continue from the last checkpoint in `out`, or from the start if the run was killed before its first. The settings
            must be those of the run, except for steps (at least the number made), checkpoint_every, device, threads, prefetch,
            capture, shard, context and trackers. A run that has ended is not changed.
        overwrite: remove the run in `out`, if there is one.
        progress: show a progress bar (in a terminal) or a line for each validation on stderr.
        command: what result.json gives as the command; None: the command line of this process.
        test: score the test split at the end. A search does not; result.json then has only the validation scores.
        callbacks: called after those of the package, after each step and at the end. Their state is not saved in checkpoints.

    The run's `result["status"]` is "finished", or "failed" if the loss stopped being finite. Raises SettingError for settings
    that cannot be met and callbacks that are none, TypeError naming another argument of another kind, KeyboardInterrupt after a
    checkpoint if the process was asked to stop (SIGINT, SIGTERM, SIGHUP).
    """
    if not isinstance(settings, Settings):
        raise TypeError(f"`settings` must be Settings, such as of parse_settings, got a {type(settings).__name__}")
    folder, callbacks = checked_path("out", out), checked_value(callbacks, Sequence[Callback], "callbacks")
    for setting in ("start_from", "start_from_reverse"):
        source = getattr(settings.training, setting)
        if overwrite and source is not None and Path(source).resolve().is_relative_to(folder.resolve()):
            raise setting_error(f"training.{setting}", source, "a folder that stays, not the run that is overwritten")
    check_folder(folder, settings, resume=resume, overwrite=overwrite)
    if resume and is_over(folder, settings):
        longscan.report.run_report(folder)
        return Run(folder)
    threads = torch.get_num_threads()
    if settings.training.threads:
        torch.set_num_threads(settings.training.threads)
    try:
        with open_accelerator(settings.training, folder) as accelerator:
            command = command or shlex.join(sys.argv)
            trainer = Trainer(settings, folder, accelerator, command, resume=resume, progress=progress, test=test)
            in_use = setting_error("--out", str(folder), "a folder in which no other process trains")
            with lock_file(folder / "run.lock", in_use) if accelerator.is_main_process else nullcontext():
                if accelerator.is_main_process:  # again: another process may have trained here since the first time
                    check_folder(folder, settings, resume=resume, overwrite=overwrite)
                if overwrite and not resume:  # after all checks that may raise
                    if accelerator.is_main_process and is_run_folder(folder):
                        clear_run(folder)
                    accelerator.wait_for_everyone()
                trainer.run(callbacks)
    finally:
        torch.set_num_threads(threads)
    return Run(folder)


def check_folder(folder: Path, settings: Settings, *, resume: bool, overwrite: bool) -> None:
    """Raise SettingError if the folder cannot be written, or contains a run that may not be overwritten or has other settings."""
    check_out(folder)
    if resume:
        run = Run(folder)
        check_same_size(run.settings.about.quick, settings.about.quick, folder, "run")
        for name, stored, given in changed_settings(run.settings, settings, MAY_CHANGE):
            raise setting_error(name, given, f"{stored!r} with --resume, as in {folder}")
        made = run.steps_made()
        if settings.training.steps < made:
            needed = f"at least {made} with --resume, the steps that the run in {folder} has made"
            raise setting_error("training.steps", settings.training.steps, needed)
    elif is_run_folder(folder) and not overwrite:
        raise SettingError(f"`--out` must be a directory without a run, unless --resume or --overwrite is given, got {folder}")


def changed_settings(stored: Settings, given: Settings, may_change: Set[str]) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, stored and given value of each setting of task, model and training that differs and must not change."""
    before, after = stored.as_dict(), given.as_dict()
    for section in ("task", "model", "training"):
        for name, value in before[section].items():
            if f"{section}.{name}" not in may_change and after[section].get(name) != value:
                yield f"{section}.{name}", value, after[section].get(name)


def is_over(folder: Path, settings: Settings) -> bool:
    """Return whether a run has ended, so that training it with these settings would make no more steps."""
    result = Run(folder).result
    if result is None:
        return False
    return result["status"] == "failed" or result["stopped_early"] or result["steps"] >= settings.training.steps


@contextmanager
def open_accelerator(training: TrainingSettings, folder: Path) -> Iterator[Accelerator]:
    """Yield an `Accelerator` for device, precision, processes and trackers. A single process resets its global state afterwards.

    Several processes stop if one of them ends inside the `with` statement.
    """
    if training.device == "cuda" and not torch.cuda.is_available():
        raise setting_error("training.device", "cuda", "cpu or auto, as torch finds no CUDA device here")
    if training.device == "mps" and not torch.backends.mps.is_available():
        raise setting_error("training.device", "mps", "cpu or auto, as torch finds no Apple GPU here")
    accelerator = Accelerator(
        # Without an accelerator, too: otherwise accelerate does not connect the processes.
        cpu=training.device == "cpu" or not torch.accelerator.is_available(),
        mixed_precision="bf16" if training.precision == "bfloat16" else "no",
        step_scheduler_with_optimizer=False,
        log_with=build_trackers(training.trackers, folder) or None,
        project_config=ProjectConfiguration(logging_dir=str(folder / "tensorboard")),
    )
    is_single = accelerator.num_processes == 1
    try:
        # Accelerate would shard after the optimiser is built, and replace the parameters that the optimiser has.
        if accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
            kind = accelerator.distributed_type.value
            raise setting_error("accelerate", kind, "launched without sharding, as `training.shard` splits the model by FSDP2")
        if training.shard and is_single:
            raise setting_error("training.shard", True, "false, or several processes, which torchrun and accelerate launch start")
        if accelerator.num_processes % training.context:
            needed = f"a divisor of {accelerator.num_processes}, the number of processes that torchrun or accelerate starts"
            raise setting_error("training.context", training.context, needed)
        with watch_processes() if accelerator.num_processes > 1 else nullcontext():
            yield accelerator
    finally:
        if is_single:
            AcceleratorState._reset_state()
            PartialState._reset_state()


@contextmanager
def catch_signals() -> Iterator[set[int]]:
    """Yield a set to which `stop_signals` are added for the length of a `with` block, instead of ending the process."""
    # Not a threading.Event: a signal that interrupts the handler of another one would deadlock on the lock of the event.
    received: set[int] = set()
    handlers = {name: signal.signal(name, lambda number, _: received.add(number)) for name in stop_signals()}
    try:
        yield received
    finally:
        for name, handler in handlers.items():
            signal.signal(name, handler)


def build_optimizer(model: nn.Module, training: TrainingSettings) -> AdamW:
    """Return AdamW over `longscan.models.optimizer_groups` of the model, each with its "scale" on the learning rate.

    Raises SettingError for names in `training.parameters` that no parameter of the model has.
    """
    try:
        groups = optimizer_groups(
            model,
            weight_decay=training.weight_decay,
            lr_scale=training.lr_scale,
            decay_all=training.decay_all,
            weight_decay_by_role=training.weight_decay_by_role,
            by_name={name: options.given() for name, options in training.parameters.items()},
        )
    except ValueError as error:
        raise SettingError(str(error).replace("by_name", "training.parameters")) from None
    return AdamW(groups, lr=training.lr, betas=training.betas, fused=True)


class StepOutputs(NamedTuple):
    """The model's output for the rows of this process, these rows, and the weight of their mean score in that of the batch."""

    output: Tensor
    rows: Batch
    weight: float | Tensor


@dataclass
class ValidationState:
    """The results of a run's validations so far, which checkpoints save.

    Attributes:
        best: step, value of the main metric, and loss of the best validation of the newest weights.
        valid: the last validation's main metric by what was scored, "last" or "average" weights.
        solved_evaluations: the number of validations up to the last one that reached `training.solved_at` without interruption.
        stopped_early: whether `training.patience` or `training.solved_at` ended the training.
    """

    best: dict[str, Any] | None = None
    valid: dict[str, float | None] = field(default_factory=dict)
    solved_evaluations: int = 0
    stopped_early: bool = False


class Trainer(Callback):
    """One run in one process (of several, under torchrun): model, optimiser, engine, and the callback that follows each step.

    Attributes:
        checkpoint_share: largest fraction of the time for checkpoints at validations that are not the best so far; with 1, the
            default, every validation writes one. Only runs in a single process that train together use less than 1.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        accelerator: Accelerator,
        command: str,
        *,
        resume: bool,
        progress: bool,
        test: bool,
    ) -> None:
        self.settings, self.task, self.training = settings, settings.task, settings.training
        self.folder, self.accelerator, self.command, self.tests = folder, accelerator, command, test
        self.is_main: bool = accelerator.is_main_process
        self.shows_progress = progress and self.is_main
        training, several = self.training, accelerator.num_processes > 1
        torch.manual_seed(training.seed)
        continues = resume and find_checkpoint(folder / "checkpoints" / "last") is not None
        self.model: TrainedModel = (build_model if continues else first_model)(settings).to(accelerator.device)
        if accelerator.process_index:  # the same weights as the other processes, and different dropout
            torch.manual_seed(training.seed + accelerator.process_index)
        self.predict: Callable[[nn.Module, Batch], Tensor] = predict
        if training.context > 1:
            check_model(self.model, training.context)
            self.group = build_group(accelerator.num_processes, training.context)
            self.predict = PiecePredictor(self.group, cast("SequenceModel", self.model))
        self._check_data()
        self.lengths = LengthSchedule(settings)
        self.progress, self.patience = ValidationState(), Patience(training.patience)
        self.average: WeightAverage | None = None
        if training.average:
            self.average = WeightAverage(self.model, training.average, training.average_start * training.steps)
        models = [self.model, *([] if self.average is None else [self.average.model])]
        if training.shard:  # after the average has copied the model, which FSDP2 does not allow
            from longscan.training.sharding import shard_model

            for model in models:
                shard_model(model)
        norms = [module for model in models for module in model.modules() if isinstance(module, BatchNorm)]
        self._statistics = [buffer for norm in norms for buffer in norm.buffers()] if several else []
        clip: Any = partial(nn.utils.clip_grad_norm_, list(self.model.parameters()), training.clip or inf)
        self.captures = not several and not training.shard if training.capture is None else training.capture
        self.engine = Engine(
            build_optimizer(self.model, training),
            self.compute_loss,
            learning_rate=training.learning_rate,
            clip_gradients=(lambda: clip().full_tensor()) if training.shard else clip,
            backward=self._average_backward if self.captures and several else accelerator.backward,
            sum_over_processes=accelerator.reduce if several else None,
        )
        if self.captures and accelerator.device.type == "cuda":
            self.engine.capture(accelerator.device, required=bool(training.capture))
        self.seconds_per_replay: Callable[[], float | None] = self.engine.seconds_per_replay
        self.score_validation: Callable[[], Scores] = partial(self.evaluate, "valid", self.model)
        wrap = several and not training.shard and not self.captures
        self.wrapped_model: nn.Module = accelerator.prepare_model(self.model) if wrap else self.model
        self.run_log: RunLog | None = None
        self.result: dict[str, Any] = {}
        self.received_signals: set[int] = set()
        self._signals = ExitStack()
        self.training_set: Batch | None = None
        self._start = time.perf_counter()  # start of the training, minus the seconds of earlier processes
        self._seconds_before = 0.0
        self._batch_scores: tuple[int, float, float] = (-1, 0.0, 0.0)
        self.checkpoint_share = 1.0
        self._saved_at, self._save_seconds = -inf, 0.0  # time of the last checkpoint "last", and its duration
        self._saved_step: int | None = None

    def _check_data(self) -> None:
        """Raise SettingError if the first batch, the number of batches of a split, or the backend is not possible."""
        try:
            batch = self.task.batch("train", 0, self.training.batch_size, self.settings.data_seed)
        except (ValueError, OSError) as error:
            raise SettingError(with_section("task", error, type(self.task))) from error
        except (MemoryError, OverflowError):
            raise setting_error("training.batch_size", self.training.batch_size, "a batch that fits into memory") from None
        check_task(self.task, batch)
        stack = self.model.backbone if isinstance(self.model, SiameseModel) else self.model
        if batch.elapsed is not None and (block := stack.block_without_times()):
            needed = f"blocks that take elapsed times, which task {self.task.name} has ({block} takes none)"
            raise setting_error("model.spec", self.settings.model.spec, needed)
        if self.settings.model.backend in NATIVE:
            self._check_backend(batch)
        for split in self.task.splits[1:]:
            if self.task.size(split) is None and not self.training.max_batches(split):
                setting = "test_batches" if split == "test" else "eval_batches"
                needed = f"a number of batches, as split {split} of {self.task.name} is endless"
                raise setting_error(f"training.{setting}", 0, needed)

    def _average_backward(self, loss: Tensor) -> None:
        """Differentiate a loss, and average the gradients over all processes."""
        self.accelerator.backward(loss)
        average_gradients(self.model.parameters(), cast("distributed.ProcessGroup", distributed.group.WORLD))

    @torch.no_grad()
    def _check_backend(self, batch: Batch) -> None:
        """Run the model on the first example of a batch. Raises SettingError if the requested backend cannot run here."""
        first = Batch(*(None if tensor is None else tensor[:1] for tensor in batch))  # type: ignore[arg-type]
        self.model.eval()  # no dropout, no statistics: the run is the same as without this check
        try:
            with self.accelerator.autocast():
                predict(self.model, first.to(self.accelerator.device))
        except ValueError as error:
            if not names_argument(error, "backend"):
                raise
            raise SettingError(with_section("model", error, ModelSettings)) from None
        finally:
            self.model.train()

    def run(self, callbacks: Sequence[Callback] = ()) -> None:
        """Train from the last checkpoint, or from the start, to the end, and write result.json and report.html."""
        with self.open(callbacks) as batches, self._stop_on_signals():
            self.training_set = self.find_training_set()
            self.engine.run(batches if self.training_set is None else self.row_numbers(self.training_set))

    @contextmanager
    def open(self, callbacks: Sequence[Callback] = ()) -> Iterator[Iterator[Batch]]:
        """Restore the last checkpoint, if there is one, and yield the batches of the steps that are left, for the engine.

        After the `with` block result.json and report.html are written, also if it raised NonFiniteLossError, which ends here.
        """
        training, folder = self.training, self.folder
        self.restore()
        if self.is_main:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / SETTINGS, yaml.safe_dump(self.settings.as_dict(), sort_keys=False))
            (folder / "result.json").unlink(missing_ok=True)
        unknown = ("value", "scaled", "selected", "confusion", "by_length", "test", "constant", "constant_scaled")
        self.result = describe_run(self.settings, self.model, self.accelerator.device, self.command) | dict.fromkeys(unknown)
        self.result["status"] = "finished"
        if self.tests:
            constant = self.task.constant_score("test")
            check_constant(self.task, constant)
            self.result |= {"constant": constant, "constant_scaled": self.task.scaled(constant)}
        batches = self.training_batches()
        with ExitStack() as stack:
            logs = self._open_logs(stack) if self.is_main else []
            self.engine.callbacks = [*([] if self.average is None else [self.average]), *logs, self, *callbacks]
            stack.enter_context(closing(batches))
            stack.callback(self.engine.release_graphs)
            if self.captures and self.accelerator.num_processes > training.context:
                shares = (self.share(batch).as_tensors() for batch in batches)  # for `compute_loss`
                batches = cast("Generator[Batch, None, None]", shares)
            self._start = time.perf_counter() - self._seconds_before
            try:
                # A run that starts from another forecast, such as that of a regression, must not end with a worse one.
                if not self.engine.step and training.select == "best" and self.task.starts_at_zero:
                    self.validate()
                yield batches
            except NonFiniteLossError as error:
                self.result |= {"status": "failed", "failure": str(error)}
            progress = self.progress
            self.result |= {"steps": self.engine.step, "stopped_early": progress.stopped_early}
            self.result["valid"] = {**progress.valid, "best": progress.best and progress.best["value"]}
            self.result["seconds"] = round(time.perf_counter() - self._start, 3)
            if replay := self.seconds_per_replay():
                self.result["replayed_updates_per_second"] = round(1 / replay, 3)
            if self.is_main:
                write_text(folder / "result.json", json.dumps(self.result, indent=1))
                self._write_details()
                longscan.report.run_report(folder)
        self.accelerator.wait_for_everyone()

    def training_batches(self) -> Generator[Batch, None, None]:
        """Yield the batches of the steps that are left when the first one is requested."""
        training, pin = self.training, self.accelerator.device.type == "cuda"
        batches = prefetch_batches(
            self.lengths.task,
            range(self.engine.step, self.engine.step if self.progress.stopped_early else training.steps),
            training.batch_size,
            self.settings.data_seed,
            depth=training.prefetch,
            pin=pin,
            repeats=training.batch_repeats,
        )
        with closing(batches):
            # A CUDA graph has fixed shapes. Padding that the model reads would change its output.
            widens = self.captures and pin and self.settings.model.padding == "masked"
            yield from widen_batches(batches) if widens else batches

    def find_training_set(self) -> Batch | None:
        """Return the training set on the device if captured updates can read their examples from it, otherwise None.

        Without it the host makes and copies each batch, for which small models wait.
        """
        training, device = self.training, self.accelerator.device
        if not self.captures or device.type != "cuda" or self.accelerator.num_processes > 1:
            return None
        if training.curriculum.start or training.late_lengths.share:
            return None
        if self.task.training_set_bytes(self.settings.data_seed) > MAX_RESIDENT_BYTES:
            return None
        whole = self.task.training_set(self.settings.data_seed)
        if whole is None:
            return None
        if whole.valid is not None and self.settings.model.padding == "read":  # it is padded to another length than a batch
            return None
        return whole.to(device)

    def row_numbers(self, training_set: Batch) -> Generator[RowNumbers, None, None]:
        """Yield the indices of the examples in the batches of the steps that are left."""
        training, size = self.training, len(training_set.inputs)
        for step in range(self.engine.step, self.engine.step if self.progress.stopped_early else training.steps):
            rows = rows_of_step(size, "train", step // training.batch_repeats, training.batch_size, self.settings.data_seed)
            numbers = torch.from_numpy(rows)
            yield RowNumbers(numbers.pin_memory() if self.accelerator.device.type == "cuda" else numbers)

    @contextmanager
    def _stop_on_signals(self) -> Iterator[None]:
        """Make training stop after a checkpoint on a signal of `stop_signals`, until `on_train_end`.

        Signals are not caught if there are several processes, which would stop at different steps and wait for each other. Only
        the main thread may handle signals.
        """
        with self._signals:
            if self.accelerator.num_processes == 1 and threading.current_thread() is threading.main_thread():
                self.received_signals = self._signals.enter_context(catch_signals())
            yield

    @property
    def is_over(self) -> bool:
        """Whether no step is left."""
        return self.engine.step >= self.training.steps or self.progress.stopped_early or self.engine.stop_requested

    def _open_logs(self, stack: ExitStack) -> list[Callback]:
        """Open the logs, without rows that follow the present step, and the progress bar; `stack` closes them."""
        step, training = self.engine.step, self.training
        rows = read_rows(self.folder / "metrics.jsonl", step)
        rows = [row for row in rows if row["step"] <= step and row.get("split") != "test"]
        names = dict.fromkeys(name for split in self.task.splits for name in self.task.metrics(split) if name != "confusion")
        averaged = ["average_loss", *(f"average_{name}" for name in names)] if training.average else []
        columns = ["step", "split", "loss", *names, *averaged, "lr", "grad_norm", "max_length", "seconds"]
        self.run_log = RunLog(self.folder, columns, rows)
        stack.callback(self.run_log.close)
        trackers = TrackerLog(self.accelerator, self.folder, self.settings.as_dict(), rows)
        for tracker in self.accelerator.trackers:
            stack.callback(tracker.finish)
        bar = stack.enter_context(closing(ProgressBar(training.steps, step, self.task.metric, shown=self.shows_progress)))
        return [self.run_log, trackers, bar]

    def share(self, batch: Batch) -> Share:
        """Return the rows of a batch that this process trains on. Reads the number of scored answers back to the host."""
        context = self.training.context
        index, processes = self.accelerator.process_index // context, self.accelerator.num_processes // context
        return share_of(batch, self.task, self.training.loss_reduction, index, processes)

    def compute_loss(self, batch: Batch | SharedBatch | RowNumbers) -> tuple[Tensor, StepOutputs]:
        """Return the loss of this process's rows of a batch, times their factor, and what callbacks need of the step."""
        training, accelerator = self.training, self.accelerator
        if isinstance(batch, RowNumbers):
            assert self.training_set is not None
            numbers = batch.numbers.to(accelerator.device)
            batch = Batch(*(None if part is None else part[numbers] for part in self.training_set))  # type: ignore[arg-type]
        share = batch if isinstance(batch, SharedBatch) else self.share(batch)
        rows = share.rows.to(accelerator.device)
        with accelerator.autocast():
            output = self.predict(self.wrapped_model, rows)
        loss = self.task.loss(output, rows, training.loss_reduction, training.label_smoothing) * share.factor
        return loss, StepOutputs(output.detach(), rows, share.weight)

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Log, update the curriculum, validate and save a checkpoint, each after the steps that the settings name.

        Raises NonFiniteLossError before anything of a loss that is not finite is logged, scored or saved, and KeyboardInterrupt
        after a checkpoint if a signal asked the process to stop.
        """
        step, training = engine.step, self.training
        for buffer in self._statistics:  # otherwise the processes would score, and stop, by different batch statistics
            distributed.broadcast(buffer, 0)
        logs = step in (1, training.steps) or step % training.log_every == 0
        validates = step == training.steps or bool(training.eval_every and step % training.eval_every == 0)
        saves = step == training.steps or bool(training.checkpoint_every and step % training.checkpoint_every == 0)
        if logs or validates or saves:
            engine.raise_if_not_finite()
        if logs:
            loss, score = self.batch_scores(result)
            row: Row = {"loss": finite_or_none(loss), self.task.metric: finite_or_none(score), "lr": result.learning_rate}
            row["grad_norm"] = None if result.grad_norm is None else finite_or_none(result.grad_norm.item())
            self.log("train", row | ({"max_length": self.lengths.max_length} if self.lengths.max_length else {}))
        if self.lengths.needs_score(step):
            self.lengths.update(self.batch_scores(result)[1])
        if validates:
            best = self.progress.best
            self.validate()
            saves |= self.progress.best is not best or self.progress.stopped_early or self._is_checkpoint_due()
        if saves:
            began = time.perf_counter()
            self.save("last")
            self._saved_at = time.perf_counter()
            self._save_seconds = self._saved_at - began
        if self.received_signals:
            if not saves:
                self.save("last")
            raise KeyboardInterrupt

    def idle_steps(self) -> int:
        """Return the number of next steps after which neither `on_step_end` nor another callback has anything to do."""
        training, step = self.training, self.engine.step
        works_always = self.average is not None or self.shows_progress or self._statistics or training.curriculum.start
        if works_always or not step:  # the first step is logged
            return 0
        periods = [period for period in (training.log_every, training.eval_every, training.checkpoint_every) if period]
        return min(training.steps, *(step - step % period + period for period in periods)) - step - 1

    def _is_checkpoint_due(self) -> bool:
        """Return whether a checkpoint like the last one would take at most `checkpoint_share` of the time since that one."""
        share = self.checkpoint_share
        return share == 1 or self._save_seconds <= share * (time.perf_counter() - self._saved_at)

    def validate(self) -> None:
        """Score the newest weights and their average on validation, save the best weights, and stop the training early."""
        training, progress, metric = self.training, self.progress, self.task.metric
        scores = self.score_validation()
        row: Row = {"loss": finite_or_none(scores.loss), **scores.values}
        progress.valid = {"last": scores.values[metric]}
        if self.average is not None and self.average.count:
            average = self.evaluate("valid", self.average.model)
            row |= {"average_loss": finite_or_none(average.loss)} | {
                f"average_{name}": value for name, value in average.values.items()
            }
            progress.valid["average"] = average.values[metric]
        self.log("valid", row)
        validation = {"step": self.engine.step, "value": scores.values[metric], "loss": finite_or_none(scores.loss)}
        if self.patience.update(self._error(validation)):
            progress.best = validation
            self.save("best")
        value = progress.valid.get("average" if training.select == "average" else "last")
        sign = 1 if self.task.higher_is_better else -1
        solved = bool(training.solved_at) and value is not None and sign * value >= sign * training.solved_at
        progress.solved_evaluations = progress.solved_evaluations + 1 if solved else 0
        progress.stopped_early = self.patience.is_used_up or (solved and progress.solved_evaluations >= training.solved_for)
        self.engine.stop_requested |= progress.stopped_early

    def _error(self, validation: dict[str, Any] | None) -> tuple[float, float]:
        """Return two numbers by which validations are compared as `training.best_by` says: a smaller pair is better.

        validation: its main metric "value" and its "loss", as in `ValidationState.best`. None stands for no validation, which is
        worse than any.
        """
        if validation is None or validation["value"] is None:
            return inf, inf if validation is None else 0.0
        error = (-1 if self.task.higher_is_better else 1) * validation["value"]
        loss = inf if validation["loss"] is None else validation["loss"]
        return (loss, error) if self.training.best_by == "loss" else (error, loss)

    def on_train_end(self, engine: Engine) -> None:
        """Select weights by `training.select`, score them on the test split, and write the angles of AUSSM layers.

        If a callback has stopped the run between two checkpoints, "last" is saved first: the result is of these weights.
        """
        self._signals.close()
        if self._saved_step != engine.step:
            self.save("last")
        selected, metric = self.training.select, self.task.metric
        self.accelerator.wait_for_everyone()  # the main process may still write the best weights
        best = find_checkpoint(self.folder / "checkpoints" / "best")
        if selected == "best" and best is not None:
            load_weights(self.model, best)
        elif selected == "average" and self.average is not None and self.average.count:
            copy_weights(self.average.weights, self.model)
            self.save("average")
        else:  # also if a callback stops the run before it is validated or its average starts
            selected = "last"
        self.result["selected"] = selected
        if self.tests:
            scores = self.evaluate("test", self.model)
            row, value = {"loss": finite_or_none(scores.loss), **scores.values}, scores.values[metric]
            self.log("test", row)
            by_length = {name.split("/", 1)[1]: v for name, v in scores.values.items() if name.startswith(f"{metric}/")}
            self.result |= {"value": value, "scaled": None if value is None else self.task.scaled(value), "test": row}
            self.result |= {"confusion": scores.tables.get("confusion"), "by_length": by_length or None}
        angles = symbol_angles(self.model, self.task)
        if angles and self.is_main:
            write_text(self.folder / "angles.json", json.dumps(angles))

    def _write_details(self) -> None:
        """Write what the report shows besides the result of a finished test: simple predictors and examples of answers."""
        if not self.tests or self.result["status"] != "finished":
            return
        if not (self.folder / "baselines.json").exists():
            write_baselines(Run(self.folder), fitted=False)
        if self.accelerator.num_processes == 1:  # each of several processes may have only a part of a split model
            examples = find_examples(self.model, self.task, self.training.batch_size, self.settings.data_seed)
            if examples is not None:
                write_text(self.folder / "examples.json", json.dumps(examples))

    def save(self, name: str) -> None:
        """Write a checkpoint of the model; the checkpoint "last" also contains everything that the rest of the run depends on.

        The logs are flushed before "last", so that they have no row that a resumed run would write again.
        """
        engine, average, resumable = self.engine, self.average, name == "last"
        state: dict[str, Any] = {"step": engine.step, "best": self.progress.best}
        if resumable:
            self._saved_step = engine.step
        weights = gather_tensors(self.model.state_dict(), return_tensors=self.is_main)
        files: dict[str, dict[str, Tensor]] = {}
        if resumable:
            generators = gather_object([generator_states()])
            files["optimizer"] = gather_tensors(optimizer_tensors(engine.optimizer, self.model), return_tensors=self.is_main)
            if average is not None and average.count:
                files["average"] = gather_tensors(average.weights, return_tensors=self.is_main)
            state |= {**vars(self.progress), "patience_used": self.patience.used, "max_length": self.lengths.max_length}
            state |= {"n_averaged": 0 if average is None else average.count, "lr": float(engine.optimizer.param_groups[0]["lr"])}
            state |= {
                "seconds": time.perf_counter() - self._start,
                "generators": generators[0],
                "generators_of_others": generators[1:],
            }
        if self.run_log is None:  # not the main process
            return
        if resumable:
            self.run_log.flush()

        def write(folder: Path) -> None:
            self.model.save_pretrained(folder, weights)
            for file, tensors in files.items():
                write_tensors(folder / f"{file}.safetensors", tensors)

        write_checkpoint(self.folder / "checkpoints" / name, write, state)

    def restore(self) -> None:
        """Continue from checkpoint "last" if there is one. Raises SettingError if it is damaged."""
        folder = find_checkpoint(self.folder / "checkpoints" / "last")
        self.patience.best_error = self._error(None)
        if folder is None:
            return
        state = {RENAMED.get(name, name): value for name, value in read_checkpoint(folder).items()}
        load_weights(self.model, folder)
        try:
            self.engine.step, self._seconds_before = state["step"], state["seconds"]
            self._saved_step = self.engine.step
            self.progress = ValidationState(**{name: state[name] for name in vars(self.progress)})
            self.patience.used, self.patience.best_error = state["patience_used"], self._error(state["best"])
            restore_optimizer(self.engine.optimizer, self.model, read_tensors(folder / "optimizer.safetensors"))
            if self.average is not None and state["n_averaged"]:
                tensors, parameters = read_tensors(folder / "average.safetensors"), self.average.model.named_parameters()
                averaged = {name: split_like(tensors[name], parameter) for name, parameter in parameters}
                self.average.restore(averaged, state["n_averaged"])
            states, process = [state["generators"], *state.get("generators_of_others", [])], self.accelerator.process_index
            if process < len(states):  # a process that the run did not have before keeps its fresh generators
                restore_generators(states[process])
            self.lengths.max_length = state["max_length"]
        except (KeyError, TypeError, ValueError) as error:
            raise SettingError(f"{folder}: the checkpoint is damaged ({one_line(error)})") from None

    def log(self, split: Split, row: Row) -> None:
        """Send a row to the logs and the progress bar, with the step, the split and the seconds of training."""
        self.engine.log({"step": self.engine.step, "split": split, **row, "seconds": round(time.perf_counter() - self._start, 3)})

    def evaluate(self, split: Split, model: nn.Module) -> Scores:
        """Return the loss and the metrics of a model on a split, or on as many batches as the settings say."""
        return evaluate(
            model,
            self.task,
            split,
            batch_size=self.training.batch_size,
            seed=self.settings.data_seed,
            max_batches=self.training.max_batches(split),
            autocast=self.accelerator.autocast,
            predict=self.predict,
        )

    def batch_scores(self, result: StepResult) -> tuple[float, float]:
        """Return the mean loss and the main metric of the step's batch over all processes, computed once a step."""
        if self._batch_scores[0] != self.engine.step:
            output, rows, weight = result.outputs
            main = {self.task.metric: self.task.metrics("train")[self.task.metric].to(output.device)}
            main[self.task.metric].distributed_available_fn = distributed_available
            self.task.update(main, output, rows)
            loss, score = self.task.loss(output, rows).item(), float(main[self.task.metric].compute())
            if self.accelerator.num_processes > 1:  # weighted by the numbers of scored answers
                weight = float(weight)
                sums = torch.tensor([loss * weight, score * weight, weight], device=self.accelerator.device)
                loss, score, weight = self.accelerator.reduce(sums).tolist()
                loss, score = loss / weight, score / weight
            self._batch_scores = (self.engine.step, loss, score)
        return self._batch_scores[1:]
