"""The gated block of Mamba (Gu and Dao 2023, figure 3), around any layer.

    (x, z) = W_in u        y = W_out (layer(act(conv(x))) * silu(z))

u: input (B, L, D). x, z: (B, L, E), E = expand * D. conv: depthwise and causal, with bias. No bias in the two projections.
act is SiLU, or nothing where the layer activates its own input (`activates_input`).
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from torch.utils.checkpoint import checkpoint

from longscan.layers import make_layer
from longscan.layers.base import SequenceModule, Steps
from longscan.layers.parameters import mark
from longscan.layers.state import State, layer_state, restarted_rows, zero_rows
from longscan.ops import short_conv


@layer_state
class GatedState(NamedTuple):
    """`conv` (B, E, d_conv - 1), the last inputs of the convolution, None without one; `layer`, the inner layer's state."""

    conv: Tensor | None
    layer: State


class GatedBlock(SequenceModule):
    """in_proj, short convolution, layer, gate, out_proj.

    Args:
        d_model: width D at both ends.
        layer: name in `LAYERS`.
        expand: inner width over D.
        d_conv: taps of the convolution; 0 leaves it out.
        recompute: keep only the projected input for the backward; convolution, activation and scan run again there.
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
        recompute: bool = False,
        layer_options: dict[str, Any] | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        for name, size, least in (("d_model", d_model, 1), ("expand", expand, 1), ("d_conv", d_conv, 0)):
            if size < least:
                raise ValueError(f"{name}: got {size}, expected at least {least}")
        self.d_model, self.d_inner, self.d_conv = d_model, expand * d_model, d_conv
        self.recompute, self.backend = recompute, backend
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=False)
        self.layer = self.adopt(make_layer(layer, self.d_inner, layer_options or {}, backend))
        self.activation = None if self.layer.activates_input else "silu"
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self.conv_weight: nn.Parameter | None = None
        self.conv_bias: nn.Parameter | None = None
        if d_conv:
            bound = 1 / math.sqrt(d_conv)
            self.conv_weight = mark(nn.Parameter(torch.empty(self.d_inner, d_conv).uniform_(-bound, bound)), "dense")
            self.conv_bias = mark(nn.Parameter(torch.empty(self.d_inner).uniform_(-bound, bound)), "dense")

    def run(self, x: Tensor, state: State, steps: Steps) -> tuple[Tensor, State]:
        """See the top of the file."""
        conv = None
        if state is not None and state.conv is not None:
            rows, _ = restarted_rows(state.layer.last_seq_idx, steps.valid, steps.seq_idx)
            conv = zero_rows(rows, state.conv)
        inner = functools.partial(self._mix, steps=steps)
        inputs = (self.in_proj(x), conv, None if state is None else state.layer)
        y, after = _recomputed(inner, inputs) if self.recompute else inner(*inputs)
        return self.out_proj(y), after

    def _mix(self, projected: Tensor, conv: Tensor | None, layer_state: State, steps: Steps) -> tuple[Tensor, GatedState]:
        x, z = projected.chunk(2, -1)
        if self.conv_weight is not None:
            x, conv = short_conv(
                x,
                self.conv_weight,
                self.conv_bias,
                conv,
                activation=self.activation,
                valid=steps.valid,
                seq_idx=steps.seq_idx,
                backend=self.backend,
            )
        elif self.activation:
            x = silu(x)
        y, layer_state = self.layer(
            x, layer_state, gate=z, elapsed=steps.elapsed, valid=steps.valid, seq_idx=steps.seq_idx, return_state=True
        )
        return y, GatedState(conv, layer_state)

    def initial_state(self, batch: int) -> GatedState:
        """Zeros."""
        conv = None
        if self.d_conv:
            conv = torch.zeros(batch, self.d_inner, self.d_conv - 1, dtype=self.state_dtype, device=self.device)
        return GatedState(conv, self.layer.initial_state(batch))


def _recomputed(function: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """`function(*inputs)`, keeping only the inputs for the backward; plain where no graph is made or a transform forbids it."""
    if not torch.is_grad_enabled() or (not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()):
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
