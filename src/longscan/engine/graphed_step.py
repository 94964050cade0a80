"""Training steps captured as CUDA graphs. One replay replaces hundreds of small kernel launches."""

import gc
import logging
from collections import Counter, deque
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

log = logging.getLogger("longscan")

WARMUP_CALLS = 3  # calls before a capture, in which kernels are compiled and the optimiser creates its state
MAX_GRAPHS = 4
TIMED_EVERY = 50  # replays between two that are timed


class Capture(NamedTuple):
    """A CUDA graph, the static batch that it reads and the static tensors that it writes."""

    graph: torch.cuda.CUDAGraph
    batch: Any
    outputs: Any


class GraphedStep:
    """Calls `step(batch)`, which is captured as a CUDA graph at the fourth batch of a shape and replayed for later ones.

    A graph is replayed only if the settings by which torch chooses kernels, such as `torch.use_deterministic_algorithms`, are
    those of its capture.

    A batch is a NamedTuple of tensors or None. The step must not read values back to the host, and must read everything that
    changes between calls (learning rates) from tensors. After four graphs, batches of other shapes run without a graph. Each call
    overwrites the tensors that the last call returned. The graphs share the memory of the largest one.

    Args:
        step: function of a batch that makes a step and returns tensors.
        device: the CUDA device of the step.
        required: whether a step that cannot be captured raises its error. Otherwise it, and all later ones, run without a graph,
            and the logger `longscan` says so.
    """

    def __init__(self, step: Callable[[Any], Any], device: torch.device, *, required: bool = True) -> None:
        self._step, self._device, self._required = step, device, required
        self._captures_more = True
        self._stream: torch.cuda.Stream | None = None
        self._n_calls: Counter[Any] = Counter()
        self._captures: dict[Any, Capture] = {}
        self._pool: Any = None  # memory pool of all graphs, which can share it because no replay reads results of another one
        self._n_replays = 0
        self._timed = deque[tuple[torch.cuda.Event, torch.cuda.Event]](maxlen=100)

    def __call__(self, batch: Any) -> Any:
        """Run the step on a batch, which may be on any device."""
        shapes = tuple(None if tensor is None else (tensor.shape, tensor.dtype) for tensor in batch)
        key = shapes, _kernel_choice()
        if key not in self._captures:
            self._n_calls[key] += 1
            enough = not self._captures_more or len(self._captures) == MAX_GRAPHS
            if enough or self._n_calls[key] <= WARMUP_CALLS or not self._add_capture(key, batch):
                return self._run_on_side_stream(batch)
        graph, static_batch, outputs = self._captures[key]
        for static, tensor in zip(static_batch, batch, strict=True):
            if tensor is not None:
                static.copy_(tensor, non_blocking=True)
        if self._n_replays % TIMED_EVERY == 0:
            self._replay_timed(graph)
        else:
            graph.replay()
        self._n_replays += 1
        return outputs

    def _replay_timed(self, graph: torch.cuda.CUDAGraph) -> None:
        """Replay a graph between two events of its device, without waiting for them."""
        stream = torch.cuda.current_stream(self._device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record(stream)
        graph.replay()
        end.record(stream)
        self._timed.append((start, end))

    def seconds_per_replay(self) -> float | None:
        """Return the median time of the latest timed replays on the device, None without one. Waits for the device.

        The time does not include making and copying batches, so it is a lower bound of the time of a training step. It includes
        delays by other processes on the device.
        """
        if not self._timed:
            return None
        self._timed[-1][1].synchronize()
        return median(start.elapsed_time(end) for start, end in self._timed) / 1000

    def release(self) -> None:
        """Free all graphs. A process group of NCCL waits for graphs with its exchanges, and cannot be destroyed before."""
        for capture in self._captures.values():
            capture.graph.reset()
        self._captures.clear()
        self._pool = None

    def _on_device(self, batch: Any) -> Any:
        return batch._make(None if tensor is None else tensor.to(self._device, non_blocking=True) for tensor in batch)

    def _run_on_side_stream(self, batch: Any) -> Any:
        """Run the step on a stream other than the current one, which CUDA requires of the calls before a capture."""
        current = torch.cuda.current_stream(self._device)
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            outputs = self._step(self._on_device(batch))
        current.wait_stream(self._stream)
        return outputs

    def _add_capture(self, key: Any, batch: Any) -> bool:
        """Capture the step and return whether this was possible; an error is raised if a graph is required."""
        try:
            self._captures[key] = self._capture(batch)
        except RuntimeError as error:  # also of too little memory
            _end_capture_of_random_numbers(self._device)
            if self._required:
                raise
            first: BaseException = error
            while first.__context__ is not None:  # CUDA raises a second error at the end of a capture that failed
                first = first.__context__
            log.warning("steps run without a CUDA graph, because one could not be captured: %s", str(first).partition("\n")[0])
            self._captures_more = False
        return self._captures_more

    def _capture(self, batch: Any) -> Capture:
        """Capture the step as a CUDA graph on a static copy of `batch`. The step is not executed.

        The stream is that of the earlier calls. Reference cycles, such as those of `torch.utils.checkpoint`, can keep an autograd
        graph alive, and with it the nodes that accumulate gradients. These wait for the stream on which they were created, and
        waiting for another stream would make the capture invalid.
        """
        static = batch._make(None if tensor is None else tensor.clone() for tensor in self._on_device(batch))
        gc.collect()  # frees such graphs, and their memory, before the graph gets its own
        graph = torch.cuda.CUDAGraph()
        # A loader thread may copy to page-locked memory meanwhile; only this thread's work belongs to the graph.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            outputs = self._step(static)
        self._pool = graph.pool()
        return Capture(graph, static, outputs)


def _end_capture_of_random_numbers(device: torch.device) -> None:
    """Make the generator of a device usable after a capture that failed, which leaves its state marked as captured."""
    generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    generator.graphsafe_set_state(generator.clone_state())


def _kernel_choice() -> tuple[object, ...]:
    """Return the settings of torch that decide which kernels an operation runs, and with which precision."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch._C._get_deterministic_fill_uninitialized_memory(),
        torch.backends.cudnn.deterministic,
        torch.backends.cuda.matmul.fp32_precision,  # `torch.get_float32_matmul_precision` raises after this one was set
    )


def make_capturable(optimizer: Optimizer, device: torch.device) -> None:
    """Store the optimiser's learning rates and step counts as tensors on `device`, where a captured step reads them."""
    for group in optimizer.param_groups:
        if not isinstance(group["lr"], Tensor):
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
        group["capturable"] = True
