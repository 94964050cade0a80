"""The scan of heads with a matrix state that the gated delta rule updates, as in Gated DeltaNet."""

from collections.abc import Callable

import torch
from torch import Tensor

from longscan.distributed.context import SequenceSplit, current_split
from longscan.ops.arguments import check_real, connect_gradients, state_dtype, step_flags, without_autocast
from longscan.ops.delta_scan import eager, reference
from longscan.ops.dispatch import resolve
from longscan.ops.pieces import PieceMap, pass_states

NATIVE_BACKENDS = ()


def delta_scan(
    v: Tensor,
    k: Tensor,
    q: Tensor,
    log_alpha: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    *,
    valid: Tensor | None = None,
    seq_idx: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Run the gated delta rule over the steps, for each head separately.

        S_t = alpha_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T        y_t = S_t q_t        alpha_t = exp(log_alpha_t)

    The value that the decayed state returns for the key k_t is replaced by v_t, wholly for beta_t = 1 and |k_t| = 1. Keys longer
    than sqrt(2 / beta_t) let the state grow. Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta
    Rule" (arXiv:2412.06464), section 3.

    Args:
        v: (B, L, H, P) values of H heads of width P; y has their dtype.
        k, q: (B, L, H, N) keys and queries.
        log_alpha: (B, L, H) logarithms of the decays, at most 0 unless the state should grow.
        beta: (B, L, H) strengths of the updates.
        initial_state: (B, H, P, N); zeros when None.
        valid: (B, L) bool; where it is False, the step leaves the state unchanged and y is 0.
        seq_idx: (B, L) integers; where it changes from one valid step to the next, the state restarts from zero.
        backend: "auto", "reference" or "eager".

    Returns:
        y (B, L, H, P) and the final state (B, H, P, N) in float32 (float64 where an input is).

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or device is wrong, or the backend cannot run.
    """
    check_real("v", v, (-1, -1, -1, -1))
    batch, length, heads, width = v.shape
    check_real("k", k, (batch, length, heads, -1), v)
    states = k.shape[3]
    check_real("q", q, (batch, length, heads, states), v)
    check_real("log_alpha", log_alpha, (batch, length, heads), v)
    check_real("beta", beta, (batch, length, heads), v)
    if initial_state is None:
        initial_state = torch.zeros(batch, heads, width, states, dtype=torch.float32, device=v.device)
    check_real("initial_state", initial_state, (batch, heads, width, states), v)
    flags = step_flags(batch, length, valid, seq_idx, v)
    chosen = resolve("delta_scan", backend, v, NATIVE_BACKENDS)
    given = (v, k, q, log_alpha, beta, initial_state)
    wide = state_dtype(*given)
    v_wide, k, q, log_alpha, beta, initial_state = (value.to(wide) for value in given)

    def run(v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        if chosen == "reference":
            return reference.delta_scan(v, k, q, log_alpha, beta, state, flags)
        return eager.delta_scan(v, k, q, log_alpha, beta, state, flags, packed=seq_idx is not None)

    split = current_split()
    with without_autocast(v):
        if split is None:
            y, final = run(v_wide, initial_state)
        else:
            y, final = _scan_piece(run, v_wide, initial_state, flags, split)
        if length == 0:
            y, final = connect_gradients((y, final), v_wide, k, q, log_alpha, beta, initial_state)
    return y.to(v.dtype), final


def _scan_piece(
    run: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    v: Tensor,
    initial_state: Tensor,
    flags: Tensor | None,
    split: SequenceSplit,
) -> tuple[Tensor, Tensor]:
    """Return the outputs of a piece of split sequences, and the state after the last piece, by one scan.

    run: function of values and a state that returns outputs and the state after the last step. The rows of a state (P, N) are
    independent of each other. So one scan has P rows with the values v and a zero state, and N more rows with zero values and the
    identity as state. The final states of the latter are the product of the factors, and their outputs are what each entry of a
    state before the piece adds to the outputs.
    """
    batch, length, heads, width = v.shape
    states = initial_state.shape[3]
    identity = torch.eye(states, dtype=v.dtype, device=v.device).expand(batch, heads, states, states)
    y, final = run(
        torch.cat([v, v.new_zeros(batch, length, heads, states)], 3), torch.cat([torch.zeros_like(initial_state), identity], 2)
    )
    factor = PieceMap([final[:, :, width:]], torch.matmul)
    before, last = pass_states(split, initial_state, final[:, :, :width], factor, flags)
    carried = y[..., width:].transpose(1, 2) @ before.mT
    return y[..., :width] + carried.transpose(1, 2), last
