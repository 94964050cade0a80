"""LSTM (Hochreiter and Schmidhuber 1997; Gers et al. 2000), torch.nn's, under the contract of a layer: a baseline.

Whole rows run through torch's fused kernel; padded and packed rows, and compiled graphs, run cell by cell. The hidden size is
d_model. There is no notion of elapsed time, so `elapsed` is refused.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from longscan.layers._cells import run_cell
from longscan.layers._registry import LAYERS
from longscan.layers.base import SequenceLayer, Steps
from longscan.layers.state import State, layer_state, no_sequence, restarted_rows, zero_rows


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
        self.d_model = d_model
        self.rnn = nn.LSTM(d_model, d_model, batch_first=True)

    def run(self, x: Tensor, state: State, steps: Steps) -> tuple[Tensor, State]:
        """See the top of the file."""
        state = self.initial_state(x.shape[0]) if state is None else state
        rows, last_seq_idx = restarted_rows(state.last_seq_idx, steps.valid, steps.seq_idx)
        hidden, cell = (zero_rows(rows, part).to(x.dtype) for part in (state.hidden, state.cell))
        whole = steps.valid is None and steps.seq_idx is None and x.shape[1] > 0 and x.shape[0] > 0
        if whole and not torch.compiler.is_compiling():
            y, (hidden, cell) = self.rnn(x, (hidden.unsqueeze(0), cell.unsqueeze(0)))
            hidden, cell = hidden.squeeze(0), cell.squeeze(0)
        else:
            weights = dict(self.rnn.named_parameters())
            w = [weights[name] for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")]
            y, (hidden, cell) = run_cell(lambda x_t, parts: torch.lstm_cell(x_t, parts, *w), x, (hidden, cell), steps)
        return y, LSTMState(hidden.to(self.state_dtype), cell.to(self.state_dtype), last_seq_idx)

    def initial_state(self, batch: int) -> LSTMState:
        """Zeros."""
        hidden = torch.zeros(batch, self.d_model, dtype=self.state_dtype, device=self.device)
        return LSTMState(hidden, torch.zeros_like(hidden), no_sequence(batch, self.device))
