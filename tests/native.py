"""Tests of the compiled CPU kernels are skipped where the package was built without a C++ compiler."""

import pytest

from longscan.ops.dispatch import native_cpu_missing

needs_kernels = pytest.mark.skipif(native_cpu_missing() is not None, reason="the compiled kernels are not installed")
BACKENDS = ["reference", "eager", pytest.param("cpu", marks=needs_kernels)]
