"""Checks of the arguments of `SequenceModule.forward`: x, type and shapes of a state, `elapsed`, `valid`, `seq_idx`."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from longscan.layers.parameters import parameter_options
from longscan.layers.state import State, state_tensors
from longscan.ops.tracing import is_compiled_or_transformed


def values_unavailable(*tensors: Tensor | None) -> bool:
    """Return whether Python must not read tensor values: in compiled, traced or transformed calls and CUDA graph capture."""
    if is_compiled_or_transformed(*tensors):
        return True
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]


def require_tensor(name: str, value: object) -> None:
    """Raise TypeError naming the argument unless `value` is a tensor, but not a nested one, which has no shape."""
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` must be a tensor, got a {type(value).__name__}")
    if value.is_nested:
        raise TypeError(f"`{name}` must be dense, got a nested tensor; pad its rows to one length and pass `valid`")


def check_is_tensor(name: str, value: object) -> None:
    """Raise TypeError naming the argument unless `value` is a tensor or None."""
    if value is not None and not isinstance(value, Tensor):
        raise TypeError(f"`{name}` must be a tensor or None, got a {type(value).__name__}")


class StateForm(NamedTuple):
    """The type of a module's states, the shapes of their tensors without the batch axis, and which are of floating point."""

    kind: type
    shapes: list[tuple[int, ...]]
    are_floating: list[bool]


def state_form(state: State) -> StateForm:
    """Return the form of the states that are like `state`, an initial state."""
    tensors = state_tensors(state)
    return StateForm(type(state), [tuple(part.shape[1:]) for part in tensors], [part.is_floating_point() for part in tensors])


def check_state_form(state: State, form: StateForm, batch: int) -> None:
    """Raise TypeError for a state of another type or with integers in place of floating-point numbers, or the reverse.

    Raises ValueError for other shapes or a number of rows other than `batch`.
    An axis of size 0 in `form` grows with the number of steps: there any size is right.
    """
    if type(state) is not form.kind:
        raise TypeError(f"`state` must be a {form.kind.__name__}, got a {type(state).__name__}")
    tensors = state_tensors(state)
    found, needed = [tuple(part.shape) for part in tensors], [(batch, *shape) for shape in form.shapes]
    if len(found) != len(needed) or not all(map(_has_shape, found, needed)):
        raise ValueError(f"`state` must have tensors of shapes {needed}, got {found}")
    for number, (part, is_floating) in enumerate(zip(tensors, form.are_floating, strict=True)):
        if part.is_floating_point() != is_floating:
            numbers = "floating-point numbers" if is_floating else "integers"
            raise TypeError(f"`state` must have {numbers} in its tensor {number}, got {part.dtype}")


def _has_shape(shape: tuple[int, ...], form: tuple[int, ...]) -> bool:
    """Return whether the shape of a tensor of a state is that of its form, where a size of 0 after the batch stands for any."""
    return (
        len(shape) == len(form)
        and shape[0] == form[0]
        and all(wanted in (0, size) for wanted, size in zip(form[1:], shape[1:], strict=True))
    )


def check_input(x: Tensor, module: nn.Module) -> None:
    """Raise TypeError or ValueError unless x is a dense tensor with dtype and device of the parameters of `module`.

    Under autocast, and for a module without parameters, any floating-point dtype is right; so are fp16 and bf16 if all parameters
    stay float32 when the module is cast.
    """
    require_tensor("x", x)
    if x.layout != torch.strided:
        raise TypeError(f"`x` must be dense, of layout torch.strided, got layout {x.layout}")
    devices = {parameter.device for parameter in module.parameters()}
    dtypes = {parameter.dtype for parameter in module.parameters()}
    if devices and x.device not in devices:
        raise ValueError(f"`x` must be on the device of the parameters, {' or '.join(sorted(map(str, devices)))}, got {x.device}")
    if x.dtype in dtypes:
        return
    if not dtypes or torch.is_autocast_enabled(x.device.type):
        if not x.is_floating_point():
            raise TypeError(f"`x` must have a floating-point dtype, got {x.dtype}")
        return
    half = x.dtype in (torch.bfloat16, torch.float16)
    if not (half and all(parameter_options(parameter).keep_float32 for parameter in module.parameters())):
        raise TypeError(f"`x` must have the dtype of the parameters, {' or '.join(sorted(map(str, dtypes)))}, got {x.dtype}")


