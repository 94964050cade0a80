"""Speed, memory and errors of the Triton kernels on a GPU, beside the bars that they have to meet, correctness first.

    python benchmarks/gpu.py                          every shape, under five minutes once the kernels are compiled
    python benchmarks/gpu.py --only linear            shapes whose name holds one of these words
    python benchmarks/gpu.py --set unitary_scan=16,64,1    the same with another launch of an op, no files
    TRITON_INTERPRET=1 python benchmarks/gpu.py --quick    tiny shapes on the CPU: does it work?

Appends rows to DIR/gpu.jsonl and rewrites DIR/gpu.md and DIR/gpu.png, DIR being results/bench unless --out names another folder
called bench.
"""

import argparse
import datetime
import shlex
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longscan.numerics.oscillators import oscillator_step
from longscan.ops import _triton_launch, block2_scan, linear_scan, selective_scan, short_conv, ssd_scan, unitary_scan
from longscan.report.records import append_record
from longscan.training.records import commit, device_name
from registry import Shape, aussm_inputs, s6_inputs, ssd_inputs
from timing import once

ROOT = Path(__file__).parents[1]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHORT = 256  # steps of the call that is compared with float64
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A shape to measure. bars: milliseconds of forward, and forward and backward; copy: the share of copy speed, instead.

    wide: which inputs are float32 whatever the dtype.
    """

    name: str
    op: str
    shape: Shape
    inputs: Callable[[Shape], list[Tensor]]
    call: Callable[..., Tensor]
    bars: tuple[float, float] | None = None
    copy: tuple[float, float] | None = None
    dtype: str = "float32"
    wide: tuple[int, ...] = ()


def complex_s6(shape: Shape) -> list[Tensor]:
    """As `s6_inputs`, with A, B and C as complex pairs."""
    inputs = s6_inputs(shape, torch.float32)
    generator = torch.Generator().manual_seed(1)
    for i in (2, 3, 4):
        inputs[i] = torch.stack([inputs[i], torch.randn(inputs[i].shape, generator=generator)], -1)
    return inputs


def turning_heads(shape: Shape) -> list[Tensor]:
    """As `ssd_inputs`, and what else Mamba-3 has: weights of inputs, the angles of R pairs of states, biases of the maps."""
    inputs = ssd_inputs(shape, torch.float32)
    generator, dt, states = torch.Generator().manual_seed(1), inputs[1], shape["N"]
    inputs[2] = -torch.ones_like(inputs[2])
    turns = torch.tanh(torch.randn(shape["B"], shape["L"], 1, min(shape["R"], states // 2), generator=generator))
    own, later = (dt * torch.rand(dt.shape, generator=generator) for _ in range(2))
    biases = (torch.ones(dt.shape[2], states) for _ in range(2))
    return [*inputs, own + later, own, torch.pi * dt.unsqueeze(-1) * turns, *biases]


def factors(shape: Shape) -> list[Tensor]:
    """a and b of a linear scan, pairs where the shape says so."""
    size = [shape[name] for name in "BLD"] + [2] * shape.get("complex", 0)
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(size, generator=generator) * 0.7, torch.randn(size, generator=generator)]


def oscillators(shape: Shape) -> list[Tensor]:
    """M, the same at every step, and f of D pairs of coupled states, as LinOSS has them at first."""
    generator = torch.Generator().manual_seed(0)
    stiffness, dt = torch.rand(shape["D"], generator=generator), torch.rand(shape["D"], generator=generator).sigmoid()
    f = torch.randn(shape["B"], shape["L"], shape["D"], 2, 2, generator=generator)
    return [oscillator_step(stiffness, dt)[0], f]


def window(shape: Shape) -> list[Tensor]:
    """u, weight and bias of a short convolution."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randn([shape[name] for name in "BLD"], generator=generator)
    return [u, torch.randn(shape["D"], 4, generator=generator), torch.randn(shape["D"], generator=generator)]


def _aussm(*inputs: Tensor, backend: str) -> Tensor:
    return unitary_scan(*inputs, backend=backend)[0]


def _s6(*inputs: Tensor, backend: str) -> Tensor:
    return selective_scan(*inputs, dt_softplus=True, backend=backend)[0]


def _linear(*inputs: Tensor, backend: str) -> Tensor:
    return linear_scan(*inputs, pairs=inputs[0].ndim == 4, backend=backend)[0]


def _block2(*inputs: Tensor, backend: str) -> Tensor:
    return block2_scan(*inputs, pairs=True, backend=backend)[0]


