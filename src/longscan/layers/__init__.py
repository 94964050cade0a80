"""Sequence layers: (B, L, D) -> (B, L, D), one paper per file; parameters, numerics and one op each."""

from longscan.layers._registry import LAYERS as LAYERS
from longscan.layers._registry import make_layer as make_layer
from longscan.layers.attention import Attention as Attention
from longscan.layers.attention import AttentionState as AttentionState
from longscan.layers.aussm import AUSSM as AUSSM
from longscan.layers.base import SequenceLayer as SequenceLayer
from longscan.layers.base import SequenceModule as SequenceModule
from longscan.layers.gru import GRU as GRU
from longscan.layers.linoss import LinOSS as LinOSS
from longscan.layers.lru import LRU as LRU
from longscan.layers.lstm import LSTM as LSTM
from longscan.layers.lstm import LSTMState as LSTMState
from longscan.layers.mamba2 import Mamba2 as Mamba2
from longscan.layers.mamba3 import Mamba3 as Mamba3
from longscan.layers.mamba3 import Mamba3State as Mamba3State
from longscan.layers.parameters import Marks as Marks
from longscan.layers.parameters import mark as mark
from longscan.layers.parameters import marks as marks
from longscan.layers.s4 import S4 as S4
from longscan.layers.s4d import S4D as S4D
from longscan.layers.s5 import S5 as S5
from longscan.layers.s6 import S6 as S6
from longscan.layers.s7 import S7 as S7
from longscan.layers.state import PhaseState as PhaseState
from longscan.layers.state import ScanState as ScanState
from longscan.layers.state import layer_state as layer_state
