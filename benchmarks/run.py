"""Speed and memory of the CPU kernels beside their peers, in one process, correctness first.

    python benchmarks/run.py                    everything: about a quarter of an hour on two quiet cores
    python benchmarks/run.py --only s6 token    some of: s6, aussm, ssd, block, recompute, token
    python benchmarks/run.py --quick            small shapes, two runs, no files: does it work?

Every implementation is first compared with float64. Appends rows to DIR/cpu.jsonl and rewrites DIR/cpu.md and DIR/cpu.png, DIR
being results/bench unless --out is given; --name gives the files another name than cpu, so that a part measured later does not
replace the tables of a whole run. Exits with 1 where a result is wrong, or a ratio falls short (not with --quick).
"""

import argparse
import datetime
import json
import os
import shlex
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import peers
from longscan.blocks import MambaBlock
from longscan.blocks.residual import Residual
from longscan.ops import _native
from longscan.report.records import check_record
from longscan.report.text import commit_text
from longscan.training.records import commit, device_name
from registry import BLOCK, RECOMPUTE, SCANS, TOKEN, Peer, Scan, Shape
from timing import Memory, Runs, memory_of, side_by_side

ROOT = Path(__file__).parents[1]
OURS = "longscan"


@dataclass
class Report:
    """Rows for the records, lines for the table, and what fell short. judges: whether the ratios that must hold are looked at."""

    judges: bool
    rows: list[dict[str, Any]] = field(default_factory=list)
    table: list[str] = field(default_factory=list)
    short: list[str] = field(default_factory=list)

    def line(self, text: str = "") -> None:
        """Into the table, and on the screen."""
        print(text, flush=True)
        self.table.append(text)

    def require(self, what: str, found: float, needed: float, *, most: bool = False) -> None:
        """A line on whether `found` is at least (or at most) `needed`."""
        if not self.judges:
            return
        met = found <= needed if most else found >= needed
        sentence = f"{what}: {found:.3g}, {'at most' if most else 'at least'} {needed:g} needed{'' if met else ': FALLS SHORT'}"
        if not met:
            self.short.append(sentence)
        self.line("- " + sentence)


def relative_error(found: Tensor, truth: Tensor) -> float:
    """Largest difference over the largest entry."""
    wide = torch.complex128 if truth.is_complex() else torch.float64
    return float((found.detach().to(wide) - truth).abs().max() / truth.abs().max().clamp(min=1e-30))


