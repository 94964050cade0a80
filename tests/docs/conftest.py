"""Fixtures with the pages of the documentation and the code blocks in them."""

import contextlib
import io
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from longscan.layers import LAYERS
from longscan.tasks import TASKS

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read_blocks(path: Path, language: str, until: str | None = None) -> list[str]:
    """Return the code blocks of a page in one language; those before the line `until`, if it is given."""
    text = path.read_text("utf-8")
    if until is not None:
        assert f"\n{until}\n" in text, f"{path} has no line {until!r}"
        text = text.partition(f"\n{until}\n")[0]
    return [code for name, code in _FENCE.findall(text) if name == language]


@dataclass
class Page:
    """The results of the Python blocks of a page: their output, and the variables that they define."""

    printed: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)


@pytest.fixture
def run_page(tmp_path, monkeypatch):
    """Return a function that runs the Python blocks of a page in an empty directory: run_page("docs/scans.md").

    With `until="## Heading"` it runs only those above this line. What a page registers is removed after the test.
    """
    registered, tasks = dict(LAYERS), dict(TASKS)

    def run(path: str, until: str | None = None) -> Page:
        monkeypatch.chdir(tmp_path)
        torch.manual_seed(0)
        page = Page()
        for number, code in enumerate(read_blocks(ROOT / path, "python", until), 1):
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(code, f"{path}, block {number}", "exec"), page.names)
            page.printed.append(output.getvalue())
        return page

    yield run
    LAYERS.clear()
    LAYERS.update(registered)
    TASKS.clear()
    TASKS.update(tasks)


@pytest.fixture
def read_page_blocks():
    """Return a function that reads the code blocks of a page in one language: read_page_blocks("README.md", "bash")."""
    return lambda path, language: read_blocks(ROOT / path, language)


@pytest.fixture
def root() -> Path:
    """Return the root of the repository."""
    return ROOT


def list_pages() -> list[str]:
    """Return README.md, CONTRIBUTING.md and every page of docs/, relative to the root."""
    return ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise `page` with all pages, and `executed_page` with pages whose Python blocks no other test runs."""
    if "executed_page" in metafunc.fixturenames:
        theory = (f"docs/theory/{name}.md" for name in ("expressivity", "derivation", "rotations", "rounding", "work"))
        own = ("README.md", "docs/scans.md", "docs/annotated/mamba.md", "docs/annotated/aussm.md", *theory)
        pages = [p for p in list_pages() if read_blocks(ROOT / p, "python") and p not in own]
        # ONNX graphs take ten seconds; tests/models/test_export.py exports with the same functions.
        slow = ("docs/howto/export.md",)
        metafunc.parametrize("executed_page", [pytest.param(p, marks=pytest.mark.slow if p in slow else ()) for p in pages])
    if "page" in metafunc.fixturenames:
        metafunc.parametrize("page", list_pages())
