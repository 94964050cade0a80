"""Choice of the backend that runs an op.

`reference` (a loop over time, which defines the op) and `eager` (vectorised, with derivatives of any order) are plain torch code
for every device. `cpu` (C++) and `triton` are native: opaque custom ops with a hand-written backward pass. `auto` prefers a
native backend; if it cannot use one, it logs the reason once, through the `longscan` logger.

`auto` avoids a kernel in which `longscan doctor` found a fault on this device. The verdicts are in one JSON file, `doctor.json`
in the cache folder: per device and versions, per op and backend, "passed" or the fault.
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from longscan._files import cache_folder, write_text

Backend = Literal["auto", "reference", "eager", "cpu", "triton"]
BACKENDS = ("reference", "eager", "cpu", "triton")
NATIVE = ("cpu", "triton")
AUTO = {"cpu": "cpu", "cuda": "triton"}  # device type -> the native backend that `auto` prefers there

# dtypes that native ops accept
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)
PASSED = "passed"  # the verdict on a kernel without a fault

Verdicts = dict[str, dict[str, dict[str, str]]]  # device and versions -> op -> backend -> verdict

log = logging.getLogger("longscan")

_unusable: dict[str, str] = {}  # op -> why its compiled CPU kernels cannot be used
_no_triton = None if find_spec("triton") else "Triton is not installed"


def native_cpu_missing() -> str | None:
    """Return why the compiled CPU kernels cannot be used, or None if they can."""
    try:
        import_module("longscan.ops._native")
    except ImportError as error:
        return f"the compiled CPU kernels are not installed ({error})"
    return None


def probe(op: str, *native: str) -> tuple[str, ...]:
    """Return the native backends of `op`, and record whether its CPU kernels are installed. Called once, at import of the op."""
    if "cpu" in native:
        reason = native_cpu_missing()
        if reason is None and not hasattr(import_module("longscan.ops._native"), f"{op}_forward"):
            reason = f"the installed CPU kernels are of a version without {op}: install longscan again"
        if reason is not None:
            _unusable[op] = reason
    return native


class Choice(NamedTuple):
    """The backend that runs an op on some inputs, and why.

    Attributes:
        requested: the backend that the caller named.
        backend: the backend that runs; None if the requested one cannot.
        reason: the reason, as the end of a sentence.
        by_doctor: whether a saved verdict of `longscan doctor` determined the choice.
    """

    op: str
    requested: str
    backend: str | None
    reason: str
    by_doctor: bool = False


class Recording:
    """The choices of backends made inside `recorded_choices`.

    dry: whether every op runs on its eager backend and raises no error if the requested backend is unavailable.
    """

    def __init__(self, *, dry: bool = False) -> None:
        self.choices: list[Choice] = []
        self.dry = dry

    def add(self, choice: Choice) -> None:
        """Append a choice; choices are in the order of the calls."""
        self.choices.append(choice)


_recording: ContextVar[Recording | None] = ContextVar("longscan_recording", default=None)


@contextmanager
def recorded_choices(recording: Recording | None = None) -> Iterator[Recording]:
    """Record every choice of a backend inside the `with` statement, including those made while a graph is traced.

    recording: the object that receives the choices; a new one when None.
    """
    recording = Recording() if recording is None else recording
    token = _recording.set(recording)
    try:
        yield recording
    finally:
        _recording.reset(token)


@cache
def _log_once(message: str) -> None:
    log.warning(message)


def unsupported_reason(op: str, backend: str, device: torch.device, dtype: torch.dtype, native: tuple[str, ...]) -> str | None:
    """Return why `backend` cannot run `op` on tensors of this device and dtype, or None if it can."""
    if backend not in NATIVE:
        return None
    if backend not in native:
        return f"{op} has no {backend} kernel"
    if dtype not in DTYPES:
        return f"no {backend} kernel for {dtype}"
    if backend == "cpu":
        return f"the inputs are on {device}" if device.type != "cpu" else _unusable.get(op)
    interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    return _no_triton if device.type == "cuda" or interpreted else f"the inputs are on {device}"


def missing_kernel(op: str, backend: str, native: tuple[str, ...]) -> str | None:
    """Return why `backend` cannot run `op` on this machine for any inputs, or None if it can for some."""
    if backend not in NATIVE:
        return None
    if backend not in native:
        return f"{op} has no {backend} kernel"
    return _unusable.get(op) if backend == "cpu" else _no_triton


def verdicts_path() -> Path:
    """Return the path of the file of `longscan doctor`'s verdicts."""
    return cache_folder() / "doctor.json"


