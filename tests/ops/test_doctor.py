"""`longscan doctor` on kernels that are right and on kernels that are wrong, and what `auto` makes of it."""

import os
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from pathlib import Path

import pytest
import torch

from longscan import doctor
from longscan.cli import main
from longscan.ops import OPS, dispatch, explain, linear_scan
from longscan.ops.dispatch import failed_doctor, read_verdicts, recorded_choices, unsupported_reason

CPU = torch.device("cpu")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
BACKEND = "triton" if INTERPRETED else "cpu"
pytestmark = pytest.mark.skipif(
    unsupported_reason("linear_scan", BACKEND, CPU, torch.float32, OPS["linear_scan"].native) is not None,
    reason=f"no {BACKEND} kernels here",
)
NATIVE = [op for op in OPS if BACKEND in OPS[op].native]


def changed_arguments(change):
    """A kernel that is called with other arguments."""
    return lambda kernel: lambda *args: kernel(*change(list(args)))


def changed_results(change):
    """A kernel that returns other results."""
    return lambda kernel: lambda *args: tuple(change(list(kernel(*args))))


def place(index, value):
    """A change of one entry of a list; `value` makes the new one of the old one."""

    def change(entries):
        entries[index] = value(entries[index])
        return entries

    return change


def without_tail(y):
    """The last step was never written."""
    found = torch.empty_like(y)
    found[:, : y.shape[1] - 1] = y[:, :-1]
    return found


def given(change):
    return lambda x: None if x is None else change(x)


def conjugated(x):
    return x * torch.tensor([1, -1.0]) if x.ndim == 4 else x


MUTANTS = {
    "the state before the first step is lost": ("linear_scan", "forward", changed_arguments(place(2, torch.zeros_like))),
    "marks come one step late": ("linear_scan", "forward", changed_arguments(place(3, given(lambda x: x.roll(1, 1))))),
    "the gradient of a is that of the next step": ("linear_scan", "backward", changed_results(place(0, lambda x: x.roll(1, 1)))),
    "C is conjugated": ("selective_scan", "forward", changed_arguments(place(4, conjugated))),
    "the last step is not written": ("selective_scan", "forward", changed_results(place(0, without_tail))),
    "the gradient of the bias is dropped": ("selective_scan", "backward", changed_results(place(7, torch.zeros_like))),
    "the gate is rounded": ("selective_scan", "forward", changed_arguments(place(6, lambda x: x.bfloat16().float()))),
    "angles of half precision": ("unitary_scan", "forward", changed_arguments(place(2, lambda x: x.bfloat16().float()))),
    "the final state has no gradient": ("unitary_scan", "backward", changed_arguments(place(1, torch.zeros_like))),
    "one batch row is left out of a gradient": ("unitary_scan", "backward", changed_results(place(4, lambda x: x * 0.5))),
    "restarts are overlooked": ("short_conv", "forward", changed_arguments(place(4, given(lambda x: x & 1)))),
    "the state has no gradient": ("short_conv", "backward", changed_results(place(3, torch.zeros_like))),
    "sums in another order each time": ("short_conv", "forward", changed_results(place(0, lambda x: x + 1e-7 * torch.rand(())))),
    "a kernel that does not compile": ("short_conv", "backward", changed_arguments(lambda args: args[:1])),
}


def faults(op):
    return [finding.fault for finding in doctor.check_kernel(op, BACKEND, CPU, doctor.SIZES) if finding.fault]


@pytest.mark.parametrize("op", NATIVE)
def test_no_fault_is_found_in_the_kernels(op):
    assert faults(op) == []


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_mutant_is_caught(mutant, monkeypatch):
    op, direction, mutate = MUTANTS[mutant]
    module = import_module(f"longscan.ops.{op}.{BACKEND}")
    monkeypatch.setattr(module, direction, mutate(getattr(module, direction)))
    assert any(doctor.check_call(call, BACKEND, CPU).fault for call in doctor.example_calls(op, doctor.SIZES))


def test_processes_side_by_side_find_the_same():
    found = [("short_conv", BACKEND), ("linear_scan", BACKEND)]
    here = [doctor.check_kernel(op, backend, CPU, doctor.SIZES[1:]) for op, backend in found]
    assert list(doctor.check_in_parallel(found, CPU, doctor.SIZES[1:], workers=2)) == here


def test_a_kernel_that_kills_its_process_has_a_fault():
    call = doctor.example_calls("short_conv", doctor.SIZES)[0]
    future = Future()
    future.set_exception(BrokenProcessPool())
    assert "died" in doctor._result(call, BACKEND, future).fault


@pytest.fixture
def own_verdicts(tmp_path, monkeypatch):
    """No verdicts yet, and none left behind."""
    monkeypatch.setenv("LONGSCAN_CACHE", str(tmp_path))
    failed_doctor.cache_clear()
    yield tmp_path / "doctor.json"
    failed_doctor.cache_clear()


@pytest.mark.skipif(INTERPRETED, reason="`auto` takes the cpu backend on the CPU")
def test_auto_refuses_what_failed(own_verdicts, monkeypatch, capsys):
    """The command says what is wrong and exits with 1; from then on `auto` runs elsewhere, in this process and others."""
    monkeypatch.setattr(doctor, "SIZES", ((2, 5, 3, 2),))
    monkeypatch.setattr(doctor, "LARGE", ())
    assert explain("linear_scan").endswith("cpu (native kernel)")
    assert main(["doctor", "--device", "cpu"]) == 0
    assert "no fault found" in capsys.readouterr().out
    assert explain("linear_scan").endswith("cpu (native kernel)")
    module = import_module("longscan.ops.linear_scan.cpu")
    with monkeypatch.context() as patch:
        patch.setattr(module, "forward", changed_results(place(1, torch.zeros_like))(module.forward))
        assert main(["doctor"]) == 1
    assert "`auto` will not use these kernels here" in capsys.readouterr().out
    assert "eager (`longscan doctor` found" in explain("linear_scan")
    assert "final state: error" in own_verdicts.read_text()
    assert explain("short_conv").endswith("cpu (native kernel)")
    a, b = torch.rand(1, 4, 3), torch.randn(1, 4, 3)
    with recorded_choices() as recording:
        x, _ = linear_scan(a, b)
    assert [(choice.backend, choice.by_doctor) for choice in recording.choices] == [("eager", True)]
    truth, _ = linear_scan(a.double(), b.double(), backend="reference")
    torch.testing.assert_close(x.double(), truth, rtol=1e-5, atol=1e-5)
    compiled = torch.compile(lambda a, b: linear_scan(a, b)[0], fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(a, b), linear_scan(a, b)[0])
    assert main(["doctor", "--device", "cpu"]) == 0
    assert explain("linear_scan").endswith("cpu (native kernel)")


def test_an_unreadable_file_of_verdicts_says_nothing(own_verdicts):
    own_verdicts.write_text("{")
    assert read_verdicts() == {}
    assert failed_doctor("linear_scan", "cpu", CPU) is None


def test_a_device_that_is_not_there(capsys):
    assert main(["doctor", "--device", "cuda:77"]) == 2
    assert "`--device` must be one of the devices that torch finds here" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"[]", b'{"cpu": 3}', b'{"cpu": {"linear_scan": {"cpu": 1}}}', b"\xff\xfe{"])
def test_a_damaged_file_of_verdicts_is_told(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "verdicts.json").write_bytes(content)
    monkeypatch.setattr(dispatch, "verdicts_path", lambda: tmp_path / "verdicts.json")
    assert read_verdicts() == {}
    assert "verdicts.json: damaged" in caplog.text
