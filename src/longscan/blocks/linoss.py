"""The block of LinOSS, LRU and their relatives in one comparison (Rusch and Rus 2025, section 3 and released code).

x + dropout(GLU(dropout(GELU(layer(norm(x))))))     GLU(v) = (W_1 v + b_1) * sigmoid(W_2 v + b_2)

The norm is BatchNorm without scale and shift: `Residual(..., norm="batch")`, `norm: batch` of a model.
"""

from typing import Any

from longscan.blocks._registry import BLOCKS
from longscan.blocks.glu import GLUBlock


@BLOCKS.register("linoss")
class LinOSSBlock(GLUBlock):
    """Layer, GELU, dropout, full gated linear unit, dropout. The state is the layer's.

    Args:
        d_model: width D.
        layer: the inner layer, by its name in `LAYERS`.
        dropout: probability of dropping an activation in training (the authors: 0.05 for LinOSS, 0.1 for LRU and others).
        layer_options: settings of the inner layer.
        backend: of the inner layer's op.
    """

    def __init__(
        self,
        d_model: int,
        *,
        layer: str = "linoss",
        dropout: float = 0.05,
        layer_options: dict[str, Any] | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(
            d_model,
            layer=layer,
            glu="full",
            dropout=dropout,
            shared_dropout=False,
            output_norm=False,
            layer_options=layer_options,
            backend=backend,
        )
