"""Functions defined inside functions have annotations that every supported torch can trace."""

import ast
from pathlib import Path

import longscan

PACKAGE = Path(longscan.__file__).parent
TRACED = ("blocks", "layers", "models", "numerics", "ops")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def inner_unions(path: Path) -> list[str]:
    """Return the places of a file where a function inside a function has an annotation with `|`."""
    found = []
    for outer in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(outer, FUNCTIONS):
            continue
        for inner in ast.walk(outer):
            if inner is outer or not isinstance(inner, FUNCTIONS):
                continue
            arguments = [*inner.args.posonlyargs, *inner.args.args, *inner.args.kwonlyargs]
            for annotation in [inner.returns, *(argument.annotation for argument in arguments)]:
                if annotation and any(isinstance(node, ast.BitOr) for node in ast.walk(annotation)):
                    found.append(f"{path.name}:{inner.lineno} {inner.name}")
    return sorted(set(found))


def test_inner_functions_have_no_unions_in_annotations() -> None:
    paths = [path for part in TRACED for path in sorted((PACKAGE / part).rglob("*.py"))]
    assert len(paths) > 50
    assert [place for path in paths for place in inner_unions(path)] == []


def test_a_union_in_an_inner_function_is_found(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text("def f():\n    def g(x: int | None): pass\n    def h(x: int) -> None: pass\n", "utf-8")
    assert inner_unions(path) == ["example.py:2 g"]
