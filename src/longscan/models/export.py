"""Export of layers, blocks and models to torch.export programs and ONNX files, for a whole sequence or for one step.

The exported graph has real arithmetic only: ops run on their eager backend, which stores complex numbers as pairs of real ones,
and the exporter writes the complex numbers inside Fourier transforms (long convolutions) as pairs too. All sizes are fixed to
those of the example. Only the axis of a state that grows with the number of steps, as that of attention does, is dynamic.
"""

import copy
import importlib
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from longscan._files import checked_path
from longscan.layers.checks import require_tensor
from longscan.layers.state import State, map_state, state_tensors

M = TypeVar("M", bound=nn.Module)


def prepare_for_export(module: M) -> M:
    """Return a copy of `module` in evaluation mode, without gradients, whose ops run on the eager backend."""
    copied = copy.deepcopy(module).eval().requires_grad_(False)
    for part in copied.modules():
        for name, value in (("backend", "eager"), ("recompute", False)):
            if hasattr(part, name):
                setattr(part, name, value)
    return copied


class WholeSequence(nn.Module):
    """The forward pass of a module over a whole sequence, with positional tensors as its only arguments.

    Args:
        module: a layer, a block or a model.
        names: names of the arguments after x.
        state: a state with the structure of those whose tensors follow these arguments; None for a forward pass without one.
    """

    def __init__(self, module: nn.Module, names: tuple[str, ...], state: State) -> None:
        super().__init__()
        self.module, self.names, self.state = module, names, state

    def forward(self, x: Tensor, *rest: Tensor) -> Any:
        """Return y, or with a state the tuple of y and the tensors of the state after the last step.

        Args:
            x: inputs (B, L, D), or tokens (B, L).
            rest: the named inputs in the order of `names`, then the tensors of the state in the order of `state_tensors`.
        """
        named, state = _split_arguments(self.names, self.state, rest)
        if self.state is None:
            return self.module(x, **named)
        y, after = self.module(x, state=state, return_state=True, **named)
        return y, *state_tensors(after)


class OneStep(WholeSequence):
    """One step of a module, with positional tensors as its only arguments."""

    def forward(self, x: Tensor, *rest: Tensor) -> Any:
        """Return the tuple of y and the tensors of the state after the step.

        Args:
            x: inputs of the step (B, D), or tokens (B,).
            rest: the named inputs in the order of `names`, then the tensors of the state before the step.
        """
        named, state = _split_arguments(self.names, self.state, rest)
        y, after = self.module.step(x, state, **named)  # type: ignore[operator]
        return y, *state_tensors(after)


def _split_arguments(names: tuple[str, ...], state: State, rest: tuple[Tensor, ...]) -> tuple[dict[str, Tensor], State]:
    """Return the named inputs as a mapping, and a state with the structure of `state` made of the remaining tensors."""
    tensors = iter(rest[len(names) :])
    return dict(zip(names, rest, strict=False)), map_state(lambda _: next(tensors), state)


class Graph(NamedTuple):
    """The arguments of an exporter.

    Attributes:
        module: a module that takes tensors as positional arguments.
        arguments: example arguments.
        dynamic_shapes: the dynamic axes of the arguments, as `torch.export.export` takes them; None if there are none.
        names: names of the arguments.
    """

    module: nn.Module
    arguments: tuple[Tensor, ...]
    dynamic_shapes: Any
    names: tuple[str, ...]


def _require_module(module: object) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(f"`module` must be a layer, a block or a model, got a {type(module).__name__}")


