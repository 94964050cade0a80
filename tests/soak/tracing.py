"""Graphs of every op and layer, made by every tracer, give the results and gradients of the direct call.

A case is a subject (an op or a layer), a backend, a tracer (torch.export, torch.jit.trace, make_fx, AOT and inductor), whether
gradients are enabled while the graph is made, whether parameters are trainable, a length, and whether the axes of batch and
length are dynamic. Plain torch code loops over the length, so that only its batch is dynamic: at another length a graph is right
or raises; with inductor this is not tested, because torch.compile makes a second graph there, as in the case of AOT. Cases run
in a child process, so that a crash or a hang fails one case only; the child is started again for the next.

    python tests/soak/tracing.py --out cases.jsonl [--device cuda] [--only REGEX] [--processes N] [--seconds N] [--timeout N]

Each case is one line of JSON in `--out`: "case", "status" (passed, refused, failed, crashed, hung), "detail", "seconds". Cases
that are already in the file are not repeated, so that a run can be interrupted and resumed; a case that the end of `--seconds`
interrupts has no line. "refused" is a case of `REFUSED`, which torch cannot trace and which raised the expected error. The exit
status is 1 if a case failed, crashed or hung. `--results` adds the counts of this call to the records of run.py.
On CUDA the native backend is triton; with TRITON_INTERPRET=1 and `--backends triton` its kernels run on a CPU, slowly.
"""

import argparse
import copy
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "ops"), str(Path(__file__).parent)]

