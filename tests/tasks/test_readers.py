"""Errors of readers for each part of a condition: both orders of unequal lengths, and each damage of an old pickle."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from longscan.tasks.dynamics.walker import _read_rollout
from longscan.tasks.events.files import (
    Stream,
    read_gesture_labels,
    read_recording_list,
    read_sample_list,
    read_tonic_array,
    validate_and_sort,
)
from longscan.tasks.lra._cifar10 import _ArrayStub, _DtypeStub, _encode_latin1, read_batch
from longscan.tasks.timeseries.files import read_arff_dimensions

HEADER = "@relation a\n{attributes}@attribute target {{x,y}}\n@data\n"


def write_arff(path: Path, *series: tuple[list[float], str]) -> Path:
    steps = max(len(values) for values, _ in series)
    attributes = "".join(f"@attribute att{step} numeric\n" for step in range(steps))
    rows = "".join(",".join([*map(str, values), label]) + "\n" for values, label in series)
    path.write_text(HEADER.format(attributes=attributes) + rows)
    return path


def test_channels_in_separate_files_must_agree(tmp_path: Path) -> None:
    first = write_arff(tmp_path / "1.arff", ([1, 2, 3], "x"), ([4, 5, 6], "y"))
    second = write_arff(tmp_path / "2.arff", ([7, 8, 9], "x"), ([0, 0, 1], "y"))
    read = read_arff_dimensions([first, second])
    assert [series.tolist() for series in read.series] == [[[1, 2, 3], [7, 8, 9]], [[4, 5, 6], [0, 0, 1]]]
    shorter = write_arff(tmp_path / "3.arff", ([7, 8], "x"), ([0, 0], "y"))
    fewer = write_arff(tmp_path / "4.arff", ([7, 8, 9], "x"))
    for pair in ((first, shorter), (shorter, first), (first, fewer), (fewer, first)):
        with pytest.raises(ValueError, match=rf"^{pair[1]} must have the number and the lengths of the series of {pair[0]}"):
            read_arff_dimensions(pair)
    other = write_arff(tmp_path / "5.arff", ([7, 8, 9], "y"), ([0, 0, 1], "x"))
    with pytest.raises(ValueError, match=rf"^{other} must have the labels of {first}, got others"):
        read_arff_dimensions([first, other])


@pytest.mark.parametrize(("text", "encoding"), [("a", "ascii"), (b"a", "latin1"), (3, "latin1"), (3, "ascii")])
def test_old_pickles_have_texts_in_latin1(text: object, encoding: str) -> None:
    assert _encode_latin1("a\xe9", "latin1") == b"a\xe9"
    with pytest.raises(pickle.UnpicklingError, match=f"the encoding must be latin1, got '{encoding}'"):
        _encode_latin1(text, encoding)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        ({}, None),
        ({"x": [0, 3], "y": [0, 1], "p": [0, 1], "t": [5, 2**31 - 1]}, None),
        ({"x": [0, 4]}, "x of each event must be from 0 to 3, got 4 in event 1"),
        ({"x": [-1, 0]}, "x of each event must be from 0 to 3, got -1 in event 0"),
        ({"y": [2, 0]}, "y of each event must be from 0 to 1, got 2 in event 0"),
        ({"p": [1, 2]}, "polarity of each event must be from 0 to 1, got 2 in event 1"),
        ({"t": [-1, 0]}, "time of each event must be from 0 to 2147483647, got -1 in event 0"),
        ({"t": [0, 2**31]}, "time of each event must be from 0 to 2147483647, got 2147483648 in event 1"),
    ],
)
def test_events_lie_on_the_sensor(stream: dict[str, list[int]], message: str | None) -> None:
    given = {"t": [7, 3], "x": [1, 2], "y": [0, 1], "p": [1, 0]} | stream
    events = Stream(**{name: np.array(values) for name, values in given.items()})
    if message is None:
        found = validate_and_sort(events, (4, 2), "a.bin")
        order = np.argsort(given["t"])
        assert found.t.tolist() == sorted(given["t"])
        assert found.x.tolist() == np.array(given["x"])[order].tolist()
        return
    with pytest.raises(ValueError, match=rf"^a.bin: {message}"):
        validate_and_sort(events, (4, 2), "a.bin")


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 5)),
        np.zeros((3, 4, 1)),
        np.zeros(4),
        np.zeros((3, 4), complex),
        np.zeros((3, 4), bool),
        np.zeros((3, 4), "U1"),
    ],
)
def test_arrays_of_events_have_four_columns_of_numbers(array: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError, match=r"a.npy must be numbers of shape \(events, 4\): x, y, polarity, milliseconds; got"):
        read_tonic_array(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.array([[1, 2, 1, 3.5], [4, 5, 0, 1]]))
    found = read_tonic_array(tmp_path / "a.npy")
    assert (found.t.tolist(), found.x.tolist(), found.y.tolist(), found.p.tolist()) == ([1000, 3500], [4, 1], [5, 2], [0, 1])


COLUMNS = "class,startTime_usec,endTime_usec"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([COLUMNS, "1,0,5", "", "11, 5 ,9"], None),
        (["class,start,end", "1,0,5"], "the first line must be"),
        ([COLUMNS], "must contain labels, got none"),
        ([COLUMNS, "1,0"], ":2: the line must be three whole numbers"),
        ([COLUMNS, "1,0,5,6"], ":2: the line must be three whole numbers"),
        ([COLUMNS, "1,0,5", "1,-1,5"], ":3: the line must be three whole numbers"),
        ([COLUMNS, f"1,0,{10**18}"], ":2: the line must be three whole numbers"),
        ([COLUMNS, "0,0,5"], ":2: the class must be from 1 to 11, and the start before the end, got '0,0,5'"),
        ([COLUMNS, "12,0,5"], ":2: the class must be from 1 to 11"),
        ([COLUMNS, "1,5,5"], ":2: the class must be from 1 to 11"),
    ],
)
def test_labels_of_gestures(lines: list[str], message: str | None, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines))
    if message is None:
        assert read_gesture_labels(path) == [(0, 0, 5, "a.csv:2"), (10, 5, 9, "a.csv:4")]
        return
    with pytest.raises(ValueError, match=message):
        read_gesture_labels(path)


@pytest.mark.parametrize("name", ["a.txt", "b/a.aedat", "b\\a.aedat", "a\0.aedat", "b.aedat\nb.aedat", ""])
def test_names_of_recordings(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trials.txt"
    path.write_text(name)
    with pytest.raises(ValueError, match=r"trials.txt(: each line must be the name of a recording| must list)"):
        read_recording_list(path)
    path.write_text(" a.aedat \n\nb.aedat\n")
    assert read_recording_list(path) == ["a.aedat", "b.aedat"]


@pytest.mark.parametrize("text", ["1 2 3", "1", "a 2", "1 b", "# 1 2", ""])
def test_lists_of_samples(text: str, tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text(text)
    with pytest.raises(
        ValueError, match=r"list.txt(:1: the line must be the number of a sample and its class| must list samples)"
    ):
        read_sample_list(path)
    path.write_text("# a comment\n00012 3\n\n7\t0\n")
    assert read_sample_list(path) == [("00012", 3), ("7", 0)]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones(4), "floats of shape"),
        (np.ones((2, 3, 1)), "floats of shape"),
        (np.ones((3, 2), int), "floats of shape"),
        (np.ones((1, 2)), "at least 2 steps"),
        (np.ones((2, 3)), "must have 2 channels, like the files before it, got 3"),
        (np.array([[1, 2], [np.inf, 3]]), r"must contain finite values, got \[inf, 3.0\] at step 1"),
        (np.array([[1, 2], [3, 1e39]]), "must contain finite values"),
    ],
)
def test_rollouts_are_floats_of_the_same_channels(array: np.ndarray, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError, match=message):
        _read_rollout(tmp_path / "a.npy", 2)
    np.save(tmp_path / "b.npy", np.ones((2, 2)))
    assert _read_rollout(tmp_path / "b.npy", 2).dtype == np.float32
    assert _read_rollout(tmp_path / "b.npy", None).shape == (2, 2)


@pytest.mark.parametrize(
    "state",
    [
        (1, (2,), "u1", False, b"ab"),
        (1, (2,), _DtypeStub("f4"), False, b"ab"),
        (1, (2,), _DtypeStub("u1"), False, "ab"),
    ],
)
def test_arrays_of_old_pickles_hold_bytes(state: tuple[object, ...]) -> None:
    with pytest.raises(pickle.UnpicklingError, match="arrays must hold bytes"):
        _ArrayStub().__setstate__(state)
    for name in ("u1", "|u1", b"u1", b"|u1"):
        for column_major, expected in ((False, [[97, 98, 99], [100, 101, 102]]), (True, [[97, 99, 101], [98, 100, 102]])):
            stub = _ArrayStub()
            stub.__setstate__((1, (2, 3), _DtypeStub(name), column_major, b"abcdef"))
            assert stub.values is not None
            assert stub.values.tolist() == expected


@pytest.mark.parametrize(
    ("data", "labels", "message"),
    [
        (np.zeros((2, 3072), np.uint8), [0, 9], None),
        (np.zeros((2, 3071), np.uint8), [0, 9], "'data' must be bytes of shape"),
        (np.zeros(3072, np.uint8), [0], "'data' must be bytes of shape"),
        ([0], [0], "'data' must be bytes of shape"),
        (np.zeros((2, 3072), np.uint8), (0, 9), "'labels' must be 2 numbers from 0 to 9"),
        (np.zeros((2, 3072), np.uint8), [0], "'labels' must be 2 numbers"),
        (np.zeros((2, 3072), np.uint8), [0, 10], "'labels' must be 2 numbers"),
        (np.zeros((2, 3072), np.uint8), [-1, 0], "'labels' must be 2 numbers"),
        (np.zeros((2, 3072), np.uint8), [True, 0], "'labels' must be 2 numbers"),
    ],
)
def test_batches_of_images(data: object, labels: object, message: str | None, tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": data, b"labels": labels}, protocol=2).replace(b"numpy._core", b"numpy.core"))
    if message is None:
        found = read_batch(path)
        assert found.images.shape == (2, 32, 32, 3)
        assert found.labels.tolist() == [0, 9]
        return
    with pytest.raises(ValueError, match=message):
        read_batch(path)
