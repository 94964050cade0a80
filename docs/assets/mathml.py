"""MkDocs hook: formulae become MathML when the site is built, so that pages show them without a network."""

import html
import re

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_NUMBER = re.compile(r"\\tag\{(\d+)\}")


def _convert(formula: str, display: str) -> str:
    """Convert a formula. Bars of norms keep their height: without it one of a pair can be stretched and the other not."""
    return re.sub(r"<mo>(&#x0007C;|&#x02016;)</mo>", r'<mo stretchy="false">\1</mo>', convert(formula, display=display))


def _mathml(match: re.Match[str]) -> str:
    """Convert a formula. The number of an equation becomes a separate element, which the style sheet puts at the right margin."""
    formula = html.unescape(match[2])
    if match[1] == "span":
        return _convert(formula, "inline")
    number = _NUMBER.search(formula)
    mathml = _convert(_NUMBER.sub("", formula), "block")
    label = f"<span>({number[1]})</span>" if number else ""
    return f'<div class="equation"><div>{mathml}</div>{label}</div>'


def on_page_content(content: str, **_: object) -> str:
    """Replace every formula that arithmatex has marked."""
    return _FORMULA.sub(_mathml, content)
