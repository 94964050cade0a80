"""A classifier of series."""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch.nn.functional import cross_entropy

from longscan.estimators.fitting import SeriesEstimator


class SSMClassifier(ClassifierMixin, SeriesEstimator):
    """A stack of state space blocks, pooled over time, that tells classes of series apart.

    X is a table (n, L) of equally long series of one channel (an array or a frame), an array (n, L, C), a list of arrays or
    frames (L_i,) or (L_i, C) of any lengths, or a frame indexed by (series, time). `times`, given to `fit` and to `predict`, are
    the times of the steps: (n, L), a list of one array for each series, or "index" for the index of frames; uneven ones change
    how long the layers remember. Channels are standardised by what `fit` saw.

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
        classes_: the labels. model_: the fitted `SequenceModel`. loss_curve_: mean loss of each epoch. mean_, scale_: of the
        channels. time_unit_: the median time between steps. n_channels_, has_times_: what X was like.
    """

    def fit(self, X: Any, y: Any, times: Any = None) -> Self:
        """Fit to series X and their labels y (n,)."""
        if y is None:
            raise ValueError("y: this classifier requires y to be passed, but the target y is None")
        collection = self._read(X, times, fitting=True)
        labels = column_or_1d(y, warn=True)
        if len(labels) != len(collection):
            raise ValueError(f"y: got {len(labels)} labels, expected {len(collection)}, one for each series")
        if labels.dtype.kind == "f":
            assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        targets = torch.from_numpy(numbers.astype(np.int64))
        self._fit(collection, len(self.classes_), lambda output, rows: cross_entropy(output, targets[rows].to(output.device)))
        return self

    def predict_proba(self, X: Any, times: Any = None) -> np.ndarray:
        """(n, classes): the probability of each class, in the order of `classes_`."""
        logits = self._outputs(X, times)
        powers = np.exp(logits - logits.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)

    def predict(self, X: Any, times: Any = None) -> np.ndarray:
        """(n,): the likeliest class of each series."""
        chosen = self.predict_proba(X, times).argmax(1)
        return self.classes_[chosen]

    def score(self, X: Any, y: Any, times: Any = None) -> float:
        """The share of series whose class is predicted."""
        return float(np.mean(self.predict(X, times) == column_or_1d(y)))
