"""GRU (Cho et al. 2014), as torch.nn has it, under the contract of a layer: the baseline that a state space model must beat.

Whole rows run through torch's fused kernel; padded and packed rows, compiled graphs and transforms, cell by
cell. The hidden size is d_model. There is no notion of elapsed time, so `elapsed` is refused.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from longscan.layers._cells import run_cell, run_whole
from longscan.layers._registry import LAYERS
from longscan.layers.base import SequenceInfo, SequenceLayer, start_state
from longscan.layers.state import ScanState, State, no_sequence
from longscan.ops.tracing import in_func_transform


@LAYERS.register("gru")
class GRU(SequenceLayer):
    """Gated recurrent unit with biases.

    Args:
        d_model: input and hidden size D.

    The state is `ScanState` with ssm (B, D), the hidden state.
    """

    irregular = False

    def __init__(self, d_model: int) -> None:
        super().__init__()
        if d_model < 1:
            raise ValueError(f"d_model: got {d_model}, expected at least 1")
        self.d_model = d_model

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-1 / math.sqrt(d_model), 1 / math.sqrt(d_model)))

        gates = 3 * d_model
        self.weight_ih, self.weight_hh = uniform(gates, d_model), uniform(gates, d_model)
        self.bias_ih, self.bias_hh = uniform(gates), uniform(gates)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """See the top of the file."""
        initial, last_seq_idx = start_state(state, x.shape[0], info, x.device)
        hidden = x.new_zeros(x.shape[0], self.d_model) if initial is None else initial.to(x.dtype)
        whole = info.valid is None and info.seq_idx is None and x.numel() > 0
        if whole and not (torch.compiler.is_compiling() or in_func_transform()):
            weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
            y, (hidden,) = run_whole(torch.gru, x, (hidden,), weights)
        else:
            y, (hidden,) = run_cell(self._cell, linear(x, self.weight_ih, self.bias_ih), (hidden,), info)
        return y, ScanState(hidden.to(self.state_dtype), last_seq_idx)

    def _cell(self, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """One step from the projected input (B, 3D)."""
        reset, update, new = projected.chunk(3, -1)
        reset_h, update_h, new_h = linear(state[0], self.weight_hh, self.bias_hh).chunk(3, -1)
        candidate = torch.tanh(new + torch.sigmoid(reset + reset_h) * new_h)
        return (candidate + torch.sigmoid(update + update_h) * (state[0] - candidate),)

    def initial_state(self, batch: int) -> ScanState:
        """Zeros: ssm (batch, D)."""
        ssm = torch.zeros(batch, self.d_model, dtype=self.state_dtype, device=self.device)
        return ScanState(ssm, no_sequence(batch, self.device))
