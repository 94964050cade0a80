import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longscan.numerics.dplr import bilinear_frequencies, bilinear_solver, bilinear_step, dense_step, spectrum


class RecordComplex(TorchDispatchMode):
    """Records the names of the operations that return complex tensors."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_complex():
            self.names.append(str(func))
        return result


def make_system(channels=2, pairs=3):
    parts = torch.randn(4, channels, pairs, 2, dtype=torch.float64)
    eigenvalues = parts[0].clone()
    eigenvalues[..., 0] = -eigenvalues[..., 0].abs() - 0.1
    return eigenvalues, parts[1], parts[2], parts[3], torch.rand(channels, dtype=torch.float64)


def dense_matrix(eigenvalues, P):
    """Return Lambda - P P* as a complex matrix for both members of the conjugate pairs."""
    lam, p = torch.view_as_complex(eigenvalues), torch.view_as_complex(P)
    lam, p = torch.cat([lam, lam.conj()], -1), torch.cat([p, p.conj()], -1)
    return torch.diag_embed(lam) - p.unsqueeze(-1) * p.conj().unsqueeze(-2)


def add_conjugates(x):
    half = torch.view_as_complex(x)
    return torch.cat([half, half.conj()], -1)


def test_step_solves_the_bilinear_rule():
    """The rule is x' - x = dt (A (x + x') / 2 + B u) with the dense A."""
    eigenvalues, P, B, x, dt = make_system()
    u = 1.3
    after = bilinear_step(bilinear_solver(eigenvalues, P, dt), P, x, u * dt[:, None, None] * B)
    A, half_dt = dense_matrix(eigenvalues, P), dt.unsqueeze(-1) / 2
    mean = (A @ add_conjugates(x + after).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(add_conjugates(after - x), half_dt * mean + dt.unsqueeze(-1) * add_conjugates(B) * u)


def test_dense_step_equals_the_step_by_woodbury():
    eigenvalues, P, B, x, dt = make_system()
    A_bar, B_bar = dense_step(eigenvalues, P, B, dt)
    after = bilinear_step(bilinear_solver(eigenvalues, P, dt), P, x, dt[:, None, None] * B)
    torch.testing.assert_close((A_bar @ x.flatten(-2).unsqueeze(-1)).squeeze(-1) + B_bar, after.flatten(-2))


def test_spectrum_is_the_transform_of_the_kernel():
    """It is 2 C (1 - e^{-i angle} A_bar)^{-1} B_bar, also at 0 and pi, where a term of the Cauchy sums vanishes."""
    eigenvalues, P, B, C, dt = make_system()
    A, eye = dense_matrix(eigenvalues, P), torch.eye(6, dtype=torch.complex128)
    angles = torch.tensor([0.0, 0.7, 2.0, math.pi], dtype=torch.float64)
    values = torch.view_as_complex(spectrum(angles, eigenvalues, P, B, C, dt))
    for k, angle in enumerate(angles):
        half = dt[:, None, None] / 2
        A_bar = torch.linalg.solve(eye - half * A, eye + half * A)
        B_bar = torch.linalg.solve(eye - half * A, (dt.unsqueeze(-1) * add_conjugates(B)).unsqueeze(-1))
        state = torch.linalg.solve(eye - torch.exp(-1j * angle) * A_bar, B_bar).squeeze(-1)
        torch.testing.assert_close(values[:, k], (add_conjugates(C) * state).sum(-1))


def test_gradients_of_small_steps_are_finite_in_float32():
    """At angle 0 the denominators are (dt |Lambda|)^2, about 1e-10: 1 / size^2 of their squared size overflows."""
    eigenvalues, P, B, C, _ = make_system()
    angles, dt = torch.tensor([0.0, 0.7], dtype=torch.float64), torch.full((2,), 1e-5, dtype=torch.float64)
    found = []
    for dtype in (torch.float32, torch.float64):
        inputs = [x.to(dtype).requires_grad_() for x in (eigenvalues, P, B, C, dt)]
        values = spectrum(angles.to(dtype), *inputs)
        found.append(torch.autograd.grad(values.sum(), inputs))
    (*single, d_dt), (*double, _) = found
    assert d_dt.isfinite().all()  # it has a rounding error of about 1e-7 / dt
    for x, y in zip(single, double, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=0, atol=1e-4 * float(y.abs().max()))


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_spectrum_uses_no_complex_tensors(damping):
    """Exported graphs have the same operations, and ONNX has no complex numbers."""
    inputs = [x.requires_grad_() for x in make_system()]
    with RecordComplex() as found:
        values = spectrum(torch.tensor([0.0, 0.7, 2.0, math.pi], dtype=torch.float64), *inputs, damping)
        values.square().sum().backward()
    assert not found.names


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_frequencies_are_those_of_complex_functions(damping):
    angles = torch.tensor([0.0, 1e-9, 0.7, 2.0, math.pi], dtype=torch.float64)
    w = torch.complex(torch.full_like(angles, damping), angles) / 2
    found = torch.view_as_complex(bilinear_frequencies(angles, damping))
    torch.testing.assert_close(found, torch.stack([2 * w.sinh(), w.cosh(), w.exp()]), rtol=1e-15, atol=1e-16)
