"""Explain which backend runs where: that of one op, or of every op of a model beside the parts that are torch's own."""

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

from longscan.ops.dispatch import Choice, Recording, choose, recorded_choices, verdicts_path

LENGTH = 8  # steps of the rows that a model is tried with
WIDTH = 100  # columns of the printed table
COLUMNS = {"module": 30, "part": 28, "backend": 7, "calls": 13}  # their largest widths; the last column, why, takes the rest
TORCH = "torch"
HALF = (torch.bfloat16, torch.float16)
# The functions of torch that are named; all others are elementwise, or move numbers around.
NAMED = re.compile(
    r"(fft_\w+|linear|embedding|scaled_dot_product_attention|gru|lstm|einsum|matmul|__r?matmul__|bmm|rms_norm|layer_norm"
    r"|linalg_matrix_power|conv1d)$"
)
SHARED = ("longscan.ops.chunks", "longscan.ops.arguments")  # modules of the ops that layers call, too


@dataclass(frozen=True)
class Row:
    """One part of a module: an op and its backend, None where the one asked for is refused; or functions of torch that it calls.

    module: its name in the model; torch's own modules count as parts of the one around them. calls: some of "whole" (rows of
    several steps), "packed" (rows of several sequences) and "step" (one step). by_doctor: whether a saved verdict of
    `longscan doctor` decided.
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

    title: what is explained, and where it is. calls: those that the model has.
    """

    title: str
    calls: tuple[str, ...]
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        cells: list[tuple[str, ...]] = [(*COLUMNS, "why")]
        for row in _merged(self.rows):
            calls = "all" if row.calls == self.calls else ", ".join(row.calls)
            cells.append((row.module or "(itself)", row.part, row.backend or "none", calls, row.reason))
        widths = [min(most, max(len(row[i]) for row in cells)) for i, most in enumerate(COLUMNS.values())]
        widths.append(WIDTH - sum(widths) - 2 * len(widths))
        lines = [line for row in cells for line in _wrapped(row, widths)]
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
    """Say which backend runs an op on some device, or all that a layer, a block or a model runs where it is, and why.

    Args:
        subject: the name of an op, for the backend that `auto` takes; or a layer, a block or a model, for each of its modules.
        device, dtype: of the inputs of an op; the CPU and float32 unless given. Not for a model, which is explained on its own
            device and in its own dtype, under autocast where that is on.

    Returns:
        a sentence for an op; an `Explanation` for a model, whose `rows` are one for each op of a module and one for the functions
        of torch that it calls itself (backend "torch": no backend is chosen there). Printed, it is a table.

    The model is run on rows of zeros in evaluation mode, every op by its eager backend, and left as it was; a backend that cannot
    be had is a row that says so, not an error.

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
            raise ValueError(f"{name}: got {value!r} beside a model, which is explained where it is; expected None")
    return _explain_model(subject)


def _explain_model(model: nn.Module) -> Explanation:
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if not isinstance(model, nn.Module) or not (hasattr(model, "initial_state") or hasattr(model, "backbone")):
        raise TypeError(f"subject: got a {type(model).__name__}, expected an op's name, or a layer, block or model of longscan")
    parameters = list(model.parameters())
    dtype = next((x.dtype for x in parameters if x.dtype in HALF), parameters[0].dtype)
    training = {part: part.training for part in model.modules()}
    watches: list[_Watch] = []
    try:
        model.eval()
        for label, call in _calls(model, dtype):
            watch = _Watch(label, model)
            with torch.no_grad(), recorded_choices(watch), _Functions(watch):
                taken = call()
            watches += [] if taken is None else [watch]
    finally:
        for part, mode in training.items():
            part.training = mode
    backend = getattr(getattr(model, "backbone", model), "backend", None)
    title = f"{type(model).__name__} on {parameters[0].device}, {dtype}" + (f", backend {backend!r}" if backend else "")
    return Explanation(title, tuple(watch.label for watch in watches), tuple(_rows(model, watches)))


def _calls(model: Any, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], object]]]:
    """A call of each kind that the model has, on zeros."""
    taken = inspect.signature(model.forward).parameters
    x = _zeros(model, dtype)
    needed = [x for parameter in taken.values() if parameter.default is parameter.empty]
    yield "whole", lambda: model(*needed)
    if "seq_idx" in taken:
        ids = (torch.arange(LENGTH, device=x.device) >= LENGTH // 2).long().unsqueeze(0)
        yield "packed", lambda: _packed(model, x, ids)
    if getattr(model, "streaming", False) and hasattr(model, "step"):
        state = model.initial_state(1)
        yield "step", lambda: model.step(x[:, 0], state)


def _packed(model: Any, x: Tensor, ids: Tensor) -> object:
    """A packed row; None where the model takes no such rows."""
    try:
        return model(x, seq_idx=ids)
    except ValueError as error:
        if not str(error).startswith(("seq_idx: ", "`seq_idx` ")):
            raise
        return None


def _zeros(model: Any, dtype: torch.dtype) -> Tensor:
    """Tokens (1, L), or vectors (1, L, width), as the model takes them."""
    source = model if any(hasattr(model, name) for name in ("vocab_size", "d_input", "initial_state")) else model.backbone
    device = next(model.parameters()).device
    if getattr(source, "vocab_size", None) is not None:
        return torch.zeros(1, LENGTH, dtype=torch.int64, device=device)
    width = source.d_input if getattr(source, "d_input", None) is not None else source.d_model
    return torch.zeros(1, LENGTH, width, dtype=dtype, device=device)


class _Watch(Recording):
    """The choices and the functions of torch in one call of a model, each with the name of the module that made it."""

    def __init__(self, label: str, model: nn.Module) -> None:
        super().__init__(dry=True)
        self.label = label
        self.names: dict[int, str] = {}
        for name, part in model.named_modules():
            around = name.rpartition(".")[0]
            own = not type(part).__module__.startswith("torch.")
            self.names[id(part)] = name if own else self.names[id(model.get_submodule(around))] if name else ""
        self.made: list[tuple[str, Choice]] = []
        self.functions: list[tuple[str, str]] = []

    def add(self, choice: Choice) -> None:
        """Enter a choice under the module that called the op."""
        self.made.append((self._caller(inside_ops=True) or "", choice))

    def enter(self, function: str) -> None:
        """Enter a function of torch under the module that called it, unless an op of `longscan.ops` did."""
        name = self._caller(inside_ops=False)
        if name is not None:
            self.functions.append((name, function))

    def _caller(self, *, inside_ops: bool) -> str | None:
        """The name of the innermost module on the call stack; None where, between here and there, an op was called."""
        frame = sys._getframe(2)
        while frame is not None:
            place = frame.f_globals.get("__name__", "")
            if place.startswith("longscan.ops.") and place not in (__name__, *SHARED) and not inside_ops:
                return None
            owner = frame.f_locals.get("self")
            if id(owner) in self.names:
                return self.names[id(owner)]
            frame = frame.f_back  # type: ignore[assignment]
        return None


class _Functions(TorchFunctionMode):
    """Tells a watch of every function of torch that is called."""

    only_observes = True  # so that the model takes the same way through its code as without it

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.watch.enter(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def _rows(model: nn.Module, watches: Sequence[_Watch]) -> Iterator[Row]:
    """The rows of all calls, those of a module side by side, in the order of the modules."""
    with_parameters = {name for name, part in model.named_modules() if any(x is not None for x in part._parameters.values())}
    for name in dict(model.named_modules()):
        found: dict[Row, list[str]] = {}
        for watch in watches:
            chosen = dict.fromkeys(choice for caller, choice in watch.made if caller == name)
            named = {_spelled(function) for caller, function in watch.functions if caller == name and NAMED.match(function)}
            for choice in chosen:
                reason = choice.reason if choice.backend else f"refused: {choice.reason}"
                found.setdefault(Row(name, choice.op, choice.backend, (), reason, choice.by_doctor), []).append(watch.label)
            if named:
                found.setdefault(Row(name, ", ".join(sorted(named)), TORCH, (), "torch's own"), []).append(watch.label)
            elif not chosen and name in with_parameters and any(caller == name for caller, _ in watch.functions):
                found.setdefault(Row(name, "elementwise", TORCH, (), "torch's own"), []).append(watch.label)
        for row, labels in found.items():
            yield replace(row, calls=tuple(labels))


def _spelled(function: str) -> str:
    """A function's name as users of torch know it."""
    return {"__matmul__": "matmul", "__rmatmul__": "matmul"}.get(function, function.removeprefix("fft_").removeprefix("linalg_"))


