"""The split of a user's series into train, valid and test: groups stay together, classes have the same share in each part."""

import hashlib

import numpy as np

from longscan._errors import SettingError, setting_error
from longscan.tasks._random import CounterRNG
from longscan.tasks.base import Split
from longscan.tasks.series.reading import SeriesStore

TRIALS = 32  # random assignments of groups, of which the most even one is taken


def split_units(store: SeriesStore) -> np.ndarray:
    """Return the number of the unit of each series, (N,) int64. Series of a unit are in the same part.

    Units are the groups if the file has any, else series with equal values.
    """
    if store.groups is not None:
        return np.unique(store.groups, return_inverse=True)[1].ravel()
    keys: dict[bytes, int] = {}
    units = np.zeros(len(store.ids), np.int64)
    for row in range(len(units)):
        values = np.ascontiguousarray(store.series(row)) + 0.0  # -0.0 becomes 0.0
        digest = hashlib.blake2b(values.tobytes(), digest_size=16).digest()
        units[row] = keys.setdefault(digest, len(keys))
    return units


def split_series(
    units: np.ndarray, targets: np.ndarray | None, valid_fraction: float, test_fraction: float, seed: int, *, has_groups: bool
) -> dict[Split, np.ndarray]:
    """Return the rows of train, valid and test.

    Args:
        units: number of the unit of each series, see `split_units`.
        targets: (N,) numbers of classes, each of which has its share in every part; None for no such constraint.
        valid_fraction, test_fraction: parts of all series.
        seed: of the assignment.
        has_groups: whether units are groups of the file, for errors.

    Raises SettingError if there are too few units, or if a class would be absent from train.
    """
    count = int(units.max()) + 1
    if count < 3:
        needed = "`group` must be a column of at least three groups" if has_groups else "`path` must be of three different series"
        raise SettingError(f"{needed}, for train, valid and test, got {count}")
    classes = np.zeros(len(units), np.int64) if targets is None else targets
    table = np.zeros((count, int(classes.max()) + 1))  # series of each unit and class
    np.add.at(table, (units, classes), 1)
    shares = {"test": test_fraction, "valid": valid_fraction}
    trials = [_assign(table, shares, CounterRNG(("own series", seed), trial)) for trial in range(TRIALS if has_groups else 1)]
    part_of_unit = min(trials, key=lambda parts: _unevenness(table, parts, shares))
    rows: dict[Split, np.ndarray] = {
        "train": np.flatnonzero(part_of_unit[units] == 0),
        "valid": np.flatnonzero(part_of_unit[units] == 1),
        "test": np.flatnonzero(part_of_unit[units] == 2),
    }
    for part, chosen in rows.items():
        if not len(chosen):
            setting = "test_fraction" if part == "test" else "valid_fraction"
            raise setting_error(setting, shares["test" if part == "test" else "valid"], f"a number that leaves series for {part}")
    return rows


def _assign(table: np.ndarray, shares: dict[str, float], random: CounterRNG) -> np.ndarray:
    """Return the part of each unit, 0 train, 1 valid, 2 test: of each class, units in a random order up to its share in a part.

    Classes are taken from the rarest to the most frequent one.
    """
    order = random.permutation(len(table))
    parts = np.full(len(table), -1)
    targets = {1: shares["valid"], 2: shares["test"]}
    for number in np.argsort(table.sum(0), kind="stable").tolist():
        members = [unit for unit in order.tolist() if table[unit, number]]
        total = table[:, number].sum()
        for part in (2, 1):
            have = table[parts == part, number].sum()
            wanted = max(1, round(total * targets[part]))
            free = [unit for unit in members if parts[unit] < 0]
            for unit in free[: max(0, len(free) - (2 if part == 2 else 1))]:  # leave units for valid and for train
                if have >= wanted:
                    break
                if have and have + table[unit, number] / 2 > wanted:
                    continue
                parts[unit] = part
                have += table[unit, number]
        for unit in members:
            if parts[unit] < 0:
                parts[unit] = 0
    return parts


def _unevenness(table: np.ndarray, parts: np.ndarray, shares: dict[str, float]) -> float:
    """Return how far the shares of the classes in valid and test are from the wanted ones; large if train lacks a class."""
    total = table.sum(0)
    wanted = ((1, shares["valid"]), (2, shares["test"]))
    distance = sum(float(np.abs(table[parts == part].sum(0) / total - share).sum()) for part, share in wanted)
    return distance + 1e3 * float((table[parts == 0].sum(0) == 0).sum())
