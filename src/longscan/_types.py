"""Annotated types of settings, records and arguments, with ranges and help; conversion of values; types in words.

A field is declared once, `lr: Annotated[PositiveFloat, Doc("learning rate of AdamW")] = 1e-3`. Files, the command line,
constructors and messages all read this declaration.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from numbers import Integral, Real
from pathlib import PurePath
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, Union, cast, get_args, get_origin, get_type_hints

from longscan._errors import FieldError, SettingError, quote, unknown_setting

FLOAT_MAX = sys.float_info.max  # larger whole numbers are no floats; comparing with it is false for NaN


@dataclass(frozen=True)
class Rule:
    """A condition on values of one type, written `Annotated[int, Rule(...)]`.

    Attributes:
        is_met: the condition, called with a value of the type.
        needed: type and condition in words, for example "a whole number of at least 1".
    """

    is_met: Callable[[Any], object]
    needed: str


class Doc(str):
    """The help text of a field or argument, written `Annotated[int, Doc("number of updates")]`."""

    __slots__ = ()


def at_least(low: int) -> Rule:
    """Return the rule of whole numbers of at least `low`."""
    return Rule(lambda n: n >= low, f"a whole number of at least {low}")


def between(low: int, high: int) -> Rule:
    """Return the rule of whole numbers from `low` to `high`, both included."""
    return Rule(lambda n: low <= n <= high, f"a whole number from {low} to {high}")


PositiveInt = Annotated[int, at_least(1)]
NonNegativeInt = Annotated[int, at_least(0)]
Seed = Annotated[int, Rule(lambda n: 0 <= n < 2**63, "a whole number from 0 to below 2^63")]
EvenInt = Annotated[int, Rule(lambda n: n >= 2 and n % 2 == 0, "an even whole number of at least 2")]
PositiveFloat = Annotated[float, Rule(lambda x: x > 0, "a number above 0")]
NonNegativeFloat = Annotated[float, Rule(lambda x: x >= 0, "a number of at least 0")]
Fraction = Annotated[float, Rule(lambda x: 0 <= x <= 1, "a number from 0 to 1")]
FractionBelowOne = Annotated[float, Rule(lambda x: 0 <= x < 1, "a number from 0 to below 1")]
PositiveFraction = Annotated[float, Rule(lambda x: 0 < x <= 1, "a number above 0, at most 1")]
Probability = Annotated[float, Rule(lambda x: 0 < x < 1, "a number between 0 and 1")]
Number = Annotated[Any, Rule(lambda x: isinstance(x, Real) and not isinstance(x, bool), "a number")]  # also infinity and NaN
NonEmptyStr = Annotated[str, Rule(bool, "text that is not empty")]


def parse_value(value: Any, declared: Any, path: str = "") -> tuple[Any, list[FieldError]]:
    """Convert a value to an annotated type; return the converted value and an error for each part that does not match.

    A list becomes a tuple if the type is a tuple, and a whole number becomes a float if the type is float. Numbers of NumPy
    become those of Python, and a path becomes text. A bool or a text is not accepted as a number. Numbers must be finite and
    within the range of float64. If the type is a class with a method `parse_mapping`, this method converts a mapping.

    path: place of `value` in the file or the settings, with which the paths of the errors begin.
    """
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is Annotated:
        parsed, errors = parse_value(value, arguments[0], path)
        rules = [one for one in arguments[1:] if isinstance(one, Rule)]
        if rules and not (_errors_of_items(path, errors) or (not errors and all(rule.is_met(parsed) for rule in rules))):
            return value, [FieldError(path, quote(value), describe_type(declared))]
        return parsed, errors
    if origin in (Union, UnionType):
        nested: list[FieldError] = []
        for one in arguments:
            parsed, errors = parse_value(value, one, path)
            if not errors:
                return parsed, []
            nested += _errors_of_items(path, errors)
        return value, nested or [FieldError(path, quote(value), describe_type(declared))]
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return _parse_mapping(value, arguments[0], arguments[1], path)
    if isinstance(origin, type) and _is_sequence(value, origin):
        item_types = arguments if origin is tuple and arguments[-1] is not ... else arguments[:1] * len(value)
        if len(item_types) == len(value):
            items = enumerate(zip(value, item_types, strict=True))
            results = [parse_value(item, item_type, f"{path}[{i}]") for i, (item, item_type) in items]
            kind: Any = origin if origin in (tuple, list) else type(value)
            return kind(item for item, _ in results), [error for _, errors in results for error in errors]
    if hasattr(declared, "parse_mapping") and isinstance(value, Mapping):
        return declared.parse_mapping(value, path)
    if declared is str and isinstance(value, PurePath):
        return str(value), []
    if _matches_plain(value, declared):
        return (declared(value) if declared in (int, float) else value), []
    return value, [FieldError(path, quote(value), describe_type(declared))]


def _errors_of_items(path: str, errors: Iterable[FieldError]) -> list[FieldError]:
    """Return the errors about items of the value at `path`, without those about the value itself."""
    return [error for error in errors if error.path != path]


def _is_sequence(value: object, origin: type) -> bool:
    wanted = (list, tuple) if origin in (list, tuple) else origin
    return isinstance(value, wanted) and isinstance(value, Sequence) and not isinstance(value, str)


def _parse_mapping(
    value: Mapping[Any, Any], key_type: Any, value_type: Any, path: str
) -> tuple[dict[Any, Any], list[FieldError]]:
    """Convert the values of a mapping; its keys must match their type as they are."""
    parsed, errors = {}, []
    for key, one in value.items():
        errors += parse_value(key, key_type, path)[1]
        parsed[key], wrong = parse_value(one, value_type, join_path(path, str(key)))
        errors += wrong
    return parsed, errors


def _matches_plain(value: object, declared: Any) -> bool:
    """Return whether a value is of a type that is neither Annotated nor a union nor a collection of declared items."""
    origin = get_origin(declared)
    if declared is Any:
        return True
    if declared is None:
        return value is None
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in get_args(declared))
    if declared in (int, float):
        kind = Integral if declared is int else Real
        return isinstance(value, kind) and not isinstance(value, bool) and _is_finite(cast("float", value))
    if origin is not None and origin is not type and issubclass(origin, (Mapping, list, tuple, Sequence)):
        return False  # matched above, with its items
    return isinstance(value, origin or declared) and (declared is str or not isinstance(value, str))


def _is_finite(value: float) -> bool:
    """Return whether a number is within the range of float64. np.float32 would round the limit to infinity."""
    try:
        return abs(int(value) if isinstance(value, Integral) else float(value)) <= FLOAT_MAX
    except OverflowError:  # a fraction beyond the range
        return False


def matches_type(value: object, declared: Any) -> bool:
    """Return whether `parse_value` takes a value as the annotated type `declared`."""
    return not parse_value(value, declared)[1]


def checked_value(value: Any, declared: Any, path: str) -> Any:
    """Return a value converted to an annotated type. Raises SettingError about the first part of it that does not match."""
    parsed, errors = parse_value(value, declared, path)
    if errors:
        raise SettingError(str(errors[0]))
    return parsed


def describe_type(declared: Any) -> str:
    """Return an annotated type in words, for example "a whole number of at least 1 or None"."""
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is Annotated:
        return next((one.needed for one in arguments if isinstance(one, Rule)), None) or describe_type(arguments[0])
    if origin in (Union, UnionType):
        shown = [one for one in arguments if not (isinstance(one, type) and issubclass(one, Enum))]  # sentinels, in no file
        return " or ".join(dict.fromkeys(describe_type(one) for one in shown))
    if origin is Literal:
        choices = [one if isinstance(one, str) else repr(one) for one in arguments]
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if origin is tuple and arguments and arguments[-1] is not ...:
        return f"a list of {len(arguments)}, each {' and '.join(dict.fromkeys(describe_type(one) for one in arguments))}"
    words = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text", None: "None"}
    if declared in words or declared is type(None):
        return words.get(declared, "None")
    kind = origin or declared
    if issubclass(kind, SettingsGroup):
        return f"a mapping with {', '.join(field.name for field in fields(kind))}"
    if is_dataclass(kind) or issubclass(kind, Mapping):
        return "a mapping"
    return "a list" if issubclass(kind, Iterable) else f"an instance of {kind.__name__}"


type_hints = cache(get_type_hints)


def field_types(kind: type) -> dict[str, Any]:
    """Return the annotated type of every field of a dataclass that its constructor takes."""
    hints = type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind) if field.init}


def join_path(path: str, name: str) -> str:
    """Return the path of a field below `path`; either may be empty."""
    return ".".join(filter(None, (path, name)))


def check_names(values: Iterable[str], kind: type, path: str) -> None:
    """Raise SettingError for a name that is no field of a dataclass."""
    names = list(field_types(kind))
    for name in values:
        if name not in names:
            raise unknown_setting(join_path(path, name), names)


def convert_fields(group: Any, path: str = "") -> None:
    """Convert every field of a frozen dataclass to its annotated type.

    Raises SettingError with the name of a field after `path`.
    """
    for name, declared in field_types(type(group)).items():
        object.__setattr__(group, name, checked_value(getattr(group, name), declared, join_path(path, name)))


class SettingsGroup:
    """Base of dataclasses whose constructor converts every field to its annotated type.

    A value that does not match raises SettingError, with the field's name after `path`, the place of the group in files and on
    the command line.
    """

    path: ClassVar[str] = ""

    def __post_init__(self) -> None:
        convert_fields(self, self.path)

    @classmethod
    def parse_mapping(cls, values: Mapping[str, Any], path: str) -> tuple[Self, list[FieldError]]:
        """Return the settings in a mapping. Raises SettingError for an unknown name or a value that does not match."""
        check_names(values, cls, path)
        return cls(**values), []


class Setting(NamedTuple):
    """One setting of a dataclass, for help pages: dotted name, annotated type, and default or MISSING."""

    name: str
    declared: Any
    default: Any


def list_settings(kind: Any, path: str) -> Iterator[Setting]:
    """Yield the settings of a dataclass and of the dataclasses among its fields."""
    hints = field_types(kind)
    for field in fields(kind):
        declared, name = hints[field.name], f"{path}.{field.name}"
        if is_dataclass(declared):
            yield from list_settings(declared, name)
            continue
        default = field.default if field.default_factory is MISSING else field.default_factory()
        yield Setting(name, declared, default)


def find_doc(declared: Any) -> str:
    """Return the help text of an annotated type, "" where it has none."""
    return next((str(one) for one in get_args(declared)[1:] if isinstance(one, Doc)), "")
