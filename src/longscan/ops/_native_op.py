"""Native backends as opaque `torch.library` custom ops, one for an op and one for its backward.

A native backend of an op is a module `longscan.ops.<op>.<backend>` with `forward` and `backward` on contiguous real tensors of
one dtype (complex numbers are pairs). `NativeOp` wraps both in custom ops with fake, autograd and vmap rules, so that
`torch.compile`, export and many-model training treat each as one node. A plain call takes none of that way, whose layers cost
more than a small kernel: it goes to the kernel, by an autograd function where it is recorded. There is no second derivative:
asking for it raises.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

GROUPED = ("triton",)  # native backends whose kernels take parameters with a leading axis of groups

_library = torch.library.Library("longscan", "DEF")  # type: ignore[no-untyped-call]


def _transforming() -> bool:
    """Whether vmap, grad or another transform of torch.func is running, outside of torch.compile."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


class _Transformed(torch.autograd.Function):
    """The autograd and vmap rules of a custom op, in the form that the transforms of torch.func understand."""

    @staticmethod
    def forward(op: "_CustomOp", *args: Any) -> Any:
        return op.overload(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.op = inputs[0]
        ctx.op.save(ctx, inputs[1:], output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (None, *ctx.op.differentiate(ctx, *grads))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], op: "_CustomOp", *args: Any) -> Any:
        return op.vmap(info, in_dims[1:], *args)


