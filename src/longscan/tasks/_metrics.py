"""A metric of classes that torchmetrics does not have."""

from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix


class BalancedAccuracy(MulticlassConfusionMatrix):
    """The mean recall of the classes that occur among the targets, as scikit-learn defines it.

    torchmetrics' macro accuracy also has a recall of 0 for a class that is only predicted.
    """

    def compute(self) -> Tensor:
        """Return the score, NaN without targets."""
        matrix = super().compute()
        count = matrix.sum(1)
        return (matrix.diag() / count)[count > 0].mean()
