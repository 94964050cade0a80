"""List the files and functions of longscan that are called by one forward pass of a layer and by one short training run.

    python benchmarks/call_path.py             two forward passes, and four updates on the recordings that aeon ships
    python benchmarks/call_path.py --json      the same as one JSON object
    python benchmarks/call_path.py --train --config recipes/aussm/parity.yaml --quick    another training run

Files and functions are in the order of their first call. All modules of the package are imported before, so that code which runs
at import does not count. Lambdas, generator expressions and comprehensions count as the function that contains them. All threads
of the process are counted, other processes are not.
"""

import argparse
import contextlib
import importlib
import inspect
import io
import json
import pkgutil
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import longscan
from longscan.blocks import MambaBlock
from longscan.cli import main as run_longscan
from longscan.layers import S6

PACKAGE = Path(longscan.__file__).parent
RECIPE = PACKAGE.parents[1] / "recipes/quickstart/basic_motions.yaml"
TRAIN = ["--config", str(RECIPE), "--training.steps", "4", "--training.warmup", "2"]
Calls = dict[str, dict[str, int]]  # file -> function -> number of calls


def function_name(code: CodeType) -> str:
    """Return the name of the function of `code`; for a lambda or a comprehension, that of the function that contains it."""
    name = code.co_qualname
    while name.endswith(">") and "." in name:  # <lambda>, <genexpr>, <listcomp>
        name = name.rpartition(".")[0].removesuffix(".<locals>")
    return name


def record_calls(call: Callable[[], object]) -> Calls:
    """Return the functions of longscan that `call` calls in any thread, by file."""
    calls: Calls = {}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        # Bodies of modules and classes are code without local variables: they run at import.
        if event != "call" or not code.co_flags & inspect.CO_OPTIMIZED or not code.co_filename.startswith(str(PACKAGE)):
            return
        functions = calls.setdefault(str(Path(code.co_filename).relative_to(PACKAGE)), {})
        name = function_name(code)
        functions[name] = functions.get(name, 0) + 1

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls


def import_all() -> None:
    """Import every module of longscan that this machine can import."""
    for module in pkgutil.walk_packages([str(PACKAGE)], "longscan."):
        try:
            importlib.import_module(module.name)
        except ImportError as error:  # a kernel's module, where its library is not installed
            print(f"not imported: {module.name} ({error})", file=sys.stderr)


def train(arguments: list[str]) -> None:
    """Run `longscan train` with these arguments into a temporary folder; do not show what it prints."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        status = run_longscan(["train", *arguments, "--out", str(Path(folder) / "run")])
    if status != 0:
        raise SystemExit(f"longscan train {shlex.join(arguments)}: exit status {status}")


def main() -> int:
    """Print the lists or the JSON object; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object: title -> file -> function -> number of calls")
    parser.add_argument(
        "--train", nargs=argparse.REMAINDER, default=TRAIN, help="the rest of the command line is for longscan train"
    )
    options = parser.parse_args()
    import_all()
    layer, block, x = S6(16), MambaBlock(16), torch.randn(2, 32, 16)
    calls = {
        "forward pass of longscan.layers.S6": lambda: layer(x),
        "forward pass of longscan.blocks.MambaBlock": lambda: block(x),
        "longscan train": lambda: train(options.train),
    }
    found = {title: record_calls(call) for title, call in calls.items()}
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    for title, calls_of_file in found.items():
        count = sum(len(functions) for functions in calls_of_file.values())
        total = sum(number for functions in calls_of_file.values() for number in functions.values())
        print(f"{title}: {len(calls_of_file)} files, {count} functions, {total:,} calls")
        for file, functions in calls_of_file.items():
            print(f"  {file}: {', '.join(functions)}")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
