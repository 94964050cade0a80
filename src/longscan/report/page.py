"""The HTML page: one file that opens offline and contains Plotly, the style sheet and the figures.

All HTML is in the Jinja2 templates of the folder `templates`. Text is escaped there; `Markup` is HTML already.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.graph_objects import Figure
from plotly.offline import get_plotlyjs

NUMBER = "number"


@cache
def _environment() -> Environment:
    return Environment(loader=PackageLoader("longscan.report"), autoescape=True, undefined=StrictUndefined)


def _component(name: str, *arguments: Any) -> Markup:
    """Render a macro of components.html with arguments."""
    html: Markup = getattr(_environment().get_template("components.html").module, name)(*arguments)
    return html


def _asset(name: str) -> Markup:
    return Markup(resources.files("longscan.report").joinpath("assets", name).read_text("utf-8").strip())


def page(title: str, body: Iterable[str]) -> str:
    """Return a complete page around `body`, pieces of HTML."""
    style, script = _asset("page.css"), _asset("page.js")
    template = _environment().get_template("page.html")
    return template.render(title=title, style=style, plotly=Markup(get_plotlyjs()), script=script, body=body)


def heading(level: int, text: str) -> Markup:
    """Return a heading of the given level."""
    return _component("element", f"h{level}", "", text)


def paragraph(text: str, kind: str = "") -> Markup:
    """Return a paragraph; `kind` is a class of the style sheet: note, failure, caption, subtitle."""
    return _component("element", "p", kind, text)


def code(text: str) -> Markup:
    """Return a block of code."""
    return _component("element", "pre", "", text)


def group(kind: str, pieces: Iterable[Markup]) -> Markup:
    """Return pieces of HTML inside one element of class `kind`: columns, settings, or "" for none."""
    return _component("group", kind, pieces)


def tiles(entries: Sequence[tuple[str, str, str]]) -> Markup:
    """Return key figures as tiles of (label, value, remark); the style sheet marks the first as the main one."""
    return _component("tiles", entries)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], kinds: Sequence[str] = (), classes: Sequence[str] = ()) -> Markup:
    """Return a table of text cells; kinds: `NUMBER` or "" for each column, classes: a class or "" for each row."""
    rows = list(rows)
    return _component("table", header, rows, kinds or [""] * len(header), classes or [""] * len(rows))


def figure(drawing: Figure, caption: str = "") -> Markup:
    """Return a Plotly figure with its caption below; its height is the layout's."""
    data = Markup(drawing.to_json().replace("<", "\\u003c"))  # no "</script>" may stand inside the script element
    return _component("figure", data, drawing.layout.height, caption)
