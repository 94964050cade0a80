"""`train`: opens the folder of a run, takes the device, and has a `Trainer` bring the run to its end.

A run is one sequence of steps, validations and checkpoints, which a kill may cut and a later process continues with the same
result. All that the rest of a run depends on is in checkpoints/last: weights, optimiser, average, step, states of the random
generators, the curriculum's length, the best validation. Batches and learning rates are functions of the step. The logs are cut
back to the checkpoint's step.
"""

import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, ProjectConfiguration
from torch import Tensor, nn

import longscan.report
from longscan._errors import SettingError, setting_error
from longscan._files import write_text
from longscan.engine import Callback, Engine, NonFiniteLossError, StepResult, WeightAverage
from longscan.ops.dispatch import NATIVE
from longscan.tasks import Batch
from longscan.tasks.base import Split
from longscan.training import callbacks as cb
from longscan.training.batches import LengthSchedule, Prefetcher
from longscan.training.checkpoint import find_checkpoint, read_checkpoint
from longscan.training.evaluate import Scores, batch_score, evaluate, predict
from longscan.training.logs import Row, RunLog, TrackerLog, build_trackers, read_rows
from longscan.training.optim import build_optimizer, learning_rate
from longscan.training.parsing import with_section
from longscan.training.records import describe_run
from longscan.training.run import Run, build_model, check_out, clear_run, first_model, holds_run, refuse_backend, write_settings
from longscan.training.settings import Settings, TrainingSettings, check_same_size
from longscan.training.sharing import share_of

if TYPE_CHECKING:
    from longscan.models import SequenceModel

MAY_CHANGE = ("steps", "checkpoint_every", "device", "threads", "prefetch", "capture", "trackers")


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
    """Train, test and report; return the run, whose folder is `out`.

    Args:
        settings: everything that decides the result.
        out: folder of the run, created if needed.
        resume: continue from the last checkpoint in `out`, or from the start if the run was killed before its first. The settings
            must be those of the run, except for steps (at least the number made), checkpoint_every, device, threads, prefetch,
            capture and trackers. A run that is over is left as it is.
        overwrite: remove the run that `out` holds.
        progress: show a progress bar (in a terminal) or a line for each validation on stderr.
        command: what result.json gives as the command; None: the command line of this process.
        test: score the test split at the end. A search does not, and result.json then holds the validation scores alone.
        callbacks: run after those of the package (`Trainer.default_callbacks`), each step and at the end. Their state is not
            saved in checkpoints.

    The run's `result["status"]` is "finished", or "failed" if the loss stopped being finite. Raises SettingError for settings
    that cannot be met, KeyboardInterrupt after a checkpoint if the process was asked to stop (SIGINT, SIGTERM).
    """
    folder, source = Path(out), settings.training.start_from
    if overwrite and source is not None and Path(source).resolve().is_relative_to(folder.resolve()):
        raise setting_error("training.start_from", source, "a folder that stays, not the run that is overwritten")
    _check_folder(folder, settings, resume=resume, overwrite=overwrite)
    if resume and _is_over(folder, settings):
        longscan.report.run_report(folder)
        return Run(folder)
    threads = torch.get_num_threads()
    if settings.training.threads:
        torch.set_num_threads(settings.training.threads)
    try:
        with _accelerator(settings.training, folder) as accelerator:
            command = command or shlex.join(sys.argv)
            trainer = Trainer(settings, folder, accelerator, command, resume=resume, progress=progress, test=test)
            if overwrite and not resume:  # not before everything that can be refused has been checked
                if accelerator.is_main_process and holds_run(folder):
                    clear_run(folder)
                accelerator.wait_for_everyone()
            trainer.run(callbacks)
    finally:
        torch.set_num_threads(threads)
    return Run(folder)


def _check_folder(folder: Path, settings: Settings, *, resume: bool, overwrite: bool) -> None:
    """Raise SettingError if the folder cannot be written, holds a run that is to be kept, or one of other settings."""
    check_out(folder)
    if resume:
        started = Run(folder).settings
        _check_same_settings(started.as_dict(), settings.as_dict(), folder)
        made = _steps_made(folder)
        if settings.training.steps < made:
            needed = f"at least {made}, which the run in {folder} has made"
            raise SettingError(f"training.steps: got {settings.training.steps} with --resume, needed {needed}")
    elif holds_run(folder) and not overwrite:
        raise SettingError(f"--out: {folder} holds a run already, needed another directory, --resume or --overwrite")


