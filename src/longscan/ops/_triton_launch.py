"""How the Triton kernels are launched: every number that a measurement may change, in one table, and what follows from it.

A scan kernel's program owns `lanes` pairs of a channel and a state (whole channels) of one batch row, and goes over a split of
the time axis in tiles of `steps`. Where channels and rows alone do not fill the GPU, there are several splits: a first pass
finds what each does to the state, `chain` brings the state from split to split, and a second pass does the work.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longscan.ops._gpu import ceil_div, compile_ahead, is_compiling, power_of_two
from longscan.ops.arguments import RESET


@dataclass(frozen=True)
class Launch:
    """steps: of a tile. lanes: at least so many pairs of channel and state a program. warps: of 32 threads for so many lanes.

    stages: tiles on their way from memory at once, where kernels of the op leave that to Triton's pipeliner; 1: it has no part.
    """

    steps: int
    lanes: int
    warps: int
    stages: int = 1


TABLE = {
    "selective_scan": Launch(steps=16, lanes=256, warps=1, stages=3),
    "selective_scan_wide": Launch(steps=8, lanes=1024, warps=4, stages=3),
    "selective_scan_backward": Launch(steps=4, lanes=256, warps=1, stages=3),
    "selective_scan_wide_backward": Launch(steps=16, lanes=256, warps=2, stages=3),
    "selective_scan_pairs": Launch(steps=4, lanes=512, warps=4, stages=3),
    "selective_scan_pairs_backward": Launch(steps=4, lanes=256, warps=2, stages=3),
    "ssd_scan": Launch(steps=64, lanes=8192, warps=4, stages=2),
    "ssd_scan_backward": Launch(steps=64, lanes=8192, warps=4, stages=1),
    "ssd_scan_exact": Launch(steps=16, lanes=4096, warps=4),
    "ssd_scan_backward_exact": Launch(steps=16, lanes=4096, warps=4),
    "turns": Launch(steps=16, lanes=128, warps=4, stages=3),
    "short_conv": Launch(steps=8, lanes=256, warps=4),
    "short_conv_backward": Launch(steps=4, lanes=256, warps=4),
}


PROGRAMS = 528  # programs that fill the GPU: four on each of 132 multiprocessors
SCRATCH = 5 * 2**23  # bytes of memory for what a backward hands from kernel to kernel, beyond which it goes slice by slice
MAX_STATES = 1024  # of a channel: they lie in one program
MAX_MATRIX_STATES = 256  # of a head's state (P, N): they lie in one program, and what they are multiplied with in shared memory
MAX_WARPS = 16
ALIGNMENT = 16  # bytes, of what an op returns


class Layout(NamedTuple):
    """Of (channel, state) pairs: `blocks` programs of BD channels with NB places for states (powers of 2)."""

    BD: int
    NB: int
    blocks: int
    warps: int


class Plan(NamedTuple):
    """Of the time axis: `tiles` of T steps in `splits` of `span` tiles, which run side by side where `parallel`."""

    T: int
    tiles: int
    splits: int
    span: int
    parallel: bool


def smallest(*sizes: int) -> int:
    """The minimum; of sizes that stay open in a graph as an expression, since a comparison would tie the graph to its outcome."""
    for x in sizes:
        if isinstance(x, torch.SymInt):
            return reduce(torch.sym_min, sizes)
    return min(sizes)


def largest(one: int, other: int) -> int:
    """The maximum, as `smallest`."""
    return torch.sym_max(one, other) if isinstance(one, torch.SymInt) or isinstance(other, torch.SymInt) else max(one, other)


def layout(op: str, channels: int, states: int) -> Layout:
    """How channels and states are divided among programs."""
    if states > MAX_STATES:
        raise ValueError(f"`N` must be at most {MAX_STATES} states for each channel on the triton backend, got {states}")
    launch, NB = TABLE[op], power_of_two(states)
    BD = min(max(1, launch.lanes // NB), power_of_two(channels))
    warps = min(MAX_WARPS, max(1, power_of_two(BD * NB * launch.warps // launch.lanes)))
    return Layout(BD, NB, ceil_div(channels, BD), warps)


def plan(op: str, length: int, programs: int, most: int | None = None, chunk: int | None = None) -> Plan:
    """How the time axis is divided, where a split has `programs` programs and may not be longer than `most` tiles.

    chunk: steps that stay together, for tiles of the op's own.
    """
    T = chunk or TABLE[op].steps
    tiles = ceil_div(length, T)
    wanted = 1 if programs * 2 > PROGRAMS else min(tiles, ceil_div(PROGRAMS, programs))
    span = ceil_div(tiles, wanted)
    span = span if most is None else max(1, min(span, most))
    return Plan(T, tiles, ceil_div(tiles, span), span, wanted > 1)


def slices(splits: int, each: int) -> Iterator[tuple[int, int]]:
    """Runs [start, stop) of at most `each` splits, from the last to the first."""
    for stop in range(splits, 0, -each):
        yield max(0, stop - each), stop


def restarts(flags: Tensor | None, steps: int) -> Tensor | None:
    """Whether a sequence starts in each run of `steps` steps, (B, runs) uint8; None where `flags` (B, L) is."""
    if flags is None:
        return None
    runs = ceil_div(flags.shape[1], steps)
    fresh = torch.nn.functional.pad(flags == RESET, (0, runs * steps - flags.shape[1]))
    return fresh.view(len(flags), runs, steps).any(2).view(torch.uint8)


def result(piece: Tensor, shape: Sequence[int]) -> Tensor:
    """A piece of a larger tensor as a contiguous result of an op, of this shape.

    It is copied only where it is not contiguous or does not begin at a multiple of ALIGNMENT bytes, as generated code expects.
    """
    x = piece.reshape(shape).contiguous()
    return x.clone() if x.storage_offset() * x.element_size() % ALIGNMENT else x


OPTIONS = {"num_warps", "num_stages"}  # of the compiler, beside a kernel's own compile-time arguments
_compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...], frozenset[int]]] = {}  # what a `_Launch` has of a kernel


def run(kernel: Any, grid: tuple[int, ...], *args: Any, constants: dict[str, Any]) -> None:
    """`kernel[grid](*args, **constants)`, where a kernel that has run on such arguments before is found in a tenth of the time.

    args: in the order of the signature, before all compile-time arguments. What Triton compiles a kernel for, and more, is the
    key: types, which addresses and integers are multiples of 16, which integers are 1 or wide.
    """
    like = next(x for x in args if isinstance(x, Tensor))
    if not like.is_cuda:
        _checked(kernel, grid, args, constants)
        return
    if is_compiling():
        kernel.warmup(*args, grid=grid, **constants)
        return
    last = None if _launched.of is None else _launched.of.get(kernel)
    if last is None or not last.take(args, constants):
        last = _found(kernel, like.get_device(), grid, args, constants)
        if last is None:
            return
        if _launched.of is not None:
            _launched.of[kernel] = last
    across, down, deep = (*grid, 1, 1)[:3]
    compiled, given = last.compiled, (*last.values, *last.ordered)
    if _watched():
        compiled[across, down, deep](*given)
    else:  # the same without what a profiler would be told, which takes longer than the launch
        code = compiled.function, compiled.packed_metadata, None, None, None
        compiled.run(across, down, deep, torch._C._cuda_getCurrentRawStream(last.device), *code, *given)


@dataclass
class _Launch:
    """A kernel and what it was launched with. values: args, tensors as addresses; ordered: constants in the kernel's order."""

    compiled: Any
    device: int
    args: tuple[Any, ...]
    constants: dict[str, Any]
    values: list[Any]
    ordered: tuple[Any, ...]
    free: frozenset[int]  # places of arguments that the kernel was not compiled for

    def take(self, args: tuple[Any, ...], constants: dict[str, Any]) -> bool:
        """Whether this is the launch for `args`: those of before, but for integers that the kernel was not compiled for."""
        if self.constants != constants:
            return False
        changed = []
        for i, (x, before) in enumerate(zip(args, self.args, strict=True)):
            if x is not before:
                if type(x) is not int or type(before) is not int:
                    return False
                if x != before and (i not in self.free or max(abs(x), abs(before)) >= 2**31):
                    return False
                changed.append(i)
        for i in changed:
            self.values[i] = args[i]
        self.args = args
        return True


