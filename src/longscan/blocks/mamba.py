"""The Mamba block (Gu and Dao 2023, section 3.4 and figure 3): the gated block, twice as wide inside, around S6.

`variant="aussm"` is the block of the AUSSM paper's hybrid models, whose released code differs from Mamba's: q, B and C are
selected from the convolution's output before SiLU, the bias of Delta is added twice, and Delta starts as an ordinary linear map.
"""

import math
from typing import Any, Literal

from longscan.blocks._registry import BLOCKS
from longscan.blocks.gated import GatedBlock

VARIANTS: dict[str, dict[str, Any]] = {
    "mamba": {},
    "aussm": {"dt_init": "linear", "dt_bias_twice": True, "activates_input": True},
}


@BLOCKS.register("mamba")
class MambaBlock(GatedBlock):
    """in_proj, short convolution, SiLU, S6, gate, out_proj.

    Args:
        d_model: width D at both ends.
        layer: the inner layer, by its name in `LAYERS`.
        expand: inner width over D.
        d_conv: taps of the convolution; 0 leaves it out.
        variant: "mamba", or "aussm" (needs the layer "s6").
        recompute: keep only the projected input for the backward; convolution, activation and scan run again there.
        layer_options: further settings of the inner layer; S6's dt_rank is D / 16, rounded up, unless given.
        backend: of the inner layer's op.
    """

    def __init__(
        self,
        d_model: int,
        *,
        layer: str = "s6",
        expand: int = 2,
        d_conv: int = 4,
        variant: Literal["mamba", "aussm"] = "mamba",
        recompute: bool = False,
        layer_options: dict[str, Any] | None = None,
        backend: str = "auto",
    ) -> None:
        if variant not in VARIANTS:
            raise ValueError(f"variant: got {variant!r}, expected one of {tuple(VARIANTS)}")
        if variant == "aussm" and layer != "s6":
            raise ValueError(f"variant: 'aussm' is a variant of S6, but the layer is {layer!r}")
        defaults = {"dt_rank": math.ceil(d_model / 16), **VARIANTS[variant]} if layer == "s6" else {}
        super().__init__(
            d_model,
            layer=layer,
            expand=expand,
            d_conv=d_conv,
            recompute=recompute,
            layer_options={**defaults, **(layer_options or {})},
            backend=backend,
        )