LENGTHS = (1, 63, 1000)
Results = dict[str, Any]
# Plain torch code that unrolls the sequence, so that graphs of 1,000 steps take a minute or more -> the lengths instead of 1,000.
# The layers have a loop over steps. The ops have a loop over chunks of 64 steps with about 500 operations each; 130 steps are
# three chunks. Layers with these ops are traced at 1,000 steps, without masks and packed rows.
UNROLLED: dict[str, tuple[int, ...]] = {
    "layer:gru": (), "layer:lstm": (), "layer:slstm": (), "layer:pdssm": (), "op:delta_scan": (130,), "op:ssd_scan": (130,),
}  # fmt: skip
BAD = ("failed", "crashed", "hung")  # statuses of a case that count as failures
TRACERS = ("export", "jit_trace", "make_fx", "aot_eager", "inductor")
# (tracer, axes) -> why there are no such cases
UNSUPPORTED = {("jit_trace", "dynamic"): "torch.jit.trace records the sizes that Python code computes as constants"}
# regular expression of cases -> the error of torch, which cannot trace them
REFUSED: dict[str, str] = {}
D_MODEL = 4
SHORT = 5  # steps with which graphs of native kernels with a dynamic length run, too: fewer than a program computes together
BATCH = 5  # differs from all other sizes: a dynamic axis that equals a constant in a comparison becomes that constant
OPTIONS = {
    "s4": {"d_state": 4}, "s4d": {"d_state": 4}, "s5": {"d_state": 4}, "s6": {"d_state": 4}, "aussm": {"d_state": 4},
    "mamba2": {"d_state": 4, "head_dim": 2}, "mamba3": {"d_state": 4, "head_dim": 2},
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A tracer and its settings for one op or layer.

    subject: "op:NAME" or "layer:NAME". gradients: whether they are enabled while the graph is made. axes: "fixed" or "dynamic".
    """

    subject: str
    backend: str
    tracer: str
    gradients: bool
    trainable: bool
    length: int
    axes: str

    def __str__(self) -> str:
        grad_mode, parameters = "grad" if self.gradients else "no_grad", "trainable" if self.trainable else "frozen"
        return "/".join((self.subject, self.backend, self.tracer, grad_mode, parameters, str(self.length), self.axes))

    @classmethod
    def parse(cls, text: str) -> "Case":
        """Return the case with this string."""
        subject, backend, tracer, grad_mode, parameters, length, axes = text.split("/")
        return cls(subject, backend, tracer, grad_mode == "grad", parameters == "trainable", int(length), axes)


def list_subjects() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield every op and every layer with its native backends."""
    from longscan.layers import LAYERS, make_layer
    from longscan.ops import OPS

    for name, op in OPS.items():
        if op.per_step:  # the cases vary the length
            yield f"op:{name}", op.native
    for name in LAYERS:
        native = []
        for backend in ("cpu", "triton"):
            try:
                layer = make_layer(name, D_MODEL, OPTIONS.get(name, {}), backend)
            except ValueError:
                continue
            if any(getattr(part, "backend", None) == backend for part in layer.modules()):
                native.append(backend)
        yield f"layer:{name}", tuple(native)


def list_lengths(subject: str, backend: str) -> tuple[int, ...]:
    """Return the lengths at which a subject is traced."""
    return (*LENGTHS[:2], *UNROLLED[subject]) if backend == "eager" and subject in UNROLLED else LENGTHS


def list_cases(backends: Sequence[str]) -> list[Case]:
    """Return all cases of the backends; "eager" stands for plain torch code."""
    cases = []
    for subject, native in list_subjects():
        for backend in [name for name in backends if name == "eager" or name in native]:
            for tracer in TRACERS:
                for axes in ("fixed", "dynamic"):
                    if (tracer, axes) in UNSUPPORTED:
                        continue
                    for length in list_lengths(subject, backend):
                        if length == 1 and axes == "dynamic":
                            continue  # torch treats sizes 0 and 1 as constants
                        for gradients in (True, False):
                            for trainable in (True, False):
                                cases.append(Case(subject, backend, tracer, gradients, trainable, length, axes))
    return cases


# ---------------------------------------------------------------------------------------------- one case, in the child


@dataclass
class Subject:
    """A module and its arguments. dynamic_axes: for each argument, the axes of the batch and the length."""

    module: Any
    names: list[str]
    arguments: Callable[[int, int], list[Any]]
    dynamic_axes: list[dict[int, str]]
    reference: Callable[[Any], Any] = field(default=lambda module: module)


def build_subject(case: Case, device: str) -> Subject:
    """Return the module of a case on a device."""
    import torch

    torch.manual_seed(0)
    kind, name = case.subject.split(":")
    return _build_layer(name, case, device) if kind == "layer" else _build_op(name, case, device)


def _build_layer(name: str, case: Case, device: str) -> Subject:
    import torch

    from longscan.layers import make_layer

    options = OPTIONS.get(name, {})
    layer = make_layer(name, D_MODEL, options, case.backend).to(device).requires_grad_(case.trainable)

    def arguments(batch: int, length: int) -> list[Any]:
        generator = torch.Generator().manual_seed(batch + length)
        return [torch.randn(batch, length, D_MODEL, generator=generator).to(device)]

    def reference(module: Any) -> Any:
        exact = make_layer(name, D_MODEL, options, "eager").to(device)
        exact.load_state_dict(module.state_dict())
        return exact.double()

    return Subject(layer, ["x"], arguments, [_dynamic_axes(case, {0: "batch", 1: "length"})], reference)


def _build_op(name: str, case: Case, device: str) -> Subject:
    import torch

    from longscan.ops import OPS
    from op_examples import example

    op = OPS[name]
    first = example(name, length=case.length)
    shared = [x for x in op.shared if x in first and x not in op.per_step and x != "k"]
    constants = {x: value for x, value in first.items() if not isinstance(value, torch.Tensor)}
    names = [x for x in first if x not in shared and x not in constants]

    class Module(torch.nn.Module):
        def __init__(self, backend: str) -> None:
            super().__init__()
            self.backend = backend
            for x in shared:
                self.register_parameter(x, torch.nn.Parameter(first[x].to(device).clone(), case.trainable))

        def forward(self, *args: Any) -> Any:
            tensors = dict(zip(names, args, strict=True)) | {x: getattr(self, x) for x in shared}
            return op.function(**tensors, **constants, backend=self.backend)

    def arguments(batch: int, length: int) -> list[Any]:
        torch.manual_seed(batch + length)
        inputs = example(name, length=length, batch=batch)
        return [inputs[x].to(device) for x in names]

    def reference(module: Any) -> Any:
        exact = Module("reference")
        exact.load_state_dict(module.state_dict())
        return exact.double().to(device)

    axes = {x: {0: "batch"} if x == "initial_state" else {0: "batch", 1: "length"} for x in names}
    if "k" not in op.per_step:  # the kernel of a convolution
        axes["k"] = {1: "length"}
    return Subject(Module(case.backend), names, arguments, [_dynamic_axes(case, axes[x]) for x in names], reference)


def _dynamic_axes(case: Case, axes: dict[int, str]) -> dict[int, str]:
    """Return the dynamic axes: plain torch code loops over the length in Python, so its graphs are for one length."""
    return {axis: name for axis, name in axes.items() if name == "batch" or case.backend != "eager"}


def make_leaves(arguments: Sequence[Any]) -> list[Any]:
    """Return the arguments as leaves of a new graph, floating-point ones with gradients."""
    return [x.detach().clone().requires_grad_(x.is_floating_point()) for x in arguments]


def make_cotangents(results: Sequence[Any]) -> list[Any]:
    """Return the cotangents of the results for the gradients that are compared."""
    import torch

    generator = torch.Generator().manual_seed(1)
    return [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device, x.dtype) for x in results]


