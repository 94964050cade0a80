"""Layers, blocks and models as graphs that run elsewhere: torch.export programs and ONNX files, the whole sequence or one step.

A graph holds real arithmetic only: ops run on their eager backend, complex numbers are pairs throughout, and what transforms take
of complex numbers in between (long convolutions) the exporter writes as pairs. Sizes are those of the example; a state that grows
with the steps, as attention's does, keeps that axis open.
"""

import copy
import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from longscan.layers.state import State, map_state, state_tensors

M = TypeVar("M", bound=nn.Module)


def exportable(module: M) -> M:
    """A copy that can be traced: in evaluation mode, without gradients and native kernels."""
    twin = copy.deepcopy(module).eval().requires_grad_(False)
    for part in twin.modules():
        for name, value in (("backend", "eager"), ("recompute", False)):
            if hasattr(part, name):
                setattr(part, name, value)
    return twin


class Whole(nn.Module):
    """y for x: (B, L, D), or tokens (B, L), and further inputs by their names; from a state also the state's tensors after."""

    def __init__(self, module: nn.Module, names: tuple[str, ...], state: State) -> None:
        super().__init__()
        self.module, self.names, self.state = module, names, state

    def forward(self, x: Tensor, *rest: Tensor) -> Any:
        """x, the named inputs, and the state's tensors in the state's order, where there is one."""
        named, state = _sorted(self.names, self.state, rest)
        if self.state is None:
            return self.module(x, **named)
        y, after = self.module(x, state=state, return_state=True, **named)
        return y, *state_tensors(after)


class OneStep(Whole):
    """(y, the state's tensors after) for x_t (B, D), or tokens (B,), further inputs by their names, and the state before."""

    def forward(self, x: Tensor, *rest: Tensor) -> Any:
        """As `step`, with the state as its tensors."""
        named, state = _sorted(self.names, self.state, rest)
        y, after = self.module.step(x, state, **named)  # type: ignore[operator]
        return y, *state_tensors(after)


def _sorted(names: tuple[str, ...], state: State, rest: tuple[Tensor, ...]) -> tuple[dict[str, Tensor], State]:
    """The named inputs, and a state like `state` of the tensors behind them."""
    tensors = iter(rest[len(names) :])
    return dict(zip(names, rest, strict=False)), map_state(lambda _: next(tensors), state)


class Graph(NamedTuple):
    """What an exporter takes: a module, its example arguments, which axes of these stay open (None: none), and their names."""

    module: nn.Module
    arguments: tuple[Tensor, ...]
    dynamic_shapes: Any
    names: tuple[str, ...]


def graph(module: nn.Module, example: Tensor, *, step: bool = False, inputs: Mapping[str, Any] | None = None) -> Graph:
    """A traceable form of a layer, a block or a model.

    Args:
        module: what is exported; a copy is taken.
        example: inputs (B, L, D), or tokens (B, L), of the sizes that the graph is for; at least three steps.
        step: the graph of one step from a state, not of the whole sequence.
        inputs: examples of what else the graph takes, by the names of the module's `forward`: "valid", "elapsed" and "seq_idx"
            (B, L), or a "state", after which the graph also gives the state after the last step; with `step` by the names of
            `step`: "elapsed" and "active" (B,). What is not here the graph does without.

    With `g = graph(module, example)`, `torch.export.export(g.module, g.arguments, dynamic_shapes=g.dynamic_shapes)` gives the
    program; `g.names` are the arguments' names: "x", those of `inputs`, and "state_0", "state_1", ... for the tensors of a state.
    ValueError where the module cannot go step by step, has no such input, or refuses the examples; TypeError where one of them is
    no tensor.
    """
    if example.shape[1] < 3:
        raise ValueError(f"example: got {example.shape[1]} steps, needed at least 3")
    twin = exportable(module)
    if step and not getattr(twin, "streaming", False):
        raise ValueError(f"step: {type(module).__name__} cannot be run step by step")
    named = dict(inputs or {})
    _check_names(module, named, step)
    state, x, form = named.pop("state", None), example, Whole
    with torch.no_grad():
        if step:
            state, x, form = twin(example[:, :3], return_state=True)[1], example[:, 0], OneStep
        before, traced = state_tensors(state), form(twin, tuple(named), state).eval()
        arguments = (x, *named.values(), *before)
        found = traced(*arguments)  # which refuses what does not fit in the contract's own words
    open_axes = _growing_axes(before, [] if state is None else found[1:])
    shapes = (None, (*(None for _ in named), *open_axes)) if any(open_axes) else None
    return Graph(traced, arguments, shapes, ("x", *named, *(f"state_{i}" for i in range(len(before)))))


