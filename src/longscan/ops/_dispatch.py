"""Which backend runs an op.

`reference` (the loop: the definition) and `eager` (vectorised torch, any device, any order of gradient) are plain torch code.
`cpu` (C++) and `triton` are native: opaque custom ops with a hand-written backward. `auto` prefers a native backend and says
once, through the `longscan` logger, why it could not take one.
"""

import logging
import os
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from longscan.ops import _verdicts

Backend = Literal["auto", "reference", "eager", "cpu", "triton"]
BACKENDS = ("reference", "eager", "cpu", "triton")
NATIVE = ("cpu", "triton")
AUTO = {"cpu": "cpu", "cuda": "triton"}  # device type -> the native backend that `auto` wants there

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)  # of native inputs

log = logging.getLogger("longscan")

_unusable: dict[str, str] = {}  # op -> why its compiled CPU kernels cannot be used
_no_triton = None if find_spec("triton") else "Triton is not installed"


def native_cpu_missing() -> str | None:
    """Why the compiled CPU kernels cannot be used, or None where they can."""
    try:
        import_module("longscan.ops._native")
    except ImportError as error:
        return f"the compiled CPU kernels are not installed ({error})"
    return None


def probe(op: str, *native: str) -> tuple[str, ...]:
    """The native backends of `op`, after looking once, when the op is imported, whether its CPU kernels are there."""
    if "cpu" in native:
        reason = native_cpu_missing()
        if reason is None and not hasattr(import_module("longscan.ops._native"), f"{op}_forward"):
            reason = f"the installed CPU kernels are of a version without {op}: install longscan again"
        if reason is not None:
            _unusable[op] = reason
    return native


@cache
def _say_once(message: str) -> None:
    log.warning(message)


def reject(op: str, backend: str, device: torch.device, dtype: torch.dtype, native: tuple[str, ...]) -> str | None:
    """Why `backend` cannot run `op` on tensors of this device and dtype, or None where it can."""
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


def refuse(op: str, backend: str, device: torch.device) -> str | None:
    """Why `auto` does not take a kernel that could run: `longscan doctor` found a fault on this device."""
    verdict = _verdicts.of(op, backend, device)
    return None if verdict in (None, _verdicts.PASSED) else f"`longscan doctor` found {verdict}"


# what torch.compiler.assume_constant_result sets, which would import the compiler with every import of this package: 1.4 s
refuse._dynamo_marked_constant = True  # type: ignore[attr-defined]


def resolve(op: str, backend: str, like: Tensor, native: tuple[str, ...], unsuited: str | None = None) -> str:
    """The backend that runs `op` on inputs like `like` (its device and real dtype); an explicit choice that cannot be met raises.

    native: the native backends this op has. unsuited: why `auto` is to leave a native backend on these inputs.
    """
    if backend != "auto":
        if backend not in BACKENDS:
            raise ValueError(f"backend: got {backend!r}, expected 'auto' or one of {BACKENDS}")
        reason = reject(op, backend, like.device, like.dtype, native)
        if reason:
            raise ValueError(f"backend: {backend!r} cannot run {op}: {reason}")
        return backend
    candidate = AUTO.get(like.device.type)
    if candidate is None or candidate not in native:
        return "eager"
    reason = reject(op, candidate, like.device, like.dtype, native) or refuse(op, candidate, like.device) or unsuited
    if reason is None:
        return candidate
    if not torch.compiler.is_compiling():
        _say_once(f"{op} runs on the eager backend, not {candidate}: {reason}")
    return "eager"


def explain(op: str, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> str:
    """One sentence: the backend `auto` takes for `op` on this device and dtype, and why.

    >>> explain("linear_scan", "meta")
    'linear_scan on meta, torch.float32: eager (no native kernel for this device)'
    """
    from longscan.ops import OPS

    device = torch.device(device)
    candidate, native = AUTO.get(device.type), OPS[op].native
    if candidate is None or candidate not in native:
        missing = f"{op} has no native kernel" if candidate and not native else "no native kernel for this device"
        chosen, why = "eager", missing
    else:
        reason = reject(op, candidate, device, dtype, native) or refuse(op, candidate, device)
        chosen, why = (candidate, "native kernel") if reason is None else ("eager", reason)
    return f"{op} on {device}, {dtype}: {chosen} ({why})"
