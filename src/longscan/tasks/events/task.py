"""Classification of event streams, an event a step."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longscan.tasks._drawing import bars
from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Arrays, data_folder, first_existing, stored
from longscan.tasks.base import TASKS, Batch, Split, check_request, rows_of_step
from longscan.tasks.classification import ClassificationTask, largest_share
from longscan.tasks.events.augment import PUBLISHED, augmented, cut_and_mix
from longscan.tasks.events.batching import bucketed_rows, packed
from longscan.tasks.events.files import (
    Stream,
    read_40_bit,
    read_columns,
    read_gestures,
    read_listing,
    read_recording,
    read_spans,
    read_spikes,
    read_trials,
)
from longscan.tasks.examples import carved, check_fraction

Dataset = Literal["nmnist", "shd", "ssc", "dvs_gesture"]
_SIZES = {"nmnist": (34, 34), "shd": (700, 1), "ssc": (700, 1), "dvs_gesture": (128, 128)}
_WANTED = {
    "nmnist": "Train/0 .. Train/9 and Test/0 .. Test/9 with .bin files (https://www.garrickorchard.com/datasets/n-mnist), or "
    "train1K.txt, test100.txt and .bs2 files",
    "shd": "shd_train.h5 and shd_test.h5 (https://zenkelab.org/datasets)",
    "ssc": "ssc_train.h5, ssc_valid.h5 and ssc_test.h5 (https://zenkelab.org/datasets)",
    "dvs_gesture": "ibmGestureTrain/USER/CLASS.npy and ibmGestureTest, as tonic keeps them (https://tonic.readthedocs.io), or "
    "trials_to_train.txt, trials_to_test.txt and the recordings (https://research.ibm.com/dvsgesture)",
}
_GESTURES = (
    "hand clapping", "right hand wave", "left hand wave", "right arm clockwise", "right arm counter clockwise",
    "left arm clockwise", "left arm counter clockwise", "arm roll", "air drums", "air guitar", "other",
)  # fmt: skip


@TASKS.register("events")
@dataclass(frozen=True, kw_only=True)
class Events(ClassificationTask):
    """What a stream of events shows, a token an event.

        ▁▂▇█▅▃▂▂▅█▇▃▁▁ 4681 events in 305.0 ms | 5

    dataset: nmnist, shd, ssc or dvs_gesture; data_dir: its folder. A token is (x * height + y) * 2 + polarity, unlike the
    published ones without two places that share one; SHD and SSC have their 700 units as tokens. `elapsed` is the time since
    the event before in milliseconds, 0 for the first. downsample: pixels along a side that become one. train_events: training
    streams are cut to so many events at a random place, None: not at all; valid and test are whole.

    dvs_gesture is read from the arrays of tonic, one of each gesture of a recording and in whole milliseconds, where they are
    there; else from IBM's recordings and labels, each labelled span a stream, also a second one of the same gesture, in
    microseconds. Train and test are the same people either way.

    augment: training streams are changed as published (`longscan.tasks.events.augment`); CutMix makes targets shares (B, K).
    batching, of training: "padded"; "bucketed", streams of about equal length together; "packed", several streams in a row,
    apart by `seq_idx`, which needs a model without pooling: the answer is that at a stream's last event. valid_fraction of
    train is valid, but for SSC, which has its own.
    """

    name: ClassVar[str] = "events"
    source: ClassVar[str] = "garrickorchard.com, zenkelab.org, research.ibm.com/dvsgesture"
    uneven: ClassVar[bool] = True
    dataset: Dataset = "nmnist"
    data_dir: str | None = None
    downsample: int = 1
    train_events: int | None = None
    augment: bool = False
    batching: Literal["padded", "bucketed", "packed"] = "padded"
    valid_fraction: float = 0.1
    split_seed: int = 0

    def __post_init__(self) -> None:
        for setting, choices in (("dataset", tuple(_SIZES)), ("batching", ("padded", "bucketed", "packed"))):
            if getattr(self, setting) not in choices:
                raise ValueError(f"{setting}: must be one of {', '.join(choices)}, not {getattr(self, setting)!r}")
        if not 1 <= self.downsample <= _SIZES[self.dataset][0]:
            raise ValueError(f"downsample: must lie in 1 .. {_SIZES[self.dataset][0]}, not {self.downsample}")
        if self.train_events is not None and self.train_events < 1:
            raise ValueError(f"train_events: must be at least 1, not {self.train_events}")
        check_fraction(self.valid_fraction)

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
        """Places times polarities."""
        columns, rows = self._size
        return columns * rows * self._polarities

    @property
    def d_input(self) -> None:
        """None: the inputs are tokens."""
        return

    @property
    def num_classes(self) -> int:
        """The classes."""
        return len(self.classes)

    @property
    def classes(self) -> tuple[str, ...]:
        """What the classes are called."""
        if self.dataset == "nmnist":
            return tuple("0123456789")
        return _GESTURES if self.dataset == "dvs_gesture" else _recordings(self.dataset, self.data_dir).classes

    @property
    def per_step(self) -> bool:
        """Whether streams are packed, so that the answer stands at their last events."""
        return self.batching == "packed"

    @property
    def length(self) -> int:
        """Events of the longest stream of any split."""
        data, rows = _recordings(self.dataset, self.data_dir), _rows(self)
        lengths = {split: int(data.lengths[mine].max()) for split, mine in rows.items()}
        if self.train_events is not None:
            lengths["train"] = min(lengths["train"], self.train_events)
        return max(lengths.values())

    def size(self, split: Split) -> int:
        """Number of streams."""
        check_request(self, split, 0, 1, 0)
        return len(_rows(self)[split])

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """The batch of a step: inputs (B, L) int64, targets (B,), valid (B, L), elapsed (B, L); see the class for packed rows."""
        check_request(self, split, step, batch_size, seed)
        data, mine = _recordings(self.dataset, self.data_dir), _rows(self)[split]
        if split == "train" and self.batching == "bucketed":
            rows = mine[bucketed_rows(tuple(data.lengths[mine].tolist()), step, batch_size, seed)]
        else:
            rows = mine[rows_of_step(len(mine), split, step, batch_size, seed)]
        streams, targets = [data.stream(row) for row in rows.tolist()], torch.from_numpy(data.targets[rows])
        if split == "train":
            rng = CounterRNG(("events", self.dataset, "changes", batch_size, seed), step)
            streams = [self._cut(stream, rng) for stream in streams]
            if self.augment:
                streams, targets = self._augmented(streams, targets, rng)
        return self._packed(streams, targets) if self.batching == "packed" else self._padded(streams, targets)

    def _cut(self, stream: Stream, rng: CounterRNG) -> Stream:
        spare = 0 if self.train_events is None else len(stream.t) - self.train_events
        if spare <= 0:
            return stream
        start = int(rng.integers(0, spare + 1, 1)[0])
        return stream.select(np.arange(start, start + len(stream.t) - spare))

    def _augmented(self, streams: list[Stream], targets: Tensor, rng: CounterRNG) -> tuple[list[Stream], Tensor]:
        strengths, size = PUBLISHED[self.dataset], _SIZES[self.dataset]
        streams = [augmented(stream, strengths, size, rng) for stream in streams]
        if self.batching == "packed" or rng.uniform(1)[0] >= strengths.cutmix:
            return streams, targets
        partners = rng.permutation(len(streams))
        mixed = [cut_and_mix(stream, streams[partner], rng) for stream, partner in zip(streams, partners, strict=True)]
        shares = torch.tensor([share for _, share in mixed]).unsqueeze(1)
        known = torch.nn.functional.one_hot(targets, self.num_classes).float()
        return [stream for stream, _ in mixed], (1 - shares) * known + shares * known[torch.from_numpy(partners)]

    @property
    def shown_as(self) -> Literal["events"]:
        """A cloud of events."""
        return "events"

    def event_places(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Column, row and polarity of tokens (n,)."""
        place = tokens // self._polarities
        return place // self._size[1], place % self._size[1], tokens % self._polarities

    def _tokens(self, stream: Stream) -> np.ndarray:
        x, y = stream.x // self.downsample, stream.y // self.downsample
        return (x * self._size[1] + y) * self._polarities + (stream.p if self._polarities == 2 else 0)

    def _padded(self, streams: list[Stream], targets: Tensor | None) -> Batch:
        lengths = np.array([len(stream.t) for stream in streams])
        inputs = np.zeros((len(streams), lengths.max()), np.int64)
        elapsed = np.ones(inputs.shape, np.float32)
        for row, stream in enumerate(streams):
            inputs[row, : lengths[row]], elapsed[row, : lengths[row]] = self._tokens(stream), _gaps(stream)
        valid = np.arange(inputs.shape[1]) < lengths[:, None]
        return Batch(torch.from_numpy(inputs), targets, torch.from_numpy(valid), elapsed=torch.from_numpy(elapsed))

    def _packed(self, streams: list[Stream], targets: Tensor) -> Batch:
        places = packed([len(stream.t) for stream in streams])
        shape = (places.height, places.width)
        inputs, elapsed, numbers = np.zeros(shape, np.int64), np.ones(shape, np.float32), np.zeros(shape, np.int64)
        valid, answers = np.zeros(shape, bool), np.full(shape, -100)
        for number in np.argsort(places.starts, kind="stable").tolist():  # a later sequence of a row overwrites its padding
            stream, row, start = streams[number], places.rows[number], places.starts[number]
            stretch = slice(start, start + len(stream.t))
            inputs[row, stretch], elapsed[row, stretch] = self._tokens(stream), _gaps(stream)
            numbers[row, stretch.start :], valid[row, stretch] = number, True
            answers[row, stretch.stop - 1] = targets[number]
        known = torch.from_numpy(answers)
        parts = map(torch.from_numpy, (valid, elapsed, numbers))
        mask, times, ids = parts
        return Batch(torch.from_numpy(inputs), known, mask, known >= 0, times, ids)

    def constant_score(self, split: Split = "test") -> float:
        """The accuracy on a split of always giving its most frequent class."""
        check_request(self, split, 0, 1, 0)
        data, rows = _recordings(self.dataset, self.data_dir), _rows(self)
        return largest_share(data.targets[rows[split]])

    def describe(self, batch: Batch, row: int = 0) -> str:
        """How many events fall into each stretch of time, their number, the duration, the class."""
        shown = batch.inputs.new_ones(batch.inputs.shape[1], dtype=torch.bool) if batch.valid is None else batch.valid[row]
        assert batch.elapsed is not None
        times = batch.elapsed[row][shown].double().cumsum(0)
        counts = torch.histc(times.float(), bins=24)
        text = f"{bars(counts, 24)} {len(times)} events in {times[-1].item():.1f} ms"
        if batch.targets is None or self.per_step:
            return text
        target = batch.targets[row]
        return f"{text} | {self.classes[int(target.argmax() if target.ndim else target)]}"

    def read_inputs(self, path: str | Path) -> Batch:
        """One recording: five bytes an event (.bin, .bs2), an .npy array (n, 4) of x, y, polarity, milliseconds, or .aedat."""
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"{path}: can not be read: No such file or directory")
        size = _SIZES[self.dataset]
        stream = {".npy": read_columns, ".aedat": read_recording}.get(path.suffix, read_40_bit)(path, size)
        if self.per_step:
            return self._packed([stream], torch.zeros(1, dtype=torch.int64))._replace(targets=None)
        return self._padded([stream], None)

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:
        """The most probable class and its probability, a row a stream. output: (B, K), or (B, L, K) where streams are packed."""
        if batch.loss_mask is not None:
            output = output[batch.loss_mask]
        best = output.float().softmax(-1).max(-1)
        answers = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [{"class": self.classes[choice], "probability": probability} for choice, probability in answers]


