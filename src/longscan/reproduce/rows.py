"""The rows of the papers' tables: each published figure, with the recipe, seeds and updates that reproduce it, or why none does.

`protocols/*.yaml`, one file for each paper, name the figures of `longscan/report/published.json` by their ids:

    paper: its key in published.json
    tables:
      table1:
        defaults: fields of all rows of this table
        rows: {parity/ma: fields of the row aussm/table1/parity/ma}
        others: [fields of rows that need no name; `published` may be a range such as r296-r334]
      table1-released:
        like: table1, whose defaults and rows this table repeats, without `near`; with settings, notes and so on below `defaults`
        in addition

A row with `candidates`, lists of values by setting, stands for a row for each combination of them, whose names follow that of the
row: parity/aa/aaaa-0.001. The validation scores choose one of them (`longscan.reproduce.page`).

Figures of a paper that its file does not name are those that the paper cites or repeats.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml

import longscan
from longscan._errors import SettingError, setting_error
from longscan._types import NonNegativeInt, PositiveFloat, PositiveInt, Rule, SettingsGroup
from longscan.datasets import DATA_SETS
from longscan.report.published import papers, published_ids, published_row
from longscan.training.parsing import merge

TRIES = "tries"  # folder of the runs and records of tries, in a folder of runs
PROTOCOLS = resources.files("longscan.reproduce").joinpath("protocols")
Status = Literal["recipe", "no recipe", "impossible", "no training", "cited", "repeated"]
DataSetName = Annotated[str, Rule(DATA_SETS.__contains__, "a data set of `longscan data list`")]
PublishedId = Annotated[str, Rule(published_ids().__contains__, "the id of a row of published.json")]


@dataclass(frozen=True, kw_only=True)
class PublishedRow(SettingsGroup):
    """One published figure and its protocol.

    Attributes:
        id: paper/table/row.
        published: id of the figure in published.json.
        status: "recipe" if the package can run it; else the kind of reason why not.
        why: the reason, in a sentence.
        recipe: path in the repository.
        settings: settings that replace the recipe's, by dotted name.
        with_seed: further settings that get the number of the seed.
        candidate_of: id that the candidates for one figure share; None for a row that is not chosen among others.
        seeds: number of seeds of the protocol.
        updates: number of updates of the protocol.
        data: name of the data set for `longscan data get`; None if the data are generated.
        decimals: digits after the point in the paper.
        constant: score of the best constant predictor in the unit of the figure, where it is known.
        gpu_minutes: expected minutes on one H100 or H200 for one seed, from recorded runs or from `results/row_rates.jsonl`.
        printed: settings as the paper prints them, by the names of `tests/contracts/test_protocols.py`.
        differs: printed settings that the recipe does not follow, each with the reason.
        note: what a reader of the tables must know.
        near: files with runs that are near the row but do not count, each with the reason (`longscan.reproduce.near`).
    """

    path: ClassVar[str] = "row"

    id: str
    published: PublishedId
    status: Status = "recipe"
    why: str = ""
    recipe: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    with_seed: list[str] = field(default_factory=list)
    candidate_of: str | None = None
    seeds: PositiveInt = 3
    updates: PositiveInt | None = None
    data: DataSetName | None = None
    decimals: NonNegativeInt = 2
    constant: float | None = None
    gpu_minutes: PositiveFloat | None = None
    printed: dict[str, Any] = field(default_factory=dict)
    differs: dict[str, str] = field(default_factory=dict)
    note: str = ""
    near: dict[str, str] = field(default_factory=dict)

    @property
    def figure(self) -> dict[str, Any]:
        """The row of published.json."""
        return published_row(self.published)

    @property
    def table(self) -> str:
        """The first two parts of the id, for example "aussm/table1"."""
        return "/".join(self.id.split("/")[:2])

    @property
    def has_data(self) -> bool:
        """Whether the data are generated or in the folder LONGSCAN_DATA."""
        if self.data is None:
            return True
        from longscan.datasets.storage import is_available

        root = os.environ.get("LONGSCAN_DATA")
        return root is not None and is_available(DATA_SETS[self.data], Path(root))

    @property
    def records(self) -> Path:
        """The file of the records of its runs, relative to the folder of the runs."""
        return Path("runs", f"{self.id.partition('/')[0]}.jsonl")

    @property
    def record_fields(self) -> dict[str, Any]:
        """The fields of a record that say which row its run is of."""
        return {"row": self.id, "recipe": self.recipe, "updates_published": self.updates}


@dataclass(frozen=True, kw_only=True)
class Try(PublishedRow):
    """A row with other settings than its protocol's, whose runs do not count as the row (`longscan.reproduce.tries`).

    Attributes:
        id: the folder of its runs, tries/PAPER/TABLE/ROW/SETTINGS.
        try_of: id of the row.
        changed: the settings that differ, by dotted name. `settings` has them, too.
    """

    try_of: str
    changed: dict[str, Any]

    @property
    def records(self) -> Path:
        """The file of the records of its runs, relative to the folder of the runs."""
        return Path(TRIES, "runs", f"{self.try_of.partition('/')[0]}.jsonl")

    @property
    def record_fields(self) -> dict[str, Any]:
        """The fields of a record that say which row its run is a try of, and with which settings."""
        return super().record_fields | {"try_of": self.try_of, "changed": self.changed}


@cache
def read_rows() -> tuple[PublishedRow, ...]:
    """Return the rows of all papers: for each paper those of its protocol, then the figures that it cites or repeats."""
    rows: list[PublishedRow] = []
    for paper in papers():
        name = paper.lower()
        rows += _read_protocol(name, yaml.safe_load(PROTOCOLS.joinpath(f"{name}.yaml").read_text("utf-8")))
    return tuple(rows)


def _read_protocol(name: str, content: Mapping[str, Any]) -> Iterator[PublishedRow]:
    """Yield the rows of a paper. Raises SettingError for fields that do not exist or do not match their type."""
    seen = set[str]()
    for table, own in content["tables"].items():
        model = content["tables"][own["like"]] if "like" in own else {}
        entries = merge(model, {key: value for key, value in own.items() if key != "like"})
        named = [one for row, values in entries.get("rows", {}).items() for one in _candidates(f"{name}/{table}", row, values)]
        others = [(one, values | {"published": one}) for values in entries.get("others", []) for one in _ids(values["published"])]
        for row, values in named + others:
            values = merge(entries.get("defaults", {}), values) | ({"near": {}} if "like" in own else {})
            identity = f"{name}/{table}/{row}"
            parsed, _ = PublishedRow.parse_mapping({"id": identity, **values}, identity)
            seen.add(parsed.published)
            yield parsed
    for identity in published_ids():
        figure = published_row(identity)
        if figure["paper"] == content["paper"] and identity not in seen:
            repeats, source = figure.get("same_as"), _table_name(figure["table"])
            why = f"repeats {repeats}" if repeats else "the paper takes this figure from elsewhere"
            status: Status = "repeated" if repeats else "cited"
            yield PublishedRow(id=f"{name}/{source}/{identity}", published=identity, status=status, why=why)


def _candidates(table: str, row: str, values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and fields of a row, or of each of its candidates."""
    fields = dict(values)
    space = fields.pop("candidates", None)
    if space is None:
        yield row, fields
        return
    for point in product(*space.values()):
        settings = {**fields.get("settings", {}), **dict(zip(space, point, strict=True))}
        label = "-".join(map(str, point))
        yield f"{row}/{label}", fields | {"settings": settings, "candidate_of": f"{table}/{row}"}


