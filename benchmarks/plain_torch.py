"""Time ops written in plain operations of torch, called and compiled, next to their Triton kernels.

    python benchmarks/plain_torch.py --out build/plain_torch.jsonl
    python benchmarks/plain_torch.py --only ssd "block2 8" --no-errors --seconds 300
    TRITON_INTERPRET=1 python benchmarks/plain_torch.py --quick           small shapes on a CPU, without graphs

Implementations are the Triton kernels ("triton"), the backend "eager" of the op ("eager"), and this backend in
torch.compile(fullgraph=True) ("eager, compiled"). A row is one implementation of one case. Its fields:

    forward_ms, forward_backward_ms    medians, of calls that are replayed as CUDA graphs or, as `timed` says, called from Python
    peak_mib                           memory that a forward and backward pass allocates at most, results and gradients included
    first_forward_backward_s           the first forward and backward pass, which compiles, while the other cases compile, too
    error_vs_float64                   the largest error of y and all gradients, relative to the largest entry of the reference in
                                       float64 on the CPU, for at most 2 rows of 256 steps and 512
                                       channels (S4: 8 channels, 33 frequencies)
    difference_from_eager              for "eager, compiled": the same for the results of "eager" at the full shape
    reason                             why a quantity is missing, or why the calls were not replayed

Every case has two processes, one of which compiles. They prepare all cases at the same time and are timed one after another, when
all are ready or the time for compilation is over; --seconds less 35 are for the preparation. A process that is not ready by then
gives a row that says so. --quick measures in one process, in float32 (S4: float64) and with torch.compile(backend="aot_eager").
"""

import argparse
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import op_calls
from harness import CPU, GPU, Implementation, Row, Shape, differentiable, provenance, relative_error
from kernels_old_new import called_ms, record_graph
from longscan.layers import S4
from longscan.ops.dispatch import unsupported_reason
from longscan.ops.dplr_spectrum import dplr_spectrum
from op_calls import OpCall, parse_sizes, peak_mib
from row_files import write_row

MEASURING_SECONDS = 35.0  # of --seconds: for the times, after the preparation
ERROR_SIZES = {"B": 2, "L": 256, "D": 512}  # upper limits of the sizes at which errors are measured
QUICK_SIZES = {"B": 1, "L": 20, "D": 3, "N": 2, "R": 1, "F": 5}
DAMPING = 0.0157  # of the transform of S4's kernel, that of a layer for 1,024 steps
LABELS = {"called": ("triton", "eager"), "compiled": ("eager, compiled",)}  # process of a case -> its implementations

Function = Callable[..., Tensor]
Build = Callable[[Shape, str, str, torch.device], tuple[Function, list[Tensor]]]


@dataclass(frozen=True)
class PlainCase:
    """A call of an op.

    build: function of shape, dtype, backend and device that returns the timed function and its inputs. error_sizes: upper
    limits of the sizes at which errors are measured.
    """

    name: str
    op: str
    shape: Shape
    dtype: str
    build: Build
    error_sizes: Shape


def limit(shape: Shape, sizes: Shape) -> Shape:
    """Return a shape with each size limited to that of the same name in `sizes`."""
    return {name: min(size, sizes.get(name, size)) for name, size in shape.items()}


def build_op(call: OpCall, shape: Shape, dtype: str, backend: str, device: torch.device) -> tuple[Function, list[Tensor]]:
    """Return a function that calls an op by a backend, and its inputs."""
    return partial(call.call, backend=backend), call.inputs(shape, dtype, device)


def build_transform(shape: Shape, dtype: str, backend: str, device: torch.device) -> tuple[Function, list[Tensor]]:
    """Return a function that computes the transform of S4's kernel, and its inputs in float64, which a layer passes.

    shape: D channels, N pairs of states, F frequencies.
    """
    torch.manual_seed(0)
    layer = S4(shape["D"], d_state=2 * shape["N"])
    system = *layer.system(torch.float64), layer.C.double(), layer.log_dt.double().exp()
    angle = torch.linspace(0, math.pi, shape["F"], dtype=torch.float64, device=device)

    def transform(*given: Tensor) -> Tensor:
        return dplr_spectrum(angle, *given, DAMPING, backend=backend)

    return transform, [x.detach().to(device, getattr(torch, dtype)) for x in system]


def op_case(name: str, call: OpCall, sizes: str, dtype: str) -> PlainCase:
    """Return the case of an op of `op_calls`."""
    return PlainCase(f"{name} {sizes} {dtype}", call.op, parse_sizes(sizes), dtype, partial(build_op, call), ERROR_SIZES)


CASES = (
    op_case("ssd", op_calls.SSD, "8 2048 2048 128", "bfloat16"),
    op_case("ssd", op_calls.SSD, "8 2048 2048 128", "float32"),
    op_case("ssd with angles", op_calls.SSD_ROTATING, "8 2048 2048 128 32", "bfloat16"),
    op_case("ssd", op_calls.SSD, "2 8192 2048 128", "bfloat16"),
    op_case("block2", op_calls.BLOCK2, "4 1024 64", "float32"),
    op_case("block2", op_calls.BLOCK2, "8 8192 256", "float32"),
    op_case("linear", op_calls.LINEAR, "8 4096 2048", "float32"),
    op_case("convolution", op_calls.SHORT_CONV, "8 2048 2048", "float32"),
    PlainCase(
        "S4 168 32 513 float64", "dplr_spectrum", {"D": 168, "N": 32, "F": 513}, "float64", build_transform, {"D": 8, "F": 33}
    ),
)


