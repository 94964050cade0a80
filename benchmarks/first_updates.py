"""Run the first updates of rows of the papers' tables and record whether the training loss falls.

Each row (`longscan reproduce list`) runs as `longscan reproduce` would run its seed 0, with the schedule of all its updates, but
stops after a share of them and is not tested. The loss is logged at about 500 steps that are spread evenly, or at all if there
are fewer. A row's record has the mean loss of the first and of the last tenth of them; "falls" means that the difference is more
than twice its standard error. Rows run in parallel on the available GPUs, and a record is appended as soon as its row ends. A
row that the limit ends has the status "stopped" and the updates that it made.

    python benchmarks/first_updates.py aussm/table1/parity/ma s7/table3/pendulum --share 0.02 --out results/first_updates.jsonl

Further arguments are settings of all rows that have them, as on the command line of `longscan train`; the records name them.
"""

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from longscan.engine import Callback, Engine, StepResult
from longscan.reproduce.rows import find_rows
from longscan.reproduce.runs import row_argv
from longscan.training.logs import read_rows
from longscan.training.parsing import parse_settings
from longscan.training.processes import Ended, Job, run_jobs, stop_with_parent
from longscan.training.run import Run, commit, device_name
from longscan.training.trainer import train

N_LOGGED = 500  # steps whose loss is logged
MIN_LOSSES = 20  # so that a tenth of them has a standard deviation


class StopAt(Callback):
    """End the training after a number of steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, engine: Engine, result: StepResult) -> None:  # noqa: ARG002
        """Ask the engine to stop after the last of the steps."""
        engine.stop_requested |= engine.step >= self.steps


def falls(losses: Sequence[float]) -> dict[str, Any]:
    """Return the mean losses of the first and the last tenth, the standard error of their difference, and whether the loss falls.

    At least `MIN_LOSSES` are needed.
    """
    n = len(losses) // 10
    first, last = losses[:n], losses[-n:]
    error = math.sqrt((stdev(first) ** 2 + stdev(last) ** 2) / n)
    difference = fmean(first) - fmean(last)
    return {"first": fmean(first), "last": fmean(last), "standard_error": error, "falls": difference > 2 * error}


def run_row(name: str, share: float, folder: Path, settings: Sequence[str]) -> dict[str, Any]:
    """Run the first updates of a row in a folder and return its record."""
    (row,) = find_rows(name)
    argv = row_argv(row, 0)
    fields = vars(parse_settings(argv).task)
    own = [one for one in settings if not one.startswith("--task.") or one.split("=")[0].removeprefix("--task.") in fields]
    protocol = parse_settings(argv).training.steps
    updates = math.ceil(share * protocol)
    parsed = parse_settings([*argv, f"--training.log_every={max(1, updates // N_LOGGED)}", *own])
    status = "finished"
    try:
        train(parsed, folder, callbacks=[StopAt(updates)], test=False)
    except KeyboardInterrupt:  # the time limit
        status = "stopped"
    run, lines = Run(folder), [line for line in read_rows(folder / "metrics.jsonl") if line["split"] == "train"]
    losses, result = [line["loss"] for line in lines], run.result or {"status": status, **lines[-1], "steps": lines[-1]["step"]}
    return {
        "row": row.id,
        "recipe": row.recipe,
        "settings": own,
        "seed": 0,
        "updates": result["steps"],
        "updates_published": protocol,
        **(falls(losses) if len(losses) >= MIN_LOSSES else {}),
        "status": result["status"],
        "seconds": result["seconds"],
        "updates_per_second": round(result["steps"] / result["seconds"], 2),
        "replayed_updates_per_second": result.get("replayed_updates_per_second"),
        "device": device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        "torch": torch.__version__,
        "commit": commit(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run each row in a separate process, or one row in this process; return 1 if one of them has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", help="names of rows, as `longscan reproduce list` shows them")
    parser.add_argument("--share", type=float, default=0.02, help="share of a row's updates")
    parser.add_argument("--out", type=Path, required=True, help="file to which a record is appended for each row")
    parser.add_argument("--minutes", type=float, default=math.inf, help="limit, after which rows end where they are")
    parser.add_argument("--per-device", type=int, default=4, help="rows at a time on each GPU, or on the CPU")
    parser.add_argument("--alone", action="store_true", help="run one row in this process; the parent starts each row so")
    args, settings = parser.parse_known_args(argv)
    if args.alone:
        stop_with_parent()
        with tempfile.TemporaryDirectory() as folder:
            record = run_row(args.rows[0], args.share, Path(folder) / "run", settings)
        with args.out.open("a") as file:
            file.write(json.dumps(record) + "\n")
        return 0
    args.out.parent.mkdir(parents=True, exist_ok=True)
    own = ["--share", str(args.share), "--out", str(args.out), "--alone", *settings]
    jobs = [
        Job(row, args.out.with_name(f"{row.replace('/', '-')}.txt"), lambda _, row=row: [sys.executable, __file__, row, *own])
        for row in args.rows
    ]
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    devices = gpus if any(gpus) else [str(number) for number in range(torch.cuda.device_count())] or [""]

    def on_end(ended: Ended) -> None:
        sys.stderr.write(f"{ended.name}: exit status {ended.status}\n")

    ended = run_jobs(jobs, devices, args.per_device, 60 * args.minutes, on_end)
    return int(any(one.status for one in ended.values()) or len(ended) < len(jobs))


if __name__ == "__main__":
    sys.exit(main())
