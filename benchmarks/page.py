"""Write FILE.md and FILE.png next to a file of records FILE.jsonl: tables and a figure of the latest row of each measurement."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from longscan.report.page import commit_text
from longscan.report.records import Record, read_records

QUANTITIES = {  # field of a row -> column
    "forward_ms": "forward, ms",
    "replayed_forward_ms": "forward replayed, ms",
    "forward_backward_ms": "forward+backward, ms",
    "replayed_forward_backward_ms": "forward+backward replayed, ms",
    "first_batch_s": "first batch, s",
    "batch_ms": "batch, ms",
    "update_ms": "update, ms",
    "peak_mib": "peak MiB",
    "inference_peak_mib": "inference MiB",
    "extra_share": "extra memory, share",
    "error_vs_float64": "error",
    "share_of_scans": "share of scans",
}
DRAWN = {  # label of an axis -> the fields of a row, of which the first that was measured is drawn
    "forward+backward, ms": ("replayed_forward_backward_ms", "forward_backward_ms"),
    "forward, ms": ("replayed_forward_ms", "forward_ms"),
    "peak, MiB": ("peak_mib",),
}
RESULTS = Path(__file__).parents[1] / "results"
SWEPT = ("L", "K")  # axes of the shape by which rows of one group may differ


def label_of(row: Record) -> str:
    """Return the name of a row's implementation: its peer, or its variant and backend, or its op."""
    backend = None if row["backend"] == "auto" else row["backend"]
    return row["peer"] or ", ".join(filter(None, [row.get("variant"), backend])) or row["op"]


def labels_in(group: Sequence[Record]) -> list[str]:
    """Return the labels of the rows of a group, with the names of their ops if these differ."""
    ops = {row["op"] for row in group}
    return [f"{row['op']}, {label_of(row)}" if len(ops) > 1 else label_of(row) for row in group]


def latest(path: Path) -> list[Record]:
    """Return the last row of each measurement, in the order in which they were first measured."""

    found: dict[tuple[Any, ...], Record] = {}
    for row in read_records(path):
        key = row.get("figure"), row["op"], label_of(row), str(row["shape"]), row["dtype"], row.get("check"), "extra_share" in row
        found[key] = row
    return list(found.values())


def groups(rows: Sequence[Record]) -> dict[tuple[str, str], list[Record]]:
    """Return rows grouped by figure or, without one, by op and by the sizes of all axes but those in SWEPT."""
    found: dict[tuple[str, str], list[Record]] = {}
    for row in rows:
        sizes = ", ".join(f"{name} {size}" for name, size in row["shape"].items() if name not in SWEPT)
        key = (row["figure"], "") if row.get("figure") else (row["op"], sizes)
        found.setdefault(key, []).append(row)
    for group in found.values():
        labels = list(dict.fromkeys(map(label_of, group)))
        group.sort(key=lambda row, labels=labels: labels.index(label_of(row)))
    return found


