"""Run a part of the matrix of tests/soak/tracing.py: a unit is every `UNITS`-th case, in a child process."""

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
    case_names = subprocess.run([*command, "--list"], check=True, capture_output=True, text=True).stdout.splitlines()
    only = "^(" + "|".join(map(re.escape, case_names[seed % UNITS :: UNITS])) + ")$"
    with tempfile.TemporaryDirectory() as folder:
        out, reported = Path(folder) / "cases.jsonl", 0
        options = ["--out", str(out), "--only", only, "--timeout", "250", "--seconds", str(max(1.0, until - time.monotonic()))]
        process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
        finished = False
        while not finished:
            finished = process.poll() is not None
            lines = out.read_bytes().split(b"\n")[:-1] if out.exists() else []
            for result in map(json.loads, lines[reported:]):
                failure = f"{result['case']}: {result['status']}: {result['detail']}" if result["status"] in BAD else None
                write(subject=result["case"].split("/")[0], cases=1, outcomes={result["status"]: 1}, failure=failure)
            reported = len(lines)
            time.sleep(0.2)
        if not reported:
            raise RuntimeError(f"{MATRIX.name} ended with {process.returncode} and no case")
