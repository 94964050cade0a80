"""README.md: its example learns, its tables are those of results/."""

import re

from longscan.report import results_markdown


def test_the_example_is_short_and_learns(run_page, blocks_of):
    (code,) = blocks_of("README.md", "python")
    assert len(code.splitlines()) <= 26
    page = run_page("README.md")
    assert page.names["accuracy"] > 0.9


def test_the_tables_are_those_of_the_records(root):
    text = (root / "README.md").read_text("utf-8")
    (tables,) = re.findall(r"<!-- results -->\n(.*?)<!-- /results -->", text, re.DOTALL)
    assert tables.strip() == results_markdown(root / "results").strip(), "run: longscan report results/ --markdown"
