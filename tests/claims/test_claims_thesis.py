"""Claims of the thesis "Deep learning with state spaces for efficient sequence modeling", by their ids in claims.json."""

import itertools
import math

import pytest
import torch
from counted import blelloch, compose, entries, loop, orders
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.utils._python_dispatch import TorchDispatchMode

from longscan.blocks import BidirectionalBlock, MambaBlock, SimpleBlock
from longscan.layers import S4, S4D, S6, Attention
from longscan.layers.base import SequenceInfo
from longscan.models import SequenceModel
from longscan.numerics.discretisation import discretise, log_step
from longscan.numerics.dplr import dense_step
from longscan.numerics.hippo import legs_normal
from longscan.numerics.initialisers import diagonal_eigenvalues
from longscan.numerics.kernels import diagonal_kernel
from longscan.ops import linear_scan, long_conv

CIFAR = {"d_input": 3, "d_output": 10, "head": "affine"}
IMDB = {"vocab_size": 120, "d_output": 2, "head": "affine"}


def stack(layer: str, block: str, **options: object) -> list[dict]:
    return [{"layer": layer, "block": block, "options": options}] * 6


def test_t02_which_outputs_of_a_padded_transform_to_keep():
    length, taps = 40, 12
    u, k = torch.randn(length).double(), torch.randn(taps).double()
    kernel = torch.cat([k, torch.zeros(length - taps).double()])
    truth = long_conv(u.view(1, -1, 1), kernel.view(1, -1), backend="reference")[0, :, 0]
    room = torch.zeros(taps - 1).double()

    def product(padded: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(padded) * torch.fft.rfft(k, n=len(padded)), n=len(padded))

    before, after = product(torch.cat([room, u])), product(torch.cat([u, room]))
    torch.testing.assert_close(before[taps - 1 :], truth, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after[:length], truth, rtol=1e-12, atol=1e-12)
    assert (after[taps - 1 :] - truth).abs().max() > 0.1  # the way of the one with the padding of the other
    assert (before[:length] - truth).abs().max() > 0.1


def test_t03_two_ways_to_write_the_hold():
    A = torch.randn(5, 5).double() - 2 * torch.eye(5).double()
    B, dt = torch.randn(5, 1).double(), 0.3
    grown = torch.matrix_exp(A * dt) - torch.eye(5).double()
    first = torch.linalg.solve(A, grown @ B)
    second = torch.linalg.solve(A * dt, grown @ B * dt)
    torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-13)
    eigenvalues, vectors = torch.linalg.eig(A)
    _, held = discretise(torch.view_as_real(eigenvalues), torch.tensor(dt, dtype=torch.float64))
    by_states = vectors @ (torch.view_as_complex(held)[:, None] * torch.linalg.solve(vectors, B.to(vectors)))
    torch.testing.assert_close(by_states.real, first, rtol=1e-10, atol=1e-12)


def test_t06_backward_euler_is_a_sigmoid_gate():
    z, x = torch.randn(1, 50, 2).double(), torch.randn(1, 50, 2).double()
    dt = z.exp()
    implicit = torch.stack(list(loop((1 / (1 + dt))[0], (dt * x / (1 + dt))[0])))  # s_k = s_{k-1} + dt (-s_k + x_k)
    gate = z.sigmoid()
    gated, _ = linear_scan(1 - gate, gate * x)
    swapped, _ = linear_scan(gate, (1 - gate) * x)
    torch.testing.assert_close(gated[0], implicit, rtol=1e-12, atol=1e-13)
    assert (swapped[0] - implicit).abs().max() > 0.5


def test_t07_softplus_steps_are_a_sigmoid_gate():
    f, x = torch.randn(1, 50, 1).double(), torch.randn(1, 50, 1).double()
    a, b = discretise(torch.tensor([-1.0, 0.0]).double(), softplus(f))
    states, _ = linear_scan(a[..., 0], b[..., 0] * x)
    gate = f.sigmoid()
    torch.testing.assert_close(states[0], torch.stack(list(loop((1 - gate)[0], (gate * x)[0]))), rtol=1e-12, atol=1e-13)


def test_t08_a_change_of_basis_changes_nothing():
    A, B, C = 0.3 * torch.randn(6, 6).double(), torch.randn(6, 2).double(), torch.randn(2, 6).double()
    u = torch.randn(40, 2).double()
    x, outputs = torch.zeros(6).double(), []
    for u_t in u:
        x = A @ x + B @ u_t
        outputs.append(C @ x)
    eigenvalues, vectors = torch.linalg.eig(A)
    inputs = (u.to(vectors) @ torch.linalg.solve(vectors, B.to(vectors)).T).unsqueeze(0)
    states, _ = linear_scan(eigenvalues, inputs)
    y = states[0] @ (C.to(vectors) @ vectors).T
    torch.testing.assert_close(y.real, torch.stack(outputs), rtol=1e-10, atol=1e-10)
    assert y.imag.abs().max() < 1e-10
    assert eigenvalues.imag.abs().max() > 0.01


