"""Inputs of more than two hundred types with the same values: each gives the result of plain arrays, or an error with its name.

Every table below has one input a line: its description, a function that creates it, and the error if it is invalid. Values are
whole numbers below ten, which every dtype represents exactly, so predictions are compared bit by bit.
"""

import array
import datetime
import decimal
import fractions
import re
import types
from collections import UserList, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from longscan.estimators import SSMClassifier, SSMForecaster, SSMRegressor, split_cases

N, L = 8, 6
DATA = np.random.default_rng(0).integers(0, 10, (N, L, 2)).astype(float)  # (cases, steps, channels)
TABLE = DATA[..., 0].copy()
LABELS = np.array(list("abbabaab"))
NUMBERS = np.array([3.0, 1, 4, 1, 5, 9, 2, 6])
NAMES = [f"case {i}" for i in range(N)]
CHANNELS = ["level", "flow"]
HOURS = pd.date_range("2024-10-26 21:00", periods=L, freq="h")
SHUFFLED = np.random.default_rng(1).permutation(N)
SERIES = np.random.default_rng(2).integers(0, 10, (40, 2)).astype(float)  # the series to forecast
ONE = SERIES[:, 0].copy()
TINY = {"d_model": 4, "d_state": 2, "epochs": 1, "batch_size": 64, "device": "cpu", "random_state": 0}
AHEAD = {"horizon": 3, "window": 8, **TINY}


@dataclass(frozen=True)
class InputCase:
    """An input of the model or method `subject`.

    create: function that returns the input. error: pattern of the ValueError or TypeError that it raises, None if it is valid.
    """

    subject: str
    name: str
    create: Callable[[], Any]
    error: str | None = None


INPUTS: list[InputCase] = []


def add_inputs(subject: str, valid: dict[str, Callable[[], Any]], invalid: dict[str, tuple[Callable[[], Any], str]]) -> None:
    """Add a table of inputs to INPUTS."""
    INPUTS.extend(InputCase(subject, name, create) for name, create in valid.items())
    INPUTS.extend(InputCase(subject, name, create, error) for name, (create, error) in invalid.items())


class IndexedInput:
    """An input, and the labels of its cases in the order of DATA."""

    def __init__(self, X: Any, cases: Any) -> None:
        self.X, self.cases = X, list(cases)


