"""What the custom ops return: memory that begins where generated code expects it, and no element in two results."""

from itertools import pairwise

import pytest
import torch

from longscan.ops import OPS, _native_op, dispatch
from op_examples import example, with_gradients

BACKENDS = [
    (op, backend)
    for op in OPS
    for backend in OPS[op].native
    if OPS[op].native_gradients
    and dispatch.unsupported_reason(op, backend, torch.device("cpu"), torch.float32, OPS[op].native) is None
]
ALIGNMENT = 16  # bytes, which inductor asserts of what an op returns
HEAD_AXIS = {"x": 2, "dt": 2, "A": 0, "D": 0, "z": 2, "initial_state": 1, "input_scale": 2, "own_scale": 2, "angle": 2}
HEAD_AXIS |= {"B_bias": 0, "C_bias": 0}


def unaligned_example(op, batch, optional):
    """Inputs whose channels or heads take no multiple of 16 bytes; the factors of scans constant unless `optional`."""
    inputs = example(op, batch=batch, optional=optional, masked=False)
    factor = {"linear_scan": "a", "block2_scan": "M"}.get(op)
    if factor and not optional:
        inputs[factor] = inputs[factor][0, 0]
    if op == "ssd_scan":
        inputs |= {name: x.narrow(HEAD_AXIS[name], 0, 2) for name, x in inputs.items() if name in HEAD_AXIS}
    return inputs


def addresses(x):
    """The first address of a contiguous tensor, and the one after its last."""
    return x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()


def layout(x):
    """What a graph knows of a tensor; the strides of axes of size 1 are never read."""
    return x.shape, [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1], x.dtype


@pytest.mark.parametrize(("batch", "optional"), [(1, True), (2, False)])
@pytest.mark.parametrize(("op", "backend"), BACKENDS)
def test_results_are_aligned_and_apart(op, backend, batch, optional, monkeypatch):
    """Of the custom ops of forward and backward; the shapes and strides are those that a graph is recorded with."""
    calls = []

    def recorded(self, *args):
        calls.append((self, args, self.overload(*args)))
        return calls[-1][2]

    monkeypatch.setattr(_native_op._CustomOp, "__call__", recorded)
    y, final = OPS[op].function(**with_gradients(unaligned_example(op, batch, optional)), backend=backend)
    (y.sum() + final.sum()).backward()
    assert len(calls) == 2
    for custom, args, results in calls:
        for x in results:
            assert x.data_ptr() % ALIGNMENT == 0
            assert x.storage_offset() * x.element_size() % ALIGNMENT == 0
        places = sorted(addresses(x) for x in results if x.numel())
        assert all(one[1] <= other[0] for one, other in pairwise(places))
        plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in args]
        with torch._subclasses.FakeTensorMode() as mode:
            faked = custom.overload(*(mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in plain))
        assert [layout(x) for x in faked] == [layout(x) for x in results]
