"""Base class of the dataclasses of records, which converts a mapping from a JSON file and lists what does not match, by path."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING as REQUIRED
from dataclasses import fields
from enum import Enum
from typing import Any, ClassVar, Self, cast

from longscan._errors import FieldError, quote
from longscan._types import describe_type, join_path, parse_value, type_hints


class Missing(Enum):
    """The type of MISSING, the value of an optional field that a record does not have; null in a file is None instead."""

    MISSING = "missing"


MISSING = Missing.MISSING


class RecordType:
    """Base of the dataclasses of records.

    A field without a default must be in the file, one whose default is MISSING may be. `field(metadata={"name": ...})` gives the
    name in the file if that is not a valid name in Python.

    Attributes:
        unknown_fields: whether the file may hold fields that the dataclass does not have. They are not compared with anything.
    """

    unknown_fields: ClassVar[bool] = True

    def field_errors(self) -> Iterator[FieldError]:
        """Yield the errors of values that match their types but not each other. Called only if all fields match their types."""
        yield from ()

    @classmethod
    def parse_mapping(cls, values: Mapping[str, Any], path: str) -> tuple[Self | None, list[FieldError]]:
        """Convert a mapping; return the record, None if the mapping does not match, and what does not match."""
        hints = type_hints(cast("Any", cls), include_extras=True)
        names = {field.metadata.get("name", field.name): field for field in fields(cls)}  # type: ignore[arg-type]
        found, errors = {}, []
        for name, field in names.items():
            if name in values:
                found[field.name], wrong = parse_value(values[name], hints[field.name], join_path(path, name))
                errors += wrong
            elif field.default is REQUIRED:
                errors.append(FieldError(join_path(path, name), "nothing", describe_type(hints[field.name])))
        if not cls.unknown_fields:
            unknown = [name for name in values if name not in names]
            needed = "left out, as there is no field of this name"
            errors += [FieldError(join_path(path, name), quote(values[name]), needed) for name in unknown]
        if errors:
            return None, errors
        made = cls(**found)
        return made, [error._replace(path=join_path(path, error.path)) for error in made.field_errors()]
