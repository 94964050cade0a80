"""The Mamba-2 block (Dao and Gu 2024, section 7.1): convolution over x, B and C, gated RMSNorm, around the heads of Mamba-2."""

from typing import Any

from longscan.blocks._registry import BLOCKS
from longscan.blocks.heads import HeadsBlock


@BLOCKS.register("mamba2")
class Mamba2Block(HeadsBlock):
    """in_proj, short convolution, heads, gate, norm, out_proj.

    Args:
        d_model: width D at both ends.
        layer: a layer with heads, by its name in `LAYERS`.
        expand: inner width over D.
        d_conv: taps of the convolution; 0 leaves it and its SiLU out.
        norm: RMSNorm after the gate, group by group.
        layer_options: settings of the inner layer.
        backend: of the heads' op and of the convolution.
    """

    def __init__(
        self,
        d_model: int,
        *,
        layer: str = "mamba2",
        expand: int = 2,
        d_conv: int = 4,
        norm: bool = True,
        layer_options: dict[str, Any] | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(
            d_model, layer=layer, expand=expand, d_conv=d_conv, norm=norm, layer_options=layer_options, backend=backend
        )
