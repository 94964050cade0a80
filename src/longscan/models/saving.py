"""Models on disk: config.json and model.safetensors in a folder; nothing is ever unpickled."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def write_model(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write both files, each under a temporary name that is then moved: a reader never sees half a file."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    values = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    _write(folder / WEIGHTS, lambda path: save_file(values, path))
    _write(folder / CONFIG, lambda path: path.write_text(json.dumps(config, indent=2) + "\n"))


def _write(path: Path, write: Callable[[Path], object]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_model(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and the tensors; FileNotFoundError names the file that is missing."""
    from safetensors.torch import load_file

    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name}: no such file; a saved model is a folder with {CONFIG} and {WEIGHTS}")
    return json.loads((folder / CONFIG).read_text()), load_file(folder / WEIGHTS)
