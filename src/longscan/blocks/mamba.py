"""The Mamba block (Gu and Dao 2023, section 3.4 and figure 3): the gated block around S6, of inner width 2 D.

`variant="aussm"` is the block of the AUSSM paper's hybrid models, whose released code differs from Mamba's: q, B and C are
selected from the convolution's output before SiLU, the bias of Delta is added twice, and the map to Delta is initialised as an
ordinary linear map.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from longscan._types import FractionBelowOne, NonNegativeInt, PositiveInt
from longscan.blocks._registry import BLOCKS
from longscan.blocks.gated import GatedBlock, GatedState
from longscan.blocks.residual import EPSILON
from longscan.distributed.context import current_split
from longscan.layers import S6
from longscan.layers.state import ScanState, State
from longscan.ops import mamba_step
from longscan.ops.dispatch import Backend
from longscan.ops.tracing import is_compiled_or_transformed

VARIANTS: dict[str, dict[str, Any]] = {
    "mamba": {},
    "aussm": {"dt_init": "linear", "dt_bias_twice": True, "activates_input": True},
}


def inner_options(layer: str, d_model: int) -> dict[str, Any]:
    """Return the options that a block of width d_model sets in its inner layer: the rank of S6 depends on the block's width."""
    return {"dt_rank": math.ceil(d_model / 16)} if layer == "s6" else {}


@BLOCKS.register("mamba")
class MambaBlock(GatedBlock):
    """Block of in_proj, short convolution, SiLU, S6, gate and out_proj.

    Args:
        d_model: width D of inputs and outputs.
        layer: name of the inner layer in `longscan.layers.LAYERS`.
        expand: ratio of the inner width to D.
        d_conv: number of taps of the convolution; 0 for none.
        variant: "mamba", or "aussm" for the layer "s6" only.
        recompute: store only the projected input for the backward pass, where convolution, activation and scan run again.
        dropout: probability of dropping a channel after in_proj in training, the same at all steps of a sequence.
        rotary: arguments of `longscan.blocks.Rotary`; None for no rotary positions.
        layer_options: arguments of the inner layer; the default of S6's dt_rank is D / 16, rounded up, with D of the block.
        backend: of the inner layer's op, of the convolution and of the fused step (`longscan.ops.mamba_step`).
    """

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        layer: str = "s6",
        expand: PositiveInt = 2,
        d_conv: NonNegativeInt = 4,
        variant: Literal["mamba", "aussm"] = "mamba",
        recompute: bool = False,
        dropout: FractionBelowOne = 0.0,
        rotary: Mapping[str, Any] | None = None,
        layer_options: dict[str, Any] | None = None,
        backend: Backend = "auto",
    ) -> None:
        if variant == "aussm" and layer != "s6":
            raise ValueError(f"`layer` must be 's6' with variant='aussm', got {layer!r}")
        super().__init__(
            d_model,
            layer=layer,
            expand=expand,
            d_conv=d_conv,
            recompute=recompute,
            dropout=dropout,
            rotary=rotary,
            layer_options={**inner_options(layer, d_model), **VARIANTS[variant], **(layer_options or {})},
            backend=backend,
        )
        # `mamba_step` covers S6 with real A and Euler's rule after a convolution. It is not in `op_names`, as the block also runs
        # without it.
        plain = rotary is None and not dropout
        is_covered = isinstance(self.layer, S6) and not self.layer.complex_state and self.layer.discretisation == "euler"
        self.fuses_steps = is_covered and d_conv > 0 and plain

    def step(
        self, x_t: Tensor, state: State, *, elapsed: Tensor | None = None, active: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return y_t and the new state as `SequenceModule.step`, by the fused step where it can run."""
        if not self._can_fuse(x_t):
            return super().step(x_t, state, elapsed=elapsed, active=active)
        return self._fused_step(x_t, None, state, elapsed, active)

    def residual_step(
        self, x_t: Tensor, norm: nn.RMSNorm, state: State, *, elapsed: Tensor | None = None, active: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return x_t + step(norm(x_t)) and the state after it, computed in one call where the fused step can run.

        `Residual` calls it instead of `step`. In rows that are not `active` the state is unchanged and the result is x_t.
        """
        if not self._can_fuse(x_t):
            y, after = self.step(norm(x_t), state, elapsed=elapsed, active=active)
            return x_t + y, after
        return self._fused_step(x_t, norm, state, elapsed, active)

    def _can_fuse(self, x_t: Tensor) -> bool:
        return (
            self.fuses_steps
            and self.backend in ("auto", "cpu")
            and x_t.dtype == self.layer.dt_bias.dtype == self.in_proj.weight.dtype
            and not torch.is_grad_enabled()
            and not is_compiled_or_transformed(x_t)
            and current_split() is None  # otherwise `SequenceModule.step` raises
            # Under autocast the kernel of a whole step cannot run, but those of the convolution and of the scan can.
            and not (self.backend == "cpu" and torch.is_autocast_enabled(x_t.device.type))
        )

    def _fused_step(
        self, x_t: Tensor, norm: nn.RMSNorm | None, state: GatedState | None, elapsed: Tensor | None, active: Tensor | None
    ) -> tuple[Tensor, GatedState]:
        """Return y (B, D) and the state by one call of `mamba_step`, which includes the residual branch if a norm is given."""
        if self.checks_inputs:
            x_t, elapsed = self.validate_step(x_t, state, elapsed, active)
        if state is None:
            state = self.initial_state(x_t.shape[0])
        layer = cast("S6", self.layer)
        y, conv, ssm = mamba_step(
            x_t,
            cast("Tensor", state.conv),
            state.layer.ssm,
            in_proj=self.in_proj.weight,
            conv_weight=cast("Tensor", self.conv_weight),
            conv_bias=self.conv_bias,
            x_proj=layer.x_proj,
            dt_proj=layer.dt_proj,
            dt_bias=2 * layer.dt_bias if layer.dt_bias_twice else layer.dt_bias,
            A_log=layer.A_log,
            D=layer.D,
            out_proj=self.out_proj.weight,
            norm_weight=None if norm is None else norm.weight,
            norm_eps=EPSILON if norm is None or norm.eps is None else norm.eps,
            elapsed=None if elapsed is None else elapsed.to(x_t.dtype),
            active=active,
            selects_raw=layer.activates_input,
            backend=self.backend,
        )
        return y, GatedState(conv, ScanState(ssm, state.layer.last_seq_idx))
