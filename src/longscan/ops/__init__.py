"""The recurrences: pure functions with several backends. `backend="auto"` picks one; `explain` says which, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from longscan._registry import Registry
from longscan.ops import block2_scan as _block2_scan
from longscan.ops import linear_scan as _linear_scan
from longscan.ops import long_conv as _long_conv
from longscan.ops import selective_scan as _selective_scan
from longscan.ops import short_conv as _short_conv
from longscan.ops import ssd_scan as _ssd_scan
from longscan.ops import unitary_scan as _unitary_scan
from longscan.ops._explain import Explanation as Explanation
from longscan.ops._explain import explain as explain

linear_scan = _linear_scan.linear_scan
block2_scan = _block2_scan.block2_scan
selective_scan = _selective_scan.selective_scan
unitary_scan = _unitary_scan.unitary_scan
ssd_scan = _ssd_scan.ssd_scan
short_conv = _short_conv.short_conv
long_conv = _long_conv.long_conv


@dataclass(frozen=True)
class Op:
    """An op as tests and benchmarks see it.

    function: the public function. native: its native backends. per_step: the arguments with axes (B, L, ...) that may change
    from step to step, those required first. shared: the arguments without a batch axis. stateful: it takes an initial state and
    returns (y, final_state), and knows `valid` and `seq_idx`.
    """

    function: Callable[..., Any]
    native: tuple[str, ...]
    per_step: tuple[str, ...]
    shared: tuple[str, ...]
    stateful: bool = True


OPS: Registry[Op] = Registry("op")
OPS.register("linear_scan")(Op(linear_scan, _linear_scan.NATIVE_BACKENDS, ("a", "b"), ("a",)))
OPS.register("block2_scan")(Op(block2_scan, _block2_scan.NATIVE_BACKENDS, ("M", "f"), ("M",)))
OPS.register("selective_scan")(
    Op(selective_scan, _selective_scan.NATIVE_BACKENDS, ("u", "dt", "B", "C", "z", "dt_scale"), ("A", "D", "dt_bias"))
)
OPS.register("unitary_scan")(
    Op(unitary_scan, _unitary_scan.NATIVE_BACKENDS, ("u", "dt", "z"), ("W", "bias", "B", "C", "D"))
)
OPS.register("ssd_scan")(
    Op(
        ssd_scan,
        _ssd_scan.NATIVE_BACKENDS,
        ("x", "dt", "B", "C", "z", "input_scale", "own_scale", "angle"),
        ("A", "D", "B_bias", "C_bias"),
    )
)
OPS.register("short_conv")(Op(short_conv, _short_conv.NATIVE_BACKENDS, ("u",), ("weight", "bias")))
OPS.register("long_conv")(Op(long_conv, _long_conv.NATIVE_BACKENDS, ("u",), ("k",), stateful=False))
