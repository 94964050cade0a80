"""YAML files and arguments of the command line as plain values."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from longscan._errors import SettingError, one_line
from longscan._types import matches_type


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, as in version 1.2 of the standard, and None is null."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("None$"), ["N"])


def parse_text(text: str, declared: Any) -> Any:
    """Return the value of a command-line argument, read as YAML: "3" is a number, "[1, 2]" a list, "null" or "None" is None.

    The text itself is returned if YAML cannot read it or reads it as text, and if the text matches the type but its value in YAML
    does not, such as "3" for a setting whose type is str.

    declared: annotated type of the setting.
    """
    if not text.strip():  # YAML reads an empty text as None, which must be written as null or None
        return text
    try:
        value = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    if matches_type(value, declared) and not isinstance(value, str):
        return value
    return text if value is None or isinstance(value, str) or matches_type(text, declared) else value


def read_mapping(path: str | Path, names: Sequence[str]) -> dict[str, Any]:
    """Read a mapping with keys among `names` from a YAML file. Raises SettingError naming the file and line."""
    needed = f"a mapping with {', '.join(names)}"
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        in_clone = "; the folder recipes is in the repository, not in an installed package: run the command in a clone"
        hint = in_clone if Path(path).parts[:1] == ("recipes",) and not Path("recipes").is_dir() else ""
        raise SettingError(f"{path} must be a YAML file that can be read ({error.strerror or error}){hint}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, or a number of thousands of digits
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        deep = isinstance(error, RecursionError)
        problem = getattr(error, "problem", None) or ("nested too deeply" if deep else one_line(error))
        raise SettingError(f"{path} must be {needed}, got text that is not YAML{where}: {problem}") from None
    if not isinstance(content, dict):
        raise SettingError(f"{path} must be {needed}, got {describe_kind(content)}")
    for name in content:
        if name not in names:
            raise SettingError(f"{path}: each setting must be one of {', '.join(names)}, got {name!r}")
    return content


def describe_kind(value: object) -> str:
    """Describe the type of a value in a file, for example "a list"."""
    return {type(None): "nothing", list: "a list", str: "text"}.get(type(value), repr(value))


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested mappings by their dotted names."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
