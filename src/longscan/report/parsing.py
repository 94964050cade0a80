"""JSON values as the types that dataclasses declare; what does not match is named by its path."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING as REQUIRED
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import repeat
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from longscan._types import describe_type, matches_type


class Missing(Enum):
    """The type of MISSING, the value of an optional field that a record does not have; null in a file is None instead."""

    MISSING = "missing"


MISSING = Missing.MISSING


class FieldError(NamedTuple):
    """A field by its path, such as rows[3].loss, what it holds and what was needed."""

    path: str
    got: str
    needed: str

    def __str__(self) -> str:
        return f"{self.path or 'row'}: got {self.got}, needed {self.needed}"


class RecordType:
    """Base of the dataclasses of records.

    A field without a default must be in the file, one whose default is MISSING may be. `field(metadata={"name": ...})` gives the
    name in the file where it is no name of Python.

    Attributes:
        unknown_fields: whether the file may hold fields that the dataclass does not have. They are not compared with anything.
    """

    unknown_fields: ClassVar[bool] = True

    def field_errors(self) -> Iterator[FieldError]:
        """Yield what is wrong with the values of several fields together, each field being of its type."""
        yield from ()


_type_hints = cache(get_type_hints)


def parse_value(value: Any, declared: Any, path: str = "") -> tuple[Any, list[FieldError]]:
    """Return a value that `json.loads` made as the type `declared`, and what is wrong with it.

    `declared` is made of str, int, float (finite numbers), bool, None, Any, list, dict, tuples of fixed length, Literal, unions,
    `Annotated` with a `Rule`, and dataclasses that inherit from `RecordType`. Errors name fields from `path` on.
    """
    origin, parts = get_origin(declared), get_args(declared)
    if origin is Annotated:
        parsed, errors = parse_value(value, parts[0], path)
        holds = not errors and all(rule.holds(parsed) for rule in parts[1:])
        nested = [error for error in errors if error.path != path]
        return parsed, [] if holds else nested or _mismatch(value, declared, path)
    if origin in (Union, UnionType):
        nested = []
        for part in parts:
            parsed, errors = parse_value(value, part, path)
            if not errors:
                return parsed, []
            nested += [error for error in errors if error.path != path]
        return value, nested or _mismatch(value, declared, path)
    if origin is list and isinstance(value, list):
        return _parse_items(enumerate(value), repeat(parts[0]), path)
    if origin is tuple and isinstance(value, list) and len(value) == len(parts):
        return _parse_items(enumerate(value), parts, path)
    if origin is dict and isinstance(value, dict):
        items, errors = _parse_items(value.items(), repeat(parts[1]), path)
        return dict(zip(value, items, strict=True)), errors
    if is_dataclass(declared) and isinstance(value, dict):
        return _parse_fields(value, declared, path)
    if origin is Literal:
        matches = any(type(value) is type(part) and value == part for part in parts)
    else:
        matches = origin is None and matches_type(value, declared)
    return value, [] if matches else _mismatch(value, declared, path)


def _parse_items(
    items: Iterable[tuple[int | str, Any]], declared: Iterable[Any], path: str
) -> tuple[list[Any], list[FieldError]]:
    """Return the values of pairs of key and value, each as its type in `declared`, and what is wrong with them."""
    found, errors = [], []
    for (key, value), one in zip(items, declared, strict=False):
        parsed, wrong = parse_value(value, one, _join(path, key))
        found.append(parsed)
        errors += wrong
    return found, errors


def _parse_fields(value: Mapping[str, Any], record: Any, path: str) -> tuple[Any, list[FieldError]]:
    """Return a mapping as an instance of the dataclass `record`, and what is wrong with it."""
    hints = _type_hints(record, include_extras=True)
    names = {field.metadata.get("name", field.name): field for field in fields(record)}
    found, errors = {}, []
    for name, field in names.items():
        if name in value:
            found[field.name], wrong = parse_value(value[name], hints[field.name], _join(path, name))
            errors += wrong
        elif field.default is REQUIRED:
            errors.append(FieldError(_join(path, name), "nothing", _describe(hints[field.name])))
    if not record.unknown_fields:
        unknown = [name for name in value if name not in names]
        errors += [FieldError(_join(path, name), _shorten(value[name]), "no field of this name") for name in unknown]
    if errors:
        return value, errors
    made = record(**found)
    return made, [error._replace(path=_join(path, error.path)) for error in made.field_errors()]


def _mismatch(value: Any, declared: Any, path: str) -> list[FieldError]:
    return [FieldError(path, _shorten(value), _describe(declared))]


def _describe(declared: Any) -> str:
    """Return a type in words, less Missing, which no file holds."""
    if get_origin(declared) in (Union, UnionType):
        declared = Union[tuple(part for part in get_args(declared) if part is not Missing)]  # noqa: UP007
    return "mapping" if is_dataclass(declared) else describe_type(declared)


def _join(path: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{path}[{key}]"
    return ".".join(filter(None, (path, key)))


def _shorten(value: Any, most: int = 80) -> str:
    """Return a value as one line of `most` characters."""
    line = " ".join(repr(value).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."
