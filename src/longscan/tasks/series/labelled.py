"""Tasks on a user's series with one answer each: a class or a number."""

import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from longscan._errors import SettingError, count_text, cut, setting_error
from longscan._types import Doc, NonEmptyStr
from longscan.tasks._sparklines import sparkline
from longscan.tasks.base import TASKS, Batch, Split, check_request, rows_of_step
from longscan.tasks.classification import ClassificationTask, majority_share
from longscan.tasks.fitted import (
    RIDGE_FEATURES,
    RIDGE_SERIES,
    FitProgress,
    aeon_accuracies,
    ignore_progress,
    resample,
    ridge_predictions,
)
from longscan.tasks.regression import RegressionTask
from longscan.tasks.series.base import (
    PART,
    SHOWN,
    ChannelStatistics,
    FileState,
    SeriesFile,
    Uneven,
    build_inputs,
    check_missing,
    check_steps,
    check_times,
    fit_statistics,
    format_step,
    scaled_values,
)
from longscan.tasks.series.clock import format_stamps, usual_step
from longscan.tasks.series.files import CSV, PARQUET, column_names, list_columns, suffix_of
from longscan.tasks.series.reading import ReadOptions, SeriesStore, read_series
from longscan.tasks.series.splits import split_series, split_units

_log = logging.getLogger("longscan")
MIN_SERIES = 3  # smallest number of series of a class: one for each of train, valid and test
ROCKET_VALUES = 3e7  # largest number of values of the series that aeon's methods are fitted on
WARPING_CELLS = 1e10  # largest number of cells of the tables of dynamic time warping
FEW_CLASSES = 2  # numbers of so many values are classes


