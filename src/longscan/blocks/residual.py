"""The residual branch around every block of a stack: x + block(RMSNorm(x)), and other places and kinds of norm."""

from typing import Literal, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from longscan.blocks.batch_norm import BatchNorm
from longscan.layers.base import SequenceInfo, SequenceModule, mask_padding
from longscan.layers.parameters import mark
from longscan.layers.state import State

Norm = Literal["rms", "layer", "batch", "post"]
NORMS = ("rms", "layer", "batch", "post")
EPSILON = 1e-5


def rms_norm(d_model: int) -> nn.RMSNorm:
    """RMSNorm with a learned scale, epsilon 1e-5; not decayed."""
    norm = nn.RMSNorm(d_model, eps=EPSILON)
    mark(norm.weight, "norm", decay=False)
    return norm


def layer_norm(d_model: int) -> nn.LayerNorm:
    """LayerNorm with a learned scale and shift, epsilon 1e-5; not decayed."""
    norm = nn.LayerNorm(d_model, eps=EPSILON)
    for parameter in (norm.weight, norm.bias):
        mark(parameter, "norm", decay=False)
    return norm


def _keep(new: Tensor, valid: Tensor | None, old: Tensor) -> Tensor:
    """`new` at valid steps, `old` at the others."""
    return new if valid is None else torch.where(valid.unsqueeze(-1), new, old)


@runtime_checkable
class ResidualStep(Protocol):
    """A block that computes one step of its whole residual branch, RMSNorm and sum included, in one call."""

    def residual_step(
        self, x_t: Tensor, norm: nn.RMSNorm, state: State, *, elapsed: Tensor | None = None, active: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return x_t + step(norm(x_t)), shape (B, d_model), and the state after the step."""
        ...


class Residual(SequenceModule):
    """A block in its residual branch; its properties and its state are the block's.

    Padding passes through unchanged: y = x at steps that are not valid, zeros where this module is used on its own.

    Args:
        block: what stands in the branch.
        norm: "rms", x + block(RMSNorm(x)); "layer", x + block(LayerNorm(x)); "batch", x + block(BatchNorm(x)), without scale and
            shift, rows depending on each other in training; "post", LayerNorm(x + block(x)).

    Where the block makes the sequence shorter the residual path goes through its `shorten`.
    """

    def __init__(self, block: SequenceModule, norm: Norm = "rms") -> None:
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"norm: got {norm!r}, expected one of {NORMS}")
        self.d_model, self.kind = block.d_model, norm
        self.norm: nn.Module = BatchNorm(self.d_model) if norm == "batch" else layer_norm(self.d_model)
        if norm == "rms":
            self.norm = rms_norm(self.d_model)
        self.block = self.inherit_properties(block)
        self.fuses_step = norm == "rms" and isinstance(block, ResidualStep)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """See the top of the file."""
        inner = x if self.kind == "post" else self._normed(x, info.valid)
        y, state = self.block.call_unchecked(inner, state, info)
        x, valid = self.shorten(x, info), self.shorten_info(info).valid
        y = x + y
        return (_keep(self.norm(y), valid, x) if self.kind == "post" else y), state

    def _normed(self, x: Tensor, valid: Tensor | None) -> Tensor:
        return self.norm(x, valid) if isinstance(self.norm, BatchNorm) else mask_padding(self.norm(x), valid)

    def shorten(self, x: Tensor, info: SequenceInfo) -> Tensor:
        """The block's."""
        return self.block.shorten(x, info)

    def shorten_info(self, info: SequenceInfo) -> SequenceInfo:
        """The block's."""
        return self.block.shorten_info(info)

    def step(
        self, x_t: Tensor, state: State, *, elapsed: Tensor | None = None, active: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """One step: x_t (B, d_model), elapsed (B,), active (B,) bool; rows that are not active give x_t."""
        if self.fuses_step:
            block = cast("ResidualStep", self.block)
            return block.residual_step(x_t, cast("nn.RMSNorm", self.norm), state, elapsed=elapsed, active=active)
        norm = self.norm.step if isinstance(self.norm, BatchNorm) else self.norm
        inner = x_t if self.kind == "post" else _keep(norm(x_t), active, torch.zeros_like(x_t))
        y, state = self.block.step(inner, state, elapsed=elapsed, active=active)
        y = x_t + y
        return (_keep(self.norm(y), active, x_t) if self.kind == "post" else y), state

    def initial_state(self, batch: int) -> State:
        """The block's."""
        return self.block.initial_state(batch)
