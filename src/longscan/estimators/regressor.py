"""The scikit-learn regressor of series, `SSMRegressor`, with one or several targets."""

from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_array
from torch import Tensor
from torch.nn.functional import mse_loss

from longscan.estimators.fitting import SeriesEstimator
from longscan.estimators.reading import align_targets
from longscan.estimators.series import Collection, check_predictions, mean_and_deviation


class SSMRegressor(RegressorMixin, SeriesEstimator):
    """A regressor of series: a stack of state space blocks, pooled over time, fitted by least squares.

    X, times and the settings are those of `SSMClassifier`; targets are standardised internally.

    Args:
        spec: the blocks, by name or as a list, as in `longscan.SequenceModel.from_spec`.
        d_model: width of the stack.
        d_state: state size of the layers.
        pooling: "mean" over the steps, or the "last" one.
        epochs: number of passes over the series.
        batch_size: number of series of an update.
        lr: largest learning rate, after a linear warm-up and before a cosine to 0.
        weight_decay: of AdamW, for the parameters that declare it.
        device: "cpu", "cuda", ..., or "auto".
        random_state: a number, a `numpy.random.RandomState` or None; the same number gives the same model.
        layout: the axes of arrays: "nlc", (cases, steps, channels) and (steps, channels), or "ncl", (cases, channels, steps) and
            (channels, steps), as in aeon and PyTorch's convolutions. None: "nlc", but an array with more channels than steps
            is refused, as it may be "ncl". Rows of frames are steps for every layout.
        output: "numpy", predictions as arrays; "pandas", as a Series or a frame indexed by case; "auto", the latter for frames
            indexed by (case, time), the former for all other input, as in scikit-learn.

    Attributes:
        model_, loss_curve_, mean_, scale_, time_unit_, n_channels_, channel_names_, has_times_: as in `SSMClassifier`.
        target_mean_, target_scale_, target_names_: of y; names only if y was a frame.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, times: Any = None) -> Self:
        """Fit to series X and their targets y, (n,) or (n, K)."""
        if y is None:
            raise ValueError("`y` must be given: this regressor requires y to be passed, but the target y is None")
        collection = self._read(X, times, fitting=True)
        targets = convert_targets(align_targets(collection, y))
        n = len(collection)
        if targets.ndim > 2 or len(targets) != n:
            raise ValueError(f"`y` must have the shape ({n},) or ({n}, K), one row for each series, got {targets.shape}")
        self.target_names_ = tuple(y.columns) if isinstance(y, pd.DataFrame) else None
        self._one_target = targets.ndim == 1
        columns = targets.reshape(len(targets), -1)
        self.target_mean_, deviation = mean_and_deviation(columns)
        self.target_scale_ = np.where(deviation > 0, deviation, 1.0)
        standardised = torch.from_numpy(((columns - self.target_mean_) / self.target_scale_).astype(np.float32))

        def loss(output: Tensor, rows: np.ndarray) -> Tensor:
            return mse_loss(output, standardised[rows].to(output.device))

        self._fit(collection, columns.shape[1], loss)
        return self

    def predict(self, X: Any, times: Any = None) -> Any:
        """Return predictions of the shape of y in fit, (n,) or (n, K); see `output`."""
        collection = self._read_new(X, times)
        return self._labelled(self._predictions(collection), collection, self.target_names_)

    def score(self, X: Any, y: Any, times: Any = None) -> float:
        """Return R^2, 1 for perfect predictions and 0 for the best constant; y is aligned with X as in `fit`."""
        collection = self._read_new(X, times)
        return float(r2_score(convert_targets(align_targets(collection, y)), self._predictions(collection)))

    def _predictions(self, collection: Collection) -> np.ndarray:
        with np.errstate(over="ignore"):
            predicted = check_predictions(self._outputs(collection) * self.target_scale_ + self.target_mean_, "X")
        return predicted[:, 0] if self._one_target else predicted


def convert_targets(y: Any) -> np.ndarray:
    """Convert targets to float64; ValueError for anything but finite numbers."""
    try:
        checked = check_array(y, ensure_2d=False, dtype="numeric", input_name="y")
    except (TypeError, ValueError) as error:
        raise ValueError(f"`y` is not a valid target: {error}") from None
    if checked.dtype.kind in "mM":
        raise ValueError(f"`y` must contain only numbers, got dtype {checked.dtype}")
    return np.asarray(checked, dtype=np.float64)
