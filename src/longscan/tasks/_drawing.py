"""Small drawings in characters, for `Task.describe`."""

from torch import Tensor

_BARS = "▁▂▃▄▅▆▇█"
_SHADES = " ░▒▓█"


def bars(values: Tensor, width: int = 40) -> str:
    """A line of at most `width` bars, each the mean of its stretch. values: (L,)."""
    return _drawn([stretch.mean().item() for stretch in values.chunk(width)], _BARS)


def shades(image: Tensor, width: int = 16) -> str:
    """The middle rows of an image (H, W) as a line of shades."""
    row = image[image.shape[0] // 3 : 2 * image.shape[0] // 3 + 1].amax(0)
    return _drawn([part.max().item() for part in row.chunk(width)], _SHADES)


def clipped(text: str, width: int = 60) -> str:
    """The beginning of a text, in one line and without bars, which separate inputs from answers."""
    line = " ".join(text.split()).replace("|", "/")
    return line if len(line) <= width else line[: width - 1] + "…"


def _drawn(values: list[float], characters: str) -> str:
    low, high = min(values), max(values)
    scale = (len(characters) - 1) / (high - low) if high > low else 0.0
    return "".join(characters[round((value - low) * scale)] for value in values)
