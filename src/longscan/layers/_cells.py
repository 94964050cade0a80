"""A cell run step by step over rows with padding and restarts: how the recurrent baselines meet the contract of a layer."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from longscan.layers.base import SequenceInfo
from longscan.ops.masks import INVALID, RESET, step_flags
from longscan.ops.precision import without_autocast
from longscan.ops.tracing import record_length

Cell = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


def run_whole(
    kernel: Callable[..., tuple[Tensor, ...]], x: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """As `run_cell`, for rows without padding and restarts, by torch's fused `kernel`: torch.gru or torch.lstm.

    On a GPU cuDNN wants the weights one behind the other; under autocast it would take float16 whatever the dtype asked for. It
    keeps what a backward needs only where it is told that it trains, which without dropout changes nothing else.

    States of other sizes are refused here: torch's kernels would read past their end.
    """
    wanted = (x.shape[0], weights[1].shape[1])
    for part in state:
        if part.shape != wanted:
            raise ValueError(f"state: got shape {tuple(part.shape)}, expected {wanted}")
    if x.is_cuda:
        if torch.is_autocast_enabled("cuda") and x.dtype != torch.float64:
            dtype = torch.get_autocast_dtype("cuda")
            x, *parts = (value.to(dtype) for value in (x, *state, *weights))
            state, weights = tuple(parts[: len(state)]), tuple(parts[len(state) :])
        whole = torch.cat([weight.flatten() for weight in weights])
        parts = list(torch.split(whole, [weight.numel() for weight in weights]))
        weights = tuple(part.view_as(like) for part, like in zip(parts, weights, strict=True))
    hidden = tuple(part.unsqueeze(0) for part in state)
    trains = torch.is_grad_enabled()
    with without_autocast(x) if x.is_cuda else nullcontext():
        y, *after = kernel(x, hidden if len(hidden) > 1 else hidden[0], weights, True, 1, 0.0, trains, False, True)
    return y, tuple(part.squeeze(0) for part in after)


def run_cell(cell: Cell, x: Tensor, state: tuple[Tensor, ...], info: SequenceInfo) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Outputs (B, L, H) and the final state of `cell(x_t, state) -> state`, whose first entry (B, H) is the output.

    Invalid steps keep the state and give 0; where seq_idx changes the state restarts from zero.
    """
    x, length = record_length(x)
    flags = step_flags(x.shape[0], length, info.valid, info.seq_idx, x)
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
