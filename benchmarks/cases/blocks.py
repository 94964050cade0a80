"""Mamba blocks on the CPU: a block and mambapy's, recomputation in the backward pass, and steps of one token."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import peers
from harness import Case, Implementation, Shape, differentiable, module_call
from longscan.blocks import MambaBlock
from longscan.blocks.residual import Residual

BLOCK = {"B": 32, "L": 1024, "d_model": 128, "N": 16}
STACK = {"layers": 8, "B": 8, "L": 1024, "d_model": 128, "N": 16}
TOKEN = {"B": 1, "layers": 4, "d_model": 256, "N": 16}
TINY = {"B": 2, "L": 64, "d_model": 16, "N": 4}
TOKENS = 20  # steps of one call of a stepper


def copy_weights(block: MambaBlock, theirs: nn.Module) -> None:
    """Copy the weights of mambapy's block into ours."""
    pairs = {
        block.in_proj.weight: theirs.in_proj.weight,
        block.conv_weight: theirs.conv1d.weight.squeeze(1),
        block.conv_bias: theirs.conv1d.bias,
        block.layer.x_proj: theirs.x_proj.weight,
        block.layer.dt_proj: theirs.dt_proj.weight,
        block.layer.dt_bias: theirs.dt_proj.bias,
        block.layer.A_log: theirs.A_log,
        block.layer.D: theirs.D,
        block.out_proj.weight: theirs.out_proj.weight,
    }
    with torch.no_grad():
        for ours, other in pairs.items():
            ours.copy_(other)


def mambapy_stack(shape: Shape) -> nn.Module:
    """Return mambapy's stack of blocks, with the same weights in every call."""
    torch.manual_seed(0)
    return peers.mambapy_stack(shape.get("layers", 1), shape["d_model"], shape["N"]).eval()


def our_stack(shape: Shape, *, residual: bool = True, **options: Any) -> nn.Sequential:
    """Return our blocks with the weights of `mambapy_stack`. residual: whether each is in a residual connection with a norm."""
    made = []
    for other in mambapy_stack(shape).layers:
        block = MambaBlock(shape["d_model"], layer_options={"d_state": shape["N"]}, **options)
        copy_weights(block, other.mixer)
        made.append(Residual(block) if residual else block)
        if residual:
            made[-1].norm.weight.data.copy_(other.norm.weight.data)
    return nn.Sequential(*made)


def sequence(shape: Shape) -> Tensor:
    """Return a batch of random vectors (B, L, d_model)."""
    return torch.randn(shape["B"], shape["L"], shape["d_model"], generator=torch.Generator().manual_seed(1))


def block(shape: Shape) -> dict[str, Implementation]:
    """Return one block of ours and one of mambapy's with the same weights."""
    ours, theirs = our_stack(shape, residual=False), mambapy_stack(shape).layers[0].mixer
    return {
        "longscan": module_call(ours, sequence(shape), infers=False, backend="cpu"),
        "mambapy MambaBlock": module_call(theirs, sequence(shape), infers=False, peer="mambapy MambaBlock"),
    }


def block_truth(shape: Shape) -> list[Tensor]:
    """Return y and the gradient of x of mambapy's block in float64."""
    mixer = mambapy_stack(shape).layers[0].mixer.double()
    return module_call(mixer, sequence(shape).double()).results()[:2]


def with_and_without_recompute(residual: bool, shape: Shape) -> dict[str, Implementation]:
    """Return our block or stack, with and without `recompute`."""
    variants = {"longscan": {}, "longscan, recompute": {"recompute": True}}
    return {
        label: module_call(
            our_stack(shape, residual=residual, **options), sequence(shape), infers=False, backend="cpu",
            **({"variant": "recompute"} if options else {}),
        )
        for label, options in variants.items()
    }  # fmt: skip


def recompute_truth(residual: bool, shape: Shape) -> list[Tensor]:
    """Return y and all gradients by the reference backend in float64."""
    model = our_stack(shape, residual=residual, backend="reference").double()
    return module_call(model, sequence(shape).double()).results()


def run_steps(step: Callable[[Tensor, Any], tuple[Tensor, Any]], state: Any, x: Tensor) -> Tensor:
    """Return the outputs (steps, B, d_model) of `step` for the tokens x (steps, B, d_model), one after another."""
    outputs = []
    for token in x:
        y, state = step(token, state)
        outputs.append(y)
    return torch.stack(outputs)


def steppers(shape: Shape) -> dict[str, Implementation]:
    """Return the steps of our blocks, of mambapy's with the same weights, and of transformers' with other weights."""
    ours, theirs = our_stack(shape).eval(), mambapy_stack(shape)
    start = [layer.initial_state(shape["B"]) for layer in ours]
    tokens = token_sequence(shape)

    def step(x: Tensor, states: list[Any]) -> tuple[Tensor, list[Any]]:
        after = []
        for layer, state in zip(ours, states, strict=True):
            x, new = layer.step(x, state)
            after.append(new)
        return x, after

    caches = peers.mambapy_caches(theirs, shape["B"])
    of_transformers, cache = peers.transformers_stepper(shape["layers"], shape["d_model"], shape["N"])
    transformers = differentiable(partial(run_steps, of_transformers, cache), [tokens], trains=False, peer="transformers")
    return {
        "longscan": differentiable(partial(run_steps, step, start), [tokens], trains=False, backend="cpu"),
        "mambapy": differentiable(partial(run_steps, theirs.step, caches), [tokens], trains=False, peer="mambapy"),
        "transformers": replace(transformers, results=None),  # not compared, because its weights are others
    }


def token_sequence(shape: Shape) -> Tensor:
    """Return the random tokens (TOKENS, B, d_model) that the steps read."""
    return torch.randn(TOKENS, shape["B"], shape["d_model"], generator=torch.Generator().manual_seed(1))


def stepper_truth(shape: Shape) -> list[Tensor]:
    """Return the outputs of mambapy's steps in float64."""
    stack = mambapy_stack(shape).double()
    caches = [(None, x.double()) for _, x in peers.mambapy_caches(stack, shape["B"])]
    return differentiable(partial(run_steps, stack.step, caches), [token_sequence(shape).double()], trains=False).results()


def recompute_cases() -> Iterator[Case]:
    """Yield the comparison of blocks with and without `recompute`, for one block and for a stack of eight."""
    for kind, shape in {"block": BLOCK, "stack": STACK}.items():
        residual = kind == "stack"
        yield Case(
            suite="recompute", name=f"recompute {kind}", op=f"mamba_{kind}_recompute", shapes=[shape],
            quick_shape=TINY | ({"layers": 2} if residual else {}), build=partial(with_and_without_recompute, residual),
            truth=partial(recompute_truth, residual), memory_shape=shape, memory_of=("longscan", "longscan, recompute"),
        )  # fmt: skip


CASES = (
    Case(
        suite="cpu", name="block", op="mamba_block", shapes=[BLOCK], quick_shape=TINY, build=block, truth=block_truth,
        check_shape={"B": 2}, needs={("mambapy MambaBlock", "forward_backward"): 10.0},
    ),
    Case(
        suite="cpu", name="token", op="mamba_step", shapes=[TOKEN], quick_shape={"B": 1, "layers": 2, "d_model": 32, "N": 4},
        build=steppers, truth=stepper_truth, calls=TOKENS, needs={("mambapy", "forward"): 2.0},
    ),
    *recompute_cases(),
)  # fmt: skip
