"""longscan: state space models for long sequences in PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longscan.models import SequenceModel as SequenceModel

__version__ = "0.1.0"
__all__ = ["SequenceModel", "__version__"]

# Loaded on first use, so that `import longscan` costs nothing beyond torch.
_LAZY = {"SequenceModel": "longscan.models"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'longscan' has no attribute {name!r}")
