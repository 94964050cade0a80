"""S7 (Soydan et al. 2024, "S7: selective and simplified state space layers for sequence modeling").

    x_k = a_k x_{k-1} + B_k u_k + beta        y_k = C_k x_k + D_k u_k        a_k = f(w_k)        (equations 3 to 5)
    f(w) = 1 - 1 / (a w^2 + b)

u: input (B, L, D). x: state (B, P), real. a_k: factors (P,), in [-1, 1). B_k: (P, D), C_k: (D, P), D_k: (D,), functions of u_k.
beta: state bias (P,). R: rank.

The paper does not state how these depend on u_k. Here all are affine in it: w_k = w + W_A u_k, B_k = B + W_B u_k with the full
tensor W_B (P, D, D), C_k and D_k likewise, where D_k is diagonal; with `rank` W_B and W_C are sums of R outer products. The state
is real, since f is bounded by 1 for real w only. Initially 1 - f(w) is log-uniform on [dt_min, dt_max], which is far from w = 0,
where the derivative of f is 0; the rows of B have variance (1 - a^2) / D, so that states have about the variance of the input.
`reparam=None` is the ablation of the paper, a_k = w_k. Nothing keeps these factors below 1. Initially the standard deviation of
W_A u_k is a tenth of the distance 1 - w: as large as this distance it would, for some inputs that stay the same, let states grow.

For events the paper has a_k = e^{Lambda_k tau_k} with the elapsed time tau (equation 12), in which f does not occur, and still
reports results with and without f. `continuous=True` reads equation 4 as one Euler step of length 1 of x' = (f(w_k) - 1) x, and
takes the exact solution after tau: a_k = e^{-tau_k / (a w_k^2 + b)}, or e^{(w_k - 1) tau_k} without f. `reparam="exponential"`
is a_k = e^{-softplus(w_k) tau_k}.

The paper starts from J blocks of the eigenvalues of HiPPO's normal part (Table 11), whose imaginary parts real factors cannot
have. `blocks=J` gives each block instead the real eigenvalues -1 ... -P/J of the HiPPO matrix itself, and each state a step size
dt that is log-uniform on [dt_min, dt_max], as in S5: f is e^{-n dt} for the n-th state of a block.

The optimiser's groups are those of event-ssm, which the paper follows: w, beta and B are "ssm" parameters without weight decay,
W_A ... W_D "selector" (section 4.1: a separate decay), C and D "dense", like the rest of a model.
"""

import math
from collections.abc import Collection
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu, softplus

from longscan._types import PositiveFloat, PositiveInt, Rule
from longscan.layers._registry import LAYERS
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, SequenceLayer, mask_padding, start_state
from longscan.layers.parameters import Role, float32_parameter, mark
from longscan.layers.state import ScanState, State, no_sequence
from longscan.numerics.stability import stable_factor, stable_parameter
from longscan.numerics.timescales import inverse_softplus, log_uniform
from longscan.ops import linear_scan
from longscan.ops.dispatch import Backend

SELECTED = ("A", "B", "C", "D")
SelectedMaps = Annotated[Collection[str], Rule(lambda names: set(names) <= set(SELECTED), "a list of some of A, B, C, D")]
AtLeastHalf = Annotated[float, Rule(lambda b: b >= 0.5, "a number of at least 1/2")]  # where f is at least -1
PositiveFractionBelowOne = Annotated[float, Rule(lambda x: 0 < x < 1, "a number above 0 and below 1")]


def _normal(*shape: int, variance: float) -> Tensor:
    return torch.randn(shape, dtype=torch.float64) * variance**0.5


