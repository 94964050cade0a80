"""The error that the command line prints as one line, and the forms of its message."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import NamedTuple


class SettingError(ValueError):
    """A setting, file or run directory that cannot be used; the message is one line for the user."""


class FieldError(NamedTuple):
    """A value that is not of its declared type: its path, such as rows[3].loss ("" for a whole row), itself, what was needed."""

    path: str
    got: str
    needed: str

    def __str__(self) -> str:
        return f"{f'`{cut(self.path)}`' if self.path else 'the row'} must be {self.needed}, got {self.got}"


def quote(value: object, most: int = 100) -> str:
    """Return the repr of a value on one line, with "..." for what follows its first `most` characters."""
    return cut(" ".join(repr(value).split()), most)


def cut(text: str, most: int = 200) -> str:
    """Return a text with "..." for what follows its first `most` characters."""
    return text if len(text) <= most else f"{text[:most]}..."


def setting_error(setting: str, got: object, needed: str) -> SettingError:
    """Return an error whose message has the form "`training.lr` must be a number above 0, got -1"."""
    return SettingError(str(FieldError(setting, quote(got), needed)))


def names_argument(error: Exception, argument: str) -> bool:
    """Return whether an exception is about `argument`: its message has the form "`argument` must be ..., got ..."."""
    return str(error).startswith(f"`{argument}` must ")


# Names that other programs use for settings of this one.
_OTHER_NAMES = {
    "learning_rate": "lr", "epochs": "steps", "iterations": "steps", "max_steps": "steps", "batch": "batch_size",
    "context_parallel": "context", "context_parallel_size": "context", "context_parallel_degree": "context",
}  # fmt: skip


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Return the name that is most like a word, None if none is: hyphens count as underscores, capitals as small letters.

    A dotted name is also compared by its last part.
    """
    word = word.lower().replace("-", "_")
    word = _OTHER_NAMES.get(word, word)
    last_parts: dict[str, str] = {}
    for name in names:
        for key in (name, name.rpartition(".")[2]):
            last_parts.setdefault(key.replace("-", "_"), name)
    near = get_close_matches(word, last_parts, 1, 0.7)
    return last_parts[near[0]] if near else None


def unknown_setting(path: str, names: Sequence[str]) -> SettingError:
    """Return the error for a dotted name whose last part is none of `names`, with the nearest one."""
    near = nearest(path.rpartition(".")[2], names)
    hint = f"did you mean {near}? " if near else ""
    return SettingError(f"`{cut(path)}` is an unknown setting; {hint}the settings are {', '.join(names)}")


def one_line(error: BaseException) -> str:
    """Return an exception's message without line breaks and repeated spaces; of an OSError about a file "FILE: reason"."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return " ".join(f"{error.filename}: {error.strerror}".split())
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    return " ".join(str(text).split()) or type(error).__name__
