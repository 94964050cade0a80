"""Small calls of every op, for tests that need one of each rather than many."""

import torch

from longscan.ops import OPS


def example(op, dtype=torch.float32, length=5, batch=2, optional=True, masked=True, is_complex=False):
    """Arguments of one call, small."""
    channels, states = 3, 4
    steps = (batch, length)

    def real(*shape):
        return torch.randn(shape, dtype=dtype)

    pair = (2,) if is_complex else ()
    if op == "linear_scan":
        inputs = {"a": torch.rand(*steps, channels, *pair, dtype=dtype), "b": real(*steps, channels, *pair)}
        inputs["initial_state"] = real(batch, channels, *pair)
        inputs["pairs"] = is_complex
    elif op == "block2_scan":
        inputs = {"M": real(*steps, channels, 2, 2), "f": real(*steps, channels, 2, *pair)}
        inputs |= {"initial_state": real(batch, channels, 2, *pair), "pairs": is_complex}
    elif op == "selective_scan":
        inputs = {"u": real(*steps, channels), "dt": torch.rand(*steps, channels, dtype=dtype)}
        inputs |= {"A": -real(channels, states, *pair).abs(), "B": real(*steps, states, *pair), "C": real(*steps, states, *pair)}
        if optional:
            inputs |= {"D": real(channels), "z": real(*steps, channels), "dt_bias": real(channels), "dt_softplus": True}
            inputs |= {"initial_state": real(batch, channels, states, *pair), "dt_scale": torch.rand(steps, dtype=dtype)}
    elif op == "unitary_scan":
        inputs = {"u": real(*steps, channels), "dt": torch.rand(*steps, channels, dtype=dtype)}
        inputs |= {"W": real(channels, states, channels), "bias": real(channels, states)}
        inputs |= {"B": real(states, 2), "C": real(channels, states, 2)}
        if optional:
            inputs |= {"D": real(channels), "z": real(*steps, channels), "initial_state": real(batch, channels, states, 2)}
    elif op == "ssd_scan":
        heads, groups = 4, 2
        inputs = {"x": real(*steps, heads, channels), "dt": torch.rand(*steps, heads, dtype=dtype), "A": -real(heads).abs()}
        inputs |= {"B": real(*steps, groups, states), "C": real(*steps, groups, states)}
        if optional:
            inputs |= {"D": real(heads), "z": real(*steps, heads, channels)}
            inputs |= {"initial_state": real(batch, heads, channels, states)}
            inputs |= {"input_scale": real(*steps, heads), "own_scale": real(*steps, heads), "angle": real(*steps, heads, 1)}
            inputs |= {"B_bias": real(heads, states), "C_bias": real(heads, states)}
    elif op == "short_conv":
        inputs = {"u": real(*steps, channels), "weight": real(channels, 3)}
        if optional:
            inputs |= {"bias": real(channels), "initial_state": real(batch, channels, 2), "activation": "silu"}
    else:
        inputs = {"u": real(*steps, channels), "k": real(channels, length)}
    if masked and OPS[op].stateful:
        inputs["valid"] = torch.rand(steps) < 0.8
        inputs["seq_idx"] = (torch.rand(steps) < 0.3).cumsum(1)
    return inputs


def floats(inputs):
    return {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor) and x.is_floating_point()}


def with_gradients(inputs):
    return inputs | {name: x.clone().requires_grad_() for name, x in floats(inputs).items()}
