"""Run the long reliability tests for a number of minutes, on any number of processes, and record how many cases they were.

    python tests/soak/run.py --minutes 10 --processes 2     # all kinds; the one furthest from its target goes first
    python tests/soak/run.py --kinds kills,damage           # some kinds
    python tests/soak/run.py --totals                       # what the records say so far
    python tests/soak/run.py --merge FOLDER_OR_FILE         # add the records of another machine

Kinds: contracts (generated cases of the contract suites), damage (damaged files), kills (SIGKILL while training, sweeping and
saving), streaming (a million steps of a layer in pieces), tracing (the matrix of traced and exported layers). Work is cut into
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
    """A kind of test: how a unit of it is started.

    Attributes:
        target: number of cases that the records should hold in the end.
        expected: rough number of cases of one unit, by which running units count towards the target.
        seconds: length of one unit.
        whole: whether a unit must run to its end to count; if it is stopped, its seed is used again.
    """

    target: int
    expected: int
    seconds: int
    whole: bool = False


KINDS = {
    "streaming": Kind(16, 1, 1, whole=True),
    "kills": Kind(50, 4, 60),
    "damage": Kind(2000, 300, 30),
    "tracing": Kind(2836, 40, 240),
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
    """The cases and failures of the units of one kind. empty_units: how many units in a row ended without a case."""

    empty_units: int = 0
    cases: int = 0
    units: int = 0
    seeds: list[int] = field(default_factory=list)
    subjects: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)


def available(kind: str) -> bool:
    return (FOLDER / f"{kind}.py").exists()


def module_of(kind: str) -> str:
    return "tracing_cases" if kind == "tracing" else kind


def run_unit(kind: str, seed: int, seconds: float, lines: Path) -> None:
    """Run one unit in this process."""
    sys.path[:0] = [str(FOLDER), *(str(ROOT / "tests" / name) for name in ("", "contracts", "tasks"))]
    with lines.open("a", encoding="utf-8") as file:

        def write(**line: Any) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        importlib.import_module(module_of(kind)).run(seed, time.monotonic() + seconds, write)


def start(kind: str, seed: int, seconds: float, folder: Path) -> Unit:
    lines = folder / f"{kind}-{seed}.jsonl"
    command = [sys.executable, __file__, "--unit", kind, "--seed", str(seed), "--seconds", str(seconds), "--lines", str(lines)]
    variables = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **os.environ, "LONGSCAN_NEW_CASES": "1"}
    if kind == "streaming":  # oneDNN caches a kernel of torch.lstm for each of up to 1,024 lengths, 0.4 MiB each
        variables["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "16"
    with (folder / f"{kind}-{seed}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=log, stderr=log)
    return Unit(kind, seed, lines, process)


def collect(unit: Unit, tally: Tally, *, stopped: bool) -> None:
    """Add the cases of a finished or stopped unit to the tally of its kind."""
    begun: dict[str, Any] | None = None
    before = tally.cases
    for line in unit.read():
        if "begin" in line:
            begun = line
            continue
        begun = None
        tally.cases += line["cases"]
        tally.subjects[line["subject"]] += line["cases"]
        tally.outcomes.update(line.get("outcomes", {}))
        if line.get("failure"):
            tally.failures.append({"seed": unit.seed, "case": line["subject"], "failure": line["failure"][:600]})
    if unit.process.returncode and not stopped:
        log = unit.lines.with_suffix(".log").read_text("utf-8", "replace")[-600:]
        what = f"the process ended with {unit.process.returncode} {'in ' + begun['begin'] if begun else ''}: {log}"
        tally.failures.append({"seed": unit.seed, "case": "process", "failure": what})
    tally.empty_units = 0 if tally.cases > before or stopped else tally.empty_units + 1
    tally.units += 1
    tally.seeds.append(unit.seed)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def totals(path: Path) -> dict[str, tuple[int, int]]:
    """Return the cases and failures in the records, by kind."""
    found = {kind: [0, 0] for kind in KINDS}
    for line in read_lines(path):
        found[line["kind"]][0] += line["cases"]
        found[line["kind"]][1] += line["failures"]
    return {kind: (cases, failures) for kind, (cases, failures) in found.items()}


def soak(args: argparse.Namespace) -> int:
    """Run units in all processes until the time is over; return the exit status."""
    began, end = time.monotonic(), time.monotonic() + 60 * args.minutes
    kinds = [kind for kind in args.kinds.split(",") if available(kind)]
    state = json.loads(args.state.read_text()) if args.state.exists() else {}
    done = {kind: cases for kind, (cases, _) in totals(args.results).items()}
    tallies = {kind: Tally() for kind in kinds}
    running: list[Unit] = []
    shown = 0.0
    args.state.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="longscan-soak-"))

    def share(kind: str) -> float:
        planned = sum(unit.kind == kind for unit in running) * KINDS[kind].expected
        part = (done[kind] + tallies[kind].cases + planned) / KINDS[kind].target
        return part / 100 if KINDS[kind].whole and part < 1 else part  # units that count only when they end go first

    def next_seed(kind: str) -> int:
        own = state.setdefault(kind, {"next": 0, "again": []})
        seed = own["again"].pop() if own["again"] else own["next"] + args.first_seed
        own["next"] = max(own["next"], seed - args.first_seed + 1)
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

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was done is recorded then, too
    try:
        while running or time.monotonic() < end - 5:
            for unit in [unit for unit in running if unit.process.poll() is not None]:
                finish(unit, stopped=False)
            kinds = [kind for kind in kinds if tallies[kind].empty_units < 4]
            if not kinds:
                break
            while len(running) < args.processes and time.monotonic() < end - 5:
                kind = min(kinds, key=share)
                seconds = min(KINDS[kind].seconds, end - time.monotonic())
                running.append(start(kind, next_seed(kind), seconds, scratch))
            if time.monotonic() > end + GRACE:
                break
            shown = show_progress(shown, began, args, tallies, running)
            time.sleep(0.2)
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; what was done is recorded\n")
    finally:
        for unit in running:
            unit.process.kill()
            unit.process.wait()
        for unit in list(running):
            finish(unit, stopped=True)
    seconds = round(time.monotonic() - began, 1)
    lines = [record(kind, tally, seconds, args) for kind, tally in tallies.items() if tally.cases or tally.failures]
    append(args.results, lines)
    for line in lines:
        sys.stderr.write(f"\n{line['kind']}: {line['cases']:,} cases, {line['failures']} failures")
        for failure in line["failed"]:
            sys.stderr.write(f"\n  seed {failure['seed']}, {failure['case']}: {failure['failure']}")
    sys.stderr.write("\n")
    return int(any(line["failures"] for line in lines))


def show_progress(shown: float, began: float, args: argparse.Namespace, tallies: dict[str, Tally], running: list[Unit]) -> float:
    """Print a progress bar, once a second in a terminal and every half minute elsewhere; return the time of the last print."""
    now, terminal = time.monotonic(), sys.stderr.isatty()
    if now - shown < (1 if terminal else 30):
        return shown
    found = Counter({kind: tally.cases for kind, tally in tallies.items()})
    for unit in running:
        found[unit.kind] += sum(line.get("cases", 0) for line in unit.read())
    part = min(1.0, (now - began) / (60 * args.minutes))
    bar = "#" * round(20 * part) + "." * (20 - round(20 * part))
    failures = sum(len(tally.failures) for tally in tallies.values())
    counts = ", ".join(f"{kind} {found[kind]:,}" for kind in tallies)
    sys.stderr.write(f"{chr(13) if terminal else ''}[{bar}] {counts}; {failures} failures{'' if terminal else chr(10)}")
    sys.stderr.flush()
    return now


def record(kind: str, tally: Tally, seconds: float, args: argparse.Namespace) -> dict[str, Any]:
    """Return the line of one kind for the records."""
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
        "processes": args.processes,
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": device_name(torch.device("cpu")).rpartition(",")[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "command": shlex.join(["python", "tests/soak/run.py", *without_paths(sys.argv[1:])]),
    }


def without_paths(words: list[str]) -> list[str]:
    """Return the command line without the arguments that name files of this machine, for the record."""
    paths = ("--state", "--results")
    return [word for i, word in enumerate(words) if word not in paths and (i == 0 or words[i - 1] not in paths)]


def append(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def main(words: list[str] | None = None) -> int:
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
    args = parser.parse_args(words)
    if args.unit:
        run_unit(args.unit, args.seed, args.seconds, args.lines)
        return 0
    unknown = set(args.kinds.split(",")) - set(KINDS)
    if unknown:
        parser.error(f"--kinds: got {', '.join(sorted(unknown))}, expected some of {', '.join(KINDS)}")
    if args.merge:
        source = args.merge / "reliability.jsonl" if args.merge.is_dir() else args.merge
        known = read_lines(args.results)
        append(args.results, [line for line in read_lines(source) if line not in known])
    if args.totals or args.merge:
        for kind, (cases, failures) in totals(args.results).items():
            sys.stdout.write(f"{kind:10} {cases:9,} of {KINDS[kind].target:,} cases, {failures} failures\n")
        return 0
    return soak(args)


if __name__ == "__main__":
    sys.exit(main())
