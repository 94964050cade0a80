"""Forecasts of columns of a user's table: one or several series, split in time."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longscan._errors import count_text, setting_error
from longscan._frequencies import steps_in_season
from longscan._types import Doc, PositiveInt
from longscan.numerics.regression import generalised_least_squares
from longscan.tasks._sparklines import sparkline
from longscan.tasks.base import TASKS, Batch, Split, check_request, rows_of_step
from longscan.tasks.forecasting.baselines import seasonal_mean
from longscan.tasks.regression import RegressionTask
from longscan.tasks.series.base import (
    PART,
    ChannelStatistics,
    FileState,
    SeriesFile,
    check_missing,
    check_times,
    fit_statistics,
    format_step,
    scaled_values,
)
from longscan.tasks.series.clock import (
    HOUR,
    calendar_features,
    calendar_frequency,
    calendar_periods,
    clock_change_hint,
    format_frequency,
    format_stamps,
    later_stamps,
    uneven_steps,
    usual_step,
)
from longscan.tasks.series.reading import SeriesStore, read_series

MAX_CONTEXT = 512
FIT_WINDOWS = 20_000  # largest number of training windows of the ridge regression
FILL_ERROR = 0.01  # part of the error of the first fit to filled training targets that the last one may have, see `_count_refits`
MAX_REFITS = 20  # enough for 79 % of missing targets; each takes the time of a fit
FIT_ROWS = 200_000  # largest number of training rows of the effect of what is known ahead
PENALTIES = (1e-1, 1e1, 1e2, 1e3, 1e4)
SMALLEST_GAIN = 0.005  # relative gain in the squared error on valid from which on columns that are known ahead are used
LEAST_HORIZONS = 4  # in a series from which on valid and test have at least the horizon each
DAY = 86_400  # seconds
PREDICTED = Literal["future", "windows"]


class ForecastData(NamedTuple):
    """The N series of a table, with T rows and C channels together, and their splits in time.

    Attributes:
        store: the series, without the rows at their ends in which only the variables known ahead have values.
        values: (T, C) float64, the values of `store` without missing ones.
        measured: (T,) bool, True for rows in which no target was missing.
        inputs: numbers of the channels that are read as series.
        targets: (K,), numbers of the channels that are forecast.
        known: the variables that are known ahead.
        starts: for each split the first rows of its windows, (n,).
        ranges: (N, 2), the training rows of each series.
        statistics: means and deviations of the channels over the training rows.
        context: number of steps of the context.
        season: number of steps of a season, 1 if none is known.
        unit: the usual step.
        frequency: name in pandas of the calendar frequency of dates at unequal steps, None for equal steps.
    """

    store: SeriesStore
    values: np.ndarray
    measured: np.ndarray
    inputs: np.ndarray
    targets: np.ndarray
    known: "KnownAhead"
    starts: dict[Split, np.ndarray]
    ranges: np.ndarray
    statistics: ChannelStatistics
    context: int
    season: int
    unit: float
    frequency: str | None

    @property
    def places(self) -> list[int]:
        """Positions of the targets among the inputs."""
        return np.searchsorted(self.inputs, self.targets).tolist()


class KnownAhead(NamedTuple):
    """The P variables that are known at the steps of a forecast: columns of the table, and features of the calendar.

    Attributes:
        numbers: numbers of the channels of the table that are known ahead.
        periods: the periods of the calendar whose features are used, some of "day", "week" and "year".
        names: names of the P variables.
        values: (T + N * horizon, P) float64, standardised: the rows of each of the N series, followed by `horizon` rows for the
            steps of its forecast; NaN where the table has no value.
    """

    numbers: np.ndarray
    periods: tuple[str, ...]
    names: tuple[str, ...]
    values: np.ndarray


@TASKS.register("series_forecast")
@dataclass(frozen=True, kw_only=True)
class SeriesForecast(SeriesFile, RegressionTask):
    """Forecast columns of your own table: the next steps of one or several series, with dates in and dates out.

        ▂▃▅▆▅▃▂▂▃▅▆▆▅▃▂▁▂▃▅▆▅▃▂ 3 channels, 96 steps | 24 steps ▂▃▅▆▅▃▂▂▃▅▆▆▅▃▂

    `longscan train prices.csv --target price --horizon 24 --time date` chooses this task and its settings. The table has a row
    for each step, with a column of dates or numbers at equal steps and, for several series, a column of ids. All channels are
    inputs; those of `target` are forecast.

    The last part of each series is test, the part before it valid, each at least as long as the horizon in series of four
    horizons and more; the context of a window may contain rows of the part before.
    With `missing` fill the steps at which a target was missing have no part in the loss, the metrics and the baselines; contexts
    have the filled values.
    Channels are standardised by the training rows, and errors are of standardised values. The inputs are the context and
    `horizon` empty steps, which an additional channel marks and whose outputs are the forecast. The `level` is subtracted from
    context and targets, and is also an input in additional channels. The last channels are the variables that are `known` ahead
    and those of the `calendar`, with values at all steps. A new file must have `horizon` further rows at the end of each series
    with the values of the known variables, in which all other channels are empty.

    Raises FileNotFoundError without a file, SettingError for a setting that does not fit it or has to decide how it is read, and
    ValueError for damaged content.
    """

    metric: ClassVar[str] = "mae"
    target: Annotated[tuple[str, ...] | None, Doc("columns to forecast; None: all channels")] = None
    horizon: Annotated[PositiveInt, Doc("number of steps to forecast")] = 24
    known: Annotated[tuple[str, ...], Doc("channels whose values are known at the steps of the forecast, such as holidays")] = ()
    calendar: Annotated[
        bool, Doc("whether the time of day, of the week and of the year of the dates are further channels that are known ahead")
    ] = False
    context: Annotated[
        PositiveInt | None,
        Doc("steps of the context; None: four seasons or twice the horizon, at most 512 and a quarter of the longest series"),
    ] = None
    season: Annotated[
        PositiveInt | None,
        Doc("steps of a season; None: a day for steps below a day, a week for days, a year for months, else none"),
    ] = None
    level: Annotated[
        Literal["last", "season", "ridge"],
        Doc(
            "what is subtracted from context and targets; last: the last value of the context; season: the mean of the seasons "
            "in the context; ridge: the last value from the context, and the forecast of a ridge regression from the targets"
        ),
    ] = "ridge"
    eval_windows: Annotated[PositiveInt, Doc("largest number of windows in valid and in test, at equal distances")] = 1000
    valid_fraction: Annotated[float, PART, Doc("part of each series before the last one that is the validation split")] = 0.1
    test_fraction: Annotated[float, PART, Doc("last part of each series, the test split")] = 0.2
    predicted: Annotated[
        PREDICTED, Doc("of a new file: the steps after its end, or also each window of `horizon` steps in it")
    ] = "future"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_names("target", self.target)
        self._check_names("known", self.known)
        if self.missing == "mask":
            raise setting_error("missing", self.missing, "refuse, or fill, which repeats the value before, for a forecast")
        for name in self.target or ():
            if self.channels is not None and name not in self.channels:
                raise setting_error("target", name, f"some of the channels {', '.join(self.channels)}")
        for name in self.known:
            if name in (self.target or ()):
                raise setting_error("known", name, "other channels than those of target, which are forecast")
            if self.channels is not None and name not in self.channels:
                raise setting_error("known", name, f"some of the channels {', '.join(self.channels)}")

    @property
    def _data(self) -> ForecastData:
        return _load(self, self._file_state)

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the columns that are forecast."""
        data = self._data
        return tuple(data.store.channels[number] for number in data.targets)

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Names of the input channels: those of the table, the mark of the empty steps, the levels, what is known ahead."""
        data = self._data
        names = [data.store.channels[number] for number in data.inputs]
        return (*names, "ahead", *(f"level of {name}" for name in names), *data.known.names)

    @property
    def d_input(self) -> int:
        """Number of channels: those of the table, the mark of the empty steps, the levels, what is known ahead."""
        return len(self.channel_names)

    @property
    def length(self) -> int:
        """Number of steps of an input: context and horizon."""
        return self._data.context + self.horizon

    def size(self, split: Split) -> int:
        """Return the number of windows of a split."""
        check_request(self, split)
        return len(self._data.starts[split])

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """Return the batch of a step: inputs (B, L, d_input), targets (B, L, K), loss_mask (B, L).

        loss_mask is True at the steps of the forecast whose targets were all measured.
        """
        check_request(self, split, step, batch_size, seed)
        data = self._data
        starts = data.starts[split][rows_of_step(self.size(split), split, step, batch_size, seed)]
        windows = self._windows(data.values, starts, data.context + self.horizon)
        batch = self._to_batch(windows, self._known_windows(data.store, data.known.values, starts))
        assert batch.loss_mask is not None
        batch.loss_mask[:, data.context :] = self._measured_ahead(starts)
        return batch

    def example_names(self, split: Split, step: int, batch_size: int, seed: int = 0) -> list[str]:
        """Return the time of the first step of each forecast of `batch` with the same arguments, after the id of its series."""
        check_request(self, split, step, batch_size, seed)
        data = self._data
        store = data.store
        firsts = data.starts[split][rows_of_step(self.size(split), split, step, batch_size, seed)] + data.context
        series = np.searchsorted(store.offsets, firsts, "right") - 1
        if store.stamps is None:
            times = [f"step {number}" for number in (firsts - store.offsets[series] + 1).tolist()]
        else:
            times = format_stamps(np.asarray(store.stamps)[firsts], store.form)
        if not store.has_ids:
            return times
        return [f"{name}, {time}" for name, time in zip(store.ids[series].tolist(), times, strict=True)]

    def _measured_ahead(self, starts: np.ndarray) -> Tensor:
        """Return at which steps of the forecast (n, horizon) all targets were measured, in windows from their first rows."""
        data = self._data
        return torch.from_numpy(data.measured[starts[:, None] + np.arange(data.context, data.context + self.horizon)])

    def _windows(self, values: np.ndarray, starts: np.ndarray, length: int) -> Tensor:
        """Return standardised windows (n, length, C) float32 from their first rows, C without what is known ahead."""
        data = self._data
        mean, scale = (part[data.inputs] for part in (data.statistics.mean, data.statistics.scale))
        rows = starts[:, None] + np.arange(length)
        return torch.from_numpy(scaled_values(values[rows][..., data.inputs], mean, scale, str(self.path)))

    def _known_windows(self, store: SeriesStore, known: np.ndarray, starts: np.ndarray) -> Tensor:
        """Return the variables known ahead (n, context + horizon, P), float32, in windows that begin at rows of a table."""
        series = np.searchsorted(store.offsets, starts, "right") - 1
        rows = (starts + series * self.horizon)[:, None] + np.arange(self._data.context + self.horizon)
        return torch.from_numpy(known[rows].astype(np.float32))

    def _to_batch(self, windows: Tensor, known: Tensor, *, has_targets: bool = True) -> Batch:
        """Return windows of context and, with targets, horizon as a batch. known: the variables known ahead (n, L, P)."""
        data = self._data
        count, channels, context = len(windows), windows.shape[2], data.context
        level = self._levels(windows[:, :context], known)
        inputs = torch.zeros(count, self.length, self.d_input)
        inputs[:, :context, :channels] = windows[:, :context] - level[:, :context]
        inputs[:, context:, channels] = 1
        inputs[..., channels + 1 : 2 * channels + 1] = level
        inputs[..., 2 * channels + 1 :] = known
        mask = torch.zeros(count, self.length, dtype=torch.bool)
        mask[:, context:] = True
        if not has_targets:
            return Batch(inputs, loss_mask=mask)
        targets = torch.zeros(count, self.length, len(data.targets))
        targets[:, context:] = (windows - level)[:, context:, data.places]
        return Batch(inputs, targets, loss_mask=mask)

    def _levels(self, contexts: Tensor, known: Tensor) -> Tensor:
        """Return the levels that are subtracted from context and horizon, (n, L, C), as the setting `level` says."""
        data = self._data
        if self.level == "season":
            count = max(1, data.context // data.season)
            return seasonal_mean(contexts, self.length, data.season, count, start=-data.context)
        last = contexts[:, -1:].expand(-1, self.length, -1).clone()
        if self.level == "ridge":
            last[:, data.context :] = _ridge_forecast(contexts, known, _fit_ridge(self, self._file_state))
        return last

    def constant_score(self, split: Split = "test") -> float:
        """Return the mean absolute error on a split of the best constant, the median of each target over all scored steps."""
        check_request(self, split)
        return _naive_errors(self, self._file_state, split)["constant"]

    def baselines(self, split: Split = "test") -> dict[str, float]:
        """Return the main metric on a split of forecasts that need no training of a network, by name.

        constant: the best constant of each target. persistence: the last value. seasonal_naive: the value one season before, if
        there are seasons. ridge: a linear regression from the context to the horizon, fitted on train.
        """
        check_request(self, split)
        return dict(_naive_errors(self, self._file_state, split))

    @property
    def starts_at_zero(self) -> bool:
        """Whether a model begins with the answer 0: with level="ridge", so that its forecast is that of the regression."""
        return self.level == "ridge"

    @property
    def plot_kind(self) -> Literal["forecast"]:
        """Kind of plot that shows an example."""
        return "forecast"

    def in_units(self, values: Tensor, batch: Batch) -> Tensor:
        """Return values of the targets (B, L, K) with their level, in the table's units and in float64."""
        data = self._data
        level = batch.inputs[..., len(data.inputs) + 1 :][..., data.places]
        scale, mean = (torch.from_numpy(part[data.targets]) for part in (data.statistics.scale, data.statistics.mean))
        return (values + level).double() * scale + mean

    def error_in_units(self, value: float) -> tuple[str, float] | None:
        """Return the mean absolute error in the units of the target, after its name; None for several targets."""
        data = self._data
        if len(data.targets) > 1:
            return None
        return f"mean absolute error of {self.variables[0]}", value * float(data.statistics.scale[data.targets[0]])

    def past_and_ahead(self, batch: Batch, row: int) -> tuple[Tensor, Tensor | None]:
        """Return the targets in the context (context, K) and in the horizon (horizon, K) of an example, in the table's units."""
        context = self._data.context
        past = self.in_units(batch.inputs[..., self._data.places], batch)[row, :context]
        return past, None if batch.targets is None else self.in_units(batch.targets, batch)[row, context:]

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Return an example as text: the first target in context and horizon as bars."""
        past, ahead = self.past_and_ahead(batch, row)
        text = f"{sparkline(past[:, 0], 24)} {count_text(len(self._data.inputs), 'channel')}, {count_text(len(past), 'step')}"
        return text if ahead is None else f"{text} | {count_text(self.horizon, 'step')} {sparkline(ahead[:, 0], 24)}"

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:
        """Return a row for each step of a forecast: example, step and the targets in the units of the table."""
        return super().decode(self.in_units(output, batch), batch)

    def _new_series(self, path: str | Path) -> tuple[SeriesStore, np.ndarray, np.ndarray]:
        """Read a file with the channels of the training table.

        Returns it without rows that have only what is known ahead, its values without missing ones, and what is known ahead as in
        `KnownAhead`.
        """
        data = self._data
        options = self.read_options()._replace(channels=data.store.channels, fixed=True, others=self.channels is not None)
        full = read_series(path, options)
        check_times(full, data.store, path, with_offsets=bool(data.known.periods))
        _check_even(full, data.unit, path, calendar=data.frequency is not None)
        store = _without_rows_ahead(full, data.known.numbers)
        values = _checked_values(store, self, path)
        known = _known_rows(full, store, data.known.numbers, data.known.periods, self.horizon, data.unit, data.frequency)
        short = int(store.lengths.argmin())
        if store.lengths[short] < data.context:
            raise ValueError(
                f"{path} must have at least {data.context} rows of each series, the steps of the context, got "
                f"{store.lengths[short]} of series {str(store.ids[short])!r}"
            )
        if len(data.known.numbers):
            _check_known(store, known, self, path)
        return store, values, _standardised_known(known, data)

    def _new_starts(self, store: SeriesStore) -> np.ndarray:
        """Return the first rows of the windows of a new file: the last context of each series, or one every `horizon` steps."""
        context = self._data.context
        starts = []
        for first, last in zip(store.offsets[:-1].tolist(), store.offsets[1:].tolist(), strict=True):
            earlier = range(last - context, first - 1, -self.horizon) if self.predicted == "windows" else (last - context,)
            starts += sorted(earlier)
        return np.array(starts)

    def read_inputs(self, path: str | Path) -> Batch:
        """Read the last `context` rows of each series of a table with the same columns, or all windows (`predicted`)."""
        store, values, known = self._new_series(path)
        starts = self._new_starts(store)
        windows = self._windows(values, starts, self._data.context)
        return self._to_batch(windows, self._known_windows(store, known, starts), has_targets=False)

    def add_times(self, rows: list[dict[str, str | float]], path: str | Path) -> list[dict[str, str | float]]:
        """Return the rows with the id of the series (if the table has ids), the date, and the number of steps ahead.

        With predicted="windows" the column origin has the last date of the context, and NAME_actual the value where it is known.
        """
        store, _, _ = self._new_series(path)
        data = self._data
        starts = self._new_starts(store)
        series = np.searchsorted(store.offsets, starts, "right") - 1
        dated = [_series_dates(store, number, self.horizon, data) for number in range(len(store.ids))]
        named = []
        for row in rows:
            start = int(starts[int(row["example"])])
            number = int(series[int(row["example"])])
            first, ahead = int(store.offsets[number]), int(row["step"]) - data.context + 1
            place = start + data.context - 1 + ahead - first
            cells: dict[str, str | float] = {"id": str(store.ids[number])} if store.has_ids else {}
            if self.predicted == "windows":
                cells["origin"] = dated[number][start + data.context - 1 - first]
            cells |= {"date" if store.is_dated else "time": dated[number][place], "ahead": ahead}
            cells |= {name: value for name, value in row.items() if name not in ("example", "step")}
            if self.predicted == "windows":
                for variable, channel in zip(self.variables, data.targets.tolist(), strict=True):
                    actual = float(store.values[first + place, channel]) if place < store.lengths[number] else np.nan
                    cells[f"{variable}_actual"] = "" if np.isnan(actual) else actual
            named.append(cells)
        return named

    def summary(self) -> list[tuple[str, str]]:
        """Return how the table was read, as pairs of a name and a text."""
        data = self._data
        store = data.store
        ends = "rows count as steps; there is no column of times"
        if store.stamps is not None:
            first, last = format_stamps(np.array([store.stamps.min(), store.stamps.max()]), store.form)
            step = f"{format_step(data.unit, is_dated=store.is_dated)} between steps"
            ends = f"{format_frequency(data.frequency) if data.frequency else step}, from {first} to {last}"
        parts = ", ".join(f"{len(starts):,} {part}" for part, starts in data.starts.items())
        test, valid = self.test_fraction, self.valid_fraction
        scales = zip(self.variables[:3], data.statistics.scale[data.targets], strict=False)
        units = ", ".join(f"{scale:.4g} for {name}" for name, scale in scales) + (", ..." if len(self.variables) > 3 else "")
        known = [("known", f"at the steps of the forecast: {', '.join(data.known.names)}")] if data.known.names else []
        filled = len(data.measured) - int(data.measured.sum())
        scored = [("scored", f"no step of the {filled:,} rows where a target is missing")] if filled else []
        return [
            ("file", f"{self.path}, {len(store.values):,} rows"),
            *self._common_summary(store, data.statistics),
            *scored,
            ("time", ends),
            ("target", f"{', '.join(self.variables)}, {count_text(self.horizon, 'step')} from a context of {data.context}"),
            ("errors", f"divided by the standard deviation of the training rows, {units}"),
            *known,
            ("season", f"{data.season} steps" if data.season > 1 else "none known (`--task.season`)"),
            (
                "split",
                f"in time: the last {test:.0%} of each series is test, {valid:.0%} before it valid, each at least the horizon; "
                f"windows: {parts}",
            ),
        ]


def _series_dates(store: SeriesStore, number: int, horizon: int, data: ForecastData) -> list[str]:
    """Return the time stamps of a series and of the next `horizon` steps as text; numbers from 1 without a column of times."""
    first, last = int(store.offsets[number]), int(store.offsets[number + 1])
    if store.stamps is None:
        return [str(step + 1) for step in range(last - first + horizon)]
    stamps = np.asarray(store.stamps[first:last])
    later = later_stamps(stamps, horizon, data.unit, data.frequency, is_dated=store.is_dated)
    return format_stamps(np.concatenate([stamps, later]), store.form)


def _checked_values(store: SeriesStore, task: SeriesForecast, source: str | Path) -> np.ndarray:
    """Return the values of a table, missing ones replaced by the value before if the setting `missing` is "fill"."""
    if task.missing == "refuse":
        check_missing(store, "refuse", source, "`missing='fill'` repeats the value before each")
        return store.values
    values = np.array(store.values)
    gaps = np.isnan(values)
    if not gaps.any():
        return store.values
    starts = np.asarray(store.offsets[:-1])
    if gaps[starts].any():
        series, channel = (int(axis) for axis in np.argwhere(gaps[starts])[0])
        raise ValueError(
            f"{source}: the first row of series {str(store.ids[series])!r} must have a value of {store.channels[channel]}, as "
            "none before it can be repeated, got none"
        )
    last = np.maximum.accumulate(np.where(gaps, 0, np.arange(len(values))[:, None]))
    return np.take_along_axis(values, last, 0)


def _check_even(store: SeriesStore, unit: float, source: str | Path, *, calendar: bool = True) -> None:
    """Raise ValueError if the steps differ from `unit`. calendar: steps of a calendar, such as months, are valid, too."""
    if store.stamps is None:
        return
    odd = uneven_steps(np.asarray(store.stamps), np.asarray(store.offsets), unit)
    if not len(odd) or (calendar and _frequency(store) is not None):
        return
    row = int(odd[0])
    series = int(np.searchsorted(store.offsets, row, "right")) - 1
    before, after = format_stamps(np.asarray(store.stamps[row : row + 2]), store.form)
    usual = format_step(unit, is_dated=store.is_dated)
    name = f" of series {str(store.ids[series])!r}" if store.has_ids else ""
    is_hour = store.is_dated and store.stamps[row + 1] - store.stamps[row] - unit == HOUR
    change = clock_change_hint(int(store.stamps[row]), store.form) if is_hour else ""
    raise ValueError(
        f"{source}: the steps of a forecast must be equal, got {len(odd)} that differ from {usual}, the first from {before} to "
        f"{after}{name}; asfreq and interpolate of pandas fill gaps{change}"
    )


def _frequency(store: SeriesStore) -> str | None:
    """Return the calendar frequency that the dates of all series have, None if there is none.

    Series of one or two rows have no frequency by themselves, but their dates must be those of the others' frequency.
    """
    if not store.is_dated or store.stamps is None:
        return None
    series = [np.asarray(store.stamps[a:b]) for a, b in zip(store.offsets, store.offsets[1:], strict=False)]
    found = {calendar_frequency(stamps) for stamps in series if len(stamps) > 2}
    frequency = found.pop() if len(found) == 1 else None
    if frequency is None:
        return None
    pairs = [stamps for stamps in series if len(stamps) == 2]
    follow = (later_stamps(pair[:1], 1, 0.0, frequency, is_dated=True)[0] == pair[1] for pair in pairs)
    return frequency if all(follow) else None


def _season(store: SeriesStore, unit: float, frequency: str | None) -> int:
    """Return the steps of a season for a step of `unit`: of a day, a week (of five days for business days), a year; else 1."""
    if frequency is not None:
        return steps_in_season(frequency)
    seconds = unit / 1e9 if store.is_dated else 0.0
    if 60 <= seconds < DAY and abs(DAY / seconds - round(DAY / seconds)) < 1e-6:
        return round(DAY / seconds)
    return 7 if seconds == DAY else 1


@lru_cache(maxsize=4)
def _load(task: SeriesForecast, state: FileState) -> ForecastData:  # noqa: ARG001, part of the key
    """Read, check and split the table of a task."""
    store = task.read_store()
    source = str(task.path)
    _check_columns(store, task)
    unit = 1.0 if store.stamps is None else usual_step(np.asarray(store.stamps), np.asarray(store.offsets))
    _check_even(store, unit, source)
    odd = store.stamps is not None and len(uneven_steps(np.asarray(store.stamps), np.asarray(store.offsets), unit))
    frequency = _frequency(store) if odd else None
    numbers = np.array([store.channels.index(name) for name in task.known], int)
    full, store = store, _without_rows_ahead(store, numbers)
    season = task.season or _season(store, unit, frequency)
    context = task.context or max(1, min(MAX_CONTEXT, int(store.lengths.max()) // 4, max(4 * season, 2 * task.horizon, 16)))
    if task.level == "season" and season > context:
        raise setting_error("season", season, f"at most the steps of the context, {context}")
    inputs = np.setdiff1d(np.arange(len(store.channels)), numbers)
    if not len(inputs):
        raise setting_error("known", task.known, "some of the channels, not all, as one must be forecast")
    targets = np.array([store.channels.index(name) for name in task.target]) if task.target else inputs
    values = _checked_values(store, task, source)
    measured = ~np.isnan(store.values[:, targets]).any(1)
    ranges = _split_rows(store, task)
    named = ", ".join(store.channels[number] for number in targets)
    starts = {part: _window_starts(store, rows, measured, context, part, task, named) for part, rows in ranges.items()}
    statistics = fit_statistics(store, np.array(ranges["train"]), source)
    scored = np.where(measured[:, None], values[:, targets], np.nan)
    for kind, own in (("training", ranges["train"]), ("test", ranges["test"])):
        if not _varies(scored, own):
            raise setting_error("target", named, f"columns of which one varies in the {kind} rows of {source}")
    if task.calendar and not store.is_dated:
        raise setting_error("calendar", True, f"False, as {source} has no dates")
    periods = calendar_periods(np.asarray(store.stamps), unit) if task.calendar and store.stamps is not None else ()
    names = (*task.known, *(f"{wave} of {period}" for period in periods for wave in ("sine", "cosine")))
    rows = _known_rows(full, store, numbers, periods, task.horizon, unit, frequency)
    data = ForecastData(
        store, values, measured, inputs, targets, KnownAhead(numbers, periods, names, rows),
        starts, np.array(ranges["train"]), statistics, context, season, unit, frequency,
    )  # fmt: skip
    return data._replace(known=data.known._replace(values=_standardised_known(rows, data)))


def _check_columns(store: SeriesStore, task: SeriesForecast) -> None:
    """Raise SettingError if the table lacks a column that the settings name, or has not a row for each step."""
    for setting, given in (("target", task.target or ()), ("known", task.known)):
        for name in given:
            if name not in store.channels:
                raise setting_error(setting, name, f"a column of numbers of {task.path}, some of {', '.join(store.channels)}")
    if store.layout != "long":
        needed = "a table with a row for each step, for a forecast; `layout` long says that it is one"
        raise setting_error("path", str(task.path), needed)


def _split_rows(store: SeriesStore, task: SeriesForecast) -> dict[Split, list[tuple[int, int]]]:
    """Return the rows of each split in each series, as the first row and that after the last one."""
    ranges: dict[Split, list[tuple[int, int]]] = {"train": [], "valid": [], "test": []}
    for first, last in zip(store.offsets[:-1].tolist(), store.offsets[1:].tolist(), strict=True):
        steps = last - first
        least = task.horizon if steps >= LEAST_HORIZONS * task.horizon else 0
        test = last - max(least, round(steps * task.test_fraction))
        valid = test - max(least, round(steps * task.valid_fraction))
        ranges["train"].append((first, valid))
        ranges["valid"].append((valid, test))
        ranges["test"].append((test, last))
    return ranges


def _window_starts(
    store: SeriesStore,
    ranges: Sequence[tuple[int, int]],
    measured: np.ndarray,
    context: int,
    part: Split,
    task: SeriesForecast,
    named: str,
) -> np.ndarray:
    """Return the first rows of the windows of a split that have a measured row in their horizon, see `_with_measured`.

    The horizon is in the rows `ranges` of the split, the context may begin before them. Of valid and test there are at most
    `eval_windows`, evenly spaced. named: names of the targets, for the error. Raises SettingError or ValueError if there is none.
    """
    firsts = store.offsets[:-1].tolist()
    windows = [
        np.arange(max(first, low - context), high - context - task.horizon + 1)
        for first, (low, high) in zip(firsts, ranges, strict=True)
    ]
    found = np.concatenate(windows)
    if not len(found):
        raise setting_error(
            "horizon", task.horizon, f"small enough for a window of {context} + {task.horizon} steps in the part {part} of a "
            f"series of {task.path}; the longest has {store.lengths.max()} rows"
        )  # fmt: skip
    found = _with_measured(found, measured, context, task.horizon)
    if not len(found):
        raise ValueError(
            f"{task.path} must have a row with values of {named} in the part {part}, by which forecasts are scored, got none"
        )
    if part != "train" and len(found) > task.eval_windows:
        return found[np.linspace(0, len(found) - 1, task.eval_windows).round().astype(int)]
    return found


def _with_measured(starts: np.ndarray, measured: np.ndarray, context: int, horizon: int) -> np.ndarray:
    """Return the first rows of the windows that have a measured row in their horizon."""
    before = np.concatenate([[0], np.cumsum(measured)])
    return starts[before[starts + context + horizon] > before[starts + context]]


def _varies(targets: np.ndarray, ranges: Sequence[tuple[int, int]]) -> bool:
    """Return whether a target is not constant in rows (first, last) of each series; else any constant is perfect.

    targets: (T, K), NaN in rows that are not scored.
    """
    low, high = np.full(targets.shape[1], np.inf), np.full(targets.shape[1], -np.inf)
    for first, last in ranges:
        low = np.fmin(low, np.fmin.reduce(targets[first:last], 0, initial=np.inf))
        high = np.fmax(high, np.fmax.reduce(targets[first:last], 0, initial=-np.inf))
    return bool((low < high).any())


def _without_rows_ahead(store: SeriesStore, known: np.ndarray) -> SeriesStore:
    """Return series without their last rows in which all channels but the known ones are missing."""
    if not len(known):
        return store
    others = np.setdiff1d(np.arange(store.values.shape[1]), known)
    kept = np.ones(len(store.values), bool)
    lengths = store.lengths.copy()
    for number, (first, last) in enumerate(zip(store.offsets[:-1].tolist(), store.offsets[1:].tolist(), strict=True)):
        length = last - first
        while length and np.isnan(store.values[first + length - 1, others]).all():
            length -= 1
        kept[first + length : last] = False
        lengths[number] = length
    if kept.all():
        return store
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    stamps = None if store.stamps is None else np.asarray(store.stamps)[kept]
    return store._replace(values=np.asarray(store.values)[kept], offsets=offsets, stamps=stamps)


def _known_rows(
    full: SeriesStore,
    store: SeriesStore,
    numbers: np.ndarray,
    periods: tuple[str, ...],
    horizon: int,
    unit: float,
    frequency: str | None,
) -> np.ndarray:
    """Return the values of `KnownAhead` in units of the table.

    full, store: series with and without rows that have only what is known ahead.
    """
    rows = np.full((len(store.values) + len(store.ids) * horizon, len(numbers) + 2 * len(periods)), np.nan)
    if not rows.shape[1]:
        return rows
    for number in range(len(store.ids)):
        first, length = int(full.offsets[number]), int(store.lengths[number])
        given = np.asarray(full.values[first : int(full.offsets[number + 1])])[: length + horizon, numbers]
        place = int(store.offsets[number]) + number * horizon
        rows[place : place + len(given), : len(numbers)] = given
        if periods and store.stamps is not None:
            stamps = np.asarray(store.stamps[store.offsets[number] : store.offsets[number + 1]])
            if length:
                stamps = np.concatenate([stamps, later_stamps(stamps, horizon, unit, frequency, is_dated=True)])
            rows[place : place + len(stamps), len(numbers) :] = calendar_features(stamps, periods)
    return rows


def _check_known(store: SeriesStore, known: np.ndarray, task: SeriesForecast, source: str | Path) -> None:
    """Raise ValueError if a series has no values of what is known ahead in the `horizon` rows after it."""
    for number in range(len(store.ids)):
        end = int(store.offsets[number + 1]) + number * task.horizon
        ahead = ~np.isnan(known[end : end + task.horizon]).any(1)
        if not ahead.all():
            raise ValueError(
                f"{source} must have {task.horizon} rows after the last value of series {str(store.ids[number])!r}, for the "
                f"forecast, with values of {', '.join(task.known)} and empty other channels, got {int(np.cumprod(ahead).sum())}"
            )


def _standardised_known(rows: np.ndarray, data: ForecastData) -> np.ndarray:
    """Return `KnownAhead.values` from values in units of the table: columns by the training rows, the calendar as it is."""
    count = len(data.known.numbers)
    mean, scale = (part[data.known.numbers] for part in (data.statistics.mean, data.statistics.scale))
    return np.concatenate([(rows[:, :count] - mean) / scale, rows[:, count:]], axis=1)


class Ridge(NamedTuple):
    """A linear forecast: weights (context, horizon), and the effect (P, C) of what is known ahead, in standardised units."""

    weights: Tensor
    effect: Tensor


@lru_cache(maxsize=4)
def _fit_ridge(task: SeriesForecast, state: FileState) -> Ridge:  # noqa: ARG001, part of the key
    """Return the linear forecast with the penalty that is best on valid, and the effect if it lowers the error there."""
    data = task._data
    none = np.zeros((len(data.known.names), len(data.inputs)))
    weights, error = _regress(task, none)
    if data.known.names:
        effect = _known_effect(task)
        informed, lower = _regress(task, effect)
        if lower < (1 - SMALLEST_GAIN) * error:
            return Ridge(informed, torch.from_numpy(effect.astype(np.float32)))
    return Ridge(weights, torch.from_numpy(none.astype(np.float32)))


def _known_effect(task: SeriesForecast) -> np.ndarray:
    """Return the linear effect (P, C) of what is known ahead on the targets, 0 on other channels, fitted on training rows."""
    data = task._data
    share = min(1.0, FIT_ROWS / int((data.ranges[:, 1] - data.ranges[:, 0]).sum()))
    mean, scale = (part[data.targets] for part in (data.statistics.mean, data.statistics.scale))
    x, y = [], []
    for number, (first, last) in enumerate(data.ranges.tolist()):
        first = last - round(share * (last - first))
        if first < last:
            x.append(data.known.values[first + number * task.horizon : last + number * task.horizon])
            y.append((data.values[first:last, data.targets] - mean) / scale)
    effect = np.zeros((len(data.known.names), len(data.inputs)))
    for place, target in zip(data.places, range(len(data.targets)), strict=True):
        effect[:, place] = generalised_least_squares([np.ascontiguousarray(part[:, target]) for part in y], x)
    return effect


def _regress(task: SeriesForecast, effect: np.ndarray) -> tuple[Tensor, float]:
    """Return the weights (context, horizon) with the penalty that is best on valid, and the mean squared error there.

    One regression for all channels that are forecast, from the differences of the context to its last value, without the effect
    (P, C) of what is known ahead. Targets that were missing do not count: forecasts replace them and the regression is fitted
    again, the expectation-maximisation algorithm of a regression with missing answers.
    """
    data = task._data
    chosen = np.linspace(0, len(data.starts["train"]) - 1, min(FIT_WINDOWS, len(data.starts["train"]))).round().astype(int)
    starts = data.starts["train"][chosen]
    pieces = np.array_split(starts, max(1, len(chosen) // 1000))
    contexts, ahead = _differences(task, data.starts["valid"], effect)
    measured = _measured_rows(task, data.starts["valid"])
    weights: np.ndarray = np.zeros((data.context, task.horizon))
    error = np.inf
    for step in range(1 + _count_refits(task._measured_ahead(starts).numpy())):
        gram, cross = np.zeros((data.context, data.context)), np.zeros((data.context, task.horizon))
        for piece in pieces:
            past, targets = _differences(task, piece, effect)
            if step:  # a value that was filled is no measurement: the forecast takes its place
                targets = np.where(_measured_rows(task, piece), targets, past @ weights)
            gram += past.T @ past
            cross += past.T @ targets
        scale = np.trace(gram) / len(gram) / max(1, len(chosen)) or 1.0
        found = [np.linalg.solve(gram + penalty * scale * np.eye(len(gram)), cross) for penalty in PENALTIES]
        errors = [float(((contexts @ one - ahead) ** 2)[measured].mean()) for one in found]
        weights, error = found[int(np.argmin(errors))], min(errors)
    return torch.from_numpy(weights.astype(np.float32)), error


def _count_refits(measured: np.ndarray) -> int:
    """Return how often a regression is fitted again to targets of which some are missing, (n, horizon).

    With contexts X, of which those with missing targets are X_m, and the penalty p, a fit changes the difference D of the weights
    to those of the measured targets alone to (X'X + p)^-1 X_m'X_m D. If a share s of the targets is missing at random, this is
    about s D, so D falls below `FILL_ERROR` of its first value in log(FILL_ERROR) / log(s) fits. The largest s of a step counts.
    """
    share = 1 - float(measured.mean(0).min())
    if share in (0.0, 1.0):
        return MAX_REFITS if share else 0
    return min(MAX_REFITS, ceil(log(FILL_ERROR) / log(share)))


def _measured_rows(task: SeriesForecast, starts: np.ndarray) -> np.ndarray:
    """Return at which steps of the rows of `_differences` all targets were measured, (n, horizon) bool."""
    # the rows are the targets of one window after the other
    return task._measured_ahead(starts).numpy().repeat(len(task._data.targets), 0)


def _differences(task: SeriesForecast, starts: np.ndarray, effect: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return contexts (n, context) and horizons (n, horizon) of the targets less the last value of their contexts.

    The effect (P, C) of what is known ahead is removed from both.
    """
    data = task._data
    windows = task._windows(data.values, starts, data.context + task.horizon)
    known = task._known_windows(data.store, data.known.values, starts)
    chosen = windows[..., data.places].double() - known.double() @ torch.from_numpy(effect[:, data.places])
    chosen = (chosen - chosen[:, data.context - 1 : data.context]).transpose(1, 2).flatten(0, 1)
    return chosen[:, : data.context].numpy(), chosen[:, data.context :].numpy()


def _ridge_forecast(contexts: Tensor, known: Tensor, ridge: Ridge) -> Tensor:
    """Return the linear forecasts (n, horizon, C) after contexts (n, context, C). known: what is known ahead (n, L, P)."""
    effect = known @ ridge.effect
    past = contexts - effect[:, : contexts.shape[1]]
    last = past[:, -1:]
    return last + ((past - last).transpose(1, 2) @ ridge.weights).transpose(1, 2) + effect[:, contexts.shape[1] :]


@lru_cache(maxsize=8)
def _naive_errors(task: SeriesForecast, state: FileState, split: Split) -> dict[str, float]:
    """Return the mean absolute errors of simple forecasts at the measured steps of the windows of a split."""
    data = task._data
    windows = task._windows(data.values, data.starts[split], data.context + task.horizon)
    known = task._known_windows(data.store, data.known.values, data.starts[split])
    ridge = _ridge_forecast(windows[:, : data.context], known, _fit_ridge(task, state))[..., data.places]
    contexts, ahead = windows[:, : data.context, data.places], windows[:, data.context :, data.places]
    measured = task._measured_ahead(data.starts[split])
    medians = ahead[measured].median(0).values
    forecasts = {"constant": medians.expand_as(ahead), "persistence": seasonal_mean(contexts, task.horizon, 1, 1)}
    if 1 < data.season <= data.context:
        forecasts["seasonal_naive"] = seasonal_mean(contexts, task.horizon, data.season, 1)
    forecasts["ridge"] = ridge
    return {name: float((forecast - ahead)[measured].abs().double().mean()) for name, forecast in forecasts.items()}
