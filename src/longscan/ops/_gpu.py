"""Launches of Triton kernels, the properties of the device that they depend on, and the division of time into chunks."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import wrap_triton

from longscan.ops._repeated_calls import interpreting, record_launch

log = logging.getLogger("longscan")

PROGRAMS_PER_MULTIPROCESSOR = 4  # one for each warp scheduler


@cache
def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; 1 for the CPU, where kernels run in Triton's interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@cache
def shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory that a program can have on a GPU; 1 GiB for the CPU, whose interpreter has no limit."""
    if device.type != "cuda":
        return 2**30
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)  # type: ignore[attr-defined]


def programs_to_fill(device: torch.device) -> int:
    """Return how many programs of one warp a device needs so that each warp scheduler has one."""
    return PROGRAMS_PER_MULTIPROCESSOR * multiprocessors(device)


class Chunks(NamedTuple):
    """A division of the time axis into `number` chunks of `length` steps, of which the last may be shorter."""

    number: int
    length: int


def divide_time(length: int, block: int, programs: int, device: torch.device) -> Chunks:
    """Return chunks of whole blocks of steps, each run by `programs` programs of one warp, that together fill the device.

    There is one chunk if its programs alone occupy more than half of the device, because parallel chunks read their inputs twice.
    """
    wanted = programs_to_fill(device)
    if programs * 2 > wanted:
        return Chunks(1, length)
    blocks = ceil_div(length, block)
    chunk = ceil_div(blocks, ceil_div(wanted, programs)) * block
    return Chunks(ceil_div(length, chunk), chunk)


class ChunkedLaunch(NamedTuple):
    """The division of a call in chunks of the steps among programs, and the last arguments of all kernels of the call."""

    chunks: Chunks
    blocks_of_rows: int
    sizes: tuple[int, int, int, int]
    constants: dict[str, int]


class ChunkMaps(NamedTuple):
    """The maps x -> mult x + local of the state, or of its gradient, by each chunk; `restarted`: if a sequence starts in it."""

    mult: Any = None
    local: Any = None
    restarted: Tensor | None = None


def select_chunks(maps: ChunkMaps, start: int, stop: int | None) -> ChunkMaps:
    """Return the maps of the chunks [start, stop); an empty `ChunkMaps` if there is only one chunk."""
    if maps.local.shape[1] == 1:
        return ChunkMaps()
    return ChunkMaps(*(None if x is None else x[:, start:stop].contiguous() for x in maps))


def ceil_div(size: int, by: int) -> int:
    """Return size / by, rounded up."""
    return -(-size // by)


def power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()


def on_device(like: Tensor) -> AbstractContextManager[object]:
    """Return a context in which kernels run on the GPU of `like`."""
    other = like.is_cuda and like.get_device() != torch.cuda.current_device()
    return torch.cuda.device(like.device) if other else nullcontext()


def current_stream(like: Tensor) -> Any:
    """Return the handle of the current stream of the GPU of `like`, which compiled kernels take as an argument."""
    from triton.runtime import driver

    return driver.active.get_current_stream(like.get_device())


class _Tracing(threading.local):
    active = False


_tracing = _Tracing()


@contextmanager
def traced_launches() -> Iterator[None]:
    """Record the launches inside the `with` statement as nodes of the graph that a compiler traces."""
    _tracing.active = True
    try:
        yield
    finally:
        _tracing.active = False


# Whether kernels run in Triton's interpreter. No compiler can trace these.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

_compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}  # a compiled kernel and its compile-time arguments, in order


class _ParallelCompilation(threading.local):
    """State of a parallel compilation.

    Attributes:
        calls: functions whose kernels are compiled together.
        compiling: whether launches compile their kernels without running them.
        kernels: the kernels that these launches compile.
    """

    calls: tuple[Callable[[], object], ...] = ()
    compiling = False

    def __init__(self) -> None:
        self.kernels: dict[int, tuple[Any, int]] = {}  # id -> a kernel that is being compiled and the index of its GPU


_compilation = _ParallelCompilation()


class _LastFirst(Executor):
    """Runs in threads what was submitted before `start`, beginning with the last function.

    The last kernels of a call are those of its backward pass, whose scan takes longer to compile than all others. Triton's front
    end is Python, so that a thread that begins first also gets further before the others take turns with it.
    """

    def __init__(self, threads: Executor) -> None:
        self._threads, self._waiting = threads, list[tuple[Future[Any], Callable[[], Any]]]()

    def submit(self, function: Callable[[], Any], /) -> Future[Any]:  # type: ignore[override]  # Triton gives no arguments
        future: Future[Any] = Future()
        self._waiting.append((future, function))
        return future

    def start(self) -> None:
        """Give the functions to the threads."""
        while self._waiting:
            self._threads.submit(_complete, *self._waiting.pop())


def _complete(future: Future[Any], function: Callable[[], Any]) -> None:
    """Store the result of a function, or what it raises, in a future."""
    try:
        result = function()
    except BaseException as error:  # raised again by the future, as ThreadPoolExecutor does it
        future.set_exception(error)
    else:
        future.set_result(result)


def compile_together(call: Callable[[], Any], *later: Callable[[], object]) -> Any:
    """Return the result of `call`. If one of its kernels is new, all kernels of `call` and `later` are compiled in parallel."""
    _compilation.calls = () if _compilation.compiling else (call, *later)
    try:
        return call()
    finally:
        _compilation.calls = ()


def is_compiling() -> bool:
    """Return whether launches compile their kernels without running them, so that their results are not initialised."""
    return _compilation.compiling


