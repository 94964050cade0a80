"""Timing, errors, memory and records of benchmarks. Case files in `cases/` say what is measured, `run.py` measures it.

A `Case` holds the shapes of one comparison and a function that builds its implementations for a shape. `compare` checks every
implementation against float64, times all of them in turns, and returns one row for each.
"""

import argparse
import gc
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longscan.ops import _triton_launch
from longscan.ops.dispatch import native_cpu_missing
from longscan.training.run import commit, device_name
from op_calls import peak_mib, replayed_ms
from page import write_page

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")
GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # the CPU where Triton's interpreter stands in for a GPU
MAX_DO_BENCH_MS = 100.0  # a longer call is timed without `do_bench`, which would make seven others
MAX_CALL_MS = 4000.0  # after a longer call, longer shapes are not tried
MAX_CAPTURED_MS = 500.0  # a longer call is not captured as a CUDA graph: the capture takes seconds

Row = dict[str, Any]
Shape = dict[str, int]
Call = Callable[[], object]


@dataclass(frozen=True)
class Implementation:
    """One way to compute what a case compares.

    forward, train: the calls that are timed, without and with gradients or an update. results: a call that returns y and the
    gradients, which are compared with the truth. inputs: the tensors that the calls read. fields: fields of the row, for example
    {"peer": "mambapy"}. sizes: sizes in the row's shape, in addition to those of the case.
    """

    forward: Call | None = None
    train: Call | None = None
    results: Callable[[], list[Tensor]] | None = None
    inputs: Sequence[Tensor] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)


def differentiable(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], *, infers: bool = True, trains: bool = True, **fields: Any
) -> Implementation:
    """Return the implementation that calls `function(*inputs)` and takes gradients of all inputs, parameters among them.

    The gradient of the output, ones, is made in the first call, so that times and peaks of later calls do not contain it.
    """
    leaves = [x if isinstance(x, nn.Parameter) else x.detach().requires_grad_() for x in inputs]
    ones: list[Tensor] = []

    def forward() -> list[Tensor]:
        with torch.no_grad():
            return [function(*leaves)]

    def train() -> list[Tensor]:
        y = function(*leaves)
        if not ones:
            ones.append(torch.ones_like(y))
        return [y.detach(), *torch.autograd.grad(y, leaves, ones)]

    return Implementation(forward if infers else None, train if trains else None, train if trains else forward, leaves, fields)


