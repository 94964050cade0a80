"""Output of the commands: consoles of rich, tables, and errors as one line."""

import io
import os
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MAX_WIDTH = 100  # columns of lists of entries
ERROR_DELAY = 15.0  # seconds that processes other than the first wait before they print an error, see `print_error`


def print_error(text: str) -> None:
    """Print one line on stderr, red on a terminal. It does not use rich, which may be the package that is missing.

    All processes that torchrun starts on a machine find the same fault of the command. The first process prints it at once, the
    others wait for `ERROR_DELAY` seconds: if the first process ends with the error, torchrun ends the others before they print.
    """
    if int(os.environ.get("LOCAL_RANK", "0")):
        time.sleep(ERROR_DELAY)
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
    sys.stderr.write(f"{red}longscan: {text}{plain}\n")


@cache
def stdout() -> "Console":
    """Return the console on stdout. It prints brackets and colons of names, and does not read them as rich's markup."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True, markup=False, emoji=False)


@cache
def stderr() -> "Console":
    """Return the console on stderr, which reads no markup either."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


def echo(text: str) -> None:
    """Print text on stdout."""
    sys.stdout.write(f"{text}\n")


def echo_error(text: str, style: str | None = None) -> None:
    """Print text on stderr, in a style of rich."""
    stderr().print(text, style=style)


def print_table(table: "Table") -> None:
    """Print a table: on a terminal within its width, with folded cells; elsewhere plain rows of any length."""
    from rich.console import Console

    if stdout().is_terminal:
        stdout().print(table, soft_wrap=False)
        return
    if table.title:
        echo(str(table.title))
    table.title, table.box, table.show_lines, table.pad_edge = None, None, False, False
    wide = Console(width=100_000, file=io.StringIO(), highlight=False, markup=False, emoji=False)
    with wide.capture() as captured:
        wide.print(table)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def print_entries(groups: Mapping[str, Mapping[str, Sequence[str]]], *, wrapped: bool | None = None) -> None:
    """Print groups of names with paragraphs to the right of each name.

    Args:
        groups: by title, the paragraphs by name. A group without names is not printed.
        wrapped: within 100 columns and the width of a terminal; otherwise each name has one line of any length, for programs such
            as grep. None: only on a terminal.
    """
    is_wrapped = stdout().is_terminal if wrapped is None else wrapped
    indent = 4 + max(len(name) for names in groups.values() for name in names)
    width = (min(stdout().width, MAX_WIDTH) if stdout().is_terminal else MAX_WIDTH) - indent
    for title, names in groups.items():
        if names:
            echo(title)
        for name, paragraphs in names.items():
            if is_wrapped:
                lines = [line for text in paragraphs for line in textwrap.wrap(text, width, break_on_hyphens=False)]
            else:
                lines = [" ".join(filter(None, paragraphs))]
            for number, line in enumerate(lines):
                echo(f"  {'' if number else name:{indent - 2}}{line}")
