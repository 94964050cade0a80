"""Classification of activities from the positions of four tags at irregular times (UCI 196; Lechner and Hasani, 2020)."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longscan._files import read_text
from longscan._types import Doc
from longscan.tasks._random import CounterRNG
from longscan.tasks._sparklines import sparkline
from longscan.tasks._store import data_folder, first_existing
from longscan.tasks.base import TASKS, Batch, Split, check_request, rows_of_step
from longscan.tasks.classification import ClassificationTask, majority_share, most_probable

_NEEDED_FILES = "ConfLongDemo_JSI.txt (`longscan data get ConfLongDemo_JSI`)"
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
    """Classify the activity of a person at each of 32 steps, each of which is the position of one tag.

        ▁█▁▁█▁▁▁█▁▁█▁▁▁█ 7 channels x 32 steps | walking

    The channels of a step are one indicator for each of four tags, and x, y and z in metres. `elapsed` is the time since the
    previous step in units of 100 ms, 5 for the first step of a sequence. With protocol="published", as in the ODE-LSTM
    repository, train contains half of each test window, since windows overlap by half, and the last sequence of the file is left
    out; here a tenth of its training windows is valid.
    """

    source: ClassVar[str] = "archive.ics.uci.edu/dataset/196"
    has_imbalanced_classes: ClassVar[bool] = True
    vocab_size: ClassVar[None] = None
    d_input: ClassVar[int] = 7
    num_classes: ClassVar[int] = len(CLASSES)
    classes: ClassVar[tuple[str, ...]] = CLASSES
    per_step: ClassVar[bool] = True
    length: ClassVar[int] = _WINDOW
    data_dir: Annotated[str | None, Doc("folder of ConfLongDemo_JSI.txt")] = None
    protocol: Annotated[
        Literal["person", "published"],
        Doc("test split: one person, while the next one in the alphabet is valid; or a random fifth of overlapping windows"),
    ] = "person"
    test_person: Annotated[Literal["A", "B", "C", "D", "E"], Doc("test person of protocol person")] = "E"

    def size(self, split: Split) -> int:
        """Return the number of windows of a split."""
        check_request(self, split)
        return len(_load(self).rows[split])

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """Return the batch of a step: inputs (B, 32, 7), targets (B, 32), elapsed (B, 32)."""
        check_request(self, split, step, batch_size, seed)
        data = _load(self)
        rows = data.rows[split][rows_of_step(self.size(split), split, step, batch_size, seed)]
        inputs, targets, elapsed = (torch.from_numpy(part[rows]) for part in (data.inputs, data.targets, data.elapsed))
        return Batch(inputs, targets, elapsed=elapsed)

    def constant_score(self, split: Split = "test") -> float:
        """Return the accuracy on a split of always giving its most frequent activity."""
        check_request(self, split)
        data = _load(self)
        return majority_share(data.targets[data.rows[split]])

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Return an example as text: the height as bars, and the activity of the last step."""
        text = f"{sparkline(batch.inputs[row, :, 6], 16)} 7 channels x {batch.inputs.shape[1]} steps"
        return text if batch.targets is None else f"{text} | {CLASSES[int(batch.targets[row, -1])]}"

    def read_inputs(self, path: str | Path) -> Batch:
        """Read the sequences of a file in the same format as windows that do not overlap; its activities are ignored.

        Steps of a sequence after its last whole window are left out.
        """
        windows = [
            (series.inputs[start : start + _WINDOW], _elapsed(series.times)[start : start + _WINDOW])
            for series in _read(Path(path), labelled=False)
            for start in range(0, len(series.times) - _WINDOW + 1, _WINDOW)
        ]
        if not windows:
            raise ValueError(f"{path} must contain sequences of at least {_WINDOW} steps, got shorter ones")
        inputs, elapsed = (torch.from_numpy(np.stack(part)) for part in zip(*windows, strict=True))
        return Batch(inputs, elapsed=elapsed)

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:  # noqa: ARG002
        """Return the most probable activity of each step and its probability. output: (B, L, K)."""
        return [
            {"window": window, "step": step, **answer}
            for window, logits in enumerate(output)
            for step, answer in enumerate(most_probable(logits, CLASSES))
        ]


