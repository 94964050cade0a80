"""The Mamba-3 block (Lahoti et al. 2026): the block of Mamba-2 around the heads of Mamba-3, without convolution and norm."""

from typing import Any

from longscan._types import PositiveInt
from longscan.blocks._registry import BLOCKS
from longscan.blocks.heads import HeadsBlock
from longscan.ops.dispatch import Backend


@BLOCKS.register("mamba3")
class Mamba3Block(HeadsBlock):
    """Block of in_proj, heads, gate and out_proj.

    Args:
        d_model: width D of inputs and outputs.
        layer: name in `longscan.layers.LAYERS` of a layer with heads.
        expand: ratio of the inner width to D.
        layer_options: arguments of the inner layer.
        backend: backend of the heads' op.
    """

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        layer: str = "mamba3",
        expand: PositiveInt = 2,
        layer_options: dict[str, Any] | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(d_model, layer=layer, expand=expand, d_conv=0, norm=False, layer_options=layer_options, backend=backend)
