"""The report of one run, generated from the files in the run's directory."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import yaml

from longscan._files import write_text
from longscan._specs import upgrade_record, upgrade_settings
from longscan._yaml import flatten
from longscan.report import figures, page
from longscan.report.examples import class_section, example_section
from longscan.report.inspection import inspection_section
from longscan.report.page import duration_text, number_text, protocol_text, words

_NOT_METRICS = {"step", "split", "loss", "lr", "seconds"}
_STANDARDISED = ("series_forecast", "series_values", "forecast")  # tasks whose errors are those of standardised numbers
_WEIGHTS = {"last": "weights of the last step", "best": "weights of the best validation", "average": "average of the weights"}


def run_report(run_dir: str | Path) -> Path:
    """Write `report.html` into a run's directory and return its path.

    The page is one file without scripts that opens offline. It reads settings.yaml, metrics.jsonl, result.json, and where they
    exist baselines.json, examples.json, angles.json and the pictures in inspection/. Raises FileNotFoundError if the directory
    does not exist, ValueError if a file cannot be read.
    """
    folder = Path(run_dir)
    if not folder.is_dir():
        raise FileNotFoundError(f"`run_dir` must be the directory of a run, got {folder}")
    settings = _read(folder / "settings.yaml", lambda content: upgrade_settings(yaml.safe_load(content) or {})) or {}
    result = _read(folder / "result.json", lambda content: upgrade_record(json.loads(content)))
    # A kill can leave an incomplete last line, which has no line break.
    rows = _read(folder / "metrics.jsonl", lambda text: [json.loads(line) for line in text.split("\n")[:-1]]) or []
    baselines, examples, angles = (
        _read(folder / name, json.loads) for name in ("baselines.json", "examples.json", "angles.json")
    )
    sections = {name: settings.get(name) or {} for name in ("task", "model", "training", "about")}
    planned = {"task": sections["task"].get("name"), **sections["model"], **sections["training"]}
    task, spec, seed = ((result or planned).get(name) for name in ("task", "spec", "seed"))
    quick = "quick size" if sections["about"].get("quick") else None
    parts = (_task_text(task, sections["task"].get("path")), spec, None if seed is None else f"seed {seed}", quick)
    title = ", ".join(str(part) for part in parts if part) or folder.name
    body = [
        *_summary(title, result, baselines or {}),
        *_baselines(result, baselines or {}),
        *example_section(examples),
        *class_section(result or {}),
        *_lengths(result),
        *_curves(rows, result),
        *_angles(angles),
        *inspection_section(folder / "inspection"),
        *_settings(settings),
        *_origin(folder, result),
    ]
    return write_text(folder / "report.html", page.page(title, body))


def _task_text(task: str | None, path: str | None) -> str:
    """Return the name of a task in words, after that of its data set or file, if it has one: "BasicMotions (uea)"."""
    name, _, dataset = (task or "").partition("/")
    dataset = dataset or PurePath((path or "").replace("\\", "/")).name
    return f"{dataset} ({name.replace('_', ' ')})" if dataset else name.replace("_", " ")


def _read(path: Path, parse: Any) -> Any:
    """Return the parsed file, None if it does not exist."""
    if not path.exists():
        return None
    try:
        return parse(path.read_text("utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _summary(title: str, result: Mapping[str, Any] | None, baselines: Mapping[str, float]) -> Iterator[str]:
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
    metric = words(result["metric"])
    if result.get("status") == "finished" and result.get("test", {}) is None:
        best = (result.get("valid") or {}).get(result.get("selected"))
        yield page.paragraph(
            f"This run belongs to a search, which does not use the test split. Validation {metric}: {number_text(best)}.", "note"
        )
    remarks = [_WEIGHTS.get(result.get("selected") or "", "")]
    if (result.get("task") or "").partition("/")[0] in _STANDARDISED:
        remarks.append("in standard deviations of the training data" + (", squared" if result["metric"] == "mse" else ""))
    simple = ("best constant predictor", number_text(result.get("constant")), "the same metric")
    if _has_baselines(baselines):
        best_name = _best_first(baselines, result)[0]
        simple = ("best simple predictor", number_text(baselines[best_name]), words(best_name))
    scale = "0: a constant answer or guessing, 1: perfect"
    yield page.tiles(
        [
            (f"test {metric}", number_text(result.get("value")), "; ".join(filter(None, remarks))),
            simple,
            ("scaled score", number_text(result.get("scaled")), scale),
            ("parameters", number_text(result.get("params")), ""),
            ("training", duration_text(result.get("seconds")), f"{number_text(result.get('steps'))} steps"),
        ]
    )


def _has_baselines(baselines: Mapping[str, float]) -> bool:
    """Return whether there are simple predictors besides the constant, which the tiles show."""
    return len(baselines.keys() - {"constant"}) > 0


def _best_first(scores: Mapping[str, float], result: Mapping[str, Any]) -> list[str]:
    """Return the names of predictors, the best first."""
    higher = result.get("higher_is_better", result["metric"] == "accuracy")  # earlier versions did not record it
    return sorted(scores, key=lambda name: -scores[name] if higher else scores[name])


def _baselines(result: Mapping[str, Any] | None, baselines: Mapping[str, float]) -> Iterator[str]:
    """Yield the scores of simple predictors next to that of the run; nothing if there is only the constant."""
    if result is None or result.get("value") is None or not _has_baselines(baselines):
        return
    own = "this run"
    scores = {own: result["value"], **baselines}
    ordered = {words(name): scores[name] for name in _best_first(scores, result)}
    yield page.heading(2, "Simple predictors")
    caption = "On the test split. The command longscan baselines adds predictors that must be fitted, where the task has some."
    yield page.figure(figures.baseline_scores(ordered, words(result["metric"]), own), caption)


def _lengths(result: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the scores by length of the input; nothing without them."""
    lengths = (result or {}).get("by_length")
    if not lengths or result is None:
        return
    metric = words(result["metric"])
    known = {name: score for name, score in lengths.items() if score is not None}
    unknown = ", ".join(name for name in lengths if name not in known)
    empty = f" No test example has a length of {unknown}." if unknown else ""
    yield page.heading(2, "Lengths")
    yield page.figure(figures.by_length(known, metric, result.get("constant")), f"Test {metric} by length of the input.{empty}")


