"""Run the checks that need a GPU, and write a line of JSON for each of them as soon as it ends.

    python tests/soak/gpu.py --minutes 8 [--only NAME ...] [--logs DIR] [--out results/gpu_tests.jsonl]

The checks: `doctor` compares each kernel with the reference, `capture` tests updates in CUDA graphs and seeds that train
together, `contracts` tests all ops and layers with their Triton kernels, and `tracing` runs graphs of every op and layer for the
time that is left (of the cases in the log folder's tracing.jsonl none runs again). A check that has not ended when its time is
over counts as not finished, and its line has the counts of what ran: kernels in `doctor`, cases in the others. A line of the file
has "check", "passed", "failed", "finished", "status", "seconds", "command", "commit", "device", "torch" and "date". What a check
prints is in DIR/CHECK.txt. The exit status is 1 if a check failed or was not finished. Where there are 12 cores or more, or with
--concurrent, all checks begin together, and each may take the whole time; otherwise they run one after another. --processes is
the number of processes in `contracts` and in `tracing`; `capture` has 3 of its own.

With --device cpu the same checks run without a GPU, the kernels of the CPU in place of those of Triton.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from longscan.training.run import commit

ROOT = Path(__file__).resolve().parents[2]
COMMAND_LINE = "import sys; from longscan.cli import main; sys.exit(main())"
CORES_FOR_ALL = 12  # with which the checks run together
LAST_COUNTS = 20  # seconds for a check that is interrupted, or at its end, to print its counts
CAPTURE_TESTS = ("tests/training/test_capture.py", "tests/training/test_stacked.py")
CONTRACT_TESTS = (
    "tests/ops/test_triton.py",
    "tests/ops/test_dplr_spectrum.py",
    "tests/contracts/test_op_isolation.py",
    "tests/contracts/test_ops.py",
    "tests/contracts/test_layer_isolation.py",
)


class Check(NamedTuple):
    """A command, and the largest part of the whole time that it may take."""

    command: list[str]
    share: float


def list_checks(device: str, logs: Path, processes: int) -> dict[str, Check]:
    """Return the checks by name, in the order in which they run; the longer ones with this number of processes."""
    python = sys.executable
    # pytest-benchmark, if it is installed, warns that it cannot measure with several processes, and warnings are errors here.
    test = [python, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    tracing = [python, "tests/soak/tracing.py", "--device", device, "--backends", native_backend(device), "--timeout", "120"]
    tracing += ["--processes", str(processes), "--out", str(logs / "tracing.jsonl")]
    return {
        "doctor": Check([python, "-c", COMMAND_LINE, "doctor"], 0.4),
        "capture": Check([*test, "-n", "3", *CAPTURE_TESTS], 0.3),
        "contracts": Check([*test, "-n", str(processes), *CONTRACT_TESTS], 0.7),
        "tracing": Check(tracing, 1.0),
    }


def native_backend(device: str) -> str:
    """Return the backend whose kernels run on a device."""
    return "triton" if device == "cuda" else "cpu"


def run_check(name: str, check: Check, device: str, seconds: float, logs: Path) -> dict[str, Any]:
    """Run the command of a check for at most `seconds`; return its counts and whether it ended."""
    settings = {"LONGSCAN_DEVICE": device, "LONGSCAN_BACKEND": native_backend(device), "LONGSCAN_EXAMPLES": "2"}
    start, path = time.monotonic(), logs / f"{name}.txt"
    limit = ["--seconds", f"{max(1.0, seconds - LAST_COUNTS):.0f}"] if name == "tracing" else []
    with path.open("wb") as log:
        process = subprocess.Popen(
            [*check.command, *limit], cwd=ROOT, env=os.environ | settings, stdout=log, stderr=subprocess.STDOUT
        )
    status = None
    try:
        status = process.wait(max(0.0, start + seconds - time.monotonic()))
    except subprocess.TimeoutExpired:
        interrupt(process)
    text = path.read_text("utf-8", errors="replace")
    passed, failed = count_kernels(text) if name == "doctor" else count_cases(text)
    return {
        "check": name,
        "passed": passed,
        "failed": failed,
        "finished": status is not None,
        "status": status,
        "seconds": round(time.monotonic() - start, 1),
    }


def interrupt(process: "subprocess.Popen[bytes]") -> None:
    """End a process by SIGINT, on which pytest still prints its counts, or kill it if it does not end."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(LAST_COUNTS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def count_kernels(text: str) -> tuple[int, int]:
    """Return how many kernels passed and how many have faults, by the last column of the table of `longscan doctor`."""
    verdicts = re.findall(r"^.* {2,}\S+ {2,}\S+ {2,}(passed$|\d+ faults; )", text, re.MULTILINE)
    return verdicts.count("passed"), len(verdicts) - verdicts.count("passed")


def count_cases(text: str) -> tuple[int, int]:
    """Return how many cases passed and how many did not, by the summaries of pytest and of tracing.py, such as "3 passed"."""
    summaries = [line for line in text.splitlines() if re.search(r"\d+ (passed|failed)", line)]
    counts = dict.fromkeys(("passed", "failed", "crashed", "hung"), 0)
    for line in summaries:
        for number, word in re.findall(rf"(\d+) ({'|'.join(counts)})", line):
            counts[word] += int(number)
    return counts.pop("passed"), sum(counts.values())


def main() -> int:
    """Read the command line and run the checks; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8, help="length of the call")
    parser.add_argument("--only", nargs="+", help="names of checks; all of them by default")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--logs", type=Path, default=ROOT / "runs" / "gpu_tests", help="folder for what the checks print")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "gpu_tests.jsonl", help="file of the records")
    parser.add_argument("--processes", type=int, default=4, help="processes of `contracts` and of `tracing`")
    parser.add_argument(
        "--concurrent",
        action=argparse.BooleanOptionalAction,
        default=(os.cpu_count() or 1) >= CORES_FOR_ALL,
        help=f"whether all checks begin together; by default with {CORES_FOR_ALL} cores or more",
    )
    options = parser.parse_args()
    checks = list_checks(options.device, options.logs, options.processes)
    if unknown := set(options.only or ()) - set(checks):
        parser.error(f"`--only` must name some of {', '.join(checks)}, got {', '.join(sorted(unknown))}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("`--device` must be cpu, as torch finds no CUDA device here, got cuda")
    options.logs.mkdir(parents=True, exist_ok=True)
    names, whole = options.only or list(checks), 60 * options.minutes
    end = time.monotonic() + whole
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    command = "python " + " ".join(["tests/soak/gpu.py", *sys.argv[1:]])
    lock = threading.Lock()

    def run(name: str) -> bool:
        """Run a check and write its record; return whether it ended without a failure."""
        left = end - time.monotonic()
        seconds = left if options.concurrent else min(checks[name].share * whole, left)
        if seconds <= 0:
            return False
        row = run_check(name, checks[name], options.device, seconds, options.logs)
        row |= {"command": command, "commit": commit(), "device": device, "torch": torch.__version__}
        row |= {"date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        line = json.dumps(row) + "\n"
        with lock, options.out.open("a", encoding="utf-8") as file:
            file.write(line)
            sys.stdout.write(line)
            sys.stdout.flush()
        return row["finished"] and row["status"] == 0

    with ThreadPoolExecutor(len(names) if options.concurrent else 1) as pool:
        passed = list(pool.map(run, names))
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
