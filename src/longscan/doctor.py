"""`longscan doctor`: comparison of every kernel on this machine, forward and backward, with float64.

Results are judged by the rule of the tests (`longscan.ops._tolerances`): the error may be at most twice that of plain float32
arithmetic plus a few times that of rounding the inputs. Uninitialised memory and the inputs at invalid steps are filled with NaN,
and every call is made twice: both results must have the same bits.
"""

import logging
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

from longscan._devices import find_device
from longscan.ops import OPS, Op, dplr_spectrum
from longscan.ops._examples import example_inputs, example_masks
from longscan.ops._tolerances import PERTURBED_COPIES, allowed_error, largest_error, largest_value, perturb
from longscan.ops.dispatch import NATIVE, PASSED, unsupported_reason, verdicts_path, write_verdicts

log = logging.getLogger("longscan")
EPS = torch.finfo(torch.float32).eps
# The ops whose kernels are checked: the public ones, and the one that S4 alone uses.
CHECKED: dict[str, Op] = {
    **OPS,
    "dplr_spectrum": Op(
        dplr_spectrum.dplr_spectrum,
        dplr_spectrum.NATIVE_BACKENDS,
        per_step=(),
        shared=("angle", "eigenvalues", "P", "B", "C", "dt"),
        stateful=False,
    ),
}


