"""Event streams: formats, tokens, gaps, augmentations, buckets, packing, damaged files, and real files if present."""

import os
import struct
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from longscan import SequenceModel
from longscan.tasks._random import CounterRNG
from longscan.tasks.events import Events
from longscan.tasks.events.augment import (
    PUBLISHED,
    Augmentation,
    add_noise,
    augment_stream,
    cut_and_mix,
    drop,
    drop_chunk,
    jitter_space,
    jitter_time,
    roll,
    rotate_and_scale,
    skew_time,
)
from longscan.tasks.events.batching import bucketed_rows, pack_rows
from longscan.tasks.events.files import (
    LabelledSpan,
    Stream,
    read_aedat,
    read_gesture_labels,
    read_gestures,
    read_nmnist,
    read_recording_list,
    read_spike_file,
    read_tonic_array,
)
from made_up import MADE_UP, aedat_bytes, draw_events, event_bytes, gestures, recordings

h5py = pytest.importorskip("h5py")


def make_stream(seed=0, count=4000, size=(128, 128)):
    return Stream(*draw_events(seed, count, size))


@pytest.fixture
def folder(tmp_path):
    MADE_UP["events"](tmp_path)
    return tmp_path


def make_nmnist(folder, **settings):
    return Events(**{"data_dir": str(folder), "valid_fraction": 0.2, **settings})


def test_nmnist_has_the_tokens_gaps_and_labels_of_the_files(folder):
    task = make_nmnist(folder)
    assert [task.size(split) for split in task.splits] == [24, 6, 20]
    batch = task.batch("test", 0, 20)
    t, x, y, p = draw_events(31, 20 + 31 % 9, (34, 34))
    assert batch.inputs[0][batch.valid[0]].tolist() == ((x * 34 + y) * 2 + p).tolist()
    assert batch.elapsed[0, 0] == 0
    assert batch.elapsed[0][batch.valid[0]][1:].tolist() == pytest.approx((np.diff(t) / 1000).tolist(), rel=1e-5)
    assert batch.targets.tolist() == [digit for digit in range(10) for _ in range(2)]
    assert task.vocab_size == 34 * 34 * 2


def test_each_pixel_and_polarity_has_its_own_token():
    task = Events()
    x, y, p = (part.ravel() for part in np.meshgrid(np.arange(34), np.arange(34), np.arange(2)))
    tokens = task._tokens(Stream(x, x, y, p))
    assert len(set(tokens.tolist())) == task.vocab_size == len(tokens)
    assert tokens.max() == task.vocab_size - 1
    downsampled = Events(downsample=2)
    assert downsampled.vocab_size == 17 * 17 * 2
    assert len(set(downsampled._tokens(Stream(x, x, y, p)).tolist())) == downsampled.vocab_size
    assert Events(downsample=3).vocab_size == 12 * 12 * 2, "the remainder has a pixel, too"


def write_spikes(path, labels, seed=0):
    draw = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        dtypes = h5py.vlen_dtype(np.float16), h5py.vlen_dtype(np.uint16)
        times = file.create_dataset("spikes/times", (len(labels),), dtype=dtypes[0])
        units = file.create_dataset("spikes/units", (len(labels),), dtype=dtypes[1])
        for number in range(len(labels)):
            count = int(draw.integers(5, 30))
            times[number] = np.sort(draw.uniform(0, 1, count)).astype(np.float16)
            units[number] = draw.integers(0, 700, count)
        file["labels"] = np.array(labels)
        file["extra/keys"] = np.array([b"null", b"eins", b"zwei"])
    return path


def test_shd_has_the_tokens_and_times_of_the_files(tmp_path):
    write_spikes(tmp_path / "shd_train.h5", [0, 1, 2] * 10)
    write_spikes(tmp_path / "shd_test.h5", [0, 1, 2] * 4, seed=1)
    task = Events(dataset="shd", data_dir=str(tmp_path))
    assert [task.size(split) for split in task.splits] == [27, 3, 12]
    assert task.classes == ("null", "eins", "zwei")
    assert task.vocab_size == 700
    batch = task.batch("test", 0, 12)
    with h5py.File(tmp_path / "shd_test.h5") as file:
        assert batch.inputs[3][batch.valid[3]].tolist() == file["spikes/units"][3].tolist()
        first, last = (float(file["spikes/times"][3][i]) for i in (0, -1))
        total = (last - first) * 1000
    assert batch.elapsed[3][batch.valid[3]].sum().item() == pytest.approx(total, abs=0.01)
    assert batch.targets.tolist() == [0, 1, 2] * 4


