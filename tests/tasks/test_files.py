"""Readers of series, compared with those of aeon: damaged files, wrong headers, missing values, encodings."""

import os
import re
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from longscan.tasks import read_arff, read_ts
from longscan.tasks.timeseries.files import read_arff_dimensions, read_recordings

AEON = Path(find_spec("aeon").submodule_search_locations[0]) / "datasets" / "data"

TS = """# a comment, é
@problemName Toy
@timeStamps false
@univariate false
@dimensions 2
@equalLength true
@seriesLength 3
@classLabel true up Down
@data
1,2,3:4,5,6.5:up
-1,-2e1,-3:+4,.5,6:Down
"""
ARFF = """% a comment
@relation 'toy'
@attribute relationalAtt relational
@attribute att0 numeric
@attribute att1 numeric
@end relationalAtt
@attribute class {up,'Down'}

@data
'1,2,3\\n4,5,6.5',up
"-1,-2e1,-3\\n+4,.5,6",Down
"""


@pytest.mark.parametrize(("name", "text", "read"), [("toy.ts", TS, read_ts), ("toy.arff", ARFF, read_arff)])
def test_ts_and_arff_give_the_same_series_and_labels(tmp_path, name, text, read):
    path = tmp_path / name
    path.write_text(text)
    recordings = read(path)
    assert [series.tolist() for series in recordings.series] == [[[1, 2, 3], [4, 5, 6.5]], [[-1, -20, -3], [4, 0.5, 6]]]
    assert recordings.labels == ["up", "Down"]
    assert recordings.classes == ("up", "Down")
    assert read_recordings(path).labels == recordings.labels


@pytest.mark.parametrize("name", ["BasicMotions", "JapaneseVowels", "ArrowHead", "PickupGestureWiimoteZ"])
def test_read_ts_equals_the_reader_of_aeon(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from aeon.datasets import load_from_ts_file
    for part in ("TRAIN", "TEST"):
        path = AEON / name / f"{name}_{part}.ts"
        recordings = read_ts(path)
        series, labels = load_from_ts_file(str(path))
        assert len(recordings.series) == len(series)
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(recordings.series, series, strict=True))
        assert [label.lower() for label in recordings.labels] == labels.tolist()


@pytest.mark.parametrize("name", ["BasicMotions", "ArrowHead", "GunPoint"])
def test_arff_and_ts_files_of_a_data_set_are_equal(name):
    arff, ts = (read_recordings(AEON / name / f"{name}_TRAIN.{ending}") for ending in ("arff", "ts"))
    assert len(arff.series) == len(ts.series)
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(arff.series, ts.series, strict=True))
    assert [label.lower() for label in arff.labels] == [label.lower() for label in ts.labels]


