"""The op `mamba_step`: one token through a whole Mamba block, without gradients on its native backend.

At length 1 the calls of separate ops and their passes over small tensors cost more time than the arithmetic.
"""

from importlib import import_module

import torch
from torch import Tensor

from longscan.ops.arguments import check_real, check_tensor
from longscan.ops.dispatch import probe, resolve
from longscan.ops.mamba_step import eager, reference
from longscan.ops.tracing import is_compiled_or_transformed

NATIVE_BACKENDS = probe("mamba_step", "cpu")
MAX_ROWS = 32  # with more rows, torch's matrix products are faster than the kernel, which reads the weights once for each row


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
    """Run the block of Gu and Dao, "Mamba" (arXiv:2312.00752), figure 3, around S6 with real A, for one token of each row.

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
        active: (B,) bool; the states of an inactive row do not change, and its y is 0, or x with norm_weight.
        selects_raw: apply x_proj to c instead of v.
        backend: "auto", "reference", "eager" or "cpu". The first three are differentiable and run on any device. "cpu" has no
            gradient and needs all floating-point tensors in one dtype, float32 or float64, on the CPU. "auto" chooses "cpu" where
            no graph is recorded or traced, the weights are contiguous and B is at most 32.

    Returns:
        y (B, M), and new conv and ssm states.

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or device is wrong, or the backend cannot run.
    """
    check_real("x", x, (-1, -1))
    check_real("conv_weight", conv_weight, (-1, -1), x)
    check_real("dt_proj", dt_proj, (conv_weight.shape[0], -1), x)
    check_real("A_log", A_log, (conv_weight.shape[0], -1), x)
    (rows, width), (inner, taps), rank, states = x.shape, conv_weight.shape, dt_proj.shape[1], A_log.shape[1]
    if taps < 1:
        raise ValueError(f"`conv_weight` must be of shape ({inner}, K) with K of at least 1, got {tuple(conv_weight.shape)}")
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
            raise TypeError(f"`active` must be of dtype torch.bool, got {active.dtype}")
    weights = reference.Weights(in_proj, conv_weight, conv_bias, x_proj, dt_proj, dt_bias, A_log, D, out_proj, norm_weight)
    present = tuple(value for value in (x, conv_state, ssm_state, *weights, elapsed, active) if value is not None)
    unsuited = None
    if rows > MAX_ROWS:
        unsuited = f"torch's matrix products are faster for more than {MAX_ROWS} rows"
    elif not all(value.is_contiguous() for value in present[3:]):
        unsuited = "a weight is not contiguous"
    impossible = _unsupported_reason(present)
    chosen = resolve("mamba_step", backend, x, NATIVE_BACKENDS, unsuited=unsuited, impossible=impossible)
    module = reference if chosen == "reference" else eager if chosen == "eager" else import_module(f"{__name__}.cpu")
    y, conv, ssm = module.mamba_step(
        x, conv_state, ssm_state, weights, elapsed, active, norm_eps=norm_eps, selects_raw=selects_raw
    )
    return y, conv, ssm


def _unsupported_reason(tensors: tuple[Tensor, ...]) -> str | None:
    """Return why the CPU kernel cannot take these tensors, apart from their device, or None if it can."""
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
    return None
