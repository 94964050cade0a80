import pytest
import torch

from longscan.numerics.kernels import diagonal_final_state, diagonal_kernel, power


def make_system(channels: int, states: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log A of a step, with decays between 1e-4 and 1, and coefficients C."""
    decay = -torch.logspace(-4, 0, states, dtype=torch.float64).expand(channels, -1)
    return torch.stack([decay, 3 * torch.randn(channels, states, dtype=torch.float64)], -1), torch.randn(
        channels, states, 2, dtype=torch.float64
    )


@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65, 1000])
def test_kernel_equals_the_sum_of_powers(length):
    log_a, c = make_system(2, 5)
    a = torch.view_as_complex(log_a).exp()
    powers = a.unsqueeze(-1) ** torch.arange(length)
    expected = 2 * (torch.view_as_complex(c).unsqueeze(-1) * powers).real.sum(1)
    torch.testing.assert_close(diagonal_kernel(log_a, c, length), expected, rtol=1e-10, atol=1e-10)
    batched = torch.stack([c, 2 * c])
    torch.testing.assert_close(diagonal_kernel(log_a, batched, length)[1], 2 * expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65, 1000])
def test_final_state_equals_that_of_the_recurrence(length):
    log_a, _ = make_system(2, 5)
    u = torch.randn(3, length, 2, dtype=torch.float64)
    a, x = torch.view_as_complex(log_a).exp(), torch.zeros(3, 2, 5, dtype=torch.complex128)
    for t in range(length):
        x = a * x + u[:, t].unsqueeze(-1)
    torch.testing.assert_close(torch.view_as_complex(diagonal_final_state(log_a, u)), x, rtol=1e-10, atol=1e-10)


def test_phase_of_long_float32_kernels_is_accurate():
    """The error of the phase at step 100,000 is that of rounding the result once, not of 100,000 roundings."""
    log_a = torch.tensor([[[-1e-6, 3.0]]])
    step = torch.tensor([99_999])
    exact = torch.view_as_complex(log_a.double()).mul(99_999).exp()
    torch.testing.assert_close(torch.view_as_complex(power(log_a, step)), exact.to(torch.complex64), rtol=0, atol=1e-6)
    kernel = diagonal_kernel(log_a, torch.tensor([[[0.5, 0.0]]]), 100_000)
    assert abs(kernel[0, -1].item() - exact.real.item()) < 1e-6


def test_gradients_equal_finite_differences():
    log_a, c = make_system(2, 3)
    u = torch.randn(2, 7, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: diagonal_kernel(a, b, 7), (log_a.requires_grad_(), c.requires_grad_()))
    assert torch.autograd.gradcheck(diagonal_final_state, (log_a, u))