DAMAGED = [  # file name, content, text to replace, replacement, error message after the path
    ("toy.ts", TS, "4,5,6.5:up", "4,5:up", r":10: channel 2 must have 3 values, like channel 1, got 2$"),
    ("toy.ts", TS, ":+4,.5,6:Down", ":Down", r":11: the line must have 2 channels, like the first series, got 1$"),
    ("toy.ts", TS, ":+4,.5,6:Down", ":+4,.5", r":11: the line must end with a class label, got '\+4,.5'$"),
    ("toy.ts", TS, "6:Down", "6:", r":11: the line must end with a class label, got ''$"),
    ("toy.ts", TS, "-2e1", "-2e", r":11: values must be finite numbers, got '-2e'$"),
    ("toy.ts", TS, "-2e1", "-2e300", r":11: values must be at most 3.4e\+38, the largest of float32, got '-2e300'$"),
    ("toy.ts", TS, "-2e1", "-2_1", r":11: values must be finite numbers, got '-2_1'$"),
    ("toy.ts", "@data\nup\n", "", "", r":2: the line must have a channel before its label, got none$"),
    ("toy.ts", "@data\n1,2:up\n3,4:?\n", "", "", r": series 2 must have a class label, got '\?', which is a missing value$"),
    ("toy.ts", TS, "-2e1", "inf", r":11: values must be finite numbers, got 'inf'$"),
    ("toy.ts", TS, "-1,-2e1,-3:+4,.5,6", "?,?,?:NaN,?,?", r": series 2 must have values, got none$"),
    ("toy.ts", TS, "@data", "", r":10: a line before @data must start with '@' and a key, not with '1,2,3:4,5,6.5:up'$"),
    (
        "toy.ts",
        TS,
        "@timeStamps false",
        "@timeStamps true",
        r" must contain series with equal steps, got time stamps \(@timeStamps true\)$",
    ),
    ("toy.ts", TS, TS[TS.index("1,2") :], "", r" must contain series after @data, got none$"),
    ("toy.ts", TS, TS[TS.index("@data") :], "", r" must have a line @data, got none$"),
    ("toy.ts", TS, TS, "", r" must have a line @data, got none$"),
    ("toy.ts", TS, "1,2,3", "1,\0,3", r" must be UTF-8 text, got zero bytes$"),
    ("toy.arff", ARFF, "6.5',up", "6.", r":10: the line must be a series in quotes, a comma and a label, got "),
    ("toy.arff", ARFF, "6.5',up", "6.5',", r":10: the line must end with a class label, got ''$"),
    ("toy.arff", ARFF, "-1,-2e1", "-1,-2e1,9", r":11: channel 2 must have 4 values, like channel 1, got 3$"),
    ("toy.arff", ARFF, "-2e1", "two", r":11: values must be finite numbers, got 'two'$"),
    ("toy.arff", ARFF, "@data", "", r":10: a line before @data must start with '@'"),
    ("toy.arff", ARFF, ARFF[ARFF.index("'1,2") :], "", r" must contain series after @data, got none$"),
    ("toy.csv", "a,b\n1,2\n3,4\n", "3,4", "3", r":3: the line must have 2 columns, like the first row, got 1$"),
    ("toy.csv", "a,b\n1,2\n3,4\n", "3,4", "3,x", r":3: values must be finite numbers, got 'x'$"),
    ("toy.csv", "a,b\n1,2\n3,4\n", "1,2\n3,4\n", "", r" must contain numbers, got none$"),
    ("toy.csv", "a,b\n1,2\n3,4\n", "3,4", "3,4_0", r":3: values must be finite numbers, got '4_0'$"),
    ("toy.npy", "not numpy", "", "", r" must be an .npy file of numbers, got "),
    ("toy.xlsx", "", "", "", r": its name must end in one of .ts, .arff, .csv, .npy$"),
]


