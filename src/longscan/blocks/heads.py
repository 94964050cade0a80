"""The block around heads with a matrix state (Dao and Gu 2024, section 7.1 and figure 6), with one projection for all inputs.

    (z, x, s) = W_in u      (x, s') = silu(conv(x, s'))     y = W_out norm(heads(x, s) * silu(z))

u: input (B, L, D). z, x: (B, L, E), E = expand * D. s: selected features of the heads (step sizes, input and output maps). s':
those of them to which the convolution is applied. norm: RMSNorm over each group of E / G channels, after the gate. The two
projections have no bias.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from longscan._types import NonNegativeInt, PositiveInt
from longscan.blocks.gated import GatedState, carried_conv, conv_parameters, convolve
from longscan.blocks.residual import EPSILON
from longscan.layers import LAYERS, make_inner_layer
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, SequenceModule
from longscan.layers.heads import HeadsLayer
from longscan.layers.parameters import mark
from longscan.layers.state import State
from longscan.ops.dispatch import Backend


class HeadsBlock(SequenceModule):
    """Block of in_proj, short convolution, heads, gate, norm and out_proj.

    Args:
        d_model: width D of inputs and outputs.
        layer: name in `longscan.layers.LAYERS` of a layer with heads.
        expand: ratio of the inner width to D.
        d_conv: number of taps of the convolution of x and s', which SiLU follows; 0 for neither.
        norm: apply RMSNorm before out_proj.
        layer_options: arguments of the layer, of which only the heads are used.
        backend: backend of the heads' op and of the convolution.

    The state is `GatedState`, with conv (B, E + s', d_conv - 1).
    """

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        layer: str,
        expand: PositiveInt,
        d_conv: NonNegativeInt,
        norm: bool,
        layer_options: dict[str, Any] | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.d_model, self.d_inner, self.d_conv, self.backend = d_model, expand * d_model, d_conv, backend
        self.op_names = ("short_conv",) if d_conv else ()
        inner = self.inherit_properties(make_inner_layer(layer, self.d_inner, layer_options or {}, backend))
        if not isinstance(inner, HeadsLayer):
            heads = [name for name, kind in LAYERS.items() if isinstance(kind, type) and issubclass(kind, HeadsLayer)]
            choices = ", ".join(sorted(heads))
            raise ValueError(f"`layer` must be a layer with heads, one of {choices}, got {layer!r}")
        self.heads, self.context_parallel = inner.heads, inner.context_parallel
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner + self.heads.selected, bias=False)
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self.conv_weight, self.conv_bias = conv_parameters(self.d_inner + self.heads.convolved, d_conv)
        self.norm_weight: nn.Parameter | None = None
        if norm:
            self.norm_weight = mark(nn.Parameter(torch.ones(self.d_inner)), "norm", decay=False)
        check_backend(self, backend)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        heads = self.heads
        sizes = [self.d_inner, self.d_inner + heads.convolved, heads.selected - heads.convolved]
        z, inner, rest = torch.split(self.in_proj(x), sizes, -1)
        conv = None
        if self.conv_weight is not None:
            conv = None if state is None else carried_conv(state, info)
            inner, conv = convolve(inner, self.conv_weight, self.conv_bias, conv, "silu", info, self.backend)
        selected = torch.cat([inner[..., self.d_inner :], rest], -1)
        before = None if state is None else state.layer
        y, after = heads(inner[..., : self.d_inner], selected, before, info._replace(gate=z))
        if self.norm_weight is not None:
            width = self.d_inner // heads.groups
            y = rms_norm(y.reshape(*y.shape[:-1], heads.groups, width), (width,), eps=EPSILON).flatten(-2) * self.norm_weight
        return self.out_proj(y), GatedState(conv, after)

    def initial_state(self, batch: int) -> GatedState:
        """Return zeros, and the initial state of the layer."""
        conv = None
        if self.d_conv:
            width = self.d_inner + self.heads.convolved
            conv = torch.zeros(batch, width, self.d_conv - 1, dtype=self.state_dtype, device=self.device)
        return GatedState(conv, self.heads.initial_state(batch))
