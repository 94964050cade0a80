"""Scans of sequences that are split along the length over processes (`longscan.distributed`).

A scan maps the state h before a piece to the state P h + s after it: P is the product of the piece's factors, s the state after
the piece from a zero state. Each process computes P and s of its piece by a scan from zero. All processes exchange P and s once,
and each computes the state before its piece from those of the earlier pieces. Then it scans its piece again from this state, or,
where this takes less time, adds to the outputs of the first scan what the state before the piece contributes.

Native kernels that take a `PieceExchange` compute P and s by a first pass without outputs. Their backward pass is analogous: if
the gradient of the state after a piece is g, that of the state before it is P^H g + q, where q comes from the outputs of the
piece. A first pass computes q, all processes exchange it, and one backward pass from g follows. Other backends scan twice, and
autograd differentiates both scans.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from longscan._tensor_types import OptionalTensor
from longscan.distributed.collectives import all_gather_coalesced
from longscan.distributed.context import SequenceSplit, current_split
from longscan.ops.arguments import INVALID, RESET, carry_dtype, flag_masks
from longscan.ops.chunks import long_chunk, run_chunk

Multiply = Callable[[Tensor, Tensor], Tensor]
FactorKind = Literal["real", "complex", "matrix"]


class PieceMap(NamedTuple):
    """The linear part of a piece's map of states.

    Attributes:
        factors: tensors that determine it, of the dtype of the state.
        apply: function of a state and the factors of a piece that returns the product.
    """

    factors: Sequence[Tensor]
    apply: Callable[..., Tensor]


class PieceExchange:
    """The exchange of a native scan of a piece of split sequences, forward and backward.

    Args:
        split: how sequences are split.
        initial_state: (B, ...), the state before the first piece.
        flags: (B, L) from `step_flags`, or None.
        kind: "real" for factors that multiply the entries of a state, "complex" if both are real pairs (..., 2) that stand for
            complex numbers, "matrix" for factors (..., 2, 2) and states (..., 2, K).
    """

    def __init__(self, split: SequenceSplit, initial_state: Tensor, flags: Tensor | None, kind: FactorKind) -> None:
        self.split, self.initial_state, self.flags, self.kind = split, initial_state, flags, kind
        self.factors = self.state_before = initial_state  # until `exchange_state` has computed them
        self._last: Tensor | None = None
        self.restarts: list[Tensor] = []

    def exchange_state(self, factor: Tensor, final: Tensor) -> Tensor:
        """Return the state before this piece, from its factor and its state after the piece from a zero state.

        The result is also stored in `state_before`.

        factor: (...) like the state, or (..., 2, 2) for matrices, as if no sequence started in the piece.
        """
        restarts = [] if self.flags is None else [(self.flags == RESET).any(1).to(final.dtype)]
        finals, self.factors, *self.restarts = all_gather_coalesced([final, factor, *restarts], self.split)
        states = [self._as_numbers(self.initial_state)]
        for piece in range(self.split.size):
            factor, local = self._as_numbers(self.factors[piece]), self._as_numbers(finals[piece])
            states.append(self._pass_state(piece, states[-1], factor, local))
        self.state_before, self._last = (self._as_pairs(states[piece]) for piece in (self.split.rank, -1))
        return self.state_before

    def take_last(self) -> Tensor:
        """Return the state after the last piece and remove it from this object.

        The state is an output of the autograd function that owns this object. A reference cycle would keep the tensors that the
        function saved in memory until Python's garbage collection.
        """
        last, self._last = self._last, None
        assert last is not None
        return last

    def exchange_gradient(self, grad: Tensor, grad_last: Tensor) -> Tensor:
        """Return the gradient with respect to the state after this piece.

        grad: with respect to the state before this piece, for a zero gradient of the state after it; grad_last: with respect to
        this process's copy of the state after the last piece.
        """
        grads, of_last = all_gather_coalesced([grad, grad_last], self.split)
        result = self._as_numbers(of_last.sum(0))
        for piece in range(self.split.size - 1, self.split.rank, -1):
            factor = self._as_numbers(self.factors[piece])
            adjoint = factor.mT if self.kind == "matrix" else factor.conj()
            result = self._pass_state(piece, result, adjoint, self._as_numbers(grads[piece]))
        return self._as_pairs(result)

    def _as_numbers(self, x: Tensor) -> Tensor:
        """Return pairs as a complex view, for which `_pass_state` takes one operation instead of nine; others unchanged."""
        if self.kind != "complex":
            return x
        x = x.contiguous()
        return torch.view_as_complex(x.clone() if x.storage_offset() % 2 else x)  # a complex view needs an even offset

    def _as_pairs(self, x: Tensor) -> Tensor:
        return torch.view_as_real(x) if self.kind == "complex" else x

    def _pass_state(self, piece: int, state: Tensor, factor: Tensor, local: Tensor) -> Tensor:
        """Return the state after a piece from the state before it, or the gradient before it from the gradient after it."""
        if self.kind != "matrix" and not self.restarts:
            return torch.addcmul(local, factor, state)
        carried = factor @ state if self.kind == "matrix" else factor * state
        for restarts in self.restarts:
            carried = torch.where(restarts[piece].view(-1, *(1,) * (carried.ndim - 1)) > 0, 0, carried)
        return local + carried


def scan_piece(
    run: Callable[[Tensor], tuple[Tensor, Tensor]],
    initial_state: Tensor,
    flags: Tensor | None,
    make_map: Callable[[], PieceMap],
    local_final: Callable[[], Tensor] | None = None,
    native: Callable[[SequenceSplit], tuple[Tensor, Tensor]] | None = None,
    outputs_of: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return `run(initial_state)`; for the piece of a split sequence the outputs of the piece and the state after the last piece.

    Args:
        run: function of the state before the first step of the piece that returns the outputs and the state after its last step.
        initial_state: (B, ...), the state before the first piece.
        flags: (B, L) from `step_flags`, or None.
        make_map: function that returns the linear part of this piece's map, as if no sequence started in the piece.
        local_final: function that returns the state after the piece from a zero state; None to take it from `run`.
        native: function that returns the result by a native kernel with a `PieceExchange`, and is called instead of the others.
        outputs_of: function of the state before the piece that returns what it adds to the outputs, in the dtype of the state;
            None to scan again.
    """
    split = current_split()
    if split is None:
        return run(initial_state)
    if native is not None:
        return native(split)
    if outputs_of is not None:
        y, final = run(torch.zeros_like(initial_state))
        before, last = pass_states(split, initial_state, final, make_map(), flags)
        return y + outputs_of(before), last  # in the wider dtype; the caller rounds
    final = run(torch.zeros_like(initial_state))[1] if local_final is None else local_final()
    before, last = pass_states(split, initial_state, final, make_map(), flags)
    return run(before)[0], last