def _check_same_settings(started: dict[str, Any], given: dict[str, Any], folder: Path) -> None:
    """Raise SettingError if a resumed run is given another value of a setting that must not change."""
    check_same_size(started["about"]["quick"], given["about"]["quick"], folder, "run")
    for section in ("task", "model", "training"):
        for name, value in started[section].items():
            free = section == "training" and name in MAY_CHANGE
            if not free and given[section].get(name) != value:
                raise SettingError(
                    f"{section}.{name}: got {given[section].get(name)!r} with --resume, needed {value!r} as in {folder}"
                )


def _steps_made(folder: Path) -> int:
    """Return the number of steps up to a run's result, or up to its last checkpoint if it has no result."""
    result, last = Run(folder).result, find_checkpoint(folder / "checkpoints" / "last")
    if result is not None:
        return int(result["steps"])
    return 0 if last is None else int(read_checkpoint(last)["step"])


def _is_over(folder: Path, settings: Settings) -> bool:
    """Return whether a run has a result to which more steps would add nothing."""
    result = Run(folder).result
    if result is None:
        return False
    return result["status"] == "failed" or result["stopped_early"] or result["steps"] >= settings.training.steps


@contextmanager
def _accelerator(training: TrainingSettings, folder: Path) -> Iterator[Accelerator]:
    """Yield accelerate's view of device, precision, processes and trackers. A single process resets its global state after it."""
    if training.device == "cuda" and not torch.cuda.is_available():
        raise setting_error("training.device", "cuda", "cpu or auto, as torch finds no CUDA device here")
    if training.device == "mps" and not torch.backends.mps.is_available():
        raise setting_error("training.device", "mps", "cpu or auto, as torch finds no Apple GPU here")
    accelerator = Accelerator(
        cpu=training.device == "cpu",
        mixed_precision="bf16" if training.precision == "bfloat16" else "no",
        step_scheduler_with_optimizer=False,
        log_with=build_trackers(training.trackers, folder) or None,
        project_config=ProjectConfiguration(logging_dir=str(folder / "tensorboard")),
    )
    try:
        # Accelerate's own sharding comes after the optimiser is built, on parameters that the optimiser then does not have.
        if accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
            needed = (
                "none of it, as training holds whole models (`longscan.training.shard_model` splits one for a loop of your own)"
            )
            raise SettingError(f"accelerate: got {accelerator.distributed_type.value}, needed {needed}")
        yield accelerator
    finally:
        if accelerator.num_processes == 1:
            AcceleratorState._reset_state()
            PartialState._reset_state()


class StepOutputs(NamedTuple):
    """What a step leaves for the callbacks: the model's output on this process's rows, and the weight of their mean score."""

    output: Tensor
    rows: Batch
    weight: float


