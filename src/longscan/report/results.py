"""The report of all records: our runs and the published scores, and the measurements of speed and memory."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from longscan._errors import count_text
from longscan._files import write_user_file
from longscan.report import figures, page
from longscan.report.comparisons import Comparison, Entry, Measurement, Timing, compare, measurements
from longscan.report.page import commit_text, duration_text, mean_text, number_text, protocol_text, uncommitted_note
from longscan.report.published import papers, valid_score
from longscan.report.records import Record, apply_corrections, read_folder, read_seeds
from longscan.report.seeds import Seeds, trained_together

RESULTS_MARKERS = ("<!-- results -->", "<!-- /results -->")
QUICK_MARKERS = ("<!-- quick -->", "<!-- /quick -->")
SOURCES = {  # source of a published score for each value of its field "provenance"
    "own": "measured by the paper",
    "own (theory)": "derived by the paper",
    "cited": "cited by the paper",
    "cited (presumed)": "probably cited by the paper",
    "cited (presumed; source not stated in the caption)": "probably cited by the paper",
    "unclear (own or cited)": "measured or cited by the paper",
}
SEEDS_COLUMNS = ("seeds", "successful", "best", "at the end", "constant", "published")
EXTRA_MEMORY = (
    "Extra memory: the peak beyond inputs, outputs and their gradients, as a share of these. The compiled scans must need at "
    "most one half."
)
INTERVAL = "mean ± half of Student's 95 % interval over distinct seeds; several runs of one seed count once, with their mean"


def results_report(results_dir: str | Path, out: str | Path) -> Path:
    """Write one page about the records in `results_dir`/runs, /seeds and /bench to the file `out` and return its path.

    Tables compare our runs with the published scores and the best constant predictor; failed runs are listed and counted. Raises
    FileNotFoundError if the directory does not exist, ValueError for a record that does not have the type of its kind.
    """
    runs, bench = _records(results_dir)
    together = trained_together(read_seeds(Path(results_dir) / "seeds"))
    body = [
        page.heading(1, "Results"),
        page.paragraph(_overview(runs, bench), "subtitle"),
        *(piece for comparison in compare(runs) for piece in _comparison(comparison)),
        *_together(together),
        *_all_runs(runs),
        *_measurements(measurements(bench)),
    ]
    return write_user_file(Path(out), page.page("Results", body).encode())


def _records(results_dir: str | Path) -> tuple[list[Record], list[Record]]:
    folder = Path(results_dir)
    if not folder.is_dir():
        raise FileNotFoundError(f"`results_dir` must be a directory with runs/ and bench/, got {folder}")
    return read_folder(folder / "runs"), read_folder(folder / "bench")


def _overview(runs: Sequence[Record], bench: Sequence[Record]) -> str:
    failed = sum(r["status"] == "failed" for r in runs)
    measured = f"{count_text(len(bench), 'measurement')} of speed and memory"
    return f"{count_text(len(runs), 'run')}, of which {failed} failed · {measured}"


def _title(comparison: Comparison) -> str:
    return f"{comparison.task}: {comparison.metric}"


def _digits(comparison: Comparison) -> int:
    return 1 if comparison.unit.startswith("%") else 3


def _lines(comparison: Comparison) -> list[tuple[tuple[str, ...], str]]:
    """Return the rows of a comparison's table with their classes: ours, the constant predictor, other baselines, published."""
    digits = _digits(comparison)
    lines: list[tuple[tuple[str, ...], str]] = []
    for entry in comparison.entries:
        spread = f"{min(entry.scores):.{digits}f} to {max(entry.scores):.{digits}f}" if entry.seeds > 1 else ""
        counts = (_seeds_text(entry), str(entry.failed) if entry.failed else "")
        cells = (entry.name, mean_text(entry.mean, digits), spread, *counts, "longscan", "; ".join(entry.notes))
        lines.append((cells, "ours"))
    for name, value in _reference_scores(comparison.entries).items():
        lines.append(((name, f"{value:.{digits}f}", "", "", "", "longscan", ""), ""))
    for row in comparison.published:
        printed, seeds = valid_score(row), str(row.get("n_seeds", ""))
        spread = f"std {row['std']:g}" if "std" in row else ""
        score = "withdrawn" if printed is None else f"{printed:g}"
        lines.append(((row["model"], score, spread, seeds, "", SOURCES[row["provenance"]], ""), ""))
    return lines


def _seeds_text(entry: Entry) -> str:
    """Return the number of distinct seeds, and the number of runs if it is larger."""
    return str(entry.seeds) if entry.runs == entry.seeds else f"{entry.runs} runs of {entry.seeds} seeds"


