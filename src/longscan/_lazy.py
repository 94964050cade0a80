"""Lazy imports: names of a package that are imported when they are first used."""

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy(
    package: str, modules: Mapping[str, str], extra: str = "train", submodules: Collection[str] = ()
) -> Callable[[str], Any]:
    """Return the module-level `__getattr__` of a package whose names come from `modules` (name -> module).

    submodules: names of modules of the package, which are imported when they are first used, too.

    If a module needs a package that is not installed, the ImportError names it and the extra of longscan that installs it.
    """

    def get(name: str) -> Any:
        if name not in modules and name not in submodules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(modules[name]), name) if name in modules else import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            needed = f"needs the package {missing}, which is not installed: pip install 'longscan[{extra}]'"
            raise ImportError(f"{package}.{name} {needed}", name=error.name) from error

    return get
