"""Options of parameters survive copies, casts, moves and saving, and sensitive parameters stay float32."""

import copy
import io

import pytest
import torch
from torch import nn

from longscan.layers import LAYERS, ParameterOptions, make_layer, mark, parameter_options


def options_by_name(module: nn.Module) -> dict[str, ParameterOptions]:
    return {name: parameter_options(parameter) for name, parameter in module.named_parameters()}


def test_parameter_without_options_is_dense():
    assert parameter_options(nn.Parameter(torch.ones(2))) == ParameterOptions("dense", 1.0, True, False)
    marked = mark(nn.Parameter(torch.ones(2)), "ssm", lr_scale=0.1, decay=False)
    assert parameter_options(marked) == ParameterOptions("ssm", 0.1, False, False)


@pytest.mark.parametrize("name", LAYERS)
def test_options_survive_copies_casts_moves_and_saving(name):
    layer = make_layer(name, 4, {})
    before = options_by_name(layer)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    for copied in (
        copy.deepcopy(layer),
        torch.load(buffer, weights_only=False),
        copy.deepcopy(layer).to(torch.bfloat16),
        copy.deepcopy(layer).to("meta").to_empty(device="cpu"),
        copy.deepcopy(nn.Sequential(layer)).double()[0],
    ):
        assert options_by_name(copied) == before


@pytest.mark.parametrize("cast", [torch.Tensor.half, torch.Tensor.bfloat16], ids=["half", "bfloat16"])
def test_casts_to_half_do_not_change_sensitive_parameters(cast):
    for name in LAYERS:
        layer = make_layer(name, 4, {})
        values = {key: parameter.detach().clone() for key, parameter in layer.named_parameters()}
        nn.Sequential(layer)._apply(cast)
        for key, parameter in layer.named_parameters():
            sensitive = parameter_options(parameter).keep_float32
            assert parameter.dtype == (torch.float32 if sensitive else cast(values[key]).dtype)
            assert torch.equal(parameter, values[key] if sensitive else cast(values[key]))


def test_eigenvalues_angles_and_step_sizes_are_sensitive():
    sensitive = {
        "aussm": {"angle_proj", "angle_bias", "dt_bias", "B", "C", "D"},
        "s6": {"A_log", "dt_bias", "D"},
        "s4d": {"A_log", "A_imag", "log_dt", "C", "D"},
        "lru": {"nu", "phi", "log_gamma", "D"},
    }
    for name, expected in sensitive.items():
        assert {key for key, options in options_by_name(make_layer(name, 4, {})).items() if options.keep_float32} == expected


def test_double_casts_all_parameters():
    for name in LAYERS:
        assert {parameter.dtype for parameter in make_layer(name, 4, {}).double().parameters()} == {torch.float64}
