"""Base of linear time-invariant layers (S4, S4D): a convolution over evenly spaced steps, a recurrence over other steps.

    x_k = a x_{k-1} + b u_k       y_k = 2 Re sum_n C_n x_k + skip u_k

With the state s before the first step, the kernel K_l = 2 Re sum_n C_n a^l b, and without the skip, this is

    y_k = sum_{l<=k} K_l u_{k-l} + 2 Re sum_n C_n a^{k+1} s

u: input (B, L, D). x: state (B, D, N/2), complex, one of each conjugate pair. K: (D, L).
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from longscan.distributed.context import current_split
from longscan.layers.base import SequenceInfo, SequenceLayer, mask_padding, start_state
from longscan.layers.state import ScanState, State, no_sequence
from longscan.ops.arguments import step_flags, without_autocast
from longscan.ops.pieces import PieceMap, pass_states, scan_piece
from longscan.ops.tracing import record_length

COUNT_BASE = 2**18  # numbers of steps are sent as two digits of this base


class ConvolutionForm(NamedTuple):
    """A linear time-invariant system over L steps.

    Attributes:
        convolve: function of inputs (B, L, D) that returns their convolution with K, (B, L, D).
        free_response: function of an initial state (B, D, N/2, 2) that returns the outputs (B, D, L) for zero input,
            2 Re sum_n C_n a^{k+1} s.
        final_state: function of inputs (B, L, D), an initial state or None, and numbers of steps (B,) or (1,) that returns the
            state (B, D, N/2, 2) after the last step. Row b consists of its last count[b] steps; earlier inputs are 0.
        propagate: function of a state and numbers of steps (B,) or (1,) that returns the state after these steps for zero input,
            a^count s.
    """

    convolve: Callable[[Tensor], Tensor]
    free_response: Callable[[Tensor], Tensor]
    final_state: Callable[[Tensor, Tensor | None, Tensor], Tensor]
    propagate: Callable[[Tensor, Tensor], Tensor]


def convolve(
    u: Tensor, system: ConvolutionForm, initial: Tensor | None, valid: Tensor | None, return_state: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the outputs (B, L, D) of a system without the skip, and its final state, None unless `return_state`.

    Args:
        u: inputs (B, L, D).
        system: the system over L steps.
        initial: the state before the first valid step, (B, D, N/2, 2); None for zeros.
        valid: (B, L) bool, one run of valid steps per row; None if all are valid.
        return_state: whether to compute the final state.
    """
    length = u.shape[1]
    position = torch.arange(length, device=u.device)
    first, count = 0 * position[:1], length + 0 * position[:1]  # tensors, so that exported graphs have a dynamic length
    shifted = u = mask_padding(u, valid)
    if valid is not None:  # shift each row cyclically until its last valid step is its last step; the padding is 0
        first, count = valid.to(torch.int8).argmax(1), valid.sum(1)
        source = (position + (first + count).unsqueeze(1)) % length
        shifted = u.gather(1, source.unsqueeze(-1).expand_as(u))
    y, final = system.convolve(u), None
    split = current_split()
    if split is not None:
        local = system.final_state(shifted, None, count)
        start = torch.zeros_like(local) if initial is None else initial
        initial, final = pass_states(split, start, local, count_map(system, count), None)
    if initial is not None:
        response = system.free_response(initial).transpose(1, 2)
        since = (position - first.unsqueeze(1)).clamp(min=0)
        y = y + response.gather(1, since.unsqueeze(-1).expand_as(response))
    if final is None and return_state:
        final = system.final_state(shifted, initial, count)
    return y, final if return_state else None


def count_map(system: ConvolutionForm, count: Tensor) -> PieceMap:
    """Return the map from a state to the state after `count` steps, (B,) or (1,), with zero input.

    Each number of steps is sent as two digits of the base `COUNT_BASE`, which are exact in float32 for up to 2^36 steps.
    """

    def apply(state: Tensor, high: Tensor, low: Tensor) -> Tensor:
        return system.propagate(state, high.to(torch.int64) * COUNT_BASE + low.to(torch.int64))

    return PieceMap([count // COUNT_BASE, count % COUNT_BASE], apply)


class ConvolutionLayer(SequenceLayer):
    """Base of S4 and S4D: state `ScanState` with ssm (B, D, N/2, 2), parameters C (D, N/2, 2) and skip D (D,).

    Rows with evenly spaced steps are convolved; single steps, rows with elapsed times and packed rows run step by step.
    """

    context_parallel = True
    time_invariant = True
    C: nn.Parameter
    D: nn.Parameter
    d_state: int
    backend: str

    @abstractmethod
    def convolution_form(self, length: int) -> ConvolutionForm:
        """Return the system over `length` evenly spaced steps."""

    @abstractmethod
    def recur(self, u: Tensor, initial: Tensor, info: SequenceInfo, flags: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the outputs (B, L, D) without the skip, and the final state, computed step by step.

        Memory is bounded by a chunk of steps. u: (B, L, D). initial: (B, D, N/2, 2). flags: `step_flags` of the masks of `info`.
        """

    @abstractmethod
    def recurrence_map(self, u: Tensor, info: SequenceInfo) -> PieceMap:
        """Return the map of states by the steps of a piece u (B, L, D), without restarts, for `recur`."""

    def convolve(
        self, u: Tensor, initial: Tensor | None, valid: Tensor | None, return_state: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Return what `recur` returns for evenly spaced steps, by convolution; the state is None unless `return_state`."""
        u, length = record_length(u)
        return convolve(u, self.convolution_form(length), initial, valid, return_state)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step, by convolution or step by step."""
        initial, last_seq_idx = start_state(state, x.shape[0], info, x.device)
        u = x.to(self.C.dtype)
        with without_autocast(u):
            if info.elapsed is None and info.seq_idx is None and x.shape[1] > 1:
                y, ssm = self.convolve(u, initial, info.valid, info.return_state)
            else:
                y, ssm = self._recur_piece(u, self.initial_state(x.shape[0]).ssm if initial is None else initial, info)
        after = None if ssm is None else ScanState(ssm, last_seq_idx)
        return mask_padding(y + self.D * u, info.valid).to(x.dtype), after

    def _recur_piece(self, u: Tensor, initial: Tensor, info: SequenceInfo) -> tuple[Tensor, Tensor]:
        """Return what `recur` returns, for pieces of split sequences, too."""
        flags = step_flags(u.shape[0], u.shape[1], info.valid, info.seq_idx, u)
        return scan_piece(lambda state: self.recur(u, state, info, flags), initial, flags, lambda: self.recurrence_map(u, info))

    def initial_state(self, batch: int) -> ScanState:
        """Return zeros: ssm (batch, D, N/2, 2)."""
        ssm = torch.zeros(batch, self.d_model, self.d_state // 2, 2, dtype=self.state_dtype, device=self.device)
        return ScanState(ssm, no_sequence(batch, self.device))
