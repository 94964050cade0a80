"""Frequencies of dates, by the return values of present and later versions of pandas."""

import warnings

import pandas as pd
import pytest

from longscan._frequencies import infer_frequency


@pytest.mark.parametrize("name", ["MS", "B", "h", "2h", "D", "W-SUN"])
def test_frequency_is_found_by_its_name(name):
    dates = pd.DatetimeIndex(list(pd.date_range("2024-01-01", periods=12, freq=name)))
    assert infer_frequency(dates) == name
    assert infer_frequency(dates.delete(5)) is None


def test_offsets_and_the_warning_of_later_versions_of_pandas_are_read(monkeypatch):
    offset = pd.tseries.frequencies.to_offset("MS")

    def infer(dates):
        warnings.warn("A future version of pandas will return a BaseOffset object", FutureWarning, stacklevel=2)
        return offset

    monkeypatch.setattr(pd, "infer_freq", infer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert infer_frequency(pd.date_range("2024-01-01", periods=3, freq="MS")) == "MS"
