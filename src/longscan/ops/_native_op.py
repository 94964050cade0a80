"""Native backends as opaque `torch.library` custom ops, one for an op and one for its backward.

A native backend of an op is a module `longscan.ops.<op>.<backend>` with `forward` and `backward` on contiguous real tensors of
one dtype (complex numbers are pairs). `NativeOp` wraps both in custom ops with fake, autograd and vmap rules, so that
`torch.compile`, export and many-model training treat each as one node. A plain call (not compiled, traced or transformed) does
not use the custom op, whose dispatch costs more time than a small kernel: it calls the kernel directly, through an autograd
function if gradients are recorded. There is no second derivative: requesting it raises an error. Shapes, dtypes and devices are
checked before a kernel gets an address, for every caller: `forward`, `backward` and `forward_traced` in `NativeOp`, the only
functions that call kernels, begin with the check.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from longscan.distributed.context import SequenceSplit, current_split
from longscan.ops import dispatch
from longscan.ops._repeated_calls import RepeatedFunction
from longscan.ops._signature import Limits, Signature
from longscan.ops.pieces import FactorKind, PieceExchange
from longscan.ops.tracing import in_func_transform, is_compiled_or_transformed

# Ops whose Triton kernels a compiler can trace.
TRACED_OPS = ("linear_scan", "block2_scan", "unitary_scan", "selective_scan", "short_conv", "ssd_scan")
GROUPED = ("triton",)  # native backends whose kernels take parameters with a leading axis of groups

_library = torch.library.Library("longscan", "DEF")  # type: ignore[no-untyped-call]


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
    def forward(ctx: Any, op: "_CustomOp", exchange: PieceExchange, *args: Any) -> Any:
        ctx.op, ctx.exchange = op, exchange
        y, _, *kept = op.run(*args, exchange_state=exchange.exchange_state)
        output = y, exchange.take_last(), *kept
        op.save(ctx, [exchange.state_before if x is exchange.initial_state else x for x in args], output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (None, None, *ctx.op.differentiate(ctx, *grads, exchange=ctx.exchange))


class _CustomOp:
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
    ) -> None:
        name = "longscan::" + schema.split("(")[0]
        self.run, self.save, self.differentiate = run, save, differentiate
        self._batched, self._folds, self._chunk_states = batched, folds, chunk_states
        _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
        torch.library.impl(name, "default", run, lib=_library)
        torch.library.register_fake(name, fake, lib=_library)
        torch.library.register_autograd(name, differentiate, setup_context=save, lib=_library)
        torch.library.register_vmap(name, self.vmap, lib=_library)
        self.overload = getattr(torch.ops.longscan, name.split("::")[1]).default

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
        if rows_alone or args[-1] in GROUPED:
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
                for x, folded in zip(self(*given), by_row, strict=True)
            ]
        else:
            # unbind, not select: its backward fills one tensor for all models, that of select such a tensor for each model
            by_model = [[x] * size if axis is None else x.unbind(axis) for x, axis in zip(args, in_dims, strict=True)]
            each = [self(*given) for given in zip(*by_model, strict=True)]
            outputs = [torch.stack(results) for results in zip(*each, strict=True)]
        return tuple(outputs), (0,) * len(outputs)


class NativeOp:
    """The custom ops `longscan::<name>` and `longscan::<name>_backward` around the native kernels of one op.

    Args:
        name: the name of the op.
        native: its native backends.
        inputs: declarations of the tensors that `forward` takes, in order, in the syntax of `Signature`; one is the
            `initial_state`, whose dtype is that of the computation.
        constants: the names of the boolean arguments after the tensors. "name: 2" declares a boolean that must be true exactly if
            the bracket axis "[2]" is present.
        outputs: the two results of `forward`, both differentiable and with a leading batch axis, as "name: input of the same
            shape and dtype".
        saved: the arguments of `backward` after the gradients of the two results: inputs, results, then constants.
        gradients: input that gets a gradient -> name in `saved` of a tensor of its shape.
        batched: function of the number of axes of each input that returns the names of the inputs with a batch axis.
        chunk_states: function of the backend's module, the first input and the initial state that returns the shape of a third
            result; None if there is none. `forward` then takes a last boolean, `save_states`: whether it returns these states for
            `backward`, or an empty tensor.
        may_be_empty, limits: arguments of `Signature`.
        pieces: the backends whose `forward` takes a function `exchange_state` and whose `backward` takes `exchange_gradient`.
            With these methods of `PieceExchange` they exchange states between pieces of split sequences.
    """

    def __init__(
        self,
        name: str,
        native: tuple[str, ...],
        inputs: Sequence[str],
        constants: Sequence[str],
        outputs: Sequence[str],
        saved: Sequence[str],
        gradients: dict[str, str],
        batched: Callable[[dict[str, int]], Sequence[str]],
        chunk_states: Callable[[Any, Tensor, Tensor], Sequence[int]] | None = None,
        may_be_empty: Sequence[str] = (),
        limits: Limits | None = None,
        pieces: Sequence[str] = (),
    ) -> None:
        self._name, self._pieces = name, pieces
        declared = {text.split(":")[0].rstrip("?"): text for text in inputs}
        optional = {text.split(":")[0].rstrip("?") for text in inputs if "?" in text.split(":")[0]}
        axis_of = {text.partition(": ")[0]: text.partition(": ")[2] for text in constants}
        like = dict(text.split(": ") for text in outputs)
        keeps = () if chunk_states is None else ("chunk_states",)
        results = (*like, *keeps)
        constants = (*axis_of, *(("save_states",) if keeps else ()))
        self._arguments = arguments = (*declared, *constants)
        same_shape = {"grad_y": like[results[0]], "grad_final": like[results[1]], **like}

        def signature_of(op: str, names: Sequence[str]) -> Signature:
            texts = [
                declared[x] if x in declared else f"{x}:{declared[same_shape[x]].split(':')[1]}"
                for x in names
                if x not in constants and x != "chunk_states"
            ]
            return Signature(op, texts, "initial_state", may_be_empty, limits)

        def schema(names: Sequence[str], count: int) -> str:
            types = {name: "bool" if name in constants else "Tensor?" if name in optional else "Tensor" for name in names}
            listed = ", ".join(f"{kind} {name}" for name, kind in types.items())
            return f"({listed}, str backend) -> ({', '.join(['Tensor'] * count)})"

        forward_signature = signature_of(name, arguments)
        backward_arguments = ("grad_y", "grad_final", *saved)
        backward_signature = signature_of(f"{name}_backward", backward_arguments)

        def check_backend(backend: str) -> None:
            if backend not in native:
                raise ValueError(f"`backend` must be one of {', '.join(native)}, the native backends of {name}, got {backend!r}")

        def check_fake(signature: Signature, known: dict[str, Any], backend: str) -> None:
            signature.check_devices([known[x] for x in signature.names])
            if "chunk_states" in known:
                check_chunk_states_device(known["chunk_states"], known["initial_state"])
            check_backend(backend)

        def check(signature: Signature, known: dict[str, Any], backend: str, traced: bool = False) -> None:
            state, axes = known["initial_state"], signature.check([known[x] for x in signature.names], backend, traced)
            check_backend(backend)
            reason = dispatch.unsupported_reason(name, backend, state.device, state.dtype, native)
            if reason:
                raise ValueError(dispatch.unsupported_backend_message(name, backend, reason))
            if "models" in axes and backend not in GROUPED:
                of = ", ".join(x for x in signature.names if "models" in declared.get(x, ""))
                raise ValueError(f"`{of}` must be without an axis of models for the {backend} backend of {name}, got one")
            for constant, axis in axis_of.items():
                if axis and known[constant] != (axis in axes):
                    raise ValueError(f"`{constant}` must be {axis in axes} by the axes of the tensors, got {known[constant]}")

        def forward(*args: Any, exchange_state: Callable[[Tensor, Tensor], Tensor] | None = None) -> Any:
            check(forward_signature, dict(zip(arguments, args, strict=False)), args[-1])
            *given, backend = _contiguous(args)
            module, more, back = self.module(backend), {}, {}
            if backend != "triton":
                return tuple(module.forward(*given, **({} if exchange_state is None else {"exchange_state": exchange_state})))
            from longscan.ops import _gpu

            if exchange_state is not None:
                more["exchange_state"] = lambda *sent: sent[1] if _gpu.is_compiling() else exchange_state(*sent)
                back["exchange_gradient"] = lambda grad: grad

            def later() -> None:
                known = dict(zip((*arguments, *results), (*given, *forward_fake(*given, backend)), strict=True))
                if known.get("save_states", True):
                    module.backward(*(known[x] for x in results[:2]), *(known[x] for x in saved), **back)

            return tuple(_gpu.compile_together(lambda: module.forward(*given, **more), later))

        def backward(*args: Any, exchange_gradient: Callable[[Tensor], Tensor] | None = None) -> Any:
            given, more = check_backward(*args), {}
            module = self.module(args[-1])
            if args[-1] != "triton":
                if exchange_gradient is not None:
                    more["exchange_gradient"] = exchange_gradient
                return tuple(module.backward(*given, **more))
            from longscan.ops import _gpu

            if exchange_gradient is not None:
                more["exchange_gradient"] = lambda grad: grad if _gpu.is_compiling() else exchange_gradient(grad)
            return tuple(_gpu.compile_together(lambda: module.backward(*given, **more)))

        def check_backward(*args: Any, traced: bool = False) -> list[Any]:
            """Check and return the arguments of a backward kernel; compute the chunk states if `forward` did not save them."""
            *given, backend = args
            known = dict(zip(backward_arguments, given, strict=True))
            check(backward_signature, known, backend, traced)
            if chunk_states is not None:
                module, kept, state = self.module(backend), known["chunk_states"], known["initial_state"]
                check_chunk_states_device(kept, state)
                if kept.ndim != 1 or kept.shape[0]:
                    check_chunk_states(kept, tuple(chunk_states(module, known[arguments[0]], state)), state)
                else:  # the graph was recorded without gradients, which are needed now
                    known["chunk_states"] = module.forward(*_contiguous([x == "save_states" or known[x] for x in arguments]))[2]
            return _contiguous(list(known.values()))

        self.forward, self.backward = forward, backward
        repeated_forward, repeated_backward = RepeatedFunction(forward), RepeatedFunction(backward)

        def run_forward(*args: Any, exchange_state: Callable[[Tensor, Tensor], Tensor] | None = None) -> Any:
            if args[-1] == "triton" and exchange_state is None:
                return repeated_forward(*args)
            return forward(*args, exchange_state=exchange_state)

        def run_backward(*args: Any) -> Any:
            return repeated_backward(*args) if args[-1] == "triton" else backward(*args)

        def check_chunk_states(x: Tensor, shape: tuple[int, ...], like: Tensor) -> None:
            if x.shape != shape:
                raise ValueError(f"`chunk_states` must be of shape {shape}, or (0,) if none were saved, got {tuple(x.shape)}")
            if x.dtype != like.dtype:
                raise TypeError(f"`chunk_states` must be of dtype {like.dtype} like initial_state, got {x.dtype}")

        def check_chunk_states_device(x: Tensor | None, like: Tensor) -> None:
            if x is None:
                raise TypeError(f"`chunk_states` must be a tensor, which {name}_backward requires, got None")
            if x.device != like.device:
                raise ValueError(f"`chunk_states` must be on {like.device} like initial_state, got a tensor on {x.device}")

        def forward_fake(*args: Any) -> Any:
            known = dict(zip(arguments, args[:-1], strict=True))
            check_fake(forward_signature, known, args[-1])
            found = [known[x].new_empty(known[x].shape) for x in like.values()]
            if chunk_states is not None:
                state = known["initial_state"]
                shape = chunk_states(self.module(args[-1]), args[0], state) if known["save_states"] else (0,)
                found.append(state.new_empty(shape))
            return tuple(found)

        def backward_fake(*args: Any) -> Any:
            known = dict(zip(backward_arguments, args[:-1], strict=True))
            check_fake(backward_signature, known, args[-1])
            same = [known[source] if known.get(x, args[0]) is not None else None for x, source in gradients.items()]
            return tuple(args[0].new_empty((0,)) if x is None else x.new_empty(x.shape) for x in same)

        places = {name: i for i, name in enumerate((*arguments, "backend", *results))}
        saved_tensors = [places[name] for name in saved if name not in constants]
        saved_constants = [places[name] for name in saved if name in constants]
        gradient_of = {name: i for i, name in enumerate(gradients)}

        def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            known = *inputs, *output
            ctx.save_for_backward(*[known[i] for i in saved_tensors])
            ctx.constants, ctx.backend = [known[i] for i in saved_constants], inputs[-1]
            ctx.gradients = [None if x is None else gradient_of.get(name) for name, x in zip(arguments, inputs, strict=False)]
            ctx.mark_non_differentiable(*output[2:])
            ctx.set_materialize_grads(False)  # otherwise autograd would allocate zeros as gradients of the saved states, too
            ctx.results = [(result.shape, result.dtype) for result in output[:2]]

        def differentiate(ctx: Any, *grads: Tensor | None, exchange: PieceExchange | None = None) -> Any:
            tensors = ctx.saved_tensors
            given = [
                tensors[0].new_zeros(shape, dtype=dtype) if x is None else x
                for x, (shape, dtype) in zip(grads, ctx.results, strict=False)
            ]
            arguments_of_second = *given, *tensors, *ctx.constants, ctx.backend
            if exchange is not None:
                found = list(
                    backward(*arguments_of_second, exchange_gradient=lambda grad: exchange.exchange_gradient(grad, given[1]))
                )
                if exchange.split.rank:  # the first piece alone reads the initial state
                    place = gradient_of["initial_state"]
                    found[place] = torch.zeros_like(found[place])
            else:  # after a plain call without `create_graph` only the gradients can be transformed, by `is_grads_batched`
                only_gradients = getattr(ctx, "is_plain", False) and not torch.is_grad_enabled()
                found = second(*arguments_of_second, observed=given if only_gradients else None)
            return (*[None if i is None else found[i] for i in ctx.gradients], None)

        def save_backend(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
            ctx.backend = inputs[-1]

        def raise_no_second_derivative(ctx: Any, *_: Any) -> Any:
            raise RuntimeError(f"{name}: the {ctx.backend} backend has no second derivative; use backend='eager'")

        def has_batch(axes: Sequence[int]) -> tuple[Sequence[bool], Sequence[bool]]:
            chosen = batched(dict(zip((*arguments, "backend"), axes, strict=True)))
            return [name in chosen for name in (*arguments, "backend")], [True] * len(results)

        def has_batch_backward(axes: Sequence[int]) -> tuple[Sequence[bool], Sequence[bool]]:
            names = (*backward_arguments, "backend")
            chosen = {*batched(dict(zip(names, axes, strict=True))), *results, "grad_y", "grad_final"}
            return [name in chosen for name in names], [name in chosen for name in gradients]

        self._first = _CustomOp(
            name + schema(arguments, len(results)), run_forward, forward_fake, save, differentiate, has_batch, True
        )
        second = _CustomOp(
            name + "_backward" + schema(backward_arguments, len(gradients)),
            run_backward, backward_fake, save_backend, raise_no_second_derivative, has_batch_backward, False,
            backward_arguments.index("chunk_states") if keeps else None,
        )  # fmt: skip
        if name in TRACED_OPS:

            def forward_traced(*args: Any) -> Any:
                check(forward_signature, dict(zip(arguments, args, strict=False)), args[-1], traced=True)
                return self.module("triton").forward(*_contiguous(args[:-1]))

            self._first.trace_kernels(forward_traced)
            second.trace_kernels(lambda *args: self.module("triton").backward(*check_backward(*args, traced=True)))

    def module(self, backend: str) -> Any:
        """Return the module of a native backend of the op."""
        return import_module(f"longscan.ops.{self._name}.{backend}")

    def __call__(self, *args: Any) -> tuple[Tensor, ...]:
        """Run `forward`. args: inputs, constants, and the name of the backend."""
        if forward_ad._current_level >= 0 and any(_has_tangent(x) for x in args if isinstance(x, Tensor)):
            raise RuntimeError(f"{self._name}: the {args[-1]} backend has no forward-mode derivative; use backend='eager'")
        return self._first(*args)

    def of_piece(self, *args: Any, factors: FactorKind) -> Callable[[SequenceSplit], tuple[Tensor, Tensor]] | None:
        """Return a function that runs the op on a piece of split sequences, for `scan_piece`; None if the backend cannot.

        args: as in a call; the initial state is that before the first piece. factors: the kind that `PieceExchange` takes.
        """
        if current_split() is None or args[-1] not in self._pieces:
            return None
        if is_compiled_or_transformed(*[x for x in args if isinstance(x, Tensor)]):
            return None
        known = dict(zip(self._arguments, args, strict=False))

        def run(split: SequenceSplit) -> tuple[Tensor, Tensor]:
            return self._first.run_piece(PieceExchange(split, known["initial_state"], known["flags"], factors), *args)

        return run


def _has_tangent(x: Tensor) -> bool:
    return forward_ad.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]


def _contiguous(values: Sequence[Any]) -> list[Any]:
    return [value.contiguous() if isinstance(value, Tensor) else value for value in values]


def keeps_chunk_states(*inputs: Tensor | None) -> bool:
    """Return whether a backward pass may follow a call on these inputs, so that the kernel must return the chunk states."""
    if not torch.is_grad_enabled():
        return False
    return in_func_transform() or any(x is not None and x.requires_grad for x in inputs)
