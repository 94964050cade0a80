"""Slow imports are late: `import longscan` imports nothing, help pages no torch, and only reports jinja2."""

import contextlib
import io
import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import longscan
from fork_server import PROCESSES


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=200)


def list_imported_packages(code: str) -> set[str]:
    """Return the top-level packages outside the standard library that a program imports, without those of Python's start."""
    listing = "import json, sys; print(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    before, after = (set(json.loads(run_python(f"{first}; {listing}").stdout)) for first in ("pass", code))
    return after - before - sys.stdlib_module_names


def test_import_longscan_imports_nothing_else() -> None:
    assert list_imported_packages("import longscan") == {"longscan"}


def test_modules_of_the_package_are_imported_when_they_are_used() -> None:
    public = {module.name for module in pkgutil.iter_modules(longscan.__path__) if not module.name.startswith("_")}
    assert set(longscan._SUBMODULES) == public - {"cli"}
    completed = run_python("import longscan; print(longscan.ops.linear_scan.__name__, longscan.tasks.TASKS['parity'].name)")
    assert completed.stdout == "linear_scan parity\n", completed.stderr
    with pytest.raises(AttributeError, match=r"^module 'longscan' has no attribute 'opps'$"):
        _ = longscan.opps


def test_cli_imports_no_torch() -> None:
    assert list_imported_packages("import longscan.cli") == {"longscan"}


TRAIN_PACKAGES = ["accelerate", "yaml", "rich", "safetensors", "torchmetrics", "tensorboard", "scipy"]


COMMANDS = ("--help", "layers", "tasks", "train", "eval")
MISSING = (["yaml"], ["rich"], TRAIN_PACKAGES)
# One process runs all cases and imports once what takes longest: modules that import no package of TRAIN_PACKAGES, as the first
# line that it prints shows.
RUN_COMMANDS = """
import contextlib, io, json, os, sys
import longscan.layers, longscan.models, longscan.ops, longscan.tasks
longscan.SequenceModel.from_spec('ma s4d lru gru lstm', d_model=4, d_input=1, d_output=2)
others, cases = json.loads(sys.argv[1])
print(json.dumps([name for name in others if name in sys.modules]), flush=True)
for missing, commands in cases:
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1]:
            sys.exit(1)
        continue
    sys.modules |= dict.fromkeys(missing)
    from longscan.cli import main
    results = []
    for command in commands:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code = main(command)
        results.append((code, out.getvalue(), err.getvalue()))
    print(json.dumps(results), flush=True)
    os._exit(0)
"""


def run_without_jinja2(commands: list[list[str]], path: str) -> None:
    """Write code, output and errors of commands to a file, in a process of the fork server that cannot import jinja2."""
    for name in [name for name in sys.modules if name.startswith("longscan.report")]:
        del sys.modules[name]  # some of them have imported jinja2
    sys.modules["jinja2"] = None  # type: ignore[assignment]
    from longscan.cli import main

    results = []
    for command in commands:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code = main(command)
        results.append((code, out.getvalue(), err.getvalue()))
    Path(path).write_text(json.dumps(results))


@pytest.fixture(scope="module")
def outcomes() -> dict[Any, Any]:
    """Return what other packages the models have imported, and code, output and errors of commands without some packages.

    The keys are "imported", a command and the place of a case in MISSING, and "aeon".
    """
    options = {"train": ["--out", "x", "--task", "parity"], "eval": ["x"]}
    commands = [[command, *options.get(command, [])] for command in COMMANDS]
    others = ["torch._dynamo", "aeon", "pandas", *TRAIN_PACKAGES]
    cases = [*((missing, commands) for missing in MISSING), (["aeon"], [["show", "uea"]])]
    completed = run_python(RUN_COMMANDS, json.dumps([others, cases]))
    assert completed.returncode == 0, completed.stderr
    assert "Traceback" not in completed.stderr
    imported, *results, aeon = [json.loads(line) for line in completed.stdout.splitlines()]
    found = {(command, i): result for i, each in enumerate(results) for command, result in zip(COMMANDS, each, strict=True)}
    return {**found, "imported": imported, "aeon": aeon[0]}


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("command", COMMANDS)
def test_missing_package_gives_an_error_of_one_line(missing: list[str], command: str, outcomes: dict[Any, Any]) -> None:
    code, out, err = outcomes[command, MISSING.index(missing)]
    if command in ("--help", "layers", "tasks") and "rich" not in missing:
        assert code == 0
        return
    assert code == 2
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"longscan: longscan {command} needs the package ")
    assert line.partition(" needs the package ")[2].partition(",")[0] in missing
    assert line.endswith("pip install 'longscan[train,data]'")


def test_data_set_of_a_missing_package_fails(outcomes: dict[Any, Any]) -> None:
    code, _, err = outcomes["aeon"]
    assert code == 2
    (line,) = err.splitlines()
    assert line.startswith("longscan: `task.data_dir` must be the folder of the files, got None; the package aeon")
    assert line.endswith("pip install 'longscan[train,data]'")


def test_packages_import_their_modules_where_they_are_used() -> None:
    """Not for type checkers' sake either: the import of a package of lazy names imports nothing that these need."""
    needed = ["pandas", "sklearn", "accelerate", "optuna", "torch", "scipy"]
    program = "import sys, longscan.estimators, longscan.training, longscan.report"
    completed = run_python(f"{program}; print([name for name in {needed} if name in sys.modules])")
    assert completed.stdout == "[]\n", completed.stderr


def test_models_need_torch_and_numpy_only(outcomes: dict[Any, Any]) -> None:
    """Nor do they import the compiler of PyTorch, whose import takes as long as all others together."""
    assert outcomes["imported"] == []


def test_run_without_jinja2_is_saved_and_the_report_names_the_package(tmp_path: Path, tiny_argv: list[str]) -> None:
    train = ["train", "--out", str(tmp_path / "run"), *tiny_argv]
    record = ["record", str(tmp_path / "run"), "--results", str(tmp_path / "runs" / "x.jsonl")]
    results = tmp_path / "results.json"
    process = PROCESSES.Process(target=run_without_jinja2, args=([train, record], str(results)))
    process.start()
    process.join(100)
    assert process.exitcode == 0
    (code, _, err), recorded = json.loads(results.read_text())
    assert code == 2
    assert err.splitlines()[-1].startswith("longscan: longscan.report.run_report needs the package jinja2, which is not")
    assert "Traceback" not in err
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "finished"
    assert recorded[0] == 0, "a record needs only the packages of training"
    assert json.loads((tmp_path / "runs" / "x.jsonl").read_text())["task"] == "parity"
