"""Command lines from signatures: a command's parameters are its arguments, with type, help and default.

    def predict(run: Annotated[str, Doc("folder of the run")], *, out: Annotated[str | None, Doc("where to write")] = None) -> int

is `longscan predict RUN [--out VALUE]`. Keyword-only parameters are options, those of type bool are flags, the others positional.
A command with a parameter `*settings: str` gets all arguments that it does not declare, which `parse_settings` reads. Its
positional argument must come first, because argparse cannot tell the value of an unknown option from a positional argument. A
parameter `command_line` gets the whole command line, for records, and a parameter `program` the user's own Python file that calls
`longscan.cli.main`, None for the command itself. The help page has the paragraphs of the docstring and the commands of its
section "Examples".
"""

import inspect
import re
import shlex
import textwrap
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from functools import partial
from shutil import get_terminal_size
from typing import Any, NamedTuple, get_args

from longscan._argparse import SHORT_OPTIONS, UnknownArgumentError, check_given_once, new_parser, option_help, parse_known
from longscan._errors import SettingError, nearest
from longscan._types import checked_value, find_doc, matches_type, type_hints
from longscan.cli import own_data
from longscan.cli._console import MAX_WIDTH

Command = Callable[..., int]
COMMAND_LINE, PROGRAM = "command_line", "program"  # parameters that are no arguments of the command line
OWN_FILE_COMMANDS = ("train", "show")  # the help of FILE has the settings of the task that fits it
REPEATABLE = ("--config", "--quick")  # options of settings that may be given several times: files and a flag


class Argument(NamedTuple):
    """One argument of a command.

    Attributes:
        name: the parameter.
        declared: its annotated type.
        default: its default, MISSING if it is required.
        is_positional: whether it is no option.
        is_flag: whether it is an option without a value.
        word: the argument as it is written on the command line.
    """

    name: str
    declared: Any
    default: Any
    is_positional: bool
    is_flag: bool
    word: str

    def convert(self, text: str | bool | None) -> Any:
        """Convert the text of the argument to its type. Raises SettingError if it does not match or is missing."""
        if text is None and self.default is MISSING:
            raise SettingError(f"`{self.word}` must be given ({find_doc(self.declared)}), got nothing")
        if text is None or self.is_flag:
            return self.default if text is None else text
        if matches_type(text, self.declared):  # an option that takes text takes any, also one that YAML reads as nothing
            return text
        from longscan._yaml import parse_text

        return checked_value(parse_text(str(text), self.declared), self.declared, self.word)


def first_line(documented: object) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def list_arguments(command: Command) -> list[Argument]:
    """List the arguments of a command, without its settings, its command line and the program."""
    arguments, hints = [], type_hints(command, include_extras=True)
    for one in inspect.signature(command).parameters.values():
        if one.kind is not one.VAR_POSITIONAL and one.name not in (COMMAND_LINE, PROGRAM):
            declared, is_positional = hints[one.name], one.kind is one.POSITIONAL_OR_KEYWORD
            is_flag = not is_positional and (get_args(declared) or (declared,))[0] is bool
            word = one.name if is_positional else "--" + one.name.replace("_", "-")
            default = MISSING if one.default is one.empty else one.default
            arguments.append(Argument(one.name, declared, default, is_positional, is_flag, word))
    return arguments


