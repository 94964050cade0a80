"""`longscan doctor` on correct kernels and on wrong ones, and the backend that `auto` chooses after a failure."""

import os
import platform
import re
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from pathlib import Path

import numpy
import pytest
import torch

import longscan
from fork_server import PROCESSES
from longscan import doctor, system
from longscan.cli import main
from longscan.ops import OPS, dispatch, explain, linear_scan
from longscan.ops.dispatch import failed_doctor, read_verdicts, recorded_choices, unsupported_reason, write_verdicts
from longscan.system import describe_system

CPU = torch.device("cpu")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
BACKEND = "triton" if INTERPRETED else "cpu"
pytestmark = pytest.mark.skipif(
    unsupported_reason("linear_scan", BACKEND, CPU, torch.float32, OPS["linear_scan"].native) is not None,
    reason=f"no {BACKEND} kernels here",
)
NATIVE = [op for op, entry in doctor.CHECKED.items() if BACKEND in entry.native]


def changing_arguments(change):
    """Return a wrapper of kernels that applies `change` to the list of their arguments."""
    return lambda kernel: lambda *args: kernel(*change(list(args)))


def changing_results(change):
    """Return a wrapper of kernels that applies `change` to the list of their results."""
    return lambda kernel: lambda *args: tuple(change(list(kernel(*args))))


def at_index(index, value):
    """Return a function that replaces one entry of a list by `value` of it."""

    def change(entries):
        entries[index] = value(entries[index])
        return entries

    return change


def without_tail(y):
    """Return a copy whose last step is uninitialised."""
    copy = torch.empty_like(y)
    copy[:, :-1] = y[:, :-1]
    return copy


def unless_none(change):
    return lambda x: None if x is None else change(x)


def conjugated(x):
    return x * torch.tensor([1, -1.0]) if x.ndim == 4 else x


MUTANTS = {
    "the state before the first step is lost": ("linear_scan", "forward", changing_arguments(at_index(2, torch.zeros_like))),
    "the flags are shifted by a step": (
        "linear_scan",
        "forward",
        changing_arguments(at_index(3, unless_none(lambda x: x.roll(1, 1)))),
    ),
    "the gradient of a is that of the next step": (
        "linear_scan",
        "backward",
        changing_results(at_index(0, lambda x: x.roll(1, 1))),
    ),
    "C is conjugated": ("selective_scan", "forward", changing_arguments(at_index(4, conjugated))),
    "the last step is not written": ("selective_scan", "forward", changing_results(at_index(0, without_tail))),
    "the gradient of the bias is dropped": ("selective_scan", "backward", changing_results(at_index(7, torch.zeros_like))),
    "the gate is rounded": ("selective_scan", "forward", changing_arguments(at_index(6, lambda x: x.bfloat16().float()))),
    "the angles are rounded to bfloat16": (
        "unitary_scan",
        "forward",
        changing_arguments(at_index(2, lambda x: x.bfloat16().float())),
    ),
    "the final state has no gradient": ("unitary_scan", "backward", changing_arguments(at_index(1, torch.zeros_like))),
    "one batch row is left out of a gradient": ("unitary_scan", "backward", changing_results(at_index(4, lambda x: x * 0.5))),
    "resets are ignored": ("short_conv", "forward", changing_arguments(at_index(4, unless_none(lambda x: x & 1)))),
    "the state has no gradient": ("short_conv", "backward", changing_results(at_index(3, torch.zeros_like))),
    "dt has half of its gradient": ("dplr_spectrum", "backward", changing_results(at_index(4, lambda x: x / 2))),
    "the parts of an eigenvalue are exchanged": (
        "dplr_spectrum",
        "forward",
        changing_arguments(at_index(1, lambda x: x.flip(-1))),
    ),
    "results differ from call to call": (
        "short_conv",
        "forward",
        changing_results(at_index(0, lambda x: x + 1e-7 * torch.rand(()))),
    ),
    "the kernel raises an error": ("short_conv", "backward", changing_arguments(lambda args: args[:1])),
}


def find_faults(op):
    return [finding.fault for finding in doctor.check_kernel(op, BACKEND, CPU, doctor.SIZES) if finding.fault]


@pytest.mark.parametrize("op", NATIVE)
def test_kernels_have_no_fault(op):
    assert find_faults(op) == []


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_has_a_fault(mutant, monkeypatch):
    op, direction, mutate = MUTANTS[mutant]
    module = import_module(f"longscan.ops.{op}.{BACKEND}")
    monkeypatch.setattr(module, direction, mutate(getattr(module, direction)))
    assert any(doctor.check_call(call, BACKEND, CPU).fault for call in doctor.example_calls(op, doctor.SIZES))


@pytest.mark.slow
def test_check_in_parallel_equals_check_in_one_process(monkeypatch):
    monkeypatch.setattr(doctor, "get_context", lambda _: PROCESSES)  # whose processes need not import PyTorch again
    kernels = [("short_conv", BACKEND), ("linear_scan", BACKEND)]
    expected = [doctor.check_kernel(op, backend, CPU, doctor.SIZES[1:]) for op, backend in kernels]
    assert list(doctor.check_in_parallel(kernels, CPU, doctor.SIZES[1:], workers=2)) == expected


def test_kernel_that_kills_its_process_has_a_fault():
    call = doctor.example_calls("short_conv", doctor.SIZES)[0]
    future = Future()
    future.set_exception(BrokenProcessPool())
    assert "died" in doctor._result(call, BACKEND, future).fault


