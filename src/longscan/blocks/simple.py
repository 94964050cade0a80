"""The Simple block of S4 and S4D (Gu et al. 2022): a layer, then a gated linear unit that mixes its channels.

y = GLU(W dropout(GELU(layer(u))) + b)      GLU((p, q)) = p * sigmoid(q)
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import gelu, glu

from longscan.blocks._registry import BLOCKS
from longscan.blocks.dropout import SharedDropout, check_probability
from longscan.layers import make_layer
from longscan.layers.base import SequenceModule, Steps, hide_padding
from longscan.layers.state import State


@BLOCKS.register("simple")
class SimpleBlock(SequenceModule):
    """Layer, GELU, dropout, linear map to 2D, gated linear unit. The state is the layer's.

    Args:
        d_model: width D.
        layer: the inner layer, by its name in `LAYERS`.
        dropout: probability of dropping an activation in training.
        shared_dropout: drop whole channels, for all steps of a sequence at once.
        layer_options: settings of the inner layer.
        backend: of the inner layer's op.
    """

    def __init__(
        self,
        d_model: int,
        *,
        layer: str = "s4d",
        dropout: float = 0.0,
        shared_dropout: bool = False,
        layer_options: dict[str, Any] | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        check_probability("dropout", dropout)
        self.d_model = d_model
        self.layer = self.adopt(make_layer(layer, d_model, layer_options or {}, backend))
        self.dropout: nn.Module = SharedDropout(dropout) if shared_dropout else nn.Dropout(dropout)
        self.out_proj = nn.Linear(d_model, 2 * d_model)

    def run(self, x: Tensor, state: State, steps: Steps) -> tuple[Tensor, State]:
        """See the top of the file."""
        y, state = self.layer.within(x, state, steps)
        y = glu(self.out_proj(self.dropout(gelu(y))), -1)
        return hide_padding(y, steps.valid), state

    def initial_state(self, batch: int) -> State:
        """The layer's."""
        return self.layer.initial_state(batch)
