"""Sizes of tensors that stay open in a graph that is being recorded."""

import torch


def is_symbolic(size: int) -> bool:
    """Whether `size` is a symbol in the graph that is being recorded, so that Python code must not depend on its value.

    Dynamo shows Python code such a size as an int, not as a `torch.SymInt`; it answers `has_static_value` itself.
    """
    if not torch.compiler.is_compiling():
        return isinstance(size, torch.SymInt)
    from torch.fx.experimental.symbolic_shapes import has_static_value  # its import takes long

    return not has_static_value(size)
