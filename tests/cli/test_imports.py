"""Slow imports are late: `import longscan` imports nothing, help pages no torch, and only reports jinja2."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

BLOCKED = "import sys; sys.modules |= dict.fromkeys(['jinja2']); "


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=200)


def list_imported_packages(code: str) -> set[str]:
    """Return the top-level packages outside the standard library that a program imports, without those of Python's start."""
    listing = "import json, sys; print(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    before, after = (set(json.loads(run_python(f"{first}; {listing}").stdout)) for first in ("pass", code))
    return after - before - sys.stdlib_module_names


def test_import_longscan_imports_nothing_else() -> None:
    assert list_imported_packages("import longscan") == {"longscan"}


def test_cli_imports_no_torch() -> None:
    assert list_imported_packages("import longscan.cli") == {"longscan"}


TRAIN_PACKAGES = ["accelerate", "yaml", "rich", "safetensors", "torchmetrics", "tensorboard", "scipy"]


COMMANDS = ("--help", "layers", "tasks", "train", "eval")
MISSING = (["yaml"], ["rich"], TRAIN_PACKAGES)
# One process runs all cases and imports once what takes longest: modules that import no package of TRAIN_PACKAGES, as the test of
# models below shows.
RUN_COMMANDS = """
import contextlib, io, json, os, sys
import longscan.layers, longscan.models, longscan.ops, longscan.tasks
cases, commands = json.loads(sys.argv[1])
for missing in cases:
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1]:
            sys.exit(1)
        continue
    sys.modules |= dict.fromkeys(missing)
    from longscan.cli import main
    results = {}
    for command in commands:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code = main([command, *{"train": ["--out", "x", "--task", "parity"], "eval": ["x"]}.get(command, [])])
        results[command] = code, out.getvalue(), err.getvalue()
    print(json.dumps(results))
    sys.exit()
"""


@cache
def run_commands() -> list[dict[str, tuple[int, str, str]]]:
    """Return the exit code, output and errors of every command without the packages of each case of MISSING."""
    completed = run_python(RUN_COMMANDS, json.dumps([MISSING, COMMANDS]))
    assert completed.returncode == 0, completed.stderr
    return [json.loads(line) for line in completed.stdout.splitlines()]


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("command", COMMANDS)
def test_missing_package_gives_an_error_of_one_line(missing: list[str], command: str) -> None:
    code, out, err = run_commands()[MISSING.index(missing)][command]
    if command in ("--help", "layers", "tasks") and "rich" not in missing:
        assert code == 0
        return
    assert code == 2
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"longscan: longscan {command} needs the package ")
    assert line.partition(" needs the package ")[2].partition(",")[0] in missing
    assert line.endswith("pip install 'longscan[train,data]'")


def test_data_set_of_a_missing_package_fails() -> None:
    program = "import sys; sys.modules |= dict.fromkeys(['aeon']); from longscan.cli import main; sys.exit(main())"
    completed = run_python(program, "show", "uea")
    assert completed.returncode == 2
    (line,) = completed.stderr.splitlines()
    assert line.startswith("longscan: `task.data_dir` must be the folder of the files, got None; the package aeon")
    assert line.endswith("pip install 'longscan[train,data]'")


def test_packages_import_their_modules_where_they_are_used() -> None:
    """Not for type checkers' sake either: the import of a package of lazy names imports nothing that these need."""
    needed = ["pandas", "sklearn", "accelerate", "optuna", "torch", "scipy"]
    program = "import sys, longscan.estimators, longscan.training, longscan.report"
    completed = run_python(f"{program}; print([name for name in {needed} if name in sys.modules])")
    assert completed.stdout == "[]\n", completed.stderr


def test_models_need_torch_and_numpy_only() -> None:
    """Nor do they import the compiler of PyTorch, whose import takes as long as all others together."""
    others = ["torch._dynamo", "aeon", "pandas", *TRAIN_PACKAGES]
    completed = run_python(
        "import sys, longscan, longscan.ops, longscan.layers, longscan.models, longscan.tasks; "
        "longscan.SequenceModel.from_spec('ma s4d lru gru lstm', d_model=4, d_input=1, d_output=2); "
        f"print([name for name in {others} if name in sys.modules])"
    )
    assert completed.stdout == "[]\n", completed.stderr


def test_run_without_jinja2_is_saved_and_the_report_names_the_package(tmp_path: Path, tiny_argv: list[str]) -> None:
    record = ["record", str(tmp_path / "run"), "--results", str(tmp_path / "runs" / "x.jsonl")]
    program = BLOCKED + "from longscan.cli import main; print(main(sys.argv[1:]), file=sys.stderr); "
    program += f"sys.exit(main({record}))"
    completed = run_python(program, "train", "--out", str(tmp_path / "run"), *tiny_argv)
    *_, error, code = completed.stderr.splitlines()
    assert code == "2"
    assert error.startswith("longscan: longscan.report.run_report needs the package jinja2, which is not")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "finished"
    assert completed.returncode == 0, "a record needs only the packages of training"
    assert json.loads((tmp_path / "runs" / "x.jsonl").read_text())["task"] == "parity"
    assert "Traceback" not in completed.stderr
