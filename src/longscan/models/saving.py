"""Models on disk: config.json and model.safetensors in a folder; nothing is ever unpickled."""

import inspect
import json
import os
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from longscan.layers.parameters import Marked

CONFIG, WEIGHTS = "config.json", "model.safetensors"


class Pretrained(Marked):
    """A model that is made from JSON-able settings, its `config`, and kept in a folder with its weights."""

    @property
    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The arguments that make this model again, as JSON-able values."""

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors into `folder`, each under a temporary name first and then moved."""
        write_model(Path(folder), self.config, self.state_dict())

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, backend: str | None = None) -> Self:
        """The model that `save_pretrained` wrote, on the CPU, in the dtypes it was saved in.

        backend: of its ops, in the place of the saved one; None keeps that.
        FileNotFoundError names a missing file, ValueError a damaged one and a setting that this class does not have or needs.
        """
        config, tensors = read_model(Path(folder))
        parameters = inspect.signature(cls).parameters
        unknown = sorted(set(config) - set(parameters))
        if unknown:
            raise ValueError(
                f"{Path(folder) / CONFIG}: {', '.join(unknown)} is no setting of {cls.__name__}; another class wrote it"
            )
        missing = [name for name, given in parameters.items() if given.default is given.empty and name not in config]
        if missing:
            raise ValueError(f"{Path(folder) / CONFIG}: {', '.join(missing)} is missing, which {cls.__name__} needs")
        model = cls(**config if backend is None else {**config, "backend": backend})
        model.load_state_dict(tensors, assign=True)
        return model


def write_model(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write both files, each under a temporary name that is then moved: a reader never sees half a file."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    values = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    _write(folder / WEIGHTS, lambda path: save_file(values, path))
    _write(folder / CONFIG, lambda path: path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8"))


def _write(path: Path, write: Callable[[Path], object]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_model(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and the tensors; FileNotFoundError names the file that is missing, ValueError the one that is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name}: no such file; a saved model is a folder with {CONFIG} and {WEIGHTS}")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG}: damaged ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"{folder / CONFIG}: damaged (got a {type(config).__name__}, needed a mapping of settings)")
    try:
        return config, load_file(folder / WEIGHTS)
    except SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS}: damaged ({error})") from None
