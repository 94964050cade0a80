"""sLSTM, the scalar memory of xLSTM (Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory", equations 8-18).

    (z~_t, i~_t, f~_t, o~_t) = W u_t + R y_{t-1} + b
    z_t = tanh(z~_t)    i_t = e^{i~_t}  f_t = sigmoid(f~_t)     o_t = sigmoid(o~_t)
    c_t = f_t c_{t-1} + i_t z_t         n_t = f_t n_{t-1} + i_t         y_t = o_t c_t / n_t

u: input (B, L, D) of H heads of width P. c: memory, n: normaliser (B, D). R mixes the memories of a head: four (H, P, P).

With the stabiliser m_t = max(log f_t + m_{t-1}, log i_t) (equations 15-17) c and n are stored times e^{-m}, which changes no
output; at the first step m is log i_t. The recurrence is not linear, so it runs step by step.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid

from longscan._types import PositiveInt
from longscan.layers._cells import run_cell
from longscan.layers._registry import LAYERS
from longscan.layers.base import SequenceInfo, SequenceLayer
from longscan.layers.heads import head_width
from longscan.layers.parameters import mark
from longscan.layers.state import State, layer_state, no_sequence, restarted_rows, zero_rows
from longscan.numerics.initialisers import uniform_fan_in
from longscan.ops.arguments import without_autocast


@layer_state
class SLSTMState(NamedTuple):
    """State of `SLSTM`: `hidden` y, `cell` c, `normaliser` n and `stabiliser` m, (B, D) each; `last_seq_idx` (B,)."""

    hidden: Tensor
    cell: Tensor
    normaliser: Tensor
    stabiliser: Tensor
    last_seq_idx: Tensor


@LAYERS.register("slstm")
class SLSTM(SequenceLayer):
    """An LSTM with exponential input gates, a normaliser, and recurrent connections within heads.

    Args:
        d_model: input and hidden size D.
        head_dim: channels P of a head; None for the largest divisor of D up to 64.

    Elapsed times raise ValueError. The state is `SLSTMState`.
    """

    irregular = False

    def __init__(self, d_model: PositiveInt, *, head_dim: PositiveInt | None = None) -> None:
        super().__init__()
        self.d_model, self.head_dim = d_model, head_width(d_model, head_dim)
        self.heads = d_model // self.head_dim

        self.in_proj = nn.Parameter(uniform_fan_in(4 * d_model, d_model, fan_in=d_model))
        self.recurrent = nn.Parameter(uniform_fan_in(self.heads, 4 * self.head_dim, self.head_dim, fan_in=self.head_dim))
        bias = torch.zeros(4, d_model)
        bias[2] = torch.linspace(3, 6, d_model)
        self.bias = mark(nn.Parameter(bias.flatten()), "selector", decay=False, keep_float32=True)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        state = self.initial_state(x.shape[0]) if state is None else state
        rows, last_seq_idx = restarted_rows(state.last_seq_idx, info.valid, info.seq_idx)
        parts = tuple(zero_rows(rows, part).to(self.bias.dtype) for part in state[:4])
        projected = linear(x, self.in_proj).to(self.bias.dtype) + self.bias
        with without_autocast(x):
            y, (hidden, cell, normaliser, stabiliser) = run_cell(self._cell, projected, parts, info)
        return y.to(x.dtype), SLSTMState(hidden, cell, normaliser, stabiliser, last_seq_idx)

    def _cell(self, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the state after one step, from the projected input (B, 4D)."""
        hidden, cell, normaliser, stabiliser = state
        by_head = hidden.view(-1, self.heads, self.head_dim)
        mixed = torch.einsum("bhp,hqp->bhq", by_head, self.recurrent.to(hidden.dtype))  # z, i, f and o of each head
        mixed = mixed.view(-1, self.heads, 4, self.head_dim).transpose(1, 2).flatten(1)
        z, log_i, raw_f, o = (projected + mixed).chunk(4, -1)
        is_first = normaliser == 0
        carried = logsigmoid(raw_f) + stabiliser  # log f_t + m_{t-1}
        m = torch.where(is_first, log_i, torch.maximum(carried, log_i))
        decay, weight = torch.where(is_first, 0, carried - m).exp(), (log_i - m).exp()
        cell, normaliser = decay * cell + weight * torch.tanh(z), decay * normaliser + weight
        return torch.sigmoid(o) * cell / normaliser, cell, normaliser, m

    def initial_state(self, batch: int) -> SLSTMState:
        """Return zeros for all fields of `SLSTMState`."""
        zeros = torch.zeros(4, batch, self.d_model, dtype=self.state_dtype, device=self.device)
        hidden, cell, normaliser, stabiliser = zeros.unbind()
        return SLSTMState(hidden, cell, normaliser, stabiliser, no_sequence(batch, self.device))