def run_command(name: str, command: Command, argv: Sequence[str], program: str | None = None) -> int:
    """Parse the arguments of a command and call it, or print its help. Raises SettingError for an unknown or invalid argument.

    program: the user's own Python file that calls `longscan.cli.main`, None for the command itself.
    """
    parameters = inspect.signature(command).parameters
    takes_settings = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
    arguments = list_arguments(command)
    positional = [one for one in arguments if one.is_positional]
    first = [argv[0]] if takes_settings and positional and argv and not argv[0].startswith("-") else []
    parser = _parser([one for one in arguments if not (takes_settings and one.is_positional)])
    given, rest = parse_known(parser, argv[len(first) :])
    if given.help:
        if first and name in OWN_FILE_COMMANDS:
            from longscan.cli.own_data import task_arguments

            rest = [*task_arguments(first[0], vars(given)), *rest]
        _print_help(name, command, rest if takes_settings else None)
        return 0
    flags = [one.word for one in arguments if one.is_flag]
    if takes_settings:
        own = {one.word: f"--task.{one.name}" for one in arguments if one.name in own_data.OPTIONS}
        short = {word: f"--{setting}" for setting, word in SHORT_OPTIONS.items()}
        check_given_once(argv, (*flags, *REPEATABLE), {"--task": "--task.name", **short, **own})
    else:
        check_given_once(argv, flags, {})
    options = [one.word.lstrip("-") for one in arguments if not one.is_positional]
    if rest and not takes_settings:
        raise UnknownArgumentError(rest[0].partition("=")[0], options)
    texts = vars(given) | dict(zip([one.name for one in positional], first, strict=False))
    try:
        values = {one.name: one.convert(texts.get(one.name)) for one in arguments}
        if COMMAND_LINE in parameters:
            values[COMMAND_LINE] = shlex.join([*(("longscan",) if program is None else ("python", program)), name, *argv])
        if PROGRAM in parameters:
            values[PROGRAM] = program
        return command(*(values.pop(one.name) for one in positional), *(rest if takes_settings else ()), **values)
    except UnknownArgumentError as error:  # of the parser of settings, which does not know the options of the command
        raise UnknownArgumentError(error.word, [*options, *error.names]) from error
    except SettingError as error:
        _check_missing(error, rest)
        raise


def _check_missing(error: SettingError, rest: Sequence[str]) -> None:
    """Raise UnknownArgumentError if the error is about a missing option, and `rest` has a mistyped one that stands for it."""
    missing = re.match(r"`--([\w-]+)` must .*, got nothing", str(error))
    if missing is None:
        return
    for word in (each.partition("=")[0] for each in rest if each.startswith("--")):
        if nearest(word.removeprefix("--"), [missing[1]]) and word != f"--{missing[1]}":
            raise UnknownArgumentError(word, [missing[1]]) from error


def _parser(arguments: Sequence[Argument]) -> ArgumentParser:
    """Build a parser that returns None for an argument that is not given, False for a flag."""
    parser = new_parser()
    parser.add_argument("-h", "--help", action="store_true", help="show this page")
    for one in arguments:
        text = option_help(one.declared, MISSING if one.default is None else one.default)
        if one.is_flag:
            parser.add_argument(one.word, dest=one.name, action="store_true", help=find_doc(one.declared))
        elif one.is_positional:
            parser.add_argument(one.name, nargs="?", metavar=one.name.upper(), help=text)
        else:
            several = "+" if matches_type([""], one.declared) else None
            parser.add_argument(one.word, dest=one.name, nargs=several, metavar="VALUE", help=text)
    return parser


class _HelpFormatter(RawDescriptionHelpFormatter):
    """A formatter that wraps each line of a description, and keeps its line breaks and indentations."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = []
        for line in text.splitlines():
            content = line.lstrip()
            margin = indent + line[: len(line) - len(content)]
            lines.append(textwrap.fill(content, width, initial_indent=margin, subsequent_indent=margin))
        return "\n".join(lines)


def _print_help(name: str, command: Command, settings: Sequence[str] | None) -> None:
    """Print the help page of a command; settings: its arguments for settings, None if it takes none."""
    arguments = list_arguments(command)
    parents, words = [_parser(arguments)], ["longscan", name]
    for one in arguments:
        word = one.name.upper() if one.is_positional else f"{one.word} VALUE"
        if one.default is MISSING:
            words.append(word)
        elif one.is_positional:
            words.append(f"[{word}]")
    words.append("[OPTIONS]")
    if settings is not None:
        from longscan.training.parsing import settings_help

        parents += settings_help(settings)
        words.append("[--config FILE] [--task NAME] [--SECTION.SETTING VALUE ...]")
    layout = partial(_HelpFormatter, max_help_position=40, width=min(get_terminal_size().columns, MAX_WIDTH) - 2)
    usage, description = " ".join(words), _describe(command)
    ArgumentParser(None, usage, description, parents=parents, formatter_class=layout, add_help=False).print_help()


def _describe(command: Command) -> str:
    """Return the paragraphs of a command's docstring, each as one line, and the commands of its section "Examples"."""
    text, heading, examples = (inspect.getdoc(command) or "").partition("\nExamples:\n")
    paragraphs = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))
    commands = [f"  {line.strip()}" for line in examples.splitlines()]
    return "\n".join([paragraphs, *(["", "examples:", *commands] if heading else [])])
