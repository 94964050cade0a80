"""Detection of compiled, traced, transformed and intercepted calls."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

_ORDINARY = (
    "CPU", "CUDA", "BackendSelect", "ADInplaceOrView", "AutogradCPU", "AutogradCUDA",
    "AutocastCPU", "AutocastCUDA",  # keys of every tensor, also without autocast, which excludes them while it is off
)  # fmt: skip


def _bits(names: tuple[str, ...]) -> int:
    """Return the set of the dispatch keys with these names as the bits of an integer."""
    bits = 0
    for name in names:
        bits |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr()
    return bits


_UNUSUAL = ~_bits(_ORDINARY)
_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def is_compiled_or_transformed(*tensors: Tensor | None) -> bool:
    """Return whether operations on these tensors are compiled, exported, traced, transformed or intercepted.

    True under torch.compile, torch.export, torch.jit.trace, make_fx, the transforms of torch.func, torch function modes and
    dispatch modes, and for fake tensors, other subclasses and lazily negated tensors. The test lists the dispatch keys of plain
    CPU and CUDA tensors: torch calls the kernel of an operation directly only if all tensors and this thread have no other keys.
    A feature that a later version of torch adds has a dispatch key that is not in the list, so the result is True for it.

    Host time of selective_scan with nine tensors, B = L = 1, on one busy core, without this test and the checks of the backward
    and with them: 75 and 83 us forward, 400 and 470 us forward and backward, of which the test takes about 6 us a call.
    """
    if torch.compiler.is_compiling():  # first, so that the compiler does not trace the rest of this function
        return True
    keys = torch._C._dispatch_tls_local_include_set().raw_repr()
    for x in tensors:
        if x is not None:
            if type(x) not in _PLAIN_TYPES:
                return True
            keys |= torch._C._dispatch_keys(x).raw_repr()
    return bool(keys & _UNUSUAL) or bool(torch._C._len_torch_function_stack() and _in_function_mode())


def in_func_transform() -> bool:
    """Return whether vmap, grad or another transform of torch.func is running, outside of torch.compile."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def has_tangent(values: Iterable[object]) -> bool:
    """Return whether one of these values is a tensor with a tangent: whether a forward-mode derivative by it is computed."""
    if forward_ad._current_level < 0:
        return False
    tensors = (x for x in values if isinstance(x, Tensor))
    return any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)  # type: ignore[no-untyped-call]


def record_length(x: Tensor, axis: int = 1) -> tuple[Tensor, int]:
    """Return `x` and its size in `axis`, for code that is correct for every size except under torch.jit.trace.

    Under torch.jit.trace sizes are tensors, and numbers that Python computes from them become constants of the graph. There the
    size is returned as an int and the tensor as a view by `unflatten`, so that the recorded graph raises a RuntimeError for any
    other size, if it uses this tensor. Otherwise both are returned unchanged.
    """
    size = x.shape[axis]
    return _with_fixed_size(x, axis) if isinstance(size, Tensor) else (x, size)


def fix_length(x: Tensor, axis: int = 1) -> tuple[Tensor, int]:
    """Return `x` and its size in `axis`, for code whose number of operations depends on this size.

    Like `record_length`, and with the same result for symbolic sizes, because make_fx records no check that a size has the value
    that Python code read.
    """
    size = x.shape[axis]
    return _with_fixed_size(x, axis) if isinstance(size, (Tensor, torch.SymInt)) else (x, size)


def _with_fixed_size(x: Tensor, axis: int) -> tuple[Tensor, int]:
    size = int(x.shape[axis])
    return x.unflatten(axis, (size,)), size  # type: ignore[no-untyped-call]


def _in_function_mode() -> bool:
    """Return whether one of the active torch function modes may change a result.

    The mode of `torch.set_default_device` changes factory functions only, and a mode with a true attribute `only_observes` calls
    every function with unchanged arguments.
    """
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return any(not isinstance(mode, DeviceContext) and not getattr(mode, "only_observes", False) for mode in modes)
