import math

import pytest
import torch
from torch.nn.functional import linear, logsigmoid

from longscan import SequenceModel
from longscan.layers import MLSTM, SLSTM
from longscan.layers.mlstm import running_maximum


def apply_mlstm_equations(layer: MLSTM, u: torch.Tensor) -> torch.Tensor:
    """Apply equations 19-27 of the paper without the stabiliser state."""
    projected = linear(u, layer.in_proj, layer.in_bias).chunk(4, -1)
    q, k, v, o = (part.unflatten(-1, (layer.heads, layer.head_dim)) for part in projected)
    k = k / math.sqrt(layer.head_dim)
    input_gate, forget_gate = (linear(u, layer.gate_proj) + layer.gate_bias).chunk(2, -1)
    memory, outputs = u.new_zeros(len(u), layer.heads, layer.head_dim, layer.head_dim), []
    normaliser = u.new_zeros(len(u), layer.heads, layer.head_dim)
    for t in range(u.shape[1]):
        i, f = input_gate[:, t].exp().unsqueeze(-1), forget_gate[:, t].sigmoid().unsqueeze(-1)
        memory = f.unsqueeze(-1) * memory + i.unsqueeze(-1) * v[:, t].unsqueeze(-1) * k[:, t].unsqueeze(-2)
        normaliser = f * normaliser + i * k[:, t]
        retrieved = torch.einsum("bhpn,bhn->bhp", memory, q[:, t])
        size = (normaliser * q[:, t]).sum(-1, keepdim=True).abs().clamp(min=1)
        outputs.append(o[:, t].sigmoid() * retrieved / size)
    return torch.stack(outputs, 1).flatten(2)


def apply_slstm_equations(layer: SLSTM, u: torch.Tensor) -> torch.Tensor:
    """Apply equations 8-14 of the paper without the stabiliser state."""
    projected = linear(u, layer.in_proj) + layer.bias
    y = cell = normaliser = torch.zeros_like(u[:, 0])
    outputs = []
    for t in range(u.shape[1]):
        mixed = [
            torch.cat([linear(part, layer.recurrent[h].chunk(4)[gate]) for h, part in enumerate(y.split(layer.head_dim, -1))], -1)
            for gate in range(4)
        ]
        z, i, f, o = (part + recurrent for part, recurrent in zip(projected[:, t].chunk(4, -1), mixed, strict=True))
        cell = f.sigmoid() * cell + i.exp() * z.tanh()
        normaliser = f.sigmoid() * normaliser + i.exp()
        y = o.sigmoid() * cell / normaliser
        outputs.append(y)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("head_dim", [1, 2, 6])
@pytest.mark.parametrize(("layer", "apply_equations"), [(MLSTM, apply_mlstm_equations), (SLSTM, apply_slstm_equations)])
def test_outputs_follow_the_equations(layer, apply_equations, head_dim):
    module = layer(6, head_dim=head_dim).double()
    u = torch.randn(2, 30, 6, dtype=torch.float64)
    torch.testing.assert_close(module(u), apply_equations(module, u))


@pytest.mark.parametrize("layer", [MLSTM, SLSTM])
@pytest.mark.parametrize("shift", [-300.0, 300.0])
def test_gates_beyond_the_range_of_float32_give_finite_results(layer, shift):
    """With input gates of e^300 and e^-300 outputs, states and gradients are finite, and outputs equal those in float64."""
    module = layer(4)
    with torch.no_grad():
        if layer is MLSTM:
            module.gate_bias[: module.heads] += shift
        else:
            module.bias.view(4, 4)[1] += shift
    u = torch.randn(2, 40, 4, requires_grad=True)
    y, state = module(u, return_state=True)
    assert all(part.isfinite().all() for part in state)
    y.sum().backward()
    assert all(x.grad.isfinite().all() for x in (u, *module.parameters()))
    torch.testing.assert_close(y, module.double()(u.detach().double()).float(), rtol=1e-3, atol=1e-4)
    if layer is SLSTM or shift > 0:
        assert y.abs().max() > 1e-3  # the normaliser compensates for the gate


@pytest.mark.parametrize("length", [1, 2, 3, 64, 65])
def test_running_maximum_equals_the_loop(length):
    log_forget, log_input = logsigmoid(torch.randn(2, length, 3)), 3 * torch.randn(2, length, 3)
    start = torch.randn(2, 3)
    flags = torch.randint(0, 3, (2, length), dtype=torch.uint8)
    for step_flags in (None, flags):
        m, expected = start, []
        for t in range(length):
            after = torch.maximum(log_forget[:, t] + m, log_input[:, t])
            if step_flags is not None:
                restarted = torch.maximum(log_forget[:, t], log_input[:, t])
                flag = step_flags[:, t].unsqueeze(-1)
                after = torch.where(flag == 1, m, torch.where(flag == 2, restarted, after))
            m = after
            expected.append(m)
        torch.testing.assert_close(running_maximum(log_forget, log_input, start, step_flags), torch.stack(expected, 1))


@pytest.mark.parametrize("length", [1, 2, 65])
def test_running_maximum_for_symbolic_lengths_gives_the_same_bits(length, monkeypatch):
    """Exported graphs of any length use another algorithm, whose results and gradients have the same bits."""
    log_forget, log_input = (
        logsigmoid(torch.randn(2, length, 3)).requires_grad_(),
        (3 * torch.randn(2, length, 3)).requires_grad_(),
    )
    start, flags = torch.randn(2, 3, requires_grad=True), torch.randint(0, 3, (2, length), dtype=torch.uint8)
    plain = running_maximum(log_forget, log_input, start, flags)
    monkeypatch.setattr("longscan.layers.mlstm.is_symbolic", lambda _: True)
    symbolic = running_maximum(log_forget, log_input, start, flags)
    assert torch.equal(symbolic, plain)
    cotangent = torch.randn(2, length, 3)
    expected = torch.autograd.grad(plain, (log_forget, log_input, start), cotangent)
    for grad, expected_grad in zip(
        torch.autograd.grad(symbolic, (log_forget, log_input, start), cotangent), expected, strict=True
    ):
        assert torch.equal(grad, expected_grad)


def test_spec_names_xlstm_layers():
    model = SequenceModel.from_spec("mlstm slstm", d_model=8, d_output=2, d_input=1)
    assert [entry["layer"] for entry in model.entries] == ["mlstm", "slstm"]
    assert model(torch.randn(2, 5, 1)).shape == (2, 2)


@pytest.mark.parametrize("layer", [MLSTM, SLSTM])
def test_invalid_setting_raises(layer):
    with pytest.raises(ValueError, match=r"`head_dim` must .*got 3"):
        layer(4, head_dim=3)
    with pytest.raises(ValueError, match=r"`d_model` must .*got 0"):
        layer(0)
    with pytest.raises(ValueError, match=r"`elapsed` must be None, as .* takes no elapsed times"):
        layer(4)(torch.randn(1, 3, 4), elapsed=torch.ones(1, 3))
