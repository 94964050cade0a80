"""Settings from YAML files and command-line words, by jsonargparse; the task's name comes first, so that only its class is asked.

`parse_settings(["--config", "recipes/x.yaml", "--model.d_model", "64"])` gives the `Settings`; every refusal is a `SettingError`.
A recipe's section `quick` holds settings that `--quick` puts over the others of that file.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace

from longscan._specs import upgrade_settings
from longscan.tasks import TASKS, Task
from longscan.training.settings import (
    AboutSettings,
    ModelSettings,
    SettingError,
    Settings,
    TrainingSettings,
    refuse,
)

SECTIONS: dict[str, type] = {"model": ModelSettings, "training": TrainingSettings, "about": AboutSettings}
BLOCK_OPTION = "--model.block_options."
QUICK = "quick"
_QUICK_SECTIONS = ("task", "model", "training")
# Settings that earlier versions wrote into files, by section, with the one value that each could have and that still holds.
RETIRED: dict[str, dict[str, Any]] = {"training": {"optimizer": "adamw"}}


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, as version 1.2 of the standard has it."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


@dataclass(frozen=True)
class Parsed:
    """Settings, and the words of the command line that belong to the command itself (by name)."""

    settings: Settings
    command: Namespace


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The sections of settings in a YAML file, less its quick one; SettingError naming the file and line where it holds none."""
    return read_recipe(path)[0]


