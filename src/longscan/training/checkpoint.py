"""Checkpoints that remain usable when the process is killed at any moment: safetensors for tensors, JSON for the rest, no pickle.

A checkpoint is a folder: model.safetensors and config.json (which `SequenceModel.from_pretrained` reads), optimizer.safetensors,
average.safetensors if there is an average, and state.json, which contains the CRC-32 of the other files and of itself. It is
written under a temporary name, flushed to the disk, and renamed; until then the earlier checkpoint is renamed to NAME.previous.
"""

import base64
import json
import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer

from longscan._errors import SettingError, one_line
from longscan.models.saving import save_tensors

STATE = "state.json"


def write_checkpoint(target: Path, write: Callable[[Path], None], state: dict[str, Any]) -> None:
    """Replace the checkpoint folder `target` by one with the files that `write(folder)` writes and with `state` as JSON."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh, previous = target.with_name(target.name + ".writing"), target.with_name(target.name + ".previous")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    write(fresh)
    sums = {path.name: zlib.crc32(path.read_bytes()) for path in sorted(fresh.iterdir())}
    content = {**state, "files": sums}
    (fresh / STATE).write_text(json.dumps({**content, "checksum": _checksum(content)}, indent=1), encoding="utf-8")
    for path in fresh.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    if target.exists():
        shutil.rmtree(previous, ignore_errors=True)
        target.rename(previous)
    fresh.rename(target)
    shutil.rmtree(previous, ignore_errors=True)


def _checksum(state: dict[str, Any]) -> int:
    """Return the CRC-32 of a state as JSON, which does not depend on the order of its keys or on white space."""
    return zlib.crc32(json.dumps(state, sort_keys=True).encode())


def find_checkpoint(target: Path) -> Path | None:
    """Return `target`, or the earlier checkpoint if the process was killed between the two renames; None if there is neither."""
    previous = target.with_name(target.name + ".previous")
    return next((folder for folder in (target, previous) if (folder / STATE).exists()), None)


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """Return the content of state.json of a checkpoint. Raises SettingError naming the first file that is missing or damaged."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
        checksum = state.pop("checksum", None)
        if checksum is not None and checksum != _checksum(state):  # version 0.1 wrote none
            raise ValueError("its checksum is not that of its content")
        sums: dict[str, int] = dict(state.pop("files").items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SettingError(f"{folder / STATE} is damaged ({one_line(error)})") from None
    for name, expected in sums.items():
        path = folder / name
        if not path.exists():
            raise SettingError(f"{path} is missing, a file of this checkpoint")
        if zlib.crc32(path.read_bytes()) != expected:
            raise SettingError(f"{path} is damaged: its checksum is not the one in {STATE}")
    return state


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name. Raises SettingError if the file is damaged or of another format."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise SettingError(f"{path} is no safetensors file, or damaged ({error})") from None


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors, copied to the CPU, to a safetensors file."""
    save_tensors({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, path)


def gather_tensors(tensors: Mapping[str, Tensor], *, return_tensors: bool) -> dict[str, Tensor]:
    """Gather tensors that FSDP2 has split over the processes, one at a time, and return them on the CPU.

    All processes must call this together. Those with `return_tensors` False only take part and return no tensors. Tensors that
    are not split are copied to the CPU.
    """
    whole = {}
    for name, tensor in tensors.items():
        # Not isinstance(tensor, DTensor): importing DTensor takes two seconds, which only split runs should need.
        gathered = tensor.full_tensor().cpu() if hasattr(tensor, "full_tensor") else tensor
        if return_tensors:
            whole[name] = gathered
    return whole


def split_like(value: Tensor, tensor: Tensor) -> Tensor:
    """Return a whole tensor with the dtype and device of another one, and split over the processes if that one is."""
    value = value.to(tensor.device, tensor.dtype)
    if not hasattr(tensor, "full_tensor"):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(tensor, DTensor)
    return distribute_tensor(value, tensor.device_mesh, tensor.placements)


def optimizer_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimiser's state as a dictionary from "PARAMETER/ENTRY" (such as "head.weight/exp_avg") to tensors."""
    return {
        f"{name}/{entry}": value
        for name, parameter in model.named_parameters()
        for entry, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(optimizer: Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Set the optimiser's state to what `optimizer_tensors` returned.

    `step` stays in float32, the other entries get the parameter's dtype; all get its device.
    """
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        parameter = parameters[name]
        optimizer.state[parameter][entry] = value.to(parameter.device) if entry == "step" else split_like(value, parameter)


def generator_states() -> dict[str, Any]:
    """Return the states of torch's random generators on this machine, each as base64 text."""
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]
    cpu, *cuda = (base64.b64encode(state.numpy().tobytes()).decode() for state in states)
    return {"cpu": cpu, **({"cuda": cuda} if cuda else {})}


def restore_generators(states: dict[str, Any]) -> None:
    """Set torch's random generators to saved states. States of devices that this machine does not have are ignored."""
    texts = (states["cpu"], *states.get("cuda", [])[: torch.cuda.device_count()])
    cpu, *cuda = (torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8) for text in texts)
    torch.set_rng_state(cpu)
    for index, state in enumerate(cuda):
        torch.cuda.set_rng_state(state, index)
