"""Settings from YAML files and the command line.

`parse_settings(["--config", "recipes/x.yaml", "--model.d_model", "64"])` returns `Settings`. Arguments are parsed in two stages
(`ArgumentParser.parse_known_args`): the first finds the files and the task's name, the second has an option for each setting of
this task, of the model, of training and of the record. Every error is a `SettingError`. `--quick` merges the settings in a
recipe's section `quick` over the others of that file.
"""

import re
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Mapping, Sequence
from inspect import getdoc
from pathlib import Path
from typing import Any

from longscan._argparse import SHORT_OPTIONS, UnknownArgumentError, new_parser, option_help, parse_known
from longscan._errors import SettingError, nearest, one_line, setting_error, unknown_setting, with_options
from longscan._specs import upgrade_settings
from longscan._types import (
    SettingsGroup,
    check_names,
    checked_value,
    field_types,
    list_settings,
    matches_type,
)
from longscan._yaml import describe_kind, parse_text, read_mapping
from longscan.models.spec import parse_spec
from longscan.tasks import TASKS, Task
from longscan.training.settings import AboutSettings, ModelSettings, Settings, TrainingSettings

SECTIONS: dict[str, type[SettingsGroup]] = {"model": ModelSettings, "training": TrainingSettings, "about": AboutSettings}
QUICK = "quick"
_QUICK_SECTIONS = ("task", "model", "training")
# Settings that earlier versions wrote into files, by section, with the one value that each could have and that is still right.
RETIRED: dict[str, dict[str, Any]] = {"training": {"optimizer": "adamw"}}


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read the sections of settings of a YAML file without its quick section. Raises SettingError naming the file and line."""
    return read_recipe(path)[0]


def read_recipe(path: str | Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Read (settings, quick settings or None) from a YAML file. Raises SettingError naming the file, line or section."""
    content = upgrade(path, read_mapping(path, ("spec_version", "task", *SECTIONS, QUICK)))
    quick = content.pop(QUICK, None)
    if quick is None:
        return check_sections(path, content), None
    if not isinstance(quick, dict) or not quick:
        raise SettingError(f"{path}: `{QUICK}` must be a mapping with {', '.join(_QUICK_SECTIONS)}, got {describe_kind(quick)}")
    for section, value in quick.items():
        if section not in _QUICK_SECTIONS:
            raise SettingError(f"{path}: each section of `{QUICK}` must be one of {', '.join(_QUICK_SECTIONS)}, got {section!r}")
        if not isinstance(value, dict):
            raise SettingError(f"{path}: `{QUICK}.{section}` must be a mapping of settings, got {describe_kind(value)}")
    if (name := quick.get("task", {}).get("name")) is not None:
        raise SettingError(f"{path}: `{QUICK}.task.name` must be left out, as a quick run is of the recipe's task, got {name!r}")
    return check_sections(path, content), quick


def check_sections(path: str | Path, content: dict[str, Any]) -> dict[str, Any]:
    """Return `content`. Raises SettingError naming the file if it is no mapping of sections to mappings of settings."""
    for section, value in content.items():
        if section not in ("task", *SECTIONS):
            raise SettingError(f"{path}: each section must be one of task, {', '.join(SECTIONS)}, got {section!r}")
        if not isinstance(value, dict):
            raise SettingError(f"{path}: `{section}` must be a mapping of settings, got {describe_kind(value)}")
    return content