def _reference_scores(entries: Sequence[Entry]) -> dict[str, float]:
    """Return baselines by name; with several protocols the name contains the protocol."""
    scores: dict[str, float] = {}
    for entry in entries:
        named = {"best constant predictor": entry.constant} | entry.baselines
        for name, value in named.items():
            if value is not None and name != "constant":
                several = len({e.protocol for e in entries}) > 1 and entry.protocol
                scores[f"{name}, {entry.protocol}" if several else name] = value
    return scores


def _comparison(comparison: Comparison) -> Iterator[str]:
    yield page.heading(2, _title(comparison))
    if comparison.paper in papers() and comparison.source:
        yield page.paragraph(f"{comparison.source} of {papers()[comparison.paper]}", "caption")
    if not comparison.published:
        yield page.paragraph("There is no published figure for these runs.", "caption")
    header = ("model", "score", "range", "seeds", "failed", "source", "notes")
    kinds = ("", page.NUMBER, page.NUMBER, page.NUMBER, page.NUMBER, "", "")
    lines = _lines(comparison)
    ours = [(e.name, e.scores, e.mean) for e in comparison.entries if e.seeds]
    others = [(r["model"], v) for r in comparison.published if (v := valid_score(r)) is not None]
    label = f"{comparison.metric}, {comparison.unit}" if comparison.unit else comparison.metric
    yield page.table(header, [cells for cells, _ in lines], kinds, [kind for _, kind in lines])
    caption = f"Score: {label}; {INTERVAL}. Range: lowest and highest seed. Failed: seeds without a finished run."
    yield page.paragraph(caption, "caption")
    if ours:
        yield page.figure(figures.scores(ours, others, _reference_scores(comparison.entries), comparison.metric))
    for command in dict.fromkeys(r["command"] for e in comparison.entries for r in e.rows[:1]):
        yield page.code(command)


def _together(trainings: Sequence[Seeds]) -> Iterator[str]:
    if not trainings:
        return
    yield page.heading(2, "Success over seeds")
    yield page.paragraph("Seeds of one recipe that were trained together and scored on validation words during training.")
    kinds = ["", "", "", *[page.NUMBER] * len(SEEDS_COLUMNS)]
    rows = [(s.name, s.task, s.model, *_together_cells(s)) for s in trainings]
    yield page.table(("record", "task", "model", *SEEDS_COLUMNS), rows, kinds)
    yield page.paragraph(
        "The scores are scaled: 0 is uniform guessing, 1 perfection. Best: the highest score at any evaluation. At the "
        "end: the scores of the lowest and the highest seed. Successful: how many seeds reach the score that the figure names, "
        "at the best evaluation and at the end.",
        "caption",
    )
    for s in trainings:
        yield page.heading(3, f"{s.name}: {s.model} on {s.task}")
        scores = {seed: [row[i] for row in s.scores] for i, seed in enumerate(s.seeds)}
        rate = figures.success_rate(s.steps, s.successes, len(s.seeds))
        every = figures.every_seed(s.steps, scores, constant=s.constant, published=s.published)
        validation = ", ".join(filter(None, ("Validation", s.lengths)))
        captions = (f"Share of the {len(s.seeds)} seeds whose score is at least {s.success:g}.", f"{validation}.")
        yield page.group("columns", map(page.figure, (rate, every), captions))
        yield page.paragraph(f"{s.origin[0].upper()}{s.origin[1:]}.", "caption")
        yield page.code(s.command)


def _together_cells(s: Seeds) -> tuple[str, ...]:
    """Return the cells of the columns `SEEDS_COLUMNS`."""
    successful = f"{max(s.successes)}, {s.successes[-1]}"
    end = f"{min(s.scores[-1]):.3f} to {max(s.scores[-1]):.3f}"
    published = "–" if s.published is None else f"{s.published:g}"
    return (str(len(s.seeds)), successful, f"{s.best:.3f}", end, f"{s.constant:.3f}", published)


def _all_runs(runs: Sequence[Record]) -> Iterator[str]:
    yield page.heading(2, "Every run")
    if not runs:
        yield page.paragraph("There is no record of a run.", "note")
        return
    columns: dict[str, Callable[[Record], str]] = {
        "task": lambda r: r["task"],
        "protocol": lambda r: protocol_text(r["suite"]) or "–",
        "size": lambda r: "quick" if r.get("quick") else "full",
        "model": lambda r: r["spec"] or r["model"],
        "metric": lambda r: r["metric"],
        "seed": lambda r: str(r["seed"]),
        "value": _value,
        "constant": lambda r: number_text(r["constant"]),
        "steps": lambda r: number_text(r["steps"]),
        "time": lambda r: duration_text(r["seconds"]),
        "parameters": lambda r: number_text(r["params"]),
        "device": lambda r: r["device"],
        "commit, date": lambda r: f"{commit_text(r['commit'], 10)}, {r['date'][:10]}",
    }
    kinds = [page.NUMBER if name in ("seed", "value", "constant", "steps", "time", "parameters") else "" for name in columns]
    rows = [[text(apply_corrections(r)) for text in columns.values()] for r in runs]
    yield page.table([*columns], rows, kinds, ["failed" if r["status"] == "failed" else "" for r in runs])


