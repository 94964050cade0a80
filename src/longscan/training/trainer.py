"""One deterministic sequence of updates, validations and checkpoints, which a kill may cut and a later process continues.

All that the rest of a run depends on is in checkpoints/last: weights, optimiser, average, step, generator states, the
curriculum's length, the best validation. Batches and learning rates are functions of the step. The logs are cut back to the
checkpoint's step.
"""

import json
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

import longscan.report
from longscan._files import write_text
from longscan.ops.dispatch import NATIVE
from longscan.tasks import Batch
from longscan.training.angles import symbol_angles
from longscan.training.averaging import WeightAverage
from longscan.training.capture import Captured
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
from longscan.training.evaluate import Scores, batch_score, evaluate, number, predict
from longscan.training.lengths import LengthPlan
from longscan.training.loader import Prefetcher
from longscan.training.logs import Row, RunLog, read_rows
from longscan.training.optim import build_optimizer, make_capturable, set_learning_rate
from longscan.training.parsing import one_line, with_section
from longscan.training.progress import ProgressView
from longscan.training.records import describe_run
from longscan.training.run import build_model, first_model, load_weights, refuse_backend, write_settings
from longscan.training.schedule import learning_rate
from longscan.training.settings import SettingError, Settings, refuse
from longscan.training.sharing import Share, share_of
from longscan.training.signals import stop_requests

if TYPE_CHECKING:
    from longscan.models import SequenceModel


@dataclass
class Progress:
    """Where a run stands; all of it is saved. best and valid: validation scores by what was scored ("last", "average")."""

    step: int = 0
    seconds: float = 0.0
    longest: int = 0
    waited: int = 0
    solved: int = 0
    averaged: int = 0
    best: dict[str, Any] | None = None
    valid: dict[str, float | None] = field(default_factory=dict)
    failed: str | None = None
    stopped_early: bool = False


