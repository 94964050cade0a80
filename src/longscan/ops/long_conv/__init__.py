"""The causal convolution with a kernel as long as the sequence, as S4 and S4D apply their state space models."""

from torch import Tensor

from longscan.ops.arguments import check_real, connect_gradients, state_dtype, without_autocast
from longscan.ops.dispatch import resolve
from longscan.ops.long_conv import eager, reference

NATIVE_BACKENDS = ()


def long_conv(u: Tensor, k: Tensor, *, backend: str = "auto") -> Tensor:
    """Compute the causal convolution y_t = sum_{s<=t} k_{t-s} u_s of each channel, in float32 (float64 where an input is).

    Args:
        u: (B, L, D) inputs; y has their dtype.
        k: (D, L) kernel, lag 0 first.
        backend: "auto", "reference" (the sum itself) or "eager" (by FFT).

    Returns:
        y (B, L, D).

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or device is wrong, or the backend cannot run.
    """
    check_real("u", u, (-1, -1, -1))
    check_real("k", k, (u.shape[2], u.shape[1]), u)
    chosen = resolve("long_conv", backend, u, NATIVE_BACKENDS)
    wide = state_dtype(u, k)
    with without_autocast(u):
        conv = reference.long_conv if chosen == "reference" else eager.long_conv
        y = conv(u.to(wide), k.to(wide))
        if u.shape[1] == 0:
            (y,) = connect_gradients((y,), u, k)
        return y.to(u.dtype)
