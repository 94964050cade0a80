"""The error that the command line prints as one line, and the forms of its message."""

import re
import shlex
from collections.abc import Container, Iterable, Sequence
from difflib import get_close_matches
from typing import NamedTuple


class SettingError(ValueError):
    """A setting, file or run directory that cannot be used; the message is one line for the user."""


class FieldError(NamedTuple):
    """A value that does not match its declared type.

    Attributes:
        path: place of the value in the file or the settings, such as rows[3].loss; "" for a whole row.
        got: the value as text.
        needed: description of the declared type, for example "a number above 0".
    """

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


def count_text(count: float, noun: str, plural: str | None = None) -> str:
    """Return a number and a noun: "1 run", "2,000 runs". plural: the noun for all numbers but 1; None appends "s"."""
    return f"{count:,.15g} {noun if count == 1 else plural or f'{noun}s'}"


def setting_error(setting: str, got: object, needed: str) -> SettingError:
    """Return an error whose message has the form "`training.lr` must be a number above 0, got -1"."""
    return SettingError(str(FieldError(setting, quote(got), needed)))


def names_argument(error: Exception, argument: str) -> bool:
    """Return whether an exception is about `argument`: its message has the form "`argument` must be ..., got ..."."""
    return str(error).startswith(f"`{argument}` must ")


# Names that other programs use for settings and options of this one.
_OTHER_NAMES = {
    "learning_rate": "lr", "epoch": "steps", "epochs": "steps", "n_epochs": "steps", "num_epochs": "steps", "iterations": "steps",
    "max_steps": "steps", "batch": "batch_size", "random_state": "seed", "random_seed": "seed", "gpu": "device", "cuda": "device",
    "context_parallel": "context", "context_parallel_size": "context", "context_parallel_degree": "context", "model": "spec",
    "layers": "spec", "n_layers": "spec", "num_layers": "spec", "depth": "spec", "width": "d_model", "hidden_size": "d_model",
    "model_dim": "d_model", "hidden_dim": "d_model", "state_size": "d_state", "state_dim": "d_state", "output": "out",
    "output_dir": "out", "outdir": "out", "out_dir": "out",
}  # fmt: skip


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Return the name that a mistyped word most probably stands for; None if no name is similar to it.

    Hyphens count as underscores and capitals as small letters. A dotted name is also compared by its last part. Names that other
    programs use (`_OTHER_NAMES`) come first, then names of similar spelling. If there is none, a name that begins with the word
    is returned, or one with which the word begins, such as target for target_column.
    """
    word = word.lower().replace("-", "_")
    last_parts: dict[str, str] = {}
    for name in names:
        for key in (name, name.rpartition(".")[2]):
            last_parts.setdefault(key.replace("-", "_"), name)
    other = _OTHER_NAMES.get(word)
    if other in last_parts:
        return last_parts[other]
    near = get_close_matches(word, last_parts, 1, 0.65 if len(word) == 3 else 0.7)  # two of three letters: 0.67
    if not near and len(word) >= 3:
        near = [key for key in last_parts if key.startswith(word) or word.startswith(f"{key}_")]
    return last_parts[near[0]] if near else None


def nearest_names(word: str, names: Sequence[str]) -> list[str]:
    """Return up to two names that a mistyped option of the command line may stand for, without "--".

    The names are those of the command's own options, which have no dot, and of settings, which have one. The most similar option
    of the same length, plus or minus one, comes first, even if a setting is more similar: for --labels the result is label and
    task.labels.
    """
    options = [name for name in names if "." not in name and abs(len(name) - len(word)) <= 1]
    return list(dict.fromkeys(name for name in (nearest(word, options), nearest(word, names)) if name is not None))


def with_options(message: str, names: Container[str], prefix: str = "") -> str:
    """Return a message in which settings are options of the command line.

    "`missing`" becomes "`--missing`" and "`missing='fill'`" becomes "`--missing fill`", for each setting in `names`.
    prefix: what comes before the name of a setting, such as "task."; "" for options of a command, whose names have hyphens.
    """

    def as_option(found: re.Match[str]) -> str:
        name, value = found.groups()
        if name not in names:
            return found[0]
        option = f"--{prefix}{name}" if prefix else f"--{name.replace('_', '-')}"
        return f"`{option}`" if value is None else f"`{option} {shlex.quote(value)}`"

    return re.sub(r"`(\w+)(?:='([^'`]*)')?`", as_option, message)


def unknown_setting(path: str, names: Sequence[str]) -> SettingError:
    """Return the error for a dotted name whose last part is none of `names`, with the nearest one."""
    near = nearest(path.rpartition(".")[2], names)
    hint = f"did you mean {near}? " if near else ""
    return SettingError(f"`{cut(path)}` is an unknown setting; {hint}the settings are {', '.join(names)}")


def one_line(error: BaseException) -> str:
    """Return an exception's message without line breaks and repeated spaces; of an OSError the file and the reason."""
    if isinstance(error, OSError) and error.strerror is not None:
        place = "" if error.filename is None else f"{error.filename}: "
        return " ".join(f"{place}{error.strerror}".split())
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    return " ".join(str(text).split()) or type(error).__name__
