"""What `systems.py` measured, as tables (systems.md) and as curves against the length (systems.png), from the latest rows."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from longscan.report.published import published_row
from longscan.report.records import Record, read_records
from longscan.report.text import commit_text
from systems_heads import CASES

QUANTITIES = (  # field, what it is, unit
    ("replayed_forward_backward_ms", "training step, replayed", "ms"),
    ("replayed_forward_ms", "inference pass, replayed", "ms"),
    ("peak_mib", "memory of a training step", "MiB"),
    ("forward_backward_ms", "training step, called", "ms"),
    ("forward_ms", "inference pass, called", "ms"),
)
DRAWN = QUANTITIES[:3]
PUBLISHED = {"S6, recompute": "fused block: {r364} % faster, {r365} % less memory in training"}  # the thesis, section 14.4.2


def latest(path: Path, figure: str) -> list[Record]:
    """The rows of one part, of each measurement the last one, in the order in which they were first measured."""
    found: dict[tuple[Any, ...], Record] = {}
    for row in read_records(path):
        if row["figure"] == figure:
            found[row["variant"], row["shape"]["B"], row["shape"]["L"]] = row
    return list(found.values())


def number(value: float | None) -> str:
    """Three digits."""
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown, and the blank line behind it."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines)] + [""]


def origin(rows: Sequence[Record]) -> str:
    """On what and by what the rows came to be."""
    devices = ", ".join(dict.fromkeys(row["device"] for row in rows))
    commits = ", ".join(dict.fromkeys(commit_text(row["commit"]) for row in rows))
    commands = ", ".join(f"`{command}`" for command in dict.fromkeys(row["command"] for row in rows))
    versions = ", ".join(dict.fromkeys(f"torch {row['torch']}, Triton {row['triton']}" for row in rows))
    return f"{devices}; {versions}; commit {commits}; {commands}."


def lengths_page(rows: Sequence[Record]) -> Iterator[str]:
    """A table for each quantity: systems by lengths."""
    names = list(dict.fromkeys(row["variant"] for row in rows))
    steps = sorted({row["shape"]["L"] for row in rows})
    cells = {(row["variant"], row["shape"]["L"]): row for row in rows}
    yield f"## Against the length\n\nBatch {rows[0]['shape']['B']}, {rows[0]['dtype']}. {origin(rows)}"
    yield "Called: from Python, launch by launch. Replayed: the same work as one CUDA graph, as `training.capture` does it. A"
    yield "reason stands where a length was too much; longer ones were not tried then. –: not measured.\n"
    for key, called, unit in QUANTITIES:
        lines = []
        for name in names:
            mine = [cells.get((name, length)) for length in steps]
            row = next(row for row in mine if row)
            sizes = f"{row['shape']['blocks']} × {row['shape']['d_model']}"
            found = ["–" if row is None else row.get("reason") or number(row.get(key)) for row in mine]
            lines.append([name, f"{row['parameters']:,}", sizes, *found])
        yield f"{called[0].upper()}{called[1:]}, {unit}\n"
        yield from table(["system", "parameters", "blocks × width", *(f"{length:,}" for length in steps)], lines)


def ratio(found: float | None, unit: float | None) -> str:
    """How many times the unit."""
    return "–" if found is None or not unit else f"{found / unit:.2f}"


def overhead_page(rows: Sequence[Record]) -> Iterator[str]:
    """Times and memory, and each over that of S6."""
    plain = next((row for row in rows if row["variant"] == "S6"), {})
    batch, length = (rows[0]["shape"][name] for name in "BL")
    yield f"## Overhead\n\nBatches of {batch} x {length} x 3 (thesis, section 12.2.5), {rows[0]['dtype']}. {origin(rows)}"
    yield "Times over S6's in brackets; medians of turns that the models took.\n"
    lines = []
    for row in rows:
        keys = (
            "replayed_forward_backward_ms", "forward_backward_ms", "replayed_forward_ms", "forward_ms", "peak_mib",
            "inference_peak_mib",
        )  # fmt: skip
        cells = [f"{number(row.get(key))} ({ratio(row.get(key), plain.get(key))})" for key in keys]
        said = PUBLISHED.get(row["variant"], "").format(**{i: published_row(i)["value"] for i in ("r364", "r365")})
        lines.append([row["variant"], f"{row['parameters']:,}", *cells, row.get("reason") or said])
    times = [f"{kind} ms{how}" for kind in ("training", "inference") for how in (", replayed", ", called")]
    yield from table(["model", "parameters", *times, "training MiB", "inference MiB", "published"], lines)


def heads_page(rows: Sequence[Record]) -> Iterator[str]:
    """Our times beside the peers', and the bar."""
    yield f"## Heads and attention as ops\n\nbfloat16. {origin(rows)}"
    yield "Peer: the published Triton ops and torch's attention, measured apart. Needed: at most so many times the peer's. What"
    yield "is inside is said in `benchmarks/systems_heads.py`; kernels: fused attention kernels that ran.\n"
    lines = []
    for row in rows:
        case = next(case for case in CASES if case.name == row["variant"])
        peer = (case.peers or {}).get(row["shape"]["L"], (None, None, None))
        keys = ("forward_ms", "forward_backward_ms", "peak_mib")
        beside = [(row[key], of_peer) for key, of_peer in zip(keys, peer, strict=True)]
        cells = [text for ours, theirs in beside for text in (number(ours), number(theirs), ratio(ours, theirs))]
        said = row.get("reason") or ", ".join(row.get("kernels", ()))
        lines.append([case.name, str(tuple(row["shape"].values())), *cells, number(case.bar), said])
    measured = [text for name in ("forward ms", "forward+backward ms", "peak MiB") for text in (name, "peer", "ratio")]
    yield from table(["op", "B, L, D, N", *measured, "needed", "kernels"], lines)


