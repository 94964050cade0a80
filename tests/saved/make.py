"""Write a folder of small files with the present code: models, runs, a sweep, recipes and records.

    python tests/saved/make.py tests/saved/v0.1

`tests/saved/test_saved.py` reads every such folder from then on. Run this once before a release and commit what it writes; a
committed folder is never written again, because its files represent those that users have on their disks.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from longscan.models import STANDARD_BLOCKS, Forecaster, LanguageModel, SequenceModel, SiameseModel
from longscan.report import read_records
from longscan.training import Run
from longscan.training.run import commit

ROOT = Path(__file__).parents[2]
RECIPES = (
    *("quickstart/parity.yaml", "quickstart/cycle_navigation.yaml", "quickstart/basic_motions.yaml"),
    *("quickstart/sweeps/basic_motions.yaml", "aussm/parity.yaml", "aussm/sweeps/hybrid.yaml", "s7/pathfinder.yaml"),
    *("thesis/imdb.yaml", "thesis/cifar_numerical.yaml", "thesis/sweeps/bidirectional.yaml", "mamba-lra/listops.yaml"),
)
ROWS = 2  # of each file of records
TRAIN = [
    *("--task", "parity", "--task.train_lengths", "[3, 12]", "--task.eval_lengths", "[13, 20]", "--task.valid_size", "16"),
    *("--task.test_size", "16", "--model.spec", "ma", "--model.d_model", "4", "--model.d_state", "2", "--model.backend", "eager"),
    *("--training.batch_size", "8", "--steps", "24", "--checkpoint-every", "3", "--training.eval_every", "8"),
    *("--training.log_every", "1", "--training.lr", "0.01", "--training.schedule", "restarts", "--training.restart_period", "10"),
    *("--training.average", "0.95", "--training.select", "average", "--training.curriculum.start", "4"),
    *("--training.curriculum.end", "12", "--training.curriculum.threshold", "0.5", "--training.curriculum.every", "5"),
    *("--training.threads", "1", "--training.device", "cpu"),
]
TRAIN_VECTORS = [
    *("--task", "pendulum", "--task.train_size", "16", "--task.valid_size", "4", "--task.test_size", "4", "--task.frames", "8"),
    *("--model.spec", "s5", "--model.d_model", "2", "--model.d_state", "4", "--model.backend", "eager"),
    *("--training.batch_size", "4", "--steps", "6", "--training.eval_every", "3", "--training.log_every", "1"),
    *("--training.threads", "1", "--training.device", "cpu"),
]
SWEEP = """
spec_version: 2
settings:
  task: {name: parity, train_lengths: [3, 8], eval_lengths: [9, 12], valid_size: 8, test_size: 8}
  model: {spec: m, d_model: 4, d_state: 2, backend: eager}
  training: {steps: 8, batch_size: 4, eval_every: 4, checkpoint_every: 2, threads: 1, device: cpu}
