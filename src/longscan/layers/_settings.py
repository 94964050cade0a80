"""Checks of the arguments of constructors: their declared types, and whether a backend has kernels for the ops of a module."""

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import Parameter
from typing import Any, get_type_hints

from torch import nn

from longscan._types import checked_value
from longscan.ops import OPS
from longscan.ops.dispatch import NATIVE, missing_kernel, unsupported_backend_message

_building_parts: ContextVar[bool] = ContextVar("longscan_building_parts", default=False)
_signature = functools.cache(inspect.signature)


@functools.cache
def declared_types(kind: type) -> dict[str, Any]:
    """Return the annotations of a constructor's arguments; none if they use names that exist only for type checkers."""
    try:
        return get_type_hints(kind.__init__, include_extras=True)  # type: ignore[misc]
    except NameError:
        return {}


def bind_arguments(kind: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments | None:
    """Return the arguments of a constructor by name; None if some are missing or unknown, so that calling it raises TypeError."""
    try:
        return _signature(kind).bind(*args, **kwargs)
    except TypeError:
        return None


def check_init_args(kind: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise ValueError naming an argument that is not of the type that the constructor of a class declares.

    Missing and unknown arguments raise TypeError as in any call, when the constructor is called with them.
    """
    declared, bound = declared_types(kind), bind_arguments(kind, args, kwargs)
    for name, value in () if bound is None else bound.arguments.items():
        if name in declared and _signature(kind).parameters[name].kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            checked_value(value, declared[name], name)


@contextmanager
def building_parts() -> Iterator[None]:
    """Disable `check_backend` inside the `with` block, for parts of a module that checks the backend for all of them."""
    token = _building_parts.set(True)
    try:
        yield
    finally:
        _building_parts.reset(token)


def check_backend(module: nn.Module, backend: str) -> None:
    """Raise ValueError unless `backend`, if native, has kernels for all ops of `module` that have native kernels, at least one.

    Constructors with an argument `backend` call it last; the outermost module checks all of its parts. Operators of torch
    (matrix products, the FFT of long convolutions, GRU, LSTM, attention) have no kernels here and do not count. What depends on
    the inputs, such as their device, is checked when the op is called.
    """
    if _building_parts.get() or backend not in NATIVE:
        return
    names = dict.fromkeys(name for part in module.modules() for name in getattr(part, "op_names", ()) if OPS[name].native)
    if not names:
        kind = type(module).__name__
        raise ValueError(f"`backend` must be 'auto' or 'eager', as {kind} uses no op with native kernels, got {backend!r}")
    for name in names:
        reason = missing_kernel(name, backend, OPS[name].native)
        if reason is not None:
            raise ValueError(unsupported_backend_message(name, backend, reason))
