"""Measure speed, memory and errors of longscan and its peers: everything that this machine can run, or what --only names.

    python benchmarks/run.py                          suite cpu; with a GPU also gpu, gpu_accuracy, gpu_scaling, systems
    python benchmarks/run.py --only cpu/s6 token      cases by name; SUITE/TEXT: the cases of a suite whose names contain TEXT
    python benchmarks/run.py --list                   print suites and cases
    python benchmarks/run.py --quick                  small shapes, two runs, no files: only tests that everything runs
    TRITON_INTERPRET=1 python benchmarks/run.py --quick --only gpu systems    GPU kernels in Triton's interpreter on the CPU

Implementations are compared with float64 before they are timed, and are timed in turns. Each row is added to DIR/SUITE.jsonl when
it is measured; the tables and the figure of the latest rows are written to DIR/SUITE.md and .png. DIR is results/bench
(results/automata for the suite automata) unless --out is given. The exit status is 1 if a result is wrong, or if a time or a
ratio does not meet a requirement of its case (ignored with --quick).
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from cases import CASES
from harness import (
    GPU,
    MAX_CALL_MS,
    ROOT,
    Case,
    Measurement,
    Row,
    attempt,
    compare,
    leave_out_ptx,
    print_memory,
    record,
    set_launches,
)
from longscan.report.records import append_record, check_record
from page import label_of

ON_A_GPU = ("gpu", "gpu_accuracy", "gpu_scaling", "systems")
OF_TRITON = ON_A_GPU[:3]  # the models of the suite systems also run on a CPU


def selected(words: list[str]) -> list[Case | Measurement]:
    """Return the cases that the arguments of --only select, in the order of CASES. SystemExit if one selects none."""
    chosen: list[Case | Measurement] = []
    for word in words:
        suite, slash, part = word.partition("/")
        matches = [c for c in CASES if word in (c.suite, c.name) or (slash and c.suite == suite and part in c.name)]
        if not matches:
            raise SystemExit(f"`--only` must be a suite, the name of a case, or SUITE/TEXT, as --list shows them, got {word!r}")
        chosen += matches
    return [case for case in CASES if case in chosen]


def check_device(cases: list[Case | Measurement], words: list[str]) -> None:
    """Raise SystemExit if a case needs Triton's kernels, and there is neither a GPU nor Triton's interpreter."""
    if GPU.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1" and any(case.suite in OF_TRITON for case in cases):
        advice = f"TRITON_INTERPRET=1 python benchmarks/run.py --quick --only {' '.join(words)}"
        raise SystemExit(f"the suites {', '.join(OF_TRITON)} need a CUDA device; without one, `{advice}` tests that they run")


def rows_of(case: Case | Measurement, options: argparse.Namespace) -> Iterator[list[Row]]:
    """Yield the rows of each shape of a case, short shapes first. The first shape that cannot be measured is the last."""
    if isinstance(case, Measurement):
        yield from ([row] for row in case.rows(options))
        return
    longest = 0.0
    for shape in [case.quick_shape] if options.quick else case.shapes:
        if time.perf_counter() > options.end:
            print(f"--limit: {case.suite}/{case.name} is not measured from {shape} on", flush=True)
            return
        found: Row = {"reason": f"over {MAX_CALL_MS / 1e3:g} s a call"}
        if 2 * longest <= MAX_CALL_MS:
            measure = lambda shape=shape: {"rows": compare(case, shape, runs=options.runs, quick=options.quick)}  # noqa: E731
            found = attempt(measure) if case.may_fail else measure()
        if "reason" in found:
            yield [record(case.op, shape, case.device, **{"backend": "auto", **case.fields, **found})]
            return
        yield found["rows"]
        longest = max(row["forward_backward_ms"] or row["forward_ms"] or 0.0 for row in found["rows"])


def file_of(case: Case | Measurement, options: argparse.Namespace) -> Path:
    """Return the file of a case's rows."""
    return (options.out or ROOT / "results" / case.folder) / f"{options.name or case.file or case.suite}.jsonl"


def describe(row: Row) -> str:
    """Return the line that is printed for a row."""
    times = {name: row[name] for name in ("forward_ms", "forward_backward_ms", "peak_mib", "error_vs_float64") if row.get(name)}
    words = [row["op"], f"{label_of(row)}:", *(f"{name} {size}" for name, size in row["shape"].items())]
    words += [f"{name} {value:.3g}" for name, value in times.items()]
    return " ".join([*words, *(row[name] for name in ("check", "reason") if name in row), *row.get("shortfall", [])])


def main() -> int:
    """Read the command line and measure; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = ["cpu", *(ON_A_GPU if GPU.type == "cuda" else ())]
    parser.add_argument("--only", nargs="+", metavar="CASE", default=default, help="suites, names of cases, or SUITE/TEXT")
    parser.add_argument("--list", action="store_true", help="print suites and cases, measure nothing")
    parser.add_argument("--pages", action="store_true", help="rewrite pages and figures from the recorded rows, measure nothing")
    parser.add_argument("--quick", action="store_true", help="small shapes, two runs, no files unless --out is given")
    parser.add_argument("--runs", type=int, default=None, help="runs of each implementation (5; 2 with --quick)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=float, default=float("inf"), metavar="SECONDS", help="start no shape after this time")
    parser.add_argument("--out", type=Path, default=None, help="folder of the files, of the name under results/")
    parser.add_argument("--name", default=None, help="name of the files, in place of the name of the suite")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="OP=STEPS,LANES,WARPS[,STAGES]", help="launches of Triton kernels; no files"
    )
    parser.add_argument("--without-ptx", action="store_true", help="Triton kernels without inline PTX; no files")
    parser.add_argument("--recipes", nargs="+", type=Path, default=None, help="recipes for the suite loaders")
    parser.add_argument("--memory-of", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.list:
        print(*(f"{case.suite}/{case.name}" for case in CASES), sep="\n")
        return 0
    if options.memory_of:
        name, label, *sizes = options.memory_of
        (case,) = (case for case in CASES if f"{case.suite}/{case.name}" == name)
        print_memory(case, label, {axis: int(size) for axis, _, size in (word.partition("=") for word in sizes)})
        return 0
    set_launches(parser, options.set)
    if options.without_ptx:
        leave_out_ptx()
    torch.set_num_threads(options.threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    options.runs = options.runs or (2 if options.quick else 5)
    options.end = time.perf_counter() + options.limit
    cases, failed, written = selected(options.only), False, set[Path]()
    if not options.pages:
        check_device(cases, options.only)
    pending = [] if options.pages else [(case, rows_of(case, options)) for case in cases]
    while pending:  # one shape of every case in turn, so that --limit leaves out the longest shapes
        for case, source in list(pending):
            rows = next(source, None)
            if rows is None:
                pending.remove((case, source))
                continue
            path = file_of(case, options)
            for row in rows:
                print(describe(row) if case.folder == "bench" else row, flush=True)
                failed |= any(row.get(name) for name in ("shortfall", "wrong", "missed")) or row.get("right") is False
                check_record(case.folder, row)
                if options.out or not (options.quick or options.set or options.without_ptx):
                    if case.replaces and path not in written:
                        path.unlink(missing_ok=True)
                    append_record(path, row)
                    written.add(path)
    for path, case in {file_of(case, options): case for case in cases}.items():
        if path in written or (options.pages and path.exists()):
            case.write_page(path)
    return int(failed and not options.quick)


if __name__ == "__main__":
    sys.exit(main())
