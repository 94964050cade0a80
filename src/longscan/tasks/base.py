"""What a task is: data as a pure function of (split, step, batch size, seed), a loss, metrics, a constant answer's score."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from longscan._registry import Registry
from longscan.tasks._random import CounterRNG

if TYPE_CHECKING:
    from torchmetrics import Metric

Split = Literal["train", "valid", "test"]
Reduction = Literal["mean", "sum"]


class Batch(NamedTuple):
    """What one step of training or evaluation needs; what a task has no use for is None.

    inputs: (B, L) int64 tokens or (B, L, C) float32 series. targets: (B,) or (B, L) int64 classes, (B, L, C) floats for
    regression, None for inputs read from a user's file. valid: (B, L) bool, the steps that belong to the example (None: all).
    loss_mask: (B, L) bool, the steps whose output is scored (None: the pooled output, or all steps). elapsed: (B, L) time since
    the step before (None: 1). seq_idx: (B, L) int64, which sequence of a row a step belongs to (None: one a row).
    """

    inputs: Tensor
    targets: Tensor | None = None
    valid: Tensor | None = None
    loss_mask: Tensor | None = None
    elapsed: Tensor | None = None
    seq_idx: Tensor | None = None

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch with every tensor on `device`."""
        return Batch(*(None if part is None else part.to(device, non_blocking=True) for part in self))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A data set or a stream of examples, and how a model's output on it is scored.

    The fields of a subclass are its settings. A task is immutable and hashable; `batch` depends on nothing but the settings
    and its arguments, so any number of loader processes, in any order, see the same data, and resuming needs only the step.
    """

    name: ClassVar[str]
    splits: ClassVar[tuple[Split, ...]] = ("train", "valid", "test")
    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    source: ClassVar[str] = "generated"  # where the data come from; "generated" by the task itself

    @property
    @abstractmethod
    def vocab_size(self) -> int | None:
        """Number of input tokens, None where the inputs are series."""

    @property
    @abstractmethod
    def d_input(self) -> int | None:
        """Number of input channels, None where the inputs are tokens."""

    @property
    @abstractmethod
    def num_classes(self) -> int | None:
        """Number of answers to choose from, None for regression."""

    @property
    @abstractmethod
    def d_output(self) -> int:
        """Size of the model's output vector."""

    @property
    @abstractmethod
    def per_step(self) -> bool:
        """Whether the model answers at every step, (B, L, d_output), or once, (B, d_output), by pooling."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Steps of the longest input of any split."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """What the answers are called, in the order of the outputs; None for regression."""
        return None

    @property
    def symbols(self) -> tuple[str, ...] | None:
        """What the input tokens are called, in the order of their numbers; None where the inputs are series."""
        return None

    @abstractmethod
    def size(self, split: Split) -> int | None:
        """Number of examples of a split, None for an endless stream."""

    @abstractmethod
    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """The batch of a step, a pure function of the settings and the arguments.

        A finite training split is reshuffled for each epoch by `seed`; valid and test come in order; the last batch may be
        smaller. Raises ValueError for an unknown split or a size that is not positive, IndexError beyond the end of a finite
        valid or test.
        """

    @abstractmethod
    def loss(self, output: Tensor, batch: Batch, reduction: Reduction = "mean", smoothing: float = 0.0) -> Tensor:
        """The training loss of a model's output, its mean or its sum over the scored answers.

        smoothing: the share of a target class that is spread over all classes; tasks without classes refuse all but 0.
        """

    @abstractmethod
    def metrics(self, split: Split) -> "dict[str, Metric]":
        """Fresh torchmetrics objects by name, `self.metric` first; "confusion" gives a matrix, the others a scalar."""

    @abstractmethod
    def update(self, metrics: "dict[str, Metric]", output: Tensor, batch: Batch) -> None:
        """Enter a batch into the metrics."""

    @abstractmethod
    def constant_score(self, split: Split = "test") -> float:
        """The raw score on a split of the best constant answer, chosen on that split itself; it looks at no input."""

    def baselines(self, split: Split = "test") -> dict[str, float]:
        """The main metric of predictors that need no training, by name; "constant" is `constant_score` and comes first."""
        return {"constant": self.constant_score(split)}

    def fitted_baselines(self, split: Split = "test", seed: int = 0) -> dict[str, float]:  # noqa: ARG002
        """The main metric on a split of simple methods that are fitted on train; may take minutes."""
        return {}

    @abstractmethod
    def scaled(self, score: float) -> float:
        """The score put on a scale where blind guessing is 0 and perfection 1."""

    @abstractmethod
    def describe(self, batch: Batch, row: int = 0) -> str:
        """One example as text."""

    @abstractmethod
    def read_inputs(self, path: str | Path) -> Batch:
        """The examples of a user's file as one batch without targets; ValueError naming file and line where it does not fit."""

    @abstractmethod
    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:
        """One row of a table for each example: what the output says, in the task's own words."""

    def add_times(self, rows: list[dict[str, str | float]], path: str | Path) -> list[dict[str, str | float]]:  # noqa: ARG002
        """Rows that `decode` gave for the examples of a user's file, with when their answers are of, where the file says so."""
        return rows

    @property
    def shown_as(self) -> Literal["text", "series", "image", "events"]:
        """How a picture shows an example."""
        return "text" if self.d_input is None else "series"

    @property
    def answers_later(self) -> int:
        """How many steps after an input's step lies the step that its target is of."""
        return 0

    def event_places(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Column, row and polarity of tokens (n,) that are events."""
        raise ValueError(f"{self.name}: its tokens are no events (first one: {tokens[:1].tolist()})")

    def at_length(self, length: int) -> Self:
        """The same task with training examples of at most `length` steps, for a length curriculum; valid and test stay."""
        raise ValueError(f"{self.name}: its training examples have no length to choose, so none can be {length}")

    def num_batches(self, split: Split, batch_size: int) -> int | None:
        """Batches in one pass over a split, None for an endless stream."""
        size = self.size(split)
        return None if size is None else -(-size // batch_size)

    def example(self, split: Split = "train") -> str:
        """The first example of a split as text."""
        return self.describe(self.batch(split, 0, 1))


TASKS: Registry[type[Task]] = Registry("task")


def check_request(task: Task, split: str, step: int, batch_size: int, seed: int) -> None:
    """ValueError where the arguments of `Task.batch` make no sense."""
    if split not in task.splits:
        raise ValueError(f"split: {task.name} has {', '.join(task.splits)}, not {split!r}")
    for argument, value, least in (("step", step, 0), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        if value < least:
            raise ValueError(f"{argument} must be at least {least}, not {value}")


@lru_cache(maxsize=4)
def _epoch_order(size: int, seed: int, epoch: int) -> np.ndarray:
    """The order of the training examples in an epoch."""
    return CounterRNG(("epoch", size, seed), epoch).permutation(size)


def rows_of_step(size: int, split: Split, step: int, batch_size: int, seed: int) -> np.ndarray:
    """Which of `size` examples make the batch of a step: reshuffled each epoch for train, in order for valid and test.

    The last batch of an epoch may be smaller. Raises IndexError beyond the end of valid or test.
    """
    batches = -(-size // batch_size)
    epoch, position = divmod(step, batches)
    rows = np.arange(position * batch_size, min((position + 1) * batch_size, size))
    if split == "train":
        return _epoch_order(size, seed, epoch)[rows]
    if epoch:
        raise IndexError(f"step {step} is beyond the {batches} batches of {batch_size} in split {split!r}")
    return rows
