"""LSTM (Hochreiter and Schmidhuber 1997; Gers et al. 2000), as torch.nn has it, under the contract of a layer: a baseline.

Whole rows run through torch's fused kernel; padded and packed rows, compiled graphs and transforms, cell by
cell. The hidden size is d_model. There is no notion of elapsed time, so `elapsed` is refused.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from longscan.layers._cells import run_cell, run_whole
from longscan.layers._registry import LAYERS
from longscan.layers.base import SequenceInfo, SequenceLayer
from longscan.layers.state import State, layer_state, no_sequence, restarted_rows, zero_rows
from longscan.ops.tracing import in_func_transform


@layer_state
class LSTMState(NamedTuple):
    """`hidden` and `cell` (B, D), and `last_seq_idx` (B,) as in `ScanState`."""

    hidden: Tensor
    cell: Tensor
    last_seq_idx: Tensor


@LAYERS.register("lstm")
class LSTM(SequenceLayer):
    """Long short-term memory with forget gate and biases.

    Args:
        d_model: input and hidden size D.

    The state is `LSTMState`.
    """

    irregular = False

    def __init__(self, d_model: int) -> None:
        super().__init__()
        if d_model < 1:
            raise ValueError(f"d_model: got {d_model}, expected at least 1")
        self.d_model = d_model

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-1 / math.sqrt(d_model), 1 / math.sqrt(d_model)))

        gates = 4 * d_model
        self.weight_ih, self.weight_hh = uniform(gates, d_model), uniform(gates, d_model)
        self.bias_ih, self.bias_hh = uniform(gates), uniform(gates)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """See the top of the file."""
        state = self.initial_state(x.shape[0]) if state is None else state
        rows, last_seq_idx = restarted_rows(state.last_seq_idx, info.valid, info.seq_idx)
        hidden, cell = (zero_rows(rows, part).to(x.dtype) for part in (state.hidden, state.cell))
        whole = info.valid is None and info.seq_idx is None and x.numel() > 0
        if whole and not (torch.compiler.is_compiling() or in_func_transform()):
            weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
            y, (hidden, cell) = run_whole(torch.lstm, x, (hidden, cell), weights)
        else:
            y, (hidden, cell) = run_cell(self._cell, linear(x, self.weight_ih, self.bias_ih), (hidden, cell), info)
        return y, LSTMState(hidden.to(self.state_dtype), cell.to(self.state_dtype), last_seq_idx)

    def _cell(self, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """One step from the projected input (B, 4D)."""
        hidden, cell = state
        enter, forget, new, leave = (projected + linear(hidden, self.weight_hh, self.bias_hh)).chunk(4, -1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
        return torch.sigmoid(leave) * torch.tanh(cell), cell

    def initial_state(self, batch: int) -> LSTMState:
        """Zeros."""
        hidden = torch.zeros(batch, self.d_model, dtype=self.state_dtype, device=self.device)
        return LSTMState(hidden, torch.zeros_like(hidden), no_sequence(batch, self.device))
