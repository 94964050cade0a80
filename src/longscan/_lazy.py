"""Names of a package that are imported when they are first used."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, modules: Mapping[str, str], extra: str = "train") -> Callable[[str], Any]:
    """The module-level `__getattr__` of a package: its names come from `modules` (name -> module).

    Where a module needs a package that is not installed, ImportError says which one and what to install: the extra of longscan.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(modules[name]), name)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            needed = f"needs the package {missing}, which is not installed: pip install 'longscan[{extra}]'"
            raise ImportError(f"{package}.{name}: {needed}", name=error.name) from error

    return get
