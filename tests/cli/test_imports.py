"""Imports happen late: none by `import longscan`, torch by no help page, plotly only by commands that use it."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

BLOCKED = "import sys; sys.modules |= dict.fromkeys(['plotly']); "


def python(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, timeout=200)


def imported_by(code: str) -> set[str]:
    """Top-level packages outside the standard library that a program imports beyond those of Python's own start."""
    listing = "import json, sys; print(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    before, after = (set(json.loads(python(f"{first}; {listing}").stdout)) for first in ("pass", code))
    return after - before - sys.stdlib_module_names


def test_importing_longscan_imports_nothing_else() -> None:
    assert imported_by("import longscan") == {"longscan"}


def test_the_commands_are_known_without_torch() -> None:
    assert imported_by("import longscan.cli") == {"longscan"}


TRAIN = ["accelerate", "yaml", "rich", "safetensors", "torchmetrics", "tensorboard", "scipy"]


COMMANDS = ("--help", "layers", "tasks", "train", "eval")
EACH = """
import contextlib, io, json, sys
missing, commands = json.loads(sys.argv[1])
sys.modules |= dict.fromkeys(missing)
from longscan.cli import main
found = {}
for command in commands:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main([command, *{"train": ["--out", "x", "--task", "parity"], "eval": ["x"]}.get(command, [])])
    found[command] = code, out.getvalue(), err.getvalue()
print(json.dumps(found))
"""


@cache
def run_each(*missing: str) -> dict[str, tuple[int, str, str]]:
    """The exit code, output and errors of every command, one after the other in a process that lacks some packages."""
    done = python(EACH, json.dumps([missing, COMMANDS]))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("missing", [["yaml"], ["rich"], TRAIN])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_package_is_one_line(missing: list[str], command: str) -> None:
    code, out, err = run_each(*missing)[command]
    if command in ("--help", "layers", "tasks") and "rich" not in missing:
        assert code == 0
        return
    assert code == 2
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"longscan: longscan {command} needs the package ")
    assert line.partition(" needs the package ")[2].partition(",")[0] in missing
    assert line.endswith("pip install 'longscan[train,data]'")


def test_data_sets_that_a_missing_package_carries() -> None:
    program = "import sys; sys.modules |= dict.fromkeys(['aeon']); from longscan.cli import main; sys.exit(main())"
    done = python(program, "show", "uea")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("longscan: task.data_dir: name the files' folder, or install aeon")
    assert line.endswith("pip install 'longscan[train,data]'")


def test_models_need_nothing_but_torch_and_numpy() -> None:
    others = "['safetensors', 'accelerate', 'yaml', 'rich', 'torchmetrics', 'tensorboard', 'aeon', 'pandas']"
    code = f"{BLOCKED} sys.modules |= dict.fromkeys({others}); from longscan import SequenceModel; import longscan.tasks; "
    done = python(code + "SequenceModel.from_spec('ma s4d lru gru lstm', d_model=4, d_input=1, d_output=2)")
    assert done.returncode == 0, done.stderr


def test_the_compiler_is_imported_only_where_it_is_used() -> None:
    """It takes as long to import as everything else together."""
    done = python("import sys, longscan, longscan.ops, longscan.layers, longscan.models, longscan.tasks; "
                  "sys.exit('torch._dynamo' in sys.modules)")  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_run_without_plotly_is_kept_and_the_report_says_what_it_needs(tmp_path: Path, tiny_words: list[str]) -> None:
    record = ["record", str(tmp_path / "run"), "--results", str(tmp_path / "runs" / "x.jsonl")]
    program = BLOCKED + "from longscan.cli import main; print(main(sys.argv[1:]), file=sys.stderr); "
    program += f"sys.exit(main({record}))"
    done = python(program, "train", "--out", str(tmp_path / "run"), *tiny_words)
    *_, plotly, code = done.stderr.splitlines()
    assert code == "2"
    assert plotly.startswith("longscan: longscan.report.run_report: needs the package plotly, which is not")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "finished"
    assert done.returncode == 0, "a record needs no package beyond those of training"
    assert json.loads((tmp_path / "runs" / "x.jsonl").read_text())["task"] == "parity"
    assert "Traceback" not in done.stderr
