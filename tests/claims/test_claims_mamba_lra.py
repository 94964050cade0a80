"""Claims of "Long range tasks with Mamba", by their ids in claims.json."""

import itertools
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from claim_helpers import blelloch_scan, compose_affine_maps, count_entries, growth_exponents, peak_memory
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from longscan.layers import AUSSM, S6, S7, Attention
from longscan.numerics.discretisation import discretise
from longscan.tasks._images import image_sequence, to_grey


@pytest.mark.parametrize(
    ("layer", "order"),
    [
        (S6(16, d_state=16, backend="eager"), 1),
        (S7(16, d_state=4, backend="eager"), 1),
        (AUSSM(16, d_state=3, backend="eager"), 1),
        (Attention(16, head_dim=16), 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_m01_operations_are_linear_for_scans_and_quadratic_for_attention(layer, order):
    """Count the entries of all tensors that forward, and forward and backward, create in plain PyTorch."""
    lengths, forward_counts, backward_counts = [256, 512, 1024], [], []
    for length in lengths:
        x = torch.randn(1, length, 16)
        with sdpa_kernel(SDPBackend.MATH):  # the matrix of scores, which every exact attention computes
            with torch.no_grad():
                forward_counts.append(count_entries(lambda x=x: layer(x)).count)
            backward_counts.append(count_entries(lambda x=x: layer(x).sum().backward()).count)
    for amounts in (forward_counts, backward_counts):
        assert growth_exponents(lengths, amounts)[-1] == pytest.approx(order, abs=0.15)


def test_m02_flash_attention_saves_memory_but_no_operations():
    def attend(length: int, backend: SDPBackend) -> Callable[[], object]:
        q = torch.randn(1, 1, length, 16)

        def run() -> object:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, q, q, is_causal=True)

        return run

    flash, explicit = SDPBackend.FLASH_ATTENTION, SDPBackend.MATH
    # Differences leave out the tiles, whose size does not depend on the length.
    increments = np.diff([peak_memory(attend(length, flash)) for length in (2048, 4096, 8192, 16384)])
    assert increments[1:] / increments[:-1] == pytest.approx([2, 2], abs=0.01)
    assert growth_exponents([1024, 2048], [peak_memory(attend(length, explicit)) for length in (1024, 2048)]) == pytest.approx(
        [2], abs=0.05
    )
    for length in (32, 64, 128):
        q, k, ones = *torch.randn(2, 1, 1, length, length), torch.eye(length)[None, None]
        with sdpa_kernel(flash):
            weights = scaled_dot_product_attention(q, k, ones, is_causal=True)
        assert weights.count_nonzero() == length * (length + 1) // 2, "a separate product for each pair of steps"


def printed_operator(first: tuple[Fraction, Fraction], then: tuple[Fraction, Fraction]) -> tuple[Fraction, Fraction]:
    """Return the composition of two affine maps by equation 16 as printed, with B_i x_i in both terms of the sum."""
    return then[0] * first[0], then[0] * first[1] + first[1]


def test_m11_printed_scan_operator_is_not_associative():
    values = [Fraction(int(x), 7) for x in np.random.default_rng(0).integers(-20, 20, 16)]
    pairs = list(zip(values[::2], values[1::2], strict=True))
    state, expected = Fraction(0), []
    for a, b in pairs:
        state = a * state + b
        expected.append(state)
    for operator, is_right in ((compose_affine_maps, True), (printed_operator, False)):
        triples = itertools.combinations(pairs, 3)
        is_associative = [operator(operator(x, y), z) == operator(x, operator(y, z)) for x, y, z in triples]
        assert all(is_associative) == is_right
        prefixes, _ = blelloch_scan(pairs, operator, (Fraction(1), Fraction(0)))
        assert ([b for _, b in prefixes] == expected) == is_right
    stepwise = list(itertools.accumulate(pairs, printed_operator))
    assert [b for _, b in stepwise] != expected  # nor is the result right if the maps are composed one after another


def parallel_scan(items: list[float], processors: int) -> tuple[list[float], int]:
    """Return prefix sums on p processors and their time: sums of blocks, Blelloch's scan of the totals, blocks again."""
    width = -(-len(items) // processors)
    blocks = [list(itertools.accumulate(items[first : first + width])) for first in range(0, len(items), width)]
    totals = [block[-1] for block in blocks] + [0] * (processors - len(blocks))
    sums, levels = blelloch_scan(totals, lambda x, y: x + y, 0)
    offsets = [0, *sums]
    prefixes = [offset + value for offset, block in zip(offsets, blocks, strict=False) for value in block]
    return prefixes, (width - 1) + len(levels) + (width if processors > 1 else 0)


def test_m12_time_of_a_parallel_scan_is_at_most_2_times_n_over_p_plus_log_p():
    n = 1024
    items = np.random.default_rng(0).integers(0, 9, n).tolist()
    times = {}
    for log_p in range(11):
        prefixes, times[log_p] = parallel_scan(items, 2**log_p)
        assert prefixes == list(itertools.accumulate(items))
    assert times[0] == n - 1
    assert all(time <= 2 * (n / 2**log_p + log_p) for log_p, time in times.items())
    assert times[10] <= 2 * 10 + 1


def test_m13_euler_differs_from_zero_order_hold_by_half_of_step_times_eigenvalue():
    layer, dt = S6(4), torch.logspace(-5, -1, 9).double()
    A = -layer.A_log.exp().double().flatten().unique()
    eigenvalues = torch.stack([A, torch.zeros_like(A)], -1)
    _, exact = discretise(eigenvalues, dt[:, None])
    difference = (dt[:, None] - exact[..., 0]) / dt[:, None]
    z = dt[:, None] * -A
    torch.testing.assert_close(difference[z < 1e-2], z[z < 1e-2] / 2, rtol=5e-3, atol=0)
    assert A.min().item() == pytest.approx(-16)
    assert difference.max().item() == pytest.approx(0.5, abs=0.01)


def test_m21_grey_image_of_32_by_32_pixels_has_1024_steps():
    image = image_sequence(to_grey(np.zeros((1, 32, 32, 3), dtype=np.uint8)))
    assert image.lengths.tolist() == [1024]
