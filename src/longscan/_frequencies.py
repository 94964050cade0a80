"""Frequencies of dates by their names in pandas."""

import warnings
from typing import Any


def infer_frequency(dates: Any) -> str | None:
    """Return the frequency of a DatetimeIndex by its name ("MS", "B"), None if there is none.

    From pandas 3.1 on `infer_freq` warns that it will return an offset instead of a name. Both are read here.
    """
    import pandas as pd

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="A future version of pandas will return a BaseOffset")
        found: Any = pd.infer_freq(dates)
    return found if found is None or isinstance(found, str) else str(found.freqstr)
