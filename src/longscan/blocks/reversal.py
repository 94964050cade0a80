"""Reversal of sequences in time: the run of valid steps is reversed, and padding stays in place."""

import torch
from torch import Tensor

from longscan.distributed.collectives import all_gather
from longscan.distributed.context import SequenceSplit, current_split
from longscan.layers.base import SequenceInfo


def flip_valid(x: Tensor, valid: Tensor | None) -> Tensor:
    """Return x (B, L, ...) with the valid steps of each row reversed in time, and padding in place.

    valid: (B, L), one run of valid steps per row.

    A piece of split sequences is reversed whole, with its padding, and is then a piece of sequences inside `reversed_split`.
    """
    if valid is None or current_split() is not None:
        return x.flip(1)
    if not x.shape[1]:
        return x
    position = torch.arange(x.shape[1], device=x.device)
    first, count = valid.to(torch.int8).argmax(1, keepdim=True), valid.sum(1, keepdim=True)
    mirrored = torch.where(valid, 2 * first + count - 1 - position, position)
    return x.gather(1, mirrored.view(*mirrored.shape, *(1,) * (x.ndim - 2)).expand_as(x))


def reversed_steps(info: SequenceInfo) -> SequenceInfo:
    """Return `info` for the sequence reversed in time, in which the elapsed time of a step is the time until the next step.

    It is 1 for the last step of each sequence. The result has no gate, and requests no final state, because that of the reversed
    sequence would belong to the first step.
    """
    elapsed, valid, seq_idx = info.elapsed, info.valid, info.seq_idx
    split = current_split()
    if split is not None:
        return _reversed_piece(info, split)
    if elapsed is not None:
        follows = torch.ones_like(elapsed[:, 1:], dtype=torch.bool) if valid is None else valid[:, 1:]
        if seq_idx is not None:
            follows = follows & (seq_idx[:, 1:] == seq_idx[:, :-1])
        until_next = torch.cat([torch.where(follows, elapsed[:, 1:], 1), torch.ones_like(elapsed[:, :1])], 1)
        elapsed = flip_valid(until_next, valid)
    return SequenceInfo(elapsed, valid, None if seq_idx is None else flip_valid(seq_idx, valid), return_state=False)


def _reversed_piece(info: SequenceInfo, split: SequenceSplit) -> SequenceInfo:
    """Return `reversed_steps` for a piece of split sequences, whose last step is followed by the first one of the next piece."""
    is_last = split.rank == split.size - 1
    following = split.rank if is_last else split.rank + 1
    elapsed, valid, seq_idx = (
        None if part is None else torch.cat([part, all_gather(part[:, 0], split)[following].unsqueeze(1)], 1) for part in info[:3]
    )
    if elapsed is not None:
        follows = torch.ones_like(elapsed[:, 1:], dtype=torch.bool) if valid is None else valid[:, 1:]
        if seq_idx is not None:
            follows = follows & (seq_idx[:, 1:] == seq_idx[:, :-1])
        if is_last:
            follows = torch.cat([follows[:, :-1], torch.zeros_like(follows[:, :1])], 1)
        elapsed = torch.where(follows, elapsed[:, 1:], 1).flip(1)
    valid, seq_idx = (None if mask is None else mask.flip(1) for mask in (info.valid, info.seq_idx))
    return SequenceInfo(elapsed, valid, seq_idx, return_state=False)
