"""Small calls of every op, for tests that need one of each rather than many."""

import torch

from longscan.ops import OPS
from longscan.ops._examples import example_inputs, example_masks

OPTIONS = {"selective_scan": {"dt_softplus": True}, "short_conv": {"activation": "silu"}}


def example(op, dtype=torch.float32, length=5, batch=2, optional=True, masked=True, is_complex=False):
    """Arguments of one call, small."""
    sizes = {"B": batch, "L": length, "D": 3, "N": 4, "H": 4, "P": 3, "G": 2, "R": 1, "K": 3}
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
    return {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor) and x.is_floating_point()}


def with_gradients(inputs):
    return inputs | {name: x.clone().requires_grad_() for name, x in floats(inputs).items()}
