"""The configuration of a sweep: base settings, the search space, the sampler and the seeds.

A sweep file (YAML) has the fields of a `SweepConfig`. A key of the space is a setting, with a list of values or a numeric range,
or several settings separated by commas, with a list of lists of values:

    spec_version: 2
    config: ../parity.yaml                                # the recipe, relative to this file; or --config
    settings: {training: {steps: 20000}}                  # override the recipe's
    space:
      model.spec, model.block_options: [[ma, {mamba: {variant: aussm}}], [s4d*2, {}]]
      model.d_state: {int: [8, 64], step: 8}
      training.lr: {float: [1.0e-4, 1.0e-2], log: true}
    sampler: tpe                                          # or random; grid needs lists and tries every combination
    trials: 40
    search_seeds: 5
    seeds: 20
"""

import json
import os
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml

from longscan._errors import SettingError, one_line, setting_error
from longscan._files import write_text
from longscan._specs import SPEC_VERSION, upgrade_point, upgrade_settings
from longscan._types import Doc, NonNegativeInt, PositiveInt, SettingsGroup, matches_type
from longscan._yaml import read_mapping
from longscan.training.parsing import (
    QUICK,
    check_sections,
    drop_labels,
    make_settings,
    merge,
    merge_recipe,
    read_recipe,
    set_nested,
    stored_settings,
    upgrade,
)
from longscan.training.run import first_model
from longscan.training.settings import Settings, check_same_size

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

CONFIG_FILE = "sweep.yaml"
_SWEEP_FILE_KEYS = ("spec_version", "config", "settings", "space", "sampler", "trials", "search_seeds", "seeds", "with_seed")
_SECTIONS = ("task", "model", "training")


@dataclass(frozen=True)
class CategoricalDimension:
    """A dimension of the search space with a list of values of any type, which Optuna stores as JSON text."""

    values: tuple[Any, ...]

    def distribution(self) -> "BaseDistribution":
        """Build the distribution that Optuna's samplers draw from."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution([json.dumps(value) for value in self.values])


@dataclass(frozen=True)
class NumericDimension:
    """A dimension of integers or floats from `values[0]` to `values[1]`, both included, optionally in steps or logarithmic."""

    values: tuple[float, float]
    is_int: bool
    step: float | None = None
    log: bool = False

    def distribution(self) -> "BaseDistribution":
        """Build the distribution that Optuna's samplers draw from."""
        from optuna.distributions import FloatDistribution, IntDistribution

        low, high = self.values
        if self.is_int:
            return IntDistribution(int(low), int(high), log=self.log, step=int(self.step or 1))
        return FloatDistribution(low, high, log=self.log, step=self.step)


def split_key(key: str) -> list[str]:
    """Return the settings that a key of the space names."""
    return [name.strip() for name in str(key).split(",")]


def parse_dimension(key: str, given: Any) -> CategoricalDimension | NumericDimension:
    """Parse one entry of the space. Raises SettingError if it is neither a list nor a range."""
    where, n_settings = f"space.{key}", len(split_key(key))
    if isinstance(given, list):
        if not given:
            raise setting_error(where, given, "a list of at least one value")
        if len({json.dumps(value, default=str) for value in given}) < len(given):
            raise setting_error(where, given, "a list without repeated values")
        if n_settings > 1 and not all(isinstance(value, list) and len(value) == n_settings for value in given):
            raise setting_error(where, given, f"lists of {n_settings} values each, one for each setting")
        return CategoricalDimension(tuple(given))
    kind = next((kind for kind in ("int", "float") if kind in given), None) if isinstance(given, dict) else None
    if kind is None or n_settings > 1:
        raise setting_error(where, given, "a list of values, or a range such as {float: [1.0e-4, 1.0e-2], log: true}")
    if unknown := set(given) - {kind, "step", "log"}:
        raise SettingError(f"each name in `{where}` must be one of {kind}, step, log, got {min(unknown)!r}")
    ends, step, log = given[kind], given.get("step"), given.get("log", False)
    number, pair, adjective = (int, tuple[int, int], "whole ") if kind == "int" else (float, tuple[float, float], "")
    if not (matches_type(ends, pair) and ends[0] < ends[1]):
        raise setting_error(f"{where}.{kind}", ends, f"two {adjective}numbers, the smaller one first")
    if step is not None and not (matches_type(step, number) and 0 < step <= ends[1] - ends[0]):
        raise setting_error(f"{where}.step", step, f"a {adjective}number above 0 that fits into the range")
    if log not in (True, False) or (log and (ends[0] <= 0 or step is not None)):
        raise setting_error(f"{where}.log", log, "false, unless the range is above 0 and has no step")
    return NumericDimension((ends[0], ends[1]), kind == "int", step, log)


