"""Train several seeds of one recipe together, to measure how often and how soon training finds the exact solution.

The parameters of all seeds are stacked on a leading axis and the forward pass runs under `torch.vmap`, so a GPU trains five
small models in the time of one; on a GPU an update is captured once as a CUDA graph and replayed. Model, task, schedule,
parameter groups, curriculum and averaging are those of `longscan train`, and so are the initial weights and data of a seed. Every
`--every` steps each seed is scored on validation words of the evaluation lengths (the newest weights, and their average if the
recipe has one), and a small file is rewritten from which the same command resumes. Several stacks read the same batches, each on
a separate CUDA stream and with a separate record, OUT-STACK.json.

Each seed's weights are selected by the recipe's rule (`training.select`: the best on validation, the average, or the last ones).
For a seed that is solved according to `training.solved_at` they are those of that step, although its updates continue. The
selected weights are scored on the test split once, after the last update; "selected" in the record has rule, steps and scores.

    python benchmarks/seeds.py recipes/aussm/parity.yaml --training.steps 30000 --out results/seeds/parity_published.json
    python benchmarks/seeds.py recipes/aussm/parity.yaml --model.spec mm --out results/seeds/parity_mamba.json
    python benchmarks/seeds.py recipes/aussm/parity.yaml --stacks mm aa ma am --out results/table1/aussm/parity.json
    python benchmarks/seeds.py --draw results/seeds results/seeds/success.png
    python benchmarks/seeds.py --table results/table1 results/table1/table1.md
    python benchmarks/seeds.py --tests results/protocol results/protocol/tests.md

Further arguments are settings, as on the command line of `longscan train`.
"""

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from longscan._specs import SPEC_VERSION
from longscan.engine import Callback, Engine, GraphedStep, StepResult, WeightAverage, copy_weights
from longscan.layers.parameters import mark, parameter_options
from longscan.models import find_block, parse_spec
from longscan.report.published import published_table, valid_score
from longscan.report.statistics import mean_interval
from longscan.tasks import Batch
from longscan.tasks.base import Split
from longscan.training.batches import LengthSchedule
from longscan.training.parsing import parse_settings
from longscan.training.run import commit, first_model
from longscan.training.settings import SettingError, Settings, TrainingSettings
from longscan.training.trainer import build_optimizer

EXACT = 1 - 1e-6  # a scaled accuracy above it means that all answers are right, up to the rounding of a mean
MOMENTS = ("exp_avg", "exp_avg_sq")  # names of AdamW's moments
BLOCK = 10  # steps whose batches go from a loader process to the GPU together
EVAL_BATCH = 250  # words of valid and test that are scored together
SUCCESS = 0.99  # scaled accuracy from which a seed counts as having found the solution


class Stacked(nn.Module):
    """The parameters of several models of one shape, stacked on a leading axis, and the forward pass of all models.

    fused: run one model after the other with torch's fused recurrent kernels, on a GPU each on its own stream, and read padding
    as other steps. The scored outputs are the same, because they precede the padding and the models are causal.
    """

    def __init__(self, models: list[nn.Module], *, fused: bool = False) -> None:
        super().__init__()
        self.fused = fused
        self.streams: list[torch.cuda.Stream] = []
        self.template = [models[0].to("meta")]  # in a list, so that its parameters are not this module's
        self.names = {}
        for name, parameter in models[0].named_parameters():
            stacked = nn.Parameter(torch.stack([dict(model.named_parameters())[name].detach() for model in models[1:]]))
            key = name.replace(".", "/")
            self.register_parameter(key, mark(stacked, **parameter_options(parameter)._asdict()))
            self.names[key] = name

    def forward(self, inputs: Tensor, valid: Tensor) -> Tensor:
        """Return the outputs (K, B, L, classes) of K models for inputs and valid (K, B, L)."""

        def one(parameters: dict[str, Tensor], inputs: Tensor, valid: Tensor) -> Tensor:
            return functional_call(self.template[0], parameters, (inputs,), {"valid": valid})

        parameters = {name: getattr(self, key) for key, name in self.names.items()}
        if self.fused:
            return self.run_fused({name: value.unbind() for name, value in parameters.items()}, inputs)
        return torch.vmap(one)(parameters, inputs, valid)

    def run_fused(self, parameters: dict[str, tuple[Tensor, ...]], inputs: Tensor) -> Tensor:
        """Return the outputs of the K models for inputs (K, B, L), or for the same inputs (1, B, L)."""
        count = len(next(iter(parameters.values())))
        inputs = inputs.expand(count, -1, -1)
        if inputs.is_cuda and not self.streams:
            self.streams = [torch.cuda.Stream() for _ in range(count)]
        outputs = []
        for i in range(count):
            with self.on_stream(i):
                values = {name: each[i] for name, each in parameters.items()}
                outputs.append(functional_call(self.template[0], values, (inputs[i],)))
        if self.streams:
            for stream, output in zip(self.streams, outputs, strict=True):
                torch.cuda.current_stream().wait_stream(stream)
                output.record_stream(torch.cuda.current_stream())
        return torch.stack(outputs)

    @contextmanager
    def on_stream(self, i: int) -> Iterator[None]:
        """Work on the stream of model `i`, after the work that the current stream has begun."""
        if not self.streams:
            yield
            return
        self.streams[i].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.streams[i]):
            yield


