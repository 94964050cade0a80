"""Frequencies of dates by their names in pandas."""

import warnings
from typing import Any

SEASONS = {  # steps in a week or a year, by the names of pandas without what follows a hyphen
    ("D",): 7,
    ("B", "C"): 5,
    ("W",): 52,
    ("ME", "MS", "BME", "BMS", "M"): 12,
    ("QE", "QS", "BQE", "BQS", "Q"): 4,
}


def steps_in_season(name: str) -> int:
    """Return how many steps of a frequency, such as "D", "BME" or "QS-OCT", are in a week or a year; 1 for any other name."""
    code = name.split("-")[0]
    return next((count for names, count in SEASONS.items() if code in names), 1)


def infer_frequency(dates: Any) -> str | None:
    """Return the frequency of a DatetimeIndex by its name ("MS", "B"), None if there is none.

    From pandas 3.1 on `infer_freq` warns that it will return an offset instead of a name. Both are read here.
    """
    import pandas as pd

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="A future version of pandas will return a BaseOffset")
        found: Any = pd.infer_freq(dates)
    return found if found is None or isinstance(found, str) else str(found.freqstr)
