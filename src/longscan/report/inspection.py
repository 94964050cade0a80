"""The section of a run's report with the pictures that `longscan inspect` has drawn."""

import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

from longscan.report import page

_NAME = re.compile(r"(train|valid|test)_(\d+)(?:_(.+))?\.png")
_INTRODUCTION = (
    "Pictures of longscan inspect: the input, the gradient of the answer's score times the input, and the answer if the state of "
    "a block is cleared after a step. For each layer its effective attention, which says how much each input step adds to each "
    "output step; its state over time; and the eigenvalues of its recurrence with their time scales."
)


def inspection_section(folder: Path) -> Iterator[str]:
    """Yield the pictures of a folder by split and example, with those of the layers in their order; nothing without pictures."""
    found = [(match, path) for path in folder.glob("*.png") if (match := _NAME.fullmatch(path.name))]
    if not found:
        return
    yield page.heading(2, "What the model attends to in time")
    yield page.paragraph(_INTRODUCTION)
    shown = None
    for match, path in sorted(found, key=lambda one: (one[0][1], int(one[0][2]), _numbers(one[0][3] or ""))):
        example = f"{match[1].capitalize()} example {match[2]}"
        if example != shown:
            yield page.heading(3, example)
        shown = example
        description = example if match[3] is None else f"{example}, {match[3].replace('_', ' ')}"
        yield page.picture(b64encode(path.read_bytes()).decode(), description)


def _numbers(name: str) -> list[tuple[int, str]]:
    """Return the words of a name for sorting, numbers by their value: blocks_2 before blocks_10."""
    return [(int(word), "") if word.isdigit() else (-1, word) for word in name.split("_")]
