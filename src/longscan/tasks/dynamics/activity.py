"""What a person does, from the places of four tags at irregular times (UCI 196; Lechner and Hasani, 2020)."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longscan._files import read_text
from longscan.tasks._drawing import bars
from longscan.tasks._random import CounterRNG
from longscan.tasks._store import data_folder, first_existing
from longscan.tasks.base import TASKS, Batch, Split, check_request, rows_of_step
from longscan.tasks.classification import ClassificationTask, largest_share

_WANTED = "ConfLongDemo_JSI.txt (https://archive.ics.uci.edu/dataset/196)"
_TAGS = ("010-000-024-033", "010-000-030-096", "020-000-033-111", "020-000-032-221")
CLASSES = ("lying", "sitting", "standing up", "walking", "falling", "on all fours", "sitting on the ground")
_ACTIVITIES = {
    "lying": 0, "lying down": 0, "sitting": 1, "sitting down": 1, "standing up from lying": 2, "standing up from sitting": 2,
    "standing up from sitting on the ground": 2, "walking": 3, "falling": 4, "on all fours": 5, "sitting on the ground": 6,
}  # fmt: skip
_WINDOW, _HOP = 32, 16


@TASKS.register("human_activity")
@dataclass(frozen=True, kw_only=True)
class HumanActivity(ClassificationTask):
    """What a person does at each of 32 steps, one tag's place a step.

        ▁█▁▁█▁▁▁█▁▁█▁▁▁█ 7 channels x 32 steps | walking

    A step is one of four tags (a channel each) and its x, y and z in metres. `elapsed` is the time since the step before in
    units of 100 ms, 5 for a window's first. protocol: "person", one person is test, the next one (in the alphabet, A after E)
    valid; or "published", windows that overlap by half are dealt at random, a fifth to test, so that test shows what train has
    half seen, and the file's last sequence is left out, as in the ODE-LSTM repository; a tenth of its training windows is valid
    here.
    """

    name: ClassVar[str] = "human_activity"
    source: ClassVar[str] = "archive.ics.uci.edu/dataset/196"
    uneven: ClassVar[bool] = True
    data_dir: str | None = None
    protocol: Literal["person", "published"] = "person"
    test_person: Literal["A", "B", "C", "D", "E"] = "E"

    def __post_init__(self) -> None:
        for setting, choices in (("protocol", ("person", "published")), ("test_person", tuple("ABCDE"))):
            if getattr(self, setting) not in choices:
                raise ValueError(f"{setting}: must be one of {', '.join(choices)}, not {getattr(self, setting)!r}")

    @property
    def vocab_size(self) -> None:
        """None: the inputs are series."""
        return

    @property
    def d_input(self) -> int:
        """Four tags and a place."""
        return 7

    @property
    def num_classes(self) -> int:
        """The activities."""
        return len(CLASSES)

    @property
    def classes(self) -> tuple[str, ...]:
        """The activities."""
        return CLASSES

    @property
    def per_step(self) -> bool:
        """True: an activity a step."""
        return True

    @property
    def length(self) -> int:
        """Steps of a window."""
        return _WINDOW

    def size(self, split: Split) -> int:
        """Number of windows."""
        check_request(self, split, 0, 1, 0)
        return len(_load(self).rows[split])

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """The batch of a step: inputs (B, 32, 7), targets (B, 32), elapsed (B, 32)."""
        check_request(self, split, step, batch_size, seed)
        data = _load(self)
        rows = data.rows[split][rows_of_step(self.size(split), split, step, batch_size, seed)]
        inputs, targets, elapsed = (torch.from_numpy(part[rows]) for part in (data.inputs, data.targets, data.elapsed))
        return Batch(inputs, targets, elapsed=elapsed)

    def constant_score(self, split: Split = "test") -> float:
        """The accuracy on a split of always giving its most frequent activity."""
        check_request(self, split, 0, 1, 0)
        data = _load(self)
        return largest_share(data.targets[data.rows[split]])

    def describe(self, batch: Batch, row: int = 0) -> str:
        """The height as bars, the activity of the last step."""
        text = f"{bars(batch.inputs[row, :, 6], 16)} 7 channels x {batch.inputs.shape[1]} steps"
        return text if batch.targets is None else f"{text} | {CLASSES[int(batch.targets[row, -1])]}"

    def read_inputs(self, path: str | Path) -> Batch:
        """The sequences of a file of the same form, cut to windows that do not overlap; activities in it are not used."""
        windows = [
            (series.inputs[start : start + _WINDOW], _gaps(series.times[start : start + _WINDOW]))
            for series in _read(Path(path), labelled=False)
            for start in range(0, len(series.times) - _WINDOW + 1, _WINDOW)
        ]
        if not windows:
            raise ValueError(f"{path}: holds no sequence of {_WINDOW} steps")
        inputs, elapsed = (torch.from_numpy(np.stack(part)) for part in zip(*windows, strict=True))
        return Batch(inputs, elapsed=elapsed)

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:  # noqa: ARG002
        """The activity of each step and its probability. output: (B, L, K)."""
        best = output.float().softmax(-1).max(-1)
        return [
            {"window": window, "step": step, "class": CLASSES[choice], "probability": probability}
            for window, (choices, probabilities) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
            for step, (choice, probability) in enumerate(zip(choices, probabilities, strict=True))
        ]


class _Series(NamedTuple):
    """One sequence: its name, times in units of 10 ms, inputs (L, 7) float32, labels (L,)."""

    name: str
    times: np.ndarray
    inputs: np.ndarray
    labels: np.ndarray


class _Windows(NamedTuple):
    inputs: np.ndarray
    targets: np.ndarray
    elapsed: np.ndarray
    rows: dict[Split, np.ndarray]


def _read(path: Path, *, labelled: bool = True) -> list[_Series]:
    """The sequences of a file, one after the other: name, tag, ticks of 100 ns, date, x, y, z, activity a line."""
    series: list[_Series] = []
    now: list[tuple[float, list[float], int]] = []
    name = None

    def close() -> None:
        if name is not None:
            times, inputs, labels = zip(*now, strict=True)
            series.append(_Series(name, np.array(times), np.array(inputs, np.float32), np.array(labels, np.int64)))

    for line, text in enumerate(read_text(path).splitlines(), 1):
        words = text.split(",")
        if not text.strip():
            continue
        if len(words) != 8:
            raise ValueError(f"{path}:{line}: has {len(words)} columns, 8 are needed: name, tag, ticks, date, x, y, z, activity")
        if words[1] not in _TAGS:
            raise ValueError(f"{path}:{line}: {words[1][:40]!r} is none of the tags {', '.join(_TAGS)}")
        if words[7].strip() not in _ACTIVITIES and labelled:
            raise ValueError(f"{path}:{line}: {words[7][:40]!r} is no known activity")
        try:
            ticks, place = int(words[2]), [float(word) for word in words[4:7]]
        except ValueError:
            raise ValueError(f"{path}:{line}: ticks, x, y or z is no number in {text[:60]!r}") from None
        if not np.isfinite(place).all():
            raise ValueError(f"{path}:{line}: x, y or z is not finite")
        if words[0] != name:
            close()
            name, now = words[0], []
        now.append((ticks / 1e5, [float(words[1] == tag) for tag in _TAGS] + place, _ACTIVITIES.get(words[7].strip(), 0)))
    if name is None:
        raise ValueError(f"{path}: holds no steps")
    close()
    return series


def _gaps(times: np.ndarray) -> np.ndarray:
    gaps = np.maximum(np.diff(times), 0) / 10
    return np.concatenate([[5.0], gaps]).astype(np.float32)


@lru_cache(maxsize=4)
def _load(task: HumanActivity) -> _Windows:
    folder = data_folder(task.data_dir, "activity", _WANTED)
    path = first_existing(folder, ["ConfLongDemo_JSI.txt"], _WANTED)
    series = _read(path)
    if task.protocol == "published":
        series = series[:-1]
    inputs, targets, elapsed, people = [], [], [], []
    for item in series:
        gaps = np.concatenate([[5.0], np.maximum(np.diff(item.times), 0) / 10]).astype(np.float32)
        for start in range(0, len(item.times) - _WINDOW, _HOP):
            window = slice(start, start + _WINDOW)
            inputs.append(item.inputs[window])
            targets.append(item.labels[window])
            elapsed.append(gaps[window])
            people.append(item.name[:1])
    if len(inputs) < 10:
        raise ValueError(f"{path}: has {len(inputs)} windows of {_WINDOW} steps, at least 10 are needed")
    rows = _by_person(np.array(people), task.test_person, path) if task.protocol == "person" else _by_chance(len(inputs))
    return _Windows(np.stack(inputs), np.stack(targets), np.stack(elapsed), rows)


def _by_person(people: np.ndarray, test_person: str, path: Path) -> dict[Split, np.ndarray]:
    valid_person = "ABCDE"[("ABCDE".index(test_person) + 1) % 5]
    is_test, is_valid = people == test_person, people == valid_person
    rows: dict[Split, np.ndarray] = {
        "train": np.flatnonzero(~is_test & ~is_valid),
        "valid": np.flatnonzero(is_valid),
        "test": np.flatnonzero(is_test),
    }
    for split, found in rows.items():
        if not len(found):
            raise ValueError(f"{path}: has no windows for {split}; sequences of the persons A to E are needed")
    return rows


def _by_chance(count: int) -> dict[Split, np.ndarray]:
    order = np.random.RandomState(98841).permutation(count)
    test = int(0.2 * count)
    rest = order[test:][CounterRNG(("valid", "human_activity"), 0).permutation(count - test)]
    share = max(1, len(rest) // 10)
    return {"train": np.sort(rest[share:]), "valid": np.sort(rest[:share]), "test": np.sort(order[:test])}
