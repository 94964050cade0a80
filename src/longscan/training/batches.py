"""The training batches of a run: the lengths of each step, prefetching, and the rows that each of several processes trains on.

A batch is a pure function of its task and index, so prefetching does not change results, and resuming needs only the step.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor, nn

from longscan.tasks import Batch, Task
from longscan.tasks.base import Reduction
from longscan.tasks.classification import IGNORE_INDEX
from longscan.training.evaluate import scored_answers
from longscan.training.settings import Settings

# Field of a batch -> its value at padding. Masks exclude padded steps from the loss.
_FILL = {"inputs": 0, "targets": IGNORE_INDEX, "valid": 0, "loss_mask": 0, "elapsed": 1, "seq_idx": 0}


class LengthSchedule:
    """The training lengths over the steps: the length curriculum, and another range of lengths late in training.

    Attributes:
        max_length: the curriculum's longest length so far, 0 without a curriculum. It is the only state that changes in training.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.training
        self._tasks: dict[int, Task] = {0: settings.task}  # keys: the curriculum's longest length, 0 for none
        self._late_start = int(settings.training.late_lengths.start * settings.training.steps)
        self._late_task = settings.late_task() if settings.training.late_lengths.share else None
        self.max_length = settings.training.curriculum.start

    def task(self, step: int) -> Task:
        """Return the task that generates the batch of step `step`, counted from 0. Steps with late lengths are spread evenly."""
        if self._late_task is not None and step >= self._late_start:
            share, since = self._settings.late_lengths.share, step - self._late_start
            if int((since + 1) * share) > int(since * share):
                return self._late_task
        if self.max_length not in self._tasks:
            self._tasks[self.max_length] = self._tasks[0].at_length(self.max_length)
        return self._tasks[self.max_length]

    def needs_score(self, steps_made: int) -> bool:
        """Return whether the curriculum must be updated with the training score after this number of steps."""
        curriculum = self._settings.curriculum
        return bool(curriculum.start) and self.max_length < curriculum.end and steps_made % curriculum.every == 0

    def update(self, score: float) -> None:
        """Raise the longest length if the main metric of a training batch is above the threshold."""
        curriculum = self._settings.curriculum
        if score > curriculum.threshold:
            self.max_length = min(self.max_length + curriculum.increment, curriculum.end)