@dataclass(frozen=True, kw_only=True)
class SweepConfig(SettingsGroup):
    """The configuration of a sweep. The constructor checks it; `check_probes` also builds models at the values of the space."""

    settings: Settings
    space: Annotated[
        dict[str, Any],
        Doc(
            "setting (dotted), or several separated by commas -> list of values, or range, as in a sweep file. If it is empty, "
            "nothing is searched and the base settings are tested over the seeds"
        ),
    ] = field(default_factory=dict)
    sampler: Annotated[
        Literal["grid", "random", "tpe"],
        Doc("grid tries all combinations of lists, random and tpe are Optuna's samplers"),
    ] = "grid"
    trials: Annotated[PositiveInt | None, Doc("number of trials of random and tpe; None for grid")] = None
    search_seeds: Annotated[PositiveInt, Doc("runs of each trial; the objective is their mean validation score")] = 1
    seeds: Annotated[
        NonNegativeInt,
        Doc("tested runs of the best setting, with seeds that the search did not use; 0 for no test"),
    ] = 5
    with_seed: Annotated[list[str], Doc("settings that are set to each run's seed, such as task.split_seed")] = field(
        default_factory=list
    )
    storage: Annotated[
        str | None,
        Doc("Optuna's database URL, in which $NAME is an environment variable; None for a journal file in the sweep's folder"),
    ] = None
    command: Annotated[str | None, Doc("stored in each run's result.json as its command")] = None
    spec_version: Annotated[
        Literal[1, 2],
        Doc("version of the specs in `space`; 1, letters, in the folders of sweeps that were started before version 2"),
    ] = SPEC_VERSION

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.space or self.seeds):
            raise setting_error("seeds", self.seeds, "at least 1, as no setting is searched")
        self._check_names([name for key in self.space for name in split_key(key)])
        ranges = [key for key, dimension in self.dimensions.items() if isinstance(dimension, NumericDimension)]
        if self.sampler == "grid" and ranges:
            raise SettingError(f"`space.{ranges[0]}` must be a list of values, unless `sampler` is random or tpe, got a range")
        if self.sampler == "grid" and self.trials is not None:
            raise setting_error("trials", self.trials, "left out, as a grid tries every point, unless `sampler` is random or tpe")
        if self.sampler != "grid" and self.trials is None and self.space:
            raise SettingError(f"`trials` must be the number of settings that {self.sampler} tries, got nothing")

    def _check_names(self, searched: list[str]) -> None:
        for field_name, name in (*(("space", name) for name in searched), *(("with_seed", name) for name in self.with_seed)):
            section, _, setting = name.partition(".")
            if section not in _SECTIONS or not setting:
                raise setting_error(field_name, name, f"settings of {', '.join(_SECTIONS)}, such as training.lr")
            if name == "task.name":
                raise SettingError("`space.task.name` must be left out, as scores of different tasks cannot be compared")
            if name == "training.seed":
                raise SettingError("`space.training.seed` must be left out, use `search_seeds` or `seeds` to try several")
            if searched.count(name) + (name in self.with_seed) > 1:
                raise SettingError(f"`space.{name}` must be given once, got it twice")

    @cached_property
    def dimensions(self) -> dict[str, CategoricalDimension | NumericDimension]:
        """The parsed space."""
        return {key: parse_dimension(key, given) for key, given in self.space.items()}

    def check_probes(self) -> None:
        """Build the models of `probe_points`. Raises SettingError for a value that is invalid in a run."""
        for point in self.probe_points():
            try:
                first_model(self.settings_for(point, self.settings.training.seed))
            except SettingError as error:
                raise SettingError(f"`space` must have values that runs can have: {error}") from None

    def probe_points(self) -> list[dict[str, Any]]:
        """Return points that have all values of lists and both ends of ranges; each differs from the first in one key."""
        first = {key: dimension.values[0] for key, dimension in self.dimensions.items()}
        return [first, *({**first, key: value} for key, way in self.dimensions.items() for value in way.values[1:])]

    def grid_points(self) -> list[dict[str, Any]]:
        """Return the points of all trials of a grid; for random and tpe, whose points are sampled later, an empty point each."""
        if not self.space or self.sampler != "grid":
            return [{} for _ in range(self.trials or 0)] if self.space else []
        return [dict(zip(self.space, values, strict=True)) for values in product(*self.space.values())]

    def seeds_of_search(self) -> list[int]:
        """Return the seeds of the runs of every trial."""
        return [self.settings.training.seed + i for i in range(self.search_seeds)]

    def seeds_of_test(self) -> list[int]:
        """Return the seeds of the tested runs; they follow those of the search."""
        first = self.settings.training.seed + (self.search_seeds if self.space else 0)
        return [first + i for i in range(self.seeds)]

    def settings_for(self, point: dict[str, Any], seed: int) -> Settings:
        """Return the settings of one run at a point of the space. Raises SettingError if they are invalid.

        A point with another spec does not have `about.model` and `about.published` of the recipe.
        """
        plain = self.settings.as_dict()
        if self.spec_version == 1:  # Optuna knows the values as the folder has them, so they are translated here
            point = {key: upgrade_point(key, value) for key, value in point.items()}
        changes: dict[str, Any] = {}
        for key, value in {**point, **dict.fromkeys(self.with_seed, seed), "training.seed": seed}.items():
            names = split_key(key)
            changes |= zip(names, value if len(names) > 1 else [value], strict=True)
        plain = drop_labels(plain, changes)
        for name, value in changes.items():
            plain = set_nested(plain, name, value)
        return make_settings(plain)

    def as_dict(self) -> dict[str, Any]:
        """Return plain dictionaries, lists and numbers: the content of sweep.yaml."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"settings": self.settings.as_dict()}


def read_sweep_file(path: str | Path, *, quick: bool = False) -> dict[str, Any]:
    """Read the fields of a `SweepConfig` from a sweep file, with its settings merged over those of the recipe that it names.

    quick: merge the recipe's quick section over both. Raises SettingError naming the file and the setting.
    """
    content = upgrade(path, read_mapping(path, _SWEEP_FILE_KEYS))
    settings, config = content.pop("settings", {}), content.pop("config", None)
    if not isinstance(settings, dict):
        raise SettingError(f"{path}: `settings` must be a mapping of settings, got {settings!r}")
    settings = check_sections(path, settings)
    if config is not None:
        recipe = Path(os.path.normpath(Path(path).parent / str(config)))
        base, small = read_recipe(recipe)
        settings = merge({"about": {"recipe": str(recipe)}}, merge_recipe(base, settings))
        if quick and small is None:
            raise SettingError(f"`recipe` must have a section {QUICK!r} for --quick, got {recipe}")
        if quick:
            settings = merge(settings, {**(small or {}), "about": {QUICK: True}})
    return {**content, "settings": settings} if settings else content


def write_config(folder: Path, config: SweepConfig, name: str) -> None:
    """Write sweep.yaml; `name` is that of the study in its storage."""
    write_text(folder / CONFIG_FILE, yaml.safe_dump({"name": name, **config.as_dict()}, sort_keys=False))


def read_config(folder: Path) -> tuple[str, SweepConfig]:
    """Read the study's name and the configuration from a sweep's folder. Raises SettingError if it is not one."""
    path = folder / CONFIG_FILE
    if not os.path.exists(path):
        raise SettingError(f"{folder} is not the directory of a sweep: it has no {CONFIG_FILE}, which `longscan sweep` writes")
    content = read_mapping(path, ("name", *(f.name for f in fields(SweepConfig))))
    if not {"name", "settings", "space"} <= content.keys():
        raise SettingError(f"{path} is damaged: it has no name, settings or space, which `longscan sweep` writes")
    version = content.pop("spec_version", 1)
    plain = upgrade(path, {"spec_version": version, "settings": content.pop("settings")})["settings"]
    name, settings = content.pop("name"), stored_settings(path, plain)
    try:
        return name, SweepConfig(settings=settings, spec_version=version, **content)
    except (SettingError, TypeError) as error:
        raise SettingError(f"{path}: {one_line(error)}") from error


def check_same_search(stored: SweepConfig, given: SweepConfig, folder: Path) -> None:
    """Raise SettingError naming the first setting that differs, other than the number of trials or seeds."""
    check_same_size(stored.settings.about.quick, given.settings.about.quick, folder, "sweep")
    old, new = (_flatten(config) for config in (stored, given))
    for name, value in old.items():
        if name not in ("trials", "seeds", "command") and new.get(name) != value:
            raise SettingError(f"`{name}` must be {value!r} with --resume, as in {folder}, got {new.get(name)!r}")


def _flatten(config: SweepConfig) -> dict[str, Any]:
    plain = upgrade_settings(config.as_dict())
    settings = plain.pop("settings")
    return plain | {f"{section}.{name}": value for section in _SECTIONS for name, value in settings[section].items()}
