"""Claims of the thesis "Deep learning with state spaces for efficient sequence modeling", by their ids in claims.json."""

import itertools
import math

import pytest
import torch
from claim_helpers import blelloch_scan, compose_affine_maps, count_entries, growth_exponents, iterate_recurrence
from recorded_figures import share_of_masked_time
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


def test_t02_valid_outputs_of_an_fft_convolution_depend_on_the_side_of_the_padding():
    length, taps = 40, 12
    u, k = torch.randn(length).double(), torch.randn(taps).double()
    kernel = torch.cat([k, torch.zeros(length - taps).double()])
    expected = long_conv(u.view(1, -1, 1), kernel.view(1, -1), backend="reference")[0, :, 0]
    zeros = torch.zeros(taps - 1).double()

    def product(padded: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(padded) * torch.fft.rfft(k, n=len(padded)), n=len(padded))

    left_padded, right_padded = product(torch.cat([zeros, u])), product(torch.cat([u, zeros]))
    torch.testing.assert_close(left_padded[taps - 1 :], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(right_padded[:length], expected, rtol=1e-12, atol=1e-12)
    assert (right_padded[taps - 1 :] - expected).abs().max() > 0.1  # the outputs of one padding read at the places of the other
    assert (left_padded[:length] - expected).abs().max() > 0.1


def test_t03_both_forms_of_zero_order_hold_are_equal():
    A = torch.randn(5, 5).double() - 2 * torch.eye(5).double()
    B, dt = torch.randn(5, 1).double(), 0.3
    exponential_minus_one = torch.matrix_exp(A * dt) - torch.eye(5).double()
    first = torch.linalg.solve(A, exponential_minus_one @ B)
    second = torch.linalg.solve(A * dt, exponential_minus_one @ B * dt)
    torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-13)
    eigenvalues, vectors = torch.linalg.eig(A)
    _, factors = discretise(torch.view_as_real(eigenvalues), torch.tensor(dt, dtype=torch.float64))
    by_eigenvalues = vectors @ (torch.view_as_complex(factors)[:, None] * torch.linalg.solve(vectors, B.to(vectors)))
    torch.testing.assert_close(by_eigenvalues.real, first, rtol=1e-10, atol=1e-12)


def test_t06_backward_euler_equals_a_sigmoid_gate():
    z, x = torch.randn(1, 50, 2).double(), torch.randn(1, 50, 2).double()
    dt = z.exp()
    # s_k = s_{k-1} + dt (-s_k + x_k), solved for s_k
    implicit = torch.stack(list(iterate_recurrence((1 / (1 + dt))[0], (dt * x / (1 + dt))[0])))
    gate = z.sigmoid()
    gated, _ = linear_scan(1 - gate, gate * x)
    swapped, _ = linear_scan(gate, (1 - gate) * x)
    torch.testing.assert_close(gated[0], implicit, rtol=1e-12, atol=1e-13)
    assert (swapped[0] - implicit).abs().max() > 0.5


def test_t07_softplus_step_sizes_equal_a_sigmoid_gate():
    f, x = torch.randn(1, 50, 1).double(), torch.randn(1, 50, 1).double()
    a, b = discretise(torch.tensor([-1.0, 0.0]).double(), softplus(f))
    states, _ = linear_scan(a[..., 0], b[..., 0] * x)
    gate = f.sigmoid()
    torch.testing.assert_close(
        states[0], torch.stack(list(iterate_recurrence((1 - gate)[0], (gate * x)[0]))), rtol=1e-12, atol=1e-13
    )


def test_t08_outputs_do_not_depend_on_the_basis_of_the_state():
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


