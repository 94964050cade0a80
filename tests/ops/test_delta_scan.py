"""`delta_scan` against the scan of Mamba-2 and a gradient step, and the accuracy of its chunked form for equal keys."""

import shutil

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import normalize

from longscan.ops import delta_scan, ssd_scan
from longscan.ops._tolerances import largest_error
from longscan.ops.delta_scan.eager import MAX_SYMBOLIC_LENGTH, _inverse
from op_examples import randn64

B, L, H, P, N = 2, 70, 3, 2, 4
BACKENDS = pytest.mark.parametrize("backend", ["reference", "eager"])


@BACKENDS
def test_orthogonal_keys_give_the_scan_of_mamba2(backend):
    """If all keys are orthogonal, no value is replaced: S_t = alpha_t S_{t-1} + beta_t v_t k_t^T."""
    k = torch.linalg.qr(randn64(B, H, L, L))[0].transpose(1, 2).contiguous()
    v, q, beta, log_alpha = randn64(B, L, H, P), randn64(B, L, H, L), torch.rand(B, L, H).double(), -torch.rand(B, L, H).double()
    y, final = delta_scan(v, k, q, log_alpha, beta, backend=backend)
    expected, state = ssd_scan(v, -log_alpha, -torch.ones(H).double(), k, q, input_scale=beta, backend="reference")
    torch.testing.assert_close((y, final), (expected, state))


@BACKENDS
def test_update_without_decay_is_a_step_of_gradient_descent(backend):
    """Without decay, S_t = S_{t-1} minus beta_t times the gradient of |S k_t - v_t|^2 / 2 (table 4 of the paper)."""
    v, k, q, beta, state = randn64(B, 1, H, P), randn64(B, 1, H, N), randn64(B, 1, H, N), randn64(B, 1, H), randn64(B, H, P, N)
    S = state.clone().requires_grad_()
    loss = ((S @ k[:, 0].unsqueeze(-1)).squeeze(-1) - v[:, 0]).square().sum() / 2
    expected = state - beta[:, 0, :, None, None] * torch.autograd.grad(loss, S)[0]
    _, final = delta_scan(v, k, q, torch.zeros_like(beta), beta, state, backend=backend)
    torch.testing.assert_close(final, expected)


@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_equal_keys_do_not_increase_the_error_of_eager(beta):
    """Powers of the triangular matrix have entries of 1e17, but errors stay below those of the loop and of rounded keys."""
    key = normalize(torch.randn(1, 1, 1, N), dim=-1).expand(1, 200, 1, N)
    v, q = torch.randn(1, 200, 1, P), torch.randn(1, 200, 1, N)
    decay, strength = torch.zeros(1, 200, 1), torch.full((1, 200, 1), beta)
    exact, rounded = (
        delta_scan(v.double(), size * key.double(), q, decay, strength, backend="reference")[0] for size in (1, 1 + 2**-23)
    )
    loop, eager = (delta_scan(v, key, q, decay, strength, backend=backend)[0] for backend in ("reference", "eager"))
    assert largest_error(eager, exact) <= 2 * largest_error(loop, exact) + 4 * largest_error(rounded, exact)


def apply_recurrence(v, k, q, log_alpha, beta, state):
    """Apply equation 10 of the paper step by step: S_t = S_{t-1} (alpha_t (I - beta_t k_t k_t^T)) + beta_t v_t k_t^T."""
    outputs, identity = [], torch.eye(N, dtype=v.dtype)
    for t in range(v.shape[1]):
        key, alpha, strength = k[:, t].unsqueeze(-1), log_alpha[:, t, :, None, None].exp(), beta[:, t, :, None, None]
        state = state @ (alpha * (identity - strength * key @ key.mT)) + strength * v[:, t].unsqueeze(-1) @ key.mT
        outputs.append((state @ q[:, t].unsqueeze(-1)).squeeze(-1))
    return torch.stack(outputs, 1), state


