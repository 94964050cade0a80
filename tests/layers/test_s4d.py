import pytest
import torch
from dense_systems import real_form, simulate
from s4d_checks import assert_convolution_equals_recurrence

from longscan.layers import S4, S4D, parameter_options
from longscan.layers.base import SequenceInfo
from longscan.ops.arguments import step_flags

VARIANTS = pytest.mark.parametrize(
    "options",
    [{"init": init, "discretisation": rule} for init in ("lin", "inv", "legs", "real") for rule in ("zoh", "bilinear")],
    ids=str,
)


@VARIANTS
@pytest.mark.parametrize("length", [2, 3, 63, 64, 65, 500])
def test_convolution_equals_recurrence(options, length):
    """Outputs and final states agree for an initial state and rows that are padded left, right or entirely."""
    assert_convolution_equals_recurrence(S4D(3, d_state=8, dt_max=0.5, **options).double(), length)


def test_outputs_follow_the_equations_of_the_default_variant():
    """The kernel of the paper is K_l = 2 Re sum_n C_n (e^{dt A_n} - 1) / A_n e^{l dt A_n}; D adds the input."""
    layer = S4D(2, d_state=6).double()
    A, C = torch.view_as_complex(layer.eigenvalues()), torch.view_as_complex(layer.C.detach())
    dt = layer.log_dt.exp().unsqueeze(-1)
    lags = torch.arange(20, dtype=torch.float64)
    kernel = 2 * (((C * ((dt * A).exp() - 1) / A).unsqueeze(-1)) * (lags * (dt * A).unsqueeze(-1)).exp()).real.sum(1)
    u = torch.randn(1, 20, 2, dtype=torch.float64)
    y = torch.stack([(kernel[:, : t + 1].flip(1).T * u[0, : t + 1]).sum(0) for t in range(20)])
    torch.testing.assert_close(layer(u)[0], y + layer.D * u[0])


@VARIANTS
@pytest.mark.parametrize("has_elapsed", [False, True])
def test_outputs_equal_those_of_the_dense_system(options, has_elapsed):
    """The reference is scipy's discretisation and simulation of the system as one real matrix."""
    layer = S4D(2, d_state=8, dt_min=0.01, **options).double()
    u = torch.randn(1, 60, 2, dtype=torch.float64)
    y = layer(u, elapsed=torch.full((1, 60), 1.7, dtype=torch.float64) if has_elapsed else None)
    eigenvalues, C = torch.view_as_complex(layer.eigenvalues()), torch.view_as_complex(layer.C.detach())
    for channel in range(2):
        dt = layer.log_dt[channel].exp().item() * (1.7 if has_elapsed else 1)
        ones = torch.ones(4, 1, dtype=torch.complex128)
        system = real_form(eigenvalues[channel], ones, C[channel : channel + 1])
        expected = simulate(system, dt, options["discretisation"], u[0, :, channel : channel + 1])[:, 0]
        torch.testing.assert_close(y[0, :, channel], expected + layer.D[channel] * u[0, :, channel], rtol=1e-9, atol=1e-10)


def test_two_half_steps_of_a_constant_input_equal_one_step():
    """Zero-order hold is exact for inputs that are constant over a step."""
    layer = S4D(2, d_state=4).double()
    u = torch.randn(1, 6, 2, dtype=torch.float64)
    _, whole = layer(u, elapsed=torch.ones(1, 6), return_state=True)
    _, halves = layer(u.repeat_interleave(2, 1), elapsed=torch.full((1, 12), 0.5), return_state=True)
    torch.testing.assert_close(halves.ssm, whole.ssm)


@pytest.mark.parametrize("has_elapsed", [False, True])
def test_autocast_does_not_change_the_convolution(has_elapsed):
    layer, u = S4D(3, d_state=8), torch.randn(2, 50, 3)
    elapsed = torch.rand(2, 50) if has_elapsed else None
    with torch.autocast("cpu", torch.bfloat16):
        mixed = layer(u, elapsed=elapsed)
    assert torch.equal(mixed, layer(u, elapsed=elapsed))


