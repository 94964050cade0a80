"""Base of the estimators: read X, fit a model to a collection of series, compute its outputs."""

import copy
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from time import monotonic
from typing import Annotated, Any, Literal, NamedTuple, cast

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from longscan._devices import find_device
from longscan._errors import count_text, quote
from longscan._float32 import check_exact_integers
from longscan._torch_defaults import torch_defaults
from longscan._types import (
    FractionBelowOne,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Rule,
    between,
    checked_value,
    matches_type,
)
from longscan.engine import Callback, EarlyStopping, Engine, EpochLosses, NonFiniteLossError, StepResult, TimeLimit
from longscan.estimators.clock import check_unit, gap_ratio, has_seconds
from longscan.estimators.features import (
    SHAPE_KINDS,
    STATES_PER_GROUP,
    FeatureModel,
    StateFeatures,
    calibrated_features,
    rows_at_once,
)
from longscan.estimators.reading import (
    ChannelNames,
    FittedChannels,
    Layout,
    align_times,
    align_to_cases,
    check_no_text,
    check_table,
    convert_input,
    is_table,
    read_collection,
    step_names,
    times_keyword_error,
    times_presence_error,
)
from longscan.estimators.ridge import RidgeFit
from longscan.estimators.saving import SavedEstimator
from longscan.estimators.series import Collection, StandardisedSeries, check_predictions
from longscan.estimators.threads import choose_threads, limited_threads
from longscan.layers._settings import declared_types
from longscan.models import SequenceModel, optimizer_groups

CLIP = 1.0
UNEVEN = 4  # longest step in median ones above which times that are not read are warned of; a long weekend is four business days
WARMUP = 0.1  # fraction of the steps with a linear warm-up of the learning rate
Spec = str | Sequence[Mapping[str, Any]]
BlockOptions = Mapping[str, Mapping[str, Any]]

_log = logging.getLogger("longscan")
_generator_lock = threading.RLock()


class StackSettings(NamedTuple):
    """Settings of a trained stack; the defaults are the values of those that are not given."""

    spec: Spec = "mamba"
    d_model: int = 64
    d_state: int = 16
    pooling: Literal["mean", "last"] = "mean"
    epochs: int = 50
    batch_size: int = 32
    lr: float = 3e-3
    weight_decay: float = 0.01


ONLY_TRAINED = (*StackSettings._fields, "block_options", "validation_fraction", "callbacks")
Jobs = Annotated[int, Rule(bool, "a whole number other than 0")]
NumpySeed = Annotated[int, between(0, 2**32 - 1)]
RandomState = Annotated[
    Any,
    Rule(
        lambda value: value is None or isinstance(value, np.random.RandomState) or matches_type(value, NumpySeed),
        "a whole number from 0 to below 2^32, a numpy.random.RandomState or None",
    ),
]
Verbose = Annotated[bool | int, Rule(lambda value: value in (0, 1), "True, False, 1 or 0")]


@contextmanager
def seeded(seed: int) -> Any:
    """Set torch's random generator to a seed for the length of a `with` block, and restore it afterwards.

    Other threads that enter such a block wait until this one has left it, because all threads have the same generator. The stacks
    of estimators are trained in such blocks, so that a process captures one CUDA graph at a time, as CUDA requires.
    """
    with _generator_lock, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def check_settings(estimator: BaseEstimator) -> None:
    """Raise ValueError for a setting that is not of the type that the constructor declares; scikit-learn checks in `fit`."""
    kind: type = type(estimator)
    for name, value in estimator.get_params(deep=False).items():
        checked_value(value, declared_types(kind)[name], name)


