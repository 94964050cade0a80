"""Gated DeltaNet's heads, from "Gated Delta Networks: Improving Mamba2 with Delta Rule" (Yang, Kautz and Hatamizadeh 2024).

    (k_t, q_t, dt_t, b_t) = W u_t       k_t / |k_t|, q_t / |q_t|       beta_t = sigmoid(b_t)
    alpha_t = e^{softplus(dt_t + bias) A}        (to the power of the elapsed time)
    S_t = alpha_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t u_t k_t^T        y_t = RMSNorm(S_t q_t),  times silu(gate_t)

u: input (B, L, D) of H heads of width P, D = H P; the values of the paper. S: state (B, H, P, N). A: (H,), negative. k, q: keys
and queries (B, L, H, N) of length 1. alpha, beta: (B, L, H). The norm is over the P channels of a head.

In the paper's block one projection of the block's input computes values, keys, queries, dt and b, and a short convolution with
SiLU follows for values, keys and queries: `longscan.blocks.GatedDeltaNetBlock`, which uses the heads of this layer. The layer
itself computes all but the values from its input u, as Mamba-2 does here.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu, softplus

from longscan._types import PositiveFloat, PositiveInt
from longscan.layers._registry import LAYERS
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, start_state
from longscan.layers.heads import Heads, HeadsLayer, head_width
from longscan.layers.parameters import float32_parameter, mark
from longscan.layers.state import ScanState, State
from longscan.numerics.timescales import initial_dt
from longscan.ops import delta_scan
from longscan.ops.dispatch import Backend, plain_backend

NORM_EPSILON = 1e-5  # epsilon of RMSNorm
LENGTH_EPSILON = 1e-6  # added to squared lengths of keys and queries


class GatedDeltaNetHeads(Heads):
    """Heads of Gated DeltaNet: A, dt_bias, the weight of the norm and their scan. Arguments as in `GatedDeltaNet`."""

    op_names = ("delta_scan",)

    def __init__(
        self, d_model: int, d_state: int | None, head_dim: int | None, dt_range: tuple[float, float], backend: Backend
    ) -> None:
        width = head_width(d_model, head_dim)
        super().__init__(d_model, max(1, width // 2) if d_state is None else d_state, width, d_model // width, backend)
        self.convolved = 2 * self.heads * self.d_state
        self.selected = self.convolved + 2 * self.heads
        self.A_log = float32_parameter(torch.empty(self.heads).uniform_(1, 16).log())
        self.dt_bias = float32_parameter(initial_dt((self.heads,), *dt_range, stored_as="softplus"), "selector")
        self.norm_weight = mark(nn.Parameter(torch.ones(self.head_dim)), "norm", decay=False)

    def forward_impl(self, x: Tensor, selected: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        y, state = self.scan(x, selected, state, info)
        y = (rms_norm(y, (self.head_dim,), eps=NORM_EPSILON) * self.norm_weight).flatten(2).to(x.dtype)
        return y if info.gate is None else y * silu(info.gate), state

    def scan(self, x: Tensor, selected: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs before the norm, (B, L, H, P), and the state after the last step."""
        initial, last_seq_idx = start_state(state, x.shape[0], info, x.device)
        keys_and_queries, dt, b = torch.split(selected.to(self.dt_bias.dtype), [self.convolved, self.heads, self.heads], -1)
        kq = keys_and_queries.reshape(*x.shape[:2], 2, self.heads, self.d_state)
        k, q = (kq * (kq.square().sum(-1, keepdim=True) + LENGTH_EPSILON).rsqrt()).unbind(2)
        log_alpha = -softplus(dt + self.dt_bias) * self.A_log.exp()
        if info.elapsed is not None:
            log_alpha = log_alpha * info.elapsed.unsqueeze(-1).to(log_alpha.dtype)
        y, ssm = delta_scan(
            self.split(x),
            k,
            q,
            log_alpha,
            b.sigmoid(),
            initial,
            valid=info.valid,
            seq_idx=info.seq_idx,
            backend=plain_backend(self.backend),
        )
        return y, ScanState(ssm, last_seq_idx)

    def map_values(self, x: Tensor, selected: Tensor, values: Tensor, state: State, info: SequenceInfo) -> Tensor:
        """See `Heads.map_values`; the factor of the norm is a coefficient."""
        plain, _ = self.scan(x, selected, state, info)
        scale = (plain.square().mean(-1, keepdim=True) + NORM_EPSILON).rsqrt() * self.norm_weight
        y = (self.scan(values, selected, state, info)[0] * scale).flatten(2).to(x.dtype)
        return y if info.gate is None else y * silu(info.gate)


@LAYERS.register("gated_deltanet")
class GatedDeltaNet(HeadsLayer):
    """Heads with a matrix state whose values are replaced key by key (delta rule), with one decay per head.

    Args:
        d_model: channels D.
        d_state: width N of the keys and queries of a head; None for half of `head_dim`.
        head_dim: channels P of a head; None for the largest divisor of D up to 64.
        dt_min, dt_max: initial range of softplus(dt + bias) for dt = 0.
        backend: of `longscan.ops.delta_scan`.

    The decay is raised to the power of the elapsed time. The state is `ScanState` with ssm (B, H, P, N).
    """

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        d_state: PositiveInt | None = None,
        head_dim: PositiveInt | None = None,
        dt_min: PositiveFloat = 1e-3,
        dt_max: PositiveFloat = 0.1,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(GatedDeltaNetHeads(d_model, d_state, head_dim, (dt_min, dt_max), backend))
        check_backend(self, backend)
