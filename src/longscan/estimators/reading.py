"""Conversion of an estimator's input to a `Collection`: arrays, lists of series, frames by (case, time), Series of series.

Rows of frames are sorted by their index or rejected; labels are aligned with the series by the index. `layout` decides whether
the axes of an array are (cases, steps, channels) or (cases, channels, steps). Without it, in `fit`, an array is read as (cases,
steps, channels) and rejected if its last axis is longer than its middle one.
"""

import copy
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from torch import Tensor

from longscan._errors import count_text, quote
from longscan._float32 import check_exact_integers
from longscan.estimators.clock import as_clock, check_increasing
from longscan.estimators.series import Collection, pad_arrays

Layout = Literal["nlc", "ncl"]
ChannelNames = tuple[Hashable, ...]  # columns of frames
MAX_LISTED_LABELS = 5  # largest number of labels in an error


class FittedChannels(NamedTuple):
    """The number of channels and their names in the series of `fit`, which later series must match."""

    channels: int
    names: ChannelNames | None


def convert_input(X: Any, argument: str = "X") -> Any:
    """Convert tensors and array-like objects to numpy arrays and sequences to lists; keep frames, Series and sparse matrices.

    Raises ValueError for a masked array with masked values, and for objects without an order or a length.
    """
    if isinstance(X, Tensor):
        return tensor_as_array(X, argument)
    if isinstance(X, np.ma.MaskedArray):
        hidden = int((np.ones(X.shape, bool) & X.mask).sum())
        if hidden:
            raise ValueError(f"`{argument}` must be an array without masked values, got {hidden} masked values")
        return np.asarray(X.data)
    if isinstance(X, (np.ndarray, pd.DataFrame, pd.Series)) or sparse.issparse(X):
        return X
    if isinstance(X, Mapping):
        raise ValueError(
            f"`{argument}` must be an array, a list or a frame, got a {type(X).__name__}; pandas.Series({argument}) converts it, "
            "with its keys as the index of the cases"
        )
    if isinstance(X, (Set, Iterator)) or (isinstance(X, Iterable) and isinstance(X, (str, bytes))):
        raise ValueError(f"`{argument}` must be an array, a list or a frame, got a {type(X).__name__}")
    if isinstance(X, memoryview):
        return np.asarray(X)
    if isinstance(X, Sequence):
        return list(X)
    if hasattr(X, "__array__") and not hasattr(X, "columns"):
        return np.asarray(X)
    return X


def copy_input(X: Any, argument: str) -> Any:
    """Return converted input that shares no memory with `X`, so that later changes of `X` do not change it."""
    if X is None or np.isscalar(X):
        return X
    X = convert_input(X, argument)
    return [copy_input(part, argument) for part in X] if isinstance(X, list) else copy.deepcopy(X)


def tensor_as_array(tensor: Tensor, argument: str) -> np.ndarray:
    """Convert a tensor on any device to an array; fp16 and bfloat16 become float32."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ValueError(f"`{argument}` must be a dense tensor, got layout {tensor.layout}")
    if tensor.is_meta:
        raise ValueError(f"`{argument}` must be a tensor with values, got one on the device meta")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    return np.asarray((tensor.float() if half else tensor).numpy())


def is_table(X: Any) -> bool:
    """Return whether converted X is a table (n, L) of equally long series of one channel, for scikit-learn's checks."""
    if isinstance(X, (pd.DataFrame, pd.Series)):
        return not isinstance(X.index, pd.MultiIndex) and not contains_series(X)
    if isinstance(X, np.ndarray):
        return X.ndim < 3 and not contains_series(X)
    if isinstance(X, list):
        flat = all(np.isscalar(row) for row in X)
        rows = all(isinstance(row, (list, tuple)) and all(map(np.isscalar, row)) and len(row) == len(X[0]) for row in X)
        return bool(X) and (flat or rows)
    return True  # scikit-learn converts any other object to an array or rejects it


