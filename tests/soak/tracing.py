"""Graphs of every op and layer, recorded in every way, give the results and gradients of the plain call.

A case is a subject (an op or a layer), a backend, a way (torch.export, torch.jit.trace, make_fx, AOT and inductor), whether
gradients are recorded while the graph is made, whether parameters are trainable, a length, and whether batch and length stay
open. Plain torch code loops over the length, so that only its batch stays open: at another length a graph is right or raises.
Cases run in a child process, so that one that crashes or hangs fails alone; the child is started again for the next.

    python tests/soak/tracing.py --out results.jsonl [--device cuda] [--only REGEX] [--shard K/N] [--seconds N] [--timeout N]

Each case is one line of JSON in `--out`: "case", "status" (passed, refused, failed, crashed, hung), "detail", "seconds". Cases
that the file has already are not run again, so that a run can be stopped and continued. "refused" is a case of `REFUSED`, which
torch cannot record, and which raised as it should. The exit status is 1 where a case failed, crashed or hung.
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
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "ops")]

LENGTHS = (1, 63, 1000)
Results = dict[str, Any]
UNROLLED = ("gru", "lstm", "slstm")  # loops in Python: graphs of 1,000 steps take minutes
WAYS = ("export", "jit_trace", "make_fx", "aot_eager", "inductor")
# (way, axes) -> why there are no such cases
NOT_OFFERED = {("jit_trace", "dynamic"): "torch.jit.trace records the sizes that Python code computes as constants"}
# a regular expression of cases -> what torch says when it cannot record them
REFUSED: dict[str, str] = {}
D_MODEL = 4
BATCH = 5  # no other size: an open axis that is compared with a constant, and is equal, becomes that constant
OPTIONS = {
    "s4": {"d_state": 4}, "s4d": {"d_state": 4}, "s5": {"d_state": 4}, "s6": {"d_state": 4}, "aussm": {"d_state": 4},
    "mamba2": {"d_state": 4, "head_dim": 2}, "mamba3": {"d_state": 4, "head_dim": 2},
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One way of recording the graph of one op or layer.

    subject: "op:NAME" or "layer:NAME". gradients: recorded while the graph is made. axes: "fixed" or "dynamic".
    """

    subject: str
    backend: str
    way: str
    gradients: bool
    trainable: bool
    length: int
    axes: str

    def __str__(self) -> str:
        recorded, parameters = "grad" if self.gradients else "no_grad", "trainable" if self.trainable else "frozen"
        return "/".join((self.subject, self.backend, self.way, recorded, parameters, str(self.length), self.axes))

    @classmethod
    def parse(cls, text: str) -> "Case":
        """Return the case with this string."""
        subject, backend, way, recorded, parameters, length, axes = text.split("/")
        return cls(subject, backend, way, recorded == "grad", parameters == "trainable", int(length), axes)


