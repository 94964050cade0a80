"""The HTML page of a report, one file that opens offline, and the numbers, durations and notes in it as text.

All HTML is in templates/page.html, whose macros have names here. Each returns Markup, which is not escaped again.
"""

import math
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

NUMBER = "number"  # the class of a column of numbers

_environment = Environment(loader=PackageLoader("longscan.report"), autoescape=True, undefined=StrictUndefined)
_macros: Any = _environment.get_template("page.html").module
heading, paragraph, code = _macros.heading, _macros.paragraph, _macros.code
group, tiles, table, letters = _macros.group, _macros.tiles, _macros.table, _macros.letters
figure, picture = _macros.figure, _macros.picture
# In words: suites of formal languages and protocols of other data sets. Suites of tasks outside this package keep their names.
_PROTOCOLS = {
    "clean": "protocol of longscan",
    "aussm": "protocol of AUSSM",
    "linoss": "protocol of LinOSS",
    "chomsky": "protocol of the Chomsky hierarchy suite",
    "person": "split by persons",
    "published": "published split",
}
# Metrics and simple predictors whose ids are no plain words; the others are written with spaces.
_WORDS = {
    "mae": "mean absolute error",
    "mse": "mean squared error",
    "rmse": "root mean squared error",
    "bits": "bits per token",
    "macro_f1": "macro F1",
    "mae_inside_window": "mean absolute error inside the window",
    "mae_after_window": "mean absolute error after the window",
    "lr": "learning rate",
    "grad_norm": "norm of the gradient",
    "max_length": "greatest length of training",
    "dlinear": "DLinear",
    "minirocket": "MiniRocket",
    "dtw_1nn": "nearest neighbour (time warping)",
    "constant": "best constant",
    "persistence": "last value",
}
_CHANGES = "+changes"  # suffix that `longscan.training.run.commit` adds if the checkout has uncommitted changes


def page(title: str, body: Iterable[str]) -> str:
    """Return a complete page around `body`, pieces of HTML."""
    style = resources.files("longscan.report").joinpath("assets", "page.css").read_text("utf-8").strip()
    return str(_macros.page(title, body, Markup(style)))


def number_text(value: float | None, digits: int = 4) -> str:
    """Format a number for tables; a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, int) or not math.isfinite(value):
        return f"{value:,}"
    return f"{value:.{digits}f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"


def words(name: str) -> str:
    """Return the id of a metric or of a predictor in plain words."""
    return _WORDS.get(name, name.replace("_", " "))


def duration_text(seconds: float | None) -> str:
    """Format seconds as hours, minutes and seconds."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def protocol_text(suite: str | None) -> str:
    """Return the words for the field `suite` of a record: whose protocol the data of a task follow; "" for None."""
    return "" if suite is None else _PROTOCOLS.get(suite, suite)


def mean_text(mean: tuple[float, float | None] | None, digits: int = 3) -> str:
    """Format a mean with half the width of its interval."""
    if mean is None:
        return "no finished run"
    centre, half = mean
    return f"{centre:.{digits}f}" if half is None else f"{centre:.{digits}f} ± {half:.{digits}f}"


def commit_text(commit: str, digits: int | None = None) -> str:
    """Format a commit with at most `digits` digits, and "with uncommitted changes" if the tree had some."""
    name = commit.removesuffix(_CHANGES)[:digits]
    return f"{name} with uncommitted changes" if commit.endswith(_CHANGES) else name


def uncommitted_note(commits: Sequence[str]) -> str:
    """Return a note on how many of the rows with these commits come from trees with uncommitted changes; "" if none does."""
    count = sum(commit.endswith(_CHANGES) for commit in commits)
    if not count:
        return ""
    share = "" if count == len(commits) else f"{count} of {len(commits)} rows "
    return f"{share}from a tree with uncommitted changes"
