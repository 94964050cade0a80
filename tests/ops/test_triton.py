"""The Triton kernels, run in Triton's interpreter (TRITON_INTERPRET=1) or on the GPU that LONGSCAN_DEVICE names."""

import inspect
import itertools
import json
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from interpreter import shipped_tables
from longscan.ops import OPS, _gpu, _repeated_calls, _triton_launch, selective_scan, ssd_scan, unitary_scan
from longscan.ops.arguments import INVALID, RESET, last_valid
from longscan.ops.dispatch import unsupported_reason
from op_examples import example, floats, run_with_gradients

DEVICE = torch.device(os.environ.get("LONGSCAN_DEVICE", "cpu"))
NATIVE = [op for op in OPS if "triton" in OPS[op].native]
_triton_steps = pytest.importorskip("longscan.ops._triton_steps", reason="Triton is not installed", exc_type=ImportError)
pytestmark = pytest.mark.skipif(
    unsupported_reason("linear_scan", "triton", DEVICE, torch.float32, ("triton",)) is not None,
    reason="needs TRITON_INTERPRET=1 or a GPU",
)

FACTORS = {"linear_scan": "a", "block2_scan": "M"}
LAUNCH_PLANS = {
    "one chunk": {"PROGRAMS": 1},
    "parallel chunks": {"PROGRAMS": 64},
    "sequential rounds": {"PROGRAMS": 1, "SCRATCH": 1},
    "parallel chunks in rounds": {"PROGRAMS": 64, "SCRATCH": 1},
}


def move_to_device(inputs):
    return {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}


def run_backend(op, inputs, backend):
    """Return the results and gradients of an op, on the CPU."""
    return [x.cpu() for x in run_with_gradients(lambda inputs: OPS[op].function(**inputs, backend=backend), inputs)]


def record_launches(module, monkeypatch):
    """Return a list to which each launch of a module adds its kernel.

    On a GPU, new kernels are compiled in a trial of all launches before the first of them. The trial adds nothing.
    """
    kernels, launch = [], module.launch

    def record(kernel, *args, **kwargs):
        if not _gpu.is_compiling():
            kernels.append(kernel)
        launch(kernel, *args, **kwargs)

    monkeypatch.setattr(module, "launch", record)
    return kernels


def set_tile_sizes(monkeypatch, **sizes):
    """Change the sizes with which all kernels are launched."""
    table = {name: replace(launch, **sizes) for name, launch in _triton_launch.TABLE.items()}
    monkeypatch.setattr(_triton_launch, "TABLE", table)
    for name in ("CHECKPOINT_STEPS", "SMALL_CHECKPOINT_STEPS"):
        monkeypatch.setattr(import_module("longscan.ops.selective_scan.triton.launch"), name, 16)
    unitary = import_module("longscan.ops.unitary_scan.triton.launch")
    monkeypatch.setattr(unitary, "SCAN_TILES", {most: x._replace(**sizes) for most, x in unitary.SCAN_TILES.items()})
    for op, smaller in {"linear_scan": {"BLOCK_S": 2}, "block2_scan": {"BLOCK_S": 2}, "short_conv": {"BLOCK_D": 2}}.items():
        module = import_module(f"longscan.ops.{op}.triton.launch")
        for name, blocks in vars(module).copy().items():
            if isinstance(blocks, module.Blocks):
                monkeypatch.setattr(module, name, blocks._replace(**smaller))


def set_plan(monkeypatch, PROGRAMS, SCRATCH=None):
    """Change the number of programs that fill the device, and the memory for what kernels pass to each other."""
    launchers = (
        "selective_scan.triton.launch", "short_conv.triton.launch", "unitary_scan.triton.launch",
        "ssd_scan.triton.launch_rotation",
    )  # fmt: skip
    for name in ("_gpu", "_triton_launch", *launchers):
        monkeypatch.setattr(import_module(f"longscan.ops.{name}"), "programs_to_fill", lambda _: PROGRAMS)
    if SCRATCH is not None:
        monkeypatch.setattr(_triton_launch, "SCRATCH", SCRATCH)


KINDS = [(op, False) for op in NATIVE] + [(op, True) for op in NATIVE if op not in ("ssd_scan", "short_conv")]


