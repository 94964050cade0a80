"""GRU (Cho et al. 2014), torch.nn's, under the contract of a layer: the baseline that a state space model must beat.

Whole rows run through torch's fused kernel; padded and packed rows, and compiled graphs, run cell by cell. The hidden size is
d_model. There is no notion of elapsed time, so `elapsed` is refused.
"""

import torch
from torch import Tensor, nn

from longscan.layers._cells import run_cell
from longscan.layers._registry import LAYERS
from longscan.layers.base import SequenceLayer, Steps, resume
from longscan.layers.state import ScanState, State, no_sequence


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
        self.d_model = d_model
        self.rnn = nn.GRU(d_model, d_model, batch_first=True)

    def run(self, x: Tensor, state: State, steps: Steps) -> tuple[Tensor, State]:
        """See the top of the file."""
        initial, last_seq_idx = resume(state, x.shape[0], steps, x.device)
        hidden = x.new_zeros(x.shape[0], self.d_model) if initial is None else initial.to(x.dtype)
        whole = steps.valid is None and steps.seq_idx is None and x.shape[1] > 0 and x.shape[0] > 0
        if whole and not torch.compiler.is_compiling():
            y, final = self.rnn(x, hidden.unsqueeze(0))
            hidden = final.squeeze(0)
        else:
            weights = dict(self.rnn.named_parameters())
            w = [weights[name] for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")]
            y, (hidden,) = run_cell(lambda x_t, h: (torch.gru_cell(x_t, h[0], *w),), x, (hidden,), steps)
        return y, ScanState(hidden.to(self.state_dtype), last_seq_idx)

    def initial_state(self, batch: int) -> ScanState:
        """Zeros: ssm (batch, D)."""
        ssm = torch.zeros(batch, self.d_model, dtype=self.state_dtype, device=self.device)
        return ScanState(ssm, no_sequence(batch, self.device))