@pytest.mark.parametrize(("name", "text", "old", "new", "message"), DAMAGED)
def test_damaged_file_raises_an_error_of_one_line(tmp_path, name, text, old, new, message):
    path = tmp_path / name
    path.write_text(text.replace(old, new) if old else text)
    with pytest.raises(ValueError, match=rf"^{path}{message}") as caught:
        read_recordings(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", ["ts", "arff", "csv", "npy"])
def test_missing_file_raises(tmp_path, ending):
    with pytest.raises(ValueError, match=rf"^{tmp_path}/none.{ending} cannot be read: "):
        read_recordings(tmp_path / f"none.{ending}")


def test_encodings_other_than_utf8_raise_outside_of_comments(tmp_path):
    path = tmp_path / "toy.ts"
    path.write_bytes(TS.encode("latin-1"))
    assert len(read_ts(path).series) == 2, "a comment may be of any encoding"
    path.write_bytes(TS.replace("Down", "Düwn").encode("latin-1"))
    with pytest.raises(ValueError, match=rf"^{path}:8: the line must be UTF-8 text, got the byte 0xfc$"):
        read_ts(path)
    path.write_bytes(TS.encode("utf-16"))
    with pytest.raises(ValueError, match="must be UTF-8 text"):
        read_ts(path)
    path.write_bytes(b"\xef\xbb\xbf" + TS.replace("\n", "\r\n").encode())
    assert read_ts(path).labels == ["up", "Down"]


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        ("@seriesLength 3", "@seriesLength 127", "serieslength is 3, not 127"),
        ("@dimensions 2", "@dimensions 3", "dimensions is 2, not 3"),
        ("@univariate false", "@univariate true", "univariate is false, not true"),
        ("@equalLength true", "@equalLength false", None),
        ("1,2,3:4,5,6.5", "1,2:4,5", "equallength is false, not true"),
        ("1,2,3:4,5,6.5", "1,2,?:4,5,?", None),
        ("1,2,3:4,5,6.5", "1,2,3,4:4,5,6.5,7", "equallength is false, not true; serieslength is 3 to 4, not 3"),
        ("1,2,3", "1,?,3", None),
        ("@dimensions 2", "@missing true", None),
        ("@classLabel true up Down", "@classLabel true up Down Left", None),
        ("@data\n1,2,3", "@missing false\n@data\n1,?,3", "missing is true, not false"),
    ],
)
def test_wrong_header_warns_and_is_ignored(tmp_path, old, new, warning):
    path = tmp_path / "toy.ts"
    path.write_text(TS.replace(old, new))
    if warning is None:
        recordings = read_ts(path, "fill")
    else:
        with pytest.warns(UserWarning, match=f"its header does not fit its data, which are used: {warning}$") as caught:
            recordings = read_ts(path, "fill")
        assert len(caught) == 1
    assert set(recordings.labels) == set(recordings.classes) == {"up", "Down"}


def test_trailing_missing_values_shorten_a_series(tmp_path):
    path = tmp_path / "toy.ts"
    text = TS.replace("equalLength true", "equalLength false").replace("1,2,3:4,5,6.5", "1,?,3,NaN:4,,6.5,nan")
    path.write_text(text.replace("@seriesLength 3\n", ""))
    first, second = read_ts(path, "mask").series
    assert np.array_equal(first, [[1, np.nan, 3], [4, np.nan, 6.5]], equal_nan=True), "the last step is removed"
    assert second.shape == (2, 3)
    path = tmp_path / "toy.arff"
    path.write_text(ARFF.replace("-1,-2e1,-3\\n+4,.5,6", "-1,-2e1,?\\n+4,?,?"))
    assert [series.shape for series in read_arff(path, "mask").series] == [(2, 3), (2, 2)]


MISSING = TS.replace("1,2,3:4,5,6.5", "?,2,:4,NaN,6.5")  # three values, in the first series


@pytest.mark.parametrize(
    ("name", "text"), [("toy.ts", MISSING), ("toy.arff", ARFF.replace("1,2,3\\n4,5,6.5", "?,2,\\n4,NaN,6.5"))]
)
def test_missing_values_raise_are_filled_or_are_marked(tmp_path, caplog, name, text):
    path = tmp_path / name
    path.write_text(text)
    message = r"3 missing values \('\?', 'NaN' or nothing\) in 1 of its 2 series"
    with pytest.raises(ValueError, match=rf"^{path} has {message}, the first in series 1, channel 1, step 1; missing='fill'"):
        read_recordings(path)
    assert not caplog.records
    filled = read_recordings(path, "fill")
    assert filled.series[0].tolist() == [[2, 2, 2], [4, 5.25, 6.5]]
    assert filled.n_missing == 3
    assert re.search(rf"{path}: {message} were filled by linear interpolation", caplog.messages[-1])
    marked = read_recordings(path, "mask")
    assert np.array_equal(marked.series[0], [[np.nan, 2, np.nan], [4, np.nan, 6.5]], equal_nan=True)
    assert np.array_equal(marked.series[1], filled.series[1])
    assert "are marked as missing" in caplog.messages[-1]
    with pytest.raises(ValueError, match=r"^`?missing\b.* one of refuse, fill, mask\b"):
        read_recordings(path, "drop")


