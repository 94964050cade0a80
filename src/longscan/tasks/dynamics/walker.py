"""The next state of a simulated walker (Lechner and Hasani, 2020), with steps missing."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from longscan.tasks._store import Arrays, data_folder, load_array, stored
from longscan.tasks.base import TASKS, Split
from longscan.tasks.dynamics.series import SeriesArrays, SeriesRegression

_WANTED = "the .npy rollouts of walker.zip (https://people.csail.mit.edu/mlechner/datasets/walker.zip)"
_WINDOW, _HOP = 64, 16


@TASKS.register("walker")
@dataclass(frozen=True, kw_only=True)
class Walker(SeriesRegression):
    """The state of a walker's 17 joints and speeds one step later, where a tenth of the steps is not seen.

        ▇▇▆▆▆▅▅▅▅▄▄▄▃▃▃▃▂▂▂▂▁▁▁▁ 17 channels x 64 steps | ▇▆▆▆▆▅▅▅▄▄▄▄▃▃▃▃▂▂▂▁▁▁▁▁

    data_dir: a folder of .npy files, (steps, channels) each, at any depth. Files are split 75/10/15 and steps dropped with
    probability `dropped` as in the ODE-LSTM benchmark, by the same random numbers; `elapsed` counts the steps since the last one
    seen, and the target is the very next step, seen or not. Windows are 64 steps, one every 16; values are raw.
    """

    name: ClassVar[str] = "walker"
    source: ClassVar[str] = "people.csail.mit.edu/mlechner/datasets/walker.zip"
    data_dir: str | None = None
    dropped: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.dropped < 1:
            raise ValueError(f"dropped: must lie in 0 .. 1, 1 left out, not {self.dropped}")

    @property
    def variables(self) -> tuple[str, ...]:
        """The state's components by number."""
        return tuple(f"state_{number}" for number in range(self._channels))

    def _arrays(self) -> SeriesArrays:
        return _arrays(self.data_dir, self.dropped)

    def baselines(self, split: Split = "test") -> dict[str, float]:
        """The main metric of the best constant answer, and of persistence: the state now as the answer for the next step."""
        data = self._arrays()
        rows = data.rows[split]
        return {**super().baselines(split), "persistence": self._score(data.inputs[rows], data.targets[rows])}


@lru_cache(maxsize=2)
def _arrays(data_dir: str | None, dropped: float) -> SeriesArrays:
    folder = data_folder(data_dir, "activity", _WANTED)
    paths = sorted(folder.rglob("*.npy"), key=lambda path: path.name)
    if len(paths) < 10:
        raise FileNotFoundError(f"data_dir: {folder} holds {len(paths)} .npy files, at least 10 are needed: {_WANTED}")
    arrays = stored("walker", paths, dropped, lambda: _windows(paths, dropped))
    ends = arrays["counts"].cumsum()
    train, valid, test = np.split(np.arange(ends[-1]), ends[:-1])
    rows: dict[Split, np.ndarray] = {"train": train, "valid": valid, "test": test}
    return SeriesArrays(arrays["inputs"], arrays["targets"], arrays["elapsed"], rows)


def _windows(paths: list[Path], dropped: float) -> Arrays:
    """Windows of train, valid and test one after the other, and their counts (3,)."""
    order = list(paths)
    np.random.RandomState(125487).shuffle(order)  # type: ignore[arg-type]
    test, valid = int(0.15 * len(order)), int(0.25 * len(order))
    draw = np.random.RandomState(891374)
    parts: dict[str, list[np.ndarray]] = {"inputs": [], "targets": [], "elapsed": []}
    counts, channels = [], None
    for files in (order[valid:], order[test:valid], order[:test]):
        count = 0
        for path in files:
            states = _rollout(path, channels)
            channels = states.shape[1]
            kept = np.flatnonzero(draw.random_sample(len(states) - 1) >= dropped)
            elapsed = np.diff(kept, prepend=-1).astype(np.float32)
            for start in range(0, len(kept) - _WINDOW, _HOP):
                seen = kept[start : start + _WINDOW]
                parts["inputs"].append(states[seen])
                parts["targets"].append(states[seen + 1])
                parts["elapsed"].append(elapsed[start : start + _WINDOW])
                count += 1
        counts.append(count)
    if not all(counts):
        raise ValueError(f"data_dir: {paths[0].parent}: rollouts of more than {_WINDOW} steps are needed in every split")
    return {name: np.stack(part) for name, part in parts.items()} | {"counts": np.array(counts)}


def _rollout(path: Path, channels: int | None) -> np.ndarray:
    """(steps, channels) float32; ValueError where the file holds anything else."""
    states = load_array(path)
    if states.ndim != 2 or states.dtype.kind != "f" or len(states) < 2:
        raise ValueError(f"{path}: floats of shape (steps, channels) are needed, two steps at least")
    if channels is not None and states.shape[1] != channels:
        raise ValueError(f"{path}: has {states.shape[1]} channels, the files before it have {channels}")
    with np.errstate(over="ignore"):
        states = states.astype(np.float32)
    if not np.isfinite(states).all():
        raise ValueError(f"{path}: step {np.flatnonzero(~np.isfinite(states).all(1))[0]} has a value that is not finite")
    return states
