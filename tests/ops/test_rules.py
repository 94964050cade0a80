"""The rule of allowed errors, the choice of a backend, and sizes of chunks and of memory on huge pages, on known values."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
import torch

from longscan.ops import OPS, chunks, dispatch, mamba_step
from longscan.ops._tolerances import allowed_error, largest_error, largest_value, perturb, real_dtype
from longscan.ops.dispatch import Choice, choose, missing_kernel, unsupported_reason
from op_examples import example

CPU, CUDA, META = torch.device("cpu"), torch.device("cuda"), torch.device("meta")
BOTH = ("cpu", "triton")


def test_dtypes_of_parts() -> None:
    given = (torch.complex64, torch.complex128, torch.float32, torch.bfloat16)
    assert [real_dtype(dtype) for dtype in given] == [torch.float32, torch.float64, torch.float32, torch.bfloat16]


def test_inputs_are_perturbed_by_one_relative_eps_up_and_down() -> None:
    x = torch.linspace(1, 2, 200, dtype=torch.float64)
    ratio = (perturb(x, 1e-3, torch.Generator().manual_seed(0)) / x - 1) * 1e3
    assert torch.allclose(ratio.abs(), torch.ones(200, dtype=torch.float64), atol=1e-9)
    assert 60 < int((ratio > 0).sum()) < 140
    z = torch.complex(x, -x)
    parts = torch.view_as_real(perturb(z, 1e-3, torch.Generator().manual_seed(0))) / torch.view_as_real(z)
    assert torch.allclose((parts - 1).abs(), torch.full((200, 2), 1e-3, dtype=torch.float64), atol=1e-12)
    assert bool((parts[:, 0] != parts[:, 1]).any())


def test_largest_error_leaves_out_values_beyond_half_the_range() -> None:
    truth = torch.tensor([1.0, -2.0, 1e39], dtype=torch.float64)
    assert largest_error(torch.tensor([1.0, -2.5, math.inf]), truth) == 0.5
    half = torch.finfo(torch.float32).max / 2
    assert largest_error(torch.tensor([0.0]), torch.tensor([half * 0.99], dtype=torch.float64)) > 1e38
    assert largest_error(torch.tensor([0.0]), torch.tensor([half * 1.01], dtype=torch.float64)) == 0
    assert largest_error(torch.tensor([1.0, math.nan, 1]), truth) == math.inf
    assert largest_error(torch.ones(2), truth) == math.inf
    assert largest_error(torch.ones(0), torch.ones(0)) == 0
    assert largest_error(torch.tensor([3 + 4j]), torch.zeros(1, dtype=torch.complex128)) == pytest.approx(5)
    assert (largest_value(truth), largest_value(torch.ones(0))) == (1e39, 0)


def test_allowed_error_is_the_sum_of_its_parts() -> None:
    truth = torch.tensor([1.0, 4.0], dtype=torch.float64)
    plain = [truth + 0.125, truth - 0.25]
    perturbed = [truth + 0.5, truth + 0.0625]
    rounding = 4 * 2.0**-23
    assert allowed_error(torch.float32, plain, truth, perturbed) == pytest.approx(2 * 0.25 + 4 * 0.5 + rounding, rel=1e-12)
    changed = allowed_error(torch.float32, plain, truth, perturbed, operations=3, precision=0.5)
    assert changed == pytest.approx(0.5 * (2 * 3 * 0.25 + 4 * 0.5) + rounding, rel=1e-12)
    of_perturbed = [perturbed[0] + 1, perturbed[1]]  # one plain result of perturbed inputs is worse than those of the inputs
    assert allowed_error(torch.float32, plain, truth, perturbed, of_perturbed) == pytest.approx(2 * 1 + 4 * 0.5 + rounding)
    assert allowed_error(torch.float64, [], truth, perturbed) == pytest.approx(4 * 0.5)
    with pytest.raises(ValueError, match="zip"):
        allowed_error(torch.float32, plain, truth, perturbed, of_perturbed[:1])


@pytest.mark.parametrize(
    ("backend", "device", "native", "dtype", "reason"),
    [
        ("eager", META, (), torch.float32, None),
        ("reference", CPU, (), torch.int64, None),
        ("cpu", CPU, ("triton",), torch.float32, "linear_scan has no cpu kernel"),
        ("triton", CUDA, ("cpu",), torch.float32, "linear_scan has no triton kernel"),
        ("cpu", CPU, BOTH, torch.int64, "no cpu kernel for torch.int64"),
        ("cpu", CPU, BOTH, torch.bfloat16, None),
        ("cpu", META, BOTH, torch.float32, "the inputs are on meta"),
        ("triton", META, BOTH, torch.float32, "the inputs are on meta"),
        ("triton", CPU, BOTH, torch.float32, "the inputs are on cpu"),
        ("triton", CUDA, BOTH, torch.float32, None),
    ],
)
def test_why_a_backend_cannot_run(
    backend: str, device: torch.device, native: Any, dtype: torch.dtype, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(dispatch, "_no_triton", None)
    monkeypatch.setattr(dispatch, "_unusable", {})
    assert unsupported_reason("linear_scan", backend, device, dtype, native) == reason
    monkeypatch.setattr(dispatch, "_no_triton", "Triton is absent")
    monkeypatch.setattr(dispatch, "_unusable", {"linear_scan": "of another version"})
    if reason is None and backend in BOTH:
        absent = {"cpu": "of another version", "triton": "Triton is absent"}[backend]
        assert unsupported_reason("linear_scan", backend, device, dtype, native) == absent
        assert missing_kernel("linear_scan", backend, native) == absent


def test_the_interpreter_runs_triton_kernels_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_no_triton", None)
    for value, reason in (("1", None), ("0", "the inputs are on cpu")):
        monkeypatch.setenv("TRITON_INTERPRET", value)
        assert unsupported_reason("linear_scan", "triton", CPU, torch.float32, BOTH) == reason


def test_missing_kernels_do_not_depend_on_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_no_triton", None)
    monkeypatch.setattr(dispatch, "_unusable", {})
    assert missing_kernel("linear_scan", "eager", ()) is None
    assert missing_kernel("linear_scan", "cpu", ("triton",)) == "linear_scan has no cpu kernel"
    assert missing_kernel("linear_scan", "cpu", BOTH) is None
    assert missing_kernel("linear_scan", "triton", BOTH) is None


@pytest.mark.parametrize(
    ("requested", "device", "native", "more", "backend", "reason"),
    [
        ("eager", CPU, BOTH, {"impossible": "no"}, "eager", "asked for"),
        ("reference", META, (), {}, "reference", "asked for"),
        ("cpu", CPU, BOTH, {}, "cpu", "asked for"),
        ("cpu", CPU, BOTH, {"unsuited": "slow"}, "cpu", "asked for"),
        ("cpu", CPU, BOTH, {"impossible": "no"}, None, "no"),
        ("cpu", META, BOTH, {"impossible": "no"}, None, "the inputs are on meta"),
        ("auto", META, BOTH, {}, "eager", "no native kernel for this device"),
        ("auto", CPU, (), {}, "eager", "linear_scan has no native kernel"),
        ("auto", CPU, ("triton",), {}, "eager", "no native kernel for this device"),
        ("auto", CPU, BOTH, {}, "cpu", "native kernel"),
        ("auto", CPU, BOTH, {"unsuited": "slow"}, "eager", "slow"),
        ("auto", CPU, BOTH, {"impossible": "no", "unsuited": "slow"}, "eager", "no"),
    ],
)
def test_choice_of_a_backend(
    requested: str, device: torch.device, native: Any, more: dict[str, str], backend: str | None, reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(dispatch, "_unusable", {})
    monkeypatch.setattr(dispatch, "failed_doctor", lambda *_: None)
    expected = Choice("linear_scan", requested, backend, reason)
    assert choose("linear_scan", requested, device, torch.float32, native, **more) == expected
    monkeypatch.setattr(dispatch, "failed_doctor", lambda *_: "a fault")
    if reason == "native kernel":
        expected = Choice("linear_scan", "auto", "eager", "a fault", by_doctor=True)
    assert choose("linear_scan", requested, device, torch.float32, native, **more) == expected


@pytest.mark.parametrize(
    ("shape", "size"), [((1, 100, 1), 1024), ((1, 100, 17), 64), ((4, 100, 2, 1), 128), ((0, 5, 3), 1024), ((1, 0, 3), 341)]
)
def test_chunks_have_few_numbers_or_64_steps(shape: tuple[int, ...], size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 1024)
    assert chunks.long_chunk(torch.zeros(shape)) == size


def test_large_results_are_placed_on_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = pytest.importorskip("longscan.ops._cpu", reason="the compiled kernels are not installed")
    asked: list[int] = []
    monkeypatch.setattr(cpu._native, "prefer_huge_pages", lambda _, size: asked.append(size), raising=False)
    for count in (2**20 - 1, 2**20, 2**20 + 1):
        x = cpu.empty(torch.zeros(1), (count,))
        assert (x.shape, x.dtype) == ((count,), torch.float32)
    assert asked == [2**22, 2**22 + 4]
    assert cpu.empty_like(None, torch.zeros(3)).shape == (0,)
    assert cpu.empty_like(torch.zeros(2, 3), torch.zeros(3)).shape == (2, 3)
    assert cpu.addresses(None, torch.zeros(0)) == [0, 0]
    for wrong in (torch.zeros(2, device="meta"), torch.zeros(2, 3).T):
        with pytest.raises(ValueError, match=rf"must be contiguous and on the CPU, got strides .* on {wrong.device}"):
            cpu.addresses(torch.zeros(2), wrong)


def step_arguments(rows: int) -> dict[str, Any]:
    """Return the arguments of `mamba_step` for a small block."""
    shapes = {
        "x": (rows, 3), "conv_state": (rows, 4, 1), "ssm_state": (rows, 4, 2), "in_proj": (8, 3), "conv_weight": (4, 2),
        "x_proj": (5, 4), "dt_proj": (4, 1), "dt_bias": (4,), "A_log": (4, 2), "out_proj": (3, 4),
    }  # fmt: skip
    return {name: torch.rand(shape) for name, shape in shapes.items()}


def reason_of(**given: Any) -> str:
    """Return why `mamba_step` runs on its backend."""
    with torch.no_grad(), dispatch.recorded_choices(dispatch.Recording(dry=True)) as recorded:
        mamba_step(**given)
    (choice,) = recorded.choices
    return f"{choice.backend}: {choice.reason}"


@pytest.mark.skipif(dispatch.native_cpu_missing() is not None, reason="the compiled kernels are not installed")
def test_one_step_of_up_to_32_rows_has_a_kernel() -> None:
    assert reason_of(**step_arguments(32)) == "cpu: native kernel"
    assert reason_of(**step_arguments(33)) == "eager: torch's matrix products are faster for more than 32 rows"
    small = step_arguments(2)
    assert reason_of(**small | {"in_proj": torch.rand(3, 8).T}) == "eager: a weight is not contiguous"
    assert reason_of(**small | {"ssm_state": torch.rand(2, 2, 4).mT}) == "cpu: native kernel", "states may have any strides"
    wide = {name: value.double() for name, value in small.items()}
    assert reason_of(**wide) == "cpu: native kernel"
    half = {name: value.bfloat16() for name, value in small.items()}
    assert reason_of(**half) == "eager: no cpu kernel for torch.bfloat16"
    with torch.autocast("cpu"):
        assert reason_of(**small) == "eager: autocast is on"
    with torch.enable_grad(), dispatch.recorded_choices(dispatch.Recording(dry=True)) as recorded:
        mamba_step(**small | {"out_proj": small["out_proj"].requires_grad_()})
    assert recorded.choices[0].reason == "it has no gradient; call it under torch.no_grad()"


@pytest.mark.parametrize("op", ["unitary_scan", "selective_scan"])
def test_states_of_chunks_are_kept_for_a_backward_pass_alone(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them the backward pass computes them a second time; this holds for pieces of split sequences, too."""
    module = import_module(f"longscan.ops.{op}")
    kept: list[Any] = []
    monkeypatch.setattr(module._native, "of_piece", lambda *given, **_: kept.append(given[-2]))
    inputs = example(op)
    for gradient, enabled in ((True, True), (True, False), (False, True)):
        for name, value in inputs.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                inputs[name] = value.detach().requires_grad_(gradient)
        with torch.set_grad_enabled(enabled):
            OPS[op].function(**inputs)
    assert kept == [True, False, False]


