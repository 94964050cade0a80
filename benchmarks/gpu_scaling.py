"""How the scans scale on a GPU: with the length, with the number of models trained together, and in a whole model.

    python benchmarks/gpu_scaling.py                               all three, about two minutes
    python benchmarks/gpu_scaling.py --parts length step           some of them
    TRITON_INTERPRET=1 python benchmarks/gpu_scaling.py --quick    tiny sizes on the CPU: does it work?

Length: time and peak memory of forward and backward of one AUSSM scan as a loop over the steps, in separable form and by our
kernel, and of S6 by ours; the lengths of the AUSSM paper's figure 2, then on to 65,536. Models: one update of K stacked models of
d_model 16 under `torch.vmap`, and of K models one after another. Step: one update of a hybrid of Mamba and AUSSM blocks with our
kernels and without, and how much of it the scans take. Appends rows to DIR/gpu_scaling.jsonl as they come and draws its latest
ones in DIR/gpu_scaling.png, DIR being results/bench unless --out names another folder called bench.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

import gpu
import peers
from longscan.models import SequenceModel
from longscan.ops import selective_scan, unitary_scan
from longscan.report.records import check_record
from registry import Shape, aussm_inputs, s6_inputs

PAPER = (10, 13, 17, 23, 30, 40, 53, 71, 94, 124, 164, 217, 288, 381, 504, 667, 883, 1169, 1547, 2048)  # AUSSM, figure 2
LENGTHS = (*PAPER, 4096, 8192, 16384, 32768, 65536)
MODELS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LOOPED = PAPER[1:18:4]  # a loop over the steps takes long: a few lengths
SEPARABLE = tuple(length for length in LENGTHS if length <= 8192)  # beyond, its states fill the memory
Implementation = tuple[str, str, Callable[..., list[Tensor]], Callable[..., Tensor], tuple[int, ...]]
VERSIONS: tuple[Implementation, ...] = (
    ("unitary_scan", "loop over the steps", aussm_inputs, peers.aussm_loop, LOOPED),
    ("unitary_scan", "separable", aussm_inputs, peers.aussm_separable, SEPARABLE),
    ("unitary_scan", "triton", aussm_inputs, lambda *x: unitary_scan(*x, backend="triton")[0], LENGTHS),
    ("selective_scan", "triton", s6_inputs, lambda *x: selective_scan(*x, dt_softplus=True, backend="triton")[0], LENGTHS),
)


def row(op: str, name: str, shape: Shape, call: Callable[[], object], **more: Any) -> gpu.Row:
    """A row of the records of a call, which has run before; name: the backend, or the peer's."""
    ours = name in ("triton", "eager")
    time, peak, peer = gpu.milliseconds(call), gpu.peak_of(call), None if ours else name
    return gpu.record(op, name if ours else None, shape, peer=peer, forward_backward_ms=time, peak_mib=peak, **more)


def of_lengths(quick: bool) -> Iterator[gpu.Row]:
    """Forward and backward of one scan for every length and version."""
    for op, name, inputs, function, lengths in VERSIONS:
        for length in lengths[:1] if quick else lengths:
            shape = {"B": 1, "L": length, "D": 3, "N": 2} if quick else {"B": 16, "L": length, "D": 32, "N": 64}
            leaves = [x.to(gpu.DEVICE).requires_grad_() for x in inputs(shape, torch.float32)]
            weight = torch.ones_like(leaves[0])

            def train(leaves: list[Tensor] = leaves, weight: Tensor = weight, function: Any = function) -> object:
                return torch.autograd.grad(function(*leaves), leaves, weight)

            train()
            found = row(op, name, shape, train, figure="length")
            print(op, name, length, f"{found['forward_backward_ms']:.3f} ms", found["peak_mib"], flush=True)
            yield found


def hybrid(width: int, states: int, backend: str) -> nn.Module:
    """A Mamba block and an AUSSM block on eight letters."""
    model = SequenceModel.from_spec(
        "ma", d_model=width, d_state=states, d_output=4, vocab_size=8, pooling="last", backend=backend
    )
    return model.to(gpu.DEVICE)


def of_models(quick: bool) -> Iterator[gpu.Row]:
    """Forward and backward of K hybrids of d_model 16, stacked and one after another."""
    batch, length = (2, 8) if quick else (32, 256)
    for count in (1, 2) if quick else MODELS:
        each = []
        for seed in range(count):
            torch.manual_seed(seed)
            each.append(hybrid(16, 8, "triton"))
        tokens = torch.randint(0, 8, (batch, length), device=gpu.DEVICE)

        def loss(weights: dict[str, Tensor], buffers: dict[str, Tensor], one: nn.Module = each[0], x: Tensor = tokens) -> Tensor:
            return functional_call(one, (weights, buffers), (x,)).square().mean()

        together = partial(torch.func.vmap(torch.func.grad(loss)), *stack_module_state(each))

        def apart(each: list[nn.Module] = each, x: Tensor = tokens) -> None:
            for model in each:
                model(x).square().mean().backward()

        shape = {"K": count, "B": batch, "L": length, "d_model": 16, "d_state": 8}
        calls: dict[str, Callable[[], object]] = {"stacked": together}
        if count <= 16:
            calls["one after another"] = apart
        for how, call in calls.items():
            call()
            found = row("SequenceModel", "triton", shape, call, figure="models", how=how)
            print("models", count, how, f"{found['forward_backward_ms']:.2f} ms", flush=True)
            yield found


