"""MkDocs hook: formulae become MathML when the site is built, so that pages show them without a network."""

import html
import re

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_NUMBER = re.compile(r"\\tag\{(\d+)\}")


def _convert(formula: str, display: str) -> str:
    """Convert a formula, and mend its bars and its colons before equals signs."""
    mathml = convert(formula, display=display).replace("<mo>&#x0003A;</mo><mo>&#x0003D;</mo>", "<mo>:=</mo>")
    for bar in ("&#x0007C;", "&#x02016;"):
        mathml = _pair_bars(mathml, f"<mo>{bar}</mo>", bar)
    return mathml


def _pair_bars(mathml: str, element: str, bar: str) -> str:
    """Make bars fences in turn opening and closing, for the space beside them; one that is alone stays an operator.

    Without a fixed height one of a pair can be stretched and the other not.
    """
    n_bars = mathml.count(element)
    for index in range(n_bars):
        form = ("prefix", "postfix")[index % 2]
        fence = f' form="{form}"' if n_bars % 2 == 0 else ""
        mathml = mathml.replace(element, f'<mo stretchy="false"{fence}>{bar}</mo>', 1)
    return mathml


def _pieces(formula: str) -> list[str]:
    r"""Split a formula at \qquad, where a narrow page may break the line; not within braces or an environment."""
    pieces = formula.split(r"\qquad")
    is_split = all(piece.count("{") == piece.count("}") and r"\begin" not in piece for piece in pieces)
    return pieces if is_split else [formula]


def _mathml(match: re.Match[str]) -> str:
    """Convert a formula. The number of an equation becomes a separate element, which the style sheet puts at the right margin."""
    formula = html.unescape(match[2])
    if match[1] == "span":
        return _convert(formula, "inline")
    number = _NUMBER.search(formula)
    mathml = "".join(_convert(piece, "block") for piece in _pieces(_NUMBER.sub("", formula)))
    label = f"<span>({number[1]})</span>" if number else ""
    return f'<div class="equation"><div>{mathml}</div>{label}</div>'


def on_page_content(content: str, **_: object) -> str:
    """Replace every formula that arithmatex has marked."""
    return _FORMULA.sub(_mathml, content)
