"""Mamba-3's heads, single input and single output (Lahoti et al. 2026, "Mamba-3"; the authors' code).

    (B_t, C_t, dt_t, a_t, r_t, w_t) = W u_t             Delta_t = softplus(dt_t + bias)     (times the elapsed time)
    alpha_t = e^{Delta_t A_t}, A_t = -g(a_t)            lambda_t = sigmoid(r_t)             theta_t = Delta_t pi tanh(w_t)
    K_t = u_t [norm(B_t) + bias_B]^T                    Q_t = norm(C_t) + bias_C
    h_t = alpha_t R(-theta_t) (h_{t-1} + (1 - lambda_t) Delta_t K_{t-1}) + lambda_t Delta_t K_t
    y_t = h_t Q_t + skip u_t,  times silu(gate_t)

u: input (B, L, D) of H heads of width P. h: state (B, H, P, N). A_t, Delta_t, lambda_t: (B, L, H). B_t, C_t: (B, L, G, N) with G
groups, the norm over N, a bias for each head. w_t: (B, L, R) for all heads: R(.) rotates the first R pairs of the N.
g(x) = 1 + x for x >= 0 and 1 / (1 - x) for x < 0; A_t is at most -1e-4.

The input is integrated by a trapezoidal rule, in which lambda_t weighs K_t against K_{t-1}; so K_{t-1} belongs to the state. The
authors rotate B and C by the sum of all angles so far; here the state is stored in the rotating frame instead, which needs no
such sum. `forward_impl` adds both contributions of an input at its own step, with the weight
s_t = lambda_t Delta_t + (1 - lambda_{t+1}) Delta_{t+1}, except in y_t, where its weight is lambda_t Delta_t.
"""

import math
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu, softplus

from longscan._types import PositiveFloat, PositiveInt, Rule
from longscan.distributed.collectives import all_gather, all_gather_coalesced
from longscan.distributed.context import SequenceSplit, current_split
from longscan.layers._registry import LAYERS
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, mask_padding
from longscan.layers.heads import Heads, HeadsLayer
from longscan.layers.parameters import float32_parameter, mark
from longscan.layers.state import State, layer_state, no_sequence, restarted_rows, zero_rows
from longscan.numerics.timescales import initial_dt
from longscan.ops import ssd_scan
from longscan.ops.arguments import sequence_ends
from longscan.ops.dispatch import Backend

MIN_DECAY_RATE = 1e-4  # smallest value of -A_t
HalfOrOne = Annotated[float, Rule(lambda x: x in (0.5, 1.0), "0.5 or 1.0")]


@layer_state
class Mamba3State(NamedTuple):
    """State of `Mamba3`.

    Attributes:
        ssm: (B, H, P, N).
        last_x: (B, H, P), the input at the last step.
        last_map: (B, H, N), norm(B) + bias_B at the last step.
        last_seq_idx: (B,), as in `ScanState`.
    """

    ssm: Tensor
    last_x: Tensor
    last_map: Tensor
    last_seq_idx: Tensor


def _continues_sequence(info: SequenceInfo, x: Tensor) -> Tensor:
    """Return whether the next step belongs to the same sequence as this one, bool (B, L)."""
    follows = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2]) < x.shape[1] - 1
    if info.valid is not None:
        follows = follows & info.valid & info.valid.roll(-1, 1)
    if info.seq_idx is not None:
        follows = follows & (info.seq_idx == info.seq_idx.roll(-1, 1))
    return follows


def _end_step(x: Tensor, valid: Tensor | None, end: int) -> Tensor:
    """Return the first (end 0) or the last (end -1) valid step of x (B, L, ...): (B, ...), zeros in rows without one."""
    if valid is None:
        return x[:, end]
    count = valid.cumsum(1)
    return mask_padding(x, valid & (count == (1 if end == 0 else count[:, -1:]))).sum(1)


def _has_step(info: SequenceInfo, x: Tensor) -> Tensor:
    """Return which rows of a piece x (B, L, ...) have a valid step, (B,) bool."""
    return torch.ones(len(x), dtype=torch.bool, device=x.device) if info.valid is None else info.valid.any(1)


