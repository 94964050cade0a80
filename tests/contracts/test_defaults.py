"""Every default of the package, compared with the committed table `defaults.json`.

The table holds the default of each parameter of a function, method or constructor, the value of each class attribute and of each
module constant that is plain data (numbers, text, and tuples, lists and mappings of these). A default that changes, changes what
existing code and recipes do: the change must show in this file. To write the file anew:

    python tests/contracts/test_defaults.py
"""

import ast
import dataclasses
import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import longscan

TABLE = Path(__file__).with_name("defaults.json")
PARTS = ("blocks", "engine", "estimators", "layers", "models", "numerics", "ops", "tasks", "training")
LEFT_OUT = ("triton", "_native.")  # in the name of a module and a dot: what only some machines can import
CHANGED_BY_TESTS = "ops.chunks.CHUNK_ELEMENTS"  # tests/conftest.py makes the chunks smaller
OF_THE_TORCH_VERSION = "ops.tracing._UNUSUAL"  # its dispatch keys
UNSUPPORTED = object()


def plain(value: Any) -> Any:
    """The value as JSON holds it, or UNSUPPORTED where it is not plain data."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        items = [plain(item) for item in value]
    elif isinstance(value, set | frozenset) and all(isinstance(item, str | int) for item in value):
        return sorted(value, key=str)
    elif isinstance(value, dict):
        items = [[plain(key), plain(item)] for key, item in value.items()]
        if any(UNSUPPORTED in pair for pair in items):
            return UNSUPPORTED
        return {str(key): item for key, item in items}
    elif isinstance(value, slice):
        return repr(value)
    else:
        return UNSUPPORTED
    return UNSUPPORTED if any(item is UNSUPPORTED for item in items) else items


def parameter_defaults(function: Any) -> Iterator[tuple[str, Any]]:
    """(name, default) of each parameter that has a default."""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not parameter.empty:
            yield f"({parameter.name})", parameter.default


def class_defaults(owner: type) -> Iterator[tuple[str, Any]]:
    """(name, value) of the attributes that a class body sets, of its methods' defaults and of the defaults of its fields."""
    made = {field.name for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else set()
    if dataclasses.is_dataclass(owner):
        for field in dataclasses.fields(owner):
            if field.default is not dataclasses.MISSING:
                yield f"({field.name})", field.default
            elif field.default_factory is not dataclasses.MISSING and field.default_factory in (dict, list, tuple):
                yield f"({field.name})", field.default_factory()
    for name, value in vars(owner).items():
        function = inspect.unwrap(getattr(value, "__func__", value)) if callable(getattr(value, "__func__", value)) else value
        if inspect.isfunction(function):
            if not (name == "__init__" and made):
                yield from ((f".{name}{end}".replace(".__init__", ""), default) for end, default in parameter_defaults(function))
        elif not name.startswith(("__", "_field")) and name not in made:
            yield f".{name}", value


def assigned_names(module: ModuleType) -> set[str]:
    """The names that a module's own statements assign, without those it imports."""
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def module_defaults(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """(name, value) of the defaults that a module defines."""
    assigned = assigned_names(module)
    for name, value in vars(module).items():
        if inspect.isclass(value) and value.__module__ == module.__name__:
            yield from ((name + end, default) for end, default in class_defaults(value))
        elif callable(value) and inspect.isfunction(inspect.unwrap(value)) and value.__module__ == module.__name__:
            yield from ((name + end, default) for end, default in parameter_defaults(value))
        elif name in assigned and not name.startswith("__"):
            yield name, value


def collect() -> dict[str, Any]:
    """Qualified name -> default, of everything that the package's parts define in Python."""
    found = {}
    for entry in pkgutil.walk_packages(longscan.__path__, "longscan."):
        part = entry.name.split(".")[1]
        if part in PARTS and not any(word in f"{entry.name}." for word in LEFT_OUT):
            for name, default in module_defaults(importlib.import_module(entry.name)):
                value = plain(default)
                if value is not UNSUPPORTED:
                    found[f"{entry.name.removeprefix('longscan.')}.{name}"] = value
    for name in (CHANGED_BY_TESTS, OF_THE_TORCH_VERSION):
        found.pop(name)
    return found


def table(found: dict[str, Any]) -> str:
    """The table as text: one sorted line per default."""
    lines = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def test_defaults_are_those_of_the_table() -> None:
    found, kept = collect(), json.loads(TABLE.read_text(encoding="utf-8"))
    found = json.loads(json.dumps(found))
    changed = {name: (kept.get(name, "no entry"), found.get(name, "no entry")) for name in kept.keys() | found.keys()}
    changed = {name: pair for name, pair in changed.items() if pair[0] != pair[1]}
    assert not changed, f"defaults as (in the table, in the code), see this file's docstring: {changed}"


if __name__ == "__main__":
    TABLE.write_text(table(collect()), encoding="utf-8")
