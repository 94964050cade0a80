"""Classification of labelled series: the UEA archive, or a user's own files in its format."""

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longscan._float32 import LARGEST, first_beyond
from longscan.tasks._drawing import bars
from longscan.tasks._store import area_folder
from longscan.tasks.base import TASKS, Batch, Split, check_request, rows_of_step
from longscan.tasks.classification import ClassificationTask, largest_share
from longscan.tasks.timeseries import protocols
from longscan.tasks.timeseries.files import (
    MISSING_CHOICES,
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
    """Which class a recording belongs to.

        ▃▅▇▇▄▄▇▆▆▁█▅▇▃▆▆▇▄▄▆▅▆▃▅▆▆▄▂▆▅▆▅▂▆ 6 channels x 100 steps | Walking

    dataset: NAME of the files NAME_TRAIN.ts and NAME_TEST.ts, or .arff, or NAMEDimension1_TRAIN.arff and so on. data_dir: the
    folder that holds them, or that holds a folder NAME with them; None: `$LONGSCAN_DATA/uea/NAME`, else the sets that aeon
    carries (BasicMotions, JapaneseVowels and some of one channel). Nothing is downloaded. A user's own files work the same; the
    classes are the labels that occur.

    protocol, split_seed: see `longscan.tasks.timeseries.protocols`. Of "clean" only: valid_fraction of the training series make
    valid, the same share of each class where `stratified`. Of "linoss" only: linoss_order, since the preprocessing behind the
    compared figures leaves the series sorted ("sorted") and a newer one does not ("file"). time_channel: i/L in front of the
    channels, refused by "aussm". Training batches are reshuffled each epoch; "linoss" drops an epoch's last batch, "aussm" keeps
    one order for good.

    Shorter series are padded on the right with zeros, which `valid` marks. missing: what becomes of missing values ("?", "NaN",
    nothing between commas), which are counted in the error or in a warning. "refuse", an error; "fill", linear interpolation
    within the channel of the series; "mask", the channel's mean over the training series ("aussm": over all), which is 0 where
    values are standardised, and as many more channels that are 1 where a value was measured and 0 where it is missing. `valid`
    can not mark them: it leaves out whole steps, and a step may lack one channel of several.

    Raises FileNotFoundError where files are missing, ValueError for damaged files, for labels that a file's header does not list,
    for missing values, and for settings that make no sense.
    """

    name: ClassVar[str] = "uea"
    source: ClassVar[str] = "aeon; timeseriesclassification.com"
    uneven: ClassVar[bool] = True
    dataset: str = "BasicMotions"
    data_dir: str | None = None
    protocol: protocols.Protocol = "clean"
    split_seed: int = 0
    time_channel: bool = False
    valid_fraction: float = 0.15
    stratified: bool = True
    linoss_order: Literal["sorted", "file"] = "sorted"
    missing: Missing = "refuse"

    def __post_init__(self) -> None:
        for setting, choices in (
            ("protocol", ("clean", "linoss", "aussm")),
            ("linoss_order", ("sorted", "file")),
            ("missing", MISSING_CHOICES),
        ):
            if getattr(self, setting) not in choices:
                raise ValueError(f"{setting}: must be one of {', '.join(choices)}, not {getattr(self, setting)!r}")
        if not 0 < self.valid_fraction < 1:
            raise ValueError(f"valid_fraction: must lie between 0 and 1, not {self.valid_fraction}")
        if not 0 <= self.split_seed < 2**32:
            raise ValueError(f"split_seed: must lie in 0 .. 2^32 - 1, not {self.split_seed}")
        if self.time_channel and self.protocol == "aussm":
            raise ValueError("time_channel: the protocol 'aussm' has none")
        if not self.dataset or Path(self.dataset).name != self.dataset:
            raise ValueError(f"dataset: must be the NAME of NAME_TRAIN.ts, not {self.dataset!r}")

    @property
    def vocab_size(self) -> None:
        """None: the inputs are series."""
        return

    @property
    def d_input(self) -> int:
        """Channels, those of time and of what is missing included."""
        return _load(self).inputs.shape[2]

    @property
    def num_classes(self) -> int:
        """Number of labels that occur."""
        return len(self.classes)

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels, in the order of the file's header."""
        return _load(self).classes

    @property
    def per_step(self) -> bool:
        """False: one answer a series."""
        return False

    @property
    def length(self) -> int:
        """Steps of the longest series."""
        return _load(self).inputs.shape[1]

    def size(self, split: Split) -> int:
        """Number of series of a split."""
        check_request(self, split, 0, 1, 0)
        return len(_load(self).partition.rows[split])

    def num_batches(self, split: Split, batch_size: int) -> int:
        """Batches in one pass; the protocol "linoss" drops the last of an epoch, full or not."""
        size = self.size(split)
        if split == "train" and self.protocol == "linoss":
            return max(1, (size - 1) // batch_size)
        return -(-size // batch_size)

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """The batch of a step: inputs (B, L, C) float32, targets (B,), valid (B, L) or None where all series are equally long."""
        check_request(self, split, step, batch_size, seed)
        loaded, size = _load(self), self.size(split)
        batches = self.num_batches(split, batch_size)
        if split == "train" and self.protocol == "aussm":
            rows = np.arange(size)[step % batches * batch_size :][:batch_size]
        elif split == "train" and self.protocol == "linoss":
            # Whole epochs of a shuffle over all series, of which the last batch is never asked for.
            everything = rows_of_step(size, split, step // batches, size, seed)
            rows = everything[step % batches * batch_size :][:batch_size]
        else:
            rows = rows_of_step(size, split, step, batch_size, seed)
        chosen = torch.from_numpy(loaded.partition.rows[split][rows])
        valid = None if loaded.valid is None else loaded.valid[chosen]
        return Batch(inputs=loaded.inputs[chosen], targets=loaded.targets[chosen], valid=valid)

    def constant_score(self, split: Split = "test") -> float:
        """The accuracy on a split of always giving its most frequent class."""
        check_request(self, split, 0, 1, 0)
        loaded = _load(self)
        return largest_share(loaded.targets[loaded.partition.rows[split]].numpy())

    def fitted_baselines(self, split: Split = "test", seed: int = 0) -> dict[str, float]:
        """The accuracy of MiniRocket and of the nearest neighbour by dynamic time warping, as aeon has them, fitted on train.

        MiniRocket sees shorter series padded and needs nine steps. Warping is left out where it would take more than 10^11 cells.
        """
        check_request(self, split, 0, 1, 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numba's, about code that aeon compiles
            return _aeon_scores(_load(self), split, seed)

    def describe(self, batch: Batch, row: int = 0) -> str:
        """The first channel as a line of bars, the shape, the label."""
        channel = int(self.time_channel)
        series = batch.inputs[row] if batch.valid is None else batch.inputs[row][batch.valid[row]]
        text = f"{bars(series[:, channel])} {series.shape[1]} channels x {series.shape[0]} steps"
        return text if batch.targets is None else f"{text} | {self.classes[int(batch.targets[row])]}"

    def read_inputs(self, path: str | Path) -> Batch:
        """Series from a .ts, .arff, .csv or .npy file, treated as the training series were; labels in it are not used.

        .csv: one series, a step a line, a channel a column. .npy: (L, C) or (N, L, C). Missing values are treated as `missing`
        says. Raises ValueError where the file is damaged or has another number of channels than the training series.
        """
        series = read_recordings(path, self.missing, layout="nlc", with_labels=False).series
        loaded = _load(self)
        channels = len(loaded.partition.shift)
        if len(series[0]) != channels:
            raise ValueError(f"{path}: its series have {len(series[0])} channels, those of {self.dataset} have {channels}")
        duration = self.length if self.time_channel else None
        inputs, valid = _arranged(series, loaded.partition, duration, str(path), mark_missing=self.missing == "mask")
        return Batch(inputs=inputs, valid=valid)

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:  # noqa: ARG002
        """The most probable class and its probability, a row a series. output: (B, K)."""
        best = output.float().softmax(-1).max(-1)
        answers = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [{"class": self.classes[choice], "probability": probability} for choice, probability in answers]


class _Loaded(NamedTuple):
    """All series of a data set, train before test: inputs (N, L, C), targets (N,), valid (N, L) or None."""

    inputs: Tensor
    targets: Tensor
    valid: Tensor | None
    classes: tuple[str, ...]
    partition: protocols.Partition


@lru_cache(maxsize=4)
def _load(task: Uea) -> _Loaded:
    train, test = _read(task.dataset, task.data_dir, task.missing)
    series = train.series + test.series
    labels = [*(train.labels or ()), *(test.labels or ())]
    if len(labels) != len(series):
        raise ValueError(f"data_dir: the files of {task.dataset} hold series without labels, so there is nothing to learn")
    if len(train.series[0]) != len(test.series[0]):
        raise ValueError(f"data_dir: {task.dataset} has {len(train.series[0])} channels in train, {len(test.series[0])} in test")
    classes = (*train.classes, *(label for label in test.classes if label not in train.classes))
    if not 2 <= len(classes) <= len(series) // 2:
        counts = f"{len(classes)} different labels for {len(series)} series"
        raise ValueError(f"data_dir: {task.dataset} has {counts}; at least two classes, and two series a class, are needed")
    numbers = {label: number for number, label in enumerate(classes)}
    targets = np.array([numbers[label] for label in labels])
    if task.protocol == "clean":
        how = protocols.Carving(task.split_seed, task.valid_fraction, task.stratified)
        partition = protocols.clean(train.series, test.series, targets, how)
        left_out = len(train.series) - len(partition.rows["train"]) - len(partition.rows["valid"])
        if left_out:
            _log.warning("%s: %d training series occur in test, or twice, and are left out", task.dataset, left_out)
    elif task.protocol == "linoss":
        partition = protocols.linoss(series, seed=task.split_seed, order=task.linoss_order)
    else:
        partition = protocols.aussm(series, seed=task.split_seed)
    longest = max(item.shape[1] for item in series)
    duration = longest if task.time_channel else None
    place = f"data_dir: {task.dataset}, train before test"
    inputs, valid = _arranged(series, partition, duration, place, mark_missing=task.missing == "mask")
    return _Loaded(inputs, torch.from_numpy(targets), valid, classes, partition)


def _aeon_scores(loaded: _Loaded, split: Split, seed: int) -> dict[str, float]:
    from aeon.classification.convolution_based import MiniRocketClassifier
    from aeon.classification.distance_based import KNeighborsTimeSeriesClassifier

    parts = {}
    for name, rows in (("train", loaded.partition.rows["train"]), (split, loaded.partition.rows[split])):
        parts[name] = loaded.inputs[torch.from_numpy(rows)].transpose(1, 2).double().numpy(), loaded.targets[rows].numpy()
    (train, labels), (asked, answers) = parts["train"], parts[split]
    scores = {}
    if train.shape[2] >= 9:
        rocket = MiniRocketClassifier(random_state=seed).fit(train, labels)
        scores["minirocket"] = float((rocket.predict(asked) == answers).mean())
    if len(train) * len(asked) * train.shape[2] ** 2 <= 1e11:
        if loaded.valid is None:
            series = list(train), list(asked)
        else:
            lengths = {name: loaded.valid[loaded.partition.rows[name]].sum(1).tolist() for name in parts}  # type: ignore[index]
            series = tuple(  # type: ignore[assignment]
                [item[:, :length] for item, length in zip(values, lengths[name], strict=True)]
                for name, values in (("train", train), (split, asked))
            )
        nearest = KNeighborsTimeSeriesClassifier(distance="dtw", n_neighbors=1).fit(series[0], labels)
        scores["dtw_1nn"] = float((nearest.predict(series[1]) == answers).mean())
    return scores


def _arranged(
    series: Sequence[np.ndarray], partition: protocols.Partition, duration: int | None, place: str, *, mark_missing: bool
) -> tuple[Tensor, Tensor | None]:
    """Inputs (N, L, C) float32, padded with zeros; valid (N, L), None without padding.

    duration: L of the time channel. mark_missing: add a channel for each that is 1 where its value was measured. place: what
    errors call the series. ValueError for a value that is beyond the range of float32.
    """
    lengths = np.array([item.shape[1] for item in series])
    first = 0 if duration is None else 1
    channels = len(series[0])
    inputs = np.zeros((len(series), lengths.max(), first + channels * (1 + mark_missing)), np.float32)
    for row, item in enumerate(series):
        values = np.where(np.isnan(item.T), partition.fill, item.T)
        scaled = (values - partition.shift) / partition.scale
        beyond = first_beyond(scaled)
        if beyond is not None:
            step, channel = beyond
            raise ValueError(
                f"{place}: series {row + 1}, channel {channel + 1}, step {step + 1}: {values[beyond]:g} is "
                f"{scaled[beyond]:g} after scaling, which is beyond the range of float32, {LARGEST:.3g}"
            )
        inputs[row, : len(values), first : first + channels] = scaled
        if mark_missing:
            inputs[row, : len(values), first + channels :] = ~np.isnan(item.T)
        if duration is not None:
            inputs[row, : len(values), 0] = np.arange(len(values)) / duration
    valid = np.arange(lengths.max()) < lengths[:, None]
    return torch.from_numpy(inputs), None if valid.all() else torch.from_numpy(valid)


def _read(dataset: str, data_dir: str | None, missing: Missing) -> tuple[Recordings, Recordings]:
    """Train and test of a data set; FileNotFoundError saying what was looked for and where to get it."""
    folders = _folders(dataset, data_dir)
    found = [_read_part(dataset, part, list(folders.values()), missing) for part in ("TRAIN", "TEST")]
    if found[0] is None or found[1] is None:
        lacking = "TRAIN" if found[0] is None else "TEST"
        wanted = f"{dataset}_{lacking}.ts, {dataset}_{lacking}.arff and {dataset}Dimension1_{lacking}.arff"
        places = " and ".join(folders) + (" (data_dir was not given)" if data_dir is None else "")
        source = f"get them from {_SOURCE}/description.php?Dataset={dataset}"
        raise FileNotFoundError(f"data_dir: looked for {wanted} in {places}: not there; {source}")
    return found[0], found[1]


def _folders(dataset: str, data_dir: str | None) -> dict[str, Path]:
    """Where the files may be, by what the place is called: `data_dir`, else `$LONGSCAN_DATA/uea` and the package aeon."""
    if data_dir is not None:
        return {str(folder): folder for folder in (Path(data_dir), Path(data_dir) / dataset)}
    area = area_folder("uea")
    folders = {} if area is None else {str(area / dataset): area / dataset}
    spec = find_spec("aeon")
    if spec is not None and spec.submodule_search_locations:
        folders["the package aeon"] = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / dataset
    if not folders:
        install = "pip install 'longscan[train,data]'"
        raise FileNotFoundError(f"data_dir: name the files' folder, or install aeon, which carries some sets: {install}")
    return folders


def _read_part(dataset: str, part: str, folders: Sequence[Path], missing: Missing) -> Recordings | None:
    for folder in folders:
        if (path := folder / f"{dataset}_{part}.ts").is_file():
            return read_ts(path, missing)
        if (path := folder / f"{dataset}_{part}.arff").is_file():
            return read_arff(path, missing)
        count = len(list(folder.glob(f"{dataset}Dimension*_{part}.arff")))
        if count:
            paths = [folder / f"{dataset}Dimension{number}_{part}.arff" for number in range(1, count + 1)]
            return read_arff_dimensions(paths, missing)
    return None
