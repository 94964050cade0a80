"""Checks of the arguments of constructors: their declared types, and whether a backend has kernels for the ops of a module."""

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, get_type_hints

from torch import nn

from longscan._types import checked_value
from longscan.ops import OPS
from longscan.ops.dispatch import BACKENDS, NATIVE, missing_kernel, refusal_message

_building_parts: ContextVar[bool] = ContextVar("longscan_building_parts", default=False)
_signature = functools.cache(inspect.signature)


@functools.cache
def declared_types(kind: type) -> dict[str, Any]:
    """Return the annotations of a constructor's arguments; none if they use names that exist only for type checkers."""
    try:
        return get_type_hints(kind.__init__, include_extras=True)  # type: ignore[misc]
    except NameError:
        return {}


def check_init_args(kind: type, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Raise ValueError naming an argument that is not of the type that the constructor of a class declares.

    Missing and unknown arguments are left to the call of the constructor. A backend must be one that exists.
    """
    signature, declared = _signature(kind.__init__), declared_types(kind)  # type: ignore[misc]
    try:
        given = signature.bind(None, *args, **options).arguments
    except TypeError:
        return
    for name, value in given.items():
        named = signature.parameters[name].kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        if named and name in declared:
            checked_value(value, declared[name], name)
    backend = given.get("backend", "auto")
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"backend: got {backend!r}, expected 'auto' or one of {BACKENDS}")


@contextmanager
def building_parts() -> Iterator[None]:
    """Build the parts of a module, for whose backend the module answers: `check_backend` does nothing inside."""
    token = _building_parts.set(True)
    try:
        yield
    finally:
        _building_parts.reset(token)


def check_backend(module: nn.Module, backend: str) -> None:
    """Raise ValueError unless a native backend has a kernel for every op of `module` that has native kernels, one at least.

    Constructors with an argument `backend` call it last. The outermost module answers for all of its parts. Parts that are of
    torch (matrix products, the FFT of long convolutions, GRU, LSTM, attention) have no kernels; they run as they are next to ops
    that have. What depends on the inputs, such as their device, is checked when the op is called.
    """
    if _building_parts.get() or backend not in NATIVE:
        return
    names = dict.fromkeys(name for part in module.modules() for name in getattr(part, "op_names", ()) if OPS[name].native)
    if not names:
        needed = "'auto' or 'eager', as no part of it has native kernels: all is torch's own"
        raise ValueError(f"backend: got {backend!r} for {type(module).__name__}, expected {needed}")
    for name in names:
        reason = missing_kernel(name, backend, OPS[name].native)
        if reason is not None:
            raise ValueError(refusal_message(name, backend, reason))