class ArrayLike:
    """An object with `__array__` only, like the arrays of other libraries."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype)


class FrameLike(ArrayLike):
    """A frame of another library, with columns, a shape and `__array__`."""

    @property
    def columns(self) -> list[str]:
        return [f"t{i}" for i in range(self.values.shape[1])]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)


class Subclass(np.ndarray):
    """A subclass of np.ndarray."""


def add_gaps(values: np.ndarray) -> np.ndarray:
    """Return a view of the same values that skips every second element in memory."""
    wide = np.full((*values.shape[:-1], 2 * values.shape[-1]), -1.0)
    wide[..., ::2] = values
    return wide[..., ::2]


def store_reversed(values: np.ndarray) -> np.ndarray:
    """Return a view of the same values, which are stored from the last to the first."""
    return values[::-1].copy()[::-1]


def make_read_only(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values.flags.writeable = False
    return values


def make_unaligned(values: np.ndarray) -> np.ndarray:
    """Return a view of the same values at addresses that are not multiples of eight."""
    return np.frombuffer(b"\0" + values.tobytes(), np.uint8)[1:].view(np.float64).reshape(values.shape)


def make_object_array(values: list[Any]) -> np.ndarray:
    """Return a one-dimensional array of objects."""
    vector = np.empty(len(values), dtype=object)
    vector[:] = values
    return vector


def make_frame(columns: Any = None, index: Any = None, dtype: Any = None) -> pd.DataFrame:
    return pd.DataFrame(TABLE, columns=columns, index=index).astype(dtype or float)


def replace_value(index: tuple[int, int], value: Any) -> np.ndarray:
    values = TABLE.astype(object if not isinstance(value, float) else float)
    values[index] = value
    return values


# Tables (cases, steps) of one channel, for a model that was fitted on an array.

DTYPES = ["f2", "f4", "f8", "g", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">f8", ">f4", ">i4", ">u2", "object"]
add_inputs(
    "table",
    {
        **{f"array of {kind}": lambda kind=kind: TABLE.astype(kind) for kind in DTYPES},
        "array of decimals": lambda: np.vectorize(decimal.Decimal, otypes=[object])(TABLE.astype(int).astype(object)),
        "array of fractions": lambda: np.vectorize(fractions.Fraction, otypes=[object])(TABLE.astype(int).astype(object)),
        "array in column-major order": lambda: np.asfortranarray(TABLE),
        "array with gaps in memory": lambda: add_gaps(TABLE),
        "array in reversed memory order": lambda: store_reversed(TABLE),
        "read-only array": lambda: make_read_only(TABLE),
        "unaligned array": lambda: make_unaligned(TABLE),
        "array of a subclass": lambda: TABLE.view(Subclass),
        "masked array without masked values": lambda: np.ma.array(TABLE, mask=np.zeros(TABLE.shape, bool)),
        "masked array without a mask": lambda: np.ma.array(TABLE),
        "memory view": lambda: memoryview(np.ascontiguousarray(TABLE)),
        "array-like object": lambda: ArrayLike(TABLE),
        "array-like object of three axes": lambda: ArrayLike(TABLE[..., None]),
        "frame of another library": lambda: FrameLike(TABLE),
        "lists": TABLE.tolist,
        "lists of integers": TABLE.astype(int).tolist,
        "tuples": lambda: tuple(map(tuple, TABLE.tolist())),
        "list of tuples": lambda: list(map(tuple, TABLE.tolist())),
        "list of arrays": lambda: list(TABLE),
        "tuple of arrays": lambda: tuple(TABLE),
        "list of arrays of one column": lambda: list(TABLE[..., None]),
        "list of arrays of several dtypes": lambda: [row.astype(kind) for row, kind in zip(TABLE, DTYPES, strict=False)],
        "list of array.array": lambda: [array.array("d", row) for row in TABLE],
        "list of deques": lambda: [deque(row) for row in TABLE.tolist()],
        "deque of lists": lambda: deque(TABLE.tolist()),
        "UserList": lambda: UserList(TABLE.tolist()),
        "list of memory views": lambda: [memoryview(row) for row in TABLE],
        "list of array-like objects": lambda: [ArrayLike(row) for row in TABLE],
        "list of Series": lambda: [pd.Series(row) for row in TABLE],
        "list of Series with dates": lambda: [pd.Series(row, index=HOURS) for row in TABLE],
        "list of Series of nullable numbers": lambda: [pd.Series(row).astype("Int64") for row in TABLE],
        "list of indexes": lambda: [pd.Index(row) for row in TABLE],
        "list of frames of one column": lambda: [pd.DataFrame({"level": row}) for row in TABLE],
        "list of tensors": lambda: list(torch.from_numpy(TABLE)),
        "array of arrays": lambda: make_object_array(list(TABLE)),
        "Series of arrays": lambda: pd.Series(list(TABLE), index=NAMES),
        "Series of lists": lambda: pd.Series(TABLE.tolist(), index=NAMES),
        "Series of Series": lambda: pd.Series(make_object_array([pd.Series(row) for row in TABLE]), index=NAMES),
        "cube of one channel": lambda: TABLE[..., None],
        "tensor": lambda: torch.from_numpy(TABLE),
        **{
            f"tensor of {kind}": lambda kind=kind: torch.from_numpy(TABLE).to(kind)
            for kind in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
        },
        "tensor that requires a gradient": lambda: torch.from_numpy(TABLE).requires_grad_(),
        "parameter": lambda: torch.nn.Parameter(torch.from_numpy(TABLE)),
        "tensor in column-major order": lambda: torch.from_numpy(TABLE).T.contiguous().T,
        "tensor (cases, steps, 1)": lambda: torch.from_numpy(TABLE)[..., None],
        "frame": make_frame,
        **{
            f"frame of {kind}": lambda kind=kind: make_frame(dtype=kind)
            for kind in ("float32", "int64", "int8", "uint16", "object")
        },
        **{
            f"frame of nullable {kind}": lambda kind=kind: make_frame(dtype=kind)
            for kind in ("Int64", "UInt8", "Float32", "Float64")
        },
        "categorical frame": lambda: make_frame().astype("category"),
        "frame of sparse numbers": lambda: make_frame(dtype=pd.SparseDtype(float, 0.0)),
        "frame of several dtypes": lambda: make_frame().astype({0: "int8", 1: "Float64", 2: "float32", 3: "category"}),
        "frame with dates as columns": lambda: make_frame(columns=HOURS),
        "frame with dates of a time zone as columns": lambda: make_frame(columns=HOURS.tz_localize("Asia/Tokyo")),
        "frame with periods as columns": lambda: make_frame(columns=pd.period_range("2024-01", periods=L, freq="M")),
        "frame with timedeltas as columns": lambda: make_frame(columns=pd.timedelta_range(0, periods=L, freq="s")),
        "frame with fractions as columns": lambda: make_frame(columns=np.arange(L) / 4),
        "frame with strings as columns": lambda: make_frame(columns=[f"t{i}" for i in range(L)]),
        "frame with strings as cases": lambda: make_frame(index=NAMES),
        "frame with dates as cases": lambda: make_frame(index=pd.date_range("2024", periods=N)),
        "frame with numbers as cases": lambda: make_frame(index=SHUFFLED),
        "frame with a repeated case": lambda: make_frame(index=["a", "a", *NAMES[2:]]),
        "frame with a categorical index of cases": lambda: make_frame(index=pd.CategoricalIndex(NAMES)),
        "long Series": lambda: IndexedInput(long(CHANNELS[:1])["level"], NAMES),
        "long Series in another order": lambda: IndexedInput(long(CHANNELS[:1])["level"].sample(frac=1, random_state=0), NAMES),
        "long frame of one column": lambda: IndexedInput(long(CHANNELS[:1]), NAMES),
    },
    {
        "a value is NaN": (lambda: replace_value((1, 2), np.nan), "`X` is not a valid table: Input X contains NaN"),
        "a value is infinite": (lambda: replace_value((1, 2), np.inf), "`X` is not a valid table: Input X contains infinity"),
        "a value is None": (lambda: replace_value((1, 2), None), "`X` is not a valid table: Input X contains NaN"),
        "a value is a string": (
            lambda: replace_value((1, 2), "high"),
            "`X` must contain only real numbers, got text, such as 'high'",
        ),
        "a value is complex": (lambda: TABLE + 0j, "`X` is not a valid table: Complex data not supported"),
        "a value is masked": (lambda: np.ma.masked_greater(TABLE, 8), "`X` must be an array without masked values, got . masked"),
        "a value of a frame is missing": (
            lambda: make_frame().mask(make_frame() > 8),
            "`X` is not a valid table: Input X contains NaN",
        ),
        "a nullable value is missing": (
            lambda: make_frame(dtype="Int64").mask(make_frame() > 8),
            "`X` is not a valid table: Input X contains NaN",
        ),
        "strings": (
            lambda: TABLE.astype(str),
            "`X` must contain only real numbers, got text, such as ",
        ),
        "bytes": (
            lambda: TABLE.astype("S"),
            "`X` must contain only real numbers, got text, such as ",
        ),
        "dates": (lambda: TABLE.astype("M8[s]"), r"`X` must be an array of real numbers, got dtype datetime64\[s\]"),
        "durations": (lambda: TABLE.astype("m8[s]"), r"`X` must be an array of real numbers, got dtype timedelta64\[s\]"),
        "a column of dates": (
            lambda: make_frame().assign(x=HOURS[:1].repeat(N)).drop(columns=0),
            "`X` must be a frame of real numbers, got dtype datetime64.* in column 'x'",
        ),
        "a matrix": (lambda: np.matrix(TABLE), "`X` is not a valid table: np.matrix is not supported"),
        "a sparse array": (lambda: sparse.csr_array(TABLE), "`X` is not a valid table: Sparse data was passed for X"),
        "a sparse tensor": (
            lambda: torch.from_numpy(TABLE).to_sparse(),
            "`X` must be a dense tensor, got layout torch.sparse_coo",
        ),
        "a complex tensor": (lambda: torch.from_numpy(TABLE) + 0j, "`X` is not a valid table: Complex data not supported"),
        "a tensor without values": (
            lambda: torch.empty(N, L, device="meta"),
            "`X` must be a tensor with values, got one on the device meta",
        ),
        "one series": (lambda: TABLE[0], "`X` is not a valid table: Expected 2D array, got 1D array instead"),
        "one Series": (lambda: pd.Series(TABLE[0]), "`X` is not a valid table: Expected (a )?2-?(D|dimensional)"),
        "a number": (lambda: 3.0, "`X` is not a valid table: Expected 2D array, got scalar array instead"),
        "None": (lambda: None, "`X` is not a valid table: Expected 2D array, got scalar array instead"),
        "a string": (lambda: "series", "`X` must be an array, a list or a frame, got a str"),
        "a path as bytes": (lambda: b"x.csv", "`X` must be an array, a list or a frame, got a bytes"),
        "a generator": (lambda: (row for row in TABLE), "`X` must be an array, a list or a frame, got a generator"),
        "a map": (lambda: map(list, TABLE), "`X` must be an array, a list or a frame, got a map"),
        "a set": (lambda: set(map(tuple, TABLE)), "`X` must be an array, a list or a frame, got a set"),
        "a dictionary": (
            lambda: dict(zip(NAMES, TABLE, strict=True)),
            r"`X` must be an array, a list or a frame, got a dict; pandas.Series\(X\) converts it, with its keys",
        ),
        "a mapping": (
            lambda: types.MappingProxyType({"a": TABLE[0]}),
            "`X` must be an array, a list or a frame, got a mappingproxy",
        ),
        "an empty list": (list, "`X` must have at least one series, got none"),
        "no rows": (lambda: TABLE[:0], r"`X` is not a valid table: Found array with 0 sample\(s\)"),
        "no steps": (lambda: TABLE[:, :0], r"`X` is not a valid table: Found array with 0 feature\(s\)"),
        "fewer steps than in fit": (
            lambda: TABLE[:, :4],
            "`X` is not a valid table: X has 4 features, but SSMClassifier is expecting 6",
        ),
        "an empty series in a list": (lambda: [*TABLE[1:], np.zeros(0)], r"series 7 of `X` must have the shape .*, got \(0,\)"),
        "an array of two channels": (lambda: DATA, "`X` must have 1 channel as in fit, got 2"),
        "four axes": (lambda: DATA[..., None], r"`X` must be an array \(cases, steps, channels\), got 4 axes"),
        "the axes of aeon with one channel": (
            lambda: TABLE[:, None],
            r"`layout` must be set for series 0 of X with the shape \(1, 6\), got None: 1 step of 6 channels",
        ),
        "columns in decreasing order": (
            lambda: make_frame(columns=HOURS[::-1]),
            r"the columns of `X` must be in the order of time, got .* in column 1 after .*; sort_index\(axis=1\) sorts the "
            r"columns, set_axis\(range\(6\), axis=1\) removes an index without times",
        ),
        "repeated columns": (
            lambda: make_frame(columns=HOURS[[0, 0, 1, 2, 3, 4]]),
            r"the columns of `X` must be without duplicated time stamps, got 1, .* remove the other columns, .*axis=1",
        ),
        "columns of two levels": (
            lambda: make_frame(columns=pd.MultiIndex.from_product([["a", "b"], [0, 1, 2]])),
            "`X` must be a frame with one level of columns, the steps, got 2",
        ),
        "a series in each cell": (
            lambda: pd.DataFrame({"level": list(TABLE)}),
            "`X` must be a frame of real numbers, got a series in each cell of column 'level'",
        ),
    },
)


def long(columns: Any = CHANNELS, times: Any = HOURS, cases: Any = NAMES) -> pd.DataFrame:
    """Return DATA as a frame indexed by (case, time)."""
    index = pd.MultiIndex.from_arrays([pd.Index(cases).repeat(L), pd.Index(times[:0]).append([pd.Index(times)] * N)])
    return pd.DataFrame(DATA.reshape(N * L, 2)[:, : len(columns)], index=index, columns=columns)


def reorder_rows(rows: Any = None) -> IndexedInput:
    """Return the long frame with the given order of rows, random by default."""
    frame = long()
    return IndexedInput(frame.sample(frac=1, random_state=0) if rows is None else frame.iloc[rows], NAMES)


def make_long_with_times(times: Any) -> IndexedInput:
    return IndexedInput(long(times=pd.Index(times)).sample(frac=1, random_state=0), NAMES)


def make_long_with_cases(cases: Any) -> IndexedInput:
    return IndexedInput(long(cases=cases).sample(frac=1, random_state=0), pd.Index(cases))


def replace_level(level: int, labels: Any) -> pd.DataFrame:
    """Return the long frame with other labels of one index level, one for each row."""
    frame = long()
    levels = [frame.index.get_level_values(0), frame.index.get_level_values(1)]
    levels[level] = labels
    return frame.set_axis(pd.MultiIndex.from_arrays(levels), axis=0)


BY_TIME = np.arange(N * L).reshape(N, L).T.ravel()
BERLIN = pd.date_range("2024-10-27 00:30", periods=L, freq="30min", tz="Europe/Berlin")  # 2:00 to 3:00 occurs twice
REPEATED = HOURS[[0, 1, 2, 2, 4, 5]].to_numpy()[np.arange(N * L) % L]

# Series of two named channels, for a model that was fitted on a frame indexed by (case, time).
add_inputs(
    "pair",
    {
        **{f"cube of {kind}": lambda kind=kind: DATA.astype(kind) for kind in DTYPES},
        "cube in column-major order": lambda: np.asfortranarray(DATA),
        "cube with gaps in memory": lambda: add_gaps(DATA),
        "cube in reversed memory order": lambda: store_reversed(DATA),
        "read-only cube": lambda: make_read_only(DATA),
        "masked cube without masked values": lambda: np.ma.array(DATA),
        "cube as nested lists": DATA.tolist,
        "list of matrices": lambda: list(DATA),
        "list of matrices in column-major order": lambda: [np.asfortranarray(series) for series in DATA],
        "tuple of nested tuples": lambda: tuple(tuple(map(tuple, series)) for series in DATA.tolist()),
        "cube of a tensor": lambda: torch.from_numpy(DATA),
        "cube of a tensor of bfloat16": lambda: torch.from_numpy(DATA).bfloat16(),
        "transposed cube of a tensor": lambda: torch.from_numpy(DATA.transpose(0, 2, 1).copy()).mT,
        "list of tensors that require gradients": lambda: list(torch.from_numpy(DATA).requires_grad_()),
        "array of matrices": lambda: make_object_array(list(DATA)),
        "list of frames": lambda: [pd.DataFrame(series) for series in DATA],
        "list of frames with names": lambda: [pd.DataFrame(series, columns=CHANNELS) for series in DATA],
        "list of frames with names in another order": lambda: [
            pd.DataFrame(series, columns=CHANNELS)[CHANNELS[:: (-1) ** i]] for i, series in enumerate(DATA)
        ],
        "list of frames of nullable numbers": lambda: [pd.DataFrame(series, columns=CHANNELS).astype("Int64") for series in DATA],
        "list of categorical frames": lambda: [pd.DataFrame(series, columns=CHANNELS).astype("category") for series in DATA],
        "list of groups of groupby": lambda: [group for _, group in long().groupby(level=0)],
        "Series of frames": lambda: pd.Series(
            make_object_array([pd.DataFrame(series, columns=CHANNELS) for series in DATA]), index=NAMES
        ),
        "result of split_cases": lambda: split_cases(long()),
        "long frame": lambda: IndexedInput(long(), NAMES),
        "long frame with rows in any order": reorder_rows,
        "long frame in reversed order": lambda: reorder_rows(slice(None, None, -1)),
        "long frame sorted by time": lambda: reorder_rows(BY_TIME),
        "long frame with cases in another order": lambda: reorder_rows(np.arange(N * L).reshape(N, L)[SHUFFLED].ravel()),
        "long frame with each case in reversed order": lambda: reorder_rows(np.arange(N * L).reshape(N, L)[:, ::-1].ravel()),
        "long frame with channels in another order": lambda: IndexedInput(long()[CHANNELS[::-1]], NAMES),
        "long frame with numbered channels": lambda: IndexedInput(long(columns=[0, 1]), NAMES),
        "long frame with named levels": lambda: IndexedInput(long().rename_axis(["case", "time"]), NAMES),
        "long frame selected from another": lambda: IndexedInput(
            pd.concat([long(), long().rename(index=str.upper, level=0)]).loc[NAMES], NAMES
        ),
        **{
            f"long frame of {kind}": lambda kind=kind: IndexedInput(long().astype(kind), NAMES)
            for kind in ("float32", "int8", "uint16", "Int64", "Float64", "category", "object", pd.SparseDtype(float, 0.0))
        },
        "long frame of two dtypes": lambda: IndexedInput(long().astype({"flow": "Int8"}), NAMES),
        "times are dates of a time zone": lambda: make_long_with_times(HOURS.tz_localize("Asia/Tokyo")),
        "times have an hour that occurs twice": lambda: make_long_with_times(BERLIN),
        "times are dates in units of seconds": lambda: make_long_with_times(HOURS.as_unit("s")),
        "times are days": lambda: make_long_with_times(
            [datetime.date(2024, 2, 27 + i) if i < 3 else datetime.date(2024, 3, i) for i in range(L)]
        ),
        "times are uneven dates": lambda: make_long_with_times(HOURS + pd.to_timedelta(np.arange(L) ** 2, unit="D")),
        "times are periods": lambda: make_long_with_times(pd.period_range("2024-11", periods=L, freq="M")),
        "times are timedeltas": lambda: make_long_with_times(pd.timedelta_range("-2h", periods=L, freq="h")),
        "times are integers": lambda: make_long_with_times(np.arange(7, 7 + L)),
        "times are integers above ten": lambda: make_long_with_times(np.arange(8, 8 + L) * 5),
        "times are fractions": lambda: make_long_with_times(np.arange(L) / 3 - 1),
        "times are uint8": lambda: make_long_with_times(np.arange(L, dtype="u1")),
        "times are nullable integers": lambda: make_long_with_times(pd.array(range(L), dtype="Int64")),
        "times are dates of dtype object": lambda: IndexedInput(replace_level(1, pd.Index(list(HOURS) * N, dtype=object)), NAMES),
        "times are categorical dates": lambda: IndexedInput(replace_level(1, pd.CategoricalIndex(list(HOURS) * N)), NAMES),
        "cases are integers": lambda: make_long_with_cases(range(N)),
        "cases are decreasing integers": lambda: make_long_with_cases(range(N, 0, -1)),
        "cases are fractions": lambda: make_long_with_cases(np.arange(N) / 2),
        "cases are dates": lambda: make_long_with_cases(pd.date_range("2024", periods=N)),
        "cases are dates of a time zone": lambda: make_long_with_cases(pd.date_range("2024", periods=N, tz="UTC")),
        "cases are periods": lambda: make_long_with_cases(pd.period_range("2024", periods=N, freq="D")),
        "cases are categorical": lambda: make_long_with_cases(pd.CategoricalIndex(NAMES, categories=[*NAMES[::-1], "another"])),
        "cases are strings and integers": lambda: make_long_with_cases(pd.Index([*NAMES[:4], *range(4)], dtype=object)),
        "cases have letters of other alphabets": lambda: make_long_with_cases([f"Fall ж{i}" for i in range(N)]),
    },
    {
        "the axes of aeon": (
            lambda: DATA.transpose(0, 2, 1),
            r"`layout` must be set for series 0 of X with the shape \(2, 6\), got None: .*the latter has the 2 channels of fit",
        ),
        "a tensor with the axes of aeon": (
            lambda: torch.from_numpy(DATA).mT,
            r"`layout` must be set for series 0 of X with the shape \(2, 6\)",
        ),
        "a list with the axes of aeon": (
            lambda: list(DATA.transpose(0, 2, 1)),
            r"`layout` must be set for series 0 of X with the shape \(2, 6\)",
        ),
        "a table for two channels": (lambda: TABLE, "`X` must have 2 channels as in fit, got 1"),
        "three channels": (lambda: DATA[..., [0, 1, 1]], "`X` must have 2 channels as in fit, got 3"),
        "a list of unequal channels": (
            lambda: [*DATA[1:], DATA[0, :, :1]],
            "series 7 of `X` must have 2 channels like the first, got 1",
        ),
        "NaN in one series": (lambda: [*DATA[1:], DATA[0] * np.nan], "series 7 of `X` must contain only finite numbers"),
        "a masked series": (
            lambda: [*DATA[1:], np.ma.masked_greater(DATA[0], 5)],
            r"`X\[7\]` must be an array without masked values, got . masked",
        ),
        "a missing value in a long frame": (lambda: long().mask(long() > 8), "series . of `X` must contain only finite numbers"),
        "a nullable value missing in a long frame": (
            lambda: long().astype("Int64").mask(long() > 8),
            "series . of `X` must contain only finite numbers",
        ),
        "complex series": (lambda: DATA + 0j, "series 0 of `X` must contain only real numbers, got dtype complex128"),
        "strings in a long frame": (
            lambda: long().assign(flow="high"),
            "series 0 of `X` must contain only real numbers, got text, such as 'high'",
        ),
        "dates in a long frame": (
            lambda: long().assign(flow=HOURS[0]),
            "series 0 of `X` must contain only real numbers, got dtype datetime64",
        ),
        "a channel is missing": (
            lambda: long()[["level"]],
            r"series 0 of `X` must have the channels 'level', 'flow', got columns without 'flow'",
        ),
        "an additional channel": (
            lambda: long().assign(x=1.0),
            "series 0 of `X` must have the channels 'level', 'flow', got columns with 'x'$",
        ),
        "a channel has another name": (
            lambda: long(columns=["level", "Flow"]),
            r"series 0 of `X` must have the channels 'level', 'flow', got columns without 'flow'",
        ),
        "a channel occurs twice": (
            lambda: long(columns=["level", "level"]),
            r"series 0 of `X` must have unique columns, got 1 labels \('level'\) more",
        ),
        "columns have two levels": (
            lambda: long(columns=pd.MultiIndex.from_tuples([("a", 0), ("a", 1)])),
            "series 0 of `X` must have one level of columns, the channels, got 2",
        ),
        "a time occurs twice": (
            lambda: replace_level(1, REPEATED),
            "`X` must be without duplicated time stamps in a case, got 8, the first .* of case 'case 0'",
        ),
        "a whole case occurs twice": (
            lambda: pd.concat([long(), long().iloc[:L]]),
            "`X` must be without duplicated time stamps in a case, got 6",
        ),
        "a numbered case occurs twice": (
            lambda: pd.concat([long(), long().iloc[:L]]).rename(index=lambda case: int(case.removeprefix("case ")), level=0),
            "`X` must be without duplicated time stamps in a case, got 6, the first .* of case 0",
        ),
        "a time is missing": (
            lambda: replace_level(1, pd.DatetimeIndex([*HOURS[:5], None] * N)),
            "`X` must have a time stamp in each row, got 8 missing, first row 5",
        ),
        "a time is NaN": (
            lambda: replace_level(1, pd.Index([0, 1, 2, 3, 4, np.nan] * N)),
            "`X` must have a time stamp in each row, got 8 missing",
        ),
        "times are strings": (
            lambda: replace_level(1, pd.Index([f"t{i}" for i in range(L)] * N)),
            "`X` must have times .*, got the kind 'string'",
        ),
        "times are dates as strings": (
            lambda: replace_level(1, pd.Index(HOURS.strftime("%d.%m.%Y %H")).append([]).repeat(N)),
            "`X` must have times that are",
        ),
        "times are strings and integers": (
            lambda: replace_level(1, pd.Index([0, 1, 2, "3", 4, 5] * N, dtype=object)),
            "`X` must have times .*, got the kind 'mix",
        ),
        "times are booleans": (
            lambda: replace_level(1, pd.Index([True, False] * (N * L // 2))),
            "`X` must have times .*, got the kind 'boolean'",
        ),
        "times are intervals": (
            lambda: replace_level(1, pd.interval_range(0, periods=N * L)),
            "`X` must have times .*, got the kind 'interval'",
        ),
        "times have two time zones": (
            lambda: replace_level(
                1, pd.Index([HOURS[0].tz_localize("UTC"), HOURS[0].tz_localize("Asia/Tokyo")] * 24, dtype=object)
            ),
            "`X` must have times that are numbers, or dates",
        ),
        "a case is missing": (
            lambda: replace_level(0, pd.Index([None, *NAMES[1:]]).repeat(L)),
            "`X` must have a case for each row, got 6 rows without, first row 0",
        ),
        "levels in the wrong order": (lambda: long().swaplevel(), r"`X` must be indexed by \(case, time\), got \(time, case\)"),
        "three levels": (lambda: pd.concat({"plant": long()}), "`X` must be a frame indexed by .*, got an index of 3 levels"),
        "an empty long frame": (lambda: long().iloc[:0], "`X` must have at least one series, got none"),
        "a frame with decreasing times": (
            lambda: [pd.DataFrame(series, index=HOURS[::-1]) for series in DATA],
            "series 0 of `X` must be in the order of time, got .* in row 1 after",
        ),
        "a frame with a repeated time": (
            lambda: [pd.DataFrame(series, index=HOURS[[0, 1, 1, 2, 3, 4]]) for series in DATA],
            "series 0 of `X` must be without duplicated time stamps, got 1",
        ),
        "a frame with strings as times": (
            lambda: [pd.DataFrame(s, index=list("abcdef")) for s in DATA],
            "series 0 of `X` must have times that are",
        ),
        "dictionaries": (lambda: [dict.fromkeys(CHANNELS, 0)] * N, r"`X\[0\]` must be an array, a list or a frame, got a dict"),
    },
)


# Labels of TABLE, for `fit`.

ORDERED = pd.CategoricalDtype(["b", "a"], ordered=True)


def make_labels(values: Any = LABELS, index: Any = NAMES, dtype: Any = None) -> tuple[Any, Any]:
    """Return a frame of named cases, and labels as a Series whose rows are in another order."""
    return make_frame(index=NAMES), pd.Series(values, index=index, dtype=dtype).iloc[SHUFFLED]


add_inputs(
    "fit",
    {
        "list": lambda: (TABLE, LABELS.tolist()),
        "tuple": lambda: (TABLE, tuple(LABELS)),
        "deque": lambda: (TABLE, deque(LABELS)),
        "array of objects": lambda: (TABLE, LABELS.astype(object)),
        "array of longer strings": lambda: (TABLE, LABELS.astype("U20")),
        "array with gaps in memory": lambda: (TABLE, np.repeat(LABELS, 2)[::2]),
        "read-only array": lambda: (TABLE, make_read_only(LABELS)),
        "masked array without masked values": lambda: (TABLE, np.ma.array(LABELS)),
        "array-like object": lambda: (TABLE, ArrayLike(LABELS)),
        "numbers": lambda: (TABLE, (LABELS == "b").astype(int)),
        "uint8": lambda: (TABLE, (LABELS == "b").astype("u1")),
        "integers as floats": lambda: (TABLE, (LABELS == "b") * 2.0),
        "integers of dtype object": lambda: (TABLE, (LABELS == "b").astype(int).astype(object)),
        "booleans": lambda: (TABLE, LABELS == "b"),
        "tensor of numbers": lambda: (TABLE, torch.from_numpy((LABELS == "b").astype(int))),
        "tensor of booleans": lambda: (TABLE, torch.from_numpy(LABELS == "b")),
        "Series for an array": lambda: (TABLE, pd.Series(LABELS, index=NAMES)),
        "Series for a list of frames": lambda: ([pd.DataFrame(row) for row in TABLE], pd.Series(LABELS, index=NAMES)),
        "Series of the same order": lambda: (make_frame(index=NAMES), pd.Series(LABELS, index=NAMES)),
        "Series for numbered rows": lambda: (make_frame(), pd.Series(LABELS)),
        "Series in another order": make_labels,
        "Series of numbered rows in another order": lambda: (make_frame(), pd.Series(LABELS).iloc[SHUFFLED]),
        "Series by date in another order": lambda: (
            make_frame(index=pd.date_range("2024", periods=N)),
            pd.Series(LABELS, index=pd.date_range("2024", periods=N)).iloc[SHUFFLED],
        ),
        "integer index and float index": lambda: (make_frame(), pd.Series(LABELS, index=np.arange(8.0)).iloc[SHUFFLED]),
        "Series with a categorical index": lambda: make_labels(index=pd.CategoricalIndex(NAMES)),
        "Series with a repeated case in the same order": lambda: (
            make_frame(index=["a", "a", *NAMES[2:]]),
            pd.Series(LABELS, index=["a", "a", *NAMES[2:]]),
        ),
        "Series of strings": lambda: make_labels(dtype="string"),
        "Series of objects": lambda: make_labels(dtype=object),
        "categorical Series": lambda: make_labels(dtype="category"),
        "ordered categorical Series": lambda: make_labels(dtype=ORDERED),
        "Series of nullable numbers": lambda: make_labels((LABELS == "b").astype(int), dtype="Int64"),
        "Series of nullable booleans": lambda: make_labels(LABELS == "b", dtype="boolean"),
        "Series of int8": lambda: make_labels((LABELS == "b").astype("i1")),
        "named Series": lambda: (make_labels()[0], make_labels()[1].rename("state").rename_axis("case")),
        "cases in another order": lambda: (make_frame(index=NAMES), pd.Series(LABELS, index=NAMES).sort_index(ascending=False)),
        "Series for a long frame": lambda: (long(CHANNELS[:1]), pd.Series(LABELS, index=NAMES)),
        "Series in another order for a long frame": lambda: (long(CHANNELS[:1]), make_labels()[1]),
        "Series for a long frame in another order of rows": lambda: (
            long(CHANNELS[:1]).iloc[np.arange(N * L).reshape(N, L)[:, ::-1].ravel()],
            make_labels()[1],
        ),
        "list for a long frame in order": lambda: (long(CHANNELS[:1]), LABELS.tolist()),
        "array for a long frame sorted by time": lambda: (long(CHANNELS[:1]).iloc[BY_TIME], LABELS),
        "Series for a long Series": lambda: (long(CHANNELS[:1])["level"], make_labels()[1]),
        "Series for the result of split_cases": lambda: (split_cases(long(CHANNELS[:1])), make_labels()[1]),
        "array for the result of split_cases": lambda: (split_cases(long(CHANNELS[:1])), LABELS),
        "array for a Series of arrays": lambda: (pd.Series(list(TABLE), index=NAMES), LABELS),
        "Series for a Series of arrays": lambda: (pd.Series(list(TABLE), index=NAMES), make_labels()[1]),
        "column": lambda: (TABLE, LABELS[:, None]),
        "frame of one column": lambda: (make_labels()[0], make_labels()[1].to_frame()),
    },
    {
        "no labels": (lambda: (TABLE, None), "`y` must be given: this classifier requires y to be passed"),
        "one class": (lambda: (TABLE, ["a"] * N), "`y` must have at least two classes, got the one class 'a'"),
        "one class as numbers": (lambda: (TABLE, np.zeros(N, int)), "`y` must have at least two classes, got the one class 0"),
        "one class of categories": (
            lambda: (TABLE, pd.Categorical(["a"] * N, ["a", "b"])),
            "`y` must have at least two classes, got the one class 'a'",
        ),
        "too few": (lambda: (TABLE, LABELS[1:]), "`y` must have 8 labels, one for each series, got 7"),
        "too many": (lambda: (TABLE, [*LABELS, "a"]), "`y` must have 8 labels, one for each series, got 9"),
        "NaN": (
            lambda: (TABLE, np.array([0, 1, np.nan, 1, 0, 1, 0, 1])),
            "`y` must have a label in each row, got 1 of 8 missing, first row 2",
        ),
        "None": (lambda: (TABLE, [None, *LABELS[1:]]), "`y` must have a label in each row, got 1 of 8 missing, first row 0"),
        "a missing category": (
            lambda: (TABLE, pd.Series(LABELS).astype("category").where(LABELS == "a")),
            "`y` must have a label in each row, got 4 of 8",
        ),
        "a missing nullable": (
            lambda: (TABLE, pd.array([1, 0, None, 1, 0, 1, 0, 1])),
            "`y` must have a label in each row, got 1 of 8 missing",
        ),
        "infinite": (lambda: (TABLE, np.array([0, 1, np.inf, 1, 0, 1, 0, 1])), "Input y contains infinity"),
        "strings and integers": (
            lambda: (TABLE, np.array(["a", 1] * 4, dtype=object)),
            "`y` must contain only text or only numbers, got labels of kind 'mixed-integer'",
        ),
        "floats": (lambda: (TABLE, NUMBERS / 7), "`y` is not a valid target: Unknown label type: continuous"),
        "a column for each class": (lambda: (TABLE, np.eye(2)[(LABELS == "a").astype(int)]), "y should be a 1d array"),
        "bytes": (lambda: (TABLE, LABELS.astype("S")), "`y` "),
        "a string": (lambda: (TABLE, "abbabaab"), "`y` must be an array, a list or a frame, got a str"),
        "a dictionary": (
            lambda: (make_frame(index=NAMES), dict(zip(NAMES, LABELS, strict=True))),
            r"`y` must be an array, a list or a frame, got a dict.*pandas.Series\(y\)",
        ),
        "a generator": (lambda: (TABLE, (label for label in LABELS)), "`y` must be an array, a list or a frame, got a generator"),
        "a set": (lambda: (TABLE, {"a", "b"}), "`y` must be an array, a list or a frame, got a set"),
        "masked": (
            lambda: (TABLE, np.ma.masked_equal((LABELS == "b").astype(int), 1)),
            "`y` must be an array without masked values, got 4 masked",
        ),
        "other cases": (
            lambda: (make_frame(), pd.Series(LABELS, index=range(3, 11))),
            r"`y` must have the index of the cases of X, .* lacks 3 labels \(0, 1, 2\)",
        ),
        "cases of another name": (
            lambda: (make_frame(index=NAMES), pd.Series(LABELS)),
            r"`y` must have the index of the cases of X, .* lacks 8 labels \('case 0'",
        ),
        "integers for strings": (
            lambda: (make_frame(index=list("01234567")), pd.Series(LABELS)),
            r"`y` must have the index of the cases of X, .* \('0', '1'",
        ),
        "an additional case": (
            lambda: (make_frame(index=NAMES), pd.Series([*LABELS, "a"], index=[*NAMES, "x"])),
            r"has 1 labels \('x'\)",
        ),
        "a missing case": (
            lambda: (make_frame(index=NAMES), make_labels()[1].drop("case 3")),
            r"`y` .* lacks 1 labels \('case 3'\) of X",
        ),
        "a repeated case": (
            lambda: (make_frame(index=NAMES), make_labels(index=["a", "a", *NAMES[2:]])[1]),
            "`y` must have .* unique index, got 1 labels .* in the index of y",
        ),
        "a repeated case of X": (
            lambda: (make_frame(index=["a", "a", *NAMES[2:]]), make_labels()[1]),
            "`y` must have .* unique index, got 1 labels .* in the index of X",
        ),
        "a Series with a label for each row of a long frame": (
            lambda: (long(), pd.Series(LABELS.repeat(L), index=long().index)),
            "`y` must have the index of the cases of X",
        ),
        "a Series with the labels of some rows of a long frame": (
            lambda: (long(), pd.Series(LABELS.repeat(L), index=long().index).iloc[:-3]),
            "`y` must have the index of the cases of X, or a value for each of these 8, got one for each of 45 rows",
        ),
        "an array with a label for each row of a long frame": (
            lambda: (long(), LABELS.repeat(L)),
            "`y` must have the index of the cases of X, or a value for each of these 8, got one for each of 48 rows",
        ),
        "an array for a long frame that is not sorted": (
            lambda: (reorder_rows(np.arange(N * L)[::-1]).X, LABELS),
            "`y` must be indexed by case, .*, got values without an index and unsorted cases",
        ),
        "a list for a long frame with strings and integers as cases": (
            lambda: (make_long_with_cases(pd.Index([*NAMES[:4], *range(4)], dtype=object)).X, LABELS.tolist()),
            "`y` must be indexed by case, .*, got values without an index and unsorted cases",
        ),
    },
)

# Series of two channels, for `fit` with and without `layout`: (X, layout).
SHORT = [series[:steps] for series, steps in zip(DATA, (1, 2, 3, 4, 5, 6, 6, 6), strict=True)]
add_inputs(
    "layout",
    {
        "steps before channels": lambda: (DATA, None),
        "steps before channels with layout='nlc'": lambda: (DATA, "nlc"),
        "channels before steps": lambda: (DATA.transpose(0, 2, 1), "ncl"),
        "a contiguous cube of channels before steps": lambda: (DATA.transpose(0, 2, 1).copy(), "ncl"),
        "a tensor of channels before steps": lambda: (torch.from_numpy(DATA).mT, "ncl"),
        "a list of channels before steps": lambda: (list(DATA.transpose(0, 2, 1)), "ncl"),
        "nested lists of channels before steps": lambda: (DATA.transpose(0, 2, 1).tolist(), "ncl"),
        "tensors of channels before steps": lambda: (list(torch.from_numpy(DATA).mT), "ncl"),
        "rows of frames are steps in any layout": lambda: ([pd.DataFrame(series) for series in DATA], "ncl"),
        "rows of a long frame are steps in any layout": lambda: (long(), "ncl"),
    },
    {
        "the axes of aeon": (
            lambda: (DATA.transpose(0, 2, 1), None),
            r"`layout` must be set for series 0 of X with the shape \(2, 6\), got None: 2 steps of 6 channels with axes \(cases, "
            r"steps, channels\), layout='nlc', or 6 steps of 2 channels with axes \(cases, channels, steps\), layout='ncl'$",
        ),
        "a list with the axes of aeon": (
            lambda: (list(DATA.transpose(0, 2, 1)), None),
            "`layout` must be set for series 0 of X with the shape",
        ),
        "a tensor with the axes of aeon": (
            lambda: (torch.from_numpy(DATA).mT, None),
            "`layout` must be set for series 0 of X with the shape",
        ),
        "an array of arrays with the axes of aeon": (
            lambda: (make_object_array(list(DATA.transpose(0, 2, 1))), None),
            "`layout` must be set for series 0 of X with the shape",
        ),
        "more channels than steps": (lambda: (DATA[:, :1], None), "`layout` must be set .*1 step of 2 channels .* layout='nlc'"),
        "unequal lengths with the axes of aeon": (
            lambda: ([s.T for s in SHORT], None),
            "series 1 of `X` must have 1 channel like the first, got 2; with layout='ncl'",
        ),
        "an unknown layout": (lambda: (DATA, "nchw"), "`layout` must be one of nlc, ncl or None, got 'nchw'"),
    },
)

# Series of unequal lengths.
add_inputs(
    "ragged",
    {
        "arrays": lambda: SHORT,
        "tuple": lambda: tuple(SHORT),
        "lists": lambda: [series.tolist() for series in SHORT],
        "tensors": lambda: [torch.from_numpy(series) for series in SHORT],
        "frames": lambda: [pd.DataFrame(series, columns=CHANNELS) for series in SHORT],
        "frames from different days": lambda: [
            pd.DataFrame(s, index=pd.date_range(f"2024-01-0{i + 1}", periods=len(s))) for i, s in enumerate(SHORT)
        ],
        "array of arrays": lambda: make_object_array(SHORT),
        "Series of arrays": lambda: pd.Series(make_object_array(SHORT), index=NAMES),
        "arrays of several dtypes": lambda: [series.astype(kind) for series, kind in zip(SHORT, DTYPES, strict=False)],
        "long frame": lambda: IndexedInput(pd.concat(dict(zip(NAMES, map(pd.DataFrame, SHORT), strict=True))), NAMES),
        "long frame in another order": lambda: IndexedInput(
            pd.concat(dict(zip(NAMES, map(pd.DataFrame, SHORT), strict=True))).sample(frac=1, random_state=0), NAMES
        ),
    },
    {
        "an array of arrays of unequal channels": (
            lambda: make_object_array([*SHORT[1:], SHORT[0][:, :1]]),
            "series 7 of `X` must have . channels like the first, got 1",
        )
    },
)

# Times of the steps, for a model that was fitted on dates, after which numbers are seconds: (X, times).
SECONDS = np.cumsum(np.random.default_rng(3).integers(1, 9, (N, L)), axis=1).astype(float)
DATES = pd.Timestamp("2024-10-27") + pd.to_timedelta(SECONDS.ravel(), unit="s")
STAMPS = DATES.to_numpy().reshape(N, L)
TIMED = pd.DataFrame(DATA.reshape(-1, 2), index=pd.MultiIndex.from_arrays([pd.Index(NAMES).repeat(L), DATES]), columns=CHANNELS)


def convert_to_zone(zone: str) -> list[pd.DatetimeIndex]:
    return [pd.DatetimeIndex(row).tz_localize("UTC").tz_convert(zone) for row in STAMPS]


add_inputs(
    "times",
    {
        "array": lambda: (DATA, SECONDS),
        "lists": lambda: (DATA, SECONDS.tolist()),
        "list of arrays": lambda: (DATA, list(SECONDS)),
        "integers": lambda: (DATA, SECONDS.astype("i4")),
        "float16": lambda: (DATA, SECONDS.astype("f2")),
        "tensor": lambda: (DATA, torch.from_numpy(SECONDS)),
        "tensors": lambda: (DATA, list(torch.from_numpy(SECONDS))),
        "times with another start": lambda: (DATA, SECONDS + 4096),
        "dates": lambda: (DATA, STAMPS),
        "dates in units of seconds": lambda: (DATA, STAMPS.astype("M8[s]")),
        "dates of dtype object": lambda: (DATA, [list(pd.DatetimeIndex(row)) for row in STAMPS]),
        "dates of datetime": lambda: (DATA, [pd.DatetimeIndex(row).to_pydatetime().tolist() for row in STAMPS]),
        "dates over a change of the clock": lambda: (DATA, convert_to_zone("Europe/Berlin")),
        "dates of different zones": lambda: (
            DATA,
            [t.tz_convert(z) for t, z in zip(convert_to_zone("UTC"), ["UTC", "Asia/Tokyo"] * 4, strict=True)],
        ),
        "timedeltas": lambda: (DATA, list(pd.to_timedelta(SECONDS.ravel(), unit="s").to_numpy().reshape(N, L))),
        "periods": lambda: (DATA, [pd.PeriodIndex(pd.DatetimeIndex(row), freq="s") for row in STAMPS]),
        "Series": lambda: (DATA, [pd.Series(row) for row in SECONDS]),
        "nullable numbers": lambda: (DATA, [pd.array(row, dtype="Float64") for row in SECONDS]),
        "frame": lambda: (DATA, pd.DataFrame(SECONDS)),
        "index of frames": lambda: ([pd.DataFrame(s, index=t) for s, t in zip(DATA, SECONDS, strict=True)], "index"),
        "dates of frames": lambda: ([pd.DataFrame(s, index=t) for s, t in zip(DATA, STAMPS, strict=True)], "index"),
        "dates of frames of a zone": lambda: (
            [pd.DataFrame(s, index=t) for s, t in zip(DATA, convert_to_zone("Europe/Berlin"), strict=True)],
            "index",
        ),
        "index of a long frame": lambda: (IndexedInput(TIMED, NAMES), "index"),
        "index of a long frame in another order": lambda: (IndexedInput(TIMED.sample(frac=1, random_state=0), NAMES), "index"),
        "frame by case in another order": lambda: (
            split_cases(TIMED),
            pd.DataFrame(SECONDS, index=NAMES).iloc[SHUFFLED],
        ),
    },
    {
        "no times after a fit with times": (lambda: (DATA, None), "`times` must be given as in fit, got None"),
        "too few series": (lambda: (DATA, SECONDS[1:]), "`times` must have 8 series of times, got 7"),
        "too few steps": (lambda: (DATA, SECONDS[:, 1:]), "series 0 of `times` must have 6 times, one for each step, got 5"),
        "times of one series": (lambda: (DATA, SECONDS[0]), "`times` must have 8 series of times, got 6"),
        "decreasing times": (
            lambda: (DATA, SECONDS[:, ::-1]),
            "series 0 of `times` must be in the order of time, got times that go back",
        ),
        "local times over a change of the clock": (
            lambda: (DATA, [t.tz_localize(None) for t in (BERLIN,) * N]),
            "series 0 of `times` must be in the order of time, got times that go back",
        ),
        "NaN": (
            lambda: (DATA, np.where(SECONDS > 20, np.nan, SECONDS)),
            "series 0 of `times` must have a time stamp in each row, got . missing",
        ),
        "infinite": (
            lambda: (DATA, np.where(SECONDS > 20, np.inf, SECONDS)),
            "series 0 of `times` must have a time stamp in each row, got . missing",
        ),
        "strings": (lambda: (DATA, SECONDS.astype(str)), "series 0 of `times` must have times .*, got the kind 'string'"),
        "an additional axis": (
            lambda: (DATA, SECONDS[..., None]),
            "series 0 of `times` must have times that are numbers, or dates",
        ),
        "a string": (
            lambda: (DATA, "steps"),
            "`times` must be the times of the steps, or 'index' with series of pandas, got 'steps'",
        ),
        "index of arrays": (
            lambda: (DATA, "index"),
            "`times` must be the times of the steps, or 'index' with series of pandas, got 'index'",
        ),
        "an array for a long frame": (
            lambda: (TIMED, SECONDS),
            "`times` must be None or 'index', as X is indexed by time, got a ndarray",
        ),
        "an index of other cases": (
            lambda: (split_cases(TIMED), pd.DataFrame(SECONDS)),
            "`times` must have the index of the cases of X",
        ),
        "a generator": (lambda: (DATA, (row for row in SECONDS)), "`times` must be an array, a list or a frame, got a generator"),
    },
)


# Targets of TABLE for a regressor.
add_inputs(
    "regress",
    {
        "list": lambda: (TABLE, NUMBERS.tolist()),
        "integers": lambda: (TABLE, NUMBERS.astype("i2")),
        "float16": lambda: (TABLE, NUMBERS.astype("f2")),
        "dtype object": lambda: (TABLE, NUMBERS.astype(object)),
        "tensor": lambda: (TABLE, torch.from_numpy(NUMBERS)),
        "tensor that requires a gradient": lambda: (TABLE, torch.from_numpy(NUMBERS).requires_grad_()),
        "Series in another order": lambda: (make_frame(index=NAMES), pd.Series(NUMBERS, index=NAMES).iloc[SHUFFLED]),
        "Series of nullable numbers": lambda: (
            make_frame(index=NAMES),
            pd.Series(NUMBERS, index=NAMES, dtype="Float64").iloc[SHUFFLED],
        ),
        "Series for a long frame": lambda: (long(CHANNELS[:1]), pd.Series(NUMBERS, index=NAMES).iloc[SHUFFLED]),
    },
    {
        "strings": (lambda: (TABLE, LABELS), "`y` "),
        "NaN": (lambda: (TABLE, np.where(NUMBERS > 8, np.nan, NUMBERS)), "`y` is not a valid target: Input y contains NaN"),
        "dates": (lambda: (TABLE, NUMBERS.astype("M8[s]")), "`y` must contain only numbers, got dtype datetime64"),
        "an index of other cases": (
            lambda: (make_frame(index=NAMES), pd.Series(NUMBERS)),
            "`y` must have the index of the cases of X",
        ),
        "too few": (lambda: (TABLE, NUMBERS[1:]), r"`y` must have the shape \(8,\) or \(8, K\), .*, got \(7,\)"),
    },
)

# A series, and the index that its forecast must have; None for arrays, which have none.
START = pd.Timestamp("2024-10-26 21:00")


def make_dated_series(frequency: str, zone: str | None = None, start: pd.Timestamp = START) -> tuple[pd.Series, pd.Index]:
    """Return ONE with dates of a frequency, which the index does not state, and the dates that follow."""
    dates = pd.date_range(start, periods=len(ONE) + 3, freq=frequency, tz=zone)
    return pd.Series(ONE, index=pd.DatetimeIndex(dates[:-3], freq=None)), dates[-3:]


def make_stamped_series(stamps: Any) -> tuple[pd.Series, pd.Index]:
    """Return ONE with the first of the stamps as index, and the stamps that follow."""
    return pd.Series(ONE, index=stamps[:-3]), pd.Index(stamps[-3:])


add_inputs(
    "forecast",
    {
        **{f"array of {kind}": lambda kind=kind: (ONE.astype(kind), None) for kind in DTYPES},
        "array with gaps in memory": lambda: (add_gaps(ONE), None),
        "list": lambda: (ONE.tolist(), None),
        "tuple": lambda: (tuple(ONE), None),
        "column": lambda: (ONE[:, None], None),
        "tensor": lambda: (torch.from_numpy(ONE), None),
        "tensor of bfloat16": lambda: (torch.from_numpy(ONE).bfloat16(), None),
        "array.array": lambda: (array.array("d", ONE), None),
        "array-like object": lambda: (ArrayLike(ONE), None),
        "Series": lambda: (pd.Series(ONE), pd.RangeIndex(40, 43)),
        "Series of nullable numbers": lambda: (pd.Series(ONE).astype("Int64"), pd.RangeIndex(40, 43)),
        "categorical Series": lambda: (pd.Series(ONE).astype("category"), pd.RangeIndex(40, 43)),
        "Series of sparse numbers": lambda: (pd.Series(ONE).astype(pd.SparseDtype(float, 0.0)), pd.RangeIndex(40, 43)),
        "Series with another start": lambda: (pd.Series(ONE, index=range(5, 45)), pd.RangeIndex(45, 48)),
        "Series with steps of two": lambda: (pd.Series(ONE, index=range(0, 80, 2)), pd.RangeIndex(80, 86, 2)),
        "Series with steps of a tenth": lambda: make_stamped_series(np.arange(43) / 10),
        "frame of one column": lambda: (
            pd.DataFrame({"level": ONE}, index=make_dated_series("h")[0].index),
            make_dated_series("h")[1],
        ),
        **{
            f"dates by {f}": lambda f=f: make_dated_series(f)
            for f in ("h", "15min", "s", "D", "B", "W", "MS", "ME", "QE", "YS", "2h", "us")
        },
        "dates of UTC": lambda: make_dated_series("h", "UTC"),
        "hours over a change of the clock to winter time": lambda: make_dated_series("h", "Europe/Berlin"),
        "half hours over a change of the clock to summer time": lambda: make_dated_series(
            "30min", "Europe/Berlin", pd.Timestamp("2024-03-30 21:00")
        ),
        "days over a change of the clock": lambda: make_dated_series("D", "America/New_York", pd.Timestamp("2024-10-20")),
        "days with a stated frequency": lambda: (make_dated_series("D")[0].asfreq("D"), make_dated_series("D")[1]),
        "days of datetime": lambda: (
            pd.Series(ONE, index=pd.Index([d.date() for d in make_dated_series("D")[0].index], dtype=object)),
            pd.DatetimeIndex([d.date() for d in make_dated_series("D")[1]]),
        ),
        "months as periods": lambda: make_stamped_series(pd.period_range("2020-01", periods=43, freq="M")),
        "days as periods": lambda: make_stamped_series(pd.period_range("2020-02-01", periods=43, freq="D")),
        "timedeltas": lambda: make_stamped_series(pd.timedelta_range(0, periods=43, freq="10s")),
        "categorical dates": lambda: (
            make_dated_series("h")[0].set_axis(pd.CategoricalIndex(make_dated_series("h")[0].index)),
            make_dated_series("h")[1],
        ),
    },
    {
        "a gap": (
            lambda: make_dated_series("h")[0].drop(START + pd.Timedelta("5h")),
            "`y` must have equal steps, got 1 of 38 that differ from 0 days 01:",
        ),
        "a gap in numbers": (
            lambda: pd.Series(ONE).drop(7),
            "`y` must have equal steps, got 1 of 38 that differ from 1, the first between 6 and 8",
        ),
        "a gap in periods": (
            lambda: make_stamped_series(pd.period_range("2020", periods=43, freq="D"))[0].iloc[[0, *range(2, 40)]],
            "`y` must have equal steps",
        ),
        "a gap in timedeltas": (
            lambda: make_stamped_series(pd.timedelta_range(0, periods=43, freq="s"))[0].iloc[[0, *range(2, 40)]],
            "`y` must have equal steps",
        ),
        "two frequencies": (
            lambda: pd.Series(
                ONE, index=make_dated_series("h")[0].index[:20].append(pd.date_range("2025", periods=20, freq="D"))
            ),
            "`y` must have equal steps, got 20 of 39 that differ",
        ),
        "uneven numbers": (lambda: pd.Series(ONE, index=np.arange(40.0) ** 2), "`y` must have equal steps"),
        "a time twice": (
            lambda: pd.concat([make_dated_series("h")[0], make_dated_series("h")[0][-1:]]),
            "`y` must be without duplicated time stamps, got 1",
        ),
        "decreasing dates": (lambda: make_dated_series("h")[0][::-1], "`y` must be in the order of time, got .* in row 1 after"),
        "repeated local times": (
            lambda: make_dated_series("h", "Europe/Berlin")[0].tz_localize(None),
            "`y` must be without duplicated time stamps, got 1, the first 2024-10-27 02:00:00; .*tz_localize",
        ),
        "local times with a gap at the change of the clock": (
            lambda: make_dated_series("h", "Europe/Berlin", pd.Timestamp("2024-03-30 21:00"))[0].tz_localize(None),
            "`y` must have equal steps, got 1 of 39 .*local times of a place that changes its clocks need a time zone",
        ),
        "a missing time": (
            lambda: pd.Series(ONE, index=pd.DatetimeIndex([None, *HOURS[:1].repeat(39)])),
            "`y` must have a time stamp in each row, got 1 missing",
        ),
        "strings as times": (
            lambda: pd.Series(ONE, index=[f"t{i}" for i in range(40)]),
            "`y` must have times .*, got the kind 'string'",
        ),
        "NaN": (lambda: np.where(ONE > 8, np.nan, ONE), "`y` must contain only finite numbers"),
        "a missing value": (lambda: pd.Series(ONE).where(ONE < 9), "`y` must contain only finite numbers"),
        "strings": (lambda: ["a"] * 40, "`y` must contain only real numbers, got text, such as 'a'"),
        "complex": (lambda: ONE + 0j, "`y` must contain only real numbers, got dtype complex128"),
        "dates": (lambda: ONE.astype("M8[s]"), "`y` must contain only real numbers, got dtype datetime64"),
        "two channels": (lambda: SERIES, "`y` must have 1 channel as in fit, got 2"),
        "the wrong axis": (lambda: ONE[None], "`layout` must be set for series 0 of y"),
        "an empty array": (lambda: np.zeros(0), "`y` must have at least one series, got none"),
        "a generator": (lambda: (value for value in ONE), "`y` must be an array, a list or a frame, got a generator"),
        "a dictionary": (lambda: {"level": ONE}, "`y` must be an array, a list or a frame, got a dict"),
    },
)


@pytest.fixture(scope="module")
def fitted() -> dict[str, Any]:
    """Return a small model for each subject, fitted on plain arrays, except for named channels."""
    named = pd.concat(dict(zip(NAMES, (pd.DataFrame(series, columns=CHANNELS) for series in DATA), strict=True)))
    return {
        "table": SSMClassifier(**TINY).fit(TABLE, LABELS),
        "pair": SSMClassifier(**TINY).fit(named, LABELS),
        "ragged": SSMClassifier(**TINY).fit(SHORT, LABELS),
        "times": SSMClassifier("lru", **TINY).fit(DATA, LABELS, STAMPS),  # so that dates and numbers of seconds are accepted
        "regress": SSMRegressor(**TINY).fit(TABLE, NUMBERS),
        "forecast": SSMForecaster(**AHEAD).fit(ONE),
    }


PLAIN_PREDICTIONS = {
    "table": lambda model: model.predict_proba(TABLE),
    "fit": lambda model: model.predict_proba(TABLE),
    "pair": lambda model: model.predict_proba(DATA),
    "layout": lambda model: model.predict_proba(DATA),
    "ragged": lambda model: model.predict_proba(SHORT),
    "times": lambda model: model.predict_proba(DATA, SECONDS),
    "regress": lambda model: model.predict(TABLE),
    "forecast": lambda model: model.predict(ONE),
}


def order_by_case(predictions: Any, cases: list[Any] | None) -> np.ndarray:
    """Return predictions in the order of DATA, by their index if they must have one."""
    if cases is None:
        assert isinstance(predictions, np.ndarray), "arrays, wide frames and lists give arrays, as in scikit-learn"
        return predictions
    assert isinstance(predictions, pd.DataFrame), "predictions have the index of the cases"
    assert list(predictions.columns) == ["a", "b"]
    return np.stack([predictions.loc[case].to_numpy() for case in cases])


def predict(case: InputCase, fitted: dict[str, Any]) -> np.ndarray:
    """Return the predictions for an input in the order of DATA."""
    data = case.create()
    if case.subject == "fit":
        return SSMClassifier(**TINY).fit(*data).predict_proba(TABLE)
    if case.subject == "regress":
        return SSMRegressor(**TINY).fit(*data).predict(TABLE)
    if case.subject == "layout":
        X, layout = data
        model = SSMClassifier(**TINY, layout=layout).fit(X, pd.Series(LABELS, index=NAMES))
        return order_by_case(model.predict_proba(X), NAMES if isinstance(X, pd.DataFrame) else None)
    if case.subject == "forecast":
        y, stamps = data if case.error is None else (data, None)
        forecast = fitted["forecast"].predict(y)
        assert isinstance(forecast, (pd.Series, pd.DataFrame)) == (stamps is not None)
        if stamps is not None:
            assert forecast.index.equals(stamps), "the forecast has the stamps that follow those of the series"
        return np.asarray(forecast).reshape(-1)
    X, times = data if case.subject == "times" else (data, None)
    cases = X.cases if isinstance(X, IndexedInput) else None
    return order_by_case(fitted[case.subject].predict_proba(X.X if isinstance(X, IndexedInput) else X, times), cases)


@pytest.mark.filterwarnings("ignore:A column-vector y was passed", "ignore:X has feature names, but")
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("case", INPUTS, ids=lambda case: f"{case.subject}: {case.name}")
def test_input_gives_the_predictions_of_plain_arrays_or_raises(case: InputCase, fitted: dict[str, Any]) -> None:
    if case.error is None:
        plain = PLAIN_PREDICTIONS[case.subject](fitted[{"fit": "table", "layout": "pair"}.get(case.subject, case.subject)])
        np.testing.assert_array_equal(predict(case, fitted), plain)
        return
    with pytest.raises((ValueError, TypeError), match=case.error) as caught:
        predict(case, fitted)
    assert len(str(caught.value)) < 700


def test_there_are_two_hundred_inputs_and_most_are_valid() -> None:
    names = [(case.subject, case.name) for case in INPUTS]
    assert len(set(names)) == len(names) >= 200
    assert sum(case.error is None for case in INPUTS) >= 150


def test_every_error_names_its_argument() -> None:
    for case in INPUTS:
        argument = {"fit": "y", "regress": "y", "forecast": "y", "times": "times"}.get(case.subject, "X")
        if case.error is not None:
            named = rf"^(series \d of |series \. of |the columns of )?`{argument}\b|^`layout`|^(Input )?y |has 1 labels"
            assert re.search(named, case.error), f"{case.subject}: {case.name}: {case.error}"


def test_plain_predictions_differ_between_cases(fitted: dict[str, Any]) -> None:
    """Otherwise predictions in a wrong order would pass the tests."""
    for subject in ("table", "pair", "ragged", "times"):
        assert len(np.unique(PLAIN_PREDICTIONS[subject](fitted[subject]), axis=0)) == N
    assert len(np.unique(PLAIN_PREDICTIONS["regress"](fitted["regress"]))) == N
    assert len(np.unique(TABLE, axis=0)) == N
