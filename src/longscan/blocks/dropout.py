"""Dropout with one mask for all steps of a sequence, as the S4 and S5 code and the thesis on Mamba in long-range tasks use it."""

from torch import Tensor, nn
from torch.nn.functional import dropout


def check_probability(name: str, value: float) -> float:
    """Return `value`; ValueError unless it is a probability below 1."""
    if not 0 <= value < 1:
        raise ValueError(f"{name}: got {value}, expected a probability in [0, 1)")
    return value


class SharedDropout(nn.Module):
    """Dropout of whole channels of each sequence of x (B, L, D) in training; the others are divided by 1 - p. Rows differ."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = check_probability("dropout", p)

    def forward(self, x: Tensor) -> Tensor:
        """Return x with dropped channels, in the same shape; x itself in evaluation."""
        if not self.training or not self.p:
            return x
        return x * dropout(x.new_ones(x.shape[0], 1, x.shape[2]), self.p)
