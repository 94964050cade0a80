"""The convolution of a diagonal system in chunks, which S4D uses on a GPU; here it runs on the CPU."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from s4d_checks import assert_convolution_equals_recurrence
from torch import Tensor

from longscan.layers import S4D, s4d
from longscan.layers.chunked_convolution import MAX_LENGTH, MAX_STATES, chunk_length, chunked_convolution, uses_chunks
from longscan.numerics.kernels import diagonal_kernel
from longscan.ops import long_conv
from scripts import load_script

ROOT = Path(__file__).parents[2]
LENGTHS = [1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 100, 333]


def system(channels: int = 3, states: int = 4, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return logarithms of eigenvalues of modulus .37 to 1, and coefficients."""
    log_a = torch.stack([-torch.rand(channels, states, dtype=dtype), 3 * torch.randn(channels, states, dtype=dtype)], -1)
    return log_a, torch.randn(channels, states, 2, dtype=dtype)


def by_fft(log_a: Tensor, coefficients: Tensor, u: Tensor) -> Tensor:
    return long_conv(u, diagonal_kernel(log_a, coefficients, u.shape[1]))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("backend", ["auto", "eager", "reference"])
def test_outputs_and_gradients_equal_those_of_the_fft(length: int, backend: str) -> None:
    log_a, coefficients = system()
    u, weights = torch.randn(2, 2, length, 3, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (log_a, coefficients, u)]
    y, expected = chunked_convolution(*inputs, backend), by_fft(*inputs)
    assert y.is_contiguous()
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-10)
    found, of_fft = (torch.autograd.grad((one * weights).sum(), inputs) for one in (y, expected))
    torch.testing.assert_close(found, of_fft, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", [256, 1000])
def test_errors_in_float32_are_those_of_rounding(length: int) -> None:
    """Relative to the sum of absolute products, an upper bound of every term, the error is some units of 6e-8."""
    log_a, coefficients = system(channels=4, states=32)
    u = torch.randn(2, length, 4, dtype=torch.float64)
    exact = by_fft(log_a, coefficients, u)
    size = long_conv(u.abs(), diagonal_kernel(log_a, coefficients, length).abs())
    error = (chunked_convolution(log_a.float(), coefficients.float(), u.float(), "auto") - exact).abs()
    assert (error / size).max() < 5e-5  # angles up to 10 times 1,000 steps are rounded to float32 before they are powers


def test_second_derivatives_are_right() -> None:
    log_a, coefficients = system(channels=1, states=2)
    u = torch.randn(1, 5, 1, dtype=torch.float64)
    inputs = tuple(x.requires_grad_() for x in (log_a, coefficients, u))
    assert torch.autograd.gradgradcheck(lambda *given: chunked_convolution(*given, "eager"), inputs)


def test_models_can_be_stacked_by_vmap() -> None:
    """Seeds that train together call the layer under vmap."""
    systems = [system() for _ in range(2)]
    log_a, coefficients = (torch.stack(part) for part in zip(*systems, strict=True))
    u = torch.randn(2, 3, 20, 3, dtype=torch.float64)
    stacked = torch.vmap(lambda *given: chunked_convolution(*given, "auto"))(log_a, coefficients, u)
    for k, one in enumerate(systems):
        torch.testing.assert_close(stacked[k], chunked_convolution(*one, u[k], "auto"))


@pytest.mark.parametrize("length", [*LENGTHS, 1024, 4096, MAX_LENGTH])
def test_chunks_and_their_number_are_near_the_root_of_the_length(length: int) -> None:
    size = chunk_length(length)
    assert size & (size - 1) == 0
    assert size < 2 * length
    assert size <= 4 * length**0.5
    assert length / size <= length**0.5


@pytest.mark.parametrize(
    ("device", "length", "d_state", "backend", "expected"),
    [
        ("cuda", 100, 4, "auto", True),
        ("cuda", 100, 4, "triton", True),
        ("cuda", MAX_LENGTH, 4, "auto", True),
        ("cuda", MAX_LENGTH + 1, 4, "auto", False),
        ("cuda", 100, 4, "eager", False),
        ("cuda", 100, 4, "reference", False),
        ("cpu", 100, 4, "auto", False),
        ("cuda", 1024, MAX_STATES, "auto", True),
        ("cuda", 1024, MAX_STATES + 2, "auto", False),
        ("cuda", 1024, MAX_STATES + 2, "triton", False),
    ],
)
def test_chunks_are_used_on_a_gpu_with_few_states(device: str, length: int, d_state: int, backend: str, expected: bool) -> None:
    u: Any = SimpleNamespace(device=torch.device(device), numel=lambda: 2 * length)
    assert uses_chunks(u, length, d_state, backend) is expected


def test_the_border_is_that_of_the_recorded_times_and_memory() -> None:
    """Replayed, time times memory is below that of the FFT at every recorded size up to MAX_STATES, and only there."""
    rows = [json.loads(line) for line in (ROOT / "results" / "s4d_forms.jsonl").read_text("utf-8").splitlines()]
    pairs = list(zip(rows[::2], rows[1::2], strict=True))
    assert {(chunks["form"], fft["form"]) for chunks, fft in pairs} == {("chunks", "fft")}
    for chunks, fft in pairs:
        assert all(chunks[key] == fft[key] for key in "BLDN")
        ratio = chunks["replayed_ms"] * chunks["peak_mib"] / (fft["replayed_ms"] * fft["peak_mib"])
        assert (ratio < 1) == (chunks["N"] <= MAX_STATES), (chunks, ratio)
    assert {chunks["N"] for chunks, _ in pairs} == {16, 32, 64, 128}


@pytest.mark.parametrize(("d_state", "expected"), [(MAX_STATES, True), (MAX_STATES + 2, False)])
def test_layer_decides_by_its_number_of_states(d_state: int, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = []

    def decide(u: Tensor, length: int, states: int, backend: str) -> bool:
        on_gpu: Any = SimpleNamespace(device=torch.device("cuda"), numel=u.numel)
        decisions.append(uses_chunks(on_gpu, length, states, backend))
        return decisions[-1]

    used = []
    monkeypatch.setattr(s4d, "uses_chunks", decide)
    monkeypatch.setattr(s4d, "chunked_convolution", lambda *given: used.append(1) or chunked_convolution(*given))
    S4D(3, d_state=d_state)(torch.randn(2, 20, 3))
    assert decisions == [expected]
    assert bool(used) is expected


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("trace", [torch.export.export, partial(torch.jit.trace, check_trace=False)])
def test_graphs_have_no_chunks(trace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = []

    def decide(u: Tensor, length: int, d_state: int, backend: str) -> bool:
        on_gpu: Any = SimpleNamespace(device=torch.device("cuda"), numel=u.numel)
        decisions.append(uses_chunks(on_gpu, length, d_state, backend))
        return False

    monkeypatch.setattr(s4d, "uses_chunks", decide)
    trace(S4D(3, d_state=4), (torch.randn(2, 20, 3),))
    assert decisions
    assert not any(decisions)


@pytest.mark.parametrize("trained_B", [False, True])
@pytest.mark.parametrize("length", [2, 65])
def test_layer_with_chunks_equals_its_recurrence(length: int, trained_B: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and final states agree for an initial state and rows that are padded left, right or entirely."""
    used = []
    monkeypatch.setattr(s4d, "uses_chunks", lambda *_: used.append(1) or True)
    layer = S4D(3, d_state=8, trained_B=trained_B).double()
    assert_convolution_equals_recurrence(layer, length)
    assert used == [1, 1]


@pytest.mark.parametrize("states", [8, 4 * MAX_STATES])
def test_both_forms_are_measured_at_every_number_of_states(states: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """benchmarks/s4d_forms.py; on a CPU, too, each row is of the form that it names."""
    script = load_script(ROOT / "benchmarks" / "s4d_forms.py", "benchmark_s4d_forms")
    out, calls = tmp_path / "s4d_forms.jsonl", []

    def record_calls(name: str) -> None:
        function = getattr(script, name)
        monkeypatch.setattr(script, name, lambda *given, **named: calls.append(name) or function(*given, **named))

    for name in ("chunked_convolution", "long_conv"):
        record_calls(name)
    for form, function in {"chunks": "chunked_convolution", "fft": "long_conv"}.items():
        calls.clear()
        layer = script.S4DOfOneForm(4, d_state=states)
        layer.form = form
        layer(torch.randn(2, 20, 4))
        assert calls == [function]
    sizes = ((2, 100, 4, states),)
    monkeypatch.setattr(script, "SIZES", sizes)
    monkeypatch.setattr(script, "SMALL", sizes)
    script.main(["--turns", "1", "--out", str(out)])
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [row["form"] for row in rows] == ["chunks", "fft"]
    assert all(row["N"] == states and row["error_vs_float64"] < 1e-4 and row["called_ms"] > 0 for row in rows)
