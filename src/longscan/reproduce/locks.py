"""Locks of the folders of `longscan reproduce`, which the system releases when the process that has one ends or is killed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from longscan._errors import setting_error
from longscan.training.processes import GRACE

_held: list[FileLock] = []  # until this process ends


@contextmanager
def lock_folder(option: str, folder: Path, name: str) -> Iterator[None]:
    """Lock a folder by a file of this name, which remains. Raises SettingError, naming the option, if another process has it."""
    lock = FileLock(folder / name, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise setting_error(option, str(folder), "a folder in which no other process runs") from None
    try:
        yield
    finally:
        lock.release()


def lock_runs(folders: Sequence[Path], seconds: float = GRACE) -> None:
    """Lock runs by files FOLDER.lock until the end of this process, which trains them.

    If `longscan reproduce` is killed, its processes save checkpoints before they end. When it is started again meanwhile, the new
    ones wait for them. Raises SettingError if another process has one of the locks for longer than a number of seconds.
    """
    for folder in folders:
        lock = FileLock(folder.with_suffix(".lock"))
        try:
            lock.acquire(timeout=seconds)
        except Timeout:
            raise setting_error("--out", str(folder), "a run that no other process trains") from None
        _held.append(lock)
