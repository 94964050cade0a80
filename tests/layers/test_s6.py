import pytest
import torch
from torch.nn.functional import silu, softplus

from longscan.layers import S6


def apply_equations(layer: S6, x: torch.Tensor) -> torch.Tensor:
    """Apply the equations at the top of the layer's file step by step, in complex numbers if the state is complex."""
    dt, B, C = layer.select(x)
    dt = softplus(dt + (2 if layer.dt_bias_twice else 1) * layer.dt_bias)
    u = silu(x) if layer.activates_input else x
    A = layer.eigenvalues()
    if layer.complex_state:
        A, B, C = (torch.view_as_complex(part.contiguous()) for part in (A, B, C))
    h, outputs = torch.zeros(len(x), *A.shape[:2], dtype=A.dtype), []
    for t in range(x.shape[1]):
        step = dt[:, t].unsqueeze(-1)
        held = ((step * A).exp() - 1) / A if layer.discretisation == "zoh" else step
        h = (step * A).exp() * h + held * B[:, t].unsqueeze(1) * u[:, t].unsqueeze(-1)
        y = (h * C[:, t].unsqueeze(1)).sum(-1)
        outputs.append((2 * y.real if layer.complex_state else y) + layer.D * u[:, t])
    return torch.stack(outputs, 1)


FORMS = [{}, {"activates_input": True, "dt_bias_twice": True}, {"complex_state": True}]
FORMS += [{**form, "discretisation": "zoh"} for form in (*FORMS, {"complex_state": "A"})]


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_outputs_follow_the_equations(options):
    layer = S6(3, d_state=4, **options).double()
    x = torch.randn(2, 12, 3, dtype=torch.float64)
    torch.testing.assert_close(layer(x), apply_equations(layer, x))


@pytest.mark.parametrize("length", [0, 1])
def test_complex_state_accepts_sequences_of_at_most_one_step(length):
    """The slice of a projection for one step is contiguous, but its odd storage offset does not allow a view as complex."""
    layer = S6(3, d_state=4, complex_state=True, backend="reference").double()
    x = torch.randn(1, length, 3, dtype=torch.float64)
    assert layer(x).shape == x.shape


def test_initial_values_are_those_of_the_official_code():
    layer = S6(512, d_state=16)
    dt = softplus(layer.dt_bias)
    assert 0.99e-3 < dt.min() < 1.1e-3
    assert 0.09 < dt.max() < 0.1001
    torch.testing.assert_close(layer.eigenvalues(), -torch.arange(1.0, 17).expand(512, 16))
    assert layer.dt_proj.shape == (512, 32)
    assert layer.dt_proj.abs().max() <= 32**-0.5
    assert torch.equal(layer.D, torch.ones(512))


def test_linear_dt_init_gives_steps_near_softplus_of_zero():
    layer = S6(64, d_state=16, dt_init="linear", dt_bias_twice=True)
    assert layer.dt_bias.abs().max() <= layer.dt_rank**-0.5
    assert layer.dt_bias.mean().abs() < 0.1
    standard = S6(64, d_state=16)
    assert softplus(2 * layer.dt_bias).mean() > 5 * softplus(standard.dt_bias).mean()


def test_initial_complex_eigenvalues_are_those_of_s4d_lin():
    A = S6(2, d_state=3, complex_state=True).eigenvalues()
    torch.testing.assert_close(A[0, :, 0], torch.full((3,), -0.5))
    torch.testing.assert_close(A[1, :, 1], torch.pi * torch.arange(3.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 0}, "`d_state` must .*got 0"),
        ({"dt_rank": -1}, "`dt_rank` must .*got -1"),
        ({"dt_init": "zero"}, "`dt_init` must .*got 'zero'"),
        ({"dt_min": 0.5}, "`dt_min` and `dt_max` must be .*, got 0.5 and 0.1"),
    ],
)
def test_invalid_setting_raises(options, message):
    with pytest.raises(ValueError, match=message):
        S6(4, **options)


@pytest.mark.parametrize(("d_model", "rank"), [(1, 1), (16, 1), (17, 2), (32, 2), (33, 3), (160, 10)])
def test_default_dt_rank_is_d_model_over_16_rounded_up(d_model, rank):
    assert S6(d_model, d_state=2).dt_proj.shape == (d_model, rank)