def _gaps(stream: Stream) -> np.ndarray:
    """Milliseconds since the event before, 0 for the first."""
    return (np.diff(stream.t, prepend=stream.t[:1]) / 1000).astype(np.float32)


class _Recordings(NamedTuple):
    """All streams, of train, valid (where the set has one) and test; how many each has; what classes are called."""

    arrays: Arrays
    targets: np.ndarray
    counts: tuple[int, ...]
    classes: tuple[str, ...]

    @property
    def lengths(self) -> np.ndarray:
        """(N,) events of each stream."""
        return np.diff(self.arrays["offsets"])

    def stream(self, row: int) -> Stream:
        """One of them."""
        first, last = self.arrays["offsets"][row : row + 2]
        return Stream(*(self.arrays[name][first:last].astype(np.int64) for name in ("t", "x", "y", "p")))


@lru_cache(maxsize=8)
def _rows(task: Events) -> dict[Split, np.ndarray]:
    counts = _recordings(task.dataset, task.data_dir).counts
    ends = np.cumsum(counts)
    if len(counts) == 3:
        train, valid, test = np.split(np.arange(ends[-1]), ends[:-1])
    else:
        train, valid = carved(counts[0], task.valid_fraction, task.split_seed)
        test = np.arange(ends[0], ends[1])
    return {"train": train, "valid": valid, "test": test}


