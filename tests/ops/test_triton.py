"""The Triton kernels, in Triton's interpreter (TRITON_INTERPRET=1) or on the GPU that LONGSCAN_DEVICE names."""

import os
from dataclasses import replace
from functools import partial
from importlib import import_module
from random import Random

import pytest
import torch

from longscan.ops import OPS, _triton_launch, linear_scan, selective_scan, ssd_scan, unitary_scan
from longscan.ops.dispatch import unsupported_reason
from op_examples import example, floats, with_gradients

DEVICE = torch.device(os.environ.get("LONGSCAN_DEVICE", "cpu"))
NATIVE = [op for op in OPS if "triton" in OPS[op].native]
pytestmark = pytest.mark.skipif(
    unsupported_reason("linear_scan", "triton", DEVICE, torch.float32, ("triton",)) is not None,
    reason="needs TRITON_INTERPRET=1 or a GPU",
)

FACTORS = {"linear_scan": "a", "block2_scan": "M"}
PLANS = {
    "one split": {"PROGRAMS": 1},
    "splits side by side": {"PROGRAMS": 64},
    "slices one after another": {"PROGRAMS": 1, "SCRATCH": 1},
    "slices of splits": {"PROGRAMS": 64, "SCRATCH": 1},
}


def on_device(inputs):
    return {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}


def results_and_gradients(op, inputs, backend):
    inputs = with_gradients(inputs)
    results = OPS[op].function(**inputs, backend=backend)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) for x in results]
    return [*results, *torch.autograd.grad(results, list(floats(inputs).values()), weights)]


KINDS = [(op, False) for op in NATIVE] + [(op, True) for op in NATIVE if op not in ("ssd_scan", "short_conv")]


@pytest.mark.parametrize("plan", [list(PLANS)[-1], *(pytest.param(plan, marks=pytest.mark.slow) for plan in list(PLANS)[:-1])])
@pytest.mark.parametrize(("op", "is_complex"), KINDS)
def test_results_do_not_depend_on_the_plan(op, is_complex, plan, monkeypatch):
    """However channels and steps are divided among programs: five tiles, two a chunk, a channel or two a program."""
    for name, value in PLANS[plan].items():
        monkeypatch.setattr(_triton_launch, name, value)
    table = {name: replace(launch, steps=8, lanes=4, warps=1) for name, launch in _triton_launch.TABLE.items()}
    monkeypatch.setattr(_triton_launch, "TABLE", table)
    inputs = example(op, torch.float64, length=40, is_complex=is_complex and op in ("block2_scan", "selective_scan"))
    if op == "block2_scan":
        inputs["M"] = 0.7 * (inputs["M"][0, 0] if is_complex else inputs["M"])
    if op == "linear_scan":
        inputs |= {"pairs": is_complex, "reverse": is_complex}
        inputs["a"] = inputs["a"] if not is_complex else inputs["a"][0, 0]
    if is_complex and op == "linear_scan":
        inputs |= {name: torch.randn(*inputs[name].shape, 2, dtype=torch.float64) for name in ("a", "b", "initial_state")}
        inputs["a"] /= 2
    if op == "unitary_scan":
        inputs["phase_dt"] = is_complex
    expected = results_and_gradients(op, inputs, "reference")
    for one, other in zip(results_and_gradients(op, on_device(inputs), "triton"), expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("op", NATIVE)
def test_many_models_are_one_call(op, monkeypatch):
    """Mapped parameters become groups: one call of the kernel, whose gradients are those of each model alone."""
    module, size = import_module(f"longscan.ops.{op}.triton"), 2
    calls = []
    for name in ("forward", "backward"):
        kernel = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, kernel=kernel, name=name: calls.append(name) or kernel(*args))
    many = [on_device(example(op, torch.float64, masked=False)) for _ in range(size)]
    if op in FACTORS:  # a constant factor, of each model its own
        many = [inputs | {FACTORS[op]: inputs[FACTORS[op]][0, 0]} for inputs in many]

    def loss(tensors, backend):
        y, final = OPS[op].function(**(many[0] | tensors), backend=backend)
        return y.square().sum() + final.square().sum()

    each = [floats(inputs) for inputs in many]
    stacked = {name: torch.stack([inputs[name] for inputs in each]) for name in each[0]}
    call = torch.func.vmap(torch.func.grad(lambda tensors: loss(tensors, "triton")))
    if DEVICE.type == "cuda":  # where both are gone through to compile their kernels
        call(stacked)
        calls.clear()
    found = call(stacked)
    assert calls == ["forward", "backward"]
    for i, inputs in enumerate(each):
        for name, expected in torch.func.grad(lambda tensors: loss(tensors, "eager"))(inputs).items():
            torch.testing.assert_close(found[name][i], expected)
    shared = {name: stacked[name] for name in stacked if name not in OPS[op].per_step}  # the inputs are the same for all
    found = torch.func.vmap(torch.func.grad(lambda tensors: loss(tensors, "triton")))(shared)
    for i, inputs in enumerate(each):
        own = {name: inputs[name] for name in shared}
        for name, expected in torch.func.grad(lambda tensors: loss(tensors, "eager"))(own).items():
            torch.testing.assert_close(found[name][i], expected)