def _value(run: Record) -> str:
    """Return the score, and "failed" for a failed run; at least one of them is present."""
    score = [] if run["value"] is None else [number_text(run["value"])]
    return ", ".join(score + ["failed"] * (run["status"] == "failed"))


def _measurements(measured: Sequence[Measurement]) -> Iterator[str]:
    yield page.heading(2, "Speed and memory")
    if not measured:
        yield page.paragraph("There is no record of a measurement.", "note")
        return
    yield page.paragraph(
        "Times are ratios to the time of longscan in the same session; milliseconds are given for GPUs only. Error: the "
        "largest deviation from the float64 reference."
    )
    for m in measured:
        columns = _measured(m)
        kinds = ["", *[page.NUMBER] * (len(columns) - 1)]
        yield page.heading(3, f"{m.op}: {m.shape}, {m.dtype}, {m.device}")
        rows = [[text(t) for text in columns.values()] for t in m.timings]
        yield page.table([*columns], rows, kinds, ["ours" if t.ours else "" for t in m.timings])
        timed = any(t.timed for t in m.timings)
        yield page.paragraph(
            f"1 × is the time of {m.unit}; {m.origin}." if timed else f"{m.origin[0].upper()}{m.origin[1:]}.", "caption"
        )
        if "extra memory" in columns:
            yield page.paragraph(EXTRA_MEMORY, "caption")
        if sum(t.timed for t in m.timings) > 1:
            yield page.figure(figures.ratios({t.name: (t.forward, t.forward_backward) for t in m.timings}, m.unit))
        for command in m.commands:
            yield page.code(command)


def _measured(m: Measurement) -> dict[str, Callable[[Timing], str]]:
    """Return the columns that some implementation has a value for, by header; absolute times only for GPUs."""
    absolute = not m.device.lower().startswith("cpu")
    formats: dict[str, tuple[str, Callable[[float], str]]] = {
        "forward": ("forward", lambda v: f"{number_text(v, 2)} ×"),
        "forward+backward": ("forward_backward", lambda v: f"{number_text(v, 2)} ×"),
        "forward ms": ("forward_ms", lambda v: number_text(v, 3)),
        "forward+backward ms": ("forward_backward_ms", lambda v: number_text(v, 3)),
        "peak MiB": ("peak_mib", lambda v: number_text(v, 1)),
        "extra memory": ("extra_share", lambda v: f"{v:.0%}"),
        "error": ("error", lambda v: f"{v:.1e}"),
    }
    columns: dict[str, Callable[[Timing], str]] = {"implementation": lambda t: t.name}
    for name, (field, text) in formats.items():
        if (absolute or not name.endswith(" ms")) and any(getattr(t, field) is not None for t in m.timings):
            columns[name] = partial(_filled, field, text)
    return columns | {"measurements": lambda t: str(t.measurements)}


def _filled(field: str, text: Callable[[float], str], timing: Timing) -> str:
    value = getattr(timing, field)
    return "–" if value is None else text(value)


def results_markdown(results_dir: str | Path) -> str:
    """Return the comparisons as short Markdown tables for results/tables.md: runs, seeds trained together, measurements.

    A sentence replaces a table without rows.

    Raises as `results_report` does.
    """
    runs, bench = _records(results_dir)
    together = trained_together(read_seeds(Path(results_dir) / "seeds"))
    lines = [*_runs_markdown(compare(runs)), "", *_together_markdown(together), *_bench_markdown(measurements(bench))]
    return "\n".join(lines) + "\n"


def quick_markdown(results_dir: str | Path) -> str:
    """Return the scores of the quick runs, the last of each recipe and data set, as a Markdown table, or a sentence without runs.

    Raises as `results_report` does.
    """
    last = {(r["recipe"], r["task"]): apply_corrections(r) for r in _records(results_dir)[0] if r.get("quick")}
    return "\n".join(_quick_markdown([last[key] for key in sorted(last, key=str)])) + "\n"


