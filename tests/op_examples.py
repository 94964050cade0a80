"""Small inputs of every op, and functions that run an op and its backward pass."""

from unittest.mock import patch

import torch

from longscan.ops import OPS, _custom_op
from longscan.ops._examples import example_inputs, example_masks

OPTIONS = {"selective_scan": {"dt_softplus": True}, "short_conv": {"activation": "silu"}}


def example(op, dtype=torch.float32, length=5, batch=2, optional=True, masked=True, is_complex=False, **widths):
    """Return the arguments of one small call of an op; `widths`: sizes of its other axes by their letters."""
    sizes = {"B": batch, "L": length, "D": 3, "N": 4, "H": 4, "P": 3, "G": 2, "R": 1, "K": 3} | widths
    inputs = example_inputs(op, sizes, dtype=dtype, optional=optional, is_complex=is_complex)
    if optional:
        inputs |= OPTIONS.get(op, {})
    if op in ("linear_scan", "block2_scan"):
        inputs["pairs"] = is_complex
    if op == "mamba_step" and optional:
        inputs["active"] = torch.arange(batch) != 1
    if masked and OPS[op].stateful:
        inputs |= example_masks(batch, length)
    return inputs


def floats(inputs):
    """Return the floating-point tensors of a dictionary of arguments."""
    return {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor) and x.is_floating_point()}


def with_gradients(inputs):
    """Return arguments whose floating-point tensors are copies that require gradients."""
    return inputs | {name: x.clone().requires_grad_() for name, x in floats(inputs).items()}


def run_with_gradients(function, inputs):
    """Return the results of `function(inputs)` and their gradients by the floating-point inputs, for fixed random cotangents."""
    inputs = with_gradients(inputs)
    results = function(inputs)
    results = results if isinstance(results, tuple) else (results,)
    generator = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) for x in results]
    return [*results, *torch.autograd.grad(results, list(floats(inputs).values()), cotangents)]


def record_calls(op, inputs, backend):
    """Return the custom ops that a call of `op` and its backward pass make, with their arguments."""
    calls, original = [], _custom_op.CustomOp.__call__

    def call(self, *args, **observed):
        calls.append((self, args))
        return original(self, *args, **observed)

    with patch.object(_custom_op.CustomOp, "__call__", call):
        y, final = OPS[op].function(**with_gradients(inputs), backend=backend)
        (y.sum() + final.sum()).backward()
    return calls


def randn64(*shape):
    """Return standard normal numbers in float64."""
    return torch.randn(shape, dtype=torch.float64)
