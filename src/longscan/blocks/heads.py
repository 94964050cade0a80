"""The block around heads with a matrix state (Dao and Gu 2024, section 7.1 and figure 6): one projection for all they need.

    (z, x, s) = W_in u      (x, s') = silu(conv(x, s'))     y = W_out norm(heads(x, s) * silu(z))

u: input (B, L, D). z, x: (B, L, E), E = expand * D. s: what the heads select (step sizes, input and output maps); s': the part of
it that passes the convolution. No bias in the two projections. norm: RMSNorm over each group of E / G channels, after the gate.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from longscan.blocks.gated import GatedState, carried_conv, check_sizes, conv_parameters, convolve
from longscan.blocks.residual import EPSILON
from longscan.layers import make_inner_layer
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, SequenceModule
from longscan.layers.heads import HeadsLayer
from longscan.layers.parameters import mark
from longscan.layers.state import State


class HeadsBlock(SequenceModule):
    """in_proj, short convolution, heads, gate, norm, out_proj.

    Args:
        d_model: width D at both ends.
        layer: name in `LAYERS` of a layer with heads.
        expand: inner width over D.
        d_conv: taps of the convolution over x and s', and SiLU after it; 0 leaves both out.
        norm: RMSNorm before out_proj.
        layer_options: settings of the layer, whose heads are taken; its own projection is not.
        backend: of the heads' op and of the convolution.

    The state is `GatedState`, with conv (B, E + s', d_conv - 1).
    """

    def __init__(
        self,
        d_model: int,
        *,
        layer: str,
        expand: int,
        d_conv: int,
        norm: bool,
        layer_options: dict[str, Any] | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        check_sizes(d_model, expand, d_conv)
        self.d_model, self.d_inner, self.d_conv, self.backend = d_model, expand * d_model, d_conv, backend
        self.op_names = ("short_conv",) if d_conv else ()
        made = self.inherit_properties(make_inner_layer(layer, self.d_inner, layer_options or {}, backend))
        if not isinstance(made, HeadsLayer):
            raise ValueError(f"layer: got {layer!r}, expected a layer with heads")
        self.heads = made.heads
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner + self.heads.selected, bias=False)
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self.conv_weight, self.conv_bias = conv_parameters(self.d_inner + self.heads.convolved, d_conv)
        self.norm_weight: nn.Parameter | None = None
        if norm:
            self.norm_weight = mark(nn.Parameter(torch.ones(self.d_inner)), "norm", decay=False)
        check_backend(self, backend)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Run the block of the module docstring."""
        heads = self.heads
        sizes = [self.d_inner, self.d_inner + heads.convolved, heads.selected - heads.convolved]
        z, inner, rest = torch.split(self.in_proj(x), sizes, -1)
        conv = None
        if self.conv_weight is not None:
            conv = None if state is None else carried_conv(state, info)
            inner, conv = convolve(inner, self.conv_weight, self.conv_bias, conv, "silu", info, self.backend)
        selected = torch.cat([inner[..., self.d_inner :], rest], -1)
        before = None if state is None else state.layer
        y, after = heads.forward_impl(inner[..., : self.d_inner], selected, before, info._replace(gate=z))
        if self.norm_weight is not None:
            groups = getattr(heads, "groups", 1)
            width = self.d_inner // groups
            y = rms_norm(y.reshape(*y.shape[:-1], groups, width), (width,), eps=EPSILON).flatten(-2) * self.norm_weight
        return self.out_proj(y), GatedState(conv, after)

    def initial_state(self, batch: int) -> GatedState:
        """Return zeros, and the initial state of the layer."""
        conv = None
        if self.d_conv:
            width = self.d_inner + self.heads.convolved
            conv = torch.zeros(batch, width, self.d_conv - 1, dtype=self.state_dtype, device=self.device)
        return GatedState(conv, self.heads.initial_state(batch))
