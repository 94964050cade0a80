"""Constructors of layers, blocks and models raise an error with the setting's name for values that do not match its type."""

import inspect
import math
from typing import Any, get_type_hints

import pytest

from longscan.blocks import BLOCKS, BatchNorm, Residual, Rotary
from longscan.layers import LAYERS
from longscan.models import Forecaster, LanguageModel, SequenceModel, SiameseModel

CLASSES = [
    *LAYERS.values(),
    *BLOCKS.values(),
    BatchNorm,
    Residual,
    Rotary,
    SequenceModel,
    LanguageModel,
    Forecaster,
    SiameseModel,
]
REQUIRED: dict[str, Any] = {"blocks": [{"layer": "gru"}], "block": LAYERS["gru"](4)}  # required arguments other than integers
every_constructor = pytest.mark.parametrize("constructor", CLASSES, ids=lambda constructor: constructor.__name__)


def construct(constructor: type, name: str, value: object) -> object:
    """Call a constructor with this value and its other required arguments."""
    parameters = list(inspect.signature(constructor).parameters.values())
    needed = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    if constructor in (SequenceModel, SiameseModel) and name != "vocab_size":
        needed.append("d_input")  # required without `vocab_size`, which the signature does not show
    return constructor(**{**{other: REQUIRED.get(other, 4) for other in needed}, name: value})


@every_constructor
def test_values_of_other_types_raise(constructor: type) -> None:
    declared = get_type_hints(constructor.__init__)
    for name in inspect.signature(constructor).parameters:
        wrong: list[object] = [object()]
        types = str(declared[name])
        if "int" in types and "float" not in types:
            wrong += [2.5, "many"]
        if "float" in types and "Sequence" not in types:
            wrong += [math.nan, math.inf]
        if declared[name] is bool:
            wrong += [1, "no"]
        for value in wrong:
            with pytest.raises(ValueError, match=f"^`{name}` must be "):
                construct(constructor, name, value)


@every_constructor
def test_unknown_backend_raises(constructor: type) -> None:
    if "backend" in inspect.signature(constructor).parameters:
        with pytest.raises(ValueError, match=r"^`backend` must be one of auto, .*, got 'gpu'"):
            construct(constructor, "backend", "gpu")


@every_constructor
def test_negative_sizes_raise(constructor: type) -> None:
    for name, kind in get_type_hints(constructor.__init__).items():
        if kind in (int, int | None):
            with pytest.raises(ValueError, match=rf"`{name}` must .*got -1"):
                construct(constructor, name, -1)


def test_invalid_values_of_the_declared_type_raise() -> None:
    with pytest.raises(ValueError, match=r"`norm` must be one of rms, layer, batch, post, got 'group'"):
        Residual(LAYERS["gru"](4), norm="group")
    with pytest.raises(ValueError, match=r"`epsilon` must .*got -1\.0"):
        BatchNorm(4, epsilon=-1.0)
    with pytest.raises(ValueError, match=r"`width` must .*got 0"):
        Rotary(0)
    for pair in ((), (1.0,), (1.0, 0.5, 0.5), ("a", "b")):
        with pytest.raises(ValueError, match=r"`reparam(\[0\])?` must"):
            LAYERS["s7"](4, reparam=pair)
