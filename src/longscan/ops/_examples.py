"""Random inputs of every op, for `longscan doctor`, the tests and the benchmarks.

`ARGUMENTS` names the tensors that an op takes, with axes, distribution and a rescaling that bounds states over a long sequence.
Axes are letters, with sizes given by the caller: B batch, L length, D channels, N states, H heads, P width of a head, G groups of
heads, R angles or the rank of a map to step sizes, K taps of a convolution, k the steps of its state (K - 1), M width of a block
(D unless given), E twice D, S the outputs R + 2 N of a selecting projection.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Argument:
    """One tensor argument of an op.

    axes: a letter for each axis, or 2. distribution: standard normal, uniform between 0 and 1, or minus the size of a normal
    number. optional: whether the op can be called without it. pair: whether a last axis of size 2 contains real and imaginary
    parts: True, False, or None for only where the caller asks for a complex call. rescale: function applied to the random tensor
    for long sequences.
    """

    axes: str
    distribution: Literal["normal", "uniform", "negative"] = "normal"
    optional: bool = False
    pair: bool | None = False
    rescale: Callable[[Tensor], Tensor] | None = None


_COMPLEX = None  # a pair where the caller asks for it

ARGUMENTS: dict[str, dict[str, Argument]] = {
    "linear_scan": {
        "a": Argument("BLD", "uniform", pair=_COMPLEX, rescale=lambda a: 0.7 * a),
        "b": Argument("BLD", pair=_COMPLEX),
        "initial_state": Argument("BD", pair=_COMPLEX),
    },
    "block2_scan": {
        "M": Argument("BLD22", rescale=lambda M: M / torch.linalg.matrix_norm(M, keepdim=True)),
        "f": Argument("BLD2", pair=_COMPLEX),
        "initial_state": Argument("BD2", pair=_COMPLEX),
    },
    "selective_scan": {
        "u": Argument("BLD"),
        "dt": Argument("BLD", "uniform"),
        "A": Argument("DN", "negative", pair=_COMPLEX),
        "B": Argument("BLN", pair=_COMPLEX),
        "C": Argument("BLN", pair=_COMPLEX),
        "D": Argument("D", optional=True),
        "z": Argument("BLD", optional=True),
        "dt_bias": Argument("D", optional=True),
        "initial_state": Argument("BDN", pair=_COMPLEX, optional=True),
        "dt_scale": Argument("BL", "uniform", optional=True),
    },
    "unitary_scan": {
        "u": Argument("BLD"),
        "dt": Argument("BLD", "uniform"),
        "W": Argument("DND", rescale=lambda W: W * W.shape[-1] ** -0.5),
        "bias": Argument("DN", rescale=lambda bias: 3 * bias),
        "B": Argument("N", pair=True),
        "C": Argument("DN", pair=True),
        "D": Argument("D", optional=True),
        "z": Argument("BLD", optional=True),
        "initial_state": Argument("BDN", pair=True, optional=True),
    },
    "ssd_scan": {
        "x": Argument("BLHP"),
        "dt": Argument("BLH", "uniform"),
        "A": Argument("H", "negative"),
        "B": Argument("BLGN"),
        "C": Argument("BLGN"),
        "D": Argument("H", optional=True),
        "z": Argument("BLHP", optional=True),
        "initial_state": Argument("BHPN", optional=True),
        "input_scale": Argument("BLH", optional=True),
        "own_scale": Argument("BLH", optional=True),
        "angle": Argument("BLHR", optional=True),
        "B_bias": Argument("HN", optional=True),
        "C_bias": Argument("HN", optional=True),
    },
    "delta_scan": {
        "v": Argument("BLHP"),
        "k": Argument("BLHN", rescale=lambda k: normalize(k, dim=-1)),
        "q": Argument("BLHN"),
        "log_alpha": Argument("BLH", "negative"),
        "beta": Argument("BLH", "uniform"),
        "initial_state": Argument("BHPN", optional=True),
    },
    "short_conv": {
        "u": Argument("BLD"),
        "weight": Argument("DK"),
        "bias": Argument("D", optional=True),
        "initial_state": Argument("BDk", optional=True),
    },
    "mamba_step": {
        "x": Argument("BM"),
        "conv_state": Argument("BDk"),
        "ssm_state": Argument("BDN"),
        "in_proj": Argument("EM", rescale=lambda W: W * W.shape[-1] ** -0.5),
        "conv_weight": Argument("DK"),
        "x_proj": Argument("SD", rescale=lambda W: W * W.shape[-1] ** -0.5),
        "dt_proj": Argument("DR"),
        "dt_bias": Argument("D"),
        "A_log": Argument("DN"),
        "out_proj": Argument("MD", rescale=lambda W: W * W.shape[-1] ** -0.5),
        "conv_bias": Argument("D", optional=True),
        "D": Argument("D", optional=True),
        "norm_weight": Argument("M", optional=True),
        "elapsed": Argument("B", "uniform", optional=True),
    },
    "long_conv": {"u": Argument("BLD"), "k": Argument("DL")},
    "dplr_spectrum": {
        "angle": Argument("L", "uniform", rescale=lambda angle: torch.pi * angle),
        "eigenvalues": Argument("DN", "negative", pair=True),
        "P": Argument("DN", pair=True),
        "B": Argument("DN", pair=True),
        "C": Argument("DN", pair=True),
        "dt": Argument("D", "uniform"),
    },
}


def example_inputs(
    op: str,
    sizes: Sizes,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
    optional: bool = True,
    is_complex: bool = False,
    long: bool = False,
) -> dict[str, Tensor]:
    """Return tensors for one call of `op` by argument name, complex numbers as real pairs.

    sizes: the size of every axis (see above). generator: torch's default if None. optional: whether optional arguments are
    included. is_complex: whether the call is complex, for ops that support both. long: whether tensors are rescaled so that
    states stay bounded over long sequences.
    """
    get = sizes.get
    derived = {"2": 2, "k": get("K", 1) - 1, "M": get("D", 1), "E": 2 * get("D", 1), "S": get("R", 1) + 2 * get("N", 1)}
    sizes = {**derived, **sizes}
    inputs = {}
    for name, argument in ARGUMENTS[op].items():
        if argument.optional and not optional:
            continue
        shape = [sizes[axis] for axis in argument.axes] + [2] * (is_complex if argument.pair is None else argument.pair)
        make = torch.rand if argument.distribution == "uniform" else torch.randn
        x = make(shape, generator=generator, dtype=dtype)
        if argument.distribution == "negative":
            x = -x.abs()
        inputs[name] = argument.rescale(x) if long and argument.rescale else x
    return inputs


def example_masks(batch: int, length: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
    """Return `valid` and `seq_idx` of shape (batch, length): a fifth of the steps invalid, restarts at three steps of ten."""
    valid = torch.rand((batch, length), generator=generator) < 0.8
    return {"valid": valid, "seq_idx": (torch.rand((batch, length), generator=generator) < 0.3).cumsum(1)}
