"""Causal multi-head attention (Vaswani et al. 2017, section 3.2) with rotary positions (Su et al. 2021, equations 14-16).

    (q_t, k_t, v_t) = W u_t         y_t = W_o [ sum_s softmax_s( <R(p_t) q_t, R(p_s) k_s> / sqrt(P) ) v_s ]      s <= t

u: input (B, L, D) of H heads of width P, D = H P. p: position, the running sum of the elapsed times. R(p) rotates pair i of a
head by p base^(-2i/R) radians, so that scores depend on p_t - p_s alone. With a window w the sum is over the last w steps.

torch's scaled_dot_product_attention computes it, with its fused kernels where they apply. Rows of several sequences do not use
it: a fused kernel multiplies masked values by a weight of 0, and 0 times a NaN of another sequence is NaN. The state holds the
keys before the rotation and the time since each was seen, so that the angles of a long stream stay small. It grows with the
sequence: see `AttentionState`.
"""

import math
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, pad, scaled_dot_product_attention

from longscan.layers._registry import LAYERS
from longscan.layers.base import SequenceInfo, SequenceLayer, mask_padding
from longscan.layers.heads import head_width
from longscan.layers.state import State, layer_state, no_sequence, restarted_rows
from longscan.numerics.rotary import frequencies, frequency_tensor, rotate_pairs
from longscan.ops.arguments import RESET, carry_dtype, reset_mask, step_flags, without_autocast
from longscan.ops.associative import running_sum
from longscan.ops.chunks import run_chunk
from longscan.ops.masked_products import masked_products, masked_sums
from longscan.ops.tracing import in_func_transform, record_length

PIECE = 128  # queries that a windowed layer answers at once, at least
SCORES = 2**22  # of packed rows, one for each head, query and key: more are computed piece by piece, again in the backward
QUERIES = 256  # of such a piece, at most; it meets the keys up to its own last step, not those to come


@layer_state
class AttentionState(NamedTuple):
    """What was seen: `keys`, `values` (B, T, H, P), the newest last; `age` (B, T), time since then; `filled` (B,), how many of
    the T slots a row fills, from the right; `last_seq_idx` (B,) as in `ScanState`.

    Without a window T grows by one with every step, 2 D + 1 numbers a row; with a window w it is w - 1 from the start.
    """

    keys: Tensor
    values: Tensor
    age: Tensor
    filled: Tensor
    last_seq_idx: Tensor

    def trimmed(self) -> "AttentionState":
        """Return the state without the slots that no row uses, such as those of padding and of earlier sequences."""
        empty = self.age.shape[1] - int(self.filled.max())
        return self._replace(keys=self.keys[:, empty:], values=self.values[:, empty:], age=self.age[:, empty:])


