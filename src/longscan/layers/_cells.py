"""A cell run step by step over rows with padding and restarts: how the recurrent baselines meet the contract of a layer."""

from collections.abc import Callable

import torch
from torch import Tensor

from longscan.layers.base import Steps
from longscan.ops._arguments import INVALID, RESET, step_flags

Cell = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


def in_one_piece(weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The weights as parts of one tensor on a GPU, where cuDNN wants them one behind the other."""
    if not weights[0].is_cuda:
        return weights
    parts = torch.split(torch.cat([weight.flatten() for weight in weights]), [weight.numel() for weight in weights])
    return tuple(part.view_as(weight) for part, weight in zip(parts, weights, strict=True))


def run_cell(cell: Cell, x: Tensor, state: tuple[Tensor, ...], steps: Steps) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Outputs (B, L, H) and the final state of `cell(x_t, state) -> state`, whose first entry (B, H) is the output.

    Invalid steps keep the state and give 0; where seq_idx changes the state restarts from zero.
    """
    batch, length = x.shape[:2]
    flags = step_flags(batch, length, steps.valid, steps.seq_idx, x)
    outputs = []
    for t in range(length):
        if flags is None:
            state = cell(x[:, t], state)
            outputs.append(state[0])
            continue
        invalid, reset = (flags[:, t] == INVALID).unsqueeze(1), (flags[:, t] == RESET).unsqueeze(1)
        after = cell(x[:, t], tuple(torch.where(reset, 0, part) for part in state))
        outputs.append(torch.where(invalid, 0, after[0]))
        state = tuple(torch.where(invalid, old, new) for old, new in zip(state, after, strict=True))
    return (torch.stack(outputs, 1) if outputs else x[..., : state[0].shape[-1]].clone()), state
