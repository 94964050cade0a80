"""The documentation: code blocks run, commands, links and names exist, all layers are documented, and the site builds."""

import ast
import contextlib
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec

import pytest
import yaml

from longscan.blocks import BLOCKS
from longscan.cli import COMMANDS, main
from longscan.layers import LAYERS
from longscan.ops import OPS


def test_code_of_a_page_runs(executed_page, run_page):
    run_page(executed_page)


@pytest.mark.parametrize(("name", "pictures"), [("classify_recordings", 2), ("forecast_months", 1)])
def test_pictures_of_a_tutorial_come_from_the_code_that_it_shows(root, name, pictures):
    """The site runs the blocks with `exec`: it prints the pictures, and the blocks whose source it hides compute nothing."""
    text = (root / f"docs/tutorials/{name}.md").read_text("utf-8")
    blocks = [
        block for block in re.findall(r"^```python([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) if "exec=" in block[0]
    ]
    names, printed = {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        for options, code in blocks:
            before = set(names)
            exec(compile(code, name, "exec"), names)
            if "source=" not in options:
                assert set(names) - before <= {"io", "drawing", "svg", "name", "error"}
    assert printed.getvalue().count("<svg") == pictures
    assert sum("figure.savefig" in code for options, code in blocks if "source=" not in options) == pictures


def test_page_of_scans_counts_operations_and_shows_overflow(run_page):
    page = run_page("docs/scans.md")
    blelloch = page.names["blelloch"]
    for k in range(1, 9):
        sums, combinations, levels = blelloch(range(2**k), lambda x, y: x + y, 0)
        assert sums == [i * (i + 1) // 2 for i in range(2**k)]
        assert (combinations, levels) == (2 * 2**k - 2, 2 * k)
    prefixes, _, _ = blelloch("longscan", lambda x, y: x + y, "")
    assert prefixes == ["longscan"[: i + 1] for i in range(8)]  # the operands stay in order
    assert page.names["overflows"][1.6] == 56
    assert page.names["overflows"][0.1] == 864
    assert sum("<svg" in text for text in page.printed) == 1


def test_commands_exist_with_their_flags(page, read_page_blocks, root, capsys):
    lines = [line for block in read_page_blocks(page, "bash") for line in block.splitlines()]
    for argv in [shlex.split(line, comments=True) for line in lines if line.startswith("longscan")]:
        command, *rest = argv[1:]
        assert command in COMMANDS
        flags = {argument.partition("=")[0] for argument in rest if argument.startswith("--")}
        task = ["--task", rest[rest.index("--task") + 1]] if "--task" in rest else []
        main([command, *task, "--help"])
        help_text = capsys.readouterr().out
        assert {flag for flag in flags - {"--task"} if not re.search(rf"{flag}\b", help_text)} == set()
        assert [argument for argument in rest if argument.startswith("recipes/") and not (root / argument).is_file()] == []
    targets = re.findall(r"^(\w+):", (root / "Makefile").read_text(), re.MULTILINE)
    assert [line for line in lines if line.startswith("make") and line.split()[1] not in targets] == []


def test_links_between_pages_are_valid(page, root):
    text = (root / page).read_text("utf-8")
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", re.sub(r"```.*?```|`[^`]*`|\$[^$]*\$", "", text, flags=re.DOTALL)):
        assert target.startswith("https:") or ((root / page).parent / target).is_file(), f"{page} links to {target}"


def test_every_name_of_the_api_pages_exists(root):
    for path in sorted((root / "docs/api").glob("*.md")):
        for name in re.findall(r"^::: (\S+)$", path.read_text(), re.MULTILINE):
            module, _, attribute = name.rpartition(".")
            documented = getattr(importlib.import_module(module), attribute)
            assert documented.__doc__, f"{name} has no docstring"


def test_all_layers_blocks_and_ops_are_documented(root):
    text = "\n".join(p.read_text() for p in (root / "docs/api").glob("*.md"))
    documented = set(re.findall(r"^::: \S+\.(\w+)$", text, re.MULTILINE))
    classes = {kind.__name__ for kind in (*LAYERS.values(), *BLOCKS.values())}
    assert classes | set(OPS) <= documented


def test_every_layer_has_a_page_with_numbered_equations(root):
    pages = [path.read_text("utf-8") for path in sorted((root / "docs/math").glob("*.md"))]
    for page in pages:
        numbers = [int(number) for number in re.findall(r"\\tag\{(\d+)\}", page)]
        assert numbers == list(range(1, len(numbers) + 1)), page[:40]
    for name in LAYERS:
        (page,) = (page for page in pages if f"`longscan/layers/{name}.py`" in page)
        assert page.count("\\tag{") >= 2, name


def test_every_layer_has_a_row_about_elapsed_time(root):
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (root / "docs/howto/irregular.md").read_text("utf-8"), re.MULTILINE)
    meanings = {
        name.strip().replace("-", "").replace(" ", "_").lower(): meaning
        for names, meaning in rows
        for name in re.split(r",| with ", names)
    }
    for name, layer in LAYERS.items():
        assert name in meanings, f"docs/howto/irregular.md has no row for {name}"
        assert layer.irregular == (meanings[name] != "no meaning: a ValueError") or name == "s7", name


def test_navigation_lists_every_page(root):
    class Loader(yaml.SafeLoader):
        """A loader for mkdocs.yml."""

    def leaves(entry):
        if isinstance(entry, str):
            return [entry]
        return [leaf for part in (entry.values() if isinstance(entry, dict) else entry) for leaf in leaves(part)]

    config = yaml.load((root / "mkdocs.yml").read_text(), Loader)
    assert sorted(leaves(config["nav"])) == sorted(str(p.relative_to(root / "docs")) for p in (root / "docs").rglob("*.md"))


def test_decisions_name_existing_tests(root):
    text = (root / "docs/decisions.md").read_text("utf-8")
    entries = re.findall(r"^- \*\*.*?(?=^- |^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(entries) > 20
    for entry in entries:
        named = re.findall(r"`(\w+(?:/\w+)*\.py)::(\w+)`", entry)
        assert named, f"no test is named in: {entry}"
        for file, function in named:
            tree = ast.parse((root / "tests" / file).read_text("utf-8"))
            assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{function}"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs_material") is None and find_spec("material") is None, reason="mkdocs is not installed")
def test_site_builds_without_a_warning(root, tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    subprocess.run(command, cwd=root, check=True, timeout=200, env={**os.environ, "OMP_NUM_THREADS": "1"})  # as in the Makefile
    scans = (tmp_path / "scans.html").read_text("utf-8")
    assert "<svg" in scans
    assert "<math" in scans
    assert 'class="arithmatex"' not in scans
    index = (tmp_path / "index.html").read_text("utf-8")
    assert '<script src="assets/iframe-worker.js">' in index  # search in pages that are opened from disk
    assert "unpkg.com" not in index
    assert (tmp_path / "search/search_index.js").is_file()
    for path in (tmp_path / "api").glob("*.html"):  # an asterisk of a shape or of a spec would end up as emphasis
        assert set(re.findall(r"<em>.*?</em>", path.read_text("utf-8"))) <= {"<em>required</em>"}, path.name
    sizes = {str(path.relative_to(tmp_path)): path.stat().st_size for path in tmp_path.rglob("*.html")}
    assert {page: size for page, size in sizes.items() if size > 300_000} == {}
