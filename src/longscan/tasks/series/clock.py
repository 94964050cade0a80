"""Time stamps of a user's tables: dates in several formats, or numbers.

A format is accepted if it reads every row, and if several do, the one with which the clock of every series increases.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from longscan._float32 import MAX_EXACT_INTEGER
from longscan._frequencies import infer_frequency

if TYPE_CHECKING:
    import pandas as pd

MIN_YEAR, MAX_YEAR = 1678, 2261  # whole years that int64 nanoseconds have
_DAYS = ("%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y")
_PERIODS = {"day": 86_400.0, "week": 7 * 86_400.0, "year": 365.2425 * 86_400.0}  # seconds
_FREQUENCIES = {
    "B": "business days",
    "MS": "first days of months",
    "ME": "last days of months",
    "BMS": "first business days of months",
    "BME": "last business days of months",
    "QS": "first days of quarters",
    "QE": "last days of quarters",
    "YS": "first days of years",
    "YE": "last days of years",
}  # by their names in pandas
HOUR, _DAY = 3600 * 10**9, 86_400 * 10**9  # nanoseconds
_MONDAY = 4 * 86_400.0  # seconds from 1970-01-01, a Thursday, to the next Monday
WITH_OFFSETS = "ISO8601 with offsets"  # such as 2024-01-31 12:00+02:00; a separate format, so that a table does not mix both
OFFSET = r"(?:[Zz]|[Tt ]\d{2}.*[+-]\d{2}(?::?\d{2})?)$"
FORMATS = ("numbers", "ISO8601", WITH_OFFSETS, *(f"{day}{time}" for time in ("", " %H:%M", " %H:%M:%S") for day in _DAYS))


class Clock(NamedTuple):
    """The time stamps of all rows: int64 nanoseconds since 1970, or float64 numbers, and the format that they were read with."""

    stamps: np.ndarray
    form: str

    @property
    def is_dated(self) -> bool:
        """Whether the time stamps are dates."""
        return self.form != "numbers"


class ClockReader:
    """Reads a column of time stamps piece by piece, in all formats that read every row so far.

    form: the only format to try, in the notation of `datetime.strptime`; None for `FORMATS`.
    """

    def __init__(self, form: str | None) -> None:
        self._stamps: dict[str, list[np.ndarray]] = {name: [] for name in ((form,) if form else FORMATS)}

    def add(self, words: "pd.Series") -> int | None:
        """Read more rows. Returns None, or the number of the first row among them that no format reads."""
        furthest, remaining = 0, {}
        for form, parts in self._stamps.items():
            stamps, wrong = _parse(words, form)
            if wrong is None:
                remaining[form] = [*parts, stamps]
            else:
                furthest = max(furthest, wrong)
        self._stamps = remaining or self._stamps
        return None if remaining else furthest

    def clocks(self) -> list[Clock]:
        """Return the time stamps by each format that reads every row, without formats that give the same ones."""
        found: list[Clock] = []
        forms = self._stamps.keys() - {"numbers"} or self._stamps.keys()  # 20240131 is a number, too
        for form, parts in self._stamps.items():
            if form not in forms:
                continue
            clock = Clock(np.concatenate(parts), form)
            if not any(np.array_equal(clock.stamps, other.stamps) for other in found):
                found.append(clock)
        return found


def _parse(words: "pd.Series", form: str) -> tuple[np.ndarray, int | None]:
    """Return the time stamps of words, and the row of the first that is none (None: all are)."""
    import pandas as pd

    if form == "numbers":
        numbers = pd.to_numeric(words, errors="coerce").to_numpy(np.float64)
        wrong = ~(np.abs(numbers) < MAX_EXACT_INTEGER)  # beyond it, different times may be the same number
        return numbers, int(wrong.argmax()) if wrong.any() else None
    is_iso = form in ("ISO8601", WITH_OFFSETS)
    dates = pd.to_datetime(words, format="ISO8601" if is_iso else form, errors="coerce", utc=True)
    wrong = dates.isna().to_numpy()
    if is_iso:  # of words of digits alone only those of eight, 20240131, are dates
        wrong = wrong | (words.str.isdigit() & (words.str.len() != 8)).to_numpy(bool)
        wrong = wrong | (words.str.contains(OFFSET) != (form == WITH_OFFSETS)).to_numpy(bool)
    wrong = wrong | ((dates.dt.year < MIN_YEAR) | (dates.dt.year > MAX_YEAR)).to_numpy(bool)
    if wrong.any():
        return np.zeros(0), int(wrong.argmax())
    return dates.dt.as_unit("ns").astype(np.int64).to_numpy(), None


def format_stamps(stamps: np.ndarray, form: str) -> list[str]:
    """Return time stamps as text: numbers, or dates of ISO 8601.

    form: the format in which they were read. Dates with offsets are in UTC, with the offset +00:00.
    """
    if form == "numbers":
        return [_format_number(number) for number in stamps.tolist()]
    import pandas as pd

    return [date.isoformat(" ") for date in pd.to_datetime(stamps, unit="ns", utc=has_offsets(form))]


def has_offsets(form: str) -> bool:
    """Return whether dates of a format have an offset to UTC."""
    return form == WITH_OFFSETS or "%z" in form


def clock_change_hint(stamp: int, form: str) -> str:
    """Return advice for a local time that occurs twice, or is before a gap, where clocks may have been changed; "" elsewhere.

    stamp: the local time. form: its format. Most places change their clocks between midnight and four o'clock.
    """
    if form == "numbers" or has_offsets(form) or stamp % _DAY >= 4 * HOUR:
        return ""
    return "; if the clocks were changed then, write times in UTC or with their offset, such as 2024-03-31 03:00+02:00"


def _format_number(number: float) -> str:
    """Return a number with 15 digits, without the rounding of sums such as 0.1 + 0.2, or with all if it needs more."""
    if number.is_integer() and abs(number) <= MAX_EXACT_INTEGER:
        return str(int(number))
    short = f"{number:.15g}"
    return short if abs(float(short) - number) <= 4 * np.finfo(np.float64).eps * abs(number) else str(number)


def usual_step(stamps: np.ndarray, offsets: np.ndarray) -> float:
    """Return the median step within the series; 1.0 if no series has two steps."""
    steps = np.diff(stamps)
    steps = np.delete(steps, offsets[1:-1] - 1) if len(offsets) > 2 else steps
    return float(np.median(steps)) if len(steps) else 1.0


def uneven_steps(stamps: np.ndarray, offsets: np.ndarray, usual: float) -> np.ndarray:
    """Return the rows before the steps within a series that differ from the usual one by more than rounding."""
    odd = np.abs(np.diff(stamps) - usual) > 1e-6 * usual + 4 * np.finfo(np.float64).eps * np.abs(stamps).max(initial=0) * (
        stamps.dtype.kind == "f"
    )
    odd[offsets[1:-1] - 1] = False
    return np.flatnonzero(odd)


def calendar_frequency(stamps: np.ndarray) -> str | None:
    """Return the calendar frequency of dates by its name in pandas ("MS", "B"), None if there is none."""
    import pandas as pd

    if len(stamps) < 3:
        return None
    try:
        return infer_frequency(pd.to_datetime(stamps, unit="ns"))
    except ValueError:
        return None


def format_frequency(frequency: str) -> str:
    """Return a calendar frequency as text with its name in pandas, "first days of months (MS)" for "MS"."""
    words = _FREQUENCIES.get(frequency.partition("-")[0])
    return f"{words} ({frequency})" if words else f"dates of the pandas frequency {frequency}"


def later_stamps(stamps: np.ndarray, count: int, usual: float, frequency: str | None, *, is_dated: bool) -> np.ndarray:
    """Return the next `count` time stamps after the last one: with the usual step, or with a calendar frequency."""
    if frequency is not None and is_dated:
        import pandas as pd

        dates = pd.date_range(pd.to_datetime(int(stamps[-1]), unit="ns"), periods=count + 1, freq=frequency)[1:]
        return dates.as_unit("ns").astype(np.int64).to_numpy()
    return stamps[-1] + np.arange(1, count + 1) * (int(usual) if is_dated else usual)


def first_decrease(stamps: np.ndarray, offsets: Sequence[int] | np.ndarray) -> int | None:
    """Return the first row whose time stamp is not after that of the row before it in its series, None if there is none."""
    wrong = np.diff(stamps) <= 0
    wrong[np.asarray(offsets)[1:-1] - 1] = False
    return int(wrong.argmax()) + 1 if wrong.any() else None


def calendar_periods(stamps: np.ndarray, usual: float) -> tuple[str, ...]:
    """Return the periods of the calendar that are longer than two steps and occur twice in dates: "day", "week", "year"."""
    span = float(stamps.max() - stamps.min()) / 1e9
    return tuple(name for name, seconds in _PERIODS.items() if 2 * usual / 1e9 < seconds and 2 * seconds <= span)


def calendar_features(stamps: np.ndarray, periods: Sequence[str]) -> np.ndarray:
    """Return sine and cosine (T, 2P) of the position of dates (T,) in each of P periods."""
    seconds = stamps.astype(np.float64) / 1e9
    turns = [(seconds - (_MONDAY if name == "week" else 0.0)) / _PERIODS[name] * 2 * np.pi for name in periods]
    waves = [wave for turn in turns for wave in (np.sin(turn), np.cos(turn))]
    return np.stack(waves, 1) if waves else np.zeros((len(stamps), 0))
