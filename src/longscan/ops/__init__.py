"""Ops: pure functions with several backends. `backend="auto"` chooses one; `explain` tells which one and why."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from longscan._registry import Registry
from longscan.ops import block2_scan as _block2_scan
from longscan.ops import delta_scan as _delta_scan
from longscan.ops import linear_scan as _linear_scan
from longscan.ops import long_conv as _long_conv
from longscan.ops import mamba_step as _mamba_step
from longscan.ops import selective_scan as _selective_scan
from longscan.ops import short_conv as _short_conv
from longscan.ops import ssd_scan as _ssd_scan
from longscan.ops import unitary_scan as _unitary_scan
from longscan.ops._explain import Explanation as Explanation
from longscan.ops._explain import explain as explain
from longscan.ops.mamba_step.reference import Weights as MambaWeights

linear_scan = _linear_scan.linear_scan
block2_scan = _block2_scan.block2_scan
selective_scan = _selective_scan.selective_scan
unitary_scan = _unitary_scan.unitary_scan
ssd_scan = _ssd_scan.ssd_scan
delta_scan = _delta_scan.delta_scan
short_conv = _short_conv.short_conv
long_conv = _long_conv.long_conv
mamba_step = _mamba_step.mamba_step


@dataclass(frozen=True)
class Op:
    """Description of an op for tests, benchmarks and `longscan doctor`.

    Attributes:
        function: the public function.
        native: its native backends.
        per_step: its arguments with axes (B, L, ...), which may change from step to step; required arguments first.
        shared: its arguments without a batch axis.
        stateful: whether it takes `initial_state`, `valid` and `seq_idx` and returns (y, final_state).
        native_gradients: whether its native backends have a backward pass. If not, they run only where nothing is recorded for a
            backward pass, compiled or transformed.
    """

    function: Callable[..., Any]
    native: tuple[str, ...]
    per_step: tuple[str, ...]
    shared: tuple[str, ...]
    stateful: bool = True
    native_gradients: bool = True


OPS: Registry[Op] = Registry("op")
for _name, _op in {
    "linear_scan": Op(linear_scan, _linear_scan.NATIVE_BACKENDS, ("a", "b"), ("a",)),
    "block2_scan": Op(block2_scan, _block2_scan.NATIVE_BACKENDS, ("M", "f"), ("M",)),
    "selective_scan": Op(
        selective_scan, _selective_scan.NATIVE_BACKENDS, ("u", "dt", "B", "C", "z", "dt_scale"), ("A", "D", "dt_bias")
    ),
    "unitary_scan": Op(unitary_scan, _unitary_scan.NATIVE_BACKENDS, ("u", "dt", "z"), ("W", "bias", "B", "C", "D")),
    "ssd_scan": Op(
        ssd_scan,
        _ssd_scan.NATIVE_BACKENDS,
        ("x", "dt", "B", "C", "z", "input_scale", "own_scale", "angle"),
        ("A", "D", "B_bias", "C_bias"),
    ),
    "delta_scan": Op(delta_scan, _delta_scan.NATIVE_BACKENDS, ("v", "k", "q", "log_alpha", "beta"), ()),
    "short_conv": Op(short_conv, _short_conv.NATIVE_BACKENDS, ("u",), ("weight", "bias")),
    "long_conv": Op(long_conv, _long_conv.NATIVE_BACKENDS, ("u",), ("k",), stateful=False),
    "mamba_step": Op(mamba_step, _mamba_step.NATIVE_BACKENDS, (), MambaWeights._fields, stateful=False, native_gradients=False),
}.items():
    OPS.register(_name)(_op)
