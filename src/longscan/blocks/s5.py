"""The block of S5, S7 and event-ssm (Smith et al. 2023; Soydan et al. 2024; Schoene et al. 2024), with event pooling.

S5 uses glu="half2" and the layer S5; S7 glu="half1", the layer S7 and a norm after the layer; event-ssm glu="half2" and the layer
S5 with the discretisation "async". Dropout drops whole channels of a sequence, as in the authors' code.

With stride p > 1 the output has one step for every p steps (S7, equation 11, and the first layer of each stage of event-ssm):

    x_{k+p} = (a_{k+p} ... a_{k+1}) x_k + sum_i (a_{k+p} ... a_{k+i+1}) b_{k+i} u_{k+i}

which is the recurrence over a whole window with the product of its factors. The output is that of the last step of a window
(event-ssm's code takes the first, which does not depend on the rest of the window). The residual path is pooled over the window:
its last step, its mean, or its mean weighted by the elapsed times. The steps of later blocks are windows.
"""

from typing import Any

from torch import Tensor

from longscan._types import FractionBelowOne, PositiveInt
from longscan.blocks import windows
from longscan.blocks._registry import BLOCKS
from longscan.blocks.glu import Glu, GLUBlock
from longscan.blocks.windows import Pooling
from longscan.distributed.context import current_split
from longscan.layers.base import SequenceInfo, mask_padding
from longscan.layers.state import State
from longscan.ops.dispatch import Backend


@BLOCKS.register("s5")
class S5Block(GLUBlock):
    """Block of layer, GELU, dropout, gated linear unit and dropout, with one output per window. The state is that of the layer.

    With a stride the windows start again at each call: calls in pieces equal one call if each piece has whole windows, and `step`
    raises ValueError.

    Args:
        d_model: width D.
        layer: name of the inner layer in `longscan.layers.LAYERS`.
        glu: "half1", "half2" or "full", see `longscan.blocks.glu`.
        dropout: probability of dropping a channel of a sequence in training.
        output_norm: apply LayerNorm to the output of the layer.
        stride: number of steps in a window, 1 for no pooling. Rows of several sequences require 1.
        pooling: pooling of the residual path over a window: "last", "mean", or "time" for the mean weighted by elapsed times.
        layer_options: arguments of the inner layer.
        backend: backend of the inner layer's op.
    """

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        layer: str = "s5",
        glu: Glu = "half2",
        dropout: FractionBelowOne = 0.0,
        output_norm: bool = False,
        stride: PositiveInt = 1,
        pooling: Pooling = "mean",
        layer_options: dict[str, Any] | None = None,
        backend: Backend = "auto",
    ) -> None:
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
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        if self.stride == 1:
            return super().forward_impl(x, state, info)
        if info.seq_idx is not None:
            raise ValueError(f"`seq_idx` must be None with stride={self.stride}, as windows would mix sequences, got a tensor")
        if current_split() is not None:
            self._check_piece(x.shape[1], info)
        u, state = self.layer.call_unchecked(x, state, info)
        y = self.mix(windows.shorten(u, info, self.stride, "last"))
        return mask_padding(y, self.shorten_info(info).valid), state

    def _check_piece(self, length: int, info: SequenceInfo) -> None:
        """Raise ValueError unless each window of split sequences is in one piece."""
        if info.valid is not None:
            raise ValueError(f"`valid` must be None with stride={self.stride} inside `context_parallel`, got a tensor")
        if length % self.stride:
            raise ValueError(f"`x` must be a piece of whole windows of {self.stride} steps, got {length} steps")

    def step(
        self, x_t: Tensor, state: State, *, elapsed: Tensor | None = None, active: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return y_t and the new state as `SequenceModule.step`. Raises ValueError with a stride."""
        if self.stride > 1:
            raise ValueError(
                f"`stride` must be 1 for single steps, as a window of several steps has one output, got {self.stride}"
            )
        return super().step(x_t, state, elapsed=elapsed, active=active)

    def shorten(self, x: Tensor, info: SequenceInfo) -> Tensor:
        """Return the residual path x (B, L, D) pooled over the windows, see `windows.shorten`."""
        return x if self.stride == 1 else windows.shorten(x, info, self.stride, self.pooling)

    def shorten_info(self, info: SequenceInfo) -> SequenceInfo:
        """Return `info` for the windows, see `windows.shorten_info`."""
        return info if self.stride == 1 else windows.shorten_info(info, self.stride)
