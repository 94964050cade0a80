"""The table of layers, filled by the modules of this package."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from longscan._registry import Registry
from longscan.layers.base import SequenceLayer

LAYERS: Registry[type[SequenceLayer]] = Registry("layer")


def make_layer(name: str, d_model: int, options: Mapping[str, Any], backend: str = "auto") -> SequenceLayer:
    """The layer of this name and width; `backend` goes to those that run an op.

    KeyError names the layers where there is no such name, TypeError a setting that the layer does not have.
    """
    layer: Callable[..., SequenceLayer] = LAYERS[name]
    if "backend" in inspect.signature(layer).parameters:
        return layer(d_model, **options, backend=backend)
    return layer(d_model, **options)