def test_t10_kernel_of_s4_equals_powers_of_the_dense_matrix():
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
def test_t12_blelloch_scan_has_2_l_minus_2_additions_in_2_log_l_levels(power):
    length = 2**power
    sums, levels = blelloch_scan(list(range(length)), lambda x, y: x + y, 0)
    assert sums == list(itertools.accumulate(range(length)))
    assert [sum(levels[:power]), sum(levels[power:])] == [length - 1, length - 1]
    assert len(levels) == 2 * power
    a, b = torch.rand(1, length, 2).double(), torch.randn(1, length, 2).double()
    prefixes, _ = blelloch_scan(list(zip(a[0], b[0], strict=True)), compose_affine_maps, (torch.ones(2), torch.zeros(2)))
    states, _ = linear_scan(a, b)
    torch.testing.assert_close(torch.stack([part for _, part in prefixes]), states[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("layer", "mixes"), [(S6, True), (S4D, False), (S4, False)])
def test_t13_only_s6_mixes_features(layer, mixes):
    layer = layer(4, d_state=8).double()
    x = torch.randn(1, 30, 4).double()
    other = x.clone()
    other[:, :, 1] += 1
    change = (layer(other) - layer(x))[0].abs().amax(0)
    assert change[1] > 1e-3
    if mixes:
        assert change[[0, 2, 3]].min() > 1e-6
    else:
        assert change[[0, 2, 3]].max() < 1e-12


BLOCKS = {
    "Mamba-s6": lambda: MambaBlock(6, layer_options={"d_state": 4}),
    "Mamba-s4d": lambda: MambaBlock(6, layer="s4d", layer_options={"d_state": 4}),
    "Mamba-s4": lambda: MambaBlock(6, layer="s4", layer_options={"d_state": 4}),
    "Simple-s4d": lambda: SimpleBlock(6, layer_options={"d_state": 4}),
    "Simple-s4": lambda: SimpleBlock(6, layer="s4", layer_options={"d_state": 4}),
    "bidirectional": lambda: BidirectionalBlock(6, layer_options={"d_state": 4}),
}


def changes_before_and_after(block: nn.Module, step: int = 20) -> tuple[float, float]:
    """Return the largest changes of the outputs before a step, and from it on, if the input at this step changes."""
    x = torch.randn(1, 40, 6).double()
    other = x.clone()
    other[:, step] += 1
    change = (block(other) - block(x))[0].abs().amax(-1)
    return change[:step].max().item(), change[step:].max().item()


@pytest.mark.parametrize("name", BLOCKS)
def test_t14_all_blocks_but_the_bidirectional_one_are_causal(name):
    block = BLOCKS[name]().double()
    before, after = changes_before_and_after(block)
    assert after > 1e-4
    if name == "bidirectional":
        assert before > 1e-6
    else:
        assert before < 1e-12


def test_t15_coefficients_vary_with_time_in_s6_and_not_in_s4d():
    length, width = 30, 3
    s6, s4d = S6(width, d_state=4).double(), S4D(width, d_state=4).double()
    inputs = torch.randn(1, length, width).double()

    def responses(run) -> Tensor:
        """Return the outputs of the ten steps from an impulse on, for impulses at steps 5 and 15."""
        outputs = []
        for step in (5, 15):
            impulse = torch.zeros(1, length, width).double()
            impulse[:, step] = 1
            outputs.append(run(impulse)[0, step : step + 10])
        return torch.stack(outputs)

    with torch.no_grad():
        frozen = responses(lambda x: s6.scan(x, s6.select(inputs), None, SequenceInfo())[0])
        constant = responses(s4d)
        assert (frozen[0] - frozen[1]).abs().max() > 1e-3
        torch.testing.assert_close(constant[0], constant[1], rtol=1e-10, atol=1e-12)
        # Both layers commute with a shift of their inputs; S6 is not linear.
        shifted = torch.cat([torch.zeros(1, 7, width).double(), inputs], 1)
        for layer, linear in ((s6, False), (s4d, True)):
            torch.testing.assert_close(layer(shifted)[:, 7:], layer(inputs), rtol=1e-10, atol=1e-12)
            assert (((layer(2 * inputs) - 2 * layer(inputs)).abs().max() < 1e-10).item()) == linear


def test_t16_length_of_the_kernel_is_inverse_to_the_step_size():
    eigenvalues = diagonal_eigenvalues(16)[None]
    ones = torch.stack([torch.ones(1, 8), torch.zeros(1, 8)], -1).double()
    sizes, lengths = [1e-3, 3e-3, 1e-2, 3e-2], []
    for dt in sizes:
        kernel = diagonal_kernel(log_step(eigenvalues, torch.tensor([[dt]], dtype=torch.float64)), ones, 20_000)[0]
        energy = kernel.square().cumsum(0) / kernel.square().sum()
        lengths.append(int((energy < 0.9).sum()) + 1.0)
    assert growth_exponents([1, 3, 10, 30], lengths) == pytest.approx([-1, -1, -1], abs=0.12)
    assert lengths[0] / lengths[-1] == pytest.approx(30, rel=0.1)


def test_t17_operations_of_the_recurrence_grow_with_the_states_and_of_the_convolution_do_not():
    length, width = 256, 4
    dt = torch.full((width, 1), 0.1, dtype=torch.float64)

    def count_operations(batch: int, states: int, convolved: bool) -> int:
        eigenvalues = diagonal_eigenvalues(2 * states).expand(width, -1, -1)
        u = torch.randn(batch, length, width).double()
        log_a = log_step(eigenvalues, dt)
        if convolved:
            return count_entries(lambda: long_conv(u, diagonal_kernel(log_a, torch.ones_like(log_a), length))).count
        a, b = discretise(eigenvalues, dt)
        drive = torch.view_as_complex(b) * u.unsqueeze(-1)
        return count_entries(lambda: linear_scan(torch.view_as_complex(a), drive, backend="eager")).count

    by_states = {  # entries for 8 sequences: what does not depend on the batch, such as the kernel, cancels
        n: [count_operations(16, n, kind) - count_operations(8, n, kind) for kind in (True, False)] for n in (4, 16, 64)
    }
    assert len({convolved for convolved, _ in by_states.values()}) == 1
    assert growth_exponents([4, 16, 64], [recurrent for _, recurrent in by_states.values()]) == pytest.approx([1, 1], abs=0.05)


class FftPointCounter(TorchDispatchMode):
    """Count the points of Fourier transforms, the larger number of input and output."""

    def __init__(self) -> None:
        super().__init__()
        self.points = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if "fft" in func.__name__:
            self.points += max(args[0].numel(), result.numel())
        return result


def test_t39_convolution_without_padding_is_circular():
    length = 512
    u, k = torch.randn(1, length, 1).double(), torch.randn(1, length).double()

    def circular(u: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(u, dim=1) * torch.fft.rfft(k).T, n=length, dim=1)

    changed_inputs = u.clone()
    changed_inputs[:, 400:] += 1
    costs = []
    for convolve, causal in ((lambda u: long_conv(u, k), True), (circular, False)):
        change = (convolve(changed_inputs) - convolve(u))[0, :400].abs().max()
        assert ((change < 1e-10).item()) == causal
        with FftPointCounter() as counted:
            convolve(u)
        costs.append(counted.points)
    assert costs[0] == 2 * costs[1] > 0


def test_t42_pretraining_on_the_next_base_takes_half_the_time_of_masked_pretraining():
    """Updates of the same number of windows, captured, as a GPU replays them."""
    assert round(share_of_masked_time(), 1) == 0.5


def test_t48_attention_without_positions_ignores_order():
    x, order = torch.randn(1, 12, 8).double(), torch.randperm(12)
    attention_of_torch = nn.MultiheadAttention(8, 2, batch_first=True).double()
    torch.testing.assert_close(attention_of_torch(*[x[:, order]] * 3)[0], attention_of_torch(x, x, x)[0][:, order])
    shuffled = torch.cat([x[:, torch.randperm(11)], x[:, -1:]], 1)  # earlier steps in another order
    no_time = torch.zeros(1, 12).double()  # no time passes, so that all steps have one position
    attention = Attention(8, head_dim=4)
    for layer, elapsed, ignores_order in (
        (attention, no_time, True),
        (attention, None, False),
        (S6(8, d_state=4), None, False),
        (S4D(8, d_state=4), None, False),
    ):
        layer = layer.double()
        change = (layer(shuffled, elapsed=elapsed) - layer(x, elapsed=elapsed))[:, -1].abs().max()
        assert ((change < 1e-12).item()) == ignores_order


def test_t49_eigenvalues_of_legs_have_real_parts_of_minus_one_half():
    eigenvalues, _ = legs_normal(16)
    torch.testing.assert_close(eigenvalues.real, torch.full((8,), -0.5).double(), rtol=0, atol=1e-14)
    initial = S6(2, d_state=16).eigenvalues()[0]
    torch.testing.assert_close(initial, -torch.arange(1.0, 17.0))


def test_t51_the_printed_map_to_the_step_size_has_rank_one():
    width = 232
    x = torch.randn(500, width).double()
    to_one, second, bias = torch.randn(1, width).double(), torch.randn(width, width).double(), torch.randn(width).double()
    as_printed = ((x @ to_one.T).expand(-1, width) + bias) @ second.T

    def rank(values: Tensor) -> int:
        return int(torch.linalg.matrix_rank(values - values.mean(0)))

    assert rank(as_printed) == 1
    (block,) = SequenceModel.from_spec("mamba", d_state=16, d_model=116, **CIFAR).double().stack
    with torch.no_grad():
        before_bias, *_ = block.block.layer.select(x)
    assert rank(before_bias) == math.ceil(116 / 16) == 8
