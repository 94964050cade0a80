"""Tables of the papers' rows: which can be run and how far their runs are, and ours next to the published figures."""

import re
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean

from longscan._errors import count_text
from longscan.report.comparisons import compare
from longscan.report.published import papers, valid_score
from longscan.report.records import Record, read_folder
from longscan.reproduce.near import near_lines, record_seconds, score_text
from longscan.reproduce.rows import PublishedRow, read_rows
from longscan.reproduce.runs import device_seconds, progress_of
from longscan.reproduce.state_tracking import report_lines as tracking_lines
from longscan.reproduce.verdicts import VERDICTS, Verdict, margin_of, verdict


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of the runs of a row so far, next to its published figure.

    Attributes:
        row: the row.
        scores: one for each seed whose run is over, in the unit of the published figure.
        constant: score of the best constant predictor, of the runs or else of the protocol.
        failed: number of seeds whose runs failed.
        updates: the smallest number of updates of a run that is over, 0 without one. Seeds whose runs failed count, so that a
            row is not reproduced by those that did not.
        unfinished: updates of the runs that are not over, by seed.
        minutes: minutes of a GPU or CPU, of all runs.
        rate: updates per second, mean over the runs that are over; None if no record has it.
        replayed_rate: the rate at which the device replays captured updates, which no loader and no host holds back; None if no
            record has it.
        verdict: the comparison with the published figure.
        validation: mean validation score of the selected weights over the runs that are over, which chooses among candidates.
    """

    row: PublishedRow
    scores: tuple[float, ...]
    constant: float | None
    failed: int
    updates: int
    unfinished: dict[int, int]
    minutes: float
    verdict: Verdict
    rate: float | None = None
    replayed_rate: float | None = None
    validation: float | None = None

    @property
    def ours(self) -> str:
        """Mean and half the 95 % interval over seeds; a dash without a score."""
        return score_text(self.scores, self.row.decimals)

    @property
    def has_run(self) -> bool:
        """Whether a run of the row is over, or has begun."""
        return bool(self.scores or self.failed or self.unfinished)

    @property
    def state(self) -> str:
        """How far the runs of the row are."""
        seeds = count_text(self.row.seeds, "seed")
        if self.scores or self.failed:
            over = f"done: ours {self.ours}, {len(self.scores)} of {seeds}, {self.verdict}"
            return f"{over}, {self.failed} failed" if self.failed else over
        if self.unfinished:
            first, last = min(self.unfinished.values()), max(self.unfinished.values())
            updates = f"{first:,}" if first == last else f"{first:,} to {last:,}"
            return f"at update {updates}, {len(self.unfinished)} of {seeds}"
        return "not run"


def read_outcomes(rows: Sequence[PublishedRow], out: Path) -> list[Outcome]:
    """Return the outcomes of rows from the records and checkpoints of a folder of runs, which need not exist."""
    records: dict[str, list[Record]] = {}
    for record in read_folder(out / "runs"):
        records.setdefault(record.get("row", ""), []).append(record)
    outcomes = [outcome_of(row, records.get(row.id, []), _unfinished(row, out)) for row in rows]
    candidates = {row.candidate_of for row in rows} - {None}
    missing = {row.candidate_of for row in read_rows() if row.candidate_of in candidates and not records.get(row.id)}
    return choose_candidates(outcomes, missing)


def choose_candidates(outcomes: Sequence[Outcome], incomplete: Container[str | None] = ()) -> list[Outcome]:
    """Return outcomes in which only the best candidate on validation is compared with a figure that has several.

    The verdict of the others is "not chosen", so that no test score decides. incomplete: those `candidate_of` some of whose
    candidates have no run yet; their best one so far is "partial".
    """
    best: dict[str | None, Outcome] = {}
    for outcome in outcomes:
        first = best.get(outcome.row.candidate_of)
        sign = 1 if outcome.row.figure["direction"] == "higher" else -1
        if outcome.validation is not None and (first is None or sign * outcome.validation > sign * (first.validation or 0.0)):
            best[outcome.row.candidate_of] = outcome
    found = []
    for outcome in outcomes:
        name, changed = outcome.row.candidate_of, outcome.verdict
        if name in best and name is not None:
            if outcome is not best[name]:
                changed = "not chosen"
            elif name in incomplete and outcome.verdict != "trivial":
                changed = "partial"
        found.append(replace(outcome, verdict=changed))
    return found


def merge_candidates(outcomes: Sequence[Outcome], *, all_begun: bool = False) -> list[Outcome]:
    """Return outcomes with one for the candidates of a figure of which none has begun, under the name that they share.

    all_begun: also replace candidates that have begun by the one whose verdict counts, so that there is one outcome a figure.
    """
    merged = list[Outcome]()
    for name, group in groupby(outcomes, lambda outcome: outcome.row.candidate_of):
        members = list(group)
        if name is None or (any(outcome.state != "not run" for outcome in members) and not all_begun):
            merged += members
            continue
        chosen = [outcome for outcome in members if outcome.verdict not in ("not run", "not chosen")]
        merged.append(chosen[0] if chosen else replace(members[0], row=_shared_row([outcome.row for outcome in members])))
    return merged


def _shared_row(rows: Sequence[PublishedRow]) -> PublishedRow:
    """Return one row for the candidates of a figure, with the minutes of all of them."""
    minutes = [row.gpu_minutes for row in rows if row.gpu_minutes is not None]
    identity = f"{rows[0].candidate_of} ({len(rows)} settings)"
    return replace(rows[0], id=identity, gpu_minutes=sum(minutes) if minutes else None)


def _unfinished(row: PublishedRow, out: Path) -> dict[int, tuple[int, float]]:
    """Return updates and seconds on a device of the runs that are not over, by seed."""
    found = {}
    for folder in (out / row.id).glob("seed_*/"):
        progress = progress_of(folder)
        if not progress.is_over:
            found[int(folder.name.removeprefix("seed_"))] = (progress.updates, device_seconds(folder))
    return found


def outcome_of(row: PublishedRow, records: Sequence[Record], unfinished: dict[int, tuple[int, float]]) -> Outcome:
    """Return the outcome of a row from its records and its runs that are not over (updates and seconds by seed)."""
    entries = [entry for comparison in compare(records) for entry in comparison.entries]
    entry = max(entries, key=lambda entry: entry.seeds, default=None)  # of several recipes the one with most seeds
    scores = () if entry is None else entry.scores
    constant = row.constant if entry is None or entry.constant is None else entry.constant
    rows = () if entry is None else entry.rows
    finished = {r["seed"] for r in rows if r["status"] == "finished"}
    updates = min((r["steps"] for r in rows if r["status"] == "finished" or r["seed"] not in finished), default=0)
    seconds = sum(record_seconds(record) or 0.0 for record in records)
    seconds += sum(earlier for _, earlier in unfinished.values())
    selected = [r["valid"].get(r["selected"]) for r in rows if r["status"] == "finished"]
    validations = [value for value in selected if value is not None]
    figure, published = row.figure, valid_score(row.figure)
    found: Verdict = "not run"
    if published is not None:
        found = verdict(
            scores,
            published=published,
            decimals=row.decimals,
            higher=figure["direction"] == "higher",
            constant=constant,
            margin=margin_of(figure),
            updates=updates,
            protocol_updates=row.updates or 0,
        )
    return Outcome(
        row=row,
        scores=scores,
        constant=constant,
        failed=0 if entry is None else entry.failed,
        updates=updates,
        unfinished={seed: made for seed, (made, _) in sorted(unfinished.items())},
        minutes=seconds / 60,
        verdict=found,
        rate=_mean_of("updates_per_second", rows),
        replayed_rate=_mean_of("replayed_updates_per_second", rows),
        validation=fmean(validations) if validations else None,
    )


def _mean_of(name: str, rows: Sequence[Record]) -> float | None:
    """Return the mean of a field over the records that have it."""
    values = [float(row[name]) for row in rows if row.get(name) is not None]
    return fmean(values) if values else None


def figure_text(row: PublishedRow) -> str:
    """Return the published figure as printed; "withdrawn" if the author withdrew it."""
    value: float | None = valid_score(row.figure)
    if value is None:
        return "withdrawn"
    return f"{value:.{row.decimals}f}" if row.status == "recipe" else f"{value:g}"


def wrap_name(name: str, width: int) -> str:
    """Return a name in lines of at most `width` characters, broken after "/", "_", "-" and spaces where it has them."""
    lines = [""]
    for part in re.findall(r"[^/_\- ]*[/_\- ]?", name):
        if len(lines[-1]) + len(part.rstrip()) > width and lines[-1]:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def list_lines(outcomes: Sequence[Outcome], *, summarized: bool = True) -> Iterator[tuple[str, list[list[str]], list[str]]]:
    """Yield each table's name, its lines (row, published, recipe, data, seeds, updates, minutes, state) and the reasons in them.

    Neighbouring figures without names that have no run for the same reason are one line. A state such as "no recipe (1)" refers
    to the first of the reasons. Without `summarized` each figure has its own line, whose state has the reason itself, such as
    "no recipe: ...", and the list of reasons is empty.
    """
    for table, members in groupby(outcomes, lambda outcome: outcome.row.table):
        lines, reasons = list[list[str]](), list[str]()
        for (status, why), group in groupby(members, lambda outcome: (outcome.row.status, outcome.row.why)):
            found = list(group)
            names = [outcome.row.id.removeprefix(f"{table}/") for outcome in found]
            if status == "recipe":
                lines += [_line(name, outcome) for name, outcome in zip(names, found, strict=True)]
                continue
            reasons += [] if why in reasons or not summarized else [why]
            state = f"{status} ({reasons.index(why) + 1})" if summarized else f"{status}: {why}"
            if summarized and len(found) > 1 and names == [outcome.row.published for outcome in found]:
                parts = [(_ranges_text(names), "")]
            else:
                parts = [(name, figure_text(outcome.row)) for name, outcome in zip(names, found, strict=True)]
            lines += [[name, figure, "", found[0].row.data or "", "", "", "", state] for name, figure in parts]
        yield table, lines, [f"({number}) {why}" for number, why in enumerate(reasons, 1)]


def _ranges_text(names: Sequence[str]) -> str:
    """Return the ids of figures with ranges of successive ones: "r354 to r355, r360 to r363"."""
    ranges: list[list[str]] = []
    for name in names:
        if ranges and int(name[1:]) == int(ranges[-1][-1][1:]) + 1:
            ranges[-1].append(name)
        else:
            ranges.append([name])
    return ", ".join(found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}" for found in ranges)


def _line(name: str, outcome: Outcome) -> list[str]:
    row = outcome.row
    data = "generated" if row.data is None else row.data if row.has_data else f"{row.data}, missing"
    recipe = Path(row.recipe or "").stem
    minutes = "–" if row.gpu_minutes is None else f"{row.gpu_minutes * row.seeds:.0f}"
    return [name, figure_text(row), recipe, data, str(row.seeds), f"{row.updates:,}", minutes, outcome.state]


SUMMARY_MARKERS = ("<!-- reproduction -->", "<!-- /reproduction -->")


def summary_table(outcomes: Sequence[Outcome]) -> str:
    """Return a Markdown table with a line for each paper: its figures with a recipe, the rows for them, and their verdicts."""
    lines = ["| Paper | Published numbers with a recipe | Experiments for them | Results |", "|---|---|---|---|"]
    for paper, group in groupby(outcomes, lambda outcome: outcome.row.figure["paper"]):
        rows = [outcome for outcome in merge_candidates(list(group), all_begun=True) if outcome.row.status == "recipe"]
        lines.append(
            f"| {papers()[paper]} | {_n_figures(rows)} | {len(rows)} | {_counts_text([outcome.verdict for outcome in rows])} |"
        )
    return "\n".join(lines) + "\n"


def _n_figures(outcomes: Sequence[Outcome]) -> int:
    """Return the number of published figures, some of which have a row for the text and one for the released code."""
    return len({outcome.row.published for outcome in outcomes})


def _counts_text(verdicts: Sequence[Verdict]) -> str:
    """Return how often each verdict occurs; the verdict alone if all are the same."""
    counts = {name: verdicts.count(name) for name in VERDICTS if name in verdicts}
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {name}" for name, n in counts.items())


RUN_HEADER = [
    "| row | published | ours | verdict | seeds | updates, of published | constant | updates/s, replayed | minutes |",
    "|---|---:|---:|---|---:|---:|---:|---:|---:|",
]
NOT_RUN_HEADER = ["| not run | published | constant | seeds | updates |", "|---|---:|---:|---:|---:|"]


def report_page(outcomes: Sequence[Outcome], command: str, tracking: Sequence[Record] = (), folder: Path | None = None) -> str:
    """Return the Markdown page that compares our runs with the published figures.

    Args:
        outcomes: those of all rows.
        command: the command that writes the page.
        tracking: rows of `longscan.reproduce.state_tracking`, whose table comes before the verdicts. If no row of the papers has
            a run, the page has this table alone.
        folder: the folder of the records, whose runs near a row stand below its table; None for none.
    """
    runnable = [outcome for outcome in outcomes if outcome.row.status == "recipe"]
    if tracking and not any(outcome.has_run for outcome in runnable):
        return "\n".join(["# State tracking", "", f"`{command}` writes this page.", "", *tracking_lines(tracking)]) + "\n"
    rows = merge_candidates(runnable, all_begun=True)
    lines = [
        "# Reproduction of the papers' tables",
        "",
        f"`{command}` writes this page from the records of `longscan reproduce` ([how to](howto/reproduce.md)).",
        "A score is the mean over seeds with half of Student's 95 % interval, in the unit of the paper. Minutes are those of one",
        "GPU or CPU, divided among the runs on it at that time; where this share is not known, all of the time of the training.",
        "The constant is the best constant predictor on the test split.",
        "Next to the updates per second stands the rate at which the GPU replays captured updates: a run far below it waits for",
        "its host or for data.",
        "",
        f"Of {count_text(len(rows), 'row')} with a recipe, for {count_text(_n_figures(rows), 'figure')}: "
        f"{_counts_text([outcome.verdict for outcome in rows])}.",
        "A row with several settings runs with each of them, and the validation scores choose one.",
    ]
    begun = [outcome for outcome in merge_candidates(runnable) if outcome.has_run]
    if begun:
        lines += ["", "## Rows with runs", "", *RUN_HEADER, *(_run_line(outcome.row.id, outcome) for outcome in begun)]
    for paper, of_paper in groupby(runnable, lambda outcome: outcome.row.figure["paper"]):
        lines += ["", f"## {papers()[paper]}"]
        for table, group in groupby(of_paper, lambda outcome: outcome.row.table):
            members = list(group)
            metrics = ", ".join(
                dict.fromkeys(f"{outcome.row.figure['metric']} ({outcome.row.figure['unit']})" for outcome in members)
            )
            lines += ["", f"### {table}: {members[0].row.figure['table']}, {metrics}"]
            named = [(outcome.row.id.removeprefix(f"{table}/"), outcome) for outcome in merge_candidates(members)]
            for header, line, has_run in ((RUN_HEADER, _run_line, True), (NOT_RUN_HEADER, _not_run_line, False)):
                found = [line(name, outcome) for name, outcome in named if outcome.has_run is has_run]
                lines += ["", *header, *found] if found else []
            lines += _note_lines(table, [outcome.row for outcome in members])
            lines += [] if folder is None else near_lines(table, [outcome.row for outcome in members], folder)
    if tracking:
        lines += ["", "## State tracking", "", *tracking_lines(tracking)]
    lines += ["", "## Verdicts", "", *(f"- **{name}**: {meaning}." for name, meaning in VERDICTS.items())]
    lines += [
        "",
        "## Figures without a run",
        "",
        *_reason_lines([outcome.row for outcome in outcomes if outcome.row.status != "recipe"]),
    ]
    return "\n".join(lines) + "\n"


REASONS = {
    "cited": "The paper takes the figure from another paper.",
    "repeated": "The figure stands in another table, too.",
    "no training": "The figure is not the score of a model that is trained, or it is computed from other figures.",
    "no recipe": "The settings are not printed, or the figure compares several runs of a plan.",
    "impossible": "The figure needs another machine or program.",
}


def _reason_lines(rows: Sequence[PublishedRow]) -> list[str]:
    """Return the numbers of published figures without a run by their reasons, which are explained above the table."""
    counts = {name: Counter(row.why for row in rows if row.status == name) for name in REASONS}
    lines = [f"- **{name}** ({counts[name].total()}): {meaning}" for name, meaning in REASONS.items() if counts[name]]
    lines += ["", "| Reason | Figures | What they are |", "|---|---:|---|"] if any(counts.values()) else []
    detailed = [name for name in REASONS if name not in ("cited", "repeated")]
    return lines + [f"| {name} | {count} | {why} |" for name in detailed for why, count in counts[name].items()]


def _run_line(name: str, outcome: Outcome) -> str:
    """Return a line with the columns of `RUN_HEADER`, for a row with runs."""
    row = outcome.row
    updates = f"{outcome.updates:,}" if outcome.updates else "0"
    if outcome.unfinished:
        updates += f" (not over: {', '.join(f'seed {seed} at {made:,}' for seed, made in outcome.unfinished.items())})"
    seeds = f"{len(outcome.scores)}, {outcome.failed} failed" if outcome.failed else str(len(outcome.scores))
    cells = (name, figure_text(row), outcome.ours, outcome.verdict, f"{seeds} of {row.seeds}", f"{updates}, of {row.updates:,}")
    rates = ", ".join("–" if rate is None else f"{rate:.1f}" for rate in (outcome.rate, outcome.replayed_rate))
    return f"| {' | '.join(cells)} | {_constant_text(outcome)} | {rates} | {outcome.minutes:.1f} |"


def _not_run_line(name: str, outcome: Outcome) -> str:
    """Return a line with the columns of `NOT_RUN_HEADER`, with the seeds and updates of the protocol."""
    row = outcome.row
    return f"| {name} | {figure_text(row)} | {_constant_text(outcome)} | {row.seeds} | {row.updates:,} |"


def _constant_text(outcome: Outcome) -> str:
    """Return the score of the best constant predictor; a dash if it is not known."""
    return "–" if outcome.constant is None else f"{outcome.constant:.{outcome.row.decimals + 1}f}"


def _note_lines(table: str, rows: Sequence[PublishedRow]) -> list[str]:
    """Return the lines of a table's differences from printed settings and of its notes, each once with the names of its rows."""
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        notes = [f"{setting} differs: {reason}" for setting, reason in row.differs.items()] + [row.note] * bool(row.note)
        for note in notes:
            names.setdefault(note, {})[(row.candidate_of or row.id).removeprefix(f"{table}/")] = None
    n_figures = len({row.candidate_of or row.id for row in rows})
    lines = [f"- {'all rows' if len(of) == n_figures > 1 else ', '.join(of)}: {note}" for note, of in names.items()]
    return ["", *lines] if lines else []
