import copy

import pytest
import torch
from torch.nn.functional import batch_norm

from longscan.blocks import BatchNorm, Residual, SimpleBlock
from longscan.layers import ParameterOptions, parameter_options
from longscan.models import SequenceModel


@pytest.mark.parametrize("affine", [False, True])
def test_unpadded_rows_equal_torch_batch_norm(affine):
    """In training with the statistics of batch and time, which update the running ones; in evaluation with the running ones."""
    norm = BatchNorm(3, affine=affine, momentum=0.2).double()
    if affine:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    mean, variance = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    for training in (True, True, False):
        norm.train(training)
        x = 3 * torch.randn(4, 7, 3, dtype=torch.float64) + 1
        expected = batch_norm(x.transpose(1, 2), mean, variance, norm.weight, norm.bias, training, 0.2).transpose(1, 2)
        torch.testing.assert_close(norm(x), expected)
        torch.testing.assert_close((norm.running_mean, norm.running_variance), (mean, variance))


def test_padding_does_not_change_results_or_statistics():
    """Valid steps of padded rows are normalised as if they were in one row; y is 0 at the padding."""
    valid = torch.arange(9) < torch.tensor([[9], [2], [0], [5]])
    x = torch.randn(4, 9, 3, dtype=torch.float64)
    padded, unpadded = BatchNorm(3).double(), BatchNorm(3).double()
    x_with_nan = torch.where(valid.unsqueeze(-1), x, float("nan")).requires_grad_()
    y = padded(x_with_nan, valid)
    torch.testing.assert_close(y[valid], unpadded(x[valid].unsqueeze(0))[0])
    assert torch.equal(y[~valid], torch.zeros_like(y[~valid]))
    torch.testing.assert_close(padded.running_mean, unpadded.running_mean)
    torch.testing.assert_close(padded.running_variance, unpadded.running_variance)
    y.square().sum().backward()
    assert x_with_nan.grad.isfinite().all()
    before = copy.deepcopy(padded)
    padded(x_with_nan.detach(), torch.zeros_like(valid))
    assert torch.equal(padded.running_mean, before.running_mean)
    assert torch.equal(padded.running_variance, before.running_variance)


def test_step_uses_running_statistics_in_training():
    residual = Residual(SimpleBlock(4, layer="lru"), "batch").double()
    x = 2 + torch.randn(3, 6, 4, dtype=torch.float64)
    whole = residual(x)
    statistics = residual.norm.running_mean.clone(), residual.norm.running_variance.clone()
    normed = (x - x.mean((0, 1))) / (x.var((0, 1), correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(whole, x + residual.block(normed))
    y, _ = residual.step(x[:, 0], residual.initial_state(3), active=torch.tensor([True, True, False]))
    normed_x0 = (x[:, :1] - statistics[0]) / (statistics[1] + 1e-5).sqrt()
    torch.testing.assert_close(y[:2], (x[:, :1] + residual.block(normed_x0))[:2, 0])
    assert not y[2].any(), "rows that are not active give zeros, as padded steps do"
    assert torch.equal(residual.norm.running_mean, statistics[0])
    residual.eval()
    torch.testing.assert_close(residual(x)[:2, 0], y[:2])


def test_running_statistics_stay_float32():
    norm = BatchNorm(3, affine=True)
    norm(torch.randn(2, 5, 3))
    exact = norm.running_mean.clone()
    model = Residual(SimpleBlock(3, layer="lru"), "batch")
    model(torch.randn(2, 5, 3))
    norm.to(torch.bfloat16)
    model.to(torch.bfloat16)
    assert torch.equal(norm.running_mean, exact)
    assert norm.weight.dtype == torch.bfloat16
    assert model.norm.running_variance.dtype == torch.float32
    assert norm(torch.randn(2, 5, 3).to(torch.bfloat16)).dtype == torch.bfloat16
    assert parameter_options(norm.weight).role == "norm"


def test_steps_of_model_with_batch_norm_equal_evaluation():
    net = SequenceModel.from_spec("linoss*2", d_model=6, d_output=2, d_input=3, d_state=4, norm="batch").double()
    x = torch.randn(5, 8, 3, dtype=torch.float64)
    net(x, valid=torch.arange(8) < torch.tensor([[8], [3], [5], [8], [1]]))
    net.eval()
    state = net.initial_state(5)
    for t in range(8):
        y, state = net.step(x[:, t], state)
    torch.testing.assert_close(y, net(x))
    assert SequenceModel(**net.config).config["norm"] == "batch"


def test_invalid_setting_raises():
    with pytest.raises(ValueError, match=r"`momentum` must .*got 0\.0"):
        BatchNorm(3, momentum=0.0)


def test_scale_and_bias_have_norm_role_without_decay():
    norm = BatchNorm(3, affine=True)
    assert [parameter_options(parameter) for parameter in norm.parameters()] == [ParameterOptions("norm", decay=False)] * 2
    assert (norm.weight.tolist(), norm.bias.tolist()) == ([1.0] * 3, [0.0] * 3)
    assert list(BatchNorm(3).parameters()) == []


def test_momentum_of_one_keeps_only_last_batch():
    norm = BatchNorm(2, momentum=1.0)
    norm(torch.randn(3, 5, 2))
    x = torch.randn(3, 5, 2)
    norm(x)
    torch.testing.assert_close(norm.running_mean, x.mean((0, 1)))
    for momentum in (0.0, 1.01):
        with pytest.raises(ValueError, match="momentum"):
            BatchNorm(2, momentum=momentum)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_running_variance_of_few_steps_is_unbiased(steps):
    """A single step has no variance: 0 takes its place."""
    norm, x = BatchNorm(3, momentum=0.5).double(), torch.randn(1, steps, 3, dtype=torch.float64)
    norm(x)
    variance = x[0].var(0) if steps > 1 else torch.zeros(3, dtype=torch.float64)
    torch.testing.assert_close(norm.running_variance, 0.5 + 0.5 * variance)
