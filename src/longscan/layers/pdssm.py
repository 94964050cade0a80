"""PD-SSM (Terzic et al. 2025, "Structured sparse transition matrices to enable state tracking in state-space models").

    x_t = P_t D_t x_{t-1} + B u_t        y_t = Re(C x_t) + skip u_t        x_0 = (1, 0, ..., 0)
    P_t = hardmax(M_t), column by column        M_t = sum_k s_k M_k        s = softmax(S u_t)
    D_t = diag(r_t e^{2 pi i phi_t})        r_t = sigmoid(MLP(u_t))        phi_t = sigmoid(MLP(u_t))

u: input (B, L, D). x: state (B, N), complex, shared by all channels. B: (N, D), C: (D, N), complex. M_k: dictionary of K real
matrices (N, N). S: (K, D). hardmax replaces a column by the unit vector of its largest entry, so P_t is column one-hot. Each MLP
has one hidden layer of width 2 N with GELU.

Products of such matrices have the same form, and |r| < 1 bounds the states. With N states P_t can apply any map of a set of N
elements to the unit vectors, so one layer can follow any automaton with N states, also those of groups that are not solvable.

The derivative of P_t is that of the columns' softmax (straight-through estimator), also in the derivatives of higher order.
"""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from longscan._types import PositiveInt
from longscan.layers._registry import LAYERS
from longscan.layers.base import SequenceInfo, SequenceLayer, mask_padding
from longscan.layers.parameters import float32_parameter, mark
from longscan.layers.state import ScanState, State, no_sequence, restarted_rows
from longscan.numerics.initialisers import complex_normal, uniform_fan_in
from longscan.numerics.pairs import from_real, multiply, polar, real_part
from longscan.ops.arguments import INVALID, RESET, step_flags, without_autocast
from longscan.ops.chunks import scan_chunks
from longscan.ops.tracing import fix_length


def one_hot_columns(logits: Tensor) -> Tensor:
    """Return the matrices (..., N, N) with a one at the largest entry of each column of `logits`, and zeros elsewhere.

    Their derivative is that of the softmax of the columns.
    """
    soft = logits.softmax(-2)
    hard = torch.zeros_like(soft).scatter(-2, soft.argmax(-2, keepdim=True), 1.0)
    return hard + (soft - soft.detach())  # the difference is exactly 0