def subjects() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return every op and every layer, each with the native backends that it supports."""
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


def cases(backends: Sequence[str]) -> list[Case]:
    """Return all cases on these backends; "eager" stands for plain torch code."""
    found = []
    for subject, native in subjects():
        for backend in [each for each in backends if each == "eager" or each in native]:
            for way in WAYS:
                for axes in ("fixed", "dynamic"):
                    if (way, axes) in NOT_OFFERED:
                        continue
                    # a graph for one step is always one for one step alone: torch treats sizes 0 and 1 as constants
                    lengths = [n for n in LENGTHS if (n > 1 or axes == "fixed") and (n < 1000 or subject[6:] not in UNROLLED)]
                    for length in lengths:
                        for gradients in (True, False):
                            for trainable in (True, False):
                                found.append(Case(subject, backend, way, gradients, trainable, length, axes))
    return found


# ---------------------------------------------------------------------------------------------- one case, in the child


@dataclass
class Subject:
    """A module and its arguments. open_axes: of each argument, the axes that have the sizes of the batch and the length."""

    module: Any
    names: list[str]
    arguments: Callable[[int, int], list[Any]]
    open_axes: list[dict[int, str]]
    reference: Callable[[Any], Any] = field(default=lambda module: module)


def build(case: Case, device: str) -> Subject:
    """Return the module of a case on a device."""
    import torch

    torch.manual_seed(0)
    kind, name = case.subject.split(":")
    return _layer(name, case, device) if kind == "layer" else _op(name, case, device)


def _layer(name: str, case: Case, device: str) -> Subject:
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

    return Subject(layer, ["x"], arguments, [_open(case, {0: "batch", 1: "length"})], reference)


def _op(name: str, case: Case, device: str) -> Subject:
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
        made = example(name, length=length, batch=batch)
        return [made[x].to(device) for x in names]

    def reference(module: Any) -> Any:
        exact = Module("reference")
        exact.load_state_dict(module.state_dict())
        return exact.double().to(device)

    axes = [
        {1: "length"}
        if x == "k" and x not in op.per_step
        else {0: "batch"}
        if x == "initial_state"
        else {0: "batch", 1: "length"}
        for x in names
    ]
    return Subject(Module(case.backend), names, arguments, [_open(case, each) for each in axes], reference)


def _open(case: Case, axes: dict[int, str]) -> dict[int, str]:
    """Return the axes of open size: plain torch code loops over the length in Python, so its graphs are for one length."""
    return {axis: name for axis, name in axes.items() if name == "batch" or case.backend != "eager"}


def leaves_of(arguments: Sequence[Any]) -> list[Any]:
    """Return the arguments as leaves of a new graph, floating-point ones with gradients."""
    return [x.detach().clone().requires_grad_(x.is_floating_point()) for x in arguments]


def weights_of(results: Sequence[Any]) -> list[Any]:
    """Return the weights of the results in the scalar whose gradients are compared."""
    import torch

    generator = torch.Generator().manual_seed(1)
    return [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device, x.dtype) for x in results]


def outcome(call: Callable[..., Any], names: Sequence[str], arguments: Sequence[Any], parameters: Results) -> Results:
    """Return results and gradients by name, of the arguments and of the trainable parameters."""
    import torch

    leaves = leaves_of(arguments)
    results = call(*leaves)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    wanted = {x: leaf for x, leaf in zip(names, leaves, strict=True) if leaf.requires_grad}
    wanted |= {x: value for x, value in parameters.items() if value.requires_grad}
    grads = torch.autograd.grad(results, list(wanted.values()), weights_of(results), allow_unused=True)
    return _named(results, dict(zip(wanted, grads, strict=True)))


def _named(results: Sequence[Any], grads: dict[str, Any]) -> dict[str, Any]:
    found = {f"result {i}": x.detach() for i, x in enumerate(results)}
    return found | {f"gradient of {x}": grad for x, grad in grads.items() if grad is not None}


def record(case: Case, subject: Subject, arguments: Sequence[Any]) -> Callable[[Sequence[Any]], Results]:
    """Record the graph of a case; return a function that computes results and gradients by it."""
    import torch

    if case.way == "make_fx":
        return _make_fx(case, subject, arguments)
    module, dynamic = subject.module, case.axes == "dynamic"
    example = leaves_of(arguments)
    with torch.set_grad_enabled(case.gradients):
        if case.way == "export":
            shapes = None
            if dynamic:
                shapes = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in subject.open_axes)
                shapes = shapes if case.subject.startswith("layer:") else (shapes,)  # an op's module takes *args
            traced = torch.export.export(module, tuple(example), dynamic_shapes=shapes).module()
        elif case.way == "jit_trace":
            traced = torch.jit.trace(module, tuple(example), check_trace=False)
        else:
            torch.compiler.reset()
            for x, axes in zip(example, subject.open_axes, strict=True):
                for axis in axes if dynamic else ():
                    torch._dynamo.mark_dynamic(x, axis)
            traced = torch.compile(module, backend=case.way, fullgraph=True, dynamic=None if dynamic else False)
            traced(*example)
    parameters = dict((module if case.way in ("aot_eager", "inductor") else traced).named_parameters())
    if set(parameters) != {name for name, _ in module.named_parameters()}:
        raise AssertionError(f"parameters of the graph: {sorted(parameters)}")
    return lambda arguments: outcome(traced, subject.names, arguments, parameters)


def _make_fx(case: Case, subject: Subject, arguments: Sequence[Any]) -> Callable[[Sequence[Any]], dict[str, Any]]:
    """With gradients, the graph is that of results and gradients together; else of the results alone, differentiated later."""
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
            graph = make_fx(call, tracing_mode=mode)(list(parameters.values()), leaves_of(arguments))
        return lambda arguments: outcome(
            lambda *args: graph(list(parameters.values()), list(args)), subject.names, arguments, parameters
        )

    def step(values: Sequence[Any], args: Sequence[Any], weights: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        results = call(values, args)
        wanted = [x for x in (*args, *values) if x.requires_grad]
        return results, list(torch.autograd.grad(results, wanted, list(weights), allow_unused=True))

    def prepared(arguments: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        with torch.no_grad():
            weights = weights_of(call(list(parameters.values()), arguments))
        values = [x.detach().requires_grad_(case.trainable) for x in parameters.values()]
        return values, leaves_of(arguments), weights

    graph = make_fx(step, tracing_mode=mode)(*prepared(arguments))

    def run(arguments: Sequence[Any]) -> dict[str, Any]:
        values, leaves, weights = prepared(arguments)
        results, grads = graph(values, leaves, weights)
        names = [x for x, leaf in zip((*subject.names, *parameters), (*leaves, *values), strict=True) if leaf.requires_grad]
        return _named(results, dict(zip(names, grads, strict=True)))

    return run


def compare(found: dict[str, Any], plain: dict[str, Any], subject: Subject, arguments: Sequence[Any]) -> None:
    """Raise AssertionError unless the two are equal, or `found` is as close to the truth as the plain call."""
    import torch

    from tolerances import assert_as_accurate, perturb

    if set(found) != set(plain):
        raise AssertionError(f"got {sorted(found)}, expected {sorted(plain)}")
    if all(torch.equal(found[x], plain[x]) for x in plain):
        return
    exact = subject.reference(subject.module).requires_grad_(next(iter(subject.module.parameters()), arguments[0]).requires_grad)

    def truth(generator: Any) -> dict[str, Any]:
        """Return the float64 results; with a generator, for inputs and parameters moved by one rounding."""
        twin, eps = copy.deepcopy(exact), torch.finfo(torch.float32).eps
        given = [x.double() if x.is_floating_point() else x for x in arguments]
        if generator is not None:
            given = [perturb(x, eps, generator) if x.is_floating_point() else x for x in given]
            with torch.no_grad():
                for value in twin.parameters():
                    value.copy_(perturb(value, eps, generator))
        return outcome(twin, subject.names, given, dict(twin.named_parameters()))

    device = arguments[0].device
    moved = [truth(torch.Generator(device).manual_seed(seed)) for seed in range(3)]
    assert_as_accurate(found, [plain], truth(None), moved)


def run_case(case: Case, device: str) -> tuple[str, str]:
    """Run a case; return its status and an explanation."""
    subject = build(case, device)
    arguments = subject.arguments(BATCH, case.length)
    expected = [message for pattern, message in REFUSED.items() if re.fullmatch(pattern, str(case))]
    try:
        run = record(case, subject, arguments)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if expected and any(re.search(message, text, re.DOTALL) for message in expected):
            return "refused", text[:200]
        raise
    if expected:
        raise AssertionError("listed in REFUSED, and torch recorded it")
    sizes = [(BATCH, case.length)]
    if case.axes == "dynamic":
        sizes += [(BATCH + 2, case.length), (BATCH + 2, case.length + 9)]
    for size in sizes:
        arguments = subject.arguments(*size)
        plain = outcome(subject.module, subject.names, arguments, dict(subject.module.named_parameters()))
        try:
            found = run(arguments)
        except Exception as error:
            if case.backend == "eager" and size[1] != case.length:
                return "passed", f"refused another length: {type(error).__name__}: {error}"[:200]
            raise
        compare(found, plain, subject, arguments)
    return "passed", ""


def serve(device: str) -> None:
    """Run the cases named on standard input, one JSON line of result for each on standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    torch.use_deterministic_algorithms(True, warn_only=device != "cpu")
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if os.environ.get("TRITON_INTERPRET") == "1":
        from interpreter import speed_up_interpreter

        speed_up_interpreter()
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        start = time.monotonic()
        try:
            status, detail = run_case(Case.parse(line.strip()), device)
        except Exception as error:  # whatever goes wrong is the result
            status, detail = "failed", f"{type(error).__name__}: {error}"[:2000]
        answers.write(json.dumps({"status": status, "detail": detail, "seconds": round(time.monotonic() - start, 2)}) + "\n")
        answers.flush()


