"""Inputs that the examples of ops have: sizes of axes that follow from others, and projections whose outputs stay bounded."""

import math

import pytest
import torch

from longscan.ops._examples import ARGUMENTS, example_inputs

SIZES = {"B": 2, "L": 6, "D": 16, "N": 5, "K": 3, "R": 4, "H": 4, "P": 4, "G": 2}


def inputs_of(op: str, **options: bool) -> dict[str, torch.Tensor]:
    return example_inputs(op, SIZES, generator=torch.Generator().manual_seed(0), **options)


def test_sizes_of_a_fused_step_follow_from_its_width() -> None:
    shapes = {name: tuple(x.shape) for name, x in inputs_of("mamba_step").items()}
    assert shapes["in_proj"] == (32, 16)
    assert shapes["x_proj"] == (4 + 2 * 5, 16)
    assert shapes["out_proj"] == (16, 16)
    assert shapes["conv_state"] == (2, 16, 2)
    assert "D" not in inputs_of("mamba_step", optional=False)


@pytest.mark.parametrize("op", sorted(ARGUMENTS))
def test_rescaled_inputs_are_multiples_of_the_others(op: str) -> None:
    plain, rescaled = inputs_of(op), inputs_of(op, long=True)
    for name, argument in ARGUMENTS[op].items():
        if argument.rescale is None:
            assert torch.equal(plain[name], rescaled[name])
        if name.endswith("_proj") and op == "mamba_step" and name != "dt_proj":
            torch.testing.assert_close(rescaled[name], plain[name] / math.sqrt(plain[name].shape[-1]))