@BACKENDS
@pytest.mark.parametrize("log_alpha", [0.0, -1e-7, -200.0], ids=["alpha=1", "alpha almost 1", "alpha almost 0"])
@pytest.mark.parametrize("beta", [0.0, 1e-6, 1 - 1e-6, 1.0])
def test_limits_of_decay_and_strength_follow_the_recurrence(backend, beta, log_alpha):
    """Outputs, final state and gradients of nearly equal keys, which the triangular systems of two chunks contain."""
    key = normalize(randn64(B, 1, H, N) + 1e-3 * randn64(B, L, H, N), dim=-1)
    inputs = [randn64(B, L, H, P), key, randn64(B, L, H, N), torch.full((B, L, H), log_alpha).double()]
    inputs = [x.requires_grad_() for x in (*inputs, torch.full((B, L, H), beta).double(), randn64(B, H, P, N))]
    results, expected = delta_scan(*inputs, backend=backend), apply_recurrence(*inputs)
    torch.testing.assert_close(results, expected, rtol=1e-10, atol=1e-10)
    weights = [torch.randn_like(x) for x in expected]
    gradients, expected_gradients = (torch.autograd.grad(of, inputs, weights) for of in (results, expected))
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-9, atol=1e-9)


@BACKENDS
def test_decay_of_zero_clears_the_state(backend):
    """A log_alpha of minus infinity removes everything before its step, without NaN in results or gradients."""
    v, k, q, beta = randn64(B, L, H, P), normalize(randn64(B, L, H, N), dim=-1), randn64(B, L, H, N), torch.rand(B, L, H).double()
    log_alpha = -torch.rand(B, L, H).double()
    log_alpha[:, 20] = -torch.inf
    inputs = [x.requires_grad_() for x in (v, k, q, log_alpha, beta)]
    y, _ = delta_scan(*inputs, randn64(B, H, P, N), backend=backend)
    restarted, _ = delta_scan(*(x[:, 20:] for x in inputs), backend=backend)
    torch.testing.assert_close(y[:, 20:], restarted)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(y.sum(), inputs))


def test_graph_of_a_dynamic_length_inverts_longer_chunks_or_raises():
    """make_fx records no check that the traced steps are one chunk: the graph must be right for more steps than that."""
    lower = torch.randn(2, 5, 5, dtype=torch.float64).tril(-1)
    graph = make_fx(lambda x: _inverse(x, None), tracing_mode="symbolic")(lower)
    for length in (1, 64, 65, 200):
        x = 0.1 * torch.randn(2, length, length, dtype=torch.float64).tril(-1)
        expected = torch.linalg.inv(torch.eye(length, dtype=torch.float64) + x)
        torch.testing.assert_close(graph(x), expected, rtol=1e-10, atol=1e-10)
    with pytest.raises(RuntimeError, match=f"{MAX_SYMBOLIC_LENGTH}"):
        graph(torch.zeros(1, 1, 1).expand(1, MAX_SYMBOLIC_LENGTH + 1, MAX_SYMBOLIC_LENGTH + 1))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inverse_compiled_with_gradients_is_right_beyond_32_steps():
    """Inductor computes a quotient of the steps by 32 wrongly for the last steps, if gradients are wanted."""
    torch.compiler.reset()
    lower = (0.3 * torch.randn(2, 33, 33)).tril(-1).requires_grad_()
    inverse = torch.compile(lambda x: _inverse(x, None), fullgraph=True, dynamic=False)(lower)
    expected = torch.linalg.inv(torch.eye(33) + lower)
    torch.testing.assert_close(inverse, expected, rtol=1e-3, atol=1e-3)
    (grad,), (expected_grad,) = (torch.autograd.grad(x.sin().sum(), lower) for x in (inverse, expected))
    torch.testing.assert_close(grad.tril(-1), expected_grad.tril(-1), rtol=1e-3, atol=1e-3)