@lru_cache(maxsize=4)
def _recordings(dataset: Dataset, data_dir: str | None) -> _Recordings:
    folder = data_folder(data_dir, "events", _WANTED[dataset])
    if dataset in ("shd", "ssc"):
        parts = ("train", "valid", "test") if dataset == "ssc" else ("train", "test")
        paths = [first_existing(folder, [f"{dataset}_{part}.h5"], _WANTED[dataset]) for part in parts]
        arrays = stored(f"events-{dataset}", paths, None, lambda: _from_spikes(paths))
        classes = tuple(bytes(row).rstrip(b"\0").decode() for row in arrays["names"])
    elif dataset == "dvs_gesture" and (trials := _trials(folder)) is not None:
        sources = [path for part in trials for recording in part for path in (recording, _labels(recording))]
        counts = [len(part) for part in trials]
        arrays, classes = stored("events-dvs_gesture", sources, counts, lambda: _from_recordings(trials)), ()
    else:
        listed = _nmnist(folder) if dataset == "nmnist" else _gestures(folder)
        reader = read_40_bit if dataset == "nmnist" else read_columns
        sources = [path for part in listed for path, _ in part]

        def make() -> Arrays:
            targets = np.array([label for part in listed for _, label in part])
            arrays = _joined(reader(path) for path in sources)
            return arrays | {"targets": targets, "counts": np.array([len(part) for part in listed])}

        arrays, classes = stored(f"events-{dataset}", sources, None, make), ()
    return _Recordings(arrays, np.array(arrays["targets"]), tuple(arrays["counts"].tolist()), classes)


