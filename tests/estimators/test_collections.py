"""Functions that read series, and the methods of collections: each rule and each error."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from longscan.estimators import SSMClassifier, SSMRegressor
from longscan.estimators.classifier import class_labels
from longscan.estimators.reading import (
    FittedChannels,
    align_targets,
    align_to_cases,
    check_table,
    contains_series,
    convert_input,
    is_table,
    read_collection,
    split_cases,
    tensor_as_array,
)
from longscan.estimators.series import Collection, pad_arrays


def make_object_array(*items):
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def long_frame(*rows) -> pd.DataFrame:
    index = pd.MultiIndex.from_tuples([row[:2] for row in rows], names=["case", "time"])
    return pd.DataFrame({"a": [float(row[2]) for row in rows]}, index=index)


@pytest.mark.parametrize(
    ("X", "table"),
    [
        ([1, 2], True),
        ([[1, 2], [3, 4]], True),
        ([(1, 2), (3, 4)], True),
        ([[1, 2], [3]], False),
        ([[1, 2], [3, 4, 5]], False),
        ([[1, 2], [[3], [4]]], False),
        ([[1, 2], np.zeros(2)], False),
        ([], False),
        (np.zeros(3), True),
        (np.zeros((2, 3)), True),
        (np.zeros((2, 3, 1)), False),
        (make_object_array([1.0], [2.0, 3.0]), False),
        (make_object_array("a", "b"), True),
        (make_object_array(), True),
        (pd.DataFrame({"a": [1]}), True),
        (pd.Series([1.0]), True),
        (pd.Series([np.zeros(2), np.zeros(3)]), False),
        (long_frame(("x", 0, 1)), False),
        (sparse.csr_array((2, 2)), True),
    ],
    ids=str,
)
def test_is_table_distinguishes_tables_from_series(X, table):
    assert is_table(X) is table


def test_contains_series_looks_at_the_first_element():
    assert contains_series(make_object_array([1.0], 2.0))
    assert not contains_series(make_object_array(2.0, [1.0])), "the first element decides"
    assert not contains_series(np.empty((1, 1), object))
    assert not contains_series(make_object_array())
    assert not contains_series(np.zeros(2))
    assert not contains_series(make_object_array(None, [1.0]))
    assert contains_series(pd.Series([np.zeros(2)], index=[5])), "by position, not by label"


UNORDERED = [{"a": 1}, {1, 2}, frozenset([1]), iter([1]), "ab", b"ab", (x for x in [1])]


@pytest.mark.parametrize("X", UNORDERED, ids=lambda X: type(X).__name__)
def test_converting_unordered_input_raises(X):
    with pytest.raises(ValueError, match=f"^`X` must be an array, a list or a frame, got a {type(X).__name__}"):
        convert_input(X)


def test_array_like_objects_are_converted_to_arrays():
    class Wrapped:
        def __array__(self, dtype=None, copy=None):
            return np.arange(3)

    class Frame(Wrapped):
        columns = ()

    assert convert_input((1, 2)) == [1, 2]
    assert convert_input(range(2)) == [0, 1]
    assert convert_input(memoryview(np.arange(3))).tolist() == [0, 1, 2]
    assert convert_input(Wrapped()).tolist() == [0, 1, 2]
    frame = Frame()
    assert convert_input(frame) is frame
    for unchanged in (np.zeros(2), pd.Series([1]), pd.DataFrame(), sparse.csr_array((1, 1))):
        assert convert_input(unchanged) is unchanged
    unmasked = np.ma.masked_array([1.0, 2.0], [False, False])
    assert type(convert_input(unmasked)) is np.ndarray
    with pytest.raises(ValueError, match=r"^`y` must be an array without masked values, got 2 masked"):
        convert_input(np.ma.masked_array([1.0, 2.0, 3.0], [False, True, True]), "y")


def test_tensors_are_converted_to_arrays():
    assert tensor_as_array(torch.tensor([1.5], dtype=torch.bfloat16), "X").dtype == np.float32
    assert tensor_as_array(torch.tensor([1.5], dtype=torch.float16), "X").dtype == np.float32
    assert tensor_as_array(torch.tensor([1.5], dtype=torch.float64, requires_grad=True), "X").dtype == np.float64
    assert convert_input(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]
    with pytest.raises(ValueError, match=r"^`X` must be a dense tensor, got layout"):
        tensor_as_array(torch.eye(2).to_sparse(), "X")
    with pytest.raises(ValueError, match=r"^`X` must be a tensor with values, got one on the device meta"):
        tensor_as_array(torch.zeros(2, device="meta"), "X")


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros(2, "datetime64[s]"), r"^`X` must be an array of real numbers, got dtype datetime64\[s\]"),
        (np.zeros(2, "timedelta64[s]"), r"^`X` must be an array of real numbers, got dtype timedelta64\[s\]"),
        (
            pd.DataFrame([[1, 2]], columns=[["a", "b"], ["c", "d"]]),
            "^`X` must be a frame with one level of columns, the steps, got 2 levels",
        ),
        (pd.DataFrame({"a": [1.0], "b": [1j]}), "^`X` must be a frame of real numbers, got dtype complex128.* in column 'b'"),
        (
            pd.DataFrame({"b": pd.to_datetime(["2024"])}),
            "^`X` must be a frame of real numbers, got dtype datetime64.* in column 'b'",
        ),
        (
            pd.DataFrame({"b": pd.PeriodIndex(["2024"], freq="Y")}),
            "^`X` must be a frame of real numbers, got dtype period.* in column 'b'",
        ),
        (
            pd.DataFrame({"a": [1.0], "b": [[1.0]]}),
            "^`X` must be a frame of real numbers, got a series in each cell of column 'b'",
        ),
        (pd.DataFrame([[1, 2]], columns=[2, 1]), "^the columns of `X` must be in the order of time, got .* in column 1 after"),
        (
            pd.DataFrame([[1, 2]], columns=pd.to_datetime(["2024-01-02", "2024-01-01"])),
            "^the columns of `X` must be in the order of time",
        ),
    ],
    ids=str,
)
def test_ambiguous_table_raises(X, message):
    with pytest.raises(ValueError, match=message):
        check_table(X)


def test_check_table_returns_valid_tables():
    for X in ([[1, 2]], np.zeros((1, 2)), pd.DataFrame([[1, 2]], columns=["b", "a"]), pd.DataFrame([[1, 2]], columns=[1, 2])):
        assert check_table(X) is X
    mixed = pd.DataFrame({"a": pd.arrays.SparseArray([0.0, 1.0]), "b": [2.0, 3.0]})
    assert [str(dtype) for dtype in check_table(mixed).dtypes] == ["float64", "float64"]


def test_split_cases_keeps_the_order_of_cases_and_sorts_times():
    parts = split_cases(long_frame(("y", 2, 1), ("x", 0, 2), ("y", 1, 3), ("x", 5, 4)))
    assert parts.index.tolist() == ["y", "x"]
    assert parts.index.name == "case"
    assert [part["a"].tolist() for part in parts] == [[3, 1], [2, 4]]
    assert [part.index.tolist() for part in parts] == [[1, 2], [0, 5]]


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (pd.DataFrame({"a": [1.0]}), "^`X` must be a frame indexed by .*, got an index of 1 levels"),
        ([1], "^`X` must be a frame indexed by .*, got a list"),
        (long_frame(("x", 0, 1)).iloc[:0], "^`X` must have at least one series, got none"),
        (
            long_frame(("x", 0, 1), (None, 1, 1), (None, 2, 1)),
            "^`X` must have a case for each row, got 2 rows without, first row 1",
        ),
        (
            long_frame((pd.Timestamp("2024"), 0, 1)),
            r"^`X` must be indexed by \(case, time\), got \(time, case\); X.swaplevel",
        ),
        (
            long_frame(("x", 4, 1), ("y", 7, 1), ("y", 8, 1), ("y", 8, 1), ("y", 7, 1)),
            "^`X` must be without duplicated time stamps in a case, got 2, the first 7 of case 'y'",
        ),
    ],
    ids=str,
)
def test_invalid_long_frame_raises(X, message):
    with pytest.raises(ValueError, match=message):
        split_cases(X)


def test_split_cases_accepts_equal_times_and_dates_as_cases():
    assert len(split_cases(long_frame(("x", 1, 1), ("y", 1, 2)))) == 2
    days = pd.to_datetime(["2024-01-01", "2024-01-02"])
    assert len(split_cases(long_frame((days[0], days[0], 1), (days[1], days[0], 1)))) == 2


@pytest.mark.parametrize(
    ("X", "options", "message"),
    [
        (np.zeros((1, 2, 3, 4)), {}, r"^`X` must be an array \(cases, steps, channels\), got 4 axes"),
        ([], {}, "^`X` must have at least one series, got none"),
        (
            [np.zeros((3, 2)), np.zeros((3, 1))],
            {},
            "^series 1 of `X` must have 2 channels like the first, got 1; with layout='ncl'",
        ),
        ([np.zeros((3, 2)), np.zeros((4, 1))], {}, "^series 1 of `X` must have 2 channels like the first, got 1$"),
        ([np.zeros((3, 2))], {"known": FittedChannels(1, None)}, "^`X` must have 1 channel as in fit, got 2"),
        (
            [np.zeros((3, 2))],
            {"known": FittedChannels(3, None), "layout": "nlc"},
            "^`X` must have 3 channels as in fit, got 2",
        ),
        ([np.zeros((3, 2)), "word"], {}, r"^`X\[1\]` must be an array, a list or a frame, got a str"),
        ([np.zeros(())], {}, r"^series 0 of `X` must have the shape .*, got \(\)"),
        ([np.zeros((2, 2, 2))], {}, r"^series 0 of `X` must have the shape .*, got \(2, 2, 2\)"),
        ([np.zeros((2, 0))], {}, r"^series 0 of `X` must have the shape .*, got \(2, 0\)"),
        (
            [np.array([0, np.nan, np.nan, np.inf])],
            {},
            r"^series 0 of `X` must contain only finite numbers, got 2 NaN and 1 infinity",
        ),
        ([pd.DataFrame({"a": [1.0, None]})], {}, r"got 1 NaN and 0 infinity"),
        ([np.array(["a"])], {}, "^series 0 of `X` must contain only real numbers, got text, such as 'a'"),
        ([np.zeros(2, "timedelta64[s]")], {}, r"^series 0 of `X` must contain only real numbers, got dtype timedelta64\[s\]"),
        ([pd.Series([1j])], {}, "^series 0 of `X` must contain only real numbers, got dtype complex128$"),
        (
            [pd.DataFrame({"date": pd.date_range("2024-01-01", periods=3), "x": 1.0})],
            {},
            r"got dtype datetime64\[..\]; set_index makes a column of dates the index$",
        ),
        ([pd.DataFrame({"date": ["2024-01-01"], "x": 1.0})], {}, "and set_index makes a column of dates the index$"),
        (
            [pd.DataFrame([[1, 2]], columns=[["a", "b"], ["c", "d"]])],
            {},
            "^series 0 of `X` must have one level of columns, the channels, got 2 levels",
        ),
        (
            [pd.DataFrame([[1, 2]], columns=["a", "a"])],
            {},
            r"^series 0 of `X` must have unique columns, got 1 labels \('a'\) more than once",
        ),
        (
            [pd.DataFrame([[1, 2]], columns=["a", "b"]), pd.DataFrame([[1, 2]], columns=["a", "c"])],
            {},
            r"^series 1 of `X` must have the channels 'a', 'b', got columns without 'b' and with 'c'",
        ),
        (
            [np.zeros((2, 3))],
            {},
            r"`layout` must be set for series 0 of X with the shape \(2, 3\), got None: 2 steps of 3 channels",
        ),
        ([np.zeros((2, 3))], {"known": FittedChannels(2, None)}, "layout='ncl', and the latter has the 2 channels of fit"),
        (
            [np.zeros(3)],
            {"times": "index"},
            "^`times` must be the times of the steps, or 'index' with series of pandas, got 'index'",
        ),
        (
            [pd.Series([1.0])],
            {"times": "columns"},
            "^`times` must be the times of the steps, or 'index' with series of pandas, got 'columns'",
        ),
        (long_frame(("x", 0, 1)), {"times": [[0]]}, "^`times` must be None or 'index', as X is indexed by time, got a list"),
        (long_frame(("x", 0, 1)), {"times": "other"}, "^`times` must be None or 'index', as X is indexed by time, got a str"),
        ([np.zeros(3)], {"times": []}, "^`times` must have 1 series of times, got 0"),
        ([np.zeros(3)], {"times": [[0, 1]]}, "^series 0 of `times` must have 3 times, one for each step, got 2"),
        ([np.zeros(3)], {"times": [[0, 2, 1]]}, "^series 0 of `times` must be in the order of time, got times that go back"),
    ],
    ids=str,
)
def test_invalid_collection_raises(X, options, message):
    with pytest.raises(ValueError, match=message):
        read_collection(X, **options)


def test_read_collection_orders_axes_by_layout():
    square, wide = np.arange(4.0).reshape(2, 2), np.arange(6.0).reshape(2, 3)
    assert read_collection([square]).values.tolist() == [square.tolist()], "square arrays have the axes (steps, channels)"
    assert read_collection([square], layout="ncl").values.tolist() == [square.T.tolist()]
    assert read_collection([wide], layout="ncl").values.shape == (1, 3, 2)
    assert read_collection([wide], layout="nlc").values.shape == (1, 2, 3)
    assert read_collection([wide, np.zeros((4, 3))]).channels == 3, "an axis of varying size cannot be that of channels"
    assert read_collection([wide], known=FittedChannels(3, None)).channels == 3
    assert read_collection([square], known=FittedChannels(2, None)).channels == 2
    assert read_collection([np.arange(3.0)]).values.shape == (1, 3, 1)
    assert read_collection([pd.DataFrame(wide)]).values.shape == (1, 2, 3), "rows of frames are steps"
    assert read_collection([pd.DataFrame(wide)], layout="ncl").values.shape == (1, 2, 3)


def test_channels_are_aligned_by_name():
    first, second = pd.DataFrame([[1.0, 2.0]], columns=["a", "b"]), pd.DataFrame([[3.0, 4.0]], columns=["b", "a"])
    collection = read_collection([first, second])
    assert collection.channel_names == ("a", "b")
    assert collection.values.tolist() == [[[1, 2]], [[4, 3]]]
    assert read_collection([first], known=FittedChannels(2, ("b", "a"))).values.tolist() == [[[2, 1]]]
    assert read_collection([pd.DataFrame([[1.0, 2.0]])]).channel_names is None
    assert not collection.is_long
    assert read_collection(long_frame(("x", 0, 1))).is_long


def test_align_to_cases_reorders_values_by_index():
    cases = pd.Index(["x", "y"])
    values = pd.Series([1, 2], index=["y", "x"])
    assert align_to_cases(values, cases, "y").tolist() == [2, 1]
    assert align_to_cases([1, 2], cases, "y") == [1, 2]
    assert align_to_cases(values, None, "y") is values
    for index, message in (
        (
            ["y", "y"],
            r"^`y` must have the index of X, or .* unique index, got 1 labels \('y'\) more than once in the index of y",
        ),
        (["y", "z"], r"got an index that lacks 1 labels \('x'\) of X, and has 1 labels \('z'\) that X has not"),
        (["y"], r"got an index that lacks 1 labels \('x'\) of X, and has none that X has not"),
        ([*"xyabcdef"], r"has 6 labels \('a', 'b', 'c', 'd', 'e', \.\.\.\) that X"),
        ([*"xyabcde"], r"has 5 labels \('a', 'b', 'c', 'd', 'e'\) that X"),
    ):
        with pytest.raises(ValueError, match=message):
            align_to_cases(pd.Series(range(len(index)), index=index), cases, "y")
    with pytest.raises(ValueError, match="more than once in the index of X"):
        align_to_cases(values, pd.Index(["x", "x"]), "y")


def test_targets_without_index_for_unsorted_cases_raise():
    rows, y = [("x", 0, 1), ("y", 0, 2)], np.array([1, 2])
    assert align_targets(read_collection(long_frame(*rows)), y) is y
    with pytest.raises(ValueError, match=r"^`y` must be indexed by case, .*, got values without an index and unsorted cases"):
        align_targets(read_collection(long_frame(*rows[::-1])), y)
    assert len(align_targets(read_collection(long_frame(*rows[::-1])), y[:1])) == 1, "another function checks the number"
    assert align_targets(read_collection(pd.Series([np.zeros(2)] * 2, index=[1, 0])), y) is y
    assert align_targets(read_collection(long_frame(*rows)), pd.Series([1, 2], index=["y", "x"])).tolist() == [2, 1]


def test_statistics_are_per_channel_and_of_valid_steps():
    """The standard deviation is 1 for channels that are constant up to rounding or too small for a division."""
    cases = {
        0.0: (0, 0),
        1.0: (5, 5),
        2e-9: (-2e-9, 2e-9),
        1e-29: (-1e-29, 1e-29),
        1e-7: (1, 1 + 2e-7),
    }
    values = np.array([list(pair) for pair in cases.values()]).T[None]
    _, deviation = Collection(values, np.array([2])).statistics()
    np.testing.assert_allclose(deviation, [1, 1, 2e-9, 1e-29, 1e-7], rtol=1e-6)
    tiny = np.array([[[1.0, 1e-39], [1 + 4e-9, -1e-39]]])
    assert Collection(tiny, np.array([2])).statistics()[1].tolist() == [1, 1]
    mean, deviation = Collection(np.array([[[1.0], [3.0]], [[8.0], [99.0]]]), np.array([2, 1])).statistics()
    assert mean.tolist() == [4], "padding is not counted"
    assert deviation[0] == pytest.approx(np.std([1, 3, 8]))


def test_collection_has_padding_gaps_and_a_time_unit():
    collection = pad_arrays([np.ones((1, 2)), np.full((3, 2), 2.0)])
    assert collection.values[:, :, 0].tolist() == [[1, 0, 0], [2, 2, 2]]
    assert collection.lengths.tolist() == [1, 3]
    assert collection.valid.tolist() == [[True, False, False], [True, True, True]]
    assert (len(collection), collection.channels) == (2, 2)
    assert collection.gaps() is None
    assert collection.time_unit() == 1
    timed = collection.with_times([[7], [3, 5, 10]])
    assert timed.times.tolist() == [[7, 0, 0], [3, 5, 10]]
    assert timed.gaps().tolist() == [[0, 0, 0], [0, 2, 5]]
    assert timed.time_unit() == 3.5
    assert collection.with_times([[7], [3, 3, 10]]).time_unit() == 7, "gaps of 0 do not count"
    assert collection.with_times([[7], [3, 3, 3]]).time_unit() == 1
    with pytest.raises(ValueError, match=r"^`times` must have 2 series of times, got 1"):
        collection.with_times([[7]])


def test_batches_are_standardised_values_masks_and_elapsed_times():
    collection = pad_arrays([np.array([[1.0], [3.0]]), np.array([[5.0]]), np.arange(4.0)[:, None]])
    timed = collection.with_times([[0, 4], [3], [0, 1, 3, 9]])
    mean, scale, device = np.array([1.0]), np.array([2.0]), torch.device("cpu")
    values, valid, elapsed = timed.standardise(mean, scale, 2.0, "X").batch(np.array([0, 1]), device)
    assert values.tolist() == [[[0], [1]], [[2], [0]]]
    assert valid.tolist() == [[True, True], [True, False]]
    assert elapsed.tolist() == [[1, 2], [1, 0]]
    assert (values.dtype, elapsed.dtype) == (torch.float32, torch.float32)
    values, valid, elapsed = collection.standardise(mean, scale, 2.0, "X").batch(np.array([2]), device)
    assert values[0, :, 0].tolist() == [-0.5, 0, 0.5, 1]
    assert valid is None
    assert elapsed is None
    assert timed.standardise(mean, scale, 0.5, "X").batch(np.array([2]), device)[2].tolist() == [[1, 2, 4, 12]]
    assert timed.standardise(mean, scale, 1.0, "X").batch(np.array([], int), device)[0].shape == (0, 1, 1)


def test_batches_of_few_lengths_are_padded_to_halves_of_the_longest_series():
    lengths, device = [13, 8, 7, 4, 3, 2, 1, 0], torch.device("cpu")
    collection = pad_arrays([np.arange(float(length))[:, None] for length in lengths])
    series = collection.with_times([np.arange(length) for length in lengths]).standardise(np.zeros(1), np.ones(1), 1.0, "X")
    for row, (length, padded) in enumerate(zip(lengths, [13, 13, 7, 4, 4, 2, 1, 1], strict=True)):
        values, valid, elapsed = series.batch(np.array([row]), device, few_lengths=True)
        assert values[0, :, 0].tolist() == [*range(length)] + [0] * (padded - length)
        assert valid.tolist() == [[True] * length + [False] * (padded - length)], "there is always a mask"
        assert elapsed.tolist() == [[1] * max(1, length) + [0] * (padded - max(1, length))]
    whole = series.select(np.array([0, 0]))
    assert whole.batch(np.arange(2), device, few_lengths=True).valid is None


@pytest.mark.parametrize(
    "X",
    [
        np.full((2, 3, 1), 2**53 + 1),
        np.full((2, 3, 1), 2**63, np.uint64),
        torch.full((2, 3, 1), -(2**60)),
        [[2**70, 1], [2, 3, 4]],
        [pd.Series([1, 2**53 + 1], dtype="Int64")] * 2,
    ],
    ids=lambda X: type(X).__name__,
)
def test_whole_numbers_that_float64_does_not_have_are_errors(X):
    with pytest.raises(ValueError, match=r"^series 0 of `X` must contain whole numbers of at most 2\^53, .* got -?\d{16,}; "):
        read_collection(convert_input(X))


def test_large_fractions_and_the_largest_exact_whole_numbers_are_read():
    for X in (np.full((2, 3, 1), 2**53), np.full((2, 3, 1), 1e300), [np.array([2.0**60, 1]), np.array([1.0])]):
        assert read_collection(convert_input(X)).values.max() == max(np.max(part) for part in X)


def test_tables_and_targets_of_large_whole_numbers_are_errors():
    X, y = np.arange(24).reshape(12, 2), np.arange(12)
    settings = {"spec": "lru", "d_model": 4, "d_state": 2, "epochs": 1, "device": "cpu"}
    for name, values in (("X", (X + 2**60, y)), ("y", (X, y + 2**60))):
        with pytest.raises(ValueError, match=rf"^`{name}` must contain whole numbers of at most 2\^53, which float64 has"):
            SSMRegressor(**settings).fit(*values)


@pytest.mark.parametrize("y", [["a", 1], ["1", 1], ["True", True], ["a", b"a"], ["a", np.int64(1)]], ids=repr)
def test_labels_of_a_list_are_text_or_numbers(y):
    with pytest.raises(ValueError, match=r"^`y` must contain only text or only numbers, got labels of kind 'mixed"):
        class_labels(y * 3)


def test_missing_labels_next_to_text_are_found():
    for missing in (np.nan, None, pd.NA, pd.NaT):
        with pytest.raises(ValueError, match=r"^`y` must have a label in each row, got 1 of 2 missing, first row 1$"):
            class_labels(["a", missing])
    assert class_labels(["a", np.str_("b")]).dtype.kind == "U"


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.astype(str),
        lambda x: x.astype("S"),
        lambda x: x.astype(str).astype(object),
        lambda x: pd.DataFrame(x).astype(object).replace(1, "1"),
        lambda x: list(x.astype(str)),
        lambda x: x.astype(str)[..., None],
        lambda x: pd.DataFrame({"a": x.ravel().astype(str)}, index=pd.MultiIndex.from_product([range(4), range(3)])),
    ],
)
def test_numbers_that_are_text_are_errors(make):
    """Python reads "1_0" as 10, and scikit-learn reads some of these and refuses others."""
    X = np.arange(12).reshape(4, 3)
    with pytest.raises(ValueError, match=r"must contain only real numbers, got text, such as b?'"):
        SSMClassifier().fit(make(X), [0, 1, 0, 1])
    assert SSMClassifier().fit(X.astype(object), [0, 1, 0, 1]).n_channels_ == 1


@pytest.mark.parametrize(
    ("y", "weights", "message"),
    [
        ([None, 1.0, 2.0, 3.0], None, "^`y` must contain only finite numbers, got 1 that are missing"),
        (np.array(["1_0", "2", "3", "4"], object), None, "^`y` must contain only real numbers, got text, such as '1_0'"),
        ([1, 2, 3, 4], ["1"] * 4, "^`sample_weight` must contain only real numbers, got text, such as '1'"),
    ],
)
def test_targets_and_weights_that_are_no_numbers_are_errors(y, weights, message):
    with pytest.raises(ValueError, match=message):
        SSMRegressor().fit(np.arange(12.0).reshape(4, 3), y, sample_weight=weights)
