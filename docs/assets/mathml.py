"""MkDocs hook: formulae become MathML when the site is built, so that pages show them without a network.

Options do not wrap, and long names in tables wrap behind a slash, an underscore, a full stop or an equals sign only.
"""

import html
import re

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_OPTION = re.compile(r"<code>(--[^<]{1,40})</code>")
_CODE = re.compile(r"<code(?: [^>]*)?>.*?</code>", re.DOTALL)
_PART = re.compile(r"(?<![\w-])--[a-z][\w.-]*(?![^<>]*>)")  # an option in code, outside tags
_CELL = re.compile(r"<td\b.*?</td>", re.DOTALL)
_NAME = re.compile(r"<[^>]*>|[^\s<>]{16,}")
_NUMBER = re.compile(r"\\tag\{(\d+)\}")
_SIGN = re.compile(r"(<mo[^>]*>(?:&#x0003D;|&#x00028;|&#x0002C;|&#x02208;|&#x0003C;|\[)</mo>)<mo>&#x02212;</mo>")  # = ( , ∈ < [


def _convert(formula: str, display: str) -> str:
    """Convert a formula, without the spaces of a difference around bars of an absolute value and behind a sign."""
    mathml = convert(formula, display=display).replace("<mi>:</mi><mo>&#x0003D;</mo>", "<mo>:=</mo>")
    for bar in ("&#x0007C;", "&#x02016;"):
        element = re.compile(rf'<mo(?: fence="false")?(?: stretchy="false")?>{bar}</mo>')
        if len(element.findall(mathml)) % 2 == 0:  # a bar that is alone is a relation or a separator
            mathml = element.sub(f'<mo stretchy="false" lspace="0" rspace="0">{bar}</mo>', mathml)
    return _SIGN.sub(r'\1<mo form="prefix">&#x02212;</mo>', mathml)


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


def _breakable(match: re.Match[str]) -> str:
    """Return a long name with places at which a line may break; a tag unchanged."""
    return match[0] if match[0].startswith("<") else re.sub(r"([/_.=])(?=\w)", r"\1<wbr>", match[0])


def _whole_options(match: re.Match[str]) -> str:
    """Return code whose options do not wrap behind their hyphens."""
    return match[0] if match[0].startswith('<code class="option"') else _PART.sub(r'<span class="option">\g<0></span>', match[0])


def on_page_content(content: str, **_: object) -> str:
    """Replace every formula that arithmatex has marked, and mark options such as --out, which would wrap behind their hyphens.

    In the cells of tables, long names get places at which a line may break.
    """
    content = _CELL.sub(lambda cell: _NAME.sub(_breakable, cell[0]), content)
    content = _OPTION.sub(r'<code class="option">\1</code>', _FORMULA.sub(_mathml, content))
    return _CODE.sub(_whole_options, content)
