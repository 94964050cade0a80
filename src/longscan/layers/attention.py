"""Causal multi-head attention (Vaswani et al. 2017, section 3.2) with rotary positions (Su et al. 2021, equations 14-16).

    (q_t, k_t, v_t) = W u_t         y_t = W_o [ sum_s softmax_s( <R(p_t) q_t, R(p_s) k_s> / sqrt(P) ) v_s ]      s <= t

u: input (B, L, D) of H heads of width P, D = H P. p: position, the running sum of the elapsed times. R(p) rotates pair i of a
head by p base^(-2i/R) radians, so that scores depend on p_t - p_s alone. With a window w the sum is over the last w steps. With
causal=False it is over all steps s of the sequence, as in the encoders of Vaswani et al., section 3.1.

torch's scaled_dot_product_attention computes the sum, with its fused kernels where they apply. Rows of several sequences are
computed by masked products instead: a fused kernel multiplies masked values by a weight of 0, and 0 times a NaN of another
sequence is NaN. The state stores the keys before the rotation and their age, so that the angles of a long stream stay small. It
grows with the sequence: see `AttentionState`.
"""

import math
from contextlib import nullcontext
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, pad, scaled_dot_product_attention, silu

from longscan._types import PositiveFloat, PositiveInt, Rule
from longscan.distributed.collectives import gather_steps
from longscan.distributed.context import SequenceSplit, current_split, use_split
from longscan.layers._registry import LAYERS
from longscan.layers.base import SequenceInfo, SequenceLayer, mask_padding
from longscan.layers.heads import head_width
from longscan.layers.state import State, layer_state, no_sequence, restarted_rows
from longscan.numerics.initialisers import uniform_fan_in
from longscan.numerics.rotary import frequency_tensor, rotate_pairs
from longscan.ops.arguments import RESET, carry_dtype, reset_mask, step_flags, without_autocast
from longscan.ops.associative import running_sum
from longscan.ops.chunks import run_chunk
from longscan.ops.masked_products import masked_products, masked_sums
from longscan.ops.tracing import in_func_transform, record_length

PIECE = 128  # smallest number of steps that a layer with a window processes together
SCORES = 2**22  # largest number of scores (B, H, L, T) of packed rows in memory; more are computed and recomputed in pieces
RotaryDim = Annotated[int, Rule(lambda n: n >= 0 and n % 2 == 0, "an even whole number of at least 0")]
QUERIES = 256  # largest number of queries in such a piece, whose scores cover no key after its last step if causal


