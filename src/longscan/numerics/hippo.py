"""HiPPO-LegS and its diagonalisation (Gu et al. 2020, theorem 2; Gu et al. 2022, "How to train your HiPPO").

Everything here is float64 and complex128 and runs once, when a layer is made.
"""

import torch
from torch import Tensor


def legs(size: int) -> tuple[Tensor, Tensor]:
    """HiPPO-LegS: A (N, N) with A_nk = -sqrt((2n+1)(2k+1)) below the diagonal, -(n+1) on it, 0 above; B_n = sqrt(2n+1)."""
    n = torch.arange(size, dtype=torch.float64)
    b = torch.sqrt(2 * n + 1)
    return -torch.tril(torch.outer(b, b), -1) - torch.diag(n + 1), b


def legs_normal(size: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues (N/2,) of the normal part A + P P^T of HiPPO-LegS, P_n = sqrt(n + 1/2), and B in their basis; complex128.

    The normal part is -1/2 plus a skew-symmetric matrix: every real part is -1/2. Of each conjugate pair the one with positive
    imaginary part is kept, smallest first. B is V* B for the unitary eigenvectors V, their free phases chosen so that B > 0.
    """
    if size < 2 or size % 2:
        raise ValueError(f"size: got {size}, expected an even number of at least 2")
    a, b = legs(size)
    p = torch.sqrt(torch.arange(size, dtype=torch.float64) + 0.5)
    skew = a + torch.outer(p, p) + 0.5 * torch.eye(size, dtype=torch.float64)
    frequencies, vectors = torch.linalg.eigh(-1j * skew.to(torch.complex128))
    frequencies, vectors = frequencies[size // 2 :], vectors[:, size // 2 :]  # in ascending order, half of them positive
    coefficients = vectors.conj().T @ b.to(torch.complex128)
    return torch.complex(torch.full_like(frequencies, -0.5), frequencies), coefficients.abs().to(torch.complex128)
