"""Checkpoints that a kill at any moment leaves usable: safetensors for tensors, JSON for the rest, nothing unpickled.

A checkpoint is a folder: model.safetensors and config.json (what `SequenceModel.from_pretrained` reads), optimizer.safetensors,
average.safetensors where there is an average, and state.json, which holds the CRC-32 of the other files and of itself. It is
written under another name, flushed to the disk, and moved into place; for the moment between two renames the one before stands
beside it as NAME.previous.
"""

import base64
import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from longscan._errors import SettingError, one_line

STATE = "state.json"


def write_checkpoint(target: Path, write: Callable[[Path], None], state: dict[str, Any]) -> None:
    """Replace the checkpoint folder `target` by one that `write(folder)` fills, with `state` (JSON-able) beside it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh, previous = target.with_name(target.name + ".writing"), target.with_name(target.name + ".previous")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    write(fresh)
    sums = {path.name: zlib.crc32(path.read_bytes()) for path in sorted(fresh.iterdir())}
    content = {**state, "files": sums}
    (fresh / STATE).write_text(json.dumps({**content, "checksum": _checksum(content)}, indent=1), encoding="utf-8")
    for path in fresh.iterdir():
        _flush(path)
    if target.exists():
        shutil.rmtree(previous, ignore_errors=True)
        target.rename(previous)
    fresh.rename(target)
    shutil.rmtree(previous, ignore_errors=True)


def _checksum(state: dict[str, Any]) -> int:
    """CRC-32 of a state as JSON, whatever the order of its keys and the blanks between them."""
    return zlib.crc32(json.dumps(state, sort_keys=True).encode())


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def find_checkpoint(target: Path) -> Path | None:
    """The folder to read for checkpoint `target`: itself, or what stood there when a kill fell between the two renames."""
    previous = target.with_name(target.name + ".previous")
    return next((folder for folder in (target, previous) if (folder / STATE).exists()), None)


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """state.json of a checkpoint whose files are all as they were written; SettingError naming the file that is not."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
        checksum = state.pop("checksum", None)
        if checksum is not None and checksum != _checksum(state):  # version 0.1 wrote none
            raise ValueError("its checksum is not that of its content")
        sums: dict[str, int] = dict(state.pop("files").items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SettingError(f"{folder / STATE}: damaged ({one_line(error)}), needed the state that training wrote") from None
    for name, expected in sums.items():
        path = folder / name
        if not path.exists():
            raise SettingError(f"{path}: missing, needed by this checkpoint")
        if zlib.crc32(path.read_bytes()) != expected:
            raise SettingError(f"{path}: damaged, its checksum is not the one in {STATE}")
    return state


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; SettingError where it is none."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise SettingError(f"{path}: damaged ({error}), needed a safetensors file") from None


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file of copies on the CPU."""
    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, path)


def optimizer_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state as `parameter name/entry` -> tensor."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for entry, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}/{entry}"] = value
    return tensors


def restore_optimizer(optimizer: Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave; `step` stays in float32, the others take the parameter's device and dtype."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        parameter = parameters[name]
        optimizer.state[parameter][entry] = value.to(parameter.device if entry == "step" else parameter)


def generator_states() -> dict[str, Any]:
    """torch's generators on this machine as text."""
    states: dict[str, Any] = {"cpu": _encode(torch.get_rng_state())}
    if torch.cuda.is_available():
        states["cuda"] = [_encode(state) for state in torch.cuda.get_rng_state_all()]
    return states


def restore_generators(states: dict[str, Any]) -> None:
    """Set torch's generators; those of devices that are not here are left out."""
    torch.set_rng_state(_decode(states["cpu"]))
    for index, state in enumerate(states.get("cuda", [])[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(_decode(state), index)


def _encode(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _decode(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
