"""Locks of files."""

import errno
import fcntl
import threading
import time
from pathlib import Path
from typing import Any

import filelock
import pytest

from longscan._files import lock_file

IN_USE = ValueError("in use")


def test_a_locked_file_raises_the_error_that_is_given(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.lock"
    with lock_file(path, IN_USE):
        began = time.monotonic()
        with pytest.raises(ValueError, match="in use"), lock_file(path, IN_USE):
            pytest.fail("two locks of one file")
        assert time.monotonic() - began < 5.0
    with lock_file(path, IN_USE):
        assert path.exists()
    assert path.exists()


def test_the_lock_is_released_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), lock_file(tmp_path / "file.lock", IN_USE):
        raise KeyError
    with lock_file(tmp_path / "file.lock", IN_USE):
        pass


def test_another_process_is_waited_for(tmp_path: Path) -> None:
    held = filelock.FileLock(tmp_path / "file.lock", thread_local=False)
    held.acquire()
    began = time.monotonic()
    with pytest.raises(ValueError, match="in use"), lock_file(tmp_path / "file.lock", IN_USE, 0.3):
        pytest.fail("two locks of one file")
    assert time.monotonic() - began >= 0.3
    threading.Timer(0.2, held.release).start()
    with lock_file(tmp_path / "file.lock", IN_USE, 60.0):
        assert not held.is_locked


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, None])
def test_a_file_system_without_locks_is_named_in_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int | None
) -> None:
    """Some versions of filelock raise NotImplementedError where others lock by the existence of the file."""

    def refuse(*_: Any, **__: Any) -> None:
        raise NotImplementedError if number is None else OSError(number, "no locks")

    monkeypatch.setattr(*((filelock.FileLock, "acquire") if number is None else (fcntl, "flock")), refuse)
    for _ in range(2):
        with lock_file(tmp_path / "file.lock", IN_USE):
            text = "its file system has no locks, so a second process that writes into it is not noticed"
            assert caplog.messages == [f"{tmp_path}: {text}"]
        caplog.clear()


def test_other_errors_of_the_file_system_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="broken"), lock_file(tmp_path / "file.lock", IN_USE):
        pytest.fail("no lock")
