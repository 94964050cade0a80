"""AdamW with the groups that the parameters declare (`longscan.layers.parameters.mark`)."""

from torch import nn
from torch.optim import AdamW

from longscan.layers.parameters import marks
from longscan.training.settings import TrainingSettings


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> AdamW:
    """AdamW over the trainable parameters of `model`, one group for each pair of learning-rate scale and decay.

    The scale is the declared one times `lr_scale` of the parameter's role; a group keeps it as "scale", for `set_learning_rate`.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            mark = marks(parameter)
            scale = mark.lr_scale * settings.lr_scale.get(mark.role, 1.0)
            decay = settings.weight_decay if mark.decay or settings.decay_all else 0.0
            groups.setdefault((scale, decay), []).append(parameter)
    return AdamW(
        [
            {"params": members, "scale": scale, "weight_decay": decay}
            for (scale, decay), members in sorted(groups.items(), key=_first)
        ],
        lr=settings.lr,
        betas=settings.betas,
        fused=True,
    )


def _first(entry: tuple[tuple[float, float], list[nn.Parameter]]) -> tuple[float, float]:
    return entry[0]


def set_learning_rate(optimizer: AdamW, rate: float) -> None:
    """Give each group `rate` times its scale."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]