def _first_with_step(values: Tensor, has_step: Tensor) -> Tensor:
    """Return values (R, B, ...) of the first piece of each row that has a valid step; zeros if none has. has_step: (R, B)."""
    found = torch.zeros_like(values.sum(0))
    for value, present in zip(values.flip(0), has_step.flip(0), strict=True):
        found = torch.where(present.view(-1, *(1,) * (found.ndim - 1)), value, found)
    return found


def _weights_of_pieces(
    weight: Tensor, has_step: Tensor, info: SequenceInfo, split: SequenceSplit
) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights of steps of other pieces: of the first valid step of the sequences, and of the first one after this piece.

    Both have shape (B, H). The third result is whether the last step of this piece and the first step after it belong to one
    sequence, (B,) bool.

    Args:
        weight: (B, H), that of the first valid step of this piece; zeros in rows without one.
        has_step: (R, B), `_has_step` of each piece.
        info: the masks of this piece.
        split: the split of the sequences.
    """
    weights = all_gather(weight, split)
    later = slice(split.rank + 1, None)
    follows = has_step[later].any(0)
    if info.valid is not None:
        follows = follows & info.valid[:, -1]
    if info.seq_idx is not None:
        firsts = sequence_ends(info.valid, info.seq_idx, split)[..., 1]
        follows = follows & (_first_with_step(firsts[later], has_step[later]) == info.seq_idx[:, -1])
    return _first_with_step(weights, has_step), _first_with_step(weights[later], has_step[later]), follows


class Mamba3Heads(Heads):
    """Heads of Mamba-3: their parameters and their scan. Arguments as in `Mamba3`."""

    op_names = ("ssd_scan",)

    def __init__(
        self,
        d_model: int,
        d_state: int,
        head_dim: int | None,
        groups: int,
        rope_fraction: float,
        dt_range: tuple[float, float],
        backend: Backend,
    ) -> None:
        super().__init__(d_model, d_state, head_dim, groups, backend)
        self.pairs = int(d_state * rope_fraction) // 2
        if not self.pairs:
            least = round(2 / rope_fraction)
            raise ValueError(f"`d_state` must be at least {least}, so that one pair of states is rotated, got {d_state}")
        self.convolved = 2 * groups * d_state
        self.selected = self.convolved + 3 * self.heads + self.pairs
        self.dt_bias = float32_parameter(initial_dt((self.heads,), *dt_range, stored_as="softplus"), "selector")
        self.B_bias, self.C_bias = (
            mark(nn.Parameter(torch.ones(self.heads, d_state)), "ssm", keep_float32=True) for _ in range(2)
        )
        self.B_norm, self.C_norm = (mark(nn.Parameter(torch.ones(d_state)), "norm", decay=False) for _ in range(2))
        self.D = float32_parameter(torch.ones(self.heads))

    def step_sizes(self, dt: Tensor) -> Tensor:
        """Return Delta (B, L, H) without the factor of the elapsed time."""
        return softplus(dt + self.dt_bias)

    def forward_impl(self, x: Tensor, selected: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        state = self.initial_state(x.shape[0]) if state is None else state
        rows, last_seq_idx = restarted_rows(state.last_seq_idx, info.valid, info.seq_idx)
        ssm, last_x, last_map = (zero_rows(rows, part) for part in state[:3])
        if x.shape[1] == 0:
            return x.clone(), Mamba3State(ssm, last_x, last_map, last_seq_idx)
        size, wide = self.groups * self.d_state, self.D.dtype
        B, C, dt, a, r, w = torch.split(selected.to(wide), [size, size, *(self.heads,) * 3, self.pairs], -1)
        B, C = (self._normed(part, scale).to(x.dtype) for part, scale in ((B, self.B_norm), (C, self.C_norm)))
        u, dt = self.split(x), self.step_sizes(dt)
        if info.elapsed is not None:
            dt = dt * info.elapsed.unsqueeze(-1).to(wide)
        rate = torch.where(a >= 0, 1 + a, 1 / (1 - a.clamp(max=0))).clamp(min=MIN_DECAY_RATE)
        trapezoid = torch.sigmoid(r)  # lambda_t
        angle = dt.unsqueeze(-1) * (-math.pi * torch.tanh(w)).unsqueeze(2)

        previous_weight = (1 - trapezoid) * dt  # (1 - lambda_t) Delta_t, the weight at step t of the input of step t - 1
        split = current_split()
        first_weight, following = _end_step(previous_weight, info.valid, 0), torch.zeros_like(previous_weight[:, 0])
        continues = _continues_sequence(info, x)
        if split is not None:
            has_steps = all_gather(_has_step(info, x), split)
            first_weight, following, follows = _weights_of_pieces(first_weight, has_steps, info, split)
            continues = torch.cat([continues[:, :-1], follows.unsqueeze(1)], 1)
        ssm = ssm + first_weight[..., None, None] * last_x.unsqueeze(-1) * last_map.unsqueeze(-2)
        next_weight = torch.cat([previous_weight[:, 1:], following.unsqueeze(1)], 1)
        next_weight = torch.where(continues.unsqueeze(-1), next_weight, 0)
        y, ssm = ssd_scan(
            u,
            rate * dt,
            -torch.ones_like(self.D),
            B,
            C,
            self.D,
            initial_state=ssm,
            input_scale=trapezoid * dt + next_weight,
            own_scale=trapezoid * dt,
            angle=angle,
            B_bias=self.B_bias,
            C_bias=self.C_bias,
            valid=info.valid,
            seq_idx=info.seq_idx,
            backend=self.backend,
        )
        y = y.flatten(2) if info.gate is None else y.flatten(2) * silu(info.gate)
        newest_x, newest_B = (_end_step(part, info.valid, -1).to(wide) for part in (u, B))
        newest_B = newest_B.repeat_interleave(self.heads // self.groups, 1) + self.B_bias
        if split is not None and info.return_state:
            newest = all_gather_coalesced([newest_x, newest_B], split)
            has_step = has_steps.any(0)[:, None, None]
            newest_x, newest_B = (_first_with_step(part.flip(0), has_steps.flip(0)) for part in newest)
            newest_x, newest_B = torch.where(has_step, newest_x, last_x), torch.where(has_step, newest_B, last_map)
        elif info.valid is not None:
            has_step = info.valid.any(1)[:, None, None]
            newest_x, newest_B = torch.where(has_step, newest_x, last_x), torch.where(has_step, newest_B, last_map)
        return y, Mamba3State(ssm, newest_x, newest_B, last_seq_idx)

    def _normed(self, selected: Tensor, scale: Tensor) -> Tensor:
        """Return B or C of the groups, (B, L, G, N), normalised over the N states."""
        grouped = selected.reshape(*selected.shape[:2], self.groups, self.d_state)
        return rms_norm(grouped, (self.d_state,), eps=1e-5) * scale.to(selected.dtype)

    def initial_state(self, batch: int) -> Mamba3State:
        """Return zeros for all fields of `Mamba3State`."""
        like = torch.zeros((), dtype=torch.float64 if self.D.dtype == torch.float64 else torch.float32, device=self.D.device)
        shapes = ((self.head_dim, self.d_state), (self.head_dim,), (self.d_state,))
        ssm, last_x, last_map = (like.new_zeros(batch, self.heads, *shape) for shape in shapes)
        return Mamba3State(ssm, last_x, last_map, no_sequence(batch, self.D.device))


@LAYERS.register("mamba3")
class Mamba3(HeadsLayer):
    """Heads whose state decays and rotates by input-dependent amounts, with a trapezoidal rule for the input.

    Args:
        d_model: channels D.
        d_state: number of states N per channel.
        head_dim: channels P of a head; None for the largest divisor of D up to 64.
        groups: number G of groups of heads with the same B and C.
        rope_fraction: fraction of the states that is rotated, 0.5 or 1.0.
        dt_min, dt_max: initial range of Delta.
        backend: of `longscan.ops.ssd_scan`.

    Elapsed time multiplies Delta. The state is `Mamba3State`.
    """

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        d_state: PositiveInt = 128,
        head_dim: PositiveInt | None = None,
        groups: PositiveInt = 1,
        rope_fraction: HalfOrOne = 0.5,
        dt_min: PositiveFloat = 1e-3,
        dt_max: PositiveFloat = 0.1,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(Mamba3Heads(d_model, d_state, head_dim, groups, rope_fraction, (dt_min, dt_max), backend))
        check_backend(self, backend)