def compile_ahead() -> None:
    """Compile the kernels of the calls of `compile_together`; called when one of their kernels is launched for the first time.

    A kernel that cannot be compiled raises when it is launched, not here: in Triton 3.6 such an error would leave the
    asynchronous mode active, so that every later kernel of the process fails. If the buffers of the calls do not fit into the
    memory, kernels are compiled when they are launched.
    """
    calls, _compilation.calls = _compilation.calls, ()
    if not calls or torch.cuda.is_current_stream_capturing():
        return
    from triton import AsyncCompileMode

    _compilation.compiling = True
    try:
        with ThreadPoolExecutor() as threads:
            ordered = _LastFirst(threads)
            with AsyncCompileMode(ordered, ignore_errors=True):
                try:
                    for call in calls:
                        call()
                finally:
                    ordered.start()  # also after an error, because AsyncCompileMode waits for what was submitted
            with _loading:
                list(threads.map(lambda compiled: _build_launcher(*compiled), _compilation.kernels.values()))
                for compiled in _compilation.kernels.values():
                    _load(*compiled)
    except torch.OutOfMemoryError:
        log.info("kernels are compiled one by one, because the buffers of a trial call do not fit into the memory")
    finally:
        _compilation.compiling = False
        _compilation.kernels.clear()


def _wait_until_compiled(kernel: Any) -> Any:
    """Return a compiled kernel. In Triton's asynchronous mode another thread compiles it, and this function waits for it."""
    return kernel.result() if hasattr(type(kernel), "result") else kernel


# Lock for building and loading the C functions that launch kernels.
#
# Triton 3.5 and 3.6 build a C module for the types of a kernel's arguments, and all of these modules have the same name. When
# CPython loads such a file again in a process, it copies the functions of the first load into the module that sys.modules has
# under that name, which may be the module of another kernel. Triton reads the function from the module right after it has loaded
# it, so this is harmless in one thread. With two threads a kernel can get the launch function of another kernel, which has other
# arguments. Later versions of Triton have one launch function for all kernels.
_loading = threading.Lock()


def _build_launcher(kernel: Any, device: int) -> None:
    """Build the C function that launches a kernel and store it in Triton's cache; with Triton 3.6 this takes half a second.

    The function that is loaded here is not used, because it may belong to another kernel (see the comment at `_loading`).
    """
    from triton.runtime import driver

    try:
        compiled = _wait_until_compiled(kernel)
        with torch.cuda.device(device):
            driver.active.launcher_cls(compiled.src, compiled.metadata)
    except Exception as error:  # raised again where the kernel is launched
        log.debug("the function that launches a kernel could not be built: %s", error)


def _load(kernel: Any, device: int) -> None:
    """Load a kernel and the function that launches it onto a GPU, which need not be the current one."""
    try:
        with torch.cuda.device(device):
            _wait_until_compiled(kernel)[1, 1, 1]
    except Exception as error:  # raised again where the kernel is launched
        log.debug("a kernel could not be loaded: %s", error)


@cache
def _specialised(kernel: Any) -> tuple[bool, ...]:
    """Return for each argument of a kernel whether Triton compiles separate versions for 1, multiples of 16 and other values."""
    return tuple([not parameter.do_not_specialize for parameter in kernel.params])


def kind_of_tensor(x: Tensor) -> tuple[torch.dtype, bool]:
    """Return the same for tensors that have a compiled kernel in common by Triton's rule."""
    return x.dtype, x.data_ptr() % 16 == 0


def kind_of_integer(x: int, specialised: bool) -> tuple[bool, bool, bool]:
    """Return the same for integers that have a compiled kernel in common by Triton's rule. specialised: as in `_specialised`."""
    return x < 2**31, specialised and x == 1, specialised and x % 16 == 0


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, constants: dict[str, Any]) -> None:
    """Launch a Triton kernel: `kernel[grid](*args, **constants)`.

    args: in the order of the signature, before the constants; first tensors or None, then integers. A tensor that the kernel
    writes must not be passed twice: a compiler gives each argument a separate copy, and would return only one of them.

    A kernel that has run before on arguments of the same dtypes and alignments is launched by `compiled[grid](...)`, as Triton's
    tutorials launch a compiled kernel, with addresses instead of tensors. `kernel[grid]` takes several times as long, because it
    inspects every argument and its launcher asks the driver about every tensor.
    """
    if _tracing.active:
        wrap_triton(kernel)[grid](*args, **constants)
        return
    tensors = [x for x in args if type(x) is not int]
    integers = args[len(tensors) :]
    if INTERPRETED:
        run = partial(kernel[grid], **constants)
        with interpreting():
            run(*args)
        record_launch(run, tensors, integers)
        return
    device = next(x.get_device() for x in tensors if x is not None)
    if _compilation.compiling:
        started = kernel.warmup(*args, grid=grid, **constants)
        _compilation.kernels[id(started)] = started, device  # Triton returns the same object for launches with the same signature
        return
    addresses = [None if x is None else x.data_ptr() for x in tensors]
    key: list[Any] = [kernel, device, *constants.values()]
    key += [x if x is None else kind_of_tensor(x) for x in tensors]
    key += [kind_of_integer(x, each) for x, each in zip(integers, _specialised(kernel)[len(tensors) :], strict=False)]
    found = _compiled.get(tuple(key))
    if found is None:
        compile_ahead()
        compiled = _wait_until_compiled(kernel.warmup(*args, grid=grid, **constants))
        with _loading:
            compiled[1, 1, 1]  # loads the kernel
        found = compiled, tuple(constants[name] for name in kernel.arg_names[len(args) :])
        _compiled[tuple(key)] = found
    compiled, ordered = found
    run = compiled[(*grid, 1, 1)[:3]]
    run(*addresses, *integers, *ordered)
    record_launch(run, tensors, (*integers, *ordered))
