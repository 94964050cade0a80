"""Tables of ops, layers, blocks and tasks by name."""

import re
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Registry(dict[str, T]):
    """Dictionary that the decorator `register` fills, each name once. The error for a missing name lists those that exist."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that adds an object under `name`. Raises ValueError for a name that a spec cannot contain."""
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            needed = "must be letters, digits and _, and not begin with a digit"
            raise ValueError(f"the name of a {self._kind} {needed}, got {name!r}")

        def add(entry: T) -> T:
            if name in self:
                raise ValueError(f"{self._kind} {name!r} is registered twice")
            self[name] = entry
            return entry

        return add

    def __missing__(self, name: str) -> T:
        raise KeyError(f"no {self._kind} is called {name!r}; there are: {', '.join(sorted(self))}")


class SpecRegistry(Registry[T]):
    """A registry of names that specs contain."""

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator as `Registry.register`. Raises ValueError for a name that a spec reads otherwise, too."""
        if re.fullmatch("[ma]+", name):
            needed = "must not be a word of m and a, which a spec reads as blocks"
            raise ValueError(f"the name of a {self._kind} {needed}, got {name!r}")
        return super().register(name)
