"""MkDocs hook: formulae become MathML when the site is built, so that pages show them without a network."""

import html
import re

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_NUMBER = re.compile(r"\\tag\{(\d+)\}")


def _mathml(match: re.Match[str]) -> str:
    """Convert a formula. The number of an equation becomes a separate element, which the style sheet puts at the right margin."""
    formula = html.unescape(match[2])
    if match[1] == "span":
        return convert(formula, display="inline")
    number = _NUMBER.search(formula)
    mathml = convert(_NUMBER.sub("", formula), display="block")
    return f'<div class="equation">{mathml}<span>({number[1]})</span></div>' if number else mathml


def on_page_content(content: str, **_: object) -> str:
    """Replace every formula that arithmatex has marked."""
    return _FORMULA.sub(_mathml, content)
