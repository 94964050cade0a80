"""What `longscan doctor` found on this machine's devices, kept from one process to the next, so that `auto` can go by it.

One JSON file, `doctor.json` in the cache folder: per device and versions, per op and backend, "passed" or what was wrong.
"""

import json
import logging
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from longscan._files import cache_folder, write_text

PASSED = "passed"

Verdicts = dict[str, dict[str, dict[str, str]]]


def path() -> Path:
    """Return the path of the file of verdicts."""
    return cache_folder() / "doctor.json"


def key(device: torch.device) -> str:
    """Return the key of a verdict: the device, and the versions that it depends on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return ", ".join([name, *(f"{package} {_version(package)}" for package in ("longscan", "torch", "triton"))])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


_log = logging.getLogger("longscan")


def read() -> Verdicts:
    """Return all verdicts; none if there is no file, and none, with a warning, if it is damaged."""
    try:
        found = json.loads(path().read_bytes())
        for by_op in found.values():
            for by_backend in by_op.values():
                if not all(isinstance(verdict, str) for verdict in by_backend.values()):
                    raise ValueError("a verdict is no text")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        _log.warning("%s: damaged (%s), so no kernel has a verdict; `longscan doctor` writes the file again", path(), reason)
        return {}
    return found


def write(device: torch.device, verdicts: dict[str, dict[str, str]]) -> None:
    """Store the verdicts of one device, by op and backend; those of other devices and versions stay."""
    whole = read()
    for op, by_backend in verdicts.items():
        whole.setdefault(key(device), {}).setdefault(op, {}).update(by_backend)
    path().parent.mkdir(parents=True, exist_ok=True)
    write_text(path(), json.dumps(whole, indent=1))
    doctor_verdict.cache_clear()


@cache
def doctor_verdict(op: str, backend: str, device: torch.device) -> str | None:
    """Return the verdict of `longscan doctor` on a kernel on this device, or None if there is none."""
    whole = read()
    return whole.get(key(device), {}).get(op, {}).get(backend) if whole else None
