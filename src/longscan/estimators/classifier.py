"""The scikit-learn classifier of series, `SSMClassifier`."""

from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch.nn.functional import cross_entropy

from longscan.estimators.fitting import SeriesEstimator
from longscan.estimators.reading import align_targets
from longscan.estimators.series import Collection


class SSMClassifier(ClassifierMixin, SeriesEstimator):
    """A classifier of series: a stack of state space blocks, pooled over time.

    X is a table (n, L) of equally long series of one channel (an array or a frame), an array (n, L, C), a list of arrays or
    frames (L_i,) or (L_i, C) of any lengths, a Series of these, indexed by case, or a frame indexed by (case, time), whose rows
    are sorted by case and time. Other frames and Series are refused if their index decreases or has duplicates. Labels, and times
    that are a frame, are matched with their series by the index if both have one; channels are matched by name.

    `times`, given to `fit` and to `predict`, are the times of the steps: (n, L), a list of one array for each series, or "index"
    for the index of frames; at uneven times the layers forget more over a longer step. Channels are standardised with the mean
    and the standard deviation of the series in `fit`.

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
        classes_: the labels. model_: the fitted `SequenceModel`. loss_curve_: mean loss of each epoch. mean_, scale_: of the
        channels. time_unit_: the median time between steps. n_channels_, channel_names_, has_times_: of X in fit.
    """

    def fit(self, X: Any, y: Any, times: Any = None) -> Self:
        """Fit to series X and their labels y (n,)."""
        if y is None:
            raise ValueError("`y` must be given: this classifier requires y to be passed, but the target y is None")
        collection = self._read(X, times, fitting=True)
        labels = _read_labels(collection, y)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"`y` must have at least two classes, got the one class {self.classes_.tolist()[0]!r}")
        targets = torch.from_numpy(numbers.astype(np.int64))
        self._fit(collection, len(self.classes_), lambda output, rows: cross_entropy(output, targets[rows].to(output.device)))
        return self

    def predict_proba(self, X: Any, times: Any = None) -> Any:
        """Return the probability of each class, (n, classes), in the order of `classes_`; see `output`."""
        collection = self._read_new(X, times)
        return self._labelled(self._probabilities(collection), collection, self.classes_)

    def predict(self, X: Any, times: Any = None) -> Any:
        """Return the most probable class of each series, (n,); see `output`."""
        collection = self._read_new(X, times)
        return self._labelled(self.classes_[self._probabilities(collection).argmax(1)], collection)

    def score(self, X: Any, y: Any, times: Any = None) -> float:
        """Return the accuracy on series X with labels y, which are aligned with X as in `fit`."""
        collection = self._read_new(X, times)
        labels = _read_labels(collection, y)
        return float(np.mean(self.classes_[self._probabilities(collection).argmax(1)] == labels))

    def _probabilities(self, collection: Collection) -> np.ndarray:
        logits = self._outputs(collection)
        powers = np.exp(logits - logits.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)


def _read_labels(collection: Collection, y: Any) -> np.ndarray:
    """Return the labels (n,) of the series in the order of the cases; ValueError if their number is another."""
    labels = class_labels(align_targets(collection, y))
    if len(labels) != len(collection):
        raise ValueError(f"`y` must have {len(collection)} labels, one for each series, got {len(labels)}")
    return labels


def class_labels(y: Any) -> np.ndarray:
    """Convert labels (n,) of a list, an array or a Series to numpy's types; ValueError for missing or mixed labels."""
    labels = np.asarray(column_or_1d(y, warn=True))
    missing = np.asarray(pd.isna(labels))
    if missing.any():
        raise ValueError(
            f"`y` must have a label in each row, got {missing.sum()} of {len(labels)} missing, first row {missing.argmax()}"
        )
    if labels.dtype.kind == "f":
        assert_all_finite(labels, input_name="y")
    if labels.dtype == object:
        kind = pd.api.types.infer_dtype(labels, skipna=False)
        if kind in ("integer", "floating", "boolean"):
            labels = labels.astype({"integer": np.int64, "floating": np.float64, "boolean": np.bool_}[kind])
        elif kind not in ("string", "empty"):
            raise ValueError(f"`y` must contain only text or only numbers, got labels of kind {kind!r}")
    try:
        check_classification_targets(labels)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`y` is not a valid target: {error}") from None
    return labels
