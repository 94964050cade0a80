"""Forecasts of all variables of a table, on windows with stride one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longscan._errors import count_text, setting_error
from longscan._float32 import FLOAT32_MAX, find_out_of_range
from longscan._types import Doc, PositiveInt, Rule
from longscan.tasks._sparklines import sparkline
from longscan.tasks._store import data_folder, first_existing
from longscan.tasks.base import TASKS, Batch, Split, check_request, rows_of_step
from longscan.tasks.fitted import FitProgress, ignore_progress
from longscan.tasks.forecasting.baselines import fitted_dlinear, seasonal_mean
from longscan.tasks.forecasting.tables import (
    KNOWN_IRREGULAR_STEPS,
    VARIABLE_COUNTS,
    Missing,
    Table,
    read_dates,
    read_table,
)
from longscan.tasks.regression import RegressionTask

if TYPE_CHECKING:
    from torchmetrics import Metric

_NEEDED_FILES = (
    "NAME.csv: WTH of Informer2020, weather of Autoformer or ETTh1 of ETDataset (`longscan data get WTH`, weather or ETTh1), "
    "or its ETTh2, ETTm1, ETTm2"
)
_MONTH = 30 * 24


class WindowShape(NamedTuple):
    """Numbers of steps of the context, of the forecast, and of the overlap: steps of the context that are targets, too."""

    context: int
    horizon: int
    overlap: int


OVERLAP_METRICS = ("mae_inside_window", "mae_after_window")
VARIANTS = {"720-720": WindowShape(720, 720, 0), "384-96-96": WindowShape(384, 96, 96)}


@TASKS.register("forecast")
@dataclass(frozen=True, kw_only=True)
class Forecast(RegressionTask):
    """Forecast the next steps of all variables of a table.

        ▂▃▅▆▅▃▂▂▃▅▆▆▅▃▂▁▂▃▅▆▅▃▂ 12 variables, 720 steps | 720 steps ▂▃▅▆▅▃▂▂▃▅▆▆▅▃▂

    The variant "720-720" forecasts 720 steps from 720, as the AUSSM paper states; "384-96-96" is how its released configuration
    trains, on windows of 384 steps: 192 targets, the first 96 of which lie inside the window, since each step forecasts the step
    96 later. For this variant the metrics "mae_inside_window" and "mae_after_window" are the mean absolute errors for steps
    inside the context and for those after it.

    With layout="shift" early outputs depend on few inputs. With "append" an additional channel marks the empty steps, and the
    level, which is subtracted from context and targets, is also an input in additional channels; "last" is as in NLinear of Zeng
    et al., 2023. channels="apart" is as in DLinear of Zeng et al., 2023, and PatchTST of Nie et al., 2023: the variables of a
    window follow one another in the table's order. The errors are those of the forecasts, over the same numbers, in all cases.

    Dates must be in order with equal steps (`longscan.tasks.forecasting.tables`); the published table "weather" has one row twice
    and lacks nine, and is read unchanged.

    Neighbouring windows share almost all of their rows, so that with order="time" the examples of a batch are nearly the same.

    Rows are split in time, 70/10/20, or for ETT by months, 12/4/4; the context of a window of valid or test may contain rows of
    the previous split. Variables are standardised by the training rows, and errors are of standardised values. Every window is
    used; the last batch is never dropped.
    """

    source: ClassVar[str] = "Informer2020 (WTH), Autoformer (weather), ETDataset"
    metric: ClassVar[str] = "mae"
    dataset: Annotated[
        str, Rule(lambda name: name and Path(name).name == name, "the NAME of NAME.csv"), Doc("name of a .csv file in data_dir")
    ] = "WTH"
    data_dir: Annotated[str | None, Doc("folder of the .csv files")] = None
    variant: Annotated[
        Literal["720-720", "384-96-96"], Doc("steps of context, forecast and, in the second one, overlap of the two")
    ] = "720-720"
    context: Annotated[PositiveInt | None, Doc("steps of the context; None: those of the variant")] = None
    horizon: Annotated[PositiveInt | None, Doc("steps of the forecast; None: those of the variant")] = None
    layout: Annotated[
        Literal["shift", "append"],
        Doc(
            "shift: the output at a step forecasts the step `horizon` later; append: `horizon` empty steps follow the context, "
            "and their outputs are the forecast"
        ),
    ] = "shift"
    level: Annotated[
        Literal["kept", "last", "season"],
        Doc(
            "what is subtracted from context and targets, for layout append only: nothing; the last value of the context; the "
            "mean of the last `periods` seasons"
        ),
    ] = "kept"
    channels: Annotated[Literal["together", "apart"], Doc("an example is a window of all variables, or of one variable")] = (
        "together"
    )
    order: Annotated[
        Literal["shuffled", "time"],
        Doc("training windows: shuffled in each epoch, or in the order of time, as the AUSSM repository's loader gives them"),
    ] = "shuffled"
    season: Annotated[PositiveInt, Doc("steps of a season, for level and for the seasonal baselines")] = 24
    periods: Annotated[PositiveInt, Doc("number of seasons whose mean is the level season and a baseline")] = 7
    missing: Annotated[
        Missing,
        Doc(
            "missing values of a table ('?', 'NaN', nothing): an error, or filled with the previous value, which is then scored "
            "as if it had been measured"
        ),
    ] = "refuse"

    def __post_init__(self) -> None:
        super().__post_init__()
        shape = self._shape
        if self.layout == "shift" and shape.horizon + shape.overlap > shape.context:
            raise setting_error("layout", self.layout, f"append for a forecast longer than the context, {shape.context} steps")
        if self.layout == "append" and shape.overlap:
            raise setting_error("layout", self.layout, f"shift for the variant {self.variant}, whose context has targets")
        if self.level != "kept" and self.layout == "shift":
            raise setting_error("level", self.level, "kept for layout shift, whose early answers come before the last value")
        if self.level == "season" and self.season * self.periods > shape.context:
            raise setting_error("periods", self.periods, f"at most context / season, {shape.context // self.season}")

    @property
    def _shape(self) -> WindowShape:
        variant = VARIANTS[self.variant]
        overlap = variant.overlap if self.context is None and self.horizon is None else 0
        return WindowShape(self.context or variant.context, self.horizon or variant.horizon, overlap)

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the table's columns without the date; ("value",) if each column is a separate example."""
        return self._columns if self.channels == "together" else ("value",)

    @property
    def channel_names(self) -> tuple[str, ...]:
        """The variables, the mark of empty steps and the level of each variable, as the inputs have them."""
        marks = ("empty step",) if self.layout == "append" else ()
        levels = tuple(f"level of {name}" for name in self.variables) if self.level != "kept" else ()
        return (*self.variables, *marks, *levels)

    def in_units(self, values: Tensor, batch: Batch) -> Tensor:
        """Return values with their level, and in the table's units unless each column is a separate example."""
        values = values + batch.inputs[..., -len(self.variables) :] if self.level != "kept" else values
        if self.channels == "apart":
            return values
        data = _load(self.dataset, self.data_dir, self.missing)
        return values * torch.from_numpy(data.std).to(values) + torch.from_numpy(data.mean).to(values)

    @property
    def _columns(self) -> tuple[str, ...]:
        """Names of the table's columns without the date."""
        return _load(self.dataset, self.data_dir, self.missing).variables

    @property
    def d_input(self) -> int:
        """Number of channels: the variables, the mark of empty steps, the level."""
        variables = len(self.variables)
        return variables + (self.layout == "append") + (variables if self.level != "kept" else 0)

    @property
    def length(self) -> int:
        """Number of steps of an input."""
        return self._shape.context + (self._shape.horizon if self.layout == "append" else 0)

    @property
    def target_offset(self) -> int:
        """Number of steps between an input and its target: the horizon for the layout "shift", else 0."""
        return self._shape.horizon if self.layout == "shift" else 0

    def size(self, split: Split) -> int:
        """Return the number of windows, times the number of variables if each is a separate example."""
        check_request(self, split)
        return self._window_count(split) * (len(self._columns) if self.channels == "apart" else 1)

    def _window_count(self, split: Split) -> int:
        """Return the number of windows of a split."""
        first, last = self._row_range(split)
        return last - first - sum(self._shape[:2]) + 1

    def _row_range(self, split: Split) -> tuple[int, int]:
        """Return the first row and the end of a split, including contexts. Raises ValueError if they contain no window."""
        (train, valid, test), (context, horizon, _) = _load(self.dataset, self.data_dir, self.missing).borders, self._shape
        first = {"train": 0, "valid": train - context, "test": valid - context}[split]
        last = {"train": train, "valid": valid, "test": test}[split]
        if first < 0 or last - first < context + horizon:
            rows = f"{last - max(first, 0)} rows of the split {split} of {self.dataset}"
            raise ValueError(f"`context` and `horizon` must fit into the {rows}, got {context} + {horizon} steps")
        return first, last

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """Return the batch of a step: inputs (B, L, C) float32, targets (B, L, C), loss_mask (B, L), True at forecasts."""
        check_request(self, split, step, batch_size, seed)
        first, size = self._row_range(split)[0], self.size(split)
        if split == "train" and self.order == "time":
            chosen = np.arange(size)[step % -(-size // batch_size) * batch_size :][:batch_size]
        else:
            chosen = rows_of_step(size, split, step, batch_size, seed)
        if self.channels == "together":
            return self._to_batch(self._windows(first + chosen))
        starts, columns = np.divmod(chosen, len(self._columns))
        return self._to_batch(self._windows(first + starts, columns))

    def _windows(self, starts: np.ndarray, columns: np.ndarray | None = None) -> Tensor:
        """Return windows (n, context + horizon, C) from their first rows (n,); with columns (n,), of one column each, C = 1."""
        rows, values = starts[:, None] + np.arange(sum(self._shape[:2])), _load(self.dataset, self.data_dir, self.missing).values
        return torch.from_numpy(values[rows] if columns is None else values[rows, columns[:, None]][..., None])

    def _to_batch(self, windows: Tensor) -> Batch:
        context, horizon, overlap = self._shape
        count = len(windows)
        mask = torch.zeros(count, self.length, dtype=torch.bool)
        mask[:, -(horizon + overlap) :] = True
        if self.layout == "append":
            inputs, variables = torch.zeros(count, self.length, self.d_input), windows.shape[2]
            if self.level != "kept":
                season = (1, 1) if self.level == "last" else (self.season, self.periods)
                known = seasonal_mean(windows[:, :context], self.length, *season, start=-context)
                windows = windows - known
                inputs[..., variables + 1 :] = known
            inputs[:, :context, :variables] = windows[:, :context]
            inputs[:, context:, variables] = 1
            targets = torch.where(mask[..., None], windows, 0)
        else:
            inputs = windows[:, :context].contiguous()
            targets = torch.where(mask[..., None], windows[:, horizon:], 0)
        return Batch(inputs, targets, loss_mask=mask)

    def metrics(self, split: Split) -> "dict[str, Metric]":
        """Return the metrics of regression, and with an overlap the mean absolute errors inside and after the window."""
        from torchmetrics.regression import MeanAbsoluteError

        names = OVERLAP_METRICS if self._shape.overlap else ()
        return super().metrics(split) | {name: MeanAbsoluteError() for name in names}

    def update(self, metrics: "dict[str, Metric]", output: Tensor, batch: Batch) -> None:
        """Update the metrics with a batch. output: (B, L, C)."""
        super().update({name: metric for name, metric in metrics.items() if name not in OVERLAP_METRICS}, output, batch)
        horizon = self._shape.horizon
        for name, steps in zip(
            OVERLAP_METRICS, (slice(-horizon - self._shape.overlap, -horizon), slice(-horizon, None)), strict=True
        ):
            if name in metrics and batch.targets is not None:
                metrics[name].update(output.detach()[:, steps].float().reshape(-1), batch.targets[:, steps].reshape(-1))

    def constant_score(self, split: Split = "test") -> float:
        """Return the mean absolute error on a split of the best constant, the median of each column over all scored steps.

        It is the same for both values of `channels` and every `level`: the constants are values of the table's columns.
        """
        check_request(self, split)
        return _constant_score(self, split)

    def baselines(self, split: Split = "test") -> dict[str, float]:
        """Return the main metric of predictors that need no training, on all windows of a split, by name.

        constant: the best constant of each column. persistence: the context's last value. seasonal_naive: the value one `season`
        before. seasonal_mean: the mean of the last `periods` such values.
        """
        check_request(self, split)
        return {**super().baselines(split), **_naive_errors(self, split)}

    def fitted_baselines(
        self, split: Split = "test", seed: int = 0, on_progress: FitProgress = ignore_progress
    ) -> dict[str, float]:
        """Return the main metric of DLinear, fitted on train with early stopping on valid, over the horizon without overlap."""
        data, (context, horizon, _) = _load(self.dataset, self.data_dir, self.missing), self._shape
        train, valid = (data.values[slice(*borders)] for borders in (self._row_range("train"), self._row_range("valid")))
        model = fitted_dlinear(train, valid, context, horizon, seed=seed, on_progress=on_progress)
        with torch.no_grad():
            return {"dlinear": self._mean_error(split, model)}

    def _mean_error(self, split: Split, forecast: Callable[[Tensor], Tensor]) -> float:
        """Return the mean absolute error over all windows of a function from contexts to forecasts."""
        context, horizon, overlap = self._shape
        first, total, size = self._row_range(split)[0], 0.0, self._window_count(split)
        for start in range(0, size, 256):
            windows = self._windows(first + np.arange(start, min(start + 256, size)))
            answers = forecast(windows[:, :context])
            targets = windows[:, context - overlap + (horizon + overlap - answers.shape[1]) :]
            total += float((answers - targets).abs().mean((1, 2)).double().sum())
        return total / size

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Return an example as text: the first variable of context and target as bars."""
        context, horizon, overlap = self._shape
        variables = count_text(len(self._columns), "variable")
        shape = f"{'1 of ' if self.channels == 'apart' else ''}{variables}, {context} steps"
        text = f"{sparkline(batch.inputs[row, :context, 0], 24)} {shape}"
        if batch.targets is None or batch.loss_mask is None:
            return text
        return f"{text} | {horizon + overlap} steps {sparkline(batch.targets[row][batch.loss_mask[row]][:, 0], 24)}"

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:
        """Return a table with a row for each step of a forecast: example, step and the standardised variables."""
        return super().decode(output + batch.inputs[..., -len(self.variables) :] if self.level != "kept" else output, batch)

    def add_times(self, rows: list[dict[str, str | float]], path: str | Path) -> list[dict[str, str | float]]:
        """Add two columns: ahead, the number of steps after the file's last row (0 or less: inside the file), and date.

        Dates after the end of the file have its step.
        """
        context, horizon, _ = self._shape
        dates = read_dates(Path(path), horizon, KNOWN_IRREGULAR_STEPS.get(self.dataset, ()))[-context - horizon :]
        dated = []
        for row in rows:
            ahead = int(row["step"]) + self.target_offset - context + 1
            first = {"example": row["example"], "step": row["step"], "ahead": ahead, "date": dates[context + ahead - 1]}
            dated.append(first | row)
        return dated

    def read_inputs(self, path: str | Path) -> Batch:
        """Read the last `context` rows of a table with the same variables, standardised like the training rows.

        Returns one example, or with channels="apart" one for each variable in the table's order.
        """
        table = read_table(Path(path), missing=self.missing, irregular=KNOWN_IRREGULAR_STEPS.get(self.dataset, ()))
        data, (context, horizon, _) = _load(self.dataset, self.data_dir, self.missing), self._shape
        if table.variables != data.variables:
            raise ValueError(
                f"{path} must have the variables of {self.dataset}, {', '.join(data.variables)}, got {', '.join(table.variables)}"
            )
        if len(table.values) < max(2, context):
            needed = (
                f"{context} rows, as the context has" if context > 1 else "two rows, from which the step between rows is known"
            )
            raise ValueError(f"{path} must have at least {needed}, got {len(table.values)}")
        rows = _standardise(path, table, data.mean, data.std)[-context:]
        window = torch.from_numpy(np.concatenate([rows, np.zeros((horizon, rows.shape[1]), np.float32)]))
        windows = window[None] if self.channels == "together" else window.T[..., None]
        return self._to_batch(windows)._replace(targets=None)


class _Data(NamedTuple):
    """A standardised table: values (rows, C) float32; borders: the ends of train, valid and test; mean and std of train."""

    values: np.ndarray
    variables: tuple[str, ...]
    borders: tuple[int, int, int]
    mean: np.ndarray
    std: np.ndarray


@lru_cache(maxsize=4)
def _load(dataset: str, data_dir: str | None, missing: Missing) -> _Data:
    folder = data_folder(data_dir, "forecasting", _NEEDED_FILES)
    path = first_existing(folder, [f"{dataset}.csv"], _NEEDED_FILES)
    table = read_table(path, VARIABLE_COUNTS.get(dataset), missing, KNOWN_IRREGULAR_STEPS.get(dataset, ()))
    rows = len(table.values)
    if dataset.startswith("ETT") and dataset in VARIABLE_COUNTS:
        month = _MONTH * (4 if dataset.startswith("ETTm") else 1)
        borders = (12 * month, 16 * month, 20 * month)
        if rows < borders[-1]:
            raise ValueError(f"{path} must have at least {borders[-1]} rows, the months of train, valid and test, got {rows}")
    else:
        borders = (int(rows * 0.7), rows - int(rows * 0.2), rows)
    train = table.values[: borders[0]]
    if len(train) < 2:
        raise ValueError(f"{path} must have enough rows for a split 70/10/20, got {rows}")
    mean, std = train.mean(0), train.std(0)
    std = np.where(std > 0, std, 1.0)
    return _Data(_standardise(path, table, mean, std), table.variables, borders, mean, std)


def _standardise(path: str | Path, table: Table, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Standardise a table, (rows, C) float32. Raises ValueError for a value beyond the range of float32."""
    values = (table.values - mean) / std
    beyond = find_out_of_range(values)
    if beyond is not None:
        row, column = beyond
        raise ValueError(
            f"{path}: {table.variables[column]} in row {row + 1} after the header must be at most {FLOAT32_MAX:.3g}, the largest "
            f"of float32, in units of the training rows' standard deviation, {std[column]:g}, got {table.values[row, column]:g}, "
            f"which is {values[row, column]:g}"
        )
    return values.astype(np.float32)


@lru_cache(maxsize=16)
def _constant_score(task: Forecast, split: Split) -> float:
    """Return the mean absolute error of the weighted median of each column; a row's weight is its number of windows."""
    (context, horizon, overlap), windows = task._shape, task._window_count(split)
    first = task._row_range(split)[0] + context - overlap
    weights = np.convolve(np.ones(windows), np.ones(horizon + overlap))
    values = _load(task.dataset, task.data_dir, task.missing).values[first : first + len(weights)].astype(np.float64)
    order = values.argsort(axis=0)
    below = np.cumsum(weights[order], axis=0)
    middle = (below >= below[-1] / 2).argmax(axis=0)
    medians = np.take_along_axis(np.take_along_axis(values, order, 0), middle[None], 0)
    return float(np.average(np.abs(values - medians).mean(1), weights=weights))


@lru_cache(maxsize=16)
def _naive_errors(task: Forecast, split: Split) -> dict[str, float]:
    (_, horizon, overlap), season = task._shape, task.season
    return {
        "persistence": task._mean_error(split, lambda contexts: seasonal_mean(contexts, horizon + overlap, 1, 1)),
        "seasonal_naive": task._mean_error(split, lambda contexts: seasonal_mean(contexts, horizon, season, 1)),
        "seasonal_mean": task._mean_error(split, lambda contexts: seasonal_mean(contexts, horizon, season, task.periods)),
    }
