"""Many runs of `longscan train` side by side, spread over the GPUs of a machine; what a time limit cuts goes on by the same call.

    python benchmarks/afternoon.py benchmarks/afternoon.txt --limit 540
    python benchmarks/afternoon.py benchmarks/afternoon.txt --only etth1 wth --per-gpu 4

A line of the plan is a name and the words of `longscan train`, without --out; lines that begin with # are left out. Each run is a
process in DIR/NAME (runs/afternoon unless --out is given) and prints into DIR/NAME.txt. Free places, --per-gpu of them on each
GPU, are filled in the plan's order; --gpus names those to use. When --limit seconds are over the runs are told to stop, which
leaves a checkpoint; a run that is over is not made again. The exit status is 1 where a run failed.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

GRACE = 20  # seconds before the limit at which runs are told to stop
TRAIN = "import sys; from longscan.cli import main; sys.exit(main())"


class Planned(NamedTuple):
    """A line of a plan."""

    name: str
    words: list[str]


class Started(NamedTuple):
    """A process and the GPU it has."""

    name: str
    process: "subprocess.Popen[bytes]"
    gpu: str


def read_plan(path: Path, only: list[str]) -> list[Planned]:
    """The lines of a plan, those whose name begins with one of `only` where it is given; ValueError where two have one name."""
    lines = [shlex.split(line, comments=True) for line in path.read_text(encoding="utf-8").splitlines()]
    plan = [Planned(words[0], words[1:]) for words in lines if words]
    names = [line.name for line in plan]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{path}: {name} stands there {names.count(name)} times, needed names that differ")
    return [line for line in plan if not only or line.name.startswith(tuple(only))]


def start(line: Planned, gpu: str, out: Path) -> Started:
    """The process of a line; it goes on where its directory holds a run."""
    folder = out / line.name
    words = ["train", *line.words, "--out", str(folder)]
    if (folder / "settings.yaml").exists():
        words.append("--resume")
    with (out / f"{line.name}.txt").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", TRAIN, *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": gpu},
        )
    return Started(line.name, process, gpu)


def side_by_side(plan: list[Planned], gpus: list[str], per_gpu: int, out: Path, limit: float) -> dict[str, int]:
    """Run a plan; the exit status of every run that was started."""
    began, waiting, running, ended = time.monotonic(), list(plan), list[Started](), dict[str, int]()
    places = gpus * per_gpu
    out.mkdir(parents=True, exist_ok=True)
    with tqdm(total=len(plan), unit="run", mininterval=10) as bar:
        while (waiting or running) and time.monotonic() - began < limit - GRACE:
            while waiting and places:
                running.append(start(waiting.pop(0), places.pop(0), out))
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                places.append(one.gpu)
                ended[one.name] = one.process.returncode
                bar.update()
            time.sleep(0.5)
    for one in running:
        one.process.send_signal(signal.SIGINT)
    for one in running:
        try:
            ended[one.name] = one.process.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            one.process.kill()
            ended[one.name] = one.process.wait()
    return ended


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--only", nargs="+", default=[], help="beginnings of names")
    parser.add_argument("--out", type=Path, default=Path("runs/afternoon"))
    parser.add_argument("--gpus", nargs="+", default=[str(number) for number in range(torch.cuda.device_count())] or [""])
    parser.add_argument("--per-gpu", type=int, default=8)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds")
    given = parser.parse_args()
    ended = side_by_side(read_plan(given.plan, given.only), given.gpus, given.per_gpu, given.out, given.limit)
    stopped = (130, -signal.SIGKILL)  # asked to stop: by the signal, or after it
    for name, status in ended.items():
        print(name, "over" if status == 0 else "not done: the same call goes on" if status in stopped else f"FAILED ({status})")
    return int(any(status not in (0, *stopped) for status in ended.values()))


if __name__ == "__main__":
    sys.exit(main())
