"""Absolute positions that a model adds to its features: sinusoids, or learned tables.

    sinusoidal: P_{t,2i} = sin(t f_i), P_{t,2i+1} = cos(t f_i), f_i = 10000^(-2i/D)      (Vaswani et al. 2017, section 3.5)
    learned: P_t is row t of a table (length, D), a parameter

t: number of valid steps since the start of the sequence, from 0, also across calls. D: width of the model. The positions are
added to the input of the first block, or of every block: "blocks" with a table for each block, "tied" with the same table for
all. The last two are the learned positions of the thesis "Deep Learning with State Spaces for Efficient Sequence Modeling"
(section 14.4), whose tables have Glorot's initial values.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from longscan.layers.checks import values_unavailable
from longscan.layers.parameters import Marked, mark
from longscan.numerics.rotary import frequency_tensor

PositionKind = Literal["none", "sinusoidal", "learned", "blocks", "tied"]
BASE = 10_000.0


class Positions(Marked):
    """Positions of one kind for the inputs of the blocks of a model.

    Args:
        kind: "sinusoidal", "learned", "blocks" or "tied", see the top of the file.
        d_model: width D.
        n_blocks: number of blocks.
        length: number of rows of a table, the largest number of steps of a sequence; None for sinusoids, which need none.

    Raises ValueError if `length` is missing for tables or given for sinusoids.
    """

    def __init__(self, kind: PositionKind, d_model: int, n_blocks: int, length: int | None) -> None:
        super().__init__()
        if (length is None) != (kind == "sinusoidal"):
            needed = "None for sinusoids" if kind == "sinusoidal" else "the largest number of steps for learned positions"
            raise ValueError(f"`max_length` must be {needed}, got {length}")
        self.kind, self.d_model, self.length = kind, d_model, length
        self.table: nn.Parameter | None = None
        if length is not None:
            tables = torch.empty(n_blocks if kind == "blocks" else 1, length, d_model)
            for table in tables:
                nn.init.xavier_uniform_(table)
            self.table = mark(nn.Parameter(tables), "embedding", decay=False)

    def forward(self, x: Tensor, position: Tensor, block: int) -> Tensor:
        """Return the input x (B, L, D) of a block with the positions (B, L), integers, added where the kind adds them."""
        if block and self.kind in ("sinusoidal", "learned"):
            return x
        if self.table is None:
            rates = frequency_tensor(self.d_model + self.d_model % 2, BASE, torch.zeros(0, dtype=torch.float64, device=x.device))
            angle = position.unsqueeze(-1) * rates
            return x + torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., : self.d_model].to(x.dtype)
        if position.numel() and not values_unavailable(position) and int(position.max()) >= self.table.shape[1]:
            raise ValueError(
                f"`inputs` must have at most {self.length} steps, the learned positions, got {int(position.max()) + 1}"
            )
        return x + self.table[block if self.kind == "blocks" else 0][position].to(x.dtype)
