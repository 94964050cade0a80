"""Reading a user's text files with errors of one line."""

from pathlib import Path


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file; ValueError naming the file where it is missing, a folder, unreadable or no UTF-8 text."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x})") from None
    except OSError as error:
        raise ValueError(f"{path}: can not be read: {error.strerror}") from None