def contains_series(X: Any) -> bool:
    """Return whether X is a one-dimensional array of objects that are series."""
    if X.ndim != 1 or not len(X) or X.dtype != object:
        return False
    first = X.iloc[0] if isinstance(X, pd.Series) else X[0]
    return not np.isscalar(first) and hasattr(first, "__len__")


def check_no_text(given: Any, name: str) -> None:
    """Raise ValueError for text or bytes among values: Python would read "1_0" as 10. name: of the values in the error."""
    columns = [given]
    if isinstance(given, pd.DataFrame):
        columns = [given.iloc[:, number] for number, dtype in enumerate(given.dtypes) if dtype.kind == "O"]
    for column in columns:
        try:
            values = np.asarray(column)
        except ValueError:  # lists of unequal lengths, for which callers have an error
            continue
        if values.dtype.kind not in "OUS":
            continue
        text = next((value for value in values.ravel().tolist() if isinstance(value, (str, bytes))), None)
        if text is not None:
            raise ValueError(
                f"{name} must contain only real numbers, got text, such as {quote(text)}; astype(float) converts text of "
                "numbers, get_dummies of pandas turns classes into numbers, and set_index makes a column of dates the index"
            )


def check_table(X: Any) -> Any:
    """Return a table with dense columns. Raises ValueError for a table that scikit-learn would accept but misinterpret."""
    if isinstance(X, np.ndarray) and X.dtype.kind in "mM":
        raise ValueError(f"`X` must be an array of real numbers, got dtype {X.dtype}")
    if isinstance(X, np.ndarray):
        check_no_text(X, "`X`")
    if not isinstance(X, pd.DataFrame):
        return X
    if isinstance(X.columns, pd.MultiIndex):
        raise ValueError(
            f"`X` must be a frame with one level of columns, the steps, got {X.columns.nlevels} levels; "
            "X.stack(future_stack=True) returns a frame indexed by (case, time) with one column for each channel"
        )
    for name, dtype in X.dtypes.items():
        if dtype.kind in "mMc" or isinstance(dtype, (pd.PeriodDtype, pd.IntervalDtype)):
            raise ValueError(f"`X` must be a frame of real numbers, got dtype {dtype} in column {name!r}")
        if contains_series(X[name]):
            raise ValueError(
                f"`X` must be a frame of real numbers, got a series in each cell of column {name!r}; pass a list of arrays"
            )
    check_no_text(X, "`X`")
    if _are_times(X.columns):
        check_increasing(as_clock(X.columns, "the columns of `X`"), "the columns of `X`", steps="column")
    is_sparse = [isinstance(dtype, pd.SparseDtype) for dtype in X.dtypes]
    return X.astype({name: X.dtypes[name].subtype for name in X.columns[is_sparse]}) if any(is_sparse) else X


def _are_times(columns: pd.Index) -> bool:
    """Return whether the columns of a table are numbers, dates, periods or durations."""
    is_clock = isinstance(columns, (pd.DatetimeIndex, pd.PeriodIndex, pd.TimedeltaIndex))
    return is_clock or pd.api.types.is_any_real_numeric_dtype(columns) or pd.api.types.infer_dtype(columns) == "date"


def step_names(X: Any) -> tuple[Hashable, ...] | None:
    """Return the columns of a table that are neither text, which scikit-learn compares with those of `fit`, nor times."""
    if not isinstance(X, pd.DataFrame) or _are_times(X.columns) or all(isinstance(name, str) for name in X.columns):
        return None
    return tuple(X.columns)


def split_cases(X: pd.DataFrame | pd.Series) -> pd.Series:
    """Split a frame indexed by (case, time) into a Series of frames, one for each case, indexed by case.

    Estimators treat it like the frame, and scikit-learn's tools, which select rows, select whole cases:
    `cross_val_score(model, split_cases(X), y)`. Rows of a case are sorted by time; cases stay in the order of their first
    occurrence. Raises ValueError if a case or a time is missing, a case has a duplicate time, or times have no order.
    """
    cases, parts = _split_long(X, "X")
    series = np.empty(len(parts), dtype=object)
    for row, part in enumerate(parts):
        series[row] = part
    return pd.Series(series, index=cases)


