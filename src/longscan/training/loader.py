"""Training batches made ahead of time by a thread; a batch is a pure function of its task and step, so this changes no result."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from longscan.tasks import Batch, Task


class Prefetcher:
    """`get(step)` gives the training batch of a step and has the batches of the next `depth` steps made in the background.

    task_of: the task of a step, asked again at every `get`: batches made for a task that is no longer the step's are thrown away.
    pin: put the tensors in page-locked memory, for copies to a CUDA device.
    """

    def __init__(self, task_of: Callable[[int], Task], batch_size: int, seed: int, *, depth: int, pin: bool = False) -> None:
        self._task_of = task_of
        self._batch_size = batch_size
        self._seed = seed
        self._depth = depth
        self._pin = pin
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="longscan-batches") if depth else None
        self._ahead: deque[tuple[Task, int, Future[Batch]]] = deque()

    def __enter__(self) -> "Prefetcher":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def get(self, step: int) -> Batch:
        """The batch of a step; an exception in making it is raised here."""
        if self._pool is None:
            return self._make(self._task_of(step), step)
        for ahead in range(step, step + 1 + self._depth):
            task = self._task_of(ahead)
            position = ahead - step
            while len(self._ahead) > position and self._ahead[position][:2] != (task, ahead):
                self._ahead[position][2].cancel()
                del self._ahead[position]
            if len(self._ahead) == position:
                self._ahead.append((task, ahead, self._pool.submit(self._make, task, ahead)))
        return self._ahead.popleft()[2].result()

    def _make(self, task: Task, step: int) -> Batch:
        batch = task.batch("train", step, self._batch_size, self._seed)
        if not self._pin:
            return batch
        return Batch(*(None if part is None else part.pin_memory() for part in batch))  # type: ignore[arg-type]
