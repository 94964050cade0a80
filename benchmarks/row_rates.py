"""Measure the updates per second of rows of the papers' tables on a GPU: the source of the minutes that protocols/*.yaml expect.

An update costs the same for all data of one size. The data of a row are therefore generated, in the format and with the lengths
of the public ones (`tests/learnable.py` and `tests/made_up.py` write them), few examples of each. A row trains with the settings
of its protocol; its first updates are not timed. On a GPU the timed updates of rows that are started together do not overlap.

    python benchmarks/row_rates.py thesis/table4 s7/table1 --out results/row_rates.jsonl

A table stands for all its rows. A record is appended for each row as soon as it is measured.
"""

import argparse
import fcntl
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

import learnable  # noqa: E402
import made_up  # noqa: E402
from longscan.engine import Callback, Engine, StepResult  # noqa: E402
from longscan.reproduce.rows import PublishedRow, find_recipe, find_rows  # noqa: E402
from longscan.reproduce.runs import row_argv  # noqa: E402
from longscan.training.parsing import parse_settings, read_recipe  # noqa: E402
from longscan.training.processes import Job, run_jobs, stop_with_parent, visible_gpus  # noqa: E402
from longscan.training.run import commit, device_name  # noqa: E402
from longscan.training.trainer import train  # noqa: E402

LENGTHS = {  # of the series of the UEA sets
    "Heartbeat": 405,
    "SelfRegulationSCP1": 896,
    "SelfRegulationSCP2": 1152,
    "EthanolConcentration": 1751,
    "MotorImagery": 3000,
    "EigenWorms": 17984,
}
SIZES = ("--task.train_size=512", "--task.valid_size=64", "--task.test_size=64")  # of data that the package generates
CHROMOSOMES = 13
PROFILED = 8  # updates whose kernels are timed


