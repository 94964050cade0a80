"""Measure the time of S4's convolution kernel: its transform, the kernel, and a whole layer, with and without native kernels.

    python benchmarks/s4_kernel.py
    LONGSCAN_CPU_ISA=avx2 python benchmarks/s4_kernel.py
    python benchmarks/s4_kernel.py --device cuda

The layer has 168 channels, 64 states and float32 parameters, and gets 4 rows of 1,024 steps. Everything runs on one thread. Each
figure is the least time of the calls of `--seconds`, in milliseconds.
"""

import argparse
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from longscan._allocator import keep_freed_memory
from longscan.layers import S4
from longscan.ops.dplr_spectrum import dplr_spectrum

CHANNELS, STATES, ROWS, LENGTH = 168, 64, 4, 1024


def least_ms(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Return the least time of a call that is repeated for `seconds`, and at least five times, in milliseconds."""
    call()
    times: list[float] = []
    while len(times) < 5 or sum(times) < seconds:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def with_gradient(call: Callable[[], Tensor], leaves: list[Tensor]) -> Callable[[], object]:
    """Return a function that computes the gradients of the sum of a call's result by the leaves."""
    cotangent = torch.ones_like(call())
    return lambda: torch.autograd.grad(call(), leaves, cotangent)


def main() -> None:
    """Read the command line, measure, and print a line for each call and backend."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="cpu or cuda")
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device, layer = options.device, S4(CHANNELS, d_state=STATES).to(options.device)
    u = torch.randn(ROWS, LENGTH, CHANNELS, device=device)
    angle = torch.arange(LENGTH // 2 + 1, dtype=torch.float64, device=device) * (2 * math.pi / LENGTH)
    system = *layer.system(torch.float64), layer.C.double(), layer.log_dt.double().exp()
    arguments = [x.detach().requires_grad_() for x in system]

    def spectrum() -> Tensor:
        return dplr_spectrum(angle, *arguments, 0.0157, backend=layer.backend)

    parameters = list(layer.parameters())
    of_kernel = [x for name, x in layer.named_parameters() if name != "D"]
    for backend in ("auto", "eager"):
        layer.backend = backend
        calls = {
            "transform": spectrum,
            "transform with gradients": with_gradient(spectrum, arguments),
            "kernel with gradients": with_gradient(lambda: layer.kernel(LENGTH), of_kernel),
            "layer with gradients": with_gradient(lambda: layer(u), parameters),
        }
        for name, call in calls.items():
            print(f"{backend}, {name}: {least_ms(call, device, options.seconds):.2f} ms", flush=True)


if __name__ == "__main__":
    main()
