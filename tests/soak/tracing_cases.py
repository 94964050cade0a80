"""Run a part of the matrix of tests/soak/tracing.py: a unit is every k-th case, in a child process."""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

MATRIX = Path(__file__).parent / "tracing.py"
UNITS = 300
BAD = ("failed", "crashed", "hung")


def run(seed: int, until: float, write: Callable[..., None]) -> None:
    command = [sys.executable, str(MATRIX)]
    listed = subprocess.run([*command, "--list"], check=True, capture_output=True, text=True).stdout.splitlines()
    only = "^(" + "|".join(map(re.escape, listed[seed % UNITS :: UNITS])) + ")$"
    with tempfile.TemporaryDirectory() as folder:
        out, reported = Path(folder) / "cases.jsonl", 0
        words = ["--out", str(out), "--only", only, "--timeout", "250", "--seconds", str(max(1.0, until - time.monotonic()))]
        process = subprocess.Popen([*command, *words], stdout=subprocess.DEVNULL)
        over = False
        while not over:
            over = process.poll() is not None
            lines = out.read_bytes().split(b"\n")[:-1] if out.exists() else []
            for found in map(json.loads, lines[reported:]):
                failure = f"{found['case']}: {found['status']}: {found['detail']}" if found["status"] in BAD else None
                write(subject=found["case"].split("/")[0], cases=1, outcomes={found["status"]: 1}, failure=failure)
            reported = len(lines)
            time.sleep(0.2)
        if not reported:
            raise RuntimeError(f"{MATRIX.name} ended with {process.returncode} and no case")
