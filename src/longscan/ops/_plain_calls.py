"""Plain calls of Triton kernels: an op on ordinary tensors as one node of the autograd graph, whose launches are repeated.

An op checks its arguments, converts them (complex numbers to pairs, shared coefficients to one for each channel) and runs its
kernels. Each of these steps is one or more operations of PyTorch and nodes of the autograd graph, which together take the host
several times as long as the launches of the kernels. A plain call does all of them inside one node. From the third call with
tensors of the same shapes, dtypes and alignments on, it only allocates memory and launches kernels (`RepeatedFunction`).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from longscan.distributed.context import current_split
from longscan.ops._repeated_calls import Function, RecordedCall, RepeatedFunction, describe
from longscan.ops.arguments import restore_complex, to_pairs
from longscan.ops.dispatch import resolve
from longscan.ops.tracing import is_compiled_or_transformed

REDUCED_DTYPES = (torch.bfloat16, torch.float16)


class PlainCall:
    """Calls of an op on ordinary tensors by its Triton kernels, each as one node of the autograd graph.

    Args:
        op: the name of the op.
        native: its native backends.
        count: number of tensors, which are its first arguments; optional ones may be None.
        forward: function of the arguments, which it checks, and a boolean `save_states`. It returns y, the final state, and, with
            `save_states`, what `backward` needs besides the tensors.
        backward: function of the gradients of y and of the final state (None for zero), the tensors, what `forward` saved, and
            the other arguments. It returns the gradients of the tensors that are not None.
        general: function of the arguments that returns y and the final state, and that autograd can differentiate in every way.
        reduced: indices of the tensors that the kernels read in fp16 and bf16. A call with another tensor in these dtypes is not
            plain, because a recorded call cannot repeat the conversion of that tensor; `general` converts it first.
    """

    def __init__(
        self,
        op: str,
        native: tuple[str, ...],
        count: int,
        forward: Function,
        backward: Function,
        general: Function,
        reduced: tuple[int, ...] = (),
    ) -> None:
        self._op, self._native, self.count, self._general = op, native, count, general
        self._wide = [i for i in range(count) if i not in reduced]

        def compile_and_run(*args: Any) -> tuple[Tensor, ...]:
            from longscan.ops import _gpu

            def later() -> None:  # most calls do not use the final state, whose gradient is then None and needs no kernels
                if args[-1]:
                    y, _, *kept = forward(*args)
                    backward(y, None, *args[:count], *kept, *args[count:-1])

            return cast("tuple[Tensor, ...]", _gpu.compile_together(lambda: forward(*args), later))

        self._forward, self._backward = RepeatedFunction(compile_and_run), RepeatedFunction(backward)

    def runs(self, tensors: Sequence[Any], backend: str) -> bool:
        """Return whether a call on these tensors is plain and `backend` selects the Triton kernels.

        A call is not plain if an argument is neither a tensor nor None, or if single operations are observed or changed: by
        compilers, transforms, modes, forward-mode derivatives, or the split of sequences over processes.

        Raises:
            ValueError: `backend` cannot run on these tensors.
        """
        like = tensors[0]
        if is_compiled_or_transformed(*tensors) or not isinstance(like, Tensor):  # so is an object of another type
            return False
        if not (like.is_cuda and backend == "auto") and backend != "triton":
            return False
        if not like.numel() or forward_ad._current_level >= 0 or current_split() is not None:
            return False
        for i in self._wide:
            x = tensors[i]
            if x is not None and x.dtype in REDUCED_DTYPES:
                return False
        return resolve(self._op, backend, like, self._native) == "triton"

    def __call__(self, *args: Any) -> tuple[Tensor, Tensor]:
        """Return y and the final state. args: the tensors, then the other arguments."""
        if torch.is_grad_enabled():
            for x in args[: self.count]:
                if x is not None and x.requires_grad:
                    y, final = _Node.apply(self, *args)  # type: ignore[no-untyped-call]
                    return y, final
        y, final = self._forward(*args, False)
        return y, final

    def run_forward(self, args: tuple[Any, ...]) -> tuple[tuple[Tensor, ...], "_Repeated | None"]:
        """Return (y, final state, what the backward pass needs), and the recorded call if one was repeated, otherwise None."""
        args = *args, True
        description = describe(args)
        results, call = self._forward.run(args, description)
        if call is None or description.copies:
            return results, None
        return results, _Repeated(call, [*description.addresses[: self.count], *[x.data_ptr() for x in results[2:]]])

    def repeat_backward(
        self,
        repeated: "_Repeated",
        grads: Sequence[Tensor | None],
        saved: Sequence[Tensor | None],
        others: Sequence[Any],
    ) -> tuple[Tensor, ...]:
        """Return the gradients of the tensors that are not None, after a forward pass that was repeated.

        Autograd passes the tensors that the forward pass saved, which are those of its recorded call unless a hook has replaced
        them. Their addresses are compared to find this out, and only the gradients are described anew.
        """
        contiguous = [grad if grad is None else grad.contiguous() for grad in grads]
        addresses = [0 if x is None else x.data_ptr() for x in contiguous]
        inputs = *contiguous, *saved, *others
        following = repeated.call.following
        known = tuple([-1 if grad is None else address % 16 for grad, address in zip(grads, addresses, strict=True)])
        call, same = following.get(known), repeated.addresses == [0 if x is None else x.data_ptr() for x in saved]
        if call is not None and same:
            try:
                return call.repeat(inputs, [*addresses, *repeated.addresses, *[0] * len(others)])
            except torch.OutOfMemoryError:
                del following[known]
        results, call = self._backward.run(inputs, describe(inputs))
        if call is not None and same:
            following[known] = call
        return results

    def run_backward(
        self,
        grads: Sequence[Tensor | None],
        saved: Sequence[Tensor | None],
        others: Sequence[Any],
        repeated: "_Repeated | None",
    ) -> list[Tensor | None]:
        """Return the gradients of the tensors, None for those that are None. saved: the tensors and what `forward` saved."""
        tensors = saved[: self.count]
        plain = not torch.is_grad_enabled() and not is_compiled_or_transformed(*grads)
        if not plain:  # for second derivatives (`create_graph`), or for several vectors at once (`is_grads_batched`)
            return self._differentiate_generally(grads, tensors, others)
        if repeated is not None:
            found = iter(self.repeat_backward(repeated, grads, saved, others))
        else:
            found = iter(self._backward(*grads, *saved, *others))
        return [None if x is None else next(found) for x in tensors]

    def _differentiate_generally(
        self, grads: Sequence[Tensor | None], tensors: Sequence[Tensor | None], others: Sequence[Any]
    ) -> list[Tensor | None]:
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            given = [x if x is None else x.view_as(x) for x in tensors]  # new leaves, so that autograd stops here
            results = self._general(*given, *others)
            wanted = [x for x in given if x is not None and x.requires_grad]
            pairs = [(y, grad) for y, grad in zip(results, grads, strict=True) if grad is not None]
            outputs, vectors = zip(*pairs, strict=True)
            found = iter(torch.autograd.grad(outputs, wanted, vectors, create_graph=create_graph, allow_unused=True))
        return [next(found) if x is not None and x.requires_grad else None for x in given]


class _Repeated(NamedTuple):
    """A forward pass by a recorded call: this call, and the addresses of the saved tensors, 0 for None."""

    call: RecordedCall
    addresses: list[int]


class _Node(torch.autograd.Function):
    """The autograd node of a plain call."""

    @staticmethod
    def forward(ctx: Any, call: PlainCall, *args: Any) -> tuple[Tensor, Tensor]:
        (y, final, *kept), ctx.repeated = call.run_forward(args)
        ctx.save_for_backward(*args[: call.count], *kept)
        ctx.call, ctx.others = call, args[call.count :]
        ctx.set_materialize_grads(False)
        return y, final

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        saved, count = ctx.saved_tensors, ctx.call.count
        nothing = [None] * len(ctx.others)
        if all(grad is None for grad in grads):
            return (None, *[None] * count, *nothing)
        return (None, *ctx.call.run_backward(grads, saved, ctx.others, ctx.repeated), *nothing)


def pairs_or_zeros(grad: Tensor | None, shape: Sequence[int], like: Tensor) -> Tensor:
    """Return a gradient in the dtype of `like`, complex numbers as real pairs; zeros of this shape if it is None."""
    return like.new_zeros(shape) if grad is None else to_pairs(grad, like.dtype)


def restore_gradients(grads: Sequence[Tensor], tensors: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Return gradients converted to the dtypes of their tensors, complex where these are; tensors that are None are skipped."""
    return tuple([restore_complex(grad, x).to(x.dtype) for grad, x in zip(grads, tensors, strict=True) if x is not None])
