"""`mamba_step`: its CPU kernel and its eager backend against the reference, in float64."""

import itertools

import pytest
import torch

from longscan.ops import mamba_step
from native import needs_kernels


def make_inputs(rows=3, width=24, inner=40, taps=4, rank=3, states=5, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, scale=1.0):
        return torch.randn(shape, generator=generator, dtype=torch.float64) * scale

    inputs = {"x": normal(rows, width), "conv_state": normal(rows, inner, taps - 1), "ssm_state": normal(rows, inner, states)}
    weights = {
        "in_proj": normal(2 * inner, width, scale=width**-0.5),
        "conv_weight": normal(inner, taps),
        "x_proj": normal(rank + 2 * states, inner, scale=inner**-0.5),
        "dt_proj": normal(inner, rank),
        "dt_bias": normal(inner),
        "A_log": normal(inner, states),
        "out_proj": normal(width, inner, scale=inner**-0.5),
    }
    return inputs | weights


def make_options(inputs, seed=1):
    generator = torch.Generator().manual_seed(seed)
    (rows, width), inner = inputs["x"].shape, len(inputs["conv_weight"])
    return {
        "conv_bias": torch.randn(inner, generator=generator, dtype=torch.float64),
        "D": torch.randn(inner, generator=generator, dtype=torch.float64),
        "norm_weight": torch.randn(width, generator=generator, dtype=torch.float64),
        "elapsed": torch.rand(rows, generator=generator, dtype=torch.float64) * 2,
        "active": torch.rand(rows, generator=generator) < 0.6,
    }


def cast(tensors, dtype):
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}


@needs_kernels
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-13), (torch.float32, 2e-5)])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"rows": 1, "width": 1, "inner": 1, "taps": 1, "rank": 1, "states": 1},
        {"rows": 5, "width": 33, "inner": 66, "states": 17},
    ],
    ids=["default", "ones", "large"],
)
@pytest.mark.parametrize("selects_raw", [False, True])
def test_kernel_equals_reference(sizes, selects_raw, dtype, limit):
    inputs = make_inputs(**sizes)
    options = make_options(inputs)
    for chosen in itertools.chain([()], itertools.combinations(options, 1), [tuple(options)]):
        arguments = inputs | {name: options[name] for name in chosen}
        truth = mamba_step(**arguments, selects_raw=selects_raw, backend="reference")
        results = mamba_step(**cast(arguments, dtype), selects_raw=selects_raw, backend="cpu")
        for result, expected in zip(results, truth, strict=True):
            assert result.dtype == dtype
            torch.testing.assert_close(result.double(), expected, rtol=limit, atol=limit)


@needs_kernels
def test_number_of_threads_does_not_change_bits(set_num_threads, monkeypatch):
    monkeypatch.setattr("longscan.ops._cpu.MIN_TEAM_WORK", 0)
    arguments = cast(make_inputs(rows=2, width=64, inner=128), torch.float32)
    results = []
    for threads in (1, 2, 3):
        set_num_threads(threads)
        results.append(mamba_step(**arguments, backend="cpu"))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("selects_raw", [False, True])
def test_eager_equals_reference(selects_raw):
    inputs = make_inputs()
    options = make_options(inputs)
    for chosen in itertools.chain([()], itertools.combinations(options, 1), [tuple(options)]):
        arguments = inputs | {name: options[name] for name in chosen}
        results = [mamba_step(**arguments, selects_raw=selects_raw, backend=backend) for backend in ("eager", "reference")]
        for result, expected in zip(*results, strict=True):
            torch.testing.assert_close(result, expected, rtol=1e-13, atol=1e-13)


def test_derivatives_of_the_reference_equal_finite_differences():
    arguments = make_inputs(rows=2, width=2, inner=3, taps=2, rank=1, states=2)
    names = [name for name in arguments if name != "x"]

    def run(x, *rest):
        return mamba_step(x, **dict(zip(names, rest, strict=True)))

    assert torch.autograd.gradcheck(run, tuple(x.requires_grad_() for x in arguments.values()))


def test_inactive_rows_do_not_change_their_state():
    inputs = make_inputs()
    active = torch.tensor([True, False, True])
    y, conv, ssm = mamba_step(**inputs, active=active)
    assert torch.equal(conv[1], inputs["conv_state"][1])
    assert torch.equal(ssm[1], inputs["ssm_state"][1])
    assert not y[1].any()
    residual, _, _ = mamba_step(**inputs, active=active, norm_weight=torch.ones(inputs["x"].shape[1], dtype=torch.float64))
    assert torch.equal(residual[1], inputs["x"][1])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ssm_state", torch.zeros(3, 40, 6), r"`ssm_state` must be of shape \(3, 40, 5\), got \(3, 40, 6\)"),
        ("x_proj", torch.zeros(12, 40), r"`x_proj` must be of shape \(13, 40\), got \(12, 40\)"),
        ("active", torch.ones(3), "`active` must be of dtype torch.bool, got torch.float32"),
        ("backend", "triton", "`backend` must be .* that can run mamba_step here, got 'triton': mamba_step has no triton kernel"),
    ],
)
def test_wrong_argument_raises(name, value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mamba_step(**(make_inputs() | {name: value}))


@needs_kernels
def test_cpu_kernel_with_gradients_raises():
    inputs = make_inputs()
    inputs["in_proj"].requires_grad_()
    with pytest.raises(ValueError, match="it has no gradient"):
        mamba_step(**inputs, backend="cpu")
