"""The report of a sweep: the scores of all trials by setting, and the scores of the best setting over seeds."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from longscan._errors import count_text
from longscan._files import write_text
from longscan.report import figures, page
from longscan.report.page import duration_text, mean_text, number_text
from longscan.report.svg import Chart

Content = Mapping[str, Any]


def sweep_report(folder: str | Path) -> Path:
    """Write `report.html` into a sweep's folder from its sweep.json, and return its path.

    Raises FileNotFoundError if there is no sweep.json, ValueError if it cannot be read.
    """
    path = Path(folder) / "sweep.json"
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    body = [*_summary(content), *_search(content), *_seeds(content), *_origin(content)]
    return write_text(path.with_name("report.html"), page.page(f"sweep, {content['task']}", body))


def setting_text(value: Any) -> str:
    """Format the value of a setting as in a sweep file, on one line."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return yaml.safe_dump(value, default_flow_style=True, width=math.inf).removesuffix("...\n").strip()


def settings_text(values: Content) -> str:
    """Format settings by their dotted names, on one line."""
    pairs: list[tuple[str, Any]] = []
    for key, value in values.items():
        names = key.split(",")
        pairs += zip(names, value if len(names) > 1 else [value], strict=True)
    return ", ".join(f"{name.strip()} {setting_text(value)}" for name, value in pairs)


def _summary(content: Content) -> Iterator[str]:
    yield page.heading(1, f"Sweep, {content['task']}")
    trials, seeds, test, best = content["trials"], content["seeds"], content["test"], content["best"]
    failed = sum(row["status"] == "failed" for row in trials)
    size, date = "quick size" if content.get("quick") else "", content["date"].replace("T", " ").rstrip("Z")
    parts = [f"{count_text(len(trials), 'setting')}, {failed} of them failed" if trials else "", size, date]
    yield page.paragraph(" · ".join(part for part in parts if part), "subtitle")
    if content["status"] != "finished":
        over = sum(row["status"] in ("finished", "failed") for row in [*trials, *seeds])
        yield page.paragraph(f"This sweep is not over: {over} of {len(trials) + len(seeds)} trials and seeds have ended.", "note")
    mean = None if test is None else (test["mean"], test["half_width"])
    count = "" if test is None else f"{count_text(test['count'], 'seed')}, {test['failed']} failed"
    entries = [(f"test {content['metric']}", "–" if mean is None else mean_text(mean, 4), count)]
    if test is not None:
        entries.append(("best constant predictor", number_text(test["constant"]), "the same metric"))
        entries.append(("scaled score", number_text(test["scaled"]), "0 is uniform guessing, 1 perfection"))
    if best is not None:
        entries.append(
            (f"validation {content['metric']}", number_text(best["score"]), f"best of the search, trial {best['trial']}")
        )
    yield page.tiles(entries)
    if best is not None:
        yield page.paragraph(f"Best setting on validation: {settings_text(best['settings'])}.")


def _search(content: Content) -> Iterator[str]:
    trials = content["trials"]
    if not trials:
        return
    yield page.heading(2, "Search")
    seeds = len(content["search_seeds"])
    mean = f"; a score is the mean over {seeds} seeds" if seeds > 1 else ""
    yield page.paragraph(f"Scores are of the validation split; the test split was not used{mean}.")
    constants = [row["constant"] for row in trials if row["constant"] is not None]
    constant = sum(constants) / len(constants) if constants else None
    best = None if content["best"] is None else content["best"]["trial"]
    drawings = [page.figure(_drawing(content, key, best, constant)) for key in content["space"]]
    yield page.group("columns", drawings)
    yield page.heading(3, "All trials")
    header = ["trial", *content["space"], f"validation {content['metric']}", "constant", "time", "status"]
    kinds = [page.NUMBER, *[""] * len(content["space"]), *[page.NUMBER] * 3, ""]
    ordered = best_first(content)
    rows = [
        [
            str(row["trial"]),
            *(setting_text(row["settings"][name]) if name in row["settings"] else "–" for name in content["space"]),
            *(number_text(row["score"]), number_text(row["constant"]), duration_text(row["seconds"])),
            status_text(row),
        ]
        for row in ordered
    ]
    yield page.table(header, rows, kinds, [_class(row, row["trial"] == best) for row in ordered])


def _drawing(content: Content, key: str, best: int | None, constant: float | None) -> Chart:
    """Plot the scores of all trials against one setting of the space."""
    dimension = content["space"][key]
    values = [setting_text(value) for value in dimension] if isinstance(dimension, list) else None
    position = (lambda value: value) if values is None else setting_text
    points = [
        (position(row["settings"][key]), row["score"], _mouse_text(row), row["trial"] == best)
        for row in content["trials"]
        if row["status"] in ("finished", "failed") and key in row["settings"]
    ]
    log = values is None and dimension.get("log", False)
    return figures.scores_by_setting(key, points, f"validation {content['metric']}", constant=constant, values=values, log=log)


def best_first(content: Content) -> list[Content]:
    """Return the trials sorted by score, the best first and those without a score last."""
    sign = -1 if content["higher_is_better"] else 1
    return sorted(content["trials"], key=lambda row: (row["score"] is None, sign * (row["score"] or 0.0), row["trial"]))


def _mouse_text(row: Content) -> str:
    score = number_text(row["score"]) if row["failure"] is None else status_text(row)
    return f"trial {row['trial']}: {score} ({settings_text(row['settings'])})"


def failures(rows: Iterable[Content], kind: str) -> Iterator[str]:
    """Yield a line for each reason for which trials or seeds failed."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["failure"] is not None:
            reasons.setdefault(row["failure"], []).append(str(row[kind]))
    for reason, which in reasons.items():
        yield f"failed, {kind} {', '.join(which)}: {reason}"


def status_text(row: Content) -> str:
    """Return the status of a trial or seed, with the reason of a failure."""
    return row["status"] if row["failure"] is None else f"{row['status']}: {row['failure']}"


def _class(row: Content, best: bool) -> str:
    return "ours" if best else "failed" if row["status"] == "failed" else ""


def _seeds(content: Content) -> Iterator[str]:
    seeds, test = content["seeds"], content["test"]
    if not seeds:
        return
    yield page.heading(2, "Test over seeds")
    if test is not None:
        scores = [row["score"] for row in seeds if row["score"] is not None]
        name = "best setting" if content["trials"] else "longscan"
        mean = (test["mean"], test["half_width"])
        drawing = figures.scores(
            [(name, scores, mean)], [], {"best constant predictor": test["constant"]}, f"test {content['metric']}"
        )
        caption = "Every seed, and their mean with its 95 % interval (Student's t)."
        yield page.figure(drawing, caption)
    rows = [
        [
            str(row["seed"]),
            number_text(row["score"]),
            number_text(row["constant"]),
            duration_text(row["seconds"]),
            status_text(row),
        ]
        for row in seeds
    ]
    header = ["seed", f"test {content['metric']}", "constant", "time", "status"]
    yield page.table(header, rows, [page.NUMBER] * 4 + [""], [_class(row, False) for row in seeds])


def _origin(content: Content) -> Iterator[str]:
    yield page.heading(2, "Origin")
    if content["command"]:
        yield page.code(content["command"])
    rows = [
        ("recipe", content["recipe"]),
        ("sampler", content["sampler"]),
        ("commit", content["commit"]),
        ("date", content["date"]),
    ]
    yield page.table(("", ""), [(name, str(value)) for name, value in rows if value])
    yield page.paragraph("In the same folder: sweep.json, and a run's directory for each trial and seed.", "caption")