def _curves(rows: list[dict[str, Any]], result: Mapping[str, Any] | None) -> Iterator[str]:
    yield page.heading(2, "Learning curves")
    if not rows:
        yield page.paragraph("There is no metrics.jsonl, or it is empty, so there are no learning curves.", "note")
        return
    main = (result or {}).get("metric")
    names = sorted({k for row in rows for k in row if k not in _NOT_METRICS and "/" not in k}, key=lambda k: (k != main, k))
    drawings, is_smoothed = [], False
    for key, label in [("loss", "loss"), *((n, words(n)) for n in names), ("lr", "learning rate")]:
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


def _angles(angles: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the rotation angles of AUSSM layers; nothing for a run without such layers or without symbols."""
    if not angles:
        return
    yield page.heading(2, "Rotation angles")
    yield page.paragraph(
        "The angles by which one step of each input symbol rotates the state of an AUSSM layer, one for each channel and state. "
        "The area of a point grows with the number of equal angles."
    )
    drawings = []
    for name, layer in angles.items():
        few = len(layer["symbols"]) <= figures.MAX_STRIPS
        draw = figures.angle_strips if few else figures.angle_map
        drawings.append(page.heading(3, _layer_text(name)) + page.figure(draw(layer["symbols"], layer["theta"])))
    yield page.group("columns", (page.group("", [drawing]) for drawing in drawings))


def _layer_text(name: str) -> str:
    """Return the name of a layer in words: "block 2" for "blocks.1.block.layer", the number counted from 1."""
    found = re.match(r"blocks\.(\d+)\.", name)
    return name if found is None else f"Block {int(found[1]) + 1}"


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
    yield page.heading(2, "Machine and origin")
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
