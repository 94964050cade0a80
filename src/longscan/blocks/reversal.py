"""Reversal of sequences in time: the run of valid steps is reversed, and padding stays in place."""

import torch
from torch import Tensor

from longscan.layers.base import SequenceInfo


def flip_valid(x: Tensor, valid: Tensor | None) -> Tensor:
    """Return x (B, L, ...) with the valid steps of each row reversed in time, and padding in place.

    valid: (B, L), one run of valid steps per row.
    """
    if valid is None:
        return x.flip(1)
    if not x.shape[1]:
        return x
    position = torch.arange(x.shape[1], device=x.device)
    first, count = valid.to(torch.int8).argmax(1, keepdim=True), valid.sum(1, keepdim=True)
    mirrored = torch.where(valid, 2 * first + count - 1 - position, position)
    return x.gather(1, mirrored.view(*mirrored.shape, *(1,) * (x.ndim - 2)).expand_as(x))


def reversed_steps(info: SequenceInfo) -> SequenceInfo:
    """Return `info` for the sequence reversed in time, in which the elapsed time of a step is the time to its successor.

    It is 1 for the last step of each sequence, which has no successor. The result has no gate and requests no state, which would
    be that before the first step.
    """
    elapsed, valid, seq_idx = info.elapsed, info.valid, info.seq_idx
    if elapsed is not None:
        follows = torch.ones_like(elapsed[:, 1:], dtype=torch.bool) if valid is None else valid[:, 1:]
        if seq_idx is not None:
            follows = follows & (seq_idx[:, 1:] == seq_idx[:, :-1])
        until_next = torch.cat([torch.where(follows, elapsed[:, 1:], 1), torch.ones_like(elapsed[:, :1])], 1)
        elapsed = flip_valid(until_next, valid)
    return SequenceInfo(elapsed, valid, None if seq_idx is None else flip_valid(seq_idx, valid), return_state=False)