def uea(folder: Path, dataset: str) -> None:
    """Write about sixty series of a UEA set for training, and as many for testing."""
    classes = made_up.FORMS[dataset][1]
    learnable.uea(folder, dataset, each=-(-60 // classes), length=LENGTHS[dataset])


def reviews(folder: Path) -> None:
    """Write 200 reviews, whose lengths are distributed about as those of IMDb: a median of 979 characters, a mean of 1,300."""
    draw = made_up.rng(0)
    for part in ("train", "test"):
        for kind in ("neg", "pos"):
            directory = folder / "aclImdb" / part / kind
            directory.mkdir(parents=True)
            for number, length in enumerate(draw.lognormal(6.887, 0.75, 50).astype(int)):
                text = bytes(draw.integers(97, 123, max(40, length)).astype("uint8")).decode()
                (directory / f"{number}_{1 if kind == 'neg' else 9}.txt").write_text(text, "utf-8")


def papers(folder: Path) -> None:
    """Write pairs of texts that are longer than the 4,000 characters which are read of each."""
    draw = made_up.rng(0)
    for part in ("train", "eval", "test"):
        texts = [bytes(one.astype("uint8")).decode() for one in draw.integers(97, 123, (80, 4100))]
        lines = [f"{n % 2}.0\tP{n}\tQ{n}\t{texts[2 * n]}\t{texts[2 * n + 1]}\n" for n in range(40)]
        (folder / f"new_aan_pairs.{part}.tsv").write_text("".join(lines), "utf-8")


def genomes(folder: Path, species: Sequence[str]) -> None:
    """Write chromosomes of 100,000 bases."""
    draw = made_up.rng(0)
    for name in species:
        (folder / name).mkdir()
        for number in range(1, CHROMOSOMES + 1):
            bases = "".join(draw.choice(list("ACGT"), 100_000))
            (folder / name / f"chr{number}.fa").write_text(f">chr{number}\n{bases}\n", "utf-8")


def events(folder: Path, dataset: str) -> None:
    """Write recordings of about 8,000 spikes, as those of SHD and SSC, or of more events than are read of DVS-Gesture."""
    if dataset == "dvs_gesture":
        made_up.gestures(folder, count=80_000)
    else:
        made_up.spoken(folder, dataset, recordings=60, spikes=(4000, 12_000))


def write_data(row: PublishedRow, folder: Path) -> list[str]:
    """Write the data of a row into a folder and return the arguments with which it reads them."""
    task = read_recipe(find_recipe(row.recipe or ""))[0]["task"]
    writers: dict[str, Callable[[], object]] = {
        "uea": lambda: uea(folder, task["dataset"]),
        "lra_text": lambda: reviews(folder),
        "lra_retrieval": lambda: papers(folder),
        "lra_image": lambda: made_up.lra_image(folder),
        "species": lambda: genomes(folder, row.settings["task.species"]),
        "events": lambda: events(folder, task["dataset"]),
        "human_activity": lambda: made_up.human_activity(folder, steps=3000),
        "walker": lambda: made_up.walker(folder),
        "forecast": lambda: (folder / "WTH.csv").write_text(made_up.table(8000, 12)),
    }
    if task["name"] in writers:
        writers[task["name"]]()
        return [f"--task.data_dir={folder}"]
    return list(SIZES)


def is_annotation(name: str) -> bool:
    """Return whether a name in a profile is that of a range of the profiler, as "Optimizer.step#AdamW.step", instead of a kernel.

    Names of torch's kernels that are made from a lambda have a "#" as well: "elementwise_kernel<..., {lambda(float)#1}>".
    """
    return "#" in name and "{lambda" not in name


def gpu_seconds(kernels: Sequence[tuple[float, float, str]], updates: int) -> float:
    """Return the time of the kernels of an update in seconds: start and duration in microseconds, and name of those of `updates`.

    A kernel that waits while another process has the GPU seems longer. The time of a kernel is therefore its median over the
    updates: of the kernels at the same place if all updates launch the same ones, otherwise of those of the same name.
    """
    ordered = sorted(kernels)
    each = len(ordered) // updates
    parts = [ordered[number * each : (number + 1) * each] for number in range(updates)]
    if len(ordered) == each * updates and len({tuple(name for *_, name in part) for part in parts}) == 1:
        return sum(median(duration for _, duration, _ in same) for same in zip(*parts, strict=True)) / 1e6
    by_name: dict[str, list[float]] = {}
    for _, duration, name in ordered:
        by_name.setdefault(name, []).append(duration)
    return sum(len(found) * median(found) for found in by_name.values()) / updates / 1e6


class Timer(Callback):
    """Time the updates after the first ones, and the kernels of some more. The timed updates of a device have a lock."""

    def __init__(self, skip: int, updates: int, seconds: float, lock: Path) -> None:
        self.skip, self.updates, self.seconds, self.lock = skip, updates, seconds, lock
        self.stack = ExitStack()
        self.start = self.elapsed = 0.0
        self.timed = self.profiled = 0
        self.profiler: torch.profiler.profile | None = None
        self.gpu_seconds: float | None = None

    def on_step_end(self, engine: Engine, result: StepResult) -> None:  # noqa: ARG002
        """Begin after `skip` updates, time `updates` more, fewer if they need `seconds`, and the kernels of eight."""
        if engine.step < self.skip:
            return
        has_gpu = torch.cuda.is_available()
        if has_gpu:
            torch.cuda.synchronize()
        now = time.perf_counter()
        if engine.step == self.skip:
            fcntl.flock(self.stack.enter_context(self.lock.open("w")), fcntl.LOCK_EX)
            self.start = time.perf_counter()
            return
        if self.profiler is not None:
            self.profiled += 1
            if self.profiled == PROFILED:
                self.profiler.stop()
                kernels = [
                    (one.time_range.start, one.time_range.elapsed_us(), one.name)
                    for one in self.profiler.events() or []
                    if one.device_type == torch.autograd.DeviceType.CUDA and not is_annotation(one.name)
                ]
                self.gpu_seconds = gpu_seconds(kernels, PROFILED)
                engine.stop_requested = True
            return
        self.timed, self.elapsed = engine.step - self.skip, now - self.start
        if self.timed >= self.updates or (self.elapsed > self.seconds and self.timed > 1):
            self.stack.close()
            if not has_gpu:
                engine.stop_requested = True
                return
            self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self.profiler.start()


def measure(row: PublishedRow, skip: int, updates: int, seconds: float, lock: Path, settings: Sequence[str]) -> dict[str, Any]:
    """Train a row on generated data and return its record."""
    timer = Timer(skip, updates, seconds, lock)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        own = ["--training.eval_every=0", "--training.eval_batches=1", *settings]
        parsed = parse_settings([*row_argv(row, 0), *write_data(row, data), *own])
        train(parsed, Path(folder) / "run", callbacks=[timer], test=False)
    rate = timer.timed / timer.elapsed
    return {
        "row": row.id,
        "recipe": row.recipe,
        "settings": [*settings],
        "updates_timed": timer.timed,
        "updates_per_second": round(rate, 3),
        "gpu_seconds_per_update": timer.gpu_seconds,
        "updates_published": row.updates,
        "device": device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        "torch": torch.__version__,
        "commit": commit(),
    }


def measure_all(rows: Sequence[PublishedRow], args: argparse.Namespace, settings: Sequence[str]) -> int:
    """Measure rows one after the other in this process, and append a record for each; return 1 if one of them has failed."""
    lock = args.out.with_name(f"device_{os.environ.get('CUDA_VISIBLE_DEVICES', '')}.lock")
    failed = False
    for row in rows:
        try:
            record = measure(row, args.skip, args.updates, args.seconds, lock, settings)
        except Exception:  # other rows can still be measured
            sys.stderr.write(f"{row.id}\n{traceback.format_exc()}")
            failed = True
            continue
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return int(failed)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the rows in processes with several rows each, or in this process; return 1 if one of them has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", help="names of tables or rows, as `longscan reproduce list` shows them")
    parser.add_argument("--out", type=Path, required=True, help="file to which a record is appended for each row")
    parser.add_argument("--skip", type=int, default=20, help="first updates, which are not timed")
    parser.add_argument("--updates", type=int, default=60, help="timed updates")
    parser.add_argument("--seconds", type=float, default=10.0, help="after which fewer updates are enough")
    parser.add_argument("--minutes", type=float, default=1e6, help="limit of all rows")
    parser.add_argument("--per-device", type=int, default=3, help="processes on each GPU, or on the CPU, which share the rows")
    parser.add_argument("--alone", action="store_true", help="measure the rows in this process; the parent starts each one so")
    args, settings = parser.parse_known_args(argv)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rows = [row for name in args.rows for row in find_rows(name) if row.status == "recipe"]
    if args.alone:
        stop_with_parent()
        return measure_all(rows, args, settings)
    own = ["--out", str(args.out), "--skip", str(args.skip), "--updates", str(args.updates), "--seconds", str(args.seconds)]
    devices = visible_gpus() or [""]
    count = min(len(rows), args.per_device * len(devices))
    jobs = []
    for number in range(count):
        names = [row.id for row in rows[number::count]]
        command = [sys.executable, __file__, *names, *own, "--alone", *settings]
        jobs.append(Job(f"process {number}", args.out.with_name(f"process_{number}.txt"), lambda _, command=command: command))
    ended = run_jobs(jobs, devices, args.per_device, 60 * args.minutes)
    return int(any(one.status for one in ended.values()) or len(ended) < len(jobs))


if __name__ == "__main__":
    sys.exit(main())
