"""Rows of measurements on a processor, which cpu_floor.py and busy_threads.py share."""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from longscan.training.run import commit, device_name


def make_parser(description: str | None, seconds: float) -> argparse.ArgumentParser:
    """Return a parser with the arguments of both programs. seconds: the default length of a measurement."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=seconds, help="length of each measurement")
    parser.add_argument("--out", type=Path, default=None, help="file of JSON lines, to which rows are added")
    return parser


def write_row(path: Path | None, row: dict[str, Any]) -> None:
    """Add a row, with the processor and the commit, to a file of JSON lines; to none if `path` is None."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row | {"cpu": device_name(torch.device("cpu")), "commit": commit()}) + "\n")