def _joined(streams: Iterable[Stream]) -> Arrays:
    """All streams as one, each made narrow as it comes: a set may hold more events than fit into memory in int64."""
    kinds = {"t": np.int32, "x": np.int16, "y": np.int16, "p": np.int8}
    narrow = [{name: getattr(stream, name).astype(kind) for name, kind in kinds.items()} for stream in streams]
    offsets = np.concatenate([[0], np.cumsum([len(parts["t"]) for parts in narrow])])
    return {name: np.concatenate([parts[name] for parts in narrow]) for name in kinds} | {"offsets": offsets}


def _from_spikes(paths: list[Path]) -> Arrays:
    parts = [read_spikes(path) for path in paths]
    if len({keys for _, _, keys in parts}) > 1:
        raise ValueError(f"{paths[1]}: its extra/keys are not those of {paths[0]}")
    names = np.array([key.encode() for key in parts[0][2]])
    return _joined([stream for streams, _, _ in parts for stream in streams]) | {
        "targets": np.concatenate([labels for _, labels, _ in parts]),
        "counts": np.array([len(labels) for _, labels, _ in parts]),
        "names": names.view(np.uint8).reshape(len(names), -1),
    }


def _from_recordings(trials: list[list[Path]]) -> Arrays:
    """Streams of train and test, in the order of the trials and of each one's labels."""
    spans = {path: read_spans(_labels(path)) for part in trials for path in part}
    return _joined(stream for path, labelled in spans.items() for stream in read_gestures(path, labelled)) | {
        "targets": np.array([span.target for labelled in spans.values() for span in labelled]),
        "counts": np.array([sum(len(spans[path]) for path in part) for part in trials]),
    }


