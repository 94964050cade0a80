"""Repetition of calls of Triton kernels: the launches of a call are recorded once and replayed on tensors at other addresses.

What an op launches depends on the shapes, dtypes and alignments of its tensors, not on their values. The second call on tensors
of some shapes is therefore recorded: kernels, grids, integers, and where in the inputs, the results or the temporary buffers each
address lies. A later call on such tensors allocates the results and one workspace, and launches the kernels. It runs neither the
Python code of the op nor its checks of the arguments, which the recorded call passed.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import update_wrapper
from operator import itemgetter
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

log = logging.getLogger("longscan")

ALIGNMENT = 512  # bytes, of buffers in the workspace, as the caching allocator of CUDA aligns
MOST_CALLS = 256  # largest number of recorded calls of a function
RETRY_AFTER = 100  # number of calls with the same key until recording is tried again, after it failed or memory was exhausted
ZEROS = {torch.ops.aten.zeros.default, torch.ops.aten.zeros_like.default, torch.ops.aten.new_zeros.default}
ALLOCATIONS = {
    *ZEROS,
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}

Run = Callable[..., object]
Function = Callable[..., tuple[Tensor, ...]]


class _Buffer(NamedTuple):
    """Memory that a call allocated: its address and its size in bytes."""

    address: int
    size: int


class _Location(NamedTuple):
    """Location of a tensor: the index of a root (input, result or buffer) and the offset from its start in bytes."""

    root: int
    offset: int
    dtype: torch.dtype


class _Launch(NamedTuple):
    """A launch: the kernel with its grid, a function that selects its addresses from those of all tensors, and its integers."""

    run: Run
    select: Callable[[Sequence[Any]], tuple[Any, ...]]
    others: tuple[Any, ...]


class _Result(NamedTuple):
    """A result: shape, dtype, whether it is filled with zeros, and the index of an input of this shape and dtype, or None."""

    shape: torch.Size
    dtype: torch.dtype
    zeros: bool
    like: int | None


@dataclass(slots=True)
class RecordedCall:
    """The launches of a call, which can be repeated on other tensors.

    Attributes:
        launches: the launches in order.
        locations: the locations of the tensors of all launches; the first entry is None, for arguments that are None. Roots are
            the inputs, the results, the workspace and the zeros, numbered in this order.
        results: the tensors that a call allocates and returns.
        workspace, zeros: bytes of all temporary buffers that are not initialised, and of those that are filled with zeros.
        device: the device of all tensors.
        following: recorded backward calls after this forward call, by the alignments of the gradients. Used by `PlainCall`.
    """

    launches: list[_Launch]
    locations: list[_Location | None]
    results: list[_Result]
    workspace: int
    zeros: int
    device: torch.device
    following: dict[Any, "RecordedCall"] = field(default_factory=dict)

    def repeat(self, inputs: Sequence[Any], addresses: Sequence[int]) -> tuple[Tensor, ...]:
        """Launch the kernels on other inputs, and return new results. addresses: those of the inputs, 0 if not a tensor."""
        from longscan.ops import _gpu

        device, buffers = self.device, []
        for shape, dtype, zeros, like in self.results:
            if like is not None:  # takes half the time of `torch.empty`
                buffers.append(torch.empty_like(inputs[like]))
            else:
                buffers.append((torch.zeros if zeros else torch.empty)(shape, dtype=dtype, device=device))
        results = tuple(buffers)
        buffers.append(torch.empty(self.workspace, dtype=torch.uint8, device=device))
        if self.zeros:
            buffers.append(torch.zeros(self.zeros, dtype=torch.uint8, device=device))
        if _gpu.INTERPRETED:
            self._interpret([*inputs, *buffers])
            return results
        roots = [*addresses, *[x.data_ptr() for x in buffers]]
        found = [None if x is None else roots[x[0]] + x[1] for x in self.locations]
        like_buffer = buffers[-1]
        with _gpu.on_device(like_buffer):
            stream = _gpu.current_stream(like_buffer)
            for run, select, others in self.launches:
                run(*select(found), *others, stream=stream)
        return results

    def _interpret(self, roots: Sequence[Any]) -> None:
        """Launch the kernels in Triton's interpreter, which takes tensors instead of addresses."""
        flat = [x.view(-1).view(torch.uint8) if isinstance(x, Tensor) else x for x in roots]
        found = [None if x is None else flat[x.root][x.offset :].view(x.dtype) for x in self.locations]
        for run, select, others in self.launches:
            run(*select(found), *others)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the launches of a call on `inputs`."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inputs = [x if isinstance(x, Tensor) else None for x in inputs]
        self._complete = True  # whether the call did nothing but allocate, take views and launch
        self._launches: list[_Launch] = []
        self._first_use: dict[int, int] = {}  # location -> index of the first launch that uses it
        self._last_use: dict[int, int] = {}
        self._locations: list[tuple[int | _Buffer, int, torch.dtype]] = []  # the index of an input or a buffer, offset, dtype
        self._zeros: set[_Buffer] = set()
        self._recorded_tensors: list[Tensor | None] = []  # keeps buffers alive, so that no two have the same address

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._complete = self._complete and (_active.interprets or func in ALLOCATIONS or func.is_view)
        result = func(*args, **(kwargs or {}))
        if func in ZEROS:
            self._recorded_tensors.append(result)
            self._zeros.add(_buffer(result))
        return result

    def add(self, run: Run, tensors: Sequence[Tensor | None], others: tuple[Any, ...]) -> None:
        """Record a launch, run(*tensors, *others)."""
        self._recorded_tensors.extend(tensors)
        locations = [0 if x is None else self._locate(x) for x in tensors]
        for location in locations:
            self._last_use[location] = len(self._launches)
            self._first_use.setdefault(location, len(self._launches))
        # itemgetter returns a tuple for several indices only
        select = itemgetter(*locations) if len(locations) > 1 else lambda found: (found[locations[0]],)
        self._launches.append(_Launch(run, select, others))

    def _locate(self, x: Tensor) -> int:
        """Return the index of the location of a tensor among those of the call, counted from 1; 0 stands for None."""
        location = *self._root(x), x.dtype
        if location not in self._locations:
            self._locations.append(location)
        return self._locations.index(location) + 1

    def _root(self, x: Tensor) -> tuple[int | _Buffer, int]:
        """Return the index of the input, or the buffer, that contains a tensor, and the offset of the tensor in it in bytes."""
        address = x.data_ptr()
        found = [i for i, given in enumerate(self._inputs) if given is x]
        if not found:
            found = [i for i, given in enumerate(self._inputs) if given is not None and _contains(given, address)]
            self._complete = self._complete and len(found) <= 1  # inputs that overlap in this call may not overlap in others
        if found:
            given: Any = self._inputs[found[0]]
            return found[0], address - given.data_ptr()
        buffer = _buffer(x)
        return buffer, address - buffer.address

    def call(self, results: Sequence[Tensor]) -> RecordedCall | None:
        """Return the call that has been recorded, or None if it cannot be repeated."""
        roots: dict[int | _Buffer, tuple[int, int]] = {i: (i, 0) for i in range(len(self._inputs))}
        allocated = []
        for i, x in enumerate(results):
            root = self._root(x)[0]
            if x.numel():
                if root in roots or root != (x.data_ptr(), x.numel() * x.element_size()) or not x.is_contiguous():
                    return None
                roots[root] = len(self._inputs) + i, 0
            zeros, kind = root in self._zeros, (x.shape, x.dtype)
            like = [j for j, given in enumerate(self._inputs) if given is not None and (given.shape, given.dtype) == kind]
            allocated.append(_Result(*kind, zeros, like[0] if like and not zeros else None))
        if not self._complete or not self._launches:
            return None
        workspace, zeros_size = len(self._inputs) + len(results), 0
        used: dict[_Buffer, tuple[int, int]] = {}  # the first and the last launch that gets a part of a buffer
        for location, (root, _, _) in enumerate(self._locations, start=1):
            if isinstance(root, _Buffer) and root not in roots:
                first, last = used.get(root, (len(self._launches), 0))
                used[root] = min(first, self._first_use[location]), max(last, self._last_use[location])
        for buffer in used.keys() & self._zeros:
            roots[buffer] = workspace + 1, zeros_size
            zeros_size += _aligned(buffer.size)
        others = {buffer: (_aligned(buffer.size), *used[buffer]) for buffer in used if buffer not in self._zeros}
        offsets, size = _pack(others)
        roots |= {buffer: (workspace, offset) for buffer, offset in offsets.items()}
        locations = [_Location(roots[root][0], roots[root][1] + offset, dtype) for root, offset, dtype in self._locations]
        device = next(x.device for x in self._inputs if x is not None)
        return RecordedCall(self._launches, [None, *locations], allocated, size, zeros_size, device)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _pack(buffers: dict[_Buffer, tuple[int, int, int]]) -> tuple[dict[_Buffer, int], int]:
    """Return offsets of buffers in a workspace, and its size. Buffers that are not in use at the same time may overlap.

    buffers: the size of each, and the first and the last launch that needs it. The largest are placed first, each as far to the
    beginning as possible.
    """
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first and last launch
    offsets: dict[_Buffer, int] = {}
    for buffer, (size, first, last) in sorted(buffers.items(), key=lambda item: -item[1][0]):
        offset = 0
        for begin, end, other_first, other_last in sorted(placed):
            if first <= other_last and other_first <= last and begin < offset + size:
                offset = max(offset, end)
        placed.append((offset, offset + size, first, last))
        offsets[buffer] = offset
    return offsets, max((end for _, end, _, _ in placed), default=0)


