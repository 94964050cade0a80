"""The training loop of the package: gradient steps over batches, with callbacks for everything else. It needs only torch.

engine.py defines `Engine`, which makes the gradient steps, callbacks.py the callbacks that any training can use, and
graphed_step.py the replay of steps as CUDA graphs. The command line (`longscan.training`), the estimators, the fitted baselines
of tasks and the benchmarks train with it.
"""

from longscan.engine.callbacks import EarlyStopping as EarlyStopping
from longscan.engine.callbacks import EpochLosses as EpochLosses
from longscan.engine.callbacks import Patience as Patience
from longscan.engine.callbacks import TimeLimit as TimeLimit
from longscan.engine.callbacks import WeightAverage as WeightAverage
from longscan.engine.callbacks import copy_weights as copy_weights
from longscan.engine.engine import Callback as Callback
from longscan.engine.engine import Engine as Engine
from longscan.engine.engine import NonFiniteLossError as NonFiniteLossError
from longscan.engine.engine import StepResult as StepResult
from longscan.engine.engine import set_learning_rates as set_learning_rates
from longscan.engine.graphed_step import GraphedStep as GraphedStep
from longscan.engine.graphed_step import make_capturable as make_capturable