def value(row: Record, key: str) -> float | None:
    """A quantity as it is drawn: where nothing was replayed, as it was called."""
    found: float | None = row.get(key)
    return row[key.removeprefix("replayed_")] if found is None else found


def draw(rows: Sequence[Record], path: Path) -> None:
    """Each quantity against the length, with slopes to compare with, and the legend beside."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullLocator

    names, steps = list(dict.fromkeys(row["variant"] for row in rows)), sorted({row["shape"]["L"] for row in rows})
    figure, axes = plt.subplots(1, 3, figsize=(16, 5), layout="constrained")
    for ax, (key, called, unit) in zip(axes, DRAWN, strict=True):
        for i, name in enumerate(names):
            mine = [row for row in rows if row["variant"] == name and value(row, key) is not None]
            points = sorted((row["shape"]["L"], value(row, key)) for row in mine)
            style = {"color": f"C{i % 10}", "ls": "-" if i < 10 else "--", "marker": "osD^v<>PX*hp8dHs"[i % 16]}
            ax.plot([length for length, _ in points], [height for _, height in points], label=name, ms=4, lw=1.3, **style)
        ax.set(xscale="log", xlabel="steps", ylabel=unit, title=called.replace("replayed", "replayed where that was measured"))
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xticks(steps)
        ax.tick_params(axis="x", rotation=45)
        found = [height for row in rows if (height := value(row, key))]
        if found:
            guides(ax, steps, max(found))
        ax.grid(alpha=0.3)
    handles = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=9)
    shape = rows[0]["shape"]
    figure.suptitle(f"Models of 600,000 parameters, batch {shape['B']}, {rows[0]['dtype']}, {rows[0]['device']}", fontsize=11)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def guides(ax: Any, steps: Sequence[int], top: float) -> None:
    """Lines of slope 1 and 2 that end at the top right."""
    ax.set_yscale("log")
    limits = ax.get_ylim()
    for power, style, label in ((1, ":", "linear"), (2, "-.", "quadratic")):
        ax.plot(steps, [top * (length / steps[-1]) ** power for length in steps], color="0.5", ls=style, lw=1, label=label)
    ax.set_ylim(limits)


def write(folder: Path) -> None:
    """systems.md and systems.png of the rows in systems.jsonl."""
    parts = {"length": lengths_page, "overhead": overhead_page, "heads": heads_page}
    lines = ["# Models and ops on a GPU", ""]
    for figure, page in parts.items():
        rows = latest(folder / "systems.jsonl", figure)
        if rows:
            lines += page(rows)
        if rows and figure == "length":
            draw(rows, folder / "systems.png")
    (folder / "systems.md").write_text("\n".join(lines).rstrip() + "\n", "utf-8")