def _conv(*inputs: Tensor, backend: str) -> Tensor:
    return short_conv(*inputs, activation="silu", backend=backend)[0]


def _heads(*inputs: Tensor, backend: str) -> Tensor:
    return ssd_scan(*inputs, backend=backend)[0]


def _turning_heads(*inputs: Tensor, backend: str) -> Tensor:
    names = ("x", "dt", "A", "B", "C", "D", "input_scale", "own_scale", "angle", "B_bias", "C_bias")
    return ssd_scan(**dict(zip(names, inputs, strict=True)), backend=backend)[0]


def _sizes(B: int, L: int, D: int, N: int = 0, **more: int) -> Shape:
    return {"B": B, "L": L, "D": D, **({"N": N} if N else {}), **more}


def _unitary(sizes: Shape, *bars: float) -> Case:
    return Case("unitary", "unitary_scan", sizes, lambda s: aussm_inputs(s, torch.float32), _aussm, bars or None)


def _selective(sizes: Shape, *bars: float, dtype: str = "float32") -> Case:
    return Case("selective", "selective_scan", sizes, lambda s: s6_inputs(s, torch.float32), _s6, bars or None, dtype=dtype)


def _ssd(sizes: Shape, *bars: float, dtype: str = "bfloat16") -> Case:
    return Case("heads", "ssd_scan", sizes, lambda s: ssd_inputs(s, torch.float32), _heads, bars or None, dtype=dtype)


def _turning(sizes: Shape, *bars: float) -> Case:
    wide = (1, 6, 7, 8)  # dt, both scales and the angles, as in the layer
    return Case("turning", "ssd_scan", sizes, turning_heads, _turning_heads, bars or None, dtype="bfloat16", wide=wide)


CASES = [
    _unitary(_sizes(16, 1024, 32, 64), 0.09, 0.32),
    _unitary(_sizes(16, 8192, 32, 64), 0.8, 2.7),
    _unitary(_sizes(8, 2048, 64, 64), 0.25, 0.9),
    _unitary(_sizes(16, 2048, 128, 128), 3.0, 9.0),
    _unitary(_sizes(1, 131072, 32, 64)),
    _selective(_sizes(8, 2048, 2048, 16), 0.45, 2.0, dtype="bfloat16"),
    _selective(_sizes(8, 2048, 2048, 16), 0.8, 2.9),
    _selective(_sizes(16, 8192, 32, 64), 0.6, 2.0),
    Case("selective complex", "selective_scan", _sizes(8, 8192, 64, 64, complex=1), complex_s6, _s6, (1.1, 3.4)),
    _ssd(_sizes(8, 2048, 2048, 128), 0.792, 7.6),
    _ssd(_sizes(2, 8192, 2048, 128), 0.714, 5.95),
    _ssd(_sizes(8, 2048, 2048, 128), dtype="float32"),
    _turning(_sizes(8, 2048, 2048, 128, R=32), 1.33, 6.2),
    _turning(_sizes(2, 8192, 2048, 128, R=32), 3.62, 8.0),
    Case("linear", "linear_scan", _sizes(8, 4096, 2048), factors, _linear, copy=(0.85, 0.75)),
    Case("linear complex", "linear_scan", _sizes(8, 4096, 2048, complex=1), factors, _linear, copy=(0.85, 0.75)),
    Case("linear long", "linear_scan", _sizes(1, 65536, 256), factors, _linear, copy=(0.55, 0.55)),
    Case("block2", "block2_scan", _sizes(4, 1024, 64), oscillators, _block2),
    Case("block2", "block2_scan", _sizes(8, 8192, 256), oscillators, _block2),
    Case("convolution", "short_conv", _sizes(8, 2048, 2048), window, _conv),
]


def tensors(case: Case, shape: Shape) -> list[Tensor]:
    """The inputs on the device, in the case's dtype; of less than float32 only those with axes (B, L, ...) that are not wide."""
    found = case.inputs(shape)
    lead = (shape["B"], shape["L"])
    if case.dtype == "float64":
        return [x.to(DEVICE, torch.complex128 if x.is_complex() else torch.float64) for x in found]
    narrow = [x.shape[:2] == lead and not x.is_complex() and i not in case.wide for i, x in enumerate(found)]
    return [x.to(DEVICE, getattr(torch, case.dtype) if less else x.dtype) for x, less in zip(found, narrow, strict=True)]


