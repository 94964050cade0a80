"""The residual branch around every block of a stack: x + block(RMSNorm(x))."""

from torch import Tensor, nn

from longscan.layers.base import SequenceModule, Steps
from longscan.layers.parameters import mark
from longscan.layers.state import State

EPSILON = 1e-5


def rms_norm(d_model: int) -> nn.RMSNorm:
    """RMSNorm with a learned scale, epsilon 1e-5; not decayed."""
    norm = nn.RMSNorm(d_model, eps=EPSILON)
    mark(norm.weight, "norm", decay=False)
    return norm


class Residual(SequenceModule):
    """x + block(RMSNorm(x)), normalised before the block; its properties and its state are the block's.

    Padding passes through unchanged: y = x at steps that are not valid, zeros where this module is used on its own.
    """

    def __init__(self, block: SequenceModule) -> None:
        super().__init__()
        self.d_model = block.d_model
        self.norm = rms_norm(block.d_model)
        self.block = self.adopt(block)

    def run(self, x: Tensor, state: State, steps: Steps) -> tuple[Tensor, State]:
        """See the top of the file."""
        y, state = self.block(
            self.norm(x), state, elapsed=steps.elapsed, valid=steps.valid, seq_idx=steps.seq_idx, return_state=True
        )
        return x + y, state

    def step(
        self, x_t: Tensor, state: State, *, elapsed: Tensor | None = None, active: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """One step: x_t (B, d_model), elapsed (B,), active (B,) bool; rows that are not active give x_t."""
        return self.block.residual_step(x_t, self.norm, state, elapsed=elapsed, active=active)

    def initial_state(self, batch: int) -> State:
        """The block's."""
        return self.block.initial_state(batch)
