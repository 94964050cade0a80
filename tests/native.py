"""The backends that can run on this machine: compiled kernels are missing where the package was built without a C++ compiler."""

import pytest
import torch

from longscan.ops import OPS
from longscan.ops.dispatch import native_cpu_missing, unsupported_reason

needs_kernels = pytest.mark.skipif(native_cpu_missing() is not None, reason="the compiled kernels are not installed")
BACKENDS = ["reference", "eager", pytest.param("cpu", marks=needs_kernels)]


def usable_backends(op: str) -> list[str]:
    """Return the backends that can run an op on the CPU of this machine: reference, eager and native ones."""
    native, cpu = OPS[op].native, torch.device("cpu")
    return [name for name in ("reference", "eager", *native) if unsupported_reason(op, name, cpu, torch.float32, native) is None]
