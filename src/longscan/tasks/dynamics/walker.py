"""Prediction of the next state of a simulated walker from a part of its steps (Lechner and Hasani, 2020)."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from longscan._types import Doc, FractionBelowOne
from longscan.tasks._store import Arrays, cached_arrays, data_folder, load_array, visible_paths
from longscan.tasks.base import TASKS, Split
from longscan.tasks.dynamics.series import SeriesArrays, SeriesRegression

_NEEDED_FILES = "the .npy rollouts of walker.zip (`longscan data get walker`)"
_WINDOW, _HOP = 64, 16


@TASKS.register("walker")
@dataclass(frozen=True, kw_only=True)
class Walker(SeriesRegression):
    """Predict a walker's state of 17 positions and velocities one step ahead, with a tenth of the steps removed.

        ▇▇▆▆▆▅▅▅▅▄▄▄▃▃▃▃▂▂▂▂▁▁▁▁ 17 channels x 64 steps | ▇▆▆▆▆▅▅▅▄▄▄▄▃▃▃▃▂▂▂▁▁▁▁▁

    Files are split 75/10/15 and steps are removed as in the ODE-LSTM benchmark, with the same random numbers. `elapsed` is the
    number of steps since the previous input step, and the target is the state at the next step of the file, removed or not.
    Windows have 64 steps and start every 16 steps; values are not scaled.
    """

    source: ClassVar[str] = "people.csail.mit.edu/mlechner/datasets/walker.zip"
    _has_persistence_baseline: ClassVar[bool] = True
    data_dir: Annotated[str | None, Doc("folder of .npy files, (steps, channels) each, at any depth")] = None
    dropped: Annotated[FractionBelowOne, Doc("probability of removing a step")] = 0.1

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the state's components, by number."""
        return tuple(f"state_{number}" for number in range(self._channels))

    def _arrays(self) -> SeriesArrays:
        return _arrays(self.data_dir, self.dropped)


@lru_cache(maxsize=2)
def _arrays(data_dir: str | None, dropped: float) -> SeriesArrays:
    folder = data_folder(data_dir, "activity", _NEEDED_FILES)
    paths = sorted(visible_paths(folder, "**/*.npy"), key=lambda path: path.name)
    if len(paths) < 10:
        raise FileNotFoundError(
            f"`data_dir` must be a folder with at least 10 of {_NEEDED_FILES}, got {folder} with {len(paths)}"
        )
    arrays = cached_arrays("walker", paths, dropped, lambda: _windows(paths, dropped))
    ends = arrays["counts"].cumsum()
    train, valid, test = np.split(np.arange(ends[-1]), ends[:-1])
    rows: dict[Split, np.ndarray] = {"train": train, "valid": valid, "test": test}
    return SeriesArrays(arrays["inputs"], arrays["targets"], arrays["elapsed"], rows)


def _windows(paths: list[Path], dropped: float) -> Arrays:
    """Return the windows of train, valid and test, concatenated, and their counts (3,)."""
    order = list(paths)
    np.random.RandomState(125487).shuffle(order)  # type: ignore[arg-type]
    test, valid = int(0.15 * len(order)), int(0.25 * len(order))
    rng = np.random.RandomState(891374)
    parts: dict[str, list[np.ndarray]] = {"inputs": [], "targets": [], "elapsed": []}
    counts, channels = [], None
    for files in (order[valid:], order[test:valid], order[:test]):
        count = 0
        for path in files:
            states = _read_rollout(path, channels)
            channels = states.shape[1]
            remaining = np.flatnonzero(rng.random_sample(len(states) - 1) >= dropped)
            elapsed = np.diff(remaining, prepend=-1).astype(np.float32)
            for start in range(0, len(remaining) - _WINDOW, _HOP):
                steps = remaining[start : start + _WINDOW]
                parts["inputs"].append(states[steps])
                parts["targets"].append(states[steps + 1])
                parts["elapsed"].append(elapsed[start : start + _WINDOW])
                count += 1
        counts.append(count)
    if not all(counts):
        raise ValueError(
            f"`data_dir` must have rollouts of more than {_WINDOW} steps for every split, got {paths[0].parent} with shorter ones"
        )
    return {name: np.stack(part) for name, part in parts.items()} | {"counts": np.array(counts)}


def _read_rollout(path: Path, channels: int | None) -> np.ndarray:
    """Read the states of a file, (steps, channels) float32. Raises ValueError for any other content."""
    states = load_array(path)
    if states.ndim != 2 or states.dtype.kind != "f" or len(states) < 2:
        raise ValueError(
            f"{path} must be floats of shape (steps, channels), at least 2 steps, got {states.dtype} of shape {states.shape}"
        )
    if channels is not None and states.shape[1] != channels:
        raise ValueError(f"{path} must have {channels} channels, like the files before it, got {states.shape[1]}")
    with np.errstate(over="ignore"):
        states = states.astype(np.float32)
    if not np.isfinite(states).all():
        step = np.flatnonzero(~np.isfinite(states).all(1))[0]
        raise ValueError(f"{path} must contain finite values, got {states[step].tolist()} at step {step}")
    return states