def upgrade(path: str | Path, content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a file with its specs in names. Raises SettingError naming the file and the spec."""
    try:
        return upgrade_settings(content)
    except ValueError as error:
        raise SettingError(f"{path}: {error}") from None


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings; values of `over` replace those of `base`."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def drop_labels(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings without `about.model` and `about.published` if the changes have another spec or task.

    These two describe the model and the task of a recipe. The changes, by dotted names, are not applied and may name them. Specs
    are compared as lists of blocks: "mmm" and "mamba*3" are the same.
    """
    spec, task = settings.get("model", {}).get("spec"), settings.get("task", {}).get("name")
    same = _are_same_blocks(changes.get("model.spec", spec), spec) and changes.get("task.name", task) == task
    if same or "about" not in settings:
        return dict(settings)
    about = {name: value for name, value in settings["about"].items() if name not in ("model", "published")}
    return {**settings, "about": about}


def _are_same_blocks(left: Any, right: Any) -> bool:
    """Return whether two specs are of the same blocks. An invalid spec, whose error comes later, equals only itself."""
    try:
        return left == right or parse_spec(left) == parse_spec(right)
    except (TypeError, ValueError):
        return False


def merge_recipe(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the settings of a file over those of another. Another spec or task drops the labels of the other file's model."""
    changes = {f"{section}.{name}": value for section, values in over.items() for name, value in values.items()}
    return merge(drop_labels(base, changes), over)


def set_nested(settings: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return a copy of nested settings with one of them, named with dots, replaced."""
    head, _, rest = name.partition(".")
    if rest:
        inner = settings.get(head)
        value = set_nested(inner if isinstance(inner, Mapping) else {}, rest, value)
    return {**settings, head: value}


_SOURCE_OPTIONS = ("config", "quick", "task")  # those of the first stage


def sources_parser() -> ArgumentParser:
    """Build the parser of the first stage: files, their quick size, and the task."""
    parser = new_parser()
    group = parser.add_argument_group("settings")
    add = group.add_argument
    add(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="YAML file of settings; a later file overrides an earlier one",
    )
    add("--quick", action="store_true", help="use the small settings of the recipe, under two minutes on a CPU")
    names = ", ".join(sorted(TASKS))
    add("--task", "--task.name", dest="task", metavar="NAME", help=f"one of {names}; with --help, lists its settings")
    return parser


def settings_parser(task: type[Task] | None) -> tuple[ArgumentParser, dict[str, Any]]:
    """Build the parser of the second stage, with an option for each setting; also return the types of the settings by name."""
    parser, types = new_parser(argument_default=SUPPRESS), {}
    for section, kind in {**({} if task is None else {"task": task}), **SECTIONS}.items():
        doc = getdoc(kind)
        group = parser.add_argument_group(f"{section} settings", f"{task.name}: {doc}" if task and section == "task" else doc)
        for setting in list_settings(kind, section):
            names = [f"--{setting.name}", *filter(None, [SHORT_OPTIONS.get(setting.name)])]
            group.add_argument(*names, dest=setting.name, metavar="VALUE", help=option_help(setting.declared, setting.default))
            types[setting.name] = setting.declared
    return parser, types


def asks_for_quick(argv: Sequence[str]) -> bool:
    """Return whether --quick is among the arguments."""
    return bool(parse_known(sources_parser(), argv)[0].quick)


def task_class(name: object) -> type[Task]:
    """Return the task registered under a name. Raises SettingError with the nearest name and all names that exist."""
    if not isinstance(name, str) or name not in TASKS:
        near = nearest(str(name), TASKS)
        hint = f"did you mean {near}?" if near else "a task of your own is known once its module is imported;"
        error = setting_error("task.name", name, "the name of a task")
        raise SettingError(f"{error}; {hint} the tasks are {', '.join(sorted(TASKS))}")
    return TASKS[name]


def parse_settings(argv: Sequence[str], base: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings that command-line arguments give; files that they name, `base` and the defaults give the others.

    Where the arguments, or a later file, give another spec or task than the files before, `about.model` and `about.published` of
    these do not count. Of a setting that is given several times the last value counts; the commands refuse this.
    `--steps`, `--checkpoint-every` and `--data-dir` are short for the settings of these names. `--quick` merges the quick section
    of each file over its other settings. Raises SettingError with one line.
    """
    return make_settings(read_arguments(argv, base))


def read_arguments(argv: Sequence[str], base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the nested mappings of `parse_settings` before defaults are added and values are checked."""
    if isinstance(argv, str) or not isinstance(argv, Sequence) or not all(isinstance(word, str) for word in argv):
        raise setting_error("argv", argv, "a list of texts, such as ['--task', 'parity']")
    if base is not None and not isinstance(base, Mapping):
        raise setting_error("base", base, "a mapping of sections to mappings of settings, or None")
    given, rest = parse_known(sources_parser(), argv)
    base = check_sections("base", {name: value for name, value in (base or {}).items() if name != "spec_version"})
    plain = without_retired(_read_configs(base, given.config, quick=given.quick))
    name = given.task or plain.get("task", {}).get("name")
    if name is None:
        raise SettingError(f"`--task` must be one of {', '.join(sorted(TASKS))}, unless --config FILE names it, got nothing")
    overrides = _parse_overrides(task_class(name), rest)
    plain = drop_labels(plain, overrides | {"task.name": name})
    for setting, value in overrides.items():
        plain = set_nested(plain, setting, value)
    if given.config and plain.get("about", {}).get("recipe") is None:
        plain = set_nested(plain, "about.recipe", given.config[-1])
    return set_nested(plain, "task.name", name)


def _parse_overrides(task: type[Task], argv: Sequence[str]) -> dict[str, Any]:
    """Return the settings in arguments of the command line by their dotted names.

    A setting that is a mapping also takes options for its items, of any name, such as --model.block_options.aussm.phase_dt.
    """
    parser, types = settings_parser(task)
    mappings = tuple(f"--{name}." for name, declared in types.items() if matches_type({}, declared))
    for option in {word.partition("=")[0] for word in argv if word.startswith(mappings)}:
        parser.add_argument(option, dest=option.removeprefix("--"))
    given, unknown = parse_known(parser, argv)
    if unknown:
        raise _unknown_option(unknown[0].partition("=")[0], unknown, task, list(types))
    return {name: parse_text(text, types.get(name, Any)) for name, text in vars(given).items()}


def _unknown_option(option: str, argv: Sequence[str], task: type[Task], names: Sequence[str]) -> SettingError:
    """Return the error for an option that is no setting, with the settings next to it where its section exists."""
    path = option.removeprefix("--")
    section = path.rpartition(".")[0] + "."
    known = [name.removeprefix(section).partition(".")[0] for name in names if name.startswith(section)]
    if known and option.startswith("--"):
        return unknown_setting(path, list(dict.fromkeys(known)))
    if option == SHORT_OPTIONS["task.data_dir"]:
        value = argv[0].partition("=")[2] or (argv[1] if len(argv) > 1 else "")
        return setting_error(option, value, f"left out, as task {task.name} has no setting data_dir")
    short = [word.removeprefix("--") for name, word in SHORT_OPTIONS.items() if name in names]
    return UnknownArgumentError(option, [*_SOURCE_OPTIONS, *short, *names])


def settings_help(argv: Sequence[str]) -> list[ArgumentParser]:
    """Return the parsers of both stages for a help page, with the settings of the task that the arguments or files name."""
    early = sources_parser()
    given, _ = parse_known(early, argv)
    name = given.task or _read_configs({}, given.config, quick=False).get("task", {}).get("name")
    return [early, settings_parser(None if name is None else task_class(name))[0]]


def make_settings(plain: Mapping[str, Any]) -> Settings:
    """Build the settings from nested mappings, such as the content of settings.yaml. Raises SettingError."""
    task = dict(plain.get("task", {}))
    kind = task_class(task.pop("name", None))
    groups: dict[str, Any] = {}
    for section, group in SECTIONS.items():
        groups[section], _ = group.parse_mapping(plain.get(section, {}), section)
    return Settings(task=build_task(kind, task), **groups)


def _read_configs(base: Mapping[str, Any], configs: Sequence[str], *, quick: bool) -> dict[str, Any]:
    """Merge the settings of files over `base`; quick: with the quick section of each file."""
    plain, was_quick = dict(base), bool(base.get("about", {}).get(QUICK))
    if quick and not configs and not was_quick:
        raise SettingError("`--config` must be the recipe whose quick section --quick takes, got nothing")
    found = [read_recipe(path) for path in configs]
    if quick and configs and not any(small for _, small in found):
        raise SettingError(f"`--config` must be a recipe with a section {QUICK!r} for --quick, got {configs[-1]}")
    for content, small in found:
        plain = merge_recipe(plain, merge(content, small) if quick and small else content)
    if found:  # a stored quick run stays quick until a recipe is given without --quick
        is_quick = quick or any(content.get("about", {}).get(QUICK) for content, _ in found)
        plain = merge(plain, {"about": {QUICK: is_quick}})
    return plain


def without_retired(plain: dict[str, Any]) -> dict[str, Any]:
    """Return settings without the retired ones. Raises SettingError if one of these has another value than every run has."""
    plain = {section: dict(values) if section in RETIRED else values for section, values in plain.items()}
    for section, retired in RETIRED.items():
        for name, only in retired.items():
            value = plain.get(section, {}).pop(name, only)
            if value != only:
                raise setting_error(f"{section}.{name}", value, f"{only} or left out, as every run does this")
    return plain


def build_task(kind: type[Task], values: Mapping[str, Any]) -> Task:
    """Make a task and read the sizes of its splits. Raises SettingError that begins with the setting."""
    check_names(values, kind, "task")
    types = field_types(kind)
    options = {name: checked_value(value, types[name], f"task.{name}") for name, value in values.items()}
    try:
        task = kind(**options)
        for split in task.splits:
            task.size(split)
    except (ValueError, TypeError, OSError, KeyError) as error:
        raise SettingError(with_section("task", error, kind)) from error
    return task


def with_section(section: str, error: BaseException, kind: type) -> str:
    """Return the message of an exception with its section: "`task.id` must be ...", or "task: ... `--task.missing` ...".

    The first form is that of messages that begin with a field of `kind`. All other fields are written as options of the command
    line.
    """
    message, fields = one_line(error), field_types(kind)
    name = re.match(r"`(\w+)` ", message)
    first = f"`{section}.{name[1]}` " if name is not None and name[1] in fields else ""
    rest = message[len(f"`{name[1]}` ") :] if name is not None and first else message
    options = with_options(rest, fields, f"{section}.")
    return f"{first}{options}" if first else f"{section}: {options}"


def load_settings(path: str | Path) -> Settings:
    """Read the settings of a run's settings.yaml. Raises SettingError naming the file and the setting."""
    return stored_settings(path, read_yaml(path))


def stored_settings(path: str | Path, plain: Mapping[str, Any]) -> Settings:
    """Return the settings in a file of a run or sweep. Raises SettingError naming the file and the setting."""
    try:
        return make_settings(without_retired(dict(plain)))
    except (SettingError, TypeError, AttributeError) as error:
        raise SettingError(f"{path}: {one_line(error)}") from error
