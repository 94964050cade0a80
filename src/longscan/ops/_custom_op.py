"""Custom ops around functions that call kernels, with rules for autograd, vmap, compilers and pieces of split sequences.

A plain call (not compiled, traced or transformed) does not use the custom op, whose dispatch costs more time than a small kernel:
it calls the kernel directly, through an autograd function if gradients are recorded.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.autograd.function import once_differentiable

from longscan.ops.pieces import PieceExchange
from longscan.ops.tracing import in_func_transform, is_compiled_or_transformed

GROUPED = ("triton",)  # native backends whose kernels take parameters with a leading axis of groups

_library = torch.library.Library("longscan", "DEF")  # type: ignore[no-untyped-call]


class _Transformed(torch.autograd.Function):
    """The autograd and vmap rules of a custom op, in the form that the transforms of torch.func understand."""

    @staticmethod
    def forward(op: "CustomOp", *args: Any) -> Any:
        return op.overload(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.op = inputs[0]
        ctx.op.save(ctx, inputs[1:], output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (None, *ctx.op.differentiate(ctx, *grads))

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        """Raise RuntimeError. Forward-mode derivatives of gradients, as `torch.func.hessian` computes them, come here."""
        raise RuntimeError(f"{ctx.op.name}: the {ctx.backend} backend has no forward-mode derivative; use backend='eager'")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], op: "CustomOp", *args: Any) -> Any:
        return op.vmap(info, in_dims[1:], *args)


class _Recorded(torch.autograd.Function):
    """The autograd rule of a custom op around its kernel, for plain calls."""

    @staticmethod
    def forward(ctx: Any, op: "CustomOp", *args: Any) -> Any:
        ctx.op, ctx.is_plain = op, True
        output = op.run(*args)
        op.save(ctx, args, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (None, *ctx.op.differentiate(ctx, *grads))


class _Piece(torch.autograd.Function):
    """The autograd rule of a kernel on a piece of split sequences, with the exchange of the states between pieces."""

    @staticmethod
    def forward(ctx: Any, op: "CustomOp", exchange: PieceExchange, *args: Any) -> Any:
        ctx.op, ctx.exchange = op, exchange
        y, _, *kept = op.run(*args, exchange_state=exchange.exchange_state)
        output = y, exchange.take_last(), *kept
        op.save(ctx, [exchange.state_before if x is exchange.initial_state else x for x in args], output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (None, None, *ctx.op.differentiate(ctx, *grads, exchange=ctx.exchange))


class CustomOp:
    """One custom op, which is called with the positional arguments of its schema.

    Args:
        schema: name, arguments and results, as `torch.library.Library.define` takes them, without the namespace.
        run: function that computes the results.
        fake: function that returns empty results of the right shapes, for fake tensors.
        save, differentiate: the autograd rule, as `torch.library.register_autograd` takes its `setup_context` and `backward`.
        batched: function of the numbers of axes of all arguments that returns which arguments, and which results, have a leading
            batch axis, into which `vmap` can fold a mapped axis.
        folds: whether each row of the results depends on the same row of the arguments only, so that the rows of all models can
            form one batch.
        chunk_states: index of the argument `chunk_states`; None if the op has no such argument.
        grouped: whether the kernels of the backends in GROUPED take parameters with a leading axis of groups.
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
        chunk_states: int | None = None,
        grouped: bool = True,
    ) -> None:
        self.name = schema.split("(")[0]
        name = f"longscan::{self.name}"
        self.run, self.save, self.differentiate = run, save, differentiate
        self._batched, self._folds, self._chunk_states, self._grouped = batched, folds, chunk_states, grouped
        _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
        torch.library.impl(name, "default", run, lib=_library)
        torch.library.register_fake(name, fake, lib=_library)
        torch.library.register_autograd(name, differentiate, setup_context=save, lib=_library)
        torch.library.register_vmap(name, self.vmap, lib=_library)
        self.overload = getattr(torch.ops.longscan, self.name).default

    def trace_kernels(self, run: Callable[..., Any]) -> None:
        """Make compilers trace the Triton kernels that `run` launches, instead of one opaque node.

        This is what `torch.library.triton_op` does for an op with a single implementation. Graphs of torch.export contain the
        custom op itself, because they may run without Triton.
        """

        def decompose(mode: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
            from longscan.ops import _gpu

            if args[-1] != "triton" or _gpu.INTERPRETED or torch.compiler.is_exporting():
                return mode.__torch_dispatch__(op, types, args, kwargs)
            with mode, _gpu.traced_launches():
                return tuple(run(*args))

        torch.library.register_torch_dispatch(self.overload, FunctionalTensorMode, decompose, lib=_library)

    def __call__(self, *args: Any, observed: Sequence[Tensor] | None = None) -> Any:
        """Run the op. observed: the tensors that may be transformed or differentiated; all when None."""
        tensors = [x for x in args if isinstance(x, Tensor)] if observed is None else observed
        if is_compiled_or_transformed(*tensors):
            if in_func_transform():
                return _Transformed.apply(self, *args)  # type: ignore[no-untyped-call]
            return self.overload(*args)
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            return _Recorded.apply(self, *args)  # type: ignore[no-untyped-call]
        return self.run(*args)

    def run_piece(self, exchange: PieceExchange, *args: Any) -> tuple[Tensor, Tensor]:
        """Return the outputs of a piece of split sequences, and the state after the last piece."""
        if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args):
            y, last, *_ = _Piece.apply(self, exchange, *args)  # type: ignore[no-untyped-call]
            return y, last
        return self.run(*args, exchange_state=exchange.exchange_state)[0], exchange.take_last()

    def vmap(self, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        """Return the results for arguments with a mapped axis (a vmap rule), by one call where possible.

        If every mapped argument has a batch axis, the mapped axis is folded into the batch. Otherwise parameters are mapped: the
        backends in GROUPED get one group of parameters for each model, and the others are called once for each model.
        """
        size, mapped = info.batch_size, [axis is not None for axis in in_dims]
        axes = [x.ndim - moved if isinstance(x, Tensor) else 0 for x, moved in zip(args, mapped, strict=True)]
        batched, by_row = self._batched(axes)
        rows_alone = self._folds and all(can for can, moved in zip(batched, mapped, strict=True) if moved)
        if rows_alone or (self._grouped and args[-1] in GROUPED):
            given = []
            for i, (x, axis, can) in enumerate(zip(args, in_dims, batched, strict=True)):
                if i == self._chunk_states and axis is None:
                    x = x.new_empty(0)  # computed again: a smaller batch had its steps divided into other chunks
                elif isinstance(x, Tensor) and (can or not rows_alone):
                    x = x.expand(size, *x.shape) if axis is None else x.movedim(axis, 0)
                    x = x.flatten(0, 1) if can else x
                given.append(x)
            outputs = [
                x.reshape(size, x.shape[0] // size, *x.shape[1:]) if folded or not len(x) else x
                for x, folded in zip(_as_tuple(self(*given)), by_row, strict=True)
            ]
        else:
            # unbind, not select: its backward fills one tensor for all models, that of select such a tensor for each model
            by_model = [[x] * size if axis is None else x.unbind(axis) for x, axis in zip(args, in_dims, strict=True)]
            each = [_as_tuple(self(*given)) for given in zip(*by_model, strict=True)]
            outputs = [torch.stack(results) for results in zip(*each, strict=True)]
        return (outputs[0], 0) if len(outputs) == 1 else (tuple(outputs), (0,) * len(outputs))


def _as_tuple(results: Any) -> tuple[Tensor, ...]:
    return (results,) if isinstance(results, Tensor) else tuple(results)