class Trainer:
    """One run in one process (of several, under torchrun): model, optimiser and engine, and the callbacks around its steps."""

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
        torch.manual_seed(self.training.seed)
        continues = resume and find_checkpoint(folder / "checkpoints" / "last") is not None
        self.model: SequenceModel = (build_model if continues else first_model)(settings).to(accelerator.device)
        if accelerator.process_index:  # the same weights as the other processes, and different dropout
            torch.manual_seed(self.training.seed + accelerator.process_index)
        self._check_data()
        self.lengths = LengthSchedule(settings)
        self.progress = cb.Progress()
        self.average: WeightAverage | None = None
        if self.training.average:
            self.average = WeightAverage(self.model, self.training.average, self.training.average_start * self.training.steps)
        several = accelerator.num_processes > 1
        self.engine = Engine(
            build_optimizer(self.model, self.training),
            self.compute_loss,
            learning_rate=partial(learning_rate, settings=self.training),
            clip_gradients=partial(nn.utils.clip_grad_norm_, list(self.model.parameters()), self.training.clip or inf),
            backward=accelerator.backward,
            sum_over_processes=accelerator.reduce if several else None,
        )
        if self.training.capture and accelerator.device.type == "cuda":
            self.engine.capture(accelerator.device)
        self.wrapped_model: nn.Module = accelerator.prepare_model(self.model) if several else self.model
        self.checkpoints = cb.Checkpoints(self)
        self.run_log: RunLog | None = None
        self.result: dict[str, Any] = {}
        self.earlier_seconds = 0.0
        self._start = time.perf_counter()
        self._batch_scores: tuple[int, float, float] = (-1, 0.0, 0.0)

    # Checks before anything is written, so that what is wrong with the data is one line and not a failed run.

    def _check_data(self) -> None:
        """Make the first batch. Raises SettingError if it, the number of batches of a split, or the backend is not possible."""
        try:
            batch = self.task.batch("train", 0, self.training.batch_size, self.settings.data_seed)
        except (ValueError, OSError) as error:
            raise SettingError(with_section("task", error, type(self.task))) from error
        except (MemoryError, OverflowError):
            raise setting_error("training.batch_size", self.training.batch_size, "a batch that fits into memory") from None
        if self.training.capture:
            self._check_capture(batch)
        if self.settings.model.backend in NATIVE:
            self._check_backend(batch)
        for split in self.task.splits[1:]:
            if self.task.size(split) is None and not self.training.max_batches(split):
                setting = "test_batches" if split == "test" else "eval_batches"
                needed = f"a number of batches, as split {split} of {self.task.name} is endless"
                raise setting_error(f"training.{setting}", 0, needed)

    def _check_capture(self, batch: Batch) -> None:
        """Raise SettingError if a step cannot be captured as a CUDA graph, also on devices that would not."""
        if self.accelerator.num_processes > 1:
            processes = self.accelerator.num_processes
            raise setting_error("training.capture", True, f"false, as {processes} processes exchange gradients")
        if batch.loss_mask is not None or (self.task.per_step and batch.valid is not None):
            needed = f"false, as {self.task.name} scores some of the steps, and how many varies"
            raise setting_error("training.capture", True, needed)

    @torch.no_grad()
    def _check_backend(self, batch: Batch) -> None:
        """Run the model on the first example of a batch. Raises SettingError if the requested backend cannot run here."""
        first = Batch(*(None if tensor is None else tensor[:1] for tensor in batch))  # type: ignore[arg-type]
        self.model.eval()  # no dropout, no statistics: the run is the same as without this check
        try:
            with self.accelerator.autocast():
                predict(self.model, first.to(self.accelerator.device))
        except ValueError as error:
            if not str(error).startswith(("backend: ", "`backend` ")):
                raise
            raise refuse_backend(self.settings.model.backend, error) from None
        finally:
            self.model.train()

    # The training.

    def run(self, callbacks: Sequence[Callback] = ()) -> None:
        """Train from the last checkpoint, or from the start, to the end, and write result.json and report.html."""
        self.checkpoints.restore()
        if self.is_main:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_settings(self.folder, self.settings)
            (self.folder / "result.json").unlink(missing_ok=True)
        self.result = self._empty_result()
        self._start = time.perf_counter()
        with ExitStack() as stack:
            self.engine.callbacks = [*self.default_callbacks(stack), *callbacks]
            batches = stack.enter_context(self._batches())
            steps = () if self.progress.stopped_early else range(self.engine.step, self.training.steps)
            try:
                self.engine.run(batches.get(step) for step in steps)
            except NonFiniteLossError as error:
                self.result |= {"status": "failed", "failure": str(error)}
            self._write_result()
        self.accelerator.wait_for_everyone()

    def default_callbacks(self, stack: ExitStack) -> list[Callback]:
        """Return the callbacks of every run in their order; what has to be closed is closed by `stack`."""
        bar = cb.ProgressBar(self.training.steps, self.engine.step, self.task.metric, shown=self.shows_progress)
        return [
            *([] if self.average is None else [self.average]),
            cb.FiniteCheck(self),
            *(self._open_logs(stack) if self.is_main else []),
            stack.enter_context(bar),
            cb.TrainingRows(self),
            cb.LengthCurriculum(self),
            cb.Validation(self),
            self.checkpoints,
            stack.enter_context(cb.StopOnSignal(self)),
            cb.SelectWeights(self),
            *([cb.ScoreTestSplit(self)] if self.tests else []),
            *([cb.SymbolAngles(self)] if self.is_main else []),
        ]

    def _open_logs(self, stack: ExitStack) -> list[Callback]:
        """Open the logs, cut back to the step where the run stands."""
        step = self.engine.step
        rows = [row for row in read_rows(self.folder / "metrics.jsonl", step) if row["step"] <= step and row["split"] != "test"]
        self.run_log = stack.enter_context(closing(RunLog(self.folder, self._columns(), rows)))
        trackers = TrackerLog(self.accelerator, self.folder, self.settings.as_dict(), rows)
        return [self.run_log, stack.enter_context(closing(trackers))]

    def _columns(self) -> list[str]:
        """Return the columns of metrics.csv."""
        names = dict.fromkeys(
            name for split in self.task.splits for name, metric in self.task.metrics(split).items() if name != "confusion"
        )
        extra = ["average_loss", *(f"average_{name}" for name in names)] if self.training.average else []
        return ["step", "split", "loss", *names, *extra, "lr", "grad_norm", "max_length", "seconds"]

    def _batches(self) -> Prefetcher:
        return Prefetcher(
            self.lengths.task,
            self.training.batch_size,
            self.settings.data_seed,
            depth=self.training.prefetch,
            pin=self.accelerator.device.type == "cuda",
        )

    def compute_loss(self, batch: Batch) -> tuple[Tensor, StepOutputs]:
        """Return the loss of this process's rows of a batch, times their factor, and what callbacks need of the step."""
        training, accelerator = self.training, self.accelerator
        share = share_of(batch, self.task, training.loss_reduction, accelerator.process_index, accelerator.num_processes)
        rows = share.rows.to(accelerator.device)
        with accelerator.autocast():
            output = predict(self.wrapped_model, rows)
        loss = self.task.loss(output, rows, training.loss_reduction, training.label_smoothing) * share.factor
        return loss, StepOutputs(output.detach(), rows, share.weight)

    # What the callbacks call.

    def seconds(self) -> float:
        """Return the seconds of training so far, with those of earlier processes."""
        return self.earlier_seconds + time.perf_counter() - self._start

    def log(self, split: Split, row: Row) -> None:
        """Send a row to the logs and the progress bar, with the step, the split and the seconds of training."""
        self.engine.log({"step": self.engine.step, "split": split, **row, "seconds": round(self.seconds(), 3)})

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
        )

    def batch_scores(self, result: StepResult) -> tuple[float, float]:
        """Return the mean loss and the main metric of the step's batch over all processes, computed once a step."""
        if self._batch_scores[0] != self.engine.step:
            output, rows, weight = result.outputs
            scores = self.task.loss(output, rows).item(), batch_score(self.task, output, rows)
            self._batch_scores = (self.engine.step, *self.mean_over_processes(*scores, weight))
        return self._batch_scores[1:]

    def mean_over_processes(self, loss: float, score: float, weight: float) -> tuple[float, float]:
        """Return the means of loss and score over the processes, weighted by their numbers of scored answers."""
        if self.accelerator.num_processes == 1:
            return loss, score
        sums = torch.tensor([loss * weight, score * weight, weight], device=self.accelerator.device)
        loss, score, weight = self.accelerator.reduce(sums).tolist()
        return loss / weight, score / weight

    # The result.

    def _empty_result(self) -> dict[str, Any]:
        """Return what result.json holds before the training, and what it holds of a failed one."""
        unknown = ("value", "scaled", "selected", "confusion", "by_length", "test", "constant", "constant_scaled")
        result = {**describe_run(self.settings, self.model, self.accelerator.device, self.command), "status": "finished"}
        result |= dict.fromkeys(unknown)
        if self.tests:
            constant = self.task.constant_score("test")
            result |= {"constant": constant, "constant_scaled": self.task.scaled(constant)}
        return result

    def _write_result(self) -> None:
        """Write result.json and report.html."""
        progress = self.progress
        self.result |= {"steps": self.engine.step, "stopped_early": progress.stopped_early}
        self.result["valid"] = {**progress.valid, "best": progress.best and progress.best["value"]}
        self.result["seconds"] = round(self.seconds(), 3)
        if self.is_main:
            write_text(self.folder / "result.json", json.dumps(self.result, indent=1))
            longscan.report.run_report(self.folder)