def _ids(text: str) -> list[str]:
    """Return the ids of a range: "r080-r082" is r080, r081, r082."""
    first, _, last = text.partition("-")
    return [f"r{number:03d}" for number in range(int(first[1:]), int((last or first)[1:]) + 1)]


def _table_name(table: str) -> str:
    """Return the part of an id for a table as the paper names it: "table4" for "Table 4 (text)"."""
    found = re.match(r"(table|figure|section|appendix) ?([\d.]*\d)", table.lower())
    return "".join(found.groups()) if found else "headline" if "headline" in table else "text"


_OTHER_TARGETS = ("list", "report", "state-tracking")  # of the command `longscan reproduce`


def find_rows(target: str, names: Sequence[str] = ()) -> list[PublishedRow]:
    """Return the rows of a paper, a table or one row, reduced to those that `names` name, completely or by their first parts.

    Raises SettingError with the nearest name if there is no such row.
    """
    below = [row for row in read_rows() if _is_below(row.id, target)]
    if not below:
        raise _unknown("target", target, [*_OTHER_TARGETS, *(row.id for row in read_rows())])
    rows: list[PublishedRow] = []
    for name in names:
        found = [row for row in below if _is_below(row.id, f"{target}/{name}") or _is_below(row.id, name)]
        if not found:
            raise _unknown("--rows", name, [row.id.removeprefix(f"{target}/") for row in below])
        rows += [row for row in found if row not in rows]
    return rows if names else below


def _is_below(identity: str, prefix: str) -> bool:
    return f"{identity}/".startswith(f"{prefix.rstrip('/')}/")


def _unknown(argument: str, got: str, ids: Sequence[str]) -> SettingError:
    """Return the error for a name that no row has, with the nearest name of a row or of its first parts."""
    names = dict.fromkeys("/".join(parts[:n]) for parts in (one.split("/") for one in ids) for n in range(1, len(parts) + 1))
    near = get_close_matches(got, names, 1, 0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    return SettingError(f"{setting_error(argument, got, 'a name that `longscan reproduce list` shows')}{hint}")


def find_recipe(recipe: str) -> str:
    """Return the path of a recipe in the current folder or in the package's checkout. Raises SettingError if there is none."""
    checkout = Path(longscan.__file__).parents[2]
    for path in (Path(recipe), checkout / recipe):
        if path.is_file():
            return str(path)
    needed = "a file; the folder recipes is in the repository, not in an installed package: run the command in a clone"
    raise setting_error("recipe", recipe, needed)