def _check_names(module: nn.Module, inputs: Mapping[str, Any], step: bool) -> None:
    """ValueError unless all inputs are arguments of the module, TypeError unless all but a state are tensors."""
    function, filled = (module.step, {"state"}) if step else (module.forward, {"return_state"})
    known = set(list(inspect.signature(function).parameters)[1:]) - filled  # type: ignore[arg-type]
    for name, value in inputs.items():
        if name not in known:
            what = f"{type(module).__name__}{' step by step' if step else ''}"
            raise ValueError(f"inputs: got {name!r}, needed names of what {what} takes: {', '.join(sorted(known)) or 'none'}")
        if name != "state" and not isinstance(value, Tensor):
            raise TypeError(f"inputs: {name} got a {type(value).__name__}, needed a tensor")


def _growing_axes(before: Sequence[Tensor], after: Sequence[Tensor]) -> list[dict[int, Any] | None]:
    """For each tensor of a state the axes that grow with the steps; ValueError where there is too little in one to trace it."""
    growing = torch.export.Dim("steps")
    found: list[dict[int, Any] | None] = []
    for one, other in zip(before, after, strict=True):
        axes = [axis for axis, (short, long) in enumerate(zip(one.shape, other.shape, strict=True)) if short != long]
        if any(one.shape[axis] < 2 for axis in axes):
            raise ValueError("state: got one of fewer than two steps, needed an example after two or more, as it grows")
        found.append(dict.fromkeys(axes, growing) or None)
    return found


def _translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """What padding and packing bring into graphs and torch has no ONNX form of."""
    onnx: Any = importlib.import_module("onnxscript").opset18

    def product(x: Any, axes: list[int]) -> Any:  # what a cumulative one is taken apart into
        return onnx.ReduceProd(x, axes, keepdims=0)

    def running_maximum(x: Any, axis: int) -> tuple[Any]:
        """Without the places: each round looks twice as far back."""
        length, reach = x.shape[axis], 1
        while reach < length:
            first, earlier = (onnx.Slice(x, [0], [end], [axis]) for end in (reach, length - reach))
            x, reach = onnx.Max(x, onnx.Concat(first, earlier, axis=axis)), 2 * reach
        return (x,)

    def sort(x: Any, *, stable: bool, dim: int = -1, descending: bool = False) -> Any:  # noqa: ARG001 - TopK is stable
        """TopK puts the first of equals first; booleans, which it does not know, are sorted as whole numbers."""
        if x.dtype.is_floating_point():
            raise TypeError(f"sort: got {x.dtype}, needed whole numbers or booleans")
        whole = onnx.Gather(onnx.Shape(x), [dim])
        values, places = onnx.TopK(onnx.Cast(x, to=7), whole, axis=dim, largest=int(descending))
        return onnx.CastLike(values, x), places

    aten = torch.ops.aten
    return {torch.ops.prims.prod.default: product, aten.cummax.default: running_maximum, aten.sort.stable: sort}


def export_onnx(
    module: nn.Module, path: str | Path, example: Tensor, *, step: bool = False, inputs: Mapping[str, Any] | None = None
) -> None:
    """Write an ONNX file.

    Args:
        module: a layer, a block or a model.
        path: of the file.
        example: as in `graph`; the file is for these sizes.
        step: one step from a state: inputs "x", "state_0", "state_1", ... and outputs "y", "after_0", "after_1", ..., the tensors
            of the state in its order (`longscan.layers.state.state_tensors`). Otherwise "x" to "y".
        inputs: as in `graph`: examples of further inputs of the file, under their names; a "state" gives "state_0", ... and
            "after_0", ..., as `step` does.

    ImportError names the packages where they are missing.
    """
    traced = graph(module, example, step=step, inputs=inputs)
    states = sum(name.startswith("state_") for name in traced.names)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's remarks on its own deprecated parts
            program = torch.onnx.export(
                traced.module,
                traced.arguments,
                dynamo=True,
                verbose=False,
                input_names=list(traced.names),
                output_names=["y", *(f"after_{i}" for i in range(states))],
                dynamic_shapes=traced.dynamic_shapes,
                custom_translation_table=_translations(),
            )
    except ModuleNotFoundError as error:
        needed = f"export_onnx needs the package {error.name}: pip install 'longscan[export]'"
        raise ImportError(needed, name=error.name) from error
    if program is None:
        raise RuntimeError("export_onnx: torch gave no program")
    for node in program.model.graph:  # torch names some values inside as it likes, `second` among them
        for value in node.outputs:
            value.name = f"inner_{value.name}" if value.name in traced.names else value.name
    program.save(str(path))