SUMS = {  # of 30 streams: number of events, and sums of times, x, y and polarities
    "shd": [8579, 1379614509, 3080195, 0, 4315],
    "ssc": [9359, 1471167760, 3347701, 0, 4278],
    "dvs_gesture": [7496, 1193065455, 480321, 480633, 3765],
    "nmnist": [8499, 1356099951, 143766, 143339, 4268],
}


def test_ssc_reads_its_own_validation_split(tmp_path):
    for number, part in enumerate(("train", "valid", "test")):
        write_spikes(tmp_path / f"ssc_{part}.h5", [0, 1, 2] * (number + 2), seed=number)
    task = Events(dataset="ssc", data_dir=str(tmp_path))
    assert [task.size(split) for split in task.splits] == [6, 9, 12]


def test_dvs_gesture_has_the_labels_and_times_of_the_files(tmp_path):
    for part, users in (("ibmGestureTrain", 3), ("ibmGestureTest", 2)):
        for user in range(users):
            directory = tmp_path / part / f"user{user:02}_led"
            directory.mkdir(parents=True)
            for kind in (0, 4, 10):
                t, x, y, p = draw_events(user * 11 + kind, 40, (128, 128))
                np.save(directory / f"{kind}.npy", np.stack([x, y, p, t // 1000], axis=1))
            np.save(directory / "11.npy", np.zeros((3, 4)))  # there are 11 gestures, 0 to 10
    task = Events(dataset="dvs_gesture", data_dir=str(tmp_path))
    assert [task.size(split) for split in task.splits] == [8, 1, 6]
    batch = task.batch("test", 0, 6)
    assert sorted(batch.targets.tolist()) == [0, 0, 4, 4, 10, 10]
    assert (batch.elapsed[batch.valid] % 1 == 0).all(), "times are milliseconds"
    assert task.read_inputs(tmp_path / "ibmGestureTest" / "user00_led" / "4.npy").inputs.shape == (1, 40)


@pytest.mark.parametrize("begin", [0, 2**31 - 1_500_000], ids=["early", "times overflow"])
def test_gestures_of_ibm_equal_those_of_tonic(tmp_path, begin):
    for name, write in (("tonic", gestures), ("ibm", lambda folder: recordings(folder, begin=begin))):
        (tmp_path / name).mkdir()
        write(tmp_path / name)
    tonic, ibm = (Events(dataset="dvs_gesture", data_dir=str(tmp_path / name)) for name in ("tonic", "ibm"))
    for split in tonic.splits:
        size = tonic.size(split)
        assert ibm.size(split) == size > 0
        left, right = tonic.batch(split, 0, size), ibm.batch(split, 0, size)
        assert torch.equal(left.targets, right.targets)
        assert torch.equal(left.inputs, right.inputs)
        assert torch.equal(left.elapsed, right.elapsed)
        assert torch.equal(left.valid, right.valid)
    root = tmp_path / "ibm" / "DvsGesture"
    (stream,) = read_gestures(root / "user00_led.aedat", read_gesture_labels(root / "user00_led_labels.csv")[1:2])
    expected = read_tonic_array(tmp_path / "tonic" / "ibmGestureTrain" / "user00_led" / "10.npy")
    assert all(np.array_equal(*arrays) for arrays in zip(stream, expected, strict=True)), "times since the start of the span"
    whole = ibm.read_inputs(root / "user00_led.aedat")
    assert whole.inputs.shape == (1, 3 * (40 + 2))
    (tmp_path / "both").mkdir()
    recordings(tmp_path / "both")
    gestures(tmp_path / "both", count=50)
    assert Events(dataset="dvs_gesture", data_dir=str(tmp_path / "both")).length == 50, (
        "files of tonic are preferred if both exist"
    )


def test_gesture_labelled_twice_gives_two_streams(tmp_path):
    recordings(tmp_path)
    path = tmp_path / "DvsGesture" / "user04_led_labels.csv"
    path.write_text(path.read_text().replace("\n11,", "\n1,"))
    task = Events(dataset="dvs_gesture", data_dir=str(tmp_path))
    assert task.batch("test", 0, 12).targets.tolist() == [0, 0, 4, *[0, 10, 4] * 3]


def test_invalid_events_of_aedat_are_removed(tmp_path):
    path = tmp_path / "x.aedat"
    valid = aedat_bytes(*draw_events(0, 4, (128, 128)))
    data = bytearray(valid)
    data[-32] &= 0xFE
    path.write_bytes(data)
    assert len(read_aedat(path).t) == 4, "the packet header declares all events valid"
    data[-36:-32] = struct.pack("<i", 3)
    path.write_bytes(data)
    remaining, whole = read_aedat(path), Stream(*draw_events(0, 4, (128, 128)))
    assert remaining.t.tolist() == (whole.t[1:] - whole.t[1]).tolist()
    assert remaining.x.tolist() == whole.x[1:].tolist()


def test_train_events_limits_training_streams_only(folder):
    task = make_nmnist(folder, train_events=10)
    train, test = task.batch("train", 0, 24), task.batch("test", 0, 20)
    assert train.inputs.shape[1] == 10
    assert test.inputs.shape[1] > 20
    assert torch.equal(train.inputs, task.batch("train", 0, 24).inputs)
    next_epoch = task.batch("train", 1, 24)
    assert not torch.equal(train.inputs.sort(0).values, next_epoch.inputs.sort(0).values), (
        "another part of the stream in the next epoch"
    )


def test_augmentation_depends_on_seed_and_step_only(folder):
    task = make_nmnist(folder, augment=True)
    first, repeated, other_seed = (task.batch("train", step, 8, seed=seed) for step, seed in ((3, 1), (3, 1), (3, 2)))
    assert torch.equal(first.inputs, repeated.inputs)
    assert first.inputs.shape != other_seed.inputs.shape or not torch.equal(first.inputs, other_seed.inputs)
    plain = make_nmnist(folder).batch("test", 0, 20)
    assert torch.equal(task.batch("test", 0, 20).inputs, plain.inputs), "valid and test are not augmented"
    for step in range(20):
        batch = task.batch("train", step, 8)
        assert batch.inputs.min() >= 0
        assert batch.inputs.max() < task.vocab_size
        assert (batch.elapsed >= 0).all()


def test_cutmix_gives_probabilities_of_classes_as_targets(tmp_path, monkeypatch):
    MADE_UP["events"](tmp_path)
    monkeypatch.setitem(PUBLISHED, "nmnist", Augmentation(cutmix=1.0))
    task = make_nmnist(tmp_path, augment=True)
    batch = task.batch("train", 0, 8)
    assert batch.targets.shape == (8, 10)
    assert torch.allclose(batch.targets.sum(1), torch.ones(8))
    assert (batch.targets < 1).any()
    output = torch.zeros(8, 10, requires_grad=True)
    assert task.loss(output, batch).item() == pytest.approx(np.log(10), rel=1e-5)
    metrics = task.metrics("train")
    task.update(metrics, batch.targets, batch)
    assert metrics["accuracy"].compute() == 1
    assert " | " in task.describe(batch)


def test_drop_and_drop_chunk_remove_the_stated_fraction():
    stream = make_stream()
    assert len(drop(stream, 0.25, CounterRNG(("d",), 0)).t) == pytest.approx(3000, abs=150)
    assert drop(stream, 0.0, CounterRNG(("d",), 0)) is stream
    shortened = drop_chunk(stream, 0.5, CounterRNG(("c",), 1))
    lost = np.flatnonzero(~np.isin(stream.t, shortened.t))
    assert 0 < 4000 - len(shortened.t) <= 2000
    assert lost[-1] - lost[0] < 2100, "one contiguous range"


def test_jitter_space_is_in_pixels_and_removes_events_outside_the_sensor():
    stream = Stream(np.arange(5000), np.full(5000, 60), np.full(5000, 60), np.zeros(5000, int))
    moved = jitter_space(stream, 3.0, (128, 128), CounterRNG(("s",), 0))
    assert (moved.x - 60).std() == pytest.approx(3.0, rel=0.05)
    assert (moved.y - 60).std() == pytest.approx(3.0, rel=0.05)
    edge = jitter_space(stream._replace(x=np.zeros(5000, int)), 3.0, (128, 128), CounterRNG(("s",), 0))
    assert len(edge.t) == pytest.approx(2830, abs=200), "events outside the sensor are removed"
    line = jitter_space(stream._replace(y=np.zeros(5000, int)), 3.0, (700, 1), CounterRNG(("s",), 0))
    assert len(line.t) == 5000
    assert not line.y.any()


def test_jitter_time_is_in_microseconds_and_skew_time_is_bounded():
    stream = make_stream()
    shifted = jitter_time(stream._replace(t=np.full(4000, 1_000_000)), 5.0, CounterRNG(("t",), 0))
    assert (shifted.t - 1_000_000).std() == pytest.approx(5.0, rel=0.05)
    assert (np.diff(shifted.t) >= 0).all()
    factors = [skew_time(stream, 1.2, CounterRNG(("k",), n)).t[-1] / stream.t[-1] for n in range(200)]
    assert 1 / 1.2 - 1e-3 < min(factors) < 0.86
    assert 1.17 < max(factors) < 1.2 + 1e-3


def test_add_noise_adds_at_most_the_stated_number_of_events():
    stream = make_stream(count=100)
    counts = [len(add_noise(stream, 35, (128, 128), CounterRNG(("n",), n)).t) - 100 for n in range(300)]
    assert (min(counts), max(counts)) == (0, 35)
    noisy = add_noise(stream, 35, (128, 128), CounterRNG(("n",), 3))
    assert (np.diff(noisy.t) >= 0).all()
    assert not add_noise(stream._replace(p=np.zeros(100, int)), 35, (700, 1), CounterRNG(("n",), 3)).p.any()


@pytest.mark.parametrize("last", [0, 1])
def test_noise_has_all_times_up_to_the_last_and_all_positions(last):
    stream = Stream(*(np.array([0, value]) for value in (last, 1, 1, 1)))
    noisy = add_noise(stream, 500, (4, 3), CounterRNG(("n",), 1))
    assert len(noisy.t) > 100
    ranges = [set(part.tolist()) for part in noisy]
    assert ranges == [set(range(last + 1)), {0, 1, 2, 3}, {0, 1, 2}, {0, 1}]


def test_roll_and_rotation_move_all_events_together():
    square = Stream(np.arange(4), np.array([60, 67, 60, 67]), np.array([60, 60, 67, 67]), np.zeros(4, int))
    rolled = roll(square, 32, (128, 128), CounterRNG(("r",), 0))
    assert len(set((rolled.x - square.x).tolist())) == 1
    stream = make_stream()
    rotated = rotate_and_scale(stream, 10.0, 1.0, (128, 128), CounterRNG(("a",), 1))
    assert 0.9 * 4000 < len(rotated.t) < 4000, "the corners are outside the sensor"
    assert rotated.x.max() <= 127
    unrotated = rotate_and_scale(stream, 0.0, 1.0, (128, 128), CounterRNG(("a",), 1))
    assert np.array_equal(unrotated.x, stream.x)
    sizes = [np.ptp(rotate_and_scale(square, 0.0, 1.9, (128, 128), CounterRNG(("f",), n)).x) for n in range(40)]
    assert min(sizes) < 6 < 10 < max(sizes)


def test_cut_and_mix_replaces_one_range_by_events_of_the_partner():
    stream = make_stream()._replace(p=np.zeros(4000, int))
    partner = make_stream(1)._replace(p=np.ones(4000, int))
    merged, fraction = cut_and_mix(stream, partner, CounterRNG(("m",), 0))
    assert merged.p.mean() == pytest.approx(fraction)
    inserted = merged.t[merged.p == 1]
    inside = (merged.t > inserted[0]) & (merged.t < inserted[-1])
    assert (merged.p[inside] == 1).all(), "the range has events of the partner only"
    assert (np.diff(merged.t) >= 0).all()
    assert cut_and_mix(stream, partner.select(np.array([0])), CounterRNG(("m",), 0))[1] == 0


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_augmentations_give_valid_streams(name):
    size = {"shd": (700, 1), "ssc": (700, 1), "dvs_gesture": (128, 128), "nmnist": (34, 34)}[name]
    stream = make_stream(count=300, size=size)
    for number in range(60):
        augmented = augment_stream(stream, PUBLISHED[name], size, CounterRNG((name,), number))
        assert len(augmented.t) > 0
        assert (np.diff(augmented.t) >= 0).all()
        assert ((augmented.x >= 0) & (augmented.x < size[0]) & (augmented.y >= 0) & (augmented.y < size[1])).all()


@pytest.mark.parametrize(("name", "record"), SUMS.items())
def test_augmented_streams_match_the_record(name, record):
    size = {"shd": (700, 1), "ssc": (700, 1), "dvs_gesture": (128, 128), "nmnist": (34, 34)}[name]
    stream = make_stream(count=300, size=size)
    streams = [augment_stream(stream, PUBLISHED[name], size, CounterRNG((name,), number)) for number in range(30)]
    sums = [sum(int(getattr(stream, axis).sum()) for stream in streams) for axis in "txyp"]
    assert [sum(len(stream.t) for stream in streams), *sums] == pytest.approx(record, rel=1e-4)


def test_epoch_of_buckets_has_each_recording_once():
    lengths = tuple(np.random.default_rng(0).integers(1, 1000, 203).tolist())
    for epoch in (0, 1):
        batches = [bucketed_rows(lengths, epoch * 26 + step, 8, seed=1) for step in range(26)]
        assert sorted(np.concatenate(batches).tolist()) == list(range(203))
        spread = np.mean([np.ptp([lengths[row] for row in batch]) for batch in batches])
        assert spread < 150
    assert not np.array_equal(bucketed_rows(lengths, 0, 8, seed=1), bucketed_rows(lengths, 26, 8, seed=1))


def test_pack_rows_places_recordings_without_overlap():
    layout = pack_rows([5, 3, 8, 2, 6])
    assert layout.width == 8
    assert layout.height == 3
    used = np.zeros((3, 8), int)
    for row, start, length in zip(layout.rows, layout.starts, [5, 3, 8, 2, 6], strict=True):
        used[row, start : start + length] += 1
    assert used.max() == 1
    assert used.sum() == 24


def test_packed_streams_give_the_outputs_of_separate_streams(folder):
    (folder / "Test" / "0" / "00000.bin").write_bytes(event_bytes(*draw_events(99, 70, (34, 34))))
    packed_task, padded_task = make_nmnist(folder, batching="packed"), make_nmnist(folder)
    torch.manual_seed(0)
    model = SequenceModel.from_spec(
        "m", d_model=8, d_state=4, d_output=10, vocab_size=padded_task.vocab_size, pooling="none", backend="eager"
    )
    packed = packed_task.batch("test", 0, 20)
    assert len(packed.inputs) < 20
    with torch.no_grad():
        packed_outputs = model(packed.inputs, elapsed=packed.elapsed, valid=packed.valid, seq_idx=packed.seq_idx)[
            packed.loss_mask
        ]
        padded = padded_task.batch("test", 0, 20)
        padded_outputs = model(padded.inputs, elapsed=padded.elapsed, valid=padded.valid)
    last = padded.valid.sum(1) - 1
    padded_outputs = padded_outputs[torch.arange(20), last]
    order = packed.seq_idx[packed.loss_mask]
    assert torch.allclose(packed_outputs, padded_outputs[order], atol=1e-5)
    assert torch.equal(packed.targets[packed.loss_mask], padded.targets[order])
    metrics = packed_task.metrics("test")
    packed_task.update(metrics, torch.nn.functional.one_hot(packed.targets.clamp(min=0), 10).float(), packed)
    assert metrics["accuracy"].compute() == 1
    assert len(packed_task.decode(torch.zeros(*packed.inputs.shape, 10), packed)) == 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x.bin must contain events, got none"),
        (b"\0" * 7, "x.bin must have 5 bytes for each event, got 7 bytes"),
        (event_bytes(*(np.array([v]) for v in (5, 34, 0, 0))), "x.bin: x of each event must be from 0 to 33, got 34 in event 0"),
    ],
)
def test_damaged_nmnist_recording_raises(tmp_path, content, message):
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_nmnist(path)


def test_damaged_tonic_array_raises(tmp_path):
    path = tmp_path / "0.npy"
    for array, message in (
        (np.zeros((3, 5)), r"must be numbers of shape \(events, 4\)"),
        (np.array([[1, 2, 3, np.nan]]), "must contain finite values, got .* in event 0"),
        (np.array([[1, 2, 5, 1]]), "polarity of each event must be from 0 to 1, got 5 in event 0"),
        (np.array([[1, 0.5, 1, 1]]), "y of each event must be whole, got 0.5 in event 0; the columns are x, y,"),
        (np.array([[1, 2, 1, 1], [-0.5, 2, 1, 1]]), "x of each event must be whole, got -0.5 in event 1"),
        (np.array([[1, 2, 1, -1]]), "time of each event must be .*, got -1000 in event 0"),
        (np.array([[1, 200, 1, 1]]), "y of each event must be .*, got 200 in event 0"),
        (np.zeros((0, 4)), "must contain events, got none"),
    ):
        np.save(path, array)
        with pytest.raises(ValueError, match=f"0.npy.* {message}"):
            read_tonic_array(path)
    path.write_bytes(b"\x93NUMPY")
    with pytest.raises(ValueError, match=r"must be an .npy file of numbers"):
        read_tonic_array(path)


def test_damaged_spike_file_raises(tmp_path):
    path = write_spikes(tmp_path / "a.h5", [0, 1, 2])
    valid = path.read_bytes()
    for content in (b"", valid[: len(valid) // 2], b"not HDF5" * 20):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a.h5 must be an HDF5 file with spikes/times"):
            read_spike_file(path)
    for change, message in (
        (lambda file: file.__delitem__("labels"), "must be an HDF5 file"),
        (lambda file: file["labels"].__setitem__(0, 7), "each label must be from 0 to 2, .*, got 1 to 7"),
        (
            lambda file: file["spikes/units"].__setitem__(1, [701] * len(file["spikes/times"][1])),
            "recording 1: x of each event must be .* in event 0",
        ),
        (
            lambda file: file["spikes/units"].__setitem__(1, [1]),
            "recording 1 must have a finite time for each unit, got .* times and 1 units",
        ),
    ):
        path.write_bytes(valid)
        with h5py.File(path, "a") as file:
            change(file)
        with pytest.raises(ValueError, match=message):
            read_spike_file(path)


def test_spike_file_has_a_list_for_each_recording_and_a_number_for_each_label(tmp_path):
    path = tmp_path / "a.h5"
    row, one = np.array([[0.1, 0.2]]), np.array([1])
    for times, units, labels, message in (
        (np.array([0.1]), one, one, r"recording 0 must have a list of times and one of units, got float64 of shape"),
        (row, np.array([[b"a", b"b"]]), one, "recording 0 must have a list of times and one of units, got float64 of shape"),
        (row, np.array([[1, 2.5]]), one, "recording 0 must have whole numbers as units, got 2.5"),
        (row, np.array([[1, 2]]), one[None], r"an integer label for each recording, got .* labels of int64 and shape \(1, 1\)"),
    ):
        with h5py.File(path, "w") as file:
            file["spikes/times"], file["spikes/units"], file["labels"] = times, units, labels
            file["extra/keys"] = np.array([b"null", b"eins"])
        with pytest.raises(ValueError, match=rf"a.h5:? .*{message}"):
            read_spike_file(path)


def packed_header(kind=1, length=8, offset=4, overflow=0, number=4):
    return struct.pack("<hh6i", kind, 1, length, offset, overflow, number, number, number)


def test_damaged_aedat_recording_raises(tmp_path):
    path = tmp_path / "user01_led.aedat"
    t, x, y, p = np.array([10, 20, 30, 40]), *np.ones((3, 4), int)
    valid = aedat_bytes(t, x, y, p)
    head, body = valid[:-60], valid[-32:]
    spans = [LabelledSpan(0, 5, 45, "user01_led_labels.csv:2")]
    for content, message in (
        (b"", "must begin with #!AER-DAT3.1, got b''"),
        (valid.replace(b"3.1", b"2.0", 1), "must begin with #!AER-DAT3.1, got b'#!AER-DAT2.0'"),
        (valid.replace(b"#!END-HEADER", b"#!END-FOOTER"), "must have the line #!END-HEADER at the end of its header"),
        (valid.replace(b"RAW", b"PNG"), "must have the format RAW, got the line b'#Format: PNG' in its header"),
        (valid[:-1], "packet at byte .* must have 4 events of 8 bytes, got 31 bytes; the file is cut off"),
        (head + packed_header()[:-1], "packet at byte .* must have a header of 28 bytes, got 27 bytes; the file is cut off"),
        (
            head + packed_header(length=16, number=2) + body,
            "must have events of 8 bytes with the time at byte 4, got 16 bytes and byte 4",
        ),
        (head + packed_header(offset=0) + body, "must have events of 8 bytes with the time at byte 4, got 8 bytes and byte 0"),
        (head + packed_header(length=0) + body, "must have a header of AEDAT 3.1, got type 1, 4 events of 0 bytes"),
        (head + packed_header(number=-4) + body, "must have a header of AEDAT 3.1, got type 1, -4 events"),
        (head + packed_header(kind=-3) + body, "must have a header of AEDAT 3.1, got type -3"),
        (head + packed_header(overflow=-1) + body, "must have a header of AEDAT 3.1, got .*, -1 overflows"),
        (head + packed_header() + body[:-4] + b"\xff" * 4, "must have times from 0 to 2147483647, got -1"),
        (head, "must contain polarity events, got none"),
        (head + packed_header(number=0), "must contain polarity events, got none"),
        (aedat_bytes(t, x + 127, y, p), r"user01_led_labels.csv:2: x of each event must be from 0 to 127, got 128 in event 0"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"user01_led.aedat.*{message}"):
            read_gestures(path, spans)
    path.write_bytes(valid)
    for start, end, message in (
        (41, 50, r"the span of labels.csv:3 must overlap the events from 10 to 40 microseconds, got 41 to 50"),
        (0, 10, r"the span of labels.csv:3 must overlap the events from 10 to 40 microseconds, got 0 to 10"),
        (21, 30, "labels.csv:3 must contain events, got none"),
    ):
        with pytest.raises(ValueError, match=f"user01_led.aedat: {message}"):
            read_gestures(path, [*spans, LabelledSpan(1, start, end, "labels.csv:3")])
    with pytest.raises(ValueError, match=r"gone.aedat cannot be read: No such file"):
        read_aedat(tmp_path / "gone.aedat")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "l.csv: the first line must be class,startTime_usec,endTime_usec, got ''"),
        ("class,start,end\n1,2,3\n", "l.csv: the first line must be .*, got 'class,start,end'"),
        ("class,startTime_usec,endTime_usec\n", "l.csv must contain labels, got none"),
        ("class,startTime_usec,endTime_usec\n1,2\n", "l.csv:2: the line must be three whole numbers"),
        ("class,startTime_usec,endTime_usec\n1,2,3\n\n1,2.5,3\n", "l.csv:4: the line must be three whole numbers"),
        (f"class,startTime_usec,endTime_usec\n1,2,{10**30}\n", "l.csv:2: the line must be three whole numbers"),
        ("class,startTime_usec,endTime_usec\n12,2,3\n", "l.csv:2: the class must be from 1 to 11"),
        (
            "class,startTime_usec,endTime_usec\n1,3,3\n",
            "l.csv:2: the class must be from 1 to 11, and the start before the end, got '1,3,3'",
        ),
    ],
)
def test_damaged_gesture_labels_raise(tmp_path, content, message):
    path = tmp_path / "l.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_gesture_labels(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n", "t.txt must list recordings, got none"),
        ("user01_led\n", "t.txt: each line must be the name of a recording .*, got 'user01_led'"),
        ("../user01_led.aedat\n", "t.txt: each line must be the name of a recording .*, got '../user01_led.aedat'"),
        ("user01_led.aedat\nuser01_led.aedat\n", "t.txt must list each recording once, got user01_led.aedat twice"),
    ],
)
def test_damaged_recording_list_raises(tmp_path, content, message):
    path = tmp_path / "t.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_recording_list(path)


