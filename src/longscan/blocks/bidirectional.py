"""Gated blocks that read a sequence in both directions.

They are those of the thesis "Deep Learning with State Spaces for Efficient Sequence Modeling" (section 15).

    (x, z) = W_in u      y = W_out (f(x, z) + flip(g(flip x, flip z)))      f, g: layer(act(conv(.))) * silu(.)

flip reverses the run of valid steps in time; padding stays in place. In the thesis's figure g has a separate convolution ("own").
Its code computes one forward convolution and flips the result ("shared"), which agrees with its parameter counts. With "tied"
both directions have the same convolution and the same layer, so that y(flip u) = flip y(u). The variants with " placebo" are
controls of the same size: both branches read forward, and the block is causal.

Rotary positions rotate the input of each direction's layer, see `longscan.blocks.rotary`. The thesis does not say which positions
the reverse direction has; here the position of a step is its index in the reading order of the direction, as in a causal model
that is trained on reversed sequences. Each direction has its own learned frequencies, like its layer.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from longscan._types import FractionBelowOne, NonNegativeInt, PositiveInt
from longscan.blocks._registry import BLOCKS
from longscan.blocks.dropout import SharedDropout
from longscan.blocks.gated import (
    Activation,
    GatedState,
    activation_before,
    carried_conv,
    conv_parameters,
    convolve,
    rotary_before,
    scan,
)
from longscan.blocks.mamba import inner_options
from longscan.blocks.reversal import flip_valid, reversed_steps
from longscan.blocks.rotary import Rotary, positions_from
from longscan.distributed.context import reversed_split
from longscan.layers import make_inner_layer
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, SequenceLayer, SequenceModule
from longscan.layers.state import State, layer_state
from longscan.ops.dispatch import Backend

Variant = Literal["shared", "own", "tied", "shared placebo", "own placebo", "tied placebo"]


@layer_state
class BidirectionalState(NamedTuple):
    """State of `BidirectionalBlock`: `forward`, that of the forward branch, and `backward`, None if that branch is reversed."""

    forward: GatedState
    backward: GatedState | None


@BLOCKS.register("bidirectional")
class BidirectionalBlock(SequenceModule):
    """Block of in_proj, convolution, layer and gate in both directions, and out_proj of their sum.

    The state is that of the forward branch only. If a sequence is processed in several calls, the reverse branch starts at the
    end of each part, so the outputs differ from those of one call. The elapsed time of a step in the reverse direction is the
    time until the next step.

    Args:
        d_model: width D of inputs and outputs.
        layer: name of the layers of both branches in `longscan.layers.LAYERS`.
        expand: ratio of the inner width to D.
        d_conv: number of taps of the convolutions; 0 for none.
        activation: "silu" for SiLU after the convolutions; "auto" for SiLU unless the layers activate their input themselves.
        variant: "shared", "own" or "tied", see the top of the file, or one of these followed by " placebo".
        dropout: probability of dropping a channel after in_proj in training, the same channels at all steps of a sequence.
        rotary: arguments of `longscan.blocks.Rotary` for both directions; in each, positions count from the first step that it
            reads. None for no rotary positions.
        layer_options: arguments of both layers; the default of S6's dt_rank is D / 16, rounded up, with D of the block.
        backend: backend of the layers' ops and of the convolutions.
    """

    context_parallel = True
    causal = False  # True for placebos
    streaming = False

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        layer: str = "s6",
        expand: PositiveInt = 2,
        d_conv: NonNegativeInt = 4,
        activation: Activation = "auto",
        variant: Variant = "shared",
        dropout: FractionBelowOne = 0.0,
        rotary: Mapping[str, Any] | None = None,
        layer_options: dict[str, Any] | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.variant, _, placebo = variant.partition(" ")
        self.flip = not placebo
        self.causal = self.streaming = not self.flip
        self.d_model, self.d_inner, self.d_conv, self.backend = d_model, expand * d_model, d_conv, backend
        self.op_names = ("short_conv",) if d_conv else ()
        options = {**inner_options(layer, d_model), **(layer_options or {})}
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=False)
        self.layer = self.inherit_properties(make_inner_layer(layer, self.d_inner, options, backend))
        self.activation = activation_before(self.layer, activation)
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self.conv_weight, self.conv_bias = conv_parameters(self.d_inner, d_conv)
        separate = conv_parameters(self.d_inner, d_conv if self.variant == "own" else 0)
        self.reverse_conv_weight, self.reverse_conv_bias = separate
        tied = self.variant == "tied"
        self.reverse_layer = None if tied else self.inherit_properties(make_inner_layer(layer, self.d_inner, options, backend))
        self.dropout = SharedDropout(dropout)
        self.rotary = rotary_before(self.layer, layer, rotary)
        self.reverse_rotary = None if tied else rotary_before(self.layer, layer, rotary)
        check_backend(self, backend)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        first = second = None
        if state is not None:
            first, second = state.forward, state.backward
        u, z = self.dropout(self.in_proj(x)).chunk(2, -1)
        convolved, conv = self._convolve(u, self.conv_weight, self.conv_bias, first, info)
        y, forward = self._scan(self.layer, self.rotary, convolved, z, first, info, conv)

        other = reversed_steps(info) if self.flip else info
        weight, bias, layer, rotary = self.reverse_conv_weight, self.reverse_conv_bias, self.reverse_layer, self.reverse_rotary
        if layer is None:
            weight, bias, layer, rotary = self.conv_weight, self.conv_bias, self.layer, self.rotary
        with reversed_split() if self.flip else nullcontext():
            if self.variant == "shared":
                mirrored, conv = self._flip(convolved, info), None
            else:
                mirrored, conv = self._convolve(self._flip(u, info), weight, bias, second, other)
            back, backward = self._scan(layer, rotary, mirrored, self._flip(z, info), second, other, conv)
        return self.out_proj(y + self._flip(back, info)), BidirectionalState(forward, None if self.flip else backward)

    def _flip(self, x: Tensor, info: SequenceInfo) -> Tensor:
        return flip_valid(x, info.valid) if self.flip else x

    def _convolve(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, state: GatedState | None, info: SequenceInfo
    ) -> tuple[Tensor, Tensor | None]:
        carried = None if state is None else carried_conv(state, info)
        return convolve(x, weight, bias, carried, self.activation, info, self.backend)

    def _scan(
        self,
        layer: SequenceLayer,
        rotary: Rotary | None,
        x: Tensor,
        gate: Tensor,
        state: GatedState | None,
        info: SequenceInfo,
        conv: Tensor | None,
    ) -> tuple[Tensor, GatedState]:
        """Return the gated output of one direction, and its state, which includes that of its convolution."""
        position, after = positions_from(state, x, info) if rotary is not None else (None, None)
        y, layer_state = scan(layer, x, gate, None if state is None else state.layer, info, rotary, position)
        return y, GatedState(conv, layer_state, after)

    def initial_state(self, batch: int) -> BidirectionalState:
        """Return zeros, and the initial state of the layer."""

        def zeros(layer: Any, conv: bool) -> GatedState:
            shape = (batch, self.d_inner, self.d_conv - 1)
            memory = torch.zeros(shape, dtype=self.state_dtype, device=self.device) if conv and self.d_conv else None
            position = None if self.rotary is None else torch.zeros(batch, dtype=torch.int64, device=self.device)
            return GatedState(memory, layer.initial_state(batch), position)

        reverse = self.layer if self.reverse_layer is None else self.reverse_layer
        backward = None if self.flip else zeros(reverse, self.variant != "shared")
        return BidirectionalState(zeros(self.layer, True), backward)