def _split_long(X: Any, argument: str) -> tuple[pd.Index, list[Any]]:
    """Return the cases of a long frame, and the rows of each sorted by time and indexed by time."""
    if not isinstance(X, (pd.DataFrame, pd.Series)) or X.index.nlevels != 2:
        got = f"an index of {X.index.nlevels} levels" if isinstance(X, (pd.DataFrame, pd.Series)) else f"a {type(X).__name__}"
        raise ValueError(f"`{argument}` must be a frame indexed by (case, time), got {got}")
    if not len(X):
        raise ValueError(f"`{argument}` must have at least one series, got none")
    first, second = X.index.get_level_values(0), X.index.get_level_values(1)
    if first.isna().any():
        raise ValueError(
            f"`{argument}` must have a case for each row, got {first.isna().sum()} rows without, first row "
            f"{int(first.isna().argmax())}"
        )
    dated = [isinstance(level, (pd.DatetimeIndex, pd.PeriodIndex, pd.TimedeltaIndex)) for level in (first, second)]
    if dated == [True, False]:
        raise ValueError(f"`{argument}` must be indexed by (case, time), got (time, case); {argument}.swaplevel() exchanges them")
    times = as_clock(second, f"`{argument}`")
    codes, cases = pd.factorize(first)
    order = np.lexsort((pd.factorize(times, sort=True)[0], codes))
    same = codes[order][1:] == codes[order][:-1]
    twice = same & np.asarray(times[order][1:] == times[order][:-1])
    if twice.any():
        row = order[1:][twice][0]
        raise ValueError(
            f"`{argument}` must be without duplicated time stamps in a case, got {twice.sum()}, the first {times[row]} of case "
            f"{quote(first.tolist()[row])}"
        )
    ordered = X.iloc[order].set_axis(times[order], axis=0)
    bounds = np.flatnonzero(np.diff(codes[order])) + 1
    edges = [0, *bounds.tolist(), len(order)]
    cases = pd.Index(cases, name=X.index.names[0])
    return cases, [ordered.iloc[start:stop] for start, stop in pairwise(edges)]