def gradients(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """y and the gradients of all inputs for a gradient of ones."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, torch.ones_like(y))]


def environment() -> dict[str, Any]:
    """What every row says about where it comes from."""
    return {
        "device": f"{device_name(torch.device('cpu'))}, {_native.isa()}",
        "dtype": "float32",
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "torch": torch.__version__,
        "triton": None,
        "command": shlex.join(["python", *sys.argv]),
    }


def row(
    op: str,
    name: str,
    shape: Shape,
    forward: Runs | None,
    both: Runs | None,
    *,
    error: float | None,
    memory: Memory | None = None,
    backend: str = "cpu",
) -> dict[str, Any]:
    """One measurement with the fields of `BenchRecord`, with every run beside the medians."""
    ours = name == OURS
    return {
        "op": op,
        "backend": backend if ours else None,
        "peer": None if ours else name,
        "shape": shape,
        "forward_ms": forward.median if forward else None,
        "forward_backward_ms": both.median if both else None,
        "peak_mib": memory.peak if memory else None,
        "error_vs_float64": error,
        "runs": len((forward or both or Runs((0.0,))).each),
        "forward_runs_ms": list(forward.each) if forward else None,
        "forward_backward_runs_ms": list(both.each) if both else None,
        **({"extra_mib": memory.extra, "extra_share": memory.share} if memory else {}),
        **environment(),
    }


def label_of(one: dict[str, Any]) -> str:
    """The implementation of a row."""
    return one["peer"] or ", ".join([OURS, *filter(None, [one.get("variant")])])


def spread(runs: Runs | None, scale: float = 1.0) -> str:
    """Median, and lowest to highest, or a dash."""
    return "-" if runs is None else f"{runs.median * scale:.3g} ({runs.low * scale:.3g}-{runs.high * scale:.3g})"


def ratio(slow: Runs, fast: Runs) -> float:
    """How many times faster: the median over the runs, each run's pair measured in the same turn."""
    return statistics.median(a / b for a, b in zip(slow.each, fast.each, strict=True))


def measure_scan(name: str, scan: Scan, runs: int, quick: bool, report: Report) -> None:
    """One scan op and its peers."""
    shape = scan.quick_shape if quick else scan.shape
    inputs = scan.inputs(shape, torch.float32)
    truth = gradients(scan.reference, scan.inputs(shape, torch.float64))
    functions: dict[str, tuple[Callable[..., Tensor], Peer]] = {OURS: (scan.ours, Peer(scan.ours))}
    for label, peer in scan.peers.items():
        if peer.compiled and quick:
            continue
        functions[label] = (torch.compile(peer.function, fullgraph=True) if peer.compiled else peer.function), peer

    errors = {}
    for label, (function, peer) in functions.items():
        if peer.trains:
            found = gradients(function, inputs)
            errors[label] = max(relative_error(a, b) for a, b in zip(found, truth, strict=True))
        else:
            with torch.no_grad():
                errors[label] = relative_error(function(*inputs), truth[0])
        if not errors[label] <= scan.tolerance:
            raise SystemExit(f"{name}, {label}: error {errors[label]:.2e} against float64, at most {scan.tolerance:g} allowed")
    del truth

    leaves = [x.detach().requires_grad_() for x in inputs]
    ones = torch.ones_like(inputs[0])

    def forward(function: Callable[..., Tensor]) -> Callable[[], object]:
        def call() -> object:
            with torch.no_grad():
                return function(*inputs)

        return call

    def train(function: Callable[..., Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(function(*leaves), leaves, ones)

    least = 5.0 if quick else 200.0
    times = {
        "forward": side_by_side({label: forward(function) for label, (function, _) in functions.items()}, runs, least),
        "forward_backward": side_by_side(
            {label: train(function) for label, (function, peer) in functions.items() if peer.trains}, runs, least
        ),
    }
    memory = memory_of(name, quick) if sys.platform == "linux" else None

    elements = shape["B"] * shape["L"] * shape["D"] * shape["N"]
    report.line(f"\n## {scan.op}, (B, L, D, N) = {tuple(shape.values())}, float32\n")
    report.line("| | forward, ms | f+b, ms | ns per element, f / f+b | PERFORMANCE's ns | times slower, f / f+b | error |")
    report.line("|---|---|---|---|---|---|---|")
    for label, (_, peer) in functions.items():
        runs_of = [times[kind].get(label) for kind in times]
        ns = " / ".join("-" if one is None else f"{one.median * 1e6 / elements:.3g}" for one in runs_of)
        published = " / ".join("-" if value is None else f"{value:g}" for value in peer.published_ns)
        slower = " / ".join(
            "-" if one is None else f"{ratio(one, times[kind][OURS]):.3g}" for kind, one in zip(times, runs_of, strict=True)
        )
        cells = label, spread(runs_of[0]), spread(runs_of[1]), ns, published, slower, f"{errors[label]:.1e}"
        report.line("| " + " | ".join(cells) + " |")
        report.rows.append(row(scan.op, label, shape, *runs_of, error=errors[label], backend=scan.backend))
    report.line()
    for (label, kind), needed in scan.needs.items():
        found = ratio(times[kind][label], times[kind][OURS])
        report.require(f"{kind.replace('_', '+')}, times faster than the {label}", found, needed)
    if memory:
        long = scan.quick_shape if quick else scan.long_shape
        report.rows.append(row(scan.op, OURS, long, None, None, error=None, memory=memory, backend=scan.backend))
        what = f"extra memory of f+b at {tuple(long.values())}, as a share of inputs, outputs and gradients"
        what += f" ({memory.extra:.0f} of {memory.inputs + memory.outputs_and_gradients:.0f} MiB)"
        report.require(what, memory.share, scan.extra_memory, most=True)


def take_weights(block: MambaBlock, theirs: nn.Module) -> None:
    """Copy the weights of mambapy's block."""
    with torch.no_grad():
        for ours, other in (
            (block.in_proj.weight, theirs.in_proj.weight),
            (block.conv_weight, theirs.conv1d.weight.squeeze(1)),
            (block.conv_bias, theirs.conv1d.bias),
            (block.layer.x_proj, theirs.x_proj.weight),
            (block.layer.dt_proj, theirs.dt_proj.weight),
            (block.layer.dt_bias, theirs.dt_proj.bias),
            (block.layer.A_log, theirs.A_log),
            (block.layer.D, theirs.D),
            (block.out_proj.weight, theirs.out_proj.weight),
        ):
            ours.copy_(other)


def measure_block(runs: int, quick: bool, report: Report) -> None:
    """Forward and backward of a Mamba block."""
    shape = BLOCK.quick_shape if quick else BLOCK.shape
    torch.manual_seed(0)
    theirs = peers.mambapy_stack(1, shape["d_model"], shape["N"]).layers[0].mixer
    ours = MambaBlock(shape["d_model"], layer_options={"d_state": shape["N"]})
    take_weights(ours, theirs)
    x = torch.randn(shape["B"], shape["L"], shape["d_model"], requires_grad=True)

    double = peers.mambapy_stack(1, shape["d_model"], shape["N"]).layers[0].mixer.double()
    double.load_state_dict(theirs.state_dict())
    few = x.detach()[:2]
    truth = gradients(double, [few.double()])
    errors = {
        label: max(relative_error(a, b) for a, b in zip(gradients(block, [few]), truth, strict=True))
        for label, block in ((OURS, ours), ("mambapy MambaBlock", theirs))
    }
    if not errors[OURS] <= BLOCK.tolerance:
        raise SystemExit(f"block: error {errors[OURS]:.2e} against float64, at most {BLOCK.tolerance:g} allowed")

    def train(block: nn.Module) -> Callable[[], object]:
        leaves = [x, *block.parameters()]
        return lambda: torch.autograd.grad(block(x).sum(), leaves)

    both = side_by_side({OURS: train(ours), "mambapy MambaBlock": train(theirs)}, runs, 5.0 if quick else 200.0)
    report.line(f"\n## Mamba block, {shape}, forward and backward\n")
    report.line("| | f+b, ms | times slower | error |")
    report.line("|---|---|---|---|")
    for label, times in both.items():
        report.line(f"| {label} | {spread(times)} | {ratio(times, both[OURS]):.3g} | {errors[label]:.1e} |")
        report.rows.append(row("mamba_block", label, shape, None, times, error=errors[label]))
    found = ratio(both["mambapy MambaBlock"], both[OURS])
    report.line()
    report.require("f+b, times faster than mambapy's block", found, BLOCK.need)


def trained(block: nn.Module, x: Tensor) -> list[Tensor]:
    """y and the gradients of its sum by x and the parameters."""
    y = block(x)
    return [y.detach(), *torch.autograd.grad(y.sum(), [x, *block.parameters()])]


def measure_recompute(kind: str, shape: Shape, runs: int, quick: bool, report: Report) -> None:
    """Forward and backward of one of our Mamba blocks, or of a stack, with and without `recompute`: time and peak memory."""
    models = {kind: RECOMPUTE.model(shape), f"{kind}_recompute": RECOMPUTE.model(shape, recompute=True)}
    x = torch.randn(shape["B"], shape["L"], shape["d_model"], requires_grad=True)
    few = x.detach()[:2].requires_grad_()
    truth = trained(RECOMPUTE.model(shape, backend="reference").double(), few.detach().double().requires_grad_())
    errors = {
        name: max(relative_error(a, b) for a, b in zip(trained(model, few), truth, strict=True)) for name, model in models.items()
    }
    if not max(errors.values()) <= RECOMPUTE.tolerance:
        raise SystemExit(f"recompute: error {max(errors.values()):.2e} against float64, at most {RECOMPUTE.tolerance:g} allowed")

    both = side_by_side({name: partial(trained, model, x) for name, model in models.items()}, runs, 5.0 if quick else 200.0)
    memory = {name: memory_of(name, quick) for name in models} if sys.platform == "linux" else {}
    report.line(f"\n## Mamba {kind} with and without recompute, {shape}, forward and backward\n")
    report.line("| | f+b, ms | times slower | peak MiB | error |")
    report.line("|---|---|---|---|---|")
    for name, times in both.items():
        one = row(f"mamba_{kind}_recompute", OURS, shape, None, times, error=errors[name])
        one |= {"peak_mib": memory[name].peak if memory else None} | ({} if name == kind else {"variant": "recompute"})
        peak = f"{memory[name].peak:.0f}" if memory else "-"
        report.line(f"| {label_of(one)} | {spread(times)} | {ratio(times, both[kind]):.3g} | {peak} | {errors[name]:.1e} |")
        report.rows.append(one)


def measure_token(runs: int, quick: bool, report: Report) -> None:
    """One token through a stack of Mamba blocks."""
    shape = TOKEN.quick_shape if quick else TOKEN.shape
    torch.manual_seed(0)
    theirs = peers.mambapy_stack(shape["layers"], shape["d_model"], shape["N"]).eval()
    ours = [Residual(MambaBlock(shape["d_model"], layer_options={"d_state": shape["N"]})) for _ in theirs.layers]
    for mine, other in zip(ours, theirs.layers, strict=True):
        take_weights(mine.block, other.mixer)
        mine.norm.weight.data.copy_(other.norm.weight.data)
    states = [layer.initial_state(shape["B"]) for layer in ours]

    def step(x: Tensor) -> Tensor:
        for i, layer in enumerate(ours):
            x, states[i] = layer.step(x, states[i])
        return x

    steppers = {
        OURS: step,
        "mambapy": peers.mambapy_stepper(theirs, shape["B"]),
        "transformers": peers.transformers_stepper(shape["layers"], shape["d_model"], shape["N"]),
    }
    tokens = torch.randn(20, shape["B"], shape["d_model"])
    with torch.no_grad():
        double = peers.mambapy_stack(shape["layers"], shape["d_model"], shape["N"]).double().eval()
        double.load_state_dict(theirs.state_dict())
        exact = peers.mambapy_stepper(double, shape["B"])
        error = max(relative_error(step(token), exact(token.double())) for token in tokens)
    if not error <= TOKEN.tolerance:
        raise SystemExit(f"token: error {error:.2e} against float64, at most {TOKEN.tolerance:g} allowed")

    def forward(stepper: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        def call() -> object:
            with torch.no_grad():
                return stepper(tokens[0])

        return call

    times = side_by_side({label: forward(stepper) for label, stepper in steppers.items()}, runs, 5.0 if quick else 200.0)
    report.line(f"\n## One token through {shape['layers']} Mamba blocks, {shape}\n")
    report.line("| | ms | times slower |")
    report.line("|---|---|---|")
    for label, one in times.items():
        report.line(f"| {label} | {spread(one)} | {ratio(one, times[OURS]):.3g} |")
        report.rows.append(row("mamba_step", label, shape, one, None, error=error if label == OURS else None))
    report.line()
    report.require("times faster than mambapy", ratio(times["mambapy"], times[OURS]), TOKEN.need)


def draw(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Median times with the spread of the runs, a panel per measurement, on a logarithmic axis where they are far apart."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels: dict[tuple[str, str], list[tuple[str, list[float]]]] = {}
    for one in rows:
        for kind in ("forward", "forward_backward"):
            if one[f"{kind}_runs_ms"]:
                title = f"{one['op']}, {kind.replace('_', '+')}"
                key = (title, ", ".join(f"{name} {size}" for name, size in one["shape"].items()))
                panels.setdefault(key, []).append((label_of(one), one[f"{kind}_runs_ms"]))
    figure, axes = plt.subplots(len(panels), 1, figsize=(8, 0.7 + 1.7 * len(panels)), squeeze=False, layout="constrained")
    for ax, ((title, shape), bars) in zip(axes[:, 0], panels.items(), strict=True):
        for i, (label, each) in enumerate(bars):
            middle = statistics.median(each)
            colour = "tab:blue" if label.startswith(OURS) else "0.7"
            ax.barh(i, middle, xerr=[[middle - min(each)], [max(each) - middle]], color=colour, ecolor="0.3", capsize=2)
            ax.text(max(each) * 1.1, i, f"{middle:.3g}", va="center", fontsize=8)
        ax.set_yticks(range(len(bars)), [label for label, _ in bars], fontsize=8)
        ax.invert_yaxis()
        times = [time for _, each in bars for time in each]
        if max(times) > 10 * min(times):
            ax.set_xscale("log")
        ax.margins(x=0.15)
        ax.set_title(f"{title} ({shape})", fontsize=9, loc="left")
        ax.set_xlabel("ms", fontsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*SCANS, "block", "recompute", "token"]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="what to measure")
    parser.add_argument("--quick", action="store_true", help="small shapes, two runs, no files unless --out is given")
    parser.add_argument("--runs", type=int, default=None, help="runs of each implementation (5; 2 with --quick)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None, help="folder of the files")
    parser.add_argument("--name", default="cpu", help="what the files are called, before .jsonl, .md and .png")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    runs = options.runs or (2 if options.quick else 5)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    report = Report(judges=not options.quick)
    about = environment()
    report.line("# Speed and memory on the CPU\n")
    made = f"`{about['command']}`, commit {commit_text(about['commit'])}, {about['date']}"
    report.line(f"{made}, torch {about['torch']}, {about['device']}.")
    report.line(f"Load of the machine at the start: {os.getloadavg()[0]:.1f}.")
    report.line(f"Median of {runs} runs in turns (lowest-highest). Error: the largest of y and all gradients, against float64.")
    for name in options.only:
        if name in SCANS:
            measure_scan(name, SCANS[name], runs, options.quick, report)
        elif name == "block":
            measure_block(runs, options.quick, report)
        elif name == "recompute":
            for kind, shape in (RECOMPUTE.quick_shapes if options.quick else RECOMPUTE.shapes).items():
                measure_recompute(kind, shape, runs, options.quick, report)
        else:
            measure_token(runs, options.quick, report)

    out = options.out or (None if options.quick else ROOT / "results" / "bench")
    if out:
        out.mkdir(parents=True, exist_ok=True)
        for one in report.rows:
            check_record("bench", one)
        with (out / f"{options.name}.jsonl").open("a") as file:
            file.writelines(json.dumps(one) + "\n" for one in report.rows)
        (out / f"{options.name}.md").write_text("\n".join(report.table) + "\n")
        draw(report.rows, out / f"{options.name}.png")
    if report.short:
        print("\nFalls short:", *report.short, sep="\n- ")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
