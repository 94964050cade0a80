"""Run the long reliability tests for a number of minutes in any number of processes, and record the number of cases.

    python tests/soak/run.py --minutes 10 --processes 2     # all kinds; the one furthest from its target runs first
    python tests/soak/run.py --kinds kills,damage           # some kinds
    python tests/soak/run.py --totals                       # print the sums of the records
    python tests/soak/run.py --merge FOLDER_OR_FILE         # add the records of another machine

Kinds: contracts (generated cases of the contract suites), damage (damaged files), kills (SIGKILL while training, sweeping and
saving), streaming (a million steps of a layer in chunks), tracing (the matrix of traced and exported layers). Work consists of
units. Every unit is a process with a seed that no other unit has had, so that a later call continues the work of an earlier one,
and several machines can share it (`--first-seed`). The file of `--state` holds the next seed of each kind, and under "again" the
seeds of units that were stopped before their end and must run once more. Each call adds a line per kind to `--results`. The exit
code is 1 if a case failed, 0 otherwise.
"""

import argparse
import importlib
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
GRACE = 20  # seconds that a unit may take beyond the end of the call


@dataclass(frozen=True)
class Kind:
    """A kind of test, and the sizes of its units.

    Attributes:
        target: number of cases that the records should have in the end.
        expected: approximate number of cases of one unit, which counts towards the target while it runs.
        seconds: length of one unit.
        whole: whether a unit counts only if it runs to its end; if it is stopped, its seed is used again.
    """

    target: int
    expected: int
    seconds: int
    whole: bool = False


KINDS = {
    "streaming": Kind(17, 1, 1, whole=True),
    "kills": Kind(50, 4, 60),
    "damage": Kind(2000, 300, 30),
    "tracing": Kind(3076, 40, 240),
    "contracts": Kind(100_000, 300, 60),
}


@dataclass
class Unit:
    """One process: a kind, a seed and the file that it writes a line to for every case."""

    kind: str
    seed: int
    lines: Path
    process: subprocess.Popen[bytes]

    def read(self) -> list[dict[str, Any]]:
        """Return the lines written so far, without a last line that is incomplete."""
        text = self.lines.read_bytes() if self.lines.exists() else b""
        return [json.loads(line) for line in text.split(b"\n")[:-1]]


@dataclass
class Tally:
    """The cases and failures of the units of one kind. empty_units: number of consecutive units without a case."""

    empty_units: int = 0
    cases: int = 0
    units: int = 0
    seeds: list[int] = field(default_factory=list)
    subjects: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)


def is_available(kind: str) -> bool:
    return (FOLDER / f"{kind}.py").exists()


def module_name(kind: str) -> str:
    return "tracing_cases" if kind == "tracing" else kind


def run_unit(kind: str, seed: int, seconds: float, lines: Path) -> None:
    """Run one unit in this process."""
    sys.path[:0] = [str(FOLDER), *(str(ROOT / "tests" / name) for name in ("", "contracts", "tasks"))]
    with lines.open("a", encoding="utf-8") as file:

        def write(**line: Any) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        importlib.import_module(module_name(kind)).run(seed, time.monotonic() + seconds, write)


