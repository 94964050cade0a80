"""Layers, blocks and models as graphs that run elsewhere: torch.export programs and ONNX files, the whole sequence or one step.

A graph holds real arithmetic only: ops run on their eager backend, complex numbers are pairs throughout, and what transforms take
of complex numbers in between (long convolutions) the exporter writes as pairs. Sizes are those of the example; a state that grows
with the steps, as attention's does, keeps that axis open.
"""

import copy
import warnings
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from longscan.layers.state import State, map_state, state_tensors

M = TypeVar("M", bound=nn.Module)


def exportable(module: M) -> M:
    """A copy that can be traced: in evaluation mode, without gradients, native kernels and checks of values."""
    twin = copy.deepcopy(module).eval().requires_grad_(False)
    for part in twin.modules():
        for name, value in (("backend", "eager"), ("recompute", False), ("checks_inputs", False)):
            if hasattr(part, name):
                setattr(part, name, value)
    return twin


class Whole(nn.Module):
    """y for x: (B, L, D), or tokens (B, L)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """The module's outputs from a fresh start."""
        y: Tensor = self.module(x)
        return y


class OneStep(nn.Module):
    """(y, the state's tensors after) for x_t (B, D), or tokens (B,), and the state's tensors before, in the state's order."""

    def __init__(self, module: nn.Module, state: State) -> None:
        super().__init__()
        self.module, self.state = module, state

    def forward(self, x: Tensor, *before: Tensor) -> tuple[Tensor, ...]:
        """As `step`, with states as lists of tensors."""
        tensors = iter(before)
        y, after = self.module.step(x, map_state(lambda _: next(tensors), self.state))  # type: ignore[operator]
        return y, *state_tensors(after)


class Graph(NamedTuple):
    """What an exporter takes: a module, its example arguments, and which axes of these stay open (None: none)."""

    module: nn.Module
    arguments: tuple[Tensor, ...]
    dynamic_shapes: Any


def graph(module: nn.Module, example: Tensor, *, step: bool = False) -> Graph:
    """A traceable form of a layer, a block or a model.

    Args:
        module: what is exported; a copy is taken.
        example: inputs (B, L, D), or tokens (B, L), of the sizes that the graph is for; at least three steps.
        step: the graph of one step from a state, not of the whole sequence.

    With `g = graph(module, example)`, `torch.export.export(g.module, g.arguments, dynamic_shapes=g.dynamic_shapes)` gives the
    program. ValueError where the module cannot go step by step.
    """
    if example.shape[1] < 3:
        raise ValueError(f"example: got {example.shape[1]} steps, expected at least 3")
    twin = exportable(module)
    if not step:
        return Graph(Whole(twin).eval(), (example,), None)
    if not getattr(twin, "streaming", False):
        raise ValueError(f"step: {type(module).__name__} cannot be run step by step")
    with torch.no_grad():
        shorter, state = (twin(example[:, :steps], return_state=True)[1] for steps in (2, 3))
    before = state_tensors(state)
    growing = torch.export.Dim("steps")
    open_axes = [
        {axis: growing for axis, (short, long) in enumerate(zip(one.shape, other.shape, strict=True)) if short != long}
        for one, other in zip(state_tensors(shorter), before, strict=True)
    ]
    shapes = (None, tuple(axes or None for axes in open_axes)) if any(open_axes) else None
    return Graph(OneStep(twin, state).eval(), (example[:, 0], *before), shapes)


def export_onnx(module: nn.Module, path: str | Path, example: Tensor, *, step: bool = False) -> None:
    """Write an ONNX file.

    Args:
        module: a layer, a block or a model.
        path: of the file.
        example: as in `graph`; the file is for these sizes.
        step: one step from a state: inputs "x", "state_0", "state_1", ... and outputs "y", "after_0", "after_1", ..., the tensors
            of the state in its order (`longscan.layers.state.state_tensors`). Otherwise "x" to "y".

    ImportError names the packages where they are missing.
    """
    traced = graph(module, example, step=step)
    states = len(traced.arguments) - 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's remarks on its own deprecated parts
            program = torch.onnx.export(
                traced.module,
                traced.arguments,
                dynamo=True,
                verbose=False,
                input_names=["x", *(f"state_{i}" for i in range(states))],
                output_names=["y", *(f"after_{i}" for i in range(states))],
                dynamic_shapes=traced.dynamic_shapes,
            )
    except ModuleNotFoundError as error:
        needed = f"export_onnx needs the package {error.name}: pip install 'longscan[export]'"
        raise ImportError(needed, name=error.name) from error
    if program is None:
        raise RuntimeError("export_onnx: torch gave no program")
    program.save(str(path))
