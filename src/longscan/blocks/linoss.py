"""The block in which LinOSS is compared with LRU and other layers (Rusch and Rus 2025, section 3 and released code).

x + dropout(GLU(dropout(GELU(layer(norm(x))))))     GLU(v) = (W_1 v + b_1) * sigmoid(W_2 v + b_2)

The norm is BatchNorm without scale and shift: `Residual(..., norm="batch")`, `norm: batch` of a model.
"""

from typing import Any

from longscan._types import FractionBelowOne, PositiveInt
from longscan.blocks._registry import BLOCKS
from longscan.blocks.glu import GLUBlock
from longscan.ops.dispatch import Backend


@BLOCKS.register("linoss")
class LinOSSBlock(GLUBlock):
    """Block of layer, GELU, dropout, full gated linear unit and dropout. The state is that of the layer.

    Args:
        d_model: width D.
        layer: name of the inner layer in `longscan.layers.LAYERS`.
        dropout: probability of dropping an activation in training (the authors: 0.05 for LinOSS, 0.1 for LRU and others).
        layer_options: arguments of the inner layer.
        backend: backend of the inner layer's op.
    """

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        layer: str = "linoss",
        dropout: FractionBelowOne = 0.05,
        layer_options: dict[str, Any] | None = None,
        backend: Backend = "auto",
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
