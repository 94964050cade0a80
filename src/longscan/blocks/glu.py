"""A layer and a gated linear unit: the block of S5, S7 and event-ssm, and that of LinOSS and LRU.

    v = dropout(GELU(norm(layer(u))))
    half1: y = v * sigmoid(W v + b)     half2: y = layer(u) * sigmoid(W v + b)     full: y = (W_1 v + b_1) * sigmoid(W_2 v + b_2)

u: input (B, L, D). norm: LayerNorm, or the identity. y is followed by another dropout. The residual branch and its norm are
those of `longscan.blocks.Residual`.
"""

from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.functional import gelu, sigmoid

from longscan._types import FractionBelowOne, PositiveInt
from longscan.blocks.dropout import SharedDropout
from longscan.blocks.residual import layer_norm
from longscan.layers import make_inner_layer
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, SequenceModule, mask_padding
from longscan.layers.state import State
from longscan.ops.dispatch import Backend

Glu = Literal["half1", "half2", "full"]


class GLUBlock(SequenceModule):
    """Block of layer, norm, GELU, dropout, gated linear unit and dropout. The state is that of the layer.

    Args:
        d_model: width D.
        layer: name of the inner layer in `longscan.layers.LAYERS`.
        glu: "half1", "half2" or "full", see the top of the file.
        dropout: probability of dropping an activation in training.
        shared_dropout: drop whole channels, the same at all steps of a sequence.
        output_norm: apply LayerNorm to the output of the layer.
        layer_options: arguments of the inner layer.
        backend: backend of the inner layer's op.
    """

    context_parallel = True

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        layer: str,
        glu: Glu,
        dropout: FractionBelowOne,
        shared_dropout: bool,
        output_norm: bool,
        layer_options: dict[str, Any] | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.d_model, self.glu = d_model, glu
        self.layer = self.inherit_properties(make_inner_layer(layer, d_model, layer_options or {}, backend))
        self.norm = layer_norm(d_model) if output_norm else None
        self.dropout: nn.Module = SharedDropout(dropout) if shared_dropout else nn.Dropout(dropout)
        self.value_proj = nn.Linear(d_model, d_model) if glu == "full" else None
        self.gate_proj = nn.Linear(d_model, d_model)
        check_backend(self, backend)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        u, state = self.layer.call_unchecked(x, state, info)
        return mask_padding(self.mix(u), info.valid), state

    def mix(self, u: Tensor) -> Tensor:
        """Apply norm, GELU, dropout and gated linear unit to the layer's output u (B, L, D): (B, L, D)."""
        normed = u if self.norm is None else self.norm(u).to(u.dtype)  # under autocast GPUs return float32 norms
        v = self.dropout(gelu(normed))
        value = self.value_proj(v) if self.value_proj is not None else u if self.glu == "half2" else v
        return self.dropout(value * sigmoid(self.gate_proj(v)))

    def initial_state(self, batch: int) -> State:
        """Return the initial state of the layer."""
        return self.layer.initial_state(batch)