def start_unit(kind: str, seed: int, seconds: float, folder: Path) -> Unit:
    lines = folder / f"{kind}-{seed}.jsonl"
    command = [sys.executable, __file__, "--unit", kind, "--seed", str(seed), "--seconds", str(seconds), "--lines", str(lines)]
    variables = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **os.environ, "LONGSCAN_NEW_CASES": "1"}
    if kind == "streaming":  # oneDNN caches a kernel of torch.lstm for each of up to 1,024 lengths, 0.4 MiB each
        variables["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "16"
    with (folder / f"{kind}-{seed}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=log, stderr=log, start_new_session=True)
    return Unit(kind, seed, lines, process)


def collect(unit: Unit, tally: Tally, *, stopped: bool) -> None:
    """Add the cases of a finished or stopped unit to the tally of its kind."""
    unfinished: dict[str, Any] | None = None
    before = tally.cases
    for line in unit.read():
        if "begin" in line:
            unfinished = line
            continue
        unfinished = None
        tally.cases += line["cases"]
        tally.subjects[line["subject"]] += line["cases"]
        tally.outcomes.update(line.get("outcomes", {}))
        if line.get("failure"):
            tally.failures.append({"seed": unit.seed, "case": line["subject"], "failure": line["failure"][:600]})
    if unit.process.returncode and not stopped:
        log = unit.lines.with_suffix(".log").read_text("utf-8", "replace")[-600:]
        failure = f"the process ended with {unit.process.returncode} {'in ' + unfinished['begin'] if unfinished else ''}: {log}"
        tally.failures.append({"seed": unit.seed, "case": "process", "failure": failure})
    tally.empty_units = 0 if tally.cases > before or stopped else tally.empty_units + 1
    tally.units += 1
    tally.seeds.append(unit.seed)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def sum_records(path: Path) -> dict[str, tuple[int, int]]:
    """Return the numbers of cases and failures in the records by kind."""
    sums = {kind: [0, 0] for kind in KINDS}
    for line in read_lines(path):
        sums[line["kind"]][0] += line["cases"]
        sums[line["kind"]][1] += line["failures"]
    return {kind: (cases, failures) for kind, (cases, failures) in sums.items()}


def soak(args: argparse.Namespace) -> int:
    """Run units in all processes until the time is over; return the exit status."""
    began, end = time.monotonic(), time.monotonic() + 60 * args.minutes
    kinds = [kind for kind in args.kinds.split(",") if is_available(kind)]
    state = json.loads(args.state.read_text()) if args.state.exists() else {}
    recorded_cases = {kind: cases for kind, (cases, _) in sum_records(args.results).items()}
    tallies = {kind: Tally() for kind in kinds}
    running: list[Unit] = []
    last_print = 0.0
    args.state.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="longscan-soak-"))

    def fraction_done(kind: str) -> float:
        planned = sum(unit.kind == kind for unit in running) * KINDS[kind].expected
        fraction = (recorded_cases[kind] + tallies[kind].cases + planned) / KINDS[kind].target
        return (
            fraction / 100 if KINDS[kind].whole and fraction < 1 else fraction
        )  # units that count only when they end have priority

    def next_seed(kind: str) -> int:
        seeds = state.setdefault(kind, {"next": 0, "again": []})
        seed = seeds["again"].pop() if seeds["again"] else seeds["next"] + args.first_seed
        seeds["next"] = max(seeds["next"], seed - args.first_seed + 1)
        save()
        return seed

    def save() -> None:
        partial = args.state.with_suffix(".writing")
        partial.write_text(json.dumps(state))
        partial.replace(args.state)

    def finish(unit: Unit, *, stopped: bool) -> None:
        running.remove(unit)
        if stopped and KINDS[unit.kind].whole:
            state[unit.kind]["again"].append(unit.seed)
            save()
        collect(unit, tallies[unit.kind], stopped=stopped)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the finished cases are recorded
    try:
        while running or time.monotonic() < end - 5:
            for unit in [unit for unit in running if unit.process.poll() is not None]:
                finish(unit, stopped=False)
            kinds = [kind for kind in kinds if tallies[kind].empty_units < 4]
            if not kinds:
                break
            while len(running) < args.processes and time.monotonic() < end - 5:
                kind = min(kinds, key=fraction_done)
                seconds = min(KINDS[kind].seconds, end - time.monotonic())
                running.append(start_unit(kind, next_seed(kind), seconds, scratch))
            if time.monotonic() > end + GRACE:
                break
            last_print = show_progress(last_print, began, args, tallies, running)
            time.sleep(0.2)
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; the finished cases are recorded\n")
    finally:
        for unit in running:
            if unit.process.poll() is None:
                os.killpg(unit.process.pid, signal.SIGKILL)  # with the processes that the unit has started
            unit.process.wait()
        for unit in list(running):
            finish(unit, stopped=True)
    seconds = round(time.monotonic() - began, 1)
    lines = [
        make_record(kind, tally, seconds, args.processes, "tests/soak/run.py")
        for kind, tally in tallies.items()
        if tally.cases or tally.failures
    ]
    append_lines(args.results, lines)
    for line in lines:
        sys.stderr.write(f"\n{line['kind']}: {line['cases']:,} cases, {line['failures']} failures")
        for failure in line["failed"]:
            sys.stderr.write(f"\n  seed {failure['seed']}, {failure['case']}: {failure['failure']}")
    sys.stderr.write("\n")
    return int(any(line["failures"] for line in lines))


