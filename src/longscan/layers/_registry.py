"""The table of layers, filled by the modules of this package."""

from longscan._registry import Registry
from longscan.layers.base import SequenceLayer

LAYERS: Registry[type[SequenceLayer]] = Registry("layer")