@LAYERS.register("pdssm")
class PDSSM(SequenceLayer):
    """One complex recurrence over all channels; its input-dependent matrices permute or merge, scale and rotate the states.

    Args:
        d_model: channels D.
        d_state: complex states N.
        n_matrices: number K of matrices in the dictionary.

    The layer runs step by step, with a product of an N x N matrix and the state at each. Elapsed times raise ValueError. The
    state is `ScanState` with ssm (B, N, 2), and a sequence starts from the first unit vector.
    """

    irregular = False

    def __init__(self, d_model: PositiveInt, *, d_state: PositiveInt = 64, n_matrices: PositiveInt = 8) -> None:
        super().__init__()
        self.d_model, self.d_state, self.n_matrices = d_model, d_state, n_matrices
        hidden, uniform = 2 * d_state, partial(uniform_fan_in, dtype=torch.float64)
        self.selector = float32_parameter(uniform(n_matrices, d_model, fan_in=d_model), "selector", decay=True)
        matrices = torch.randn(n_matrices, d_state, d_state, dtype=torch.float64) / math.sqrt(d_state)
        self.matrices = float32_parameter(matrices, "selector")
        # Two MLPs in one: the first half is that of the magnitudes, the second that of the phases.
        self.hidden_weight = float32_parameter(uniform(2 * hidden, d_model, fan_in=d_model), "selector", decay=True)
        self.hidden_bias = float32_parameter(uniform(2 * hidden, fan_in=d_model), "selector")
        self.factor_weight = float32_parameter(uniform(2, d_state, hidden, fan_in=hidden), "selector", decay=True)
        self.factor_bias = float32_parameter(uniform(2, d_state, fan_in=hidden), "selector")

        def parameter(values: Tensor) -> nn.Parameter:
            return nn.Parameter(values.to(torch.get_default_dtype()))

        self.B = mark(parameter(complex_normal((d_state, d_model), variance=1 / d_state)), "ssm")
        self.C = mark(parameter(complex_normal((d_model, d_state), variance=1 / d_state)), "ssm")
        self.D = mark(parameter(torch.randn(d_model) / math.sqrt(d_model)), "ssm", keep_float32=True)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        return self._run(x, x, state, info)

    def map_values(self, x: Tensor, values: Tensor, state: State, info: SequenceInfo) -> Tensor:
        """See `SequenceLayer.map_values`."""
        y, _ = self._run(x, values, state, info)
        return y if info.gate is None else y * nn.functional.silu(info.gate)

    def _run(self, x: Tensor, values: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, ScanState]:
        """Return the outputs and the last state, with P_t and D_t computed from x, and `values` as the input of the state."""
        start = self.initial_state(x.shape[0]) if state is None else state
        rows, last_seq_idx = restarted_rows(start.last_seq_idx, info.valid, info.seq_idx)
        dtype = self.selector.dtype
        ssm = start.ssm.to(dtype)
        if rows is not None:
            ssm = torch.where(rows.view(-1, 1, 1), self._first_unit_vector(dtype), ssm)
        drive = from_real(values, self.B).to(dtype)
        flags = step_flags(x.shape[0], x.shape[1], info.valid, info.seq_idx, x)
        with without_autocast(x):
            selected = linear(x.to(dtype), self.selector).softmax(-1)
            states, ssm = scan_chunks(self._chunk, (selected, self.factors(x), drive, flags), (), ssm, empty=drive)
        y = real_part(states, self.C) + (self.D * values).to(x.dtype)
        return mask_padding(y.to(x.dtype), info.valid), ScanState(ssm, last_seq_idx)

    def factors(self, x: Tensor) -> Tensor:
        """Return the diagonals of D_t for inputs x (..., D), as pairs (..., N, 2)."""
        hidden = gelu(linear(x.to(self.hidden_weight.dtype), self.hidden_weight, self.hidden_bias))
        halves = zip(hidden.chunk(2, -1), self.factor_weight, self.factor_bias, strict=True)
        magnitude, phase = (linear(half, weight, bias).sigmoid() for half, weight, bias in halves)
        return polar(magnitude, 2 * math.pi * phase)

    def _first_unit_vector(self, dtype: torch.dtype) -> Tensor:
        """Return the state before the first step of a sequence, as pairs (N, 2)."""
        first = torch.arange(2 * self.d_state, device=self.device) == 0
        return first.to(dtype).view(self.d_state, 2)

    def _chunk(
        self, selected: Tensor, factors: Tensor, drive: Tensor, flags: Tensor | None, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the states (B, L, N, 2) of the steps of a chunk and the last one; those of padding are not zero."""
        drive, length = fix_length(drive)
        P = one_hot_columns(torch.einsum("blk,knm->blnm", selected, self.matrices))
        first = self._first_unit_vector(state.dtype)
        states = []
        for t in range(length):
            before = state
            if flags is not None:
                before = torch.where((flags[:, t] == RESET).view(-1, 1, 1), first, before)
            after = P[:, t] @ multiply(factors[:, t], before) + drive[:, t]
            state = after if flags is None else torch.where((flags[:, t] == INVALID).view(-1, 1, 1), state, after)
            states.append(state)
        return torch.stack(states, 1), state.clone()

    def initial_state(self, batch: int) -> ScanState:
        """Return the first unit vector for each row: ssm (batch, N, 2)."""
        ssm = self._first_unit_vector(self.state_dtype).repeat(batch, 1, 1)
        return ScanState(ssm, no_sequence(batch, self.device))
