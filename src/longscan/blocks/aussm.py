"""The AUSSM block (2025, the released code): the gated block without expansion around AUSSM, which activates its own input.

(x, z) = W_in u      y = W_out (aussm(conv(x)) * silu(z))

With `activation="silu"` the angles, too, see SiLU of the convolution, so that one block can compute an angle from several inputs
at once, not only from their sum.
"""

from collections.abc import Mapping
from typing import Any, Literal

from longscan.blocks._registry import BLOCKS
from longscan.blocks.gated import GatedBlock


@BLOCKS.register("aussm")
class AUSSMBlock(GatedBlock):
    """in_proj, short convolution, AUSSM, gate, out_proj.

    Args:
        d_model: width D at both ends.
        layer: the inner layer, by its name in `LAYERS`.
        expand: inner width over D.
        d_conv: taps of the convolution; 0 leaves it out.
        activation: "auto", none behind the convolution where the layer activates its own input, or "silu" for every layer.
        recompute: keep only the projected input for the backward; convolution and scan run again there.
        dropout: probability of dropping a channel after in_proj in training, the same channels at all steps of a sequence.
        rotary: settings of `longscan.blocks.Rotary`; None: no positions.
        layer_options: settings of the inner layer.
        backend: of the inner layer's op and of the convolution.
    """

    def __init__(
        self,
        d_model: int,
        *,
        layer: str = "aussm",
        expand: int = 1,
        d_conv: int = 4,
        activation: Literal["auto", "silu"] = "auto",
        recompute: bool = False,
        dropout: float = 0.0,
        rotary: Mapping[str, Any] | None = None,
        layer_options: dict[str, Any] | None = None,
        backend: str = "auto",
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
