"""Training: settings, runs in folders, checkpoints, logs, sweeps.

Names are imported when they are first used: settings and help pages need neither accelerate nor Optuna.
"""

from typing import TYPE_CHECKING, Any

from longscan._lazy import lazy

if TYPE_CHECKING:
    from longscan.training.batches import Share as Share
    from longscan.training.batches import share_of as share_of
    from longscan.training.parsing import parse_settings as parse_settings
    from longscan.training.records import check_target as check_target
    from longscan.training.records import record_run as record_run
    from longscan.training.records import write_baselines as write_baselines
    from longscan.training.run import Run as Run
    from longscan.training.settings import AboutSettings as AboutSettings
    from longscan.training.settings import CurriculumSettings as CurriculumSettings
    from longscan.training.settings import LateLengthSettings as LateLengthSettings
    from longscan.training.settings import ModelSettings as ModelSettings
    from longscan.training.settings import ParameterSettings as ParameterSettings
    from longscan.training.settings import SettingError as SettingError
    from longscan.training.settings import Settings as Settings
    from longscan.training.settings import TrainingSettings as TrainingSettings
    from longscan.training.sharding import shard_model as shard_model
    from longscan.training.space import SweepConfig as SweepConfig
    from longscan.training.sweep import run_sweep as run_sweep
    from longscan.training.trainer import train as train

_NAMES = {  # module -> names
    "batches": ["Share", "share_of"],
    "parsing": ["parse_settings"],
    "records": ["check_target", "record_run", "write_baselines"],
    "run": ["Run"],
    "settings": [
        "AboutSettings",
        "CurriculumSettings",
        "LateLengthSettings",
        "ModelSettings",
        "ParameterSettings",
        "SettingError",
        "Settings",
        "TrainingSettings",
    ],
    "sharding": ["shard_model"],
    "space": ["SweepConfig"],
    "trainer": ["train"],
}
_get = lazy(__name__, {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names})
_get_sweep = lazy(__name__, {"run_sweep": "longscan.training.sweep"}, extra="sweep")


def __getattr__(name: str) -> Any:
    return _get_sweep(name) if name == "run_sweep" else _get(name)