@LAYERS.register("attention")
class Attention(SequenceLayer):
    """Causal softmax attention of every step to all steps before it, or to the last `window` of them.

    Args:
        d_model: channels D.
        head_dim: channels P of a head; None: the largest divisor of D up to 64.
        window: how many steps a step sees, itself included; None: all.
        rotary_dim: how many features of a head turn with the position, even; None: all (but one, where P is odd).
        base: of the frequencies.
        bias: biases in both projections.

    Elapsed time adds to the position. The state is `AttentionState`.
    """

    def __init__(
        self,
        d_model: int,
        *,
        head_dim: int | None = None,
        window: int | None = None,
        rotary_dim: int | None = None,
        base: float = 10_000.0,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.d_model, self.head_dim = d_model, head_width(d_model, head_dim)
        if self.head_dim < 2:
            raise ValueError(f"head_dim: got {self.head_dim}, expected at least 2, a pair that turns with the position")
        if window is not None and window < 1:
            raise ValueError(f"window: got {window}, expected at least 1")
        width = self.head_dim // 2 * 2 if rotary_dim is None else rotary_dim
        if width % 2 or not 2 <= width <= self.head_dim:
            raise ValueError(f"rotary_dim: got {width}, expected an even number from 2 to the head's width {self.head_dim}")
        frequencies(width, base)  # refuses what has none
        self.heads, self.window, self.rotary_dim, self.base = d_model // self.head_dim, window, width, base
        bound = 1 / math.sqrt(d_model)
        self.in_proj = nn.Parameter(torch.empty(3 * d_model, d_model).uniform_(-bound, bound))
        self.out_proj = nn.Parameter(torch.empty(d_model, d_model).uniform_(-bound, bound))
        self.in_bias = nn.Parameter(torch.zeros(3 * d_model)) if bias else None
        self.out_bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    def rotary_frequencies(self, like: Tensor) -> Tensor:
        """Return the rotary frequencies in radians per step, (rotary_dim / 2,), with the dtype and device of `like`."""
        return frequency_tensor(self.rotary_dim, self.base, like)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Run the recurrence of the module docstring."""
        if state is None:
            state = self._no_steps(x.shape[0], 0) if x.shape[1] else self.initial_state(x.shape[0])
        if self.window is not None:
            x, _ = record_length(x)  # the pieces and the kind of mask depend on it
        size = max(x.shape[1], 1) if self.window is None else max(self.window, PIECE)
        outputs = []
        for start in range(0, x.shape[1], size):
            piece = slice(start, start + size)
            elapsed, valid, seq_idx = (None if part is None else part[:, piece] for part in info[:3])
            y, state = self._attend(x[:, piece], state, SequenceInfo(elapsed, valid, seq_idx))
            outputs.append(y)
            state = state if self.window is None else self._windowed(state)
        return (torch.cat(outputs, 1) if outputs else x.clone()), state

    def _attend(self, x: Tensor, state: AttentionState, info: SequenceInfo) -> tuple[Tensor, AttentionState]:
        """Return the output for all steps of x, and the state with all its steps."""
        (batch, length), held = x.shape[:2], state.age.shape[1]
        rows, last_seq_idx = restarted_rows(state.last_seq_idx, info.valid, info.seq_idx)
        flags = step_flags(batch, length, info.valid, info.seq_idx, x)
        valid = torch.ones(batch, length, dtype=torch.bool, device=x.device) if info.valid is None else info.valid
        q, k, v = linear(x, self.in_proj, self.in_bias).view(batch, length, 3, self.heads, self.head_dim).unbind(2)
        old = torch.arange(held, device=x.device) >= held - state.filled.unsqueeze(1)
        old = old if rows is None else old & ~rows.unsqueeze(1)
        keys, values, age = (torch.where(old.view(*old.shape, *(1,) * (part.ndim - 2)), part, 0) for part in state[:3])
        keys, values = (torch.cat([before.to(new.dtype), new], 1) for before, new in ((keys, k), (values, v)))

        tick = torch.ones_like(valid, dtype=x.dtype) if info.elapsed is None else info.elapsed
        time = torch.where(valid, tick, 0).to(carry_dtype(self.in_proj))
        packed = info.seq_idx is not None
        time = running_sum(time, reset_mask(flags, packed, 2))  # since the last call, or since the sequence began
        when = torch.cat([-age.to(time.dtype), time], 1)
        speed = self.rotary_frequencies(time)
        queries, turned = (
            rotate_pairs(part.to(self.state_dtype), (moment.unsqueeze(-1) * speed).unsqueeze(2)).to(part.dtype).transpose(1, 2)
            for part, moment in ((q, time), (keys, when))
        )

        segment = torch.zeros_like(valid, dtype=torch.int64) if flags is None else (flags == RESET).cumsum(1)
        seen = torch.cat([old, valid], 1)
        # under torch.jit.trace the comparisons of lengths are tensors
        plain = bool(length > 1 and not held and flags is None and (self.window is None or length <= self.window))
        if packed:
            y = self._attend_packed(queries, turned, values.transpose(1, 2), seen, segment, valid)
        else:
            mask = None if plain else self._mask(seen, segment, valid, slice(0, length)).unsqueeze(1)
            # The fused kernels know no vmap.
            fusing = sdpa_kernel(SDPBackend.MATH) if in_func_transform() else nullcontext()
            with fusing:
                y = scaled_dot_product_attention(queries, turned, values.transpose(1, 2), attn_mask=mask, is_causal=plain)
        y = mask_padding(linear(y.transpose(1, 2).flatten(2), self.out_proj, self.out_bias), info.valid)

        if flags is not None:
            ended = pad(segment, (held, 0)) != segment[:, -1:]
            seen = seen & ~ended
        kept = [keys.to(self.in_proj.dtype), values.to(self.in_proj.dtype), (time[:, -1:] - when).to(self.state_dtype)]
        if info.valid is not None:  # the filled slots to the right, in their order
            order = seen.to(torch.uint8).argsort(dim=1, stable=True)
            kept = [part.gather(1, order.view(*order.shape, *(1,) * (part.ndim - 2)).expand_as(part)) for part in kept]
            seen = seen.gather(1, order)
        keys, values, age = (torch.where(seen.view(*seen.shape, *(1,) * (part.ndim - 2)), part, 0) for part in kept)
        return y, AttentionState(keys, values, age, seen.sum(1), last_seq_idx)

    def _mask(self, seen: Tensor, segment: Tensor, valid: Tensor, piece: slice) -> Tensor:
        """Which of the held and new keys (B, T + L) the new steps of `piece` see, (B, len(piece), T + L).

        Padding sees itself, lest it gives NaN.
        """
        order, held = valid.cumsum(1), seen.shape[1] - valid.shape[1]
        old = torch.arange(1 - held, 1, device=seen.device).expand(seen.shape[0], held)
        distance = order[:, piece].unsqueeze(2) - torch.cat([old, order], 1).unsqueeze(1)
        own = segment[:, piece].unsqueeze(2) == pad(segment, (held, 0)).unsqueeze(1)
        allowed = seen.unsqueeze(1) & (distance >= 0) & own
        if self.window is not None:
            allowed = allowed & (distance < self.window)
        itself = torch.arange(valid.shape[1], device=seen.device)[piece].unsqueeze(1) + held
        return allowed | (itself == torch.arange(seen.shape[1], device=seen.device))

    def _attend_packed(
        self, queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, segment: Tensor, valid: Tensor
    ) -> Tensor:
        """Return the attention (B, H, L, P) of rows with several sequences: no query sees a key or value of another sequence.

        Memory for scores is bounded, except in compiled and exported graphs, whose lengths may be unknown.
        """
        wide = torch.promote_types(values.dtype, torch.float32)
        keys, widened = keys.to(wide), values.to(wide)

        def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
            scores = masked_products(queries, keys, mask) / math.sqrt(self.head_dim)
            return masked_sums(torch.where(mask, scores, -torch.inf).softmax(-1), values, mask)

        queries, length = record_length(queries, 2)
        (batch, heads), total = queries.shape[:2], keys.shape[2]
        outputs = []
        with without_autocast(queries):
            if torch.compiler.is_compiling():
                mask = self._mask(seen, segment, valid, slice(0, length)).unsqueeze(1)
                return attend(queries.to(wide), keys, widened, mask).to(values.dtype)
            per_query = max(1, batch * heads * total)
            size = max(1, min(QUERIES, SCORES // per_query))
            for start in range(0, length, size):
                piece, end = slice(start, start + size), total - length + min(start + size, length)
                mask = self._mask(seen, segment, valid, piece)[..., :end].unsqueeze(1)
                given = (queries[:, :, piece].to(wide), keys[:, :, :end], widened[:, :, :end], mask)
                outputs.append(attend(*given) if length * per_query <= SCORES else run_chunk(attend, given))
        return torch.cat(outputs, 2).to(values.dtype)

    def _windowed(self, state: AttentionState) -> AttentionState:
        """Return the state with its last w - 1 slots, empty slots on the left if there are fewer."""
        room = (self.window or 1) - 1
        held = state.age.shape[1]
        cut = [part[:, max(held - room, 0) :] for part in state[:3]]
        missing = room - cut[0].shape[1]
        keys, values, age = (pad(part, (0, 0) * (part.ndim - 2) + (missing, 0)) for part in cut)
        return AttentionState(keys, values, age, state.filled.clamp(max=room), state.last_seq_idx)

    def _no_steps(self, batch: int, slots: int) -> AttentionState:
        keys = self.in_proj.new_zeros(batch, slots, self.heads, self.head_dim)
        age = torch.zeros(batch, slots, dtype=self.state_dtype, device=self.device)
        filled = torch.zeros(batch, dtype=torch.int64, device=self.device)
        return AttentionState(keys, torch.zeros_like(keys), age, filled, no_sequence(batch, self.device))

    def initial_state(self, batch: int) -> AttentionState:
        """Return a state without steps; with a window it has w - 1 empty slots."""
        return self._no_steps(batch, 0 if self.window is None else self.window - 1)
