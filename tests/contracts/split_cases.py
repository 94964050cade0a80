"""Generated cases of layers and blocks on pieces of sequences, also with factors just below 1.

The parent process generates all cases with the generators of the contract tests of layers, and passes them to the others in a
file.
"""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_properties import Inputs, make_nonzero_state, set_backend
from split_runs import compare, run_cases
from test_layers import ENTRIES, build, draw_inputs, draw_length, get_options
from torch import nn
from torch.nn.functional import pad, softplus

from longscan.layers import S4, SequenceModule
from longscan.layers.gated_deltanet import GatedDeltaNetHeads
from longscan.layers.linoss import LinOSS
from longscan.layers.lru import LRU
from longscan.layers.mamba2 import Mamba2Heads
from longscan.layers.mamba3 import Mamba3Heads
from longscan.layers.mlstm import MLSTM
from longscan.layers.s4d import S4D
from longscan.layers.s5 import S5
from longscan.layers.s6 import S6
from longscan.layers.s7 import S7
from longscan.numerics.timescales import inverse_softplus
from longscan.ops import chunks

DISTANCE = 1e-4  # distance of the factors from 1
# With |a| near 1 a state is a sum of L terms of similar size, with a relative error of at most about L / 2^53, which is 1e-13
# for a thousand steps, and so is its gradient. Pieces change the order of such sums only. The gradient of a parameter is a sum of
# up to 3 L products of the two, whose errors add, so that 1e-10 leaves room for cancellation by a factor of a hundred among the
# products. `compare` divides an error by the largest value of its tensor, at least 1.
TOLERANCE = 1e-10


class SplitCase(NamedTuple):
    """One module and its inputs.

    Attributes:
        entry, options, seed, backend: of the module.
        near_one: whether the parameters are changed so that factors are just below 1.
        has_state: whether there is a state before the first step.
        inputs: the whole sequences.
    """

    entry: str
    options: dict[str, Any]
    seed: int
    backend: str
    near_one: bool
    has_state: bool
    inputs: Inputs

    @property
    def name(self) -> str:
        """The case in words, without the values of its inputs."""
        masks = [name for name, mask in vars(self.inputs).items() if name != "x" and mask is not None]
        parts = [f"{self.entry} {self.options}", f"seed {self.seed}", self.backend, *masks, *["state"] * self.has_state]
        return ", ".join([*parts, *["near one"] * self.near_one, str(tuple(self.inputs.x.shape))])

    def make(self) -> SequenceModule:
        """Return the module."""
        module = set_backend(build(self.entry, self.options, self.seed), self.backend)
        return move_factors_near_one(module) if self.near_one else module


def _set_rates(heads: Any) -> None:
    dt_bias = 2 * heads.dt_bias if getattr(heads, "dt_bias_twice", False) else heads.dt_bias
    step = softplus(dt_bias).view(-1, *(1,) * (heads.A_log.ndim - 1))
    heads.A_log.copy_(heads.A_log - heads.A_log.amin() + (DISTANCE / step).log())


def _set_s4(layer: Any) -> None:
    step = layer.log_dt.exp().mean()
    layer.A_log.fill_((DISTANCE / step).log())
    layer.P.mul_((DISTANCE / step).sqrt())


def _set_s7(layer: Any) -> None:
    if layer.reparam == "exponential":
        layer.w.copy_(inverse_softplus(torch.full_like(layer.w, DISTANCE)))
    elif layer.reparam is None:
        if layer.select_w is not None:  # keeps the ratio of changes to distances
            layer.select_w.mul_((DISTANCE / (1 - layer.w)).unsqueeze(1))
        layer.w.fill_(1 - DISTANCE)
    else:
        a, b = layer.reparam
        layer.w.fill_(math.sqrt((1 / DISTANCE - b) / a))


def _set_mamba3(heads: Any) -> None:
    heads.dt_bias.copy_(inverse_softplus(torch.full_like(heads.dt_bias, DISTANCE)))
    heads.B_bias.mul_(100)  # the inputs are multiplied by the step sizes, so that states would be small
    heads.C_bias.mul_(100)


# Module -> function that changes its parameters so that its factors are about 1 - DISTANCE.
NEAR_ONE: dict[type[nn.Module], Callable[[Any], Any]] = {
    S6: _set_rates,
    Mamba2Heads: _set_rates,
    GatedDeltaNetHeads: _set_rates,
    Mamba3Heads: _set_mamba3,
    MLSTM: lambda layer: layer.gate_bias[layer.heads :].fill_(-math.log(DISTANCE)),
    S4: _set_s4,
    S4D: lambda layer: layer.A_log.copy_((math.log(DISTANCE) - layer.log_dt).unsqueeze(-1).expand_as(layer.A_log)),
    S5: lambda layer: layer.A_real.copy_(-DISTANCE / layer.log_dt.exp()),
    LRU: lambda layer: layer.nu.fill_(math.log(DISTANCE)),
    LinOSS: lambda layer: layer.A.copy_(2 * DISTANCE / layer.dt.sigmoid().square()),  # det M = 1 / (1 + dt^2 A) for "im"
    S7: _set_s7,
}


