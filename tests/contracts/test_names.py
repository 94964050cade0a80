"""Definitions that were renamed or removed because a stranger could not guess their meaning must not come back.

`retired_names.txt` lists them by their qualified names, one a line in alphabetical order: a module-level definition
(`longscan.module.name`), a member or an attribute of a class (`longscan.module.Class.name`), or a parameter of a function
(`longscan.module.function.name`). Words as such are not searched for: the same word can be a good name elsewhere.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
RETIRED = (Path(__file__).parent / "retired_names.txt").read_text("utf-8").split()
Function = ast.FunctionDef | ast.AsyncFunctionDef


def module_path(qualified: str) -> tuple[Path, str] | None:
    """Return the file of the longest prefix of a qualified name that is a module, and the rest; None if there is none."""
    parts = qualified.split(".")
    for count in range(len(parts) - 1, 0, -1):
        base = SOURCE.joinpath(*parts[:count])
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path, ".".join(parts[count:])
    return None


@cache
def definitions(path: Path) -> frozenset[str]:
    """Return the names that a module defines, those inside classes and functions qualified by these."""
    return frozenset(_definitions(ast.parse(path.read_text("utf-8")).body, ""))


def _definitions(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield prefix + statement.name
            yield from _definitions(statement.body, f"{prefix}{statement.name}.")
        elif isinstance(statement, Function):
            name = prefix + statement.name
            arguments = statement.args
            all_arguments = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            yield name
            yield from (f"{name}.{argument.arg}" for argument in all_arguments if argument is not None)
            yield from (prefix + attribute for attribute in _attributes(statement))
        else:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield prefix + node.id


def _attributes(function: Function) -> Iterator[str]:
    """Yield the attributes of `self` that a method assigns."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def is_defined(qualified: str) -> bool:
    """Return whether the sources define a qualified name; a module counts, too."""
    module = module_path(qualified)
    if module is None:
        return False
    path, rest = module
    package = path.parent if path.name == "__init__.py" else None
    is_module = package is not None and ((package / f"{rest}.py").is_file() or (package / rest / "__init__.py").is_file())
    return is_module or rest in definitions(path)


def test_retired_names_are_not_defined():
    assert [name for name in RETIRED if is_defined(name)] == []


def test_retired_names_are_sorted_and_unique():
    assert sorted(set(RETIRED)) == RETIRED


def test_is_defined_finds_every_kind_of_definition():
    for name in (
        "longscan.ops.dispatch",  # a module
        "longscan.training.settings.TrainingSettings",
        "longscan.training.settings.TrainingSettings.betas",  # a field
        "longscan.models.sequence_model.SequenceModel.forward",
        "longscan.models.sequence_model.SequenceModel.forward.valid",  # a parameter
        "longscan.models.sequence_model.SequenceModel.blocks",  # an attribute
    ):
        assert is_defined(name), name
    assert not is_defined("longscan.models.sequence_model.SequenceModel.no_such_name")
    assert not is_defined("longscan.no_such_module.name")
