"""Time the two forms of S4D's convolution on a GPU: by FFT, and in chunks by matrix products.

    python benchmarks/s4d_forms.py --out build/s4d_forms.jsonl

Each row of the file is one size and form: medians of the turns, in milliseconds, of a forward and backward pass of the layer by
its input and parameters, called from Python and replayed as a CUDA graph; the peak of memory of a called pass; and the largest
error of the output and of all gradients, relative to the largest entry, against the same layer in float64 by FFT. Each form is
called at every size, also where the layer would choose the other one. On a CPU, where the layer always uses the FFT, the script
runs both forms at a small size to show that it works; these rows have no times of graphs and no memory.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness import milliseconds, provenance, relative_error
from longscan.layers import S4D
from longscan.layers.chunked_convolution import chunked_convolution
from longscan.numerics.kernels import diagonal_kernel
from longscan.ops import long_conv
from op_calls import peak_mib, replayed_ms
from row_files import write_row

FORMS = ("chunks", "fft")
SIZES = (  # batch, steps, channels, states: CIFAR-10 and IMDb of the thesis, and models of other sizes
    (64, 1024, 232, 16),
    (64, 1024, 170, 64),
    (32, 1024, 256, 16),
    (32, 1024, 256, 32),
    (32, 1024, 256, 64),
    (32, 1024, 256, 128),
    (4, 1024, 192, 64),
    (8, 4096, 256, 16),
    (8, 4096, 256, 64),
    (2, 16384, 256, 64),
)
SMALL = ((2, 100, 4, 8),)


class S4DOfOneForm(S4D):
    """S4D that convolves in the form `form`, "chunks" or "fft", at every size."""

    form = "fft"

    def _convolve(self, u: Tensor, log_a: Tensor, weights: Tensor, length: int) -> Tensor:
        if self.form == "chunks":
            return chunked_convolution(log_a, weights, u, "auto")
        return long_conv(u, diagonal_kernel(log_a, weights, length), backend="eager")


def build_pass(layer: S4D, u: Tensor) -> Callable[[], list[Tensor]]:
    """Return a function that computes y and the gradients of the sum of y * cotangent by u and all parameters."""
    generator = torch.Generator(u.device).manual_seed(1)
    cotangent = torch.randn(u.shape, generator=generator, device=u.device, dtype=torch.float32).to(u.dtype)
    leaves = [u, *layer.parameters()]

    def run() -> list[Tensor]:
        y = layer(u)
        return [y.detach(), *torch.autograd.grad(y, leaves, cotangent)]

    return run


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line, measure all sizes, and print and store the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None, help="file of JSON lines, to which rows are added")
    options = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    about = provenance(device)
    for batch, length, channels, states in SIZES if device.type == "cuda" else SMALL:
        torch.manual_seed(0)
        exact = S4DOfOneForm(channels, d_state=states).to(device, torch.float64)
        u = torch.randn(batch, length, channels, device=device, requires_grad=True)
        truth = [x.cpu() for x in build_pass(exact, u.detach().double().requires_grad_())()]
        passes = {}
        for form in FORMS:
            layer = S4DOfOneForm(channels, d_state=states).to(device)
            layer.form = form
            layer.load_state_dict(exact.state_dict())
            passes[form] = build_pass(layer, u)
        found = {form: {"error_vs_float64": relative_error(run(), truth)} for form, run in passes.items()}
        del truth
        times: dict[str, list[float]] = {form: [] for form in passes}
        for _ in range(options.turns):
            for form, run in passes.items():
                times[form].append(milliseconds(run, device))
        for form, run in passes.items():
            row: dict[str, Any] = {"layer": "s4d", "B": batch, "L": length, "D": channels, "N": states, "form": form}
            row |= found[form]
            row["called_ms"] = statistics.median(times[form])
            if device.type == "cuda":
                row |= {"replayed_ms": replayed_ms(run), "peak_mib": peak_mib(run)}
            write_row({**row, **about}, options.out)


if __name__ == "__main__":
    main()
