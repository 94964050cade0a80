"""Every default of the package, compared with the committed table `defaults.json`.

The table has the default of each parameter of a function, method or constructor, the value of each class attribute and module
constant, if it is plain data: numbers, text, and tuples, lists and mappings of these; and the abstract methods of each class and
the sizes of caches of results. A changed default changes what existing code and recipes do, so the change must show in this file.
To regenerate the file:

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
SUBPACKAGES = ("blocks", "engine", "estimators", "layers", "models", "numerics", "ops", "tasks", "training")
SKIPPED_MODULES = ("triton", "_native.")  # substrings of names that only some machines can import
CHANGED_BY_TESTS = "ops.chunks.CHUNK_ELEMENTS"  # tests/conftest.py makes the chunks smaller
DEPENDS_ON_TORCH_VERSION = "ops.tracing._UNUSUAL"  # dispatch keys
UNSUPPORTED = object()


def to_json(value: Any) -> Any:
    """Return the value as JSON represents it, or UNSUPPORTED if it is not plain data."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        items = [to_json(item) for item in value]
    elif isinstance(value, set | frozenset) and all(isinstance(item, str | int) for item in value):
        return sorted(value, key=str)
    elif isinstance(value, dict):
        items = [[to_json(key), to_json(item)] for key, item in value.items()]
        if any(UNSUPPORTED in pair for pair in items):
            return UNSUPPORTED
        return {str(key): item for key, item in items}
    elif isinstance(value, slice):
        return repr(value)
    else:
        return UNSUPPORTED
    return UNSUPPORTED if any(item is UNSUPPORTED for item in items) else items


def parameter_defaults(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the default of each parameter that has a default."""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not parameter.empty:
            yield f"({parameter.name})", parameter.default
    if hasattr(function, "cache_parameters"):
        yield "(cache)", function.cache_parameters()["maxsize"]


def class_defaults(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a class's attributes and of the defaults of its fields and methods."""
    field_names = {field.name for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else set()
    if dataclasses.is_dataclass(owner):
        for field in dataclasses.fields(owner):
            if field.default is not dataclasses.MISSING:
                yield f"({field.name})", field.default
            elif field.default_factory is not dataclasses.MISSING and field.default_factory in (dict, list, tuple):
                yield f"({field.name})", field.default_factory()
    if inspect.isabstract(owner):
        yield ".(abstract)", sorted(owner.__abstractmethods__)
    for name, value in vars(owner).items():
        function = getattr(value, "__func__", value)
        if callable(function) and inspect.isfunction(inspect.unwrap(function)):
            if not (name == "__init__" and field_names):
                yield from ((f".{name}{end}".replace(".__init__", ""), default) for end, default in parameter_defaults(function))
        elif not name.startswith(("__", "_field")) and name not in field_names:
            yield f".{name}", value


def assigned_names(module: ModuleType) -> set[str]:
    """Return the names that a module assigns, without those that it imports."""
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def module_defaults(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the defaults that a module defines."""
    assigned = assigned_names(module)
    for name, value in vars(module).items():
        if inspect.isclass(value) and value.__module__ == module.__name__:
            yield from ((name + end, default) for end, default in class_defaults(value))
        elif callable(value) and inspect.isfunction(inspect.unwrap(value)) and value.__module__ == module.__name__:
            yield from ((name + end, default) for end, default in parameter_defaults(value))
        elif name in assigned and not name.startswith("__"):
            yield name, value


def collect_defaults() -> dict[str, Any]:
    """Return the defaults of all subpackages by qualified name."""
    defaults = {}
    for entry in pkgutil.walk_packages(longscan.__path__, "longscan."):
        subpackage = entry.name.split(".")[1]
        if subpackage in SUBPACKAGES and not any(name_part in f"{entry.name}." for name_part in SKIPPED_MODULES):
            for name, default in module_defaults(importlib.import_module(entry.name)):
                value = to_json(default)
                if value is not UNSUPPORTED:
                    defaults[f"{entry.name.removeprefix('longscan.')}.{name}"] = value
    for name in (CHANGED_BY_TESTS, DEPENDS_ON_TORCH_VERSION):
        defaults.pop(name)
    return defaults


def format_table(defaults: dict[str, Any]) -> str:
    """Return the table as text with one line per default, sorted by name."""
    lines = [f"{json.dumps(name)}: {json.dumps(defaults[name])}" for name in sorted(defaults)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def test_defaults_match_the_table() -> None:
    defaults, recorded = collect_defaults(), json.loads(TABLE.read_text(encoding="utf-8"))
    defaults = json.loads(json.dumps(defaults))
    differences = {
        name: (recorded.get(name, "no entry"), defaults.get(name, "no entry")) for name in recorded.keys() | defaults.keys()
    }
    differences = {name: pair for name, pair in differences.items() if pair[0] != pair[1]}
    assert not differences, (
        f"defaults as (in the table, in the code); to update the table, see this file's docstring: {differences}"
    )


if __name__ == "__main__":
    TABLE.write_text(format_table(collect_defaults()), encoding="utf-8")
