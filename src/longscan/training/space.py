"""What a sweep is asked to do: the settings that it starts from, the space that it searches, its seeds.

A sweep file (YAML) and a `Plan` are two spellings of one thing. A setting of the space has a list of values, or a range; settings
that go together stand before one list, separated by commas:

    config: ../parity.yaml                                # the recipe, seen from this file; or --config
    settings: {training: {steps: 20000}}                  # over the recipe's
    space:
      model.spec, model.block_options: [[ma, {m: {variant: aussm}}], [aa, {}]]
      model.d_state: {int: [8, 64], step: 8}
      training.lr: {float: [1.0e-4, 1.0e-2], log: true}
    sampler: tpe                                          # or random; grid takes every point and wants lists
    trials: 40
    search_seeds: 5
    seeds: 20
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import product
from math import isfinite, prod
from pathlib import Path
from typing import Any

import yaml

from longscan._files import write_text
from longscan.training.parsing import QUICK, merge, one_line, parse_settings, read_mapping, read_recipe, sections, stored_settings
from longscan.training.run import first_model
from longscan.training.settings import SettingError, Settings, refuse, same_size

PLAN = "sweep.yaml"
SAMPLERS = ("grid", "random", "tpe")
FILE = ("config", "settings", "space", "sampler", "trials", "search_seeds", "seeds", "with_seed")
_SECTIONS = ("task", "model", "training")


@dataclass(frozen=True)
class Choices:
    """Values to choose from."""

    values: tuple[Any, ...]

    @property
    def looked_at(self) -> tuple[Any, ...]:
        """The values that are tried before a sweep starts."""
        return self.values


@dataclass(frozen=True)
class Range:
    """Whole numbers or decimals from low to high, both included, in steps or evenly on a logarithmic scale where asked."""

    whole: bool
    low: float
    high: float
    step: float | None = None
    log: bool = False

    @property
    def looked_at(self) -> tuple[Any, ...]:
        """The values that are tried before a sweep starts."""
        return self.low, self.high


Dimension = Choices | Range


def names_of(key: str) -> list[str]:
    """The settings that a key of the space stands for."""
    return [name.strip() for name in str(key).split(",")]


def dimension(name: str, given: Any) -> Dimension:
    """One setting of the space as the sweep file spells it; SettingError where it is neither a list nor a range."""
    where = f"space.{name}"
    if isinstance(given, list):
        if not given:
            raise refuse(where, given, "at least one value")
        if len({json.dumps(value, default=str) for value in given}) < len(given):
            raise refuse(where, given, "each value once")
        number = len(names_of(name))
        if number > 1 and not all(isinstance(value, list) and len(value) == number for value in given):
            raise refuse(where, given, f"lists of {number} values each, one for each setting")
        return Choices(tuple(given))
    kind = next((k for k in ("int", "float") if k in given), None) if isinstance(given, dict) else None
    if kind is None or len(names_of(name)) > 1:
        raise refuse(where, given, "a list of values, or a range such as {float: [1.0e-4, 1.0e-2], log: true}")
    if unknown := set(given) - {kind, "step", "log"}:
        raise SettingError(f"{where}.{min(unknown)}: unknown word, needed one of {kind}, step, log")
    ends, step, log = given[kind], given.get("step"), given.get("log", False)
    numbers: Any = int if kind == "int" else (int, float)
    if not (isinstance(ends, list) and len(ends) == 2 and all(_is_number(end, numbers) for end in ends) and ends[0] < ends[1]):
        raise refuse(f"{where}.{kind}", ends, f"two {'whole ' if kind == 'int' else ''}numbers, the smaller one first")
    if step is not None and not (_is_number(step, numbers) and 0 < step <= ends[1] - ends[0]):
        raise refuse(f"{where}.step", step, f"a {'whole ' if kind == 'int' else ''}number above 0 that fits into the range")
    if log not in (True, False) or (log and (ends[0] <= 0 or step is not None)):
        raise refuse(f"{where}.log", log, "true only for a range above 0 that has no step")
    return Range(kind == "int", ends[0], ends[1], step, log)


def _is_number(value: Any, kinds: Any) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool) and isfinite(value)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a sweep is asked to do, checked when it is made; `try_values` then meets the values of the space.

    Attributes:
        settings: of every run, where the space says nothing else.
        space: setting (with dots), or several with commas -> list of values, or range, as a sweep file spells them. Empty:
            nothing is searched, and the settings are tested over the seeds.
        sampler: grid tries every point of lists, random draws, tpe learns from the trials before (Optuna's samplers).
        trials: how many settings random and tpe try; None with grid.
        search_seeds: runs of each setting in the search; their mean validation score decides.
        seeds: runs of the best setting that are tested, with seeds that the search did not use; 0 leaves the test out.
        with_seed: settings that take each run's seed as their value, such as task.split_seed.
        storage: Optuna's database URL, in which $NAME stands for an environment variable; None is a file in the sweep's folder.
        command: what the runs' result.json give as the command.
    """

    settings: Settings
    space: dict[str, Any] = field(default_factory=dict)
    sampler: str = "grid"
    trials: int | None = None
    search_seeds: int = 1
    seeds: int = 5
    with_seed: list[str] = field(default_factory=list)
    storage: str | None = None
    command: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.space, dict):
            raise refuse("space", self.space, "a mapping from settings to their values")
        if self.sampler not in SAMPLERS:
            raise refuse("sampler", self.sampler, f"one of {', '.join(SAMPLERS)}")
        least = {"search_seeds": 1, "seeds": 0 if self.space else 1} | ({} if self.trials is None else {"trials": 1})
        for name, smallest in least.items():
            value = getattr(self, name)
            if not _is_number(value, int) or value < smallest:
                raise refuse(name, value, f"a whole number of at least {smallest}")
        self._check_names()
        self._check_number()

    def _check_names(self) -> None:
        if not (isinstance(self.with_seed, list) and all(isinstance(name, str) for name in self.with_seed)):
            raise refuse("with_seed", self.with_seed, "a list of settings")
        searched = [name for key in self.space for name in names_of(key)]
        for name in (*searched, *self.with_seed):
            section, _, setting = name.partition(".")
            if section not in _SECTIONS or not setting:
                raise refuse("space", name, f"a setting of {', '.join(_SECTIONS)}, such as training.lr")
            if name == "task.name":
                raise SettingError("space.task.name: scores of different tasks can not be compared, needed one sweep for each")
            if name == "training.seed":
                raise SettingError("space.training.seed: the best seed says nothing, needed search_seeds or seeds in its place")
        if twice := {name for name in searched if searched.count(name) > 1 or name in self.with_seed}:
            raise SettingError(f"space.{min(twice)}: is given twice, needed one of the two")

    def _check_number(self) -> None:
        ranges = [name for name, way in self.dimensions.items() if isinstance(way, Range)]
        if self.sampler == "grid" and ranges:
            raise SettingError(f"space.{ranges[0]}: got a range, needed a list of values, or sampler random or tpe")
        if self.sampler == "grid" and self.trials is not None:
            raise refuse("trials", self.trials, "none, as a grid tries every point, or sampler random or tpe")
        if self.sampler != "grid" and self.trials is None and self.space:
            raise SettingError(f"trials: got nothing, needed how many settings {self.sampler} is to try")

    def try_values(self) -> None:
        """Build the models of all values in lists and of both ends of ranges; SettingError for what a run would refuse.

        Model and training settings meet in no check, so a grid's points are looked at without the product of the two.
        """
        for pair in (("task", "model"), ("task", "training")):
            for point in self._looked_at(pair):
                try:
                    first_model(self.at(point, self.first_seed))
                except SettingError as error:
                    raise SettingError(f"space: {error}") from None

    def _looked_at(self, pair: tuple[str, str]) -> Iterator[dict[str, Any]]:
        ways = {key: way for key, way in self.dimensions.items() if {n.partition(".")[0] for n in names_of(key)} & set(pair)}
        if self.sampler == "grid":
            yield from (dict(zip(ways, values, strict=True)) for values in product(*(way.looked_at for way in ways.values())))
            return
        first = {name: way.looked_at[0] for name, way in ways.items()}
        yield first
        yield from ({**first, name: value} for name, way in ways.items() for value in way.looked_at[1:])

    @cached_property
    def dimensions(self) -> dict[str, Dimension]:
        """The space, each setting's values or range."""
        return {name: dimension(name, given) for name, given in self.space.items()}

    @property
    def first_seed(self) -> int:
        """The first seed of the search; the tested seeds follow on those of the search."""
        return self.settings.training.seed

    @property
    def number(self) -> int:
        """How many settings the search tries."""
        if not self.space:
            return 0
        return self.trials or prod(len(way.looked_at) for way in self.dimensions.values())

    def points(self) -> list[dict[str, Any]]:
        """What is known of each trial's settings beforehand: everything in a grid, nothing where a sampler draws them."""
        if self.sampler != "grid" or not self.space:
            return [{} for _ in range(self.number)]
        return [dict(zip(self.space, values, strict=True)) for values in product(*self.space.values())]

    def seeds_of_search(self) -> list[int]:
        """The seeds of every trial."""
        return [self.first_seed + i for i in range(self.search_seeds)]

    def seeds_of_test(self) -> list[int]:
        """The seeds of the runs that are tested."""
        first = self.first_seed + (self.search_seeds if self.space else 0)
        return [first + i for i in range(self.seeds)]

    def at(self, values: dict[str, Any], seed: int) -> Settings:
        """The settings of one run: `values` by their keys in the space, and the seed; SettingError where they can not be met."""
        plain = self.settings.as_dict()
        for key, value in {**values, **dict.fromkeys(self.with_seed, seed), "training.seed": seed}.items():
            names = names_of(key)
            for name, part in zip(names, value if len(names) > 1 else [value], strict=True):
                plain = _placed(plain, name, part)
        return parse_settings([], base=plain).settings

    def as_dict(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers: what sweep.yaml holds."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "settings"}
        return {**plain, "settings": self.settings.as_dict()}



def _placed(settings: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """The nested settings with one of them, named with dots, replaced."""
    head, _, rest = name.partition(".")
    inner = settings.get(head, {})
    if not rest:
        return {**settings, head: value}
    # Below a setting that is no mapping, what is asked for goes as the value itself, which is then refused under its name.
    return {**settings, head: _placed(inner if isinstance(inner, dict) else {}, rest, value)}


def read_plan(path: str | Path, *, quick: bool = False) -> dict[str, Any]:
    """The words of a sweep file, its settings over those of the recipe that it names; SettingError naming file and setting.

    quick: the recipe's quick section goes over both.
    """
    words = read_mapping(path, FILE)
    own = words.pop("settings", {})
    if not isinstance(own, dict):
        raise SettingError(f"{path}: settings: got {own!r}, needed a mapping of settings")
    settings = sections(path, own)
    config = words.pop("config", None)
    if config is not None:
        recipe = Path(os.path.normpath(Path(path).parent / str(config)))
        content, small = read_recipe(recipe)
        settings = merge({"about": {"recipe": str(recipe)}}, merge(content, settings))
        if quick:
            if small is None:
                raise SettingError(f"--quick: {recipe} has no section {QUICK!r}, needed a recipe with one")
            settings = merge(settings, {**small, "about": {QUICK: True}})
    return {**words, "settings": settings} if settings else words


def write_plan(folder: Path, plan: Plan, name: str) -> None:
    """sweep.yaml, at once or not at all; `name` is the sweep's in its storage."""
    write_text(folder / PLAN, yaml.safe_dump({"name": name, **plan.as_dict()}, sort_keys=False))


def stored_plan(folder: Path) -> tuple[str, Plan]:
    """The sweep's name and its plan, from its folder; SettingError where it holds no sweep."""
    path = folder / PLAN
    if not os.path.exists(path):
        raise SettingError(f"{folder}: holds no sweep, needed a directory with a {PLAN} (`longscan sweep --out` makes one)")
    words = read_mapping(path, ("name", *(f.name for f in fields(Plan))))
    if not {"name", "settings", "space"} <= words.keys():
        raise SettingError(f"{path}: damaged, needed the plan that `longscan sweep` wrote, with name, settings and space")
    name, settings = words.pop("name"), stored_settings(path, words.pop("settings"))
    try:
        return name, Plan(settings=settings, **words)
    except (SettingError, TypeError) as error:
        raise SettingError(f"{path}: {one_line(error)}") from error


def same_search(stored: Plan, given: Plan, folder: Path) -> None:
    """SettingError naming the first setting in which a plan is another than the one whose trials a folder holds."""
    same_size(stored.settings.about.quick, given.settings.about.quick, folder, "sweep")
    free = ("trials", "seeds", "command")
    pairs = [(name, value, given.as_dict()[name]) for name, value in stored.as_dict().items() if name not in (*free, "settings")]
    mine = given.settings.as_dict()
    for section in _SECTIONS:
        theirs = stored.settings.as_dict()[section]
        pairs += [(f"{section}.{name}", value, mine[section].get(name)) for name, value in theirs.items()]
    for name, value, other in pairs:
        if other != value:
            raise SettingError(f"{name}: got {other!r} with --resume, needed {value!r} as in {folder}")
