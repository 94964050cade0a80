"""Calls of Triton kernels that repeat an earlier call: its launches are recorded once, and then made again at other addresses.

What an op launches depends on the shapes, dtypes and alignments of its tensors, not on their numbers. The second call on tensors
of some shapes is therefore recorded: kernels, grids, integers, and where in the inputs, the results or the temporary buffers each
address lies. A later call on such tensors allocates the results and one workspace, and launches the kernels. It runs neither the
Python code of the op nor its checks of the arguments, which the recorded call passed.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

log = logging.getLogger("longscan")

ALIGNMENT = 512  # bytes, of buffers in the workspace, as the caching allocator of CUDA aligns
MOST_CALLS = 256  # remembered of each function
RETRY_AFTER = 100  # like calls, after one that could not be recorded, or whose buffers did not fit into the memory
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


class _Buffer(NamedTuple):
    """Memory that a call allocated: its address and its size in bytes."""

    address: int
    size: int


class _Place(NamedTuple):
    """Where a tensor begins: so many bytes after the beginning of a root."""

    root: int
    offset: int
    dtype: torch.dtype


class _Launch(NamedTuple):
    """A compiled kernel with its grid, the indices of its tensors in the list of places, and its other arguments."""

    run: Run
    places: tuple[int, ...]
    others: tuple[Any, ...]


class _Result(NamedTuple):
    """Shape and dtype of a result, whether it is filled with zeros first, and the index of a like input, if there is one."""

    shape: torch.Size
    dtype: torch.dtype
    zeros: bool
    like: int | None

    def allocate(self, inputs: Sequence[Any], device: torch.device) -> Tensor:
        """Return a new tensor. `torch.empty_like` takes half the time of `torch.empty`."""
        if self.like is not None:
            return torch.empty_like(inputs[self.like])
        return (torch.zeros if self.zeros else torch.empty)(self.shape, dtype=self.dtype, device=device)


class _Call(NamedTuple):
    """A recorded call.

    Attributes:
        launches: in their order.
        places: where the tensors of all launches begin; first None, for arguments that are None. Roots are the inputs, the
            results and the workspace, counted in this order.
        results: what is allocated and returned.
        workspace: bytes of all temporary buffers.
        zeros: so many bytes at its beginning are filled with zeros first.
        device: of all tensors.
    """

    launches: list[_Launch]
    places: list[_Place | None]
    results: list[_Result]
    workspace: int
    zeros: int
    device: torch.device

    def repeat(self, inputs: Sequence[Any], addresses: Sequence[int]) -> tuple[Tensor, ...]:
        """Launch the kernels on other inputs, and return new results. addresses: of the inputs, 0 for those without."""
        from longscan.ops import _gpu

        device = self.device
        results = tuple([result.allocate(inputs, device) for result in self.results])
        workspace = torch.empty(self.workspace, dtype=torch.uint8, device=device)
        if self.zeros:
            workspace[: self.zeros].zero_()
        if _gpu.INTERPRETED:
            self._interpret([*inputs, *results, workspace])
            return results
        roots = [*addresses, *[x.data_ptr() for x in results], workspace.data_ptr()]
        found = [None if place is None else roots[place[0]] + place[1] for place in self.places]
        with _gpu.on_device(workspace):
            stream = _gpu.current_stream(workspace)
            for run, places, others in self.launches:
                run(*[found[i] for i in places], *others, stream=stream)
        return results

    def _interpret(self, roots: Sequence[Any]) -> None:
        """Launch the kernels in Triton's interpreter, which takes tensors instead of addresses."""
        flat = [x.view(-1).view(torch.uint8) if isinstance(x, Tensor) else x for x in roots]
        found = [None if place is None else flat[place.root][place.offset :].view(place.dtype) for place in self.places]
        for run, places, others in self.launches:
            run(*[found[i] for i in places], *others)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the launches of a call on `inputs`."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inputs = [x if isinstance(x, Tensor) else None for x in inputs]
        self._complete = True  # whether the call did nothing but allocate, take views and launch
        self._launches: list[_Launch] = []
        self._places: list[tuple[int | _Buffer, int, torch.dtype]] = []  # the index of an input or a buffer, offset, dtype
        self._zeros: set[_Buffer] = set()
        self._recorded_tensors: list[Tensor | None] = []  # while it records, so that two buffers never have the same address

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
        self._launches.append(_Launch(run, tuple([0 if x is None else self._place(x) for x in tensors]), others))

    def _place(self, x: Tensor) -> int:
        place = *self._root(x), x.dtype
        if place not in self._places:
            self._places.append(place)
        return self._places.index(place) + 1

    def _root(self, x: Tensor) -> tuple[int | _Buffer, int]:
        """Return the input, as its index, or the buffer in which a tensor lies, and its offset in bytes."""
        address = x.data_ptr()
        found = [i for i, given in enumerate(self._inputs) if given is x]
        if not found:
            found = [i for i, given in enumerate(self._inputs) if given is not None and _contains(given, address)]
            self._complete = self._complete and len(found) <= 1  # inputs that overlap in this call need not do so in others
        if found:
            given: Any = self._inputs[found[0]]
            return found[0], address - given.data_ptr()
        buffer = _buffer(x)
        return buffer, address - buffer.address

    def call(self, results: Sequence[Tensor]) -> _Call | None:
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
        workspace, size, filled = len(self._inputs) + len(results), 0, 0
        buffers = {root for root, _, _ in self._places if isinstance(root, _Buffer) and root not in roots}
        for buffer in sorted(buffers, key=lambda buffer: buffer not in self._zeros):
            roots[buffer] = workspace, size
            size += -(-buffer.size // ALIGNMENT) * ALIGNMENT
            filled = size if buffer in self._zeros else filled
        places = [_Place(roots[root][0], roots[root][1] + offset, dtype) for root, offset, dtype in self._places]
        device = next(x.device for x in self._inputs if x is not None)
        return _Call(self._launches, [None, *places], allocated, size, filled, device)


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
_functions: deque[dict[Any, Any]] = deque()  # the calls of all functions


def record_launch(run: Run, tensors: Sequence[Tensor | None], others: tuple[Any, ...]) -> None:
    """Record a launch if a call is being recorded. run: takes the tensors, or their addresses, and the other arguments."""
    if _active.recorder is not None:
        _active.recorder.add(run, tensors, others)


@contextmanager
def interpreting() -> Iterator[None]:
    """Do not take the operations inside the `with` statement for those of a call that is being recorded."""
    _active.interprets = True
    try:
        yield
    finally:
        _active.interprets = False


def forget_calls() -> None:
    """Forget all recorded calls."""
    for calls in _functions:
        calls.clear()


def repeats_calls(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function that does what `function` does, which launches Triton kernels, and repeats recorded calls.

    The third call and all later ones on tensors of the same shapes, dtypes, device and alignments, with the same constants, are
    repeated: what `function` launches must not depend on anything else. After MOST_CALLS different calls each new one takes the
    place of any other, so that a part of them is still repeated where more different calls than that take turns.
    """
    calls: dict[Any, _Call | int] = {}  # by what a call depends on: the recorded call, or after how many like calls to record
    choice = Random(0)
    _functions.append(calls)

    @wraps(function)
    def repeat(*args: Any) -> tuple[Tensor, ...]:
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
        known = tuple(key)
        call = calls.get(known)
        if call is None or (isinstance(call, int) and call > 0):
            returned = function(*args)  # which checks the arguments, before it makes copies
            if call is None and len(calls) >= MOST_CALLS:
                calls.pop(choice.choice(list(calls) or [None]), None)  # another thread may have forgotten it
            calls[known] = 0 if call is None else call - 1
            return returned
        inputs: Sequence[Any] = args
        if copies:
            inputs = [x.contiguous() if isinstance(x, Tensor) else x for x in args]
            addresses = [x.data_ptr() if isinstance(x, Tensor) else 0 for x in inputs]
        if isinstance(call, _Call):
            try:
                return call.repeat(inputs, addresses)
            except torch.OutOfMemoryError:  # it allocates all buffers at once
                log.info("%s is not repeated, because its buffers do not fit into the memory together", function.__qualname__)
                calls[known] = RETRY_AFTER
                return function(*inputs)
        aliases = [x.detach() if isinstance(x, Tensor) else x for x in inputs]  # told apart where one tensor is two inputs
        _active.recorder = recorder = _Recorder(aliases)
        results: tuple[Tensor, ...] | None
        try:
            with recorder:
                results = function(*aliases)
        except torch.OutOfMemoryError:  # a recorder keeps all buffers
            results = None
        finally:
            _active.recorder = None
        if results is None:
            calls[known] = RETRY_AFTER
            del recorder
            return function(*inputs)
        calls[known] = recorder.call(results) or RETRY_AFTER
        return results

    return repeat
