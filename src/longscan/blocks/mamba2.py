"""The Mamba-2 block (Dao and Gu 2024, section 7.1): convolution over x, B and C, gated RMSNorm, around the heads of Mamba-2."""

from typing import Any

from longscan._types import NonNegativeInt, PositiveInt
from longscan.blocks._registry import BLOCKS
from longscan.blocks.heads import HeadsBlock
from longscan.ops.dispatch import Backend


@BLOCKS.register("mamba2")
class Mamba2Block(HeadsBlock):
    """Block of in_proj, short convolution, heads, gate, norm and out_proj.

    Args:
        d_model: width D of inputs and outputs.
        layer: name in `longscan.layers.LAYERS` of a layer with heads.
        expand: ratio of the inner width to D.
        d_conv: number of taps of the convolution, which SiLU follows; 0 for neither.
        norm: apply RMSNorm to each group of channels after the gate.
        layer_options: arguments of the inner layer.
        backend: backend of the heads' op and of the convolution.
    """

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        layer: str = "mamba2",
        expand: PositiveInt = 2,
        d_conv: NonNegativeInt = 4,
        norm: bool = True,
        layer_options: dict[str, Any] | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(
            d_model, layer=layer, expand=expand, d_conv=d_conv, norm=norm, layer_options=layer_options, backend=backend
        )
