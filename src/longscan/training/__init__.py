"""Training: settings, the loop, checkpoints, logs, runs on disk, sweeps.

A sweep needs Optuna, which is imported when `run_sweep` is first used.
"""

from typing import TYPE_CHECKING

from longscan._lazy import lazy
from longscan.training.parsing import parse_settings as parse_settings
from longscan.training.records import check_target as check_target
from longscan.training.records import record_run as record_run
from longscan.training.records import write_baselines as write_baselines
from longscan.training.run import Run as Run
from longscan.training.settings import AboutSettings as AboutSettings
from longscan.training.settings import CurriculumSettings as CurriculumSettings
from longscan.training.settings import LateLengthSettings as LateLengthSettings
from longscan.training.settings import ModelSettings as ModelSettings
from longscan.training.settings import SettingError as SettingError
from longscan.training.settings import Settings as Settings
from longscan.training.settings import TrainingSettings as TrainingSettings
from longscan.training.sharing import Share as Share
from longscan.training.sharing import shard_model as shard_model
from longscan.training.sharing import share_of as share_of
from longscan.training.space import SweepConfig as SweepConfig
from longscan.training.trainer import train as train

if TYPE_CHECKING:
    from longscan.training.sweep import run_sweep as run_sweep

__getattr__ = lazy(__name__, {"run_sweep": "longscan.training.sweep"}, extra="sweep")
