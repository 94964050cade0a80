"""The elementary functions of csrc/simd.h against float64 (float) and extended precision (double)."""

import os
import subprocess
import sys

import numpy as np
import pytest

_native = pytest.importorskip("longscan.ops._native")

GROWTH = {  # function: (exact, domain, units in the last place)
    "exp": (np.exp, (-80, 80), 2),
    "exp2": (np.exp2, (-120, 120), 2),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), (-80, 80), 4),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), (-80, 80), 4),
    "silu": (lambda x: x / (1 + np.exp(-x)), (-80, 80), 4),
}
WAVES = {"sin": np.sin, "cos": np.cos}


def run(name: str, x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    _native.math_probe(name, x.ctypes.data, y.ctypes.data, x.size, x.dtype == np.float64)
    return y


def arguments(low: float, high: float, dtype: type) -> np.ndarray:
    generator = np.random.default_rng(0)
    ends = [low, high, 0.0, 1e-3, -1e-3, 0.5, -0.5]
    return np.concatenate([generator.uniform(low, high, 100_003), generator.normal(0, 1, 50_000), ends]).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", GROWTH)
def test_growth(name: str, dtype: type) -> None:
    exact, (low, high), limit = GROWTH[name]
    x = arguments(low, high, dtype)
    truth = exact(x.astype(np.longdouble))
    ulps = np.abs(run(name, x) - truth) / np.spacing(np.abs(truth).astype(dtype))
    assert ulps.max() <= limit


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("reach", [4.0, 8000.0, 1e5, 1e9])
@pytest.mark.parametrize("name", WAVES)
def test_waves(name: str, reach: float, dtype: type) -> None:
    x = arguments(-reach, reach, dtype)
    error = np.abs(run(name, x) - WAVES[name](x.astype(np.longdouble)))
    assert error.max() <= np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ends_of_the_range(dtype: type) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e4, -1e4], dtype)
    np.testing.assert_array_equal(run("exp", x), np.array([np.nan, np.inf, 0, np.inf, 0], dtype))
    np.testing.assert_array_equal(run("exp2", x), np.array([np.nan, np.inf, 0, np.inf, 0], dtype))
    np.testing.assert_array_equal(run("softplus", x), np.array([np.nan, np.inf, 0, 1e4, 0], dtype))
    np.testing.assert_allclose(run("sigmoid", x), np.array([np.nan, 1, 0, 1, 0], dtype), rtol=0, atol=np.finfo(dtype).tiny)
    assert np.isnan(run("sin", x)[:3]).all()
    assert np.isnan(run("cos", x)[:3]).all()


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_every_instruction_set(isa: str) -> None:
    """This file again in a process that runs the other builds of the kernels."""
    if isa == _native.isa():
        return  # the tests above ran it
    program = "import sys, pytest; from longscan.ops import _native; print(_native.isa()); sys.exit(pytest.main(sys.argv[1:]))"
    tests = ["-q", "--noconftest", "-p", "no:cacheprovider", "-p", "no:xdist", __file__, "-k", "not instruction_set"]
    result = subprocess.run(
        [sys.executable, "-c", program, *tests], env={**os.environ, "LONGSCAN_CPU_ISA": isa}, capture_output=True, text=True
    )
    if "this processor or build has no" in result.stderr:
        pytest.skip(f"this processor or build has no {isa}")
    assert result.stdout.splitlines()[0] == isa
    assert result.returncode == 0, result.stdout


def test_unknown_instruction_set() -> None:
    command = [sys.executable, "-c", "import longscan.ops._native"]
    result = subprocess.run(command, env={**os.environ, "LONGSCAN_CPU_ISA": "z80"}, capture_output=True, text=True)
    assert result.returncode != 0
    assert "LONGSCAN_CPU_ISA: got 'z80'" in result.stderr
