"""The callbacks of a run on disk: log, curriculum, validation, checkpoints, progress bar, stop requests, test scores.

`Trainer.default_callbacks` lists them in the order in which they run after a step.
"""

import json
import signal
import threading
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object
from rich import progress as rich_progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from longscan._errors import SettingError, one_line
from longscan._files import write_text
from longscan.engine import Callback, Engine, StepResult, copy_weights
from longscan.training.angles import symbol_angles
from longscan.training.checkpoint import (
    find_checkpoint,
    generator_states,
    optimizer_tensors,
    read_checkpoint,
    read_tensors,
    restore_generators,
    restore_optimizer,
    write_checkpoint,
    write_tensors,
)
from longscan.training.evaluate import number
from longscan.training.logs import Row
from longscan.training.run import load_weights
from longscan.training.settings import TrainingSettings

if TYPE_CHECKING:
    from longscan.training.trainer import Trainer


def is_log_step(step: int, training: TrainingSettings) -> bool:
    """Return whether the training log has a row for this step: the first, every `log_every`th, the last."""
    return step in (1, training.steps) or step % training.log_every == 0


def is_validation_step(step: int, training: TrainingSettings) -> bool:
    """Return whether the model is scored on validation after this step: every `eval_every`th, and the last."""
    return step == training.steps or bool(training.eval_every and step % training.eval_every == 0)


def is_checkpoint_step(step: int, training: TrainingSettings) -> bool:
    """Return whether a checkpoint is saved after this step: every `checkpoint_every`th, and those with a validation."""
    return is_validation_step(step, training) or bool(training.checkpoint_every and step % training.checkpoint_every == 0)


class TrainerCallback(Callback):
    """Base class of callbacks that need more of the run than its engine."""

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer


class FiniteCheck(TrainerCallback):
    """Ends the training if a loss was not finite, before anything of it is logged, scored or saved."""

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Raise NonFiniteLossError if this step is logged or saved and a loss or gradient was not finite."""
        training = self._trainer.training
        if is_log_step(engine.step, training) or is_checkpoint_step(engine.step, training):
            engine.raise_if_not_finite()


class TrainingRows(TrainerCallback):
    """Logs loss, main metric, learning rate and norm of the gradient of training batches."""

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Log a row if it is time to."""
        trainer = self._trainer
        if not is_log_step(engine.step, trainer.training):
            return
        loss, score = trainer.batch_scores(result)
        row: Row = {"loss": number(loss), trainer.task.metric: number(score), "lr": result.learning_rate}
        row["grad_norm"] = None if result.grad_norm is None else number(result.grad_norm.item())
        if trainer.lengths.max_length:
            row["max_length"] = trainer.lengths.max_length
        trainer.log("train", row)


class LengthCurriculum(TrainerCallback):
    """Lets the training lengths grow with the score of training batches."""

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Give the schedule of lengths the score if it needs one."""
        if self._trainer.lengths.needs_score(engine.step):
            self._trainer.lengths.update(self._trainer.batch_scores(result)[1])


@dataclass
class Progress:
    """What the validations of a run have found so far; saved in checkpoints.

    Attributes:
        best: step, value of the main metric, and loss of the best validation of the newest weights.
        valid: the last validation's main metric by what was scored, "last" or "average" weights.
        patience_used: validations since the best one.
        solved_evaluations: the last validations, one after the other, that reached `training.solved_at`.
        stopped_early: whether one of the two ended the training.
    """

    best: dict[str, Any] | None = None
    valid: dict[str, float | None] = field(default_factory=dict)
    patience_used: int = 0
    solved_evaluations: int = 0
    stopped_early: bool = False


class Validation(TrainerCallback):
    """Scores the newest weights and their average on validation, saves the best weights, and stops the training early."""

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Log a row of scores if it is time to, and update the progress."""
        trainer, training, progress = self._trainer, self._trainer.training, self._trainer.progress
        if not is_validation_step(engine.step, training):
            return
        metric, scores = trainer.task.metric, trainer.evaluate("valid", trainer.model)
        row: Row = {"loss": number(scores.loss), **scores.values}
        progress.valid = {"last": scores.values[metric]}
        if trainer.average is not None and trainer.average.count:
            average = trainer.evaluate("valid", trainer.average.model)
            row |= {"average_loss": number(average.loss)} | {f"average_{name}": value for name, value in average.values.items()}
            progress.valid["average"] = average.values[metric]
        trainer.log("valid", row)
        if self._is_best(scores.values[metric], scores.loss):
            progress.best = {"step": engine.step, "value": scores.values[metric], "loss": number(scores.loss)}
            progress.patience_used = 0
            trainer.checkpoints.write_weights("best")
        else:
            progress.patience_used += 1
            progress.stopped_early = 0 < training.patience <= progress.patience_used
        if training.solved_at:
            progress.solved_evaluations = progress.solved_evaluations + 1 if self._is_solved() else 0
            progress.stopped_early |= progress.solved_evaluations >= training.solved_for
        engine.stop_requested |= progress.stopped_early

    def _is_best(self, value: float | None, loss: float) -> bool:
        """Return whether this validation is better than the best one. Between equal metrics the smaller loss decides."""
        best = self._trainer.progress.best
        if value is None or best is None or best["value"] is None:
            return value is not None or best is None
        sign = 1 if self._trainer.task.higher_is_better else -1
        return (sign * value, -loss) > (sign * best["value"], -inf if best["loss"] is None else -best["loss"])

    def _is_solved(self) -> bool:
        """Return whether the weights that the run would end with have just scored `solved_at`."""
        training = self._trainer.training
        value = self._trainer.progress.valid.get("average" if training.select == "average" else "last")
        if value is None:
            return False
        return value >= training.solved_at if self._trainer.task.higher_is_better else value <= training.solved_at


