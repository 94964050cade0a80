"""The optimiser step of several models together, by a few kernels instead of a few kernels for each model."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer


class Block(NamedTuple):
    """Consecutive models in the stack that have the same learning rates.

    Attributes:
        rows: their indices in the stack.
        adamw: the optimiser of their stacked parameters.
        parameters: their stacked parameters by name, which are views of those of all models.
    """

    rows: slice
    adamw: AdamW
    parameters: dict[str, Tensor]


class StackedOptimizer:
    """Clips the gradients of K models by their own norms and makes an AdamW step of all.

    The optimisers of the models remain what checkpoints save: the tensors of their states become views of stacked ones.

    Args:
        optimizers: AdamW of each model, after the same number of steps, with groups that differ only in learning rates.
        own: the parameters of each model by name, which are views of the stacked ones.
        stacked: the stacked parameters by name, (K, ...).
        max_norm: largest norm of the gradient of a model; infinity for no limit.
        rates: a learning rate for each model; consecutive models with the same one have the same learning rates at every step.

    Attributes:
        blocks: the models by their learning rates.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        own: Sequence[Mapping[str, Tensor]],
        stacked: Mapping[str, Tensor],
        max_norm: float,
        rates: Sequence[float],
    ) -> None:
        self._optimizers, self._stacked, self._max_norm = optimizers, stacked, max_norm
        self.blocks = []
        for _, group in groupby(range(len(optimizers)), key=rates.__getitem__):
            models = list(group)
            rows = slice(models[0], models[-1] + 1)
            self.blocks.append(_stack_optimizers(rows, optimizers[rows], own[rows], stacked))

    def share_learning_rates(self) -> None:
        """Give the groups of the models the learning rates of their blocks."""
        for rows, adamw, _ in self.blocks:
            for optimizer in self._optimizers[rows]:
                for group, stacked in zip(optimizer.param_groups, adamw.param_groups, strict=True):
                    group["lr"] = stacked["lr"]

    @torch.no_grad()
    def step(self) -> Tensor:
        """Clip the gradients of the stacked parameters, make a step, and return the norms before clipping, (K,)."""
        gradients = {name: parameter.grad for name, parameter in self._stacked.items() if parameter.grad is not None}
        of_models = [gradient for together in gradients.values() for gradient in together.unbind()]
        norms = torch.stack(torch._foreach_norm(of_models)).view(len(gradients), -1)
        total = torch.linalg.vector_norm(norms, dim=0)
        factors = (self._max_norm / (total + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
        for gradient in gradients.values():
            gradient.mul_(factors.view(-1, *(1,) * (gradient.ndim - 1)))
        for rows, adamw, parameters in self.blocks:
            for name, parameter in parameters.items():
                parameter.grad = gradients[name][rows] if name in gradients else None
            adamw.step()
            adamw.zero_grad()
        return total


def _stack_optimizers(
    rows: slice, optimizers: Sequence[Optimizer], own: Sequence[Mapping[str, Tensor]], stacked: Mapping[str, Tensor]
) -> Block:
    """Return the optimiser of the models in some rows, with views of its state in theirs."""
    names = {parameter: name for name, parameter in own[0].items()}
    groups, together = [], dict[str, Tensor]()
    for group in optimizers[0].param_groups:
        chosen = [names[parameter] for parameter in group["params"]]
        together |= {name: stacked[name].detach()[rows] for name in chosen}
        groups.append(group | {"params": [together[name] for name in chosen]})
    adamw = AdamW(groups, fused=True)
    for name, parameter in together.items():
        states = [optimizer.state[parameters[name]] for optimizer, parameters in zip(optimizers, own, strict=True)]
        if not states[0]:  # no step was made
            state = {"step": torch.zeros((), device=parameter.device)}
            state |= {entry: torch.zeros_like(parameter) for entry in ("exp_avg", "exp_avg_sq")}
        else:
            state = {entry: torch.stack([one[entry] for one in states]) for entry in ("exp_avg", "exp_avg_sq")}
            state["step"] = states[0]["step"].clone()
        adamw.state[parameter] = state
        for k, one in enumerate(states):
            one.update({"step": state["step"]} | {entry: state[entry][k] for entry in ("exp_avg", "exp_avg_sq")})
    return Block(rows, adamw, together)
