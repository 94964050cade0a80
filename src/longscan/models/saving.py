"""Files of saved models: config.json and model.safetensors in a folder. Nothing is pickled or unpickled."""

import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

CONFIG, WEIGHTS = "config.json", "model.safetensors"
SHARDS = "model.safetensors.index.json"  # the index of transformers' checkpoints in several files
# The weights of older checkpoints of transformers, or the index of several files: pickles, which can run code when they are read.
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
RUN_SETTINGS = "settings.yaml"  # the file of settings in the folder of a run
HEADER = "longscan"  # entry in the header of the weights, with the configuration and the checksum
NO_DOWNLOAD = (
    "; nothing is downloaded: for a name on the Hugging Face hub, pass the folder in its cache that "
    "huggingface_hub.snapshot_download(name) returns"
)


def _plain_number(value: object) -> Any:
    """Return a NumPy scalar as a Python number, which JSON can represent. Raises TypeError for anything else."""
    if isinstance(value, numpy.generic):
        return value.item()
    raise TypeError(f"the arguments of a model must be values of JSON, got {type(value).__name__}")


def write_model(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a model's configuration and tensors into `folder`, each file under a temporary name that is then moved.

    A reader never sees an incomplete file. The header of the weights also contains the configuration and a CRC-32 of the tensors.
    The temporary file of the configuration is written before the weights are moved, so that a kill between the two moves leaves
    files from which `read_model` restores the new model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    values = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(config, indent=2, default=_plain_number) + "\n"
    config = json.loads(text)
    # A single entry, because safetensors writes several in arbitrary order, and the same model must give the same bytes.
    metadata = {HEADER: json.dumps({"config": config, "crc32": tensor_checksum(values)})}
    partial_config, partial_weights = (folder / f".{name}.{os.getpid()}" for name in (CONFIG, WEIGHTS))
    try:
        partial_config.write_text(text, encoding="utf-8")
        save_tensors(values, partial_weights, metadata)
        os.replace(partial_weights, folder / WEIGHTS)
        os.replace(partial_config, folder / CONFIG)
    finally:
        partial_config.unlink(missing_ok=True)
        partial_weights.unlink(missing_ok=True)


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write contiguous tensors on the CPU to a safetensors file. Raises OSError naming the folder, as of a full disk."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path.parent)) from None


def pickle_advice(folder: Path) -> str:
    """Return the end of an error about missing weights for a folder with pickled ones: how to write them as safetensors."""
    if not any((folder / name).is_file() for name in PICKLES):
        return ""
    return (
        f"; {PICKLES[0]} is a pickle and is not read: transformers writes {WEIGHTS} by `AutoModelForCausalLM.from_pretrained("
        f"{str(folder)!r}).save_pretrained(NEW_FOLDER)`, and longscan.models.from_transformers(NEW_FOLDER) reads it"
    )


def tensor_checksum(tensors: dict[str, Tensor]) -> int:
    """Return the CRC-32 of the names, dtypes, shapes and bytes of contiguous tensors on the CPU."""
    total = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        total = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, total)
    return total


def read_model(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the configuration and the tensors of a saved model.

    Weights of version 0.1 have no checksum, so they are not checked. If a save was killed between the moves of its two files, the
    configuration is the one in the header of the weights. Raises FileNotFoundError naming a missing file, NotADirectoryError for
    a file in place of the folder, and ValueError naming a damaged one.
    """
    from safetensors import SafetensorError, safe_open

    if folder.is_file():
        raise NotADirectoryError(
            f"{folder} must be a folder with {CONFIG} and {WEIGHTS}, got a file; `load` of the classes in longscan.estimators "
            "reads a saved estimator"
        )
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            text = f"{folder / name} does not exist; a saved model is a folder with {CONFIG} and {WEIGHTS}"
            if (folder / SHARDS).is_file():
                text += "; longscan.models.from_transformers reads a checkpoint of transformers in several files"
            text += pickle_advice(folder)
            if (folder / RUN_SETTINGS).is_file():
                text += f"; longscan.training.Run({str(folder)!r}).model() reads the model of a run"
            raise FileNotFoundError(text if folder.is_dir() else text + NO_DOWNLOAD)
    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            metadata = json.loads((file.metadata() or {}).get(HEADER, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{folder / WEIGHTS} is damaged ({error})") from None
    if "crc32" in metadata and tensor_checksum(tensors) != metadata["crc32"]:
        raise ValueError(f"{folder / WEIGHTS} is damaged (its tensors do not have the checksum that was saved with them)")
    config = _read_config(folder / CONFIG)
    if "config" in metadata and any(_has_content(path, metadata["config"]) for path in folder.glob(f".{CONFIG}.*")):
        config = metadata["config"]
    return config, tensors


def _has_content(path: Path, config: dict[str, Any]) -> bool:
    """Return whether a temporary file has this configuration. It may be incomplete, or removed by the process that wrote it."""
    try:
        return bool(json.loads(path.read_bytes()) == config)
    except (OSError, ValueError):
        return False


def _read_config(path: Path) -> dict[str, Any]:
    """Return the configuration in a file. Raises ValueError naming the file if it is damaged."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} is damaged (it must be a mapping of settings, got a {type(config).__name__})")
    return config
