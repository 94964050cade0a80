"""`unitary_scan` against the published recurrence, and the accuracy of phases over long sequences."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import silu, softplus

from longscan.ops import unitary_scan
from native import usable_backends

BACKENDS = usable_backends("unitary_scan")


def published_example():
    """Return inputs with two channels, two states and five steps, all of them formulas of the indices."""
    t, i = torch.arange(5, dtype=torch.float64)[:, None], torch.arange(2, dtype=torch.float64)
    u, dt, z = torch.sin(0.7 * t + 0.3 * i), 0.5 + 0.1 * t + 0.05 * i, torch.cos(0.4 * t - 0.2 * i)
    W = 0.3 * (i[:, None, None] + 1) - 0.2 * i[:, None] + 0.1 * i
    bias = 1 + 0.5 * i[:, None] - 0.25 * i
    B = torch.polar(softplus(0.2 - 0.1 * i), 0.3 + 0.4 * i)
    C = torch.polar(softplus(-0.1 + 0.2 * i), -0.5 + 0.3 * i)
    return u[None], dt[None], W, bias, B, C, torch.tensor([1, 0.5], dtype=torch.float64), z[None]


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_follow_the_published_recurrence(backend):
    """The expected numbers were computed in float64 from the recurrence of the code of the AUSSM paper, to seven digits."""
    y, final = unitary_scan(*published_example(), backend=backend)
    expected = [
        [0.0, 0.1261414],
        [0.4436495, 0.4292926],
        [0.5713468, 0.3186690],
        [0.1995767, 0.1002493],
        [-0.0001451, -0.0107892],
    ]
    torch.testing.assert_close(y[0], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=5e-8)
    states = [[-0.2148608 + 0.3006124j, -0.3385424 + 0.6113904j], [-0.1125313 + 0.0863291j, -0.1192945 - 0.0246524j]]
    torch.testing.assert_close(final[0], torch.tensor(states, dtype=torch.complex128), rtol=0, atol=5e-8 * math.sqrt(2))


@pytest.mark.parametrize("phase_dt", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_scan_equals_one_rotation_a_step(backend, phase_dt):
    """The expected states come from the recurrence itself, so they do not depend on how the backends sum phases."""
    u, dt, W, bias, B, C, D, z = published_example()
    h = torch.zeros(1, 2, 2, dtype=torch.complex128)
    outputs = []
    for t in range(5):
        angle = torch.einsum("bp,dnp->bdn", u[:, t], W) + bias
        angle = angle * dt[:, t, :, None] if phase_dt else angle
        h = torch.polar(torch.ones_like(angle), angle) * h + (dt[:, t] * silu(u[:, t]))[..., None] * B
        outputs.append(((C * h).real.sum(-1) + D * silu(u[:, t])) * silu(z[:, t]))
    y, final = unitary_scan(u, dt, W, bias, B, C, D, z, phase_dt=phase_dt, backend=backend)
    torch.testing.assert_close(y, torch.stack(outputs, 1), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(final, h, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
def test_adding_two_pi_to_angles_does_not_change_results(backend):
    u, dt, W, bias, *rest = published_example()
    y, final = unitary_scan(u, dt, W, bias, *rest, backend=backend)
    shifted, shifted_final = unitary_scan(u, dt, W, bias + 2 * math.pi, *rest, backend=backend)
    torch.testing.assert_close(y, shifted, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(final, shifted_final, rtol=1e-12, atol=1e-13)


QUICK = [(name, 65_536 if name != "reference" else 8_192) for name in BACKENDS]  # the reference is a loop in Python


@pytest.mark.parametrize(
    ("backend", "steps"), [*QUICK, *(pytest.param(name, 1_000_000, marks=pytest.mark.slow) for name in BACKENDS)]
)
@pytest.mark.timeout(1200)
def test_phase_and_modulus_of_states_stay_accurate(backend, steps):
    """Rotate states without input by constant angles 2 pi / k, k = 2..97, and by random ones, in float32.

    The modulus of the state errs by at most 1e-4, its phase by at most 4 times the error of a float32 sum of angles modulo 2 pi.
    """
    generator = torch.Generator().manual_seed(0)
    exact = torch.cat([2 * math.pi / torch.arange(2, 98), (2 * torch.rand(32, generator=generator) - 1) * math.pi])
    angles = exact.to(torch.float32)
    states = len(angles)
    start = torch.randn(states, generator=generator, dtype=torch.complex64)
    u = torch.zeros(1, steps, 1)
    one = torch.ones(states, dtype=torch.complex64)
    _, final = unitary_scan(
        u, u, torch.zeros(1, states, 1), angles[None], one, one, initial_state=start[None, None], backend=backend
    )
    plain, step, turn = np.zeros(states, np.float32), angles.numpy(), np.float32(2 * math.pi)
    for _ in range(steps):
        plain = np.remainder(plain + step, turn)
    truth = angles.double() * steps
    rotations = final[0, 0].to(torch.complex128) / start.to(torch.complex128)
    assert (rotations.abs() - 1).abs().max() < 1e-4
    error = (rotations * torch.polar(torch.ones(states, dtype=torch.float64), -truth)).angle().abs()
    wrapped = torch.from_numpy(plain).double() - truth
    plain_error = (wrapped - 2 * math.pi * (wrapped / (2 * math.pi)).round()).abs()
    for group in (slice(0, 96), slice(96, states)):
        assert error[group].max() <= 4 * plain_error[group].max()
        assert error[group].square().mean() <= 16 * plain_error[group].square().mean()


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "reference"])
def test_error_over_long_sequences_is_at_most_twice_that_of_a_loop(backend):
    """The loop in float32 multiplies by e^{i theta} in each of 4,096 steps of random input."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"u": (1, 4096, 2), "dt": (1, 4096, 2), "W": (2, 3, 2), "bias": (2, 3), "B": (2, 3, 2), "C": (2, 3, 2)}
    inputs = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    inputs["dt"] = inputs["dt"].abs()
    y, final = unitary_scan(*inputs.values(), backend=backend)
    u, dt, W, bias, B, C = inputs.values()
    state, outputs = torch.zeros(1, 2, 3, dtype=torch.complex64), []
    for t in range(u.shape[1]):
        angle = torch.einsum("bp,dnp->bdn", u[:, t], W) + bias
        driven = (dt[:, t] * torch.nn.functional.silu(u[:, t])).unsqueeze(-1) * torch.view_as_complex(B)
        state = torch.polar(torch.ones_like(angle), angle) * state + driven
        outputs.append((torch.view_as_complex(C) * state).real.sum(-1))
    plain_y, plain_final = torch.stack(outputs, 1), torch.view_as_real(state)
    true_y, true_final = unitary_scan(*(x.double() for x in inputs.values()), backend="eager")
    assert (y - true_y).abs().max() <= 2 * (plain_y - true_y).abs().max()
    assert (final - true_final).abs().max() <= 2 * (plain_final - true_final).abs().max()


