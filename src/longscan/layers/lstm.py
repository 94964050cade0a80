"""LSTM (Hochreiter and Schmidhuber 1997; Gers et al. 2000), as in torch.nn, with the interface of a layer: a baseline.

    (i~_t, f~_t, g~_t, o~_t) = W u_t + b_1 + R h_{t-1} + b_2
    c_t = sigmoid(f~_t) c_{t-1} + sigmoid(i~_t) tanh(g~_t)        h_t = y_t = sigmoid(o~_t) tanh(c_t)

u: input (B, L, D). h: hidden state, c: cell state (B, D). Elapsed times raise ValueError.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from longscan.layers._cells import TorchCell
from longscan.layers._registry import LAYERS
from longscan.layers.base import SequenceInfo
from longscan.layers.state import State, layer_state, no_sequence, restarted_rows, zero_rows


@layer_state
class LSTMState(NamedTuple):
    """State of `LSTM`: `hidden` and `cell` (B, D), and `last_seq_idx` (B,) as in `ScanState`."""

    hidden: Tensor
    cell: Tensor
    last_seq_idx: Tensor


@LAYERS.register("lstm")
class LSTM(TorchCell):
    """Long short-term memory with forget gate and biases.

    Args:
        d_model: input and hidden size D.

    The state is `LSTMState`. On a CPU torch's kernels (oneDNN) cache about 0.4 MiB for each of up to 1,024 different lengths:
    process a stream in pieces of equal length, or set the environment variable ONEDNN_PRIMITIVE_CACHE_CAPACITY.
    """

    gates = 4
    kernel = torch.lstm
    hold = (-1e4, 1e4, 0.0, 0.0)  # for i, f, g, o: the sigmoids of i and f become 0 and 1 in every dtype

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        state = self.initial_state(x.shape[0]) if state is None else state
        rows, last_seq_idx = restarted_rows(state.last_seq_idx, info.valid, info.seq_idx)
        hidden, cell = (zero_rows(rows, part).to(x.dtype) for part in (state.hidden, state.cell))
        y, (hidden, cell) = self.run(x, (hidden, cell), info)
        return y, LSTMState(hidden.to(self.state_dtype), cell.to(self.state_dtype), last_seq_idx)

    def cell(self, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """See `TorchCell.cell`."""
        hidden, cell = state
        i, f, g, o = (projected + linear(hidden, self.weight_hh, self.bias_hh)).chunk(4, -1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell

    def initial_state(self, batch: int) -> LSTMState:
        """Return zeros for all fields of `LSTMState`."""
        hidden = torch.zeros(batch, self.d_model, dtype=self.state_dtype, device=self.device)
        return LSTMState(hidden, torch.zeros_like(hidden), no_sequence(batch, self.device))
