"""`dplr_spectrum` by the four Cauchy sums in torch, in chunks of frequencies."""

from torch import Tensor

from longscan.numerics.dplr import spectrum
from longscan.ops.chunks import CHUNK, run_chunk, scan_chunks

MAX_ELEMENTS = 2**23  # largest product of channels, pairs of states and angles in memory


def dplr_spectrum(
    angle: Tensor, eigenvalues: Tensor, P: Tensor, B: Tensor, C: Tensor, dt: Tensor, damping: float = 0.0
) -> Tensor:
    """Compute `reference.dplr_spectrum`; the backward pass computes a chunk of frequencies again."""

    def chunk(angles: Tensor, nothing: Tensor) -> tuple[Tensor, Tensor]:
        return spectrum(angles[0], eigenvalues, P, B, C, dt, damping), nothing

    angles = angle.unsqueeze(0)
    size = max(CHUNK, MAX_ELEMENTS // max(1, eigenvalues[..., 0].numel()))
    if angles.shape[1] > size:
        return scan_chunks(chunk, (angles,), (), angles[:, 0], empty=angles, size=size)[0]
    # recomputed in the backward pass: the terms of the sums are many times larger than the kernel
    return run_chunk(chunk, (angles, angles))[0]