def pass_states(
    split: SequenceSplit, initial_state: Tensor, final: Tensor, piece_map: PieceMap, flags: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the states before this process's piece and after the last piece, by one exchange.

    Arguments as in `scan_piece`; final: the state after this piece from a zero state.
    """
    sent = [final, *(factor.to(final.dtype) for factor in piece_map.factors)]
    if flags is not None:
        sent.append((flags == RESET).any(1).to(final.dtype))
    received = all_gather_coalesced(sent, split)
    states = [initial_state.to(final.dtype)]
    for piece in range(split.size):
        finals, *factors = (part[piece] for part in received)
        restarts = factors.pop() if flags is not None else None
        carried = piece_map.apply(states[-1], *factors)
        if restarts is not None:
            carried = torch.where(restarts.view(-1, *(1,) * (carried.ndim - 1)) > 0, 0, carried)
        states.append(carried + finals)
    # Every rank uses all states, most of them with zero gradients, so that all ranks run the exchange of the gradients.
    return torch.stack(states)[split.rank], states[-1]


def count_steps(flags: Tensor | None, length: int, like: Tensor) -> Tensor:
    """Return the number of valid steps of each row, (B,), or (1,) without flags, as integers on the device of `like`."""
    if flags is None:
        return torch.full((1,), length, device=like.device)
    return (flags != INVALID).sum(1)


def power(base: Tensor, exponents: Tensor, largest: int, multiply: Multiply, identity: Tensor) -> Tensor:
    """Return base^exponents, (B, *S), for a base (*S), integers `exponents` (B,) of at most `largest`, by repeated squaring."""
    shape, base = (len(exponents), *(1,) * base.ndim), base.unsqueeze(0)
    result = identity.expand(len(exponents), *base.shape[1:])
    for bit in range(largest.bit_length()):
        base = multiply(base, base) if bit else base
        is_set = (exponents >> bit & 1).view(shape) > 0
        result = torch.where(is_set, multiply(result, base), result)
    return result


def product(factors: Tensor, multiply: Multiply, identity: Tensor) -> Tensor:
    """Return the product x_L ... x_1 of factors (B, L, *S) along the length, (B, *S)."""
    while factors.shape[1] > 1:
        length = factors.shape[1]
        pairs = multiply(factors[:, 1::2], factors[:, : length - length % 2 : 2])
        factors = torch.cat([pairs, factors[:, length - 1 :]], 1) if length % 2 else pairs
    return factors[:, 0] if factors.shape[1] else identity.expand(factors.shape[0], *factors.shape[2:])


def product_of_factors(
    factors: Tensor, flags: Tensor | None, length: int, ndim: int, multiply: Multiply, identity: Tensor
) -> Tensor:
    """Return the product of the factors of a piece's valid steps, (B, *S), or (1, *S) for constant factors without flags.

    The product is formed in float64 and rounded at the end, as a product of many numbers near 1 loses digits in float32. Factors
    that change over time are multiplied chunk by chunk, and their products are computed again in the backward pass.

    Args:
        factors: (B, L, *S), or (*S) if they do not change over time.
        flags: (B, L) from `step_flags`, or None.
        length: L.
        ndim: number of axes of factors that change over time.
        multiply: product of two factors, the later one first; matrices do not commute.
        identity: the factor of a step without effect.
    """
    wide = carry_dtype(factors)
    identity = identity.to(wide)
    if factors.ndim < ndim:
        return power(factors.to(wide), count_steps(flags, length, factors), length, multiply, identity).to(factors.dtype)

    def multiply_chunk(factors: Tensor, flags: OptionalTensor) -> Tensor:
        factors = factors.to(wide)
        if flags is not None:
            factors = torch.where(flag_masks(flags, ndim)[0], identity, factors)
        return product(factors, multiply, identity)

    if not length:
        return multiply_chunk(factors, None).to(factors.dtype)
    size = long_chunk(factors)
    chunks = torch.split(factors, size, 1)
    masks = [None] * len(chunks) if flags is None else torch.split(flags, size, 1)
    products = [run_chunk(multiply_chunk, chunk) for chunk in zip(chunks, masks, strict=True)]
    return product(torch.stack(products, 1), multiply, identity).to(factors.dtype)


def sum_steps(x: Tensor, flags: Tensor | None) -> Tensor:
    """Return the sum over the valid steps of x (B, L, ...), (B, ...), in float64."""
    if flags is not None:
        x = torch.where(flag_masks(flags, x.ndim)[0], 0, x)
    return x.sum(1, dtype=carry_dtype(x))