def verdicts_key(device: torch.device) -> str:
    """Return the key of the verdicts on a device: its name and the versions that they depend on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return ", ".join([name, *(f"{package} {_version(package)}" for package in ("longscan", "torch", "triton"))])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def read_verdicts() -> Verdicts:
    """Return all verdicts: an empty dictionary if there is no file or, with a warning, if the file is damaged."""
    path = verdicts_path()
    try:
        found = json.loads(path.read_bytes())
        for by_op in found.values():
            for by_backend in by_op.values():
                if not all(isinstance(verdict, str) for verdict in by_backend.values()):
                    raise ValueError("a verdict is not a string")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        log.warning("%s: damaged (%s), so no kernel has a verdict; `longscan doctor` writes the file again", path, reason)
        return {}
    return found


def write_verdicts(device: torch.device, verdicts: dict[str, dict[str, str]]) -> None:
    """Store the verdicts on one device, by op and backend; those on other devices and versions are preserved.

    The file is locked, so that processes that write at the same time do not overwrite each other's verdicts.
    """
    from filelock import FileLock  # a dependency of torch, too

    path = verdicts_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f"{path.name}.lock")):
        everything = read_verdicts()
        for op, by_backend in verdicts.items():
            everything.setdefault(verdicts_key(device), {}).setdefault(op, {}).update(by_backend)
        write_text(path, json.dumps(everything, indent=1))
    failed_doctor.cache_clear()


@cache
def failed_doctor(op: str, backend: str, device: torch.device) -> str | None:
    """Return the fault that `longscan doctor` found in a kernel on this device, or None. `auto` avoids kernels with a fault."""
    verdicts = read_verdicts()
    verdict = verdicts.get(verdicts_key(device), {}).get(op, {}).get(backend, PASSED) if verdicts else PASSED
    return None if verdict == PASSED else f"`longscan doctor` found {verdict}"


def choose(
    op: str,
    requested: str,
    device: torch.device,
    dtype: torch.dtype,
    native: tuple[str, ...],
    impossible: str | None = None,
    unsuited: str | None = None,
) -> Choice:
    """Return the choice for `op` on inputs of this device and real dtype; the other arguments are those of `resolve`."""
    if requested not in ("auto", *NATIVE):
        return Choice(op, requested, requested, "asked for")
    if requested != "auto":
        reason = unsupported_reason(op, requested, device, dtype, native) or impossible
        return Choice(op, requested, None, reason) if reason else Choice(op, requested, requested, "asked for")
    candidate = AUTO.get(device.type)
    if candidate is None or candidate not in native:
        missing = f"{op} has no native kernel" if candidate and not native else "no native kernel for this device"
        return Choice(op, requested, "eager", missing)
    reason = unsupported_reason(op, candidate, device, dtype, native) or impossible or unsuited
    if reason:
        return Choice(op, requested, "eager", reason)
    fault = failed_doctor(op, candidate, device)
    if fault:
        return Choice(op, requested, "eager", fault, by_doctor=True)
    return Choice(op, requested, candidate, "native kernel")


def _decide(
    op: str,
    requested: str,
    device: torch.device,
    dtype: torch.dtype,
    native: tuple[str, ...],
    impossible: str | None,
    unsuited: str | None,
) -> str:
    """Return the name of the backend, or "!" and the reason why there is none. Log a fallback; record the choice."""
    choice = choose(op, requested, device, dtype, native, impossible, unsuited)
    candidate = AUTO.get(device.type)
    if requested == "auto" and choice.backend == "eager" and candidate in native:
        _log_once(f"{op} runs on the eager backend, not {candidate}: {choice.reason}")
    recording = _recording.get()
    if recording is not None:
        recording.add(choice)
        if recording.dry:
            return "eager"
    return f"!{choice.reason}" if choice.backend is None else choice.backend


# A compiler runs this function while it traces and uses its result as a constant, so that fallbacks are logged there, too. This
# is the attribute that torch.compiler.assume_constant_result sets; calling that function would import the compiler, in 1.4 s.
_decide._dynamo_marked_constant = True  # type: ignore[attr-defined]


def resolve(
    op: str,
    backend: str,
    like: Tensor,
    native: tuple[str, ...],
    unsuited: str | None = None,
    impossible: str | None = None,
) -> str:
    """Return the backend that runs `op` on inputs of the device and real dtype of `like`.

    Raises ValueError if `backend` names a backend that cannot run.

    native: the native backends of this op. unsuited: why `auto` should avoid native backends for these inputs. impossible: why no
    native backend can take these inputs.
    """
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"`backend` must be one of auto, {', '.join(BACKENDS)}, got {backend!r}")
    decided = _decide(op, backend, like.device, like.dtype, native, impossible, unsuited)
    if decided.startswith("!"):
        raise ValueError(unsupported_backend_message(op, backend, decided[1:]))
    return decided


def unsupported_backend_message(op: str, backend: str, reason: str) -> str:
    """Return the error message for a named backend that cannot run `op`."""
    return f"`backend` must be 'auto', 'eager' or another that can run {op} here, got {backend!r}: {reason}"


def plain_backend(backend: str) -> str:
    """Return `backend` for an op without native kernels: "auto" if it is native, otherwise `backend` itself.

    A layer passes one backend to all of its ops.
    """
    return "auto" if backend in NATIVE else backend
