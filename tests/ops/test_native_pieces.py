"""Triton kernels on pieces of sequences, each on one of two gloo processes: results and gradients are those of the whole."""

import json
import multiprocessing
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from interpreter import speed_up_interpreter

SIZE, BATCH = 2, 3
DOUBLE: Any = {"dtype": torch.float64}


def numbers(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, **DOUBLE)


def scan_inputs(op: str, length: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors, those with an axis of steps included, and other arguments of an op."""
    steps, channels, states, pair = (BATCH, length), 3, 2, (2,) * op.endswith("pairs")
    if op.startswith("block2"):
        shape = () if "constant" in op else steps
        tensors = {"f": numbers(*steps, channels, 2, *pair), "initial_state": numbers(BATCH, channels, 2, *pair)}
        return tensors | {"M": numbers(*shape, channels, 2, 2, scale=0.5)}, {"pairs": bool(pair)}
    if op.startswith("linear"):
        shape = () if "constant" in op else steps
        state = numbers(BATCH, channels, *pair)
        tensors = {
            "a": numbers(*shape, channels, *pair, scale=0.3),
            "b": numbers(*steps, channels, *pair),
            "initial_state": state,
        }
        return tensors, {"pairs": bool(pair)}
    tensors = {
        "u": numbers(*steps, channels), "dt": numbers(*steps, channels).abs(), "D": numbers(channels),
        "z": numbers(*steps, channels), "initial_state": numbers(BATCH, channels, states, *pair),
    }  # fmt: skip
    if op.startswith("unitary"):
        weights = {"W": numbers(channels, states, channels), "bias": numbers(channels, states)}
        return tensors | weights | {name: numbers(channels, states, 2) for name in "BC"}, {"phase_dt": True}
    tensors |= {name: numbers(*steps, states, *pair) for name in "BC"}
    return tensors | {"A": -numbers(channels, states, *pair).abs(), "dt_bias": numbers(channels)}, {"dt_softplus": True}


OPS = (
    "linear", "linear constant pairs", "selective", "selective pairs", "unitary pairs", "block2 pairs", "block2 constant"
)  # fmt: skip


def run_op(op: str, masked: bool, length: int, backend: str = "triton") -> float:
    """Return the largest error of the results and gradients on pieces, over the largest value."""
    from longscan.distributed import context_parallel, shard_sequence
    from longscan.ops import block2_scan, linear_scan, selective_scan, unitary_scan

    world = distributed.group.WORLD
    torch.manual_seed(0)
    tensors, options = scan_inputs(op, length)
    masks = {}
    if masked:
        masks = {"valid": torch.ones(BATCH, length, dtype=torch.bool), "seq_idx": (torch.rand(BATCH, length) < 0.1).cumsum(1)}
        masks["valid"][0, : length // 2 + 1], masks["seq_idx"][1] = False, 3
    functions = {"block2": block2_scan, "linear": linear_scan, "selective": selective_scan, "unitary": unitary_scan}
    function = functions[op.split()[0]]
    by_step = {name for name, x in tensors.items() if x.shape[:2] == (BATCH, length)}

    def cut(x: Tensor) -> Tensor:
        return shard_sequence(x, world)

    def run(change: Callable[[Tensor], Tensor], share: float) -> dict[str, Tensor]:
        leaves = {name: (change(x) if name in by_step else x).clone().requires_grad_() for name, x in tensors.items()}
        with nullcontext() if change is not cut else context_parallel(world):
            y, final = function(**leaves, **options, **{name: change(x) for name, x in masks.items()}, backend=backend)
        weights = change(torch.linspace(-1, 2, BATCH * length, **DOUBLE).view(BATCH, length)).view(
            *y.shape[:2], *(1,) * (y.ndim - 2)
        )
        final = torch.view_as_real(final) if final.is_complex() else final
        ((y * weights).sum() + share * (final * torch.linspace(0, 1, final.numel(), **DOUBLE).view_as(final)).sum()).backward()
        gradients = {name: x.grad for name, x in leaves.items() if x.grad is not None}
        return {"y": y.detach(), "final": final.detach(), **gradients}

    whole, pieces = run(lambda x: x, 1.0), run(cut, 1 / SIZE)
    errors = []
    for name, expected in whole.items():
        found = pieces[name]
        if name == "y" or name in by_step:
            expected = cut(expected)
        elif name != "final":
            distributed.all_reduce(found)
        errors.append(((found - expected).abs().max() / expected.abs().max().clamp(min=1)).item())
    return max(errors)


def run_short_conv(dtype: torch.dtype, length: int) -> float:
    """Return the largest error of a convolution of inputs in half precision on pieces, and assert what is saved for its gradient.

    Both the whole and the pieces compute in float32 and round the results. Only the gradient of the newest inputs of a piece is
    a sum of two rounded numbers.
    """
    from longscan.distributed import context_parallel, shard_sequence
    from longscan.ops import short_conv

    world, channels, taps = distributed.group.WORLD, 5, 4
    torch.manual_seed(0)
    inputs = torch.randn(BATCH, length, channels).to(dtype)
    tensors = torch.randn(channels, taps), torch.randn(channels), torch.randn(BATCH, channels, taps - 1)
    weights = torch.randn(BATCH, length, channels).to(dtype)
    dtypes: set[torch.dtype] = set()

    def save(x: Tensor) -> Tensor:
        if x.ndim == 3 and x.shape[2] == channels:
            dtypes.add(x.dtype)
        return x

    def run(cut: Callable[[Tensor], Tensor], share: float) -> list[Tensor]:
        u, *others = [x.clone().requires_grad_() for x in (cut(inputs), *tensors)]
        split = nullcontext() if cut is not shard else context_parallel(world)
        with split, torch.autograd.graph.saved_tensors_hooks(save, lambda x: x):
            y, final = short_conv(u, *others, activation="silu", backend="triton")
        assert y.dtype == dtype
        assert final.dtype == torch.float32
        ((y * cut(weights)).float().sum() + share * final.square().sum()).backward()
        return [y.detach(), final.detach(), *[x.grad for x in (u, *others) if x.grad is not None]]

    def shard(x: Tensor) -> Tensor:
        return shard_sequence(x, world)

    (y, final, du, *grads), pieces = run(lambda x: x, 1.0), run(shard, 1 / SIZE)
    assert dtypes == {dtype}, dtypes
    assert torch.equal(pieces[0], shard(y))
    assert torch.equal(pieces[1], final)
    newest = slice(length // SIZE - taps + 1, None)
    found, expected = pieces[2], shard(du)
    assert found.dtype == dtype
    assert torch.equal(found[:, : newest.start], expected[:, : newest.start])
    errors = [(found[:, newest].float() - expected[:, newest].float()).abs().max() / expected.float().abs().max()]
    for grad, whole in zip(pieces[3:], grads, strict=True):
        distributed.all_reduce(grad)
        errors.append((grad - whole).abs().max() / whole.abs().max() / 1000)  # in float32: less than a thousandth of the others
    return max(errors).item()


def run_all(rank: int, folder: str, cases: list[tuple[Any, ...]], programs: int, short_convs: bool) -> None:
    """Run the cases, arguments of `run_op`, on this process, and write the errors to a file.

    programs: how many fill the device, by which linear_scan and block2_scan divide the steps into chunks. short_convs: whether
    the convolutions in bfloat16 and float16 run, too.
    """
    from longscan.ops import _gpu

    _gpu.programs_to_fill = lambda _: programs
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=SIZE)
    errors = {str(case): run_op(*case) for case in cases}
    if short_convs:
        errors |= {str(dtype): run_short_conv(dtype, 12) for dtype in (torch.bfloat16, torch.float16)}
    Path(folder, f"errors-{rank}.json").write_text(json.dumps(errors))
    distributed.destroy_process_group()


def fork_processes(*args: Any) -> None:
    """Run `run_all` in SIZE copies of this process, which imports for them what takes longer to import than the cases to run."""
    import_module("torch._dynamo")  # for the first call of an op on pieces
    speed_up_interpreter()
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=run_all, args=(rank, *args)) for rank in range(SIZE)]
    for process in workers:
        process.start()
    for process in workers:
        process.join(500)
        assert process.exitcode == 0


def run_processes(folder: Path, *args: Any) -> list[dict[str, float]]:
    """Run `run_all` with the arguments after its folder in SIZE new processes, and return the errors of each."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("triton") is not None:
            patch.setenv("TRITON_INTERPRET", "1")  # to be read when Triton is imported, so that this process is not forked
        process = multiprocessing.get_context("spawn").Process(target=fork_processes, args=(str(folder), *args))
        process.start()
    process.join(550)
    assert process.exitcode == 0
    return [json.loads((folder / f"errors-{rank}.json").read_text()) for rank in range(SIZE)]


KERNELS = [(op, True, 6) for op in ("linear constant pairs", "selective", "unitary pairs", "block2 pairs")]
PLAIN = [(op, masked, 10, "eager") for op in OPS for masked in (False, True)]


@pytest.fixture(scope="module")
def short_errors(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """Return the errors of all short cases, which run in the same processes: the start of a process takes longer than a case."""
    has_triton = find_spec("triton") is not None
    return run_processes(tmp_path_factory.mktemp("pieces"), PLAIN + KERNELS * has_triton, 1, has_triton)


def check_errors(errors: list[dict[str, float]], cases: list[tuple[Any, ...]]) -> None:
    for of_rank in errors:
        assert max(of_rank[str(case)] for case in cases) < 1e-10, of_rank


def test_pieces_equal_the_whole(short_errors: list[dict[str, float]]) -> None:
    pytest.importorskip("triton")
    check_errors(short_errors, KERNELS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cases", "programs"),
    [
        # several tiles in each piece
        pytest.param([(op, masked, 140) for op in OPS for masked in (False, True)], 1, marks=pytest.mark.timeout(600)),
        ([(op, True, 80) for op in ("linear", "block2 pairs", "block2 constant")], 24),
    ],
    ids=["long", "chunks"],
)
def test_long_pieces_equal_the_whole(cases: list[tuple[Any, ...]], programs: int, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    check_errors(run_processes(tmp_path, cases, programs, False), cases)


def test_pieces_without_kernels_equal_the_whole(short_errors: list[dict[str, float]]) -> None:
    """The states are passed on by the plain code, which every op has for backends that cannot run a piece alone."""
    check_errors(short_errors, PLAIN)


def test_short_conv_reads_pieces_in_half_precision(short_errors: list[dict[str, float]]) -> None:
    """A copy of the inputs in float32 for the backward pass would be the largest tensor of a Mamba block."""
    pytest.importorskip("triton")
    for of_rank in short_errors:
        assert of_rank["torch.bfloat16"] <= 1.5 * 2**-8  # three roundings, each by half of a unit in the last of 8 digits
        assert of_rank["torch.float16"] <= 1.5 * 2**-11
