"""Check an installed longscan: compiled kernels for every instruction set, saved files, an estimator and the command line.

Run by a Python that has longscan installed from a wheel, in any folder but that of the sources:

    python check_wheel.py

It needs nothing but the package and its extra `estimators`, prints one line for each check, and exits with 1 if one fails.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np
import torch

import longscan
from longscan.estimators import SSMClassifier
from longscan.ops import linear_scan

INSTRUCTION_SETS = ("baseline", "avx2", "avx512")
KERNELS = """
import torch
from longscan.ops import _native, selective_scan
torch.manual_seed(0)
u, dt = torch.randn(2, 70, 5), torch.rand(2, 70, 5)
A, B, C = -torch.rand(5, 3), torch.randn(2, 70, 3), torch.randn(2, 70, 3)
expected = selective_scan(*(x.double() for x in (u, dt, A, B, C)), backend="reference")[0]
difference = (selective_scan(u, dt, A, B, C, backend="cpu")[0] - expected).abs().max() / expected.abs().max()
assert difference < 1e-5, difference
print(_native.isa())
"""


def check_location() -> str:
    """The package is the installed one."""
    folder = Path(longscan.__file__).parent
    assert folder.is_relative_to(sysconfig.get_path("platlib")), f"{folder} is not the installed package"
    return str(folder)


def check_kernels() -> str:
    """The kernels run for each instruction set that this processor has, and no other is accepted."""
    ran, refused = [], []
    for name in INSTRUCTION_SETS:
        environment = os.environ | {"LONGSCAN_CPU_ISA": name}
        result = subprocess.run([sys.executable, "-c", KERNELS], env=environment, capture_output=True, text=True)
        if result.returncode == 0:
            assert result.stdout.strip() == name, result.stdout
            ran.append(name)
        else:
            assert f"this processor or build has no {name}" in result.stderr, result.stderr
            refused.append(name)
    assert "baseline" in ran
    return f"{', '.join(ran)}" + (f" (not on this processor: {', '.join(refused)})" if refused else "")


def check_threads() -> str:
    """The kernels start their threads by torch's copy of OpenMP: the process has loaded one."""
    torch.set_num_threads(2)
    linear_scan(torch.full((64,), 0.5), torch.ones(64, 512, 64), backend="cpu")
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return "not checked: no /proc"
    copies = sorted({line.split()[-1] for line in maps.read_text().splitlines() if "gomp" in line or "libomp" in line})
    ours = [path for path in copies if "longscan" in path]
    assert not ours, f"the wheel has brought its own OpenMP: {ours}"
    return ", ".join(Path(path).name for path in copies)


def check_estimator() -> str:
    """An estimator learns, is saved, and the loaded one makes the same predictions."""
    random = np.random.default_rng(0)
    labels = random.choice(["calm", "rough"], 60)
    rate = np.where(labels == "rough", 1.2, 0.4)[:, None]
    series = np.sin(rate * np.arange(40) + random.uniform(0, 6, (60, 1))) + 0.2 * random.standard_normal((60, 40))
    model = SSMClassifier(random_state=0, device="cpu").fit(series[:40], labels[:40])
    accuracy = model.score(series[40:], labels[40:])
    assert accuracy > 0.9, accuracy
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder, "model"))
        loaded = SSMClassifier.load(Path(folder, "model"))
    assert (loaded.predict_proba(series) == model.predict_proba(series)).all()
    return f"accuracy {accuracy:.2f}"


def check_command() -> str:
    """The command is installed and runs."""
    command = Path(sysconfig.get_path("scripts"), "longscan")
    result = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    return result.stdout.strip()


def main() -> int:
    """Run all checks and return the exit code."""
    print(f"Python {sys.version.split()[0]}, torch {torch.__version__}, numpy {np.__version__}")
    failed = 0
    for check in (check_location, check_kernels, check_threads, check_estimator, check_command):
        name = check.__name__.removeprefix("check_")
        try:
            print(f"{name:<10} {check()}")
        except Exception as error:  # one line for each failed check; the others still run
            failed += 1
            print(f"{name:<10} FAILED: {type(error).__name__}: {error}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
