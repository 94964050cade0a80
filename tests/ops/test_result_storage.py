"""The memory of results of custom ops: aligned as generated code expects, and not shared by two results."""

from itertools import pairwise

import pytest
import torch

from longscan.ops import OPS
from native import usable_backends
from op_examples import example, record_calls

BACKENDS = [(op, backend) for op in OPS if OPS[op].native_gradients for backend in usable_backends(op)[2:]]
ALIGNMENT = 16  # bytes; inductor asserts it for the results of ops
HEAD_AXIS = {"x": 2, "dt": 2, "A": 0, "D": 0, "z": 2, "initial_state": 1, "input_scale": 2, "own_scale": 2, "angle": 2}
HEAD_AXIS |= {"B_bias": 0, "C_bias": 0}


def unaligned_example(op, batch, optional):
    """Return inputs whose channels or heads are no multiple of 16 bytes. Factors of scans are constant unless `optional`."""
    inputs = example(op, batch=batch, optional=optional, masked=False)
    factor = {"linear_scan": "a", "block2_scan": "M"}.get(op)
    if factor and not optional:
        inputs[factor] = inputs[factor][0, 0]
    if op == "ssd_scan":
        inputs |= {name: x.narrow(HEAD_AXIS[name], 0, 2) for name, x in inputs.items() if name in HEAD_AXIS}
    return inputs


def address_range(x):
    """Return the first address of a contiguous tensor and the address after its end."""
    return x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()


def layout(x):
    """Return shape, strides and dtype of a tensor, without the strides of axes of size 1, which are never read."""
    return x.shape, [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1], x.dtype


@pytest.mark.parametrize(("batch", "optional"), [(1, True), (2, False)])
@pytest.mark.parametrize(("op", "backend"), BACKENDS)
def test_results_of_custom_ops_are_aligned_and_do_not_overlap(op, backend, batch, optional):
    """The fake kernels of forward and backward report the same shapes and strides."""
    calls = record_calls(op, unaligned_example(op, batch, optional), backend)
    assert len(calls) == 2
    for custom, args in calls:
        detached = [x.detach() if isinstance(x, torch.Tensor) else x for x in args]
        results = custom.overload(*detached)
        for x in results:
            assert x.data_ptr() % ALIGNMENT == 0
            assert x.storage_offset() * x.element_size() % ALIGNMENT == 0
        ranges = sorted(address_range(x) for x in results if x.numel())
        assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
        with torch._subclasses.FakeTensorMode() as mode:
            fake_results = custom.overload(*(mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in detached))
        assert [layout(x) for x in fake_results] == [layout(x) for x in results]