class Trainer:
    """One run in one process (of several, under torchrun): the state that `train` moves forward."""

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
        self.shows = progress and self.is_main
        torch.manual_seed(self.training.seed)
        goes_on = resume and find_checkpoint(folder / "checkpoints" / "last") is not None
        self.model: SequenceModel = (build_model if goes_on else first_model)(settings).to(accelerator.device)
        if accelerator.process_index:  # the same weights as the others, and dropout of its own
            torch.manual_seed(self.training.seed + accelerator.process_index)
        self._try_batch()
        self.optimizer = build_optimizer(self.model, self.training)
        self.average = WeightAverage(self.model, self.training.average)
        self.lengths = LengthPlan(settings)
        self.at = Progress(longest=self.lengths.longest)
        self.wrapped: nn.Module = accelerator.prepare_model(self.model) if accelerator.num_processes > 1 else self.model
        self.finite = torch.ones((), dtype=torch.bool, device=accelerator.device)
        self.captured: Captured | None = None
        if self.training.capture and accelerator.device.type == "cuda":
            make_capturable(self.optimizer, accelerator.device)
            self.captured = Captured(self._advance, accelerator.device)

    def _try_batch(self) -> None:
        """Meet the data once before anything is written, so that what is wrong with it is a line and not a failed run."""
        try:
            batch = self.task.batch("train", 0, self.training.batch_size, self.settings.data_seed)
        except (ValueError, OSError) as error:
            raise SettingError(with_section("task", error, type(self.task))) from error
        except (MemoryError, OverflowError):
            raise refuse("training.batch_size", self.training.batch_size, "a batch that fits into memory") from None
        if self.training.capture:
            self._check_capture(batch)
        if self.settings.model.backend in NATIVE:
            self._try_backend(batch)
        for split in self.task.splits[1:]:
            if self.task.size(split) is None and not self.training.max_batches(split):
                setting = "test_batches" if split == "test" else "eval_batches"
                raise refuse(f"training.{setting}", 0, f"a number of batches, as split {split} of {self.task.name} is endless")

    def _check_capture(self, batch: Batch) -> None:
        """SettingError where an update can not be recorded; the same on all devices."""
        if self.accelerator.num_processes > 1:
            raise refuse("training.capture", True, f"false, as {self.accelerator.num_processes} processes exchange gradients")
        if batch.loss_mask is not None or (self.task.per_step and batch.valid is not None):
            raise refuse("training.capture", True, f"false, as {self.task.name} scores some of the steps, and how many varies")

    @torch.no_grad()
    def _try_backend(self, batch: Batch) -> None:
        """Run the model on the first example of a batch; SettingError where the backend that is asked for can not run here."""
        first = Batch(*(None if tensor is None else tensor[:1] for tensor in batch))  # type: ignore[arg-type]
        self.model.eval()  # in which nothing is drawn and no statistics move, so that the run is the same as without this look
        try:
            with self.accelerator.autocast():
                predict(self.model, first.to(self.accelerator.device))
        except ValueError as error:
            if not str(error).startswith("backend: "):
                raise
            raise refuse_backend(self.settings.model.backend, error) from None
        finally:
            self.model.train()

    def run(self) -> None:
        """From where the run stands to its end."""
        last = find_checkpoint(self.folder / "checkpoints" / "last")
        if last is not None:
            self._restore(last)
        if self.is_main:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_settings(self.folder, self.settings)
            (self.folder / "result.json").unlink(missing_ok=True)
        self.described = describe_run(self.settings, self.model, self.accelerator.device, self.command)
        self.clock = time.perf_counter() - self.at.seconds
        with ExitStack() as stack:
            self.log = stack.enter_context(closing(self._open_log())) if self.is_main else None
            view = ProgressView(self.training.steps, self.at.step, self.task.metric, shown=self.shows)
            self.view = stack.enter_context(view)
            self._train()
            self._finish()
        self.accelerator.wait_for_everyone()

    def _open_log(self) -> RunLog:
        """The logs, cut back to the step where the run stands."""
        kept = read_rows(self.folder / "metrics.jsonl", self.at.step)
        rows = [row for row in kept if row["step"] <= self.at.step and row["split"] != "test"]
        return RunLog(self.folder, self._columns(), rows)

    def _train(self) -> None:
        """The updates that are left."""
        pin = self.accelerator.device.type == "cuda"
        seed, depth = self.settings.data_seed, self.training.prefetch
        # Several processes would stop at different steps and wait for each other.
        alone = self.accelerator.num_processes == 1
        with (
            Prefetcher(self.lengths.task, self.training.batch_size, seed, depth=depth, pin=pin) as batches,
            stop_requests(active=alone) as asked_to_stop,
        ):
            while self.at.step < self.training.steps and not self.at.stopped_early and self.at.failed is None:
                self._update(batches.get(self.at.step))
                if asked_to_stop.is_set():
                    self._save()
                    raise KeyboardInterrupt

    def _columns(self) -> list[str]:
        names = dict.fromkeys(
            name for split in self.task.splits for name, metric in self.task.metrics(split).items() if name != "confusion"
        )
        extra = ["average_loss", *(f"average_{name}" for name in names)] if self.training.average else []
        return ["step", "split", "loss", *names, *extra, "lr", "grad_norm", "max_length", "seconds"]

    # One update, and what may follow it.

    def _update(self, batch: Batch) -> None:
        training = self.training
        accelerator = self.accelerator
        share = share_of(batch, self.task, training.loss_reduction, accelerator.process_index, accelerator.num_processes)
        rate = learning_rate(self.at.step, training)
        set_learning_rate(self.optimizer, rate)
        batch = share.rows.to(accelerator.device)
        output, norm = self._advance(batch, share.factor) if self.captured is None else self.captured(batch)
        self.at.step += 1
        if training.average and self.at.step > training.average_start * training.steps:
            self.average.update()
        self._after_update(output, share._replace(rows=batch), rate, norm)

    def _advance(self, batch: Batch, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        """Forward, backward and optimiser: the output and the norm of the gradient."""
        training = self.training
        self.optimizer.zero_grad()
        with self.accelerator.autocast():
            output = predict(self.wrapped, batch)
        loss = self.task.loss(output, batch, training.loss_reduction, training.label_smoothing) * factor
        self.accelerator.backward(loss)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), training.clip or float("inf"))
        self.finite &= torch.isfinite(norm) & torch.isfinite(loss.detach())
        self.optimizer.step()
        return output.detach(), norm

    def _after_update(self, output: Tensor, share: Share, rate: float, norm: Tensor) -> None:
        training, step = self.training, self.at.step
        final = step == training.steps
        logs, looks = step % training.log_every == 0 or step == 1 or final, self.lengths.looks_at(step)
        evaluates = final or bool(training.eval_every and step % training.eval_every == 0)
        saves = evaluates or bool(training.checkpoint_every and step % training.checkpoint_every == 0)
        if (logs or saves) and not self._is_finite():
            self.at.failed = f"the loss or its gradient was no finite number by step {step}"
            return
        score = 0.0
        if logs or looks:
            batch = share.rows
            found = self.task.loss(output, batch).item(), batch_score(self.task, output, batch)
            loss, score = self._whole_batch(*found, share.weight)
        if logs:
            row: Row = {"loss": number(loss), self.task.metric: number(score), "lr": rate}
            row["grad_norm"] = number(norm.item())
            if self.lengths.longest:
                row["max_length"] = self.lengths.longest
            self._log("train", row)
        if looks:
            self.lengths.score(score)
            self.at.longest = self.lengths.longest
        if evaluates:
            self._validate()
        if saves:
            self._save()
        self.view.step(step)

    def _is_finite(self) -> bool:
        """Whether every loss and gradient so far was a finite number, on all processes alike."""
        wrong = (~self.finite).float()
        return not bool(wrong if self.accelerator.num_processes == 1 else self.accelerator.reduce(wrong))

    def _whole_batch(self, loss: float, score: float, weight: float) -> tuple[float, float]:
        """Loss and score over the shares of all processes."""
        if self.accelerator.num_processes == 1:
            return loss, score
        sums = torch.tensor([loss * weight, score * weight, weight], device=self.accelerator.device)
        loss, score, weight = self.accelerator.reduce(sums).tolist()
        return loss / weight, score / weight

    def _log(self, split: str, row: Row) -> None:
        row = {"step": self.at.step, "split": split, **row, "seconds": round(time.perf_counter() - self.clock, 3)}
        if self.log is not None:
            self.log.add(row)
        self.view.row(row)

    def _scores(self, split: Any) -> Scores:
        return evaluate(
            self.model,
            self.task,
            split,
            batch_size=self.training.batch_size,
            seed=self.settings.data_seed,
            max_batches=self.training.max_batches(split),
            autocast=self.accelerator.autocast,
        )

    def _validate(self) -> None:
        """Score the weights, and their average, on validation; note the best and how long ago it was."""
        scores = self._scores("valid")
        row: Row = {"loss": number(scores.loss), **scores.values}
        self.at.valid = {"last": scores.values[self.task.metric]}
        if self.average.count:
            with self.average.applied():
                averaged = self._scores("valid")
            row |= {"average_loss": number(averaged.loss)} | {f"average_{name}": value for name, value in averaged.values.items()}
            self.at.valid["average"] = averaged.values[self.task.metric]
        self._log("valid", row)
        if self._improves(scores):
            self.at.best = {"step": self.at.step, "value": scores.values[self.task.metric], "loss": number(scores.loss)}
            self.at.waited = 0
            if self.is_main:
                self._write("best")
        else:
            self.at.waited += 1
            self.at.stopped_early = bool(self.training.patience) and self.at.waited >= self.training.patience
        if self.training.solved_at:
            self.at.solved = self.at.solved + 1 if self._is_solved() else 0
            self.at.stopped_early |= self.at.solved >= self.training.solved_for

    def _is_solved(self) -> bool:
        """Whether the weights that the run would end with have just scored `solved_at` on validation."""
        value = self.at.valid.get("average" if self.training.select == "average" else "last")
        if value is None:
            return False
        return value >= self.training.solved_at if self.task.higher_is_better else value <= self.training.solved_at

    def _improves(self, scores: Scores) -> bool:
        """Whether this validation beats the best; between equal metrics the smaller loss wins."""
        value, best = scores.values[self.task.metric], self.at.best
        if value is None or best is None or best["value"] is None:
            return value is not None or best is None
        sign = 1 if self.task.higher_is_better else -1
        return (sign * value, -scores.loss) > (sign * best["value"], -inf if best["loss"] is None else -best["loss"])

    # Checkpoints.

    def _write(self, name: str) -> None:
        write_checkpoint(
            self.folder / "checkpoints" / name, self.model.save_pretrained, {"step": self.at.step, "best": self.at.best}
        )

    def _save(self) -> None:
        """Checkpoint "last", after which the logs hold nothing that a resumed run would write again."""
        generators = gather_object([generator_states()])
        if not self.is_main:
            return
        self.at.seconds = time.perf_counter() - self.clock
        self.at.averaged = self.average.count
        if self.log is not None:
            self.log.flush()

        def write(folder: Path) -> None:
            self.model.save_pretrained(folder)
            write_tensors(folder / "optimizer.safetensors", optimizer_tensors(self.optimizer, self.model))
            if self.average.count:
                write_tensors(folder / "average.safetensors", self.average.weights)

        state = {**vars(self.at), "generators": generators[0], "lr": float(self.optimizer.param_groups[0]["lr"])}
        state["generators_of_others"] = generators[1:]
        write_checkpoint(self.folder / "checkpoints" / "last", write, state)

    def _restore(self, folder: Path) -> None:
        state = read_checkpoint(folder)
        load_weights(self.model, folder)
        try:
            self.at = Progress(**{name: state[name] for name in vars(self.at)})
            restore_optimizer(self.optimizer, self.model, read_tensors(folder / "optimizer.safetensors"))
            if self.at.averaged:
                self.average.restore(read_tensors(folder / "average.safetensors"), self.at.averaged)
            states = [state["generators"], *state.get("generators_of_others", [])]
            if self.accelerator.process_index < len(states):  # a process that the run did not have before keeps its fresh ones
                restore_generators(states[self.accelerator.process_index])
        except (KeyError, TypeError, ValueError) as error:
            raise SettingError(f"{folder}: damaged ({one_line(error)}), needed the checkpoint that training wrote") from None
        self.lengths.longest = self.at.longest

    # The end.

    def _finish(self) -> None:
        """Choose the weights, test them, write result.json, angles.json and report.html."""
        result = {**self.described, "steps": self.at.step, "status": "finished", "stopped_early": self.at.stopped_early}
        result |= {"value": None, "scaled": None, "selected": None, "confusion": None, "by_length": None, "test": None}
        result["valid"] = {**self.at.valid, "best": self.at.best and self.at.best["value"]}
        result |= {"constant": None, "constant_scaled": None}
        if self.tests:
            constant = self.task.constant_score("test")
            result |= {"constant": constant, "constant_scaled": self.task.scaled(constant)}
        if self.at.failed is not None:
            result |= {"status": "failed", "failure": self.at.failed}
        else:
            result["selected"] = self._select()
            if self.tests:
                result |= self._test()
        result["seconds"] = round(time.perf_counter() - self.clock, 3)
        if self.is_main:
            angles = symbol_angles(self.model, self.task) if self.at.failed is None else {}
            if angles:
                write_text(self.folder / "angles.json", json.dumps(angles))
            write_text(self.folder / "result.json", json.dumps(result, indent=1))
            longscan.report.run_report(self.folder)

    def _test(self) -> dict[str, Any]:
        """Score the chosen weights on the test split."""
        scores = self._scores("test")
        self._log("test", {"loss": number(scores.loss), **scores.values})
        value = scores.values[self.task.metric]
        lengths = {name.split("/", 1)[1]: v for name, v in scores.values.items() if name.startswith(f"{self.task.metric}/")}
        return {
            "value": value,
            "scaled": None if value is None else self.task.scaled(value),
            "confusion": scores.tables.get("confusion"),
            "by_length": lengths or None,
            "test": {"loss": number(scores.loss), **scores.values},
        }

    def _select(self) -> str:
        """Put the weights that the run ends with into the model and say which; no average where a run stops before it starts."""
        selected = "last" if self.training.select == "average" and not self.average.count else self.training.select
        if selected == "best":
            self.accelerator.wait_for_everyone()
            folder = find_checkpoint(self.folder / "checkpoints" / "best")
            assert folder is not None, "a finished run was validated at its last step"
            load_weights(self.model, folder)
        elif selected == "average":
            parameters = dict(self.model.named_parameters())
            with torch.no_grad():
                for name, value in self.average.weights.items():
                    parameters[name].copy_(value)
            if self.is_main:
                self._write("average")
        return selected