@pytest.fixture
def verdicts_file(tmp_path, monkeypatch):
    """Store verdicts in a temporary file that does not exist yet, and forget them after the test."""
    monkeypatch.setenv("LONGSCAN_CACHE", str(tmp_path))
    failed_doctor.cache_clear()
    yield tmp_path / "doctor.json"
    failed_doctor.cache_clear()


@pytest.mark.skipif(INTERPRETED, reason="`auto` uses the cpu backend on the CPU")
def test_auto_does_not_use_kernels_that_failed(verdicts_file, monkeypatch, capsys):
    """The command names the fault and exits with 1; then `auto` uses another backend, in this process and in others."""
    monkeypatch.setattr(doctor, "SIZES", ((2, 5, 3, 2),))
    monkeypatch.setattr(doctor, "LARGE", ())
    assert explain("linear_scan").endswith("cpu (native kernel)")
    assert main(["doctor", "--device", "cpu"]) == 0
    assert "no fault found" in capsys.readouterr().out
    assert explain("linear_scan").endswith("cpu (native kernel)")
    module = import_module("longscan.ops.linear_scan.cpu")
    with monkeypatch.context() as patch:
        patch.setattr(module, "forward", changing_results(at_index(1, torch.zeros_like))(module.forward))
        assert main(["doctor"]) == 1
    assert "`auto` will not use these kernels here" in capsys.readouterr().out
    assert "eager (`longscan doctor` found" in explain("linear_scan")
    assert "final state: error" in verdicts_file.read_text()
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


def test_unreadable_file_of_verdicts_is_ignored(verdicts_file):
    verdicts_file.write_text("{")
    assert read_verdicts() == {}
    assert failed_doctor("linear_scan", "cpu", CPU) is None


def test_description_of_the_system_comes_first_and_alone_on_request(verdicts_file, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "SIZES", ((2, 5, 3, 2),))
    monkeypatch.setattr(doctor, "LARGE", ())
    monkeypatch.setenv("LONGSCAN_BACKEND", "auto")
    monkeypatch.setenv("SECRET_TOKEN", "do not print")
    assert main(["doctor", "--system"]) == 0
    block = capsys.readouterr().out
    assert "kernels on cpu" not in block
    assert "do not print" not in block
    for row in (
        f"longscan +{longscan.__version__}",
        f"Python +{platform.python_version()} ",
        f"torch +{re.escape(torch.__version__)}",
        f"numpy +{numpy.__version__}",
        "triton +",
        f"threads +.*torch uses {torch.get_num_threads()}",
        "CPU flags +",
        "GPUs +",
        "CPU kernels +active, instruction set ",
        r"ops +cpu: .*\blinear_scan\b",
        "verdicts +cpu: none saved for these versions",
        "(environment)? +LONGSCAN_BACKEND=auto$",
    ):
        assert re.search(f"^{row}", block, re.MULTILINE), row
    write_verdicts(CPU, {"linear_scan": {"cpu": "y: error 1"}, "short_conv": {"cpu": "passed"}})
    assert "cpu: 1 passed; linear_scan (cpu) y: error 1" in describe_system()


def test_verdicts_that_cannot_be_stored_do_not_end_the_checks(tmp_path, monkeypatch, capsys, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LONGSCAN_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(doctor, "kernels", lambda _: iter([("linear_scan", "eager"), ("short_conv", "eager")]))
    monkeypatch.setattr(doctor, "SIZES", ((1, 2, 1, 1),))
    monkeypatch.setattr(doctor, "LARGE", ())
    assert main(["doctor", "--device", "cpu"]) == 0
    assert "no fault found" in capsys.readouterr().out
    assert caplog.text.count("verdicts cannot be stored (Not a directory)") == 1


def test_doctor_prints_the_description_before_the_checks(verdicts_file, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "kernels", lambda _: iter([]))
    assert main(["doctor", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert printed.index("CPU kernels") < printed.index("cpu: no native kernels")


def test_driver_is_unknown_if_its_program_fails(monkeypatch):
    monkeypatch.setattr(system.shutil, "which", lambda _: None)
    assert system._driver() == "unknown (no nvidia-smi)"
    monkeypatch.setattr(system.shutil, "which", lambda _: "/bin/false")
    assert system._driver() == "unknown (nvidia-smi: CalledProcessError)"
    monkeypatch.setattr(system.shutil, "which", lambda _: "/bin/echo")
    assert "--query-gpu=driver_version" in system._driver()


def test_doctor_on_a_missing_device_fails(capsys):
    assert main(["doctor", "--device", "cuda:77"]) == 2
    assert "`--device` must be one of the devices that torch finds here" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"[]", b'{"cpu": 3}', b'{"cpu": {"linear_scan": {"cpu": 1}}}', b"\xff\xfe{"])
def test_damaged_file_of_verdicts_is_logged(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "verdicts.json").write_bytes(content)
    monkeypatch.setattr(dispatch, "verdicts_path", lambda: tmp_path / "verdicts.json")
    assert read_verdicts() == {}
    assert "verdicts.json: damaged" in caplog.text


@pytest.mark.parametrize("name", ["cpu", "meta", "mps"])
def test_verdicts_are_those_of_a_device_type_and_versions(name):
    """Only CUDA devices have a name."""
    key = dispatch.verdicts_key(torch.device(name))
    assert key.split(", ")[0] == name
    assert [part.split(" ")[0] for part in key.split(", ")[1:]] == ["longscan", "torch", "triton"]