# ---------------------------------------------------------------------------------------------- all cases, from the parent


class Child:
    """The process that runs cases; it is started when needed, and again after a crash."""

    def __init__(self, device: str, timeout: float) -> None:
        self.device, self.timeout = device, timeout
        self.process: subprocess.Popen[str] | None = None

    def run(self, case: Case) -> dict[str, Any]:
        """Return the line of a case."""
        if self.process is None:
            environment = {"OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **os.environ}
            command = [sys.executable, __file__, "--serve", "--device", self.device]
            self.process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True, env=environment)
            if self._line() is None:
                return self._dead(case, time.monotonic())
        start = time.monotonic()
        pipe: IO[str] = self.process.stdin  # type: ignore[assignment]
        pipe.write(f"{case}\n")
        pipe.flush()
        line = self._line()
        return self._dead(case, start) if line is None else {"case": str(case), **json.loads(line)}

    def _line(self) -> str | None:
        """Return the next line of the child, or None if it crashed or took too long."""
        pipe: IO[str] = self.process.stdout  # type: ignore[union-attr, assignment]
        ready, _, _ = select.select([pipe], [], [], self.timeout)
        return (pipe.readline() or None) if ready else None

    def _dead(self, case: Case, start: float) -> dict[str, Any]:
        process: subprocess.Popen[str] = self.process  # type: ignore[assignment]
        try:
            process.wait(2)  # its pipe is closed a little before it has ended
            hung = False
        except subprocess.TimeoutExpired:
            hung = True
        self.close()
        number = -process.returncode
        detail = f"after {self.timeout} s" if hung else signal.Signals(number).name if number > 0 else f"exit status {-number}"
        seconds = round(time.monotonic() - start, 2)
        return {"case": str(case), "status": "hung" if hung else "crashed", "detail": detail, "seconds": seconds}

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.stdin.close()  # type: ignore[union-attr]
            if self.process.poll() is None:
                try:
                    self.process.wait(1)
                except subprocess.TimeoutExpired:
                    self.process.kill()
            self.process.wait()
            self.process.stdout.close()  # type: ignore[union-attr]
            self.process = None


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line and run the cases."""
    parser = argparse.ArgumentParser(description="Every op and layer through every way of recording a graph.")
    parser.add_argument("--out", type=Path, help="the file of results, one JSON line a case")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--backends", help="by commas; eager and the native one of the device where not given")
    parser.add_argument("--only", default="", help="a regular expression that a case's name must contain")
    parser.add_argument("--shard", default="0/1", help="K/N: every N-th case from the K-th on")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no case after so many seconds")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that a case may take")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and run none")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.serve:
        serve(options.device)
        return 0
    backends = (options.backends or f"eager,{'cpu' if options.device == 'cpu' else 'triton'}").split(",")
    wanted = [case for case in cases(backends) if re.search(options.only, str(case))]
    wanted.sort(key=lambda case: (WAYS.index(case.way), case.length))  # quick ones first
    shard, shards = map(int, options.shard.split("/"))
    wanted = wanted[shard::shards]
    if options.list:
        sys.stdout.write("\n".join(map(str, wanted)) + "\n")
        return 0
    if options.out is None:
        parser.error("--out is needed")
    lines = options.out.read_text("utf-8").splitlines() if options.out.exists() else []
    done = {json.loads(line)["case"]: json.loads(line)["status"] for line in lines}
    child, start = Child(options.device, options.timeout), time.monotonic()
    try:
        with options.out.open("a", encoding="utf-8") as out:
            for case in wanted:
                if str(case) in done:
                    continue
                if time.monotonic() - start > options.seconds:
                    break
                result = child.run(case)
                done[str(case)] = result["status"]
                out.write(json.dumps(result) + "\n")
                out.flush()
    finally:
        child.close()
    statuses = [done[str(case)] for case in wanted if str(case) in done]
    counts = {status: statuses.count(status) for status in ("passed", "refused", "failed", "crashed", "hung")}
    sys.stdout.write(", ".join(f"{count} {status}" for status, count in counts.items()) + f" of {len(wanted)} cases\n")
    return int(bool(counts["failed"] or counts["crashed"] or counts["hung"]))


if __name__ == "__main__":
    sys.exit(main())