@torch.no_grad()
def move_factors_near_one(module: SequenceModule) -> SequenceModule:
    """Change the parameters of all parts of the module so that their factors are about 1 - DISTANCE, and return the module."""
    for part in module.modules():
        if type(part) in NEAR_ONE:
            NEAR_ONE[type(part)](part)
    return module


def list_options(entry: str, *, near_one: bool) -> list[dict[str, Any]]:
    """Return the options with which an entry can compute pieces, and, with `near_one`, has factors that parameters set."""
    found = []
    for options in get_options(entry):
        parts = list(build(entry, options).modules())
        if all(part.context_parallel for part in parts if isinstance(part, SequenceModule)):
            found += [options] * (not near_one or any(type(part) in NEAR_ONE for part in parts))
    return found


def draw_case(data: st.DataObject, entry: str, choices: list[dict[str, Any]], size: int, near_one: bool) -> SplitCase:
    """Return a generated case. Its length is a multiple of `size`, or is padded to one with masked steps of NaN at the end.

    Masks for which a module raises on pieces are left out: `valid` with windows, and elapsed times of S4.
    """
    options = data.draw(st.sampled_from(choices), label="options")
    case = SplitCase(
        entry,
        options,
        data.draw(st.integers(0, 10_000), label="seed"),
        data.draw(st.sampled_from(["auto", "eager"]), label="backend"),
        near_one,
        data.draw(st.booleans(), label="state"),
        Inputs(torch.empty(0)),
    )
    module, length = case.make(), draw_length(data)
    pads = not module.changes_length and data.draw(st.booleans(), label="pads")
    if not pads:
        length += -length % (size * options.get("stride", 1))
    inputs = draw_inputs(data, module, length=length)
    if module.changes_length:
        inputs.valid = None
    if any(isinstance(part, S4) for part in module.modules()):
        inputs.elapsed = None
    return case._replace(inputs=_pad(inputs, -length % size))


def _pad(inputs: Inputs, count: int) -> Inputs:
    """Return the inputs with `count` masked steps after the last one."""
    if not count:
        return inputs
    valid = inputs.x.new_ones(inputs.x.shape[:2], dtype=torch.bool) if inputs.valid is None else inputs.valid
    return Inputs(
        pad(inputs.x, (0, 0, 0, count), value=math.nan),
        None if inputs.elapsed is None else pad(inputs.elapsed, (0, count), value=math.nan),
        pad(valid, (0, count), value=False),
        None if inputs.seq_idx is None else torch.cat([inputs.seq_idx, inputs.seq_idx[:, -1:].expand(-1, count)], 1),
    )


def draw_cases(size: int, count: int, entries: list[str], *, near_one: bool) -> list[SplitCase]:
    """Return about `count` generated cases for each entry and `size` processes; with `near_one` those with factors near 1."""
    choices = {entry: list_options(entry, near_one=near_one) for entry in entries}
    return [case for entry, found in choices.items() if found for case in _draw(entry, found, size, near_one, count)]


def _draw(entry: str, choices: list[dict[str, Any]], size: int, near_one: bool, count: int) -> list[SplitCase]:
    cases = []

    @settings(max_examples=count)
    @given(data=st.data())
    def collect(data: st.DataObject) -> None:
        cases.append(draw_case(data, entry, choices, size, near_one))

    collect()
    return cases


def run_case(case: SplitCase) -> float | str:
    """Return the largest error of a case, or the errors if one is too large."""
    module, inputs = case.make(), case.inputs
    torch.manual_seed(case.seed)
    state = make_nonzero_state(module, len(inputs.x)) if case.has_state else None
    masks = {name: mask for name, mask in vars(inputs).items() if name != "x" and mask is not None}
    errors = compare(module, inputs.x, masks, state)
    return max(errors.values()) if all(error < TOLERANCE for error in errors.values()) else json.dumps(errors)


def run_generated(rank: int, size: int, folder: str) -> None:
    """Run the cases in the file `cases.pt` of the folder on this process, with small chunks, so that small calls have several."""
    chunks.CHUNK_ELEMENTS = 2**12
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    cases = torch.load(Path(folder, "cases.pt"), weights_only=False)
    run_cases(rank, size, folder, {f"{number}: {case.name}": partial(run_case, case) for number, case in enumerate(cases)})


def supported_entries() -> list[str]:
    """Return the entries that can compute pieces with some of their options."""
    return [entry for entry in ENTRIES if list_options(entry, near_one=False)]
