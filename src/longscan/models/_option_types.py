"""Whether the settings of blocks are of the types that their constructors declare, told by name before anything is made."""

import functools
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


@functools.cache
def declared_types(made: Callable[..., object]) -> dict[str, Any]:
    """The annotations of a constructor's arguments."""
    return get_type_hints(made.__init__)


def fits(value: object, declared: Any) -> bool:
    """Whether a value is of a declared type; what a container holds, and which words are allowed, the constructor looks at."""
    if declared is Any:
        return True
    origin, parts = get_origin(declared), get_args(declared)
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return type(value) in {type(part) for part in parts}
    if declared in (int, float):
        return isinstance(value, Integral if declared is int else Real) and not isinstance(value, bool)
    return isinstance(value, origin or declared) and (declared is str or not isinstance(value, str))


def told(declared: Any) -> str:
    """A declared type in words: `whole number or None`."""
    origin, parts = get_origin(declared), get_args(declared)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(told(part) for part in parts))
    if origin is Literal:
        return " or ".join(repr(part) for part in parts)
    words = {int: "whole number", float: "number", bool: "true or false", str: "word", type(None): "None"}
    return words.get(declared, "mapping" if issubclass(origin or declared, Mapping) else "list")
