"""Folders of data, arrays that are read or cached, and sequences of unequal lengths."""

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longscan.tasks import _store
from longscan.tasks._store import Ragged, cached_arrays, data_folder, default_data_folder, first_existing, load_array


def test_folder_of_data_is_given_or_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LONGSCAN_DATA", raising=False)
    assert default_data_folder("lra") is None
    assert data_folder(str(tmp_path), "lra", "files") == tmp_path
    with pytest.raises(FileNotFoundError, match=r"with files, unless LONGSCAN_DATA names a folder .* in lra/, got None"):
        data_folder(None, "lra", "files")
    monkeypatch.setenv("LONGSCAN_DATA", str(tmp_path))
    (tmp_path / "lra").mkdir()
    assert data_folder(None, "lra", "files") == tmp_path / "lra"
    with pytest.raises(FileNotFoundError, match=r"a folder with files, got .*/uea, which is not a folder"):
        data_folder(None, "uea", "files")


def test_first_of_several_paths(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "c").mkdir()
    assert first_existing(tmp_path, ["a", "b", "c"], "files") == tmp_path / "b"
    with pytest.raises(FileNotFoundError, match=f"a folder with files, got {tmp_path} without a or d"):
        first_existing(tmp_path, ["a", "d"], "files")


def test_arrays_are_read_or_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with pytest.raises(ValueError, match=f"^{path} cannot be read: No such file or directory$"):
        load_array(path)
    np.save(path, np.arange(3))
    assert load_array(path).tolist() == [0, 1, 2]
    np.save(path, np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match=f"^{path} must be an .npy file of numbers, got another or a damaged one \\(Object"):
        load_array(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="got another or a damaged one"):
        load_array(path)
    np.savez(tmp_path / "b.npz", a=np.ones(2))
    with pytest.raises(ValueError, match=r"b.npz must be an .npy file of one array, got several arrays"):
        load_array(tmp_path / "b.npz")


def test_arrays_are_computed_once_for_the_same_files_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSCAN_CACHE", str(tmp_path / "cache"))
    source, calls = tmp_path / "a.txt", []
    source.write_text("1")

    def arrays(name: str = "x", settings: Any = 1) -> list[int]:
        found = cached_arrays(name, [source], settings, lambda: calls.append(name) or {"values": np.arange(3)})
        return found["values"].tolist()

    assert arrays() == arrays() == [0, 1, 2]
    assert len(calls) == 1
    arrays("y")
    arrays(settings=2)
    assert len(calls) == 3
    os.utime(source, ns=(0, 0))
    arrays()
    source.write_text("22")
    os.utime(source, ns=(0, 0))
    arrays()
    monkeypatch.setattr(_store, "VERSION", -1)
    arrays()
    assert len(calls) == 6, "another time stamp, another size, and another version of the arrays"


def test_arrays_that_cannot_be_cached_are_returned_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("not a folder")
    monkeypatch.setenv("LONGSCAN_CACHE", str(tmp_path / "cache"))
    with caplog.at_level(logging.WARNING, logger="longscan"):
        assert cached_arrays("x", [], 1, lambda: {"values": np.arange(3)})["values"].tolist() == [0, 1, 2]
    assert "arrays cannot be cached (" in caplog.text
    assert "so the next process computes them again" in caplog.text


def test_another_process_may_write_the_same_arrays(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "x"
    _store._write(folder, {"a": np.arange(2)})
    assert np.load(folder / "a.npy").tolist() == [0, 1]
    _store._write(folder, {"a": np.arange(2)})
    assert sorted(path.name for path in folder.parent.iterdir()) == ["x"], "no temporary folder is left"
    (tmp_path / "new" / "y").write_text("a file in the way")
    with pytest.raises(OSError, match="y"):
        _store._write(tmp_path / "new" / "y", {"a": np.arange(2)})
    assert sorted(path.name for path in folder.parent.iterdir()) == ["x", "y"]


def test_sequences_of_unequal_lengths_are_padded() -> None:
    ragged = Ragged.from_sequences([[1, 2, 3], [], [4]], np.uint8)
    assert (ragged.values.dtype, ragged.offsets.tolist(), ragged.lengths.tolist()) == (np.uint8, [0, 3, 3, 4], [3, 0, 1])
    table, lengths = ragged.pad(None, 9)
    assert (table.tolist(), lengths.tolist()) == ([[1, 2, 3], [9, 9, 9], [4, 9, 9]], [3, 0, 1])
    table, lengths = ragged.pad(np.array([2, 1]), 0)
    assert (table.tolist(), lengths.tolist()) == ([[4], [0]], [1, 0])
    vectors = Ragged.from_sequences([[[1.5, 2]], [[3, 4], [5, 6]]])
    assert vectors.pad(None, 0)[0].tolist() == [[[1.5, 2], [0, 0]], [[3, 4], [5, 6]]]
    assert vectors.values.dtype == np.float64