def read_collection(
    X: Any, times: Any = None, *, layout: Layout | None = None, known: FittedChannels | None = None, argument: str = "X"
) -> Collection:
    """Convert input that is no table to a collection.

    Args:
        X: converted by `convert_input`: an array (n, L, C); a list, a Series or an object array of arrays, Series or frames,
        (L_i,) or (L_i, C);
            or a Series or frame indexed by (case, time).
        times: None, (n, L), a list of one array for each series, or "index": the index of each series.
        layout: axes of arrays, "nlc" or "ncl"; None: "nlc" if "ncl" is impossible or less likely.
        known: number and names of channels that the series must have, None in fit.
        argument: name of X in errors.
    """
    cases, is_long = None, False
    if isinstance(X, (pd.DataFrame, pd.Series)) and isinstance(X.index, pd.MultiIndex):
        cases, parts = _split_long(X, argument)
        is_long = True
        if times is not None and not (isinstance(times, str) and times == "index"):
            raise ValueError(f"`times` must be None or 'index', as {argument} is indexed by time, got a {type(times).__name__}")
    elif isinstance(X, np.ndarray) and X.dtype != object and X.ndim > 3:
        raise ValueError(f"`{argument}` must be an array (cases, steps, channels), got {X.ndim} axes")
    else:
        cases = X.index if isinstance(X, pd.Series) else None
        parts = [convert_input(part, f"{argument}[{index}]") for index, part in enumerate(X)]
    if not parts:
        raise ValueError(f"`{argument}` must have at least one series, got none")
    parts = [_without_case_level(part) for part in parts]
    arrays = [_values(_series_name(argument, index, parts), part) for index, part in enumerate(parts)]
    names = _channel_names(parts, known)
    if names is not None:
        for index, part in enumerate(parts):
            arrays[index] = _reorder_channels(_series_name(argument, index, parts), part, arrays[index], names)
    arrays = _apply_layout(parts, arrays, layout, known, argument)
    channels = arrays[0].shape[1]
    for index, array in enumerate(arrays):
        if array.shape[1] != channels:
            alike = len({len(array) for array in arrays}) == 1
            hint = "; with layout='ncl', (channels, steps), the series have equally many channels" if alike else ""
            needed = count_text(channels, "channel")
            raise ValueError(f"series {index} of `{argument}` must have {needed} like the first, got {array.shape[1]}{hint}")
    if known is not None and channels != known.channels:
        raise ValueError(f"`{argument}` must have {count_text(known.channels, 'channel')} as in fit, got {channels}")
    collection = replace(pad_arrays(arrays), cases=cases, channel_names=names, is_long=is_long)
    if all(isinstance(part, (pd.Series, pd.DataFrame)) for part in parts):
        clocks = []
        for index, part in enumerate(parts):
            clocks.append(as_clock(part.index, _series_name(argument, index, parts)))
            check_increasing(clocks[-1], _series_name(argument, index, parts))
        collection = replace(collection, clocks=tuple(clocks))
    if isinstance(times, str):
        if times != "index" or collection.clocks is None:
            raise times_keyword_error(times)
        times = collection.clocks
    return collection if times is None else collection.with_times(align_times(times, cases))


def _series_name(argument: str, index: int, parts: list[Any]) -> str:
    """Return the name by which errors refer to a series."""
    return "`y`" if argument == "y" and len(parts) == 1 else f"series {index} of `{argument}`"


def times_keyword_error(times: str) -> ValueError:
    """Return the error for a text as `times` that is not "index", or for "index" with series that have none."""
    return ValueError(f"`times` must be the times of the steps, or 'index' with series of pandas, got {times!r}")


def times_presence_error(has_times: bool) -> ValueError:
    """Return the error for `times` that are missing although `fit` had them (`has_times`), or given although it had none."""
    return ValueError(f"`times` must be {'given' if has_times else 'None'} as in fit, got {'None' if has_times else 'times'}")


def align_times(times: Any, cases: pd.Index | None) -> Any:
    """Return `times`, a row per case, in the order of the cases if both have an index."""
    times = convert_input(times, "times")
    if isinstance(times, (pd.DataFrame, pd.Series)):
        return align_to_cases(times, cases, "times").to_numpy()
    return times


def align_to_cases(values: Any, cases: pd.Index | None, argument: str) -> Any:
    """Return values in the order of the cases if both have an index.

    Raises ValueError naming the labels in which the indexes differ.
    """
    if cases is None or not isinstance(values, (pd.Series, pd.DataFrame)) or values.index.equals(cases):
        return values
    for name, index in ((argument, values.index), ("X", cases)):
        if not index.is_unique:
            twice = index[index.duplicated()].unique()
            raise ValueError(
                f"`{argument}` must have the index of X, or both must have a unique index, got {_format_labels(twice)} more than "
                f"once in the index of {name}"
            )
    lacking, surplus = cases.difference(values.index, sort=False), values.index.difference(cases, sort=False)
    if len(lacking) or len(surplus):
        raise ValueError(
            f"`{argument}` must have the index of the cases of X, got an index that lacks {_format_labels(lacking)} of X, and "
            f"has {_format_labels(surplus)} that X has not; rows are matched by index (reset_index(drop=True) of both matches by "
            "position)"
        )
    return values.loc[cases]


def _format_labels(labels: pd.Index) -> str:
    """Return the number of labels and the first of them as text: "7 labels ('a', 'b', ...)"."""
    if not len(labels):
        return "none"
    return f"{len(labels)} labels ({_list_labels(labels)})"


