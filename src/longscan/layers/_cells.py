"""Loops over time for the recurrent baselines (GRU, LSTM, sLSTM), with padding and restarts."""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from longscan._types import PositiveInt
from longscan.layers.base import SequenceInfo, SequenceLayer
from longscan.numerics.initialisers import uniform_fan_in
from longscan.ops.arguments import INVALID, RESET, step_flags, without_autocast
from longscan.ops.tracing import fix_length, in_func_transform

Cell = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


def run_fused_kernel(
    kernel: Callable[..., tuple[Tensor, ...]], x: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run torch's fused `kernel`, torch.gru or torch.lstm, on rows without padding and restarts.

    Autocast is applied here: cuDNN would use fp16 for any autocast dtype, and torch.lstm fails for float32 inputs on a CPU. On a
    GPU, cuDNN needs the weights in one contiguous block. With the argument `train` it stores intermediate results for the
    backward pass; without dropout this changes nothing else.

    Args:
        kernel: torch.gru or torch.lstm.
        x: (B, L, D).
        state: tensors (B, H) of the state before the first step.
        weights: input weights, recurrent weights and their biases, as in `torch.nn.GRU`.

    Returns the outputs (B, L, H) and the state after the last step. Raises ValueError for states of other sizes, which torch's
    kernels do not check: they would read past the end of the memory.
    """
    wanted = (x.shape[0], weights[1].shape[1])
    for part in state:
        if part.shape != wanted:
            raise ValueError(f"`state` must have tensors of shape {wanted}, got {tuple(part.shape)}")
    if not torch.compiler.is_compiling():  # make_fx and torch.jit.trace record torch's kernel step by step
        x, _ = fix_length(x)
    device = x.device.type
    if device != "meta" and torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
        x, *parts = (value.to(dtype) for value in (x, *state, *weights))
        state, weights = tuple(parts[: len(state)]), tuple(parts[len(state) :])
    if x.is_cuda:
        whole = torch.cat([weight.flatten() for weight in weights])
        parts = list(torch.split(whole, [weight.numel() for weight in weights]))
        weights = tuple(part.view_as(like) for part, like in zip(parts, weights, strict=True))
    hidden = tuple(part.unsqueeze(0) for part in state)
    trains = torch.is_grad_enabled()
    with without_autocast(x):
        y, *after = kernel(x, hidden if len(hidden) > 1 else hidden[0], weights, True, 1, 0.0, trains, False, True)
    return y, tuple(part.squeeze(0) for part in after)


def run_fused_valid_steps(
    kernel: Callable[..., tuple[Tensor, ...]],
    x: Tensor,
    state: tuple[Tensor, ...],
    weights: tuple[Tensor, ...],
    invalid: Tensor,
    hold: tuple[float, ...],
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run `run_fused_kernel` on the valid steps of each row only; outputs at the other steps are 0.

    An invalid step changes no state. So the valid steps of a row are moved to its front, in their order, the kernel runs over all
    L steps, and the outputs are moved back. The hidden state is the output of the last valid step. Other states of the kernel
    (the cell state of an LSTM) are those after all L steps, so they must not change after the valid steps: there an additional
    input feature is 1, whose weights `hold` open the gate of the old state and close that of the new input.

    Args:
        kernel, x, state, weights: as in `run_fused_kernel`.
        invalid: (B, L) bool, True at padding.
        hold: the weight of the additional feature for each gate; empty if the hidden state is the only state.
    """
    index = invalid.to(torch.uint8).argsort(dim=1, stable=True).unsqueeze(-1)  # the valid steps of each row, then the others
    padded = invalid.unsqueeze(-1).gather(1, index)
    x = torch.where(padded, 0, x.gather(1, index.expand_as(x)))
    if hold:
        # filled on the device: a copy from the host cannot be part of a CUDA graph
        held = torch.cat([weights[0].new_full((weights[1].shape[1], 1), weight) for weight in hold])
        x, weights = torch.cat([x, padded.to(x.dtype)], -1), (torch.cat([weights[0], held], 1), *weights[1:])
    outputs, (_, *others) = run_fused_kernel(kernel, x, state, weights)
    steps = (~padded).sum(1, keepdim=True)  # (B, 1, 1): number of valid steps
    last = outputs.gather(1, (steps - 1).clamp(min=0).expand(-1, -1, outputs.shape[-1])).squeeze(1)
    hidden = torch.where(steps.squeeze(1) > 0, last, state[0].to(last.dtype))
    y = torch.zeros_like(outputs).scatter(1, index.expand_as(outputs), torch.where(padded, 0, outputs))
    return y, (hidden, *others)


def run_cell(cell: Cell, x: Tensor, state: tuple[Tensor, ...], info: SequenceInfo) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run `cell(x_t, state) -> state` over x (B, L, ...); return the outputs (B, L, H) and the final state.

    The first tensor of a state, (B, H), is the output of the step. At padding the state is unchanged and the output 0; where
    seq_idx changes the state restarts from zero.
    """
    x, length = fix_length(x)
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


class TorchCell(SequenceLayer):
    """Base of GRU and LSTM: the parameters of torch.nn.GRU or torch.nn.LSTM with one layer, of hidden size d_model.

    Rows without restarts use torch's fused kernel. Rows with restarts, compiled graphs and transforms run step by step.

    Attributes:
        gates: number of projections of width d_model in a step.
        kernel: torch's fused kernel.
        hold: see `run_fused_valid_steps`.
    """

    irregular = False
    gates: ClassVar[int]
    kernel: ClassVar[Callable[..., tuple[Tensor, ...]]]
    hold: ClassVar[tuple[float, ...]] = ()

    def __init__(self, d_model: PositiveInt) -> None:
        super().__init__()
        self.d_model = d_model

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter(uniform_fan_in(*shape, fan_in=d_model))

        width = self.gates * d_model
        self.weight_ih, self.weight_hh = uniform(width, d_model), uniform(width, d_model)
        self.bias_ih, self.bias_hh = uniform(width), uniform(width)

    @abstractmethod
    def cell(self, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the state after one step, from the projected input (B, gates * D); its first tensor is the output (B, D)."""

    def run(self, x: Tensor, state: tuple[Tensor, ...], info: SequenceInfo) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the outputs (B, L, D) and the state after the last step, from x (B, L, D) and the state before the first."""
        if info.seq_idx is not None or x.numel() == 0 or torch.compiler.is_compiling() or in_func_transform():
            return run_cell(self.cell, linear(x, self.weight_ih, self.bias_ih), state, info)
        kernel, weights = type(self).kernel, (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        flags = step_flags(x.shape[0], x.shape[1], info.valid, None, x)
        if flags is None:
            return run_fused_kernel(kernel, x, state, weights)
        return run_fused_valid_steps(kernel, x, state, weights, flags == INVALID, self.hold)
