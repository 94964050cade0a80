"""Weights and logs that tests read from the directories of runs."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longscan.training import Run
from longscan.training.checkpoint import read_tensors
from longscan.training.logs import read_rows


def read_weights(run: Run, which: str = "last") -> dict[str, Tensor]:
    """Return the weights of a checkpoint by their names."""
    return read_tensors(run.checkpoint(which) / "model.safetensors")


def have_equal_tensors(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Return whether two dictionaries have the same keys and bitwise equal tensors."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of `metrics.jsonl` without their times."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in read_rows(folder / "metrics.jsonl")]
