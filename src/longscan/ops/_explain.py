"""Report which backend runs an op, or each op of a model, and which functions of torch the model calls itself."""

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from longscan._errors import names_argument
from longscan.ops.dispatch import Choice, Recording, choose, recorded_choices, verdicts_path

LENGTH = 8  # steps of the example sequences
WIDTH = 100  # columns of the printed table
COLUMNS = {"module": 30, "part": 28, "backend": 7, "calls": 13}  # largest widths; the last column, "why", takes the rest
TORCH = "torch"
REDUCED_PRECISION = (torch.bfloat16, torch.float16)
# Functions of torch that the table names; all others are elementwise or copy data.
NAMED_FUNCTIONS = re.compile(
    r"(fft_\w+|linear|embedding|scaled_dot_product_attention|gru|lstm|einsum|matmul|__r?matmul__|bmm|rms_norm|layer_norm"
    r"|linalg_matrix_power|conv1d)$"
)
SHARED_MODULES = ("longscan.ops.chunks", "longscan.ops.arguments")  # modules of the ops that layers also call


@dataclass(frozen=True)
class Row:
    """One part of a module: an op with its backend, or the functions of torch that the module calls itself.

    Attributes:
        module: name of the module in the model; modules of torch belong to the module that contains them.
        part: name of the op, or of the functions.
        backend: the backend that runs; None if the requested one cannot.
        calls: some of "whole" (rows of several steps), "packed" (rows of several sequences) and "step" (one step).
        reason: the reason for the backend.
        by_doctor: whether a saved verdict of `longscan doctor` determined the choice.
    """

    module: str
    part: str
    backend: str | None
    calls: tuple[str, ...]
    reason: str
    by_doctor: bool = False


@dataclass(frozen=True)
class Explanation:
    """The result of `explain` for a model, which prints as a table of 100 columns.

    Attributes:
        title: type, device and dtype of the model.
        calls: the kinds of calls that the model supports.
        rows: the parts of the model.
    """

    title: str
    calls: tuple[str, ...]
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        cells: list[tuple[str, ...]] = [(*COLUMNS, "why")]
        for row in _merge_blocks(self.rows):
            calls = "all" if row.calls == self.calls else ", ".join(row.calls)
            cells.append((row.module or "(itself)", row.part, row.backend or "none", calls, row.reason))
        widths = [min(most, max(len(row[i]) for row in cells)) for i, most in enumerate(COLUMNS.values())]
        widths.append(WIDTH - sum(widths) - 2 * len(widths))
        lines = [line for row in cells for line in _wrap_row(row, widths)]
        known = {"whole": "rows of several steps", "packed": "rows of several sequences", "step": "one step without gradients"}
        notes = textwrap.fill("calls: " + "; ".join(f"{call}, {known[call]}" for call in self.calls), WIDTH)
        if any(row.by_doctor for row in self.rows):
            notes += f"\nVerdicts of `longscan doctor`: {verdicts_path()}"
        return "\n".join([self.title, "", *lines, "", notes])

    __repr__ = __str__