class EpochLog(Callback):
    """Logs a row for each new entry of `losses.curve`: split "train", epoch, loss and lr."""

    def __init__(self, losses: EpochLosses) -> None:
        self._losses, self._logged, self._learning_rate = losses, 0, 0.0

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Log the epoch if this step ended it."""
        self._learning_rate = result.learning_rate
        self.on_train_end(engine)

    def on_train_end(self, engine: Engine) -> None:
        """Log an epoch that is not logged yet, such as an incomplete last one."""
        if len(self._losses.curve) > self._logged:
            self._logged = len(self._losses.curve)
            row = {"epoch": self._logged, "loss": self._losses.curve[-1], "lr": self._learning_rate}
            engine.log({"split": "train", **row})


class ValidationCurve(Callback):
    """Collects the errors of the rows of split "valid" in `curve`, each a dictionary."""

    def __init__(self) -> None:
        self.curve: list[dict[str, float]] = []

    def on_log(self, engine: Engine, row: dict[str, Any]) -> None:  # noqa: ARG002 - the engine gives it
        """Store the row without its step and split."""
        if row.get("split") == "valid":
            self.curve.append({name: value for name, value in row.items() if name not in ("step", "split")})


def check_takes_times(model: SequenceModel) -> None:
    """Raise ValueError unless all blocks of a model take the times between steps."""
    if block := model.block_without_times():
        raise ValueError(f"`times` must be None, as {block} takes no elapsed times, got times")


def minimise(
    model: nn.Module,
    batch_of: Callable[[np.ndarray], Any],
    loss_of: Callable[[Any], Tensor],
    epoch: Callable[[np.random.RandomState], np.ndarray],
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    weight_decay: float,
    random: np.random.RandomState,
    schedule_epochs: int | None = None,
    evaluate: Callable[[], Mapping[str, float]] | None = None,
    patience: int = 0,
    seconds: float | None = None,
    callbacks: Sequence[Callback] = (),
    verbose: bool | int = False,
) -> list[float]:
    """Fit a model by AdamW with a linear warm-up, a cosine to 0 and gradients clipped at norm 1; return each epoch's mean loss.

    Each epoch logs a row to the callbacks, with split "train" and, with `evaluate`, one with split "valid". On a CUDA device the
    updates on batches of one shape are replayed as a CUDA graph, unless one cannot be captured.

    Args:
        model: the model; it is in evaluation mode afterwards.
        batch_of: function that returns the tensors of the examples with some indices, a NamedTuple on the device of the model.
        loss_of: function of these that returns the mean loss of the examples. It computes on the device alone.
        epoch: function that returns the indices of the examples of an epoch in the order of training.
        epochs: largest number of epochs.
        batch_size: number of examples of an update.
        lr: largest learning rate.
        weight_decay: of the parameters that declare decay.
        random: passed to `epoch`.
        schedule_epochs: number of epochs after which the cosine is 0, `epochs` without it.
        evaluate: function that returns errors by name, called after each epoch and at the end. The weights with the smallest
            errors, compared in the order of their names, are restored.
        patience: epochs without a smaller error after which training ends; 0: never.
        seconds: time limit of the training. The schedule depends on the fraction of the updates or of the time that has passed,
            whichever is larger, so that the learning rate reaches 0 within the limit even if the speed changes. None: no limit,
            and results that do not depend on the speed.
        callbacks: called after those of this function.
        verbose: True or 1 for a progress bar.

    Raises ValueError if the loss is no longer finite, as scikit-learn's own estimators do.
    """
    reserve, start = 0.0, monotonic()
    if seconds is not None and evaluate is not None:
        evaluate()
        reserve = monotonic() - start
    limit = None if seconds is None else TimeLimit(seconds - reserve, reserve)
    optimizer = torch.optim.AdamW(optimizer_groups(model, weight_decay=weight_decay), lr=lr, fused=True)
    first_order = epoch(random)
    steps_per_epoch = math.ceil(len(first_order) / batch_size)
    steps = max(1, (schedule_epochs or epochs) * steps_per_epoch)
    orders = (epoch(random) if number else first_order for number in range(epochs))

    def evaluate_and_log() -> tuple[float, ...]:
        errors = cast("Any", evaluate)()
        engine.log({"split": "valid", **errors})
        return tuple(errors.values())

    losses = EpochLosses(steps_per_epoch)
    own: list[Callback] = [losses, EpochLog(losses)]
    if evaluate is not None:
        own.append(EarlyStopping(model, evaluate_and_log, every=steps_per_epoch, patience=patience))
    if limit is not None:
        own.append(limit)
    bar = _progress_bar(epochs * steps_per_epoch, limit) if verbose else None
    engine = Engine(
        optimizer,
        lambda batch: (loss_of(batch), None),
        learning_rate=partial(_learning_rate, largest=lr, steps=steps, limit=limit),
        clip_gradients=partial(nn.utils.clip_grad_norm_, list(model.parameters()), CLIP),
        callbacks=[*own, *callbacks] if bar is None else [*own, bar, *callbacks],
    )
    device = next(model.parameters()).device
    if replays_updates(device):
        engine.capture(device, required=False)
    model.train()
    try:
        with nullcontext() if bar is None else closing(bar):
            engine.run(map(batch_of, _batches(orders, batch_size)))
    except NonFiniteLossError as error:
        failed = f"with which the loss became infinite or not a number in epoch {len(losses.curve) + 1} of {epochs}"
        raise ValueError(f"`lr` must be smaller, or the data without extreme values, got {lr}, {failed}") from error
    finally:
        engine.release_graphs()
    model.eval()
    return losses.curve


def replays_updates(device: torch.device) -> bool:
    """Return whether `minimise` replays updates on a device as CUDA graphs, which have fixed shapes."""
    return device.type == "cuda"


def _batches(orders: Iterable[np.ndarray], batch_size: int) -> Iterator[np.ndarray]:
    """Yield the indices of the examples of each update. orders: those of each epoch, in the order of training."""
    for order in orders:
        for first in range(0, len(order), batch_size):
            yield order[first : first + batch_size]


def _learning_rate(step: int, scale: float, *, largest: float, steps: int, limit: TimeLimit | None) -> float:
    """Return the learning rate of an update: a linear warm-up and a cosine to 0, by updates or by time, see `minimise`."""
    warmup = max(1, round(WARMUP * steps))
    time_spent = 0.0 if limit is None else limit.fraction
    warm = min(1, max((step + 1) / warmup, time_spent / WARMUP))
    return scale * largest * warm * (1 + math.cos(math.pi * max(step / steps, time_spent))) / 2


def _progress_bar(steps: int, limit: TimeLimit | None) -> Any:
    from longscan.training.progress import ProgressBar  # rich takes 0.1 s to import

    time_spent = None if limit is None else lambda: limit.fraction
    return ProgressBar(steps, 0, "error", shown=True, train_lines=True, time_spent=time_spent)


class Examples(NamedTuple):
    """Series, their targets (n,) or (n, K), and the weights (n,) of their losses, with mean 1; None if these are equal."""

    collection: Collection
    targets: Tensor
    weights: np.ndarray | None

    def select(self, rows: np.ndarray) -> "Examples":
        """Return some of the examples. rows: (m,), their indices."""
        weights = None if self.weights is None else self.weights[rows]
        return Examples(self.collection.select(rows), self.targets[rows], weights)


class LabelledBatch(NamedTuple):
    """Tensors of some series with their targets on one device: those of `SeriesBatch`, the targets, and the weights or None."""

    values: Tensor
    valid: Tensor | None
    elapsed: Tensor | None
    targets: Tensor
    weights: Tensor | None


def _choose_rows(targets: np.ndarray, count: int, random: np.random.RandomState) -> np.ndarray:
    """Return the indices of `count` random examples, and of one of each class that has none among them, in increasing order.

    targets: (n,) integers for classes, (n, K) floats for numbers.
    """
    order = random.permutation(len(targets))
    rows = order[:count]
    if targets.dtype.kind == "i":
        rows = np.union1d(rows, order[np.unique(targets[order], return_index=True)[1]])
    return np.sort(rows)


def read_weights(sample_weight: Any, collection: Collection) -> np.ndarray | None:
    """Return the weights (n,) of the series, aligned with them by the index if both have one; None without weights.

    Raises ValueError for anything but numbers of at least 0, at least one of them above 0.
    """
    if sample_weight is None:
        return None
    given = align_to_cases(convert_input(sample_weight, "sample_weight"), collection.cases, "sample_weight")
    check_no_text(given, "`sample_weight`")
    n = len(collection)
    try:
        weights = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`sample_weight` must be numbers, got others ({error})") from None
    if weights.shape != (n,):
        raise ValueError(f"`sample_weight` must have the shape ({n},), one weight for each series, got {weights.shape}")
    if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        got = f"numbers from {weights.min():g} to {weights.max():g}" if weights.any() else "only zeros"
        raise ValueError(f"`sample_weight` must be finite numbers of at least 0 with one above 0, got {got}")
    return weights


class SeriesEstimator(SavedEstimator):
    """Base of estimators with one target for each series: reads collections and fits a `FeatureModel` or a `SequenceModel`.

    Subclasses define targets, loss and regression. scikit-learn reads the settings from the signature of the constructor.
    """

    model_: SequenceModel | FeatureModel
    validation_curve_: list[dict[str, float]] | None
    n_channels_: int
    channel_names_: ChannelNames | None
    has_times_: bool
    _step_names: ChannelNames | None = None  # columns of a table that are no text or times; None in files of earlier versions
    _times_are_seconds: bool | None = None  # of the times of fit; None without, and in files of earlier versions
    _kinds: tuple[str, ...] = SHAPE_KINDS  # of the features
    _with_values = False  # whether the values of the channels are features as well

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
        self.spec = spec
        self.d_model = d_model
        self.d_state = d_state
        self.block_options = block_options
        self.pooling = pooling
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.minutes = minutes
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.layout = layout
        self.output = output
        self.callbacks = callbacks
        self.verbose = verbose

    def _read(self, X: Any, times: Any, *, fitting: bool) -> Collection:
        """Return X and times as a collection. Raises ValueError if they are none, or have other channels than in `fit`."""
        check_settings(self)
        if fitting:
            self.__dict__.pop("model_", None)  # if this fit fails, attributes of it would belong to a model of an earlier one
        X = convert_input(X)
        known = None if fitting else FittedChannels(self.n_channels_, self.channel_names_)
        if is_table(X):
            collection = self._read_table(X, times, known, fitting=fitting)
        else:
            collection = read_collection(X, times, layout=cast("Any", self.layout), known=known)
            if fitting:  # attributes of an earlier fit to a table
                for name in ("n_features_in_", "feature_names_in_"):
                    if hasattr(self, name):
                        delattr(self, name)
        if fitting:
            self.n_channels_, self.channel_names_ = collection.channels, collection.channel_names
            self.has_times_ = collection.times is not None
            self._times_are_seconds = has_seconds(collection.clocks[0]) if self.has_times_ and collection.clocks else None
            ratio = gap_ratio(collection.clocks) if collection.clocks and not self.has_times_ else 1.0
            if ratio > UNEVEN:
                _log.warning("X: its longest step is %.3g median steps, which times='index' reads; without it steps count", ratio)
        if not fitting and (collection.times is not None) != self.has_times_:
            raise times_presence_error(self.has_times_)
        if not fitting and self.has_times_ and collection.clocks:
            check_unit(collection.clocks[0], self._times_are_seconds)
        return collection

    def _read_table(self, X: Any, times: Any, known: FittedChannels | None, *, fitting: bool) -> Collection:
        """Return a table (n, L) as a collection of series with one channel, checked by scikit-learn's rules."""
        X = check_table(X)
        try:
            table = validate_data(self, X, reset=fitting, dtype="numeric", ensure_min_samples=1)
        except (TypeError, ValueError) as error:
            raise type(error)(f"`X` is not a valid table: {error}") from error
        names = step_names(X)
        if fitting:
            self._step_names = names
        elif names is not None and self._step_names is not None and names != self._step_names:
            needed = f"those of fit in their order, {quote(self._step_names)}"
            raise ValueError(f"the columns of `X` must be {needed}, got {quote(names)}")
        values = np.asarray(table, dtype=np.float64)
        check_exact_integers(table, values, "`X`")
        if known is not None and known.channels > 1 and isinstance(X, np.ndarray) and known.channels in values.shape:
            single = "two axes are (cases, steps), and a single series is X[None]"
            raise ValueError(f"`X` must have {known.channels} channels as in fit, got 1; {single}")
        collection = read_collection(values[..., None], layout="nlc", known=known)
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

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each series, (b,), from the model's outputs (b, d_output) and the targets of the same series."""
        raise NotImplementedError

    def _errors(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the errors that are compared on validation data, most important first: name -> error of each series, (b,)."""
        return {"loss": self._losses(outputs, targets)}

    def _read_validation(self, given: Any, read_targets: Callable[[Collection, Any], Tensor]) -> Examples | None:
        """Return `validation_data`, (X, y) or (X, y, times), as examples; None without. read_targets: converts their y."""
        if given is None:
            return None
        if self.validation_fraction:
            raise ValueError(f"`validation_fraction` must be None with `validation_data`, got {self.validation_fraction}")
        if not isinstance(given, (tuple, list)) or len(given) not in (2, 3):
            got = count_text(len(given), "item") if isinstance(given, (tuple, list)) else f"a {type(given).__name__}"
            raise ValueError(f"`validation_data` must be (X, y) or (X, y, times), got {got}")
        try:
            collection = self._read(given[0], given[2] if len(given) == 3 else None, fitting=False)
            return Examples(collection, read_targets(collection, given[1]), None)
        except ValueError as error:
            raise ValueError(f"`validation_data` must be series and targets like those of `fit`, got others: {error}") from error

    def _split(self, examples: Examples, strata: np.ndarray | None, random: np.random.RandomState) -> tuple[Examples, Examples]:
        """Return the examples to train on and those of `validation_fraction`. strata: (n,), classes to divide alike."""
        n = len(examples.collection)
        try:
            size = float(self.validation_fraction or 0)  # scikit-learn takes no np.float32
            parts = train_test_split(np.arange(n), test_size=size, stratify=strata, random_state=random)
        except ValueError as error:
            of_class = "" if strata is None else " of each class"
            rarest = "" if strata is None else f" with {np.unique(strata, return_counts=True)[1].min()} of the rarest class"
            raise ValueError(
                f"`validation_fraction` must leave enough series{of_class} in both parts, or be None, got "
                f"{self.validation_fraction} of {n} series{rarest} ({error})"
            ) from None
        return examples.select(np.sort(parts[0])), examples.select(np.sort(parts[1]))

    def _fit(self, examples: Examples, d_output: int, validation: Examples | None, strata: np.ndarray | None = None) -> None:
        """Fit `model_` to examples; keep the weights of the epoch of lowest error on `validation`, if any.

        strata: (n,), the classes of the examples, whose shares are the same in the validation part.
        """
        start = monotonic()
        random = check_random_state(self.random_state)
        if self.validation_fraction:
            examples, validation = self._split(examples, strata, random)
        collection = examples.collection
        self.mean_, self.scale_ = collection.statistics(examples.weights)
        self.time_unit_ = collection.time_unit()
        series = collection.standardise(self.mean_, self.scale_, self.time_unit_, "X")
        held = None if validation is None else validation.collection.standardise(self.mean_, self.scale_, self.time_unit_, "X")
        device = find_device(self.device)
        seconds = None if self.minutes is None else 60 * self.minutes - (monotonic() - start)
        seed = int(random.randint(2**31 - 1))
        with self._threads(collection):
            if self._has_stack():
                with seeded(seed):
                    self._train(series, examples, held, validation, d_output, device, random, seconds)
            else:
                self._fit_features(series, examples, held, validation, device, random, seconds)

    def _has_stack(self) -> bool:
        """Return whether the settings are those of a stack of blocks that is trained."""
        return any(getattr(self, name) is not None for name in ONLY_TRAINED)

    def _stack_settings(self) -> StackSettings:
        """Return the settings of the stack, as given or by default."""
        values = {name: getattr(self, name) for name in StackSettings._fields}
        return StackSettings(**{name: value for name, value in values.items() if value is not None})

    def _fit_features(
        self,
        series: StandardisedSeries,
        examples: Examples,
        held: StandardisedSeries | None,
        validation: Examples | None,
        device: torch.device,
        random: np.random.RandomState,
        seconds: float | None,
    ) -> None:
        """Set `model_` to a regression from random features, and the curves to its leave-one-out and validation errors."""
        features, count = calibrated_features(series, device, random, seconds, self._kinds, with_values=self._with_values)
        n = len(series.lengths)
        if count < n:
            rows = _choose_rows(examples.targets.numpy(), count, random)
            _log.warning("minutes: in %g minutes there is time to fit to %d of the %d series", self.minutes, len(rows), n)
            series, examples = series.select(rows), examples.select(rows)
        fit = self._regression(self._model_outputs(features, series).numpy(), features, examples)
        model = FeatureModel.from_regression(features, fit).to(device)
        self.loss_curve_, self.validation_curve_ = [fit.error], None
        if validation is not None:
            self.validation_curve_ = [self._validation_errors(model, cast("Any", held), validation)]
        self.model_ = model

    def _regression(self, values: np.ndarray, features: StateFeatures, examples: Examples) -> RidgeFit:
        """Return the ridge regression from the values (n, F) of features to the targets of the examples; it may select kinds."""
        raise NotImplementedError

    def _train(
        self,
        series: StandardisedSeries,
        examples: Examples,
        held: StandardisedSeries | None,
        validation: Examples | None,
        d_output: int,
        device: torch.device,
        random: np.random.RandomState,
        seconds: float | None,
    ) -> None:
        """Set `model_` to a trained stack, and the curves to its losses and validation errors in each epoch."""
        collection = examples.collection
        stack = self._stack_settings()
        model = SequenceModel.from_spec(
            stack.spec,
            d_model=stack.d_model,
            d_state=stack.d_state,
            block_options=self.block_options,
            d_output=d_output,
            d_input=collection.channels,
            pooling=stack.pooling,
            head="affine",
        ).to(device)
        if series.gaps is not None:
            check_takes_times(model)

        def batch_of(rows: np.ndarray) -> LabelledBatch:
            weights = None if examples.weights is None else torch.from_numpy(examples.weights[rows]).to(device, torch.float32)
            tensors = series.batch(rows, device, few_lengths=replays_updates(device))
            return LabelledBatch(*tensors, examples.targets[rows].to(device), weights)

        def loss_of(batch: LabelledBatch) -> Tensor:
            losses = self._losses(model(batch.values, valid=batch.valid, elapsed=batch.elapsed), batch.targets)
            return (losses if batch.weights is None else losses * batch.weights).mean()

        def evaluate() -> dict[str, float]:
            return self._validation_errors(model, cast("Any", held), cast("Any", validation))

        curve = ValidationCurve()
        self.loss_curve_ = minimise(
            model,
            batch_of,
            loss_of,
            lambda random: random.permutation(len(collection)),
            epochs=stack.epochs,
            batch_size=stack.batch_size,
            lr=stack.lr,
            weight_decay=stack.weight_decay,
            random=random,
            evaluate=None if validation is None else evaluate,
            patience=self.patience,
            seconds=seconds,
            callbacks=[curve, *(self.callbacks or ())],
            verbose=self.verbose,
        )
        self.validation_curve_ = None if validation is None else curve.curve
        self.model_ = model

    def _validation_errors(self, model: nn.Module, series: StandardisedSeries, examples: Examples) -> dict[str, float]:
        """Return the mean errors of a model on validation data, given as standardised series and as examples."""
        errors = self._errors(self._model_outputs(model, series), examples.targets)
        return {name: float(np.average(error.numpy(), weights=examples.weights)) for name, error in errors.items()}

    def _threads(self, collection: Collection) -> Any:
        """Return a context in which torch uses the threads of `n_jobs`."""
        length = collection.values.shape[1]
        width = self._stack_settings().d_model if self._has_stack() else 2 * STATES_PER_GROUP
        return limited_threads(choose_threads(self.n_jobs, min(self._rows_at_once(length), len(collection)) * length * width))

    def _rows_at_once(self, length: int) -> int:
        """Return the number of series of a batch for series of `length` steps at most."""
        return self._stack_settings().batch_size if self._has_stack() else rows_at_once(length)

    @torch_defaults()
    def _outputs(self, collection: Collection) -> np.ndarray:
        """Return the model's outputs (n, d_output) in float64. Raises ValueError if one is not finite."""
        series = collection.standardise(self.mean_, self.scale_, self.time_unit_, "X")
        with self._threads(collection):
            outputs = self._model_outputs(self.model_, series).double().numpy()
        return check_predictions(outputs, "X")

    def _model_outputs(self, model: nn.Module, series: StandardisedSeries) -> Tensor:
        """Return a model's outputs (n, d_output) on the CPU, in evaluation mode; restore the mode."""
        device, training = next(chain(model.parameters(), model.buffers())).device, model.training
        outputs, count = torch.empty(0, device="cpu"), self._rows_at_once(series.values.shape[1])
        model.eval()
        with torch.no_grad():
            for first in range(0, len(series.lengths), count):
                rows = np.arange(first, min(first + count, len(series.lengths)))
                inputs, valid, elapsed = series.batch(rows, device)
                part = model(inputs, valid=valid, elapsed=elapsed)
                if not first:
                    outputs = torch.empty(len(series.lengths), *part.shape[1:], dtype=part.dtype, device="cpu")
                outputs[rows[0] : rows[-1] + 1] = part
        model.train(training)
        return outputs

    def _read_new(self, X: Any, times: Any) -> Collection:
        """Return the series to predict as a collection. Raises NotFittedError before `fit`."""
        check_is_fitted(self, "model_")
        return self._read(X, times, fitting=False)

    def _check_streaming(self) -> None:
        """Raise NotFittedError before `fit`, and ValueError if the prediction for a growing series needs all steps again."""
        check_is_fitted(self, "model_")
        if isinstance(self.model_, FeatureModel):
            raise ValueError("`spec` must be given for streams: without it, half of the features read a series from its end")
        try:
            self.model_.require_streaming("`stream`")
        except ValueError as error:
            raise ValueError(f"`spec` must be one whose blocks run step by step, got {self.spec!r}: {error}") from None

    def network(self) -> SequenceModel | FeatureModel:
        """Return a copy of the fitted model, whose inputs are series less `mean_`, divided by `scale_`.

        Half of the systems of a `FeatureModel` read a series from its end, so that it needs whole series.
        """
        check_is_fitted(self, "model_")
        return copy.deepcopy(self.model_)