def test_inconsistent_recording_lists_raise(tmp_path):
    recordings(tmp_path)
    task, root = Events(dataset="dvs_gesture", data_dir=str(tmp_path)), tmp_path / "DvsGesture"
    lists = [root / f"trials_to_{part}.txt" for part in ("train", "test")]
    lists[0].write_text(lists[0].read_text() + "user04_led.aedat\n")
    with pytest.raises(
        ValueError, match=r"trials_to_test.txt must list other recordings than trials_to_train.txt, got user04_led.aedat in both"
    ):
        task.size("train")
    lists[0].write_text("user00_led.aedat\n")
    (root / "user00_led_labels.csv").unlink()
    with pytest.raises(
        FileNotFoundError,
        match=r"^`data_dir` must be a folder with all recordings in its lists, got one without .*user00_led_labels.csv",
    ):
        task.size("train")


def test_missing_event_files_raise(tmp_path):
    for dataset, name in (("nmnist", "Train/0"), ("shd", "shd_train.h5"), ("ssc", "ssc_train.h5"), ("dvs_gesture", "ibmGesture")):
        with pytest.raises(FileNotFoundError, match=rf"^`data_dir` must be a folder with .*{name}"):
            Events(dataset=dataset, data_dir=str(tmp_path)).size("train")