@layer_state
class AttentionState(NamedTuple):
    """State of `Attention`: keys and values of earlier steps, in T slots per row of which the last ones are filled.

    Without a window T grows by one with every step, 2 D + 1 numbers per row; with a window w it is always w - 1.

    Attributes:
        keys: (B, T, H, P), before the rotation, the newest last.
        values: (B, T, H, P).
        age: (B, T), the time between the step of a slot and the last step.
        filled: (B,), the number of filled slots.
        last_seq_idx: (B,), as in `ScanState`.
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
    """Softmax attention of every step to all steps before it, to the last `window` of them, or to all steps of the sequence.

    Args:
        d_model: channels D.
        head_dim: channels P of a head; None for the largest divisor of D up to 64.
        window: number of steps w that a step attends to, itself included; None for all earlier steps.
        rotary_dim: number R of features of a head that are rotated, even; 0 for no rotation; None for all of them, without the
            last one if P is odd.
        base: base of the frequencies.
        bias: whether both projections have biases.
        causal: whether a step attends to earlier steps and itself alone; False only without a window. If False, a sequence that
            is processed in pieces has other outputs than in one call: no step attends to a later piece.

    Elapsed time adds to the position, where there is a rotation. The state is `AttentionState`.
    """

    context_parallel = True

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        head_dim: PositiveInt | None = None,
        window: PositiveInt | None = None,
        rotary_dim: RotaryDim | None = None,
        base: PositiveFloat = 10_000.0,
        bias: bool = False,
        causal: bool = True,
    ) -> None:
        super().__init__()
        if window is not None and not causal:
            raise ValueError(f"`window` must be None with causal=False, got {window}")
        self.causal = self.streaming = causal
        self.d_model, self.head_dim = d_model, head_width(d_model, head_dim)
        if self.head_dim < 2:
            raise ValueError(f"`head_dim` must be at least 2, a pair of features that is rotated, got {self.head_dim}")
        width = self.head_dim // 2 * 2 if rotary_dim is None else rotary_dim
        if width > self.head_dim:
            raise ValueError(f"`rotary_dim` must be at most the width of a head ({self.head_dim}), got {width}")
        self.heads, self.window, self.rotary_dim, self.base = d_model // self.head_dim, window, width, base
        self.irregular = width > 0
        self.in_proj = nn.Parameter(uniform_fan_in(3 * d_model, d_model, fan_in=d_model))
        self.out_proj = nn.Parameter(uniform_fan_in(d_model, d_model, fan_in=d_model))
        self.in_bias = nn.Parameter(torch.zeros(3 * d_model)) if bias else None
        self.out_bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    def rotary_frequencies(self, like: Tensor) -> Tensor:
        """Return the rotary frequencies in radians per step, (rotary_dim / 2,), with the dtype and device of `like`."""
        return frequency_tensor(self.rotary_dim, self.base, like)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        return self._attend_pieces(x, None, state, info)

    def map_values(self, x: Tensor, values: Tensor, state: State, info: SequenceInfo) -> Tensor:
        """See `SequenceLayer.map_values`; the weights of the softmax are coefficients."""
        y, _ = self._attend_pieces(x, values, state, info)
        return y if info.gate is None else y * silu(info.gate)

    def _attend_pieces(self, x: Tensor, value_inputs: Tensor | None, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs and the final state, computed in pieces. The values are those of `value_inputs`, None for x.

        Without `info.return_state` the state is None, which saves the copies of keys and values and their padding to the window.
        """
        if state is None:
            state = self._empty_state(x.shape[0], 0) if x.shape[1] else self.initial_state(x.shape[0])
        split = current_split()
        if split is not None and x.shape[1]:
            y, after = self._attend(x, state, info, split)
            return y, after if after is None or self.window is None else self._windowed(after)
        if self.window is not None:
            x, _ = record_length(x)  # a traced graph is for this length: the pieces depend on it
        size = max(x.shape[1], 1) if self.window is None else max(self.window, PIECE)
        outputs = []
        for start in range(0, x.shape[1], size):
            piece = slice(start, start + size)
            elapsed, valid, seq_idx = (None if part is None else part[:, piece] for part in info[:3])
            own = None if value_inputs is None else value_inputs[:, piece]
            needs_state = info.return_state or piece.stop < x.shape[1]
            of_piece = SequenceInfo(elapsed, valid, seq_idx, return_state=needs_state)
            y, after = self._attend(x[:, piece], state, of_piece, value_inputs=own)
            outputs.append(y)
            if after is not None:
                state = after if self.window is None else self._windowed(after)
        return (torch.cat(outputs, 1) if outputs else x.clone()), state if info.return_state else None

    def _attend(
        self,
        x: Tensor,
        state: AttentionState,
        info: SequenceInfo,
        split: SequenceSplit | None = None,
        value_inputs: Tensor | None = None,
    ) -> tuple[Tensor, AttentionState | None]:
        """Return the outputs (B, L, D) for the steps x (B, L, D), and the state with these steps appended.

        The state is None unless `info.return_state`.
        The values are those of `value_inputs` (B, L, D), or of x if it is None.
        For a piece of split sequences keys, values and masks of all pieces are gathered; the state is that after the last piece.
        """
        (batch, length), n_slots = x.shape[:2], state.age.shape[1]
        q, k, v = self._project(x, value_inputs)
        own, own_valid = slice(0, length), info.valid  # the steps of x among all steps with keys
        if split is not None:
            k, v = gather_steps(torch.stack([k, v], 2), split).unbind(2)
            elapsed, valid, seq_idx = (None if part is None else gather_steps(part, split) for part in info[:3])
            info = SequenceInfo(elapsed, valid, seq_idx, return_state=info.return_state)
            own, length = slice(split.rank * length, (split.rank + 1) * length), split.size * length
        with use_split(None):
            rows, last_seq_idx = restarted_rows(state.last_seq_idx, info.valid, info.seq_idx)
            flags = step_flags(batch, length, info.valid, info.seq_idx, x)
        valid = torch.ones(batch, length, dtype=torch.bool, device=x.device) if info.valid is None else info.valid
        filled = torch.arange(n_slots, device=x.device) >= n_slots - state.filled.unsqueeze(1)
        filled = filled if rows is None else filled & ~rows.unsqueeze(1)
        keys, values, age = (mask_padding(part, filled) for part in state[:3])
        keys, values = (torch.cat([before.to(new.dtype), new], 1) for before, new in ((keys, k), (values, v)))

        dt = torch.ones_like(valid, dtype=x.dtype) if info.elapsed is None else info.elapsed
        dt = mask_padding(dt, valid).to(carry_dtype(self.in_proj))
        packed = info.seq_idx is not None
        time = running_sum(dt, reset_mask(flags, packed, 2))  # since the last call, or since the start of the sequence
        key_time = torch.cat([-age.to(time.dtype), time], 1)
        frequencies = self.rotary_frequencies(time)
        queries, rotated_keys = (
            rotate_pairs(part.to(self.state_dtype), (t.unsqueeze(-1) * frequencies).unsqueeze(2)).to(part.dtype).transpose(1, 2)
            for part, t in ((q, time[:, own]), (keys, key_time))
        )

        segment = torch.zeros_like(valid, dtype=torch.int64) if flags is None else (flags == RESET).cumsum(1)
        key_mask = torch.cat([filled, valid], 1)
        # bool(): under torch.jit.trace comparisons of lengths are tensors
        attends_to_all = bool(not n_slots and flags is None and (self.window is None or length <= self.window))
        is_causal = self.causal and attends_to_all and bool(length > 1) and split is None
        values_by_head = values.transpose(1, 2)
        needs_mask = not is_causal and (self.causal or not attends_to_all)
        if packed or (needs_mask and split is not None):
            y = self._attend_packed(queries, rotated_keys, values_by_head, key_mask, segment, valid, own.start)
        else:
            mask = None if not needs_mask else self._mask(key_mask, segment, valid, slice(0, length)).unsqueeze(1)
            # vmap has no rule for the fused kernels.
            with sdpa_kernel(SDPBackend.MATH) if in_func_transform() else nullcontext():
                y = scaled_dot_product_attention(queries, rotated_keys, values_by_head, attn_mask=mask, is_causal=is_causal)
        y = mask_padding(linear(y.transpose(1, 2).flatten(2), self.out_proj, self.out_bias), own_valid)
        if not info.return_state:
            return y, None

        if flags is not None:  # the state is that of the last sequence alone
            key_mask = key_mask & (pad(segment, (n_slots, 0)) == segment[:, -1:])
        age = time[:, -1:] - key_time
        return y, self._collect_state(keys, values, age, key_mask, last_seq_idx, reorder=info.valid is not None)

    def _project(self, x: Tensor, value_inputs: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values (B, L, H, P) of x (B, L, D), or the values of `value_inputs` unless it is None."""
        q, k, v = linear(x, self.in_proj, self.in_bias).view(*x.shape[:2], 3, self.heads, self.head_dim).unbind(2)
        if value_inputs is not None:
            bias = None if self.in_bias is None else self.in_bias[2 * self.d_model :]
            v = linear(value_inputs, self.in_proj[2 * self.d_model :], bias).view_as(v)
        return q, k, v

    def _collect_state(
        self, keys: Tensor, values: Tensor, age: Tensor, key_mask: Tensor, last_seq_idx: Tensor, *, reorder: bool
    ) -> AttentionState:
        """Return the state with the slots of `key_mask` (B, T) filled. reorder: whether others may follow these in a row."""
        slots = [keys.to(self.in_proj.dtype), values.to(self.in_proj.dtype), age.to(self.state_dtype)]
        if reorder:  # move the filled slots to the right, in their order
            order = key_mask.to(torch.uint8).argsort(dim=1, stable=True)
            slots = [part.gather(1, order.view(*order.shape, *(1,) * (part.ndim - 2)).expand_as(part)) for part in slots]
            key_mask = key_mask.gather(1, order)
        keys, values, age = (mask_padding(part, key_mask) for part in slots)
        return AttentionState(keys, values, age, key_mask.sum(1), last_seq_idx)

    def _mask(self, key_mask: Tensor, segment: Tensor, valid: Tensor, piece: slice) -> Tensor:
        """Return which keys the queries of `piece` attend to, bool (B, len(piece), T + L).

        Padding attends to itself: a softmax over no key would be NaN.

        Args:
            key_mask: (B, T + L) bool, whether a key, of the T slots and the L steps, belongs to a valid step.
            segment: (B, L), the number of sequences that started up to a step; 0 in the slots.
            valid: (B, L) bool.
            piece: the steps of the queries.
        """
        order, n_slots = valid.cumsum(1), key_mask.shape[1] - valid.shape[1]
        slots = torch.arange(1 - n_slots, 1, device=key_mask.device).expand(key_mask.shape[0], n_slots)
        distance = order[:, piece].unsqueeze(2) - torch.cat([slots, order], 1).unsqueeze(1)
        same_sequence = segment[:, piece].unsqueeze(2) == pad(segment, (n_slots, 0)).unsqueeze(1)
        allowed = key_mask.unsqueeze(1) & same_sequence
        if self.causal:
            allowed = allowed & (distance >= 0)
        if self.window is not None:
            allowed = allowed & (distance < self.window)
        own_key = torch.arange(valid.shape[1], device=key_mask.device)[piece].unsqueeze(1) + n_slots
        return allowed | (own_key == torch.arange(key_mask.shape[1], device=key_mask.device))

    def _attend_packed(
        self, queries: Tensor, keys: Tensor, values: Tensor, key_mask: Tensor, segment: Tensor, valid: Tensor, first: int
    ) -> Tensor:
        """Return the attention (B, H, Q, P) of rows with several sequences, without arithmetic on values of other sequences.

        Memory for scores is bounded, except in compiled and exported graphs, whose lengths may be unknown. Arguments as in
        `_mask`, with queries (B, H, Q, P) of the steps from number `first`, keys and values (B, H, T + L, P).
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
                mask = self._mask(key_mask, segment, valid, slice(first, first + length)).unsqueeze(1)
                return attend(queries.to(wide), keys, widened, mask).to(values.dtype)
            per_query = max(1, batch * heads * total)
            size = max(1, min(QUERIES, SCORES // per_query))
            for start in range(0, length, size):
                stop, end = min(start + size, length), total
                if self.causal:
                    end += first + stop - valid.shape[1]
                mask = self._mask(key_mask, segment, valid, slice(first + start, first + stop))[..., :end].unsqueeze(1)
                given = (queries[:, :, start:stop].to(wide), keys[:, :, :end], widened[:, :, :end], mask)
                outputs.append(attend(*given) if length * per_query <= SCORES else run_chunk(attend, given))
        return torch.cat(outputs, 2).to(values.dtype)

    def _windowed(self, state: AttentionState) -> AttentionState:
        """Return the state with its last w - 1 slots, with empty slots on the left if it has fewer."""
        n_slots = (self.window or 1) - 1
        added = n_slots - state.age.shape[1]  # pad crops where it is negative
        keys, values, age = (pad(part, (0, 0) * (part.ndim - 2) + (added, 0)) for part in state[:3])
        return AttentionState(keys, values, age, state.filled.clamp(max=n_slots), state.last_seq_idx)

    def _empty_state(self, batch: int, n_slots: int) -> AttentionState:
        keys = self.in_proj.new_zeros(batch, n_slots, self.heads, self.head_dim)
        age = torch.zeros(batch, n_slots, dtype=self.state_dtype, device=self.device)
        filled = torch.zeros(batch, dtype=torch.int64, device=self.device)
        return AttentionState(keys, torch.zeros_like(keys), age, filled, no_sequence(batch, self.device))

    def initial_state(self, batch: int) -> AttentionState:
        """Return a state with all slots empty: w - 1 with a window, none without."""
        return self._empty_state(batch, 0 if self.window is None else self.window - 1)
