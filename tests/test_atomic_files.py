"""Atomic writing of text files."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from longscan._files import write_text


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
