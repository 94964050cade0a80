"""The parameters of a model by what they are to it, and taking some of them out of training."""

from torch import Tensor, nn

from longscan.layers.parameters import Role, marks

ROLES: tuple[Role, ...] = ("ssm", "selector", "dense", "norm", "embedding")


def parameters_by_role(model: nn.Module) -> dict[Role, dict[str, nn.Parameter]]:
    """role -> name -> parameter, for the roles that occur: ssm, selector, dense, norm, embedding."""
    groups: dict[Role, dict[str, nn.Parameter]] = {}
    for role in ROLES:
        members = {name: parameter for name, parameter in model.named_parameters() if marks(parameter).role == role}
        if members:
            groups[role] = members
    return groups


def freeze(model: nn.Module, *roles: Role, under: str = "") -> int:
    """Take parameters out of training: of these roles (all without any), whose names start with `under`. Returns their count.

    Optimisers of `longscan.training` leave them out. ValueError where no parameter is meant.
    """
    unknown = set(roles) - set(ROLES)
    if unknown:
        raise ValueError(f"roles: got {', '.join(sorted(unknown))}, expected some of {', '.join(ROLES)}")
    chosen: list[Tensor] = [
        parameter
        for name, parameter in model.named_parameters()
        if name.startswith(under) and (not roles or marks(parameter).role in roles)
    ]
    if not chosen:
        raise ValueError(f"freeze: no parameter of roles {roles or 'any'} has a name that starts with {under!r}")
    for parameter in chosen:
        parameter.requires_grad_(False)
    return sum(parameter.numel() for parameter in chosen)
