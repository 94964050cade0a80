"""The elementary functions of csrc/simd.h against float64 (float) and extended precision (double)."""

import ctypes
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

_native = pytest.importorskip("longscan.ops._native")

ROOT = Path(__file__).parents[2]
ISAS = ("baseline", "avx2", "avx512")
MONOTONIC = {  # function: (exact, domain, units in the last place)
    "exp": (np.exp, (-80, 80), 2),
    "exp2": (np.exp2, (-120, 120), 2),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), (-80, 80), 4),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), (-80, 80), 4),
    "silu": (lambda x: x / (1 + np.exp(-x)), (-80, 80), 4),
}
PERIODIC = {"sin": np.sin, "cos": np.cos}
Run = Callable[[str, np.ndarray], np.ndarray]


def compiler_flags(isa: str) -> list[str]:
    """Return the flags with which CMakeLists.txt compiles the kernels of an instruction set."""
    text = (ROOT / "CMakeLists.txt").read_text()
    (common,) = re.findall(r"\$\{flags_\$\{isa\}\} (-O3 .*)", text)
    (own,) = re.findall(rf"set\(flags_{isa} (-.*)\)", text) or [""]
    return [*common.split(), *own.split()]


@pytest.fixture(scope="module", params=ISAS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Compile the functions for an instruction set; return `run(name, x)`, which applies one of them."""
    if ISAS.index(request.param) > ISAS.index(_native.isa()):
        pytest.skip(f"this processor or build has no {request.param}")
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    source, library = Path(__file__).with_name("math_probe.cpp"), tmp_path_factory.mktemp("math_probe") / "math_probe.so"
    flags = [*compiler_flags(request.param), f"-DLONGSCAN_ISA={request.param}", f"-I{ROOT / 'csrc'}"]
    subprocess.run([compiler, "-std=c++17", "-shared", "-fPIC", *flags, str(source), "-o", str(library)], check=True)
    functions = ctypes.CDLL(str(library))

    def apply(name: str, x: np.ndarray) -> np.ndarray:
        y = np.empty_like(x)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, y)]
        getattr(functions, f"probe_{name}_{x.dtype}")(*pointers, ctypes.c_int64(x.size))
        return y

    return apply


def make_arguments(low: float, high: float, dtype: type) -> np.ndarray:
    generator = np.random.default_rng(0)
    special = [low, high, 0.0, 1e-3, -1e-3, 0.5, -0.5]
    return np.concatenate([generator.uniform(low, high, 100_003), generator.normal(0, 1, 50_000), special]).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", MONOTONIC)
def test_exponential_functions_are_accurate_to_a_few_ulps(run: Run, name: str, dtype: type) -> None:
    exact, (low, high), limit = MONOTONIC[name]
    x = make_arguments(low, high, dtype)
    truth = exact(x.astype(np.longdouble))
    ulps = np.abs(run(name, x) - truth) / np.spacing(np.abs(truth).astype(dtype))
    assert ulps.max() <= limit


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("limit", [4.0, 8000.0, 1e5, 1e9])
@pytest.mark.parametrize("name", PERIODIC)
def test_sin_and_cos_are_accurate_for_large_arguments(run: Run, name: str, limit: float, dtype: type) -> None:
    x = make_arguments(-limit, limit, dtype)
    error = np.abs(run(name, x) - PERIODIC[name](x.astype(np.longdouble)))
    assert error.max() <= np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_of_nan_infinity_and_overflow(run: Run, dtype: type) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e4, -1e4], dtype)
    np.testing.assert_array_equal(run("exp", x), np.array([np.nan, np.inf, 0, np.inf, 0], dtype))
    np.testing.assert_array_equal(run("exp2", x), np.array([np.nan, np.inf, 0, np.inf, 0], dtype))
    np.testing.assert_array_equal(run("softplus", x), np.array([np.nan, np.inf, 0, 1e4, 0], dtype))
    np.testing.assert_allclose(run("sigmoid", x), np.array([np.nan, 1, 0, 1, 0], dtype), rtol=0, atol=np.finfo(dtype).tiny)
    assert np.isnan(run("sin", x)[:3]).all()
    assert np.isnan(run("cos", x)[:3]).all()


# torch comes first: the module uses its OpenMP library. Importing it takes seconds, so that one process does it for all sets.
LOAD = """
import os, sys, torch
for isa in sys.argv[1:]:
    if not (child := os.fork()):
        os.environ["LONGSCAN_CPU_ISA"] = isa
        try:
            import _native
            print(isa, _native.isa(), flush=True)
        except ImportError as error:
            print(isa, error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, str]:
    """Load the compiled module without the package, with each name in the environment: its instruction set, or its error."""
    command = [sys.executable, "-c", LOAD, *ISAS, "z80"]
    done = subprocess.run(command, cwd=Path(_native.__file__).parent, capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("isa", ISAS)
def test_environment_variable_chooses_the_instruction_set(loaded: dict[str, str], isa: str) -> None:
    if "this processor or build has no" in loaded[isa]:
        pytest.skip(f"this processor or build has no {isa}")
    assert loaded[isa] == isa


def test_unknown_instruction_set_raises(loaded: dict[str, str]) -> None:
    assert "LONGSCAN_CPU_ISA: got 'z80'" in loaded["z80"]
