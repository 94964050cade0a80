"""An update recorded as a CUDA graph, whose replay takes hundreds of small launches off the host."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longscan.tasks import Batch

WARM = 3  # runs before a recording: kernels compile, and the optimiser makes its state
MOST = 4  # recordings, each of which keeps the memory of an update


class Recording(NamedTuple):
    """A graph, the batch that it reads and what it writes."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    found: tuple[Tensor, ...]


class Captured:
    """`update(batch)`, recorded once batches of a shape have come three times, and replayed on every further one of that shape.

    The update must not look at values on the host, and reads whatever else changes (learning rates) from tensors. It is run as it
    is for shapes beyond the first four. What it returns is overwritten by the next call.
    """

    def __init__(self, update: Callable[[Batch], tuple[Tensor, ...]], device: torch.device) -> None:
        self._update, self._device = update, device
        self._calls: Counter[Any] = Counter()
        self._recordings: dict[Any, Recording] = {}

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]:
        """The update on a batch of any device."""
        shapes = tuple(None if part is None else (part.shape, part.dtype) for part in batch)
        if shapes not in self._recordings:
            self._calls[shapes] += 1
            if self._calls[shapes] <= WARM or len(self._recordings) == MOST:
                return self._aside(batch)
            self._recordings[shapes] = self._record(batch.to(self._device))
        graph, held, found = self._recordings[shapes]
        for mine, new in zip(held, batch, strict=True):
            if mine is not None and new is not None:
                mine.copy_(new, non_blocking=True)
        graph.replay()
        return found

    def _aside(self, batch: Batch) -> tuple[Tensor, ...]:
        """The update on another stream, as CUDA asks for before a recording."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            found = self._update(batch.to(self._device))
        torch.cuda.current_stream(self._device).wait_stream(stream)
        return found

    def _record(self, batch: Batch) -> Recording:
        """Record, without running it, the update on a batch that is kept."""
        held = Batch(*(None if part is None else part.clone() for part in batch))  # type: ignore[arg-type]
        graph = torch.cuda.CUDAGraph()
        # A thread makes batches meanwhile, in page-locked memory; only what this thread does belongs to the recording.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            found = self._update(held)
        return Recording(graph, held, found)