def _labels(recording: Path) -> Path:
    return recording.with_name(f"{recording.stem}_labels.csv")


def _trials(folder: Path) -> list[list[Path]] | None:
    """The recordings of train and test as IBM lists them; None where its lists are not there, or tonic's arrays are."""
    if any((folder / name).exists() for name in ("ibmGestureTrain", "DVSGesture/ibmGestureTrain")):
        return None
    for root in (folder, folder / "DvsGesture", folder / "DvsGesture" / "DvsGesture"):
        lists = [root / f"trials_to_{part}.txt" for part in ("train", "test")]
        if not all(path.is_file() for path in lists):
            continue
        trials = [[root / name for name in read_trials(path)] for path in lists]
        if both := set(trials[0]) & set(trials[1]):
            raise ValueError(f"{lists[1]}: lists {min(both).name}, which is in {lists[0].name} too")
        for path in (path for part in trials for recording in part for path in (recording, _labels(recording))):
            if not path.is_file():
                raise FileNotFoundError(f"data_dir: {path} is listed but missing")
        return trials
    return None


Listed = list[list[tuple[Path, int]]]


def _nmnist(folder: Path) -> Listed:
    """Files and labels of train and test."""
    for root in (folder, *sorted(path for path in folder.rglob("*") if path.is_dir() and path.name in ("NMNISTsmall", "NMNIST"))):
        if (root / "train1K.txt").is_file() and (root / "test100.txt").is_file():
            listed = [read_listing(root / f"{part}.txt") for part in ("train1K", "test100")]
            listings = [[(root / f"{name}.bs2", label) for name, label in part] for part in listed]
            for path, label in (entry for listing in listings for entry in listing):
                if label > 9:
                    raise ValueError(f"{root}: class {label} of {path.name} is no digit")
                if not path.is_file():
                    raise FileNotFoundError(f"data_dir: {path} is listed but missing")
            return listings
        if (root / "Train" / "0").is_dir() and (root / "Test" / "0").is_dir():
            return [
                [(path, digit) for digit in range(10) for path in sorted((root / part / str(digit)).glob("*.bin"))]
                for part in ("Train", "Test")
            ]
    raise FileNotFoundError(f"data_dir: {folder} holds no {_WANTED['nmnist']}")


def _gestures(folder: Path) -> Listed:
    """Files and labels of train and test: USER/CLASS.npy."""
    listed: Listed = []
    for part in ("ibmGestureTrain", "ibmGestureTest"):
        root = first_existing(folder, [part, f"DVSGesture/{part}"], _WANTED["dvs_gesture"])
        paths = sorted(path for path in root.glob("*/*.npy") if path.stem.isdigit() and int(path.stem) < len(_GESTURES))
        if not paths:
            raise FileNotFoundError(f"data_dir: {root} holds no {_WANTED['dvs_gesture']}")
        listed.append([(path, int(path.stem)) for path in paths])
    return listed
