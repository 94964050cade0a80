"""The transform of a kernel by one system of linear equations for each frequency: the definition of `dplr_spectrum`."""

import torch
from torch import Tensor

from longscan.numerics.dplr import dense_step


def dplr_spectrum(
    angle: Tensor, eigenvalues: Tensor, P: Tensor, B: Tensor, C: Tensor, dt: Tensor, damping: float = 0.0
) -> Tensor:
    """Compute c (1 - e^{-(damping + i angle)} A_bar)^{-1} b for the real form of the system; pairs (D, F, 2).

    angle: (F,); eigenvalues, P, B, C: (D, N/2, 2); dt: (D,). A_bar (D, N, N) and b (D, N) are those of `dense_step`; c is
    2 Re C and -2 Im C. No pole may be on the circle of radius e^damping.
    """
    A_bar, b = dense_step(eigenvalues, P, B, dt)
    row = 2 * torch.stack([C[..., 0], -C[..., 1]], -1).flatten(-2)
    eye = torch.eye(A_bar.shape[-1], dtype=A_bar.dtype, device=A_bar.device)
    factor = torch.complex(torch.full_like(angle, -damping), -angle).exp()
    outputs = []
    for k in range(len(angle)):
        state = torch.linalg.solve(eye - factor[k] * A_bar, b.unsqueeze(-1).to(factor.dtype)).squeeze(-1)
        outputs.append((row * state).sum(-1))
    return torch.view_as_real(torch.stack(outputs, -1)) if outputs else C.new_zeros((len(C), 0, 2))
