"""Rotary positions (Su et al. 2021) of the features before the scan of a state space block.

    x'_{2i} + i x'_{2i+1} = e^{i position f_i} (x_{2i} + i x_{2i+1})        f_i = base^{-2i/E}   (times pi / length)

x: features (B, L, E), E even. position: number of valid steps since the start of the sequence, also across calls.

The options are those of the thesis "Deep Learning with State Spaces for Efficient Sequence Modeling" (section 14): base, learned
frequencies, a length over which the fastest pair rotates by pi, repeated positions, and the inputs of the scan that are computed
from rotated features.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from longscan._types import EvenInt, PositiveFloat, PositiveInt, Rule
from longscan.distributed.collectives import gather_steps
from longscan.distributed.context import SequenceSplit, current_split, use_split
from longscan.layers.base import SequenceInfo
from longscan.layers.parameters import Marked, mark
from longscan.layers.state import State, restarted_rows
from longscan.numerics.rotary import frequencies, frequency_tensor, rotate_pairs

Target = Literal["x", "dt", "B", "C"]
Targets = Annotated[Sequence[Target], Rule(bool, "a list of at least one of x, dt, B, C")]


class Rotary(Marked):
    """Rotation of pairs of neighbouring features by angles proportional to the position.

    Args:
        width: features E, even.
        base: base of the frequencies; with 10 all pairs rotate fast, with 10,000 most of them rotate slowly.
        learned: train the frequencies, at a tenth of the learning rate and without weight decay.
        length: number of steps in which the fastest pair rotates by pi; None for one radian per step.
        repeat: number of steps after which positions restart at 0, such as the width of an image; None for no restart.
        targets: what is computed from the rotated features: "x", the input of the scan, and "dt", "B" and "C" of S6.
    """

    def __init__(
        self,
        width: EvenInt,
        *,
        base: PositiveFloat = 10_000.0,
        learned: bool = False,
        length: PositiveInt | None = None,
        repeat: PositiveInt | None = None,
        targets: Targets = ("x",),
    ) -> None:
        super().__init__()
        self.base, self.width, self.repeat, self.targets = base, width, repeat, tuple(targets)
        self.scale = 1.0 if length is None else math.pi / length
        start = torch.tensor(frequencies(width, base), dtype=torch.get_default_dtype())
        self.theta: nn.Parameter | None = None
        if learned:
            self.theta = mark(nn.Parameter(start), "ssm", lr_scale=0.1, decay=False, keep_float32=True)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """Return x (B, L, E) rotated by the positions (B, L), integers."""
        if self.repeat is not None:
            position = position % self.repeat
        # In float32 a large position times a frequency has no accurate remainder.
        wide = torch.float32 if x.device.type == "mps" else torch.float64
        position = position.to(wide)
        theta = frequency_tensor(self.width, self.base, position) if self.theta is None else self.theta.to(wide)
        angle = position.unsqueeze(-1) * (theta * self.scale)
        dtype = torch.promote_types(x.dtype, torch.float32)
        return rotate_pairs(x, angle.remainder(2 * math.pi).to(dtype))


def positions_from(state: State, x: Tensor, info: SequenceInfo) -> tuple[Tensor, Tensor]:
    """Return `positions` of the steps of x (B, L, D), continued from a block's state, or from 0 if the state is None."""
    shape = (x.shape[0], x.shape[1])
    if state is None:
        return positions(torch.zeros(x.shape[0], dtype=torch.int64, device=x.device), None, shape, info)
    rows, _ = restarted_rows(state.layer.last_seq_idx, info.valid, info.seq_idx)
    return positions(state.position, rows, shape, info)


def positions(carried: Tensor, restarted: Tensor | None, shape: tuple[int, int], info: SequenceInfo) -> tuple[Tensor, Tensor]:
    """Return the position of each step in its sequence, (B, L), from 0, and the position of the next step, (B,).

    Args:
        carried: (B,) int64, position of the first step if it continues the sequence of earlier calls.
        restarted: (B,) bool, rows whose first valid step starts a sequence; None: no row.
        shape: (B, L).
        info: `valid` and `seq_idx` as in `SequenceModule.forward`.

    If sequences are split over processes, `carried` and the second result are those before the first and after the last piece.
    """
    length, split = shape[1], current_split()
    if restarted is not None:
        carried = torch.where(restarted, 0, carried)
    if split is not None:
        return _piece_positions(carried, shape, info, split)
    if length == 0:
        return carried.new_zeros(shape), carried
    index = torch.arange(length, device=carried.device).expand(shape)
    count = torch.full_like(carried, length)
    if info.valid is not None:
        index, count = (info.valid.cumsum(1) - 1).clamp(min=0), info.valid.sum(1)
    position = index + carried.unsqueeze(1)
    if info.seq_idx is not None:
        changed = torch.zeros(shape, dtype=torch.bool, device=carried.device)
        changed[:, 1:] = (info.seq_idx[:, 1:] != info.seq_idx[:, :-1]) & (index[:, 1:] > 0)
        if info.valid is not None:
            changed = changed & info.valid
        start = torch.where(changed, index, 0).cummax(1).values
        position = torch.where(start > 0, index - start, position)
    return position, torch.where(count > 0, position[:, -1] + 1, carried)


def _piece_positions(carried: Tensor, shape: tuple[int, int], info: SequenceInfo, split: SequenceSplit) -> tuple[Tensor, Tensor]:
    """Return `positions` for the piece of this process. `valid` and `seq_idx` of all pieces are gathered."""
    length = shape[1]
    masks = [None if mask is None else gather_steps(mask, split) for mask in (info.valid, info.seq_idx)]
    with use_split(None):
        whole, after = positions(carried, None, (shape[0], length * split.size), SequenceInfo(valid=masks[0], seq_idx=masks[1]))
    return whole[:, split.rank * length : (split.rank + 1) * length], after