def test_filling_a_channel_without_values_raises(tmp_path):
    path = tmp_path / "toy.ts"
    path.write_text(TS.replace("4,5,6.5", "?,?,?"))
    with pytest.raises(ValueError, match=r": series 1 must have a value in channel 2, .*, got none; missing='mask' marks them$"):
        read_ts(path, "fill")
    assert np.isnan(read_ts(path, "mask").series[0][1]).all()


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("toy.ts", TS.replace("up Down", "up down"), 11),
        ("toy.ts", TS.replace("6.5:up", "6.5:Up"), 10),
        ("toy.ts", TS.replace("6.5:up", "6.5:?"), 10),
        ("toy.arff", ARFF.replace("{up,'Down'}", "{up,left}"), 11),
    ],
)
def test_label_that_the_header_does_not_list_raises(tmp_path, name, text, line):
    path = tmp_path / name
    path.write_text(text)
    message = rf"^{path}:{line}: the label must be one that the header lists \(up, "
    with pytest.raises(ValueError, match=message) as caught:
        read_recordings(path)
    assert "\n" not in str(caught.value)
    assert read_recordings(path, with_labels=False).labels is None, "labels are not checked unless they are read"


def test_array_with_ambiguous_axes_raises(tmp_path):
    path = tmp_path / "some.npy"
    array = np.arange(24.0).reshape(2, 3, 4)
    np.save(path, array)
    message = r"`layout` must be 'nlc' or 'ncl' .* None: the shape \(2, 3, 4\) of .*some.npy is 3 steps of 4 channels by 'nlc'"
    with pytest.raises(ValueError, match=message):
        read_recordings(path)
    assert np.array_equal(read_recordings(path, layout="ncl").series, array)
    assert np.array_equal(read_recordings(path, layout="nlc").series, array.transpose(0, 2, 1))
    with pytest.raises(ValueError, match=r"^`?layout\b.* one of nlc, ncl or None\b"):
        read_recordings(path, layout="lnc")


ARCHIVE = Path(os.environ.get("LONGSCAN_TEST_DATA", "/nowhere")) / "uea"
REAL = sorted(path for pattern in ("*/*_TRAIN.ts", "*/*_TRAIN.arff") for path in ARCHIVE.glob(pattern))


@pytest.mark.filterwarnings("ignore:.*missing is true, not false")
@pytest.mark.skipif(not REAL, reason="LONGSCAN_TEST_DATA names no folder with uea/NAME/NAME_TRAIN.ts")
@pytest.mark.parametrize("source", REAL, ids=lambda path: path.name)
def test_archive_files_are_valid_and_damage_to_them_raises(source, tmp_path):
    whole = read_recordings(source)
    assert whole.n_missing == 0
    assert set(whole.labels) == set(whole.classes)
    assert all(np.isfinite(series).all() for series in whole.series)
    lines = source.read_text(encoding="latin-1").splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if line.strip())
    value = re.search(r"(?<=,)-?\d[^,:]*(?=,)", lines[last])  # neither the first nor the last of a channel
    path = tmp_path / source.name
    damaged = lines[last][: value.start()] + "?" + lines[last][value.end() :]
    path.write_text("".join([*lines[:last], damaged]), encoding="latin-1")
    with pytest.raises(ValueError, match=rf" has 1 missing value .* in 1 of its {len(whole.series)} series, the first in series"):
        read_recordings(path)
    filled = read_recordings(path, "fill").series
    assert sum(int((a != b).sum()) for a, b in zip(filled, whole.series, strict=True)) <= 1
    label = re.escape(whole.labels[-1])
    renamed = re.sub(rf"(?<=[,:])(['\"]?){label}(['\"]?)\s*$", r"\1unknown-label\2\n", lines[last])
    assert renamed != lines[last]
    path.write_text("".join([*lines[:last], renamed]), encoding="latin-1")
    with pytest.raises(ValueError, match=rf":{last + 1}: the label must be one that the header lists .*, got 'unknown-label'"):
        read_recordings(path)


