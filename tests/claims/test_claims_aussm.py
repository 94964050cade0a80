"""Claims of the AUSSM paper, by their ids in claims.json."""

import itertools
import math
from functools import partial

import mpmath
import numpy as np
import pytest
import torch
from claim_helpers import (
    blelloch_scan,
    compose_affine_maps,
    count_entries,
    growth_exponents,
    iterate_recurrence,
    random_words,
    read_results,
    read_scaling,
)
from claims_page import combine_parts, outcome_of
from recorded_figures import FIGURE_2, kernel_wins_by_form, ratios_to_s6
from torch import Tensor
from torch.nn.functional import one_hot, silu
from torch.utils.flop_counter import FlopCounterMode

from longscan import automata
from longscan.automata.permutations import PermutationGroup
from longscan.blocks import Residual
from longscan.layers import AUSSM, S6
from longscan.models import SequenceModel
from longscan.ops import linear_scan, selective_scan, unitary_scan
from longscan.report.published import published_row
from longscan.tasks.formal import (
    BucketSort,
    CycleNavigation,
    Majority,
    MajorityCount,
    ModularArithmetic,
    ModularArithmeticBrackets,
    Parity,
    Repetition,
    Set,
    SolveEquation,
)

GROUPS = automata.languages.GROUPS


def zero_step_sizes(u: Tensor) -> Tensor:
    """Return step sizes of 0, with which inputs do not change the state."""
    return torch.zeros_like(u)


def rotated_states(letters: np.ndarray, shifts: list[int], k: int, start: float = 1.0, backend: str = "auto") -> Tensor:
    """Return the states (B, L) of an AUSSM layer with one complex state and no inputs.

    A letter b of the words `letters` (B, L) rotates the state, which is `start` at first, by 2 pi shifts[b] / k.
    """
    width = max(2, len(shifts))  # the first channel returns the real part, the second the imaginary part
    u = one_hot(torch.from_numpy(letters), width).double()
    W = torch.zeros(width, 1, width, dtype=torch.float64)
    W[:, 0, : len(shifts)] = 2 * math.pi / k * torch.tensor(shifts, dtype=torch.float64)
    readout = torch.ones(width, 1, dtype=torch.complex128)
    readout[1] = -1j
    initial = torch.full((len(u), width, 1), start, dtype=torch.complex128)
    one = torch.ones(1, dtype=torch.complex128)
    bias = torch.zeros(width, 1, dtype=torch.float64)
    y, _ = unitary_scan(u, zero_step_sizes(u), W, bias, one, readout, initial_state=initial, backend=backend)
    return torch.complex(y[..., 0], y[..., 1])


def nearest_root(states: Tensor, k: int) -> Tensor:
    """Return the numbers, 0 to k - 1, of the nearest k-th roots of unity."""
    return (states.angle() * k / (2 * math.pi)).round().long() % k


def random_rotations(length: int, states: int) -> tuple[Tensor, Tensor]:
    """Return random angles and complex inputs, (length, states) each."""
    return (torch.rand(length, states).double() * 2 - 1) * math.pi, torch.randn(length, states, dtype=torch.complex128)


def test_a01_one_state_with_factors_of_one_and_minus_one_counts_modulo_2():
    bits = random_words(2, 1, 1_000_000)
    sign = 1 - 2 * (torch.from_numpy(bits).cumsum(1) % 2)
    factors = 1.0 - 2 * torch.from_numpy(bits).double()
    states, _ = linear_scan(factors, torch.zeros_like(factors), torch.ones(1, dtype=torch.float64))
    assert torch.equal(states, sign.double())
    rotated = rotated_states(bits[:, :100_000], [0, 1], 2)
    assert torch.equal(rotated.real.sign().long(), sign[:, :100_000])
    assert (rotated - sign[:, :100_000]).abs().max() < 2.5e-11  # the paper's bound for 10^5 multiplications


@pytest.mark.parametrize("k", [3, 4, 5, 7, 97])
def test_a02_state_rotated_by_roots_of_unity_follows_a_cyclic_automaton(k):
    shifts = [0, 1, k - 1, *np.random.default_rng(k).integers(0, k, 3).tolist()]
    maps = {letter: tuple((i + n) % k for i in range(k)) for letter, n in zip("abcdef", shifts, strict=True)}
    dfa = automata.from_maps(maps)
    letters = random_words(len(shifts), 2, 20_000)
    states = rotated_states(letters, shifts, k)
    assert np.array_equal(nearest_root(states, k).numpy(), dfa.run(letters))
    nearest = torch.exp(2j * math.pi / k * torch.from_numpy(dfa.run(letters)).double())
    assert (states - nearest).abs().max() < 1e-10