@dataclass(frozen=True)
class Call:
    """One call of an op.

    Attributes:
        op: name of the op.
        name: description of the call for the report.
        tensors: the tensor arguments by name.
        options: the other arguments by name.
        perturbation_seed: seed by which the inputs were perturbed; None for the original call.
    """

    op: str
    name: str
    tensors: dict[str, Tensor]
    options: dict[str, Any]
    perturbation_seed: int | None = None

    def in_float32(self) -> "Call":
        """Return the call with floating-point tensors in float32."""
        return replace(self, tensors={name: x.float() if x.is_floating_point() else x for name, x in self.tensors.items()})

    def perturbed(self) -> list["Call"]:
        """Return copies of the call in float32 whose inputs and cotangents are perturbed by one rounding error."""
        calls = []
        for seed in range(PERTURBED_COPIES):
            generator = torch.Generator().manual_seed(seed)
            tensors = {
                name: perturb(x.double(), EPS, generator) if x.is_floating_point() else x for name, x in self.tensors.items()
            }
            calls.append(replace(self, tensors=tensors, perturbation_seed=seed).in_float32())
        return calls

    def results(self, backend: str, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return y, final states and the gradients of all inputs for fixed cotangents, by name, on the CPU."""
        leaves = {
            name: x.to(device, dtype).requires_grad_() if x.is_floating_point() else x.to(device)
            for name, x in self.tensors.items()
        }
        with torch.set_grad_enabled(CHECKED[self.op].native_gradients):
            outputs = CHECKED[self.op].function(**leaves, **self.options, backend=backend)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        names = ("y", "conv state", "ssm state") if len(outputs) == 3 else ("y", "final state")[: len(outputs)]
        found = {name: x.detach().to("cpu") for name, x in zip(names, outputs, strict=True)}
        if not CHECKED[self.op].native_gradients:
            return found
        generator = torch.Generator().manual_seed(1)
        random = [torch.randn(x.shape, generator=generator) for x in outputs]  # float32 in every precision of the call
        if self.perturbation_seed is not None:
            generator.manual_seed(self.perturbation_seed)
            random = [perturb(x.double(), EPS, generator).float() for x in random]
        cotangents = [x.to(like) for x, like in zip(random, outputs, strict=True)]
        valid = leaves.get("valid")
        if valid is not None:
            shape = *valid.shape, *(1,) * (outputs[0].ndim - 2)
            cotangents[0] = cotangents[0].masked_fill(~valid.view(shape), float("nan"))
        inputs = {name: x for name, x in leaves.items() if x.is_floating_point()}
        gradients = torch.autograd.grad(outputs, list(inputs.values()), cotangents, allow_unused=True)
        found |= {f"gradient of {name}": x.to("cpu") for name, x in zip(inputs, gradients, strict=True) if x is not None}
        return found


@dataclass(frozen=True)
class Finding:
    """The comparison of one call of a kernel with float64.

    Attributes:
        op, backend, call: what was called.
        worst: name of the result that is nearest to its allowed error, or that has the fault.
        error: largest error of that result, divided by its largest absolute value.
        allowed: the largest relative error that is allowed.
        fault: description of the fault; None if there is none.
    """

    op: str
    backend: str
    call: str
    worst: str
    error: float
    allowed: float
    fault: str | None


_ROTATING = ("angle", "own_scale", "B_bias", "C_bias")  # arguments of ssd_scan that Mamba-3 has and Mamba-2 has not
# Words in the name of a call for the variant of the op that `is_complex` selects
_VARIANT_WORDS = {
    "block2_scan": " constant complex",
    "selective_scan": " complex",
    "ssd_scan": " rotating",
    "dplr_spectrum": " damped",
}


def example_call(op: str, batch: int, length: int, channels: int, states: int, masked: bool, is_complex: bool) -> Call | None:
    """Return a call of `op` with every optional argument, or None if `op` has no kernel, or no masks.

    Args:
        masked: with invalid steps and restarts, and NaN in every input at invalid steps.
        is_complex: the complex form of the op, or its second variant: a constant matrix, the step size in the angle, an
            activation, rotating heads, damping.
    """
    options: dict[str, Any] = {
        "linear_scan": {"pairs": is_complex, "reverse": masked},
        "block2_scan": {"pairs": is_complex},
        "selective_scan": {"dt_softplus": True},
        "unitary_scan": {"phase_dt": is_complex},
        "short_conv": {"activation": "silu" if is_complex else None},
        "ssd_scan": {},
        "mamba_step": {"selects_raw": is_complex},
        "dplr_spectrum": {"damping": 0.1 * is_complex},
    }
    if op not in options or (masked and op == "dplr_spectrum"):
        return None
    generator = torch.Generator().manual_seed(0)
    sizes = {"B": batch, "L": length, "D": channels, "N": states, "H": channels, "P": 2, "G": 1, "R": states // 2, "K": 4}
    tensors = example_inputs(op, sizes, generator=generator, is_complex=is_complex, long=True)
    if op == "block2_scan" and is_complex:
        tensors["M"] = tensors["M"][0, 0]
    if op == "ssd_scan" and not is_complex:
        tensors = {name: x for name, x in tensors.items() if name not in _ROTATING}
    if op == "mamba_step":
        name = f"({batch}, {channels}, {states}){' inactive rows' * masked}{' selects raw' * is_complex}"
        if masked:  # with the norm's weight, y would be x in inactive rows, and x is NaN there
            del tensors["norm_weight"]
            tensors["active"] = torch.arange(batch) != 1
            tensors["x"][1:2] = float("nan")
        return Call(op, name, tensors, options[op])
    if masked:
        tensors |= example_masks(batch, length, generator)
        tensors["valid"][0, : length // 3] = False
        for name in CHECKED[op].per_step:
            x = tensors.get(name)
            if x is not None and x.shape[:2] == (batch, length):
                x.masked_fill_(~tensors["valid"].view(batch, length, *(1,) * (x.ndim - 2)), float("nan"))
    name = f"({batch}, {length}, {channels}, {states}){' masks' * masked}{_VARIANT_WORDS.get(op, '') * is_complex}"
    return Call(op, name, tensors, options[op])


SIZES = ((2, 70, 5, 3), (3, 1, 4, 1))  # (B, L, D, N)
LARGE = ((2, 300, 40, 16), (1, 700, 3, 64))  # also checked, except by Triton's interpreter, which is slow
KINDS = tuple(product((False, True), repeat=2))  # masked, complex
PROCESS_BYTES = 2**30  # GPU memory for one process that checks calls


def example_calls(op: str, sizes: tuple[tuple[int, int, int, int], ...]) -> list[Call]:
    """Return calls of every kind at the first size, and of two alternating kinds at each of the others."""
    kinds = [(size, kind) for i, size in enumerate(sizes) for kind in KINDS if i == 0 or (sum(kind) + i) % 2]
    return [call for size, kind in kinds if (call := example_call(op, *size, *kind)) is not None]


def check_kernel(op: str, backend: str, device: torch.device, sizes: tuple[tuple[int, int, int, int], ...]) -> list[Finding]:
    """Run a kernel on the example calls of its op and return the finding of each."""
    return [check_call(call, backend, device) for call in example_calls(op, sizes)]


def check_call(call: Call, backend: str, device: torch.device) -> Finding:
    """Run one call twice and compare it with float64 and with plain float32."""
    rounded = call.in_float32()
    finding = Finding(call.op, backend, call.name, "", 0.0, 0.0, None)
    try:
        with _UninitialisedNaN():
            first_run = rounded.results(backend, device, torch.float32)
            second_run = rounded.results(backend, device, torch.float32)
    except Exception as raised:  # whatever a kernel or its compiler raises is a finding
        return replace(finding, fault=f"{type(raised).__name__}: {' '.join(str(raised).split())[:200]}")
    cpu, perturbed_calls = torch.device("cpu"), rounded.perturbed()
    exact_results, float32_results = (rounded.results("reference", cpu, dtype) for dtype in (torch.float64, torch.float32))
    # Perturbed calls use the vectorised backend, since the loop of the reference would take minutes for long sequences.
    exact_perturbed, float32_perturbed = (
        [perturbed.results("eager", cpu, dtype) for perturbed in perturbed_calls] for dtype in (torch.float64, torch.float32)
    )
    if first_run.keys() != exact_results.keys():
        return replace(finding, fault=f"the results must be {', '.join(exact_results)}, got {', '.join(first_run)}")
    largest_share = 0.0
    for name, exact in exact_results.items():
        largest = max(largest_value(exact), 1e-30)
        perturbed64, perturbed32 = ([results[name] for results in group] for group in (exact_perturbed, float32_perturbed))
        error = largest_error(first_run[name], exact) / largest
        allowed = allowed_error(torch.float32, [float32_results[name]], exact, perturbed64, perturbed32) / largest
        if not error <= allowed:
            fault = f"{name}: error {error:.1e}, allowed {allowed:.1e}"
            return replace(finding, worst=name, error=error, allowed=allowed, fault=fault)
        if not torch.equal(first_run[name], second_run[name]):
            return replace(finding, worst=name, error=error, allowed=allowed, fault=f"{name}: other bits in a second run")
        share = error / allowed if allowed else 0.0
        if share >= largest_share:
            largest_share, finding = share, replace(finding, worst=name, error=error, allowed=allowed)
    return finding


class _UninitialisedNaN:
    """Context in which torch fills uninitialised memory with NaN."""

    def __enter__(self) -> None:
        self._before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        self._filled = torch._C._get_deterministic_fill_uninitialized_memory()
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch._C._set_deterministic_fill_uninitialized_memory(True)

    def __exit__(self, *_: object) -> None:
        torch.use_deterministic_algorithms(self._before[0], warn_only=self._before[1])
        torch._C._set_deterministic_fill_uninitialized_memory(self._filled)


def kernels(device: torch.device) -> Iterator[tuple[str, str]]:
    """Yield the native kernels that can run on this device, as pairs (op, backend)."""
    for op, entry in CHECKED.items():
        for backend in NATIVE:
            if unsupported_reason(op, backend, device, torch.float32, entry.native) is None:
                yield op, backend


def doctor(device: torch.device) -> Iterator[list[Finding]]:
    """Check the kernels of a device one after another, store the verdicts for `auto`, and yield the findings of each kernel.

    If the verdicts cannot be stored, one warning is logged.
    """
    found = list(kernels(find_device(device)))
    if device.type == "cuda":  # compile in parallel, which takes most of the time
        workers = max(1, min(os.cpu_count() or 1, torch.cuda.mem_get_info(device)[0] // PROCESS_BYTES))
        checked = check_in_parallel(found, device, SIZES + LARGE, workers)
    else:  # Triton's interpreter is slow
        checked = (check_kernel(op, backend, device, SIZES if backend == "triton" else SIZES + LARGE) for op, backend in found)
    stores = True
    for (op, backend), findings in zip(found, checked, strict=True):
        faults = [f"{finding.call}: {finding.fault}" for finding in findings if finding.fault]
        if stores:
            try:
                write_verdicts(device, {op: {backend: faults[0] if faults else PASSED}})
            except OSError as error:
                stores = False
                log.warning("%s: verdicts cannot be stored (%s), so `auto` does not know them", verdicts_path(), error.strerror)
        yield findings


def check_in_parallel(
    found: list[tuple[str, str]], device: torch.device, sizes: tuple[tuple[int, int, int, int], ...], workers: int
) -> Iterator[list[Finding]]:
    """Yield the findings of each kernel as `check_kernel` does, with `workers` processes; a killed process is a fault."""
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        running = [
            [(call, backend, pool.submit(check_call, call, backend, device)) for call in example_calls(op, sizes)]
            for op, backend in found
        ]
        for members in running:
            yield [_result(*member) for member in members]


def _result(call: Call, backend: str, future: "Future[Finding]") -> Finding:
    try:
        return future.result()
    except BrokenProcessPool:
        return Finding(call.op, backend, call.name, "", 0.0, 0.0, "its process, or another one of the pool, died")
