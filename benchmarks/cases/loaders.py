"""Time to make a training batch, next to the recorded time of an update on a GPU, which must not wait for its data.

One thread makes one batch after another, as in training. The time of an update is the smallest in results/runs, with validation
included. Recipes are those of --recipes, or all of recipes/afternoon, which need LONGSCAN_DATA.
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

COUNT = 30  # batches after the first, whose median time is recorded


def update_ms(recipe: str, runs: Sequence[Record]) -> float | None:
    """Return the milliseconds of an update in the fastest recorded run of a recipe on a GPU; None without such a run."""
    mine = [row for row in runs if row["recipe"] == f"recipes/{recipe}.yaml" and "NVIDIA" in row["device"]]
    return min((1e3 * row["seconds"] / row["steps"] for row in mine), default=None)


def batches(options: Any) -> Iterator[Row]:
    """Yield a row for each recipe: the time of the first batch, which reads the files, and the median time of later ones."""
    torch.set_num_threads(1)
    runs = read_folder(ROOT / "results/runs")
    for recipe in options.recipes or sorted((ROOT / "recipes/afternoon").glob("*.yaml")):
        yield measure(Path(recipe), 3 if options.quick else COUNT, runs)


def measure(recipe: Path, count: int, runs: Sequence[Record]) -> Row:
    """Return the row of a recipe. SystemExit if the recipe is invalid or its data are missing."""
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
