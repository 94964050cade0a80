"""SIGKILL at random moments of training, sweeping and saving: resumed runs give the same bits as runs without kills.

A unit trains, sweeps or saves. It runs once to its end, and then repeatedly with one to three kills on the
way; a case is one kill. At the end of each run all weights, optimiser states, averages, log rows and scores are compared. For
saving, a process writes one of two models, a checkpoint and rows of records until it is killed. The files on the disk
must be one complete model, a complete checkpoint and complete rows, and saving again must give the same bits.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from longscan.models import SequenceModel
from longscan.report import append_record, read_records
from longscan.training import Run
from longscan.training.checkpoint import find_checkpoint, read_checkpoint, read_tensors, write_checkpoint, write_tensors
from run_files import read_log

SAVED = Path(__file__).parents[1] / "saved" / "v0.1"
COMMAND = "import sys; from longscan.cli import main; sys.exit(main())"
TRAIN = [
    *("--task", "parity", "--task.train_lengths", "[3, 12]", "--task.eval_lengths", "[13, 20]", "--task.valid_size", "16"),
    *("--task.test_size", "16", "--model.d_model", "8", "--model.d_state", "4", "--training.batch_size", "16", "--steps", "40"),
    *("--training.log_every", "1", "--training.lr", "0.01", "--training.threads", "1", "--training.device", "cpu"),
]
SPECS = ("ma", "mamba s4d", "s5 lru", "mamba2", "aussm", "s4 linoss", "mamba3")
SWEEP = """
settings:
  task: {name: parity, train_lengths: [3, 8], eval_lengths: [9, 12], valid_size: 8, test_size: 8}
  model: {spec: ma, d_model: 4, d_state: 2}
  training: {steps: 12, batch_size: 4, eval_every: 4, checkpoint_every: 2, threads: 1, device: cpu}
