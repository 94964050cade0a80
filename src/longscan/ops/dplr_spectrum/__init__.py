"""The Fourier transform of the kernel of a system that is diagonal plus rank 1, for `longscan.layers.S4`; not a public op."""

from importlib import import_module
from typing import Any

from torch import Tensor

from longscan.numerics.dplr import bilinear_frequencies
from longscan.ops import dispatch
from longscan.ops._custom_op import CustomOp
from longscan.ops._signature import Signature
from longscan.ops.arguments import check_real, state_dtype, without_autocast
from longscan.ops.dispatch import NATIVE, probe, resolve
from longscan.ops.dplr_spectrum import eager, reference
from longscan.ops.tracing import has_tangent

NATIVE_BACKENDS = probe("dplr_spectrum", "cpu", "triton")

_tensors = ("table: 3 F 2", "eigenvalues: D N 2", "P: D N 2", "B: D N 2", "C: D N 2", "dt: D")
_signature = Signature("dplr_spectrum", _tensors, "dt")
_backward_signature = Signature("dplr_spectrum_backward", ("grad: D F 2", *_tensors), "dt")


def dplr_spectrum(
    angle: Tensor,
    eigenvalues: Tensor,
    P: Tensor,
    B: Tensor,
    C: Tensor,
    dt: Tensor,
    damping: float = 0.0,
    *,
    backend: str = "auto",
) -> Tensor:
    """Return sum_{l>=0} K_l e^{-(damping + i angle) l}, K_l = 2 Re(C A_bar^l B_bar), as pairs (D, F, 2).

    A_bar and B_bar are those of x' = (Lambda - P P*) x + B u under the bilinear rule, see `longscan.numerics.dplr`. The result is
    in float64 if an argument is, otherwise in float32.

    Args:
        angle: (F,) in [0, pi]; it gets no gradient.
        eigenvalues, P, B, C: (D, N/2, 2), real pairs of one of each conjugate pair of states.
        dt: (D,), step sizes.
        damping: at least 0.
        backend: "auto", "reference", "eager", "cpu" or "triton".

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or device is wrong, or the backend cannot run.
    """
    check_real("angle", angle, (-1,))
    check_real("eigenvalues", eigenvalues, (-1, -1, 2), angle)
    for name, value in (("P", P), ("B", B), ("C", C)):
        check_real(name, value, tuple(eigenvalues.shape), angle)
    check_real("dt", dt, (eigenvalues.shape[0],), angle)
    chosen = resolve("dplr_spectrum", backend, eigenvalues, NATIVE_BACKENDS)
    wide = state_dtype(angle, eigenvalues, P, B, C, dt)
    angle, *given = (x.to(wide) for x in (angle.detach(), eigenvalues, P, B, C, dt))
    if chosen in NATIVE and angle.numel() and eigenvalues.numel():
        if has_tangent(given):
            raise RuntimeError(f"dplr_spectrum: the {chosen} backend has no forward-mode derivative; use backend='eager'")
        spectrum: Tensor = _forward_op(bilinear_frequencies(angle, damping), *given, chosen)
        return spectrum
    plain = reference if chosen == "reference" else eager
    with without_autocast(angle):
        return plain.dplr_spectrum(angle, *given, damping)


def _check(signature: Signature, tensors: list[Any], backend: str) -> list[Tensor]:
    """Return the tensors, contiguous. Raise TypeError or ValueError, naming the argument, unless the kernels can take them."""
    signature.check(tensors, backend)
    if backend not in NATIVE_BACKENDS:
        raise ValueError(f"`backend` must be one of cpu, triton, the native backends of dplr_spectrum, got {backend!r}")
    dt = tensors[-1]
    reason = dispatch.unsupported_reason("dplr_spectrum", backend, dt.device, dt.dtype, NATIVE_BACKENDS)
    if reason:
        raise ValueError(dispatch.unsupported_backend_message("dplr_spectrum", backend, reason))
    return [x.contiguous() for x in tensors]


def _run_forward(*args: Any) -> Tensor:
    *tensors, backend = args
    given, module = _check(_signature, tensors, backend), import_module(f"longscan.ops.dplr_spectrum.{backend}")
    spectrum: Tensor
    if backend != "triton":
        spectrum = module.forward(*given)
        return spectrum
    from longscan.ops import _gpu

    spectrum = _gpu.compile_together(lambda: module.forward(*given), lambda: module.backward(_empty_spectrum(*given), *given))
    return spectrum


def _run_backward(*args: Any) -> tuple[Tensor, ...]:
    *tensors, backend = args
    given, module = _check(_backward_signature, tensors, backend), import_module(f"longscan.ops.dplr_spectrum.{backend}")
    if backend != "triton":
        return tuple(module.backward(*given))
    from longscan.ops import _gpu

    return tuple(_gpu.compile_together(lambda: module.backward(*given)))


def _empty_spectrum(table: Tensor, eigenvalues: Tensor, *_: Tensor) -> Tensor:
    return eigenvalues.new_empty((eigenvalues.shape[0], table.shape[1], 2))


def _fake_forward(*args: Any) -> Tensor:
    _signature.check_devices(args[:-1])
    return _empty_spectrum(*args[:-1])


def _fake_backward(*args: Any) -> tuple[Tensor, ...]:
    _backward_signature.check_devices(args[:-1])
    return tuple(x.new_empty(x.shape) for x in args[2:-1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[:-1])
    ctx.backend = inputs[-1]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return (None, *_backward_op(grad, *ctx.saved_tensors, ctx.backend), None)


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
    ctx.backend = inputs[-1]


def _raise_no_second_derivative(ctx: Any, *_: Any) -> Any:
    raise RuntimeError(f"dplr_spectrum: the {ctx.backend} backend has no second derivative; use backend='eager'")


# Each channel is computed alone, so that vmap makes one axis of channels of those of all models. If their tables differ, the
# kernels are called once for each model.
_forward_op = CustomOp(
    "dplr_spectrum(Tensor table, Tensor eigenvalues, Tensor P, Tensor B, Tensor C, Tensor dt, str backend) -> Tensor",
    _run_forward,
    _fake_forward,
    _save,
    _differentiate,
    lambda _: ((False, *(True,) * 5, False), (True,)),
    folds=True,
    grouped=False,
)
_backward_op = CustomOp(
    "dplr_spectrum_backward(Tensor grad, Tensor table, Tensor eigenvalues, Tensor P, Tensor B, Tensor C, Tensor dt, "
    "str backend) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _run_backward,
    _fake_backward,
    _save_backward,
    _raise_no_second_derivative,
    lambda _: ((True, False, *(True,) * 5, False), (True,) * 5),
    folds=True,
    grouped=False,
)