def gradients(case: Case, inputs: list[Tensor], backend: str) -> list[Tensor]:
    """y and the gradients of all inputs."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = case.call(*leaves, backend=backend)
    return [y.detach(), *torch.autograd.grad(y, leaves, torch.ones_like(y))]


def largest_error(case: Case, backend: str, length: int = SHORT) -> float:
    """Over y and all gradients, relative to the largest entry, against the reference in float64 on the same numbers."""
    inputs = tensors(case, {**case.shape, "B": min(2, case.shape["B"]), "L": min(length, case.shape["L"])})
    wide = [x.cpu().to(torch.complex128 if x.is_complex() else torch.float64) for x in inputs]
    truth = gradients(case, wide, "reference")
    found = [x.cpu().to(exact.dtype) for x, exact in zip(gradients(case, inputs, backend), truth, strict=True)]
    return max(float((x - exact).abs().max() / exact.abs().max().clamp(min=1e-30)) for x, exact in zip(found, truth, strict=True))


def milliseconds(call: Callable[[], object]) -> float:
    """The median time of a call."""
    if DEVICE.type == "cpu":
        return once(call)
    from triton.testing import do_bench

    return do_bench(call, return_mode="median")


def replayed(call: Callable[[], object]) -> float | None:
    """The median time of a call that was captured as a CUDA graph: that of its kernels alone. None on the CPU."""
    if DEVICE.type == "cpu":
        return None
    from triton.testing import do_bench_cudagraph

    return do_bench_cudagraph(call, rep=40, return_mode="median")


def copy_bytes_per_ms() -> float:
    """Bytes read and written in a millisecond by a copy."""
    x = torch.empty(2**28 if DEVICE.type == "cuda" else 2**20, device=DEVICE)
    y = torch.empty_like(x)
    return 2 * x.nbytes / milliseconds(lambda: y.copy_(x))


def record(op: str, backend: str | None, shape: Shape, **found: Any) -> Row:
    """A row of the records: what was found, and on what it was; what is not given was not measured."""
    nothing = dict.fromkeys(("peer", "forward_ms", "forward_backward_ms", "peak_mib", "error_vs_float64"))
    about = {
        "device": device_name(DEVICE), "runs": 1, "commit": commit(), "torch": torch.__version__, "triton": version("triton"),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "command": shlex.join(["python", *sys.argv]),
    }  # fmt: skip
    return {"op": op, "backend": backend, "shape": shape, "dtype": "float32", **nothing, **found, **about}


def append(out: Path | None, name: str, rows: Iterable[Row]) -> None:
    """Add rows to a file of the folder `out`, where there is one."""
    for row in rows:
        if out:
            append_record(out / name, row)


def set_launches(parser: argparse.ArgumentParser, entries: list[str]) -> None:
    """Put launches given as OP=STEPS,LANES,WARPS[,...] into the table of launches; the parser reports those that cannot be."""
    for entry in entries:
        name, _, numbers = entry.partition("=")
        if name not in _triton_launch.TABLE:
            parser.error(f"--set: got {name!r}, expected one of {', '.join(_triton_launch.TABLE)}")
        kind = type(_triton_launch.TABLE[name])
        try:
            _triton_launch.TABLE[name] = kind(*map(int, numbers.split(",")))
        except (TypeError, ValueError):
            expected = ",".join(field.name.upper() for field in fields(kind))
            parser.error(f"--set: got {entry!r}, expected {name}={expected} in whole numbers")


def peak_of(call: Callable[[], object]) -> float | None:
    """MiB that a call needs beyond what is there; None on the CPU."""
    if DEVICE.type == "cpu":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def measure(case: Case) -> Row:
    """A row of the records. first_call_s: compilation included; plain_error: that of the eager backend."""
    inputs = tensors(case, case.shape)
    leaves = [x.detach().requires_grad_() for x in inputs]
    weight = torch.ones_like(case.call(*inputs, backend="triton"))

    def train() -> object:
        return torch.autograd.grad(case.call(*leaves, backend="triton"), leaves, weight)

    first = once(train) / 1e3
    peak = peak_of(train)
    with torch.no_grad():
        forward = milliseconds(lambda: case.call(*inputs, backend="triton"))
        kernels = replayed(lambda: case.call(*inputs, backend="triton"))
    return record(
        case.op, "triton", case.shape, dtype=case.dtype, peak_mib=peak, first_call_s=first, forward_ms=forward,
        forward_backward_ms=milliseconds(train), replayed_forward_ms=kernels, replayed_forward_backward_ms=replayed(train),
        error_vs_float64=largest_error(case, "triton"), plain_error=largest_error(case, "eager"),
    )  # fmt: skip


def needed(case: Case, speed: float) -> tuple[float, float] | None:
    """The milliseconds that forward, and forward and backward, may take. speed: bytes that a copy moves in a millisecond."""
    if case.copy is None:
        return case.bars
    element = sum(x.nbytes for x in case.inputs({**case.shape, "B": 1, "L": 1})) * case.shape["B"] * case.shape["L"] / 2
    # a, b and x; in the backward a, x and the gradient of x are read, those of a and b written
    return 3 * element / speed / case.copy[0], 8 * element / speed / case.copy[1]


def draw(rows: list[tuple[Row, tuple[float, float] | None]], path: Path) -> None:
    """Times as bars, with the ones that they have to meet as lines."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 0.6 + 0.4 * len(rows)), sharey=True, layout="constrained")
    for ax, kind, which in zip(axes, ("forward_ms", "forward_backward_ms"), (0, 1), strict=True):
        for i, (row, bars) in enumerate(rows):
            ax.barh(i, row[kind], color="tab:blue")
            if row[f"replayed_{kind}"] is not None:
                ax.plot(row[f"replayed_{kind}"], i, marker="o", color="black", ms=4)
            if bars is not None:
                ax.plot([bars[which]] * 2, [i - 0.45, i + 0.45], color="tab:red")
        labels = [f"{row['op']} {tuple(row['shape'].values())} {row['dtype']}" for row, _ in rows]
        ax.set_yticks(range(len(rows)), labels, fontsize=7)
        ax.set_xscale("log")
        ax.set_xlabel(f"ms, {kind.removesuffix('_ms').replace('_', ' and ')}; dot: replayed; red: needed")
    axes[0].invert_yaxis()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="words of which a case's name holds one")
    parser.add_argument("--set", nargs="*", default=[], metavar="OP=STEPS,LANES,WARPS[,STAGES]", help="other launches, no files")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, no files unless --out is given")
    parser.add_argument("--out", type=Path, default=None, help="folder of gpu.jsonl, gpu.md and gpu.png, called bench")
    options = parser.parse_args()
    cases = [case for case in CASES if any(word in case.name for word in options.only)]
    if options.quick:
        tiny = {"B": 1, "L": 20, "D": 3, "N": 2}
        cases = [replace(case, shape={name: tiny.get(name, size) for name, size in case.shape.items()}) for case in cases]
    set_launches(parser, options.set)
    speed = copy_bytes_per_ms()
    lines = [f"# Triton kernels on {device_name(DEVICE)}\n"]
    lines += [f"Copy: {speed / 1e9:.2f} TB/s, read and written. Times in ms: found (needed); called from Python, and replayed"]
    lines += ["as a CUDA graph, which leaves the kernels alone.\n"]
    lines += ["| case | forward | replayed | forward+backward | replayed | peak MiB | error | eager's error | first call, s |"]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    print(*lines, sep="\n")
    measured = []
    for case in cases:
        row, bars = measure(case), needed(case, speed)
        measured.append((row, bars))
        cells = []
        for name, bar in zip(("forward_ms", "forward_backward_ms"), bars or (None, None), strict=True):
            cells.append(f"{row[name]:.3g}" + (f" ({bar:.3g})" if bar else ""))
            cells.append("-" if row[f"replayed_{name}"] is None else f"{row[f'replayed_{name}']:.3g}")
        peak = "-" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
        errors = f"{row['error_vs_float64']:.1e} | {row['plain_error']:.1e}"
        label = f"{case.name} {tuple(case.shape.values())} {case.dtype}"
        lines.append(f"| {label} | {' | '.join(cells)} | {peak} | {errors} | {row['first_call_s']:.1f} |")
        print(lines[-1], flush=True)
    for name, how in (("forward_backward_ms", "called"), ("replayed_forward_backward_ms", "replayed")):
        ratios = [row[name] / bars[1] for row, bars in measured if bars and row[name]]
        if ratios:
            middle = statistics.median(ratios)
            lines.append(f"\nForward and backward, {how}, times what is needed: median {middle:.2f}, worst {max(ratios):.2f}.")
            print(lines[-1])
    out = options.out or (None if options.quick or options.set else ROOT / "results" / "bench")
    append(out, "gpu.jsonl", (row for row, _ in measured))
    if out:
        (out / "gpu.md").write_text("\n".join(lines) + "\n")
        draw(measured, out / "gpu.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
