"""Parameters of a model by role: groups for an optimiser, and parameters that are not trained."""

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from torch import Tensor, nn

from longscan.layers.parameters import Role, parameter_options

ROLES: tuple[Role, ...] = ("ssm", "selector", "dense", "norm", "embedding")


class OptimizerOptions(TypedDict, total=False):
    """Options of a parameter that replace those it declares, see `longscan.layers.parameters.ParameterOptions`."""

    lr_scale: float
    decay: bool


def parameters_by_role(model: nn.Module) -> dict[Role, dict[str, nn.Parameter]]:
    """Return the parameters of a model by role and name, for the roles that occur among ssm, selector, dense, norm, embedding."""
    groups: dict[Role, dict[str, nn.Parameter]] = {}
    for role in ROLES:
        members = {name: parameter for name, parameter in model.named_parameters() if parameter_options(parameter).role == role}
        if members:
            groups[role] = members
    return groups


def optimizer_groups(
    model: nn.Module,
    *,
    weight_decay: float = 0.0,
    lr_scale: Mapping[str, float] | None = None,
    decay_all: bool = False,
    weight_decay_by_role: Mapping[str, float] | None = None,
    by_name: Mapping[str, OptimizerOptions] | None = None,
) -> list[dict[str, Any]]:
    """Return the trainable parameters as parameter groups of a torch optimiser.

    Args:
        model: the model, or any module.
        weight_decay: of the parameters that declare decay.
        lr_scale: role -> factor on the learning rate, in addition to the factor that a parameter declares.
        decay_all: also decay parameters that declare no decay.
        weight_decay_by_role: role -> weight decay of all parameters of this role, whatever it declares.
        by_name: last part of a parameter's name, such as "A_log" -> options that replace those it declares. `decay` also replaces
            decay_all and weight_decay_by_role.

    Returns one group for each combination of factor and weight decay, {"params", "scale", "weight_decay"}: "scale" is the factor
    by which the caller multiplies the learning rate of the group. Raises ValueError for an unknown role or option, and for a name
    that no parameter has.
    """
    by_role, by_name = weight_decay_by_role or {}, by_name or {}
    _check_roles("lr_scale", lr_scale or {})
    _check_roles("weight_decay_by_role", by_role)
    names = {name.rpartition(".")[2] for name, _ in model.named_parameters()}
    if unknown := set(by_name) - names:
        raise ValueError(f"`by_name` must have names of parameters ({', '.join(sorted(names))}), got {min(unknown)}")
    known = OptimizerOptions.__annotations__
    for name, given in by_name.items():
        if unknown := set(given) - set(known):
            raise ValueError(f"`by_name[{name!r}]` must have the options {' and '.join(known)}, got {min(unknown)}")
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            options, own = parameter_options(parameter), by_name.get(name.rpartition(".")[2], {})
            scale = own.get("lr_scale", options.lr_scale) * (lr_scale or {}).get(options.role, 1.0)
            decay = by_role.get(options.role, weight_decay if options.decay or decay_all else 0.0)
            if "decay" in own:
                decay = weight_decay if own["decay"] else 0.0
            groups.setdefault((scale, decay), []).append(parameter)
    return [{"params": groups[key], "scale": key[0], "weight_decay": key[1]} for key in sorted(groups)]


def freeze(model: nn.Module, *roles: Role, prefix: str = "") -> int:
    """Set `requires_grad` of some parameters to False, so that they are not trained.

    Args:
        model: the model, or any module.
        roles: the roles of these parameters; none for parameters of any role.
        prefix: beginning of their names, for example "blocks.0.".

    Returns the number of values in these parameters. Raises ValueError for an unknown role, and if no parameter has these roles
    and this prefix.
    """
    _check_roles("roles", roles)
    chosen: list[Tensor] = [
        parameter
        for name, parameter in model.named_parameters()
        if name.startswith(prefix) and (not roles or parameter_options(parameter).role in roles)
    ]
    if not chosen:
        raise ValueError(f"`prefix` must be that of a parameter of roles {roles or 'any'}, got {prefix!r}")
    for parameter in chosen:
        parameter.requires_grad_(False)
    return sum(parameter.numel() for parameter in chosen)


def _check_roles(name: str, roles: Iterable[str]) -> None:
    unknown = set(roles) - set(ROLES)
    if unknown:
        raise ValueError(f"`{name}` must be some of {', '.join(ROLES)}, got {', '.join(sorted(unknown))}")
