"""The registry of layers by name, which each module of this package extends, and functions that construct a registered layer."""

import functools
import inspect
from collections.abc import Callable, Container, Mapping
from typing import Any

from longscan._errors import nearest
from longscan._registry import SpecRegistry
from longscan._specs import STANDARD_BLOCKS
from longscan.layers._settings import building_parts, check_backend
from longscan.layers.base import SequenceLayer
from longscan.ops.dispatch import Backend


class LayerRegistry(SpecRegistry[type[SequenceLayer]]):
    """The registry of layers, none of which has the name of a block around another layer."""

    def register(self, name: str) -> Callable[[type[SequenceLayer]], type[SequenceLayer]]:
        """Return a decorator as `Registry.register`. Raises ValueError for a name that specs have for a block, too."""
        if name in STANDARD_BLOCKS and STANDARD_BLOCKS[name][0] != name:
            raise ValueError(f"the name of a layer must not be that of a block in specs, got {name!r}")
        return super().register(name)


LAYERS = LayerRegistry("layer")

# Name in the literature -> names of this package. An error about an unknown name suggests the first of them that is a layer, a
# block or a name in a spec, whichever the error is about.
_COMMON_NAMES = {
    "mamba": ("mamba", "s6"), "mamba1": ("mamba", "s6"), "bimamba": ("bidirectional",), "ssd": ("mamba2",),
    "selective": ("s6",), "selective_ssm": ("s6",), "selective_scan": ("s6",),
    "ssm": ("s4d",), "dss": ("s4d",), "dplr": ("s4",), "s4_dplr": ("s4",),
    "transformer": ("attention",), "mha": ("attention",), "mlp": ("feed_forward",), "ffn": ("feed_forward",),
    "rnn": ("gru",), "xlstm": ("mlstm",), "gdn": ("gated_deltanet",),
}  # fmt: skip


def find_common_name(word: str, known: Container[str]) -> str | None:
    """Return which of the `known` names stands for a name in the literature, such as mamba2 for ssd; None for no such name."""
    names = _COMMON_NAMES.get(word.lower().replace("-", "_"), ())
    return next((name for name in names if name in known), None)


@functools.cache
def parameter_names(function: Callable[..., object]) -> frozenset[str]:
    """Return the names of the arguments of a function, or of the constructor of a class.

    The result is cached, because inspecting a signature takes longer than most constructors.
    """
    return frozenset(inspect.signature(function).parameters)


def make_layer(name: str, d_model: int, options: Mapping[str, Any], backend: Backend = "auto") -> SequenceLayer:
    """Return a new layer of this name and width; `backend` is passed to layers that take one.

    Raises KeyError, naming the layers, for an unknown name, TypeError for an option that the layer does not have and for a class
    that is no `SequenceLayer`, and ValueError for a native backend without kernels for the layer, or if the layer calls ops and
    its constructor takes no `backend` to pass to them.
    """
    constructor: Callable[..., SequenceLayer] = LAYERS[name]
    takes_backend = "backend" in parameter_names(constructor)
    layer = constructor(d_model, **options, **({"backend": backend} if takes_backend else {}))
    if not isinstance(layer, SequenceLayer):
        raise TypeError(f"the layer {name!r} must be a longscan.layers.SequenceLayer, got {type(layer).__name__}")
    if not takes_backend:  # otherwise the constructor has checked it
        check_backend(layer, backend)
        if layer.op_names and backend != "auto":
            needed = f"'auto', as the constructor of the layer {name!r} has no such argument for {', '.join(layer.op_names)}"
            raise ValueError(f"`backend` must be {needed}, got {backend!r}")
    return layer


def make_inner_layer(name: str, d_model: int, options: Mapping[str, Any], backend: Backend = "auto") -> SequenceLayer:
    """Return a new layer for the argument `layer` of a block, whose constructor checks the backend for all its parts.

    Raises as `make_layer`, but ValueError for an unknown name, as for every other wrong argument of a block.
    """
    if name not in LAYERS:
        near = find_common_name(name, LAYERS) or nearest(name, LAYERS)
        hint = f"; did you mean {near}?" if near else ""
        raise ValueError(f"`layer` must be one of {', '.join(sorted(LAYERS))}, got {name!r}{hint}")
    with building_parts():
        return make_layer(name, d_model, options, backend)
