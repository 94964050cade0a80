"""Peak memory of one forward and backward, run by `timing.memory_of` in a process of its own: memory.py NAME [--quick]."""

import sys
from pathlib import Path

import torch

from registry import SCANS

MIB = 2**20


def resident(field: str) -> int:
    """VmRSS or VmHWM of this process in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Print MiB: the peak beyond the inputs, the inputs, outputs and gradients."""
    scan, quick = SCANS[sys.argv[1]], "--quick" in sys.argv
    torch.set_num_threads(2)
    small = scan.inputs(scan.quick_shape, torch.float32, gradients=True)
    scan.ours(*small).backward(torch.ones_like(small[0]))  # what the first call loads does not count

    inputs = scan.inputs(scan.quick_shape if quick else scan.long_shape, torch.float32, gradients=True)
    grad_y = torch.ones_like(inputs[0])
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    y = scan.ours(*inputs)
    y.backward(grad_y)
    peak = resident("VmHWM") - before
    results = sum(x.nbytes for x in (y, *(x.grad for x in inputs)))
    print(peak / MIB, (sum(x.nbytes for x in inputs) + grad_y.nbytes) / MIB, results / MIB)


if __name__ == "__main__":
    main()
