"""The rules on imports in pyproject.toml detect forbidden imports."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


# Removes the finder of the installed package, so that the copy in the current directory is imported.
PROGRAM = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
sys.path.insert(0, "")
from importlinter.cli import lint_imports_command
lint_imports_command()
"""


def run_import_linter(folder: Path) -> subprocess.CompletedProcess[str]:
    """Return the output of import-linter for the package in `folder` under the project's rules."""
    command = [sys.executable, "-c", PROGRAM, "--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("module", "line", "rule"),
    [
        ("numerics/discretisation.py", "import longscan.ops", "Imports go one way"),
        ("ops/__init__.py", "import longscan.training", "Imports go one way"),
        ("tasks/classification.py", "import longscan.models", "Tasks know no model"),
        ("engine/engine.py", "import accelerate", "The engine needs torch alone"),
        ("engine/engine.py", "import longscan.tasks", "Imports go one way"),
        ("datasets/catalogue.py", "import longscan.tasks", "Imports go one way"),
        ("report/page.py", "import longscan.tasks", "Reports read records, not models"),
    ],
)
def test_forbidden_import_breaks_its_rule(tmp_path: Path, module: str, line: str, rule: str) -> None:
    shutil.copytree(ROOT / "src" / "longscan", tmp_path / "longscan", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    path = tmp_path / "longscan" / module
    path.write_text(f"{path.read_text()}\n{line}\n")
    completed = run_import_linter(tmp_path)
    assert completed.returncode == 1, completed.stdout + completed.stderr
    assert f"{rule} BROKEN" in " ".join(completed.stdout.split())
