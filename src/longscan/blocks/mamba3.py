"""The Mamba-3 block (Lahoti et al. 2026): that of Mamba-2 without convolution and norm, around the heads of Mamba-3."""

from typing import Any

from longscan.blocks._registry import BLOCKS
from longscan.blocks.heads import HeadsBlock


@BLOCKS.register("mamba3")
class Mamba3Block(HeadsBlock):
    """in_proj, heads, gate, out_proj.

    Args:
        d_model: width D at both ends.
        layer: a layer with heads, by its name in `LAYERS`.
        expand: inner width over D.
        layer_options: settings of the inner layer.
        backend: of the heads' op.
    """

    def __init__(
        self,
        d_model: int,
        *,
        layer: str = "mamba3",
        expand: int = 2,
        layer_options: dict[str, Any] | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(d_model, layer=layer, expand=expand, d_conv=0, norm=False, layer_options=layer_options, backend=backend)
