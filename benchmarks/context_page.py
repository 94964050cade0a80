"""Print the records of context_parallel.py as tables next to the values of a model of the exchange, and draw them as a picture.

    python benchmarks/context_page.py results/context_parallel.jsonl

The picture is written next to the file. If a measurement was repeated, its newest row is used.
"""

import argparse
import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

from longscan.models.spec import parse_spec

Row = dict[str, Any]

EXPAND = {"mamba": 2, "aussm": 1}  # inner width of a block over d_model
LATENCY = {"H100": 0.2e-3, "H200": 0.13e-3}  # seconds of a gather of few bytes by NCCL on 2 and 4: the rows with "exchange"
LINK = 3.5e11  # bytes a second that a GPU receives, from the same rows
# Seconds in which the host starts the kernels of a step of 8 blocks on pieces: the time of the shortest sequences. The rows of
# H200s are of later code, whose exchanges are fewer operations.
HOST = {"H100": 0.1, "H200": 0.085}
RECOMPUTED = 1.5  # factor of this time with recomputation: a second forward pass takes half as long as a step
# A step and channel: zeros are written, two gradients are read, and their sum is written, in float32. Later code adds in place.
BYTES_OF_CONVOLUTION = {"H100": 16, "H200": 0}
BANDWIDTH = {"H100": 3.0e12, "H200": 4.3e12}  # bytes a second of the memory
TABLE = (
    "| Stack | Recompute | Steps | GPUs | Seconds | Expected | Efficiency | Against a piece | GB a GPU | Efficiency |\n|"
    + "---|" * 10
)
WAYS = ("plain", "captured", "twice")
# Commits since which convolutions read the inputs of pieces in 16 bits and keep no copy of them. Less memory is needed since, and
# one GPU is faster, so that their rows are compared with each other alone.
SIXTEEN_BITS = ("aeac0937e712",)
STYLES = ("-", "o"), ("--", "s"), (":", "^"), ("-.", "v")  # lines and markers, by the number of GPUs


def way_of(row: Row) -> str:
    """Return the way in which the steps of a row were made, as context_parallel.py names it."""
    return next((way for way in ("recompute", "captured", "twice") if row.get(way)), "plain")


def newest(rows: list[Row]) -> list[Row]:
    """Return the newest row of each measurement, in the order of their first rows.

    "code" is the commit whose kernels ran, where "commit" is that of another tree. Rows of the same code are taken together: the
    time is the median of all their steps.
    """
    found: dict[Any, Row] = {}
    for row in rows:
        size = row["processes"], row.get("data", 1), row["length"]
        key = row["stack"], way_of(row), *size, row["device"], row.get("seconds") is None, row.get("allocator") == ""
        same = found.get(key, {})
        if same.get("seconds") and same.get("code") == row.get("code") is not None:
            times = same["all_seconds"] + row["all_seconds"]
            row = row | {"seconds": statistics.median(times), "all_seconds": times}
        found[key] = row
    return list(found.values())


def is_split(row: Row) -> bool:
    """Return whether each sequence is shared by several GPUs."""
    return bool(row["processes"] > row.get("data", 1))


def of_kind(row: Row, values: dict[str, float]) -> float:
    """Return the value for the GPUs of a row."""
    return next(value for kind, value in values.items() if kind in row["device"])


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


def exchange_seconds(row: Row) -> float:
    """Return the expected seconds of all exchanges of a training step."""
    exchanges = 2 * len(blocks_of(row["stack"])) * (2 + row["recompute"])  # of a convolution and a scan in each block
    return of_kind(row, LATENCY) * exchanges + received_bytes(row) / LINK


