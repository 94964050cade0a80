"""Reading of a user's files with errors of one line, atomic writing of text files, locks of files, and the folder of caches."""

import errno
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from longscan._errors import quote

log = logging.getLogger("longscan")
# Errors of file systems without locks, such as some network file systems.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


def cache_folder() -> Path:
    """Return the folder for files that can be made again: `$LONGSCAN_CACHE`, or `longscan` in the user's cache folder."""
    if own := os.environ.get("LONGSCAN_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longscan"


def checked_path(name: str, path: object) -> Path:
    """Return an argument as a path. Raises TypeError naming the argument unless it is a str or a path of str."""
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise TypeError(f"`{name}` must be a str or a path, got {quote(path)}")
    return Path(path)


def read_text(path: str | Path) -> str:
    """Return the text of a UTF-8 file without a byte order mark.

    Raises ValueError naming the file if it is missing, a folder, unreadable or not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be UTF-8 text, got the byte 0x{error.object[error.start]:02x} at position {error.start}"
        ) from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a file. Raises ValueError naming the file if it is missing, a folder or unreadable."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def try_writing(path: str | Path) -> None:
    """Raise OSError if a file or folder cannot be written or created. No file or folder remains after the call."""
    absolute = Path(path).absolute()
    existing = next(place for place in (absolute, *absolute.parents) if place.exists() or place.is_symlink())
    if existing == absolute and absolute.exists() and not absolute.is_dir():
        if absolute.is_file():  # opening a pipe waits for its reader
            absolute.open("ab").close()
        return
    with TemporaryDirectory(dir=existing):  # permissions are not enough: root has all of them, and yet cannot write into /proc
        return


def write_text(path: Path, text: str) -> Path:
    """Write a file under a temporary name in the same folder and rename it, so that no reader sees an incomplete file.

    The temporary name contains the numbers of the process and the thread, so several of them can write the same file at the same
    time. The file then has the content of the one that ends last.
    """
    with _replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def write_user_file(path: Path, content: bytes) -> Path:
    """Write bytes to a path that the user has chosen, and create its folder if needed.

    A regular file, also one to which a symbolic link points, is replaced as in `write_text`. Devices and pipes are opened and
    written instead, because renaming would replace /dev/null by a file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return path
    with _replacing(path.resolve()) as temporary:
        temporary.write_bytes(content)
    return path


@contextmanager
def lock_file(path: Path, error: Exception, seconds: float = 0.0) -> Iterator[None]:
    """Lock a file, which is created if needed and remains. The system releases the lock when this process ends or is killed.

    Args:
        path: the file.
        error: raised if another process has locked the file.
        seconds: time for which this function waits until the other process releases the lock.

    On a file system without locks nothing is locked, and a warning names the folder of the file. If the system has no locks
    at all (ENOSYS), filelock 4 warns instead and locks by the existence of the file, which it removes in the end. After a
    process on another machine was killed, such a file must be removed by hand.
    """
    from filelock import FileLock, Timeout  # a dependency of torch, too

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        raise error from None
    except (NotImplementedError, OSError) as reason:  # NotImplementedError: ENOSYS, of some versions of filelock
        if getattr(reason, "errno", errno.ENOSYS) not in _NO_LOCKS:
            raise
        log.warning("%s: its file system has no locks, so a second process that writes into it is not noticed", path.parent)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name in the folder of `path`; rename the file to `path` at the end, or remove it after an error.

    An OSError about the temporary file is raised as one about `path`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.writing")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with suppress(OSError):  # such as the error that ended the writing
            temporary.unlink(missing_ok=True)
