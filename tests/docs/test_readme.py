"""README.md and the pages of results: the example learns, and the tables are those of results/."""

import re
from pathlib import Path

from longscan.report import results_markdown
from longscan.reproduce import read_rows
from longscan.reproduce.page import read_outcomes, report_page, summary_table
from longscan.reproduce.state_tracking import read_rows as read_tracking


def test_examples_are_short_and_the_first_one_learns(run_page, read_page_blocks):
    assert all(len(code.splitlines()) <= 15 for code in read_page_blocks("README.md", "python"))
    page = run_page("README.md")
    assert page.names["accuracy"] > 0.9


def test_tables_are_those_of_the_records(root):
    text = (root / "results/tables.md").read_text("utf-8")
    (tables,) = re.findall(r"<!-- results -->\n(.*?)<!-- /results -->", text, re.DOTALL)
    assert tables.strip() == results_markdown(root / "results").strip(), "--markdown results/tables.md writes them"


def test_summary_and_page_of_reproduction_are_those_of_the_records(root, monkeypatch):
    monkeypatch.chdir(root)  # the page has paths from there
    folder = Path("results")
    outcomes = read_outcomes(read_rows(), folder)
    text = (root / "README.md").read_text("utf-8")
    command = "longscan reproduce report results --out docs/reproduction.md"
    (summary,) = re.findall(r"<!-- reproduction -->\n(.*?)<!-- /reproduction -->", text, re.DOTALL)
    assert summary.strip() == summary_table(outcomes).strip(), "run: longscan reproduce report results --readme README.md"
    page = report_page(outcomes, command, read_tracking(folder), folder)
    assert (root / "docs/reproduction.md").read_text("utf-8") == page


def test_tables_of_the_readme_are_short(root):
    tables = re.findall(r"(?:^\|.*\n)+", (root / "README.md").read_text("utf-8"), re.MULTILINE)
    assert tables
    assert all(len(table.splitlines()) <= 2 + 5 for table in tables), "a header, a line below it and five rows"
