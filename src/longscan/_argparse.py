"""Options of argparse from annotated types, for the commands and for the settings of runs."""

import re
from argparse import ArgumentError, ArgumentParser, Namespace
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING
from typing import Any

from longscan._errors import SettingError, nearest_names
from longscan._types import describe_type, find_doc

# Settings that have a short option.
SHORT_OPTIONS = {"training.steps": "--steps", "training.checkpoint_every": "--checkpoint-every", "task.data_dir": "--data-dir"}


def new_parser(**options: Any) -> ArgumentParser:
    """Build a parser that raises ArgumentError, accepts no abbreviations and adds no --help."""
    return ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False, **options)


def option_help(declared: Any, default: Any) -> str:
    """Return the help of an option: what it is, its type and range, and its default.

    default: MISSING for an option that is required, or whose default None means that it is not given.
    """
    kind = describe_type(declared)
    if default is MISSING:
        kind = kind.removesuffix(" or None")
    facts = [*([] if kind.startswith("text") else [kind]), *([] if default is MISSING else [f"default {default}"])]
    return " ".join(filter(None, (find_doc(declared), f"({'; '.join(facts)})" if facts else ""))).replace("%", "%%")


def parse_known(parser: ArgumentParser, argv: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Parse the arguments that a parser knows and return the others. Raises SettingError for an option without its value."""
    try:
        return parser.parse_known_args(argv)
    except ArgumentError as error:
        raise SettingError(f"{error.argument_name}: {error.message}") from None


def check_given_once(argv: Sequence[str], repeatable: Collection[str], synonyms: Mapping[str, str]) -> None:
    """Raise SettingError naming an option that is given twice: argparse would take the last of its values silently.

    Args:
        argv: the command line. The words after `--` are no options.
        repeatable: options that may be given several times: flags, and options that collect all of their values.
        synonyms: for options with two names, one of the names -> the other.
    """
    first: dict[str, str] = {}
    words = argv[: argv.index("--")] if "--" in argv else argv
    for word, following in zip(words, [*words[1:], ""], strict=False):
        option, equals, _ = word.partition("=")
        if not re.fullmatch(r"--[\w.-]+", option) or option in repeatable:
            continue
        name, given = synonyms.get(option, option), word if equals else f"{word} {following}".rstrip()
        if name in first:
            raise SettingError(f"`{option}` must be given once, got {first[name]} and {given}")
        first[name] = given


class UnknownArgumentError(SettingError):
    """An argument that no parser knows. The message suggests the option and the setting that are most similar to it.

    Args:
        word: the argument.
        names: options and settings, without --, that the word may stand for. If several are equally similar to it, the message
            has the first one.
    """

    def __init__(self, word: str, names: Iterable[str] = ()) -> None:
        self.word, self.names = word, tuple(names)
        name = word.lstrip("-")  # with a section that does not exist, a name's last part may tell which setting is meant
        near = nearest_names(name, self.names) or nearest_names(name.rpartition(".")[2], self.names)
        if not word.startswith("-"):
            takes_settings = any("." in one for one in self.names)
            hint = "a value with blanks needs quotes; " if takes_settings else ""
        else:
            hint = f"did you mean {' or '.join(f'--{one}' for one in near)}? " if near else ""
        super().__init__(f"`{word}` is an unknown argument; {hint}`--help` lists the arguments that exist")
