"""The residual branch around every block of a stack: x + block(RMSNorm(x)), with options for the norm and its position."""

from typing import Literal, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from longscan.blocks.batch_norm import BatchNorm
from longscan.layers.base import SequenceInfo, SequenceModule, mask_padding
from longscan.layers.parameters import mark
from longscan.layers.state import State

Norm = Literal["rms", "layer", "batch", "post"]
EPSILON = 1e-5


def rms_norm(d_model: int) -> nn.RMSNorm:
    """Return an RMSNorm with a learned scale and epsilon 1e-5, without weight decay."""
    norm = nn.RMSNorm(d_model, eps=EPSILON)
    mark(norm.weight, "norm", decay=False)
    return norm


def layer_norm(d_model: int) -> nn.LayerNorm:
    """Return a LayerNorm with a learned scale and shift and epsilon 1e-5, without weight decay."""
    norm = nn.LayerNorm(d_model, eps=EPSILON)
    for parameter in (norm.weight, norm.bias):
        mark(parameter, "norm", decay=False)
    return norm


def _select(new: Tensor, valid: Tensor | None, old: Tensor) -> Tensor:
    """Return `new` at the steps where `valid` is True, `old` at the others."""
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
    """Residual branch around a block, with the properties and the state of the block.

    At invalid steps y = x inside a model, and y = 0 if this module is called on its own.

    Args:
        block: the block in the branch.
        norm: "rms", x + block(RMSNorm(x)); "layer", x + block(LayerNorm(x)); "batch", x + block(BatchNorm(x)), without scale and
            shift, rows depending on each other in training; "post", LayerNorm(x + block(x)).

    If the block shortens the sequence, its `shorten` is applied to the residual path.
    """

    context_parallel = True

    def __init__(self, block: SequenceModule, norm: Norm = "rms") -> None:
        super().__init__()
        self.d_model, self.kind = block.d_model, norm
        self.norm: nn.Module = BatchNorm(self.d_model) if norm == "batch" else layer_norm(self.d_model)
        if norm == "rms":
            self.norm = rms_norm(self.d_model)
        self.block = self.inherit_properties(block)
        self.fuses_step = norm == "rms" and isinstance(block, ResidualStep)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        inner = x if self.kind == "post" else self._normed(x, info.valid)
        y, state = self.block.call_unchecked(inner, state, info)
        x, valid = self.shorten(x, info), self.shorten_info(info).valid
        y = x + y
        return (_select(self.norm(y), valid, x) if self.kind == "post" else y), state

    def _normed(self, x: Tensor, valid: Tensor | None) -> Tensor:
        return self.norm(x, valid) if isinstance(self.norm, BatchNorm) else mask_padding(self.norm(x), valid)

    def shorten(self, x: Tensor, info: SequenceInfo) -> Tensor:
        """Return x at the length of the block's output, see `SequenceModule.shorten`."""
        return self.block.shorten(x, info)

    def shorten_info(self, info: SequenceInfo) -> SequenceInfo:
        """Return `info` for the steps of the block's output."""
        return self.block.shorten_info(info)

    def step(
        self, x_t: Tensor, state: State, *, elapsed: Tensor | None = None, active: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return y_t (B, d_model) and the new state for one step x_t (B, d_model).

        Rows that are not active give x_t inside a model, and 0 if this module is called on its own.
        """
        if self.checks_inputs:
            x_t, elapsed = self.validate_step(x_t, state, elapsed, active)
        if self.fuses_step:
            block = cast("ResidualStep", self.block)
            return block.residual_step(x_t, cast("nn.RMSNorm", self.norm), state, elapsed=elapsed, active=active)
        norm = self.norm.step if isinstance(self.norm, BatchNorm) else self.norm
        inner = x_t if self.kind == "post" else _select(norm(x_t), active, torch.zeros_like(x_t))
        y, state = self.block.step(inner, state, elapsed=elapsed, active=active)
        y = x_t + y
        return (_select(self.norm(y), active, x_t) if self.kind == "post" else y), state

    def initial_state(self, batch: int) -> State:
        """Return the initial state of the block."""
        return self.block.initial_state(batch)
