"""The feed-forward block of Transformers (Vaswani et al. 2017, section 3.3), which acts on each step separately.

    y = W_2 dropout(GELU(W_1 x + b_1)) + b_2        gated: y = W_2 dropout(SiLU(W_1 x) * W_3 x), without biases (Shazeer 2020)

x: (B, L, D).
"""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from longscan._types import FractionBelowOne, PositiveInt
from longscan.blocks._registry import BLOCKS
from longscan.layers.base import SequenceInfo, SequenceModule, mask_padding
from longscan.layers.state import State, layer_state


@layer_state
class Stateless(NamedTuple):
    """The empty state of a module without memory."""


@BLOCKS.register("feed_forward")
class FeedForwardBlock(SequenceModule):
    """Two linear maps with GELU between them, applied to every step separately.

    It contains no layer, and elapsed times have no effect.

    Args:
        d_model: width D of inputs and outputs.
        d_hidden: hidden width; None for 4 D.
        gated: use the gated form (SwiGLU), which has three linear maps.
        dropout: probability of dropping a hidden activation in training.
    """

    context_parallel = True

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        d_hidden: PositiveInt | None = None,
        gated: bool = False,
        dropout: FractionBelowOne = 0.0,
    ) -> None:
        super().__init__()
        hidden = 4 * d_model if d_hidden is None else d_hidden
        self.d_model, self.gated = d_model, gated
        self.in_proj = nn.Linear(d_model, 2 * hidden if gated else hidden, bias=not gated)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(hidden, d_model, bias=not gated)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        h = self.in_proj(x)
        if self.gated:
            first, second = h.chunk(2, -1)
            h = silu(first) * second
        else:
            h = gelu(h)
        return mask_padding(self.out_proj(self.dropout(h)), info.valid), Stateless() if state is None else state

    def initial_state(self, batch: int) -> Stateless:  # noqa: ARG002 - there is nothing to make for a row
        """Return the empty state."""
        return Stateless()
