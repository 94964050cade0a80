"""The gated block of Mamba (Gu and Dao 2023, figure 3), around any layer.

    (x, z) = W_in u        y = W_out (layer(act(conv(x))) * silu(z))

u: input (B, L, D). x, z: (B, L, E), E = expand * D. conv: depthwise and causal, with bias. No bias in the two projections.
act is SiLU, or the identity if the layer activates its input itself (`activates_input`) and `activation` is "auto". Dropout has
one mask for all steps and acts on (x, z). Rotary positions rotate the layer's input, see `longscan.blocks.rotary`.
"""

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from torch.utils.checkpoint import checkpoint

from longscan._types import FractionBelowOne, NonNegativeInt, PositiveInt
from longscan.blocks.dropout import SharedDropout
from longscan.blocks.rotary import Rotary, positions_from
from longscan.distributed.context import current_split, use_split
from longscan.layers import S6, make_inner_layer
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, SequenceLayer, SequenceModule
from longscan.layers.parameters import mark
from longscan.layers.state import State, layer_state, restarted_rows, zero_rows
from longscan.numerics.initialisers import uniform_fan_in
from longscan.ops import short_conv
from longscan.ops.dispatch import Backend
from longscan.ops.tracing import in_func_transform

Activation = Literal["auto", "silu"]


@layer_state
class GatedState(NamedTuple):
    """State of `GatedBlock`.

    Attributes:
        conv: (B, E, d_conv - 1), the last inputs of the convolution; None without a convolution.
        layer: the state of the inner layer.
        position: (B,), the position of the next step; None without rotary positions.
    """

    conv: Tensor | None
    layer: State
    position: Tensor | None = None


class GatedBlock(SequenceModule):
    """Block of in_proj, short convolution, layer, gate and out_proj.

    Args:
        d_model: width D of inputs and outputs.
        layer: name of the inner layer in `longscan.layers.LAYERS`.
        expand: ratio of the inner width to D.
        d_conv: number of taps of the convolution; 0 for none.
        activation: "silu" for SiLU after the convolution; "auto" for SiLU unless the layer activates its input itself.
        recompute: store only the projected input for the backward pass, where convolution, activation and scan run again.
        dropout: probability of dropping a channel of (x, z) in training, the same at all steps of a sequence.
        rotary: arguments of `longscan.blocks.Rotary`; None for no rotary positions.
        layer_options: arguments of the inner layer.
        backend: backend of the inner layer's op and of the convolution.

    The state is `GatedState`.
    """

    context_parallel = True

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        layer: str,
        expand: PositiveInt,
        d_conv: NonNegativeInt = 4,
        activation: Activation = "auto",
        recompute: bool = False,
        dropout: FractionBelowOne = 0.0,
        rotary: Mapping[str, Any] | None = None,
        layer_options: dict[str, Any] | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.d_model, self.d_inner, self.d_conv = d_model, expand * d_model, d_conv
        self.recompute, self.backend = recompute, backend
        self.op_names = ("short_conv",) if d_conv else ()
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=False)
        self.layer = self.inherit_properties(make_inner_layer(layer, self.d_inner, layer_options or {}, backend))
        self.activation = activation_before(self.layer, activation)
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self.conv_weight, self.conv_bias = conv_parameters(self.d_inner, d_conv)
        self.dropout = SharedDropout(dropout)
        self.rotary = rotary_before(self.layer, layer, rotary)
        check_backend(self, backend)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        conv = None if state is None else carried_conv(state, info)
        position, after = positions_from(state, x, info) if self.rotary is not None else (None, None)
        inner = functools.partial(self._mix, info=info)
        inputs = (self.dropout(self.in_proj(x)), conv, None if state is None else state.layer, position)
        y, conv, layer_state = _recomputed(inner, inputs) if self.recompute else inner(*inputs)
        return self.out_proj(y), GatedState(conv, layer_state, after)

    def _mix(
        self, projected: Tensor, conv: Tensor | None, layer_state: State, position: Tensor | None, info: SequenceInfo
    ) -> tuple[Tensor, Tensor | None, State]:
        x, z = projected.chunk(2, -1)
        x, conv = convolve(x, self.conv_weight, self.conv_bias, conv, self.activation, info, self.backend)
        y, layer_state = scan(self.layer, x, z, layer_state, info, self.rotary, position)
        return y, conv, layer_state

    def initial_state(self, batch: int) -> GatedState:
        """Return zeros, and the initial state of the layer."""
        conv = None
        if self.d_conv:
            conv = torch.zeros(batch, self.d_inner, self.d_conv - 1, dtype=self.state_dtype, device=self.device)
        position = None if self.rotary is None else torch.zeros(batch, dtype=torch.int64, device=self.device)
        return GatedState(conv, self.layer.initial_state(batch), position)