def module_call(module: nn.Module, x: Tensor, **fields: Any) -> Implementation:
    """Return the implementation that calls `module(x)` and takes gradients of x and of the module's parameters."""
    return differentiable(lambda x, *_: module(x), [x, *module.parameters()], **fields)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Name and files of a case or a measurement.

    Attributes:
        suite, name: suite and name, by which --only selects it.
        folder, file: rows go to results/FOLDER/FILE.jsonl; None means that the file has the name of the suite.
        replaces: whether the first row of a run overwrites the file.
        write_page: function of the file's path that writes a page or a figure of its rows.
    """

    suite: str
    name: str
    folder: str = "bench"
    file: str | None = None
    replaces: bool = False
    write_page: Callable[[Path], None] = write_page


@dataclass(frozen=True, kw_only=True)
class Case(Entry):
    """A comparison of implementations, or the measurement of a single one, at one or more shapes.

    Attributes:
        op: the field "op" of the rows.
        shapes: sizes by the names of axes, short ones first. quick_shape: small sizes, for --quick.
        build: function shape -> implementations by label; the others are compared with the first.
        truth: function shape -> results in float64 on the same inputs. tolerance: largest error allowed, relative to the largest
            entry of a tensor.
        check_shape: upper limits of the sizes at which errors are measured.
        needs: (label, "forward" or "forward_backward") -> how many times slower than the first this implementation must be.
        limits: for each shape, the milliseconds that forward, and forward and backward, of the first may take.
        memory_shape: sizes at which peak memory is measured, on the CPU in a separate process (Linux only). memory_of: labels of
            the implementations whose memory is measured. extra_memory: largest peak memory beyond inputs, outputs and gradients
            that is allowed, as a share of these.
        calls: the number of steps that one call makes; recorded times are of one step.
        replays: on a GPU, also time the calls replayed as CUDA graphs.
        may_fail: a failure gives a row with its reason and does not end the run.
        fields: fields of every row.
    """

    op: str
    shapes: Sequence[Shape]
    quick_shape: Shape
    build: Callable[[Shape], dict[str, Implementation]]
    truth: Callable[[Shape], list[Tensor]] | None = None
    tolerance: float = 1e-4
    check_shape: Shape = field(default_factory=lambda: {"B": 2, "L": 256})
    needs: Mapping[tuple[str, str], float] = field(default_factory=dict)
    limits: Sequence[tuple[float, float] | None] = ()
    memory_shape: Shape | None = None
    extra_memory: float | None = None
    memory_of: Sequence[str] = ("longscan",)
    calls: int = 1
    replays: bool = False
    may_fail: bool = False
    device: torch.device = CPU
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Measurement(Entry):
    """A measurement other than the time of calls: `rows(options)` yields its rows for the options of the command line."""

    rows: Callable[[Any], Iterator[Row]]


def measurements(
    suite: str, names: Iterable[str], rows_of: Callable[..., Iterator[Row]], write_page: Callable[[Path], None], folder: str
) -> tuple[Measurement, ...]:
    """Return a measurement for each name of a method, whose rows `rows_of(options, name=NAME)` yields."""
    return tuple(
        Measurement(
            suite=suite,
            name=name.replace(",", "").replace(" ", "_"),
            folder=folder,
            rows=partial(rows_of, name=name),
            write_page=write_page,
        )
        for name in names
    )


def milliseconds(call: Call, device: torch.device = CPU) -> float:
    """Return the milliseconds of one call, with a synchronisation of the device at its end."""
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def make_timer(call: Call, device: torch.device, least_ms: float) -> Callable[[], float]:
    """Return a function that returns the time of one run: the median of as many calls as fit in `least_ms`.

    The call must have run before, so that compilation is not timed.
    """
    single = milliseconds(call, device)
    if device.type == "cuda" and single <= MAX_DO_BENCH_MS:
        from triton.testing import do_bench

        return partial(do_bench, call, rep=least_ms, return_mode="median")
    repeats = max(1, min(200, round(least_ms / max(single, 1e-3))))
    return lambda: statistics.median(milliseconds(call, device) for _ in range(repeats))


def time_in_turns(calls: Mapping[str, Call], device: torch.device, runs: int, least_ms: float) -> dict[str, list[float]]:
    """Return the times of `runs` runs of every call. The calls take turns, so that a slow phase of the machine affects all."""
    timers = {label: make_timer(call, device, least_ms) for label, call in calls.items()}
    times: dict[str, list[float]] = {label: [] for label in calls}
    gc.collect()
    gc.disable()
    try:
        for _ in range(runs):
            for label, timer in timers.items():
                times[label].append(timer())
    finally:
        gc.enable()
    return times


def median_ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """Return the median of slow / fast over the pairs of times that were measured in the same turn."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def time_replayed(call: Call) -> float | None:
    """Return the median time of a call replayed as a CUDA graph, which is that of its kernels; None if the capture fails."""
    return attempt(lambda: {"ms": replayed_ms(call)}).get("ms")


def attempt(measure: Callable[[], Row]) -> Row:
    """Return the fields that `measure` returns, or {"reason": text} if it fails for lack of memory or of a kernel.

    All memory of the measurement is free afterwards.
    """
    from triton import TritonError

    found: Row
    try:
        found = measure()
    except torch.OutOfMemoryError:
        found = {"reason": "out of memory"}
    except (RuntimeError, TritonError) as error:
        found = {"reason": f"failed: {error}".splitlines()[0].partition(". ")[0][:100]}
    # Not in the handlers above: there the exception still refers to the tensors of the calls that raised it.
    gc.collect()
    if GPU.type == "cuda":
        torch.cuda.empty_cache()
    return found