def _list_labels(labels: pd.Index) -> str:
    """Return the first labels as text: "'a', 'b', ..."."""
    shown = ", ".join(str(label) if isinstance(label, tuple) else repr(label) for label in labels[:MAX_LISTED_LABELS].tolist())
    return shown + (", ..." if len(labels) > MAX_LISTED_LABELS else "")


def align_targets(collection: Collection, y: Any) -> Any:
    """Return `y` in the order of the collection's cases. Raises ValueError if the order is ambiguous."""
    y = convert_input(y, "y")
    has_rows = isinstance(y, (pd.Series, pd.DataFrame)) and y.index.nlevels > 1
    steps = int(collection.lengths.sum())
    if collection.is_long and steps != len(collection) and (has_rows or len(y) == steps):
        raise ValueError(
            f"`y` must have the index of the cases of X, or a value for each of these {len(collection)}, got one for each of "
            f"{len(y)} rows; for tools of scikit-learn that select rows, split_cases(X) returns the cases as rows"
        )
    if isinstance(y, (pd.Series, pd.DataFrame)):
        return align_to_cases(y, collection.cases, "y")
    cases = collection.cases
    if collection.is_long and cases is not None and len(y) == len(cases) and not cases.is_monotonic_increasing:
        raise ValueError(
            "`y` must be indexed by case, or the cases of X must be sorted, got values without an index and unsorted cases: "
            "their order is ambiguous; pass a Series, or X.sort_index() with y in the order of the sorted cases"
        )
    return y


def _without_case_level(part: Any) -> Any:
    """Return one case of a frame indexed by (case, time), as from groupby, indexed by time."""
    pandas = isinstance(part, (pd.Series, pd.DataFrame))
    if pandas and part.index.nlevels == 2 and part.index.get_level_values(0).nunique(dropna=False) == 1:
        return part.droplevel(0)
    return part


def _values(source: str, part: Any) -> np.ndarray:
    """Convert one series to float64, (L,) or (L, C). Raises ValueError for anything but finite real numbers."""
    if isinstance(part, pd.DataFrame) and part.columns.nlevels > 1:
        raise ValueError(f"{source} must have one level of columns, the channels, got {part.columns.nlevels} levels")
    pandas = isinstance(part, (pd.Series, pd.DataFrame))
    kinds = list(part.dtypes) if isinstance(part, pd.DataFrame) else [part.dtype] if pandas else []
    for dtype in kinds:
        if dtype.kind in "cmM" or isinstance(dtype, (pd.PeriodDtype, pd.IntervalDtype)):
            raise _dtype_error(source, dtype)
    check_no_text(part, source)
    try:
        array = part.to_numpy(dtype=np.float64, na_value=np.nan) if pandas else np.asarray(part)
        converted = array.astype(np.float64) if array.dtype.kind not in "cmM" else None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source} must contain only real numbers, got a value that is no number ({error})") from None
    if converted is None:
        raise _dtype_error(source, array.dtype)
    array = converted
    if array.ndim not in (1, 2) or 0 in array.shape:
        raise ValueError(f"{source} must have the shape (length,) or (length, channels), got {array.shape}")
    if not np.isfinite(array).all():
        nan, infinite = np.isnan(array).sum(), np.isinf(array).sum()
        raise ValueError(f"{source} must contain only finite numbers, got {nan} NaN and {infinite} infinity")
    check_exact_integers(part, array, source)
    return array


def _dtype_error(source: str, dtype: Any) -> ValueError:
    has_dates = dtype.kind == "M" or isinstance(dtype, pd.PeriodDtype)
    advice = "; set_index makes a column of dates the index" if has_dates else ""
    return ValueError(f"{source} must contain only real numbers, got dtype {dtype}{advice}")