def _buffer(x: Tensor) -> _Buffer:
    """Return the memory that has been allocated for a tensor, or for the tensor of which it is a view."""
    storage = x.untyped_storage()
    return _Buffer(storage.data_ptr(), storage.nbytes())


def _contains(x: Tensor, address: int) -> bool:
    return 0 <= address - x.data_ptr() < x.numel() * x.element_size()


class _Active(threading.local):
    """The call that is being recorded, and whether Triton's interpreter, which uses torch, runs a kernel."""

    recorder: _Recorder | None = None
    interprets = False


_active = _Active()
_functions: deque[dict[Any, Any]] = deque()  # the recorded calls of each function


def record_launch(run: Run, tensors: Sequence[Tensor | None], others: tuple[Any, ...]) -> None:
    """Record a launch if a call is being recorded. run: function of the tensors, or their addresses, and the other arguments."""
    if _active.recorder is not None:
        _active.recorder.add(run, tensors, others)


@contextmanager
def interpreting() -> Iterator[None]:
    """Exclude the operations inside the `with` statement, which are those of Triton's interpreter, from the recorded call."""
    _active.interprets = True
    try:
        yield
    finally:
        _active.interprets = False


def clear_recorded_calls() -> None:
    """Delete all recorded calls."""
    for calls in _functions:
        calls.clear()


