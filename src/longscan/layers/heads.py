"""What layers with heads of a matrix state share: they select from their own input, or a block projects for them.

A block in the manner of Mamba-2 computes what the heads select (step sizes, input and output maps) together with their input, in
one projection before the convolution. So the heads are a module of their own, which takes both; the layer around them adds the
projection from its own input.
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
    """H heads of width P = D / H.

    d_model: D. head_dim: P. selected: how many features the heads take beside their input; convolved: how many of these, the
    first ones, pass a block's convolution together with the input. op_names: as in `SequenceModule`.
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
        """y (B, L, D) and the state after the last step, from x (B, L, D) and selected (B, L, `selected`)."""

    @abstractmethod
    def initial_state(self, batch: int) -> State:
        """The state before the first step of `batch` sequences."""

    def split(self, x: Tensor) -> Tensor:
        """(..., D) as (..., H, P)."""
        return x.reshape(*x.shape[:-1], self.heads, self.head_dim)


class HeadsLayer(SequenceLayer):
    """Heads, and the projection that gives them what they select from the layer's input, (`selected`, D), without bias."""

    fuses_gate = True

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.d_model, self.heads = heads.d_model, heads
        bound = 1 / math.sqrt(heads.d_model)
        self.x_proj = mark(nn.Parameter(torch.empty(heads.selected, heads.d_model).uniform_(-bound, bound)), "selector")

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """As the heads."""
        return self.heads.forward_impl(x, linear(x, self.x_proj), state, info)

    def initial_state(self, batch: int) -> State:
        """The heads'."""
        return self.heads.initial_state(batch)


def head_width(d_model: int, head_dim: int | None) -> int:
    """The width of a head: `head_dim`, or the largest divisor of d_model up to 64; ValueError unless it divides d_model."""
    if d_model < 1:
        raise ValueError(f"d_model: got {d_model}, expected at least 1")
    if head_dim is None:
        return max(width for width in range(1, min(d_model, 64) + 1) if d_model % width == 0)
    if head_dim < 1 or d_model % head_dim:
        raise ValueError(f"head_dim: got {head_dim}, expected a divisor of the width {d_model}")
    return head_dim


def check_groups(d_state: int, groups: int, heads: int) -> None:
    """ValueError unless there are states, and groups that share out the heads evenly."""
    if d_state < 1:
        raise ValueError(f"d_state: got {d_state}, expected at least 1")
    if groups < 1 or heads % groups:
        raise ValueError(f"groups: got {groups}, expected a divisor of the {heads} heads")
