import math

import pytest
import torch

from longscan.layers import S7
from longscan.layers.parameters import parameter_options
from longscan.numerics.stability import stable_factor


@pytest.mark.parametrize("reparam", [(1.0, 0.5), (0.5, 1.0), None, "exponential"])
@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("selects", ["ABCD", "", "AC"])
def test_outputs_follow_the_equations(reparam, continuous, rank, selects):
    """The equations are x_k = a_k x_{k-1} + B_k u_k + beta and y_k = C_k x_k + D_k u_k, with full matrices in each step."""
    layer = S7(3, d_state=4, reparam=reparam, continuous=continuous, rank=rank, selects=tuple(selects)).double()
    with torch.no_grad():
        layer.bias.normal_()
    u, elapsed = torch.randn(9, 3, dtype=torch.float64), 3 * torch.rand(9, dtype=torch.float64)

    def bilinear_tensor(part):  # axes: output, the vector to which the map is applied, the input that selects the map
        if part is None:
            return 0
        if rank is None:
            return part.factors[0]
        return torch.einsum("or,ri,rj->oij", *part.factors)

    x, outputs = torch.zeros(4, dtype=torch.float64), []
    for k in range(9):
        w = layer.w if layer.select_w is None else layer.w + layer.select_w @ u[k]
        B, C = layer.B + bilinear_tensor(layer.select_B) @ u[k] if "B" in selects else layer.B, layer.C
        C = C + bilinear_tensor(layer.select_C) @ u[k] if "C" in selects else C
        D = layer.D + layer.select_D @ u[k] if "D" in selects else layer.D
        if reparam == "exponential":
            a = torch.exp(-torch.log1p(w.exp()) * elapsed[k])
        else:
            a = w if reparam is None else 1 - 1 / (reparam[0] * w**2 + reparam[1])
            a = torch.exp((a - 1) * elapsed[k]) if continuous else a
        x = a * x + B @ u[k] + layer.bias
        outputs.append(C @ x + D * u[k])
    y = layer(u.unsqueeze(0), elapsed=elapsed.unsqueeze(0) if layer.irregular else None)
    torch.testing.assert_close(y[0], torch.stack(outputs))


def test_gradient_is_bounded_by_the_derivative_of_the_reparametrisation():
    """|dL/dw| <= C |f'(w)| for every w, where C depends on the length and the inputs only, because |a| <= 1."""
    length = 40
    w = torch.cat([torch.linspace(-3, 3, 60), torch.zeros(1), torch.logspace(0.5, 4, 60)]).double()
    layer = S7(1, d_state=len(w), selects=()).double()
    with torch.no_grad():
        layer.w.copy_(w)
        layer.B.fill_(1.0)
        layer.C.fill_(1.0)
    u = torch.randn(1, length, 1, dtype=torch.float64)
    cotangent = torch.randn(length, dtype=torch.float64)
    (layer(u)[0, :, 0] * cotangent).sum().backward()
    derivative = (2 * w / (w.square() + 0.5).square()).abs()
    largest, steps = u.abs().max() * cotangent.abs().max(), torch.arange(length)
    bound = largest * (steps * (length - steps)).sum()  # |x_{k-1}| <= k max|u|, and L - k later outputs see a_k
    gradient = layer.w.grad.abs()
    assert (gradient <= bound * derivative).all()
    assert gradient[w == 0] == 0
    assert gradient[-1] < 1e-8  # w = 10^4 gives the factor 1 - 10^-8, whose own gradient has the order of 100
    free = S7(1, d_state=1, selects=(), reparam=None).double()
    with torch.no_grad():
        free.w.fill_(stable_factor(w[-1]).item())
        free.B.fill_(1.0)
        free.C.fill_(1.0)
    (free(u)[0, :, 0] * cotangent).sum().backward()
    assert free.w.grad.abs() > 1


@pytest.mark.parametrize("reparam", [(1.0, 0.5), (0.5, 0.5), (1.0, 1.0), None, "exponential"])
@pytest.mark.parametrize("continuous", [False, True])
def test_initial_factors_are_near_one_and_have_a_gradient(reparam, continuous):
    """1 - a_k lies between dt_min and dt_max; w is far from 0, where f' = 0; states of white noise have unit variance."""
    layer = S7(4, d_state=40, reparam=reparam, continuous=continuous, selects=(), dt_min=0.01, dt_max=0.2)
    with torch.no_grad():
        a = layer.factors(torch.zeros(1, 1, 4))
        decay = -a.log() if layer.irregular else 1 - a
        assert decay.min() >= 0.01 * (1 - 1e-3)
        assert decay.max() <= 0.2 * (1 + 1e-3)
        if isinstance(reparam, tuple):
            assert layer.w.min() > 1
        _, state = layer(torch.randn(1000, 500, 4), return_state=True)
    variance = state.ssm.square().mean(0)
    torch.testing.assert_close(variance, layer.B.detach().square().sum(1) / (1 - a**2), rtol=0.25, atol=0)
    assert variance.mean().item() == pytest.approx(1, rel=0.25)


def test_initial_factors_without_reparametrisation_are_below_one():
    torch.manual_seed(0)
    layer = S7(60, d_state=24, reparam=None, blocks=12)
    x = torch.nn.functional.layer_norm(torch.randn(8, 50, 60), (60,))
    assert layer.factors(x).max() < 1