class TrainingBatches(IterableDataset):
    """Iterates over the batches of all seeds for the steps from `start` to `stop`, with BLOCK steps on a leading axis."""

    def __init__(
        self, lengths: list[LengthSchedule], seeds: list[int], training: TrainingSettings, start: int, stop: int
    ) -> None:
        self.lengths, self.seeds, self.start, self.stop = lengths, seeds, start, stop
        self.batch_size, self.repeats = training.batch_size, training.batch_repeats

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        first, every = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for begin in range(self.start + first * BLOCK, self.stop, every * BLOCK):
            steps = range(begin, min(begin + BLOCK, self.stop))
            yield stack_batches([stack_batches([self._batch(i, step) for i in range(len(self.seeds))]) for step in steps])

    def _batch(self, i: int, step: int) -> Batch:
        batch = self.lengths[i].task(step).batch("train", step // self.repeats, self.batch_size, self.seeds[i])
        return fill_rows(batch, self.batch_size)


def fill_rows(batch: Batch, count: int) -> Batch:
    """Fill a batch up to `count` rows with its first row without scored steps, as the last batch of an epoch can be smaller."""
    missing = count - len(batch.inputs)
    if not missing:
        return batch
    first = batch.rows(0)
    first = first._replace(loss_mask=torch.zeros_like(first.loss_mask))
    parts = zip(batch, first, strict=True)
    return Batch(*(None if part is None else torch.cat([part, row.expand(missing, *row.shape[1:])]) for part, row in parts))


def stack_batches(batches: list[Batch]) -> Batch:
    """Stack batches on a leading axis, padded on the right to the longest."""
    width = max(batch.inputs.shape[-1] for batch in batches)

    def stack(part: str, fill: int) -> Tensor:
        values = [getattr(batch, part) for batch in batches]
        return torch.stack([nn.functional.pad(value, (0, width - value.shape[-1]), value=fill) for value in values])

    return Batch(stack("inputs", 0), stack("targets", -100), stack("valid", 0), stack("loss_mask", 0))


def summed_losses(output: Tensor, batch: Batch, smoothing: float) -> Tensor:
    """Return the cross-entropy of each seed, summed over the answers, (K,)."""
    logits, targets = output.movedim(-1, 1).float(), batch.targets.clamp(min=0)
    each = nn.functional.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    return (each * batch.loss_mask).sum((1, 2))


def accuracies(output: Tensor, batch: Batch) -> Tensor:
    """Return the fraction of right answers of each seed, (K,)."""
    right = (output.argmax(-1) == batch.targets) & batch.loss_mask
    return right.sum((1, 2)) / batch.loss_mask.sum((1, 2))


def clip_each(parameters: list[nn.Parameter], max_norm: float) -> Tensor:
    """Clip the gradient of each of K stacked models at a norm, in place (0: no clipping); return the norms before, (K,)."""
    gradients = [parameter.grad for parameter in parameters]
    norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
    if max_norm:
        factors = (max_norm / (norms + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factors.view(-1, *(1,) * (gradient.ndim - 1)))
    return norms


def pad_batch(batch: Batch, width: int) -> Batch:
    """Pad a batch (K, B, L) on the right with invalid steps, up to `width` steps."""
    missing = width - batch.inputs.shape[2]
    if not missing:
        return batch
    parts = zip(batch, (0, -100, 0, 0, 0, 0), strict=True)
    return Batch(*(None if part is None else nn.functional.pad(part, (0, missing), value=fill) for part, fill in parts))


def training_tensors(model: nn.Module, engine: Engine, average: WeightAverage | None) -> dict[str, Tensor]:
    """Return the weights, the moments of AdamW and the averaged weights, by the names that `restore_training` reads."""
    tensors = {} if average is None else {f"average:{name}": weight for name, weight in average.weights.items()}
    for name, parameter in model.named_parameters():
        tensors[f"weight:{name}"] = parameter.detach()
        tensors |= {f"{key}:{name}": engine.optimizer.state[parameter][key] for key in MOMENTS}
    return tensors


@torch.no_grad()
def restore_training(
    model: nn.Module, engine: Engine, average: WeightAverage | None, tensors: dict[str, Tensor], n_averaged: int
) -> None:
    """Restore what `training_tensors` returned; the engine's step has been set. n_averaged: steps that the average is over."""
    names = []
    for name, parameter in model.named_parameters():
        parameter.copy_(tensors[f"weight:{name}"])
        moments = {key: tensors[f"{key}:{name}"].to(parameter.device) for key in MOMENTS}
        engine.optimizer.state[parameter] = {"step": torch.tensor(float(engine.step), device=parameter.device), **moments}
        names.append(name)
    if average is not None and n_averaged:
        average.restore({name: tensors[f"average:{name}"] for name in names}, n_averaged)


@contextmanager
def temporary_weights(model: nn.Module, weights: dict[str, Tensor]) -> Iterator[None]:
    """Give a model other weights within a `with` block, in place, because captured CUDA graphs read them there."""
    saved = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    copy_weights(weights, model)
    try:
        yield
    finally:
        copy_weights(saved, model)


class Seeds(Callback):
    """Trains all seeds of one stack, with a record from which it resumes.

    out: file of the record. command: the command line, for the record. every: steps between two evaluations.
    fused: see `Stacked`.
    """

    def __init__(
        self, settings: Settings, seeds: list[int], out: Path, command: str, every: int = 500, *, fused: bool = False
    ) -> None:
        self.settings, self.training, self.seeds, self.out, self.every = settings, settings.training, seeds, out, every
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        models = []
        for seed in [seeds[0], *seeds]:
            torch.manual_seed(seed)
            models.append(first_model(settings))
        layers = {block["layer"] for block in parse_spec(settings.model.spec)}
        if fused and not (layers <= {"gru", "lstm"} and settings.model.norm != "batch" and models[0].pooling == "none"):
            raise SettingError("--fused: the spec must have only gru and lstm blocks, without batch norm and pooling")
        self.model = Stacked(models, fused=fused).to(self.device)
        self.average: WeightAverage | None = None
        if self.training.average:
            self.average = WeightAverage(self.model, self.training.average, self.training.average_start * self.training.steps)
        self.engine = Engine(
            build_optimizer(self.model, self.training),
            self.compute_loss,
            learning_rate=self.training.learning_rate,
            clip_gradients=partial(clip_each, list(self.model.parameters()), self.training.clip),
            callbacks=[self] if self.average is None else [self.average, self],
        )
        self.width = 0  # steps of the widest batch so far
        self.selected: dict[str, Tensor] = {}  # the selected weights of each seed, (K, ...) by parameter
        self.lengths = [LengthSchedule(settings) for _ in seeds]
        self.forward_eval: Callable[[Batch], Tensor] = self.count_right
        if self.device == "cuda":
            self.forward_eval = GraphedStep(self.count_right, torch.device("cuda"))
        self.stream = torch.cuda.Stream() if self.device == "cuda" else None
        self.seconds = 0.0
        self.record: dict[str, Any] = {
            "task": settings.task.name,
            "suite": getattr(settings.task, "suite", None),
            "spec": settings.model.spec,
            "spec_version": SPEC_VERSION,
            "seeds": seeds,
            "constant_scaled": settings.task.scaled(settings.task.constant_score("valid")),
            "constant_scaled_test": settings.task.scaled(settings.task.constant_score("test")),
            "success": SUCCESS,
            "rows": [],
            "selected": {"rule": self.training.select, "step": [0] * len(seeds), "valid": [None] * len(seeds), "test": None},
            "solved": [0] * len(seeds),
            "settings": settings.as_dict(),
            "command": command,
            "commit": commit(),
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if self.device == "cuda" else "cpu",
        }
        if out.exists():
            self.restore()
        self.earlier_seconds = self.seconds  # of earlier calls
        if self.stream:
            torch.cuda.synchronize()  # the stream of the stack does not wait for writes on the current stream

    def restore(self) -> None:
        """Resume from the file next to the record."""
        self.record = json.loads(self.out.read_text(encoding="utf-8"))
        tensors = load_file(self.out.with_suffix(".safetensors"))
        self.engine.step, self.seconds = self.record["steps"], self.record["seconds"]
        restore_training(self.model, self.engine, self.average, tensors, self.record["averaged"])
        for schedule, length in zip(self.lengths, self.record["longest"], strict=True):
            schedule.max_length = length
        selected = {name.removeprefix("selected:"): value for name, value in tensors.items() if name.startswith("selected:")}
        self.selected = {name: value.to(self.device) for name, value in selected.items()}

    def save(self) -> None:
        """Replace the record and the file of tensors, each atomically."""
        if self.stream:
            self.stream.synchronize()  # so that no step is halfway through
        tensors = training_tensors(self.model, self.engine, self.average)
        tensors |= {f"selected:{name}": value for name, value in self.selected.items()}
        self.record |= {"steps": self.engine.step, "seconds": self.seconds, "averaged": self.n_averaged}
        self.record["longest"] = [schedule.max_length for schedule in self.lengths]
        self.out.parent.mkdir(parents=True, exist_ok=True)
        for path, write in (
            (self.out.with_suffix(".safetensors"), lambda to: save_file(tensors, to)),
            (self.out, lambda to: Path(to).write_text(json.dumps(self.record), encoding="utf-8")),
        ):
            write(f"{path}.new")
            os.replace(f"{path}.new", path)

    @torch.no_grad()
    def scores(self, split: Split) -> list[float]:
        """Return the scaled accuracy of each seed on the valid or the test split."""
        count, task = len(self.seeds), self.settings.task
        total = torch.zeros(count, device=self.device)
        answers = 0
        for step in range(task.num_batches(split, EVAL_BATCH)):
            batch = pad_batch(stack_batches([task.batch(split, step, EVAL_BATCH, 0)]), task.length)
            total += self.forward_eval(batch)
            answers += int(batch.loss_mask.sum())
        return [task.scaled(value) for value in (total / answers).tolist()]

    @property
    def n_averaged(self) -> int:
        """Steps that the average of the weights is over."""
        return 0 if self.average is None else self.average.count

    def count_right(self, batch: Batch) -> Tensor:
        """Return the number of right answers of each seed on a batch (1, B, L) that all seeds read, (K,)."""
        count = len(self.seeds)
        wide = Batch(*(None if part is None else part.expand(count, *part.shape[1:]) for part in batch.to(self.device)))
        return ((self.model(wide.inputs, wide.valid).argmax(-1) == wide.targets) & wide.loss_mask).sum((1, 2))

    @torch.no_grad()
    def select(self, row: dict[str, Any]) -> None:
        """Select the present weights of the seeds for which the recipe's rule chooses this evaluation."""
        training, selected, solved = self.training, self.record["selected"], self.record["solved"]
        averaged = training.select == "average" and bool(self.n_averaged)
        scores = row["average" if averaged else "last"]
        chosen = []
        for i, score in enumerate(scores):
            if self.is_solved(i):
                continue
            if training.select != "best" or selected["valid"][i] is None or score > selected["valid"][i]:
                chosen.append(i)
                selected["step"][i], selected["valid"][i] = self.engine.step, score
            if training.solved_at:
                solved[i] = solved[i] + 1 if score >= self.settings.task.scaled(training.solved_at) else 0
        for name, parameter in self.model.named_parameters():
            values = self.average.weights[name] if averaged else parameter.detach()
            if name not in self.selected:
                self.selected[name] = values.clone()
            self.selected[name][chosen] = values[chosen]

    def is_solved(self, i: int) -> bool:
        """Return whether `training.solved_at` has ended the training of seed number i."""
        return bool(self.training.solved_at) and self.record["solved"][i] >= self.training.solved_for

    def test(self) -> None:
        """Score the selected weights on the test split, if the record has no test scores yet."""
        if self.record["selected"]["test"] is not None:
            return
        with torch.cuda.stream(self.stream) if self.stream else nullcontext():
            with temporary_weights(self.model, self.selected):
                self.record["selected"]["test"] = self.scores("test")
            self.save()
        values = " ".join(f"{value:.4f}" for value in self.record["selected"]["test"])
        print(self.record["spec"], "test, scaled, of the selected weights:", values, flush=True)

    def evaluate(self, train: Tensor, loss: Tensor) -> None:
        """Add a row to the record for the present step."""
        row = {"step": self.engine.step, "train": train.tolist(), "loss": loss.tolist(), "last": self.scores("valid")}
        if self.average is not None and self.average.count:
            with temporary_weights(self.model, self.average.weights):
                row["average"] = self.scores("valid")
        row["seconds"] = round(self.seconds, 1)
        self.record["rows"].append(row)
        self.select(row)
        self.save()
        values = " ".join(f"{value:.3f}" for value in row.get("average", row["last"]))
        print(self.record["spec"], self.engine.step, "scaled", values, f"{self.seconds:.0f} s", flush=True)

    def stays_exact(self, evaluations: int) -> bool:
        """Return whether all answers of every seed were right at each of the last `evaluations` evaluations (0: False)."""
        last = self.record["rows"][-evaluations:] if evaluations else []
        rows = [row.get("average", row["last"]) for row in last]
        return len(rows) == evaluations > 0 and all(value > EXACT for row in rows for value in row)

    def is_finished(self, evaluations: int) -> bool:
        """Return whether the training is over: all steps are made, the stack `stays_exact`, or all seeds are solved."""
        over = self.engine.step >= self.training.steps or self.stays_exact(evaluations)
        return over or all(map(self.is_solved, range(len(self.seeds))))

    def train(self, batch: Batch, seconds: float) -> None:
        """Make an update of every seed on a batch (K, B, L). seconds: time since this call began."""
        self.seconds = self.earlier_seconds + seconds
        with torch.cuda.stream(self.stream) if self.stream else nullcontext():
            if self.device == "cuda":  # one CUDA graph for the widest batches; other batches are padded to their width
                if batch.inputs.shape[2] > self.width:
                    self.width = batch.inputs.shape[2]
                    self.engine.capture(torch.device("cuda"))
                batch = pad_batch(batch, self.width)
            self.engine.update(batch)

    def compute_loss(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the sum of the seeds' losses, and each seed's accuracy and loss, (K,) each."""
        output = self.model(batch.inputs, batch.valid)
        losses = summed_losses(output, batch, self.training.label_smoothing)
        if self.training.loss_reduction == "mean":
            losses = losses / batch.loss_mask.sum((1, 2))
        return losses.sum(), (accuracies(output.detach(), batch), losses.detach())

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Update the curricula at the steps that need a score, and evaluate every `every` steps and at the last one."""
        accuracy, losses = result.outputs
        if any(schedule.needs_score(engine.step) for schedule in self.lengths):
            for schedule, value in zip(self.lengths, accuracy.tolist(), strict=True):
                schedule.update(value)
        if engine.step % self.every == 0 or engine.step == self.training.steps:
            self.evaluate(accuracy, losses)


def train_together(stacks: list[Seeds], limit: float, workers: int, evaluations: int) -> None:
    """Train stacks on the same batches for the recipe's steps, or for `limit` seconds, after which the same command resumes.

    workers: number of loader processes. evaluations: a stack ends when `stays_exact(evaluations)`; 0: not before its last step.
    """
    started, first = time.perf_counter(), stacks[0]
    training, curriculum = first.training, first.training.curriculum
    while unfinished := [stack for stack in stacks if not stack.is_finished(evaluations)]:
        step, stop = min(stack.engine.step for stack in unfinished), training.steps
        grows = any(0 < schedule.max_length < curriculum.end for schedule in first.lengths)
        if grows:  # the curriculum may move at its next update, so batches are made no further ahead than that
            stop = min(stop, (step // curriculum.every + 1) * curriculum.every)
        data = TrainingBatches(first.lengths, first.seeds, training, step, stop)
        ahead = {} if grows or not workers else {"num_workers": workers, "prefetch_factor": 4}
        for block in DataLoader(data, batch_size=None, pin_memory=first.device == "cuda", **ahead):
            for parts in zip(*(part for part in block if part is not None), strict=True):
                for stack in unfinished:
                    if stack.engine.step == step and not stack.is_finished(evaluations):
                        stack.train(Batch(*parts), time.perf_counter() - started)
                step += 1
            if time.perf_counter() - started > limit:
                for stack in unfinished:
                    stack.seconds = stack.earlier_seconds + time.perf_counter() - started
                    stack.save()
                return
            if all(stack.is_finished(evaluations) for stack in unfinished):
                break
    for stack in stacks:
        stack.test()


def draw(folder: Path, out: Path) -> None:
    """Draw success rate and the score of every seed against steps, a row of two panels for each record in `folder`."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    records = [(path, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))]
    figure, axes = plt.subplots(len(records), 2, figsize=(11, 3 * len(records)), squeeze=False, layout="constrained")
    for (path, record), (left, right) in zip(records, axes, strict=True):
        steps = [row["step"] for row in record["rows"]]
        scores = [row.get("average", row["last"]) for row in record["rows"]]
        rate = [sum(value >= SUCCESS for value in row) / len(row) for row in scores]
        left.step(steps, rate, where="post", color="#1f5fa8")
        left.set(ylim=(-0.05, 1.05), ylabel="success rate", title=f"{path.stem}: seeds at {SUCCESS:g} or more")
        for number, seed in enumerate(record["seeds"]):
            right.plot(steps, [row[number] for row in scores], lw=1.2, label=f"seed {seed}")
        right.axhline(record["constant_scaled"], color="0.5", ls=":", label="constant predictor")
        right.set(ylim=(-0.3, 1.05), ylabel="scaled accuracy", title="validation, lengths 41-256")
        right.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))  # outside the panel
        for axis in (left, right):
            axis.grid(alpha=0.3)
            axis.set_xlabel("steps")
    figure.savefig(out, dpi=110)


MODELS = {"mm": "Mamba", "aa": "AUSSM", "ma": "AUSSM Hybrid", "am": "AUSSM Hybrid"}  # spec -> its name in the published table


def published_scores(record: dict[str, Any]) -> dict[str, float]:
    """Return the published score of each model on the task of a record."""
    (identity, *_) = record["settings"]["about"]["published"]
    return {row["model"]: valid_score(row) for row in published_table(identity)}


def table(folder: Path, out: Path) -> None:
    """Write a table with a row for each suite and task of the records in `folder`: scores of the stacks and published ones."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    calls: dict[str, float] = {}  # command -> seconds; stacks of a task share a command
    for path in sorted(folder.rglob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if not record["rows"]:
            continue
        scores = [row.get("average", row["last"]) for row in record["rows"]]
        end, best = scores[-1], max(max(row) for row in scores)
        text = f"{sum(end) / len(end):.2f} [{min(end):.2f}, {max(end):.2f}] ({best:.2f})"
        steps = record["rows"][-1]["step"]
        if steps < record["settings"]["training"]["steps"]:
            text += f", {'held 1.00' if min(end) > EXACT else 'stopped'} at {steps:,}"
        row = cells.setdefault((record["suite"], record["task"]), {"constant": f"{record['constant_scaled']:.2f}"})
        row[record["spec"]] = text
        row[f"{record['spec']}, published"] = f"{published_scores(record)[MODELS[record['spec']]]}"
        calls[record["command"]] = max(record["seconds"], calls.get(record["command"], 0.0))
    minutes = sum(calls.values()) / 60
    columns = [column for spec in MODELS for column in (spec, f"{spec}, published")]
    lines = [
        "# Formal languages: mean over seeds at the end [lowest, highest] (best of any seed on the way)",
        "",
        f"Scaled accuracy on validation words of lengths 41 to 256; {minutes:.0f} minutes over processes that share GPUs.",
        "",
        f"| suite | task | constant | {' | '.join(columns)} |",
        "|---|---|---|" + "---|" * len(columns),
    ]
    for (suite, task), row in sorted(cells.items()):
        lines.append(f"| {suite} | {task} | {row['constant']} | {' | '.join(row.get(column, '–') for column in columns)} |")
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def tests_table(folder: Path, out: Path) -> None:
    """Write a table with a row for each record in `folder`: test scores of the selected weights, and the published score."""
    lines = [
        "# Seeds trained together: test scores of the weights that the recipe selects",
        "",
        "Scaled accuracy on 10,000 test words of lengths 41 to 256, each seed scored once, after its last update. Success: 0.99",
        "or more. Mean ± half of Student's 95 % interval over seeds.",
        "",
        "| record | suite, task, stack | updates | rule | seeds | mean | success | each seed | constant | published | minutes |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        selected = record.get("selected")
        if selected is None:
            continue
        scores, count = selected["test"], len(record["seeds"])
        if scores is None:
            valid = [value for value in selected["valid"] if value is not None]
            each = f"best on validation {', '.join(f'{value:.3f}' for value in valid)}"
            mean, rate = "not tested", "–"
        else:
            average, half = mean_interval(scores)
            mean = f"{average:.3f}" if half is None else f"{average:.3f} ± {half:.3f}"
            each = ", ".join(f"{value:.3f}" for value in scores)
            rate = f"{sum(value >= SUCCESS for value in scores)} of {count}"
        cells = (
            path.stem, f"{record['suite']} {record['task']}, {record['spec']}",
            f"{record['steps']:,} of {record['settings']['training']['steps']:,}", selected["rule"], count, mean, rate, each,
            f"{record['constant_scaled_test']:.2f}", published_scores(record).get(MODELS.get(record["spec"], ""), "–"),
            f"{record['seconds'] / 60:.0f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def with_spec(settings: Settings, spec: str) -> Settings:
    """Return the settings with another spec, without options of blocks that it does not have."""
    pairs = {(block["layer"], block["block"]) for block in parse_spec(spec)}
    options = {name: values for name, values in settings.model.block_options.items() if find_block(name) in pairs}
    return replace(settings, model=replace(settings.model, spec=spec, block_options=options))


def main(given: list[str] | None = None) -> None:
    """Read the command line, or the arguments given, and train, or draw, or write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--every", type=int, default=500, help="steps between evaluations")
    parser.add_argument("--stacks", nargs="+", default=[], help="specs in place of the recipe's, trained on the same batches")
    parser.add_argument("--held", type=int, default=0, help="end after this number of evaluations at 1.00 of all seeds; 0: never")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which this call stops")
    parser.add_argument("--workers", type=int, default=4, help="loader processes")
    parser.add_argument("--fused", action="store_true", help="one seed after the other with the fused kernels of GRU and LSTM")
    parser.add_argument("--backend", default="eager", help="backend of the scans")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", nargs=2, type=Path, metavar=("FOLDER", "PNG"))
    parser.add_argument("--table", nargs=2, type=Path, metavar=("FOLDER", "MD"))
    parser.add_argument("--tests", nargs=2, type=Path, metavar=("FOLDER", "MD"), help="a table of the tested records of a folder")
    words, further = parser.parse_known_args(given)
    for write, paths in ((draw, words.draw), (table, words.table), (tests_table, words.tests)):
        if paths:
            write(*paths)
            return
    if words.recipe is None or words.out is None:
        parser.error("RECIPE and --out must be given, unless --draw, --table or --tests is")
    command = shlex.join(["python", "benchmarks/seeds.py", *(sys.argv[1:] if given is None else given)])
    try:
        settings = parse_settings(["--config", str(words.recipe), *further])
        settings = replace(settings, model=replace(settings.model, backend=words.backend))
        seeds = list(range(words.seeds))
        if words.stacks and settings.training.curriculum.start:
            parser.error("--stacks: with a curriculum every stack needs other batches; train each in a separate call")
        planned = [(with_spec(settings, spec), words.out.with_stem(f"{words.out.stem}-{spec}")) for spec in words.stacks]
        stacks = [
            Seeds(one, seeds, out, command, words.every, fused=words.fused) for one, out in planned or [(settings, words.out)]
        ]
    except SettingError as error:
        parser.exit(2, f"seeds.py: {error}\n")
    try:
        train_together(stacks, words.limit, words.workers, words.held)
    except KeyboardInterrupt:
        parser.exit(130, "seeds.py: stopped; the same command resumes from the last evaluation\n")


if __name__ == "__main__":
    main()
