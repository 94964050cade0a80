"""The optimiser and its learning rates over the steps."""

from math import cos, pi

from torch import nn
from torch.optim import AdamW

from longscan.models.roles import optimizer_groups
from longscan.training.settings import TrainingSettings


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> AdamW:
    """Return AdamW over `longscan.models.optimizer_groups` of the model, each with its "scale" on the learning rate."""
    groups = optimizer_groups(model, weight_decay=settings.weight_decay, lr_scale=settings.lr_scale, decay_all=settings.decay_all)
    return AdamW(groups, lr=settings.lr, betas=settings.betas, fused=True)


def learning_rate(step: int, settings: TrainingSettings) -> float:
    """Return the learning rate of step number `step`, 0 <= step < settings.steps, for a parameter with scale 1.

    Warm-up is linear and reaches `lr` at step `warmup`; the schedule proper starts `hold` steps later. `restarts` is SGDR
    (Loshchilov and Hutter, equation 5) with periods restart_period * restart_factor^i; `cosine` is one such period up to the last
    step. The cooldown multiplies the last `cooldown` rates by a line that would reach 0 at step `steps`.
    """
    s = settings
    if step < s.warmup:
        return s.lr * (step + 1) / (s.warmup + 1)
    since, last = step - s.warmup - s.hold, s.steps - s.warmup - s.hold
    if s.schedule == "constant" or since < 0:
        rate = s.lr
    else:
        period = last
        if s.schedule == "restarts":
            period = s.restart_period
            while since >= period and s.restart_factor > 1:
                since, period = since - period, period * s.restart_factor
            since %= period
        rate = s.lr_min + (s.lr - s.lr_min) * (1 + cos(pi * since / period)) / 2
    remaining = s.steps - step
    return rate * min(1.0, remaining / (s.cooldown + 1))