def relative_error(found: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    """Return the largest error over the tensors that are in both sequences, each relative to the largest entry of its truth."""
    pairs = zip(found, truth, strict=False)  # a peer may return y alone, and the truth may lack gradients of parameters
    return max(float((x.cpu().to(exact.dtype) - exact).abs().max() / exact.abs().max().clamp(min=1e-30)) for x, exact in pairs)


def to_double(x: Tensor) -> Tensor:
    """Return a copy of a tensor on the CPU, in float64 or complex128, without gradients."""
    return x.detach().cpu().to(torch.complex128 if x.is_complex() else torch.float64)


def measure_errors(case: Case, shape: Shape) -> dict[str, float]:
    """Return the error of every implementation that has `results`, by label. SystemExit if one exceeds the tolerance."""
    if case.truth is None:
        return {}
    small = {name: min(size, case.check_shape.get(name, size)) for name, size in shape.items()}
    truth = case.truth(small)
    found = {label: relative_error(one.results(), truth) for label, one in case.build(small).items() if one.results}
    for label, error in found.items():
        if not error <= case.tolerance:
            raise SystemExit(f"{case.name}, {label}: error {error:.2e} against float64, at most {case.tolerance:g} allowed")
    return found


def record(op: str, shape: Shape, device: torch.device, **found: Any) -> Row:
    """Return a row of `results/bench` with the fields in `found`, None for measured quantities that are not among them."""
    empty = dict.fromkeys(("backend", "peer", "forward_ms", "forward_backward_ms", "peak_mib", "error_vs_float64"))
    return {"op": op, "shape": shape, "dtype": "float32", "runs": 1, **empty, **found, **provenance(device)}


def provenance(device: torch.device, *, uses_triton: bool = True) -> Row:
    """Return the fields of a row that say how it was made: device, commit, date, versions and command."""
    name = device_name(device)
    if device.type == "cpu" and native_cpu_missing() is None:
        from longscan.ops import _native

        name = f"{name}, {_native.isa()}"
    return {
        "device": name,
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "torch": torch.__version__,
        **({"triton": _triton_version()} if uses_triton else {}),
        "command": shlex.join(["python", *sys.argv]),
    }


def _triton_version() -> str | None:
    try:
        return version("triton")
    except PackageNotFoundError:
        return None


def cpu_provenance(package: str | None = None) -> Row:
    """Return the same fields for a measurement on the CPU without Triton, with the threads and the version of a package."""
    versions = {} if package is None else {package: version(package)}
    return {"threads": torch.get_num_threads(), **versions, **provenance(CPU, uses_triton=False)}


def fit_and_predict(build: Callable[[], Any], X: Any, y: Any, X_test: Any) -> tuple[Any, Row]:
    """Return the predictions of a model that is built and fitted to X and y, and the fields of a row with the seconds."""
    started = time.perf_counter()
    model = build()
    model.fit(X, y)
    fitted = time.perf_counter()
    predictions = model.predict(X_test)
    return predictions, {"fit_seconds": fitted - started, "predict_seconds": time.perf_counter() - fitted}


def compare(case: Case, shape: Shape, *, runs: int, quick: bool) -> list[Row]:
    """Check and time every implementation of a case at one shape; return a row for each.

    The field "shortfall" of a row lists the requirements of the case that are not met.
    """
    errors = measure_errors(case, shape)
    made = case.build(shape)
    least = 5.0 if quick else 40.0 if case.device.type == "cuda" else 200.0
    calls = {
        "forward_backward": {label: one.train for label, one in made.items() if one.train},
        "forward": {label: one.forward for label, one in made.items() if one.forward},
    }
    first_seconds: dict[str, float] = {}
    for calls_of_kind in calls.values():
        for label, call in calls_of_kind.items():
            seconds = milliseconds(call, case.device) / 1e3
            first_seconds.setdefault(label, seconds)  # compilation included
    times = {kind: time_in_turns(calls_of_kind, case.device, runs, least) for kind, calls_of_kind in calls.items()}
    rows = []
    for label, one in made.items():
        row = {"error_vs_float64": errors.get(label), "first_call_s": first_seconds[label], "runs": runs}
        row |= {**case.fields, **one.fields}
        for kind, times_of_kind in times.items():
            if label not in times_of_kind:
                continue
            row[f"{kind}_runs_ms"] = [run / case.calls for run in times_of_kind[label]]
            row[f"{kind}_ms"] = statistics.median(row[f"{kind}_runs_ms"])
            if case.device.type == "cuda":
                row["inference_peak_mib" if kind == "forward" else "peak_mib"] = peak_mib(calls[kind][label])
                if case.replays and row[f"{kind}_ms"] <= MAX_CAPTURED_MS:
                    row[f"replayed_{kind}_ms"] = time_replayed(calls[kind][label])
        rows.append(record(case.op, {**shape, **one.sizes}, case.device, **row))
    if not quick:
        check_requirements(case, shape, times, rows[0])
    if case.memory_shape and sys.platform == "linux":
        memory_shape = case.quick_shape if quick else case.memory_shape
        rows += [memory_row(case, memory_shape, label, made[label].fields) for label in case.memory_of]
    return rows


def check_requirements(case: Case, shape: Shape, times: Mapping[str, Mapping[str, list[float]]], row: Row) -> None:
    """Add the requirements of a case to the row of its first implementation, and those that are not met."""
    base, *_ = times["forward"] or times["forward_backward"]
    for (label, kind), needed in case.needs.items():
        if label in times[kind]:
            found = median_ratio(times[kind][label], times[kind][base])
            add_requirement(row, f"{kind}: {needed:g} times faster than {label}", f"{found:.3g} times", met=found >= needed)
    if case.limits and shape in case.shapes and (limits := case.limits[list(case.shapes).index(shape)]):
        for kind, limit in zip(("forward", "forward_backward"), limits, strict=True):
            found = row[f"{kind}_ms"]
            add_requirement(row, f"{kind}: {limit:.3g} ms", f"{found:.3g} ms", met=found <= limit)


def add_requirement(row: Row, needed: str, found: str, *, met: bool) -> None:
    """Add a requirement to the field "needed" of a row and, if it is not met, the value found to "shortfall"."""
    row.setdefault("needed", []).append(needed)
    if not met:
        row.setdefault("shortfall", []).append(f"{needed} needed, found {found}")


def memory_row(case: Case, shape: Shape, label: str, about: Mapping[str, Any]) -> Row:
    """Return the row of the peak memory of an implementation: the peak of the resident set of a new process."""
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "--memory-of", f"{case.suite}/{case.name}", label]
    command += [f"{name}={size}" for name, size in shape.items()]
    # Freed memory is returned to the system immediately, so that the peak is that of live tensors.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)}\n{result.stderr}")
    peak, inputs, results = map(float, result.stdout.split())
    extra, share = peak - results, (peak - results) / (inputs + results)
    row = record(case.op, shape, CPU, **case.fields, **about, peak_mib=peak, extra_mib=extra, extra_share=share)
    if case.extra_memory is not None and shape == case.memory_shape:
        needed = f"extra memory: {case.extra_memory:g} of inputs, outputs and gradients"
        add_requirement(row, needed, f"{share:.3g}", met=share <= case.extra_memory)
    return row


