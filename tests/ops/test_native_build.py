"""Installation: with a compiler the kernels are built; without one the package uses the eager backend and logs it."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import scikit_build_core
import torch

ROOT = Path(__file__).parents[2]
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}
PIP = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]

# Prints the backend that `auto` chooses, the number of log messages and their text, and the error of an explicit backend.
PROBE = """
import logging, torch
records = []
class Recorder(logging.Handler):
    def emit(self, record): records.append(record.getMessage())
logging.getLogger("longscan").addHandler(Recorder())
from longscan.ops import explain, linear_scan
print(explain("linear_scan"))
for _ in range(2):
    x, _ = linear_scan(torch.tensor([0.5]), torch.ones(1, 3, 1))
    assert x.flatten().tolist() == [1.0, 1.5, 1.75]
print(len(records), *records)
try:
    linear_scan(torch.tensor([0.5]), torch.ones(1, 3, 1), backend="cpu")
    print("explicit: runs")
except ValueError as error:
    print("explicit:", error)
"""

pytestmark = pytest.mark.slow


def run(command: list[str], **environment: str) -> str:
    variables = {**os.environ, "PYTHONPATH": "", **environment}  # a path to the sources would hide the installed package
    result = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a copy of the files that the build needs, so that this checkout is not changed."""
    copy = tmp_path / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("csrc", "src"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return copy


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Return the Python of a new environment that has the packages of this one, but not its editable installs."""
    run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "environment")])
    python = str(tmp_path / "environment" / "bin" / "python")
    site = Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    folders = {str(Path(module.__file__).parents[1]) for module in (pytest, torch, scikit_build_core)}
    site.joinpath("packages.pth").write_text("\n".join(sorted(folders)) + "\n")
    return python


def install(python: str, *requirements: str, **environment: str) -> None:
    run([*PIP, "--python", python, "install", "--no-build-isolation", "--no-deps", *requirements], **environment)


def build_wheel(source: Path, **environment: str) -> Path:
    run([*PIP, "wheel", "--no-build-isolation", "--no-deps", "-w", str(source / "wheels"), str(source)], **environment)
    (path,) = (source / "wheels").iterdir()
    return path


def list_kernels(wheel: Path) -> list[str]:
    return [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("longscan/ops/_native.") and "pyi" not in name]


def assert_eager_is_used_and_logged(output: str) -> None:
    backend, logged, explicit = output.splitlines()
    assert backend.startswith("linear_scan on cpu, torch.float32: eager (the compiled CPU kernels are not installed")
    assert logged.startswith("1 linear_scan runs on the eager backend, not cpu: the compiled CPU kernels are not installed")
    assert explicit.startswith("explicit: `backend` must be ")
    assert "linear_scan here, got 'cpu': the compiled CPU kernels are not installed" in explicit


def test_wheel_built_without_compiler_uses_eager(source: Path, python: str) -> None:
    wheel = build_wheel(source, **NO_COMPILER)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert list_kernels(wheel) == []
    install(python, str(wheel))
    assert_eager_is_used_and_logged(run([python, "-c", PROBE]))


def test_editable_install_without_compiler_uses_eager(source: Path, python: str) -> None:
    install(python, "-e", str(source), **NO_COMPILER)
    assert run([python, "-c", "import longscan; print(longscan.__file__)"]).startswith(str(source))
    assert_eager_is_used_and_logged(run([python, "-c", PROBE]))


@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler on this machine")
def test_wheel_built_with_compiler_has_kernels(source: Path, python: str) -> None:
    if subprocess.run([os.environ.get("CXX", "c++"), "--version"], capture_output=True).returncode != 0:
        pytest.skip("no working C++ compiler on this machine")
    wheel = build_wheel(source)
    assert len(list_kernels(wheel)) == 1
    install(python, str(wheel))
    output = run([python, "-c", PROBE]).splitlines()
    assert output == ["linear_scan on cpu, torch.float32: cpu (native kernel)", "0", "explicit: runs"]
    assert "FAILED" not in run([python, str(ROOT / "packaging" / "check_wheel.py")])
