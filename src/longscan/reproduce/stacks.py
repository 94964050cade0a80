"""Seeds of a row that train together in one process (`longscan.training.stacked`), and the rule that chooses such rows."""

import json
import shlex
import sys
from pathlib import Path
from typing import Literal

import torch

from longscan._errors import setting_error
from longscan.reproduce.rows import PublishedRow
from longscan.training.parsing import parse_settings
from longscan.training.processes import run_locked
from longscan.training.settings import Settings

MAX_ELEMENTS = 2**27  # elements of a step's states: the largest size at which stacks were measured (results/stacked_seeds.jsonl)
PROGRAM = """
import sys
from longscan._allocator import keep_freed_memory
from longscan.reproduce.stacks import train_seeds
from longscan.training.processes import stop_with_parent
stop_with_parent()
keep_freed_memory()
sys.exit(train_seeds(sys.argv[1]))
"""

Stacking = Literal["auto", "always", "never"]


def is_stacked(row: PublishedRow, settings: Settings, stacking: Stacking) -> bool:
    """Return whether the seeds of a row train together in one process.

    With "auto" they do on a GPU if the recipe allows it and batch size x length x d_model x d_state is at most `MAX_ELEMENTS`.
    Raises SettingError if the recipe does not allow it with "always".
    """
    from longscan.training.stacked import unstackable_reason

    if stacking == "never":
        return False
    reason = unstackable_reason(settings)
    if stacking == "always":
        if reason:
            raise setting_error("--stacked", stacking, f"auto or never for {row.id} ({reason})")
        return True
    model, training = settings.model, settings.training
    elements = training.batch_size * settings.task.length * model.d_model * model.d_state
    on_gpu = torch.cuda.is_available() and training.device in ("auto", "cuda")
    return on_gpu and reason is None and elements <= MAX_ELEMENTS


def stack_command(runs: list[tuple[list[str], Path]]) -> list[str]:
    """Return the command of a process that trains runs together, from the arguments of `longscan train` and folder of each."""
    return [sys.executable, "-c", PROGRAM, json.dumps([[argv, str(folder)] for argv, folder in runs])]


def train_seeds(argument: str) -> int:
    """Train the runs that `stack_command` wrote into the argument; return the exit status of the process."""
    from longscan.training.stacked import StackableRun, train_stacked

    runs = [(argv, Path(folder)) for argv, folder in json.loads(argument)]

    def train() -> int:
        train_stacked(
            [
                StackableRun(parse_settings(argv), folder, shlex.join(["longscan", "train", *argv, "--out", str(folder)]))
                for argv, folder in runs
            ]
        )
        return 0

    return run_locked([folder for _, folder in runs], train)
