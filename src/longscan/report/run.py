"""The report of one run, generated from the files in the run's directory."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from longscan._files import write_text
from longscan._specs import spec_names, upgrade_record, upgrade_settings
from longscan._yaml import flatten
from longscan.report import figures, page
from longscan.report.page import duration_text, number_text, protocol_text

_NOT_METRICS = {"step", "split", "loss", "lr", "seconds"}


def run_report(run_dir: str | Path) -> Path:
    """Write `report.html` into a run's directory and return its path.

    The page is one file that opens offline. It reads settings.yaml, metrics.jsonl, result.json and angles.json and names those
    that are missing. Raises FileNotFoundError if the directory does not exist, ValueError if a file cannot be read.
    """
    folder = Path(run_dir)
    if not folder.is_dir():
        raise FileNotFoundError(f"`run_dir` must be the directory of a run, got {folder}")
    settings = _read(folder / "settings.yaml", lambda content: upgrade_settings(yaml.safe_load(content) or {})) or {}
    result = _read(folder / "result.json", lambda content: upgrade_record(json.loads(content)))
    # A kill can leave an incomplete last line, which has no line break.
    rows = _read(folder / "metrics.jsonl", lambda text: [json.loads(line) for line in text.split("\n")[:-1]]) or []
    angles = _read(folder / "angles.json", json.loads)
    sections = {name: settings.get(name) or {} for name in ("task", "model", "training", "about")}
    planned = {"task": sections["task"].get("name"), **sections["model"], **sections["training"]}
    task, spec, seed = ((result or planned).get(name) for name in ("task", "spec", "seed"))
    parts = (task, spec, None if seed is None else f"seed {seed}", "quick size" if sections["about"].get("quick") else None)
    title = ", ".join(str(part) for part in parts if part) or folder.name
    body = [
        *_summary(title, result),
        *_scores(result),
        *_curves(rows, result),
        *_angles(angles, settings),
        *_settings(settings),
        *_origin(folder, result),
    ]
    return write_text(folder / "report.html", page.page(title, body))


def _read(path: Path, parse: Any) -> Any:
    """Return the parsed file, None if it does not exist."""
    if not path.exists():
        return None
    try:
        return parse(path.read_text("utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _summary(title: str, result: Mapping[str, Any] | None) -> Iterator[str]:
    yield page.heading(1, title)
    if result is None:
        yield page.paragraph("There is no result.json, as the run has not finished, so there is no test score.", "note")
        return
    date = (result.get("date") or "").replace("T", " ").replace("Z", " UTC")
    facts = [protocol_text(result.get("suite")), date, result.get("device")]
    yield page.paragraph(" · ".join(str(f) for f in facts if f), "subtitle")
    if result.get("status") != "finished":
        reason = result.get("failure") or "no reason is recorded"
        yield page.paragraph(
            f"This run {result.get('status')}: {reason}. Its figures are shown as they were recorded.", "failure"
        )
    metric = result["metric"]
    if result.get("status") == "finished" and result.get("test", {}) is None:
        best = (result.get("valid") or {}).get(result.get("selected"))
        yield page.paragraph(
            f"This run belongs to a search, which does not use the test split. Validation {metric}: {number_text(best)}.", "note"
        )
    yield page.tiles(
        [
            (
                f"test {metric}",
                number_text(result.get("value")),
                f"model: {result['selected']}" if result.get("selected") else "",
            ),
            ("best constant predictor", number_text(result.get("constant")), "the same metric"),
            (
                "scaled score",
                number_text(result.get("scaled")),
                f"constant predictor {number_text(result.get('constant_scaled'))}",
            ),
            ("parameters", number_text(result.get("params")), ""),
            ("training", duration_text(result.get("seconds")), f"{number_text(result.get('steps'))} steps"),
        ]
    )


def _scores(result: Mapping[str, Any] | None) -> Iterator[str]:
    if result is None:
        return
    yield page.heading(2, "Test score in detail")
    matrix, lengths = result.get("confusion"), result.get("by_length")
    drawings = []
    if matrix:
        classes = [str(c) for c in result.get("classes") or range(len(matrix))]
        caption = "Confusion matrix of the test split: number of examples, coloured by share of the true class."
        drawings.append(page.figure(figures.confusion(matrix, classes), caption))
    if lengths:
        known = {name: score for name, score in lengths.items() if score is not None}
        empty = (
            f" No test example has a length of {', '.join(lengths.keys() - known.keys())}." if len(known) < len(lengths) else ""
        )
        drawing = figures.by_length(known, result["metric"], result.get("constant"))
        drawings.append(page.figure(drawing, f"Test {result['metric']} by length of the input.{empty}"))
    yield page.group("columns", drawings)
    if not drawings:
        yield page.paragraph("The run records neither a confusion matrix nor the score by length.", "note")


def _curves(rows: list[dict[str, Any]], result: Mapping[str, Any] | None) -> Iterator[str]:
    yield page.heading(2, "Learning curves")
    if not rows:
        yield page.paragraph("There is no metrics.jsonl, or it is empty, so there are no learning curves.", "note")
        return
    main = (result or {}).get("metric")
    names = sorted({k for row in rows for k in row if k not in _NOT_METRICS and "/" not in k}, key=lambda k: (k != main, k))
    drawings, is_smoothed = [], False
    for key, label in [("loss", "loss"), *((n, n) for n in names), ("lr", "learning rate")]:
        points = {
            split: [(r["step"], r[key]) for r in rows if r.get("split") == split and r.get(key) is not None]
            for split in figures.SPLITS
        }
        series: dict[str, Any] = {split: tuple(zip(*found, strict=True)) for split, found in points.items() if found}
        is_smoothed = is_smoothed or any(len(found) > figures.SMOOTHING_LENGTH for found in points.values())
        if series:
            constant = (result or {}).get("constant") if key == main else None
            drawing = figures.curves(series, label, constant=constant, log=key == "loss", from_zero=key == "lr")
            drawings.append(page.figure(drawing))
        else:
            yield page.paragraph(f"metrics.jsonl has no {label}.", "note")
    yield page.group("columns", drawings)
    if is_smoothed:
        yield page.paragraph(
            "The faint line shows every recorded point, the solid line the running mean over a hundredth of the run.", "caption"
        )


def _angles(angles: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> Iterator[str]:
    if not angles:
        spec = (settings.get("model") or {}).get("spec", "")
        if any("aussm" in name for name in (spec_names(spec) if isinstance(spec, str) else [str(spec)])):
            yield page.heading(2, "Rotation angles")
            yield page.paragraph("No angles are recorded. They are recorded for AUSSM layers of models that read tokens.", "note")
        return
    yield page.heading(2, "Rotation angles")
    yield page.paragraph(
        "The angles by which one step of each input symbol rotates the state of an AUSSM layer, one for each channel and state. "
        "The area of a point grows with the number of equal angles."
    )
    drawings = []
    for name, layer in angles.items():
        few = len(layer["symbols"]) <= figures.MAX_RINGS
        draw = figures.angle_rings if few else figures.angle_map
        caption = "Rings from the inside out: the symbols in order." if few else "Rows: symbols."
        drawings.append(page.heading(3, name) + page.figure(draw(layer["symbols"], layer["theta"]), caption))
    yield page.group("columns", (page.group("", [drawing]) for drawing in drawings))


def _settings(settings: Mapping[str, Any]) -> Iterator[str]:
    yield page.heading(2, "Settings")
    if not settings:
        yield page.paragraph("There is no settings.yaml, so the settings of this run are not known.", "note")
        return
    sections = {name: values for name, values in settings.items() if isinstance(values, Mapping)}
    other = {name: value for name, value in settings.items() if name not in sections}
    columns = []
    for section, values in (sections | ({"other": other} if other else {})).items():
        cells = [(name, "–" if value is None else str(value)) for name, value in flatten(values)]
        columns.append(page.group("", [page.heading(3, section) + page.table(("", ""), cells)]))
    yield page.group("settings", columns)


def _origin(folder: Path, result: Mapping[str, Any] | None) -> Iterator[str]:
    yield page.heading(2, "Origin")
    if result is None:
        yield page.paragraph("Without result.json neither the command nor the commit is known.", "note")
        return
    if result.get("command"):
        yield page.code(result["command"])
    versions = result.get("versions") or {}
    rows = [("commit", result.get("commit")), ("date", result.get("date")), ("device", result.get("device")), *versions.items()]
    yield page.table(("", ""), [(k, str(v)) for k, v in rows if v])
    others = [name for name in ("metrics.csv", "checkpoints", "tensorboard") if (folder / name).exists()]
    if others:
        yield page.paragraph(f"In the same folder: {', '.join(others)}.", "caption")
