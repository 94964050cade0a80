"""Text files: reading a user's with errors of one line, replacing one of ours at once; and where caches are."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory


def cache_folder() -> Path:
    """Where the package keeps what it may lose: `$LONGSCAN_CACHE`, else `longscan` in the user's cache."""
    if own := os.environ.get("LONGSCAN_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longscan"


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file; ValueError naming the file where it is missing, a folder, unreadable or no UTF-8 text."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x})") from None
    except OSError as error:
        raise ValueError(f"{path}: can not be read: {error.strerror}") from None


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a file; ValueError naming the file if it is missing, a folder or unreadable."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: can not be read: {error.strerror}") from None


def try_writing(path: str | Path) -> None:
    """Raise OSError where a file or folder can not be written, or not be made; nothing is left behind."""
    whole = Path(path).absolute()
    nearest = next(place for place in (whole, *whole.parents) if place.exists() or place.is_symlink())
    if nearest.is_file() and nearest == whole:
        nearest.open("ab").close()
        return
    with TemporaryDirectory(dir=nearest):  # permissions alone do not tell: root may do all, and yet nothing in /proc
        return


def write_text(path: Path, text: str) -> Path:
    """Write a file under a temporary name in the same folder and move it into place, so that no reader sees half of it."""
    temporary = path.with_name(path.name + ".writing")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path
