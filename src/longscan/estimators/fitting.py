"""Base of the estimators: read X, fit a model to a collection of series, compute its outputs."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from longscan._devices import find_device
from longscan._types import NonNegativeFloat, PositiveInt, checked_value
from longscan.engine import Callback, EarlyStopping, Engine, EpochLosses, NonFiniteLossError
from longscan.estimators.reading import (
    FittedChannels,
    Layout,
    align_times,
    check_table,
    convert_input,
    is_table,
    read_collection,
    times_keyword_error,
    times_presence_error,
)
from longscan.estimators.series import Collection, check_predictions
from longscan.layers._settings import declared_types
from longscan.models import SequenceModel, optimizer_groups

CLIP = 1.0
WARMUP = 0.1  # of the steps
Spec = str | Sequence[Mapping[str, Any]]


@contextmanager
def seeded(seed: int) -> Any:
    """Set torch's random generator to a seed for the length of a `with` block, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def check_settings(estimator: BaseEstimator) -> None:
    """Raise ValueError for a setting that is not of the type that the constructor declares; scikit-learn checks in `fit`."""
    kind: type = type(estimator)
    for name, value in estimator.get_params(deep=False).items():
        checked_value(value, declared_types(kind)[name], name)


def minimise(
    model: nn.Module,
    loss_of: Callable[[np.ndarray], Tensor],
    epoch: Callable[[np.random.RandomState], np.ndarray],
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    weight_decay: float,
    random: np.random.RandomState,
    schedule_epochs: int | None = None,
    evaluate: Callable[[], float] | None = None,
    patience: int = 0,
) -> list[float]:
    """Fit a model by AdamW with a linear warm-up, a cosine to 0 and gradients clipped at norm 1; return each epoch's mean loss.

    epoch: returns the examples of an epoch in the order in which they are shown. loss_of: the mean loss of some of them.
    schedule_epochs: number of epochs after which the cosine is 0, `epochs` without it. evaluate: returns the error after each
    epoch; training ends after `patience` epochs without a smaller one, with the weights of the smallest. Raises ValueError if the
    loss stops being finite, as scikit-learn's own estimators do.
    """
    optimizer = torch.optim.AdamW(optimizer_groups(model, weight_decay=weight_decay), lr=lr, fused=True)
    first_order = epoch(random)
    steps_per_epoch = math.ceil(len(first_order) / batch_size)
    steps = max(1, (schedule_epochs or epochs) * steps_per_epoch)
    warmup = max(1, round(WARMUP * steps))

    def batches() -> Iterator[np.ndarray]:
        for number in range(epochs):
            order = epoch(random) if number else first_order
            for first in range(0, len(order), batch_size):
                yield order[first : first + batch_size]

    losses = EpochLosses(steps_per_epoch)
    callbacks: list[Callback] = [losses]
    if evaluate is not None:
        callbacks.append(EarlyStopping(model, evaluate, every=steps_per_epoch, patience=patience))
    engine = Engine(
        optimizer,
        lambda rows: (loss_of(rows), None),
        learning_rate=lambda step, scale: scale * lr * min(1, (step + 1) / warmup) * (1 + math.cos(math.pi * step / steps)) / 2,
        clip_gradients=partial(nn.utils.clip_grad_norm_, list(model.parameters()), CLIP),
        callbacks=callbacks,
    )
    model.train()
    try:
        engine.run(batches())
    except NonFiniteLossError as error:
        failed = f"with which the loss became infinite or not a number in epoch {len(losses.curve) + 1} of {epochs}"
        raise ValueError(f"`lr` must be smaller, or the data without extreme values, got {lr}, {failed}") from error
    model.eval()
    return losses.curve


