"""What the tests of the documentation share: the pages and the code blocks in them."""

import contextlib
import io
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return [code for name, code in _FENCE.findall(path.read_text("utf-8")) if name == language]


@dataclass
class Page:
    """A page after its blocks were run one after another: what they printed, and the names that they left."""

    printed: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)


@pytest.fixture
def run_page(tmp_path, monkeypatch):
    """Runs the Python blocks of a page, in an empty folder: run_page("docs/scans.md")."""

    def run(path: str) -> Page:
        monkeypatch.chdir(tmp_path)
        torch.manual_seed(0)
        page = Page()
        for number, code in enumerate(blocks(ROOT / path, "python"), 1):
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(code, f"{path}, block {number}", "exec"), page.names)
            page.printed.append(output.getvalue())
        return page

    return run


@pytest.fixture
def blocks_of():
    """The code blocks of a page in one language: blocks_of("README.md", "bash")."""
    return lambda path, language: blocks(ROOT / path, language)


@pytest.fixture
def root() -> Path:
    """The root of the repository."""
    return ROOT


def pages() -> list[str]:
    """README.md, CONTRIBUTING.md and every page of docs/, relative to the root."""
    return ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`page` runs over all pages, `executed_page` over those with Python blocks that no test of their own runs."""
    if "executed_page" in metafunc.fixturenames:
        theory = (f"docs/theory/{name}.md" for name in ("expressivity", "derivation", "rotations", "rounding", "work"))
        own = ("README.md", "docs/scans.md", *theory)
        metafunc.parametrize("executed_page", [p for p in pages() if blocks(ROOT / p, "python") and p not in own])
    if "page" in metafunc.fixturenames:
        metafunc.parametrize("page", pages())