def check_step_shapes(
    shape: tuple[int, int],
    elapsed: Tensor | None,
    valid: Tensor | None = None,
    seq_idx: Tensor | None = None,
    *,
    suffix: str = "",
) -> None:
    """Raise ValueError or TypeError unless `elapsed`, `valid` and `seq_idx` have the shape (B, L) and their dtypes.

    suffix: of the names of the arguments in messages, such as "_first" for `elapsed_first`.
    """
    for name, value in (("elapsed", elapsed), ("valid", valid), ("seq_idx", seq_idx)):
        check_is_tensor(f"{name}{suffix}", value)
        if value is not None and tuple(value.shape) != shape:
            raise ValueError(f"`{name}{suffix}` must have shape {shape}, got {tuple(value.shape)}")
    if elapsed is not None and not elapsed.is_floating_point():
        raise TypeError(f"`elapsed{suffix}` must have a floating-point dtype, got {elapsed.dtype}")
    if valid is not None and valid.dtype != torch.bool:
        raise TypeError(f"`valid{suffix}` must have dtype torch.bool, got {valid.dtype}")
    if seq_idx is not None and (seq_idx.is_floating_point() or seq_idx.is_complex() or seq_idx.dtype == torch.bool):
        raise TypeError(f"`seq_idx{suffix}` must have an integer dtype, got {seq_idx.dtype}")


def check_step_arguments(name: str, x_t: Tensor, width: int | None, elapsed: Tensor | None, active: Tensor | None) -> None:
    """Raise TypeError or ValueError unless the arguments of one step are tensors (B, width), (B,), and (B,) bool.

    name: of x_t in errors. width: None for tokens, of shape (B,).
    """
    require_tensor(name, x_t)
    sizes = () if width is None else (width,)
    if x_t.ndim != 1 + len(sizes) or tuple(x_t.shape[1:]) != sizes:
        shown = "(batch,)" if width is None else f"(batch, {width})"
        raise ValueError(f"`{name}` must have shape {shown}, got {tuple(x_t.shape)}")
    for label, value in (("elapsed", elapsed), ("active", active)):
        check_is_tensor(label, value)
        if value is not None and value.shape != x_t.shape[:1]:
            raise ValueError(f"`{label}` must have shape {tuple(x_t.shape[:1])}, got {tuple(value.shape)}")
    if active is not None and active.dtype != torch.bool:
        raise TypeError(f"`active` must have dtype torch.bool, got {active.dtype}")


def check_steps(
    shape: tuple[int, int], elapsed: Tensor | None, valid: Tensor | None, seq_idx: Tensor | None, *, suffix: str = ""
) -> None:
    """Raise ValueError or TypeError unless `elapsed`, `valid` and `seq_idx` suit a batch of shape (B, L).

    Shapes and dtypes are always checked. Values (one run of valid steps per row, elapsed and seq_idx not negative) are checked
    unless `values_unavailable`. suffix: of the names of the arguments in messages.
    """
    check_step_shapes(shape, elapsed, valid, seq_idx, suffix=suffix)
    if values_unavailable(elapsed, valid, seq_idx):
        return
    if valid is not None and shape[1] > 1:
        edges = (valid[:, 1:] != valid[:, :-1]).sum(1) + valid[:, 0] + valid[:, -1]
        if bool((edges > 2).any()):
            row = int((edges > 2).nonzero()[0])
            needed = "one run of valid steps per row (padding left or right)"
            raise ValueError(f"`valid{suffix}` must have {needed}, got more in row {row}")
    if elapsed is not None:
        wrong = ~(elapsed.isfinite() & (elapsed >= 0))
        wrong = wrong if valid is None else wrong & valid
        if bool(wrong.any()):
            found = elapsed[wrong][0].item()
            raise ValueError(f"`elapsed{suffix}` must be finite times of at least 0 since the previous step, got {found}")
    if seq_idx is not None and bool((seq_idx < 0).any()):
        raise ValueError(f"`seq_idx{suffix}` must be numbers of at least 0, got a negative one")
