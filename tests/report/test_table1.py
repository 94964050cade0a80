"""results/table1/table1.md is what benchmarks/seeds.py makes of the records beside it."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import seeds

RESULTS = Path(__file__).parents[2] / "results" / "table1"


def test_the_table_is_of_the_records(tmp_path: Path) -> None:
    seeds.table(RESULTS, tmp_path / "table1.md")
    assert (tmp_path / "table1.md").read_text() == (RESULTS / "table1.md").read_text()


def test_a_record_says_how_far_it_went(tmp_path: Path) -> None:
    record = json.loads(next((RESULTS / "aussm").glob("parity-mm.json")).read_text())
    rows = [{"step": 500, "last": [0.5, 0.9]}, {"step": 1000, "last": [0.2, 0.6]}]
    (tmp_path / "one.json").write_text(json.dumps({**record, "rows": rows, "steps": 1000}))
    seeds.table(tmp_path, tmp_path / "table.md")
    assert "| 0.40 [0.20, 0.60] (0.90), stopped at 1,000 | 0.13 | – |" in (tmp_path / "table.md").read_text()