def column_names(part: Any) -> ChannelNames | None:
    """Return the columns of a frame, such as text, numbers of sensors, dates or tuples; None for anything else.

    The columns 0, 1, ... in this order are no names.
    """
    if not isinstance(part, pd.DataFrame):
        return None
    names = tuple(part.columns)
    return names if names != tuple(range(len(names))) or _has_flags(names) else None


def _has_flags(names: ChannelNames) -> bool:
    """Return whether True or False is among the names, which Python takes for 1 and 0."""
    return any(isinstance(name, bool) for name in names)


def are_positions(names: ChannelNames) -> bool:
    """Return whether names are the positions of the channels, 0, 1, ..., in any order, as of a frame without names."""
    return set(names) == set(range(len(names))) and not _has_flags(names)


def _channel_names(parts: list[Any], known: FittedChannels | None) -> ChannelNames | None:
    """Return the names of the channels: those of `fit`, else the columns of the first frame with names.

    Columns 0, 1, ... in another order are positions, and are sorted.
    """
    if known is not None and known.names is not None:
        return known.names
    for part in parts:
        names = column_names(part)
        if names is not None:
            return tuple(range(len(names))) if are_positions(names) else names
    return None


def flat_index(names: Iterable[Hashable]) -> pd.Index:
    """Return an index of one level with the names, which may be tuples."""
    return pd.Index(list(names), tupleize_cols=False)


def _reorder_channels(source: str, part: Any, array: np.ndarray, names: ChannelNames) -> np.ndarray:
    """Return the channels of a frame in the order of `names`; arrays and frames without names are unchanged."""
    if column_names(part) is None:
        return array
    columns, expected = flat_index(part.columns), flat_index(names)
    if not columns.is_unique:
        raise ValueError(f"{source} must have unique columns, got {_format_labels(columns[columns.duplicated()])} more than once")
    order = columns.get_indexer(expected)
    lacking, surplus = expected[order < 0], columns[expected.get_indexer(columns) < 0]
    if len(lacking) or len(surplus):
        parts = [f"{word} {_list_labels(found)}" for word, found in (("without", lacking), ("with", surplus)) if len(found)]
        raise ValueError(f"{source} must have the channels {_list_labels(expected)}, got columns {' and '.join(parts)}")
    return array[:, order]


def _apply_layout(
    parts: list[Any], arrays: list[np.ndarray], layout: Layout | None, known: FittedChannels | None, argument: str
) -> list[np.ndarray]:
    """Return arrays (L_i, C) according to the layout. Raises ValueError describing both layouts if it is None and ambiguous.

    Rows of frames are always steps. After `fit` the number of channels determines the layout. Before it, the layout is ambiguous
    if an array has more columns than rows, unless the number of rows varies, since then it is no number of channels.
    """
    free = [i for i, part in enumerate(parts) if arrays[i].ndim == 2 and not isinstance(part, pd.DataFrame)]
    rows, columns = {arrays[i].shape[0] for i in free}, {arrays[i].shape[1] for i in free}
    if layout is None and free:
        if known is not None:
            wrong = columns != {known.channels} and rows == {known.channels}
        else:
            wrong = len(rows) == 1 and max(columns) > min(rows) and len(columns) == 1
        if wrong:
            steps, channels = arrays[free[0]].shape
            agrees = "" if known is None else f", and the latter has the {count_text(known.channels, 'channel')} of fit"
            raise ValueError(
                f"`layout` must be set for series {free[0]} of {argument} with the shape ({steps}, {channels}), got None: "
                f"{count_text(steps, 'step')} of {count_text(channels, 'channel')} with axes (cases, steps, channels), "
                f"layout='nlc', or {count_text(channels, 'step')} of {count_text(steps, 'channel')} with axes (cases, channels, "
                f"steps), layout='ncl'{agrees}"
            )
    transposed = set(free) if layout == "ncl" else set()
    return [array[:, None] if array.ndim == 1 else array.T if i in transposed else array for i, array in enumerate(arrays)]
