"""The Simple block of S4 and S4D (Gu et al. 2022): a layer, then a gated linear unit that mixes its channels.

y = GLU(W dropout(GELU(layer(u))) + b)      GLU((p, q)) = p * sigmoid(q)

Rotary positions rotate the layer's input u, see `longscan.blocks.rotary`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, glu

from longscan._types import FractionBelowOne, PositiveInt
from longscan.blocks._registry import BLOCKS
from longscan.blocks.dropout import SharedDropout
from longscan.blocks.gated import GatedState
from longscan.blocks.rotary import Rotary, positions_from
from longscan.layers import make_inner_layer
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, SequenceModule, mask_padding
from longscan.layers.state import State
from longscan.ops.dispatch import Backend


@BLOCKS.register("simple")
class SimpleBlock(SequenceModule):
    """Block of layer, GELU, dropout, linear map to 2 D and gated linear unit.

    The state is that of the layer, or with rotary positions a `GatedState` without a convolution.

    Args:
        d_model: width D.
        layer: name of the inner layer in `longscan.layers.LAYERS`.
        dropout: probability of dropping an activation in training.
        shared_dropout: drop whole channels, the same at all steps of a sequence.
        rotary: arguments of `longscan.blocks.Rotary`, with targets ("x",); None for no rotary positions.
        layer_options: arguments of the inner layer.
        backend: backend of the inner layer's op.
    """

    context_parallel = True

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        layer: str = "s4d",
        dropout: FractionBelowOne = 0.0,
        shared_dropout: bool = False,
        rotary: Mapping[str, Any] | None = None,
        layer_options: dict[str, Any] | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.layer = self.inherit_properties(make_inner_layer(layer, d_model, layer_options or {}, backend))
        self.dropout: nn.Module = SharedDropout(dropout) if shared_dropout else nn.Dropout(dropout)
        self.out_proj = nn.Linear(d_model, 2 * d_model)
        self.rotary = None if rotary is None else Rotary(d_model, **rotary)
        if self.rotary is not None and self.rotary.targets != ("x",):
            raise ValueError(f"`rotary` must have the targets ('x',), the input of the layer, got {self.rotary.targets}")
        check_backend(self, backend)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
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
