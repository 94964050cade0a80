"""Detection of symbolic sizes of tensors in a graph that is being recorded."""

import torch


def is_symbolic(size: int) -> bool:
    """Return whether `size` is symbolic in the graph that is being recorded, so that Python code must not read its value.

    In code traced by Dynamo such a size is an int, not a `torch.SymInt`; Dynamo evaluates `has_static_value` itself.
    """
    if not torch.compiler.is_compiling():
        return isinstance(size, torch.SymInt)
    from torch.fx.experimental.symbolic_shapes import has_static_value  # its import takes long

    return not has_static_value(size)