def prefetch_batches(
    task_of: Callable[[int], Task],
    steps: range,
    batch_size: int,
    seed: int,
    *,
    depth: int,
    pin: bool = False,
    repeats: int = 1,
) -> Generator[Batch, None, None]:
    """Yield the training batch of each step; a thread makes those of the next `depth` steps in advance.

    Args:
        task_of: function that returns the task of a step. It is called again when the batch is needed; a batch that was made in
            advance is discarded if the step now has another task.
        steps: consecutive numbers of steps.
        batch_size: examples in a batch.
        seed: of the data.
        depth: number of batches made in advance; 0 starts no thread.
        pin: put the tensors into page-locked memory, for copies to a CUDA device.
        repeats: number of consecutive steps that get the same batch, whose index is the step divided by `repeats`.

    Raises whatever the task raises when it makes a batch.
    """

    def make(task: Task, index: int) -> Batch:
        batch = task.batch("train", index, batch_size, seed)
        return batch.pin_memory() if pin else batch

    if not depth:
        yield from (make(task_of(step), step // repeats) for step in steps)
        return
    pool = ThreadPoolExecutor(1, thread_name_prefix="longscan-batches")
    queue: deque[tuple[Task, int, Future[Batch]]] = deque()
    try:
        for step in steps:
            for position, later in enumerate(range(step, min(step + depth + 1, steps.stop))):
                key = task_of(later), later // repeats
                while len(queue) > position and queue[position][:2] != key:
                    queue[position][2].cancel()
                    del queue[position]
                if len(queue) == position:
                    is_repeated = position > 0 and queue[-1][:2] == key
                    queue.append((*key, queue[-1][2] if is_repeated else pool.submit(make, *key)))
            yield queue.popleft()[2].result()
    finally:
        pool.shutdown(cancel_futures=True)


class RowNumbers(NamedTuple):
    """The indices (B,) of the examples in a batch, for updates that read these examples from a training set on the device."""

    numbers: Tensor


def pad_batch(batch: Batch, width: int) -> Batch:
    """Pad a batch on the right to `width` steps."""
    length = batch.inputs.shape[1]
    valid = torch.ones(batch.inputs.shape[:2], dtype=torch.bool) if batch.valid is None else batch.valid
    padded = {}
    for name, tensor in batch._replace(valid=valid)._asdict().items():
        is_class_probabilities = name == "targets" and tensor is not None and tensor.ndim == 2 and tensor.is_floating_point()
        has_steps = tensor is not None and tensor.ndim > 1 and tensor.shape[1] == length and not is_class_probabilities
        pad = (0,) * (2 * (tensor.ndim - 2)) + (0, width - length) if has_steps else ()
        padded[name] = nn.functional.pad(tensor, pad, value=_FILL[name]) if has_steps else tensor
    return Batch(**padded)


def widen_batches(batches: Iterable[Batch]) -> Generator[Batch, None, None]:
    """Yield batches padded to the longest so far, so that few shapes occur. Batches of equally long sequences are not padded."""
    width = 0
    for batch in batches:
        if batch.valid is None or batch.valid.ndim > 2:  # of equal lengths, or pairs of sequences
            yield batch
            continue
        width = max(width, batch.inputs.shape[1])
        yield batch if batch.inputs.shape[1] == width else pad_batch(batch, width)


class SharedBatch(NamedTuple):
    """A `Share` as a tuple of tensors, with weight and factor as scalar tensors, which a captured step can read.

    The first entries are those of a `Batch`.
    """

    inputs: Tensor
    targets: Tensor | None
    valid: Tensor | None
    loss_mask: Tensor | None
    elapsed: Tensor | None
    seq_idx: Tensor | None
    weight: Tensor
    factor: Tensor

    @property
    def rows(self) -> Batch:
        """The rows of the batch."""
        return Batch(*self[: len(Batch._fields)])  # type: ignore[arg-type]


class Share(NamedTuple):
    """The part of a batch that one of several processes trains on.

    Data parallel wrappers (DDP, FSDP2) take the mean of the processes' gradients. With every process's loss multiplied by its
    `factor`, this mean is the gradient of one process with the whole batch, however unequal the shares and their numbers of
    scored answers.

    Attributes:
        rows: the rows of the batch.
        weight: the number of scored answers in them, the weight of the process's mean loss and score in those of the whole batch.
        factor: the factor by which the process multiplies its loss.
    """

    rows: Batch
    weight: float
    factor: float

    def as_tensors(self) -> SharedBatch:
        """Return the share as one tuple of tensors."""
        return SharedBatch(*self.rows, torch.tensor(self.weight), torch.tensor(self.factor))


def share_of(batch: Batch, task: Task, reduction: Reduction, process: int, processes: int) -> Share:
    """Return every n-th row of a batch from row `process` on, for n processes, so that the data do not depend on their number.

    A process whose rows have no scored answer, as with fewer rows than processes, gets all rows with factor 0: the mean over no
    answers is NaN, and all processes must take part in the exchange of gradients.
    """
    if processes == 1:
        return Share(batch, 1.0, 1.0)
    rows = Batch(*(None if tensor is None else tensor[process::processes] for tensor in batch))  # type: ignore[arg-type]
    answers = float(scored_answers(rows, task))
    if not answers:
        return Share(batch, 0.0, 0.0)
    fraction = 1.0 if reduction == "sum" else answers / float(scored_answers(batch, task))
    return Share(rows, answers, processes * fraction)
