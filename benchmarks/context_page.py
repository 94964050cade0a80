"""The records of context_parallel.py as a table, with what a model of the exchange expects, and as a picture beside the file.

python benchmarks/context_page.py results/context_parallel.jsonl
"""

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

from longscan.models.spec import parse_spec

Row = dict[str, Any]

EXPAND = {"mamba": 2, "aussm": 1}  # inner width of a block over d_model
EXCHANGE = 0.2e-3  # seconds of a gather of up to 1 MB by NCCL on two H100s: the rows with "exchange"
HOST = 0.1  # seconds in which the host starts the kernels of a step of 8 blocks on pieces: the time of the shortest sequences
BYTES_OF_CONVOLUTION = 16  # a step and channel: zeros are written, two gradients are read, and their sum is written, in float32
BANDWIDTH = 3.0e12  # bytes a second of an H100's memory
TABLE = "| Stack | Recompute | Steps | GPUs | Seconds | Expected | Efficiency | GB a GPU | Efficiency |\n|" + "---|" * 9


def blocks_of(spec: str) -> list[str]:
    """Return the names of the blocks of a stack."""
    return [str(entry["block"]) for entry in parse_spec(spec)]


def received_bytes(row: Row) -> int:
    """Return the bytes that a process receives in a training step, by kernels that exchange states between their two passes.

    A convolution of 4 taps sends 3 inputs of each channel and the number of steps, forward and backward. A scan sends its factor
    and its last state forward, and two gradients of states backward. Recomputed blocks exchange twice forward.
    """
    numbers = 0
    for block in blocks_of(row["stack"]):
        width = EXPAND[block] * row["d_model"]
        state = width * row["d_state"] * (2 if block == "aussm" else 1)
        numbers += (2 * state + 3 * width + 1) * (2 + row["recompute"])
    return 4 * (row["processes"] - 1) * numbers


def expected_seconds(row: Row, seconds_of_one: dict[int, float]) -> float | None:
    """Return the expected seconds of a step on several GPUs; None where one GPU was not measured at the length of a piece.

    A GPU needs the time of one GPU at that length, the time in which the gradient of the newest inputs of each convolution is
    added to that of all inputs, and EXCHANGE for each exchange; the host needs HOST at least.
    """
    piece = row["length"] // row["processes"]
    if piece not in seconds_of_one:
        return None
    channels = sum(EXPAND[block] * row["d_model"] for block in blocks_of(row["stack"]))
    on_gpu = seconds_of_one[piece] + BYTES_OF_CONVOLUTION * channels * piece / BANDWIDTH
    return max(on_gpu, HOST) + EXCHANGE * row["exchanges"]


def print_table(rows: list[Row]) -> None:
    """Print the times and memory of several processes, what the model expects, and the efficiency against one process.

    Raises AssertionError if the bytes are not those of the formula.
    """
    print(TABLE)
    for row in rows:
        if row["processes"] == 1 or not row.get("seconds"):
            continue
        assert row["received"] == received_bytes(row), row
        same = [one for one in rows if one["processes"] == 1 and all(one[name] == row[name] for name in ("stack", "recompute"))]
        alone = {one["length"]: one for one in same if one.get("seconds")}
        expected = expected_seconds(row, {length: one["seconds"] for length, one in alone.items()})
        one = alone.get(row["length"], {})
        shares = [f"{one[name] / row['processes'] / row[name]:.0%}" if one else "" for name in ("seconds", "memory")]
        times = f"{row['seconds']:.3f}", "" if expected is None else f"{expected:.3f}", shares[0]
        memory = f"{row['memory'] / 1e9:.1f}", shares[1]
        recompute = "yes" if row["recompute"] else "no"
        cells = [f"`{row['stack']}`", recompute, f"{row['length']:,}", row["processes"], *times, *memory]
        print(f"| {' | '.join(map(str, cells))} |")


def draw(rows: list[Row], path: Path) -> None:
    """Draw a line of panels for each stack: time and memory against the length, and the longest sequence that was trained."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    stacks, processes = list(dict.fromkeys(row["stack"] for row in rows)), sorted({row["processes"] for row in rows})
    figure, axes = plt.subplots(len(stacks), 3, figsize=(13, 3.6 * len(stacks)), layout="constrained", squeeze=False)
    for stack, (times, memory, longest) in zip(stacks, axes, strict=True):
        for place, (recompute, count) in enumerate(product((False, True), processes)):
            mine = sorted(
                (row for row in rows if (row["stack"], row["recompute"], row["processes"]) == (stack, recompute, count)),
                key=lambda row: row["length"],
            )
            mine = [row for row in mine if "error" not in row]
            if not mine:
                continue
            label = f"{count} GPU{'s' * (count > 1)}{', recompute' * recompute}"
            style = {
                "color": f"C{int(recompute)}",
                "ls": "-" if count == 1 else "--",
                "marker": "o" if count == 1 else "s",
                "ms": 4,
            }
            timed = [row for row in mine if row["seconds"]]
            times.plot([row["length"] for row in timed], [row["seconds"] for row in timed], label=label, **style)
            mine = [row for row in mine if row["seconds"] or row["length"] > timed[-1]["length"]]
            memory.plot([row["length"] for row in mine], [row["memory"] / 1e9 for row in mine], label=label, **style)
            if not recompute:  # the longest with recomputation was not looked for everywhere
                longest.barh(label, mine[-1]["length"], color="C0", alpha=1 if count == 1 else 0.6)
                longest.text(mine[-1]["length"], place, f" {mine[-1]['length']:,}", va="center", fontsize=8)
        times.set(title=stack, xscale="log", yscale="log", xlabel="steps", ylabel="seconds of a training step")
        memory.set(title=stack, xscale="log", yscale="log", xlabel="steps", ylabel="GB on each GPU")
        longest.set(title=f"{stack}: longest sequence trained", xlabel="steps")
        longest.margins(x=0.35)
        longest.invert_yaxis()
        times.legend(fontsize=8)
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    records = parser.parse_args().records
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    measured = [row for row in lines if "length" in row and "check" not in row and not row["twice"]]
    print_table(measured)
    draw(measured, records.with_suffix(".png"))