def test_file_without_labels_has_no_classes(tmp_path):
    path = tmp_path / "toy.ts"
    path.write_text("@classLabel false\n@data\n1,2:3,4\n")
    recordings = read_ts(path)
    assert recordings.labels is None
    assert recordings.classes == ()
    assert recordings.series[0].shape == (2, 2)
    path.write_text("@targetLabel true\n@data\n1,2:0.5\n")
    assert read_ts(path).labels == ["0.5"]


def test_read_arff_dimensions_joins_one_file_per_channel(tmp_path):
    header = "@relation toy\n@attribute a numeric\n@attribute class {up,down}\n@data\n"
    paths = [tmp_path / f"toyDimension{number}_TRAIN.arff" for number in (1, 2)]
    paths[0].write_text(header + "1,2,?,up\n3,4,5,down\n")
    paths[1].write_text(header + "6,?,?,up\n7,8,9,down\n")
    with pytest.raises(ValueError, match=r"toyDimension1_TRAIN.arff has 1 missing value .* in 1 of its 2 series"):
        read_arff_dimensions(paths)
    recordings = read_arff_dimensions(paths, "mask")
    assert recordings.labels == ["up", "down"]
    assert np.array_equal(recordings.series[0], [[1, 2], [6, np.nan]], equal_nan=True)
    assert recordings.series[1].tolist() == [[3, 4, 5], [7, 8, 9]]
    paths[1].write_text(header + "6,?,?,down\n7,8,9,down\n")
    with pytest.raises(ValueError, match=r"toyDimension2_TRAIN.arff must have the labels of .*, got others"):
        read_arff_dimensions(paths)
    paths[1].write_text(header + "6,?,?,up\n")
    with pytest.raises(
        ValueError, match=r"toyDimension2_TRAIN.arff must have the number and the lengths of the series of .*, got others"
    ):
        read_arff_dimensions(paths)


def test_key_of_a_header_without_a_value_is_ignored(tmp_path):
    path = tmp_path / "toy.ts"
    path.write_text("@problemName\n@timeStamps\n@univariate\n@classLabel\n@data\n1,2,3:up\n")
    recordings = read_ts(path)
    assert recordings.series[0].tolist() == [[1, 2, 3]]
    assert recordings.classes == ("up",)


