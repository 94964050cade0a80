"""The table of blocks, filled by the modules of this package."""

from longscan._registry import Registry
from longscan.layers.base import SequenceModule

BLOCKS: Registry[type[SequenceModule]] = Registry("block")