def show_progress(
    last_print: float, began: float, args: argparse.Namespace, tallies: dict[str, Tally], running: list[Unit]
) -> float:
    """Print a progress bar, once a second in a terminal and every half minute elsewhere; return the time of the last print."""
    now, terminal = time.monotonic(), sys.stderr.isatty()
    if now - last_print < (1 if terminal else 30):
        return last_print
    counts_by_kind = Counter({kind: tally.cases for kind, tally in tallies.items()})
    for unit in running:
        counts_by_kind[unit.kind] += sum(line.get("cases", 0) for line in unit.read())
    fraction = min(1.0, (now - began) / (60 * args.minutes))
    bar = "#" * round(20 * fraction) + "." * (20 - round(20 * fraction))
    failures = sum(len(tally.failures) for tally in tallies.values())
    counts = ", ".join(f"{kind} {counts_by_kind[kind]:,}" for kind in tallies)
    sys.stderr.write(f"{chr(13) if terminal else ''}[{bar}] {counts}; {failures} failures{'' if terminal else chr(10)}")
    sys.stderr.flush()
    return now


def make_record(kind: str, tally: Tally, seconds: float, processes: int, script: str, device: str = "cpu") -> dict[str, Any]:
    """Return the line of one kind for the records of a script, which was called with the arguments of this process."""
    import torch

    from longscan.training.run import commit, device_name

    return {
        "kind": kind,
        "cases": tally.cases,
        "failures": len(tally.failures),
        "failed": tally.failures[:20],
        "units": tally.units,
        "seeds": [min(tally.seeds), max(tally.seeds)],
        "subjects": dict(sorted(tally.subjects.items())),
        "outcomes": dict(sorted(tally.outcomes.items())),
        "seconds": seconds,
        "processes": processes,
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": f"cuda, {device_name(torch.device(device))}"
        if device == "cuda"
        else device_name(torch.device(device)).rpartition(",")[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "command": shlex.join(["python", script, *remove_paths(sys.argv[1:])]),
    }


def remove_paths(argv: list[str]) -> list[str]:
    """Return the command line without the arguments that name files of this machine, for the record."""
    paths = ("--state", "--results", "--out")
    return [argument for i, argument in enumerate(argv) if argument not in paths and (i == 0 or argv[i - 1] not in paths)]


def append_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="length of the call")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="processes at the same time")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds, separated by commas")
    parser.add_argument("--first-seed", type=int, default=0, help="added to all seeds, for machines that share the work")
    parser.add_argument("--state", type=Path, default=ROOT / "runs" / "soak" / "state.json", help="file with the next seeds")
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "reliability.jsonl", help="file of the records")
    parser.add_argument("--totals", action="store_true", help="print the sums of the records")
    parser.add_argument("--merge", type=Path, help="records to add to those of --results")
    parser.add_argument("--unit", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--lines", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.unit:
        run_unit(args.unit, args.seed, args.seconds, args.lines)
        return 0
    unknown = set(args.kinds.split(",")) - set(KINDS)
    if unknown:
        parser.error(f"--kinds: got {', '.join(sorted(unknown))}, expected some of {', '.join(KINDS)}")
    if args.merge:
        source = args.merge / "reliability.jsonl" if args.merge.is_dir() else args.merge
        known = read_lines(args.results)
        append_lines(args.results, [line for line in read_lines(source) if line not in known])
    if args.totals or args.merge:
        for kind, (cases, failures) in sum_records(args.results).items():
            sys.stdout.write(f"{kind:10} {cases:9,} of {KINDS[kind].target:,} cases, {failures} failures\n")
        return 0
    return soak(args)


if __name__ == "__main__":
    sys.exit(main())