# Names of checkpoints of version 0.1 -> names since.
RENAMED = {"longest": "max_length", "waited": "patience_used", "solved": "solved_evaluations", "averaged": "n_averaged"}


class Checkpoints(TrainerCallback):
    """Saves and restores all that the rest of a run depends on, in checkpoints/last; saves selected weights under other names."""

    def __init__(self, trainer: "Trainer") -> None:
        super().__init__(trainer)
        self._folder = trainer.folder / "checkpoints"

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Save a checkpoint if it is time to."""
        if is_checkpoint_step(engine.step, self._trainer.training):
            self.save()

    def save(self) -> None:
        """Write checkpoint "last", after the logs, which then have no row that a resumed run would write again."""
        trainer, engine, average = self._trainer, self._trainer.engine, self._trainer.average
        generators = gather_object([generator_states()])
        if not trainer.is_main:
            return
        if trainer.run_log is not None:
            trainer.run_log.flush()
        n_averaged = 0 if average is None else average.count

        def write(folder: Path) -> None:
            trainer.model.save_pretrained(folder)
            write_tensors(folder / "optimizer.safetensors", optimizer_tensors(engine.optimizer, trainer.model))
            if average is not None and n_averaged:
                write_tensors(folder / "average.safetensors", average.weights)

        state = {"step": engine.step, "seconds": trainer.seconds(), "max_length": trainer.lengths.max_length}
        state |= {"n_averaged": n_averaged, **vars(trainer.progress), "lr": float(engine.optimizer.param_groups[0]["lr"])}
        state |= {"generators": generators[0], "generators_of_others": generators[1:]}
        write_checkpoint(self._folder / "last", write, state)

    def write_weights(self, name: str) -> None:
        """Write a checkpoint that holds the model alone."""
        trainer = self._trainer
        if trainer.is_main:
            state = {"step": trainer.engine.step, "best": trainer.progress.best}
            write_checkpoint(self._folder / name, trainer.model.save_pretrained, state)

    def restore(self) -> None:
        """Set the trainer to checkpoint "last" if there is one. Raises SettingError if it is damaged."""
        trainer, folder = self._trainer, find_checkpoint(self._folder / "last")
        if folder is None:
            return
        state = {RENAMED.get(name, name): value for name, value in read_checkpoint(folder).items()}
        load_weights(trainer.model, folder)
        try:
            trainer.engine.step, trainer.earlier_seconds = state["step"], state["seconds"]
            trainer.progress = Progress(**{name: state[name] for name in vars(trainer.progress)})
            restore_optimizer(trainer.engine.optimizer, trainer.model, read_tensors(folder / "optimizer.safetensors"))
            if trainer.average is not None and state["n_averaged"]:
                trainer.average.restore(read_tensors(folder / "average.safetensors"), state["n_averaged"])
            states = [state["generators"], *state.get("generators_of_others", [])]
            process = trainer.accelerator.process_index
            if process < len(states):  # a process that the run did not have before keeps its fresh generators
                restore_generators(states[process])
            trainer.lengths.max_length = state["max_length"]
        except (KeyError, TypeError, ValueError) as error:
            raise SettingError(f"{folder}: damaged ({one_line(error)}), needed the checkpoint that training wrote") from None


class ProgressBar(Callback):
    """Shows a progress bar in a terminal, and a line for each validation and test on stderr; nothing with `shown` False."""

    def __init__(self, steps: int, steps_made: int, metric: str, *, shown: bool) -> None:
        self._metric = metric
        self._console = Console(stderr=True, quiet=not shown)
        self._bar = rich_progress.Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            disable=not (shown and self._console.is_terminal),
        )
        self._task = self._bar.add_task("training", total=steps, completed=steps_made, rate="", note="")

    def __enter__(self) -> "ProgressBar":
        self._bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.__exit__(kind, error, trace)

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Show the steps made and the speed."""
        speed = self._bar.tasks[0].speed
        self._bar.update(self._task, completed=engine.step, rate=f"{speed:.1f} steps/s" if speed else "")

    def on_log(self, engine: Engine, row: Row) -> None:
        """Show a training row next to the bar, any other as a line."""
        words = [f"{row['split']} loss {_four_digits(row['loss'])}"]
        if self._metric in row:
            words.append(f"{self._metric} {_four_digits(row[self._metric])}")
        if "lr" in row:
            words.append(f"lr {row['lr']:.2g}")
        if row["split"] == "train":
            self._bar.update(self._task, note=", ".join(words))
        else:
            self._console.print(f"step {row['step']}: {', '.join(words)}", highlight=False)


