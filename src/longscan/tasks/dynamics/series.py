"""The base class of regression tasks on arrays of series with a target at every step, at equal or unequal times."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch

from longscan._errors import count_text
from longscan._types import Doc
from longscan.tasks._sparklines import sparkline
from longscan.tasks.base import Batch, Split, TestSize, TrainSize, ValidSize, check_request, rows_of_step
from longscan.tasks.regression import RegressionTask
from longscan.tasks.timeseries.files import read_recordings


class SeriesArrays(NamedTuple):
    """The series of all splits with their targets and times, and the row numbers of each split."""

    inputs: np.ndarray  # (N, L, C)
    targets: np.ndarray  # (N, L, K)
    elapsed: np.ndarray | None  # (N, L) time since the previous step, None for equal steps
    rows: dict[Split, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class SeriesRegression(RegressionTask):
    """A regression task with a target at every step of series of equal length."""

    elapsed: Annotated[
        Literal["layers", "channel"],
        Doc(
            "how the model receives the time since the previous step: as the argument `elapsed` of the layers, or as the last "
            "channel of the input, for layers without a time step; 1 if steps are equal"
        ),
    ] = "layers"
    _has_persistence_baseline: ClassVar[bool] = False  # whether the inputs are earlier values of the targets

    @abstractmethod
    def _arrays(self) -> SeriesArrays:
        """Return the series; called for every batch, so an implementation must cache them."""

    @property
    def d_input(self) -> int:
        """Number of channels, including that of the time."""
        return self._channels + (self.elapsed == "channel")

    @property
    def _channels(self) -> int:
        return int(self._arrays().inputs.shape[2])

    @property
    def length(self) -> int:
        """Number of steps of a series."""
        return int(self._arrays().inputs.shape[1])

    def size(self, split: Split) -> int:
        """Return the number of series of a split."""
        check_request(self, split)
        return len(self._arrays().rows[split])

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """Return the batch of a step: inputs (B, L, C), targets (B, L, K), elapsed (B, L) or None."""
        check_request(self, split, step, batch_size, seed)
        data = self._arrays()
        rows = data.rows[split][rows_of_step(self.size(split), split, step, batch_size, seed)]
        elapsed = None if data.elapsed is None else torch.from_numpy(data.elapsed[rows].astype(np.float32))
        targets = torch.from_numpy(data.targets[rows].astype(np.float32))
        return self._add_time_channel(Batch(torch.from_numpy(self._to_inputs(data.inputs[rows])), targets, elapsed=elapsed))

    def _add_time_channel(self, batch: Batch) -> Batch:
        """Move the times of a batch to a channel of its inputs if the setting `elapsed` is "channel"."""
        if self.elapsed == "layers":
            return batch
        times = torch.ones(batch.inputs.shape[:2]) if batch.elapsed is None else batch.elapsed
        return batch._replace(inputs=torch.cat([batch.inputs, times.unsqueeze(2)], 2), elapsed=None)

    def _to_inputs(self, inputs: np.ndarray) -> np.ndarray:
        """Convert stored values to the model's inputs, float32."""
        return inputs.astype(np.float32)

    def constant_score(self, split: Split = "test") -> float:
        """Return the main metric on a split of the best constant answer: the mean of each target, or its median for mae."""
        check_request(self, split)
        data = self._arrays()
        targets = data.targets[data.rows[split]].astype(np.float64)
        best = np.median(targets, (0, 1)) if self.metric == "mae" else targets.mean((0, 1))
        return self._score(best, targets)

    def baselines(self, split: Split = "test") -> dict[str, float]:
        """Return the main metric of the best constant answer, and of persistence: the current value as the next one."""
        if not self._has_persistence_baseline:
            return super().baselines(split)
        data = self._arrays()
        rows = data.rows[split]
        return {**super().baselines(split), "persistence": self._score(data.inputs[rows], data.targets[rows])}

    def _score(self, answers: np.ndarray, targets: np.ndarray) -> float:
        """Return the main metric of answers."""
        error = answers - targets
        return float({"mse": np.mean(error**2), "mae": np.abs(error).mean(), "rmse": np.mean(error**2) ** 0.5}[self.metric])

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Return an example as text: the first channel and the first target as bars."""
        inputs = batch.inputs[row]
        text = f"{sparkline(inputs[:, 0], 24)} {count_text(inputs.shape[1], 'channel')} x {inputs.shape[0]} steps"
        return text if batch.targets is None else f"{text} | {sparkline(batch.targets[row][:, 0], 24)}"

    def read_inputs(self, path: str | Path) -> Batch:
        """Read series of equal length from a .ts, .arff, .csv or .npy file; the time between steps is 1."""
        series = read_recordings(path, "mask", layout="nlc", with_labels=False).series
        if len(series[0]) != self._channels:
            raise ValueError(f"{path} must contain series of {count_text(self._channels, 'channel')}, got {len(series[0])}")
        lengths = {item.shape[1] for item in series}
        if len(lengths) > 1 or any(np.isnan(item).any() for item in series):
            raise ValueError(f"{path} must contain series of one length without missing values, got others")
        return self._add_time_channel(Batch(torch.from_numpy(np.stack([item.T for item in series]).astype(np.float32))))


@dataclass(frozen=True, kw_only=True)
class GeneratedSeries(SeriesRegression):
    """A regression task on fixed sets of series that it generates."""

    train_size: TrainSize = 2_000
    valid_size: ValidSize = 1_000
    test_size: TestSize = 1_000

    @property
    def _sizes(self) -> dict[Split, int]:
        return {"train": self.train_size, "valid": self.valid_size, "test": self.test_size}

    def size(self, split: Split) -> int:
        """Return the number of series of a split."""
        check_request(self, split)
        return self._sizes[split]
