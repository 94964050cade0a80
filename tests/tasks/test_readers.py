"""Errors of readers for each part of a condition: both orders of unequal lengths, and each damage of an old pickle."""

import pickle
from pathlib import Path

import pytest

from longscan.tasks.lra._cifar10 import _encode_latin1
from longscan.tasks.timeseries.files import read_arff_dimensions

HEADER = "@relation a\n{attributes}@attribute target {{x,y}}\n@data\n"


def write_arff(path: Path, *series: tuple[list[float], str]) -> Path:
    steps = max(len(values) for values, _ in series)
    attributes = "".join(f"@attribute att{step} numeric\n" for step in range(steps))
    rows = "".join(",".join([*map(str, values), label]) + "\n" for values, label in series)
    path.write_text(HEADER.format(attributes=attributes) + rows)
    return path


def test_channels_in_separate_files_must_agree(tmp_path: Path) -> None:
    first = write_arff(tmp_path / "1.arff", ([1, 2, 3], "x"), ([4, 5, 6], "y"))
    second = write_arff(tmp_path / "2.arff", ([7, 8, 9], "x"), ([0, 0, 1], "y"))
    read = read_arff_dimensions([first, second])
    assert [series.tolist() for series in read.series] == [[[1, 2, 3], [7, 8, 9]], [[4, 5, 6], [0, 0, 1]]]
    shorter = write_arff(tmp_path / "3.arff", ([7, 8], "x"), ([0, 0], "y"))
    fewer = write_arff(tmp_path / "4.arff", ([7, 8, 9], "x"))
    for pair in ((first, shorter), (shorter, first), (first, fewer), (fewer, first)):
        with pytest.raises(ValueError, match=rf"^{pair[1]} must have the number and the lengths of the series of {pair[0]}"):
            read_arff_dimensions(pair)
    other = write_arff(tmp_path / "5.arff", ([7, 8, 9], "y"), ([0, 0, 1], "x"))
    with pytest.raises(ValueError, match=rf"^{other} must have the labels of {first}, got others"):
        read_arff_dimensions([first, other])


@pytest.mark.parametrize(("text", "encoding"), [("a", "ascii"), (b"a", "latin1"), (3, "latin1"), (3, "ascii")])
def test_old_pickles_have_texts_in_latin1(text: object, encoding: str) -> None:
    assert _encode_latin1("a\xe9", "latin1") == b"a\xe9"
    with pytest.raises(pickle.UnpicklingError, match=f"the encoding must be latin1, got '{encoding}'"):
        _encode_latin1(text, encoding)
