"""Errors of the Triton kernels on a GPU against float64, next to those of plain torch, and of counters made of rotations."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from harness import CPU, GPU, Measurement, Row, differentiable, record, relative_error
from longscan.ops import unitary_scan
from op_calls import LINEAR, LINEAR_COMPLEX, SELECTIVE, SELECTIVE_COMPLEX, SHORT_CONV, SSD, SSD_ROTATING, UNITARY

OP_CALLS = {
    "unitary": UNITARY,
    "selective": SELECTIVE,
    "selective complex": SELECTIVE_COMPLEX,
    "linear": LINEAR,
    "linear complex": LINEAR_COMPLEX,
    "convolution": SHORT_CONV,
    "heads": SSD,
    "rotating heads": SSD_ROTATING,
}
DTYPES = ("float32", "bfloat16", "float16", "float64")


def kernels(options: Any) -> Iterator[Row]:
    """Yield a row for each kernel, dtype and backend: the largest error of y and the gradients, relative to the largest entry."""
    sizes = {"B": 2, "L": 20, "D": 3, "N": 4} if options.quick else {"B": 2, "L": 1024, "D": 48, "N": 16}
    for name, op_call in OP_CALLS.items():
        shape = sizes | ({"R": sizes["N"] // 4} if op_call is SSD_ROTATING else {})
        for dtype in DTYPES:
            inputs, truth = op_call.inputs(shape, dtype, GPU), op_call.truth(shape, dtype)
            for backend in ("triton", "eager"):
                found = differentiable(partial(op_call.call, backend=backend), inputs).results()
                error, about = relative_error(found, truth), {"dtype": dtype, "variant": name, "check": "y and gradients"}
                yield record(op_call.op, shape, GPU, backend=backend, error_vs_float64=error, **about)


def phases(options: Any) -> Iterator[Row]:
    """Yield a row for each backend: the largest error of the phase of the final state, in radians, for |u| <= 10."""
    length, channels, states = (64, 3, 4) if options.quick else (8192, 32, 64)
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) * 2 - 1

    u, W, bias = 10 * uniform(2, length, channels), uniform(channels, states, channels), math.pi * uniform(channels, states)
    start = torch.zeros(2, channels, states, 2)
    start[..., 0] = 1
    zeros = torch.zeros(channels, states, 2)

    def final(backend: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        u_, W_, bias_, zeros_, start_ = (x.to(device, dtype) for x in (u, W, bias, zeros, start))
        _, state = unitary_scan(u_, torch.ones_like(u_), W_, bias_, zeros_, zeros_, initial_state=start_, backend=backend)
        return torch.view_as_complex(state.cpu().double())

    truth, shape = final("reference", torch.float64, CPU), {"B": 2, "L": length, "D": channels, "N": states}
    for backend in ("triton", "reference"):
        error = float((final(backend, torch.float32, GPU) * truth.conj()).angle().abs().max())
        check = f"phase after {length} steps, |u| <= 10"
        yield record("unitary_scan", shape, GPU, backend=backend, error_vs_float64=error, check=check)


def counters(options: Any) -> Iterator[Row]:
    """Yield a row for each modulus: the share of steps at which a count of ones modulo 2 or 97 by rotations is wrong."""
    length = 200 if options.quick else 65536
    letters = torch.randint(0, 2, (4, length, 1), generator=torch.Generator().manual_seed(0))
    for modulus in (2, 97):
        W, bias = torch.full((1, 1, 1), 2 * math.pi / modulus), torch.zeros(1, 1)
        start = torch.tensor([1.0, 0.0]).expand(4, 1, 1, 2).contiguous().to(GPU)
        read = []
        for C in ((1.0, 0.0), (0.0, -1.0)):
            tensors = [letters.float(), letters.float(), W, bias, torch.zeros(1, 1, 2), torch.tensor(C).view(1, 1, 2)]
            read.append(unitary_scan(*(x.to(GPU) for x in tensors), initial_state=start, backend="triton")[0].cpu())
        counted = (torch.atan2(read[1], read[0]) / (2 * math.pi / modulus)).round().long() % modulus
        wrong = float((counted != letters.cumsum(1) % modulus).double().mean())
        shape, check = {"B": 4, "L": length, "D": 1, "N": 1}, f"share of steps counted wrongly modulo {modulus}"
        yield record("unitary_scan", shape, GPU, backend="triton", error_vs_float64=wrong, check=check)


CASES = tuple(Measurement(suite="gpu_accuracy", name=rows.__name__, rows=rows) for rows in (kernels, phases, counters))