def export_graph(module: nn.Module, example: Tensor, *, step: bool = False, inputs: Mapping[str, Any] | None = None) -> Graph:
    """Return a layer, a block or a model in a form that exporters can trace.

    With `g = export_graph(module, example)`, `torch.export.export(g.module, g.arguments, dynamic_shapes=g.dynamic_shapes)` gives
    the exported program.

    Args:
        module: the module to export. It is copied.
        example: inputs (B, L, D), or tokens (B, L), of the sizes that the graph is for; L is at least 3.
        step: export one step from a state instead of the whole sequence.
        inputs: examples of further inputs of the graph, by the names of the module's `forward`: "valid", "elapsed" and "seq_idx"
            (B, L), and "state", with which the graph also returns the state after the last step. With `step`, by the names of the
            module's `step`: "elapsed" and "active" (B,). An input without an example is not an input of the graph.

    Returns a `Graph`, whose argument names are "x", those of `inputs`, and "state_0", "state_1", ... for the tensors of a state.

    Raises ValueError if the module cannot run step by step, has no such input, or does not accept the examples, and TypeError if
    `module` is no module or an example other than the state is not a tensor.
    """
    _require_module(module)
    require_tensor("example", example)
    if example.ndim < 2 or example.shape[1] < 3:
        raise ValueError(f"`example` must have shape (batch, length >= 3, ...), got {tuple(example.shape)}")
    copied = prepare_for_export(module)
    if step and not getattr(copied, "streaming", False):
        raise ValueError(f"`step` must be False, as {type(module).__name__} cannot run step by step, got True")
    if not isinstance(inputs, Mapping | None):
        raise TypeError(f"`inputs` must be a mapping of names to tensors or None, got a {type(inputs).__name__}")
    named = dict(inputs or {})
    _check_names(module, named, step)
    state, x, form = named.pop("state", None), example, WholeSequence
    with torch.no_grad():
        if step:
            state, x, form = copied(example[:, :3], return_state=True)[1], example[:, 0], OneStep
        before, traced = state_tensors(state), form(copied, tuple(named), state).eval()
        arguments = (x, *named.values(), *before)
        outputs = traced(*arguments)  # raises the module's own errors for arguments that do not fit
    dynamic_axes = _growing_axes(before, [] if state is None else outputs[1:])
    shapes = (None, (*(None for _ in named), *dynamic_axes)) if any(dynamic_axes) else None
    return Graph(traced, arguments, shapes, ("x", *named, *(f"state_{i}" for i in range(len(before)))))


def _check_names(module: nn.Module, inputs: Mapping[str, Any], step: bool) -> None:
    """Raise ValueError unless all inputs are arguments of the module and none that it needs is missing.

    Raises TypeError unless all but the state are tensors.
    """
    function, excluded = (module.step, {"state"}) if step else (module.forward, {"return_state"})
    parameters = dict(list(inspect.signature(function).parameters.items())[1:])  # type: ignore[arg-type]
    known = parameters.keys() - excluded
    for name in known - inputs.keys():
        if (
            parameters[name].default is inspect.Parameter.empty
            and parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        ):
            raise ValueError(f"`inputs` must have {name!r}, which {type(module).__name__} needs, got none")
    for name, value in inputs.items():
        if name not in known:
            method = f"{type(module).__name__}.{'step' if step else 'forward'}"
            raise ValueError(f"`inputs` must be arguments of {method} ({', '.join(sorted(known)) or 'none'}), got {name!r}")
        if name != "state":
            require_tensor(f"inputs[{name!r}]", value)


def _growing_axes(before: Sequence[Tensor], after: Sequence[Tensor]) -> list[dict[int, Any] | None]:
    """Return for each tensor of a state its dynamic axes, those whose size grows with the number of steps; None for no such axis.

    before, after: the tensors of the state before and after the example. Raises ValueError if a growing axis of `before` has
    fewer than two entries: torch.export treats sizes 0 and 1 as constants.
    """
    growing = torch.export.Dim("steps")
    dynamic: list[dict[int, Any] | None] = []
    for one, other in zip(before, after, strict=True):
        axes = [axis for axis, (short, long) in enumerate(zip(one.shape, other.shape, strict=True)) if short != long]
        if any(one.shape[axis] < 2 for axis in axes):
            raise ValueError("`state` must be a state after at least two steps, as it grows with the steps, got one after fewer")
        dynamic.append(dict.fromkeys(axes, growing) or None)
    return dynamic


