"""Print the rows of a benchmark and append them to a file of JSON lines."""

import json
from pathlib import Path
from typing import Any


def write_row(row: dict[str, Any], path: Path | None) -> None:
    """Print a row as a line of JSON and append the line to a file; to none if `path` is None."""
    line = json.dumps(row)
    print(line, flush=True)
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