def test_verdicts_make_their_folder_and_keep_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "verdicts_path", lambda: tmp_path / "new" / "cache" / "doctor.json")
    assert dispatch.read_verdicts() == {}
    dispatch.write_verdicts(CPU, {"a": {"cpu": "passed"}})
    dispatch.write_verdicts(CPU, {"a": {"triton": "a fault"}, "b": {"cpu": "another"}})
    dispatch.write_verdicts(META, {"a": {"cpu": "third"}})
    expected = {"a": {"cpu": "passed", "triton": "a fault"}, "b": {"cpu": "another"}}
    found = dispatch.read_verdicts()
    assert found == {dispatch.verdicts_key(CPU): expected, dispatch.verdicts_key(META): {"a": {"cpu": "third"}}}
    assert dispatch.failed_doctor("a", "triton", CPU) == "`longscan doctor` found a fault"
    assert dispatch.failed_doctor("a", "cpu", CPU) is None
    assert dispatch.failed_doctor("c", "cpu", CPU) is None
    dispatch.failed_doctor.cache_clear()
    assert dispatch.verdicts_key(CPU).startswith("cpu, longscan ")


def test_verdicts_of_simultaneous_checks_are_all_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads read the file at the same time unless it is locked; they stand for two processes of `longscan doctor`."""
    monkeypatch.setattr(dispatch, "verdicts_path", lambda: tmp_path / "doctor.json")
    both_have_read, read = Barrier(2), dispatch.read_verdicts

    def read_and_wait() -> Any:
        found = read()
        with suppress(BrokenBarrierError):
            both_have_read.wait(0.3)
        return found

    monkeypatch.setattr(dispatch, "read_verdicts", read_and_wait)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda op: dispatch.write_verdicts(CPU, {op: {"cpu": "passed"}}), ("a", "b")))
    monkeypatch.undo()
    assert json.loads((tmp_path / "doctor.json").read_text())[dispatch.verdicts_key(CPU)].keys() == {"a", "b"}


def test_missing_kernels_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise ImportError(f"no {name}")

    monkeypatch.setattr(dispatch, "import_module", fail)
    monkeypatch.setattr(dispatch, "_unusable", {})
    assert dispatch.native_cpu_missing() == "the compiled CPU kernels are not installed (no longscan.ops._native)"
    assert dispatch.probe("some_op", "cpu", "triton") == ("cpu", "triton")
    assert list(dispatch._unusable) == ["some_op"]
    dispatch.probe("other_op", "triton")
    assert list(dispatch._unusable) == ["some_op"]
    monkeypatch.setattr(dispatch, "import_module", lambda _: object())
    dispatch.probe("third_op", "cpu")
    assert dispatch._unusable["third_op"] == "the installed CPU kernels are of a version without third_op: install longscan again"
