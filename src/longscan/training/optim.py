"""AdamW with the groups that the parameters declare (`longscan.layers.parameters.mark`)."""

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from longscan.models.roles import optimizer_groups
from longscan.training.settings import TrainingSettings


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> AdamW:
    """AdamW over `longscan.models.optimizer_groups` of the model; a group keeps its "scale" for `set_learning_rate`."""
    groups = optimizer_groups(model, weight_decay=settings.weight_decay, lr_scale=settings.lr_scale, decay_all=settings.decay_all)
    return AdamW(groups, lr=settings.lr, betas=settings.betas, fused=True)


def make_capturable(optimizer: AdamW, device: torch.device) -> None:
    """Rates and step counts as tensors on `device`, from where a recorded update (`longscan.training.capture`) reads them."""
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(float(group["lr"]), device=device)
        group["capturable"] = True


def set_learning_rate(optimizer: AdamW, rate: float) -> None:
    """Give each group `rate` times its scale; a rate that is a tensor, as in a captured update, is filled in place."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate * group["scale"])
        else:
            group["lr"] = rate * group["scale"]
