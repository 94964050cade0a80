"""SIGKILL at random moments of training, sweeping and saving: resumed runs give the same bits as runs without kills.

A unit is of one of the three kinds. It lets the work run to its end once, and then again and again with one to three kills on the
way; a case is one kill. At the end of each run all weights, optimiser states, averages, log rows and scores are compared. For
saving, a process writes one of two models, a checkpoint and rows of records without pause until it is killed; what is on the disk
must be one of the two models whole, a checkpoint whole, and whole rows, and saving again must give the same bits.
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
from longscan.training.logs import read_rows

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


def start(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen([sys.executable, "-c", COMMAND, *words], stdout=file, stderr=file, start_new_session=True)


def kill(process: subprocess.Popen[bytes]) -> bool:
    """Send SIGKILL to a process and all its children; return whether it was still running."""
    if process.poll() is not None:
        return False
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True


def run_with_kills(begin: list[str], resume: list[str], marker: Path, log: Path, draw: random.Random, duration: float) -> int:
    """Run a command with kills at random moments until it ends by itself; return their number. RuntimeError if it fails."""
    kills, wanted = 0, draw.randint(1, 3)
    while True:
        process = start(resume if marker.exists() else begin, log)
        if kills < wanted:
            try:
                process.wait(draw.uniform(0.2, 1.0) * duration)
            except subprocess.TimeoutExpired:
                kills += kill(process)
                continue
        if process.wait():
            raise RuntimeError(f"exit code {process.returncode}: {log.read_text('utf-8', 'replace')[-400:]}")
        return kills


def run_contents(folder: Path) -> dict[str, Any]:
    """Return everything in the folder of a run that must not depend on the kills."""
    tensors = {
        f"{which}/{path.name}": path.read_bytes()
        for which in ("last", "best", "average")
        for path in sorted((folder / "checkpoints" / which).glob("*.safetensors"))
    }
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in read_rows(folder / "metrics.jsonl")]
    result = Run(folder).result or {}
    return {"tensors": tensors, "rows": rows, "result": {name: result.get(name) for name in ("value", "valid", "test", "steps")}}


def sweep_contents(folder: Path) -> dict[str, Any]:
    """Return everything in the folder of a sweep that must not depend on the kills."""
    found = json.loads((folder / "sweep.json").read_text())
    scores = [[(one["score"], one["status"]) for one in found[name]] for name in ("trials", "seeds")]
    runs = {str(path.parent.relative_to(folder)): run_contents(path.parent) for path in folder.rglob("settings.yaml")}
    return {"scores": scores, "status": found["status"], **runs}


def difference(found: dict[str, Any], expected: dict[str, Any]) -> str | None:
    if found == expected:
        return None
    parts = [name for name in expected if found.get(name) != expected[name]] + sorted(found.keys() - expected.keys())
    return f"other than without kills: {', '.join(parts)}"


Case = tuple[int, str | None]


def training(seed: int, folder: Path) -> Callable[[random.Random, Path], Case]:
    draw = random.Random(seed)
    words = [*TRAIN, "--model.spec", draw.choice(SPECS), "--checkpoint-every", str(draw.randint(1, 7))]
    words += ["--training.eval_every", str(draw.randint(3, 15)), "--training.seed", str(seed)]
    if draw.random() < 0.5:
        words += ["--training.average", "0.95", "--training.select", "average"]
    if draw.random() < 0.5:
        words += ["--training.curriculum.start", "4", "--training.curriculum.end", "12", "--training.curriculum.every", "5"]
    return commands(["train", *words], [], "settings.yaml", folder, run_contents)


def sweeping(seed: int, folder: Path) -> Callable[[random.Random, Path], Case]:
    plan = folder / "plan.yaml"
    plan.write_text(SWEEP)
    return commands(["sweep", str(plan)], ["sweep"], "sweep.yaml", folder, sweep_contents)


def commands(
    words: list[str], resumed: list[str], marker: str, folder: Path, contents: Callable[[Path], dict[str, Any]]
) -> Callable[[random.Random, Path], Case]:
    """Run a command without kills, and return the function that does it with kills and compares."""
    whole, began = folder / "whole", time.monotonic()
    process = start([*words, "--out", str(whole)], folder / "whole.log")
    if process.wait():
        raise RuntimeError((folder / "whole.log").read_text("utf-8", "replace")[-400:])
    duration, expected = time.monotonic() - began, contents(whole)

    def case(draw: random.Random, folder: Path) -> Case:
        out = ["--out", str(folder / "run")]
        mark = folder / "run" / marker
        kills = run_with_kills([*words, *out], [*(resumed or words), *out, "--resume"], mark, folder / "log", draw, duration)
        return kills, difference(contents(folder / "run"), expected)

    return case


# Saving.


def two_models() -> list[SequenceModel]:
    """Return two models whose tensors have the same names and shapes, and whose settings differ."""
    found = []
    for seed, pooling in enumerate(("mean", "last")):
        torch.manual_seed(seed)
        found.append(SequenceModel.from_spec("mam s5", d_model=32, d_output=2, d_input=3, d_state=8, pooling=pooling))
    return found


def save_for_ever(folder: Path) -> None:
    """Save two models in turn to one folder, without end, in the process that is killed."""
    models, row = two_models(), json.loads((SAVED / "records" / "runs" / "quickstart.jsonl").read_text().splitlines()[0])
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
    models = two_models()
    for number, model in enumerate(models):
        model.save_pretrained(folder / str(number))
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    program = f"import sys; sys.path[:0] = {paths!r}; import kills; kills.save_for_ever(kills.Path(sys.argv[1]))"

    def case(draw: random.Random, folder: Path) -> Case:
        process = subprocess.Popen([sys.executable, "-c", program, str(folder)], start_new_session=True)
        while not (folder / "runs" / "x.jsonl").exists():  # the first round is over
            if process.poll() is not None:
                raise RuntimeError(f"exit code {process.returncode}")
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.5))
        return int(kill(process)), saved_whole(folder, models)

    return case


def saved_whole(folder: Path, models: list[SequenceModel]) -> str | None:
    found = SequenceModel.from_pretrained(folder / "model")
    states = [model.state_dict() for model in models]
    matches = [
        found.config == model.config and all(torch.equal(value, state[name]) for name, value in found.state_dict().items())
        for model, state in zip(models, states, strict=True)
    ]
    if sum(matches) != 1:
        return "the saved model is neither of the two"
    last = find_checkpoint(folder / "last")
    if last is None:
        return "no checkpoint is left"
    number = read_checkpoint(last)["step"]
    if read_tensors(last / "optimizer.safetensors")["x/step"].item() != number:
        return "the checkpoint is of two moments"
    weights = read_tensors(last / "model.safetensors")
    if any(not torch.equal(value, weights[name]) for name, value in states[number % 2].items()):
        return "the checkpoint's weights are not those that were saved"
    rows = read_records(folder / "runs" / "x.jsonl")
    if [row["seed"] for row in rows] != list(range(len(rows))) or not number - 1 <= len(rows) <= number + 1:
        return f"{len(rows)} rows after checkpoint {number}"
    models[1].save_pretrained(folder / "model")  # saving again must work
    save_checkpoint(folder / "last", models[1], number + 1)
    again = SequenceModel.from_pretrained(folder / "model")
    if again.config != models[1].config or load_file(folder / "model" / "model.safetensors").keys() != states[1].keys():
        return "saving again gave another model"
    if read_checkpoint(folder / "last")["step"] != number + 1:
        return "saving again left the old checkpoint"
    return None


WAYS = (training, saving, training, sweeping)


def run(seed: int, until: float, write: Callable[..., None]) -> None:
    way = WAYS[seed % len(WAYS)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as top:
        write(begin=way.__name__)
        case, number = way(seed, Path(top)), 0
        while time.monotonic() < until or not number:
            folder = Path(top) / f"case{number}"
            folder.mkdir()
            draw = random.Random(f"{seed} {number}")
            write(begin=f"{way.__name__}, case {number}")
            try:
                kills, failure = case(draw, folder)
            except (RuntimeError, ValueError, OSError) as error:
                kills, failure = 1, f"{type(error).__name__}: {error}"
            # A run that ended before its kill shows nothing and is no case.
            write(subject=way.__name__, cases=kills, failure=failure and f"case {number}: {failure}", outcomes={"runs": 1})
            number += 1