def grid_example() -> dict[str, torch.Tensor]:
    """Return random arguments for a scan with a phase grid: four channels, three states and 40 steps."""
    sizes: dict[str, tuple[int, ...]] = dict.fromkeys(("u", "dt", "z"), (2, 40, 4))
    sizes |= {"W": (4, 3, 4), "bias": (4, 3), "B": (3, 2), "C": (3, 2), "D": (4,)}
    return {name: torch.randn(size) for name, size in sizes.items()}


def test_phase_grid_computes_in_float32_for_half_precision():
    """The results are those of float32 for the same rounded inputs: counts in bfloat16 would be wrong."""
    half = {name: x.bfloat16() for name, x in grid_example().items()}
    y, (ssm, phase) = unitary_scan(**half, phase_grid=7)
    wide_y, (wide_ssm, wide_phase) = unitary_scan(**{name: x.float() for name, x in half.items()}, phase_grid=7)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, wide_y.bfloat16())
    assert ssm.dtype == torch.float32
    assert torch.equal(ssm, wide_ssm)
    assert torch.equal(phase, wide_phase)


def test_phase_grid_computes_in_float64_where_an_input_is():
    given = grid_example()
    mixed, wide = given | {"W": given["W"].double()}, {name: x.double() for name, x in given.items()}
    y, (ssm, _) = unitary_scan(**mixed, phase_grid=7)
    wide_y, (wide_ssm, _) = unitary_scan(**wide, phase_grid=7)
    assert torch.equal(y, wide_y.float())
    assert torch.equal(ssm, wide_ssm)


def test_phase_grid_hides_padding_from_gradients():
    given, valid = grid_example(), torch.ones(2, 40, dtype=torch.bool)
    valid[0, 30:] = False
    hidden = given | {name: given[name].masked_fill(~valid.unsqueeze(-1), math.nan) for name in ("u", "dt", "z")}
    gradients = []
    for tensors in (given, hidden):
        leaves = {name: x.clone().requires_grad_() for name, x in tensors.items()}
        y, (ssm, _) = unitary_scan(**leaves, phase_grid=7, valid=valid)
        (y.sum() + ssm.square().sum()).backward()
        gradients.append([x.grad for x in leaves.values()])
    for plain, other in zip(*gradients, strict=True):
        assert torch.equal(plain, other)


def test_gradients_with_a_phase_grid_without_steps_are_zeros():
    given = {name: x[:, :0] if name in ("u", "dt", "z") else x for name, x in grid_example().items()}
    leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
    y, (ssm, _) = unitary_scan(**leaves, phase_grid=7)
    for result in (y, ssm):
        for grad in torch.autograd.grad(result, list(leaves.values()), torch.ones_like(result), retain_graph=True):
            assert not grad.count_nonzero()


def test_phase_that_is_not_int64_raises():
    state = torch.zeros(2, 4, 3, 2), torch.zeros(2, 4, 3)
    with pytest.raises(TypeError, match=r"`initial_state\[1\]` must be of dtype torch.int64, got torch.float32"):
        unitary_scan(**grid_example(), initial_state=state, phase_grid=7)
