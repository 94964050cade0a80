"""Launches of Triton kernels and chunks of time without a GPU: kernels are stand-ins that record their calls."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
from longscan.ops import _gpu, _triton_launch, dispatch

CPU = torch.device("cpu")


@pytest.mark.parametrize(("size", "by", "expected"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (8, 4, 2), (9, 1, 9)])
def test_quotients_are_rounded_up(size: int, by: int, expected: int) -> None:
    assert _gpu.ceil_div(size, by) == expected


def test_powers_of_two_are_the_smallest_that_suffice() -> None:
    assert [_gpu.power_of_two(size) for size in range(10)] == [1, 1, 2, 4, 4, 8, 8, 8, 8, 16]


def test_interpreter_counts_as_one_multiprocessor() -> None:
    assert _gpu.multiprocessors(CPU) == 1
    assert _gpu.programs_to_fill(CPU) == 4
    assert _gpu.shared_memory(CPU) >= 2**20


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (129, ((3, 2), 128)),
        (65535 * 128, ((3, 65535), 128)),
        (65535 * 128 + 1, ((3, 32768), 256)),  # CUDA launches at most 65,535 programs along the second axis
        (2**25, ((3, 32768), 1024)),
    ],
)
def test_grid_of_state_passing_fits_the_limit_of_cuda(size: int, expected: tuple[tuple[int, int], int]) -> None:
    assert _triton_launch.state_passing_grid(3, size) == expected


@pytest.mark.parametrize(
    ("length", "programs", "expected"),
    [
        (1000, 51, (1, 1000)),  # more than half of the 100 programs that fill the device
        (1000, 50, (2, 512)),  # 63 blocks of 16 in two chunks of 32 blocks
        (1000, 10, (9, 112)),  # ten chunks of 7 blocks would be longer than the sequence
        (1000, 1, (63, 16)),  # no chunk is shorter than a block
        (16, 1, (1, 16)),
        (17, 3, (2, 16)),
    ],
)
def test_time_is_divided_until_the_device_is_full(
    length: int, programs: int, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_gpu, "multiprocessors", lambda _: 25)
    assert _gpu.divide_time(length, 16, programs, CPU) == _gpu.Chunks(*expected)


class StandIn:
    """A kernel that records how it is compiled and launched."""

    arg_names = ("x", "other", "count", "BLOCK", "COMPLEX")
    params = tuple(SimpleNamespace(do_not_specialize=False) for _ in arg_names)

    def __init__(self) -> None:
        self.warmups: list[tuple[Any, ...]] = []
        self.launches: list[tuple[Any, ...]] = []

    def warmup(self, *args: Any, grid: tuple[int, ...], **constants: Any) -> Any:
        self.warmups.append((args, grid, constants))
        return self

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **constants: self.launches.append((grid, args, constants))


def launch(kernel: StandIn, x: torch.Tensor, count: Any, other: Any, grid: tuple[int, ...] = (2, 3), **changed: Any) -> None:
    _gpu.launch(kernel, grid, x, other, count, constants={"COMPLEX": True, "BLOCK": 8} | changed)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setattr(_gpu, "INTERPRETED", False)
    monkeypatch.setattr(_gpu, "_compiled", {})
    return StandIn()


def test_a_kernel_is_compiled_once_for_like_arguments(kernel: StandIn) -> None:
    x = torch.zeros(64)
    for count in (17, 19, 2**31 - 1):
        launch(kernel, x, count, None)
    assert kernel.warmups == [((x, None, 17), (2, 3), {"COMPLEX": True, "BLOCK": 8})]
    assert [(grid, args) for grid, args, _ in kernel.launches] == [
        ((2, 3, 1), (x.data_ptr(), None, count, 8, True)) for count in (17, 19, 2**31 - 1)
    ], "addresses for tensors, compile-time arguments in the kernel's order, and a grid of three numbers"


def test_another_kind_of_argument_is_compiled_anew(kernel: StandIn) -> None:
    x = torch.zeros(64)
    assert x.data_ptr() % 16 == 0
    calls: list[dict[str, Any]] = [
        {},
        {"count": 1},  # Triton makes a constant of 1,
        {"count": 32},  # knows of multiples of 16,
        {"count": 2**31 + 1},  # and has 64-bit numbers
        {"count": 2**31},
        {"x": x.double()},
        {"x": x[1:]},  # an address that is no multiple of 16
        {"other": x},
        {"BLOCK": 16},
        {"COMPLEX": False},
    ]
    for call in [*calls, *calls]:
        launch(kernel, **({"x": x, "count": 17, "other": None} | call))
    assert len(kernel.warmups) == len(calls)
    assert len(kernel.launches) == 2 * len(calls)
    launch(StandIn(), x, 17, None)
    assert len(_gpu._compiled) == len(calls) + 1


def test_integers_that_are_not_specialised_compile_nothing_anew(kernel: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "params", [SimpleNamespace(do_not_specialize=i == 2) for i in range(5)], raising=False)
    for count in (17, 1, 32):
        launch(kernel, torch.zeros(64), count, None)
    assert len(kernel.warmups) == 1
    launch(kernel, torch.zeros(64), 2**31, None)  # 64-bit numbers
    assert len(kernel.warmups) == 2
    assert [args[2] for _, args, _ in kernel.launches] == [17, 1, 32, 2**31]


def test_kinds_of_arguments_follow_the_rule_of_triton() -> None:
    """Arguments for which Triton compiles different kernels are of different kinds: a launch would run the wrong one."""
    jit = pytest.importorskip("triton.runtime.jit")
    if not hasattr(jit, "native_specialize_impl"):
        pytest.skip("this version of Triton has its rule in another function")
    from triton.backends.nvidia.compiler import CUDABackend

    def assert_kinds_are_as_fine(kinds: list[Any], compiled_for: list[Any]) -> None:
        pairs = set(zip(kinds, compiled_for, strict=True))
        assert len(pairs) == len(set(kinds))
        assert len(set(compiled_for)) > 1

    numbers = [0, 1, 2, 15, 16, 17, 2**31 - 16, 2**31 - 1, 2**31, 2**31 + 1, 2**31 + 16, 2**62]
    for specialised in (True, False):
        types = [jit.native_specialize_impl(CUDABackend, x, False, specialised, True) for x in numbers]
        assert_kinds_are_as_fine([_gpu.kind_of_integer(x, specialised) for x in numbers], types)
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.uint8]
    tensors = [torch.zeros(64, dtype=dtype)[offset:] for dtype in dtypes for offset in (0, 1, 2, 4, 8, 16)]
    types = [jit.native_specialize_impl(CUDABackend, x, False, True, True) for x in tensors]
    assert_kinds_are_as_fine([_gpu.kind_of_tensor(x) for x in tensors], types)


def test_grids_have_three_numbers(kernel: StandIn) -> None:
    for grid in ((5,), (5, 6), (5, 6, 7)):
        launch(kernel, torch.zeros(64), 17, None, grid)
    assert [grid for grid, _, _ in kernel.launches] == [(5, 1, 1), (5, 6, 1), (5, 6, 7)]


def test_the_interpreter_runs_the_kernel_as_it_is(kernel: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gpu, "INTERPRETED", True)
    x = torch.zeros(64)
    launch(kernel, x, 17, None)
    assert kernel.launches == [((2, 3), (x, None, 17), {"COMPLEX": True, "BLOCK": 8})]
    assert not kernel.warmups


def test_launches_are_traced_inside_the_context_only(kernel: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[Any] = []
    monkeypatch.setattr(_gpu, "wrap_triton", lambda given: traced.append(given) or given)
    with _gpu.traced_launches():
        launch(kernel, torch.zeros(64), 17, None)
    assert traced == [kernel]
    assert kernel.launches[0][0] == (2, 3)
    assert not kernel.warmups
    with pytest.raises(KeyError), _gpu.traced_launches():
        raise KeyError
    launch(kernel, torch.zeros(64), 17, None)
    assert traced == [kernel]
    assert len(kernel.warmups) == 1


def test_tensors_of_the_cpu_need_no_device() -> None:
    with _gpu.on_device(torch.zeros(1)) as entered:
        assert entered is None


def test_kernels_of_the_backward_pass_are_compiled_with_those_of_the_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compiled only if a backward pass may follow."""
    native = import_module("longscan.ops.selective_scan")._native
    compiled: list[int] = []
    kernels = SimpleNamespace(
        forward=lambda *given: (given[0], given[8], torch.zeros(0)),
        backward=lambda *given: compiled.append(len(given)),
        chunk_states_shape=lambda *_: (0,),
    )
    monkeypatch.setattr(type(native), "module", lambda *_: kernels)
    monkeypatch.setattr(dispatch, "unsupported_reason", lambda *_: None)
    monkeypatch.setattr(_gpu, "compile_together", lambda run, later: (later(), run())[1])
    u, maps, state = torch.zeros(2, 5, 3), torch.zeros(2, 5, 4), torch.zeros(2, 3, 4)
    given = [u, u, torch.zeros(3, 4), maps, maps, None, None, None, state, None, None]
    for keep in (False, True):
        native._first.run(*given, False, False, keep, "triton")
        assert len(compiled) == keep


