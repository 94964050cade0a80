"""Linear systems as dense real matrices, discretised and simulated by scipy: the reference for structured matrices of layers."""

import numpy as np
import torch
from scipy.signal import cont2discrete, dlsim
from torch import Tensor


def real_form(eigenvalues: Tensor, B: Tensor, C: Tensor, P: Tensor | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x' = (Lambda - P P*) x + B u, y = 2 Re C x with N/2 conjugate pairs as real A (N, N), B (N, H) and C (H', N).

    eigenvalues, P: (N/2,) complex; B: (N/2, H); C: (H', N/2). The real state has all real parts, then all imaginary parts.
    """
    half = len(eigenvalues)
    lam, b, c = (x.detach().numpy() for x in (eigenvalues, B, C))
    a = np.block([[np.diag(lam.real), -np.diag(lam.imag)], [np.diag(lam.imag), np.diag(lam.real)]])
    if P is not None:  # P* x is 2 Re sum conj(P) x over the stored half
        p = P.detach().numpy()
        a -= np.concatenate([p.real, p.imag])[:, None] @ (2 * np.concatenate([p.real, p.imag])[None])
    assert a.shape == (2 * half, 2 * half)
    return a, np.concatenate([b.real, b.imag]), 2 * np.concatenate([c.real, -c.imag], 1)


def run_recurrence(a: np.ndarray, b: np.ndarray, c: np.ndarray, u: Tensor) -> Tensor:
    """Return y_k = c x_k with x_k = a x_{k-1} + b u_k. The outputs of scipy's dlsim use the state before the input."""
    _, y, _ = dlsim((a, b, c @ a, c @ b, 1.0), u.detach().numpy())
    return torch.from_numpy(y)


def simulate(system: tuple[np.ndarray, np.ndarray, np.ndarray], dt: float, rule: str, u: Tensor) -> Tensor:
    """Return y_k = C x_k for inputs u (L, H) of the system discretised by scipy with `rule`, "zoh" or "bilinear"."""
    a, b, c = system
    ad, bd, *_ = cont2discrete((a, b, c, np.zeros((len(c), b.shape[1]))), dt, method=rule)
    return run_recurrence(ad, bd, c, u)