def run_with_gradients(call: Callable[..., Any], names: Sequence[str], arguments: Sequence[Any], parameters: Results) -> Results:
    """Return results and gradients by name, of the arguments and of the trainable parameters."""
    import torch

    leaves = make_leaves(arguments)
    results = call(*leaves)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    differentiated = {x: leaf for x, leaf in zip(names, leaves, strict=True) if leaf.requires_grad}
    differentiated |= {x: value for x, value in parameters.items() if value.requires_grad}
    grads = torch.autograd.grad(results, list(differentiated.values()), make_cotangents(results), allow_unused=True)
    return _name_results(results, dict(zip(differentiated, grads, strict=True)))


def _name_results(results: Sequence[Any], grads: dict[str, Any]) -> dict[str, Any]:
    named = {f"result {i}": x.detach() for i, x in enumerate(results)}
    return named | {f"gradient of {x}": grad for x, grad in grads.items() if grad is not None}


def trace_case(case: Case, subject: Subject, arguments: Sequence[Any]) -> Callable[[Sequence[Any]], Results]:
    """Trace the graph of a case; return a function that computes results and gradients with it."""
    import torch

    if case.tracer == "make_fx":
        return _trace_with_make_fx(case, subject, arguments)
    module, dynamic = subject.module, case.axes == "dynamic"
    example = make_leaves(arguments)
    with torch.set_grad_enabled(case.gradients):
        if case.tracer == "export":
            shapes = None
            if dynamic:
                shapes = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in subject.dynamic_axes)
                shapes = shapes if case.subject.startswith("layer:") else (shapes,)  # the module of an op has *args
            traced = torch.export.export(module, tuple(example), dynamic_shapes=shapes).module()
        elif case.tracer == "jit_trace":
            traced = torch.jit.trace(module, tuple(example), check_trace=False)
        else:
            torch.compiler.reset()
            for x, axes in zip(example, subject.dynamic_axes, strict=True):
                for axis in axes if dynamic else ():
                    torch._dynamo.mark_dynamic(x, axis)
            traced = torch.compile(module, backend=case.tracer, fullgraph=True, dynamic=None if dynamic else False)
            traced(*example)
    parameters = dict((module if case.tracer in ("aot_eager", "inductor") else traced).named_parameters())
    if set(parameters) != {name for name, _ in module.named_parameters()}:
        raise AssertionError(f"parameters of the graph: {sorted(parameters)}")
    return lambda arguments: run_with_gradients(traced, subject.names, arguments, parameters)


