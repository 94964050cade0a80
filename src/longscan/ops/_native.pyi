"""The compiled CPU kernels, bound in csrc/*.bind.cpp: functions of addresses, sizes and flags."""

from typing import Any

SELECTIVE_SCAN_CHUNK: int
openmp: bool

def isa() -> str: ...
def __getattr__(name: str) -> Any: ...