class _Recorded(torch.autograd.Function):
    """The autograd rule of a custom op around its kernel, for plain calls."""

    @staticmethod
    def forward(ctx: Any, op: "_CustomOp", *args: Any) -> Any:
        ctx.op = op
        output = op.run(*args)
        op.save(ctx, args, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (None, *ctx.op.differentiate(ctx, *grads))


class _CustomOp:
    """One custom op: call it with the positional arguments of its schema.

    run and fake compute its results and their shapes; save and differentiate are its autograd rule; batched says which
    arguments, and which results, have a leading batch axis into which a mapped axis can be folded, given the number of axes of
    each argument; folds: whether the results are those of every row alone, so that rows of all models can stand in one batch.
    """

    def __init__(
        self,
        schema: str,
        run: Callable[..., Any],
        fake: Callable[..., Any],
        save: Callable[..., None],
        differentiate: Callable[..., Any],
        batched: Callable[[Sequence[int]], tuple[Sequence[bool], Sequence[bool]]],
        folds: bool,
    ) -> None:
        name = "longscan::" + schema.split("(")[0]
        self.run, self.save, self.differentiate, self._batched, self._folds = run, save, differentiate, batched, folds
        _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
        torch.library.impl(name, "default", run, lib=_library)
        torch.library.register_fake(name, fake, lib=_library)
        torch.library.register_autograd(name, differentiate, setup_context=save, lib=_library)
        torch.library.register_vmap(name, self.vmap, lib=_library)
        self.overload = getattr(torch.ops.longscan, name.split("::")[1]).default

    def __call__(self, *args: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.overload(*args)
        if _transforming():
            return _Transformed.apply(self, *args)  # type: ignore[no-untyped-call]
        tensors = [x for x in args if isinstance(x, Tensor)]
        if torch._C._len_torch_dispatch_stack() or any(type(x) not in (Tensor, torch.nn.Parameter) for x in tensors):
            return self.overload(*args)
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            return _Recorded.apply(self, *args)  # type: ignore[no-untyped-call]
        return self.run(*args)

    def vmap(self, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        """Fold the mapped axis into the batch where every mapped argument has one.

        Else parameters are mapped: kernels that know groups get one group of parameters a model, others run model by model.
        """
        size, mapped = info.batch_size, [axis is not None for axis in in_dims]
        axes = [x.ndim - moved if isinstance(x, Tensor) else 0 for x, moved in zip(args, mapped, strict=True)]
        batched, by_row = self._batched(axes)
        rows_alone = self._folds and all(can for can, moved in zip(batched, mapped, strict=True) if moved)
        if rows_alone or args[-1] in GROUPED:
            given = []
            for x, axis, can in zip(args, in_dims, batched, strict=True):
                if isinstance(x, Tensor) and (can or not rows_alone):
                    x = x.expand(size, *x.shape) if axis is None else x.movedim(axis, 0)
                    x = x.flatten(0, 1) if can else x
                given.append(x)
            outputs = [
                x.reshape(size, x.shape[0] // size, *x.shape[1:]) if folded or not len(x) else x
                for x, folded in zip(self(*given), by_row, strict=True)
            ]
        else:
            each = [
                self(*(x if axis is None else x.select(axis, i) for x, axis in zip(args, in_dims, strict=True)))
                for i in range(size)
            ]
            outputs = [torch.stack(results) for results in zip(*each, strict=True)]
        return tuple(outputs), (0,) * len(outputs)


class NativeOp:
    """The custom ops `longscan::<name>` and `longscan::<name>_backward` around the native kernels of one op.

    inputs: the tensors that `forward` takes, in order, with a trailing "?" where None may come; constants: the booleans after
    them. outputs: what `forward` returns, each with a leading batch axis; the first two carry gradients. saved: what `backward`
    takes after the gradients of these two (inputs, outputs, then constants). gradients: the inputs that get a gradient, each
    with the name in `saved` of a tensor of its shape. shapes: the shapes of the outputs, from the backend's module and the
    arguments. batched: the inputs with a batch axis, given the number of axes of each.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[str],
        constants: Sequence[str],
        outputs: Sequence[str],
        saved: Sequence[str],
        gradients: dict[str, str],
        shapes: Callable[..., Sequence[Sequence[int]]],
        batched: Callable[[dict[str, int]], Sequence[str]],
    ) -> None:
        self._name = name
        optional = {name.rstrip("?") for name in inputs if name.endswith("?")}
        arguments = (*(name.rstrip("?") for name in inputs), *constants)

        def signature(names: Sequence[str], results: int) -> str:
            types = {name: "bool" if name in constants else "Tensor?" if name in optional else "Tensor" for name in names}
            declared = ", ".join(f"{kind} {name}" for name, kind in types.items())
            return f"({declared}, str backend) -> ({', '.join(['Tensor'] * results)})"

        def forward(*args: Any) -> Any:
            module, given = self._module(args[-1]), _contiguous(args[:-1])
            if args[-1] != "triton":
                return tuple(module.forward(*given))
            from longscan.ops import _triton_launch

            def later() -> None:
                results = forward_fake(*given, args[-1])
                known = dict(zip((*arguments, *outputs), (*given, *results), strict=True))
                if known.get("keep", True):
                    module.backward(*results[:2], *(known[name] for name in saved))

            return tuple(_triton_launch.compiled_together(lambda: module.forward(*given), later))

        def backward(*args: Any) -> Any:
            return tuple(self._module(args[-1]).backward(*_contiguous(args[:-1])))

        def forward_fake(*args: Any) -> Any:
            y, *others = shapes(self._module(args[-1]), *args[:-1])
            state = args[arguments.index("initial_state")]  # y has the dtype of the first input, the others that of the state
            return args[0].new_empty(y), *(state.new_empty(shape) for shape in others)

        def backward_fake(*args: Any) -> Any:
            known = dict(zip(saved, args[2:-1], strict=True))
            like = [known[source] if known.get(name, args[0]) is not None else None for name, source in gradients.items()]
            return tuple(args[0].new_empty((0,)) if x is None else x.new_empty(x.shape) for x in like)

        def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            known = dict(zip((*arguments, *outputs), (*inputs[:-1], *output), strict=True))
            ctx.save_for_backward(*(known[name] for name in saved if name not in constants))
            ctx.constants = [known[name] for name in saved if name in constants]
            ctx.backend, ctx.absent = inputs[-1], {name for name in arguments if known[name] is None}
            ctx.mark_non_differentiable(*output[2:])
            ctx.set_materialize_grads(False)  # it would make zeros for what is kept for the backward, too
            ctx.results = [(result.shape, result.dtype) for result in output[:2]]

        def differentiate(ctx: Any, *grads: Tensor | None) -> Any:
            tensors = ctx.saved_tensors
            results = zip(grads, ctx.results, strict=False)
            given = [tensors[0].new_zeros(shape, dtype=dtype) if x is None else x for x, (shape, dtype) in results]
            found = dict(zip(gradients, second(*given, *tensors, *ctx.constants, ctx.backend), strict=True))
            return (*(None if name in ctx.absent else found.get(name) for name in arguments), None)

        def remember_backend(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
            ctx.backend = inputs[-1]

        def refuse(ctx: Any, *_: Any) -> Any:
            raise RuntimeError(
                f"{name}: the {ctx.backend} backend has no second derivative; use backend='eager' where one is needed"
            )

        def has_batch(axes: Sequence[int]) -> tuple[Sequence[bool], Sequence[bool]]:
            chosen = batched(dict(zip((*arguments, "backend"), axes, strict=True)))
            return [name in chosen for name in (*arguments, "backend")], [True] * len(outputs)

        def has_batch_backward(axes: Sequence[int]) -> tuple[Sequence[bool], Sequence[bool]]:
            names = ("grad_y", "grad_final", *saved, "backend")
            chosen = {*batched(dict(zip(names, axes, strict=True))), *outputs, "grad_y", "grad_final"}
            return [name in chosen for name in names], [name in chosen for name in gradients]

        self._first = _CustomOp(
            name + signature(arguments, len(outputs)), forward, forward_fake, save, differentiate, has_batch, True
        )
        second = _CustomOp(
            name + "_backward" + signature(("grad_y", "grad_final", *saved), len(gradients)),
            backward, backward_fake, remember_backend, refuse, has_batch_backward, False,
        )  # fmt: skip

    def _module(self, backend: str) -> Any:
        return import_module(f"longscan.ops.{self._name}.{backend}")

    def __call__(self, *args: Any) -> tuple[Tensor, ...]:
        """Run `forward`. args: inputs, constants, and the name of the backend."""
        if forward_ad._current_level >= 0 and any(_has_tangent(x) for x in args if isinstance(x, Tensor)):
            raise RuntimeError(f"{self._name}: the {args[-1]} backend has no forward-mode derivative; use backend='eager'")
        return self._first(*args)


def _has_tangent(x: Tensor) -> bool:
    return forward_ad.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]


def _contiguous(values: Sequence[Any]) -> list[Any]:
    return [value.contiguous() if isinstance(value, Tensor) else value for value in values]


def keeps_chunk_states(*inputs: Tensor | None) -> bool:
    """Whether a backward may follow a call on these inputs, so that the kernel must hand out what it needs."""
    if not torch.is_grad_enabled():
        return False
    return _transforming() or any(x is not None and x.requires_grad for x in inputs)
