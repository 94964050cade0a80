"""Times of scans on a GPU against the length and against the number of models trained together, and their share of a step."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

import peers
from harness import (
    GPU,
    Case,
    Implementation,
    Measurement,
    Row,
    Shape,
    differentiable,
    make_timer,
    profile_events,
    record,
)
from longscan.models import SequenceModel
from op_calls import SELECTIVE, UNITARY, OpCall, peak_mib

PAPER = (10, 13, 17, 23, 30, 40, 53, 71, 94, 124, 164, 217, 288, 381, 504, 667, 883, 1169, 1547, 2048)  # AUSSM, figure 2
LENGTHS = (*PAPER, 4096, 8192, 16384, 32768, 65536)
LOOP_LENGTHS = PAPER[1:18:4]  # few, because a loop over the steps is slow
SEPARABLE_LENGTHS = tuple(length for length in LENGTHS if length <= 8192)  # longer ones fill the memory
MODELS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MAX_SEQUENTIAL = 16  # largest number of models that are trained one after another


def of_length(name: str, op_call: OpCall, lengths: tuple[int, ...], function: Callable[..., Tensor], **about: str) -> Case:
    """Return the case of one implementation of a scan at several lengths. about: fields of its rows."""

    def build(shape: Shape) -> dict[str, Implementation]:
        return {"scan": differentiable(function, op_call.inputs(shape, device=GPU), infers=False, **about)}

    shapes = [{"B": 16, "L": length, "D": 32, "N": 64} for length in lengths]
    return Case(
        suite="gpu_scaling", name=f"length {name}", op=op_call.op, shapes=shapes, quick_shape={"B": 1, "L": 10, "D": 3, "N": 2},
        build=build, device=GPU, may_fail=True, fields={"figure": "length"},
    )  # fmt: skip


def hybrid(width: int, states: int, backend: str) -> nn.Module:
    """Return a model of a Mamba block and an AUSSM block on an alphabet of eight letters."""
    sizes = {"d_model": width, "d_state": states, "d_output": 4, "vocab_size": 8}
    return SequenceModel.from_spec("ma", **sizes, pooling="last", backend=backend).to(GPU)


def letters(shape: Shape) -> Tensor:
    """Return random words (B, L) over an alphabet of eight letters."""
    return torch.randint(0, 8, (shape["B"], shape["L"]), generator=torch.Generator().manual_seed(0)).to(GPU)


def models(shape: Shape) -> dict[str, Implementation]:
    """Return two ways to compute forward and backward of K hybrids: stacked under `torch.vmap`, and one after another."""
    each, words = [], letters(shape)
    for seed in range(shape["K"]):
        torch.manual_seed(seed)
        each.append(hybrid(shape["d_model"], shape["d_state"], "triton"))

    def loss(weights: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return functional_call(each[0], (weights, buffers), (words,)).square().mean()

    def one_after_another() -> None:
        for model in each:
            model(words).square().mean().backward()

    stacked = partial(torch.func.vmap(torch.func.grad(loss)), *stack_module_state(each))
    made = {"stacked": Implementation(train=stacked, fields={"backend": "triton", "variant": "stacked", "how": "stacked"})}
    if shape["K"] <= MAX_SEQUENTIAL:
        about = {"backend": "triton", "variant": "one after another", "how": "one after another"}
        made["one after another"] = Implementation(train=one_after_another, fields=about)
    return made


def scan_kernels() -> set[str]:
    """Return the names of all Triton functions in the modules of the two scans: their kernels, and what these call."""
    from triton.runtime.jit import JITFunction

    import longscan.ops.selective_scan.triton  # noqa: F401
    from longscan.ops.unitary_scan import triton as unitary

    selective = [vars(module) for name, module in sys.modules.items() if name.startswith("longscan.ops.selective_scan.triton.")]
    values = [value for names in (*selective, vars(unitary)) for value in names.values()]
    return {value.__name__ for value in values if isinstance(value, JITFunction)}


def training_steps(options: Any) -> Iterator[Row]:
    """Yield a row of a training step of a hybrid for each backend: its time, and the share of its GPU time that scans take."""
    shape = {"B": 2, "L": 16, "d_model": 8, "d_state": 8} if options.quick else {"B": 16, "L": 4096, "d_model": 64, "d_state": 64}
    words = letters(shape)
    for backend in ("triton", "eager"):
        torch.manual_seed(0)
        model = hybrid(shape["d_model"], shape["d_state"], backend)
        optimizer = torch.optim.AdamW(model.parameters())

        def update(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            model(words).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        update()
        found: Row = {"forward_backward_ms": make_timer(update, GPU, 40.0)()}
        if GPU.type == "cuda":
            times = {event.key: event.self_device_time_total for event in profile_events(update, GPU)}
            scans = sum(times.get(name, 0.0) for name in scan_kernels())
            found |= {"peak_mib": peak_mib(update), "share_of_scans": scans / sum(times.values())}
        yield record("SequenceModel", shape, GPU, backend=backend, figure="step", **found)


SIZES = {"B": 32, "L": 256, "d_model": 16, "d_state": 8}
CASES = (
    of_length("loop", UNITARY, LOOP_LENGTHS, peers.aussm_loop, peer="loop over the steps"),
    of_length("separable", UNITARY, SEPARABLE_LENGTHS, peers.aussm_separable, peer="separable"),
    of_length("aussm", UNITARY, LENGTHS, partial(UNITARY.call, backend="triton"), backend="triton"),
    of_length("s6", SELECTIVE, LENGTHS, partial(SELECTIVE.call, backend="triton"), backend="triton"),
    Measurement(suite="gpu_scaling", name="step", rows=training_steps),
    Case(
        suite="gpu_scaling", name="models", op="SequenceModel", shapes=[{"K": count, **SIZES} for count in MODELS],
        quick_shape={"K": 2, "B": 2, "L": 8, "d_model": 16, "d_state": 8}, build=models, device=GPU, may_fail=True,
        fields={"figure": "models"},
    ),
)  # fmt: skip
