"""Dropout with one mask for all steps of a sequence, as in the code of S4 and S5 and the thesis on Mamba in long-range tasks."""

from torch import Tensor, nn
from torch.nn.functional import dropout


class SharedDropout(nn.Dropout):
    """Dropout of channels of x (B, L, D): each row drops a channel at all its steps with probability p, see torch.nn.Dropout."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x with dropped channels, in the same shape; x itself in evaluation."""
        if not self.training or not self.p:
            return x
        return x * dropout(x.new_ones(x.shape[0], 1, x.shape[2]), self.p)