@pytest.mark.parametrize("reparam", [(1.0, 0.5), (1.0, 1.0), None, "exponential"])
@pytest.mark.parametrize("continuous", [False, True])
def test_blocks_have_the_real_eigenvalues_of_hippo(reparam, continuous):
    """The value of f, or 1 + log a if exponential, is e^{-n dt} for state n of a block with dt_min <= dt <= dt_max."""
    layer = S7(2, d_state=60, blocks=15, reparam=reparam, continuous=continuous, selects=(), dt_min=0.02, dt_max=0.1).double()
    a = layer.factors(torch.zeros(1, 1, 2).double()).detach().view(15, 4)
    dt = -(1 + a.log() if layer.irregular else a).log() / torch.arange(1.0, 5.0).double()
    assert dt.min() >= 0.02 * (1 - 1e-3)
    assert dt.max() <= 0.1 * (1 + 1e-3)
    assert (dt < 0.04).any(0).all()
    assert (dt > 0.05).any(0).all()


def test_roles_and_decay_of_the_parameters():
    """The recurrence and B are "ssm" without decay, the input-dependent parts "selector", C and D "dense"."""
    groups = {}
    for name, parameter in S7(3, d_state=2).named_parameters():
        options = parameter_options(parameter)
        groups.setdefault((options.role, options.decay, options.lr_scale), set()).add(name.split(".")[0])
    assert groups == {
        ("ssm", False, 1.0): {"w", "bias", "B"},
        ("selector", True, 1.0): {"select_w", "select_B", "select_C", "select_D"},
        ("dense", True, 1.0): {"C", "D"},
    }


@pytest.mark.parametrize("reparam", [(1.0, 0.5), "exponential"])
def test_exponential_factors_lie_between_zero_and_one(reparam):
    layer = S7(4, d_state=6, reparam=reparam, continuous=True)
    factors = layer.factors(1e4 * torch.randn(1, 1000, 4), 100 * torch.rand(1, 1000))
    assert factors.min() >= 0
    assert factors.max() <= 1


def test_factors_stay_below_one_for_large_inputs():
    layer = S7(4, d_state=6)
    factors = layer.factors(1e4 * torch.randn(1, 1000, 4))
    assert factors.min() >= -1
    assert factors.max() <= 1
    assert layer(100 * torch.randn(1, 2000, 4)).isfinite().all()


@pytest.mark.parametrize("d", [16, 5])
def test_number_of_parameters(d):
    """Full maps have P D^2 parameters each for B and C, maps of rank R (P + 2 D) R."""

    def count(layer):
        return sum(p.numel() for p in layer.parameters())

    p, r = 14, 3
    fixed = 2 * p + 2 * p * d + d
    assert count(S7(d, d_state=p, selects=())) == fixed
    assert count(S7(d, d_state=p)) == fixed + 2 * p * d * d + p * d + d * d
    assert count(S7(d, d_state=p, rank=r)) == fixed + 2 * r * (p + 2 * d) + p * d + d * d


def test_elapsed_time_without_exponential_reparam_raises():
    x, elapsed = torch.randn(1, 5, 4), torch.rand(1, 5)
    with pytest.raises(ValueError, match="`elapsed` must be None, as S7 takes no elapsed times"):
        S7(4)(x, elapsed=elapsed)
    for options in ({"reparam": "exponential"}, {"continuous": True}, {"continuous": True, "reparam": None}):
        assert S7(4, **options)(x, elapsed=elapsed).isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 0}, "`d_state` must .*got 0"),
        ({"rank": 0}, "`rank` must .*got 0"),
        ({"selects": ("A", "E")}, r"`selects` must .*got \('A', 'E'\)"),
        ({"reparam": "tanh"}, "`reparam` must .*got 'tanh'"),
        ({"reparam": (1.0, 0.4)}, r"`reparam\[1\]` must .*got 0\.4"),
        ({"reparam": (0.0, 0.5)}, r"`reparam\[0\]` must .*got 0\.0"),
        ({"reparam": (1.0, 3.0), "dt_max": 0.5}, r"`reparam` must .*got \(1\.0, 3\.0\)"),
        ({"reparam": (1.0, 2.5), "blocks": 1}, r"`reparam` must .*got \(1\.0, 2\.5\)"),
        ({"blocks": 3}, r"`blocks` must divide d_state \(16\), got 3"),
        ({"dt_max": 1.0}, r"`dt_max` must .*got 1\.0"),
        ({"dt_min": 0.0}, "`dt_min` must .*got 0.0"),
    ],
)
def test_invalid_setting_raises(options, message):
    with pytest.raises(ValueError, match=message):
        S7(4, **options)


@pytest.mark.parametrize("blocks", [None, 2])
def test_b_must_be_below_the_inverse_of_the_largest_distance(blocks):
    """The largest distance from 1 is dt_max, or with blocks 1 - exp(-n dt_max) of the n = 4 eigenvalues of a block."""
    largest = 0.09 if blocks is None else 1 - math.exp(-4 * 0.09)
    S7(3, d_state=8, blocks=blocks, dt_max=0.09, reparam=(1.0, 0.999 / largest))
    with pytest.raises(ValueError, match=f"`reparam` must have b below {1 / largest:g}, which dt_max allows"):
        S7(3, d_state=8, blocks=blocks, dt_max=0.09, reparam=(1.0, 1.001 / largest))