def number(value: float | None) -> str:
    """Return a number with three digits, or a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.1e}"


def table(rows: Sequence[Record]) -> Iterator[str]:
    """Yield the lines of a table in Markdown: a line for each row, a column for each quantity that any row has."""
    columns = [name for name in QUANTITIES if any(row.get(name) is not None for row in rows)]
    base = {(row["op"], row["shape"].get("L")): row for row in reversed(rows)}  # the first row of each op and length
    yield f"| | shape | dtype | {' | '.join(QUANTITIES[name] for name in columns)} | notes |"
    yield "|---" * (len(columns) + 4) + "|"
    for row in rows:
        cells = []
        for name in columns:
            value, first = row.get(name), base[row["op"], row["shape"].get("L")].get(name)
            times = f" ({value / first:.2f}×)" if name.endswith("_ms") and value and first and value is not first else ""
            cells.append(number(value) + times)
        notes = [*row.get("shortfall", row.get("needed", [])), *row.get("kernels", [])]
        notes += [row[name] for name in ("reason", "check") if name in row]
        notes += [f"{row['parameters']:,} parameters"] if "parameters" in row else []
        shape = ", ".join(f"{name} {size}" for name, size in row["shape"].items())
        yield f"| {label_of(row)} | {shape} | {row['dtype']} | {' | '.join(cells)} | {'; '.join(notes)} |"


def tables_by_size(rows: Sequence[Record], axis: str) -> Iterator[str]:
    """Yield a table for each quantity that any row has: a line for each implementation, a column for each size of `axis`."""
    sizes = sorted({row["shape"][axis] for row in rows})
    labelled = list(zip(labels_in(rows), rows, strict=True))
    found = {(label, row["shape"][axis]): row for label, row in labelled}
    for name in [name for name in QUANTITIES if any(row.get(name) is not None for row in rows)]:
        yield f"{QUANTITIES[name][0].upper()}{QUANTITIES[name][1:]}, by {axis}:"
        yield ""
        yield f"| | other sizes | parameters | {' | '.join(f'{size:,}' for size in sizes)} |"
        yield "|---" * (len(sizes) + 3) + "|"
        for label in dict.fromkeys(label for label, _ in labelled):
            mine = [row for found_label, row in labelled if found_label == label]
            others = ", ".join(f"{key} {size}" for key, size in mine[0]["shape"].items() if key != axis)
            parameters = next((f"{row['parameters']:,}" for row in mine if "parameters" in row), "")
            cells = [found.get((label, size), {}) for size in sizes]
            texts = [row["reason"] if "reason" in row else number(row.get(name)) for row in cells]
            yield f"| {label} | {others} | {parameters} | {' | '.join(texts)} |"
        yield ""


def origin(rows: Sequence[Record]) -> str:
    """Return a sentence with the devices, versions, commits and commands that the rows were made with."""
    devices = ", ".join(dict.fromkeys(row["device"] for row in rows))
    versions = ", ".join(dict.fromkeys(f"torch {row['torch']}, Triton {row['triton']}" for row in rows))
    commits = ", ".join(dict.fromkeys(commit_text(row["commit"]) for row in rows))
    return f"{devices}; {versions}; commit {commits}; {', '.join(dict.fromkeys('`' + row['command'] + '`' for row in rows))}."


def swept_axis(group: Sequence[Record]) -> str | None:
    """Return the axis in SWEPT by which more than two rows of a group differ, or None."""
    return next((axis for axis in SWEPT if len({row["shape"].get(axis) for row in group}) > 2), None)


def drawn_value(row: Record, label: str) -> float:
    """Return the quantity of a row that is drawn on the axis `label`, 0 if it was not measured.

    Peaks of memory below what could be measured, which may be negative, are 0, too: they have no place on a logarithmic axis.
    """
    return max(next((row[name] for name in DRAWN[label] if row.get(name)), 0.0), 0.0)


def draw(rows: Sequence[Record], path: Path) -> None:
    """Draw quantities against the axis in SWEPT that varies, a line of panels for each group. Without such groups, draw bars.

    Times are those of replayed calls where they were measured. Groups of one or two rows share a line of panels with bars.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    measured = {key: group for key, group in groups(rows).items() if any(drawn_value(row, y) for row in group for y in DRAWN)}
    drawn = {key: group for key, group in measured.items() if swept_axis(group)}
    if not drawn:
        for key, group in measured.items():
            drawn.setdefault(key if len(group) > 2 else ("", ""), []).extend(group)
    if not drawn:
        return
    heights = [4.5 if swept_axis(group) else 1 + 0.25 * len(group) for group in drawn.values()]
    figure, axes = plt.subplots(
        len(drawn), len(DRAWN), figsize=(15, sum(heights)), squeeze=False, layout="constrained", height_ratios=heights
    )
    for (key, group), line in zip(drawn.items(), axes, strict=True):
        swept = swept_axis(group) if key[0] else None
        for ax, label in zip(line, DRAWN, strict=True):
            if swept:
                draw_lines(ax, group, label, swept)
            else:
                draw_bars(ax, group, label, named=ax is line[0])
        line[0].set_title(" ".join(filter(None, key)), fontsize=9)
        if swept:
            line[-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
    figure.savefig(path, dpi=100)
    plt.close(figure)


def draw_lines(ax: Any, group: Sequence[Record], label: str, swept: str) -> None:
    """Draw a quantity of a group against the axis `swept`, a line for each implementation. label: a key of DRAWN."""
    names = labels_in(group)
    for i, name in enumerate(dict.fromkeys(names)):
        values = [
            (row["shape"][swept], drawn_value(row, label)) for row, found in zip(group, names, strict=True) if found == name
        ]
        points = sorted((x, y) for x, y in values if y)
        style = {"ls": "-" if i < 10 else "--", "marker": "osD^v<>PX*hp8dHs"[i % 16], "ms": 4}
        ax.plot([x for x, _ in points], [y for _, y in points], label=name, **style)
    ax.set(ylabel=label, xlabel=swept)
    if any(drawn_value(row, label) for row in group):
        ax.set(xscale="log", yscale="log")
    else:
        ax.set_axis_off()


def draw_bars(ax: Any, group: Sequence[Record], label: str, *, named: bool) -> None:
    """Draw a quantity of a group on a logarithmic axis, a bar for each row from the top. named: whether with their names."""
    values = [drawn_value(row, label) for row in group]
    ax.barh(range(len(group)), values)
    names = [f"{label_of(row)}, {' x '.join(map(str, row['shape'].values()))}, {row['dtype']}" for row in group]
    ax.set_yticks(range(len(group)), names if named else [""] * len(group), fontsize=7)
    ax.invert_yaxis()
    ax.set_xlabel(label)
    if any(values):
        ax.set_xscale("log")
        ax.set_xlim(left=min(value for value in values if value) / 2)
    elif not named:
        ax.set_axis_off()


def write_page(path: Path) -> None:
    """Write the page and the figure of the rows in the file `path`."""
    rows = latest(path)
    lines = [f"# Latest rows of {path.name}", ""]
    lines += ["Times are medians, of calls from Python or replayed as one CUDA graph; in brackets, times over the first row of"]
    lines += ["the same op and length. A peak is that of a forward and backward pass without its inputs. Errors are relative"]
    lines += ["to the largest entry of y or a gradient.", ""]
    found = groups(rows)
    shared = len({origin(group) for group in found.values()}) == 1  # stated once then, not under each table
    if shared:
        lines += [origin(rows), ""]
    for (title, sizes), group in found.items():
        axis = swept_axis(group)
        lines += [f"## {title}{', ' * bool(sizes)}{sizes}", "", *(tables_by_size(group, axis) if axis else [*table(group), ""])]
        lines += [] if shared else [origin(group), ""]
    path.with_suffix(".md").write_text("\n".join(lines), "utf-8")
    draw(rows, path.with_suffix(".png"))


@cache
def recorded_keys(path: Path, fields: tuple[str, ...]) -> frozenset[tuple[Any, ...]]:
    """Return the values of `fields` of the rows of a file of records, none if there is no such file. The file is read once.

    Rows that another default has replaced do not count.
    """
    rows = read_records(path) if path.exists() else []
    return frozenset(tuple(row[name] for name in fields) for row in rows if "replaced" not in row)


def mark_uncommitted(rows: Sequence[Record], name: str) -> str:
    """Return a line below a table with what its rows from trees with uncommitted changes are of; "" if there are none.

    name: the field with the name of a row's method.
    """
    found: dict[str, list[bool]] = {}
    for row in rows:
        found.setdefault(row[name], []).append(row["commit"].endswith("+changes"))
    shares = [f"{method} ({sum(changed)} of {len(changed)} rows)" for method, changed in found.items() if any(changed)]
    return f"\nFrom trees with uncommitted changes: {', '.join(shares)}.\n" if shares else ""


def section_marks(name: str) -> tuple[str, str]:
    """Return the comments at the beginning and at the end of a section of a page."""
    return f"<!-- {name} -->", f"<!-- end of {name} -->"


def read_section(page: Path, name: str) -> str:
    """Return the text between the comments of a section of a page."""
    begin, end = section_marks(name)
    return page.read_text("utf-8").partition(begin)[2].partition(end)[0]


def write_section(path: Path, page: Path, name: str, text: str) -> None:
    """Write text that was made from the records `path` between the comments `name` and `end of name` of a page.

    Text of records outside of results/ is written into FILE.md instead.
    """
    begin, end = section_marks(name)
    text = f"{begin}\n\n{text}\n{end}"
    if path.parent.parent != RESULTS:
        path.with_suffix(".md").write_text(text + "\n", "utf-8")
        return
    before, _, rest = page.read_text("utf-8").partition(begin)
    page.write_text(before + text + rest.partition(end)[2], "utf-8")