def read_recipe(path: str | Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(settings, quick settings or None) of a YAML file; SettingError naming file, line or section where it can not be used."""
    content = upgrade(path, read_mapping(path, ("spec_version", "task", *SECTIONS, QUICK)))
    quick = content.pop(QUICK, None)
    if quick is None:
        return sections(path, content), None
    if not isinstance(quick, dict) or not quick:
        raise SettingError(f"{path}: {QUICK}: got {_kind(quick)}, needed a mapping with {', '.join(_QUICK_SECTIONS)}")
    for section, value in quick.items():
        if section not in _QUICK_SECTIONS:
            raise SettingError(f"{path}: {QUICK}: unknown section {section!r}, needed one of {', '.join(_QUICK_SECTIONS)}")
        if not isinstance(value, dict):
            raise SettingError(f"{path}: {QUICK}.{section}: got {_kind(value)}, needed a mapping of settings")
    if (name := quick.get("task", {}).get("name")) is not None:
        raise SettingError(f"{path}: {QUICK}.task.name: got {name!r}, needed none, as a quick run is of the recipe's task")
    return sections(path, content), quick


def sections(path: str | Path, content: dict[str, Any]) -> dict[str, Any]:
    """`content` as it came; SettingError naming the file where it is no mapping of sections to mappings of settings."""
    for section, value in content.items():
        if section not in ("task", *SECTIONS):
            raise SettingError(f"{path}: unknown setting {section!r}, needed one of task, {', '.join(SECTIONS)}")
        if not isinstance(value, dict):
            raise SettingError(f"{path}: {section}: got {_kind(value)}, needed a mapping of settings")
    return content


def upgrade(path: str | Path, content: dict[str, Any]) -> dict[str, Any]:
    """The content of a file with its specs in names, whichever version it is of; SettingError naming the file and the spec."""
    try:
        return upgrade_settings(content)
    except ValueError as error:
        raise SettingError(f"{path}: {error}") from None


def read_mapping(path: str | Path, names: Sequence[str]) -> dict[str, Any]:
    """The mapping in a YAML file, its keys among `names`; SettingError naming the file and line where it is none."""
    needed = f"a mapping with {', '.join(names)}"
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise SettingError(f"{path}: {error.strerror or error}, needed a readable YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        problem = getattr(error, "problem", None) or ("nested too deeply" if isinstance(error, RecursionError) else "not text")
        raise SettingError(f"{path}: not YAML{where}: {problem}, needed {needed}") from None
    if not isinstance(content, dict):
        raise SettingError(f"{path}: got {_kind(content)}, needed {needed}")
    for name in content:
        if name not in names:
            raise SettingError(f"{path}: unknown setting {name!r}, needed one of {', '.join(names)}")
    return content


def _kind(value: object) -> str:
    return {type(None): "nothing", list: "a list", str: "text"}.get(type(value), repr(value))


class _Words(NamedTuple):
    """rest: for the parser; configs: files; name: of the task; options: of blocks; quick: whether --quick is among the words."""

    rest: list[str]
    configs: list[str]
    name: str | None
    options: dict[str, dict[str, Any]]
    quick: bool


def _split_words(words: Sequence[str]) -> _Words:
    """The words that are read before the parser is built, and the rest; `--task NAME` counts as `--task.name NAME`.

    Block options are taken out because jsonargparse lets a nested key of a mapping replace its siblings.
    """
    rest: list[str] = []
    configs: list[str] = []
    name = None
    options: dict[str, dict[str, Any]] = {}
    queue = [word for word in words if word != "--quick"]
    quick = len(queue) < len(words)
    while queue:
        word, equals, value = queue.pop(0).partition("=")
        if word not in ("--config", "--task", "--task.name") and not word.startswith(BLOCK_OPTION):
            rest.append(word + equals + value)
            continue
        if not equals:
            if not queue:
                raise SettingError(f"{word.lstrip('-')}: got nothing, needed a value")
            value = queue.pop(0)
        if word == "--config":
            configs.append(value)
        elif word.startswith(BLOCK_OPTION):
            letter, dot, option = word.removeprefix(BLOCK_OPTION).partition(".")
            if not (letter and dot and option):
                raise refuse(
                    "model.block_options", word, "a block and an option, such as --model.block_options.aussm.phase_dt true"
                )
            options.setdefault(letter, {})[option] = yaml.load(value, Loader=_Loader)
        else:
            name = value
    return _Words(rest, configs, name, options, quick)


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Nested mappings as one, `over` winning."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def task_class(name: str | None) -> type[Task]:
    """The task registered under a name; SettingError listing the names where there is none."""
    if name is None or name not in TASKS:
        raise refuse("task.name", name, f"one of {', '.join(sorted(TASKS))}")
    return TASKS[name]


def settings_parser(task: type[Task] | None, command: ArgumentParser | None = None) -> ArgumentParser:
    """A parser for the settings of one task, on top of the arguments that `command` has."""
    parser = command or ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", type=str, help="YAML file of settings; may be given several times, later ones win")
    parser.add_argument("--quick", action="store_true", help="the recipe's quick size: under two minutes on a CPU")
    parser.add_argument("--data-dir", type=str, help="folder of the task's files; stands for --task.data_dir")
    parser.add_argument("--task.name", type=str, help=f"task: {', '.join(sorted(TASKS))}; the other task settings depend on it")
    if task is not None:
        parser.add_class_arguments(task, "task")
    for section, kind in SECTIONS.items():
        parser.add_class_arguments(kind, section)
    return parser


def parse_settings(words: Sequence[str], command: ArgumentParser | None = None, base: dict[str, Any] | None = None) -> Parsed:
    """Settings from command-line words over YAML files over `base` over the defaults.

    `command` may bring arguments of its own, whose values come back in `Parsed.command`; its `--steps` and `--checkpoint-every`
    stand for the training settings of these names, as `--data-dir` does for the task's. With `--quick` among the words the quick
    section of each file goes over its other settings. Raises SettingError with one line for whatever can not be used.
    """
    rest, configs, name, block_options, quick = _split_words(words)
    base = {name: value for name, value in (base or {}).items() if name != "spec_version"}  # as `Settings.as_dict` has it
    plain = without_retired(_read_configs(base, configs, quick=quick))
    _refuse_huge("", plain)
    if "--help" in rest or "-h" in rest:
        chosen = name or plain.get("task", {}).get("name")
        settings_parser(task_class(chosen) if chosen else None, command).print_help()
        raise SystemExit(0)
    task = plain.get("task", {})
    name = name or task.get("name")
    if name is None:
        raise SettingError(f"task.name: got nothing, needed --config FILE or --task.name with one of {', '.join(sorted(TASKS))}")
    kind = task_class(name)
    _refuse_unknown(plain, kind)
    parser = settings_parser(kind, command)
    try:
        parsed = parser.parse_args(rest, namespace=parser.parse_object(plain))
    except (ArgumentError, TypeError, ValueError) as error:
        raise SettingError(explain(str(error), kind)) from None
    for alias in ("steps", "checkpoint_every"):
        if parsed.get(alias) is not None:
            parsed.training[alias] = parsed[alias]
    if parsed.data_dir is not None:
        if "data_dir" not in {f.name for f in fields(kind)}:
            raise refuse("--data-dir", parsed.data_dir, f"none, as task {kind.name} has no setting data_dir")
        parsed.task.data_dir = parsed.data_dir
    parsed.model.block_options = merge(parsed.model.block_options, block_options)
    if configs and parsed.about.recipe is None:
        parsed.about.recipe = configs[-1]
    parsed.task.pop("name")
    task = build_task(kind, parsed.pop("task").as_dict())
    made = parser.instantiate(parsed)
    return Parsed(Settings(task=task, model=made.model, training=made.training, about=made.about), parsed)


def _read_configs(base: dict[str, Any], configs: Sequence[str], *, quick: bool) -> dict[str, Any]:
    """The settings of files over `base`, the quick ones of each file among them where asked for."""
    plain, was_quick = base, bool(base.get("about", {}).get(QUICK))
    if quick and not configs and not was_quick:
        raise SettingError("--quick: got no --config, needed the recipe whose quick section to take")
    found = [read_recipe(path) for path in configs]
    if quick and configs and not any(small for _, small in found):
        raise SettingError(f"--quick: {configs[-1]} has no section {QUICK!r}, needed a recipe with one")
    for content, small in found:
        plain = merge(plain, merge(content, small) if quick and small else content)
    if found:  # what a stored quick run says of itself holds until a recipe comes without --quick
        is_quick = quick or any(content.get("about", {}).get(QUICK) for content, _ in found)
        plain = merge(plain, {"about": {QUICK: is_quick}})
    return plain


def without_retired(plain: dict[str, Any]) -> dict[str, Any]:
    """The settings less those that exist no more; SettingError where one of these asks for what was never done."""
    plain = {section: dict(values) if section in RETIRED else values for section, values in plain.items()}
    for section, retired in RETIRED.items():
        for name, only in retired.items():
            value = plain.get(section, {}).pop(name, only)
            if value != only:
                raise refuse(f"{section}.{name}", value, f"{only}, which is what every run does: leave the setting out")
    return plain


def build_task(kind: type[Task], options: dict[str, Any]) -> Task:
    """A task from its settings, its data looked at; what it refuses is a SettingError, on one line, that begins with its name."""
    try:
        task = kind(**options)
        for split in task.splits:
            task.size(split)
    except (ValueError, TypeError, OSError, KeyError) as error:
        raise SettingError(with_section("task", error, kind)) from error
    return task


def with_section(section: str, error: BaseException, kind: Any) -> str:
    """An exception's message after the section of the settings it is about, and the setting where the message begins with one."""
    message = one_line(error)
    if message.partition(":")[0] in {f.name for f in fields(kind)}:
        return f"{section}.{message}"
    return f"{section}: {message}"


def one_line(error: BaseException) -> str:
    """An exception's message without line breaks and repeated spaces."""
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    return " ".join(str(text).split()) or type(error).__name__


def _refuse_huge(path: str, value: object) -> None:
    """SettingError for a whole number that no float can hold, which the parser of the settings would fail at without a name."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _refuse_huge(f"{path}.{name}" if path else str(name), inner)
    elif isinstance(value, list):
        for inner in value:
            _refuse_huge(path, inner)
    elif isinstance(value, int) and abs(value) > sys.float_info.max:
        raise refuse(path, value, f"a number of at most {sys.float_info.max:.2g}")


def _refuse_unknown(plain: dict[str, Any], kind: type[Task]) -> None:
    """SettingError for a name in the sections of `plain` that is no setting, or a value where a mapping is needed."""
    for section, value in plain.items():
        known: type = kind if section == "task" else SECTIONS[section]
        _compare(section, {key: v for key, v in value.items() if (section, key) != ("task", "name")}, known)


def _compare(path: str, given: dict[str, Any], kind: Any) -> None:
    known = {f.name: f for f in fields(kind)}
    for key, value in given.items():
        if key not in known:
            raise unknown_setting(f"{path}.{key}", kind)
        default = known[key].default_factory
        if is_dataclass(default):
            if not isinstance(value, dict):
                raise refuse(f"{path}.{key}", value, f"a mapping with {', '.join(f.name for f in fields(default))}")
            _compare(f"{path}.{key}", value, default)


def unknown_setting(path: str, kind: Any) -> SettingError:
    """The refusal of a name that `kind` does not have, with the nearest one that it has."""
    key = path.rpartition(".")[2]
    names = [f.name for f in fields(kind)]
    near = get_close_matches(key, names, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return SettingError(f"{path}: unknown setting; {hint}needed one of {', '.join(names)}")


_NAMES = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "text",
    "dict": "a mapping",
    "list": "a list",
}


def explain(message: str, kind: type[Task] | None = None) -> str:
    """jsonargparse's message in our form: the setting, what came, what was needed."""
    if unknown := re.search(r"unrecognized arguments: (.*)", message):
        word = unknown[1].split()[0]
        path = word.lstrip("-").partition("=")[0]
        section, _, rest = path.partition(".")
        owner: Any = kind if section == "task" else SECTIONS.get(section)
        for part in rest.split(".")[:-1]:
            nested = next((f.default_factory for f in fields(owner) if f.name == part), None) if owner else None
            owner = nested if is_dataclass(nested) else None
        if word.startswith("--") and rest and owner:
            return str(unknown_setting(path, owner))
        return f"{word}: unknown argument; `--help` lists the arguments that exist"
    if typed := re.search(
        r'Parser key "(?P<key>[^"]+)":\s+Expected an? (?P<type>.*)\. Got value: (?P<got>.*)', message, re.DOTALL
    ):
        needed = re.sub(r"<class '(\w+)'>", lambda match: _NAMES.get(match[1], match[1]), typed["type"])
        needed = re.sub(r"typing\.Literal\[(.*)\]", lambda match: f"one of {match[1]}".replace("'", ""), needed)
        return str(refuse(typed["key"], typed["got"].strip(), needed))
    if missing := re.search(r"argument --([\w.-]+): expected one argument", message):
        return f"--{missing[1]}: got nothing, needed a value"
    text = " ".join(message.split())
    if union := re.search(r'Parser key "([^"]+)": Does not validate .* Subtypes: \[(.*?)\] Errors: .* Given value: (.*)', text):
        needed = re.sub(r"<class '(\w+)'>", lambda match: _NAMES.get(match[1], "null"), union[2]).replace(", ", " or ")
        return str(refuse(union[1], union[3], needed))
    return text


def load_settings(path: str | Path) -> Settings:
    """The settings of a run's settings.yaml; SettingError naming the file and the setting."""
    return stored_settings(path, read_yaml(path))


def stored_settings(path: str | Path, plain: dict[str, Any]) -> Settings:
    """The settings that a file of a run or a sweep holds; SettingError naming the file and the setting."""
    try:
        return parse_settings([], base=plain).settings
    except (SettingError, TypeError, AttributeError) as error:
        raise SettingError(f"{path}: {one_line(error)}") from error
