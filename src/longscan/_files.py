"""Text files: reading a user's with errors of one line, replacing one of ours at once."""

from pathlib import Path


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file; ValueError naming the file where it is missing, a folder, unreadable or no UTF-8 text."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x})") from None
    except OSError as error:
        raise ValueError(f"{path}: can not be read: {error.strerror}") from None


def write_text(path: Path, text: str) -> Path:
    """Write a file under a temporary name in the same folder and move it into place, so that no reader sees half of it."""
    temporary = path.with_name(path.name + ".writing")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path
