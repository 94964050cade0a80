"""The registry of blocks by name; each module of this package adds its block."""

from longscan._registry import Registry
from longscan.layers.base import SequenceModule

BLOCKS: Registry[type[SequenceModule]] = Registry("block")