def _trace_with_make_fx(case: Case, subject: Subject, arguments: Sequence[Any]) -> Callable[[Sequence[Any]], dict[str, Any]]:
    """With gradients, the graph has results and gradients; without, it has the results, which are differentiated later."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    module = subject.module
    parameters = dict(module.named_parameters())
    mode = "symbolic" if case.axes == "dynamic" else "real"

    def call(values: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        results = torch.func.functional_call(module, dict(zip(parameters, values, strict=True)), tuple(args))
        return list(results) if isinstance(results, (tuple, list)) else [results]

    if not case.gradients:
        with torch.no_grad():
            graph = make_fx(call, tracing_mode=mode)(list(parameters.values()), make_leaves(arguments))
        return lambda arguments: run_with_gradients(
            lambda *args: graph(list(parameters.values()), list(args)), subject.names, arguments, parameters
        )

    def step(values: Sequence[Any], args: Sequence[Any], cotangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        results = call(values, args)
        differentiated = [x for x in (*args, *values) if x.requires_grad]
        return results, list(torch.autograd.grad(results, differentiated, list(cotangents), allow_unused=True))

    def prepare_arguments(arguments: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        with torch.no_grad():
            cotangents = make_cotangents(call(list(parameters.values()), arguments))
        values = [x.detach().requires_grad_(case.trainable) for x in parameters.values()]
        return values, make_leaves(arguments), cotangents

    graph = make_fx(step, tracing_mode=mode)(*prepare_arguments(arguments))

    def run(arguments: Sequence[Any]) -> dict[str, Any]:
        values, leaves, cotangents = prepare_arguments(arguments)
        results, grads = graph(values, leaves, cotangents)
        names = [x for x, leaf in zip((*subject.names, *parameters), (*leaves, *values), strict=True) if leaf.requires_grad]
        return _name_results(results, dict(zip(names, grads, strict=True)))

    return run


def assert_equal_or_as_accurate(
    results: dict[str, Any], plain: dict[str, Any], subject: Subject, arguments: Sequence[Any]
) -> None:
    """Raise AssertionError unless the results are equal, or `results` are as close to the truth as those of plain arithmetic.

    Plain arithmetic is the direct call, once as it is and once with sums that add one number after another.
    """
    import torch

    from tolerances import assert_as_accurate_as_neighbours, perturb

    if set(results) != set(plain):
        raise AssertionError(f"got {sorted(results)}, expected {sorted(plain)}")
    if all(torch.equal(results[x], plain[x]) for x in plain):
        return
    trainable = next(iter(subject.module.parameters()), arguments[0]).requires_grad
    exact = subject.reference(subject.module).requires_grad_(trainable)

    def evaluate(module: Any, dtype: torch.dtype, seed: int | None = None) -> dict[str, Any]:
        """Return the results of a module; with a seed, for inputs and parameters moved by one rounding of float32."""
        copied, inputs, values = copy.deepcopy(module), list(arguments), list(subject.module.parameters())
        if seed is not None:
            generator, eps = torch.Generator(arguments[0].device).manual_seed(seed), torch.finfo(torch.float32).eps
            inputs, values = ([perturb(x, eps, generator) if x.is_floating_point() else x for x in of] for of in (inputs, values))
        with torch.no_grad():
            for parameter, value in zip(copied.parameters(), values, strict=True):
                parameter.copy_(value)
        inputs = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
        return run_with_gradients(copied, subject.names, inputs, dict(copied.named_parameters()))

    def run_neighbours(count: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        seeds = range(count)
        with ordered_sums():
            moved_plain = [evaluate(subject.module, torch.float32, seed) for seed in seeds]
        return [evaluate(exact, torch.float64, seed) for seed in seeds], moved_plain

    with ordered_sums():
        in_order = evaluate(subject.module, torch.float32)
    assert_as_accurate_as_neighbours(results, [plain, in_order], evaluate(exact, torch.float64), run_neighbours)


def ordered_sums() -> Any:
    """Return a context in which sums of float32 numbers add one number after another, as a plain loop does.

    ATen adds up many partial sums instead, and compilers choose other orders: for n numbers the error of the loop grows with n,
    that of ATen with its logarithm.
    """
    import numpy as np
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class OrderedSums(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func in (torch.ops.aten.sum.default, torch.ops.aten.sum.dim_IntList) and args[0].numel():
                x = args[0]
                if x.dtype == result.dtype == torch.float32:
                    axes = sorted(axis % x.ndim for axis in (args[1:2] or [None])[0] or range(x.ndim)) if x.ndim else []
                    kept = x.detach().permute(*axes, *(i for i in range(x.ndim) if i not in axes)).cpu()
                    terms = kept.reshape(-1, result.numel()).numpy()
                    result.copy_(torch.from_numpy(np.add.accumulate(terms, 0)[-1].copy()).view(result.shape))
            return result

    return OrderedSums()


def run_case(case: Case, device: str) -> tuple[str, str]:
    """Run a case; return its status and an explanation."""
    subject = build_subject(case, device)
    arguments = subject.arguments(BATCH, case.length)
    expected_errors = [message for pattern, message in REFUSED.items() if re.fullmatch(pattern, str(case))]
    try:
        run = trace_case(case, subject, arguments)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if expected_errors and any(re.search(message, text, re.DOTALL) for message in expected_errors):
            return "refused", text[:200]
        raise
    if expected_errors:
        raise AssertionError("listed in REFUSED, but torch traced it")
    sizes = [(BATCH, case.length)]
    if case.axes == "dynamic":
        sizes.append((BATCH + 2, case.length))
        if not (case.backend == "eager" and case.tracer == "inductor"):
            sizes.append((BATCH + 2, case.length + 9))
        if case.backend != "eager":
            sizes.append((BATCH + 2, SHORT))
    for size in sizes:
        arguments = subject.arguments(*size)
        plain = run_with_gradients(subject.module, subject.names, arguments, dict(subject.module.named_parameters()))
        try:
            results = run(arguments)
        except Exception as error:
            if case.backend == "eager" and size[1] != case.length:
                return "passed", f"refused another length: {type(error).__name__}: {error}"[:200]
            raise
        assert_equal_or_as_accurate(results, plain, subject, arguments)
    return "passed", ""


def serve(device: str) -> None:
    """Run the cases named on standard input, one JSON line of result for each on standard output."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    torch.use_deterministic_algorithms(True, warn_only=device != "cpu")
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if os.environ.get("TRITON_INTERPRET") == "1":
        from interpreter import speed_up_interpreter

        speed_up_interpreter()
    output.write("ready\n")
    output.flush()
    for line in sys.stdin:
        start = time.monotonic()
        try:
            status, detail = run_case(Case.parse(line.strip()), device)
        except Exception as error:  # every error is the result of the case
            status, detail = "failed", f"{type(error).__name__}: {error}"[:2000]
        output.write(json.dumps({"status": status, "detail": detail, "seconds": round(time.monotonic() - start, 2)}) + "\n")
        output.flush()


