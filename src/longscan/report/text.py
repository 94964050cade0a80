"""Numbers as text."""

import math


def show(value: float | None, digits: int = 4) -> str:
    """A number for reading; a dash where there is none."""
    if value is None:
        return "–"
    if isinstance(value, int) or not math.isfinite(value):
        return f"{value:,}"
    return f"{value:.{digits}f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Seconds as hours, minutes and seconds."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def mean_text(mean: tuple[float, float | None] | None, digits: int = 3) -> str:
    """A mean with half the width of its interval."""
    if mean is None:
        return "no finished run"
    centre, half = mean
    return f"{centre:.{digits}f}" if half is None else f"{centre:.{digits}f} ± {half:.{digits}f}"