@overload
def explain(subject: str, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> str: ...
@overload
def explain(subject: nn.Module) -> Explanation: ...
def explain(
    subject: str | nn.Module, device: str | torch.device | None = None, dtype: torch.dtype | None = None
) -> str | Explanation:
    """Return which backend runs an op on a device, or all ops of a layer, a block or a model on its device, and why.

    Args:
        subject: the name of an op, for the backend that `auto` chooses; or a layer, a block or a model, for each of its modules.
        device, dtype: of the inputs of an op; the CPU and float32 if None. They must be None for a model, which is explained on
            its device and in its dtype, with autocast if that is enabled.

    Returns:
        a sentence for an op; an `Explanation` for a model. It has one row for each op of a module, and one row for the functions
        of torch that the module calls itself (backend "torch": no backend is chosen there). It prints as a table.

    The model runs on rows of zeros in evaluation mode, every op on its eager backend; its mode is restored afterwards. A backend
    that is not available gives a row that says so, not an error.

    >>> explain("linear_scan", "meta")
    'linear_scan on meta, torch.float32: eager (no native kernel for this device)'
    """
    from longscan.ops import OPS

    if isinstance(subject, str):
        place, precision = torch.device("cpu" if device is None else device), dtype or torch.float32
        choice = choose(subject, "auto", place, precision, OPS[subject].native)
        return f"{subject} on {place}, {precision}: {choice.backend} ({choice.reason})"
    for name, value in (("device", device), ("dtype", dtype)):
        if value is not None:
            raise ValueError(f"`{name}` must be None for a model, which is explained on its own device, got {value!r}")
    return _explain_model(subject)


def _explain_model(model: nn.Module) -> Explanation:
    model = getattr(model, "_orig_mod", model)  # the module that torch.compile wraps
    if not isinstance(model, nn.Module) or not (hasattr(model, "initial_state") or hasattr(model, "backbone")):
        raise TypeError(
            f"`subject` must be the name of an op, or a layer, block or model of longscan, got a {type(model).__name__}"
        )
    parameters = list(model.parameters())
    dtype = next((x.dtype for x in parameters if x.dtype in REDUCED_PRECISION), parameters[0].dtype)
    training = {part: part.training for part in model.modules()}
    recorders: list[_CallRecorder] = []
    try:
        model.eval()
        for label, call in _example_calls(model, dtype):
            recorder = _CallRecorder(label, model)
            with torch.no_grad(), recorded_choices(recorder), _FunctionRecorder(recorder):
                result = call()
            recorders += [] if result is None else [recorder]
    finally:
        for part, mode in training.items():
            part.training = mode
    backend = getattr(getattr(model, "backbone", model), "backend", None)
    title = f"{type(model).__name__} on {parameters[0].device}, {dtype}" + (f", backend {backend!r}" if backend else "")
    return Explanation(title, tuple(recorder.label for recorder in recorders), tuple(_build_rows(model, recorders)))


def _example_calls(model: Any, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the kinds of calls that the model supports, each with a function that makes this call on zeros."""
    parameters = inspect.signature(model.forward).parameters
    x = _example_input(model, dtype)
    inputs = [x for parameter in parameters.values() if parameter.default is parameter.empty]
    yield "whole", lambda: model(*inputs)
    if "seq_idx" in parameters:
        ids = (torch.arange(LENGTH, device=x.device) >= LENGTH // 2).long().unsqueeze(0)
        yield "packed", lambda: _call_packed(model, x, ids)
    if getattr(model, "streaming", False) and hasattr(model, "step"):
        state = model.initial_state(1)
        yield "step", lambda: model.step(x[:, 0], state)


def _call_packed(model: Any, x: Tensor, ids: Tensor) -> object:
    """Return the result of a call on a packed row; None if the model does not accept packed rows."""
    try:
        return model(x, seq_idx=ids)
    except ValueError as error:
        if not names_argument(error, "seq_idx"):
            raise
        return None


def _example_input(model: Any, dtype: torch.dtype) -> Tensor:
    """Return an input of zeros: tokens (1, L) or vectors (1, L, width), according to the model."""
    source = model if any(hasattr(model, name) for name in ("vocab_size", "d_input", "initial_state")) else model.backbone
    device = next(model.parameters()).device
    if getattr(source, "vocab_size", None) is not None:
        return torch.zeros(1, LENGTH, dtype=torch.int64, device=device)
    width = source.d_input if getattr(source, "d_input", None) is not None else source.d_model
    return torch.zeros(1, LENGTH, width, dtype=dtype, device=device)


class _CallRecorder(Recording):
    """Records the choices of backends and the functions of torch in one call of a model, with the calling modules."""

    def __init__(self, label: str, model: nn.Module) -> None:
        super().__init__(dry=True)
        self.label = label
        self.names: dict[int, str] = {}
        for name, part in model.named_modules():
            parent = name.rpartition(".")[0]
            is_torch = type(part).__module__.startswith("torch.")
            self.names[id(part)] = name if not is_torch else self.names[id(model.get_submodule(parent))] if name else ""
        self.made: list[tuple[str, Choice]] = []
        self.functions: list[tuple[str, str]] = []

    def add(self, choice: Choice) -> None:
        """Record a choice with the module that called the op."""
        self.made.append((self._caller(inside_ops=True) or "", choice))

    def add_function(self, function: str) -> None:
        """Record a function of torch with the module that called it, unless an op of `longscan.ops` called it."""
        name = self._caller(inside_ops=False)
        if name is not None:
            self.functions.append((name, function))

    def _caller(self, *, inside_ops: bool) -> str | None:
        """Return the name of the innermost module on the call stack; None if an op was called inside it, unless `inside_ops`."""
        frame = sys._getframe(2)
        while frame is not None:
            place = frame.f_globals.get("__name__", "")
            if place.startswith("longscan.ops.") and place not in (__name__, *SHARED_MODULES) and not inside_ops:
                return None
            owner = frame.f_locals.get("self")
            if id(owner) in self.names:
                return self.names[id(owner)]
            frame = frame.f_back  # type: ignore[assignment]
        return None


class _FunctionRecorder(TorchFunctionMode):
    """Reports every call of a function of torch to a recorder."""

    only_observes = True  # read by `is_compiled_or_transformed`, so that the model runs the same code as without this mode

    def __init__(self, recorder: _CallRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.recorder.add_function(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def _build_rows(model: nn.Module, recorders: Sequence[_CallRecorder]) -> Iterator[Row]:
    """Yield the rows of all calls in the order of the modules; rows of one module stand together."""
    with_parameters = {name for name, part in model.named_modules() if any(x is not None for x in part._parameters.values())}
    for name in dict(model.named_modules()):
        found: dict[Row, list[str]] = {}
        for recorder in recorders:
            chosen = dict.fromkeys(choice for caller, choice in recorder.made if caller == name)
            named = {
                _public_name(function)
                for caller, function in recorder.functions
                if caller == name and NAMED_FUNCTIONS.match(function)
            }
            for choice in chosen:
                reason = choice.reason if choice.backend else f"refused: {choice.reason}"
                found.setdefault(Row(name, choice.op, choice.backend, (), reason, choice.by_doctor), []).append(recorder.label)
            if named:
                found.setdefault(Row(name, ", ".join(sorted(named)), TORCH, (), "torch's own"), []).append(recorder.label)
            elif not chosen and name in with_parameters and any(caller == name for caller, _ in recorder.functions):
                found.setdefault(Row(name, "elementwise", TORCH, (), "torch's own"), []).append(recorder.label)
        for row, labels in found.items():
            yield replace(row, calls=tuple(labels))


def _public_name(function: str) -> str:
    """Return the public name of a function of torch."""
    return {"__matmul__": "matmul", "__rmatmul__": "matmul"}.get(function, function.removeprefix("fft_").removeprefix("linalg_"))


def _merge_blocks(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with equal rows of several blocks merged into one, as in `blocks.0,2,4.block`."""
    groups: dict[tuple[str, str, Row], list[int]] = {}
    for row in rows:
        before, index, after = re.match(r"(?:((?:.*\.)?blocks\.)(\d+))?(.*)$", row.module).groups("")  # type: ignore[union-attr]
        groups.setdefault((before, after, replace(row, module="")), []).extend([int(index)] if index else [])
    return [replace(row, module=before + _format_indices(indices) + after) for (before, after, row), indices in groups.items()]


def _format_indices(indices: Sequence[int]) -> str:
    """Return indices as text: 0-5 if consecutive, 0,2,...,46 if there are more than four at equal distances, otherwise 0,2,4."""
    steps = {after - before for before, after in pairwise(indices)}
    if len(indices) > 2 and steps == {1}:
        return f"{indices[0]}-{indices[-1]}"
    if len(indices) > 4 and len(steps) == 1:
        return f"{indices[0]},{indices[1]},...,{indices[-1]}"
    return ",".join(map(str, indices))


def _wrap_row(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return the lines of one row of a table, with cells wrapped to the widths of the columns."""
    columns = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
    count = max(map(len, columns))
    padded = [column + [""] * (count - len(column)) for column in columns]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*padded, strict=True)
    ]
