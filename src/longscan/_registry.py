"""Tables of ops, layers, blocks and tasks by name."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Registry(dict[str, T]):
    """Dictionary that the decorator `register` fills, each name once. The error for a missing name lists those that exist."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that adds an object under `name`."""

        def add(entry: T) -> T:
            if name in self:
                raise ValueError(f"{self._kind} {name!r} is registered twice")
            self[name] = entry
            return entry

        return add

    def __missing__(self, name: str) -> T:
        raise KeyError(f"no {self._kind} is called {name!r}; there are: {', '.join(sorted(self))}")