def test_a03_error_of_complex_products_is_at_most_sqrt_5_eps_per_step():
    length = 20_000
    angles = torch.rand(1, length, 1).double() * 2 * math.pi
    for dtype, eps in ((torch.complex128, 2.0**-53), (torch.complex64, 2.0**-24)):
        factors = torch.polar(torch.ones_like(angles), angles).to(dtype)
        start = torch.ones(1, 1, dtype=dtype)
        product, _ = linear_scan(factors, torch.zeros_like(factors), start, backend="reference")
        with mpmath.workprec(200):  # the exact product of the rounded factors
            exact = itertools.accumulate((mpmath.mpc(z) for z in factors.flatten().tolist()), lambda x, y: x * y)
            errors = [float(abs(mpmath.mpc(x) / z - 1)) for x, z in zip(product.flatten().tolist(), exact, strict=True)]
        bound = math.sqrt(5) * eps * np.arange(1, length + 1)
        assert (np.array(errors) <= bound).all()
        assert errors[-1] > eps


def counting_limit(k: int, eps: float) -> float:
    """Return half the distance between neighbouring k-th roots of unity, divided by the error of a step."""
    return math.sin(math.pi / k) / (math.sqrt(5) * eps)


def test_a04_counts_modulo_k_are_distinct_for_about_1e16_over_k_steps():
    eps = published_row("r081")["value"]
    assert eps == 2.0**-53
    assert counting_limit(10**6, eps) > published_row("r080")["value"] == 1e10
    ratios = [counting_limit(k, eps) / (1e16 / k) for k in (2, 3, 5, 100, 10**6)]
    assert min(ratios) > 0.8
    assert max(ratios) < 1.27
    k = 20_000
    steps = int(counting_limit(k, 2.0**-24))  # in float32 the limit is small enough to count up to it
    assert 1000 < steps < 2000
    factor = torch.polar(torch.ones(1, steps, 1), torch.full((1, steps, 1), 2 * math.pi / k))
    states, _ = linear_scan(factor, torch.zeros_like(factor), torch.ones(1, 1, dtype=torch.complex64), backend="reference")
    assert torch.equal(nearest_root(states[0, :, 0].to(torch.complex128), k), torch.arange(1, steps + 1) % k)


def random_skew_matrix(size: int) -> Tensor:
    """Return a random skew-symmetric matrix (size, size)."""
    matrix = torch.randn(size, size, dtype=torch.float64)
    return matrix - matrix.T