class LabelledData(NamedTuple):
    """The series of a file with their answers.

    targets: (N,) int64 numbers of classes or float64 standardised numbers. classes: their names, None for numbers. rows: of each
    split. unit: the usual time between steps. center, spread: of the training targets, 0 and 1 for classes.
    """

    store: SeriesStore
    targets: np.ndarray
    classes: tuple[str, ...] | None
    rows: dict[Split, np.ndarray]
    statistics: ChannelStatistics
    unit: float
    center: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class LabelledSeries(SeriesFile):
    """A task with one answer for each series of a user's file."""

    per_step: ClassVar[bool] = False
    label: Annotated[
        NonEmptyStr | None,
        Doc(
            "column of the answers, the same in all rows of a series; None for .ts and .arff files, for folders whose "
            "sub-folders are the classes, and for y in .npz files"
        ),
    ] = None  # fmt: skip
    labels: Annotated[
        NonEmptyStr | None, Doc("for a folder: a table with a row for each file, with columns file (or `id`) and `label`")
    ] = None
    group: Annotated[
        NonEmptyStr | None, Doc("column of groups (persons, machines, days), each of which is in one split only")
    ] = None
    uneven: Annotated[
        Uneven,
        Doc("unequal time between steps: an error; the layers get it (elapsed); or ignored, so that only the order counts"),
    ] = "refuse"
    valid_fraction: Annotated[float, PART, Doc("part of the series that is the validation split")] = 0.15
    test_fraction: Annotated[float, PART, Doc("part of the series that is the test split")] = 0.2

    @property
    def _data(self) -> LabelledData:
        return _load(self, self._file_state)

    @property
    def _sources(self) -> list[Path]:
        return [*super()._sources, *([Path(self.labels)] if self.labels is not None else [])]

    def read_options(self) -> ReadOptions:
        """Return how the file is read, with its answers."""
        return self._options(label=self.label, labels=self.labels, group=self.group)

    @property
    def d_input(self) -> int:
        """Number of channels, including those of the mask of missing values."""
        return len(self._data.store.channels) * (2 if self.missing == "mask" else 1)

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Names of the input channels, those of the mask of missing values after the others."""
        names = self._data.store.channels
        return (*names, *(f"{name} present" for name in names)) if self.missing == "mask" else names

    @property
    def length(self) -> int:
        """Number of steps of the longest series."""
        return int(self._data.store.lengths.max())

    def size(self, split: Split) -> int:
        """Return the number of series of a split."""
        check_request(self, split)
        return len(self._data.rows[split])

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """Return the batch of a step: inputs (B, L, C), targets (B,) classes or (B, 1) numbers, valid, elapsed."""
        check_request(self, split, step, batch_size, seed)
        data = self._data
        rows = data.rows[split][rows_of_step(self.size(split), split, step, batch_size, seed)]
        targets = torch.from_numpy(data.targets[rows])
        targets = targets if data.classes is not None else targets.float()[:, None]
        return self._to_batch(data.store, rows)._replace(targets=targets)

    def example_names(self, split: Split, step: int, batch_size: int, seed: int = 0) -> list[str]:
        """Return the id of each series of `batch` with the same arguments, its number in a file without ids."""
        check_request(self, split, step, batch_size, seed)
        rows = self._data.rows[split][rows_of_step(self.size(split), split, step, batch_size, seed)]
        return [str(name) for name in self._data.store.ids[rows].tolist()]

    def _scaled_series(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Yield scaled series (L, C) float64, with the mask as channels, one at a time."""
        for row in rows:
            yield self._to_batch(self._data.store, np.array([row])).inputs[0].double().numpy()

    def _ridge_predictions(self, targets: np.ndarray, split: Split) -> np.ndarray:
        """Return the predictions (N, K) on a split of a ridge regression to the targets (n, K) of the training series.

        The features are the values of the series, resampled to their median length or, if that is more, 4096 / C steps. At most
        2,000 training series, at equal distances in the file, are read.
        """
        data = self._data
        train = data.rows["train"]
        chosen = np.linspace(0, len(train) - 1, min(len(train), RIDGE_SERIES)).round().astype(int)
        length = max(1, min(int(np.median(data.store.lengths[train])), RIDGE_FEATURES // self.d_input))
        features = [
            np.stack([resample(series, length).ravel() for series in self._scaled_series(rows)])
            for rows in (train[chosen], data.rows[split])
        ]
        return ridge_predictions(features[0], targets[chosen], features[1])

    def _to_batch(self, store: SeriesStore, rows: np.ndarray) -> Batch:
        statistics, unit = self._data.statistics, self._data.unit if self.uneven == "elapsed" else None
        return build_inputs(store, rows, statistics.mean, statistics.scale, self.missing, unit)

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Return an example as text: the first channel as bars, the shape, the answer."""
        series = batch.unpadded(row)
        text = f"{sparkline(series[:, 0])} {count_text(len(self._data.store.channels), 'channel')} x {series.shape[0]} steps"
        return text if batch.targets is None else f"{text} | {self._answer(batch, row)}"

    def _answer(self, batch: Batch, row: int) -> str:
        """Return the answer of an example of a batch with targets as text."""
        raise NotImplementedError

    def _new_series(self, path: str | Path) -> SeriesStore:
        """Read a file with the channels of the training series, with or without labels."""
        known = self._data
        options = self._options(label=self.label, group=self.group)._replace(
            channels=known.store.channels, fixed=True, others=self.channels is not None,
            layout=cast("Any", known.store.layout) if known.store.layout in ("long", "wide") else self.layout,
        )  # fmt: skip
        store = read_series(path, options)
        check_missing(store, self.missing, path)
        if self.uneven == "refuse":
            check_steps(store, known.unit, path, is_new=True)
        elif self.uneven == "elapsed":
            check_times(store, known.store, path)
        return store

    def read_inputs(self, path: str | Path) -> Batch:
        """Read the series of a file or folder with the same channels and scale them like the training series."""
        store = self._new_series(path)
        if (self.label or "y") in store.unread:
            _log.warning("%s: its labels are ignored; `longscan eval` scores the series that were read for training", path)
        return self._to_batch(store, np.arange(len(store.ids)))

    def scale_steps(self, steps: np.ndarray) -> Tensor:
        """Return new steps of one series, scaled like the training series, as inputs of the model, (1, k, d_input) float32.

        steps: values in the units of the file, (k, C) or (C,) for one step, with the channels in the order of the file. NaN is
        a missing value, which only `missing="mask"` allows here, as steps that come later cannot fill it. Raises ValueError.
        """
        statistics, values = self._data.statistics, np.atleast_2d(np.asarray(steps, np.float64))
        channels = self._data.store.channels
        if values.ndim != 2 or values.shape[1] != len(channels):
            shape = np.shape(steps)
            raise ValueError(f"`steps` must have the shape (k, {len(channels)}), channels {', '.join(channels)}, got {shape}")
        absent = np.isnan(values)
        if absent.any() and self.missing != "mask":
            raise ValueError(f"`steps` must have no missing values unless `missing` is mask, got {int(absent.sum())}")
        scaled = np.nan_to_num(scaled_values(values, statistics.mean, statistics.scale, "`steps`"))
        inputs = np.concatenate([scaled, ~absent], 1, dtype=np.float32) if self.missing == "mask" else scaled
        return torch.from_numpy(inputs)[None]

    def add_times(self, rows: list[dict[str, str | float]], path: str | Path) -> list[dict[str, str | float]]:
        """Add the column id, which names the series, as the first one."""
        store = self._new_series(path)
        return [{"id": name, **row} for name, row in zip(store.ids.tolist(), rows, strict=True)]

    def summary(self) -> list[tuple[str, str]]:
        """Return how the file was read, as pairs of a name and a text."""
        data = self._data
        steps = f"{self.path}, {len(data.store.values):,} steps"
        return [
            ("file", steps + (f", a {data.store.layout} table" if data.store.layout != "array" else "")),
            *self._common_summary(data.store, data.statistics),
            ("time", self._time_text()),
            *self._answer_summary(),
            ("split", self._split_text()),
        ]

    def _time_text(self) -> str:
        data = self._data
        if data.store.stamps is None:
            return "no column of times; a row is a step" if data.store.layout == "long" else "none"
        usual = format_step(data.unit, is_dated=data.store.is_dated)
        ends = np.array([data.store.stamps.min(), data.store.stamps.max()])
        first, last = format_stamps(ends, data.store.form)
        uneven = "" if self.uneven == "refuse" else f" (median; uneven: {self.uneven})"
        return f"{usual} between steps{uneven}, from {first} to {last}"

    def _split_text(self) -> str:
        data = self._data
        sizes = ", ".join(f"{len(rows):,} {part}" for part, rows in data.rows.items())
        if data.store.groups is not None:
            counts = ", ".join(f"{len(np.unique(data.store.groups[rows]))} {part}" for part, rows in data.rows.items())
            return f"{sizes} series; by {self.group}, whose groups are not divided: {counts}"
        kind = "stratified by class" if data.classes is not None else "at random"
        return f"{sizes} series; {kind}, equal series on the same side (`--group COLUMN` keeps groups together)"

    def _answer_summary(self) -> list[tuple[str, str]]:
        """Return the part of the summary about the answers."""
        raise NotImplementedError


@TASKS.register("series_classes")
@dataclass(frozen=True, kw_only=True)
class SeriesClasses(LabelledSeries, ClassificationTask):
    """Classify the series of your own file: CSV, Parquet, NPZ, .ts, .arff, or a folder with a table a series.

        ▃▅▇▇▄▄▇▆▆▁█▅▇▃▆▆▇▄▄▆▅▆▃▅▆▆▄▂▆▅▆▅▂▆ 6 channels x 100 steps | worn

    A long table has a row for each step, with a column of ids, a column `label`, perhaps one of times, and the channels. A wide
    table has a row for each series. `longscan train mine.csv --label worn` chooses this task and its settings.

    Series are split into train, valid and test so that each class has its share in each part; series of a `group`, and series
    with equal values, are in the same part. Channels are standardised by the training series; a constant channel is only shifted.

    Raises FileNotFoundError without a file, SettingError for a setting that does not fit it or has to decide how it is read, and
    ValueError for damaged content.
    """

    has_imbalanced_classes: ClassVar[bool] = True

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels, in the order of numbers if all are numbers, else of text."""
        classes = self._data.classes
        assert classes is not None
        return classes

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    def constant_score(self, split: Split = "test") -> float:
        """Return the accuracy on a split of always giving its most frequent class."""
        check_request(self, split)
        return majority_share(self._data.targets[self._data.rows[split]])

    def baselines(self, split: Split = "test") -> dict[str, float]:
        """Return the accuracy of the most frequent class and, as "ridge", of a ridge regression on the values of the series."""
        check_request(self, split)
        return dict(_class_baselines(self, self._file_state, split))

    def fitted_baselines(
        self, split: Split = "test", seed: int = 0, on_progress: FitProgress = ignore_progress
    ) -> dict[str, float]:
        """Return the accuracy of aeon's MiniRocket and of the nearest neighbour by dynamic time warping, both fitted on train.

        It is empty without aeon and above 3 * 10^7 values of all series; warping is left out above 10^10 cells.
        """
        check_request(self, split)
        data = self._data
        rows = data.rows["train"], data.rows[split]
        if find_spec("aeon") is None or data.store.lengths[np.concatenate(rows)].sum() * self.d_input > ROCKET_VALUES:
            return {}
        train, test = ([np.ascontiguousarray(series.T) for series in self._scaled_series(part)] for part in rows)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numba's, about code that aeon compiles
            labels, targets = (data.targets[part] for part in rows)
            return aeon_accuracies(train, labels, test, targets, seed=seed, largest_table=WARPING_CELLS, on_progress=on_progress)

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:  # noqa: ARG002
        """Return a row for each series: the most probable class, its probability, and the probabilities of all classes."""
        rows: list[dict[str, str | float]] = []
        for chances in output.double().softmax(-1).tolist():
            best = int(np.argmax(chances))
            every = {f"probability_{name}": chance for name, chance in zip(self.classes, chances, strict=True)}
            rows.append({"class": self.classes[best], "probability": chances[best], **every})
        return rows

    def _answer(self, batch: Batch, row: int) -> str:
        assert batch.targets is not None
        return self.classes[int(batch.targets[row])]

    def _answer_summary(self) -> list[tuple[str, str]]:
        counts = np.bincount(self._data.targets, minlength=self.num_classes).tolist()
        shown = [f"{name} {count:,}" for name, count in list(zip(self.classes, counts, strict=True))[:SHOWN]]
        more = f", and {count_text(self.num_classes - SHOWN, 'other')}" if self.num_classes > SHOWN else ""
        classes = ("classes", f"{self.num_classes} in {self.label or 'the labels'}: {', '.join(shown)}{more}")
        rows = [classes]
        for one, other in pairwise(sorted(self.classes, key=str.casefold)):
            if one.casefold() == other.casefold():
                rows.append(("suspect", f"{one!r} and {other!r} are two classes, which differ only in upper and lower case"))
                break
        if copies := _copies_of_labels(self._data):
            text = f"{', '.join(copies)}: one value for each class, as in a copy of the label; `--channels` leaves columns out"
            rows.append(("suspect", text))
        return rows


def _copies_of_labels(data: LabelledData) -> list[str]:
    """Return the channels that have one value in all series of a class, and another value in each class."""
    store, classes = data.store, np.unique(data.targets)
    firsts = np.asarray(store.values[store.offsets[:-1]])
    found = []
    for channel, name in enumerate(store.channels):
        values = np.array([firsts[np.argmax(data.targets == number), channel] for number in classes])
        is_copy = len(np.unique(values)) == len(classes) and (firsts[:, channel] == values[data.targets]).all()
        if is_copy and (store.values[:, channel] == np.repeat(firsts[:, channel], store.lengths)).all():
            found.append(name)
    return found


@TASKS.register("series_values")
@dataclass(frozen=True, kw_only=True)
class SeriesValues(LabelledSeries, RegressionTask):
    """Predict a number for each series of your own file: CSV, Parquet, NPZ, .ts, .arff, or a folder with a table a series.

        ▃▅▇▇▄▄▇▆▆▁█▅▇▃▆▆▇▄▄▆▅▆▃▅▆▆▄▂▆▅▆▅▂▆ 6 channels x 100 steps | 12.5

    The column `label` holds the numbers. Files, splits and errors are those of the task series_classes. The model predicts
    numbers that are standardised by the training series, and the errors are of these: an error of 1 is a standard deviation.
    Predictions for new files are in the units of the file.
    """

    per_step: ClassVar[bool] = False

    @property
    def variables(self) -> tuple[str, ...]:
        """Name of the number, that of its column."""
        return (self.label or "value",)

    def constant_score(self, split: Split = "test") -> float:
        """Return the mean squared error on a split of the mean of its numbers."""
        check_request(self, split)
        return float(self._data.targets[self._data.rows[split]].var())

    def baselines(self, split: Split = "test") -> dict[str, float]:
        """Return the mean squared error of the mean and, as "ridge", of a ridge regression on the values of the series."""
        check_request(self, split)
        return dict(_value_baselines(self, self._file_state, split))

    def error_in_units(self, value: float) -> tuple[str, float] | None:
        """Return the root of the mean squared error in the units of the labels, after its name."""
        return f"root mean squared error of {self.variables[0]}", value**0.5 * self._data.spread

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:  # noqa: ARG002
        """Return a row for each series: its number, in the units of the file."""
        data = self._data
        return [{self.variables[0]: number} for number in (output[:, 0].double() * data.spread + data.center).tolist()]

    def _answer(self, batch: Batch, row: int) -> str:
        assert batch.targets is not None
        return f"{float(batch.targets[row, 0]) * self._data.spread + self._data.center:.6g}"

    def _answer_summary(self) -> list[tuple[str, str]]:
        data = self._data
        numbers = data.targets * data.spread + data.center
        spread = f"{numbers.min():g} to {numbers.max():g}, mean {numbers.mean():.4g}, standard deviation {numbers.std():.4g}"
        return [("numbers", f"in {self.variables[0]}: {spread}")]


def label_kind(path: str | Path, options: ReadOptions) -> Literal["classes", "values", "unclear"]:
    """Return the kind of the labels of a file: classes (text, or two numbers), numbers (with fractions), or unclear."""
    forecast = "or `--target` and `--horizon` must be given for a forecast"
    if options.label is None and Path(path).is_file() and suffix_of(Path(path)) in (*CSV, *PARQUET):
        columns = cut(list_columns(column_names(Path(path), options.dialect)))
        # Before the file is read: without labels their column would be a channel, and an error about its text misleads.
        raise setting_error("label", None, f"the column of the labels, one of {columns} in {path}, {forecast}")
    store = read_series(path, options)
    if store.labels is None:
        raise setting_error("label", options.label, f"the column of the labels in {path} (`--label`), {forecast}")
    if store.has_numbers is not None:
        return "values" if store.has_numbers else "classes"
    words = np.unique(store.labels).tolist()
    finite = [word for word in words if word.lower().strip("+-") not in ("inf", "infinity")]
    numbers = _as_floats(finite, options.dialect.decimal)  # `SeriesValues` raises an error for infinite ones
    if numbers is None or len(set(numbers)) + len(words) - len(finite) <= FEW_CLASSES:
        return "classes"
    return "unclear" if all(number == int(number) for number in numbers) else "values"


def _as_floats(words: list[str], decimal: str) -> list[float] | None:
    """Return words as finite numbers with a decimal mark, None if one is none."""
    if any("_" in word or (decimal == "," and "." in word) for word in words):  # 1_1 is a number for Python alone
        return None
    try:
        numbers = [float(word.replace(decimal, ".")) for word in words]
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() else None


@lru_cache(maxsize=8)
def _class_baselines(task: SeriesClasses, state: FileState, split: Split) -> dict[str, float]:  # noqa: ARG001, part of the key
    data = task._data
    signs = 2 * np.eye(task.num_classes)[data.targets[data.rows["train"]]] - 1
    found = task._ridge_predictions(signs, split).argmax(1)
    return {"constant": task.constant_score(split), "ridge": float((found == data.targets[data.rows[split]]).mean())}


@lru_cache(maxsize=8)
def _value_baselines(task: SeriesValues, state: FileState, split: Split) -> dict[str, float]:  # noqa: ARG001, part of the key
    data = task._data
    found = task._ridge_predictions(data.targets[data.rows["train"]][:, None], split)[:, 0]
    return {"constant": task.constant_score(split), "ridge": float(((found - data.targets[data.rows[split]]) ** 2).mean())}


def _check_values_and_steps(store: SeriesStore, unit: float, task: LabelledSeries, source: str) -> None:
    """Raise one error for missing values and unequal steps, of those that the settings do not allow: ValueError, SettingError."""
    try:
        check_missing(store, task.missing, source)
    except ValueError as missing:
        if task.uneven == "refuse":
            try:
                check_steps(store, unit, source)
            except SettingError as uneven:
                raise ValueError(f"{missing}; and {uneven}") from None
        raise
    if task.uneven == "refuse":
        check_steps(store, unit, source)


@lru_cache(maxsize=4)
def _load(task: LabelledSeries, state: FileState) -> LabelledData:  # noqa: ARG001, part of the key
    """Read, check and split the series of a task."""
    store = task.read_store()
    source = str(task.path)
    if store.labels is None:
        shown = f"the column with the answers, as {source} has no labels otherwise"
        raise setting_error("label", task.label, shown)
    unit = 1.0 if store.stamps is None else usual_step(np.asarray(store.stamps), np.asarray(store.offsets))
    _check_values_and_steps(store, unit, task, source)
    words = store.labels.tolist()
    units = split_units(store)
    has_groups = store.groups is not None
    if isinstance(task, ClassificationTask):
        classes = _classes(words, units, source, task.label, task.decimal, has_groups=has_groups)
        numbers = {name: number for number, name in enumerate(classes)}
        targets = np.array([numbers[word] for word in words])
    else:
        classes, targets = None, _numbers(words, source, task.label, task.decimal)
    rows = split_series(
        units,
        None if classes is None else targets,
        task.valid_fraction,
        task.test_fraction,
        task.split_seed,
        has_groups=has_groups,
    )
    center, spread = 0.0, 1.0
    if classes is None:
        center, spread = float(targets[rows["train"]].mean()), float(targets[rows["train"]].std())
        if not spread:
            raise setting_error("label", task.label, f"a column whose numbers differ in the training series of {source}")
        tested = targets[rows["test"]]
        if tested.min() == tested.max():  # any score would be compared with that of a constant, which is perfect
            left = "one series" if len(tested) == 1 else f"{len(tested)} series with the same number"
            needed = f"large enough for test series of {source} with different numbers; it leaves {left} for test"
            raise setting_error("test_fraction", task.test_fraction, needed)
        targets = (targets - center) / spread
    elif len(set(targets[rows["train"]].tolist())) < len(classes):
        lacking = sorted(set(range(len(classes))) - set(targets[rows["train"]].tolist()))
        needed = f"groups that can be split with each class in train; class {classes[lacking[0]]!r} is in too few"
        raise setting_error("group", task.group, needed)
    ranges = np.stack([store.offsets[rows["train"]], store.offsets[rows["train"] + 1]], axis=1)
    return LabelledData(store, targets, classes, rows, fit_statistics(store, ranges, source), unit, center, spread)


def _classes(
    words: list[str], units: np.ndarray, source: str, label: str | None, decimal: str, *, has_groups: bool
) -> tuple[str, ...]:
    """Return the classes in order. Raises SettingError if there is one only, or one of them has too few series."""
    names = sorted(set(words))
    numbers = _as_floats(names, decimal)
    if numbers is not None:
        pairs = sorted(zip(numbers, names, strict=True))
        for (number, name), (other_number, other) in pairwise(pairs):
            if number == other_number:
                needed = f"a column of {source} with one way to write each number; {name!r} and {other!r} would be two classes"
                raise setting_error("label", label, needed)
        names = [name for _, name in pairs]
    if len(names) < 2:
        raise setting_error("label", label, f"a column of {source} with at least two classes; every series has {names[0]!r}")
    for name in names:
        count = len({unit for unit, word in zip(units.tolist(), words, strict=True) if word == name})
        if count < MIN_SERIES and not has_groups:
            kinds = "different series" if words.count(name) > count else "series"
            raise setting_error(
                "label", label, f"a column of {source} with at least {MIN_SERIES} series of each class, for train, valid and "
                f"test; class {name!r} has {count} {kinds}" + (f" ({len(names)} classes; are they numbers?)" if numbers else "")
            )  # fmt: skip
    return tuple(names)


def _numbers(words: list[str], source: str, label: str | None, decimal: str) -> np.ndarray:
    """Return the labels as numbers. Raises SettingError naming the first that is none."""
    numbers = _as_floats(words, decimal)
    if numbers is None:
        first = next(word for word in words if _as_floats([word], decimal) is None)
        raise setting_error("label", label, f"a column of {source} with finite numbers; one value is {first[:40]!r}")
    return np.array(numbers)
