"""The table of layers, filled by the modules of this package."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from longscan._registry import Registry
from longscan.layers.base import SequenceLayer

LAYERS: Registry[type[SequenceLayer]] = Registry("layer")


@functools.cache
def parameter_names(made: Callable[..., object]) -> frozenset[str]:
    """The names of what a class takes; kept, since finding them costs more than most layers do."""
    return frozenset(inspect.signature(made).parameters)


def make_layer(name: str, d_model: int, options: Mapping[str, Any], backend: str = "auto") -> SequenceLayer:
    """The layer of this name and width; `backend` goes to those that run an op.

    KeyError names the layers where there is no such name, TypeError a setting that the layer does not have.
    """
    layer: Callable[..., SequenceLayer] = LAYERS[name]
    if "backend" in parameter_names(layer):
        return layer(d_model, **options, backend=backend)
    return layer(d_model, **options)
