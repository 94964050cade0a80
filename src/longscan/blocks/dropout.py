"""Dropout with one mask for all steps of a sequence, as in the code of S4 and S5 and the thesis on Mamba in long-range tasks."""

from torch import Tensor, nn
from torch.nn.functional import dropout

from longscan.distributed.collectives import all_gather
from longscan.distributed.context import current_split


class SharedDropout(nn.Dropout):
    """Dropout of channels of x (B, L, D): each row drops a channel at all its steps with probability p, see torch.nn.Dropout.

    The pieces of sequences that are split over processes have the mask of the first piece.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return x with dropped channels, in the same shape; x itself in evaluation."""
        if not self.training or not self.p:
            return x
        mask, split = dropout(x.new_ones(x.shape[0], 1, x.shape[2]), self.p), current_split()
        return x * (mask if split is None else all_gather(mask, split)[0])