def test_folder_without_recordings_of_a_part_raises(folder):
    for path in folder.glob("Test/*/*.bin"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"^`data_dir` must be a folder with Train/0 .* without recordings for test$"):
        make_nmnist(folder).size("train")


def test_recording_is_read_by_the_ending_of_its_name(folder, tmp_path):
    task = make_nmnist(folder)
    (tmp_path / "A.BIN").write_bytes(next(folder.glob("Test/0/*.bin")).read_bytes())
    assert task.read_inputs(tmp_path / "A.BIN").inputs.shape[0] == 1
    with pytest.raises(ValueError, match=r"a.h5: its name must end in one of .bin, .bs2, .npy, .aedat$"):
        task.read_inputs(tmp_path / "a.h5")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"downsample": 0}, "^`?downsample"),
        ({"downsample": 35}, "^`?downsample"),
        ({"train_events": 0}, "^`?train_events"),
        ({"valid_fraction": 0.0}, "^`?valid_fraction"),
    ],
    ids=str,
)
def test_invalid_setting_raises(settings, message):
    with pytest.raises(ValueError, match=message):
        Events(**settings)


ROOT = Path(os.environ.get("LONGSCAN_TEST_DATA", "/nowhere")) / "events"


@pytest.mark.skipif(not ROOT.is_dir(), reason="LONGSCAN_TEST_DATA names no folder with events/")
def test_real_nmnist_has_the_published_sizes():
    task = Events(data_dir=str(ROOT))
    assert [task.size(split) for split in task.splits] == [900, 100, 100]
    assert task.length <= 7152
    sample = read_nmnist(ROOT / "tonic_sample_nmnist.bin")
    assert len(sample.t) == 4325
    assert 300_000 < sample.t[-1] < 320_000


def test_published_augmentations_have_these_strengths():
    """Augmentations that a data set does not list are off."""
    off = {"drop": 0, "chunk": 0, "space": 0, "skew": 1, "time": 0, "noise": 0, "roll": 0, "angle": 0, "scale": 1, "cutmix": 0}
    given = {
        "shd": {"drop": 0.1, "chunk": 0.02, "space": 0.55, "skew": 1.2, "time": 1, "noise": 35, "cutmix": 0.3},
        "ssc": {"drop": 0.1, "chunk": 0.02, "space": 1, "skew": 1.05, "time": 3, "noise": 100, "cutmix": 0.3},
        "dvs_gesture": {
            "drop": 0.05,
            "chunk": 0.02,
            "space": 0.3,
            "skew": 1.12,
            "time": 5,
            "roll": 32,
            "angle": 10,
            "scale": 1.2,
            "cutmix": 0.4,
        },
        "nmnist": {"drop": 0.05, "chunk": 0.02, "space": 0.3, "skew": 1.12, "time": 5},
    }
    assert {name: asdict(strengths) for name, strengths in PUBLISHED.items()} == {
        name: off | {"probability": 0.3} | strengths for name, strengths in given.items()
    }
