"""The registry of layers by name; each module of this package adds its layer."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from longscan._registry import Registry
from longscan.layers._settings import building_parts
from longscan.layers.base import SequenceLayer

LAYERS: Registry[type[SequenceLayer]] = Registry("layer")


@functools.cache
def parameter_names(made: Callable[..., object]) -> frozenset[str]:
    """Return the names of the parameters of a class or function. Cached, as it takes longer than most layers."""
    return frozenset(inspect.signature(made).parameters)


def make_layer(name: str, d_model: int, options: Mapping[str, Any], backend: str = "auto") -> SequenceLayer:
    """Return a new layer of this name and width; `backend` is passed to layers that take one.

    Raises KeyError, naming the layers, for an unknown name, and TypeError for an option that the layer does not have.
    """
    layer: Callable[..., SequenceLayer] = LAYERS[name]
    if "backend" in parameter_names(layer):
        return layer(d_model, **options, backend=backend)
    return layer(d_model, **options)


def make_inner_layer(name: str, d_model: int, options: Mapping[str, Any], backend: str = "auto") -> SequenceLayer:
    """Return a layer, as `make_layer`, that is part of a block, which answers for its backend."""
    with building_parts():
        return make_layer(name, d_model, options, backend)
