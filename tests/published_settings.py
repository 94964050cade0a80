"""The settings that papers print, with which tests compare recipes, and the settings of recipes."""

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from longscan.training.parsing import read_recipe

Row = tuple[str, int, int, float, float]

# AUSSM, Table 4: layers, d, n, weight decay and learning rate of each task's hybrid, by the names of recipes
FORMAL: dict[str, Row] = {
    "repetition": ("ma", 64, 32, 0.0, 0.01),
    "bucket_sort": ("am", 64, 32, 0.0, 0.01),
    "majority_count": ("ma", 64, 32, 0.1, 0.01),
    "majority": ("ma", 64, 32, 0.1, 0.01),
    "solve_equation": ("ma", 64, 32, 0.0, 0.01),
    "modular_arithmetic_brackets": ("am", 16, 8, 0.0, 0.01),
    "modular_arithmetic": ("ma", 8, 16, 0.0, 0.01),
    "cycle_navigation": ("ma", 16, 8, 0.0, 0.01),
    "parity": ("ma", 16, 8, 0.0, 0.01),
}
SERIES: dict[str, Row] = {
    "heartbeat": ("ma", 64, 64, 0.0, 1e-4),
    "self_regulation_scp1": ("amma", 16, 128, 0.0, 1e-3),
    "self_regulation_scp2": ("ma", 16, 128, 0.0, 1e-4),
    "ethanol_concentration": ("ammama", 16, 64, 0.001, 1e-5),
    "motor_imagery": ("ma", 16, 128, 0.0, 1e-4),
    "eigen_worms": ("amma", 16, 16, 0.0, 1e-3),
}


@cache
def _read_once(path: Path) -> dict[str, Any]:
    return read_recipe(path)[0]


def read_settings_once(path: Path) -> dict[str, Any]:
    """Return a copy of the settings of a recipe, which is read once: hundreds of rows and runs share a file."""
    return deepcopy(_read_once(path))