def _four_digits(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


class StopOnSignal(TrainerCallback):
    """Saves a checkpoint and raises KeyboardInterrupt after the step in which SIGINT or SIGTERM came.

    The signals are caught from `with` on until the training ends, in the main thread, which alone may handle signals. Of several
    processes none catches them: they would stop at different steps and wait for each other.
    """

    def __init__(self, trainer: "Trainer") -> None:
        super().__init__(trainer)
        self._requested = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopOnSignal":
        if self._trainer.accelerator.num_processes == 1 and threading.current_thread() is threading.main_thread():
            self._handlers = {name: signal.signal(name, self._request) for name in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name, handler in self._handlers.items():
            signal.signal(name, handler)

    def _request(self, _: int, __: FrameType | None) -> None:
        self._requested = True

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Stop if a signal came."""
        if self._requested:
            self._trainer.checkpoints.save()
            raise KeyboardInterrupt

    def on_train_end(self, engine: Engine) -> None:
        """Put back the handlers of the signals."""
        self.__exit__(None, None, None)


class SelectWeights(TrainerCallback):
    """Gives the model the weights that `training.select` names, when the training ends."""

    def on_train_end(self, engine: Engine) -> None:
        """Load or copy the weights. A run that stops before its average starts ends with its last ones."""
        trainer = self._trainer
        selected = trainer.training.select
        if selected == "best":
            trainer.accelerator.wait_for_everyone()
            folder = find_checkpoint(trainer.folder / "checkpoints" / "best")
            assert folder is not None, "a run is validated at its last step"
            load_weights(trainer.model, folder)
        elif selected == "average":
            if trainer.average is not None and trainer.average.count:
                copy_weights(trainer.average.weights, trainer.model)
                trainer.checkpoints.write_weights("average")
            else:
                selected = "last"
        trainer.result["selected"] = selected


class ScoreTestSplit(TrainerCallback):
    """Scores the selected weights on the test split, when the training ends."""

    def on_train_end(self, engine: Engine) -> None:
        """Log a row of scores, and add them to the result."""
        trainer, metric = self._trainer, self._trainer.task.metric
        scores = trainer.evaluate("test", trainer.model)
        row = {"loss": number(scores.loss), **scores.values}
        trainer.log("test", row)
        value = scores.values[metric]
        trainer.result |= {
            "value": value,
            "scaled": None if value is None else trainer.task.scaled(value),
            "confusion": scores.tables.get("confusion"),
            "by_length": {name.split("/", 1)[1]: v for name, v in scores.values.items() if name.startswith(f"{metric}/")} or None,
            "test": row,
        }


class SymbolAngles(TrainerCallback):
    """Writes the rotation angles of AUSSM layers by input symbol to angles.json, when the training ends."""

    def on_train_end(self, engine: Engine) -> None:
        """Write the file if the model has such layers and the task has symbols."""
        angles = symbol_angles(self._trainer.model, self._trainer.task)
        if angles:
            write_text(self._trainer.folder / "angles.json", json.dumps(angles))
