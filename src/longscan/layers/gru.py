"""GRU (Cho et al. 2014), as in torch.nn, with the interface of a layer: the baseline that a state space model must beat.

    r_t = sigmoid(W_r u_t + R_r h_{t-1} + b_r)      z_t = sigmoid(W_z u_t + R_z h_{t-1} + b_z)
    n_t = tanh(W_n u_t + b_n + r_t (R_n h_{t-1} + c_n))          h_t = y_t = (1 - z_t) n_t + z_t h_{t-1}

u: input (B, L, D). h: hidden state (B, D). Elapsed times raise ValueError.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear

from longscan.layers._cells import TorchCell
from longscan.layers._registry import LAYERS
from longscan.layers.base import SequenceInfo, start_state
from longscan.layers.state import ScanState, State, no_sequence


@LAYERS.register("gru")
class GRU(TorchCell):
    """Gated recurrent unit with biases.

    Args:
        d_model: input and hidden size D.

    The state is `ScanState` with ssm (B, D), the hidden state.
    """

    gates = 3
    kernel = torch.gru

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        initial, last_seq_idx = start_state(state, x.shape[0], info, x.device)
        hidden = x.new_zeros(x.shape[0], self.d_model) if initial is None else initial.to(x.dtype)
        y, (hidden,) = self.run(x, (hidden,), info)
        return y, ScanState(hidden.to(self.state_dtype), last_seq_idx)

    def cell(self, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """See `TorchCell.cell`."""
        reset, update, new = projected.chunk(3, -1)
        reset_h, update_h, new_h = linear(state[0], self.weight_hh, self.bias_hh).chunk(3, -1)
        candidate = torch.tanh(new + torch.sigmoid(reset + reset_h) * new_h)
        return (candidate + torch.sigmoid(update + update_h) * (state[0] - candidate),)

    def initial_state(self, batch: int) -> ScanState:
        """Return zeros: ssm (batch, D)."""
        ssm = torch.zeros(batch, self.d_model, dtype=self.state_dtype, device=self.device)
        return ScanState(ssm, no_sequence(batch, self.device))
