"""The rows of the papers' tables: each published figure has one, and rows are found by their names."""

from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from longscan._errors import SettingError
from longscan.cli import main
from longscan.report.published import published_ids
from longscan.reproduce import find_rows, read_rows
from longscan.reproduce.page import wrap_name
from longscan.reproduce.rows import find_recipe

ROWS = read_rows()


def test_every_published_figure_has_a_row() -> None:
    assert {row.published for row in ROWS} == set(published_ids())
    assert len({row.id for row in ROWS}) == len(ROWS)


def test_recipe_that_is_not_there_says_where_recipes_are() -> None:
    with pytest.raises(SettingError, match=r"must be a file; the folder recipes is in the repository, .* in a clone, got"):
        find_recipe("recipes/aussm/none.yaml")


def test_own_figures_have_a_recipe_or_a_reason() -> None:
    own = [row for row in ROWS if row.figure["provenance"].startswith("own") and "same_as" not in row.figure]
    assert len({row.published for row in own}) == 222  # 219 scores, and three numbers from theory
    assert {row.status for row in own} == {"recipe", "no recipe", "impossible", "no training"}
    assert all(row.why for row in own if row.status != "recipe")
    others = [row for row in ROWS if row.status in ("cited", "repeated")]
    assert Counter(row.status for row in others) == {"cited": 217, "repeated": 24}
    assert all("same_as" in row.figure or row.figure["provenance"].startswith("cited") for row in others)


def test_rows_with_a_recipe_are_complete() -> None:
    for row in ROWS:
        assert (row.status == "recipe") == (row.recipe is not None), row.id
        if row.status == "recipe":
            assert row.updates, row.id
            assert row.printed or "Table 11 has no row" in row.note, row.id
            assert row.figure["direction"] in ("higher", "lower"), row.id
            assert round(row.figure["value"], row.decimals) == row.figure["value"], f"{row.id} has more digits"


def test_rows_are_found_by_their_names_or_first_parts() -> None:
    assert [row.id for row in find_rows("aussm/table1", ["parity/ma"])] == ["aussm/table1/parity/ma"]
    assert [row.id for row in find_rows("aussm/table1", ["parity", "parity/ma"])][:3] == [
        "aussm/table1/parity/ma",
        "aussm/table1/parity/am",
        "aussm/table1/parity/aa/aa-0.0001",
    ]
    assert len(find_rows("aussm/table1", ["parity/aa"])) == 9
    assert find_rows("aussm/table1/parity/ma") == find_rows("aussm/table1", ["aussm/table1/parity/ma"])
    assert {row.table for row in find_rows("s7")} > {"s7/table1", "s7/table2"}


@pytest.mark.parametrize(
    ("target", "names", "nearest"),
    [
        ("lst", [], "list"),
        ("aussm/tabel1", [], "aussm/table1"),
        ("aussm/table1", ["partiy"], "parity"),
        ("s7/table2", ["lisstops"], "listops"),
    ],
)
def test_error_for_an_unknown_row_names_the_nearest_one(target: str, names: list[str], nearest: str) -> None:
    with pytest.raises(SettingError, match=f"did you mean {nearest}\\?"):
        find_rows(target, names)


def test_list_without_a_terminal_has_a_line_with_the_whole_name_of_each_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such as `longscan reproduce list | grep parity`."""
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "list", "--paper", "aussm"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["row", "published", "recipe", "data", "seeds", "updates", "min", "state"]
    found = [line.partition(" ")[0] for line in lines if line.startswith("aussm/")]
    expected = {row.id.partition("/aa/")[0] for row in ROWS if row.id.startswith("aussm/")}
    assert {name.removesuffix("/aa") for name in found} == expected, "candidates are one line, everything else has its own"
    assert not any(line.startswith(" ") for line in lines), "no line continues another one"
    (line,) = [line for line in lines if line.startswith("aussm/table1/r001 ")]
    assert line.endswith("cited: the paper takes this figure from elsewhere")
    (line,) = [line for line in lines if line.startswith("aussm/table1/modular_arithmetic_brackets/aa ")]
    assert "(9 settings)" in line
    assert " modular_arithmetic_brackets " in line


def test_list_on_a_terminal_is_at_most_100_columns_wide_and_shows_each_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LONGSCAN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    console = Console(width=120, force_terminal=True, no_color=True)
    monkeypatch.setattr("longscan.cli.reproduction.stdout", lambda: console)
    assert main(["reproduce", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(line.rstrip() == "aussm/table1" for line in lines) == 1, "own and cited figures of a table stand together"
    line, _ = [line for line in lines if line.startswith("parity/ma ")]  # of table1 and of table1-released
    assert line.split() == ["parity/ma", "1.00", "parity", "generated", "10", "100,000", "30", "not", "run"]
    line, _ = [line for line in lines if line.startswith("parity/aa ")]
    assert line.split()[-6:] == ["generated", "5", "100,000", "135", "not", "run"], "one line with the minutes of nine settings"
    heartbeat = next(line for line in lines if line.startswith("heartbeat "))
    minutes = next(row for row in ROWS if row.id == "aussm/table2/heartbeat").gpu_minutes
    assert heartbeat.split()[-3] == ("–" if minutes is None else f"{20 * minutes:.0f}"), "no cell of minutes is empty"
    assert sum(line.startswith("heartbeat ") and "missing" in line for line in lines) <= 1
    own = {row.published for row in ROWS if row.status not in ("cited", "repeated")}
    assert any(line.startswith(f"{len(published_ids())} figures: {len(own)} of the papers' own, ") for line in lines)
    assert main(["reproduce", "list", "--paper", "mamba_lra"]) == 0
    assert "aussm" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "width", "lines"),
    [
        ("parity/ma", 24, ["parity/ma"]),
        ("modular_arithmetic_brackets/aa (9 settings)", 24, ["modular_arithmetic_", "brackets/aa (9 settings)"]),
        ("cycle_navigation/aa/aaaa-0.001", 14, ["cycle_", "navigation/aa/", "aaaa-0.001"]),
        ("SelfRegulationSCP1, missing", 10, ["SelfRegulationSCP1,", "missing"]),
    ],
)
def test_names_are_broken_where_a_part_of_them_ends(name: str, width: int, lines: list[str]) -> None:
    assert wrap_name(name, width).split("\n") == lines
