"""Base classes of layers with heads whose state is a matrix (Mamba-2, Mamba-3, Gated DeltaNet).

The recurrence of a head depends on selected features: step sizes, input and output maps. In a Mamba-2 block one projection before
the convolution computes them together with the input. So the heads are a separate module that takes both as arguments, and a
layer consists of heads and a projection of its input to the selected features.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from longscan.layers.base import SequenceInfo, SequenceLayer
from longscan.layers.parameters import Marked, mark
from longscan.layers.state import ScanState, State, no_sequence
from longscan.numerics.initialisers import uniform_fan_in
from longscan.ops.dispatch import Backend


class Heads(Marked, ABC):
    """Base of modules with the parameters and the scan of H heads of width P = D / H.

    Attributes:
        d_model: number of channels D.
        d_state: number of states N per channel.
        head_dim: number of channels P of a head.
        heads: number of heads H.
        groups: number of groups of heads with the same input and output maps.
        selected: number of selected features, the argument of the heads in addition to their input.
        convolved: number of selected features, the first ones, to which a block applies its convolution together with the input.
        dt_bias: (H,) biases of the step sizes.
        op_names: as in `SequenceModule`.
    """

    selected: int
    convolved: int
    dt_bias: nn.Parameter
    op_names: tuple[str, ...] = ()

    def __init__(self, d_model: int, d_state: int, head_dim: int | None, groups: int, backend: Backend) -> None:
        super().__init__()
        self.d_model, self.d_state, self.groups, self.backend = d_model, d_state, groups, backend
        self.head_dim = head_width(d_model, head_dim)
        self.heads = d_model // self.head_dim
        if self.heads % groups:
            raise ValueError(f"`groups` must divide the number of heads ({self.heads}), got {groups}")

    @abstractmethod
    def forward_impl(self, x: Tensor, selected: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return y (B, L, D) and the state after the last step, from x (B, L, D) and selected features (B, L, `selected`)."""

    def forward(self, x: Tensor, selected: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return `forward_impl(x, selected, state, info)`, the call of a block, which runs forward hooks."""
        return self.forward_impl(x, selected, state, info)

    def map_values(self, x: Tensor, selected: Tensor, values: Tensor, state: State, info: SequenceInfo) -> Tensor:  # noqa: ARG002
        """Return the outputs for other values (B, L, D), with the coefficients of x and `selected`. See `SequenceLayer`."""
        return self.forward_impl(values, selected, state, info)[0]

    def initial_state(self, batch: int) -> State:
        """Return the state before the first step of `batch` sequences: zeros, ssm (batch, H, P, N)."""
        like = self.dt_bias
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        ssm = torch.zeros(batch, self.heads, self.head_dim, self.d_state, dtype=dtype, device=like.device)
        return ScanState(ssm, no_sequence(batch, like.device))

    def split(self, x: Tensor) -> Tensor:
        """Return x (..., D) in the shape (..., H, P)."""
        return x.reshape(*x.shape[:-1], self.heads, self.head_dim)


class HeadsLayer(SequenceLayer):
    """Base of layers with heads and a projection (`selected`, D), without bias, of the input to the selected features."""

    context_parallel = True
    fuses_gate = True

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.d_model, self.heads = heads.d_model, heads
        self.x_proj = mark(nn.Parameter(uniform_fan_in(heads.selected, heads.d_model, fan_in=heads.d_model)), "selector")

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the output of the heads and their state."""
        return self.heads.forward_impl(x, linear(x, self.x_proj), state, info)

    def map_values(self, x: Tensor, values: Tensor, state: State, info: SequenceInfo) -> Tensor:
        """See `SequenceLayer.map_values`."""
        return self.heads.map_values(x, linear(x, self.x_proj), values, state, info)

    def initial_state(self, batch: int) -> State:
        """Return the initial state of the heads."""
        return self.heads.initial_state(batch)


def head_width(d_model: int, head_dim: int | None) -> int:
    """Return the width of a head: `head_dim`, or the largest divisor of d_model up to 64 if it is None.

    Raises ValueError unless `head_dim` divides d_model.
    """
    if head_dim is None:
        return max(width for width in range(1, min(d_model, 64) + 1) if d_model % width == 0)
    if d_model % head_dim:
        raise ValueError(f"`head_dim` must divide d_model ({d_model}), got {head_dim}")
    return head_dim