space: {training.lr: [0.01, 0.001, 0.003]}
search_seeds: 1
seeds: 2
"""


def start_command(argv: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen([sys.executable, "-c", COMMAND, *argv], stdout=file, stderr=file, start_new_session=True)


def kill(process: subprocess.Popen[bytes]) -> bool:
    """Send SIGKILL to a process and all its children; return whether it was still running."""
    if process.poll() is not None:
        return False
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True


def run_with_kills(begin: list[str], resume: list[str], marker: Path, log: Path, draw: random.Random, duration: float) -> int:
    """Run a command with kills at random moments until it ends by itself; return the number of kills, or raise RuntimeError."""
    kills, planned = 0, draw.randint(1, 3)
    while True:
        process = start_command(resume if marker.exists() else begin, log)
        if kills < planned:
            try:
                process.wait(draw.uniform(0.2, 1.0) * duration)
            except subprocess.TimeoutExpired:
                kills += kill(process)
                continue
        if process.wait():
            raise RuntimeError(f"exit code {process.returncode}: {log.read_text('utf-8', 'replace')[-400:]}")
        return kills


def read_run(folder: Path) -> dict[str, Any]:
    """Return everything in the directory of a run that must not depend on kills."""
    tensors = {
        f"{which}/{path.name}": path.read_bytes()
        for which in ("last", "best", "average")
        for path in sorted((folder / "checkpoints" / which).glob("*.safetensors"))
    }
    rows = read_log(folder)
    result = Run(folder).result or {}
    return {"tensors": tensors, "rows": rows, "result": {name: result.get(name) for name in ("value", "valid", "test", "steps")}}


def read_sweep(folder: Path) -> dict[str, Any]:
    """Return everything in the directory of a sweep that must not depend on kills."""
    result = json.loads((folder / "sweep.json").read_text())
    scores = [[(row["score"], row["status"]) for row in result[name]] for name in ("trials", "seeds")]
    runs = {str(path.parent.relative_to(folder)): read_run(path.parent) for path in folder.rglob("settings.yaml")}
    return {"scores": scores, "status": result["status"], **runs}


def describe_difference(contents: dict[str, Any], expected: dict[str, Any]) -> str | None:
    if contents == expected:
        return None
    parts = [name for name in expected if contents.get(name) != expected[name]] + sorted(contents.keys() - expected.keys())
    return f"differs from the run without kills: {', '.join(parts)}"


Case = tuple[int, str | None]


def training(seed: int, folder: Path) -> Callable[[random.Random, Path], Case]:
    draw = random.Random(seed)
    options = [*TRAIN, "--model.spec", draw.choice(SPECS), "--checkpoint-every", str(draw.randint(1, 7))]
    options += ["--training.eval_every", str(draw.randint(3, 15)), "--training.seed", str(seed)]
    if draw.random() < 0.5:
        options += ["--training.average", "0.95", "--training.select", "average"]
    if draw.random() < 0.5:
        options += ["--training.curriculum.start", "4", "--training.curriculum.end", "12", "--training.curriculum.every", "5"]
    return compare_with_kills(["train", *options], [], "settings.yaml", folder, read_run)


def sweeping(seed: int, folder: Path) -> Callable[[random.Random, Path], Case]:
    plan = folder / "plan.yaml"
    plan.write_text(SWEEP)
    return compare_with_kills(["sweep", str(plan)], ["sweep"], "sweep.yaml", folder, read_sweep)


def compare_with_kills(
    argv: list[str], resume_argv: list[str], marker: str, folder: Path, read_contents: Callable[[Path], dict[str, Any]]
) -> Callable[[random.Random, Path], Case]:
    """Run a command without kills, and return a function that runs it with kills and compares the results."""
    whole, began = folder / "whole", time.monotonic()
    process = start_command([*argv, "--out", str(whole)], folder / "whole.log")
    if process.wait():
        raise RuntimeError((folder / "whole.log").read_text("utf-8", "replace")[-400:])
    duration, expected = time.monotonic() - began, read_contents(whole)

    def case(draw: random.Random, folder: Path) -> Case:
        out = ["--out", str(folder / "run")]
        marker_path = folder / "run" / marker
        kills = run_with_kills(
            [*argv, *out], [*(resume_argv or argv), *out, "--resume"], marker_path, folder / "log", draw, duration
        )
        return kills, describe_difference(read_contents(folder / "run"), expected)

    return case


# Functions for saving.


def make_two_models() -> list[SequenceModel]:
    """Return two models with different settings whose tensors have the same names and shapes."""
    models = []
    for seed, pooling in enumerate(("mean", "last")):
        torch.manual_seed(seed)
        models.append(SequenceModel.from_spec("mam s5", d_model=32, d_output=2, d_input=3, d_state=8, pooling=pooling))
    return models


def save_repeatedly(folder: Path) -> None:
    """Save two models alternately to one directory, without end, in the process that is killed."""
    models, row = make_two_models(), json.loads((SAVED / "records" / "runs" / "quickstart.jsonl").read_text().splitlines()[0])
    for number in range(1_000_000):
        models[number % 2].save_pretrained(folder / "model")
        save_checkpoint(folder / "last", models[number % 2], number)
        append_record(folder / "runs" / "x.jsonl", {**row, "seed": number})


def save_checkpoint(target: Path, model: SequenceModel, number: int) -> None:
    def write(inside: Path) -> None:
        model.save_pretrained(inside)
        write_tensors(inside / "optimizer.safetensors", {"x/step": torch.tensor(float(number))})

    write_checkpoint(target, write, {"step": number})


def saving(seed: int, folder: Path) -> Callable[[random.Random, Path], Case]:
    models = make_two_models()
    for number, model in enumerate(models):
        model.save_pretrained(folder / str(number))
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    program = f"import sys; sys.path[:0] = {paths!r}; import kills; kills.save_repeatedly(kills.Path(sys.argv[1]))"

    def case(draw: random.Random, folder: Path) -> Case:
        process = subprocess.Popen([sys.executable, "-c", program, str(folder)], start_new_session=True)
        while not (folder / "runs" / "x.jsonl").exists():  # all files were written once
            if process.poll() is not None:
                raise RuntimeError(f"exit code {process.returncode}")
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.5))
        return int(kill(process)), find_fault_of_saved_files(folder, models)

    return case


def find_fault_of_saved_files(folder: Path, models: list[SequenceModel]) -> str | None:
    loaded = SequenceModel.from_pretrained(folder / "model")
    states = [model.state_dict() for model in models]
    matches = [
        loaded.config == model.config and all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())
        for model, state in zip(models, states, strict=True)
    ]
    if sum(matches) != 1:
        return "the saved model is neither of the two"
    last = find_checkpoint(folder / "last")
    if last is None:
        return "no checkpoint is left"
    number = read_checkpoint(last)["step"]
    if read_tensors(last / "optimizer.safetensors")["x/step"].item() != number:
        return "the files of the checkpoint are of different steps"
    weights = read_tensors(last / "model.safetensors")
    if any(not torch.equal(value, weights[name]) for name, value in states[number % 2].items()):
        return "the checkpoint's weights are not those that were saved"
    rows = read_records(folder / "runs" / "x.jsonl")
    if [row["seed"] for row in rows] != list(range(len(rows))) or not number - 1 <= len(rows) <= number + 1:
        return f"{len(rows)} rows after checkpoint {number}"
    models[1].save_pretrained(folder / "model")  # saving again must work
    save_checkpoint(folder / "last", models[1], number + 1)
    reloaded = SequenceModel.from_pretrained(folder / "model")
    if reloaded.config != models[1].config or load_file(folder / "model" / "model.safetensors").keys() != states[1].keys():
        return "saving again gave another model"
    if read_checkpoint(folder / "last")["step"] != number + 1:
        return "saving again left the old checkpoint"
    return None


KINDS = (training, saving, training, sweeping)


def run(seed: int, until: float, write: Callable[..., None]) -> None:
    kind = KINDS[seed % len(KINDS)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as top:
        write(begin=kind.__name__)
        case, number = kind(seed, Path(top)), 0
        while time.monotonic() < until or not number:
            folder = Path(top) / f"case{number}"
            folder.mkdir()
            draw = random.Random(f"{seed} {number}")
            write(begin=f"{kind.__name__}, case {number}")
            try:
                kills, failure = case(draw, folder)
            except (RuntimeError, ValueError, OSError) as error:
                kills, failure = 1, f"{type(error).__name__}: {error}"
            # A run that ended before its kill is not counted as a case.
            write(subject=kind.__name__, cases=kills, failure=failure and f"case {number}: {failure}", outcomes={"runs": 1})
            number += 1