class Description(NamedTuple):
    """The key of a call, the addresses of its tensors (0 for other arguments), and whether tensors must be made contiguous."""

    key: tuple[Any, ...]
    addresses: list[int]
    copies: bool


def describe(args: Sequence[Any]) -> Description:
    """Return the description of a call with these arguments."""
    addresses: list[int] = []
    key: list[Any] = []
    copies = False
    for x in args:
        address = 0  # of a copy, which is aligned
        if isinstance(x, Tensor):
            if x.is_contiguous():
                address = x.data_ptr()
            else:
                copies = True
            key += x.shape, x.dtype, x.get_device(), address % 16
        else:
            key.append(x)
        addresses.append(address)
    return Description(tuple(key), addresses, copies)


class RepeatedFunction:
    """A wrapper of a function that launches Triton kernels; it repeats recorded calls.

    The third and all later calls on tensors of the same shapes, dtypes, device and alignments, with the same constants, repeat
    the launches of the second: what `function` launches must not depend on anything else. After MOST_CALLS different calls each
    new one replaces a random other one, so that some are still repeated if more different calls than that alternate.
    """

    def __init__(self, function: Function) -> None:
        update_wrapper(self, function)
        self._function = function
        # Key of a call -> the recorded call, or the number of calls with this key until one is recorded.
        self._calls: dict[Any, RecordedCall | int] = {}
        self._choice = Random(0)
        _functions.append(self._calls)

    def __call__(self, *args: Any) -> tuple[Tensor, ...]:
        """Return the results of the function."""
        return self.run(args, describe(args))[0]

    def run(self, args: Sequence[Any], description: Description) -> tuple[tuple[Tensor, ...], RecordedCall | None]:
        """Return the results of the function, and the recorded call if it was repeated. description: of the arguments."""
        known, addresses, copies = description
        calls = self._calls
        call = calls.get(known)
        if call is None or (isinstance(call, int) and call > 0):
            returned = self._function(*args)  # which checks the arguments, before it makes copies
            if call is None and len(calls) >= MOST_CALLS:
                calls.pop(self._choice.choice(list(calls) or [None]), None)  # another thread may have removed it
            calls[known] = 0 if call is None else call - 1
            return returned, None
        inputs = args
        if copies:
            inputs = [x.contiguous() if isinstance(x, Tensor) else x for x in args]
            addresses = [x.data_ptr() if isinstance(x, Tensor) else 0 for x in inputs]
        if isinstance(call, RecordedCall):
            try:
                return call.repeat(inputs, addresses), call
            except torch.OutOfMemoryError:  # it allocates all buffers at once
                name = self._function.__qualname__
                log.info("%s is not repeated, because its buffers do not fit into the memory together", name)
                calls[known] = RETRY_AFTER
                return self._function(*inputs), None
        aliases = [x.detach() if isinstance(x, Tensor) else x for x in inputs]  # separate objects for equal inputs
        _active.recorder = recorder = _Recorder(aliases)
        results: tuple[Tensor, ...] | None
        try:
            with recorder:
                results = self._function(*aliases)
        except torch.OutOfMemoryError:  # a recorder keeps all buffers alive
            results = None
        finally:
            _active.recorder = None
        if results is None:
            calls[known] = RETRY_AFTER
            del recorder
            return self._function(*inputs), None
        calls[known] = recorder.call(results) or RETRY_AFTER
        return results, None
