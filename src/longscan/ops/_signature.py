"""Declared shapes, dtypes and devices of the tensors of a native op, checked before a kernel gets an address."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Size, Tensor

FLOATS = (torch.float32, torch.float64)
# further dtypes of tensors of these kinds, which the triton backend accepts if it computes in float32
REDUCED = {"reduced": (torch.bfloat16, torch.float16), "bfloat16": (torch.bfloat16,)}

Sizes = Mapping[str, int]
Limits = Callable[[Sizes], str | None]


class _DeclaredTensor(NamedTuple):
    """One declared tensor: `axes` are symbols, numbers and brackets; `kind` is "", "reduced", "bfloat16" or "uint8"."""

    name: str
    optional: bool
    axes: tuple[str, ...]
    kind: str


class _Form(NamedTuple):
    """The comparisons of sizes for given numbers of axes of all tensors.

    Attributes:
        chosen: the alternatives of the brackets.
        sizes: each symbol with the indices of the tensor and of the axis that define its size.
        derived: symbols "X-1", each with X.
        numbers: axes of constant size.
        shapes: the distinct shapes, in symbols.
        tensors: the index of each tensor that is not None, and the index of its shape in `shapes`.
    """

    chosen: frozenset[str]
    sizes: tuple[tuple[str, int, int], ...]
    derived: tuple[tuple[str, str], ...]
    numbers: dict[str, int]
    shapes: tuple[tuple[str, ...], ...]
    tensors: tuple[tuple[int, int], ...]


class Signature:
    """The tensors that a native function takes.

    Args:
        op: the name of the function, for error messages.
        tensors: one string each, "name: axes" or "name: axes, kind". Axes are symbols (equal ones have equal sizes), numbers,
            "X-1" for one less than X, and brackets: the axes of "[X Y]" are present or absent, the same in all tensors with this
            bracket; of "[X | Y]" one or none is present. "?" after the name allows None. Without a kind the dtype is that of
            `like`. The triton backend also accepts "reduced" and "bfloat16" tensors in the dtypes of `REDUCED`; all "bfloat16"
            tensors must have the same dtype. "uint8" tensors have this dtype.
        like: the tensor whose dtype, float32 or float64, is that of the computation.
        may_be_empty: symbols whose size may be 0.
        limits: further condition on the sizes: a function that returns an error message that names a tensor, or None.

    The axis "models" is for backends that run several models in one call: the rows of the batch, "B", are divided equally.
    """

    def __init__(
        self, op: str, tensors: Sequence[str], like: str, may_be_empty: Sequence[str] = (), limits: Limits | None = None
    ) -> None:
        self._op = op
        self._declared = [_parse(text) for text in tensors]
        self.names = tuple(part.name for part in self._declared)
        self._like, self._may_be_empty, self._limits = self.names.index(like), frozenset(may_be_empty), limits
        self._uint8 = frozenset(i for i, part in enumerate(self._declared) if part.kind == "uint8")
        self._forms: dict[tuple[int, ...], _Form] = {}  # keys: the numbers of axes of the tensors, -1 for None
        self._latest: tuple[list[Size | None], _Form | None] = [], None  # the shapes that were checked last, and their form

    def check(self, tensors: Sequence[Tensor | None], backend: str, traced: bool = False) -> frozenset[str]:
        """Return the chosen alternatives of the brackets. Raise ValueError or TypeError, naming the tensor, unless all match.

        traced: whether sizes may be symbols of a graph. The graph is then valid only for sizes that pass these comparisons.
        """
        shapes = [None if x is None else x.shape for x in tensors]
        latest, form = self._latest
        if traced:
            form = self._check_shapes(tensors, shapes)
        elif form is None or shapes != latest:
            form = self._check_shapes(tensors, shapes)
            self._latest = shapes, form
        like: Tensor = tensors[self._like]  # type: ignore[assignment]
        dtype, device, uniform = like.dtype, like.device, True
        for i, _ in form.tensors:
            x: Tensor = tensors[i]  # type: ignore[assignment]
            if x.device != device:
                raise ValueError(self._device_error(i, x.device, device))
            uniform = uniform and x.dtype is (torch.uint8 if i in self._uint8 else dtype)
        if not uniform or dtype not in FLOATS:
            self._check_dtypes(tensors, dtype, backend)
        return form.chosen

    def _check_shapes(self, tensors: Sequence[Tensor | None], shapes: list[Size | None]) -> _Form:
        """Return the form of the tensors. Raise TypeError or ValueError, naming the tensor, unless their shapes match."""
        axes = tuple([-1 if shape is None else len(shape) for shape in shapes])
        form = self._forms.get(axes)
        if form is None:
            self._check_presence(tensors)
            form = self._forms[axes] = self._find_form(axes, shapes)
        sizes = {symbol: shapes[i][axis] for symbol, i, axis in form.sizes}  # type: ignore[index]
        for symbol, whole in form.derived:
            sizes[symbol] = sizes[whole] - 1
        sizes.update(form.numbers)
        expected = [tuple([sizes[symbol] for symbol in shape]) for shape in form.shapes]
        for i, place in form.tensors:
            if shapes[i] != expected[place]:
                raise ValueError(self._shape_error(form, i, place, shapes[i], expected[place]))  # type: ignore[arg-type]
        if 0 in sizes.values() or self._limits is not None or "models" in sizes:
            self._check_sizes(form, sizes)
        return form

    def check_devices(self, tensors: Sequence[Tensor | None]) -> None:
        """Raise TypeError if a required tensor is None, and ValueError unless all are on one device; both name the tensor.

        This is the check of fake tensors, whose sizes may be symbols: comparisons of sizes would fix these symbols.
        """
        self._check_presence(tensors)
        device = tensors[self._like].device  # type: ignore[union-attr]
        for i, x in enumerate(tensors):
            if x is not None and x.device != device:
                raise ValueError(self._device_error(i, x.device, device))

    def _check_presence(self, tensors: Sequence[Tensor | None]) -> None:
        for x, part in zip(tensors, self._declared, strict=True):
            if x is None and not part.optional:
                raise TypeError(f"`{part.name}` must be a tensor, which {self._op} requires, got None")

    def _device_error(self, i: int, device: torch.device, expected: torch.device) -> str:
        return f"`{self.names[i]}` must be on {expected} like {self.names[self._like]}, got a tensor on {device}"

    def _shape_error(self, form: _Form, i: int, place: int, shape: Size, expected: tuple[int, ...]) -> str:
        symbols = form.shapes[place]
        sources = {self.names[j] for symbol, j, _ in form.sizes if j != i and {symbol, f"{symbol}-1"} & set(symbols)}
        of = f" of {', '.join(sorted(sources))}" if sources else ""
        return (
            f"`{self.names[i]}` must be of shape {expected}, which is ({', '.join(symbols)}) by the sizes{of}, got {tuple(shape)}"
        )

    def _check_dtypes(self, tensors: Sequence[Tensor | None], dtype: torch.dtype, backend: str) -> None:
        name = self.names[self._like]
        if dtype not in FLOATS:
            raise TypeError(f"`{name}` must be of dtype torch.float32 or torch.float64, got {dtype}")
        together: dict[torch.dtype, str] = {}
        for x, part in zip(tensors, self._declared, strict=True):
            if x is None:
                continue
            if part.kind == "bfloat16":
                together.setdefault(x.dtype, part.name)
            allowed: tuple[torch.dtype, ...] = (torch.uint8,) if part.kind == "uint8" else (dtype,)
            if backend == "triton" and dtype == torch.float32:
                allowed += REDUCED.get(part.kind, ())
            if x.dtype not in allowed:
                wanted = " or ".join(map(str, allowed))
                raise TypeError(f"`{part.name}` must be of dtype {wanted} where {name} is of {dtype}, got {x.dtype}")
        if len(together) > 1:
            (first, one), (second, other), *_ = together.items()
            raise TypeError(f"`{other}` must be of dtype {first} like {one}, got {second}")

    def _check_sizes(self, form: _Form, sizes: Sizes) -> None:
        for symbol, i, axis in form.sizes:
            if sizes[symbol] == 0 and symbol not in self._may_be_empty:
                raise ValueError(f"axis {axis} ({symbol}) of `{self.names[i]}` must be of size at least 1, got 0")
        models = sizes.get("models", 1)
        if sizes["B"] % models:
            name = next(self.names[i] for symbol, i, _ in form.sizes if symbol == "models")
            raise ValueError(f"the models of `{name}` must be a divisor of the batch of {sizes['B']} rows, got {models}")
        wrong = None if self._limits is None else self._limits(sizes)
        if wrong is not None:
            raise ValueError(wrong)

    def _find_form(self, axes: tuple[int, ...], shapes: Sequence[Size | None]) -> _Form:
        """Return the form for tensors with these numbers of axes; ValueError if there is none."""
        brackets = sorted({axis for part in self._declared for axis in part.axes if axis.startswith("[")})
        nearest: list[int] | None = None  # indices of the tensors that do not match the nearest form
        for choice in product(*(_alternatives(bracket) for bracket in brackets)):
            chosen = dict(zip(brackets, choice, strict=True))
            symbols = [tuple(" ".join(chosen.get(axis, axis) for axis in part.axes).split()) for part in self._declared]
            mismatched = [i for i, count in enumerate(axes) if count not in (-1, len(symbols[i]))]
            if not mismatched:
                return _form(frozenset(choice), symbols, axes)
            if nearest is None or len(mismatched) < len(nearest):
                nearest = mismatched
        i = (nearest or [0])[0]
        parts = [_alternatives(axis) if axis.startswith("[") else [axis] for axis in self._declared[i].axes]
        spelled = " or ".join(f"({', '.join(' '.join(choice).split())})" for choice in product(*parts))
        raise ValueError(
            f"`{self.names[i]}` must be of shape {spelled} with the axes of the others, got {tuple(shapes[i] or ())}"
        )


def _parse(text: str) -> _DeclaredTensor:
    name, _, rest = text.partition(":")
    axes, _, kind = rest.partition(",")
    return _DeclaredTensor(name.rstrip("?"), name.endswith("?"), tuple(re.findall(r"\[[^]]*\]|\S+", axes)), kind.strip())


def _alternatives(bracket: str) -> list[str]:
    """Return the alternatives that a bracket of a declaration stands for."""
    return ["", *(part.strip() for part in bracket.strip("[]").split("|"))]


def _form(chosen: frozenset[str], symbols: Sequence[tuple[str, ...]], axes: tuple[int, ...]) -> _Form:
    present = [i for i, count in enumerate(axes) if count >= 0]
    shapes = list(dict.fromkeys(symbols[i] for i in present))
    places: dict[str, tuple[int, int]] = {}
    for i in present:
        for axis, symbol in enumerate(symbols[i]):
            places.setdefault(symbol, (i, axis))
    numbers = {symbol: int(symbol) for symbol in places if symbol.isdigit()}
    derived = tuple((symbol, symbol.removesuffix("-1")) for symbol in places if symbol.endswith("-1"))
    others = tuple((symbol, *place) for symbol, place in places.items() if symbol not in numbers and not symbol.endswith("-1"))
    return _Form(chosen, others, derived, numbers, tuple(shapes), tuple((i, shapes.index(symbols[i])) for i in present))