@pytest.mark.parametrize(
    "plan", [list(LAUNCH_PLANS)[-1], *(pytest.param(plan, marks=pytest.mark.slow) for plan in list(LAUNCH_PLANS)[:-1])]
)
@pytest.mark.parametrize(
    ("op", "is_complex"),
    # test_separate_partial_sums_of_rounds_give_the_gradients divides a complex selective_scan in the same way
    [pytest.param(*kind, marks=pytest.mark.slow if kind == ("selective_scan", True) else ()) for kind in KINDS],
)
def test_results_do_not_depend_on_the_division_among_programs(op, is_complex, plan, monkeypatch):
    """The calls have five tiles, two in each chunk, and one or two channels for each program."""
    unitary = import_module("longscan.ops.unitary_scan.triton.launch")
    set_plan(monkeypatch, **LAUNCH_PLANS[plan])
    if "SCRATCH" in LAUNCH_PLANS[plan]:
        monkeypatch.setattr(unitary, "ROUND_BYTES", 1)
    set_tile_sizes(monkeypatch, steps=8, lanes=4, warps=1)
    widths = {"D": 2} if op in ("selective_scan", "unitary_scan") else {}  # a channel fills the lanes of a program
    inputs = example(op, torch.float64, length=40, is_complex=is_complex and op in ("block2_scan", "selective_scan"), **widths)
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
    expected = run_backend(op, inputs, "reference")
    torch.testing.assert_close(run_backend(op, move_to_device(inputs), "triton"), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("op", "sizes"),
    [
        ("selective_scan", {"D": 40, "N": 4}),
        ("selective_scan", {"D": 5, "N": 33}),
        ("selective_scan", {"D": 5, "N": 4, "is_complex": True}),
        ("ssd_scan", {}),
        ("unitary_scan", {"D": 3, "N": 44}),
        ("unitary_scan", {"D": 33, "N": 2}),
        ("unitary_scan", {"D": 129, "N": 1}),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # 0 / 0 that is not selected, in the interpreter
def test_launch_tables_of_the_package_give_the_results(op, sizes, monkeypatch):
    """Float32 on a device that 528 programs fill: every entry of the tables of `speed_up_interpreter`, which other tests replace.

    The programs of the second case form chains. The sixth case scans with masks, the others without.
    """
    for (module, name), table in shipped_tables.items():
        monkeypatch.setattr(import_module(module), name, table)
    set_plan(monkeypatch, 528)
    inputs = example(op, torch.float64, length=70, batch=1, masked=sizes.get("D") == 33, **sizes)
    exact = run_backend(op, inputs, "reference")
    single = {name: x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for name, x in inputs.items()}
    found, eager = run_backend(op, move_to_device(single), "triton"), run_backend(op, single, "eager")
    for truth, fast, plain in zip(exact, found, eager, strict=True):
        assert (fast - truth).norm() <= 4 * (plain - truth).norm() + 2.0**-20 * truth.norm()


@pytest.mark.parametrize("op", ["selective_scan", "ssd_scan"])
def test_states_are_passed_where_a_graph_with_a_dynamic_length_has_one_split(op, monkeypatch):
    """Such a graph has the kernels of parallel chunks, however short the sequences are with which it runs."""
    plan = _triton_launch.plan
    monkeypatch.setattr(_triton_launch, "plan", lambda *args, **kw: plan(*args, **kw)._replace(parallel=True))
    set_plan(monkeypatch, 1)
    inputs = example(op, torch.float64, length=5, batch=3, masked=False)
    expected = run_backend(op, inputs, "reference")
    torch.testing.assert_close(run_backend(op, move_to_device(inputs), "triton"), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("op", NATIVE)
def test_vmap_over_parameters_is_one_kernel_call(op, monkeypatch):
    """Mapped parameters become groups of one call, whose gradients equal those of a separate call for each model."""
    module, size = import_module(f"longscan.ops.{op}.triton"), 2
    calls = []
    for name in ("forward", "backward"):
        kernel = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, kernel=kernel, name=name: calls.append(name) or kernel(*args))
    examples = [move_to_device(example(op, torch.float64, masked=False)) for _ in range(size)]
    if op in FACTORS:  # each model has a constant factor
        examples = [inputs | {FACTORS[op]: inputs[FACTORS[op]][0, 0]} for inputs in examples]

    def loss(tensors, backend):
        y, final = OPS[op].function(**(examples[0] | tensors), backend=backend)
        return y.square().sum() + final.square().sum()

    models = [floats(inputs) for inputs in examples]
    stacked = {name: torch.stack([inputs[name] for inputs in models]) for name in models[0]}
    call = torch.func.vmap(torch.func.grad(lambda tensors: loss(tensors, "triton")))
    if DEVICE.type == "cuda":  # the first call also calls both to compile their kernels
        call(stacked)
        calls.clear()
    grads = call(stacked)
    assert calls == ["forward", "backward"]
    for i, inputs in enumerate(models):
        for name, expected in torch.func.grad(lambda tensors: loss(tensors, "eager"))(inputs).items():
            torch.testing.assert_close(grads[name][i], expected)
    shared = {name: stacked[name] for name in stacked if name not in OPS[op].per_step}  # all models have the same inputs
    grads = torch.func.vmap(torch.func.grad(lambda tensors: loss(tensors, "triton")))(shared)
    for i, inputs in enumerate(models):
        parameters = {name: inputs[name] for name in shared}
        for name, expected in torch.func.grad(lambda tensors: loss(tensors, "eager"))(parameters).items():
            torch.testing.assert_close(grads[name][i], expected)


@pytest.mark.parametrize("op", ["linear_scan", "block2_scan", "selective_scan", "short_conv", "unitary_scan"])
def test_third_call_repeats_the_second(op, monkeypatch):
    """The third call does no planning, and its results are those of its inputs."""
    module = import_module(f"longscan.ops.{op}.triton")
    calls = []
    for name in ("forward", "backward"):
        kernels = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, kernels=kernels, name=name: calls.append(name) or kernels(*args))
    inputs = {name: x.float() for name, x in floats(example(op, torch.float64, length=20, masked=False)).items()}
    others = [{name: x * (1 - i / 16) for name, x in inputs.items()} for i in range(4)]
    if DEVICE.type == "cuda":  # the first call also calls both to compile their kernels
        run_backend(op, move_to_device(inputs), "triton")
        _repeated_calls.clear_recorded_calls()
        calls.clear()
    results = [run_backend(op, move_to_device(other), "triton") for other in others]
    assert calls == ["forward", "backward"] * 2
    for other, found in zip(others, results, strict=True):
        torch.testing.assert_close(found, run_backend(op, move_to_device(other), "eager"), rtol=1e-4, atol=1e-4)


def test_calls_with_chains_in_one_chunk_are_repeated(monkeypatch):
    """Their counters are zeros when the backward scan begins, also in repeated calls."""
    module = import_module("longscan.ops.selective_scan.triton.launch")
    set_plan(monkeypatch, 1)
    set_tile_sizes(monkeypatch, steps=8, lanes=4, warps=1)
    monkeypatch.setattr(module, "MIN_CHAIN_TILES", {"selective_scan_pairs_backward": 1})
    inputs = floats(example("selective_scan", torch.float64, length=20, batch=1, D=2, masked=False, is_complex=True))
    expected = run_backend("selective_scan", inputs, "reference")
    for _ in range(2):
        run_backend("selective_scan", move_to_device(inputs), "triton")
    kernels = record_launches(module, monkeypatch)
    for _ in range(2):
        found = run_backend("selective_scan", move_to_device(inputs), "triton")
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert not kernels


def test_masked_calls_in_parallel_chunks_are_repeated(monkeypatch):
    """Kernels, not operations of torch, find in which chunks a sequence starts."""
    module = import_module("longscan.ops.selective_scan.triton.launch")
    set_plan(monkeypatch, 64)
    set_tile_sizes(monkeypatch, steps=8, lanes=4, warps=1)
    masked = example("selective_scan", torch.float64, length=40, batch=1, D=2)
    inputs = {name: x for name, x in masked.items() if name != "dt_scale"}
    expected = run_backend("selective_scan", inputs, "reference")
    for _ in range(2):
        run_backend("selective_scan", move_to_device(inputs), "triton")
    kernels = record_launches(module, monkeypatch)
    torch.testing.assert_close(run_backend("selective_scan", move_to_device(inputs), "triton"), expected, rtol=1e-9, atol=1e-9)
    assert not kernels


@pytest.mark.parametrize("shared", ["C", "BC", *(pytest.param(shared, marks=pytest.mark.slow) for shared in ("B", ""))])
def test_coefficients_of_all_channels_are_read_without_copies(shared, monkeypatch):
    """In plain calls without states, whose kernels get no zeros for these; the backward pass has four rounds of one chunk."""
    module = import_module("longscan.ops.unitary_scan.triton.launch")
    set_plan(monkeypatch, 1)
    monkeypatch.setattr(module, "ROUND_BYTES", 1)
    monkeypatch.setattr(module, "MIN_ROUND_STEPS", 8)
    set_tile_sizes(monkeypatch, steps=8, lanes=4, warps=1)
    kernels = record_launches(module, monkeypatch)
    inputs = floats(example("unitary_scan", torch.float64, length=29, masked=False))
    del inputs["initial_state"]
    inputs |= {name: torch.randn(*(() if name in shared else (3,)), 4, 2, dtype=torch.float64) for name in "BC"}

    def run(inputs, backend):
        return run_with_gradients(lambda inputs: unitary_scan(**inputs, backend=backend)[0], inputs)

    expected = run(inputs, "reference")
    kernels.clear()
    found = run(move_to_device(inputs), "triton")
    torch.testing.assert_close([x.cpu() for x in found], expected, rtol=1e-9, atol=1e-9)
    assert [kernel.__name__ for kernel in kernels] == [
        "preprocess_fwd_kernel", "chunk_scan_fwd_kernel", "epilogue_fwd_kernel", "preprocess_bwd_kernel",
        *["chunk_scan_bwd_kernel", "epilogue_bwd_kernel"] * 4, "sum_parameter_gradients_kernel",
    ]  # fmt: skip


@pytest.mark.parametrize("op", ["unitary_scan", "selective_scan"])
def test_plain_call_equals_the_general_call(op):
    """For complex coefficients, without an initial state: the first call, the recorded one and the repeated one."""
    module = import_module(f"longscan.ops.{op}")
    inputs = {name: x.float().to(DEVICE) for name, x in floats(example(op, torch.float64, length=20, masked=False)).items()}
    del inputs["initial_state"]
    names = {"unitary_scan": ("B", "C"), "selective_scan": ("A", "B", "C")}[op]
    if op == "unitary_scan":
        assert inputs["B"].ndim == 2, "they are of all channels"
        inputs |= {name: torch.view_as_complex(inputs[name].contiguous()) for name in names}
    else:
        inputs |= {name: torch.complex(inputs[name], inputs[name].sin()) for name in names}

    def call(backend):
        leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
        y, final = OPS[op].function(**leaves, backend=backend)
        assert (type(y.grad_fn).__name__ == "_NodeBackward") == (backend == "triton")
        return y, final, *torch.autograd.grad(y.square().sum() + final.abs().square().sum(), list(leaves.values()))

    tensors = [inputs.get(name) for name in inspect.signature(OPS[op].function).parameters if name != "dt_softplus"]
    assert module._plain_call.runs(tensors[: module._plain_call.count], "triton")
    expected = call("eager")
    for _ in range(3):
        torch.testing.assert_close(call("triton"), expected, rtol=1e-4, atol=1e-4)


def test_plain_call_checks_its_arguments():
    inputs = {name: x.to(DEVICE) for name, x in floats(example("selective_scan", length=20, masked=False)).items()}
    with pytest.raises(ValueError, match="`dt_bias` must be of shape"):
        selective_scan(**inputs | {"dt_bias": inputs["dt_bias"][:-1]}, backend="triton")
    inputs = {name: x.to(DEVICE) for name, x in floats(example("unitary_scan", length=20, masked=False)).items()}
    with pytest.raises(ValueError, match="`W` must be of shape"):
        unitary_scan(**inputs | {"W": inputs["W"][:-1]}, backend="triton")


def test_angles_stay_accurate_over_thousands_of_steps():
    """Without decay, a single input is rotated in each step: y_t = cos(3 t)."""
    length = 5000
    x, angle = torch.zeros(1, length, 1, 1, device=DEVICE), torch.full((1, length, 1, 1), 3.0, device=DEVICE)
    x[:, 0] = 1
    first = torch.tensor([1.0, 0.0], device=DEVICE).expand(1, length, 1, 2)
    y, final = ssd_scan(x, torch.ones_like(x[..., 0]), torch.zeros(1, device=DEVICE), first, first, angle=angle, backend="triton")
    angles = 3.0 * torch.arange(length, dtype=torch.float64)
    assert (y.cpu().flatten() - angles.cos()).abs().max() < 2e-6
    assert (final.cpu().flatten() - torch.stack([angles[-1].cos(), angles[-1].sin()])).abs().max() < 2e-6


@pytest.mark.parametrize(
    ("tiles", "fenced", "is_complex"),
    [
        (1, False, True),
        (2, True, False),
        pytest.param(1, False, False, marks=pytest.mark.slow),
        pytest.param(2, True, True, marks=pytest.mark.slow),
    ],
)
def test_chained_programs_add_gradients_of_shared_parameters(is_complex, tiles, fenced, monkeypatch):
    """Chains of up to five programs, each with one or two channels, add dB and dC, which are sums over all channels."""
    module = import_module("longscan.ops.selective_scan.triton.launch")
    entries = [f"selective_scan{kind}_backward" for kind in ("", "_wide", "_pairs")]
    monkeypatch.setattr(module, "ORDERED_SUMS", dict.fromkeys(entries, fenced))
    monkeypatch.setattr(module, "MIN_CHAIN_TILES", dict.fromkeys(entries, tiles))
    assert_triton_equals_reference(40, is_complex, monkeypatch)


@pytest.mark.parametrize(("most", "passes", "is_complex"), [(16, 0, False), (2, 2, False), (16, 2, True)])
def test_scans_pass_states_through_few_chunks_themselves(most, passes, is_complex, monkeypatch):
    """Five launches for a forward and backward pass; one more in each direction for many chunks, or complex A."""
    module = import_module("longscan.ops.selective_scan.triton.launch")
    set_plan(monkeypatch, 64)
    set_tile_sizes(monkeypatch, steps=8, lanes=4, warps=1)
    monkeypatch.setattr(module, "MAX_PASSED_CHUNKS", most)
    kernels = record_launches(module, monkeypatch)
    inputs = example("selective_scan", torch.float64, length=40, is_complex=is_complex)
    one_channel = {"u": 2, "dt": 2, "z": 2, "A": 0, "D": 0, "dt_bias": 0}  # the axis of the channels
    inputs = {name: inputs[name].narrow(one_channel[name], 0, 1).contiguous() for name in one_channel} | {
        name: inputs[name] for name in "BC"
    }
    expected = run_backend("selective_scan", inputs, "reference")
    kernels.clear()
    found = run_backend("selective_scan", move_to_device(inputs), "triton")
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert len(kernels) == 5 + passes
    assert kernels.count(module.state_passing_kernel) == passes


@pytest.mark.parametrize("is_complex", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    ("plan", "length"), [pytest.param("sequential rounds", 72, marks=pytest.mark.slow), ("parallel chunks in rounds", 40)]
)
def test_separate_partial_sums_of_rounds_give_the_gradients(plan, length, is_complex, monkeypatch):
    """Each program writes its own partial sums of dB and dC, for three or more rounds, of which one is shorter."""
    module = import_module("longscan.ops.selective_scan.triton.launch")
    monkeypatch.setattr(module, "ORDERED_SUMS", {})
    kernels = record_launches(module, monkeypatch)
    assert_triton_equals_reference(length, is_complex, monkeypatch, **LAUNCH_PLANS[plan])
    assert kernels.count(module.sum_partials_kernel) > 2


def assert_triton_equals_reference(length, is_complex, monkeypatch, PROGRAMS=1, **sizes):
    set_plan(monkeypatch, PROGRAMS, **sizes)
    set_tile_sizes(monkeypatch, steps=8, lanes=4, warps=1)
    inputs = example("selective_scan", torch.float64, length=length, is_complex=is_complex)
    expected = run_backend("selective_scan", inputs, "reference")
    torch.testing.assert_close(run_backend("selective_scan", move_to_device(inputs), "triton"), expected, rtol=1e-9, atol=1e-9)


def test_plain_kernels_of_the_benchmark_equal_the_reference(monkeypatch):
    """benchmarks/plain_selective_scan.py, whose times the README of the kernels of selective_scan has."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    assert import_module("plain_selective_scan").largest_error(str(DEVICE)) < 2e-6


def test_plain_kernels_of_unitary_scan_equal_the_op(monkeypatch):
    """benchmarks/plain_unitary_scan.py, whose times the README of the kernels of unitary_scan has."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    plain = import_module("plain_unitary_scan")
    assert plain.largest_error(str(DEVICE), (1, 70, 4, 16), plain.Tile(16, 16, 1, 1, True)) < 1e-5
    inputs = plain.make_inputs((1, 20, 4, 16), str(DEVICE))
    calls = plain.op_calls(inputs)  # what is timed next to them: the kernels of the op without autograd
    y, _, _ = calls["forward"]()
    expected, *_ = plain.forward(inputs, plain.Tile(16, 16, 1, 1, True))
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    du, *_ = calls["backward"]()
    assert du.shape == y.shape


def test_sizes_of_plain_kernels_are_read_from_the_command_line(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    plain = import_module("plain_unitary_scan")
    assert plain.parse_sizes(plain.SIZES[0]) == (16, 1024, 32, 64)
    for sizes in ("16 1024 32", "16 1024 33 64", "16,1024,32,64"):
        with pytest.raises(SystemExit):
            plain.main(["--sizes", sizes, "--out", str(tmp_path / "rows.jsonl")])
        assert "--sizes" in capsys.readouterr().err


def test_parts_of_the_host_time_are_measured(monkeypatch, tmp_path):
    """benchmarks/host_time.py, whose times results/gpu_kernels.md has."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    out = tmp_path / "host_time.jsonl"
    import_module("host_time").main(["--ops", "SELECTIVE", "--sizes", "1 16 2 2", "--runs", "1", "--out", str(out)])
    row = json.loads(out.read_text())
    assert {"host_backward", "call_forward_backward", "autograd", "allocations"} <= row["least_us"].keys()
    assert row["launches_number"] > 0
    assert min(row["least_us"].values()) > 0


@pytest.mark.slow
def test_first_calls_are_measured_in_two_processes(monkeypatch, tmp_path):
    """benchmarks/first_calls.py, whose times results/gpu_kernels.md has."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    out = tmp_path / "first_calls.jsonl"
    sizes = ["--sizes", "1 16 2 2", "--others", "1 17 2 2"]
    import_module("first_calls").main(["--ops", "SELECTIVE", *sizes, "--out", str(out)])
    row = json.loads(out.read_text())
    assert row["sizes"] == ["1 16 2 2", "1 17 2 2"]
    assert min([*row["empty_cache_s"], *row["filled_cache_s"]]) > 0
    assert len(row["empty_cache_s"]) == len(row["filled_cache_s"]) == 2


def test_first_calls_of_an_unknown_op_are_an_error(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    with pytest.raises(SystemExit):
        import_module("first_calls").main(["--ops", "UNITRY"])


def test_chunk_states_shape_has_room_for_all_states(monkeypatch):
    """The shapes in graphs with dynamic sizes are upper bounds, and at most about four times what is needed.

    Also at the lengths that just fit into one round, on devices that 4 to 592 programs fill.
    """
    unitary = import_module("longscan.ops.unitary_scan.triton.launch")
    random = Random(0)
    for _ in range(1000):
        batch, length = (int(2 ** random.uniform(0, most)) for most in (13, 22))
        channels, states = random.choice([1, 3, 33, 129, 1536]), random.choice([1, 4, 33, 256])
        fill = random.choice([4, 432, 528, 592])
        monkeypatch.setattr(unitary, "programs_to_fill", lambda _, fill=fill: fill)
        if random.random() < 0.5:
            batch = min(batch, 64)
            longest = unitary.ROUND_BYTES // unitary.bytes_per_step(batch, channels, states)
            length = max(1, longest - random.choice([0, 1, 2, 7, 40]))
        needed = unitary.divide_steps(batch, length, channels, states, torch.device("meta")).number
        _, size = unitary.chunk_states_shape(torch.empty(batch, length, channels, device="meta"), states)
        assert needed + 1 <= (size - length * channels) / (3 * channels * states) <= 4 * needed + 1


@pytest.fixture
def large_zeros(tmp_path, monkeypatch):
    """Return a function of a number n that returns n zeros in float32, in a file that takes space only for what is changed.

    As many addresses as int32 has precede them, so that an offset with too few bits is not out of the process's memory.
    """
    from triton.runtime.interpreter import GridExecutor

    # The interpreter used the memory of the tensors of the call, but would copy all of it onto itself afterwards.
    monkeypatch.setattr(GridExecutor, "_restore_args_dev", lambda *_: None)
    names = (str(tmp_path / f"zeros{i}") for i in itertools.count())
    return lambda count: torch.from_file(next(names), shared=True, size=2**31 + count)[2**31 :]


@pytest.mark.skipif(DEVICE.type != "cpu", reason="needs memory in a file")
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_epilogues_reach_the_last_step_of_a_row_of_more_than_2_31_numbers(direction, large_zeros):
    kernels = import_module(f"longscan.ops.unitary_scan.triton.{direction}")
    L, D, T, padded = 17, 2**27, 16, 32
    last = slice((L - 1) * D, (L - 1) * D + 4)
    u, out, other, small = large_zeros(L * D), large_zeros(L * D), large_zeros(L * D), torch.ones(4 * padded)
    u[last] = torch.tensor([1.0, -2.0, 0.5, 3.0])
    if direction == "forward":
        skip = torch.full((4,), 2.0)
        sizes = 1, L, D, padded, 1, 2, 1, 0
        kernels.epilogue_fwd_kernel[(2, 1)](small, u, skip, None, None, out, other, *sizes, T=T, BD=4)
        expected = {"y": (out, 1 + 2 * torch.nn.functional.silu(u[last])), "sums": (other, torch.ones(4))}
    else:
        sizes = 1, L, D, 4, padded, L - 1, 1, 1, 1, 1, 0, 0, 1  # from `batch` to `all_tiles`
        zeros = torch.zeros(4 * padded)
        tensors = u, u, u, None, None, None, u, small, None, zeros, out, other, None, None
        kernels.epilogue_bwd_kernel[(1, 1)](*tensors, *sizes, T=T, BD=4)
        x = u[last].clone().requires_grad_()
        (grad,) = torch.autograd.grad((torch.nn.functional.silu(x) * u[last]).sum(), x)
        expected = {"du": (out, grad), "ddt": (other, torch.nn.functional.silu(u[last]))}
    for name, (result, values) in expected.items():
        torch.testing.assert_close(result[last], values, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.skipif(DEVICE.type != "cpu", reason="needs memory in a file")
def test_states_of_chunks_of_more_than_2_31_numbers_are_stored_in_their_places(large_zeros):
    """A row has 16 channels with 2^25 states each, of which four are computed; the state grows by 1 in each of the steps."""
    from longscan.ops.unitary_scan.triton.forward import chunk_scan_fwd_kernel, state_passing_fwd_kernel

    D, N, T, chunks = 16, 2**25, 16, 3
    steps = T * chunks
    size, states = D * N, large_zeros((3 * chunks + 3) * D * N)
    u, x = torch.zeros(steps, D, dtype=torch.float16), torch.ones(D, steps)
    W, bias, y, final = torch.zeros(4, D), torch.zeros(4), torch.zeros(D, steps), torch.zeros(8)
    ones = torch.tensor([1.0, 0.0]).repeat(4)
    chunk_scan_fwd_kernel[(1, 1)](
        u, u, None, x, x, W, bias, ones, ones, None, states, None, y, final, 1, steps, steps, chunks, 1, chunks, 1, 0, 1,
        D=D, N=N, STATE_BLOCKS=N // 4, BLOCKS=size // 4, T=T, BD=1, BN=4, K=D, FAST=False, STAGES=1,
        SHARED_B=False, SHARED_C=False,
    )  # fmt: skip
    found = [states[3 * i * size + size :][:4].tolist() for i in range(chunks + 1)]
    assert found == [[float(T * i)] * 4 for i in range(chunks + 1)]

    local, states = large_zeros(4 * chunks * size), large_zeros((3 * chunks + 3) * size)
    for i in range(chunks):
        local[4 * i * size :][:16] = torch.tensor([0.0, 1.0, 0.0, 1.0]).repeat(4)
    state_passing_fwd_kernel[(1, 1)](local, None, states, chunks, size, 0, BLOCK=4)
    assert [states[3 * i * size + size :][:4].tolist() for i in range(chunks + 1)] == [[float(i)] * 4 for i in range(chunks + 1)]


@pytest.mark.parametrize("call", [selective_scan])
def test_more_states_than_a_kernel_supports_raises(call, monkeypatch):
    monkeypatch.setattr(_triton_launch, "MAX_STATES", 3)
    with pytest.raises(ValueError, match="`N` must be at most 3 states for each channel on the triton backend, got 4"):
        call(**move_to_device(example(call.__name__)), backend="triton")


@pytest.mark.skipif(DEVICE.type != "cpu", reason="about the interpreter")
def test_patched_scan_of_the_interpreter_equals_the_original(monkeypatch):
    """`interpreter.replace_scan` makes the interpreter fast enough for tests."""
    from triton.runtime.interpreter import ScanOps

    from interpreter import original_scans

    inputs = example("selective_scan", is_complex=True)
    fast = run_backend("selective_scan", inputs, "triton")
    monkeypatch.setattr(ScanOps, "generic_scan", original_scans[0])
    set_tile_sizes(monkeypatch, steps=8, lanes=16)
    torch.testing.assert_close(run_backend("selective_scan", inputs, "triton"), fast)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="about the interpreter")
def test_patched_dot_of_the_interpreter_equals_the_kernel(monkeypatch):
    """The kernel computes products of float64 column by column."""
    import interpreter

    inputs = example("ssd_scan")
    fast = run_backend("ssd_scan", inputs, "triton")
    for name in ("math", "forward", "backward"):
        kernels = import_module(f"longscan.ops.ssd_scan.triton.{name}")
        assert interpreter.original_dot is not kernels.dot
        monkeypatch.setattr(kernels, "dot", interpreter.original_dot)
    set_tile_sizes(monkeypatch, steps=16)
    torch.testing.assert_close(run_backend("ssd_scan", inputs, "triton"), fast)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="about the interpreter")
def test_patched_operands_of_the_interpreter_equal_the_original():
    """Binary operators get operands of the same types and values, or the same error, for tensors and numbers of Python."""
    import triton.language as tl
    from triton.language.semantic import IncompatibleTypeErrorImpl
    from triton.runtime.interpreter import TensorHandle, interpreter_semantic

    from interpreter import original_operands

    dtypes = {tl.float32: "f4", tl.float64: "f8", tl.int32: "i4", tl.int64: "i8", tl.uint8: "u1", tl.int1: "?"}
    operands = [1, -2, 3.5, True, 2**40]
    for shape in ((), (1, 4), (2, 4), (2, 1)):
        for dtype, name in dtypes.items():
            data = np.arange(math.prod(shape)).reshape(shape or (1,)).astype(name)
            operands.append(tl.tensor(TensorHandle(data, dtype), tl.block_type(dtype, [*shape]) if shape else dtype))
    pointer = tl.pointer_type(tl.float32)
    operands.append(tl.tensor(TensorHandle(np.array([64], dtype="u8"), pointer), pointer))

    def describe(convert, *arguments):
        try:
            results = convert(interpreter_semantic, *arguments)
        except (IncompatibleTypeErrorImpl, TypeError, ValueError) as error:
            return type(error), str(error)
        return [(str(x.type), x.handle.dtype, x.handle.data.dtype, x.handle.data.tolist()) for x in results]

    assert type(interpreter_semantic).binary_op_type_checking_impl is not original_operands[0]
    for pair in itertools.product(operands, repeat=2):
        for options in ((), (True, True), (True, False), (False, False, False), (False, False, True, True)):
            arguments = (*pair, *options)
            found = describe(type(interpreter_semantic).binary_op_type_checking_impl, *arguments)
            assert found == describe(original_operands[0], *arguments), arguments


@pytest.mark.parametrize("reverse", [False, True])
def test_tables_of_steps_equal_those_of_torch(reverse):
    """The rows have several blocks of steps. One has no valid step, and one begins with invalid steps."""
    generator = torch.Generator().manual_seed(0)
    flags = torch.randint(3, (3, 1500), generator=generator, dtype=torch.uint8)
    flags[1, :200] = flags[2] = INVALID
    in_order = flags.flip(1) if reverse else flags
    previous = torch.where(in_order == RESET, -2, last_valid(in_order)).masked_fill(in_order == INVALID, -3)
    assert torch.equal(_triton_steps.previous_steps(flags.to(DEVICE), reverse).cpu().long(), previous)
    for steps in (1, 64, 100, 1500, 2000):
        runs = [row.split(steps) for row in flags]
        expected = torch.tensor([[bool((run == RESET).any()) for run in row] for row in runs], dtype=torch.uint8)
        assert torch.equal(_triton_steps.restarts(flags.to(DEVICE), steps).cpu(), expected)
    tables = [x.cpu().tolist() for x in _triton_steps.valid_steps(flags.to(DEVICE), -3)]
    for row, order, starts, count in zip(flags.tolist(), *tables, strict=True):
        places = [t for t, flag in enumerate(row) if flag != INVALID]
        resets = [i for i, t in enumerate(places) if row[t] == RESET]
        assert order[:count] == places
        assert starts[:count] == [max([-3, *(i for i in resets if i <= step)]) for step in range(count)]


def test_all_kernels_of_a_call_are_compiled_before_the_first_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    events: list[str] = []

    def launch(name: str) -> str:
        if _gpu.is_compiling():
            events.append(f"{name} compiled")
        else:
            _gpu.compile_ahead()  # which a launch of a new kernel calls
            events.append(f"{name} launched")
        return name

    def forward() -> str:
        return launch("one") + launch("two")

    assert _gpu.compile_together(forward, lambda: launch("backward")) == "onetwo"
    assert events == ["one compiled", "two compiled", "backward compiled", "one launched", "two launched"]
    events.clear()
    with pytest.raises(ZeroDivisionError):
        _gpu.compile_together(forward, lambda: 1 // 0)
    assert not _gpu.is_compiling()
    launch("three")  # outside of `compiled_together` only this kernel is compiled
    assert events[-1] == "three launched"


def test_kernels_are_loaded_onto_the_device_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads that load them have another current device."""
    current = threading.local()
    loaded: list[int] = []

    class Kernel:
        def warmup(self, *_: Any, **__: Any) -> "Kernel":
            return self

        def __getitem__(self, grid: Any) -> None:
            loaded.append(current.device)

    @contextmanager
    def set_device(index: int) -> Iterator[None]:
        current.device = index
        yield

    def forward() -> None:
        if _gpu.is_compiling():
            _gpu.launch(Kernel(), (1,), None, SimpleNamespace(get_device=lambda: 3), 1, constants={})
        else:
            _gpu.compile_ahead()

    monkeypatch.setattr(_gpu, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", set_device)
    _gpu.compile_together(forward)
    assert loaded == [3]


@pytest.mark.parametrize("exponent", [-80, 80])
def test_gradients_scale_exactly_with_powers_of_two(exponent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrix units multiply fp16 numbers, whose scales must not change the result. The products are sums of several parts."""
    monkeypatch.setattr(import_module("longscan.ops.unitary_scan.triton.launch"), "multiprocessors", lambda _: 132)
    generator = torch.Generator().manual_seed(0)
    batch, length, channels, states = 2, 70, 3, 5
    randn = partial(torch.randn, generator=generator)
    u, dt, W = randn(batch, length, channels), randn(batch, length, channels).abs(), randn(channels, states, channels) / channels
    leaves = [u, dt, W, randn(channels, states), randn(channels, states, 2), randn(channels, states, 2)]
    leaves = [x.to(DEVICE).requires_grad_() for x in leaves]
    y, _ = unitary_scan(*leaves, backend="triton")
    cotangent = randn(batch, length, channels).to(DEVICE)
    unscaled = torch.autograd.grad(y, leaves, cotangent, retain_graph=True)
    for expected, scaled in zip(unscaled, torch.autograd.grad(y, leaves, cotangent * 2.0**exponent), strict=True):
        assert expected.abs().max() > 0
        assert torch.equal(expected, scaled * 2.0**-exponent)


def test_gradients_of_short_packed_sequences_are_accurate() -> None:
    """Gradients of the angles are far smaller than their upper bound for a sequence of the length of the row."""
    generator = torch.Generator().manual_seed(0)
    batch, length, channels, states = 1, 512, 2, 32
    randn = partial(torch.randn, generator=generator)
    u, dt, W = randn(batch, length, channels), 0.1 * randn(batch, length, channels).abs(), randn(channels, states, channels)
    inputs = [u, dt, W, randn(channels, states), randn(channels, states, 2), randn(channels, states, 2)]
    cotangent, seq_idx = randn(batch, length, channels), (torch.arange(length) // 4)[None]

    def gradients(dtype: torch.dtype, backend: str) -> list[torch.Tensor]:
        leaves = [x.to(DEVICE, dtype).requires_grad_() for x in inputs]
        y, _ = unitary_scan(*leaves, phase_dt=True, seq_idx=seq_idx.to(DEVICE), backend=backend)
        return [x.cpu().double() for x in torch.autograd.grad(y, [leaves[0], leaves[2]], cotangent.to(DEVICE, dtype))]

    kinds = (torch.float64, "eager"), (torch.float32, "triton"), (torch.float32, "eager")
    for exact, fast, plain in zip(*(gradients(*kind) for kind in kinds), strict=True):
        assert (fast - exact).norm() <= 4 * (plain - exact).norm() + 2.0**-21 * exact.norm()


@pytest.mark.parametrize(("scale", "tolerance"), [(1e-4, 1e-5), (1e-6, 1e-3)])
def test_gradient_of_weights_for_small_inputs_has_the_precision_of_the_readme(scale: float, tolerance: float) -> None:
    """The fp16 parts of u have a fixed scale, so that they have fewer bits where all of u is small."""
    generator = torch.Generator().manual_seed(0)
    batch, length, channels, states = 1, 40, 3, 44
    randn = partial(torch.randn, generator=generator)
    u, dt, W = scale * randn(batch, length, channels), randn(batch, length, channels).abs(), randn(channels, states, channels) / 2
    inputs = [u, dt, W, randn(channels, states), randn(channels, states, 2), randn(channels, states, 2)]
    cotangent = randn(batch, length, channels)

    def gradients(dtype: torch.dtype, backend: str) -> list[torch.Tensor]:
        leaves = [x.to(DEVICE, dtype).requires_grad_() for x in inputs]
        y, _ = unitary_scan(*leaves, backend=backend)
        return [x.cpu().double() for x in torch.autograd.grad(y, leaves, cotangent.to(DEVICE, dtype))]

    pairs = zip(gradients(torch.float32, "triton"), gradients(torch.float64, "eager"), strict=True)
    errors = [(x - exact).norm() / exact.norm() for x, exact in pairs]
    assert errors.pop(2) <= tolerance
    assert max(errors) <= 1e-5


@pytest.mark.parametrize("phase_dt", [False, True])
@pytest.mark.parametrize(
    ("most_channels", "round_steps", "sequence_bytes", "launches"),
    [
        (32, 64, 2**20, 7), (32, 16, 2**20, 3 + 1 + 3 * 2 + 1), (32, 16, 1, 3 + 3 * 3 + 1), (32, 32, 2**20, 3 + 2 * 3 + 1),
        (2, 128, 2**20, 8), (2, 16, 2**20, 14), (2, 16, 1, 16),
    ],
)  # fmt: skip
def test_launches_of_a_round(most_channels, round_steps, sequence_bytes, launches, phase_dt, monkeypatch):
    """Forward there are three launches.

    Backward each round has a scan, an epilogue, and a launch for the products if the scan does not compute them. What all rounds
    read has one launch if it is small and the rounds are equal, otherwise one for each. The sums have one.
    """
    unitary = import_module("longscan.ops.unitary_scan.triton.launch")
    kernels = record_launches(unitary, monkeypatch)
    inputs = floats(example("unitary_scan", torch.float64, length=40, masked=False)) | {"phase_dt": phase_dt}
    monkeypatch.setattr(unitary, "FUSED_CHANNELS", most_channels)
    monkeypatch.setattr(unitary, "FUSED_PAIRS", 1)
    monkeypatch.setattr(unitary, "SCAN_TILES", {32: unitary.ScanTile(16, 32, 1, 3)})
    for name in ("ROUND_BYTES", "PRODUCT_BYTES"):
        monkeypatch.setattr(unitary, name, round_steps * 4 * 16 * len(inputs["u"]))  # 16 columns of u
    monkeypatch.setattr(unitary, "MIN_ROUND_STEPS", 16)
    monkeypatch.setattr(unitary, "SEQUENCE_BYTES", sequence_bytes)
    monkeypatch.setattr(unitary, "programs_to_fill", lambda _: 1)
    truth = run_backend("unitary_scan", inputs, "reference")
    single = {name: x.float() if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
    fast, plain = run_backend("unitary_scan", move_to_device(single), "triton"), run_backend("unitary_scan", single, "eager")
    assert len(kernels) == launches
    for exact, found, eager in zip(truth, fast, plain, strict=True):
        assert (found - exact).norm() <= 4 * (eager - exact).norm() + 2.0**-20 * exact.norm()


@pytest.mark.parametrize(
    ("channels", "states", "lanes", "programs"),
    [
        *((*sizes, 128, programs) for sizes in ((1, 1), (2, 40), (32, 3)) for programs in (1, 64)),
        (3, 34, 32, 1),  # a channel has more states than a program has lanes, and the last program has fewer
        pytest.param(3, 130, 128, 64, marks=pytest.mark.slow),
        pytest.param(3, 130, 128, 1, marks=pytest.mark.slow),
    ],
)
def test_products_in_the_scan_equal_those_of_stored_gradients(channels, states, lanes, programs, monkeypatch):
    """Float32 without masks: the backward scan multiplies the gradients of the angles, or stores them for another kernel.

    programs: 1 for chunks that follow each other, more for parallel chunks; there are two rounds of them.
    """
    unitary = import_module("longscan.ops.unitary_scan.triton.launch")
    kernels = record_launches(unitary, monkeypatch)
    monkeypatch.setattr(unitary, "SCAN_TILES", {32: unitary.ScanTile(16, 32, 1, 3)})
    monkeypatch.setattr(unitary, "programs_to_fill", lambda _: programs)
    monkeypatch.setattr(unitary, "MIN_ROUND_STEPS", 16)
    monkeypatch.setattr(unitary, "FUSED_PAIRS", 1)
    monkeypatch.setattr(unitary, "FUSED_LANES", lanes)
    inputs = floats(example("unitary_scan", torch.float64, length=50, masked=False, D=channels, N=states))
    for name in ("ROUND_BYTES", "PRODUCT_BYTES"):
        monkeypatch.setattr(unitary, name, 40 * unitary.bytes_per_step(len(inputs["u"]), channels, states))
    truth = run_backend("unitary_scan", inputs, "reference")
    single = move_to_device({name: x.float() for name, x in inputs.items()})
    fused = run_backend("unitary_scan", single, "triton")
    assert unitary.d_theta_gemm_kernel not in kernels
    monkeypatch.setattr(unitary, "FUSED_CHANNELS", 0)
    stored = run_backend("unitary_scan", single, "triton")
    assert unitary.d_theta_gemm_kernel in kernels
    for exact, found, other in zip(truth, fused, stored, strict=True):
        assert (found - exact).norm() <= 4 * (other - exact).norm() + 2.0**-20 * exact.norm()


@pytest.mark.parametrize("programs", [1, 64])
def test_products_in_the_scan_of_groups_of_parameters(programs, monkeypatch):
    """Float32: mapped parameters are groups of batch rows, each with its own gradient of W, also over several rounds."""
    unitary = import_module("longscan.ops.unitary_scan.triton.launch")
    kernels = record_launches(unitary, monkeypatch)
    monkeypatch.setattr(unitary, "SCAN_TILES", {32: unitary.ScanTile(16, 32, 1, 3)})
    monkeypatch.setattr(unitary, "programs_to_fill", lambda _: programs)
    monkeypatch.setattr(unitary, "MIN_ROUND_STEPS", 16)
    monkeypatch.setattr(unitary, "FUSED_PAIRS", 1)
    monkeypatch.setattr(unitary, "FUSED_LANES", 32)
    monkeypatch.setattr(unitary, "ROUND_BYTES", 40 * unitary.bytes_per_step(4, 4, 10))
    monkeypatch.setattr(unitary, "PRODUCT_BYTES", 40 * 4 * 4 * 16 * 2)  # 4 rows, 16 columns of u, 2 blocks of lanes
    models = [floats(example("unitary_scan", torch.float64, length=50, masked=False, D=4, N=10)) for _ in range(2)]
    models[1] = {name: x.flip(0) for name, x in models[1].items()}

    def loss(inputs, backend):
        y, final = unitary_scan(**inputs, backend=backend)
        return y.square().sum() + final.square().sum()

    stacked = {name: torch.stack([inputs[name] for inputs in models]).float() for name in models[0]}
    grads = torch.func.vmap(torch.func.grad(lambda inputs: loss(inputs, "triton")))(move_to_device(stacked))
    assert kernels.count(unitary.chunk_scan_products_bwd_kernel) > 1
    assert unitary.d_theta_gemm_kernel not in kernels
    for i, inputs in enumerate(models):
        for name, exact in torch.func.grad(lambda inputs: loss(inputs, "eager"))(inputs).items():
            assert (grads[name][i].cpu() - exact).norm() <= 1e-4 * exact.norm(), name


@pytest.mark.parametrize(
    ("changes", "products"),
    [
        ({}, 0), ({"D": 33}, 1), ({"N": 31}, 1), ({"masked": True}, 1), ({"memory": 65536}, 1),
        ({"dtype": torch.float64}, 0),  # the products are torch's
    ],
)  # fmt: skip
def test_scan_computes_the_products_of_many_pairs_of_few_channels_without_masks(changes, products, monkeypatch):
    """products: number of launches of the kernel that multiplies stored gradients of the angles."""
    unitary = import_module("longscan.ops.unitary_scan.triton.launch")
    kernels = record_launches(unitary, monkeypatch)
    sizes = {"length": 4, "masked": False, "D": 4, "N": 32} | changes
    memory = sizes.pop("memory", 2**20)
    monkeypatch.setattr(unitary, "shared_memory", lambda _: memory)
    inputs = example("unitary_scan", **sizes)
    found = run_backend("unitary_scan", move_to_device(inputs), "triton")
    expected = run_backend("unitary_scan", inputs, "reference")
    tolerance = 1e-9 if inputs["u"].dtype == torch.float64 else 1e-3
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert kernels.count(unitary.d_theta_gemm_kernel) == products
    assert len(kernels) == (7 if not changes else 10 if "masked" in changes else 7 + products)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy's, in the interpreter
def test_infinite_cotangent_gives_no_finite_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    randn = partial(torch.randn, generator=generator)
    inputs = [randn(1, 20, 3), randn(1, 20, 3).abs(), randn(3, 4, 3), randn(3, 4), randn(3, 4, 2), randn(3, 4, 2)]
    leaves = [x.to(DEVICE).requires_grad_() for x in inputs]
    y, _ = unitary_scan(*leaves, backend="triton")
    cotangent = torch.ones_like(y)
    cotangent[0, 9, 0] = torch.inf
    assert not torch.autograd.grad(y, leaves[2], cotangent)[0].isfinite().any()


def test_large_cotangent_of_a_channel_does_not_degrade_gradients_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # one channel for each program, as on GPUs
    unitary = import_module("longscan.ops.unitary_scan.triton.launch")
    monkeypatch.setattr(unitary, "SCAN_TILES", {32: unitary.ScanTile(16, 32, 1, 3)})
    monkeypatch.setattr(unitary, "multiprocessors", lambda _: 132)
    generator = torch.Generator().manual_seed(0)
    batch, length, channels, states = 1, 20, 5, 32
    randn = partial(torch.randn, generator=generator)
    u, dt, W = randn(batch, length, channels), randn(batch, length, channels).abs(), randn(channels, states, channels) / channels
    inputs = [u, dt, W, randn(channels, states), randn(channels, states, 2), randn(channels, states, 2)]
    cotangent = randn(batch, length, channels)
    cotangent[..., 2] *= 1e8

    def gradient(dtype: torch.dtype, backend: str) -> torch.Tensor:
        leaves = [x.to(DEVICE, dtype).requires_grad_() for x in inputs]
        y, _ = unitary_scan(*leaves, backend=backend)
        return torch.autograd.grad(y, leaves[2], cotangent.to(DEVICE, dtype))[0].cpu().double()

    kinds = (torch.float64, "eager"), (torch.float32, "triton"), (torch.float32, "eager")
    exact, fast, plain = (gradient(*kind) for kind in kinds)
    sizes = exact.abs().amax((1, 2))
    error, plain_error = (((x - exact).abs().amax((1, 2)) / sizes).max() for x in (fast, plain))
    assert error <= 4 * plain_error + 2.0**-20  # factors of the products have 22 bits


def test_large_states_are_passed_in_larger_blocks(monkeypatch):
    """The grid of `state_passing_kernel` with two programs for a state of 300 numbers, instead of three of 128 numbers."""
    monkeypatch.setattr(_triton_launch, "MAX_GRID", 2)
    generator = torch.Generator().manual_seed(0)
    mult, local, first = (torch.rand(2, *axes, 300, generator=generator) for axes in ((3,), (3,), ()))
    (grid, block), out = _triton_launch.state_passing_grid(2, 300), torch.empty(2, 4, 300, device=DEVICE)
    assert (grid, block) == ((2, 2), 256)
    tensors = [x.to(DEVICE) for x in (mult, local, first)]
    constants = {"COMPLEX": False, "REVERSE": False, "BLOCK": block}
    kernel = import_module("longscan.ops._triton").state_passing_kernel
    _gpu.launch(kernel, grid, *tensors, None, out, 3, 300, constants=constants)
    expected = [first]
    for i in range(3):
        expected.append(mult[:, i] * expected[-1] + local[:, i])
    torch.testing.assert_close(out.cpu(), torch.stack(expected, 1))