def compute_truth(case: PlainCase, shape: Shape, dtype: str) -> list[Tensor]:
    """Return y and the gradients by the reference in float64, for the inputs rounded to dtype, at no more than `error_sizes`."""
    reference, inputs = case.build(limit(shape, case.error_sizes), dtype, "reference", CPU)
    wide = [x.to(torch.complex128 if x.is_complex() else torch.float64) for x in inputs]
    return results_of(differentiable(reference, wide))


def results_of(one: Implementation) -> list[Tensor]:
    """Return y and the gradients of all inputs."""
    assert one.results is not None
    return one.results()


class Measurement:
    """The implementations of a case that one process measures: first `prepare`, then `rows`."""

    def __init__(self, case: PlainCase, which: str, *, quick: bool, with_errors: bool) -> None:
        self.case, self.which, self.quick, self.with_errors = case, which, quick, with_errors
        self.shape = limit(case.shape, QUICK_SIZES) if quick else case.shape
        self.dtype = "float32" if quick and case.dtype == "bfloat16" else case.dtype  # the interpreter multiplies no bfloat16
        self.labels = LABELS[which]
        self.prepared: dict[str, Implementation] = {}
        self.found: dict[str, Row] = {}
        self.truth: list[Tensor] | None = None

    def prepare(self) -> None:
        """Make the inputs, call each implementation for the first time, which compiles it, and measure errors."""
        for label in self.labels:
            self.found[label] = {}
            try:
                self._prepare(label, self.found[label])
            except torch.OutOfMemoryError:
                self.found[label]["reason"] = "out of memory"
                self.prepared.pop(label, None)
            except torch._dynamo.exc.TorchDynamoException as error:
                self.found[label]["reason"] = f"torch.compile failed: {error}".splitlines()[0][:200]
                self.prepared.pop(label, None)
            if GPU.type == "cuda":
                torch.cuda.empty_cache()

    def _prepare(self, label: str, found: Row) -> None:
        backend = "triton" if label == "triton" else "eager"
        dtype = getattr(torch, self.dtype)
        if reason := unsupported_reason(self.case.op, backend, GPU, dtype, ("triton",)):
            found["reason"] = reason
            return
        function, inputs = self.case.build(self.shape, self.dtype, backend, GPU)
        plain = differentiable(function, inputs)
        if label == "eager, compiled":
            torch.compiler.reset()  # else the shapes of several cases count as too many recompilations of one function
            compiler = "aot_eager" if self.quick else "inductor"
            function = torch.compile(function, fullgraph=True, dynamic=False, backend=compiler)
        one = self.prepared[label] = differentiable(function, inputs)
        assert one.forward is not None
        assert one.train is not None
        start = time.perf_counter()
        one.train()
        wait()
        found["first_forward_backward_s"] = time.perf_counter() - start
        one.forward()
        if label == "eager, compiled":
            found["difference_from_eager"] = relative_error(results_of(one), [x.cpu() for x in results_of(plain)])
        elif self.with_errors:
            if self.truth is None:
                self.truth = compute_truth(self.case, self.shape, self.dtype)
            small = self.case.build(limit(self.shape, self.case.error_sizes), self.dtype, backend, GPU)
            found["error_vs_float64"] = relative_error(results_of(differentiable(*small)), self.truth)
        wait()

    def rows(self) -> list[Row]:
        """Return the rows of the implementations."""
        rows = []
        for label in self.labels:
            row = describe(self.case, self.shape, self.dtype, label) | self.found[label]
            if (one := self.prepared.pop(label, None)) is not None:
                try:
                    row |= measure_times(one)
                except torch.OutOfMemoryError:
                    row["reason"] = "out of memory"
            rows.append(row)
            if GPU.type == "cuda":
                torch.cuda.empty_cache()
        return rows


def describe(case: PlainCase, shape: Shape, dtype: str, label: str) -> Row:
    """Return the fields of a row that say what is measured."""
    return {"case": case.name, "op": case.op, "shape": shape, "dtype": dtype, "implementation": label}


def wait() -> None:
    """Wait for the GPU, if there is one."""
    if GPU.type == "cuda":
        torch.cuda.synchronize()


def measure_times(one: Implementation) -> Row:
    """Return the times of an implementation, replayed if its calls can be captured, otherwise called, and its peak memory."""
    assert one.forward is not None
    assert one.train is not None
    calls = {"forward_ms": one.forward, "forward_backward_ms": one.train}
    if GPU.type == "cpu":
        return {"timed": "called", **{name: called_ms(call) for name, call in calls.items()}}
    row: Row = {"peak_mib": peak_mib(one.train)}
    try:
        return row | {"timed": "replayed", **{name: record_graph(call)() for name, call in calls.items()}}
    except torch.OutOfMemoryError:
        row["reason"] = "out of memory in the capture"
    except RuntimeError as error:  # what torch raises for an operation that cannot be captured
        first: BaseException = error
        while first.__context__ is not None:  # the end of a capture that failed raises a second error
            first = first.__context__
        row["reason"] = f"cannot be captured: {first}".splitlines()[0][:200]
    return row | {"timed": "called", **{name: called_ms(call) for name, call in calls.items()}}