# ---------------------------------------------------------------------------------------------- all cases, from the parent


class Child:
    """The process that runs cases. It is started when it is needed, and again after a crash.

    It has a folder of inductor's compiled code, because two processes that compile the same code for one folder may read each
    other's unfinished files, and a process group, so that compilers end with it.
    """

    def __init__(self, device: str, timeout: float) -> None:
        self.device, self.timeout = device, timeout
        self.process: subprocess.Popen[str] | None = None
        self.compiled_code: tempfile.TemporaryDirectory[str] | None = None

    def run(self, case: Case, end: float = float("inf")) -> dict[str, Any] | None:
        """Run a case and return its line; None if time.monotonic() reached `end` before the case did."""
        if self.process is None:
            self.compiled_code = tempfile.TemporaryDirectory(prefix="tracing-", ignore_cleanup_errors=True)
            environment = {"OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
            environment |= {**os.environ, "TORCHINDUCTOR_CACHE_DIR": self.compiled_code.name}
            command = [sys.executable, __file__, "--serve", "--device", self.device]
            self.process = subprocess.Popen(
                command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True, env=environment, process_group=0
            )
            if self._read_line(end) is None:
                return self._describe_death(case, time.monotonic(), end)
        start = time.monotonic()
        pipe: IO[str] = self.process.stdin  # type: ignore[assignment]
        pipe.write(f"{case}\n")
        pipe.flush()
        line = self._read_line(end)
        return self._describe_death(case, start, end) if line is None else {"case": str(case), **json.loads(line)}

    def _read_line(self, end: float) -> str | None:
        """Return the next line of the child, or None if it crashed or took too long."""
        pipe: IO[str] = self.process.stdout  # type: ignore[union-attr, assignment]
        ready, _, _ = select.select([pipe], [], [], max(0.0, min(self.timeout, end - time.monotonic())))
        return (pipe.readline() or None) if ready else None

    def _describe_death(self, case: Case, start: float, end: float) -> dict[str, Any] | None:
        process: subprocess.Popen[str] = self.process  # type: ignore[assignment]
        try:
            process.wait(2)  # the pipe is closed shortly before the process ends
            hung = False
        except subprocess.TimeoutExpired:
            hung = True
        self.close(kill=hung)
        if hung and time.monotonic() >= end:
            return None
        number = -process.returncode
        detail = f"after {self.timeout} s" if hung else signal.Signals(number).name if number > 0 else f"exit status {-number}"
        seconds = round(time.monotonic() - start, 2)
        return {"case": str(case), "status": "hung" if hung else "crashed", "detail": detail, "seconds": seconds}

    def close(self, kill: bool = False) -> None:
        """End the process; with `kill`, without waiting for the case that it runs."""
        if self.process is not None:
            if kill:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.stdin.close()  # type: ignore[union-attr]
            if self.process.poll() is None:
                try:
                    self.process.wait(1)
                except subprocess.TimeoutExpired:
                    os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process.stdout.close()  # type: ignore[union-attr]
            self.process = None
            self.compiled_code.cleanup()  # type: ignore[union-attr]


def cost_rank(case: Case) -> tuple[int, bool, bool, int]:
    """Return a key by which fast cases come before slow ones."""
    plain = case.backend == "eager"
    return TRACERS.index(case.tracer), plain, plain and case.subject in UNROLLED, case.length


def run_cases(cases: Sequence[Case], options: argparse.Namespace, end: float) -> list[dict[str, Any]]:
    """Run cases in several processes until `end`; return their lines, which are also added to the file `--out`."""
    pending, results, lock = iter(cases), list[dict[str, Any]](), threading.Lock()

    def work() -> None:
        child = Child(options.device, options.timeout)
        try:
            while time.monotonic() < end:
                with lock:
                    case = next(pending, None)
                result = None if case is None else child.run(case, end)
                if result is None:
                    break
                with lock:
                    results.append(result)
                    out.write(json.dumps(result) + "\n")
                    out.flush()
        finally:
            child.close()

    with options.out.open("a", encoding="utf-8") as out:
        threads = [threading.Thread(target=work) for _ in range(options.processes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


def add_record(path: Path, results: Sequence[dict[str, Any]], options: argparse.Namespace, seconds: float) -> None:
    """Add the counts of these results to the records of run.py."""
    import run

    tally = run.Tally(cases=len(results), units=options.processes, seeds=[0])
    for result in results:
        subject = result["case"].split("/")[0]
        tally.subjects[subject] += 1
        tally.outcomes[result["status"]] += 1
        if result["status"] in BAD:
            failure = f"{result['case']}: {result['status']}: {result['detail']}"
            tally.failures.append({"seed": 0, "case": subject, "failure": failure[:600]})
    run.append_lines(
        path, [run.make_record("tracing", tally, seconds, options.processes, "tests/soak/tracing.py", options.device)]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line and run the cases."""
    parser = argparse.ArgumentParser(description="Trace every op and layer with every tracer.")
    parser.add_argument("--out", type=Path, help="the file of results, one JSON line a case")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--backends", help="separated by commas; by default eager and the native backend of the device")
    parser.add_argument("--only", default="", help="a regular expression that a case's name must contain")
    parser.add_argument("--processes", type=int, default=1, help="cases at the same time")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="end of the call; cases that are running have no result"
    )
    parser.add_argument("--timeout", type=float, default=600, help="seconds that a case may take")
    parser.add_argument(
        "--results", type=Path, help="a file of records such as results/reliability.jsonl, to which a line is added"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases and run none")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.serve:
        serve(options.device)
        return 0
    start = time.monotonic()
    backends = (options.backends or f"eager,{'cpu' if options.device == 'cpu' else 'triton'}").split(",")
    chosen = sorted((case for case in list_cases(backends) if re.search(options.only, str(case))), key=cost_rank)
    if options.list:
        sys.stdout.write("\n".join(map(str, chosen)) + "\n")
        return 0
    if options.out is None:
        parser.error("--out is needed")
    lines = options.out.read_text("utf-8").splitlines() if options.out.exists() else []
    done = {json.loads(line)["case"]: json.loads(line)["status"] for line in lines}
    results = run_cases([case for case in chosen if str(case) not in done], options, start + options.seconds)
    if options.results is not None and results:
        add_record(options.results, results, options, round(time.monotonic() - start, 1))
    done |= {result["case"]: result["status"] for result in results}
    statuses = [done[str(case)] for case in chosen if str(case) in done]
    counts = {status: statuses.count(status) for status in ("passed", "refused", *BAD)}
    sys.stdout.write(", ".join(f"{count} {status}" for status, count in counts.items()) + f" of {len(chosen)} cases\n")
    return int(any(counts[status] for status in BAD))


if __name__ == "__main__":
    sys.exit(main())
