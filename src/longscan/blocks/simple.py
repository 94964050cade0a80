"""The Simple block of S4 and S4D (Gu et al. 2022): a layer, then a gated linear unit that mixes its channels.

y = GLU(W dropout(GELU(layer(u))) + b)      GLU((p, q)) = p * sigmoid(q)

Rotary positions rotate the layer's input u, see `longscan.blocks.rotary`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, glu

from longscan.blocks._registry import BLOCKS
from longscan.blocks.dropout import SharedDropout, check_probability
from longscan.blocks.gated import GatedState
from longscan.blocks.rotary import Rotary, positions_from
from longscan.layers import make_inner_layer
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, SequenceModule, mask_padding
from longscan.layers.state import State


@BLOCKS.register("simple")
class SimpleBlock(SequenceModule):
    """Layer, GELU, dropout, linear map to 2D, gated linear unit.

    The state is the layer's; with rotary positions `GatedState`, without a convolution.

    Args:
        d_model: width D.
        layer: the inner layer, by its name in `LAYERS`.
        dropout: probability of dropping an activation in training.
        shared_dropout: drop whole channels, for all steps of a sequence at once.
        rotary: settings of `longscan.blocks.Rotary`, whose targets are ("x",) here; None: no positions.
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
        rotary: Mapping[str, Any] | None = None,
        layer_options: dict[str, Any] | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        check_probability("dropout", dropout)
        self.d_model = d_model
        self.layer = self.inherit_properties(make_inner_layer(layer, d_model, layer_options or {}, backend))
        self.dropout: nn.Module = SharedDropout(dropout) if shared_dropout else nn.Dropout(dropout)
        self.out_proj = nn.Linear(d_model, 2 * d_model)
        self.rotary = None if rotary is None else Rotary(d_model, **rotary)
        if self.rotary is not None and self.rotary.targets != ("x",):
            raise ValueError(f"rotary targets: got {self.rotary.targets}, expected ('x',): the layer is turned as a whole")
        check_backend(self, backend)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Run the block of the module docstring."""
        if self.rotary is None:
            y, state = self.layer.call_unchecked(x, state, info)
        else:
            position, after = positions_from(state, x, info)
            y, inner = self.layer.call_unchecked(self.rotary(x, position), None if state is None else state.layer, info)
            state = GatedState(None, inner, after)
        y = glu(self.out_proj(self.dropout(gelu(y))), -1)
        return mask_padding(y, info.valid), state

    def initial_state(self, batch: int) -> State:
        """Return the initial state of the layer, and position 0."""
        inner = self.layer.initial_state(batch)
        if self.rotary is None:
            return inner
        return GatedState(None, inner, torch.zeros(batch, dtype=torch.int64, device=self.device))
