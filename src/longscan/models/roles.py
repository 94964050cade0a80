"""The parameters of a model by what they are to it: groups for an optimiser, and taking some of them out of training."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from longscan.layers.parameters import Role, parameter_options

ROLES: tuple[Role, ...] = ("ssm", "selector", "dense", "norm", "embedding")


def parameters_by_role(model: nn.Module) -> dict[Role, dict[str, nn.Parameter]]:
    """role -> name -> parameter, for the roles that occur: ssm, selector, dense, norm, embedding."""
    groups: dict[Role, dict[str, nn.Parameter]] = {}
    for role in ROLES:
        members = {name: parameter for name, parameter in model.named_parameters() if parameter_options(parameter).role == role}
        if members:
            groups[role] = members
    return groups


def optimizer_groups(
    model: nn.Module, *, weight_decay: float = 0.0, lr_scale: Mapping[str, float] | None = None, decay_all: bool = False
) -> list[dict[str, Any]]:
    """The trainable parameters as groups of an optimiser, one for each pair of learning-rate scale and decay.

    The scale is the one that the parameter declares times `lr_scale` of its role; a group keeps it as "scale", to be multiplied
    with the learning rate. Parameters that ask for no decay get none, unless decay_all. ValueError names an unknown role.
    """
    _check_roles("lr_scale", lr_scale or {})
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            mark = parameter_options(parameter)
            scale = mark.lr_scale * (lr_scale or {}).get(mark.role, 1.0)
            decay = weight_decay if mark.decay or decay_all else 0.0
            groups.setdefault((scale, decay), []).append(parameter)
    return [{"params": groups[key], "scale": key[0], "weight_decay": key[1]} for key in sorted(groups)]


def freeze(model: nn.Module, *roles: Role, under: str = "") -> int:
    """Take parameters out of training: of these roles (all without any), whose names start with `under`. Returns their count.

    Optimisers of `longscan.training` leave them out. ValueError where no parameter is meant.
    """
    _check_roles("roles", roles)
    chosen: list[Tensor] = [
        parameter
        for name, parameter in model.named_parameters()
        if name.startswith(under) and (not roles or parameter_options(parameter).role in roles)
    ]
    if not chosen:
        raise ValueError(f"freeze: no parameter of roles {roles or 'any'} has a name that starts with {under!r}")
    for parameter in chosen:
        parameter.requires_grad_(False)
    return sum(parameter.numel() for parameter in chosen)


def _check_roles(name: str, roles: Iterable[str]) -> None:
    unknown = set(roles) - set(ROLES)
    if unknown:
        raise ValueError(f"{name}: got {', '.join(sorted(unknown))}, needed some of {', '.join(ROLES)}")
