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

from longscan._errors import count_text
from longscan._float32 import check_exact_integers
from longscan._torch_defaults import torch_defaults
from longscan.estimators.features import KINDS, LINEAR_KINDS, SHAPE_KINDS, StateFeatures
from longscan.estimators.fitting import Examples, SeriesEstimator, read_weights
from longscan.estimators.reading import align_targets, are_positions, check_no_text, column_names, flat_index
from longscan.estimators.ridge import RidgeFit, fit_values
from longscan.estimators.series import Collection, check_predictions, mean_and_deviation
from longscan.estimators.streams import SeriesStream

GAIN = 0.125  # smallest relative gain in the leave-one-out error for which nonlinear features are used


class SSMRegressor(RegressorMixin, SeriesEstimator):
    """A regressor of series, fitted by least squares: random state space systems and a ridge regression, or a trained stack.

    X, times and the settings are those of `SSMClassifier`; targets are standardised internally. Without settings of a stack the
    ridge regression reads features that are linear in the outputs of the systems, or all features if these lower the
    leave-one-out error by an eighth. A smaller gain is not used, because similar series, such as overlapping windows, make that
    error too small, and because linear features extrapolate beyond the values of the fit.

    Args:
        spec: the blocks of a stack to train, by name or as a list, as in `longscan.SequenceModel.from_spec`; "mamba" if None and
            another setting of the stack is given.
        d_model: width of the stack, 64 if None.
        d_state: state size of the layers of the stack, 16 if None.
        block_options: more options by the name of a block in `spec`, for example `{"mamba": {"expand": 1}}`.
        pooling: of the stack, "mean" over the steps (also if None) or the "last" one.
        epochs: number of passes over the series, at most with validation or `minutes`; 50 if None.
        batch_size: number of series of an update, 32 if None.
        lr: largest learning rate, after a linear warm-up and before a cosine to 0; 3e-3 if None.
        weight_decay: of AdamW, for the parameters that declare it; 0.01 if None.
        validation_fraction: part of the series that `fit` holds back, to keep the weights of the best epoch on them; None or 0
            for none.
        patience: epochs without an improvement on validation data after which training ends.
        minutes: time that `fit` may take, at most; there are then fewer features, or the learning rate ends with the time, and
            results depend on the speed. If the fewest features take longer, `fit` reads some series, at least 300, and logs
            a warning. One update is always made.
        device: "cpu", "cuda", ..., or "auto".
        n_jobs: number of threads of torch in `fit` and `predict`; -1 for all processors. None: one, or torch's own number for
            batches of two million values and more (steps times d_model), see `longscan.estimators.threads`. The results are
            equal up to rounding.
        random_state: a number, a `numpy.random.RandomState` or None; the same number gives the same model.
        layout: the axes of arrays: "nlc", (cases, steps, channels) and (steps, channels), or "ncl", (cases, channels, steps) and
            (channels, steps), as in aeon and PyTorch's convolutions. None: "nlc", but an array with more channels than steps
            raises ValueError, as it may be "ncl". Rows of frames are steps for every layout.
        output: "numpy", predictions as arrays; "pandas", as a Series or a frame indexed by case; "auto", the latter for frames
            indexed by (case, time), the former for all other input, as in scikit-learn.
        callbacks: `longscan.engine.Callback`s, called after each update and at the end. Each epoch logs a row of split "train"
            to them and, with validation data, one of split "valid".
        verbose: True or 1 for a progress bar with loss, validation error and time left; without a terminal a line for each epoch.

    Attributes:
        model_, loss_curve_, mean_, scale_, time_unit_, n_channels_, channel_names_, has_times_: as in `SSMClassifier`.
        validation_curve_: the same with the mean squared error of standardised targets, a list of `{"loss"}`.
        target_mean_, target_scale_, target_names_: of y; names only if y was a frame.
    """

    _kinds = KINDS

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @torch_defaults()
    def fit(
        self, X: Any, y: Any, times: Any = None, *, sample_weight: Any = None, validation_data: tuple[Any, ...] | None = None
    ) -> Self:
        """Fit to series X and their targets y, (n,) or (n, K).

        Args:
            X: the series.
            y: their targets.
            times: of the steps.
            sample_weight: (n,), weights of the series, in the loss and in means and deviations; series of weight 0 are left out.
            validation_data: (X, y) or (X, y, times), on which the weights of the epoch of lowest squared error are kept.
        """
        if y is None:
            raise ValueError("`y` must be given: this regressor requires y to be passed, but the target y is None")
        collection = self._read(X, times, fitting=True)
        targets = _read_targets(collection, y)
        weights = read_weights(sample_weight, collection)
        if weights is not None:
            collection, targets, weights = collection.select(np.flatnonzero(weights)), targets[weights > 0], weights[weights > 0]
        self.target_names_ = tuple(y.columns) if isinstance(y, pd.DataFrame) else None
        self._one_target = targets.ndim == 1
        columns = targets.reshape(len(targets), -1)
        self.target_mean_, deviation = mean_and_deviation(columns, weights)
        self.target_scale_ = np.where(deviation > 0, deviation, 1.0)
        weights = None if weights is None else weights / weights.mean()
        examples = Examples(collection, self._standardise(columns), weights)
        self._fit(examples, columns.shape[1], self._read_validation(validation_data, self._validation_targets))
        return self

    def _standardise(self, columns: np.ndarray) -> Tensor:
        """Return targets (n, K) less their mean in fit, divided by their deviation, in float32."""
        return torch.from_numpy(((columns - self.target_mean_) / self.target_scale_).astype(np.float32))

    def _validation_targets(self, collection: Collection, y: Any) -> Tensor:
        """Return the standardised targets of validation data. Raises ValueError if they have other columns than in fit."""
        targets = self._read_named_targets(collection, y)
        columns = targets.reshape(len(targets), -1)
        if columns.shape[1] != len(self.target_mean_):
            needed = count_text(len(self.target_mean_), "column")
            raise ValueError(f"`y` must have {needed} as in fit, got {columns.shape[1]}")
        return self._standardise(columns)

    def _read_named_targets(self, collection: Collection, y: Any) -> np.ndarray:
        """Return targets (n,) or (n, K) with the columns in the order of fit, by their names if both frames have names.

        Raises ValueError if the names are others than in fit.
        """
        expected = self.target_names_
        if isinstance(y, pd.DataFrame) and expected is not None and len(y.columns) == len(expected):
            columns = flat_index(y.columns)
            order = columns.get_indexer(flat_index(expected)) if columns.is_unique else np.array([-1])
            if tuple(columns) != expected and (order >= 0).all():
                y = y.iloc[:, order]
            elif tuple(columns) != expected and column_names(y) is not None and not are_positions(expected):
                raise ValueError(f"`y` must have the columns {list(expected)} as in fit, got {list(y.columns)}")
        return _read_targets(collection, y)

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return mse_loss(outputs, targets, reduction="none").mean(1)

    def _regression(self, values: np.ndarray, features: StateFeatures, examples: Examples) -> RidgeFit:
        targets, families = examples.targets.double().numpy(), features.families
        linear = families[:, 1] >= len(SHAPE_KINDS)
        fit = fit_values(values[:, linear], targets, examples.weights, families[linear])
        of_all = fit_values(values, targets, examples.weights, families)
        if of_all.error < (1 - GAIN) * fit.error:
            return of_all
        features.select(LINEAR_KINDS)
        return fit

    def predict(self, X: Any, times: Any = None) -> Any:
        """Return predictions of the shape of y in fit, (n,) or (n, K); see `output`."""
        collection = self._read_new(X, times)
        return self._labelled(self._predictions(collection), collection, self.target_names_)

    def score(self, X: Any, y: Any, times: Any = None, sample_weight: Any = None) -> float:
        """Return R^2, 1 for perfect predictions and 0 for the best constant; y and weights are aligned with X as in `fit`.

        Columns of a frame y are matched with those of `fit` by their names.
        """
        collection = self._read_new(X, times)
        targets, weights = self._read_named_targets(collection, y), read_weights(sample_weight, collection)
        return float(r2_score(targets, self._predictions(collection), sample_weight=weights))

    @torch_defaults()
    def stream(self) -> SeriesStream:
        """Return a series without steps yet, whose targets are predicted after each piece that it is given.

        Raises ValueError if a block of the model cannot run step by step, such as those that read both directions.
        """
        self._check_streaming()
        return SeriesStream(self)

    def _predictions(self, collection: Collection) -> np.ndarray:
        return self._predicted(self._outputs(collection))

    def _predicted(self, outputs: np.ndarray) -> np.ndarray:
        """Return the targets (n,) or (n, K) of outputs (n, K) of the model."""
        with np.errstate(over="ignore"):
            predicted = check_predictions(outputs * self.target_scale_ + self.target_mean_, "X")
        return predicted[:, 0] if self._one_target else predicted


def _read_targets(collection: Collection, y: Any) -> np.ndarray:
    """Return the targets (n,) or (n, K) of the series in the order of the cases. Raises ValueError if they have another shape."""
    targets, n = convert_targets(align_targets(collection, y)), len(collection)
    if targets.ndim > 2 or len(targets) != n:
        raise ValueError(f"`y` must have the shape ({n},) or ({n}, K), one row for each series, got {targets.shape}")
    return targets


def convert_targets(y: Any) -> np.ndarray:
    """Convert targets to float64. Raises ValueError for anything but finite numbers."""
    check_no_text(y, "`y`")
    try:
        checked = check_array(y, ensure_2d=False, dtype="numeric", input_name="y")
    except (TypeError, ValueError) as error:
        raise ValueError(f"`y` is not a valid target: {error}") from None
    if checked.dtype.kind in "mM":
        raise ValueError(f"`y` must contain only numbers, got dtype {checked.dtype}")
    targets = np.asarray(checked, dtype=np.float64)
    if not np.isfinite(targets).all():  # of None in a list, which scikit-learn does not find
        raise ValueError(f"`y` must contain only finite numbers, got {int((~np.isfinite(targets)).sum())} that are missing")
    check_exact_integers(checked, targets, "`y`")
    return targets
