"""A regressor of series: one number, or several, for each."""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_array
from torch import Tensor
from torch.nn.functional import mse_loss

from longscan.estimators.fitting import SeriesEstimator


class SSMRegressor(RegressorMixin, SeriesEstimator):
    """A stack of state space blocks, pooled over time, fitted to numbers by least squares.

    X and times are those of `SSMClassifier`, and so are the settings; targets are standardised inside.

    Args:
        spec: the blocks, letters or a list, as in `longscan.SequenceModel.from_spec`.
        d_model: width of the stack.
        d_state: state size of the layers.
        pooling: "mean" over the steps, or the "last" one.
        epochs: times each series is shown.
        batch_size: series in an update.
        lr: largest learning rate, after a warm-up and before a cosine to 0.
        weight_decay: of AdamW, where parameters declare that they decay.
        device: "cpu", "cuda", ..., or "auto".
        random_state: a number, a `numpy.random.RandomState` or None; the same number gives the same model.

    Attributes:
        model_, loss_curve_, mean_, scale_, time_unit_, n_channels_, has_times_: as in `SSMClassifier`.
        target_mean_, target_scale_: of y.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, times: Any = None) -> Self:
        """Fit to series X and their targets y, (n,) or (n, K)."""
        if y is None:
            raise ValueError("y: this regressor requires y to be passed, but the target y is None")
        collection = self._read(X, times, fitting=True)
        targets = check_array(y, ensure_2d=False, dtype="numeric", input_name="y").astype(np.float64)
        if targets.ndim > 2 or len(targets) != len(collection):
            raise ValueError(f"y: got shape {targets.shape}, expected ({len(collection)},), one number a series, or two axes")
        self._one_target = targets.ndim == 1
        columns = targets.reshape(len(targets), -1)
        self.target_mean_ = columns.mean(0)
        deviation = columns.std(0)
        self.target_scale_ = np.where(deviation > 0, deviation, 1.0)
        wanted = torch.from_numpy(((columns - self.target_mean_) / self.target_scale_).astype(np.float32))

        def loss(output: Tensor, rows: np.ndarray) -> Tensor:
            return mse_loss(output, wanted[rows].to(output.device))

        self._fit(collection, columns.shape[1], loss)
        return self

    def predict(self, X: Any, times: Any = None) -> np.ndarray:
        """(n,) or (n, K), as y was."""
        predicted = self._outputs(X, times) * self.target_scale_ + self.target_mean_
        return predicted[:, 0] if self._one_target else predicted

    def score(self, X: Any, y: Any, times: Any = None) -> float:
        """R^2: 1 for perfect predictions, 0 for those of a constant."""
        return float(r2_score(y, self.predict(X, times)))
