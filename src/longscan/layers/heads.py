"""Base classes of layers with heads whose state is a matrix (Mamba-2, Mamba-3).

The recurrence of a head depends on selected features: step sizes, input and output maps. In a Mamba-2 block one projection before
the convolution computes them together with the input. So the heads are a separate module, which takes both; a layer adds a
projection of its own input that computes the selected features.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from longscan.layers.base import SequenceInfo, SequenceLayer
from longscan.layers.parameters import Marked, mark
from longscan.layers.state import State


class Heads(Marked, ABC):
    """Base of the parameters and the scan of H heads of width P = D / H.

    Attributes:
        d_model: D.
        head_dim: P.
        selected: number of selected features, which the heads take in addition to their input.
        convolved: number of these features, the first ones, that pass through a block's convolution together with the input.
        op_names: as in `SequenceModule`.
    """

    selected: int
    convolved: int
    op_names: tuple[str, ...] = ()

    def __init__(self, d_model: int, head_dim: int | None, backend: str) -> None:
        super().__init__()
        self.d_model, self.head_dim, self.backend = d_model, head_width(d_model, head_dim), backend
        self.heads = d_model // self.head_dim

    @abstractmethod
    def forward_impl(self, x: Tensor, selected: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return y (B, L, D) and the state after the last step, from x (B, L, D) and selected features (B, L, `selected`)."""

    @abstractmethod
    def initial_state(self, batch: int) -> State:
        """Return the state before the first step of `batch` sequences."""

    def split(self, x: Tensor) -> Tensor:
        """Return x (..., D) in the shape (..., H, P)."""
        return x.reshape(*x.shape[:-1], self.heads, self.head_dim)


class HeadsLayer(SequenceLayer):
    """Heads, and a projection (`selected`, D) without bias of the layer's input to the selected features."""

    fuses_gate = True

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.d_model, self.heads = heads.d_model, heads
        bound = 1 / math.sqrt(heads.d_model)
        self.x_proj = mark(nn.Parameter(torch.empty(heads.selected, heads.d_model).uniform_(-bound, bound)), "selector")

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the output of the heads and their state."""
        return self.heads.forward_impl(x, linear(x, self.x_proj), state, info)

    def initial_state(self, batch: int) -> State:
        """Return the initial state of the heads."""
        return self.heads.initial_state(batch)


def head_width(d_model: int, head_dim: int | None) -> int:
    """Return the width of a head: `head_dim`, which must divide d_model, or by default the largest divisor up to 64."""
    if d_model < 1:
        raise ValueError(f"d_model: got {d_model}, expected at least 1")
    if head_dim is None:
        return max(width for width in range(1, min(d_model, 64) + 1) if d_model % width == 0)
    if head_dim < 1 or d_model % head_dim:
        raise ValueError(f"head_dim: got {head_dim}, expected a divisor of the width {d_model}")
    return head_dim


def check_groups(d_state: int, groups: int, heads: int) -> None:
    """Raise ValueError unless d_state is at least 1 and `groups` divides the number of heads."""
    if d_state < 1:
        raise ValueError(f"d_state: got {d_state}, expected at least 1")
    if groups < 1 or heads % groups:
        raise ValueError(f"groups: got {groups}, expected a divisor of the {heads} heads")
