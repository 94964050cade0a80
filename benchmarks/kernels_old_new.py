"""Compare the Triton kernels of two source trees: times called from Python and replayed as CUDA graphs, peak memory, errors.

    git worktree add /tmp/old COMMIT
    python benchmarks/kernels_old_new.py /tmp/old . --ops linear_scan short_conv --out build/kernels.jsonl

Each tree has its own process, and the two take turns. A row of the file is one case of the suite gpu on one tree: the median
and the single values of --runs runs, of the forward pass and of the forward and backward pass; the peak of the GPU's
memory that a call allocates; the error of y and all gradients against the float64 reference. The exit
status is 1 if a replayed time is over 1.1 of the old one.
--quick runs small shapes without graphs, also in Triton's interpreter. The packages need torch and Triton only.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = ("called_forward", "called_forward_backward", "replayed_forward", "replayed_forward_backward")


class Worker:
    """The process of one source tree. It answers each request by one line of JSON."""

    def __init__(self, tree: Path, quick: bool) -> None:
        command = [sys.executable, __file__, "--worker", str(tree), *(["--quick"] if quick else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, request: str) -> Any:
        """Return the answer to a request. SystemExit if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"the process that measures ended: {request}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(tree: Path, quick: bool) -> None:
    """Answer requests: the number of a case, which builds it and returns a row without times, or a kind of time to measure."""
    sys.path[:0] = [str(tree / "src")]
    import torch

    from longscan import ops
    from op_calls import ON_GPU, parse_sizes, peak_mib

    assert Path(ops.__file__).is_relative_to(tree), f"{ops.__file__} is not in {tree}"
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    calls: dict[str, Callable[[], object]] = {}
    for request in map(str.strip, sys.stdin):
        if request in KINDS:
            answer: Any = measure(calls[request.partition("_")[2]], request.startswith("replayed"), cuda)
        else:
            name, call, sizes, dtype = ON_GPU[int(request)]
            shape = parse_sizes(sizes)
            if quick:
                shape = {axis: min(size, {"B": 1, "L": 20, "D": 3, "N": 2, "R": 1}[axis]) for axis, size in shape.items()}
            small = {axis: min(size, {"B": 2, "L": 256}.get(axis, size)) for axis, size in shape.items()}
            found = call.results(call.inputs(small, dtype, device), "triton")
            errors = [relative_error(x.cpu(), exact) for x, exact in zip(found, call.truth(small, dtype), strict=True)]
            inputs = call.inputs(shape, dtype, device)
            calls = {
                "forward": lambda call=call, inputs=inputs: call.call(*inputs, backend="triton"),
                "forward_backward": lambda call=call, inputs=inputs: call.results(inputs, "triton"),
            }
            answer = {"name": name, "op": call.op, "shape": shape, "dtype": dtype, "error_vs_float64": max(errors)}
            for kind, one in calls.items():
                start = time.perf_counter()
                one()
                if cuda:
                    torch.cuda.synchronize()
                answer[f"first_{kind}_s"] = time.perf_counter() - start
                if cuda:
                    answer[f"{kind}_peak_mib"] = peak_mib(one)
        print(json.dumps(answer), flush=True)


def measure(call: Callable[[], object], replayed: bool, cuda: bool) -> float:
    """Return the median time of a call in milliseconds, called from Python or replayed as a CUDA graph."""
    from triton.testing import do_bench, do_bench_cudagraph

    if not cuda:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3
    timer = do_bench_cudagraph if replayed else do_bench
    return float(timer(call, rep=40, return_mode="median"))


def relative_error(found: Any, truth: Any) -> float:
    """Return the largest error, relative to the largest entry of the truth."""
    return float((found.to(truth.dtype) - truth).abs().max() / truth.abs().max().clamp(min=1e-30))


def commit_of(tree: Path) -> str | None:
    """Return the commit of a tree, or None if it is not the root of a repository."""
    if not (tree / ".git").exists():
        return None
    found = subprocess.run(["git", "-C", str(tree), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip() or None


def compare(trees: dict[str, Path], ops: list[str], runs: int, quick: bool, out: Path | None) -> bool:
    """Measure all cases of these ops on both trees, write the rows, and return whether no new time is over 1.1 of the old one."""
    from op_calls import ON_GPU

    workers = {label: Worker(tree, quick) for label, tree in trees.items()}
    kinds = KINDS[:2] if quick else KINDS
    within = True
    for number, (_, call, _, _) in enumerate(ON_GPU):
        if ops and call.op not in ops:
            continue
        rows = {label: worker.ask(str(number)) for label, worker in workers.items()}
        times: dict[str, dict[str, list[float]]] = {label: {kind: [] for kind in kinds} for label in workers}
        for _ in range(runs):
            for kind in kinds:
                for label, worker in workers.items():
                    times[label][kind].append(worker.ask(kind))
        for label, row in rows.items():
            row |= {f"{kind}_ms": statistics.median(found) for kind, found in times[label].items()}
            row |= {f"{kind}_runs_ms": found for kind, found in times[label].items()}
            row |= {"tree": label, "commit": commit_of(trees[label]), "runs": runs}
            if out is not None:
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        old, new = rows["old"], rows["new"]
        words = [f"{kind} {old[f'{kind}_ms']:.4f} -> {new[f'{kind}_ms']:.4f}" for kind in kinds]
        others = [name for name in old if name.endswith("mib") or name.startswith("error")]
        words += [f"{name} {old[name]:.4g} -> {new[name]:.4g}" for name in others]
        print(old["name"], *old["shape"].values(), old["dtype"], "|", "; ".join(words), flush=True)
        within &= all(new[f"{kind}_ms"] <= 1.1 * old[f"{kind}_ms"] for kind in kinds if quick or kind.startswith("replayed"))
    for worker in workers.values():
        worker.close()
    return within


def main() -> int:
    """Read the command line and measure; the exit status is 1 if a replayed time is over 1.1 of the old one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", type=Path, nargs="*", metavar="TREE", help="folders of the old and the new source tree")
    parser.add_argument("--ops", nargs="+", default=[], help="names of ops; all without it")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small shapes, no graphs; the exit status is 0")
    parser.add_argument("--out", type=Path, default=None, help="file of JSON lines, to which rows are added")
    parser.add_argument("--worker", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        serve(options.worker, options.quick)
        return 0
    if len(options.trees) != 2:
        parser.error(f"`TREE` must be two folders, the old and the new tree, got {len(options.trees)}")
    trees = dict(zip(("old", "new"), (tree.resolve() for tree in options.trees), strict=True))
    # op_calls imports longscan, here for the names of the cases only.
    sys.path[:0] = [str(trees["new"] / "src")]
    within = compare(trees, options.ops, options.runs, options.quick, options.out)
    return int(not within and not options.quick)


if __name__ == "__main__":
    sys.exit(main())
