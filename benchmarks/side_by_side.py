"""Run many trainings in parallel, spread over the GPUs of a machine. The same command resumes what a time limit stopped.

    python benchmarks/side_by_side.py benchmarks/plans/afternoon.txt --limit 540
    python benchmarks/side_by_side.py benchmarks/plans/table1.txt --only parity --per-gpu 4
    python benchmarks/side_by_side.py benchmarks/plans/table1.txt --settings training.lr=0.004 --out runs/table1_other_rate

A line of a plan is a name, a program and its arguments, without --out and --limit; lines that begin with # are comments.
Programs: train (`longscan train`, into DIR/NAME), seeds (benchmarks/seeds.py, DIR/NAME.json), learned (benchmarks/learned.py,
DIR/NAME/automata); DIR is runs/PLAN unless --out is given, and {out} in an argument stands for it. Each line is a process and
prints into DIR/NAME.txt. --settings adds arguments to all lines that run: training.lr=0.004 adds --training.lr 0.004. At most
--per-gpu processes run on each GPU, in the plan's order; --gpus names the GPUs to use, without it those of
CUDA_VISIBLE_DEVICES, or all.
After --limit seconds the processes get a signal, on which they save a checkpoint and end; finished runs are not repeated. The
exit status is 1 if a run failed.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from longscan.training.processes import Ended, Job, run_jobs, visible_gpus

TRAIN = "import sys; from longscan.cli import main; sys.exit(main())"
PROGRAMS = ("train", "seeds", "learned")


class Planned(NamedTuple):
    """One line of a plan: name, program and arguments."""

    name: str
    program: str
    words: list[str]

    def command(self, out: Path, seconds: float) -> list[str]:
        """Return the command of the process. It resumes what an earlier one has saved in `out` and ends after `seconds`."""
        target = out / self.name
        words = [word.replace("{out}", str(out)) for word in self.words]
        if self.program == "train":
            resume = ["--resume"] if (target / "settings.yaml").exists() else []
            return [sys.executable, "-c", TRAIN, "train", *words, "--out", str(target), *resume]
        target = target / "automata" if self.program == "learned" else target.with_name(f"{self.name}.json")
        limit = [] if seconds == float("inf") else ["--limit", f"{max(1.0, seconds):.0f}"]
        script = str(Path(__file__).with_name(f"{self.program}.py"))
        return [sys.executable, script, *words, "--out", str(target), *limit]


def read_plan(path: Path, only: list[str], settings: Sequence[str] = ()) -> list[Planned]:
    """Return the lines of a plan, with further arguments from `settings`, texts such as training.lr=0.004.

    only: beginnings of the names of the lines to return; all lines if it is empty. Raises ValueError for an invalid line or text.
    """
    for setting in settings:
        if not setting.partition("=")[2]:
            raise ValueError(f"`--settings` must be texts NAME=VALUE, got {setting!r}")
    added = [word for setting in settings for word in (f"--{setting.partition('=')[0]}", setting.partition("=")[2])]
    lines = [shlex.split(line, comments=True) for line in path.read_text(encoding="utf-8").splitlines()]
    for words in lines:
        if words and (len(words) < 2 or words[1] not in PROGRAMS):
            raise ValueError(
                f"{path}: each line must begin with a name and one of {', '.join(PROGRAMS)}, got {shlex.join(words)!r}"
            )
    plan = [Planned(words[0], words[1], [*words[2:], *added]) for words in lines if words]
    names = [line.name for line in plan]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{path}: the names of lines must differ, got {name} {names.count(name)} times")
    return [line for line in plan if not only or line.name.startswith(tuple(only))]


def side_by_side(plan: list[Planned], gpus: list[str], per_gpu: int, out: Path, limit: float) -> dict[str, Ended]:
    """Run a plan; return the processes that were started, by name."""
    jobs = [Job(line.name, out / f"{line.name}.txt", partial(line.command, out)) for line in plan]
    with tqdm(total=len(plan), unit="run", mininterval=10) as bar:
        return run_jobs(jobs, gpus, per_gpu, limit, lambda _: bar.update())


def main() -> int:
    """Read the command line and run the plan; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--only", nargs="+", default=[], help="beginnings of names")
    parser.add_argument("--settings", nargs="+", default=[], help="arguments of all lines: training.lr=0.004")
    parser.add_argument("--out", type=Path, help="runs/PLAN without it")
    parser.add_argument("--gpus", nargs="+", default=visible_gpus() or [""])
    parser.add_argument("--per-gpu", type=int, default=8)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds")
    given = parser.parse_args()
    out = given.out or Path("runs") / given.plan.stem
    try:
        plan = read_plan(given.plan, given.only, given.settings)
    except ValueError as error:
        parser.error(str(error))
    ended = side_by_side(plan, given.gpus, given.per_gpu, out, given.limit)
    for name, one in ended.items():
        stopped = "stopped, resumed by the same command"
        print(name, f"FAILED ({one.status})" if one.has_failed else "done" if one.status == 0 else stopped)
    return int(any(one.has_failed for one in ended.values()))


if __name__ == "__main__":
    sys.exit(main())
