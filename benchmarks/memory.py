"""Peak memory of one forward and backward, run by `timing.memory_of` in a process of its own: memory.py NAME [--quick].

NAME: a scan of the registry; `block` or `stack` of Mamba blocks; `block_recompute` or `stack_recompute`.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from registry import RECOMPUTE, SCANS, Shape

MIB = 2**20


def resident(field: str) -> int:
    """VmRSS or VmHWM of this process in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def scan_call(name: str, shape: Shape) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """A call of our scan, and its inputs."""
    inputs = SCANS[name].inputs(shape, torch.float32, gradients=True)
    return lambda: SCANS[name].ours(*inputs), inputs


def block_call(name: str, shape: Shape) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """A call of our Mamba blocks, and their input and parameters."""
    model = RECOMPUTE.model(shape, recompute=name.endswith("_recompute"))
    x = torch.randn(shape["B"], shape["L"], shape["d_model"], requires_grad=True)
    return lambda: model(x), [x, *model.parameters()]


def main() -> None:
    """Print MiB: the peak beyond the inputs, the inputs, outputs and gradients."""
    name, quick = sys.argv[1], "--quick" in sys.argv
    torch.set_num_threads(2)
    if name in SCANS:
        make, small, large = scan_call, SCANS[name].quick_shape, SCANS[name].long_shape
    else:
        kind = name.removesuffix("_recompute")
        make, small, large = block_call, RECOMPUTE.quick_shapes[kind], RECOMPUTE.shapes[kind]
    call, _ = make(name, small)
    call().sum().backward()  # what the first call loads does not count

    call, inputs = make(name, small if quick else large)
    grad_y = torch.ones_like(inputs[0])  # y has the shape of the first input
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    y = call()
    y.backward(grad_y)
    peak = resident("VmHWM") - before
    results = sum(x.nbytes for x in (y, *(x.grad for x in inputs)))
    print(peak / MIB, (sum(x.nbytes for x in inputs) + grad_y.nbytes) / MIB, results / MIB)


if __name__ == "__main__":
    main()
