"""The time to make a training batch, next to that of an update on a GPU: does a GPU wait for its data?

Batches are made one after another by one thread, as in training while the update before runs. Updates are those of results/runs,
validation included; of several runs the fastest. Recipes: --recipes, or all of recipes/afternoon, which need LONGSCAN_DATA.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from harness import CPU, ROOT, Measurement, Row, milliseconds, record
from longscan.report.records import Record, read_folder
from longscan.training import SettingError
from longscan.training.parsing import parse_settings

COUNT = 30  # batches after the first, of which the median is taken


def update_ms(recipe: str, runs: Sequence[Record]) -> float | None:
    """Return the milliseconds of an update in the fastest recorded run of a recipe on a GPU."""
    mine = [row for row in runs if row["recipe"] == f"recipes/{recipe}.yaml" and "NVIDIA" in row["device"]]
    return min((1e3 * row["seconds"] / row["steps"] for row in mine), default=None)


def batches(options: Any) -> Iterator[Row]:
    """Yield a row for each recipe: the first batch, with the files read or found in the cache, and the median of later ones."""
    torch.set_num_threads(1)
    runs = read_folder(ROOT / "results/runs")
    for recipe in options.recipes or sorted((ROOT / "recipes/afternoon").glob("*.yaml")):
        yield measure(Path(recipe), 3 if options.quick else COUNT, runs)


def measure(recipe: Path, count: int, runs: Sequence[Record]) -> Row:
    """Return the row of a recipe; SystemExit where it cannot be read or its data are missing."""
    name = f"{recipe.parent.name}/{recipe.stem}"
    try:
        settings = parse_settings(["--config", str(recipe)])
        task, size, seed = settings.task, settings.training.batch_size, settings.data_seed
        started = time.perf_counter()
        batch = task.batch("train", 0, size, seed)
    except (SettingError, ValueError, OSError) as error:
        raise SystemExit(f"loaders: {recipe}: {error}") from error
    found: Row = {"variant": name, "figure": "loaders", "first_batch_s": time.perf_counter() - started}
    times = [milliseconds(lambda step=step: task.batch("train", step, size, seed)) for step in range(1, count + 1)]
    found |= {"batch_ms": statistics.median(times), "runs": times}
    if (update := update_ms(name, runs)) is not None:
        found["update_ms"] = update
    return record("loader", {"B": size, "L": batch.inputs.shape[1]}, CPU, **found)


CASES = (Measurement(suite="loaders", name="batches", rows=batches),)
