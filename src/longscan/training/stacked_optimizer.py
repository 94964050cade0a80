"""The optimiser step of several models of the same settings at once, by a few kernels instead of a few for each model."""

from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer


class StackedOptimizer:
    """Clips the gradients of K models by their own norms and makes an AdamW step of all.

    The optimisers of the models remain what checkpoints save: the tensors of their states become views of stacked ones.

    Args:
        optimizers: AdamW of each model, after the same number of steps, with the same groups.
        own: the parameters of each model by name, which are views of the stacked ones.
        stacked: the stacked parameters by name, (K, ...).
        max_norm: norm that the gradient of a model may have; infinity for no limit.

    Attributes:
        adamw: the optimiser of the stacked parameters.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        own: Sequence[Mapping[str, Tensor]],
        stacked: Mapping[str, Tensor],
        max_norm: float,
    ) -> None:
        self._optimizers, self._max_norm = optimizers, max_norm
        names = {parameter: name for name, parameter in own[0].items()}
        chosen = [[names[parameter] for parameter in group["params"]] for group in optimizers[0].param_groups]
        groups = zip(optimizers[0].param_groups, chosen, strict=True)
        self.adamw = AdamW([group | {"params": [stacked[name] for name in of_group]} for group, of_group in groups], fused=True)
        for name in chain(*chosen):
            states = [optimizer.state[parameters[name]] for optimizer, parameters in zip(optimizers, own, strict=True)]
            if not states[0]:  # no step was made
                state = {"step": torch.zeros((), device=stacked[name].device)}
                state |= {entry: torch.zeros_like(stacked[name]) for entry in ("exp_avg", "exp_avg_sq")}
            else:
                state = {entry: torch.stack([one[entry] for one in states]) for entry in ("exp_avg", "exp_avg_sq")}
                state["step"] = states[0]["step"].clone()
            self.adamw.state[stacked[name]] = state
            for k, one in enumerate(states):
                one.update({"step": state["step"]} | {entry: state[entry][k] for entry in ("exp_avg", "exp_avg_sq")})

    def share_learning_rates(self) -> None:
        """Give the groups of the models the learning rates of the stacked ones."""
        for optimizer in self._optimizers:
            for group, stacked in zip(optimizer.param_groups, self.adamw.param_groups, strict=True):
                group["lr"] = stacked["lr"]

    @torch.no_grad()
    def step(self) -> Tensor:
        """Clip the gradients of the stacked parameters, make a step, and return the norms before clipping, (K,)."""
        gradients = [p.grad for group in self.adamw.param_groups for p in group["params"] if p.grad is not None]
        parts = [part for gradient in gradients for part in gradient.unbind()]
        norms = torch.stack(torch._foreach_norm(parts)).view(len(gradients), -1)
        total = torch.linalg.vector_norm(norms, dim=0)
        factors = (self._max_norm / (total + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
        for gradient in gradients:
            gradient.mul_(factors.view(-1, *(1,) * (gradient.ndim - 1)))
        self.adamw.step()
        return total