class _Series(NamedTuple):
    """One recorded sequence: its name, times (L,) in units of 10 ms, inputs (L, 7) float32, labels (L,)."""

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
    """Read the sequences of a file whose lines are name, tag, ticks of 100 ns, date, x, y, z, activity."""
    series: list[_Series] = []
    steps: list[tuple[float, list[float], int]] = []
    name = None

    def finish_sequence() -> None:
        if name is not None:
            times, inputs, labels = zip(*steps, strict=True)
            series.append(_Series(name, np.array(times), np.array(inputs, np.float32), np.array(labels, np.int64)))

    for line, text in enumerate(read_text(path).splitlines(), 1):
        words = text.split(",")
        if not text.strip():
            continue
        if len(words) != 8:
            columns = "name, tag, ticks, date, x, y, z and activity"
            raise ValueError(f"{path}:{line}: the line must have 8 columns ({columns}), got {len(words)}")
        if words[1] not in _TAGS:
            raise ValueError(f"{path}:{line}: the tag must be one of {', '.join(_TAGS)}, got {words[1][:40]!r}")
        if words[7].strip() not in _ACTIVITIES and labelled:
            raise ValueError(f"{path}:{line}: the activity must be one of {', '.join(_ACTIVITIES)}, got {words[7][:40]!r}")
        try:
            ticks, position = int(words[2]), [float(word) for word in words[4:7]]
        except ValueError:
            raise ValueError(f"{path}:{line}: ticks, x, y and z must be numbers, got {text[:60]!r}") from None
        if not np.isfinite(position).all():
            raise ValueError(f"{path}:{line}: x, y and z must be finite, got {text[:60]!r}")
        if words[0] != name:
            finish_sequence()
            name, steps = words[0], []
        steps.append((ticks / 1e5, [float(words[1] == tag) for tag in _TAGS] + position, _ACTIVITIES.get(words[7].strip(), 0)))
    if name is None:
        raise ValueError(f"{path} must contain steps, got none")
    finish_sequence()
    return series


def _elapsed(times: np.ndarray) -> np.ndarray:
    """Return the time since the previous step in units of 100 ms, 5 for the first. times: (L,) in units of 10 ms."""
    gaps = np.maximum(np.diff(times), 0) / 10
    return np.concatenate([[5.0], gaps]).astype(np.float32)


@lru_cache(maxsize=4)
def _load(task: HumanActivity) -> _Windows:
    folder = data_folder(task.data_dir, "activity", _NEEDED_FILES)
    path = first_existing(folder, ["ConfLongDemo_JSI.txt"], _NEEDED_FILES)
    series = _read(path)
    if task.protocol == "published":
        series = series[:-1]
    inputs, targets, elapsed, people = [], [], [], []
    for item in series:
        item_elapsed = _elapsed(item.times)
        for start in range(0, len(item.times) - _WINDOW, _HOP):
            window = slice(start, start + _WINDOW)
            inputs.append(item.inputs[window])
            targets.append(item.labels[window])
            elapsed.append(item_elapsed[window])
            people.append(item.name[:1])
    if len(inputs) < 10:
        raise ValueError(f"{path} must contain at least 10 windows of {_WINDOW} steps, got {len(inputs)}")
    if task.protocol == "person":
        rows = _split_by_person(np.array(people), task.test_person, path)
    else:
        rows = _split_at_random(len(inputs))
    return _Windows(np.stack(inputs), np.stack(targets), np.stack(elapsed), rows)


def _split_by_person(people: np.ndarray, test_person: str, path: Path) -> dict[Split, np.ndarray]:
    valid_person = "ABCDE"[("ABCDE".index(test_person) + 1) % 5]
    is_test, is_valid = people == test_person, people == valid_person
    rows: dict[Split, np.ndarray] = {
        "train": np.flatnonzero(~is_test & ~is_valid),
        "valid": np.flatnonzero(is_valid),
        "test": np.flatnonzero(is_test),
    }
    for split, windows in rows.items():
        if not len(windows):
            raise ValueError(f"{path} must contain windows of each of the persons A to E, got none for the split {split}")
    return rows


def _split_at_random(count: int) -> dict[Split, np.ndarray]:
    order = np.random.RandomState(98841).permutation(count)
    test = int(0.2 * count)
    rest = order[test:][CounterRNG(("valid", "human_activity"), 0).permutation(count - test)]
    valid_count = max(1, len(rest) // 10)
    return {"train": np.sort(rest[valid_count:]), "valid": np.sort(rest[:valid_count]), "test": np.sort(order[:test])}