def test_empty_line_of_a_csv_file_of_one_channel_is_a_missing_value(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("\nx\n1\n\n# a comment\n3\n\n")
    assert read_recordings(path, "fill").series[0].tolist() == [[1, 2, 3]]
    with pytest.raises(ValueError, match=r" has 1 missing value .* in series 1, channel 1, step 2; missing='fill'"):
        read_recordings(path)
    path.write_text("x,y\n1,2\n\n3,4\n")
    assert read_recordings(path).series[0].tolist() == [[1, 3], [2, 4]]


@pytest.mark.parametrize("header", ["0", "0,1,2", "1,2", "2001,2002", "0, 10, 20"])
def test_numbers_that_may_be_names_of_channels_are_refused_in_a_csv_file(header, tmp_path):
    path = tmp_path / "one.csv"
    rows = "\n".join(",".join(f"{step}.5" for _ in header.split(",")) for step in range(3))
    path.write_text(f"\n{header}\n{rows}\n")
    with pytest.raises(ValueError, match=f"one.csv:2: the first line must be names or values, got '{header}', which can be both"):
        read_recordings(path)
    path.write_text(f"#{header}\n{rows}\n")
    assert read_recordings(path).series[0].shape[1] == 3
    path.write_text(f"{','.join('x' for _ in header.split(','))}\n{header}\n{rows}\n")
    assert read_recordings(path).series[0][:, 0].tolist() == [float(word) for word in header.split(",")]


@pytest.mark.parametrize(
    "rows",
    ["0.0\n0.5", "1\n1.5", "0\n2\n0.5", "2,1\n.5,.5", "0,0\n.5,.5", "3,7\n.5,.5", "1.0,2.0\n.5,.5", "1,2\n3,4", "0,1,2"],
    ids=repr,
)
def test_first_line_of_a_csv_file_without_header_is_a_step(rows, tmp_path):
    path = tmp_path / "one.csv"
    path.write_text(rows)
    assert read_recordings(path).series[0].T.tolist() == [[float(word) for word in row.split(",")] for row in rows.split("\n")]


def test_whole_numbers_from_zero_on_are_names_of_channels_also_before_whole_numbers(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("0,1\n3,4\n")
    with pytest.raises(ValueError, match=r"one\.csv:1: the first line must be names or values, got '0,1', which can be both"):
        read_recordings(path)


@pytest.mark.parametrize("row", ["inf", "1e39"])
def test_first_line_of_a_csv_file_is_no_header_if_its_numbers_are_too_large(row, tmp_path):
    path = tmp_path / "one.csv"
    path.write_text(f"{row}\n1\n2\n")
    with pytest.raises(ValueError, match=f"one.csv:1: values must be .*, got '{row}'"):
        read_recordings(path)


def test_csv_and_npy_files_are_read_as_series(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("x, y\n1, 2\n3,\n5,6\n")
    assert np.array_equal(read_recordings(path, "mask").series[0], [[1, 3, 5], [2, np.nan, 6]], equal_nan=True)
    assert read_recordings(path, "fill").series[0].tolist() == [[1, 3, 5], [2, 4, 6]]
    with pytest.raises(ValueError, match=r" has 1 missing value .* the first in series 1, channel 2, step 2; missing='fill'"):
        read_recordings(path)
    path = tmp_path / "some.npy"
    np.save(path, np.arange(12).reshape(2, 3, 2))
    assert [series.shape for series in read_recordings(path).series] == [(2, 3), (2, 3)]
    assert read_recordings(path).series[1].tolist() == [[6, 8, 10], [7, 9, 11]]
    np.save(path, np.arange(6.0).reshape(3, 2))
    assert read_recordings(path).series[0].tolist() == [[0, 2, 4], [1, 3, 5]]
    np.save(path, np.array([[1.0, np.inf], [2.0, 3.0]]))
    with pytest.raises(ValueError, match=r"some\.npy must contain finite values, got 1 infinite ones"):
        read_recordings(path)
    np.save(path, np.arange(3))
    with pytest.raises(ValueError, match=r"must be numbers of shape .*, got int64 of shape \(3,\)$"):
        read_recordings(path)
    np.save(path, np.array([["a"]]))
    with pytest.raises(ValueError, match=r"must be numbers of shape .*, got <U1"):
        read_recordings(path)


@pytest.mark.parametrize("ending", ["ts", "arff", "csv", "npy"])
def test_whole_numbers_that_float64_does_not_have_are_errors(ending, tmp_path):
    path, number = tmp_path / f"one.{ending}", 2**53 + 1
    for value in (number, number - 1):
        text = {"ts": f"@data\n1,{value}:a\n", "arff": f"@data\n1,{value},a\n", "csv": f"x\n1\n{value}\n"}
        if ending == "npy":
            np.save(path, np.array([[1], [value]]))
        else:
            path.write_text(text[ending])
        if value < number:
            assert read_recordings(path).series[0].tolist() == [[1, value]]
        else:
            needed = rf"one.{ending}.* must contain whole numbers of at most 2\^53, .* got {number}; "
            with pytest.raises(ValueError, match=needed):
                read_recordings(path)
