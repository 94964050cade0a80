"""Regression on arrays of series: a target at every step, steps perhaps at unequal times."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from longscan.tasks._drawing import bars
from longscan.tasks.base import Batch, Split, check_request, rows_of_step
from longscan.tasks.regression import RegressionTask
from longscan.tasks.timeseries.files import read_recordings


class SeriesArrays(NamedTuple):
    """inputs (N, L, C) and targets (N, L, K) of all splits; elapsed (N, L), None for equal steps; rows of each split."""

    inputs: np.ndarray
    targets: np.ndarray
    elapsed: np.ndarray | None
    rows: dict[Split, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class SeriesRegression(RegressionTask):
    """A target at every step of series of equal length.

    elapsed: who is told the time since the step before: "layers", whose recurrences take it as it is meant, or "channel", one
    more channel of the input after the others, for layers that have no notion of time; 1 where steps are equal.
    """

    elapsed: Literal["layers", "channel"] = "layers"

    def __post_init__(self) -> None:
        if self.elapsed not in ("layers", "channel"):
            raise ValueError(f"elapsed: must be one of layers, channel, not {self.elapsed!r}")

    @abstractmethod
    def _arrays(self) -> SeriesArrays:
        """The series; called for every batch, so it must remember them."""

    @property
    def d_input(self) -> int:
        """Channels, that of the time with them."""
        return self._channels + (self.elapsed == "channel")

    @property
    def _channels(self) -> int:
        return int(self._arrays().inputs.shape[2])

    @property
    def length(self) -> int:
        """Steps of a series."""
        return int(self._arrays().inputs.shape[1])

    def size(self, split: Split) -> int:
        """Number of series."""
        check_request(self, split, 0, 1, 0)
        return len(self._arrays().rows[split])

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """The batch of a step: inputs (B, L, C), targets (B, L, K), elapsed (B, L) or None."""
        check_request(self, split, step, batch_size, seed)
        data = self._arrays()
        rows = data.rows[split][rows_of_step(self.size(split), split, step, batch_size, seed)]
        elapsed = None if data.elapsed is None else torch.from_numpy(data.elapsed[rows].astype(np.float32))
        targets = torch.from_numpy(data.targets[rows].astype(np.float32))
        return self._timed(Batch(torch.from_numpy(self._scaled(data.inputs[rows])), targets, elapsed=elapsed))

    def _timed(self, batch: Batch) -> Batch:
        """The batch with its times where `elapsed` wants them."""
        if self.elapsed == "layers":
            return batch
        times = torch.ones(batch.inputs.shape[:2]) if batch.elapsed is None else batch.elapsed
        return batch._replace(inputs=torch.cat([batch.inputs, times.unsqueeze(2)], 2), elapsed=None)

    def _scaled(self, inputs: np.ndarray) -> np.ndarray:
        """Inputs as the model reads them, float32."""
        return inputs.astype(np.float32)

    def constant_score(self, split: Split = "test") -> float:
        """The main metric on a split of the best constant answer: each target's mean over the split, its median for mae."""
        check_request(self, split, 0, 1, 0)
        data = self._arrays()
        targets = data.targets[data.rows[split]].astype(np.float64)
        best = np.median(targets, (0, 1)) if self.metric == "mae" else targets.mean((0, 1))
        return self._score(best, targets)

    def _score(self, answers: np.ndarray, targets: np.ndarray) -> float:
        """The main metric of answers."""
        error = answers - targets
        return float({"mse": np.mean(error**2), "mae": np.abs(error).mean(), "rmse": np.mean(error**2) ** 0.5}[self.metric])

    def describe(self, batch: Batch, row: int = 0) -> str:
        """The first channel and the first target as bars."""
        inputs = batch.inputs[row]
        text = f"{bars(inputs[:, 0], 24)} {inputs.shape[1]} channels x {inputs.shape[0]} steps"
        return text if batch.targets is None else f"{text} | {bars(batch.targets[row][:, 0], 24)}"

    def read_inputs(self, path: str | Path) -> Batch:
        """Series of a .ts, .arff, .csv or .npy file with as many channels, steps apart by one unit of time, all equally long."""
        series = read_recordings(path, "mask", layout="nlc", with_labels=False).series
        if len(series[0]) != self._channels:
            raise ValueError(f"{path}: its series have {len(series[0])} channels, {self._channels} are needed")
        lengths = {item.shape[1] for item in series}
        if len(lengths) > 1 or any(np.isnan(item).any() for item in series):
            raise ValueError(f"{path}: series without missing values and of one length are needed")
        return self._timed(Batch(torch.from_numpy(np.stack([item.T for item in series]).astype(np.float32))))
