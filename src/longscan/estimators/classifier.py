"""The scikit-learn classifier of series, `SSMClassifier`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor
from torch.nn.functional import cross_entropy

from longscan._torch_defaults import torch_defaults
from longscan._types import FractionBelowOne, NonNegativeFloat, PositiveFloat, PositiveInt
from longscan.engine import Callback
from longscan.estimators.features import StateFeatures
from longscan.estimators.fitting import (
    BlockOptions,
    Examples,
    Jobs,
    RandomState,
    SeriesEstimator,
    Spec,
    Verbose,
    check_settings,
    read_weights,
)
from longscan.estimators.reading import Layout, align_targets
from longscan.estimators.ridge import RidgeFit, fit_scores, lowers_cross_entropy
from longscan.estimators.series import Collection
from longscan.estimators.streams import ClassifierStream


class SSMClassifier(ClassifierMixin, SeriesEstimator):
    """A classifier of series: state space systems and a linear map of features of their outputs.

    By default the systems are two layers of random, untrained systems, whose number depends on the data. Their outputs are
    summarised over time, and the map is a ridge regression with the penalty of lowest leave-one-out cross-entropy: see
    `longscan.estimators.features` and `longscan.estimators.ridge`. If a setting of a stack or of training is given (`spec` to
    `weight_decay`, `validation_fraction` or `callbacks`), a stack of state space blocks is trained instead, and its outputs are
    pooled over time.

    X is a table (n, L) of equally long series of one channel (an array or a frame), an array (n, L, C), a list of arrays or
    frames (L_i,) or (L_i, C) of any lengths, a Series of these, indexed by case, or a frame indexed by (case, time), whose rows
    are sorted by case and time. Other frames and Series raise ValueError if their index decreases or has duplicates. Labels, and
    times that are a frame, are matched with their series by the index if both have one; channels are matched by name.

    `times`, given to `fit` and to `predict`, are the times of the steps: (n, L), a list of one array for each series, or "index"
    for the index of frames; at uneven times the layers forget more over a longer step. Channels are standardised with the mean
    and the standard deviation of the series in `fit`.

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
        class_weight: None for equal weights of the classes in the loss, "balanced" for weights inversely proportional to their
            numbers of series, or a weight for each label, 1 where it is missing.
        validation_fraction: part of the series of each class that `fit` holds back, to keep the weights of the best epoch on
            them; None or 0 for none.
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
        classes_: the labels. model_: the fitted `SequenceModel` or `FeatureModel`. loss_curve_: mean loss of each epoch, or
        the leave-one-out loss of the regression as its only entry. validation_curve_: the errors on the validation data after
        each epoch, or those of the regression, a list of `{"error", "loss"}`, None without such data. mean_, scale_: of
        the channels. time_unit_: the median time between steps. n_channels_, channel_names_, has_times_: of X in fit.
    """

    _with_values = True

    def __init__(
        self,
        spec: Spec | None = None,
        *,
        d_model: int | None = None,
        d_state: int | None = None,
        block_options: BlockOptions | None = None,
        pooling: Literal["mean", "last"] | None = None,
        epochs: PositiveInt | None = None,
        batch_size: PositiveInt | None = None,
        lr: NonNegativeFloat | None = None,
        weight_decay: NonNegativeFloat | None = None,
        class_weight: Literal["balanced"] | Mapping[Any, NonNegativeFloat] | None = None,
        validation_fraction: FractionBelowOne | None = None,
        patience: PositiveInt = 10,
        minutes: PositiveFloat | None = None,
        device: str = "auto",
        n_jobs: Jobs | None = None,
        random_state: RandomState = None,
        layout: Layout | None = None,
        output: Literal["auto", "numpy", "pandas"] = "auto",
        callbacks: Sequence[Callback] | None = None,
        verbose: Verbose = 0,
    ) -> None:
        super().__init__(
            spec,
            d_model=d_model,
            d_state=d_state,
            block_options=block_options,
            pooling=pooling,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            weight_decay=weight_decay,
            validation_fraction=validation_fraction,
            patience=patience,
            minutes=minutes,
            device=device,
            n_jobs=n_jobs,
            random_state=random_state,
            layout=layout,
            output=output,
            callbacks=callbacks,
            verbose=verbose,
        )
        self.class_weight = class_weight

    @torch_defaults()
    def fit(
        self, X: Any, y: Any, times: Any = None, *, sample_weight: Any = None, validation_data: tuple[Any, ...] | None = None
    ) -> Self:
        """Fit to series X and their labels y (n,).

        Args:
            X: the series.
            y: their labels.
            times: of the steps.
            sample_weight: (n,), weights of the series, in the loss and in means and deviations; series of weight 0 are left out.
            validation_data: (X, y) or (X, y, times), on which the weights of the epoch of lowest error are kept: of the fewest
                wrong labels and, among these, of the smallest loss.
        """
        if y is None:
            raise ValueError("`y` must be given: this classifier requires y to be passed, but the target y is None")
        collection = self._read(X, times, fitting=True)
        labels = _read_labels(collection, y)
        weights = read_weights(sample_weight, collection)
        if weights is not None:
            collection, labels, weights = collection.select(np.flatnonzero(weights)), labels[weights > 0], weights[weights > 0]
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"`y` must have at least two classes, got the one class {self.classes_.tolist()[0]!r}")
        of_classes = self._class_weights(numbers, weights)
        if of_classes is not None:
            weights = of_classes[numbers] * (1.0 if weights is None else weights)
        weights = None if weights is None else weights / weights.mean()
        examples = Examples(collection, torch.from_numpy(numbers), weights)
        validation = self._read_validation(validation_data, self._numbers)
        if validation is not None and of_classes is not None:
            validation = validation._replace(weights=of_classes[validation.targets.numpy()])
        self._fit(examples, len(self.classes_), validation, numbers)
        return self

    def _class_weights(self, numbers: np.ndarray, weights: np.ndarray | None) -> np.ndarray | None:
        """Return the weight of each class, (classes,); None for equal ones. numbers: (n,), the classes of the series."""
        check_settings(self)
        if self.class_weight is None:
            return None
        if isinstance(self.class_weight, str):
            totals = np.bincount(numbers, weights)
            return np.asarray(totals.sum() / (len(totals) * totals))
        of_label = dict(self.class_weight)
        result = np.array([float(of_label.pop(label, 1.0)) for label in self.classes_.tolist()])
        if of_label or not result.any():
            got = f"a weight of {next(iter(of_label))!r}" if of_label else "only weights of 0"
            raise ValueError(f"`class_weight` must have weights of labels in `y`, {self.classes_.tolist()}, got {got}")
        return result

    def _numbers(self, collection: Collection, y: Any) -> Tensor:
        """Return the labels of series as numbers of `classes_`, (n,). Raises ValueError for a label that fit had not."""
        labels = _read_labels(collection, y)
        unknown = ~np.isin(labels, self.classes_)
        if unknown.any():
            raise ValueError(f"`y` must have labels of fit, {self.classes_.tolist()}, got {labels[unknown].tolist()[0]!r}")
        return torch.from_numpy(np.searchsorted(self.classes_, labels))

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets, reduction="none")

    def _regression(self, values: np.ndarray, features: StateFeatures, examples: Examples) -> RidgeFit:
        classes, weights, families = examples.targets.numpy(), examples.weights, features.families
        fit = fit_scores(values, classes, weights, families)
        if not features.values:
            return fit
        count = features.n_features - features.values * features.channels
        of_outputs = fit_scores(values[:, :count], classes, weights, families[:count])
        if lowers_cross_entropy(fit, of_outputs, classes, weights):
            return fit
        features.leave_out_values()
        return of_outputs

    def _errors(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"error": (outputs.argmax(1) != targets).float(), **super()._errors(outputs, targets)}

    def predict_proba(self, X: Any, times: Any = None) -> Any:
        """Return the probability of each class, (n, classes), in the order of `classes_`; see `output`."""
        collection = self._read_new(X, times)
        return self._labelled(self._probabilities(collection), collection, self.classes_)

    def predict(self, X: Any, times: Any = None) -> Any:
        """Return the most probable class of each series, (n,); see `output`."""
        collection = self._read_new(X, times)
        return self._labelled(self._predicted(self._outputs(collection)), collection)

    def score(self, X: Any, y: Any, times: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy on series X with labels y, which are aligned with X as in `fit`, as are their weights.

        Raises ValueError for text as labels if those of `fit` are numbers, and the reverse, as no prediction could equal them.
        """
        collection = self._read_new(X, times)
        labels, weights = _read_labels(collection, y), read_weights(sample_weight, collection)
        is_text, was_text = (values.dtype.kind in "UOT" for values in (labels, self.classes_))
        if is_text != was_text:
            needed, got = ("text", "numbers") if was_text else ("numbers", "text")
            raise ValueError(f"`y` must have labels that are {needed} as in fit, got {got}, such as {labels.tolist()[0]!r}")
        return float(np.average(self._predicted(self._outputs(collection)) == labels, weights=weights))

    @torch_defaults()
    def stream(self) -> ClassifierStream:
        """Return a series without steps yet, which is classified after each piece that it is given.

        Raises ValueError if a block of the model cannot run step by step, such as those that read both directions.
        """
        self._check_streaming()
        return ClassifierStream(self)

    def _probabilities(self, collection: Collection) -> np.ndarray:
        return self._probabilities_of(self._outputs(collection))

    def _probabilities_of(self, outputs: np.ndarray) -> np.ndarray:
        """Return the probabilities (n, classes) of outputs of the model."""
        powers = np.exp(outputs - outputs.max(1, keepdims=True))
        return np.asarray(powers / powers.sum(1, keepdims=True))

    def _predicted(self, outputs: np.ndarray) -> np.ndarray:
        """Return the labels (n,) of outputs (n, classes) of the model."""
        return np.asarray(self.classes_[self._probabilities_of(outputs).argmax(1)])


def _read_labels(collection: Collection, y: Any) -> np.ndarray:
    """Return the labels (n,) of the series in the order of the cases. Raises ValueError if their number is another."""
    labels = class_labels(align_targets(collection, y))
    if len(labels) != len(collection):
        raise ValueError(f"`y` must have {len(collection)} labels, one for each series, got {len(labels)}")
    return labels


def class_labels(y: Any) -> np.ndarray:
    """Convert labels (n,) of a list, an array or a Series to numpy's types. Raises ValueError for missing or mixed labels."""
    if isinstance(y, list) and len({(isinstance(label, str), isinstance(label, bytes)) for label in y}) > 1:
        y = np.array(y, dtype=object)  # NumPy would make text of numbers, bytes and NaN next to text
    if isinstance(y, (pd.Series, pd.DataFrame)):
        y = y.to_numpy()  # column_or_1d would make float64 of Int64 and boolean, in which large whole numbers may become equal
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