def test_turns_add_up_over_thousands_of_steps():
    """An input that nothing but turns, and what is left of it after each step; whole turns count for nothing."""
    length = 5000
    x, angle = torch.zeros(1, length, 1, 1, device=DEVICE), torch.full((1, length, 1, 1), 3.0, device=DEVICE)
    x[:, 0] = 1
    first = torch.tensor([1.0, 0.0], device=DEVICE).expand(1, length, 1, 2)
    y, final = ssd_scan(x, torch.ones_like(x[..., 0]), torch.zeros(1, device=DEVICE), first, first, angle=angle, backend="triton")
    turned = 3.0 * torch.arange(length, dtype=torch.float64)
    assert (y.cpu().flatten() - turned.cos()).abs().max() < 2e-6
    assert (final.cpu().flatten() - torch.stack([turned[-1].cos(), turned[-1].sin()])).abs().max() < 2e-6


@pytest.mark.parametrize(
    ("lag", "fenced", "is_complex"),
    [
        (1, False, True),
        (2, True, False),
        pytest.param(1, False, False, marks=pytest.mark.slow),
        pytest.param(2, True, True, marks=pytest.mark.slow),
    ],
)
def test_programs_add_their_parts_in_turn(is_complex, lag, fenced, monkeypatch):
    """Programs of one or two channels, one after the other, in chains of up to five: dB and dC are sums over all channels."""
    module = import_module("longscan.ops.selective_scan.triton")
    monkeypatch.setattr(module, "CHAINS", {f"selective_scan{kind}_backward": fenced for kind in ("", "_wide", "_pairs")})
    monkeypatch.setattr(module, "LAG", lag)
    check_selective_scan(40, is_complex, monkeypatch)


@pytest.mark.parametrize("is_complex", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    ("plan", "length"), [pytest.param("slices one after another", 72, marks=pytest.mark.slow), ("slices of splits", 40)]
)
def test_programs_have_parts_of_slices(plan, length, is_complex, monkeypatch):
    """As above, but each program has parts of its own, of three or more slices of the steps, of which one is shorter."""
    module = import_module("longscan.ops.selective_scan.triton")
    monkeypatch.setattr(module, "CHAINS", {})
    slices, run = [], _triton_launch.run
    monkeypatch.setattr(
        _triton_launch, "run", lambda kernel, *args, **constants: slices.append(kernel) or run(kernel, *args, **constants)
    )
    check_selective_scan(length, is_complex, monkeypatch, **PLANS[plan])
    assert slices.count(module.add_parts) > 2


def check_selective_scan(length, is_complex, monkeypatch, PROGRAMS=1, **sizes):
    for name, value in ({"PROGRAMS": PROGRAMS} | sizes).items():
        monkeypatch.setattr(_triton_launch, name, value)
    table = {name: replace(launch, steps=8, lanes=4, warps=1) for name, launch in _triton_launch.TABLE.items()}
    monkeypatch.setattr(_triton_launch, "TABLE", table)
    inputs = example("selective_scan", torch.float64, length=length, is_complex=is_complex)
    expected = results_and_gradients("selective_scan", inputs, "reference")
    for one, other in zip(results_and_gradients("selective_scan", on_device(inputs), "triton"), expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-9, atol=1e-9)