class SeriesEstimator(BaseEstimator):
    """Base of estimators with one target for each series: reads collections and fits a `SequenceModel`.

    Subclasses define targets and loss. scikit-learn reads the settings from the signature of the constructor.
    """

    def __init__(
        self,
        spec: Spec = "mamba",
        *,
        d_model: int = 64,
        d_state: int = 16,
        pooling: Literal["mean", "last"] = "mean",
        epochs: PositiveInt = 50,
        batch_size: PositiveInt = 32,
        lr: NonNegativeFloat = 3e-3,
        weight_decay: NonNegativeFloat = 0.01,
        device: str = "auto",
        random_state: Any = None,
        layout: Layout | None = None,
        output: Literal["auto", "numpy", "pandas"] = "auto",
    ) -> None:
        self.spec = spec
        self.d_model = d_model
        self.d_state = d_state
        self.pooling = pooling
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.device = device
        self.random_state = random_state
        self.layout = layout
        self.output = output

    def _read(self, X: Any, times: Any, *, fitting: bool) -> Collection:
        """Return X and times as a collection. Raises ValueError if they are none, or have other channels than in `fit`."""
        check_settings(self)
        X = convert_input(X)
        known = None if fitting else FittedChannels(self.n_channels_, self.channel_names_)
        if is_table(X):
            collection = self._read_table(X, times, known, fitting=fitting)
        else:
            collection = read_collection(X, times, layout=cast("Any", self.layout), known=known)
            if fitting:  # what an earlier fit to a table saw
                for name in ("n_features_in_", "feature_names_in_"):
                    if hasattr(self, name):
                        delattr(self, name)
        if not fitting and (collection.times is not None) != self.has_times_:
            raise times_presence_error(self.has_times_)
        return collection

    def _read_table(self, X: Any, times: Any, known: FittedChannels | None, *, fitting: bool) -> Collection:
        """Return a table (n, L) as a collection of series with one channel, checked by scikit-learn's rules."""
        X = check_table(X)
        try:
            table = validate_data(self, X, reset=fitting, dtype="numeric", ensure_min_samples=1)
        except (TypeError, ValueError) as error:
            raise type(error)(f"`X` is not a valid table: {error}") from error
        collection = read_collection(np.asarray(table, dtype=np.float64)[..., None], layout="nlc", known=known)
        if isinstance(X, pd.DataFrame):
            collection = replace(collection, cases=X.index)
        if times is None:
            return collection
        if isinstance(times, str):
            if times != "index" or not isinstance(X, pd.DataFrame):
                raise times_keyword_error(times)
            return collection.with_times([X.columns] * len(X))
        return collection.with_times(align_times(times, collection.cases))

    def _labelled(self, values: np.ndarray, collection: Collection, columns: Any = None) -> Any:
        """Return predictions (n,) or (n, K) as `output` says: an array, or a Series or frame indexed by case."""
        use_pandas = self.output == "pandas" or (self.output == "auto" and collection.is_long)
        if not use_pandas:
            return values
        if values.ndim == 1:
            return pd.Series(values, index=collection.cases)
        return pd.DataFrame(values, index=collection.cases, columns=columns)

    def _fit(self, collection: Collection, d_output: int, loss: Callable[[Tensor, np.ndarray], Tensor]) -> None:
        """Fit `model_` to the collection. loss: maps outputs (b, d_output) and the numbers of their series to the mean loss."""
        random = check_random_state(self.random_state)
        self.n_channels_, self.has_times_ = collection.channels, collection.times is not None
        self.channel_names_ = collection.channel_names
        self.mean_, self.scale_ = collection.statistics()
        self.time_unit_ = collection.time_unit()
        series = collection.standardise(self.mean_, self.scale_, self.time_unit_, "X")
        device = find_device(self.device)
        with seeded(int(random.randint(2**31 - 1))):
            model = SequenceModel.from_spec(
                self.spec,
                d_model=self.d_model,
                d_state=self.d_state,
                d_output=d_output,
                d_input=collection.channels,
                pooling=cast("Any", self.pooling),
                head="affine",
            ).to(device)

            def loss_of(rows: np.ndarray) -> Tensor:
                inputs, valid, elapsed = series.batch(rows, device)
                return loss(model(inputs, valid=valid, elapsed=elapsed), rows)

            self.loss_curve_ = minimise(
                model,
                loss_of,
                lambda random: random.permutation(len(collection)),
                epochs=self.epochs,
                batch_size=self.batch_size,
                lr=self.lr,
                weight_decay=self.weight_decay,
                random=random,
            )
        self.model_ = model

    def _outputs(self, collection: Collection) -> np.ndarray:
        """Return the model's outputs (n, d_output) in float64. Raises ValueError if one is not finite."""
        series = collection.standardise(self.mean_, self.scale_, self.time_unit_, "X")
        device = next(self.model_.parameters()).device
        parts = []
        with torch.no_grad():
            for first in range(0, len(collection), self.batch_size):
                rows = np.arange(first, min(first + self.batch_size, len(collection)))
                inputs, valid, elapsed = series.batch(rows, device)
                parts.append(self.model_(inputs, valid=valid, elapsed=elapsed).cpu().double().numpy())
        return check_predictions(np.concatenate(parts), "X")

    def _read_new(self, X: Any, times: Any) -> Collection:
        """Return the series to predict as a collection. Raises NotFittedError before `fit`."""
        check_is_fitted(self, "model_")
        return self._read(X, times, fitting=False)

    def network(self) -> SequenceModel:
        """Return a copy of the fitted model, whose inputs are series less `mean_`, divided by `scale_`."""
        check_is_fitted(self, "model_")
        return copy.deepcopy(self.model_)
