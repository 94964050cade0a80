"""The base class of tasks: batches as a pure function of (split, step, batch size, seed), a loss, metrics and baselines."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from longscan._errors import setting_error
from longscan._registry import Registry
from longscan._types import Doc, PositiveInt, Rule, Seed, convert_fields
from longscan.tasks._random import CounterRNG
from longscan.tasks.fitted import FitProgress, ignore_progress

if TYPE_CHECKING:
    from torchmetrics import Metric

Split = Literal["train", "valid", "test"]
Reduction = Literal["mean", "sum"]

# Settings that several tasks have.
TrainSize = Annotated[PositiveInt, Doc("number of training examples of a fixed set")]
ValidSize = Annotated[PositiveInt, Doc("number of validation examples")]
TestSize = Annotated[PositiveInt, Doc("number of test examples")]
ValidFraction = Annotated[
    float,
    Rule(lambda fraction: 0 < fraction < 1, "a number above 0 and below 1"),
    Doc("part of the training examples that becomes the validation split"),
]
SplitSeed = Annotated[Seed, Doc("selects the examples of the splits that are drawn at random")]


class Batch(NamedTuple):
    """Tensors of one step of training or evaluation; None for those that a task does not use.

    inputs: (B, L) int64 tokens or (B, L, C) float32 series. targets: (B,) or (B, L) int64 classes, (B, L, C) floats for
    regression, None for inputs read from a user's file. valid: (B, L) bool, True at steps that are not padding (None: all).
    loss_mask: (B, L) bool, True at steps whose output is scored (None: the pooled output, or all steps). elapsed: (B, L) time
    since the previous step (None: 1). seq_idx: (B, L) int64, number of the sequence of a packed row (None: one sequence per row).
    Of tasks with `is_pair` inputs, valid and elapsed have an axis of size 2 after B.
    """

    inputs: Tensor
    targets: Tensor | None = None
    valid: Tensor | None = None
    loss_mask: Tensor | None = None
    elapsed: Tensor | None = None
    seq_idx: Tensor | None = None

    def to(self, device: torch.device | str) -> "Batch":
        """Return the same batch with every tensor on `device`."""
        return Batch(*(None if part is None else part.to(device, non_blocking=True) for part in self))  # type: ignore[arg-type]

    def pin_memory(self) -> "Batch":
        """Return the same batch in page-locked memory, from which copies to a CUDA device do not wait for the device."""
        return Batch(*(None if part is None else part.pin_memory() for part in self))  # type: ignore[arg-type]

    @property
    def nbytes(self) -> int:
        """The size of all tensors in bytes."""
        return sum(part.nbytes for part in self if part is not None)

    def rows(self, first: int, count: int = 1) -> "Batch":
        """Return the rows from `first` on, at most `count`."""
        return Batch(*(None if part is None else part[first : first + count] for part in self))  # type: ignore[arg-type]

    def valid_steps(self, row: int) -> Tensor:
        """Return which steps of a row are not padding, (L,) bool."""
        if self.valid is None:
            return torch.ones(self.inputs.shape[1], dtype=torch.bool, device=self.inputs.device)
        return self.valid[row]

    def unpadded(self, row: int) -> Tensor:
        """Return the inputs of a row without padding, (length,) or (length, C)."""
        return self.inputs[row] if self.valid is None else self.inputs[row][self.valid[row]]


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A data set or a stream of examples, and the scores of a model's output on it.

    The fields of a subclass are its settings; their annotations declare type, range and help. A task is immutable and hashable;
    `batch` depends only on the settings and its arguments, so any number of loader processes, in any order, see the same data,
    and resuming needs only the step. Raises SettingError naming a setting whose value is not of its declared type or range.
    """

    name: ClassVar[str]  # set by `TASKS.register`
    splits: ClassVar[tuple[Split, ...]] = ("train", "valid", "test")
    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    # Channels, height and width of the image in the first inputs of each step; None if the inputs contain no images.
    image_shape: ClassVar[tuple[int, int, int] | None] = None
    source: ClassVar[str] = "generated"  # where the data come from; "generated" by the task itself

    def __post_init__(self) -> None:
        convert_fields(self)

    @property
    @abstractmethod
    def vocab_size(self) -> int | None:
        """Number of input tokens, None if the inputs are series."""

    @property
    @abstractmethod
    def d_input(self) -> int | None:
        """Number of input channels, None if the inputs are tokens."""

    @property
    @abstractmethod
    def num_classes(self) -> int | None:
        """Number of classes of an answer, None for regression."""

    @property
    @abstractmethod
    def d_output(self) -> int:
        """Size of the model's output vector."""

    @property
    @abstractmethod
    def per_step(self) -> bool:
        """Whether the model answers at every step, (B, L, d_output), or once, (B, d_output), by pooling."""

    @property
    def needs_causal(self) -> bool:
        """Whether the inputs of later steps contain the targets, so that only causal models may be trained."""
        return False

    @property
    def starts_at_zero(self) -> bool:
        """Whether a model begins with the answer 0, because targets are what another forecast leaves over."""
        return False

    @property
    @abstractmethod
    def length(self) -> int:
        """Steps of the longest input of any split."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes in the order of the outputs, None for regression."""
        return None

    @property
    def symbols(self) -> tuple[str, ...] | None:
        """Names of the input tokens in the order of their numbers, None if the inputs are series."""
        return None

    def training_set(self, seed: int = 0) -> Batch | None:  # noqa: ARG002
        """Return the whole training set in the order of the row numbers of `rows_of_step`, if it fits into memory laid out.

        None, the default, for an endless stream and for sets that are read batch by batch.
        """
        return None

    def training_set_bytes(self, seed: int = 0) -> int:
        """Return the size of `training_set` in bytes, 0 without one.

        A task whose batches do not need the whole set computes it without building the set.
        """
        whole = self.training_set(seed)
        return 0 if whole is None else whole.nbytes

    @abstractmethod
    def size(self, split: Split) -> int | None:
        """Return the number of examples of a split, None for an endless stream."""

    @abstractmethod
    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """Return the batch of a step, a pure function of the settings and the arguments.

        A finite training split is reshuffled for each epoch by `seed`; valid and test come in order; the last batch may be
        smaller. Raises ValueError for an unknown split or a size that is not positive, IndexError beyond the end of a finite
        valid or test.
        """

    def example_names(self, split: Split, step: int, batch_size: int, seed: int = 0) -> list[str] | None:  # noqa: ARG002
        """Return a name for each example of `batch` with the same arguments, such as its id in a file; None without names."""
        return None

    @abstractmethod
    def loss(self, output: Tensor, batch: Batch, reduction: Reduction = "mean", smoothing: float = 0.0) -> Tensor:
        """Return the training loss of a model's output, its mean or its sum over the scored answers.

        smoothing: label smoothing, the probability that is spread over all classes; tasks without classes accept only 0.
        """

    @abstractmethod
    def metrics(self, split: Split) -> "dict[str, Metric]":
        """Return new torchmetrics objects by name, `self.metric` first; "confusion" computes a matrix, the others a scalar."""

    @abstractmethod
    def update(self, metrics: "dict[str, Metric]", output: Tensor, batch: Batch) -> None:
        """Update the metrics with the model's output on a batch."""

    @abstractmethod
    def constant_score(self, split: Split = "test") -> float:
        """Return the raw score on a split of the best constant answer, which is chosen on that split itself."""

    def baselines(self, split: Split = "test") -> dict[str, float]:
        """Return the main metric of predictors that need no training, by name; "constant" (`constant_score`) comes first."""
        return {"constant": self.constant_score(split)}

    def fitted_baselines(
        self,
        split: Split = "test",  # noqa: ARG002
        seed: int = 0,  # noqa: ARG002
        on_progress: FitProgress = ignore_progress,  # noqa: ARG002
    ) -> dict[str, float]:
        """Return the main metric on a split of simple methods that are fitted on train, by name; may take minutes.

        on_progress: called with the name of the method, the number of its parts that are done, and the number of its parts.
        """
        return {}

    @abstractmethod
    def scaled(self, score: float) -> float:
        """Return a score on a scale where guessing without input is 0 and perfection 1."""

    @abstractmethod
    def describe(self, batch: Batch, row: int = 0) -> str:
        """Return one example of a batch as a line of text."""

    def read_inputs(self, path: str | Path) -> Batch:
        """Read a user's file as one batch without targets. Raises ValueError naming file and line if its content is invalid.

        Tasks that do not override this method read no files and always raise ValueError.
        """
        raise ValueError(f"`path` must not be given, as task {self.name} does not define read_inputs, got {path}")

    @abstractmethod
    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:
        """Return a table with a row for each example: the model's answer in the terms of the task, by column name."""

    def add_times(self, rows: list[dict[str, str | float]], path: str | Path) -> list[dict[str, str | float]]:  # noqa: ARG002
        """Add the times of the answers to the rows of `decode` for a user's file, if the file has time stamps."""
        return rows

    @property
    def plot_kind(self) -> Literal["text", "series", "image", "events", "forecast"]:
        """Kind of plot that shows an example."""
        return "text" if self.d_input is None else "series"

    @property
    def channel_names(self) -> tuple[str, ...] | None:
        """Names of the input channels, None if the data have none or the inputs are tokens."""
        return None

    @property
    def target_offset(self) -> int:
        """Number of steps between the step of an input and the step that its target describes."""
        return 0

    @property
    def is_pair(self) -> bool:
        """Whether an example is a pair of sequences: inputs (B, 2, L) or (B, 2, L, C), and valid (B, 2, L)."""
        return False

    def event_coordinates(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return column, row and polarity of tokens (n,) that are events."""
        raise ValueError(f"`tokens` must be events, got tokens of {self.name}, first {tokens[:1].tolist()}")

    def at_length(self, length: int) -> Self:
        """Return the same task with training examples of at most `length` steps, for a length curriculum; valid and test stay."""
        raise ValueError(
            f"`length` must be left out, as {self.name} has no setting for the length of its training examples, got {length}"
        )

    def num_batches(self, split: Split, batch_size: int) -> int | None:
        """Return the number of batches of one pass over a split, None for an endless stream."""
        size = self.size(split)
        return None if size is None else -(-size // batch_size)

    def example(self, split: Split = "train") -> str:
        """Return the first example of a split as a line of text."""
        return self.describe(self.batch(split, 0, 1))


class TaskRegistry(Registry[type[Task]]):
    """The registry of tasks, which gives each class its name."""

    def register(self, name: str) -> Callable[[type[Task]], type[Task]]:
        """Return a decorator that registers a task under `name` and sets its attribute `name`."""

        def register_class(task: type[Task]) -> type[Task]:
            task.name = name
            return super(TaskRegistry, self).register(name)(task)

        return register_class


TASKS = TaskRegistry("task")


def is_captured() -> bool:
    """Return whether a CUDA graph is being captured, in which no size may depend on values, such as those of a mask."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]


def check_request(task: Task, split: str, step: int = 0, batch_size: int = 1, seed: int = 0) -> None:
    """Raise ValueError if an argument of `Task.batch` is invalid."""
    if split not in task.splits:
        raise setting_error("split", split, f"one of {', '.join(task.splits)}")
    for argument, value, least in (("step", step, 0), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise setting_error(argument, value, f"a whole number of at least {least}")


def _draw_order(size: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of the training examples in an epoch."""
    return CounterRNG(("epoch", size, seed), epoch).permutation(size)


# Ten seeds that train in one process take turns, each in two epochs. Orders of more than 2^20 examples take 8 MB and more each.
_small_order, _large_order = lru_cache(maxsize=32)(_draw_order), lru_cache(maxsize=4)(_draw_order)


def _epoch_order(size: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of the training examples in an epoch, from a cache if it was read recently."""
    return (_small_order if size <= 2**20 else _large_order)(size, seed, epoch)


def rows_of_step(size: int, split: Split, step: int, batch_size: int, seed: int) -> np.ndarray:
    """Return the row numbers of the examples in the batch of a step: shuffled in each epoch for train, in order otherwise.

    The last batch of an epoch may be smaller. Raises IndexError beyond the end of valid or test.
    """
    step, batch_size, seed = int(step), int(batch_size), int(seed)  # small integers of NumPy overflow
    batches = -(-size // batch_size)
    epoch, position = divmod(step, batches)
    rows = np.arange(position * batch_size, min((position + 1) * batch_size, size))
    if split == "train":
        return _epoch_order(size, seed, epoch)[rows]
    if epoch:
        raise IndexError(f"`step` must be below {batches}, the number of batches of {batch_size} in split {split!r}, got {step}")
    return rows