def expected_seconds(row: Row, seconds_of_one: dict[int, float]) -> float | None:
    """Return the expected seconds of a step on several GPUs; None where one GPU was not measured at the length of a piece.

    A GPU needs the time of one GPU at that length, the time in which the gradient of the newest inputs of each convolution is
    added to that of all inputs, and the time of the exchanges; the host needs HOST at least, RECOMPUTED times as long with
    recomputation.
    """
    piece = row["length"] // row["processes"]
    if piece not in seconds_of_one:
        return None
    channels = sum(EXPAND[block] * row["d_model"] for block in blocks_of(row["stack"]))
    on_gpu = seconds_of_one[piece] + of_kind(row, BYTES_OF_CONVOLUTION) * channels * piece / of_kind(row, BANDWIDTH)
    return max(on_gpu, of_kind(row, HOST) * (RECOMPUTED if row["recompute"] else 1)) + exchange_seconds(row)


def alone(rows: list[Row], row: Row) -> dict[int, Row]:
    """Return the rows of GPUs with whole sequences, with the stack and the way of a row, by their lengths."""
    same = [one for one in rows if not is_split(one) and one["stack"] == row["stack"] and way_of(one) == way_of(row)]
    return {one["length"]: one for one in same if one.get("seconds")}


def print_table(rows: list[Row]) -> None:
    """Print the times and memory of several processes, what the model expects, and the efficiency against one process.

    Raises AssertionError if the bytes are not those of the formula.
    """
    print(TABLE)
    deviations = []
    for row in rows:
        if not is_split(row) or not row.get("seconds") or way_of(row) not in ("plain", "recompute"):
            continue
        assert row["received"] == received_bytes(row), row
        ones = alone(rows, row)
        expected = expected_seconds(row, {length: one["seconds"] for length, one in ones.items()})
        if expected is not None:
            deviations.append(abs(expected / row["seconds"] - 1))
        one = ones.get(row["length"], {})
        piece = ones.get(row["length"] // row["processes"])
        shares = [f"{one[name] / row['processes'] / row[name]:.0%}" if one else "" for name in ("seconds", "memory")]
        against_piece = f"{piece['seconds'] / row['seconds']:.0%}" if piece else ""
        times = f"{row['seconds']:.3f}", "" if expected is None else f"{expected:.3f}", shares[0], against_piece
        memory = f"{row['memory'] / 1e9:.1f}", shares[1]
        recompute = "yes" if row["recompute"] else "no"
        cells = [f"`{row['stack']}`", recompute, f"{row['length']:,}", row["processes"], *times, *memory]
        print(f"| {' | '.join(map(str, cells))} |")
    largest = f"largest deviation of an expected time: {max(deviations):.0%}; " if deviations else ""
    print(f"\n{largest}all bytes are those of the formula")


def print_against_expected(rows: list[Row], expected: list[Row]) -> None:
    """Print the first rows after the model had written down their times and bytes, and how far off it was.

    "rows_before" is the number of rows that the records had then.
    """
    print("| Stack | Way | Steps | GPUs | Seconds | Expected | Deviation | MB received | Expected |\n|" + "---|" * 9)

    def key_of(row: Row) -> tuple[Any, ...]:
        return row["stack"], way_of(row), row["length"], row["processes"], row.get("data", 1)

    for before in expected:
        later = (row for row in rows if row["number"] >= before.get("rows_before", 0) and row.get("seconds"))
        row = next((row for row in later if key_of(row) == key_of(before)), None)
        if row is not None:
            seconds, received = before["expected_seconds"], before["expected_bytes"]
            times = f"{row['seconds']:.3f}", f"{seconds:.3f}", f"{seconds / row['seconds'] - 1:+.0%}"
            sizes = f"{row['received'] / 1e6:.2f}", f"{received / 1e6:.2f}"
            gpus = row["processes"] if row.get("data", 1) == 1 else f"{row['data']} x {row['processes'] // row['data']}"
            cells = [f"`{row['stack']}`", way_of(row), f"{row['length']:,}", gpus, *times, *sizes]
            print(f"| {' | '.join(map(str, cells))} |")


def print_meshes(rows: list[Row], alone_rows: list[Row]) -> None:
    """Print the rows of meshes with several sequences; their efficiency is against one GPU that takes one after another."""
    print("| Stack | Mesh | Steps | Seconds | Efficiency | GB a GPU |\n|" + "---|" * 6)
    for row in rows:
        if row.get("seconds"):
            one = alone(alone_rows, row).get(row["length"])
            share = f"{row['data'] * one['seconds'] / row['processes'] / row['seconds']:.0%}" if one else ""
            mesh = f"{row['data']} x {row['processes'] // row['data']}, {'FSDP2' if row['shard'] else 'DDP'}"
            cells = [
                f"`{row['stack']}`",
                mesh,
                f"{row['length']:,}",
                f"{row['seconds']:.3f}",
                share,
                f"{row['memory'] / 1e9:.1f}",
            ]
            print(f"| {' | '.join(map(str, cells))} |")


def print_expected(rows: list[Row], counts: tuple[int, ...] = (8,)) -> None:
    """Print what the model expects of more GPUs in one host, with a gather of any number of them as long as one of two."""
    print("| Stack | Steps | GPUs | MB received | Seconds expected | Efficiency expected |\n|" + "---|" * 6)
    for stack, count in product(dict.fromkeys(row["stack"] for row in rows), counts):
        plain = next(row for row in rows if row["stack"] == stack and way_of(row) == "plain")
        ones = alone(rows, plain)
        for piece in sorted(ones):
            row = plain | {"length": piece * count, "processes": count}
            expected = expected_seconds(row, {length: one["seconds"] for length, one in ones.items()})
            if expected is None or row["length"] < 2**20:
                continue
            one = ones.get(row["length"])
            share = "" if one is None else f"{one['seconds'] / count / expected:.0%}"
            cells = [f"`{stack}`", f"{row['length']:,}", count, f"{received_bytes(row) / 1e6:.1f}", f"{expected:.3f}", share]
            print(f"| {' | '.join(map(str, cells))} |")


def print_ways(rows: list[Row]) -> None:
    """Print the times of steps that are captured, and of pieces that are scanned twice, beside those of plain steps."""
    print("| Stack | Steps | GPUs | Plain, s | Captured, s | Two scans, s |\n|" + "---|" * 6)
    seconds = {(row["stack"], row["length"], row["processes"], way_of(row)): row["seconds"] for row in rows if row.get("seconds")}
    for stack, length, count in dict.fromkeys(key[:3] for key in seconds if key[3] in WAYS[1:]):
        times = [seconds.get((stack, length, count, way)) for way in WAYS]
        cells = [f"`{stack}`", f"{length:,}", count, *("" if time is None else f"{time:.3f}" for time in times)]
        print(f"| {' | '.join(map(str, cells))} |")


def longest_trained(rows: list[Row]) -> dict[tuple[str, str, int], Row]:
    """Return the row of the longest sequence by stack, way and number of GPUs, where the longest one was searched for.

    Rows of a search have "search", also those for which the memory did not suffice; those of the first searches have no time
    instead. A search begins at the longest length that was measured before it.
    """
    searched: set[tuple[str, str, int]] = set()
    longest: dict[tuple[str, str, int], Row] = {}
    for row in rows:
        key, fits = (row["stack"], way_of(row), row["processes"]), "error" not in row
        if row.get("search") or (fits and row.get("seconds") is None):
            searched.add(key)
        if fits and row["length"] > longest.get(key, {"length": 0})["length"]:
            longest[key] = row
    return {key: row for key, row in longest.items() if key in searched}


def print_longest(rows: list[Row]) -> None:
    """Print the longest sequences that were trained."""
    print("| Stack | Recompute | GPUs | Steps | GB a GPU |\n|" + "---|" * 5)
    longest = longest_trained(rows)
    for (stack, way, count), row in longest.items():
        recompute = "yes" if way == "recompute" else "no"
        print(f"| `{stack}` | {recompute} | {count} | {row['length']:,} | {row['memory'] / 1e9:.1f} |")


def draw(every: list[Row], path: Path) -> None:
    """Draw panels for each kind of GPU and stack: time and memory against the length, and the longest trained sequence."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels, processes = (
        list(dict.fromkeys((row["device"], row["stack"]) for row in every)),
        sorted({row["processes"] for row in every}),
    )
    figure, axes = plt.subplots(len(panels), 3, figsize=(13, 3.6 * len(panels)), layout="constrained", squeeze=False)
    for (device, stack), (times, memory, longest) in zip(panels, axes, strict=True):
        title = f"{stack}, {device.removeprefix('NVIDIA ').partition(' ')[0]}"
        rows = [row for row in every if (row["device"], row["stack"]) == (device, stack) and "error" not in row]
        searched, lines = longest_trained(rows), 0
        rows = [row for row in rows if row["commit"] not in SIXTEEN_BITS]  # too few for a line
        for recompute, count in product((False, True), processes):
            mine = sorted(
                (row for row in rows if (row["recompute"], row["processes"]) == (recompute, count)), key=lambda row: row["length"]
            )
            if not mine:
                continue
            label = f"{count} GPU{'s' * (count > 1)}{', recompute' * recompute}"
            line, marker = STYLES[processes.index(count)]
            style = {"color": f"C{int(recompute)}", "ls": line, "marker": marker, "ms": 4}
            timed = [row for row in mine if row["seconds"]]
            times.plot([row["length"] for row in timed], [row["seconds"] for row in timed], label=label, **style)
            mine = [*timed, *(mine[-1:] if mine[-1]["length"] > timed[-1]["length"] else [])]
            memory.plot([row["length"] for row in mine], [row["memory"] / 1e9 for row in mine], label=label, **style)
            if most := searched.get((stack, "recompute" if recompute else "plain", count)):
                longest.barh(label, most["length"], color=style["color"], alpha=0.8 ** processes.index(count))
                longest.text(most["length"], lines, f" {most['length']:,}", va="center", fontsize=8)
                lines += 1
        times.set(title=title, xscale="log", yscale="log", xlabel="steps", ylabel="seconds of a training step")
        memory.set(title=title, xscale="log", yscale="log", xlabel="steps", ylabel="GB on each GPU")
        longest.set(title=f"{title}: longest trained", xlabel="steps")
        longest.margins(x=0.35)
        longest.set_ylim(max(lines, 4) - 0.5, -0.5)
        times.legend(fontsize=8)
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    records = parser.parse_args().records
    lines = [json.loads(line) for line in records.read_text("utf-8").split("\n") if line]
    timed = [row | {"number": number} for number, row in enumerate(lines) if "length" in row and "check" not in row]
    before = records.with_name(f"{records.stem}_expected.jsonl")
    expected = [json.loads(line) for line in before.read_text("utf-8").split("\n") if line] if before.exists() else []
    of_one_mesh: list[Row] = []
    for device, later in product(dict.fromkeys(row["device"] for row in timed), (False, True)):
        here = [row for row in timed if row["device"] == device and (row["commit"] in SIXTEEN_BITS) == later]
        if not here:
            continue
        print(f"\n## {device}{', inputs of 16 bits' * later}\n")
        every = newest(here)
        measured = [row for row in every if (row.get("data", 1) == 1 and not row.get("shard")) or not is_split(row)]
        of_one_mesh += [row for row in measured if row.get("data", 1) == 1]
        print_table(measured)
        for print_more in (print_ways, print_longest, print_expected):
            print()
            print_more(measured)
        print()
        print_meshes([row for row in every if row.get("data", 1) > 1 and is_split(row)], measured)
        print()
        print_against_expected(here, expected)
    draw([row for row in of_one_mesh if way_of(row) in ("plain", "recompute")], records.with_suffix(".png"))
