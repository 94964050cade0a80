"""Classification of event streams with one event per step."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longscan._errors import setting_error
from longscan._types import Doc, PositiveInt
from longscan.tasks._random import CounterRNG
from longscan.tasks._sparklines import sparkline
from longscan.tasks._store import Arrays, cached_arrays, data_folder, first_existing, visible_paths
from longscan.tasks.base import TASKS, Batch, Split, SplitSeed, ValidFraction, check_request, rows_of_step
from longscan.tasks.classification import ClassificationTask, majority_share
from longscan.tasks.events.augment import PUBLISHED, augment_stream, cut_and_mix
from longscan.tasks.events.batching import bucketed_rows, pack_rows
from longscan.tasks.events.files import (
    Stream,
    read_aedat,
    read_gesture_labels,
    read_gestures,
    read_nmnist,
    read_recording_list,
    read_sample_list,
    read_spike_file,
    read_tonic_array,
)
from longscan.tasks.examples import split_off_validation

Dataset = Literal["nmnist", "shd", "ssc", "dvs_gesture"]
_SIZES = {"nmnist": (34, 34), "shd": (700, 1), "ssc": (700, 1), "dvs_gesture": (128, 128)}
_NEEDED_FILES = {
    "nmnist": "Train/0 .. Train/9 and Test/0 .. Test/9 with .bin files (`longscan data get N-MNIST`), or "
    "train1K.txt, test100.txt and .bs2 files",
    "shd": "shd_train.h5 and shd_test.h5 (`longscan data get SHD`)",
    "ssc": "ssc_train.h5, ssc_valid.h5 and ssc_test.h5 (`longscan data get SSC`)",
    "dvs_gesture": "ibmGestureTrain/USER/CLASS.npy and ibmGestureTest, as tonic keeps them (`longscan data get DVSGesture`), or "
    "trials_to_train.txt, trials_to_test.txt and the recordings (https://research.ibm.com/dvsgesture)",
}
_RECORDING_READERS = {".bin": read_nmnist, ".bs2": read_nmnist, ".npy": read_tonic_array, ".aedat": read_aedat}
_GESTURES = (
    "hand clapping", "right hand wave", "left hand wave", "right arm clockwise", "right arm counter clockwise",
    "left arm clockwise", "left arm counter clockwise", "arm roll", "air drums", "air guitar", "other",
)  # fmt: skip


@TASKS.register("events")
@dataclass(frozen=True, kw_only=True)
class Events(ClassificationTask):
    """Classify a stream of events, each of which is a token.

        ▁▂▇█▅▃▂▂▅█▇▃▁▁ 4681 events in 305.0 ms | 5

    A token is (x * height + y) * 2 + polarity, which is unique for each position, unlike the published tokens; the tokens of SHD
    and SSC are their 700 units. `elapsed` is the time since the previous event in milliseconds, 0 for the first. Valid and test
    use all events.

    dvs_gesture is read from tonic's arrays if they exist: one stream for each gesture of a recording, in whole milliseconds; else
    from IBM's recordings and labels: one stream for each labelled span, including second ones of the same gesture, in
    microseconds. The people in train and test are the same in both.

    With CutMix (`longscan.tasks.events.augment`) targets are class probabilities (B, K). Packed streams of a row are separated by
    `seq_idx`; they need a model without pooling: the answer is the output at the last event of a stream. SSC has a validation
    set.
    """

    source: ClassVar[str] = "garrickorchard.com, zenkelab.org, research.ibm.com/dvsgesture"
    has_imbalanced_classes: ClassVar[bool] = True
    d_input: ClassVar[None] = None
    plot_kind: ClassVar[Literal["events"]] = "events"
    dataset: Annotated[Dataset, Doc("name of the data set")] = "nmnist"
    data_dir: Annotated[str | None, Doc("folder of the data set")] = None
    downsample: Annotated[PositiveInt, Doc("side of the square of pixels that become one")] = 1
    train_events: Annotated[
        PositiveInt | None,
        Doc("number of consecutive events of a training stream that are used, at a random position; None: all"),
    ] = None
    augment: Annotated[bool, Doc("augment the training streams as published")] = False
    batching: Annotated[
        Literal["padded", "bucketed", "packed"],
        Doc("training batches: padded streams, padded streams of about equal length, or several streams in a row"),
    ] = "padded"
    valid_fraction: ValidFraction = 0.1
    split_seed: SplitSeed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.downsample > _SIZES[self.dataset][0]:
            raise setting_error("downsample", self.downsample, f"a whole number from 1 to {_SIZES[self.dataset][0]}")

    @property
    def _size(self) -> tuple[int, int]:
        """Columns and rows of the sensor after downsampling."""
        columns, rows = (-(-length // self.downsample) for length in _SIZES[self.dataset])
        return columns, rows

    @property
    def _polarities(self) -> int:
        return 1 if _SIZES[self.dataset][1] == 1 else 2

    @property
    def vocab_size(self) -> int:
        """Number of tokens: positions times polarities."""
        columns, rows = self._size
        return columns * rows * self._polarities

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        if self.dataset == "nmnist":
            return tuple("0123456789")
        return _GESTURES if self.dataset == "dvs_gesture" else _recordings(self.dataset, self.data_dir).classes

    @property
    def per_step(self) -> bool:
        """Whether streams are packed, so that the answers are the outputs at their last events."""
        return self.batching == "packed"

    @property
    def length(self) -> int:
        """Number of events of the longest stream of any split."""
        data, rows = _recordings(self.dataset, self.data_dir), _split_rows(self)
        lengths = {split: int(data.lengths[split_rows].max()) for split, split_rows in rows.items()}
        if self.train_events is not None:
            lengths["train"] = min(lengths["train"], self.train_events)
        return max(lengths.values())

    def size(self, split: Split) -> int:
        """Return the number of streams of a split."""
        check_request(self, split)
        return len(_split_rows(self)[split])

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """Return the batch of a step: inputs (B, L) int64, targets (B,), valid (B, L), elapsed (B, L); or packed rows."""
        check_request(self, split, step, batch_size, seed)
        data, split_rows = _recordings(self.dataset, self.data_dir), _split_rows(self)[split]
        if split == "train" and self.batching == "bucketed":
            rows = split_rows[bucketed_rows(tuple(data.lengths[split_rows].tolist()), step, batch_size, seed)]
        else:
            rows = split_rows[rows_of_step(len(split_rows), split, step, batch_size, seed)]
        streams, targets = [data.stream(row) for row in rows.tolist()], torch.from_numpy(data.targets[rows])
        if split == "train":
            rng = CounterRNG(("events", self.dataset, "changes", batch_size, seed), step)
            streams = [self._crop(stream, rng) for stream in streams]
            if self.augment:
                streams, targets = self._augment_batch(streams, targets, rng)
        return self._pack_batch(streams, targets) if self.batching == "packed" else self._pad_batch(streams, targets)

    def _crop(self, stream: Stream, rng: CounterRNG) -> Stream:
        surplus = 0 if self.train_events is None else len(stream.t) - self.train_events
        if surplus <= 0:
            return stream
        start = int(rng.integers(0, surplus + 1, 1)[0])
        return stream.select(np.arange(start, start + len(stream.t) - surplus))

    def _augment_batch(self, streams: list[Stream], targets: Tensor, rng: CounterRNG) -> tuple[list[Stream], Tensor]:
        strengths, size = PUBLISHED[self.dataset], _SIZES[self.dataset]
        streams = [augment_stream(stream, strengths, size, rng) for stream in streams]
        if self.batching == "packed" or rng.uniform(1)[0] >= strengths.cutmix:
            return streams, targets
        partners = rng.permutation(len(streams))
        mixed = [cut_and_mix(stream, streams[partner], rng) for stream, partner in zip(streams, partners, strict=True)]
        fractions = torch.tensor([fraction for _, fraction in mixed]).unsqueeze(1)
        one_hot = torch.nn.functional.one_hot(targets, self.num_classes).float()
        return [stream for stream, _ in mixed], (1 - fractions) * one_hot + fractions * one_hot[torch.from_numpy(partners)]

    def event_coordinates(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return column, row and polarity of tokens (n,)."""
        position = tokens // self._polarities
        return position // self._size[1], position % self._size[1], tokens % self._polarities

    def _tokens(self, stream: Stream) -> np.ndarray:
        x, y = stream.x // self.downsample, stream.y // self.downsample
        return (x * self._size[1] + y) * self._polarities + (stream.p if self._polarities == 2 else 0)

    def _pad_batch(self, streams: list[Stream], targets: Tensor | None) -> Batch:
        lengths = np.array([len(stream.t) for stream in streams])
        inputs = np.zeros((len(streams), lengths.max()), np.int64)
        elapsed = np.ones(inputs.shape, np.float32)
        for row, stream in enumerate(streams):
            inputs[row, : lengths[row]], elapsed[row, : lengths[row]] = self._tokens(stream), _intervals(stream)
        valid = np.arange(inputs.shape[1]) < lengths[:, None]
        return Batch(torch.from_numpy(inputs), targets, torch.from_numpy(valid), elapsed=torch.from_numpy(elapsed))

    def _pack_batch(self, streams: list[Stream], targets: Tensor) -> Batch:
        layout = pack_rows([len(stream.t) for stream in streams])
        shape = (layout.height, layout.width)
        inputs, elapsed, numbers = np.zeros(shape, np.int64), np.ones(shape, np.float32), np.zeros(shape, np.int64)
        valid, answers = np.zeros(shape, bool), np.full(shape, -100)
        for number in np.argsort(layout.starts, kind="stable").tolist():  # a later sequence of a row overwrites its padding
            stream, row, start = streams[number], layout.rows[number], layout.starts[number]
            steps = slice(start, start + len(stream.t))
            inputs[row, steps], elapsed[row, steps] = self._tokens(stream), _intervals(stream)
            numbers[row, steps.start :], valid[row, steps] = number, True
            answers[row, steps.stop - 1] = targets[number]
        return Batch(*map(torch.from_numpy, (inputs, answers, valid, answers >= 0, elapsed, numbers)))

    def constant_score(self, split: Split = "test") -> float:
        """Return the accuracy on a split of always giving its most frequent class."""
        check_request(self, split)
        data, rows = _recordings(self.dataset, self.data_dir), _split_rows(self)
        return majority_share(data.targets[rows[split]])

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Return an example as text: a histogram of the times as bars, the number of events, the duration, the class."""
        assert batch.elapsed is not None
        times = batch.elapsed[row][batch.valid_steps(row)].double().cumsum(0)
        counts = torch.histc(times.float(), bins=24)
        text = f"{sparkline(counts, 24)} {len(times)} events in {times[-1].item():.1f} ms"
        if batch.targets is None or self.per_step:
            return text
        target = batch.targets[row]
        return f"{text} | {self.classes[int(target.argmax() if target.ndim else target)]}"

    def read_inputs(self, path: str | Path) -> Batch:
        """Read one recording: five bytes per event (.bin, .bs2), .npy (n, 4) with x, y, polarity, milliseconds, or .aedat.

        Raises ValueError for any other file.
        """
        path, size = Path(path), _SIZES[self.dataset]
        reader = _RECORDING_READERS.get(path.suffix.lower())
        if reader is None:
            raise ValueError(f"{path}: its name must end in one of {', '.join(_RECORDING_READERS)}")
        stream = reader(path, size)
        if self.per_step:
            return self._pack_batch([stream], torch.zeros(1, dtype=torch.int64))._replace(targets=None)
        return self._pad_batch([stream], None)


def _intervals(stream: Stream) -> np.ndarray:
    """Return the milliseconds since the previous event, 0 for the first."""
    return (np.diff(stream.t, prepend=stream.t[:1]) / 1000).astype(np.float32)


class _Recordings(NamedTuple):
    """The streams of a data set: those of train, of valid if the set has this split, and of test, one after another.

    Attributes:
        arrays: the events of all N streams, concatenated, and their offsets.
        targets: (N,), the class of each stream.
        counts: numbers of streams of train, of valid if the set has it, and of test.
        classes: names of the classes; empty if the files do not have them.
    """

    arrays: Arrays
    targets: np.ndarray
    counts: tuple[int, ...]
    classes: tuple[str, ...]

    @property
    def lengths(self) -> np.ndarray:
        """Number of events of each stream, (N,)."""
        return np.diff(self.arrays["offsets"])

    def stream(self, row: int) -> Stream:
        """Return one of the streams by its number."""
        first, last = self.arrays["offsets"][row : row + 2]
        return Stream(*(self.arrays[name][first:last].astype(np.int64) for name in ("t", "x", "y", "p")))


@lru_cache(maxsize=8)
def _split_rows(task: Events) -> dict[Split, np.ndarray]:
    counts = _recordings(task.dataset, task.data_dir).counts
    ends = np.cumsum(counts)
    if len(counts) == 3:
        train, valid, test = np.split(np.arange(ends[-1]), ends[:-1])
    else:
        train, valid = split_off_validation(counts[0], task.valid_fraction, task.split_seed)
        test = np.arange(ends[0], ends[1])
    return {"train": train, "valid": valid, "test": test}


@lru_cache(maxsize=4)
def _recordings(dataset: Dataset, data_dir: str | None) -> _Recordings:
    folder = data_folder(data_dir, "events", _NEEDED_FILES[dataset])
    if dataset in ("shd", "ssc"):
        parts = ("train", "valid", "test") if dataset == "ssc" else ("train", "test")
        paths = [first_existing(folder, [f"{dataset}_{part}.h5"], _NEEDED_FILES[dataset]) for part in parts]
        arrays = cached_arrays(f"events-{dataset}", paths, None, lambda: _read_spike_files(paths))
        classes = tuple(bytes(row).rstrip(b"\0").decode() for row in arrays["names"])
    elif dataset == "dvs_gesture" and (trials := _find_ibm_recordings(folder)) is not None:
        sources = [path for part in trials for recording in part for path in (recording, _label_file(recording))]
        counts = [len(part) for part in trials]
        arrays, classes = cached_arrays("events-dvs_gesture", sources, counts, lambda: _read_ibm_recordings(trials)), ()
    else:
        listed = _find_nmnist_files(folder) if dataset == "nmnist" else _find_tonic_files(folder)
        reader = read_nmnist if dataset == "nmnist" else read_tonic_array
        for part, entries in zip(("train", "test"), listed, strict=True):
            if not entries:
                raise FileNotFoundError(
                    f"`data_dir` must be a folder with {_NEEDED_FILES[dataset]}, got {folder} without recordings for {part}"
                )
        sources = [path for part in listed for path, _ in part]

        def read() -> Arrays:
            targets = np.array([label for part in listed for _, label in part])
            arrays = _concatenate_streams(reader(path) for path in sources)
            return arrays | {"targets": targets, "counts": np.array([len(part) for part in listed])}

        arrays, classes = cached_arrays(f"events-{dataset}", sources, None, read), ()
    return _Recordings(arrays, np.array(arrays["targets"]), tuple(arrays["counts"].tolist()), classes)


def _concatenate_streams(streams: Iterable[Stream]) -> Arrays:
    """Concatenate streams. Each is converted to small integer types first, since a set in int64 may exceed the memory."""
    kinds = {"t": np.int32, "x": np.int16, "y": np.int16, "p": np.int8}
    narrow = [{name: getattr(stream, name).astype(kind) for name, kind in kinds.items()} for stream in streams]
    offsets = np.concatenate([[0], np.cumsum([len(parts["t"]) for parts in narrow])])
    return {name: np.concatenate([parts[name] for parts in narrow]) for name in kinds} | {"offsets": offsets}


def _read_spike_files(paths: list[Path]) -> Arrays:
    parts = [read_spike_file(path) for path in paths]
    if len({keys for _, _, keys in parts}) > 1:
        raise ValueError(f"{paths[1]} must have the same extra/keys as {paths[0]}, got others")
    names = np.array([key.encode() for key in parts[0][2]])
    return _concatenate_streams([stream for streams, _, _ in parts for stream in streams]) | {
        "targets": np.concatenate([labels for _, labels, _ in parts]),
        "counts": np.array([len(labels) for _, labels, _ in parts]),
        "names": names.view(np.uint8).reshape(len(names), -1),
    }


def _read_ibm_recordings(trials: list[list[Path]]) -> Arrays:
    """Read the streams of train and test, in the order of the recordings and of their labels."""
    spans = {path: read_gesture_labels(_label_file(path)) for part in trials for path in part}
    return _concatenate_streams(stream for path, labelled in spans.items() for stream in read_gestures(path, labelled)) | {
        "targets": np.array([span.target for labelled in spans.values() for span in labelled]),
        "counts": np.array([sum(len(spans[path]) for path in part) for part in trials]),
    }


def _label_file(recording: Path) -> Path:
    return recording.with_name(f"{recording.stem}_labels.csv")


def _find_ibm_recordings(folder: Path) -> list[list[Path]] | None:
    """Return the recordings of train and test in IBM's lists; None if the lists are missing or tonic's arrays exist."""
    if any((folder / name).exists() for name in ("ibmGestureTrain", "DVSGesture/ibmGestureTrain")):
        return None
    for root in (folder, folder / "DvsGesture", folder / "DvsGesture" / "DvsGesture"):
        lists = [root / f"trials_to_{part}.txt" for part in ("train", "test")]
        if not all(path.is_file() for path in lists):
            continue
        trials = [[root / name for name in read_recording_list(path)] for path in lists]
        if both := set(trials[0]) & set(trials[1]):
            raise ValueError(f"{lists[1]} must list other recordings than {lists[0].name}, got {min(both).name} in both")
        for path in (path for part in trials for recording in part for path in (recording, _label_file(recording))):
            if not path.is_file():
                raise FileNotFoundError(f"`data_dir` must be a folder with all recordings in its lists, got one without {path}")
        return trials
    return None


FileLists = list[list[tuple[Path, int]]]


def _find_nmnist_files(folder: Path) -> FileLists:
    """Return the files and labels of train and test of N-MNIST."""
    for root in (folder, *(path for path in visible_paths(folder) if path.is_dir() and path.name in ("NMNISTsmall", "NMNIST"))):
        if (root / "train1K.txt").is_file() and (root / "test100.txt").is_file():
            listed = [read_sample_list(root / f"{part}.txt") for part in ("train1K", "test100")]
            listings = [[(root / f"{name}.bs2", label) for name, label in part] for part in listed]
            for path, label in (entry for listing in listings for entry in listing):
                if label > 9:
                    raise ValueError(f"{root}: the class of {path.name} must be a digit, got {label}")
                if not path.is_file():
                    raise FileNotFoundError(f"`data_dir` must be a folder with all samples in its lists, got one without {path}")
            return listings
        if (root / "Train" / "0").is_dir() and (root / "Test" / "0").is_dir():
            return [
                [(path, digit) for digit in range(10) for path in visible_paths(root / part / str(digit), "*.bin")]
                for part in ("Train", "Test")
            ]
    raise FileNotFoundError(f"`data_dir` must be a folder with {_NEEDED_FILES['nmnist']}, got {folder} without them")


def _find_tonic_files(folder: Path) -> FileLists:
    """Return tonic's files USER/CLASS.npy and labels of train and test of DVS-Gesture."""
    listed: FileLists = []
    for part in ("ibmGestureTrain", "ibmGestureTest"):
        root = first_existing(folder, [part, f"DVSGesture/{part}"], _NEEDED_FILES["dvs_gesture"])
        paths = [path for path in visible_paths(root, "*/*.npy") if path.stem.isdecimal() and int(path.stem) < len(_GESTURES)]
        listed.append([(path, int(path.stem)) for path in paths])
    return listed