def activation_before(layer: SequenceLayer, activation: Activation) -> str | None:
    """Return the activation between convolution and layer: "silu", or None if "auto" and the layer activates its input."""
    return None if activation == "auto" and layer.activates_input else "silu"


def rotary_before(layer: SequenceLayer, name: str, settings: Mapping[str, Any] | None) -> Rotary | None:
    """Return the rotary positions of a layer's input, or None without settings.

    Raises ValueError for targets other than "x" unless the layer is S6.
    """
    rotary = None if settings is None else Rotary(layer.d_model, **settings)
    if rotary is not None and rotary.targets != ("x",) and not isinstance(layer, S6):
        raise ValueError(f"`rotary` must have the targets ('x',), as the layer {name!r} has no others, got {rotary.targets}")
    return rotary


def conv_parameters(width: int, d_conv: int) -> tuple[nn.Parameter | None, nn.Parameter | None]:
    """Return weight (E, d_conv) and bias (E,) of a depthwise convolution, U(-d_conv^-1/2, d_conv^-1/2); None for d_conv = 0."""
    if not d_conv:
        return None, None
    weight = mark(nn.Parameter(uniform_fan_in(width, d_conv, fan_in=d_conv)), "dense")
    return weight, mark(nn.Parameter(uniform_fan_in(width, fan_in=d_conv)), "dense")


def carried_conv(state: GatedState, info: SequenceInfo) -> Tensor | None:
    """Return the state of the convolution, (B, E, d_conv - 1), with zeros in rows whose first valid step starts a sequence."""
    if state.conv is None:
        return None
    rows, _ = restarted_rows(state.layer.last_seq_idx, info.valid, info.seq_idx)
    return zero_rows(rows, state.conv)


def convolve(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    state: Tensor | None,
    activation: str | None,
    info: SequenceInfo,
    backend: str,
) -> tuple[Tensor, Tensor | None]:
    """Return act(conv(x)), (B, L, E), and the new state of the convolution; act(x) and None without a convolution."""
    if weight is None:
        return silu(x) if activation else x, None
    return short_conv(x, weight, bias, state, activation=activation, valid=info.valid, seq_idx=info.seq_idx, backend=backend)


def scan(
    layer: SequenceLayer,
    x: Tensor,
    gate: Tensor,
    state: State,
    info: SequenceInfo,
    rotary: Rotary | None,
    position: Tensor | None,
) -> tuple[Tensor, State]:
    """Return the gated output (B, L, E) and the state of a layer, whose input x is rotated by `position` (B, L) with `rotary`."""
    info = info._replace(gate=gate)
    if rotary is None or position is None:
        return layer.call_unchecked(x, state, info)
    rotated = rotary(x, position)
    if not isinstance(layer, S6):
        return layer.call_unchecked(rotated, state, info)
    targets = rotary.targets
    of_x, of_rotated = layer.select(x), layer.select(rotated)
    dt, B, C = (of_rotated[i] if name in targets else of_x[i] for i, name in enumerate(("dt", "B", "C")))
    return layer.scan(rotated if "x" in targets else x, (dt, B, C), state, info)


def _recomputed(function: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """Return `function(*inputs)`, storing only the inputs for the backward pass where autograd records the call.

    The transforms of torch.func do not support saved-tensor hooks: under them all intermediates are stored.
    """
    if not torch.is_grad_enabled() or in_func_transform():
        return function(*inputs)
    split = current_split()
    if split is None:
        return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), use_split(split)  # the backward pass, which runs `function` again, may be outside of the split

    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
