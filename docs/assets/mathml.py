"""MkDocs hook: formulae become MathML when the site is built, so that pages show them without a network."""

import html
import re

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def _mathml(match: re.Match[str]) -> str:
    block = match[1] == "div"
    return convert(html.unescape(match[2]), display="block" if block else "inline")


def on_page_content(content: str, **_: object) -> str:
    """Replace every formula that arithmatex has marked."""
    return _FORMULA.sub(_mathml, content)