def _initial_distances(d_state: int, blocks: int | None, dt_min: float, dt_max: float) -> tuple[Tensor, float]:
    """Return the initial distances of f (or of w_k) from 1, (P,) float64, and the largest value that they can have."""
    dt = log_uniform((d_state,), dt_min, dt_max)
    if blocks is None:
        return dt, dt_max
    eigenvalues = torch.arange(1, d_state // blocks + 1, dtype=torch.float64)
    return -torch.expm1(-eigenvalues.repeat(blocks) * dt), -math.expm1(-len(eigenvalues) * dt_max)


class Bilinear(nn.Module):
    """The bilinear map sum_ij W_oij l_i r_j of two vectors, where W is a full tensor or a sum of outer products.

    Args:
        left, right: sizes I and J of the two vectors.
        scale: (O,), standard deviation of each output for vectors of unit variance.
        rank: number of outer products; None for a full tensor.
    """

    def __init__(self, left: int, right: int, scale: Tensor, rank: int | None) -> None:
        super().__init__()
        size = len(scale)
        if rank is None:
            factors = [_normal(size, left, right, variance=1 / (left * right)) * scale.view(-1, 1, 1)]
        else:
            factors = [_normal(size, rank, variance=1 / rank) * scale.view(-1, 1)]
            factors += [_normal(rank, width, variance=1 / width) for width in (left, right)]
        self.factors = nn.ParameterList(mark(nn.Parameter(x.to(torch.get_default_dtype())), "selector") for x in factors)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the map (..., O) of left (..., I) and right (..., J)."""
        if len(self.factors) == 3:
            out, from_left, from_right = self.factors
            return linear(linear(left, from_left) * linear(right, from_right), out)
        (weight,) = self.factors
        rows = linear(right, weight.flatten(0, 1)).view(*right.shape[:-1], *weight.shape[:2])
        return (rows * left.unsqueeze(-2)).sum(-1)


@LAYERS.register("s7")
class S7(SequenceLayer):
    """A real diagonal recurrence over all channels whose factors and maps depend on the input.

    Args:
        d_model: channels D.
        d_state: number of states P.
        reparam: (a, b) of f with a > 0 and 1/2 <= b < 1/dt_max, or "exponential", or None.
        continuous: factors that are exponential in the elapsed time; "exponential" always is.
        blocks: number J of blocks of the initial spectrum, a divisor of P; None for P unrelated values.
        selects: those of "A", "B", "C", "D" that depend on the input.
        rank: number R of outer products in W_B and W_C; None for full tensors.
        dt_min, dt_max: initial range of 1 - a_k (of -log a_k if continuous), log-uniform; with `blocks` that of step sizes.
        backend: of `longscan.ops.linear_scan`.

    Elapsed times raise ValueError unless the factors are exponential. The state is `ScanState` with ssm (B, P).
    """

    irregular = False
    context_parallel = True
    op_names = ("linear_scan",)

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        d_state: PositiveInt = 16,
        reparam: tuple[PositiveFloat, AtLeastHalf] | Literal["exponential"] | None = (1.0, 0.5),
        continuous: bool = False,
        blocks: PositiveInt | None = None,
        selects: SelectedMaps = SELECTED,
        rank: PositiveInt | None = None,
        dt_min: PositiveFloat = 1e-3,
        dt_max: PositiveFractionBelowOne = 0.1,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.backend = d_model, d_state, backend
        self.continuous = self.irregular = continuous or reparam == "exponential"
        if blocks is not None and d_state % blocks:
            raise ValueError(f"`blocks` must divide d_state ({d_state}), got {blocks}")
        distance, largest = _initial_distances(d_state, blocks, dt_min, dt_max)
        self.reparam: tuple[float, float] | Literal["exponential"] | None = None
        w = 1 - distance
        decay = torch.exp(-distance) if self.continuous else w
        if reparam == "exponential":
            self.reparam, w = "exponential", inverse_softplus(distance)
        elif reparam is not None:
            a, b = (float(part) for part in reparam)
            if b >= 1 / largest:
                raise ValueError(f"`reparam` must have b below {1 / largest:g}, which dt_max allows, got {(a, b)}")
            self.reparam, w = (a, b), stable_parameter(w, a, b)

        def dense(values: Tensor, role: Role, *, decay: bool = True) -> nn.Parameter:
            return mark(nn.Parameter(values.to(torch.get_default_dtype())), role, decay=decay)

        scale, ones = torch.sqrt(1 - decay.square()), torch.ones(d_model)
        self.w, self.bias = float32_parameter(w), float32_parameter(torch.zeros(d_state))
        self.B = dense(_normal(d_state, d_model, variance=1 / d_model) * scale.unsqueeze(1), "ssm", decay=False)
        self.C = dense(_normal(d_model, d_state, variance=1 / d_state), "dense")
        self.D = float32_parameter(torch.randn(d_model), "dense", decay=True)
        selected_w = _normal(d_state, d_model, variance=1 / d_model) * (0.1 * distance.unsqueeze(1) if reparam is None else 1)
        self.select_w = dense(selected_w, "selector") if "A" in selects else None
        self.select_B = Bilinear(d_model, d_model, scale, rank) if "B" in selects else None
        self.select_C = Bilinear(d_state, d_model, ones, rank) if "C" in selects else None
        self.select_D = dense(_normal(d_model, d_model, variance=1 / d_model), "selector") if "D" in selects else None
        check_backend(self, backend)

    def factors(self, x: Tensor, elapsed: Tensor | None = None) -> Tensor:
        """Return the factors a_k, (B, L, P) for inputs x (B, L, D), or (P,) if they do not depend on the input."""
        w = self.w if self.select_w is None else self.w + linear(x, self.select_w).to(self.w.dtype)
        if self.reparam == "exponential":
            rate = softplus(w)
        elif not self.continuous:
            return w if self.reparam is None else stable_factor(w, *self.reparam)
        else:
            rate = 1 - w if self.reparam is None else 1 / (self.reparam[0] * w.square() + self.reparam[1])
        return torch.exp(-rate if elapsed is None else -rate * elapsed.unsqueeze(-1).to(rate.dtype))

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        return self._scan(x, x, state, info)

    def map_values(self, x: Tensor, values: Tensor, state: State, info: SequenceInfo) -> Tensor:
        """See `SequenceLayer.map_values`."""
        y, _ = self._scan(x, values, state, info)
        return y if info.gate is None else y * silu(info.gate)

    def _scan(self, x: Tensor, values: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs and the final state for values (B, L, D), with the coefficients of x (B, L, D)."""
        initial, last_seq_idx = start_state(state, x.shape[0], info, x.device)
        drive = linear(values, self.B)
        if self.select_B is not None:
            drive = drive + self.select_B(values, x)
        states, ssm = linear_scan(
            self.factors(x, info.elapsed),
            drive.to(self.bias.dtype) + self.bias,
            initial,
            valid=info.valid,
            seq_idx=info.seq_idx,
            backend=self.backend,
        )
        states = states.to(self.C.dtype)
        y = linear(states, self.C)
        if self.select_C is not None:
            y = y + self.select_C(states, x)
        skip = self.D if self.select_D is None else self.D + linear(x, self.select_D).to(self.D.dtype)
        return mask_padding((y + skip * values).to(x.dtype), info.valid), ScanState(ssm, last_seq_idx)

    def initial_state(self, batch: int) -> ScanState:
        """Return zeros: ssm (batch, P)."""
        ssm = torch.zeros(batch, self.d_state, dtype=self.state_dtype, device=self.device)
        return ScanState(ssm, no_sequence(batch, self.device))
