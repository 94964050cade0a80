import pytest
import torch
from dense_systems import real_form, simulate

from longscan.layers import S4
from longscan.layers.base import SequenceInfo
from longscan.numerics.hippo import legs


def dense(layer, channel):
    """The system of one channel as real matrices."""
    eigenvalues, low_rank, B = (torch.view_as_complex(x.detach())[channel] for x in layer.system(torch.float64))
    C = torch.view_as_complex(layer.C.detach())[channel : channel + 1]
    return real_form(eigenvalues, B.unsqueeze(1), C, low_rank)


@pytest.mark.parametrize("length", [2, 3, 64, 65, 301])
@pytest.mark.parametrize("timed", [False, True])
def test_outputs_of_the_dense_system(length, timed):
    """Kernel and recurrence against scipy's bilinear sampling and simulation of the same system as one real matrix."""
    layer = S4(2, d_state=16, dt_min=0.01).double()
    u = torch.randn(1, length, 2, dtype=torch.float64)
    y = layer(u, elapsed=torch.full((1, length), 1.7, dtype=torch.float64) if timed else None)
    for channel in range(2):
        dt = layer.log_dt[channel].exp().item() * (1.7 if timed else 1)
        expected = simulate(dense(layer, channel), dt, "bilinear", u[0, :, channel : channel + 1])[:, 0]
        torch.testing.assert_close(y[0, :, channel], expected + layer.D[channel] * u[0, :, channel], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("length", [2, 3, 63, 64, 65, 300])
def test_convolution_equals_recurrence(length):
    """With a carried state, and rows padded left, right or wholly: outputs and final states."""
    layer = S4(3, d_state=8, dt_max=0.5).double()
    u = torch.randn(4, length, 3, dtype=torch.float64)
    state = torch.randn(4, 3, 4, 2, dtype=torch.float64)
    steps = torch.arange(length)
    first, last = torch.tensor([[0], [length // 2], [0], [1]]), torch.tensor([[length], [length], [0], [length - 1]])
    for valid in (None, (steps >= first) & (steps < last)):
        y, final = layer.convolve(u, state, valid)
        clean = u if valid is None else torch.where(valid.unsqueeze(-1), u, 0)
        y_slow, final_slow = layer.recur(clean, state, SequenceInfo(valid=valid))
        shown = torch.ones(4, length, dtype=torch.bool) if valid is None else valid
        torch.testing.assert_close(y[shown], y_slow[shown], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(final, final_slow, rtol=1e-8, atol=1e-8)


def test_kernels_of_any_length_are_pieces_of_one():
    """C is stored, and what depends on the length is put in at run time; gradients of a kernel do not depend on it either."""
    layer = S4(2, d_state=8).double()
    long, short = layer.kernel(200), layer.kernel(33)
    torch.testing.assert_close(short, long[:, :33], rtol=1e-9, atol=1e-10)
    weight = torch.randn(2, 33, dtype=torch.float64)
    for one, other in zip(
        *(torch.autograd.grad((k * weight).sum(), [layer.A_log, layer.A_imag, layer.P, layer.B, layer.C, layer.log_dt])
          for k in (short, long[:, :33])), strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-8)


def test_the_start_is_hippo():
    """The eigenvalues of LegS are -1, ..., -N, and its response to an impulse is that of the layer's system."""
    layer = S4(1, d_state=6).double()
    a, b, _ = (torch.from_numpy(part) for part in dense(layer, 0))
    found = torch.linalg.eigvals(a)
    torch.testing.assert_close(found.real.sort(descending=True).values, -torch.arange(1, 7).double(), rtol=1e-3, atol=0)
    a_legs, b_legs = legs(6)
    for t in (0.0, 0.3, 2.0):  # B^T e^{At} B does not depend on the basis; b holds halves of pairs
        response = 2 * b[:, 0] @ torch.linalg.matrix_exp(a * t) @ b[:, 0]
        torch.testing.assert_close(response, b_legs @ torch.linalg.matrix_exp(a_legs * t) @ b_legs, rtol=1e-5, atol=1e-5)


def test_no_parameter_makes_it_unstable():
    """The diagonal has negative real parts and - P P* takes energy away: no eigenvalue of a step lies outside the circle."""
    layer = S4(4, d_state=8).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
        y, _ = layer(torch.ones(1, 1, 4, dtype=torch.float64), return_state=True)
        quiet = torch.zeros(1, 3000, 4, dtype=torch.float64)
        state = layer.initial_state(1)._replace(ssm=torch.randn(1, 4, 4, 2, dtype=torch.float64))
        _, after = layer(quiet, state, return_state=True)
    assert (after.ssm.square().sum((-1, -2)) <= state.ssm.square().sum((-1, -2))).all()
    assert y.isfinite().all()


def test_channels_may_share_their_systems():
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
def test_impossible_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        S4(4, **options)


def test_no_sequence_at_all():
    layer = S4(4, d_state=4)
    y, state = layer(torch.zeros(0, 9, 4), return_state=True)
    assert y.shape == (0, 9, 4)
    assert state.ssm.shape == (0, 4, 2, 2)
