"""Atomic writing of files."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from longscan._files import write_text, write_user_file


def test_several_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Each replaces the whole file; no writer takes away another one's temporary file."""
    path, texts = tmp_path / "file.json", [str(number) * 10_000 for number in range(4)]

    def write(text: str) -> None:
        for _ in range(50):
            write_text(path, text)

    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(write, texts))
    assert path.read_text("utf-8") in texts
    assert list(tmp_path.iterdir()) == [path]


def test_failed_writing_leaves_the_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = write_text(tmp_path / "file.txt", "whole")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text("utf-8") == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_errors_name_the_file_and_not_the_temporary_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        write_text(tmp_path / "absent" / "file.txt", "")
    assert missing.value.filename == str(tmp_path / "absent" / "file.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file") as wrong:
        write_user_file(tmp_path / "file" / "x" / "y", b"")
    assert "writing" not in str(wrong.value)
    assert write_user_file(tmp_path / "new" / "folder" / "file", b"1").read_bytes() == b"1"


def test_a_file_of_a_user_is_replaced_behind_a_link_and_a_pipe_is_written(tmp_path: Path) -> None:
    path, link, pipe = tmp_path / "file.png", tmp_path / "link.png", tmp_path / "pipe"
    path.write_bytes(b"former")
    link.symlink_to(path)
    os.mkfifo(pipe)
    with path.open("rb") as opened, ThreadPoolExecutor(1) as pool:
        assert write_user_file(link, b"new") == link
        assert opened.read() == b"former", "a reader of the former file never sees an incomplete one"
        reader = pool.submit(pipe.read_bytes)
        write_user_file(pipe, b"through")
        assert reader.result() == b"through"
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert pipe.is_fifo()
    assert sorted(tmp_path.iterdir()) == [path, link, pipe]
