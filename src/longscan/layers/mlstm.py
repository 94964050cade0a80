"""mLSTM, the matrix memory of xLSTM (Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory", equations 19-27).

    (q_t, k_t, v_t) = W u_t + b, k_t / sqrt(P)          o_t = sigmoid(W_o u_t + b_o)
    i_t = e^{w_i u_t + b_i}     f_t = sigmoid(w_f u_t + b_f)
    C_t = f_t C_{t-1} + i_t v_t k_t^T       n_t = f_t n_{t-1} + i_t k_t       y_t = o_t * C_t q_t / max(|n_t q_t|, 1)

u: input (B, L, D) of H heads of width P. C: memory (B, H, P, P). n: normaliser (B, H, P). i, f: gates, one for each head.

Exponential input gates need a stabiliser, m_t = max(log f_t + m_{t-1}, log i_t) (appendix A.3): C and n are stored times e^{-m},
which changes no output. Both are then computed by one scan with factors and weights of at most 1, in which n is one more row of
C, for a component of v that is always 1. The convolution, gate and norms of the paper's block belong to the surrounding block.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid, pad, silu

from longscan._types import PositiveInt
from longscan.distributed.collectives import all_gather_coalesced
from longscan.distributed.context import SequenceSplit, current_split
from longscan.layers._registry import LAYERS
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, SequenceLayer, mask_padding
from longscan.layers.heads import head_width
from longscan.layers.parameters import mark
from longscan.layers.state import State, layer_state, no_sequence, restarted_rows, zero_rows
from longscan.numerics.initialisers import uniform_fan_in
from longscan.numerics.symbolic import is_symbolic
from longscan.ops import ssd_scan
from longscan.ops.arguments import INVALID, RESET, step_flags
from longscan.ops.dispatch import Backend
from longscan.ops.pieces import sum_steps
from longscan.ops.tracing import record_length

MAX_SYMBOLIC_LENGTH = 2**20  # largest number of steps of a graph with a symbolic length
MAX_EXPONENT = 80.0  # e^80 is finite in float32


@layer_state
class MLSTMState(NamedTuple):
    """State of `MLSTM`: `memory` (B, H, P + 1, P), the rows of C and n, times e^{-m}; `stabiliser` m (B, H); `last_seq_idx`."""

    memory: Tensor
    stabiliser: Tensor
    last_seq_idx: Tensor


def running_maximum(log_f: Tensor, log_i: Tensor, start: Tensor, flags: Tensor | None) -> Tensor:
    """Return m_t = max(log_f_t + m_{t-1}, log_i_t), shape (B, L, H), without a loop over time.

    The maps m -> max(log_f + m, log_i), affine in the max-plus semiring, are composed by doubling: log2(L) times over all steps.
    A graph with a symbolic length accepts at most MAX_SYMBOLIC_LENGTH steps and doubles log2(MAX_SYMBOLIC_LENGTH) times, with the
    same result. A map that contains a restart drops the earlier steps by a selection, so that a NaN of an earlier sequence does
    not reach a later one.

    Args:
        log_f: (B, L, H), logarithms of the forget gates.
        log_i: (B, L, H), logarithms of the input gates.
        start: (B, H), m before the first step. It is 0 before the first step of a later sequence.
        flags: (B, L), from `longscan.ops.arguments.step_flags`, or None.
    """
    restarted = None  # a mask of constants would not compile: inductor of torch 2.11 writes wrong C++ for it
    if flags is not None:
        invalid, restarted = (flags.unsqueeze(-1) == kind for kind in (INVALID, RESET))
        log_i = torch.where(invalid, -torch.inf, torch.where(restarted, torch.maximum(log_f, log_i), log_i))
        log_f = torch.where(invalid, 0, log_f)
    log_i, length = record_length(log_i)  # the number of doublings depends on it
    # torch.compile recompiles for more steps.
    has_symbolic_length = is_symbolic(length) and not torch.compiler.is_dynamo_compiling()
    if has_symbolic_length:
        # Graphs of make_fx hold no checks of sizes, but `narrow` raises in every graph for more than MAX_SYMBOLIC_LENGTH steps.
        log_i = log_i + log_i.new_zeros(1).expand(MAX_SYMBOLIC_LENGTH).narrow(0, 0, length).unsqueeze(-1)
    reach = 1
    while reach < (MAX_SYMBOLIC_LENGTH if has_symbolic_length else length):
        earlier = _drop_restarted(log_f + _shift_right(log_i, reach, -torch.inf, has_symbolic_length), restarted)
        log_i = torch.maximum(log_i, earlier)
        log_f = log_f + _shift_right(log_f, reach, 0, has_symbolic_length)
        if restarted is not None:
            restarted = restarted | _shift_right(restarted, reach, False, has_symbolic_length)
        reach *= 2
    return torch.maximum(_drop_restarted(log_f + start.unsqueeze(1), restarted), log_i)


def _drop_restarted(earlier: Tensor, restarted: Tensor | None) -> Tensor:
    """Return contributions of earlier steps (B, L, H), with -inf where the sequence has restarted since then."""
    return earlier if restarted is None else torch.where(restarted, -torch.inf, earlier)


def pass_maximum(
    log_f: Tensor, log_i: Tensor, start: Tensor, flags: Tensor | None, split: SequenceSplit
) -> tuple[Tensor, Tensor]:
    """Return m (B, H) before this process's piece of split sequences and after the last piece, as `running_maximum` defines it.

    A piece maps m to max(F + m, I): F is the sum of its log_f, I its last m from -inf. start: m before the first piece.
    """
    local = running_maximum(log_f, log_i, torch.full_like(start, -torch.inf), flags)[:, -1]
    restarts = torch.zeros_like(local)
    if flags is not None:
        restarts = (flags == RESET).any(1, keepdim=True).to(local.dtype).expand_as(local)
    gathered = all_gather_coalesced([sum_steps(log_f, flags).to(local.dtype), local, restarts], split)
    states = [start]
    for total, least, restarted in zip(*gathered, strict=True):
        states.append(torch.where(restarted > 0, least, torch.maximum(total + states[-1], least)))
    return torch.stack(states)[split.rank], states[-1]


def _shift_right(x: Tensor, steps: int, value: float, has_symbolic_length: bool) -> Tensor:
    """Return x (B, L, H) delayed by `steps`, with `value` at the first steps.

    If L is symbolic, `steps` may exceed it, and a slice would restrict the graph either to the lengths for which it is empty or
    to those for which it is not. So the delay is computed as a cyclic shift.
    """
    if not has_symbolic_length:
        return pad(x[:, :-steps], (0, 0, steps, 0), value=value)
    is_new = torch.arange(x.shape[1], device=x.device).unsqueeze(-1) < steps
    return torch.where(is_new, value, x.roll(steps, 1))


@LAYERS.register("mlstm")
class MLSTM(SequenceLayer):
    """Matrix memories of key-value pairs with forget gates and exponential input gates, one per head.

    Args:
        d_model: channels D.
        head_dim: channels P of a head; None for the largest divisor of D up to 64.
        backend: of `longscan.ops.ssd_scan`.

    Elapsed times raise ValueError. The state is `MLSTMState`.
    """

    context_parallel = True
    irregular = False
    op_names = ("ssd_scan",)

    def __init__(self, d_model: PositiveInt, *, head_dim: PositiveInt | None = None, backend: Backend = "auto") -> None:
        super().__init__()
        self.d_model, self.head_dim, self.backend = d_model, head_width(d_model, head_dim), backend
        self.heads = heads = d_model // self.head_dim

        self.in_proj = nn.Parameter(uniform_fan_in(4 * d_model, d_model, fan_in=d_model))
        self.in_bias = nn.Parameter(uniform_fan_in(4 * d_model, fan_in=d_model))
        self.gate_proj = mark(nn.Parameter(uniform_fan_in(2 * heads, d_model, fan_in=d_model)), "selector")
        bias = torch.cat([0.1 * torch.randn(heads), torch.linspace(3, 6, heads)])
        self.gate_bias = mark(nn.Parameter(bias), "selector", decay=False, keep_float32=True)
        check_backend(self, backend)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        return self._scan(x, None, state, info)

    def map_values(self, x: Tensor, values: Tensor, state: State, info: SequenceInfo) -> Tensor:
        """See `SequenceLayer.map_values`; gates, keys, queries and the normaliser are coefficients."""
        y, _ = self._scan(x, values, state, info)
        return y if info.gate is None else y * silu(info.gate)

    def _scan(self, x: Tensor, values: Tensor | None, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs and the final state for values (B, L, D), None for x, with the coefficients of x (B, L, D)."""
        state = self.initial_state(x.shape[0]) if state is None else state
        rows, last_seq_idx = restarted_rows(state.last_seq_idx, info.valid, info.seq_idx)
        memory, start = zero_rows(rows, state.memory), zero_rows(rows, state.stabiliser)
        if x.shape[1] == 0:
            return x.clone(), MLSTMState(memory, start, last_seq_idx)
        flags = step_flags(x.shape[0], x.shape[1], info.valid, info.seq_idx, x)
        wide = self.gate_bias.dtype
        log_i, raw_f = (linear(x, self.gate_proj).to(wide) + self.gate_bias).chunk(2, -1)
        log_f = logsigmoid(raw_f)
        split, last = current_split(), None
        if split is not None:
            start, last = pass_maximum(log_f, log_i, start, flags, split)
        m = running_maximum(log_f, log_i, start, flags)
        before = torch.cat([start.unsqueeze(1), m[:, :-1]], 1)
        decay = m - before - log_f
        if flags is not None:
            decay = torch.where((flags == RESET).unsqueeze(-1), 0, decay)  # the scan restarts from zero

        projected = linear(x, self.in_proj, self.in_bias)
        q, k, v = (part.reshape(*x.shape[:2], self.heads, self.head_dim) for part in projected.chunk(4, -1)[:3])
        if values is not None:
            own = slice(2 * self.d_model, 3 * self.d_model)  # the rows of the projection that compute values
            v = linear(values, self.in_proj[own], self.in_bias[own]).view_as(v)
        y, memory = ssd_scan(
            pad(v.to(wide), (0, 1), value=1.0),
            decay,
            decay.new_full((self.heads,), -1.0),
            k / math.sqrt(self.head_dim),
            q,
            initial_state=memory,
            input_scale=(log_i - m).exp(),
            valid=info.valid,
            seq_idx=info.seq_idx,
            backend=self.backend,
        )
        one = (-m.clamp(-MAX_EXPONENT, MAX_EXPONENT)).exp().unsqueeze(-1)  # the 1 of max(|n q|, 1), times e^{-m}
        y = (y[..., :-1] / torch.maximum(y[..., -1:].abs(), one)).flatten(2).to(x.dtype)
        y = y * torch.sigmoid(projected[..., 3 * self.d_model :])
        return mask_padding(y, info.valid), MLSTMState(memory, m[:, -1].clone() if last is None else last, last_seq_idx)

    def initial_state(self, batch: int) -> MLSTMState:
        """Return zeros for all fields of `MLSTMState`."""
        memory = torch.zeros(batch, self.heads, self.head_dim + 1, self.head_dim, dtype=self.state_dtype, device=self.device)
        return MLSTMState(memory, memory.new_zeros(batch, self.heads), no_sequence(batch, self.device))
