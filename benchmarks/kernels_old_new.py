"""Compare the Triton kernels of two source trees: times called from Python and replayed as CUDA graphs, peak memory, errors.

    git worktree add /tmp/old COMMIT
    python benchmarks/kernels_old_new.py /tmp/old . --ops linear_scan short_conv --out build/kernels.jsonl
    python benchmarks/kernels_old_new.py /tmp/old . --only "unitary 16 1024" "Mamba blocks" "S4" --seconds 90

Each tree has a separate process, and the two measure in turn. Cases are those of the suite gpu, further sizes, and training steps
of models of six blocks (called, and replayed as a graph). A row of the file is one case on one tree: the median and the single
values of --runs runs, of the forward pass and of the forward and backward pass; the host's own measure in the same turns, which
is (x * 2).sum() of 524,288 numbers without and with its gradient; the time of the first forward and backward pass, and of the
first forward pass after it; the peak of the GPU's memory that the fourth call allocates; the error of y and all gradients of an
op against the float64 reference. The exit status is 1 if a replayed time is over 1.1 of the old one. --quick runs small shapes
without graphs, also in Triton's interpreter. The packages need torch and Triton only, and a process imports longscan from its
tree, whatever is installed.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

KINDS = ("called_forward", "called_forward_backward", "replayed_forward", "replayed_forward_backward")
HOST_KINDS = ("host_forward", "host_forward_backward")
OP_CASES = (  # further sizes of ops: name, op of `op_calls`, sizes, dtype
    ("selective", "SELECTIVE", "16 1024 32 64", "float32"),
    ("selective", "SELECTIVE", "16 1024 32 64", "bfloat16"),
    ("selective", "SELECTIVE", "8 1024 64 64", "float32"),
    ("selective", "SELECTIVE", "4 1024 256 16", "float32"),
    ("selective masked", "SELECTIVE_MASKED", "16 1024 32 64", "float32"),
    ("selective complex", "SELECTIVE_COMPLEX", "8 1024 64 64", "float32"),
    ("unitary", "UNITARY", "4 1024 64 64", "float32"),
    ("unitary masked", "UNITARY_MASKED", "16 1024 32 64", "float32"),
    ("convolution", "SHORT_CONV", "4 1024 256", "float32"),
)
MODELS = {  # name -> spec, width and states of a model of about 600,000 parameters, as in the suite systems
    "S4": ("s4*6", 168, 64),
    "S4D": ("s4d*6", 192, 64),
}
BLOCKS = "Mamba blocks"  # the model of mamba_blocks.py
GRAPH_MS = 5.0  # shortest time of a graph, which has as many calls as this needs

Call = Callable[[], object]
Row = dict[str, Any]


class Worker:
    """The process of one source tree. It answers each request by one line of JSON."""

    def __init__(self, tree: Path, arguments: Sequence[str]) -> None:
        command = [sys.executable, __file__, "--worker", str(tree), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def send(self, request: str) -> None:
        """Send a request."""
        assert self._process.stdin is not None
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        """Return the answer to the last request. SystemExit if the process has ended."""
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("the process of a tree ended")
        return json.loads(answer)

    def ask(self, request: str) -> Any:
        """Return the answer to a request."""
        self.send(request)
        return self.receive()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def list_cases() -> list[tuple[str, str, str, str]]:
    """Return name, op, sizes and dtype of all cases; the op is a name of `op_calls`, or SequenceModel."""
    import op_calls

    names = {id(value): name for name, value in vars(op_calls).items() if isinstance(value, op_calls.OpCall)}
    cases = [(name, names[id(call)], sizes, dtype) for name, call, sizes, dtype in op_calls.ON_GPU]
    cases += OP_CASES
    return cases + [(name, "SequenceModel", "4 1024", "bfloat16") for name in (BLOCKS, *MODELS)]


def import_from(tree: Path) -> None:
    """Import longscan from a source tree, also if another one is installed in editable mode. SystemExit if the tree has none."""
    # An editable installation finds the package by an entry of sys.meta_path, which comes before sys.path.
    sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
    sys.path.insert(0, str(tree / "src"))
    from longscan import ops

    if not Path(ops.__file__).is_relative_to(tree):
        raise SystemExit(f"`TREE` must be a folder with src/longscan, got {tree}: {ops.__file__} was imported")


def serve(tree: Path, quick: bool, with_errors: bool) -> None:
    """Answer requests: the index of a case builds it and returns a row without times; a kind of time is measured and returned."""
    import torch

    import_from(tree)
    cases = list_cases()
    x = torch.randn(16, 1024, 32, device="cuda" if torch.cuda.is_available() else "cpu")
    leaf = x.clone().requires_grad_()
    host: dict[str, Call] = {
        "host_forward": lambda: (x * 2).sum(),
        "host_forward_backward": lambda: torch.autograd.grad((leaf * 2).sum(), leaf),
    }
    calls: dict[str, Call] = {}
    replays: dict[str, Callable[[], float]] = {}
    for request in map(str.strip, sys.stdin):
        if request in HOST_KINDS:
            answer: Any = called_ms(host[request])
        elif request in KINDS:
            how, _, kind = request.partition("_")
            if how == "called":
                answer = called_ms(calls[kind])
            else:
                if kind not in replays:
                    replays[kind] = record_graph(calls.get(f"recorded_{kind}", calls[kind]))
                answer = replays[kind]()
        else:
            calls.clear()
            replays.clear()
            case = cases[int(request)]
            build = build_model if case[1] == "SequenceModel" else build_op
            answer = build(*case, calls, quick, with_errors)
        print(json.dumps(answer), flush=True)


def build_op(name: str, op: str, sizes: str, dtype: str, calls: dict[str, Call], quick: bool, with_errors: bool) -> Row:
    """Fill `calls` with the forward and backward pass and the forward pass of an op, and return its row without times."""
    import torch

    import op_calls

    call: op_calls.OpCall = getattr(op_calls, op)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = op_calls.parse_sizes(sizes)
    if quick:
        shape = {axis: min(size, {"B": 1, "L": 20, "D": 3, "N": 2, "R": 1}[axis]) for axis, size in shape.items()}
    row: Row = {"name": name, "op": call.op, "shape": shape, "dtype": dtype}
    if with_errors:
        small = {axis: min(size, {"B": 2, "L": 256}.get(axis, size)) for axis, size in shape.items()}
        found = call.results(call.inputs(small, dtype, device), "triton")
        errors = [relative_error(x.cpu(), exact) for x, exact in zip(found, call.truth(small, dtype), strict=True)]
        row["error_vs_float64"] = max(errors)
    inputs = call.inputs(shape, dtype, device)
    leaves = [x.detach().requires_grad_() for x in inputs]
    dy: list[torch.Tensor] = []  # made once, as a model's loss makes it

    def forward_backward() -> object:
        y = call.call(*leaves, backend="triton")
        if not dy:
            dy.append(torch.ones_like(y))
        return torch.autograd.grad(y, leaves, dy)

    calls["forward_backward"] = forward_backward
    calls["forward"] = lambda: call.call(*inputs, backend="triton")
    return row | first_calls(calls)


def build_model(name: str, op: str, sizes: str, dtype: str, calls: dict[str, Call], quick: bool, _: bool) -> Row:
    """Fill `calls` with the training step of a model, and return its row without times."""
    import torch

    from longscan.models import SequenceModel
    from mamba_blocks import make_step

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, length = (2, 20) if quick else map(int, sizes.split())
    labels = torch.randint(10, (batch,), device=device)
    shape = {"B": batch, "L": length}
    if name == BLOCKS:
        x = torch.randn(batch, length, 8, device=device)
        calls["forward_backward"] = make_step("called", 128, x, labels)
        calls["recorded_forward_backward"] = make_step("recorded", 128, x, labels)
        shape |= {"d_model": 128}
    else:
        spec, width, states = MODELS[name]
        x = torch.randn(batch, length, 3, device=device)
        sizes_of_model = {"d_model": width, "d_state": states, "d_input": 3, "d_output": 10}
        model = SequenceModel.from_spec(spec, **sizes_of_model, head="affine").to(device)
        optimizer = torch.optim.AdamW(model.parameters(), capturable=device.type == "cuda")

        def step() -> None:
            with torch.autocast(device.type, torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        calls["forward_backward"] = step
        shape |= {"d_model": width, "d_state": states}
    first = first_calls({"forward_backward": calls["forward_backward"]})
    return {"name": name, "op": op, "shape": shape, "dtype": f"autocast {dtype}"} | first


def first_calls(calls: dict[str, Call]) -> Row:
    """Return the times of the first calls in seconds, and on a GPU the memory that the fourth ones allocate at most.

    The second call on tensors of some shapes is recorded, with all of its buffers in memory, and the third is repeated.
    """
    import torch

    from op_calls import peak_mib

    row: Row = {}
    for kind, call in calls.items():
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        row[f"first_{kind}_s"] = time.perf_counter() - start
        if torch.cuda.is_available():
            for _ in range(2):
                call()
            row[f"{kind}_peak_mib"] = peak_mib(call)
    return row


def called_ms(call: Call) -> float:
    """Return the median time of a call from Python in milliseconds."""
    import torch
    from triton.testing import do_bench

    if torch.cuda.is_available():
        return float(do_bench(call, warmup=10, rep=30, return_mode="median"))
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def record_graph(call: Call) -> Callable[[], float]:
    """Record a call as a CUDA graph, and return a function that returns the median time of a replayed call in milliseconds."""
    import torch

    def capture(count: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                call()
        return graph

    def replayed_ms(graph: torch.cuda.CUDAGraph, runs: int) -> float:
        times = []
        for _ in range(runs):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return statistics.median(times)

    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph, count = capture(1), 1
    once = replayed_ms(graph, 5)
    if once < GRAPH_MS:
        count = round(GRAPH_MS / max(once, 0.01))
        graph = capture(count)
    replayed_ms(graph, 1)
    return lambda: replayed_ms(graph, 7) / count


def relative_error(found: Any, truth: Any) -> float:
    """Return the largest error, relative to the largest entry of the truth."""
    return float((found.to(truth.dtype) - truth).abs().max() / truth.abs().max().clamp(min=1e-30))


def commit_of(tree: Path) -> str | None:
    """Return the commit of a tree, or None if it is not the root of a repository."""
    if not (tree / ".git").exists():
        return None
    found = subprocess.run(["git", "-C", str(tree), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip() or None


def select_cases(ops: Sequence[str], patterns: Sequence[str]) -> list[int]:
    """Return the numbers of the cases of some ops (all if empty) that match a pattern, in the order of the patterns."""
    import op_calls

    found: dict[int, None] = {}
    for pattern in patterns or [""]:
        for number, (name, op, sizes, dtype) in enumerate(list_cases()):
            full_op = op if op == "SequenceModel" else getattr(op_calls, op).op
            if (not ops or full_op in ops) and re.search(pattern, f"{name} {sizes} {dtype}"):
                found[number] = None
    return list(found)


def compare(trees: dict[str, Path], numbers: Sequence[int], options: Any) -> bool:
    """Measure cases on both trees, write the rows, and return whether no replayed time is over 1.1 of the old one."""
    arguments = [*(["--quick"] if options.quick else []), *(["--no-errors"] if options.no_errors else [])]
    workers = {label: Worker(tree, arguments) for label, tree in trees.items()}
    end, within = time.monotonic() + options.seconds, True
    for number in numbers:
        if time.monotonic() > end:
            break
        for worker in workers.values():  # they compile at the same time
            worker.send(str(number))
        rows = {label: worker.receive() for label, worker in workers.items()}
        how = ("called",) if options.quick else ("called", "replayed")
        kinds = [kind for kind in KINDS if kind.startswith(how) and f"first_{kind.partition('_')[2]}_s" in rows["old"]]
        times: dict[str, dict[str, list[float]]] = {label: {kind: [] for kind in (*HOST_KINDS, *kinds)} for label in workers}
        for _ in range(options.runs):
            for kind in (*HOST_KINDS, *kinds):
                for label, worker in workers.items():
                    times[label][kind].append(worker.ask(kind))
        for label, row in rows.items():
            row |= {f"{kind}_ms": statistics.median(found) for kind, found in times[label].items()}
            row |= {f"{kind}_runs_ms": found for kind, found in times[label].items()}
            row |= {"tree": label, "commit": getattr(options, f"{label}_commit") or commit_of(trees[label]), "runs": options.runs}
            row |= describe_machine()
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        old, new = rows["old"], rows["new"]
        words = [f"{kind} {old[f'{kind}_ms']:.4f} -> {new[f'{kind}_ms']:.4f}" for kind in (*HOST_KINDS, *kinds)]
        others = [name for name in old if name.endswith(("mib", "_s")) or name.startswith("error")]
        words += [f"{name} {old[name]:.4g} -> {new[name]:.4g}" for name in others]
        print(old["name"], *old["shape"].values(), old["dtype"], "|", "; ".join(words), flush=True)
        replayed = [f"{kind}_ms" for kind in kinds if kind.startswith("replayed")]
        within &= all(new[name] <= 1.1 * old[name] for name in replayed)
    for worker in workers.values():
        worker.close()
    return within


def describe_machine() -> Row:
    """Return the fields of a row that name the device and the packages."""
    import torch
    import triton

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"device": device, "torch": torch.__version__, "triton": triton.__version__, "date": time.strftime("%Y-%m-%d")}


def main() -> int:
    """Read the command line and measure; the exit status is 1 if a replayed time is over 1.1 of the old one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", type=Path, nargs="*", metavar="TREE", help="folders of the old and the new source tree")
    parser.add_argument("--ops", nargs="+", default=[], help="names of ops; all without it")
    parser.add_argument("--only", nargs="+", default=[], help="regular expressions of `name sizes dtype`, in order")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="seconds after which no further case begins")
    parser.add_argument("--no-errors", action="store_true", help="do not compute the errors, which needs a reference on the CPU")
    parser.add_argument("--quick", action="store_true", help="small shapes, no graphs; the exit status is 0")
    parser.add_argument("--out", type=Path, default=None, help="file of JSON lines, to which rows are added")
    parser.add_argument("--old-commit", default=None, help="commit of the old tree, if it is not a repository")
    parser.add_argument("--new-commit", default=None, help="commit of the new tree, if it is not a repository")
    parser.add_argument("--worker", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        serve(options.worker, options.quick, not options.no_errors)
        return 0
    if len(options.trees) != 2:
        parser.error(f"`TREE` must be two folders, the old and the new tree, got {len(options.trees)}")
    trees = dict(zip(("old", "new"), (tree.resolve() for tree in options.trees), strict=True))
    import_from(trees["new"])  # op_calls imports longscan, here for the names of the cases only
    within = compare(trees, select_cases(options.ops, options.only), options)
    return int(not within)


if __name__ == "__main__":
    sys.exit(main())
