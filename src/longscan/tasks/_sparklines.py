"""Plots of series and images in one line of characters, for `Task.describe`."""

from torch import Tensor

_BARS = "▁▂▃▄▅▆▇█"
_SHADES = " ░▒▓█"


def sparkline(values: Tensor, width: int = 40) -> str:
    """Return at most `width` bar characters, each for the mean of a segment of the series. values: (L,)."""
    return _scale_to_characters([segment.mean().item() for segment in values.chunk(width)], _BARS)


def shade_line(image: Tensor, width: int = 16) -> str:
    """Return the middle rows of an image (H, W) as at most `width` characters of different brightness."""
    row = image[image.shape[0] // 3 : 2 * image.shape[0] // 3 + 1].amax(0)
    return _scale_to_characters([segment.max().item() for segment in row.chunk(width)], _SHADES)


def truncate_text(text: str, width: int = 60) -> str:
    """Return the beginning of a text in one line; "/" replaces "|", which separates inputs from answers."""
    line = " ".join(text.split()).replace("|", "/")
    return line if len(line) <= width else line[: width - 1] + "…"


def _scale_to_characters(values: list[float], characters: str) -> str:
    low, high = min(values), max(values)
    scale = (len(characters) - 1) / (high - low) if high > low else 0.0
    return "".join(characters[round((value - low) * scale)] for value in values)