def _merged(rows: Sequence[Row]) -> list[Row]:
    """The rows with those of equal blocks in one: `blocks.0,2,4.block`."""
    groups: dict[tuple[str, str, Row], list[int]] = {}
    for row in rows:
        before, index, after = re.match(r"(?:((?:.*\.)?blocks\.)(\d+))?(.*)$", row.module).groups("")  # type: ignore[union-attr]
        groups.setdefault((before, after, replace(row, module="")), []).extend([int(index)] if index else [])
    return [replace(row, module=before + _listed(indices) + after) for (before, after, row), indices in groups.items()]


def _listed(indices: Sequence[int]) -> str:
    """0-5 for neighbours, 0,2,4 for others, 0,2,...,46 for many that are as far apart."""
    steps = {after - before for before, after in pairwise(indices)}
    if len(indices) > 2 and steps == {1}:
        return f"{indices[0]}-{indices[-1]}"
    if len(indices) > 4 and len(steps) == 1:
        return f"{indices[0]},{indices[1]},...,{indices[-1]}"
    return ",".join(map(str, indices))


def _wrapped(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """The lines of one row of a table."""
    columns = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
    count = max(map(len, columns))
    padded = [column + [""] * (count - len(column)) for column in columns]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*padded, strict=True)
    ]
