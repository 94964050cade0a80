"""Comparison of modules on pieces of sequences, one on each of several gloo processes, with the same modules in one process.

Every process computes the whole sequences, too, and compares its piece of the outputs, and all states and gradients, with them.
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from longscan.distributed import context_parallel, shard_sequence
from longscan.layers.state import State, map_state, state_tensors

GROUP = "gloo"


def run_cases(rank: int, size: int, folder: str, cases: dict[str, Callable[[], float | str]]) -> None:
    """Join a group of `size` processes, run the cases in their order, and write their results to a file of this rank."""
    torch.set_num_threads(1)
    distributed.init_process_group(GROUP, init_method=f"file://{folder}/store", rank=rank, world_size=size)
    results = {}
    for name, case in cases.items():
        try:
            results[name] = case()
        except Exception as error:
            raise RuntimeError(f"case {name!r} failed") from error
    Path(folder, f"results-{rank}.json").write_text(json.dumps(results))
    distributed.destroy_process_group()


def largest_error(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference of two tensors over the largest value of the second one, at least 1."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    if not actual.numel():
        return 0.0
    return ((actual - expected).abs().max() / expected.abs().max().clamp(min=1)).item()


def _leaves(state: State) -> State:
    """Return a copy of a state whose floating-point tensors need gradients."""
    return map_state(lambda x: x.clone().requires_grad_(x.is_floating_point()), state)


def _loss(y: Tensor, weights: Tensor, state: State, share: float) -> Tensor:
    """Return a sum of all outputs and, times `share`, of all states with different weights."""
    total = (y * weights).sum()
    for number, part in enumerate(x for x in state_tensors(state) if x.is_floating_point()):
        total = total + share * (part * torch.linspace(0.5, 1.5 + number, part.numel(), dtype=part.dtype).view_as(part)).sum()
    return total


def compare(
    module: Any, x: Tensor, masks: dict[str, Tensor], state: State, group: Any = None, *, pooled: bool = False
) -> dict[str, float]:
    """Return the largest errors of outputs, states and gradients of a module on pieces of x (B, L, ...) and on the whole.

    masks: `elapsed`, `valid` and `seq_idx`; state: before the first step, or None; group: the processes, None for all; pooled:
    whether the outputs have no axis of steps, so that every process returns all of them.
    """
    group = distributed.group.WORLD if group is None else group
    size = distributed.get_world_size(group)
    parameters = dict(module.named_parameters())
    is_float = x.is_floating_point()

    def run(
        share: float, context: AbstractContextManager[Any], cut: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, State, State, Tensor]:
        module.zero_grad()
        inputs, start = cut(x).clone().requires_grad_(is_float), _leaves(state)
        with context:
            y, after = module(inputs, start, **{name: cut(mask) for name, mask in masks.items()}, return_state=True)
        if pooled:
            weights = share * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)
        else:
            length = y.shape[1] * (x.shape[1] // max(1, inputs.shape[1]))  # of the whole sequences
            weights = torch.linspace(-1, 2, y[:, :1].numel() * length, dtype=y.dtype)
            weights = cut(weights.view(y.shape[0], length, *y.shape[2:]))
        _loss(y, weights, after, share).backward()
        return y, after, start, inputs

    whole, whole_state, whole_start, whole_inputs = run(1.0, nullcontext(), lambda part: part)
    expected = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in parameters.items()}
    y, after, start, inputs = run(1 / size, context_parallel(group), lambda part: shard_sequence(part, group))

    def sum_over_pieces(leaves: list[Tensor]) -> tuple[Tensor, ...]:
        """Return the sums of the gradients over all processes, by one exchange: an exchange waits for every process."""
        parts = [(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad).flatten() for leaf in leaves]
        total = torch.cat(parts) if parts else x.new_zeros(0, dtype=torch.float64)
        distributed.all_reduce(total, group=group)
        sums = total.split([part.numel() for part in parts])
        return tuple(part.view_as(leaf).to(leaf.dtype) for part, leaf in zip(sums, leaves, strict=True))

    errors = {"y": largest_error(y, whole if pooled else shard_sequence(whole, group))}
    for number, (left, right) in enumerate(zip(state_tensors(after), state_tensors(whole_state), strict=True)):
        errors[f"state {number}"] = largest_error(left.double(), right.double())
    pairs = enumerate(zip(state_tensors(start), state_tensors(whole_start), strict=True))
    starts = {f"state {number}": pair for number, pair in pairs if pair[1].is_floating_point()}
    sums = sum_over_pieces([left for left, _ in starts.values()] + list(parameters.values()))
    for (name, (_, right)), total in zip(starts.items(), sums, strict=False):
        grad = torch.zeros_like(right) if right.grad is None else right.grad
        errors[f"gradient of {name}"] = largest_error(total, grad)
    if is_float:
        errors["gradient of x"] = largest_error(inputs.grad, shard_sequence(whole_inputs.grad, group))
    for name, total in zip(parameters, sums[len(starts) :], strict=True):
        errors[f"gradient of {name}"] = largest_error(total, expected[name])
    return errors