@VARIANTS
def test_initial_eigenvalues_have_negative_real_parts(options):
    assert (S4D(2, d_state=16, **options).eigenvalues()[..., 0] < 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 3}, "`d_state` must .*got 3"),
        ({"init": "fft"}, "`init` must .*got 'fft'"),
        ({"discretisation": "euler"}, "`discretisation` must .*got 'euler'"),
        ({"dt_max": 1e-4}, "`dt_min` and `dt_max` must be"),
    ],
)
def test_invalid_setting_raises(options, message):
    with pytest.raises(ValueError, match=message):
        S4D(4, **options)


@pytest.mark.parametrize("init", ["lin", "legs"])
def test_trained_input_map_equals_a_factor_of_the_output_map(init):
    """A layer with trained B and C has the outputs of a layer without B whose C is the product C B."""
    full = S4D(4, d_state=8, init=init, trained_B=True).double()
    minimal = S4D(4, d_state=8, init=init).double()
    with torch.no_grad():
        full.B.add_(torch.randn_like(full.B))
    product = torch.view_as_complex(full.C) * torch.view_as_complex(full.B)
    shared = {name: value for name, value in full.state_dict().items() if name != "B"}
    minimal.load_state_dict({**shared, "C": torch.view_as_real(product)})
    x, elapsed = torch.randn(2, 20, 4, dtype=torch.float64), torch.rand(2, 20, dtype=torch.float64)
    torch.testing.assert_close(full(x), minimal(x))
    torch.testing.assert_close(full(x, elapsed=elapsed), minimal(x, elapsed=elapsed))
    assert (parameter_options(full.B).lr_scale, parameter_options(full.B).decay) == (0.1, False)


@pytest.mark.parametrize("kind", [S4, S4D])
def test_skip_starts_from_ones_or_from_a_standard_gaussian(kind):
    assert kind(1000, d_state=2, D_init="ones").D.tolist() == [1.0] * 1000
    torch.manual_seed(0)
    assert kind(1000, d_state=2).D.std().item() == pytest.approx(1, abs=0.1)


@torch.no_grad()
def test_exported_graph_with_a_dynamic_length_is_valid_for_every_length():
    """The kernel is computed in blocks of 32 steps; the graph has no condition on their number."""
    layer = S4D(3, d_state=4)

    class WithState(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x, ssm):
            y, final = self.layer(x, state=layer.initial_state(2)._replace(ssm=ssm), return_state=True)
            return y, final.ssm

    def make_inputs(length):
        return torch.randn(2, length, 3), torch.randn(2, 3, 2, 2)

    shapes = ({1: torch.export.Dim.DYNAMIC}, None)
    graph = torch.export.export(WithState(), make_inputs(63), dynamic_shapes=shapes).module()
    for length in (2, 31, 32, 33, 64, 65, 1000):
        inputs = make_inputs(length)
        torch.testing.assert_close(graph(*inputs), WithState()(*inputs))


@pytest.mark.parametrize("d_state", [2, 6])
@pytest.mark.parametrize("elapsed", [False, True])
def test_map_of_a_piece_is_that_of_states_without_inputs(d_state, elapsed):
    layer = S4D(3, d_state=d_state).double()
    state = torch.randn(2, 3, d_state // 2, 2, dtype=torch.float64)
    times = torch.rand(2, 5, dtype=torch.float64) + 0.5 if elapsed else None
    info = SequenceInfo(elapsed=times, valid=torch.tensor([[True] * 5, [True] * 3 + [False] * 2]))
    nothing = torch.zeros(2, 5, 3, dtype=torch.float64)
    factors, apply = layer.recurrence_map(nothing, info)
    flags = step_flags(2, 5, info.valid, None, nothing)
    torch.testing.assert_close(apply(state, *factors), layer.recur(nothing, state, info, flags)[1])
