"""The number of parameters of a module."""

from torch import nn


def count_parameters(module: nn.Module) -> int:
    """Return the number of entries of all parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())
