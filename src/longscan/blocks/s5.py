"""The block of S5, S7 and event-ssm (Smith et al. 2023; Soydan et al. 2024; Schoene et al. 2024), with event pooling.

S5 takes "half2" with S5, S7 "half1" with S7 and a norm behind the layer, event-ssm "half2" with the discretisation "async".
Dropout drops whole channels of a sequence, as in their codes.

With stride p > 1 the block keeps one step of every p (S7, equation 11, and the first layer of each of event-ssm's stages):

    x_{k+p} = (a_{k+p} ... a_{k+1}) x_k + sum_i (a_{k+p} ... a_{k+i+1}) b_{k+i} u_{k+i}

the recurrence over a whole window, with the product of its factors, since these may differ; the output is that of a window's last
step (event-ssm's code takes the first, which has not seen the window). The residual path beside it is pooled over the window: its
last step, its mean, or its mean weighted by the elapsed times. What follows sees windows as steps.
"""

from typing import Any

from torch import Tensor

from longscan.blocks import windows
from longscan.blocks._registry import BLOCKS
from longscan.blocks.glu import Glu, GLUBlock
from longscan.blocks.windows import POOLINGS, Pooling
from longscan.layers.base import SequenceInfo, mask_padding
from longscan.layers.state import State


@BLOCKS.register("s5")
class S5Block(GLUBlock):
    """Layer, GELU, dropout, gated linear unit, dropout; with a stride, one output a window. The state is the layer's.

    A state carries a sequence across calls whose windows start anew; with a stride this equals one call where the cuts lie
    between windows, and there is no `step`.

    Args:
        d_model: width D.
        layer: the inner layer, by its name in `LAYERS`.
        glu: "half1", "half2" or "full", see `longscan.blocks.glu`.
        dropout: probability of dropping a channel of a sequence in training.
        output_norm: LayerNorm behind the layer.
        stride: steps in a window; 1 keeps every step. More than one sequence a row needs 1.
        pooling: of the residual path over a window: "last", "mean" or "time".
        layer_options: settings of the inner layer.
        backend: of the inner layer's op.
    """

    def __init__(
        self,
        d_model: int,
        *,
        layer: str = "s5",
        glu: Glu = "half2",
        dropout: float = 0.0,
        output_norm: bool = False,
        stride: int = 1,
        pooling: Pooling = "mean",
        layer_options: dict[str, Any] | None = None,
        backend: str = "auto",
    ) -> None:
        if stride < 1:
            raise ValueError(f"stride: got {stride}, expected at least 1")
        if pooling not in POOLINGS:
            raise ValueError(f"pooling: got {pooling!r}, expected one of {POOLINGS}")
        super().__init__(
            d_model,
            layer=layer,
            glu=glu,
            dropout=dropout,
            shared_dropout=True,
            output_norm=output_norm,
            layer_options=layer_options,
            backend=backend,
        )
        self.stride, self.pooling = stride, pooling
        if stride > 1:
            self.changes_length, self.streaming = True, False

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Run the block of the module docstring."""
        if self.stride == 1:
            return super().forward_impl(x, state, info)
        if info.seq_idx is not None:
            raise ValueError(f"seq_idx: windows of {self.stride} steps would reach over sequences; pad them instead")
        u, state = self.layer.call_unchecked(x, state, info)
        y = self.mix(windows.shorten(u, info, self.stride, "last"))
        return mask_padding(y, self.shorten_info(info).valid), state

    def step(
        self, x_t: Tensor, state: State, *, elapsed: Tensor | None = None, active: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return y_t and the new state as `SequenceModule.step`; ValueError with a stride."""
        if self.stride > 1:
            raise ValueError(f"step: with a stride of {self.stride} most steps have no output")
        return super().step(x_t, state, elapsed=elapsed, active=active)

    def shorten(self, x: Tensor, info: SequenceInfo) -> Tensor:
        """Return the residual path x (B, L, D) pooled over the windows, see `windows.shorten`."""
        return x if self.stride == 1 else windows.shorten(x, info, self.stride, self.pooling)

    def shorten_info(self, info: SequenceInfo) -> SequenceInfo:
        """Return `info` for the windows, see `windows.shorten_info`."""
        return info if self.stride == 1 else windows.shorten_info(info, self.stride)
