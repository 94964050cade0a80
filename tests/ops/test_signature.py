"""The native custom ops raise for every wrong shape, dtype and device, with the name of the argument, before a kernel runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import longscan
from longscan.ops import OPS, dplr_spectrum
from longscan.ops._signature import Signature

FUZZ = Path(__file__).parent / "fuzz_native_ops.py"
CASES = ("u: B L D", "A: [models] D N [2]", "h: B D N [2]", "w?: B L, uint8", "s?: B K-1, reduced", "k?: K")


def make_signature():
    return Signature("scan", CASES, "h", may_be_empty=("N",), limits=lambda sizes: "h: odd" if sizes["N"] == 7 else None)


def make_tensors(**changed):
    shapes = {"u": (2, 5, 3), "A": (3, 4), "h": (2, 3, 4), "w": None, "s": None, "k": None} | changed
    return [None if x is None else x if isinstance(x, torch.Tensor) else torch.zeros(x) for x in shapes.values()]


@pytest.mark.parametrize(
    ("changed", "axes"),
    [
        ({}, set()),
        ({"A": (3, 4, 2), "h": (2, 3, 4, 2)}, {"2"}),
        ({"A": (2, 3, 4)}, {"models"}),
        ({"A": (1, 3, 4, 2), "h": (2, 3, 4, 2)}, {"models", "2"}),
        ({"A": (3, 0), "h": (2, 3, 0)}, set()),
        ({"s": (2, 4), "k": (5,), "w": torch.zeros(2, 5, dtype=torch.uint8)}, set()),
        ({"s": (2, 0), "k": (1,)}, set()),
    ],
    ids=lambda value: str(sorted(value)),  # the order of a set differs between processes
)
def test_matching_tensors_give_the_optional_axes(changed, axes):
    assert make_signature().check(make_tensors(**changed), "cpu") - {""} == axes


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"u": (2, 5)}, ValueError, r"`u` must be of shape \(B, L, D\) with the axes of the others, got \(2, 5\)"),
        ({"A": (3, 4, 2)}, ValueError, r"`[Ah]` must be of shape .*, got"),
        ({"A": (3, 4, 3), "h": (2, 3, 4, 3)}, ValueError, r"`A` must be of shape \(3, 4, 2\), .*, got \(3, 4, 3\)"),
        (
            {"A": (3, 5)},
            ValueError,
            r"`h` must be of shape \(2, 3, 5\), which is \(B, D, N\) by the sizes of A, u, got \(2, 3, 4\)",
        ),
        ({"A": (3, 3, 4)}, ValueError, "the models of `A` must be a divisor of the batch of 2 rows, got 3"),
        ({"u": (2, 0, 3)}, ValueError, r"axis 1 \(L\) of `u` must be of size at least 1, got 0"),
        ({"A": (3, 7), "h": (2, 3, 7)}, ValueError, "h: odd"),
        ({"w": (2, 5)}, TypeError, "`w` must be of dtype torch.uint8 where h is of torch.float32, got torch.float32"),
        ({"s": (2, 5), "k": (5,)}, ValueError, r"`s` must be of shape \(2, 4\), .*, got \(2, 5\)"),
        (
            {"h": torch.zeros(2, 3, 4, dtype=torch.int64)},
            TypeError,
            "`h` must be of dtype torch.float32 or torch.float64, got torch.int64",
        ),
        ({"u": torch.zeros(2, 5, 3, dtype=torch.float64)}, TypeError, "`u` must be of dtype torch.float32 .*, got torch.float64"),
        ({"s": torch.zeros(2, 4).half(), "k": (5,)}, TypeError, "`s` must be of dtype torch.float32 .*, got torch.float16"),
        ({"u": torch.zeros(2, 5, 3, device="meta")}, ValueError, "`u` must be on cpu like h, got a tensor on meta"),
        ({"u": None}, TypeError, "`u` must be a tensor, which scan requires, got None"),
        ({"h": None}, TypeError, "`h` must be a tensor, which scan requires, got None"),
    ],
    ids=str,
)
def test_mismatch_raises_and_names_the_argument(changed, error, message):
    with pytest.raises(error, match=message):
        make_signature().check(make_tensors(**changed), "cpu")


def test_bfloat16_is_accepted_by_triton_only():
    signature = Signature("scan", ("x: B, bfloat16", "y: B, bfloat16", "h: B"), "h")
    low, high = torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2)
    signature.check([low, low, high], "triton")
    with pytest.raises(TypeError, match=r"`x` must be of dtype torch.float32 .*, got torch\.bfloat16"):
        signature.check([low, low, high], "cpu")
    with pytest.raises(TypeError, match=r"`y` must be of dtype torch.bfloat16 like x, got torch\.float32"):
        signature.check([low, high, high], "triton")
    with pytest.raises(TypeError, match=r"`x` must be of dtype torch.float64 .*, got torch\.bfloat16"):
        signature.check([low, low, high.double()], "triton")


@pytest.fixture(scope="module", params=["quick", pytest.param("all", marks=pytest.mark.slow)])
def fuzz_reports(request):
    """Return the outcomes of right and wrong calls of every registered op, made in a process that a wrong address may end."""
    process = subprocess.run([sys.executable, str(FUZZ), request.param], capture_output=True, text=True, check=False, timeout=280)
    assert process.returncode == 0, f"exit status {process.returncode} after {process.stdout[-300:]}{process.stderr[-2000:]}"
    return [json.loads(line) for line in process.stdout.splitlines()]


def test_every_registered_op_is_fuzzed(fuzz_reports):
    assert dplr_spectrum.NATIVE_BACKENDS  # imported here, so that its custom ops are registered, too
    registered = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("longscan::")}
    assert {line["op"] for line in fuzz_reports} == registered | {"mamba_step", "layer:s4d"}
    for way in ("dispatched", "plain"):
        assert len([line for line in fuzz_reports if line["way"] == way]) > 1500
    kernels = {name for name, entry in OPS.items() if "cpu" in entry.native and entry.native_gradients} | {"dplr_spectrum"}
    reported = {line["op"].removeprefix("longscan::") for line in fuzz_reports if line["way"] == "kernel"}
    assert reported == kernels | {f"{name}_backward" for name in kernels}


def test_only_checked_functions_call_kernels():
    """Modules that import the compiled extension, or a module that hands addresses to it or to Triton."""
    package, importers, callers = Path(longscan.__file__).parent, set(), set()
    for path in package.rglob("*.py"):
        name, text = path.relative_to(package).as_posix(), path.read_text("utf-8")
        if re.search(r"from longscan\.ops import .*\b_native\b|import longscan\.ops\._native\b|\"longscan\.ops\._native\"", text):
            importers.add(name)
        if re.search(r"longscan\.ops\.\w+(\.| import )(cpu|triton)\b|\{__name__\}\.cpu|longscan\.ops\.(\w+\.)?\{", text):
            callers.add(name)
    modules = {f"ops/{name}/cpu.py" for name in ("dplr_spectrum", *(name for name in OPS if "cpu" in OPS[name].native))}
    assert importers == modules | {"ops/_cpu.py", "ops/dispatch.py", "system.py"}
    own = {name for name in callers if re.fullmatch(r"ops/\w+/triton(/\w+|_\w+)?\.py", name)}
    assert callers - own == {"ops/_native_op.py", "ops/mamba_step/__init__.py", "ops/dplr_spectrum/__init__.py"}


def test_wrong_calls_raise_and_name_the_argument(fuzz_reports):
    wrong = [
        line for line in fuzz_reports if not line["right"] and not (line["named"] or (line["way"] == "layer" and line["raised"]))
    ]
    assert not wrong, wrong[:5]


def test_right_calls_run(fuzz_reports):
    assert not [line for line in fuzz_reports if line["right"] and line["raised"]]
    assert sum(line["right"] for line in fuzz_reports) >= 15
