"""Whether a value is of a type annotation, and type annotations in words for messages."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

_FLOAT_MAX = sys.float_info.max  # larger whole numbers are no floats; comparing with it is false for NaN


@dataclass(frozen=True)
class Rule:
    """A condition on values of one type, written `Annotated[int, Rule(...)]`.

    Attributes:
        holds: the condition, called with a value of the type.
        needed: type and condition in words, for example "whole number of at least 1".
    """

    holds: Callable[[Any], object]
    needed: str


def matches_type(value: object, declared: Any, *, finite: bool = True) -> bool:
    """Return whether `value` is of the annotated type `declared`.

    Numbers must be finite unless they are items of a list. The choices of a Literal and the values of a mapping are not compared:
    the caller does that.
    """
    if declared is Any:
        return True
    origin, parts = get_origin(declared), get_args(declared)
    if origin in (Union, UnionType):
        return any(matches_type(value, part) for part in parts)
    if origin is Literal:
        return type(value) in {type(part) for part in parts}
    if declared is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if declared is float:
        return isinstance(value, Real) and not isinstance(value, bool) and (not finite or abs(cast("float", value)) <= _FLOAT_MAX)
    if not isinstance(value, origin or declared) or (declared is not str and isinstance(value, str)):
        return False
    item = parts[0] if parts and not issubclass(origin, Mapping) else Any
    return item is Any or all(matches_type(one, item, finite=False) for one in cast("Iterable[object]", value))


def describe_type(declared: Any) -> str:
    """Return an annotated type in words, for example "whole number or None"."""
    origin, parts = get_origin(declared), get_args(declared)
    if origin is Annotated:
        return next(part.needed for part in parts if isinstance(part, Rule))
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(describe_type(part) for part in parts))
    if origin is Literal:
        return " or ".join(repr(part) for part in parts)
    words = {int: "whole number", float: "finite number", bool: "true or false", str: "word", type(None): "None"}
    kind = origin or declared
    if declared in words:
        return words[declared]
    return "mapping" if issubclass(kind, Mapping) else "list" if hasattr(kind, "__len__") else kind.__name__