def print_memory(case: Case, label: str, shape: Shape) -> None:
    """Print three numbers in MiB: the peak of a forward and backward pass beyond its inputs, the inputs, the results."""

    def resident(name: str) -> int:
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name + ":"))
        return int(line.split()[1]) * 1024

    torch.set_num_threads(2)
    case.build(case.quick_shape)[label].train()  # the first call loads code, which must not count
    one = case.build(shape)[label]
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    results = one.train()
    gradient = results[0].nbytes  # the call makes the gradient of y, which is an input of the backward pass
    sizes = resident("VmHWM") - before - gradient, sum(x.nbytes for x in one.inputs) + gradient, sum(x.nbytes for x in results)
    print(*(size / 2**20 for size in sizes))


def profile_events(call: Call, device: torch.device) -> Any:
    """Return the average times of the operations or kernels that a call runs, as torch's profiler has them."""
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if device.type == "cuda" else activity.CPU]) as profile:
        milliseconds(call, device)
    return profile.key_averages()


def leave_out_ptx() -> None:
    """Launch Triton kernels without inline PTX, as on GPUs of other vendors. Calls that were recorded before keep it."""
    _triton_launch.special_functions = lambda _: False


def set_launches(parser: argparse.ArgumentParser, entries: Sequence[str]) -> None:
    """Change the launch table of the Triton kernels by entries OP=STEPS,LANES,WARPS[,...]. The parser reports invalid ones."""
    for entry in entries:
        name, _, numbers = entry.partition("=")
        if name not in _triton_launch.TABLE:
            parser.error(f"`--set` must begin with one of {', '.join(_triton_launch.TABLE)}, got {name!r}")
        kind = type(_triton_launch.TABLE[name])
        try:
            _triton_launch.TABLE[name] = kind(*map(int, numbers.split(",")))
        except (TypeError, ValueError):
            expected = ",".join(one.name.upper() for one in fields(kind))
            parser.error(f"`--set` must be {name}={expected} in whole numbers, got {entry!r}")
    for name, launch in _triton_launch.TABLE.items():
        forward = _triton_launch.TABLE[name.replace("_backward", "")]
        if name.startswith("ssd_scan") and launch.steps != forward.steps:  # the states before chunks are those of both passes
            parser.error(f"`--set` must give {name} as many steps as the forward pass has, {forward.steps}, got {launch.steps}")
