"""Classification of labelled series: the UEA archive, or a user's own files in its format."""

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longscan._errors import count_text, setting_error
from longscan._float32 import FLOAT32_MAX, find_out_of_range
from longscan._types import Doc, Rule, between
from longscan.datasets import DATA_SETS
from longscan.tasks._sparklines import sparkline
from longscan.tasks._store import default_data_folder
from longscan.tasks.base import TASKS, Batch, Split, ValidFraction, check_request, rows_of_step
from longscan.tasks.classification import ClassificationTask, majority_share
from longscan.tasks.fitted import FitProgress, aeon_accuracies, ignore_progress
from longscan.tasks.timeseries import protocols
from longscan.tasks.timeseries.files import (
    Missing,
    Recordings,
    read_arff,
    read_arff_dimensions,
    read_recordings,
    read_ts,
)

_SOURCE = "https://www.timeseriesclassification.com"
_log = logging.getLogger("longscan")


@TASKS.register("uea")
@dataclass(frozen=True, kw_only=True)
class Uea(ClassificationTask):
    """Classify a recording of one or several channels.

        ▃▅▇▇▄▄▇▆▆▁█▅▇▃▆▆▇▄▄▆▅▆▃▅▆▆▄▂▆▅▆▅▂▆ 6 channels x 100 steps | Walking

    The files are NAME_TRAIN.ts and NAME_TEST.ts, or .arff, or NAMEDimension1_TRAIN.arff and so on. Without data_dir they are
    looked for in `$LONGSCAN_DATA/uea/NAME`, then among the sets that the package aeon contains (BasicMotions, JapaneseVowels and
    some with one channel). Nothing is downloaded. A user's own files have the same format; the classes are the labels that occur.

    `longscan.tasks.timeseries.protocols` describes the protocols. Training batches are shuffled in each epoch; "linoss" drops the
    last batch of an epoch, "aussm" has the same order in all epochs. Shorter series are padded on the right with zeros, where
    `valid` is False.

    The number of missing values is in the error or in a warning. With missing="mask" they become the mean of the channel over the
    training series ("aussm": over all), which is 0 after standardisation, and as many additional channels are 1 at measured and 0
    at missing values. `valid` cannot mark them: it has one value per step, and a step may lack only some channels.

    Raises FileNotFoundError if files are missing, ValueError for damaged files, for labels that a file's header does not list,
    for missing values, and for invalid settings.
    """

    source: ClassVar[str] = "aeon; timeseriesclassification.com"
    has_imbalanced_classes: ClassVar[bool] = True
    vocab_size: ClassVar[None] = None
    per_step: ClassVar[bool] = False
    dataset: Annotated[
        str, Rule(lambda name: name and Path(name).name == name, "the NAME of NAME_TRAIN.ts"), Doc("name of the data set")
    ] = "BasicMotions"
    data_dir: Annotated[str | None, Doc("folder of the files, or its parent if the folder is called like the data set")] = None
    protocol: Annotated[protocols.Protocol, Doc("split and scaling: this package's, or a published one")] = "clean"
    split_seed: Annotated[int, between(0, 2**32 - 1), Doc("selects the examples of the splits")] = 0
    time_channel: Annotated[bool, Doc("add i/L as the first channel; not for protocol aussm")] = False
    valid_fraction: ValidFraction = 0.15
    stratified: Annotated[bool, Doc("take the same fraction of each class for the validation split of protocol clean")] = True
    linoss_order: Annotated[
        Literal["sorted", "file"],
        Doc("order of the series for protocol linoss: that of the published scores, or that of a newer version of its code"),
    ] = "sorted"
    missing: Annotated[
        Missing,
        Doc("missing values ('?', 'NaN', nothing): an error, linear interpolation, or the channel's mean and a mask as channels"),
    ] = "refuse"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.time_channel and self.protocol == "aussm":
            raise setting_error("time_channel", self.time_channel, "false for the protocol aussm")

    @property
    def d_input(self) -> int:
        """Number of channels, including those of the time and of the mask of missing values."""
        return _load(self).inputs.shape[2]

    @property
    def num_classes(self) -> int:
        """Number of labels that occur."""
        return len(self.classes)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in the order of the file's header."""
        return _load(self).classes

    @property
    def length(self) -> int:
        """Number of steps of the longest series."""
        return _load(self).inputs.shape[1]

    def size(self, split: Split) -> int:
        """Return the number of series of a split."""
        check_request(self, split)
        return len(_load(self).partition.rows[split])

    def num_batches(self, split: Split, batch_size: int) -> int:
        """Return the number of batches of one pass; the protocol "linoss" drops the last one of an epoch, full or not."""
        size = self.size(split)
        if split == "train" and self.protocol == "linoss":
            return max(1, (size - 1) // batch_size)
        return -(-size // batch_size)

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """Return the batch of a step: inputs (B, L, C) float32, targets (B,), valid (B, L) or None if all lengths are equal."""
        check_request(self, split, step, batch_size, seed)
        loaded, size = _load(self), self.size(split)
        batches = self.num_batches(split, batch_size)
        if split == "train" and self.protocol == "aussm":
            rows = np.arange(size)[step % batches * batch_size :][:batch_size]
        elif split == "train" and self.protocol == "linoss":
            # The shuffled order of a whole epoch, of which the last batch is never used.
            epoch_rows = rows_of_step(size, split, step // batches, size, seed)
            rows = epoch_rows[step % batches * batch_size :][:batch_size]
        else:
            rows = rows_of_step(size, split, step, batch_size, seed)
        chosen = torch.from_numpy(loaded.partition.rows[split][rows])
        valid = None if loaded.valid is None else loaded.valid[chosen]
        return Batch(inputs=loaded.inputs[chosen], targets=loaded.targets[chosen], valid=valid)

    def constant_score(self, split: Split = "test") -> float:
        """Return the accuracy on a split of always giving its most frequent class."""
        check_request(self, split)
        loaded = _load(self)
        return majority_share(loaded.targets[loaded.partition.rows[split]].numpy())

    def fitted_baselines(
        self, split: Split = "test", seed: int = 0, on_progress: FitProgress = ignore_progress
    ) -> dict[str, float]:
        """Return the accuracy of aeon's MiniRocket and of the nearest neighbour by dynamic time warping, both fitted on train.

        MiniRocket reads padded series and needs nine steps. Warping is left out if it would need more than 10^11 cells.
        """
        check_request(self, split)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numba's, about code that aeon compiles
            return _aeon_scores(_load(self), split, seed, on_progress)

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Return an example as text: the first channel as bars, the shape, the label."""
        series = batch.unpadded(row)
        shape = f"{count_text(series.shape[1], 'channel')} x {series.shape[0]} steps"
        text = f"{sparkline(series[:, int(self.time_channel)])} {shape}"
        return self._append_class(text, batch, row)

    def read_inputs(self, path: str | Path) -> Batch:
        """Read series from a .ts, .arff, .csv or .npy file and scale them like the training series; its labels are ignored.

        .csv: one series with a line per step and a column per channel. .npy: (L, C) or (N, L, C). The setting `missing` applies.
        Raises ValueError if the file is damaged or its number of channels differs from that of the training series.
        """
        series = read_recordings(path, self.missing, layout="nlc", with_labels=False).series
        loaded = _load(self)
        channels = len(loaded.partition.shift)
        if len(series[0]) != channels:
            raise ValueError(
                f"{path} must contain series of {count_text(channels, 'channel')}, like {self.dataset}, got {len(series[0])}"
            )
        duration = self.length if self.time_channel else None
        inputs, valid = _build_arrays(series, loaded.partition, duration, str(path), mark_missing=self.missing == "mask")
        return Batch(inputs=inputs, valid=valid)


class _SeriesData(NamedTuple):
    """All series of a data set, first train, then test: inputs (N, L, C), targets (N,), valid (N, L) or None."""

    inputs: Tensor
    targets: Tensor
    valid: Tensor | None
    classes: tuple[str, ...]
    partition: protocols.Partition


@lru_cache(maxsize=4)
def _load(task: Uea) -> _SeriesData:
    train, test = _read_train_test(task.dataset, task.data_dir, task.missing)
    series = train.series + test.series
    labels = [*(train.labels or ()), *(test.labels or ())]
    if len(labels) != len(series):
        raise ValueError(f"`data_dir` must have files of {task.dataset} with labels, got series without labels")
    if len(train.series[0]) != len(test.series[0]):
        found = f"{len(train.series[0])} and {len(test.series[0])}"
        raise ValueError(f"`data_dir` must have as many channels in train as in test of {task.dataset}, got {found}")
    classes = (*train.classes, *(label for label in test.classes if label not in train.classes))
    if not 2 <= len(classes) <= len(series) // 2:
        counts = f"{len(classes)} different labels for {len(series)} series"
        raise ValueError(
            f"`data_dir` must have at least two classes of {task.dataset}, and two series for each class, got {counts}"
        )
    numbers = {label: number for number, label in enumerate(classes)}
    targets = np.array([numbers[label] for label in labels])
    if task.protocol == "clean":
        validation = protocols.ValidationSplit(task.split_seed, task.valid_fraction, task.stratified)
        partition = protocols.clean(train.series, test.series, targets, validation)
        left_out = len(train.series) - len(partition.rows["train"]) - len(partition.rows["valid"])
        if left_out:
            _log.warning("%s: %d training series occur in test, or twice, and are left out", task.dataset, left_out)
    elif task.protocol == "linoss":
        partition = protocols.linoss(series, seed=task.split_seed, order=task.linoss_order)
    else:
        partition = protocols.aussm(series, seed=task.split_seed)
    longest = max(item.shape[1] for item in series)
    duration = longest if task.time_channel else None
    source = f"{task.dataset}, train before test"
    inputs, valid = _build_arrays(series, partition, duration, source, mark_missing=task.missing == "mask")
    return _SeriesData(inputs, torch.from_numpy(targets), valid, classes, partition)


def _aeon_scores(loaded: _SeriesData, split: Split, seed: int, on_progress: FitProgress) -> dict[str, float]:
    parts = []
    for name in ("train", split):
        rows = torch.from_numpy(loaded.partition.rows[name])
        inputs = loaded.inputs[rows].transpose(1, 2).double().numpy()
        lengths = [inputs.shape[2]] * len(rows) if loaded.valid is None else loaded.valid[rows].sum(1).tolist()
        series = [item[:, :length] for item, length in zip(inputs, lengths, strict=True)]
        parts.append((series, loaded.targets[rows].numpy()))
    return aeon_accuracies(*parts[0], *parts[1], seed=seed, largest_table=1e11, on_progress=on_progress)


def _build_arrays(
    series: Sequence[np.ndarray], partition: protocols.Partition, duration: int | None, source: str, *, mark_missing: bool
) -> tuple[Tensor, Tensor | None]:
    """Return inputs (N, L, C) float32, padded with zeros, and valid (N, L), None without padding.

    duration: L of the time channel, None for no such channel. mark_missing: add a channel for each one that is 1 at measured
    values. source: name of the series in errors. ValueError for a value that is beyond the range of float32.
    """
    lengths = np.array([item.shape[1] for item in series])
    first = 0 if duration is None else 1
    channels = len(series[0])
    inputs = np.zeros((len(series), lengths.max(), first + channels * (1 + mark_missing)), np.float32)
    for row, item in enumerate(series):
        values = np.where(np.isnan(item.T), partition.fill, item.T)
        scaled = (values - partition.shift) / partition.scale
        beyond = find_out_of_range(scaled)
        if beyond is not None:
            step, channel = beyond
            raise ValueError(
                f"{source}: scaled values must be at most {FLOAT32_MAX:.3g}, the largest of float32, got {scaled[beyond]:g} from "
                f"{values[beyond]:g} in series {row + 1}, channel {channel + 1}, step {step + 1}"
            )
        inputs[row, : len(values), first : first + channels] = scaled
        if mark_missing:
            inputs[row, : len(values), first + channels :] = ~np.isnan(item.T)
        if duration is not None:
            inputs[row, : len(values), 0] = np.arange(len(values)) / duration
    valid = np.arange(lengths.max()) < lengths[:, None]
    return torch.from_numpy(inputs), None if valid.all() else torch.from_numpy(valid)


def _read_train_test(dataset: str, data_dir: str | None, missing: Missing) -> tuple[Recordings, Recordings]:
    """Read train and test of a data set. Raises FileNotFoundError naming the missing files, the folders and the source."""
    folders = _candidate_folders(dataset, data_dir)
    parts: list[Recordings | None] = [None, None]
    for folder in folders.values():  # both parts are of one folder: another one may have another version of the set
        parts = [_read_part(dataset, part, folder, missing) for part in ("TRAIN", "TEST")]
        if any(part is not None for part in parts):
            break
    if parts[0] is None or parts[1] is None:
        lacking = "TRAIN" if parts[0] is None else "TEST"
        needed = f"{dataset}_{lacking}.ts, {dataset}_{lacking}.arff or {dataset}Dimension1_{lacking}.arff"
        places = " and ".join(folders) + (" (data_dir was not given)" if data_dir is None else "")
        known = dataset in DATA_SETS
        source = f"`longscan data get {dataset}` downloads them" if known else f"the archive is at {_SOURCE}"
        raise FileNotFoundError(f"`data_dir` must be a folder with {needed}, got {places} without them; {source}")
    return parts[0], parts[1]


def _candidate_folders(dataset: str, data_dir: str | None) -> dict[str, Path]:
    """Return the folders that may contain the files, by their name in errors: of data_dir, else of LONGSCAN_DATA and aeon."""
    if data_dir is not None:
        return {str(folder): folder for folder in (Path(data_dir), Path(data_dir) / dataset)}
    area = default_data_folder("uea")
    folders = {} if area is None else {str(area / dataset): area / dataset}
    spec = find_spec("aeon")
    if spec is not None and spec.submodule_search_locations:
        folders["the package aeon"] = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / dataset
    if not folders:
        install = "pip install 'longscan[train,data]'"
        raise FileNotFoundError(
            f"`data_dir` must be the folder of the files, got None; the package aeon has some data sets: {install}"
        )
    return folders


def _read_part(dataset: str, part: str, folder: Path, missing: Missing) -> Recordings | None:
    """Read train or test of a data set from a folder; None if it is not there."""
    if (path := folder / f"{dataset}_{part}.ts").is_file():
        return read_ts(path, missing)
    if (path := folder / f"{dataset}_{part}.arff").is_file():
        return read_arff(path, missing)
    count = len(list(folder.glob(f"{dataset}Dimension*_{part}.arff")))
    paths = [folder / f"{dataset}Dimension{number}_{part}.arff" for number in range(1, count + 1)]
    return read_arff_dimensions(paths, missing) if paths else None