def test_what_is_kept_for_the_backward_has_room():
    """The bounds that stand in graphs of open sizes hold, and are not far from what is needed."""
    selective, unitary = (import_module(f"longscan.ops.{op}.triton") for op in ("selective_scan", "unitary_scan"))
    random = Random(0)
    for _ in range(1000):
        batch, length = (int(2 ** random.uniform(0, most)) for most in (13, 22))
        channels, states, pair = random.choice([1, 3, 33, 129, 1536]), random.choice([1, 4, 33, 256]), random.choice([(), (2,)])
        needed = -(-length // selective._kept_each(batch, length, channels, states, 1 + len(pair)))
        _, numbers = selective.chunk_states_shape(batch, length, channels, states, *pair)
        assert needed <= numbers / (channels * states * (1 + len(pair))) <= 4 * needed + 1
        needed = unitary._splits(batch, length, channels, states)[1]
        _, numbers = unitary.chunk_states_shape(batch, length, channels, states)
        assert needed + 1 <= (numbers - length * channels) / (3 * channels * states) <= 4 * needed + 1


@pytest.mark.parametrize("call", [selective_scan])
def test_too_many_states(call, monkeypatch):
    monkeypatch.setattr(_triton_launch, "MAX_STATES", 3)
    with pytest.raises(ValueError, match="`N` must be at most 3 states for each channel on the triton backend, got 4"):
        call(**on_device(example(call.__name__)), backend="triton")


@pytest.mark.skipif(DEVICE.type != "cpu", reason="about the interpreter")
def test_scans_of_slices_are_those_of_elements(monkeypatch):
    """What makes the interpreter fast enough to test with changes no bit."""
    from triton.runtime.interpreter import ScanOps

    from interpreter import original_scans

    inputs = example("selective_scan", is_complex=True)
    fast = results_and_gradients("selective_scan", inputs, "triton")
    monkeypatch.setattr(ScanOps, "generic_scan", original_scans[0])
    table = {name: replace(launch, steps=8, lanes=16) for name, launch in _triton_launch.TABLE.items()}
    monkeypatch.setattr(_triton_launch, "TABLE", table)
    for one, other in zip(results_and_gradients("selective_scan", inputs, "triton"), fast, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="is about the interpreter")
def test_the_interpreters_products_are_those_of_the_kernel(monkeypatch):
    """Products of float64, a column after another in the kernel."""
    import interpreter

    kernels = import_module("longscan.ops.ssd_scan.triton")
    inputs = example("ssd_scan")
    fast = results_and_gradients("ssd_scan", inputs, "triton")
    assert interpreter.original_dot is not kernels._dot
    monkeypatch.setattr(kernels, "_dot", interpreter.original_dot)
    table = {name: replace(launch, steps=16) for name, launch in _triton_launch.TABLE.items()}
    monkeypatch.setattr(_triton_launch, "TABLE", table)
    for one, other in zip(results_and_gradients("ssd_scan", inputs, "triton"), fast, strict=True):
        torch.testing.assert_close(one, other)


def test_a_launch_names_every_compile_time_argument():
    kernel = import_module("longscan.ops._triton").chain
    x = torch.zeros(1, 1, 1, device=DEVICE)
    with pytest.raises(TypeError, match=r"after 6 arguments must be .*'REVERSE'.*, got .'BLOCK', 'COMPLEX'"):
        _triton_launch.run(kernel, (1, 1), x, x, x, x, 1, 1, constants={"COMPLEX": False, "BLOCK": 128})


def test_kernels_are_compiled_together_before_the_first_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    done: list[str] = []

    def launch(name: str) -> str:
        if _triton_launch._ahead.compiling:
            done.append(f"{name} compiled")
        else:
            _triton_launch._compile_ahead()  # as for a kernel that is new
            done.append(f"{name} launched")
        return name

    def forward() -> str:
        return launch("one") + launch("two")

    assert _triton_launch.compiled_together(forward, lambda: launch("backward")) == "onetwo"
    assert done == ["one compiled", "two compiled", "backward compiled", "one launched", "two launched"]
    done.clear()
    with pytest.raises(ZeroDivisionError):
        _triton_launch.compiled_together(forward, lambda: 1 // 0)
    assert not _triton_launch._ahead.compiling
    launch("three")  # outside of a call there is nothing to compile together
    assert done[-1] == "three launched"


@pytest.mark.skipif(DEVICE.type != "cuda", reason="about compiling for a GPU")
def test_a_backward_finds_its_kernels_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("longscan.ops.linear_scan.triton")
    compiled: list[str] = []
    for name in ("summary", "scan", "scan_backward"):
        kernel = getattr(module, name)
        monkeypatch.setattr(module, name, CompiledKernel(kernel, compiled))
    a, b = (torch.rand(1, 700, 5, device=DEVICE, requires_grad=True) for _ in range(2))
    x, _ = linear_scan(a, b, backend="triton")
    assert sorted(compiled) == ["scan", "scan_backward", "summary", "summary"]
    x.sum().backward()
    linear_scan(a, b, backend="triton")
    assert len(compiled) == 4


class CompiledKernel:
    def __init__(self, kernel, names):
        self.kernel, self.names, self.arg_names, self.params = kernel, names, kernel.arg_names, kernel.params

    def warmup(self, *args, **constants):
        self.names.append(self.kernel.__name__)
        self.kernel.warmup(*args, **constants)

    def __getitem__(self, grid):
        return self.kernel[grid]


@pytest.mark.parametrize("exponent", [-80, 80])
def test_gradients_are_as_accurate_at_any_size(exponent: int) -> None:
    """Powers of two go through unchanged, though matrix units are handed numbers of half precision."""
    generator = torch.Generator().manual_seed(0)
    batch, length, channels, states = 2, 70, 3, 5
    draw = partial(torch.randn, generator=generator)
    u, dt, W = draw(batch, length, channels), draw(batch, length, channels).abs(), draw(channels, states, channels) / channels
    leaves = [u, dt, W, draw(channels, states), draw(channels, states, 2), draw(channels, states, 2)]
    leaves = [x.to(DEVICE).requires_grad_() for x in leaves]
    y, _ = unitary_scan(*leaves, backend="triton")
    cotangent = draw(batch, length, channels).to(DEVICE)
    usual = torch.autograd.grad(y, leaves, cotangent, retain_graph=True)
    for one, other in zip(usual, torch.autograd.grad(y, leaves, cotangent * 2.0**exponent), strict=True):
        assert one.abs().max() > 0
        assert torch.equal(one, other * 2.0**-exponent)


def test_short_packed_rows_leave_gradients_their_digits() -> None:
    """Slopes are far below what a whole row could make of them."""
    generator = torch.Generator().manual_seed(0)
    batch, length, channels, states = 1, 512, 2, 32
    draw = partial(torch.randn, generator=generator)
    u, dt, W = draw(batch, length, channels), 0.1 * draw(batch, length, channels).abs(), draw(channels, states, channels)
    inputs = [u, dt, W, draw(channels, states), draw(channels, states, 2), draw(channels, states, 2)]
    cotangent, seq_idx = draw(batch, length, channels), (torch.arange(length) // 4)[None]

    def gradients(dtype: torch.dtype, backend: str) -> list[torch.Tensor]:
        leaves = [x.to(DEVICE, dtype).requires_grad_() for x in inputs]
        y, _ = unitary_scan(*leaves, phase_dt=True, seq_idx=seq_idx.to(DEVICE), backend=backend)
        return [x.cpu().double() for x in torch.autograd.grad(y, [leaves[0], leaves[2]], cotangent.to(DEVICE, dtype))]

    kinds = (torch.float64, "eager"), (torch.float32, "triton"), (torch.float32, "eager")
    for exact, found, plain in zip(*(gradients(*kind) for kind in kinds), strict=True):
        assert (found - exact).norm() <= 4 * (plain - exact).norm() + 2.0**-21 * exact.norm()


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy's, in the interpreter
def test_an_infinite_gradient_is_not_taken_for_a_finite_one() -> None:
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=generator)
    inputs = [draw(1, 20, 3), draw(1, 20, 3).abs(), draw(3, 4, 3), draw(3, 4), draw(3, 4, 2), draw(3, 4, 2)]
    leaves = [x.to(DEVICE).requires_grad_() for x in inputs]
    y, _ = unitary_scan(*leaves, backend="triton")
    cotangent = torch.ones_like(y)
    cotangent[0, 9, 0] = torch.inf
    assert not torch.autograd.grad(y, leaves[2], cotangent)[0].isfinite().any()


def test_a_launch_is_repeated_with_integers_that_no_kernel_was_compiled_for() -> None:
    x, other = torch.zeros(1), torch.zeros(1)
    launch = _triton_launch._Launch(None, 0, (x, 5, 64), {"T": 8}, [x.data_ptr(), 5, 64], (8,), frozenset({1}))
    assert launch.take((x, 7, 64), {"T": 8})
    assert launch.values == [x.data_ptr(), 7, 64]
    assert not launch.take((x, 9, 64), {"T": 16})
    for args in ((x, 9, 32), (other, 9, 64), (x, 2**31, 64)):
        assert not launch.take(args, {"T": 8})
        assert launch.values == [x.data_ptr(), 7, 64]


def test_a_loud_channel_leaves_the_others_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_triton_launch.TABLE, "unitary_scan", _triton_launch.Launch(16, 32, 1))  # a channel a program, as on GPUs
    generator = torch.Generator().manual_seed(0)
    batch, length, channels, states = 1, 20, 5, 32
    draw = partial(torch.randn, generator=generator)
    u, dt, W = draw(batch, length, channels), draw(batch, length, channels).abs(), draw(channels, states, channels) / channels
    inputs = [u, dt, W, draw(channels, states), draw(channels, states, 2), draw(channels, states, 2)]
    cotangent = draw(batch, length, channels)
    cotangent[..., 2] *= 1e8

    def gradient(dtype: torch.dtype, backend: str) -> torch.Tensor:
        leaves = [x.to(DEVICE, dtype).requires_grad_() for x in inputs]
        y, _ = unitary_scan(*leaves, backend=backend)
        return torch.autograd.grad(y, leaves[2], cotangent.to(DEVICE, dtype))[0].cpu().double()

    kinds = (torch.float64, "eager"), (torch.float32, "triton"), (torch.float32, "eager")
    exact, found, plain = (gradient(*kind) for kind in kinds)
    sizes = exact.abs().amax((1, 2))
    errors, usual = (((x - exact).abs().amax((1, 2)) / sizes).max() for x in (found, plain))
    assert errors <= 4 * usual + 2.0**-20  # factors of the products have 22 bits
