"""HiPPO-LegS and its diagonalisation (Gu et al. 2020, theorem 2; Gu et al. 2022, "How to train your HiPPO").

All results are float64 or complex128; they are computed once, when a layer is constructed.
"""

import torch
from torch import Tensor


def legs(size: int) -> tuple[Tensor, Tensor]:
    """Return HiPPO-LegS: A (N, N) with A_nk = -sqrt((2n+1)(2k+1)) below the diagonal, -(n+1) on it, 0 above; B_n = sqrt(2n+1)."""
    n = torch.arange(size, dtype=torch.float64)
    b = torch.sqrt(2 * n + 1)
    return -torch.tril(torch.outer(b, b), -1) - torch.diag(n + 1), b


def legs_basis(size: int, *, pairs: bool = True) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (K,) and unitary eigenvectors V (N, K) of the normal part A + P P^T of HiPPO-LegS, P_n = sqrt(n + 1/2).

    The normal part is -1/2 plus a skew-symmetric matrix: every real part is -1/2. The free phases of V are chosen so that
    V* B > 0.

    Args:
        size: N; even with `pairs` (ValueError).
        pairs: return only the eigenvalue with positive imaginary part of each conjugate pair, smallest first, K = N/2; otherwise
            all of them, K = N.
    """
    if size < 1 or (pairs and size % 2):
        raise ValueError(f"`size` must be {'an even number of at least 2' if pairs else 'at least 1'}, got {size}")
    a, b = legs(size)
    p = torch.sqrt(torch.arange(size, dtype=torch.float64) + 0.5)
    skew = a + torch.outer(p, p) + 0.5 * torch.eye(size, dtype=torch.float64)
    frequencies, vectors = torch.linalg.eigh(-1j * skew.to(torch.complex128))
    if pairs:  # in ascending order, half of them positive
        frequencies, vectors = frequencies[size // 2 :], vectors[:, size // 2 :]
    coefficients = vectors.conj().T @ b.to(torch.complex128)
    return torch.complex(torch.full_like(frequencies, -0.5), frequencies), vectors * torch.sgn(coefficients)


def legs_normal(size: int) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (N/2,) of the normal part of HiPPO-LegS and B in their basis, positive: see `legs_basis`; complex128."""
    eigenvalues, _, coefficients = legs_dplr(size)
    return eigenvalues, coefficients


def legs_dplr(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return HiPPO-LegS as Lambda - P P* with B, each (N/2,), in the eigenbasis of `legs_basis`; B is positive; complex128."""
    eigenvalues, vectors = legs_basis(size)
    p = torch.sqrt(torch.arange(size, dtype=torch.float64) + 0.5)
    low_rank, coefficients = (vectors.conj().T @ part.to(torch.complex128) for part in (p, legs(size)[1]))
    return eigenvalues, low_rank, coefficients.abs().to(torch.complex128)
