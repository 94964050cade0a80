"""Marks stay with the parameters, and sensitive parameters stay float32, through everything that happens to modules."""

import copy
import io

import pytest
import torch
from torch import nn

from longscan.layers import LAYERS, ParameterOptions, make_layer, mark, parameter_options


def every_mark(module: nn.Module) -> dict[str, ParameterOptions]:
    return {name: parameter_options(parameter) for name, parameter in module.named_parameters()}


def test_a_parameter_without_marks_is_dense():
    assert parameter_options(nn.Parameter(torch.ones(2))) == ParameterOptions("dense", 1.0, True, False)
    marked = mark(nn.Parameter(torch.ones(2)), "ssm", lr_scale=0.1, decay=False)
    assert parameter_options(marked) == ParameterOptions("ssm", 0.1, False, False)


@pytest.mark.parametrize("name", LAYERS)
def test_marks_survive(name):
    layer = make_layer(name, 4, {})
    before = every_mark(layer)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    for twin in (
        copy.deepcopy(layer),
        torch.load(buffer, weights_only=False),
        copy.deepcopy(layer).to(torch.bfloat16),
        copy.deepcopy(layer).to("meta").to_empty(device="cpu"),
        copy.deepcopy(nn.Sequential(layer)).double()[0],
    ):
        assert every_mark(twin) == before


@pytest.mark.parametrize("cast", [torch.Tensor.half, torch.Tensor.bfloat16], ids=["half", "bfloat16"])
def test_sensitive_parameters_keep_their_bits(cast):
    for name in LAYERS:
        layer = make_layer(name, 4, {})
        values = {key: parameter.detach().clone() for key, parameter in layer.named_parameters()}
        nn.Sequential(layer)._apply(cast)
        for key, parameter in layer.named_parameters():
            sensitive = parameter_options(parameter).keep_float32
            assert parameter.dtype == (torch.float32 if sensitive else cast(values[key]).dtype)
            assert torch.equal(parameter, values[key] if sensitive else cast(values[key]))


def test_eigenvalues_angles_and_steps_are_sensitive():
    sensitive = {
        "aussm": {"angle_proj", "angle_bias", "dt_bias", "B", "C", "D"},
        "s6": {"A_log", "dt_bias", "D"},
        "s4d": {"A_log", "A_imag", "log_dt", "C", "D"},
        "lru": {"nu", "phi", "log_gamma", "D"},
    }
    for name, wanted in sensitive.items():
        assert {key for key, mark in every_mark(make_layer(name, 4, {})).items() if mark.keep_float32} == wanted


def test_double_casts_everything():
    for name in LAYERS:
        assert {parameter.dtype for parameter in make_layer(name, 4, {}).double().parameters()} == {torch.float64}
