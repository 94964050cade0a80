"""Measure the updates per second of stacks of seeds: batches from the host, training sets on the GPU, and with split products.

A stack trains the seeds of a row of AUSSM's Table 1 in one process, without validations. `training_sets_on_gpu` says whether
updates take their examples from the training sets on the GPU or batches from the host; `split_products` whether linear layers
have the gradients of `longscan.training.stacked_linear` or torch's. `replay_ms` is the time of a replayed update.
`largest_difference_after_60_updates` is the largest difference of a parameter from the first stack with training sets on the GPU
and torch's gradients: two equal stacks differ as well, because updates on a GPU are not repeatable bit by bit.

    python benchmarks/stacked_updates.py parity/am:10 parity/ma:5 --out results/stacked_seeds.jsonl

A record is appended for each stack as soon as it is measured.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longscan.reproduce.rows import find_rows
from longscan.reproduce.runs import row_settings
from longscan.training.run import commit, device_name
from longscan.training.settings import Settings
from longscan.training.stacked import _Member, _StackedStep, stack_batches
from longscan.training.trainer import Trainer, open_accelerator
from row_files import write_row

VARIANTS = ((False, False), (True, False), (True, False), (True, True), (True, True))  # training sets on the GPU, split products
WARM_UP = 60  # updates before those that are timed


def measure(
    settings: Settings, seeds: int, *, on_device: bool, splits: bool, updates: int, folder: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what was measured of a stack, and its parameters after the first updates. folder: where its runs are written."""
    with ExitStack() as exits:
        members = []
        for seed in range(seeds):
            own, out = replace(settings, training=replace(settings.training, seed=seed)), folder / str(seed)
            accelerator = exits.enter_context(open_accelerator(own.training, out))
            command = "benchmarks/stacked_updates.py"
            members.append(_Member(Trainer(own, out, accelerator, command, resume=False, progress=False, test=False)))
            members[-1].open()
        step = _StackedStep([one.trainer for one in members], [one.training_set() if on_device else None for one in members])
        step.splits_products = splits

        def update() -> None:
            if step.training_sets is None:
                batches = [next(one.batches) for one in members]
                for one in members:
                    one.trainer.engine.begin_step()
                results = step(stack_batches(batches))
            else:
                results = step(step.next_rows())
            for one, result in zip(members, results, strict=True):
                one.end_step(result, set())

        def synchronise() -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()

        for _ in range(WARM_UP):
            update()
        synchronise()
        found = {key: value.detach().clone() for key, value in step.parameters.items()}
        start = time.perf_counter()
        for _ in range(updates):
            update()
        synchronise()
        seconds = time.perf_counter() - start
        replayed = members[0].trainer.seconds_per_replay()
        row: dict[str, Any] = {"stacked": seeds, "updates": seeds * updates}
        row |= {"updates_per_second": round(seeds * updates / seconds, 1)}
        row |= {} if replayed is None else {"replay_ms": round(1e3 * replayed, 3)}
        for one in members:
            one.exits.pop_all()  # the runs are neither finished nor tested
    return row | {"training_sets_on_gpu": on_device, "split_products": splits, "validations": False}, found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the stacks that the arguments name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("stacks", nargs="+", metavar="ROW:SEEDS", help="row of aussm/table1 and number of seeds, as parity/ma:5")
    parser.add_argument("--updates", type=int, default=400, help="timed updates of each stack")
    parser.add_argument("--device", default="auto", help="device of the models")
    parser.add_argument("--out", type=Path, help="file of records (JSON Lines) to which each is appended")
    options = parser.parse_args(argv)
    for stack in options.stacks:
        name, _, seeds = stack.partition(":")
        if not seeds.isdecimal() or not int(seeds):
            raise SystemExit(f"`stacks` must be ROW:SEEDS, such as parity/ma:5, got {stack!r}")
        settings = row_settings(find_rows("aussm/table1", [name])[0])
        settings = replace(settings, training=replace(settings.training, device=options.device, trackers=[]))
        first: dict[str, Tensor] | None = None
        for on_device, splits in VARIANTS:
            with tempfile.TemporaryDirectory() as folder:
                measured, found = measure(
                    settings, int(seeds), on_device=on_device, splits=splits, updates=options.updates, folder=Path(folder)
                )
            row = {"row": f"aussm/table1/{name}"} | measured
            if first is not None:
                row["largest_difference_after_60_updates"] = max(float((first[key] - found[key]).abs().max()) for key in found)
            elif on_device and not splits:
                first = found
            device = torch.device("cuda") if torch.cuda.is_available() and options.device != "cpu" else torch.device("cpu")
            row |= {"device": device_name(device), "torch": torch.__version__, "commit": commit()}
            row["command"] = " ".join(["python benchmarks/stacked_updates.py", *(argv or sys.argv[1:])])
            write_row(row, options.out)


if __name__ == "__main__":
    main()
