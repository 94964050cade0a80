"""The gated block of Mamba (Gu and Dao 2023, figure 3), around any layer.

    (x, z) = W_in u        y = W_out (layer(act(conv(x))) * silu(z))

u: input (B, L, D). x, z: (B, L, E), E = expand * D. conv: depthwise and causal, with bias. No bias in the two projections.
act is SiLU, or nothing where the layer activates its own input (`activates_input`), unless `activation="silu"` asks for
both. Dropout, one mask for all steps, acts on (x, z); rotary positions rotate the layer's input, see `longscan.blocks.rotary`.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from torch.utils.checkpoint import checkpoint

from longscan.blocks.dropout import SharedDropout
from longscan.blocks.rotary import Rotary, positions_from
from longscan.layers import S6, make_inner_layer
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, SequenceLayer, SequenceModule
from longscan.layers.parameters import mark
from longscan.layers.state import State, layer_state, restarted_rows, zero_rows
from longscan.ops import short_conv
from longscan.ops.tracing import in_func_transform

Activation = Literal["auto", "silu"]


@layer_state
class GatedState(NamedTuple):
    """State of a gated block.

    conv: (B, E, d_conv - 1), the last inputs of the convolution; None without a convolution. layer: the inner layer's state.
    position: (B,), the position of the next step; None without rotary positions.
    """

    conv: Tensor | None
    layer: State
    position: Tensor | None = None


class GatedBlock(SequenceModule):
    """in_proj, short convolution, layer, gate, out_proj.

    Args:
        d_model: width D at both ends.
        layer: name in `LAYERS`.
        expand: inner width over D.
        d_conv: taps of the convolution; 0 leaves it out.
        activation: "auto", SiLU behind the convolution unless the layer activates its own input, or "silu" for every layer.
        recompute: store only the projected input for the backward pass, where convolution, activation and scan run again.
        dropout: probability of dropping a channel of (x, z) in training, for all steps of a sequence at once.
        rotary: settings of `longscan.blocks.Rotary`; None: no positions.
        layer_options: settings of the inner layer.
        backend: of the inner layer's op and of the convolution.

    The state is `GatedState`.
    """

    def __init__(
        self,
        d_model: int,
        *,
        layer: str,
        expand: int,
        d_conv: int = 4,
        activation: Activation = "auto",
        recompute: bool = False,
        dropout: float = 0.0,
        rotary: Mapping[str, Any] | None = None,
        layer_options: dict[str, Any] | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        check_sizes(d_model, expand, d_conv)
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
        """Run the block of the module docstring."""
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


def check_sizes(d_model: int, expand: int, d_conv: int) -> None:
    """Raise ValueError unless d_model and expand are at least 1 and d_conv at least 0."""
    for name, size, least in (("d_model", d_model, 1), ("expand", expand, 1), ("d_conv", d_conv, 0)):
        if size < least:
            raise ValueError(f"{name}: got {size}, expected at least {least}")


def activation_before(layer: SequenceLayer, activation: Activation) -> str | None:
    """Return the activation between convolution and layer: "silu", or None with "auto" if the layer activates its own input."""
    if activation not in ("auto", "silu"):
        raise ValueError(f"activation: got {activation!r}, expected 'auto' or 'silu'")
    return None if activation == "auto" and layer.activates_input else "silu"


def rotary_before(layer: SequenceLayer, name: str, settings: Mapping[str, Any] | None) -> Rotary | None:
    """Return the rotary positions of a layer's input, or None without settings; ValueError if the layer lacks a target."""
    rotary = None if settings is None else Rotary(layer.d_model, **settings)
    if rotary is not None and rotary.targets != ("x",) and not isinstance(layer, S6):
        raise ValueError(f"rotary targets: got {rotary.targets}, but {name!r} selects nothing; expected ('x',)")
    return rotary


def conv_parameters(width: int, d_conv: int) -> tuple[nn.Parameter | None, nn.Parameter | None]:
    """Return weight (E, d_conv) and bias (E,) of a depthwise convolution, U(-d_conv^-1/2, d_conv^-1/2); None for d_conv = 0."""
    if not d_conv:
        return None, None
    bound = 1 / math.sqrt(d_conv)
    weight = mark(nn.Parameter(torch.empty(width, d_conv).uniform_(-bound, bound)), "dense")
    return weight, mark(nn.Parameter(torch.empty(width).uniform_(-bound, bound)), "dense")


def carried_conv(state: GatedState, info: SequenceInfo) -> Tensor | None:
    """Return the stored inputs of the convolution, with zeros in rows whose first valid step starts a sequence."""
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
    """Return act(conv(x)) and the new state of the convolution; act(x) and None without a convolution."""
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
    """Return the layer's gated output and state; its input is rotated by `position` where rotary positions are given."""
    info = info._replace(gate=gate)
    if rotary is None or position is None:
        return layer.call_unchecked(x, state, info)
    turned = rotary(x, position)
    if not isinstance(layer, S6):
        return layer.call_unchecked(turned, state, info)
    targets = rotary.targets
    plain, rotated = layer.select(x), layer.select(turned)
    dt, B, C = (rotated[i] if name in targets else plain[i] for i, name in enumerate(("dt", "B", "C")))
    return layer.scan(turned if "x" in targets else x, (dt, B, C), state, info)


def _recomputed(function: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """Return `function(*inputs)`, storing only the inputs for the backward pass where autograd records the call.

    The transforms of torch.func take no saved-tensor hooks: under them all intermediates are stored.
    """
    if not torch.is_grad_enabled() or in_func_transform():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
