"""Blocks: the modules around a layer in a stack (projections, short convolution, gate, GLU, residual branch and norm)."""

from longscan.blocks._registry import BLOCKS as BLOCKS
from longscan.blocks.aussm import AUSSMBlock as AUSSMBlock
from longscan.blocks.batch_norm import BatchNorm as BatchNorm
from longscan.blocks.bidirectional import BidirectionalBlock as BidirectionalBlock
from longscan.blocks.bidirectional import BidirectionalState as BidirectionalState
from longscan.blocks.dropout import SharedDropout as SharedDropout
from longscan.blocks.feed_forward import FeedForwardBlock as FeedForwardBlock
from longscan.blocks.gated import GatedState as GatedState
from longscan.blocks.gated_deltanet import GatedDeltaNetBlock as GatedDeltaNetBlock
from longscan.blocks.linoss import LinOSSBlock as LinOSSBlock
from longscan.blocks.mamba import MambaBlock as MambaBlock
from longscan.blocks.mamba2 import Mamba2Block as Mamba2Block
from longscan.blocks.mamba3 import Mamba3Block as Mamba3Block
from longscan.blocks.residual import Residual as Residual
from longscan.blocks.rotary import Rotary as Rotary
from longscan.blocks.s5 import S5Block as S5Block
from longscan.blocks.simple import SimpleBlock as SimpleBlock