def test_t10_s4s_kernel_is_exact():
    layer, length = S4(2, d_state=64).double(), 1024
    with torch.no_grad():
        A, B = dense_step(*layer.system(torch.float64), layer.log_dt.exp())
        row = (layer.C * torch.tensor([2.0, -2.0]).double()).flatten(-2)
        x, powers = B, []
        for _ in range(length):
            powers.append((row * x).sum(-1))
            x = torch.einsum("dnm,dm->dn", A, x)
        dense = torch.stack(powers, -1)
        torch.testing.assert_close(layer.kernel(length), dense, rtol=0, atol=1e-10 * dense.abs().max().item())
    assert dense.abs().max() > 1e-3


@pytest.mark.parametrize("power", [1, 4, 8])
def test_t12_additions_and_levels_of_blellochs_scan(power):
    length = 2**power
    sums, levels = blelloch(list(range(length)), lambda x, y: x + y, 0)
    assert sums == list(itertools.accumulate(range(length)))
    assert [sum(levels[:power]), sum(levels[power:])] == [length - 1, length - 1]
    assert len(levels) == 2 * power
    a, b = torch.rand(1, length, 2).double(), torch.randn(1, length, 2).double()
    prefixes, _ = blelloch(list(zip(a[0], b[0], strict=True)), compose, (torch.ones(2), torch.zeros(2)))
    states, _ = linear_scan(a, b)
    torch.testing.assert_close(torch.stack([part for _, part in prefixes]), states[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("layer", "mixes"), [(S6, True), (S4D, False), (S4, False)])
def test_t13_which_layers_mix_features(layer, mixes):
    layer = layer(4, d_state=8).double()
    x = torch.randn(1, 30, 4).double()
    other = x.clone()
    other[:, :, 1] += 1
    moved = (layer(other) - layer(x))[0].abs().amax(0)
    assert moved[1] > 1e-3
    if mixes:
        assert moved[[0, 2, 3]].min() > 1e-6
    else:
        assert moved[[0, 2, 3]].max() < 1e-12


BLOCKS = {
    "Mamba-s6": lambda: MambaBlock(6, layer_options={"d_state": 4}),
    "Mamba-s4d": lambda: MambaBlock(6, layer="s4d", layer_options={"d_state": 4}),
    "Mamba-s4": lambda: MambaBlock(6, layer="s4", layer_options={"d_state": 4}),
    "Simple-s4d": lambda: SimpleBlock(6, layer_options={"d_state": 4}),
    "Simple-s4": lambda: SimpleBlock(6, layer="s4", layer_options={"d_state": 4}),
    "bidirectional": lambda: BidirectionalBlock(6, layer_options={"d_state": 4}),
}


def leak(block: nn.Module, at: int = 20) -> tuple[float, float]:
    """How far another input at one step moves the outputs before it, and from it on."""
    x = torch.randn(1, 40, 6).double()
    other = x.clone()
    other[:, at] += 1
    moved = (block(other) - block(x))[0].abs().amax(-1)
    return moved[:at].max().item(), moved[at:].max().item()


@pytest.mark.parametrize("name", BLOCKS)
def test_t14_which_blocks_are_causal(name):
    block = BLOCKS[name]().double()
    before, after = leak(block)
    assert after > 1e-4
    if name == "bidirectional":
        assert before > 1e-6
    else:
        assert before < 1e-12


def test_t15_whose_coefficients_vary_with_time():
    length, width = 30, 3
    s6, s4d = S6(width, d_state=4).double(), S4D(width, d_state=4).double()
    given = torch.randn(1, length, width).double()

    def responses(run) -> Tensor:
        """What an impulse at step 5 and one at step 15 leave in the ten steps from there."""
        found = []
        for at in (5, 15):
            impulse = torch.zeros(1, length, width).double()
            impulse[:, at] = 1
            found.append(run(impulse)[0, at : at + 10])
        return torch.stack(found)

    with torch.no_grad():
        frozen = responses(lambda x: s6.scan(x, s6.select(given), None, SequenceInfo())[0])
        constant = responses(s4d)
        assert (frozen[0] - frozen[1]).abs().max() > 1e-3
        torch.testing.assert_close(constant[0], constant[1], rtol=1e-10, atol=1e-12)
        # As maps of inputs both commute with a shift; S6's is not linear.
        late = torch.cat([torch.zeros(1, 7, width).double(), given], 1)
        for layer, linear in ((s6, False), (s4d, True)):
            torch.testing.assert_close(layer(late)[:, 7:], layer(given), rtol=1e-10, atol=1e-12)
            assert (((layer(2 * given) - 2 * layer(given)).abs().max() < 1e-10).item()) == linear


def test_t16_reach_is_inverse_to_the_step_size():
    eigenvalues = diagonal_eigenvalues(16)[None]
    ones = torch.stack([torch.ones(1, 8), torch.zeros(1, 8)], -1).double()
    sizes, reaches = [1e-3, 3e-3, 1e-2, 3e-2], []
    for dt in sizes:
        kernel = diagonal_kernel(log_step(eigenvalues, torch.tensor([[dt]], dtype=torch.float64)), ones, 20_000)[0]
        share = kernel.square().cumsum(0) / kernel.square().sum()
        reaches.append(int((share < 0.9).sum()) + 1.0)
    assert orders([1, 3, 10, 30], reaches) == pytest.approx([-1, -1, -1], abs=0.12)
    assert reaches[0] / reaches[-1] == pytest.approx(30, rel=0.1)


def test_t17_only_the_recurrence_pays_for_the_states():
    length, width = 256, 4
    dt = torch.full((width, 1), 0.1, dtype=torch.float64)

    def made(batch: int, states: int, convolved: bool) -> int:
        eigenvalues = diagonal_eigenvalues(2 * states).expand(width, -1, -1)
        u = torch.randn(batch, length, width).double()
        log_a = log_step(eigenvalues, dt)
        if convolved:
            return entries(lambda: long_conv(u, diagonal_kernel(log_a, torch.ones_like(log_a), length))).count
        a, b = discretise(eigenvalues, dt)
        drive = torch.view_as_complex(b) * u.unsqueeze(-1)
        return entries(lambda: linear_scan(torch.view_as_complex(a), drive, backend="eager")).count

    by_states = {n: [made(16, n, kind) - made(8, n, kind) for kind in (True, False)] for n in (4, 16, 64)}  # of 8 sequences
    assert len({convolved for convolved, _ in by_states.values()}) == 1
    assert orders([4, 16, 64], [recurrent for _, recurrent in by_states.values()]) == pytest.approx([1, 1], abs=0.05)


class Transforms(TorchDispatchMode):
    """Counts the points that Fourier transforms take in and give out."""

    def __init__(self) -> None:
        super().__init__()
        self.points = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if "fft" in func.__name__:
            self.points += max(args[0].numel(), made.numel())
        return made


def test_t39_without_padding_the_convolution_wraps_around():
    length = 512
    u, k = torch.randn(1, length, 1).double(), torch.randn(1, length).double()

    def circular(u: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(u, dim=1) * torch.fft.rfft(k).T, n=length, dim=1)

    later = u.clone()
    later[:, 400:] += 1
    costs = []
    for convolve, causal in ((lambda u: long_conv(u, k), True), (circular, False)):
        moved = (convolve(later) - convolve(u))[0, :400].abs().max()
        assert ((moved < 1e-10).item()) == causal
        with Transforms() as counted:
            convolve(u)
        costs.append(counted.points)
    assert costs[0] == 2 * costs[1] > 0


def test_t48_attention_without_positions_ignores_order():
    x, order = torch.randn(1, 12, 8).double(), torch.randperm(12)
    free = nn.MultiheadAttention(8, 2, batch_first=True).double()
    torch.testing.assert_close(free(*[x[:, order]] * 3)[0], free(x, x, x)[0][:, order])
    shuffled = torch.cat([x[:, torch.randperm(11)], x[:, -1:]], 1)  # the past in another order
    nowhere = torch.zeros(1, 12).double()  # no time passes, so that all steps have one position
    attention = Attention(8, head_dim=4)
    for layer, elapsed, ignores in (
        (attention, nowhere, True),
        (attention, None, False),
        (S6(8, d_state=4), None, False),
        (S4D(8, d_state=4), None, False),
    ):
        layer = layer.double()
        moved = (layer(shuffled, elapsed=elapsed) - layer(x, elapsed=elapsed))[:, -1].abs().max()
        assert ((moved < 1e-12).item()) == ignores


def test_t49_the_real_parts_of_legs_are_all_one_half():
    eigenvalues, _ = legs_normal(16)
    torch.testing.assert_close(eigenvalues.real, torch.full((8,), -0.5).double(), rtol=0, atol=1e-14)
    start = S6(2, d_state=16).eigenvalues()[0]
    torch.testing.assert_close(start, -torch.arange(1.0, 17.0))


def test_t51_the_printed_map_to_the_step_size_has_rank_one():
    width = 232
    x = torch.randn(500, width).double()
    to_one, second, bias = torch.randn(1, width).double(), torch.randn(width, width).double(), torch.randn(width).double()
    as_printed = ((x @ to_one.T).expand(-1, width) + bias) @ second.T

    def rank(values: Tensor) -> int:
        return int(torch.linalg.matrix_rank(values - values.mean(0)))

    assert rank(as_printed) == 1
    (block,) = SequenceModel(stack("s6", "mamba", d_state=16)[:1], d_model=116, **CIFAR).double().stack
    with torch.no_grad():
        before_bias, *_ = block.block.layer.select(x)
    assert rank(before_bias) == math.ceil(116 / 16) == 8