def test_what_follows_is_compiled_with_the_first_new_kernel(kernel: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """All launches of the calls only compile then; a kernel that is known compiles nothing."""
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton, "AsyncCompileMode", lambda _, ignore_errors: nullcontext(ignore_errors), raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    states: list[bool] = []

    def call(count: int) -> str:
        states.append(_gpu.is_compiling())
        launch(kernel, torch.zeros(64), count, None)
        return "result"

    assert _gpu.compile_together(lambda: call(17), lambda: call(32)) == "result"
    assert states == [False, True, True]
    assert [args[2] for args, _, _ in kernel.warmups] == [17, 32, 17]
    assert len(kernel.launches) == 1
    _gpu.compile_together(lambda: call(19), lambda: call(64))
    assert states == [False, True, True, False]
    with pytest.raises(ZeroDivisionError):
        _gpu.compile_together(lambda: 1 // 0, lambda: call(1))
    launch(kernel, torch.zeros(64), 1, None)
    assert states == [False, True, True, False], "calls are forgotten with the call that they follow"


def test_kernel_that_cannot_be_compiled_leaves_later_ones_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = pytest.importorskip("triton.runtime._async_compile")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def compile_wrong_kernel() -> None:
        others = [lambda *_: None] * (len(signature(modes.AsyncCompileMode.submit).parameters) - 3)
        modes.active_mode.get().submit("key", lambda: 1 // 0, *others)

    _gpu.compile_together(_gpu.compile_ahead, compile_wrong_kernel)
    assert modes.active_mode.get() is None


def test_kernels_of_the_backward_pass_begin_to_compile_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of calls that ended with an error, which is raised after them."""
    modes = pytest.importorskip("triton.runtime._async_compile")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(_gpu, "ThreadPoolExecutor", partial(ThreadPoolExecutor, 1))
    order: list[str] = []

    def submit(name: str) -> None:
        others = [lambda *_: None] * (len(signature(modes.AsyncCompileMode.submit).parameters) - 3)
        modes.active_mode.get().submit(name, lambda: order.append(name), *others)

    def call(*names: str) -> None:
        for name in names if _gpu.is_compiling() else ():
            submit(name)
        if not _gpu.is_compiling():
            _gpu.compile_ahead()

    _gpu.compile_together(lambda: call("forward scan", "epilogue"), lambda: call("backward scan", "sums"))
    assert order == ["sums", "backward scan", "epilogue", "forward scan"]
    order.clear()
    with pytest.raises(ZeroDivisionError):
        _gpu.compile_together(lambda: call("forward scan"), lambda: 1 // 0)
    assert order == ["forward scan"]
    assert modes.active_mode.get() is None


class Launcher:
    """What Triton 3.6 makes of the types of a kernel's arguments, from modules that CPython loads: see `_gpu._loading`."""

    first_loads: ClassVar[dict[str, str]] = {}
    last_module: ClassVar[dict[str, str]]
    made: ClassVar[list[str]] = []

    def __init__(self, types: str, metadata: None) -> None:
        assert metadata is None
        self.made.append(types)
        time.sleep(0.03 if types in self.first_loads else 0)  # so that the other kernel is loaded in the meantime
        if types in self.first_loads:
            module = self.last_module
            module["launch"] = self.first_loads[types]
        else:
            module = Launcher.last_module = {"launch": types}
            self.first_loads[types] = types
        time.sleep(0.06)
        self.launch = module["launch"]


class CompiledKernel:
    """A kernel whose function for launches is made when it is first needed."""

    metadata = None

    def __init__(self, types: str) -> None:
        self.src, self.function = types, ""

    def warmup(self, *_: Any, **__: Any) -> "CompiledKernel":
        return self

    def __getitem__(self, grid: Any) -> Any:
        self.function = self.function or Launcher(self.src, self.metadata).launch
        return lambda *_: None


def test_no_kernel_is_launched_by_the_function_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the kernels have the same types of arguments, so that a module is loaded twice while kernels are made in threads.

    The function of a kernel is built once, however often the kernel is launched, and loaded once.
    """
    runtime = pytest.importorskip("triton.runtime")
    monkeypatch.setattr(runtime, "driver", SimpleNamespace(active=SimpleNamespace(launcher_cls=Launcher)))
    monkeypatch.setattr(_gpu, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    Launcher.first_loads.clear()
    Launcher.made.clear()
    kernels = [CompiledKernel("three pointers"), CompiledKernel("two pointers"), CompiledKernel("three pointers")]

    def call() -> None:
        if _gpu.is_compiling():
            for kernel in kernels * 2:
                _gpu.launch(kernel, (1,), SimpleNamespace(get_device=lambda: 0), constants={})
        else:
            _gpu.compile_ahead()

    _gpu.compile_together(call)
    assert [kernel.function for kernel in kernels] == [kernel.src for kernel in kernels]
    assert len(Launcher.made) == 2 * len(kernels)


class Kinds(set[tuple[Any, ...]]):
    """Kernels for which Triton compiles separate code, from their launches.

    Integers that are 1, multiples of 16 or others have separate kernels, unless a kernel excludes them, and addresses that are
    multiples of 16 or others. The matrix products of unitary_scan have two kernels, EVEN and not, which are compiled together.

    Attributes:
        n_launches: number of launches so far.
    """

    n_launches = 0

    def add_launch(self, kernel: Any, _: tuple[int, ...], *args: Any, constants: dict[str, Any]) -> None:
        """Add the kernel of a launch; the arguments are those of `_gpu.launch`."""
        self.n_launches += 1
        tensors = tuple([x if x is None else (x.dtype, x.data_ptr() % 16 == 0) for x in args if type(x) is not int])
        specialised = [not parameter.do_not_specialize for parameter in kernel.params][len(tensors) :]
        integers = [(x == 1, x % 16 == 0) for x, special in zip(args[len(tensors) :], specialised, strict=False) if special]
        self.add((kernel.fn.__name__, *tensors, *integers, *[x for name, x in constants.items() if name != "EVEN"]))


OP_CALLS = (
    "UNITARY", "UNITARY_MASKED", "SELECTIVE", "SELECTIVE_MASKED", "SELECTIVE_COMPLEX", "SSD", "LINEAR", "BLOCK2", "SHORT_CONV",
)  # fmt: skip


@pytest.fixture
def op_call(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Kinds]:
    """A call of benchmarks/op_calls.py by Triton, whose launches are noted instead of run."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    call, kinds = getattr(import_module("op_calls"), request.param), Kinds()
    monkeypatch.setattr(dispatch, "unsupported_reason", lambda *_: None)
    monkeypatch.setattr(_gpu, "multiprocessors", lambda _: 132)
    for module in (import_module(f"longscan.ops.{call.op}.triton.launch"), import_module("longscan.ops._triton_steps"), _gpu):
        monkeypatch.setattr(module, "launch", kinds.add_launch)
    return call, kinds


@pytest.mark.skipif(_gpu.INTERPRETED, reason="kernels of Triton's interpreter are not compiled")
@pytest.mark.parametrize(
    ("op_call", "length", "dtype", "number"),
    [
        ("UNITARY", 1024, "float32", 7),
        ("UNITARY", 8192, "float32", 31),  # three for each of 9 rounds
        ("SELECTIVE", 1024, "float32", 5),
        ("SELECTIVE", 1024, "bfloat16", 6),  # the sums of dB and dC are rounded
        ("SELECTIVE_COMPLEX", 1024, "float32", 8),  # states are passed by kernels, and rows have two chains
    ],
    indirect=["op_call"],
)
def test_number_of_launches_of_a_forward_and_backward_pass(
    op_call: tuple[Any, Kinds], length: int, dtype: str, number: int
) -> None:
    call, kinds = op_call
    leaves = [x.requires_grad_() for x in call.inputs({"B": 16, "L": length, "D": 32, "N": 64}, dtype)]
    torch.autograd.grad(call.call(*leaves, backend="triton").sum(), leaves)
    assert kinds.n_launches == number


@pytest.mark.skipif(_gpu.INTERPRETED, reason="kernels of Triton's interpreter are not compiled")
@pytest.mark.parametrize("op_call", OP_CALLS, indirect=True)
def test_another_batch_or_length_of_the_same_kind_compiles_nothing(
    op_call: tuple[Any, Kinds], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One multiprocessor is full with any of these sizes, so that they have the same division of the steps."""
    monkeypatch.setattr(_gpu, "multiprocessors", lambda _: 1)
    call, kinds = op_call

    def kinds_of(batch: int, length: int) -> set[tuple[Any, ...]]:
        kinds.clear()
        leaves = [x.requires_grad_() for x in call.inputs({"B": batch, "L": length, "D": 128, "N": 16})]
        torch.autograd.grad(call.call(*leaves, backend="triton").sum(), leaves)
        return set(kinds)

    first = kinds_of(16, 1024)
    assert first
    for batch, length in [(15, 1000), (8, 1280), (32, 1537)]:
        assert kinds_of(batch, length) == first


def record_compiled_kinds(kinds: Kinds, patch: pytest.MonkeyPatch) -> set[tuple[Any, ...]]:
    """Return a set to which later calls of `compile_together`, which is replaced by a stand-in, add what they compile.

    kinds: notes all launches of these calls.
    """
    compiled: set[tuple[Any, ...]] = set()

    def compile_together(run: Any, *later: Any) -> Any:
        kinds.clear()
        patch.setattr(_gpu._compilation, "compiling", True)
        for each in (run, *later):
            each()
        patch.setattr(_gpu._compilation, "compiling", False)
        compiled.update(kinds)
        return run()

    patch.setattr(_gpu, "compile_together", compile_together)
    return compiled


@pytest.mark.skipif(_gpu.INTERPRETED, reason="kernels of Triton's interpreter are not compiled")
@pytest.mark.parametrize("shape", [{"B": 4, "L": 300, "D": 32, "N": 16}, {"B": 16, "L": 1024, "D": 32, "N": 64}], ids=str)
@pytest.mark.parametrize("op_call", OP_CALLS, indirect=True)
def test_kernels_of_a_training_step_are_those_compiled_with_its_forward_pass(
    op_call: tuple[Any, Kinds], shape: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss depends on y alone, as in most models, so that the final state has no gradient."""
    call, kinds = op_call
    compiled = record_compiled_kinds(kinds, monkeypatch)
    leaves = [x.requires_grad_() for x in call.inputs(shape)]
    y = call.call(*leaves, backend="triton")
    assert compiled
    kinds.clear()
    torch.autograd.grad(y.sum(), leaves)
    assert kinds
    assert kinds <= compiled


@pytest.mark.skipif(_gpu.INTERPRETED, reason="kernels of Triton's interpreter are not compiled")
@pytest.mark.parametrize("first", [(16, 1024), (3, 77)], ids=str)
@pytest.mark.parametrize("op_call", ["UNITARY", "UNITARY_MASKED", "SELECTIVE", "SELECTIVE_MASKED"], indirect=True)
def test_first_call_compiles_the_kernels_of_other_batches_and_lengths(
    op_call: tuple[Any, Kinds], first: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of 16 fills 132 multiprocessors without parallel chunks, and its gradients of B and C are sums of one chain."""
    call, kinds = op_call

    def train(batch: int, length: int) -> None:
        leaves = [x.requires_grad_() for x in call.inputs({"B": batch, "L": length, "D": 32, "N": 64})]
        torch.autograd.grad(call.call(*leaves, backend="triton").sum(), leaves)

    with monkeypatch.context() as patch:
        compiled = record_compiled_kinds(kinds, patch)
        train(*first)
    for batch, length in [(16, 1024), (16, 777), (3, 77), (4, 1024), (8, 1024)]:
        kinds.clear()
        train(batch, length)
        assert kinds
        assert kinds <= compiled
