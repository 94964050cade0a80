"""The Gated DeltaNet block (Yang, Kautz and Hatamizadeh 2024, figure 1): the block of Mamba-2 around the heads of Gated DeltaNet.

The norm is part of the heads, and is applied before the gate.
"""

from typing import Any

from longscan._types import NonNegativeInt, PositiveInt
from longscan.blocks._registry import BLOCKS
from longscan.blocks.heads import HeadsBlock
from longscan.ops.dispatch import Backend


@BLOCKS.register("gated_deltanet")
class GatedDeltaNetBlock(HeadsBlock):
    """Block of in_proj, short convolution of values, keys and queries, heads with norm, gate and out_proj.

    Args:
        d_model: width D of inputs and outputs.
        layer: name in `longscan.layers.LAYERS` of a layer with heads.
        expand: ratio of the width of values and gate to D.
        d_conv: number of taps of the convolution, which SiLU follows; 0 for neither.
        layer_options: arguments of the inner layer.
        backend: backend of the heads' op and of the convolution.
    """

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        layer: str = "gated_deltanet",
        expand: PositiveInt = 2,
        d_conv: NonNegativeInt = 4,
        layer_options: dict[str, Any] | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(
            d_model, layer=layer, expand=expand, d_conv=d_conv, norm=False, layer_options=layer_options, backend=backend
        )
