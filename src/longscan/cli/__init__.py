"""The command `longscan`: train, sweep, eval, predict, inspect, record, automata, data, tasks, layers, report and others.

Each command is a function whose parameters are its arguments (`longscan.cli._arguments`) and which returns the exit code. An
error that the user can correct (a setting, a file, a folder) is one line on stderr with exit code 2; a run whose loss is not
finite ends with 1, an interrupted one with 130. Packages outside the standard library are imported inside the functions that use
them, so that a missing package is also an error of one line.
"""

import errno
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import longscan
from longscan._allocator import keep_freed_memory
from longscan._errors import SettingError, nearest, one_line
from longscan._threads import let_waiting_threads_sleep
from longscan.cli._arguments import first_line, run_command
from longscan.cli._console import echo, print_entries, print_error, stdout
from longscan.cli.automata import automata
from longscan.cli.data import data
from longscan.cli.fitting import sweep, train
from longscan.cli.listing import layers, show, tasks
from longscan.cli.machine import doctor, explain
from longscan.cli.reproduction import reproduce
from longscan.cli.runs import baselines, evaluate, inspect, predict, record, report

# The groups of `longscan --help`: title, and the commands by name.
COMMAND_GROUPS: dict[str, dict[str, Callable[..., int]]] = {
    "Train and use models": {
        "train": train,
        "sweep": sweep,
        "eval": evaluate,
        "predict": predict,
        "inspect": inspect,
        "baselines": baselines,
        "report": report,
        "record": record,
    },
    "Data, tasks and layers": {"show": show, "data": data, "tasks": tasks, "layers": layers},
    "Papers and automata": {"reproduce": reproduce, "automata": automata},
    "Machine and kernels": {"doctor": doctor, "explain": explain},
}
COMMANDS = {name: command for group in COMMAND_GROUPS.values() for name, command in group.items()}
# The messages of torch's RuntimeError when the memory of the CPU or of a GPU is not sufficient.
_OUT_OF_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory|Storage size calculation overflowed")

# Errors of the operating system that are no fault of this program: a full or failing disk, a quota, missing rights.
_SYSTEM_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name (`sys.argv` if None) and return its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    is_own_program = argv == sys.argv[1:] and Path(sys.argv[0]).suffix == ".py" and Path(sys.argv[0]).name != "__main__.py"
    program = sys.argv[0] if is_own_program else None
    name = argv[0] if argv else "--help"
    if "LONGSCAN_WORKER_PROGRAM" in os.environ:
        needed = 'each process of a sweep runs it first, so the call of main must be below `if __name__ == "__main__":`'
        print_error(f"{os.environ['LONGSCAN_WORKER_PROGRAM']}: {needed}")
        return 2
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed, as by `>&-`; the descriptor must not become that of another file
            setattr(sys, stream, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the end
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # where the encoding lacks a character, as in pipes on Windows
    keep_freed_memory()
    let_waiting_threads_sleep()
    try:
        code = run_command(name, COMMANDS[name], argv[1:], program) if name in COMMANDS else _print_page(name, argv)
        sys.stdout.flush()
        return code
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "longscan"):
            raise
        print_error(f"longscan {name} needs the package {package}, which is not installed: pip install 'longscan[train,data]'")
        return 2
    except (SettingError, ImportError) as error:  # ImportError: its message names the package to install
        print_error(str(error))
        return 2
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error))):
            raise
        print_error(f"{name} needs more memory than there is here: make the model, batches, lengths or splits smaller")
        return 2
    except KeyboardInterrupt as interrupt:
        sys.stderr.write("; ".join(["longscan: stopped", *map(str, interrupt.args)]) + "\n")
        return 130
    except BrokenPipeError:  # the reader of stdout has ended
        _discard_output()
        return 1
    except OSError as error:
        if error.errno not in _SYSTEM_ERRORS:
            raise
        print_error(one_line(error))
        _discard_output()
        return 2


def _discard_output() -> None:
    """Redirect stdout to the null device, because Python flushes its buffer at exit, which would raise the same error again."""
    with suppress(OSError, ValueError):  # a stdout that is no file, as in tests, has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_page(name: str, argv: Sequence[str]) -> int:
    """Print the version or the list of commands and return the exit code. Raises SettingError for an unknown command."""
    if name == "--version":
        echo(f"longscan {longscan.__version__}")
        return 0
    if name not in ("-h", "--help"):
        near = nearest(name, (*COMMANDS, "--help", "--version"))
        hint = f"; did you mean `longscan {near}`?" if near else ""
        raise SettingError(f"the command must be one of {', '.join(COMMANDS)}, got {name!r}{hint}")
    stdout()  # raises if rich is missing, before a part of the page is printed
    echo("usage: longscan COMMAND [ARGUMENTS]\n\nState space models for long sequences.\n")
    groups = {title: {name: [first_line(one)] for name, one in group.items()} for title, group in COMMAND_GROUPS.items()}
    print_entries(groups, wrapped=True)
    echo(
        "\n`longscan COMMAND --help` explains a command, `longscan train --task NAME --help` also the\n"
        "settings of a task. A first model, from a table with a row for each step of a pump:\n"
        "  longscan train pumps.csv --label worn --id pump --time second"
    )
    return 0 if argv else 2