space: {training.lr: [0.01, 0.001, 0.003]}
search_seeds: 1
seeds: 1
"""


def vectors(*shape: int) -> Tensor:
    """Return numbers between -1 and 1 without a random number generator."""
    return torch.sin(torch.arange(torch.Size(shape).numel(), dtype=torch.float64) * 1.7 + 0.3).float().reshape(shape)


def tokens(*shape: int) -> Tensor:
    """Return tokens below 7."""
    return (torch.arange(torch.Size(shape).numel()) * 5 % 7).reshape(shape)


def models() -> dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]]:
    """Return name -> (function that builds a small model, its inputs)."""
    text, series, common = tokens(2, 9), vectors(2, 9, 3), {"d_model": 8, "d_state": 4, "backend": "eager"}
    found: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {}
    for number, name in enumerate(STANDARD_BLOCKS):
        task = {"vocab_size": 7} if number % 2 else {"d_input": 3}
        spec = name if STANDARD_BLOCKS[name][0] else f"mamba {name}"
        found[f"spec_{name}"] = (
            lambda spec=spec, task=task: SequenceModel.from_spec(spec, d_output=2, **task, **common),
            (text if number % 2 else series,),
        )

    def stack(spec: str, **options: Any) -> Callable[[], nn.Module]:
        return lambda: SequenceModel.from_spec(spec, **({"d_output": 2, "d_input": 3} | common | options))

    found |= {
        "learned_state": (stack("ma", initial_state="learned", pooling="none"), (series,)),
        "last_mlp_layer_norm": (stack("s5 s4d", pooling="last", head="mlp", norm="layer"), (series,)),
        "batch_norm": (stack("s5", norm="batch", head="affine"), (series,)),
        "post_norm_no_head": (stack("linoss", norm="post", head="none", d_output=8), (series,)),
        "block_options": (stack("a", block_options={"a": {"angle_spread": 3.0}}), (series,)),
        "language_tied": (lambda: LanguageModel.from_spec("ma", vocab_size=7, **common), (text,)),
        "language_untied": (lambda: LanguageModel.from_spec("mamba2", vocab_size=7, tied=False, **common), (text,)),
        "forecaster_queries": (
            lambda: Forecaster.from_spec("m", d_input=3, horizon=4, normalise=True, **common),
            (series,),
        ),
        "forecaster_offset": (lambda: Forecaster.from_spec("lru", d_input=3, horizon=4, mode="offset", **common), (series,)),
        "siamese_nli": (lambda: SiameseModel.from_spec("m", d_output=2, vocab_size=7, **common), (text, text.flip(1))),
        "siamese_concat": (
            lambda: SiameseModel.from_spec("s4d", d_output=2, d_input=3, interaction="concat", pooling="last", **common),
            (series, series.flip(1)),
        ),
    }
    return found


@torch.no_grad()
def save_models(folder: Path) -> None:
    """Save each model in a folder, with its inputs and its output for them."""
    for name, (build, inputs) in models().items():
        torch.manual_seed(1)
        model = build().eval()
        for parameter in model.parameters():  # away from zeros and ones that a model starts with
            parameter += 0.02 * vectors(*parameter.shape)
        model.save_pretrained(folder / name)
        shown = {f"input_{number}": tensor for number, tensor in enumerate(inputs)}
        save_file({**shown, "output": model(*inputs).contiguous()}, folder / name / "shown.safetensors")
        (folder / name / "class.txt").write_text(type(model).__name__ + "\n")


def start(*words: object) -> subprocess.Popen[bytes]:
    """Start the command `longscan` in a new process."""
    program = "import sys; from longscan.cli import main; sys.exit(main())"
    return subprocess.Popen([sys.executable, "-c", program, *map(str, words)])


def kill_when(process: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
    """Send SIGKILL as soon as `ready` returns True."""
    while not ready():
        if process.poll() is not None:
            raise RuntimeError("the command ended before it could be stopped half-way")
        time.sleep(0.001)
    process.kill()
    process.wait()


def save_runs(folder: Path) -> None:
    """Save a finished run of a classification and of a regression, and a run that was killed half-way."""
    for name, words in (("finished", TRAIN), ("regression", TRAIN_VECTORS)):
        if start("train", "--out", folder / name, *words).wait():
            raise RuntimeError(f"{name}: the run failed")
        (folder / name / "report.html").unlink()
        weights = Run(folder / name).model().state_dict()
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / name / "selected.safetensors")
    state = folder / "stopped" / "checkpoints" / "last" / "state.json"

    def half_way() -> bool:
        return state.exists() and json.loads(state.read_text())["step"] >= 12

    kill_when(start("train", "--out", folder / "stopped", *TRAIN), half_way)
    if json.loads(state.read_text())["step"] >= 22:
        raise RuntimeError("stopped: was killed too late; try again")


def save_sweep(folder: Path) -> None:
    """Save a sweep that was killed during its second trial, and the record of the same sweep without the kill."""
    folder.mkdir()
    plan = folder / "plan.yaml"
    plan.write_text(SWEEP)
    if start("sweep", plan, "--out", folder / "whole").wait():
        raise RuntimeError("the sweep failed")
    (folder / "whole" / "sweep.json").rename(folder / "expected.json")
    shutil.rmtree(folder / "whole")
    second = folder / "stopped" / "trials" / "0001" / "seed_0" / "metrics.jsonl"
    kill_when(start("sweep", plan, "--out", folder / "stopped"), lambda: second.exists() and second.stat().st_size > 0)
    time.sleep(5)  # the worker notices that its parent is gone, and ends
    for report in (folder / "stopped").rglob("report.html"):
        report.unlink()


def save_recipes(folder: Path) -> None:
    """Copy some recipes, and recipes of sweeps."""
    for name in RECIPES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "recipes" / name, folder / name)


def save_records(folder: Path) -> None:
    """Copy the first rows of every file of records."""
    for kind in ("runs", "bench", "automata"):
        (folder / kind).mkdir(parents=True)
        for path in sorted((ROOT / "results" / kind).glob("*.jsonl")):
            read_records(path)
            lines = path.read_text("utf-8").splitlines(keepends=True)
            (folder / kind / path.name).write_text("".join(lines[:ROWS]), "utf-8")
    for kind, name in (("seeds", "parity_mamba.json"), ("table1", "clean/parity-ma.json")):
        (folder / kind / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / "results" / kind / name, folder / kind / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a folder that does not exist yet")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True)
    torch.set_num_threads(1)
    save_models(folder / "models")
    save_runs(folder / "runs")
    save_sweep(folder / "sweep")
    save_recipes(folder / "recipes")
    save_records(folder / "records")
    for path in folder.rglob("*.lock"):
        path.unlink()
    about = {"commit": commit(), "torch": torch.__version__, "command": f"python tests/saved/make.py {folder}"}
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
