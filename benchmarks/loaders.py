"""Does a GPU wait for its data? The time to make a training batch, beside that of an update on a GPU.

    LONGSCAN_DATA=DIR python benchmarks/loaders.py                 recipes/afternoon, a minute or two
    python benchmarks/loaders.py recipes/afternoon/pendulum.yaml   others; drawn tasks need no data

Batches are made one after another by one thread, as training has one make them ahead while the update before runs: the GPU waits
where a batch takes longer than an update. Updates are those of results/runs, validation included; of several runs, the fastest.
Appends a row a recipe to DIR/loaders.jsonl and writes DIR/loaders.md from the latest ones, DIR being results/bench unless --out
names another folder called bench.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

import gpu
from longscan.report.records import Record, check_record, read_records
from longscan.training import SettingError
from longscan.training.parsing import parse_settings
from timing import once

COUNT = 30  # batches after the first, of which the median is taken


def measure(recipe: Path, count: int) -> gpu.Row:
    """A row of the records. first_batch_s: with the files opened and read, or found in the cache; batch_ms: of later ones."""
    settings = parse_settings(["--config", str(recipe)])
    task, size, seed = settings.task, settings.training.batch_size, settings.data_seed
    started = time.perf_counter()
    batch = task.batch("train", 0, size, seed)
    first = time.perf_counter() - started
    times = [once(lambda step=step: task.batch("train", step, size, seed)) for step in range(1, count + 1)]
    shape = {"B": size, "L": batch.inputs.shape[1]}
    name = f"{recipe.parent.name}/{recipe.stem}"
    found = {"variant": name, "figure": "loaders", "first_batch_s": first, "batch_ms": statistics.median(times)}
    return gpu.record("loader", None, shape, **found) | {"runs": times}


def update_ms(recipe: str, runs: list[Record]) -> float | None:
    """Milliseconds of an update in the fastest recorded run of a recipe on a GPU."""
    mine = [row for row in runs if row["recipe"] == f"recipes/{recipe}.yaml" and "NVIDIA" in row["device"]]
    return min((1e3 * row["seconds"] / row["steps"] for row in mine), default=None)


def page(rows: list[Record], runs: list[Record]) -> str:
    """The latest row of each recipe as a table."""
    latest = {row["variant"]: row for row in rows}
    lines = ["# Batches", "", "Made by one thread; updates are those of `results/runs` on an H200, validation included.", ""]
    lines += ["| recipe | batch x steps | first batch, s | batch, ms | update, ms | batch over update | made on |"]
    lines += ["|---|---|---:|---:|---:|---:|---|"]
    for name, row in sorted(latest.items()):
        update = update_ms(name, runs)
        beside = "– | –" if update is None else f"{update:.1f} | {row['batch_ms'] / update:.3f}"
        size = f"{row['shape']['B']} x {row['shape']['L']:,}"
        lines.append(f"| {name} | {size} | {row['first_batch_s']:.2f} | {row['batch_ms']:.2f} | {beside} | {row['device']} |")
    commands = dict.fromkeys(f"`{row['command']}`, {row['commit']}" for row in latest.values())
    return "\n".join([*lines, "", *commands]) + "\n"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = sorted((gpu.ROOT / "recipes" / "afternoon").glob("*.yaml"))
    parser.add_argument("recipes", nargs="*", type=Path, default=default)
    parser.add_argument("--count", type=int, default=COUNT, help="batches after the first")
    parser.add_argument("--out", type=Path, default=gpu.ROOT / "results" / "bench", help="folder of the files, called bench")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for recipe in options.recipes:
        try:
            row = measure(recipe, options.count)
        except (SettingError, ValueError, OSError) as error:
            parser.exit(2, f"loaders.py: {recipe}: {error}\n")
        check_record("bench", row)
        gpu.append(options.out, "loaders.jsonl", [row])
        print(f"{row['variant']}: first {row['first_batch_s']:.2f} s, then {row['batch_ms']:.2f} ms", flush=True)
    runs = [row for path in sorted((gpu.ROOT / "results" / "runs").glob("*.jsonl")) for row in read_records(path)]
    (options.out / "loaders.md").write_text(page(read_records(options.out / "loaders.jsonl"), runs), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