class _Launched(threading.local):
    """The last launch of each kernel, where `on_device` says so; else None, as no tensor may be held."""

    of: dict[Any, _Launch] | None = None


_launched = _Launched()


def _found(kernel: Any, device: int, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any]) -> _Launch | None:
    """The launch of a kernel that has run on such arguments before; else it runs."""
    key: list[Any] = [kernel, device, *constants.values()]
    values = []
    for x in args:
        if isinstance(x, Tensor):
            address = x.data_ptr()  # which the launcher need not look up
            values.append(address)
            key += x.dtype, address % 16
            continue
        values.append(x)
        if type(x) is int:
            key.append((1 if x == 1 else 2 if x % 16 == 0 else 3) if -(2**31) <= x < 2**31 else -1 - (x % 16 == 0))
        else:
            key.append(type(x))
    found = _compiled.get(tuple(key))
    if found is not None:
        return _Launch(found[0], device, args, constants, values, *found[1:])
    compile_ahead()
    compiled = _checked(kernel, grid, args, constants)
    ordered = tuple(constants[name] for name in kernel.arg_names[len(args) :])
    _compiled[tuple(key)] = compiled, ordered, frozenset(i for i in range(len(args)) if kernel.params[i].do_not_specialize)
    return None


def _watched() -> bool:
    """Whether a profiler wants to hear of launches."""
    runtime = sys.modules["triton"].knobs.runtime  # not imported here, where numbers are read without Triton
    return bool(runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls)


def _checked(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any]) -> Any:
    names = kernel.arg_names[len(args) :]
    if set(names) != set(constants) - OPTIONS:
        raise TypeError(f"{kernel}: the keywords after {len(args)} arguments must be {names}, got {sorted(constants)}")
    return kernel[grid](*args, **constants)


class _OnDevice:
    def __init__(self, like: Tensor, repeats: bool) -> None:
        self.launched: dict[Any, _Launch] | None = {} if repeats else None
        other = like.is_cuda and like.get_device() != torch.cuda.current_device()
        self.device: AbstractContextManager[object] = torch.cuda.device(like.device) if other else nullcontext()

    def __enter__(self) -> None:
        self.device.__enter__()
        _launched.of = self.launched

    def __exit__(self, *error: Any) -> None:
        _launched.of = None
        self.device.__exit__(*error)


def on_device(like: Tensor, repeats: bool = False) -> AbstractContextManager[None]:
    """A context in which kernels run on the GPU of `like`.

    repeats: launches that hardly differ from the kernel's last take less time, and tensors handed to one stay in memory.
    """
    return _OnDevice(like, repeats)


def special_functions(like: Tensor) -> bool:
    """Whether the GPU of `like` has a unit for sine and cosine that Triton reaches."""
    return like.is_cuda and torch.version.hip is None
