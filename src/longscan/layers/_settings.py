"""Whether settings are of the types that constructors declare, told by name before anything is made."""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from torch import nn

from longscan.ops import OPS
from longscan.ops._dispatch import BACKENDS, NATIVE, missing_kernel, refusal

_constructing: ContextVar[bool] = ContextVar("longscan_constructing", default=False)


@functools.cache
def declared_types(made: type) -> dict[str, Any]:
    """The annotations of a constructor's arguments; none where they use names that exist in the file's checks of types alone."""
    try:
        return get_type_hints(made.__init__)  # type: ignore[misc]
    except NameError:
        return {}


def fits(value: object, declared: Any, *, finite: bool = True) -> bool:
    """Whether a value is of a declared type, and a finite number unless it stands in a list; which words are allowed, and what a
    mapping holds, the constructor looks at.
    """
    if declared is Any:
        return True
    origin, parts = get_origin(declared), get_args(declared)
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return type(value) in {type(part) for part in parts}
    if declared is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if declared is float:
        return isinstance(value, Real) and not isinstance(value, bool) and (math.isfinite(value) or not finite)
    if not isinstance(value, origin or declared) or (declared is not str and isinstance(value, str)):
        return False
    holds = parts[0] if parts and not issubclass(origin, Mapping) else Any
    return holds is Any or all(fits(item, holds, finite=False) for item in cast("Iterable[object]", value))


def told(declared: Any) -> str:
    """A declared type in words: `whole number or None`."""
    origin, parts = get_origin(declared), get_args(declared)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(told(part) for part in parts))
    if origin is Literal:
        return " or ".join(repr(part) for part in parts)
    words = {int: "whole number", float: "finite number", bool: "true or false", str: "word", type(None): "None"}
    kind = origin or declared
    if declared in words:
        return words[declared]
    return "mapping" if issubclass(kind, Mapping) else "list" if hasattr(kind, "__len__") else kind.__name__


def checks_settings(made: type) -> None:
    """Have the constructor of a class look at what it is given, first of all: ValueError names what is not of its declared type.

    A backend must be one that exists and that `check_backend` takes. The signature stays what it is.
    """
    construct: Callable[..., None] = made.__init__  # type: ignore[misc]
    signature = inspect.signature(construct)

    @functools.wraps(construct)
    def looked_at(self: object, *args: Any, **options: Any) -> None:
        try:
            given = signature.bind(self, *args, **options).arguments
        except TypeError:  # something is missing or unknown, which the call itself tells
            given = {}
        declared = declared_types(made)
        for name, value in given.items():
            named = signature.parameters[name].kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            if named and name in declared and not fits(value, declared[name]):
                raise ValueError(f"{name}: got {value!r}, needed {told(declared[name])}")
        backend = given.get("backend", "auto")
        if backend not in ("auto", *BACKENDS):
            raise ValueError(f"backend: got {backend!r}, expected 'auto' or one of {BACKENDS}")
        token = None if _constructing.get() else _constructing.set(True)
        try:
            construct(self, *args, **options)
        finally:
            if token is not None:
                _constructing.reset(token)
        if token is not None and isinstance(self, nn.Module):  # the outermost module answers for all of its parts
            check_backend(self, backend)

    made.__init__ = looked_at  # type: ignore[misc]


def check_backend(made: nn.Module, backend: str) -> None:
    """Raise ValueError unless a native backend has a kernel for every op of `made` that has native kernels, one at least.

    Parts that are torch's own (matrix products, the FFT of long convolutions, GRU, LSTM, attention) have none; they run as they
    are next to ops that have. What depends on the inputs, such as their device, is looked at when the op is called.
    """
    if backend not in NATIVE:
        return
    names = dict.fromkeys(name for part in made.modules() for name in getattr(part, "op_names", ()) if OPS[name].native)
    if not names:
        needed = "'auto' or 'eager', as no part of it has native kernels: all is torch's own"
        raise ValueError(f"backend: got {backend!r} for {type(made).__name__}, expected {needed}")
    for name in names:
        reason = missing_kernel(name, backend, OPS[name].native)
        if reason is not None:
            raise ValueError(refusal(name, backend, reason))