def fill_markdown(path: str | Path, results_dir: str | Path) -> Path:
    """Insert the tables of `results_dir` between the markers of a Markdown file and return its path.

    `results_markdown` goes between the lines <!-- results --> and <!-- /results -->, `quick_markdown` between <!-- quick --> and
    <!-- /quick -->. Raises ValueError if the file has neither pair, or a pair that is not present once and in this order.
    """
    path = Path(path)
    text = filled = path.read_text("utf-8")
    tables = {RESULTS_MARKERS: results_markdown, QUICK_MARKERS: quick_markdown}
    present = [marks for marks in tables if any(mark in text for mark in marks)]
    for marks in present or [RESULTS_MARKERS]:
        filled = replace_between(filled, marks, tables[marks](results_dir), path)
    return write_user_file(path, filled.encode())


def replace_between(text: str, marks: tuple[str, str], content: str, path: Path) -> str:
    """Return the text with `content` between two marker lines.

    Raises ValueError with the path of the text unless both are present once and in this order.
    """
    if text.count(marks[0]) != 1 or text.count(marks[1]) != 1 or text.index(marks[0]) > text.index(marks[1]):
        raise ValueError(f"{path} must have the lines {marks[0]} and {marks[1]}, once each and in this order, got others")
    before, rest = text.split(marks[0])
    after = rest.split(marks[1])[1]
    return f"{before}{marks[0]}\n\n{content}\n{marks[1]}{after}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _quick_markdown(rows: Sequence[Record]) -> Iterator[str]:
    if not rows:
        yield "No quick run is recorded yet."
        return
    yield "| Recipe | Metric | Score | Constant predictor | Seconds | Notes | Command |"
    yield "|---|---|---|---|---|---|---|"
    for r in rows:
        recipe = (r["recipe"] or "–").removeprefix("recipes/").removesuffix(".yaml")
        value = "failed" if r["value"] is None else f"{r['value']:.3f}"
        note = uncommitted_note([r["commit"]]) or "–"
        cells = (
            recipe,
            r["metric"],
            value,
            number_text(r["constant"], 3),
            number_text(r["seconds"], 0),
            note,
            f"`{r['command']}`",
        )
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _runs_markdown(comparisons: Sequence[Comparison]) -> Iterator[str]:
    if not comparisons:
        yield "No run is recorded yet."
        return
    yield "| Task | Model | Score | Seeds | Failed | Constant predictor | Other predictors | Published | Notes | Command |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for c in comparisons:
        printed = ", ".join(f"{r['model']} {v:g}" for r in c.published if (v := valid_score(r)) is not None)
        for e in c.entries:
            model = ", ".join(filter(None, (e.model, e.setting)))
            constant = "–" if e.constant is None else f"{e.constant:.{_digits(c)}f}"
            task = f"{c.task} ({e.protocol}), {c.metric}" if e.protocol else f"{c.task}, {c.metric}"
            task += f", {c.unit}" if c.unit in ("%", "1e-2", "1e-3") else ""
            others = [f"{name.replace('_', ' ')} {v:.{_digits(c)}f}" for name, v in e.baselines.items() if name != "constant"]
            score, command = mean_text(e.mean, _digits(c)), f"`{e.rows[0]['command']}`"
            counts, notes = (_seeds_text(e), str(e.failed)), "; ".join(e.notes)
            cells = (task, model, score, *counts, constant, ", ".join(others) or "–", printed or "–", notes or "–", command)
            yield f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _together_markdown(trainings: Sequence[Seeds]) -> Iterator[str]:
    if not trainings:
        return
    header = ("Seeds trained together", "Model", *(name.capitalize() for name in SEEDS_COLUMNS), "Notes", "Command")
    yield f"| {' | '.join(header)} |"
    yield "|---" * len(header) + "|"
    for s in trainings:
        cells = (f"{s.task}, {s.steps[-1]:,} steps", s.model, *_together_cells(s), s.note or "–", f"`{s.command}`")
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |"
    yield ""


def _bench_markdown(measured: Sequence[Measurement]) -> Iterator[str]:
    if not measured:
        yield "No measurement is recorded yet."
        return
    yield "| Op, shape | Device | Against | Forward | Forward+backward | Notes | Command |"
    yield "|---|---|---|---|---|---|---|"
    for m in measured:
        for t in m.timings:
            if t.name != m.unit:
                ratios = " | ".join("–" if v is None else f"{v:.1f}×" for v in (t.forward, t.forward_backward))
                where = f"{m.op}, {m.shape}, {m.dtype} | {m.device}"
                yield f"| {where} | {_cell(t.name)} | {ratios} | {m.note or '–'} | `{_cell(m.commands[0])}` |"
