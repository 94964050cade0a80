"""The HTML page: one file that opens offline, with Plotly, style and figures inside."""

import html
from collections.abc import Iterable, Sequence
from importlib import resources
from itertools import zip_longest
from string import Template

from plotly.graph_objects import Figure
from plotly.offline import get_plotlyjs

NUMBER = "number"


def escape(value: object) -> str:
    """Text made safe for HTML."""
    return html.escape(str(value), quote=True)


def _asset(name: str) -> str:
    return resources.files("longscan.report").joinpath("assets", name).read_text("utf-8").strip()


def page(title: str, body: Iterable[str]) -> str:
    """A complete page around `body`, pieces of HTML."""
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        style=_asset("page.css"),
        plotly=get_plotlyjs(),
        script=_asset("page.js"),
        body="\n".join(body),
    )


def heading(level: int, text: str) -> str:
    """A heading of the given level."""
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; `kind` is a class of the style sheet: note, failure, caption, subtitle."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def code(text: str) -> str:
    """A block of code."""
    return f"<pre>{escape(text)}</pre>"


def group(kind: str, pieces: Iterable[str]) -> str:
    """Pieces of HTML inside one element of class `kind`: columns, settings."""
    return f'<div class="{kind}">' + "\n".join(pieces) + "</div>"


def tiles(entries: Sequence[tuple[str, str, str]]) -> str:
    """Key figures as tiles of (label, value, remark); the style sheet marks the first as the main one."""
    kinds = ("label", "value", "remark")
    spans = ["".join(_element("span", *pair) for pair in zip(kinds, entry, strict=True)) for entry in entries]
    items = "".join(f"<li>{span}</li>" for span in spans)
    return f'<ul class="tiles">{items}</ul>'


def _element(tag: str, kind: str, text: str) -> str:
    return f'<{tag} class="{kind}">{escape(text)}</{tag}>' if kind else f"<{tag}>{escape(text)}</{tag}>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], kinds: Sequence[str] = (), classes: Sequence[str] = ()) -> str:
    """A table of text cells; kinds: `NUMBER` or "" for each column, classes: a class or "" for each row."""

    def line(tag: str, cells: Sequence[str], kind: str) -> str:
        inner = "".join(_element(tag, k, cell) for k, cell in zip(kinds or [""] * len(cells), cells, strict=True))
        return f'<tr class="{kind}">{inner}</tr>' if kind else f"<tr>{inner}</tr>"

    head = f"<thead>{line('th', header, '')}</thead>" if any(header) else ""
    body = "".join(line("td", row, kind) for row, kind in zip_longest(rows, classes, fillvalue=""))
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'


def figure(drawing: Figure, caption: str = "") -> str:
    """A Plotly figure with its caption below; its height is the layout's."""
    data = drawing.to_json().replace("<", "\\u003c")
    note = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure><div class="plot" style="height:{drawing.layout.height}px"></div>'
        f'<script type="application/json" class="figure">{data}</script>{note}</figure>'
    )
