"""One token through a whole Mamba block: at length 1, calls and passes over small tensors cost more than the arithmetic."""

from importlib import import_module

import torch
from torch import Tensor

from longscan.ops._arguments import check_real, check_tensor
from longscan.ops._dispatch import probe, resolve
from longscan.ops._tracing import is_compiled_or_transformed
from longscan.ops.mamba_step import eager

NATIVE_BACKENDS = probe("mamba_step", "cpu")
BACKENDS = ("auto", "eager", "cpu")

# Beyond this many rows, the matrix products of torch are faster than one pass over the weights.
MOST_ROWS = 32


def mamba_step(
    x: Tensor,
    conv_state: Tensor,
    ssm_state: Tensor,
    *,
    in_proj: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None = None,
    x_proj: Tensor,
    dt_proj: Tensor,
    dt_bias: Tensor,
    A_log: Tensor,
    D: Tensor | None = None,
    out_proj: Tensor,
    norm_weight: Tensor | None = None,
    norm_eps: float = 1e-5,
    elapsed: Tensor | None = None,
    active: Tensor | None = None,
    selects_raw: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """The block of Gu and Dao, "Mamba" (arXiv:2312.00752), figure 3, around S6 with real A, for one token of each row.

        (u, z) = in_proj x'      c = conv_bias + sum_k conv_weight[:, k] window[:, k]      v = silu(c)
        (q, B, C) = x_proj v     dt = softplus(dt_proj q + dt_bias) elapsed                A = -exp(A_log)
        h = exp(dt A) h + dt B v          y = out_proj((C h + D v) silu(z))

    window is conv_state with u after it. With norm_weight, x' = RMSNorm(x) and y = x + the above; without, x' = x.
    M: width of the block. E: its inner width. K: taps. R: rank of dt. N: states per channel.

    Args:
        x: (B, M). conv_state: (B, E, K-1), oldest first. ssm_state: (B, E, N).
        in_proj: (2E, M). conv_weight: (E, K). conv_bias: (E,). x_proj: (R + 2N, E). dt_proj: (E, R). dt_bias: (E,).
        A_log: (E, N). D: (E,). out_proj: (M, E). norm_weight: (M,).
        norm_eps: of the RMSNorm, added to the mean square.
        elapsed: (B,), multiplies dt.
        active: (B,) bool; a row that is not active keeps its states, and its block adds nothing: y is 0, or x with norm_weight.
        selects_raw: x_proj sees c instead of v.
        backend: "auto", "eager" (differentiable, any device) or "cpu" (no gradients; all tensors of one dtype and on the CPU,
            weights contiguous). "auto" takes "cpu" where nothing is recorded or traced and it is faster.

    Returns:
        y (B, M), and new conv and ssm states.

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or device is wrong, or the backend cannot run.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend: got {backend!r}, expected one of {BACKENDS}")
    check_real("x", x, (-1, -1))
    check_real("conv_weight", conv_weight, (-1, -1), x)
    check_real("dt_proj", dt_proj, (conv_weight.shape[0], -1), x)
    check_real("A_log", A_log, (conv_weight.shape[0], -1), x)
    (rows, width), (inner, taps), rank, states = x.shape, conv_weight.shape, dt_proj.shape[1], A_log.shape[1]
    if taps < 1:
        raise ValueError(f"conv_weight: got shape {tuple(conv_weight.shape)}, expected ({inner}, K) with K of at least 1")
    shapes: tuple[tuple[str, Tensor | None, tuple[int, ...]], ...] = (
        ("conv_state", conv_state, (rows, inner, taps - 1)),
        ("ssm_state", ssm_state, (rows, inner, states)),
        ("in_proj", in_proj, (2 * inner, width)),
        ("x_proj", x_proj, (rank + 2 * states, inner)),
        ("dt_bias", dt_bias, (inner,)),
        ("out_proj", out_proj, (width, inner)),
        ("conv_bias", conv_bias, (inner,)),
        ("D", D, (inner,)),
        ("norm_weight", norm_weight, (width,)),
        ("elapsed", elapsed, (rows,)),
    )
    for name, value, shape in shapes:
        if value is not None or name not in ("conv_bias", "D", "norm_weight", "elapsed"):
            check_real(name, value, shape, x)
    if active is not None:
        check_tensor("active", active, (rows,), x)
        if active.dtype != torch.bool:
            raise TypeError(f"active: got dtype {active.dtype}, expected torch.bool")
    # Slices of a sequence or of a batch of states come with strides; the kernel reads rows one after another.
    x, conv_state, ssm_state = x.contiguous(), conv_state.contiguous(), ssm_state.contiguous()
    arguments = (
        x, conv_state, ssm_state, in_proj, conv_weight, conv_bias, x_proj, dt_proj, dt_bias, A_log, D, out_proj, norm_weight,
        norm_eps, elapsed, active, selects_raw,
    )  # fmt: skip
    if backend == "auto" and rows > MOST_ROWS:
        backend = "eager"
    impossible = _unfit(tuple(value for value in arguments if isinstance(value, Tensor)))
    if resolve("mamba_step", backend, x, NATIVE_BACKENDS, impossible=impossible) == "eager":
        return eager.mamba_step(*arguments)
    y, conv, ssm = import_module("longscan.ops.mamba_step.cpu").mamba_step(*arguments)
    return y, conv, ssm


def _unfit(tensors: tuple[Tensor, ...]) -> str | None:
    """Why the compiled kernel cannot take these tensors, wherever they are, or None where it can."""
    x = tensors[0]
    if x.dtype not in (torch.float32, torch.float64):
        return f"no cpu kernel for {x.dtype}"
    if is_compiled_or_transformed(*tensors):
        return "the call is compiled, traced or transformed"
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return "it has no gradient; call it under torch.no_grad()"
    if torch.is_autocast_enabled(x.device.type):
        return "autocast is on"
    for tensor in tensors:
        if tensor.dtype not in (x.dtype, torch.bool):
            return f"the tensors are of {x.dtype} and {tensor.dtype}"
        if not tensor.is_contiguous():
            return "a tensor is not contiguous"
    return None
