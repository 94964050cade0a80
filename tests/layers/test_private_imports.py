"""Layers and blocks import only public functions of the ops."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "longscan"
FILES = [path for package in ("layers", "blocks") for path in sorted((SOURCE / package).glob("*.py"))]


def list_private_imports(source: str) -> list[str]:
    """Return the names that a module imports from `longscan.ops` and that are private or in a private module."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in names if name.startswith("longscan.ops") and "._" in name]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_module_imports_nothing_private_of_the_ops(path: Path) -> None:
    assert list_private_imports(path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    "line", ["from longscan.ops import _signature", "from longscan.ops._cpu import addresses", "import longscan.ops._cpu"]
)
def test_private_imports_are_detected(line: str) -> None:
    assert list_private_imports(line)
