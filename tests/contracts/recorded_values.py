"""Short descriptions of tensors, tables and texts that a JSON file can hold, and their comparison with what was recorded.

A tensor becomes [dtype, shape, sum, weighted sum]: the weights differ from place to place, so that two exchanged values show.
Sums of whole numbers are exact. Those of floating-point numbers may differ by 2e-6 of their scale, the weighted sum of the
absolute values: processors and versions of numpy differ in the last bits of sines and exponentials.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

TOLERANCE = 2e-6
LONGEST = 100  # characters of a text that is recorded as it is


def describe_array(values: np.ndarray) -> list[Any]:
    """[dtype, shape, sum, weighted sum]; of floating-point numbers, of which NaN counts as 1000, also the scale of the sums."""
    weights = np.arange(values.size, dtype=np.int64) * 7919 % 1009 + 1
    head = [str(values.dtype), list(values.shape)]
    if values.dtype.kind in "iub":
        flat = values.ravel().astype(np.int64)
        return [*head, int(flat.sum()), int((flat * weights).sum())]
    flat = np.nan_to_num(values.ravel().astype(np.float64), nan=1000.0)
    sums = [flat.sum(), (flat * weights).sum(), (np.abs(flat) * weights).sum()]
    return [*head, *(float(f"{total:.9g}") for total in sums)]


def describe_text(text: str) -> str:
    """A text, or the beginning and the digest of a long one."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return text if len(text) <= LONGEST else f"{text[:20]}... {len(text)} characters {digest}"


def describe(value: Any) -> Any:
    """A value of JSON for a tensor, an array, a number, a text, None, and for lists, tuples and mappings of these."""
    if isinstance(value, Tensor):
        return describe(value.item()) if value.ndim == 0 else describe_array(value.detach().numpy())
    if isinstance(value, np.ndarray):
        return describe_array(value)
    if isinstance(value, str):
        return describe_text(value)
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return "nan" if math.isnan(value) else float(f"{value:.9g}")
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        if value and all(isinstance(item, str) for item in value):
            return describe_text(f"{len(value)}: {' '.join(value)}")
        return [describe(item) for item in value]
    raise TypeError(f"{type(value).__name__} cannot be described")


def describe_table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The columns of a table whose rows have the same keys: texts joined, numbers as an array."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {name: describe(column if isinstance(column[0], str) else np.array(column)) for name, column in columns.items()}


def differences(found: Any, recorded: Any, place: str = "", tolerance: float = TOLERANCE) -> list[str]:
    """List the places at which values differ from the record, floating-point numbers by more than the relative tolerance."""
    if isinstance(found, dict) and isinstance(recorded, dict):
        missing = [f"{place}/{key}: only in one of both" for key in sorted(found.keys() ^ recorded.keys())]
        both = [key for key in found if key in recorded]
        return missing + [line for key in both for line in differences(found[key], recorded[key], f"{place}/{key}", tolerance)]
    if isinstance(found, list) and isinstance(recorded, list) and len(found) == len(recorded):
        if len(found) == 5 and isinstance(found[-1], float) and found[:2] == recorded[:2]:
            close = np.allclose(found[2:], recorded[2:], rtol=0, atol=tolerance * (abs(recorded[4]) + 1e-30))
            return [] if close else [f"{place}: {found}, recorded {recorded}"]
        pairs = enumerate(zip(found, recorded, strict=True))
        return [line for index, (one, other) in pairs for line in differences(one, other, f"{place}/{index}", tolerance)]
    if isinstance(found, float) and isinstance(recorded, float) and abs(found - recorded) <= tolerance * abs(recorded) + 1e-12:
        return []
    return [] if found == recorded and type(found) is type(recorded) else [f"{place}: {found!r}, recorded {recorded!r}"]
