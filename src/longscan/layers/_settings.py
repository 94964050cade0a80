"""Whether settings are of the types that constructors declare, told by name before anything is made."""

import functools
import inspect
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, get_type_hints

from torch import nn

from longscan._types import checked_value
from longscan.ops import OPS
from longscan.ops.dispatch import BACKENDS, NATIVE, missing_kernel, refusal_message

if TYPE_CHECKING:
    from collections.abc import Callable

_constructing: ContextVar[bool] = ContextVar("longscan_constructing", default=False)


@functools.cache
def declared_types(made: type) -> dict[str, Any]:
    """The annotations of a constructor's arguments; none where they use names that exist in the file's checks of types alone."""
    try:
        return get_type_hints(made.__init__, include_extras=True)  # type: ignore[misc]
    except NameError:
        return {}


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
            if named and name in declared:
                checked_value(value, declared[name], name)
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
            raise ValueError(refusal_message(name, backend, reason))
