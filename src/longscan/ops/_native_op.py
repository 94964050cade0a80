"""Native backends as opaque `torch.library` custom ops, one for an op and one for its backward.

A native backend of an op is a module `longscan.ops.<op>.<backend>` with `forward` and `backward` on contiguous real tensors of
one dtype (complex numbers are pairs). `NativeOp` wraps both in custom ops with fake, autograd and vmap rules (`CustomOp`), so
that `torch.compile`, export and many-model training treat each as one node. There is no second derivative: requesting it raises
an error. Shapes, dtypes and devices are checked before a kernel gets an address, for every caller: `forward`, `backward` and
their traced forms in `NativeOp`, the only functions that call kernels, begin with the check.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from longscan.distributed.context import SequenceSplit, current_split
from longscan.ops import dispatch
from longscan.ops._custom_op import GROUPED, CustomOp
from longscan.ops._repeated_calls import RepeatedFunction
from longscan.ops._signature import Limits, Signature
from longscan.ops.pieces import FactorKind, PieceExchange
from longscan.ops.tracing import has_tangent, in_func_transform, is_compiled_or_transformed

# Ops whose Triton kernels a compiler can trace.
TRACED_OPS = ("linear_scan", "block2_scan", "unitary_scan", "selective_scan", "short_conv", "ssd_scan")

Exchange = Callable[..., Tensor] | None  # a method of `PieceExchange`, or None if sequences are not split


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
        self._name, self._native, self._pieces = name, native, pieces
        self._gradients, self._batched, self._chunk_states = gradients, batched, chunk_states
        self._declared = {text.split(":")[0].rstrip("?"): text for text in inputs}
        self._axis_of = {text.partition(": ")[0]: text.partition(": ")[2] for text in constants}
        self._like = dict(text.split(": ") for text in outputs)
        keeps = chunk_states is not None
        self._results = (*self._like, *(("chunk_states",) if keeps else ()))
        self._constants = (*self._axis_of, *(("save_states",) if keeps else ()))
        self._arguments = (*self._declared, *self._constants)
        self._saved, self._backward_arguments = saved, ("grad_y", "grad_final", *saved)
        # Places in the arguments and results of a call, found once: a dictionary for each call takes microseconds.
        places = {x: i for i, x in enumerate((*self._arguments, "backend", *self._results))}
        self._saved_tensors = [places[x] for x in saved if x not in self._constants]
        self._saved_constants = [places[x] for x in saved if x in self._constants]
        self._gradient_of = {x: i for i, x in enumerate(gradients)}
        self._signature = self._declare(name, self._arguments, may_be_empty, limits)
        self._backward_signature = self._declare(f"{name}_backward", self._backward_arguments, may_be_empty, limits)
        self._repeated_forward, self._repeated_backward = RepeatedFunction(self.forward), RepeatedFunction(self.backward)

        first = f"{name}{self._schema(self._arguments, len(self._results))}"
        second = f"{name}_backward{self._schema(self._backward_arguments, len(gradients))}"
        self._first = CustomOp(
            first, self._run_forward, self._fake_forward, self._save, self._differentiate, self._batched_arguments, folds=True
        )
        self._second = CustomOp(
            second, self._run_backward, self._fake_backward, self._save_backend, self._raise_no_second_derivative,
            self._batched_backward, folds=False, chunk_states=self._backward_arguments.index("chunk_states") if keeps else None,
        )  # fmt: skip
        if name in TRACED_OPS:
            self._first.trace_kernels(self._forward_traced)
            self._second.trace_kernels(self._backward_traced)

    def __call__(self, *args: Any) -> tuple[Tensor, ...]:
        """Run `forward`. args: inputs, constants, and the name of the backend."""
        if has_tangent(args):
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

    def module(self, backend: str) -> Any:
        """Return the module of a native backend of the op."""
        return import_module(f"longscan.ops.{self._name}.{backend}")

    def forward(self, *args: Any, exchange_state: Exchange = None) -> tuple[Tensor, ...]:
        """Check the arguments of a call and run the forward kernels. exchange_state: method of `PieceExchange`, or None."""
        self._check(self._signature, dict(zip(self._arguments, args, strict=False)), args[-1])
        *given, backend = _contiguous(args)
        module = self.module(backend)
        if backend != "triton":
            return tuple(module.forward(*given, **({} if exchange_state is None else {"exchange_state": exchange_state})))
        from longscan.ops import _gpu

        more, back = {}, {}
        if exchange_state is not None:
            more["exchange_state"] = lambda *sent: sent[1] if _gpu.is_compiling() else exchange_state(*sent)
            back["exchange_gradient"] = lambda grad: grad

        def later() -> None:
            names = (*self._arguments, *self._results)
            known = dict(zip(names, (*given, *self._fake_forward(*given, backend)), strict=True))
            if known.get("save_states", True):
                module.backward(*(known[x] for x in self._results[:2]), *(known[x] for x in self._saved), **back)

        return tuple(_gpu.compile_together(lambda: module.forward(*given, **more), later))

    def backward(self, *args: Any, exchange_gradient: Exchange = None) -> tuple[Tensor, ...]:
        """Check the arguments of the backward op and run its kernels. exchange_gradient: method of `PieceExchange`, or None."""
        given, more = self._check_backward(*args), {}
        module = self.module(args[-1])
        if args[-1] != "triton":
            if exchange_gradient is not None:
                more["exchange_gradient"] = exchange_gradient
            return tuple(module.backward(*given, **more))
        from longscan.ops import _gpu

        if exchange_gradient is not None:
            more["exchange_gradient"] = lambda grad: grad if _gpu.is_compiling() else exchange_gradient(grad)
        return tuple(_gpu.compile_together(lambda: module.backward(*given, **more)))

    def _run_forward(self, *args: Any, exchange_state: Exchange = None) -> tuple[Tensor, ...]:
        if args[-1] == "triton" and exchange_state is None:
            return self._repeated_forward(*args)
        return self.forward(*args, exchange_state=exchange_state)

    def _run_backward(self, *args: Any) -> tuple[Tensor, ...]:
        return self._repeated_backward(*args) if args[-1] == "triton" else self.backward(*args)

    def _forward_traced(self, *args: Any) -> tuple[Tensor, ...]:
        self._check(self._signature, dict(zip(self._arguments, args, strict=False)), args[-1], traced=True)
        found: tuple[Tensor, ...] = self.module("triton").forward(*_contiguous(args[:-1]))
        return found

    def _backward_traced(self, *args: Any) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = self.module("triton").backward(*self._check_backward(*args, traced=True))
        return found

    # Declarations

    def _declare(self, op: str, names: Sequence[str], may_be_empty: Sequence[str], limits: Limits | None) -> Signature:
        """Return the signature of the tensors with these names; gradients and results are declared by inputs of their shape."""
        like = dict(zip(("grad_y", "grad_final"), self._like.values(), strict=True)) | self._like
        tensors = [x for x in names if x not in self._constants and x != "chunk_states"]
        texts = [self._declared.get(x) or f"{x}:{self._declared[like[x]].split(':')[1]}" for x in tensors]
        return Signature(op, texts, "initial_state", may_be_empty, limits)

    def _schema(self, names: Sequence[str], count: int) -> str:
        """Return arguments and results in the syntax of `torch.library.Library.define`. count: number of results."""
        optional = {x for x, text in self._declared.items() if "?" in text.split(":")[0]}
        types = {x: "bool" if x in self._constants else "Tensor?" if x in optional else "Tensor" for x in names}
        listed = ", ".join(f"{kind} {x}" for x, kind in types.items())
        return f"({listed}, str backend) -> ({', '.join(['Tensor'] * count)})"

    # Checks

    def _check(self, signature: Signature, known: dict[str, Any], backend: str, traced: bool = False) -> None:
        """Raise TypeError or ValueError, naming the argument, unless the kernels of `backend` can take these arguments."""
        state, axes = known["initial_state"], signature.check([known[x] for x in signature.names], backend, traced)
        self._check_backend(backend)
        reason = dispatch.unsupported_reason(self._name, backend, state.device, state.dtype, self._native)
        if reason:
            raise ValueError(dispatch.unsupported_backend_message(self._name, backend, reason))
        if "models" in axes and backend not in GROUPED:
            of = ", ".join(x for x in signature.names if "models" in self._declared.get(x, ""))
            raise ValueError(f"`{of}` must be without an axis of models for the {backend} backend of {self._name}, got one")
        for constant, axis in self._axis_of.items():
            if axis and known[constant] != (axis in axes):
                raise ValueError(f"`{constant}` must be {axis in axes} by the axes of the tensors, got {known[constant]}")

    def _check_backward(self, *args: Any, traced: bool = False) -> list[Any]:
        """Check and return the arguments of a backward kernel; compute the chunk states if `forward` did not save them."""
        *given, backend = args
        known = dict(zip(self._backward_arguments, given, strict=True))
        self._check(self._backward_signature, known, backend, traced)
        if self._chunk_states is not None:
            module, kept, state = self.module(backend), known["chunk_states"], known["initial_state"]
            self._check_chunk_states_device(kept, state)
            if kept.ndim != 1 or kept.shape[0]:
                _check_chunk_states(kept, tuple(self._chunk_states(module, known[self._arguments[0]], state)), state)
            else:  # the graph was recorded without gradients, which are needed now
                again = [x == "save_states" or known[x] for x in self._arguments]
                known["chunk_states"] = module.forward(*_contiguous(again))[2]
        return _contiguous(list(known.values()))

    def _check_fake(self, signature: Signature, known: dict[str, Any], backend: str) -> None:
        signature.check_devices([known[x] for x in signature.names])
        if "chunk_states" in known:
            self._check_chunk_states_device(known["chunk_states"], known["initial_state"])
        self._check_backend(backend)

    def _check_backend(self, backend: str) -> None:
        if backend not in self._native:
            backends = ", ".join(self._native)
            raise ValueError(f"`backend` must be one of {backends}, the native backends of {self._name}, got {backend!r}")

    def _check_chunk_states_device(self, x: Tensor | None, like: Tensor) -> None:
        if x is None:
            raise TypeError(f"`chunk_states` must be a tensor, which {self._name}_backward requires, got None")
        if x.device != like.device:
            raise ValueError(f"`chunk_states` must be on {like.device} like initial_state, got a tensor on {x.device}")

    # Rules of the custom ops

    def _fake_forward(self, *args: Any) -> tuple[Tensor, ...]:
        known = dict(zip(self._arguments, args[:-1], strict=True))
        self._check_fake(self._signature, known, args[-1])
        found = [known[x].new_empty(known[x].shape) for x in self._like.values()]
        if self._chunk_states is not None:
            state = known["initial_state"]
            shape = self._chunk_states(self.module(args[-1]), args[0], state) if known["save_states"] else (0,)
            found.append(state.new_empty(shape))
        return tuple(found)

    def _fake_backward(self, *args: Any) -> tuple[Tensor, ...]:
        known = dict(zip(self._backward_arguments, args[:-1], strict=True))
        self._check_fake(self._backward_signature, known, args[-1])
        same = [known[source] if known.get(x, args[0]) is not None else None for x, source in self._gradients.items()]
        return tuple(args[0].new_empty((0,)) if x is None else x.new_empty(x.shape) for x in same)

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        known = *inputs, *output
        ctx.save_for_backward(*[known[i] for i in self._saved_tensors])
        ctx.constants, ctx.backend = [known[i] for i in self._saved_constants], inputs[-1]
        ctx.gradients = [
            None if x is None else self._gradient_of.get(name) for name, x in zip(self._arguments, inputs, strict=False)
        ]
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)  # otherwise autograd would allocate zeros as gradients of the saved states, too
        ctx.results = [(result.shape, result.dtype) for result in output[:2]]

    def _differentiate(self, ctx: Any, *grads: Tensor | None, exchange: PieceExchange | None = None) -> Any:
        tensors = ctx.saved_tensors
        given = [
            tensors[0].new_zeros(shape, dtype=dtype) if x is None else x
            for x, (shape, dtype) in zip(grads, ctx.results, strict=False)
        ]
        args = *given, *tensors, *ctx.constants, ctx.backend
        if exchange is not None:
            found = list(self.backward(*args, exchange_gradient=lambda grad: exchange.exchange_gradient(grad, given[1])))
            if exchange.split.rank:  # the first piece alone reads the initial state
                place = self._gradient_of["initial_state"]
                found[place] = torch.zeros_like(found[place])
        else:  # after a plain call without `create_graph` only the gradients can be transformed, by `is_grads_batched`
            only_gradients = getattr(ctx, "is_plain", False) and not torch.is_grad_enabled()
            found = self._second(*args, observed=given if only_gradients else None)
        return (*[None if i is None else found[i] for i in ctx.gradients], None)

    def _save_backend(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG002
        ctx.backend = inputs[-1]

    def _raise_no_second_derivative(self, ctx: Any, *_: Any) -> Any:
        raise RuntimeError(f"{self._name}: the {ctx.backend} backend has no second derivative; use backend='eager'")

    def _batched_arguments(self, axes: Sequence[int]) -> tuple[Sequence[bool], Sequence[bool]]:
        names = (*self._arguments, "backend")
        chosen = self._batched(dict(zip(names, axes, strict=True)))
        return [x in chosen for x in names], [True] * len(self._results)

    def _batched_backward(self, axes: Sequence[int]) -> tuple[Sequence[bool], Sequence[bool]]:
        names = (*self._backward_arguments, "backend")
        chosen = {*self._batched(dict(zip(names, axes, strict=True))), *self._results, "grad_y", "grad_final"}
        return [x in chosen for x in names], [x in chosen for x in self._gradients]


def _check_chunk_states(x: Tensor, shape: tuple[int, ...], like: Tensor) -> None:
    if x.shape != shape:
        raise ValueError(f"`chunk_states` must be of shape {shape}, or (0,) if none were saved, got {tuple(x.shape)}")
    if x.dtype != like.dtype:
        raise TypeError(f"`chunk_states` must be of dtype {like.dtype} like initial_state, got {x.dtype}")


def _contiguous(values: Sequence[Any]) -> list[Any]:
    return [value.contiguous() if isinstance(value, Tensor) else value for value in values]


def keeps_chunk_states(*inputs: Tensor | None) -> bool:
    """Return whether a backward pass may follow a call on these inputs, so that the kernel must return the chunk states."""
    if not torch.is_grad_enabled():
        return False
    return in_func_transform() or any(x is not None and x.requires_grad for x in inputs)