@pytest.mark.parametrize("size", [2, 5, 16])
def test_a05_exponentials_of_skew_symmetric_matrices_keep_norms(size):
    rotation = torch.matrix_exp(0.3 * random_skew_matrix(size))
    torch.testing.assert_close(rotation.T @ rotation, torch.eye(size, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.linalg.eigvals(rotation).abs(), torch.ones(size).double(), rtol=0, atol=1e-12)
    x = torch.randn(size, 7, dtype=torch.float64)
    torch.testing.assert_close((rotation @ x).norm(dim=0), x.norm(dim=0), rtol=1e-12, atol=0)
    layer = AUSSM(size, d_state=4).double()
    start = torch.randn(1, size, 4, 2, dtype=torch.float64)
    state = layer.initial_state(1)._replace(ssm=start)
    with torch.no_grad():
        layer.dt_bias.fill_(-1e3)  # step sizes of 0: inputs do not change the state
        _, after = layer(torch.randn(1, 50, size, dtype=torch.float64), state, return_state=True)
    torch.testing.assert_close(after.ssm.norm(dim=-1), start.norm(dim=-1), rtol=1e-12, atol=0)
    assert (after.ssm - start).abs().max() > 0.1


def test_a06_eigenvalues_of_skew_symmetric_matrices_are_imaginary_and_continuous():
    at_zero, increment = random_skew_matrix(8), random_skew_matrix(8)
    grid = torch.linspace(-2, 2, 2001, dtype=torch.float64)
    matrices = at_zero + grid[:, None, None] * increment
    assert torch.linalg.eigvals(matrices).real.abs().max() < 1e-12
    angles = torch.linalg.eigvalsh(1j * matrices)
    differences = angles.diff(dim=0).abs().amax(1)
    assert (differences <= torch.linalg.matrix_norm(increment, 2) * grid.diff() * (1 + 1e-9)).all()  # Weyl's inequality
    assert (angles[-1] - angles[0]).abs().min() > 0.01
    layer = AUSSM(1, d_state=6).double()
    with torch.no_grad():
        angles_on_grid = layer.angles(grid.unsqueeze(1))[:, 0]
    assert (
        angles_on_grid.diff(dim=0).abs() <= layer.angle_proj.detach().abs().flatten() * grid.diff()[:, None] * (1 + 1e-9)
    ).all()


def test_a07_jacobian_of_the_state_is_orthogonal_for_aussm_and_decays_for_s6():
    for length in (1, 10, 100, 1000, 10_000):
        u, dt = torch.randn(1, length, 2, dtype=torch.float64), torch.rand(1, length, 2, dtype=torch.float64) * 0.1
        W, bias = torch.randn(2, 2, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)
        B = torch.randn(2, 2, dtype=torch.float64)

        def final_state_of_aussm(start, u=u, dt=dt, W=W, bias=bias, B=B):
            return unitary_scan(u, dt, W, bias, B, B, initial_state=start)[1].flatten()

        def final_state_of_s6(start, u=u, dt=dt, B=B):
            A = -torch.tensor([[1.0, 2.0], [1.0, 2.0]], dtype=torch.float64)
            coefficients = B[:1].expand(1, u.shape[1], 2)
            return selective_scan(u, dt, A, coefficients, coefficients, initial_state=start)[1].flatten()

        singular_values_of_aussm, singular_values_of_s6 = (
            torch.linalg.svdvals(torch.autograd.functional.jacobian(run, torch.randn(shape).double()).view(size, size))
            for run, shape, size in ((final_state_of_aussm, (1, 2, 2, 2), 8), (final_state_of_s6, (1, 2, 2), 4))
        )
        torch.testing.assert_close(singular_values_of_aussm, torch.ones(8, dtype=torch.float64), rtol=0, atol=1e-10)
        assert singular_values_of_s6.max() <= math.exp(-dt.sum(1).min().item()) * (1 + 1e-9)
    assert singular_values_of_s6.max() < 1e-100


@pytest.mark.parametrize("phase_dt", [False, True])
def test_a08_separable_form_equals_the_recurrence(phase_dt):
    length, width, states = 200, 3, 4
    arguments = [
        torch.randn(2, length, width), torch.rand(2, length, width), torch.randn(width, states, width),
        torch.randn(width, states), torch.randn(width, states, 2), torch.randn(width, states, 2),
    ]  # fmt: skip
    leaves = [x.double().requires_grad_() for x in arguments]
    u, dt, W, bias, B, C = leaves

    theta = torch.einsum("blp,dnp->bldn", u, W) + bias
    phase = torch.cumsum(theta * dt.unsqueeze(-1) if phase_dt else theta, 1)
    rotation, inverse_rotation = torch.polar(torch.ones_like(phase), phase), torch.polar(torch.ones_like(phase), -phase)
    inputs = (dt * silu(u)).unsqueeze(-1) * torch.view_as_complex(B)
    separable = (torch.view_as_complex(C) * rotation * torch.cumsum(inverse_rotation * inputs, 1)).real.sum(-1)

    sequential, _ = unitary_scan(u, dt, W, bias, B, C, phase_dt=phase_dt, backend="reference")
    torch.testing.assert_close(separable, sequential, rtol=1e-10, atol=1e-10)
    weight = torch.randn_like(separable)
    for one, other in zip(*(torch.autograd.grad((y * weight).sum(), leaves) for y in (separable, sequential)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a09_closed_form_equals_the_recurrence_only_with_corrected_bounds():
    length = 12
    theta, b = (x[:, 0] for x in random_rotations(length, 1))

    def closed_form(last: int, first: int) -> Tensor:
        """Return the sums over k = first ... t of e^{i (theta_{k+1} + ... + theta_{t + last})} b_k for t = 1 ... length."""
        return torch.stack([
            sum((torch.exp(1j * theta[k : t + last].sum()) * b[k - 1] for k in range(first, t + 1)), torch.zeros(()).to(b))
            for t in range(1, length + 1)
        ])  # fmt: skip

    expected = torch.stack(list(iterate_recurrence(torch.exp(1j * theta), b)))
    torch.testing.assert_close(closed_form(0, 1), expected, rtol=0, atol=1e-12)
    for last, first in ((-1, 2), (-1, 1), (0, 2)):  # as printed, and with one of the two bounds corrected
        assert (closed_form(last, first) - expected).abs().max() > 0.1


@pytest.mark.parametrize("constant", [False, True])
def test_a10_exponent_of_s6_is_the_sum_of_step_sizes(constant):
    length, A = 20, -0.7
    dt = torch.full((length,), 0.4).double() if constant else torch.rand(length).double() + 0.1
    u, one = torch.randn(length, dtype=torch.float64), torch.ones(1, length, 1, dtype=torch.float64)
    y, _ = selective_scan(u.view(1, -1, 1), dt.view(1, -1, 1), torch.full((1, 1), A, dtype=torch.float64), one, one)

    def kernel(position: Tensor) -> Tensor:
        """Return sum_{k <= t} e^{(position_t - position_k) A} dt_k u_k for all t."""
        return torch.exp((position[:, None] - position[None]) * A).tril() @ (dt * u)

    printed_form, listed_form = kernel(torch.arange(1, length + 1) * dt), kernel(dt.cumsum(0))
    torch.testing.assert_close(listed_form, y[0, :, 0], rtol=1e-12, atol=1e-12)
    assert (((printed_form - y[0, :, 0]).abs().max() > 0.1).item()) == (not constant)


def test_a11_separable_form_of_mamba_overflows_in_float32():
    length, decay = 2000, 1.6  # A = -16 and dt = 0.1, the fastest initial decay of Mamba's states
    layer = S6(4)
    assert layer.A_log.exp().max().item() == pytest.approx(16)
    u = torch.ones(1, length, 1)
    expected, _ = selective_scan(u, 0.1 * u, torch.full((1, 1), -16.0), u, u)
    assert expected.isfinite().all()
    exponent = -decay * torch.arange(1, length + 1, dtype=torch.float32)
    separable = exponent.exp() * torch.cumsum((-exponent).exp() * 0.1, 0)
    first = int((~separable.isfinite()).nonzero()[0]) + 1
    torch.testing.assert_close(separable[: first - 1], expected[0, : first - 1, 0], rtol=1e-5, atol=0)
    assert first == 56
    assert math.log(torch.finfo(torch.float32).max) == pytest.approx(88.7, abs=0.05)
    phase = torch.cumsum((torch.rand(100_000) * 2 - 1) * math.pi, 0)
    rotation = torch.polar(torch.ones_like(phase), phase)
    assert (rotation * torch.cumsum(rotation.conj(), 0)).abs().isfinite().all()


def test_a12_memory_of_the_separable_form_is_linear_in_the_length():
    def dense_form(length: int) -> object:
        theta, b = random_rotations(length, 1)
        phase = theta.cumsum(0)
        return torch.exp(1j * (phase - phase.T)).tril() @ b

    def separable_form(length: int) -> object:
        theta, b = random_rotations(length, 1)
        phase = theta.cumsum(0)
        return torch.exp(1j * phase) * torch.cumsum(torch.exp(-1j * phase) * b, 0)

    sizes = [256, 512, 1024]
    torch.manual_seed(0)
    expected = dense_form(256)
    torch.manual_seed(0)
    torch.testing.assert_close(expected, separable_form(256))
    counts = [
        [count_entries(lambda form=form, length=length: form(length)) for length in sizes]
        for form in (dense_form, separable_form)
    ]
    assert growth_exponents(sizes, [count.count for count in counts[0]]) == pytest.approx([2, 2], abs=0.05)
    assert growth_exponents(sizes, [count.count for count in counts[1]]) == pytest.approx([1, 1], abs=0.01)
    assert [count.largest for count in counts[1]] == sizes


def test_a13_recorded_separable_form_is_faster_than_a_loop_and_needs_more_memory():
    loop, separable = read_scaling("unitary_scan", None, "loop over the steps"), read_scaling("unitary_scan", None, "separable")
    assert len(loop) >= 5
    for length, (time, memory) in loop.items():
        assert separable[length][0] < time
        assert separable[length][1] > memory


def test_a14_outcome_follows_from_the_recorded_times_and_memory_of_the_kernel():
    comparisons = [comparison for form in kernel_wins_by_form().values() for comparison in form.values()]
    assert len(comparisons) > 20
    faster, smaller = (all(parts) for parts in zip(*comparisons, strict=True))
    _, memory = ratios_to_s6(FIGURE_2)
    assert smaller
    assert outcome_of("A14") == combine_parts(faster, smaller, round(memory, 1) == 1.0)


def test_a15_blocks_of_2048_steps_give_the_results_of_one_call():
    length, layer = 10_000, AUSSM(2, d_state=3).double()
    x = torch.randn(1, length, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(1, length, 2, dtype=torch.float64)
    expected = layer(x)
    pieces, state = [], None
    for part in x.split(2048, 1):
        y, state = layer(part, state, return_state=True)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), expected, rtol=1e-9, atol=1e-9)
    leaves = [x, *layer.parameters()]
    gradients = [torch.autograd.grad((y * weight).sum(), leaves) for y in (expected, torch.cat(pieces, 1))]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8 * one.abs().max().item())


def test_a17_logits_of_mamba_converge_on_a_word_of_ones():
    for seed in range(5):
        torch.manual_seed(seed)
        model = SequenceModel.from_spec("mm", d_model=8, vocab_size=2, d_output=2, pooling="none").double()
        with torch.no_grad():
            logits = model(torch.ones(1, 8000, dtype=torch.int64))[0]
        differences = logits.diff(dim=0).abs().amax(1)  # differences between even and odd numbers of ones
        assert differences[:10].max() > 1e-6
        assert differences[-100:].max() < 1e-6 * differences[:10].max()
    rotated = rotated_states(np.ones((1, 8000), dtype=np.int64), [0, 1], 2).real
    assert rotated.diff().abs().min() > 1.99


def test_a19_recorded_hybrids_reach_the_printed_scores_of_parity_and_cycle_navigation():
    for task, identity in (("parity", "r036"), ("cycle_navigation", "r035")):
        assert published_row(identity)["value"] == 1.0
        scores = [row["scaled"] for row in read_results("runs/quickstart.jsonl") if row["task"] == task and row["spec"] == "ma"]
        assert round(max(scores), 1) == 1.0, "the paper prints one digit after the point"


SOLVABLE = {
    "Z60": lambda: automata.from_maps({"a": tuple((i + 1) % 60 for i in range(60)), "b": tuple((i + 7) % 60 for i in range(60))}),
    **{name: automata.NAMED[name] for name in ("S3", "D4", "A4", "(ab)*", "S3 and resets")},
}


@pytest.mark.parametrize("name", SOLVABLE)
def test_a22_compiled_hybrids_of_solvable_languages_are_exact(name):
    dfa = SOLVABLE[name]()
    assert automata.analyse(dfa, 0).verdict != "non-solvable"
    compiled = automata.compile(dfa, layout="ma")
    assert set(compiled.spec) <= {"m", "a"}
    certificate = compiled.verify()
    assert certificate.is_certified
    assert certificate.safe_length is None  # exact at every length
    letters = random_words(len(dfa.alphabet), 20, 300)
    expected = np.isin(dfa.run(letters), list(dfa.accept))
    (logits, _), *_ = compiled.run(torch.from_numpy(letters))
    assert np.array_equal(logits.argmax(-1).numpy() == 1, expected)
    random_automata = [row for row in read_results("automata/random.jsonl") if row["solvable"]]
    assert len(random_automata) > 500
    assert {row["outcome"] for row in random_automata} == {"compiled", "limit"}
    assert all(row["certified"] and row["right"] for row in random_automata if row["outcome"] == "compiled")


def test_a23_groups_that_are_not_solvable_cannot_be_compiled():
    for name in ("A5", "S5"):
        group = PermutationGroup(5, GROUPS[name])
        core = group.perfect_core
        assert core.order == core.derived.order == 60
        with pytest.raises(automata.NonSolvableError):
            automata.compile(automata.word_problem(GROUPS[name]))
    assert PermutationGroup(4, GROUPS["S4"]).perfect_core.order == 1


@pytest.mark.parametrize("spec", ["m", "a", "ma"])
def test_a24_blocks_with_a_zero_output_projection_are_the_identity(spec):
    torch.manual_seed(1)
    padded = SequenceModel.from_spec(f"ma{spec}", d_model=6, d_state=4, vocab_size=5, d_output=3, pooling="none")
    plain = SequenceModel.from_spec("ma", d_model=6, d_state=4, vocab_size=5, d_output=3, pooling="none")
    for residual in padded.stack[2:]:
        assert isinstance(residual, Residual)
        torch.nn.init.zeros_(residual.block.out_proj.weight)
        x = torch.randn(2, 9, 6)
        assert torch.equal(residual(x), x)
    weights = padded.state_dict()
    plain.load_state_dict({name: weights[name] for name in plain.state_dict()})
    tokens = torch.randint(0, 5, (2, 9))
    assert torch.equal(padded(tokens), plain(tokens))
    assert not torch.equal(padded.stack[0](torch.ones(1, 3, 6)), torch.ones(1, 3, 6))


@pytest.mark.parametrize("letters", [2, 3, 5, 8])
def test_a25_one_state_encodes_the_last_but_one_symbol(letters):
    """The state is h_t = u_t + u_{t-1} / (2K) + u_{t-2} / (4K^2) + ..., with a second input that is always 1."""
    base = 2.0 * letters
    layer = S6(2, d_state=1, dt_rank=1)
    dt = math.log(base)
    with torch.no_grad():
        layer.dt_proj.zero_()
        layer.dt_bias.fill_(math.log(math.expm1(dt)))
        layer.A_log.zero_()
        layer.x_proj.copy_(torch.tensor([[0.0, 0.0], [0.0, 1 / dt], [0.0, 1.0]]))
        layer.D.zero_()
        symbols = torch.from_numpy(random_words(letters, 4, 2000)).float()
        h = layer(torch.stack([symbols, torch.ones_like(symbols)], -1))[..., 0]
    decoded = ((h - symbols) * base + 1e-3).floor()[:, 1:]
    assert h.dtype == torch.float32
    assert torch.equal(decoded, symbols[:, :-1])


def test_a26_alternating_blocks_compute_a_cascade_of_two_counters():
    """The group S3 is a cascade: a count modulo 2 decides the direction of a count modulo 3."""
    dfa = automata.word_problem(GROUPS["S3"])
    compiled = automata.compile(dfa, layout="am", minimise=False)
    assert compiled.size.counters == (2, 3)
    assert compiled.spec.count("am") >= 2
    letters = random_words(2, 100, 1000)
    assert np.array_equal(compiled.states(torch.from_numpy(letters)).numpy(), compiled.dfa.run(letters))


def test_a27_one_step_size_cannot_give_two_independent_decays():
    t = torch.arange(1, 41, dtype=torch.float64)
    target = torch.stack([t.square(), t], 1) / 40  # two decays f and g; if f = c g, the second singular value is 0
    left, sizes, right = torch.linalg.svd(target, full_matrices=False)
    assert sizes[1] > 0.5
    best = sizes[0] * left[:, :1] @ right[:1]  # the nearest product Delta_t A_j
    assert (best - target).abs().max() > 0.1
    u = torch.ones(1, 40, 2, dtype=torch.float64)
    decayed, _ = linear_scan(torch.exp(-target).unsqueeze(0), torch.zeros_like(u), torch.ones(1, 2).double())
    torch.testing.assert_close(decayed[0], torch.exp(-target.cumsum(0)), rtol=1e-12, atol=0)
    # With angles that depend on the input, each of two features rotates another state.
    features = target.unsqueeze(0)
    one = torch.ones(1, dtype=torch.complex128)
    W = torch.eye(2, dtype=torch.float64).unsqueeze(1)
    start = torch.ones(1, 2, 1, dtype=torch.complex128)
    rotated, _ = unitary_scan(features, zero_step_sizes(u), W, torch.zeros(2, 1).double(), one, one, initial_state=start)
    torch.testing.assert_close(rotated[0], torch.cos(target.cumsum(0)), rtol=0, atol=1e-12)
    # Rotations by whole turns are the identity: one large step size, with rates 1 and sqrt(2), approximates both angles.
    n_turns = torch.arange(200_000, dtype=torch.float64)
    step_sizes = target[:, :1] + 2 * math.pi * n_turns
    error = (step_sizes * math.sqrt(2) - target[:, 1:] + math.pi).remainder(2 * math.pi) - math.pi
    assert error.abs().amin(1).max() < 1e-3


def test_a28_each_class_of_recurrences_contains_the_one_before_strictly():
    length = 64
    impulse = torch.zeros(1, length, 1, dtype=torch.float64)
    impulse[0, 0] = 1
    dt, one = torch.ones_like(impulse), torch.ones(1, length, 1, dtype=torch.float64)

    def selective_states(rate: complex, dt: Tensor, u: Tensor) -> Tensor:
        """Return the states of S6 with one state, step sizes dt and inputs u / dt."""
        A = torch.full((1, 1), rate, dtype=torch.complex128)
        return selective_scan(u / dt, dt, A, one + 0j, one + 0j, paired=False)[0]

    def constant_states(rate: complex, u: Tensor) -> Tensor:
        return linear_scan(torch.exp(torch.full((1,), rate, dtype=torch.complex128)), u + 0j)[0].real

    u, steps = torch.randn(1, length, 1).double(), torch.rand(1, length, 1).double() + 0.1
    decay = torch.full((1,), math.exp(-0.1), dtype=torch.float64)
    torch.testing.assert_close(constant_states(-0.1 + 0j, u), linear_scan(decay, u)[0])
    torch.testing.assert_close(selective_states(-0.1 + 0.5j, dt, u), constant_states(-0.1 + 0.5j, u))
    torch.testing.assert_close(
        selective_states(-0.1 + 0.5j, steps, u), linear_scan(torch.exp(steps * (-0.1 + 0.5j)), u + 0j)[0].real
    )
    # A kernel of four real states changes its sign at most three times, that of one rotating state again and again.
    kernels = torch.exp(-torch.rand(500, length, 4).double().cumsum(1)[:, :1] * torch.arange(length)[None, :, None])
    mixed = (kernels * torch.randn(500, 1, 4).double()).sum(-1)
    changes = (mixed.sign().diff(dim=1).abs() > 1).sum(1)
    assert 0 < changes.max() <= 3
    assert (constant_states(0.5j, impulse).flatten().sign().diff() != 0).sum() > 9
    # Parity is not an affine function of the bits, and a state with constant factors is one.
    bits = torch.tensor(list(itertools.product([0.0, 1.0], repeat=6)), dtype=torch.float64)
    parity = (1 - 2 * bits).prod(1)
    affine = torch.cat([bits, torch.ones(64, 1).double()], 1)
    residual = parity - affine @ torch.linalg.lstsq(affine, parity.unsqueeze(1)).solution.squeeze(1)
    assert residual.square().mean() == pytest.approx(1)
    steps_of_bits, six = bits.unsqueeze(-1), torch.ones(64, 6, 1, dtype=torch.complex128)
    half_turns = torch.full((1, 1), 1j * math.pi, dtype=torch.complex128)
    start = torch.ones(64, 1, 1, dtype=torch.complex128)
    _, final_states = selective_scan(
        zero_step_sizes(steps_of_bits), steps_of_bits, half_turns, six, six, initial_state=start, paired=False
    )
    torch.testing.assert_close(final_states.real.flatten(), parity, rtol=0, atol=1e-12)
    # With a shared step size all angles of a step are multiples of one number, and those of AUSSM are not (A27).
    shared = torch.linalg.matrix_rank(steps[0] * torch.tensor([[1.0, 2.0, 5.0]]).double())
    assert shared == 1
    assert torch.linalg.matrix_rank(AUSSM(3, d_state=2).double().angles(torch.randn(20, 3).double())[:, 0]) == 2


def test_a29_counts_modulo_k_suffice_for_words_with_counts_below_k():
    k, dfa = 6, automata.dyck(5)
    letters = random_words(2, 3000, 10)
    heights = np.where(letters == 0, 1, -1).cumsum(1)
    is_below_k = (heights >= 0).all(1) & (heights.max(1) < k)
    assert is_below_k.sum() > 300
    decoded = nearest_root(rotated_states(letters[is_below_k], [1, k - 1], k), k)
    assert np.array_equal(decoded.numpy(), heights[is_below_k])
    balanced = np.isin(dfa.run(letters[is_below_k])[:, -1], list(dfa.accept))
    assert np.array_equal(decoded[:, -1].numpy() == 0, balanced)
    k_open_brackets = np.zeros((1, k), dtype=np.int64)
    assert nearest_root(rotated_states(k_open_brackets, [1, k - 1], k), k)[0, -1] == 0  # k open brackets give the state of none

    def sort_by_counts(word: np.ndarray, k: int) -> list[int]:
        counts = [
            int(nearest_root(rotated_states(word[None], [int(s == letter) for s in range(4)], k), k)[0, -1])
            for letter in range(4)
        ]
        return [letter for letter in range(4) for _ in range(counts[letter])]

    word = random_words(4, 1, 20)[0]
    largest_count = int(np.bincount(word).max())
    assert sort_by_counts(word, largest_count + 1) == sorted(word.tolist())
    assert sort_by_counts(word, largest_count) != sorted(word.tolist())


def test_a30_counting_needs_an_initial_state_other_than_zero():
    bits = random_words(2, 1, 50)
    parity = 1 - 2 * (torch.from_numpy(bits).cumsum(1) % 2)
    assert rotated_states(bits, [0, 1], 2, start=0.0).abs().max() == 0
    torch.testing.assert_close(rotated_states(bits, [0, 1], 2, start=1.0).real, parity.double(), rtol=0, atol=1e-12)
    # A first token can also write the initial state: its first feature is 1 and that of the others is 0.
    u = torch.zeros(1, 51, 2, dtype=torch.float64)
    u[0, 0, 0], u[0, 1:, 1] = 1, torch.from_numpy(bits[0]).double()
    dt = torch.zeros_like(u)
    dt[0, 0, 0] = 1
    W = torch.tensor([[[0.0, math.pi]], [[0.0, 0.0]]], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.complex128)
    y, _ = unitary_scan(u, dt, W, torch.zeros(2, 1).double(), one, one)
    torch.testing.assert_close(y[:, 1:, 0] / y[0, 0, 0], parity.double(), rtol=0, atol=1e-12)
    assert y[0, 0, 0] > 0.5


def test_a31_state_grows_linearly_with_a_resonant_input():
    length, omega = 8000, 0.3
    t = torch.arange(length, dtype=torch.float64)
    u = torch.cos(omega * t).view(1, -1, 1)
    one = torch.ones(1, dtype=torch.complex128)
    W, bias = torch.zeros(1, 1, 1).double(), torch.full((1, 1), omega, dtype=torch.float64)
    real, imaginary = (unitary_scan(u, torch.ones_like(u), W, bias, one, c * one)[0][0, :, 0] for c in (1, -1j))
    amplitude = torch.complex(real, imaginary).abs()
    growth = amplitude[[999, 1999, 3999, 7999]] / torch.tensor([1000, 2000, 4000, 8000])
    assert growth.min() > 0.1
    assert growth.max() / growth.min() < 1.02
    ones = torch.ones_like(u)
    bounded, _ = selective_scan(u, ones, -torch.ones(1, 1).double(), ones, ones)
    assert bounded.abs().max() <= 1 / (1 - math.exp(-1))


def test_a38_operations_of_both_separable_forms_are_linear_in_the_length():
    states, sizes = 4, [64, 128, 256]

    def mamba(length: int, width: int) -> object:
        u, dt = torch.randn(2, 1, length, width).unbind()
        B, C = torch.randn(2, 1, length, 1, states).unbind()
        exponent = torch.cumsum(dt.unsqueeze(-1) * -torch.rand(width, states), 1)
        return (exponent.exp() * torch.cumsum((-exponent).exp() * (dt * u).unsqueeze(-1) * B, 1) * C).sum(-1)

    def aussm(length: int, width: int) -> object:
        u, dt = torch.randn(2, 1, length, width).unbind()
        B, C = torch.randn(2, states, dtype=torch.complex64).unbind()
        exponent = torch.cumsum(torch.einsum("blp,dnp->bldn", u, torch.randn(width, states, width)), 1)
        rotation = torch.polar(torch.ones_like(exponent), exponent)
        return (rotation * torch.cumsum(rotation.conj() * (dt * u).unsqueeze(-1) * B, 1) * C).real.sum(-1)

    for form in (mamba, aussm):
        counts = [count_entries(lambda form=form, length=length: form(length, 8)).count for length in sizes]
        assert growth_exponents(sizes, counts) == pytest.approx([1, 1], abs=0.05)
    flops = []
    for width in (8, 16, 32):
        with FlopCounterMode(display=False) as flop_counter:
            aussm(64, width)
        flops.append(flop_counter.get_total_flops())
    # The map to the angles is quadratic in the width.
    assert flops == [2 * 64 * width**2 * states for width in (8, 16, 32)]


def evaluate(question: str, modulus: int) -> int:
    """Return the value of an expression modulo a number."""
    return eval(question.removesuffix("=")) % modulus


def solve(question: str, modulus: int) -> int:
    """Return x of an equation `x = expression`, modulo a number."""
    left, right = question.removesuffix(" ACT").split(" = ")
    assert left == "x"
    return eval(right) % modulus


MOVES = {"+1": 1, "-1": -1, "STAY": 0}
ANSWERS = {  # tasks of the released code, with functions from a question to its answer
    "parity": (Parity(suite="aussm"), lambda q: (q.split().count("1") + 1) % 2),
    "cycle": (CycleNavigation(suite="aussm", vocab_size=14), lambda q: sum(map(MOVES.get, q.split())) % 10),
    "without brackets": (ModularArithmetic(suite="aussm", vocab_size=14, precedence="standard"), partial(evaluate, modulus=9)),
    "brackets": (ModularArithmeticBrackets(suite="aussm", vocab_size=14), partial(evaluate, modulus=7)),
    "repetition": (Repetition(suite="aussm", vocab_size=14), lambda q: q.removesuffix(" ACT")),
    "sort": (BucketSort(suite="aussm", vocab_size=14), lambda q: " ".join(sorted(q.split()[:-1], key=int))),
    "set": (Set(suite="aussm", vocab_size=14), lambda q: " ".join(sorted(set(q.split()[:-1]), key=int))),
    "majority": (Majority(suite="aussm"), lambda q: min(set(q.split()), key=lambda s: (-q.split().count(s), int(s)))),
    "count": (MajorityCount(suite="aussm"), lambda q: max(map(q.split().count, q.split()))),
}
SAMPLES = {  # question and answer as printed
    "parity": ("1 1 0 1 1 1 1 1 1 1 0", "0"),
    "cycle": ("+1 STAY +1 -1 +1 -1 -1 -1 +1", "0"),
    "without brackets": ("0 * 2 - 6 - 7 - 0 =", "5"),
    "brackets": ("( ( 3 - 3 ) - 4 ) =", "3"),
    "repetition": ("3 5 0 7 3 ACT", "3 5 0 7 3"),
    "sort": ("3 5 0 7 3 ACT", "0 3 3 5 7"),
    "set": ("3 5 0 7 3 ACT", "0 3 5 7"),
    "majority": ("45 56 51 43 51 34 10 46 54 44 56", "51"),
    "count": ("45 56 51 43 51 34 10 46 54 44 56", "2"),
}


def test_a39_printed_samples_have_the_labels_of_the_tasks():
    for name, (task, answer) in ANSWERS.items():
        batch = task.batch("train", 0, 20)
        for row in range(20):  # the functions above agree with the released generator
            question, expected = task.describe(batch, row).split(" | ")
            assert str(answer(question)) == expected
        question, label = SAMPLES[name]
        assert str(answer(question)) == label, name
    equations = SolveEquation(suite="aussm", vocab_size=14)
    assert solve("x = ( 2 + 1 ) ACT", equations.num_classes) == 3
    tasks_with_12_tokens = (ModularArithmetic(suite="aussm"), ModularArithmeticBrackets(suite="aussm"))
    answers = [
        evaluate(SAMPLES[name][0], t.num_classes)
        for name, t in zip(("without brackets", "brackets"), tasks_with_12_tokens, strict=True)
    ]
    assert answers == [1, 1]  # with 12 tokens the answers differ from the printed 5 and 3


def test_compose_affine_maps_gives_the_prefixes_of_a_recurrence():
    items = [(0.5, 1.0), (2.0, 3.0), (-1.0, 4.0), (0.0, 5.0)]
    prefixes, _ = blelloch_scan(items, compose_affine_maps, (1.0, 0.0))
    assert [b for _, b in prefixes] == [1.0, 5.0, -1.0, 5.0]
