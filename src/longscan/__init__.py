"""longscan: state space models for long sequences in PyTorch."""

from typing import TYPE_CHECKING

from longscan._lazy import lazy

if TYPE_CHECKING:
    from longscan.inspection import inspect as inspect
    from longscan.models import SequenceModel as SequenceModel

_SUBMODULES = (
    "automata", "blocks", "datasets", "distributed", "doctor", "engine", "estimators", "inspection", "layers", "models",
    "numerics", "ops", "report", "reproduce", "system", "tasks", "training",
)  # fmt: skip
__version__ = "0.1.0"
__all__ = ["SequenceModel", "__version__", "inspect"]

# `import longscan` costs nothing, not even torch.
__getattr__ = lazy(__name__, {"SequenceModel": "longscan.models", "inspect": "longscan.inspection"}, submodules=_SUBMODULES)