class Worker:
    """The process of a `Measurement`. It prints a line when it is prepared and, for a line on its standard input, its rows."""

    def __init__(self, case: PlainCase, which: str, arguments: Sequence[str]) -> None:
        self.case, self.which, self.ready = case, which, False
        command = [sys.executable, __file__, "--worker", case.name, which, *arguments]
        environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "2"}  # per process; the default is one for each processor
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def read(self, seconds: float) -> str:
        """Return the next line, or an empty text if there is none within the seconds or the process has ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, seconds)):
                return ""
        line = self.stdout.readline()
        if not line:
            self.process.wait()  # so that its status is known
        return line

    def measure(self, seconds: float) -> list[Row] | None:
        """Return the rows, or None if they are not there within the seconds or the process has ended."""
        if self.process.poll() is not None:
            return None
        self.stdin.write("\n")
        self.stdin.flush()
        line = self.read(seconds)
        return json.loads(line) if line else None

    def missing(self, reason: str) -> list[Row]:
        """Return the rows of a process that has not measured, with the reason."""
        status, case = self.process.poll(), self.case
        reason = reason if status is None else f"the process ended with status {status}"
        return [{**describe(case, case.shape, case.dtype, label), "reason": reason} for label in LABELS[self.which]]

    def close(self) -> None:
        """End the process and those that compile for it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.stdin.close()
        self.stdout.close()


def wait_until_ready(workers: Sequence[Worker], end: float) -> None:
    """Wait until all workers are prepared or have ended, or the time `end` of the clock of `time.monotonic`."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.stdout, selectors.EVENT_READ, worker)
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                key.data.ready = bool(key.data.read(0))
                selector.unregister(key.fileobj)


def measure_in_processes(cases: Sequence[PlainCase], arguments: Sequence[str], seconds: float, out: Path | None) -> bool:
    """Measure the cases, write their rows, and return whether no process failed."""
    start = time.monotonic()
    workers = [Worker(case, which, arguments) for case in cases for which in LABELS]
    about, preparing, passed = provenance(GPU), max(0.0, seconds - MEASURING_SECONDS), True
    rows: list[Row] = []

    def write(rows: Sequence[Row]) -> None:
        nonlocal passed
        for row in rows:
            passed &= not row.get("reason", "").startswith("the process ended")
            write_row(row | about, out)

    try:
        wait_until_ready(workers, start + preparing)
        for worker in workers:
            if not worker.ready:  # its programs must not run while others are timed
                rows += worker.missing(f"not ready within {preparing:.0f} s")
                worker.close()
        write(rows)
        for worker in workers:
            if worker.ready:
                left = start + seconds - time.monotonic()
                measured = worker.measure(left) if left > 0 else None
                write(measured or worker.missing(f"not measured within {seconds:.0f} s"))
                worker.close()
    finally:
        for worker in workers:
            worker.close()
    return passed


def serve(case: PlainCase, which: str, *, quick: bool, with_errors: bool) -> None:
    """Prepare a case, print a line, and print its rows when a line is read."""
    torch.set_num_threads(2)
    measurement = Measurement(case, which, quick=quick, with_errors=with_errors)
    measurement.prepare()
    print("ready", flush=True)
    if sys.stdin.readline():
        print(json.dumps(measurement.rows()), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line and measure; the exit status is 1 if a process failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="texts; only cases whose names contain one of them")
    parser.add_argument("--seconds", type=float, default=85.0, help="time of the whole run (default: %(default)s)")
    parser.add_argument("--no-errors", action="store_true", help="do not compute the errors, which needs a reference on the CPU")
    parser.add_argument("--quick", action="store_true", help="small shapes in one process, also without a GPU")
    parser.add_argument("--out", type=Path, help="file of JSON lines, to which rows are added")
    parser.add_argument("--worker", nargs=2, metavar=("CASE", "WHICH"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker is not None:
        name, which = options.worker
        (case,) = (case for case in CASES if case.name == name)
        serve(case, which, quick=options.quick, with_errors=not options.no_errors)
        return 0
    cases = [case for case in CASES if any(text in case.name for text in options.only)]
    if not cases:
        parser.error(f"`--only` must match one of {', '.join(case.name for case in CASES)}, got {' '.join(options.only)}")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
    if not options.quick:
        arguments = ["--no-errors"] if options.no_errors else []
        return int(not measure_in_processes(cases, arguments, options.seconds, options.out))
    about = provenance(GPU)
    for case in cases:
        for which in LABELS:
            measurement = Measurement(case, which, quick=True, with_errors=not options.no_errors)
            measurement.prepare()
            for row in measurement.rows():
                write_row(row | about, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