def _onnx_translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return ONNX implementations of the torch operators in masks and packed rows that torch's exporter does not translate."""
    onnx: Any = importlib.import_module("onnxscript").opset18

    def product(x: Any, axes: list[int]) -> Any:  # torch decomposes cumprod into it
        return onnx.ReduceProd(x, axes, keepdims=0)

    def running_maximum(x: Any, axis: int) -> tuple[Any]:
        """Return the running maximum without its indices, by maxima over windows whose length doubles."""
        length, window = x.shape[axis], 1
        while window < length:
            first, earlier = (onnx.Slice(x, [0], [end], [axis]) for end in (window, length - window))
            x, window = onnx.Max(x, onnx.Concat(first, earlier, axis=axis)), 2 * window
        return (x,)

    def sort(x: Any, *, stable: bool, dim: int = -1, descending: bool = False) -> Any:  # noqa: ARG001 - TopK is stable
        """Return sorted values and their indices by TopK, which is stable; booleans are sorted as integers."""
        if x.dtype.is_floating_point():
            raise TypeError(f"the operand of sort must be integers or booleans, got {x.dtype}")
        size = onnx.Gather(onnx.Shape(x), [dim])
        values, indices = onnx.TopK(onnx.Cast(x, to=7), size, axis=dim, largest=int(descending))
        return onnx.CastLike(values, x), indices

    aten = torch.ops.aten
    return {torch.ops.prims.prod.default: product, aten.cummax.default: running_maximum, aten.sort.stable: sort}


# Lines that say nothing about a graph: no module has operators of torchvision, and a constant that is not folded is computed.
_NEEDLESS_LINES = {  # logger -> beginning of its line
    "torch.onnx._internal.exporter._registration": "torchvision is not installed",
    "onnxscript.optimizer._constant_folding": "Skipping constant folding",
}


@contextmanager
def _without_needless_lines() -> Iterator[None]:
    """Drop the log records of `_NEEDLESS_LINES` inside the `with` statement."""

    def is_kept(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(_NEEDLESS_LINES[record.name])

    loggers = [logging.getLogger(name) for name in _NEEDLESS_LINES]
    for logger in loggers:
        logger.addFilter(is_kept)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_kept)


def export_onnx(
    module: nn.Module, path: str | Path, example: Tensor, *, step: bool = False, inputs: Mapping[str, Any] | None = None
) -> None:
    """Write a layer, a block or a model to an ONNX file.

    The file maps "x" to "y". With a state it also takes "state_0", "state_1", ... and returns "after_0", "after_1", ..., the
    tensors of the state before and after, in the order of `longscan.layers.state.state_tensors`.

    Args:
        module: the module to export. It is copied.
        path: the file to write.
        example: inputs (B, L, D), or tokens (B, L), of the sizes that the file is for; L is at least 3.
        step: export one step from a state instead of the whole sequence.
        inputs: examples of further inputs of the file by name, as in `export_graph`.

    Raises ImportError naming a missing package, TypeError for a path that is none, FileNotFoundError for a path in a folder that
    does not exist, IsADirectoryError for that of a folder, ValueError for a layer that calls ops without an attribute `backend`,
    and the errors of `export_graph`.
    """
    _require_module(module)
    for part in module.modules():
        if getattr(part, "op_names", ()) and not hasattr(part, "backend"):
            needed = "modules that pass their attribute `backend` to their ops, which must run on 'eager'"
            raise ValueError(f"`module` must contain {needed}, got {type(part).__name__} without this attribute")
    traced = export_graph(module, example, step=step, inputs=inputs)
    file = checked_path("path", path)
    if file.is_dir():
        raise IsADirectoryError(f"`path` must be a file, got the folder {file}")
    if not file.parent.is_dir():
        raise FileNotFoundError(f"`path` must be a file in a folder that exists, got {file}")
    n_states = sum(name.startswith("state_") for name in traced.names)
    try:
        with warnings.catch_warnings(), _without_needless_lines():
            warnings.simplefilter("ignore")  # deprecations inside the exporter
            program = torch.onnx.export(
                traced.module,
                traced.arguments,
                dynamo=True,
                verbose=False,
                input_names=list(traced.names),
                output_names=["y", *(f"after_{i}" for i in range(n_states))],
                dynamic_shapes=traced.dynamic_shapes,
                custom_translation_table=_onnx_translations(),
            )
    except ModuleNotFoundError as error:
        needed = f"export_onnx needs the package {error.name}: pip install 'longscan[export]'"
        raise ImportError(needed, name=error.name) from error
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    for node in program.model.graph:  # torch may give an inner value the name of an input
        for value in node.outputs:
            value.name = f"inner_{value.name}" if value.name in traced.names else value.name
    program.save(str(file))
