import copy

import pytest
import torch
from dense_systems import real_form, simulate

from longscan.layers import S4
from longscan.layers.base import SequenceInfo
from longscan.numerics.hippo import legs
from longscan.ops.arguments import step_flags


def dense_system(layer, channel):
    """Return the system of one channel as real matrices."""
    eigenvalues, low_rank, B = (torch.view_as_complex(x.detach())[channel] for x in layer.system(torch.float64))
    C = torch.view_as_complex(layer.C.detach())[channel : channel + 1]
    return real_form(eigenvalues, B.unsqueeze(1), C, low_rank)


@pytest.mark.parametrize("length", [2, 3, 64, 65, 301])
@pytest.mark.parametrize("has_elapsed", [False, True])
def test_outputs_equal_those_of_the_dense_system(length, has_elapsed):
    """The reference is scipy's bilinear discretisation and simulation of the system as one real matrix."""
    layer = S4(2, d_state=16, dt_min=0.01).double()
    u = torch.randn(1, length, 2, dtype=torch.float64)
    y = layer(u, elapsed=torch.full((1, length), 1.7, dtype=torch.float64) if has_elapsed else None)
    for channel in range(2):
        dt = layer.log_dt[channel].exp().item() * (1.7 if has_elapsed else 1)
        expected = simulate(dense_system(layer, channel), dt, "bilinear", u[0, :, channel : channel + 1])[:, 0]
        torch.testing.assert_close(y[0, :, channel], expected + layer.D[channel] * u[0, :, channel], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("length", [2, 3, 63, 64, 65, 300])
def test_convolution_equals_recurrence(length):
    """Outputs and final states agree for an initial state and rows that are padded left, right or entirely."""
    layer = S4(3, d_state=8, dt_max=0.5).double()
    u = torch.randn(4, length, 3, dtype=torch.float64)
    state = torch.randn(4, 3, 4, 2, dtype=torch.float64)
    steps = torch.arange(length)
    first, last = torch.tensor([[0], [length // 2], [0], [1]]), torch.tensor([[length], [length], [0], [length - 1]])
    for valid in (None, (steps >= first) & (steps < last)):
        y, final = layer.convolve(u, state, valid)
        masked = u if valid is None else torch.where(valid.unsqueeze(-1), u, 0)
        expected, expected_final = layer.recur(masked, state, SequenceInfo(valid=valid), step_flags(4, length, valid, None, u))
        mask = torch.ones(4, length, dtype=torch.bool) if valid is None else valid
        torch.testing.assert_close(y[mask], expected[mask], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(final, expected_final, rtol=1e-8, atol=1e-8)


def test_short_kernel_is_the_start_of_a_long_one():
    """The parameter C does not depend on the length. The gradients of the common part of the kernels agree, too."""
    layer = S4(2, d_state=8).double()
    long, short = layer.kernel(200), layer.kernel(33)
    torch.testing.assert_close(short, long[:, :33], rtol=1e-9, atol=1e-10)
    cotangent = torch.randn(2, 33, dtype=torch.float64)
    for grad, expected in zip(
        *(torch.autograd.grad((k * cotangent).sum(), [layer.A_log, layer.A_imag, layer.P, layer.B, layer.C, layer.log_dt])
          for k in (short, long[:, :33])), strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(grad, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("length", [2, 3, 64, 1001])
def test_float32_kernel_equals_that_of_float64(length):
    """It is computed with damping instead of the power of a matrix; the gradients agree, too."""
    layer = S4(3, d_state=32, dt_min=1e-4, dt_max=0.3)
    exact = copy.deepcopy(layer).double()
    kernel, expected = layer.kernel(length), exact.kernel(length)
    assert kernel.dtype == torch.float64
    size = expected.abs().amax(1, keepdim=True)
    assert ((kernel - expected).abs() / size).max() < 2e-7
    cotangent = torch.randn(3, length, dtype=torch.float64) / size.detach()
    grads, exact_grads = (
        torch.autograd.grad((k * cotangent).sum(), list(of.parameters())[:6]) for k, of in ((kernel, layer), (expected, exact))
    )
    for grad, exact_grad in zip(grads, exact_grads, strict=True):
        assert (grad - exact_grad).norm() < 1e-5 * exact_grad.norm()


def test_initial_system_is_hippo_legs():
    """The system has the eigenvalues -1, ..., -N of LegS and the same impulse response."""
    layer = S4(1, d_state=6).double()
    a, b, _ = (torch.from_numpy(part) for part in dense_system(layer, 0))
    eigenvalues = torch.linalg.eigvals(a)
    torch.testing.assert_close(eigenvalues.real.sort(descending=True).values, -torch.arange(1, 7).double(), rtol=1e-3, atol=0)
    a_legs, b_legs = legs(6)
    for t in (0.0, 0.3, 2.0):  # B^T e^{At} B does not depend on the basis; b has one state of each conjugate pair
        response = 2 * b[:, 0] @ torch.linalg.matrix_exp(a * t) @ b[:, 0]
        torch.testing.assert_close(response, b_legs @ torch.linalg.matrix_exp(a_legs * t) @ b_legs, rtol=1e-5, atol=1e-5)


def test_states_do_not_grow_for_any_parameters():
    """The diagonal has negative real parts and - P P* removes energy, so no eigenvalue of a step lies outside the unit circle."""
    layer = S4(4, d_state=8).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
        y, _ = layer(torch.ones(1, 1, 4, dtype=torch.float64), return_state=True)
        zeros = torch.zeros(1, 3000, 4, dtype=torch.float64)
        state = layer.initial_state(1)._replace(ssm=torch.randn(1, 4, 4, 2, dtype=torch.float64))
        _, after = layer(zeros, state, return_state=True)
    assert (after.ssm.square().sum((-1, -2)) <= state.ssm.square().sum((-1, -2))).all()
    assert y.isfinite().all()


def test_n_ssm_channels_share_a_system():
    layer = S4(6, d_state=8, n_ssm=2)
    assert sum(p.numel() for p in layer.parameters()) == 2 * 4 * 6 + 6 * 4 * 2 + 2 * 6
    assert sum(p.numel() for p in S4(6, d_state=8).parameters()) == 6 * 4 * 6 + 6 * 4 * 2 + 2 * 6
    with torch.no_grad():
        layer.P.normal_()
    _, low_rank, _ = layer.system(torch.float32)
    assert torch.equal(low_rank[[0, 2, 4]], layer.P[[0, 0, 0]])
    assert torch.equal(low_rank[[1, 3, 5]], layer.P[[1, 1, 1]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 3}, "`d_state` must .*got 3"),
        ({"n_ssm": 3}, "`n_ssm` must .*got 3"),
        ({"n_ssm": 0}, "`n_ssm` must .*got 0"),
        ({"dt_max": 1e-4}, "`dt_min` and `dt_max` must be"),
    ],
)
def test_invalid_setting_raises(options, message):
    with pytest.raises(ValueError, match=message):
        S4(4, **options)


def test_empty_batch_gives_empty_results():
    layer = S4(4, d_state=4)
    y, state = layer(torch.zeros(0, 9, 4), return_state=True)
    assert y.shape == (0, 9, 4)
    assert state.ssm.shape == (0, 4, 2, 2)


@torch.no_grad()
def test_export_refuses_a_dynamic_length():
    """The damping of the kernel, or the power of a matrix, depends on the length, so that a graph is for one length."""
    layer, example = S4(3, d_state=4), torch.randn(2, 8, 3)
    with pytest.raises(torch._dynamo.exc.UserError, match=r"marked L\['x'\]\.size\(\)\[1\] as dynamic but .* a constant \(8\)"):
        torch.export.export(layer, (example,), dynamic_shapes=({1: torch.export.Dim.DYNAMIC},))
    graph = torch.export.export(layer, (example,), dynamic_shapes=({1: torch.export.Dim.AUTO},)).module()
    torch.testing.assert_close(graph(example), layer(example))
    for length in (1, 7, 9, 16):
        with pytest.raises(AssertionError, match=r"Guard failed: x\.size\(\)\[1\] == 8"):
            graph(torch.randn(2, length, 3))
