"""The AUSSM block (2025, the released code): the gated block around AUSSM, of inner width D.

    (x, z) = W_in u      y = W_out (aussm(conv(x)) * silu(z))

AUSSM applies SiLU to the input of its scan, not to that of its angles. With `activation="silu"` both are SiLU of the convolution,
so that an angle can be a nonlinear function of several inputs.
"""

from collections.abc import Mapping
from typing import Any, Literal

from longscan._types import FractionBelowOne, NonNegativeInt, PositiveInt
from longscan.blocks._registry import BLOCKS
from longscan.blocks.gated import GatedBlock
from longscan.ops.dispatch import Backend


@BLOCKS.register("aussm")
class AUSSMBlock(GatedBlock):
    """Block of in_proj, short convolution, AUSSM, gate and out_proj.

    Args:
        d_model: width D of inputs and outputs.
        layer: name of the inner layer in `longscan.layers.LAYERS`.
        expand: ratio of the inner width to D.
        d_conv: number of taps of the convolution; 0 for none.
        activation: "silu" for SiLU after the convolution; "auto" for SiLU unless the layer activates its input itself.
        recompute: store only the projected input for the backward pass, where convolution and scan run again.
        dropout: probability of dropping a channel after in_proj in training, the same channels at all steps of a sequence.
        rotary: arguments of `longscan.blocks.Rotary`; None for no rotary positions.
        layer_options: arguments of the inner layer.
        backend: backend of the inner layer's op and of the convolution.
    """

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        layer: str = "aussm",
        expand: PositiveInt = 1,
        d_conv: NonNegativeInt = 4,
        activation: Literal["auto", "silu"] = "auto",
        recompute: bool = False,
        dropout: FractionBelowOne = 0.0,
        rotary: Mapping[str, Any] | None = None,
        layer_options: dict[str, Any] | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(
            d_model,
            layer=layer,
            expand=expand,
            d_conv=d_conv,
            activation=activation,
            recompute=recompute,
            dropout=dropout,
            rotary=rotary,
            layer_options=layer_options,
            backend=backend,
        )
