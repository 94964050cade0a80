"""Short JSON descriptions of tensors, tables and texts, and their comparison with recorded ones.

The description of a tensor is [dtype, shape, sum, weighted sum]. The weights depend on the position, so that exchanging two
values changes the description. Sums of integers are exact. Those of floating-point numbers may differ by 2e-6 of their scale, the
weighted sum of absolute values: processors and versions of NumPy differ in the last bits of sines and exponentials.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

TOLERANCE = 2e-6
LONGEST = 100  # number of characters up to which a text is recorded in full


def describe_array(values: np.ndarray) -> list[Any]:
    """Return [dtype, shape, sum, weighted sum] and, of floating-point numbers, the scale of the sums; NaN counts as 1000."""
    weights = np.arange(values.size, dtype=np.int64) * 7919 % 1009 + 1
    head = [str(values.dtype), list(values.shape)]
    if values.dtype.kind in "iub":
        flat = values.ravel().astype(np.int64)
        return [*head, int(flat.sum()), int((flat * weights).sum())]
    flat = np.nan_to_num(values.ravel().astype(np.float64), nan=1000.0)
    sums = [flat.sum(), (flat * weights).sum(), (np.abs(flat) * weights).sum()]
    return [*head, *(float(f"{total:.9g}") for total in sums)]


def describe_text(text: str) -> str:
    """Return a text, or the beginning and the digest of a long one."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return text if len(text) <= LONGEST else f"{text[:20]}... {len(text)} characters {digest}"


def describe(value: Any) -> Any:
    """Return the JSON value of a tensor, array, number, text or None, or of a sequence or mapping of these."""
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
    """Return the description of each column of a table whose rows have the same keys."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {name: describe(column if isinstance(column[0], str) else np.array(column)) for name, column in columns.items()}


def list_differences(actual: Any, recorded: Any, path: str = "", tolerance: float = TOLERANCE) -> list[str]:
    """List where values differ from the record, floating-point numbers by more than the relative tolerance."""
    if isinstance(actual, dict) and isinstance(recorded, dict):
        missing = [f"{path}/{key}: only in one of the two" for key in sorted(actual.keys() ^ recorded.keys())]
        shared = [key for key in actual if key in recorded]
        return missing + [
            line for key in shared for line in list_differences(actual[key], recorded[key], f"{path}/{key}", tolerance)
        ]
    if isinstance(actual, list) and isinstance(recorded, list) and len(actual) == len(recorded):
        if len(actual) == 5 and isinstance(actual[-1], float) and actual[:2] == recorded[:2]:
            close = np.allclose(actual[2:], recorded[2:], rtol=0, atol=tolerance * (abs(recorded[4]) + 1e-30))
            return [] if close else [f"{path}: {actual}, recorded {recorded}"]
        pairs = enumerate(zip(actual, recorded, strict=True))
        return [line for index, (left, right) in pairs for line in list_differences(left, right, f"{path}/{index}", tolerance)]
    if isinstance(actual, float) and isinstance(recorded, float) and abs(actual - recorded) <= tolerance * abs(recorded) + 1e-12:
        return []
    return [] if actual == recorded and type(actual) is type(recorded) else [f"{path}: {actual!r}, recorded {recorded!r}"]