def of_a_step(quick: bool) -> Iterator[gpu.Row]:
    """One update of a hybrid, and the share of its time on the GPU that kernels of ours take."""
    batch, length, width = (2, 16, 8) if quick else (16, 4096, 64)
    tokens = torch.randint(0, 8, (batch, length), device=gpu.DEVICE)
    for backend in ("triton", "eager"):
        torch.manual_seed(0)
        model = hybrid(width, width, backend)
        optimizer = torch.optim.AdamW(model.parameters())

        def update(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            model(tokens).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        update()
        shape = {"B": batch, "L": length, "d_model": width, "d_state": width}
        found = row("SequenceModel", backend, shape, update, figure="step")
        if gpu.DEVICE.type == "cuda" and backend == "triton":
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                update()
                torch.cuda.synchronize()
            each = {event.key: event.self_device_time_total for event in profile.key_averages()}
            scans = ("scan", "scan_backward", "products", "enter", "leave", "leave_backward", "add_up", "add_parts", "halve")
            found["share_of_scans"] = sum(each.get(name, 0.0) for name in scans) / sum(each.values())
        print("step", backend, {k: found.get(k) for k in ("forward_backward_ms", "peak_mib", "share_of_scans")}, flush=True)
        yield found


def draw_lengths(rows: list[gpu.Row], time: Any, memory: Any) -> None:
    """Time and memory against the length."""
    for op, name, *_ in VERSIONS:
        mine = [found for found in rows if found["op"] == op and (found["peer"] or found["backend"]) == name]
        called = f"{'AUSSM' if op == 'unitary_scan' else 'S6'}: {name}"
        steps = [found["shape"]["L"] for found in mine]
        for ax, key in ((time, "forward_backward_ms"), (memory, "peak_mib")):
            ax.plot(steps, [found[key] or 0 for found in mine], marker="o", ms=3, label=called)
    sizes = ", ".join(f"{name} {rows[0]['shape'][name]}" for name in "BDN")
    time.set(xscale="log", yscale="log", xlabel="steps", ylabel="ms, forward and backward", title=sizes)
    memory.set(xscale="log", xlabel="steps", ylabel="MiB beyond the inputs", title=sizes)
    if any(found["peak_mib"] for found in rows):
        memory.set_yscale("log")


def draw(path: Path, out: Path) -> None:
    """From the latest rows of each measurement: time and memory against the length, and time against the number of models."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    latest = {}
    for line in path.read_text("utf-8").splitlines():
        found = json.loads(line)
        latest[found["figure"], found["op"], found["backend"], found["peer"], found.get("how"), str(found["shape"])] = found
    rows = list(latest.values())
    panels = [kind for kind in ("length", "models") if any(found["figure"] == kind for found in rows)]
    count = 2 * ("length" in panels) + ("models" in panels)
    figure, axes = plt.subplots(1, count, figsize=(5 * count, 4.2), squeeze=False, layout="constrained")
    if "length" in panels:
        draw_lengths([found for found in rows if found["figure"] == "length"], *axes[0, :2])
    if "models" in panels:
        of_models, ax = [found for found in rows if found["figure"] == "models"], axes[0, -1]
        for how in ("stacked", "one after another"):
            mine = [found for found in of_models if found["how"] == how]
            ax.plot([r["shape"]["K"] for r in mine], [r["forward_backward_ms"] for r in mine], marker="o", ms=3, label=how)
        ax.set(xscale="log", yscale="log", xlabel="models of d_model 16", title="hybrids of 2 blocks")
        ax.set_ylabel("ms, forward and backward")
    for ax in axes[0]:
        ax.grid(alpha=0.3)
        ax.legend(fontsize=8)
    figure.savefig(out, dpi=120)
    plt.close(figure)


PARTS = {"length": of_lengths, "step": of_a_step, "models": of_models}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, no files unless --out is given")
    parser.add_argument("--out", type=Path, default=None, help="folder of gpu_scaling.jsonl and gpu_scaling.png, called bench")
    options = parser.parse_args()
    out = options.out or (None if options.quick else gpu.ROOT / "results" / "bench")
    for part in options.parts:
        for found in PARTS[part](options.quick):
            check_record("bench", found)
            gpu.append(out, "gpu_scaling.jsonl", [found])
    if out:
        draw(out / "gpu_scaling.jsonl", out / "gpu_scaling.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
