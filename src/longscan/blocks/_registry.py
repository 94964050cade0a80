"""The registry of blocks by name; each module of this package adds its block."""

from longscan._registry import SpecRegistry
from longscan.layers.base import SequenceModule

BLOCKS: SpecRegistry[type[SequenceModule]] = SpecRegistry("block")
