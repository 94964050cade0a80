"""Accuracy of `SSMClassifier` without settings, of trained stacks and of other methods on eight sets of the UEA archive.

All methods are fitted to the training part as it is in the archive and scored on its test part, once for each seed; no setting is
chosen by test scores. Trained stacks have the default settings of the estimator but `spec`, and the time `MINUTES`. The methods
of aeon have their default settings. Those that need series of equal length get the shorter ones padded on the right with zeros to
the longest of both parts; dynamic time warping and the estimators here read the series without padding.

Rows that are in the file are not measured again, so that an interrupted run continues. To replace rows, delete them.
The sets are read from the folder LONGSCAN_DATA.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.dummy import DummyClassifier

from harness import ROOT, Row, cpu_provenance, fit_and_predict, measurements
from longscan.estimators import SSMClassifier
from longscan.report.records import Record, read_records
from longscan.tasks.timeseries.files import Recordings, read_arff, read_arff_dimensions, read_ts
from page import mark_uncommitted, recorded_keys, write_section

SETS = (
    "AtrialFibrillation",
    "BasicMotions",
    "ERing",
    "FingerMovements",
    "Handwriting",
    "JapaneseVowels",
    "SelfRegulationSCP1",
    "UWaveGestureLibrary",
)
SPECS = ("aussm", "s5", "mamba", "s7", "lru", "s4d", "mamba s5")  # of the trained stacks
MINUTES = 4.0  # time limit of the fit of a trained stack
FAR = 0.08  # smallest loss of accuracy against the reference that the table counts
OURS, REFERENCE = "SSMClassifier", "MiniRocket"
KEY = ("set", "method", "seed")  # fields that tell rows apart
PAGE, SECTION = ROOT / "docs/howto/accuracy.md", "classification"

Series = list[np.ndarray]  # (L_i, C) each


class Part(NamedTuple):
    """Series of a set, (L_i, C) each, and their labels."""

    series: Series
    labels: np.ndarray


@cache
def read_set(name: str) -> tuple[Part, Part]:
    """Return the training and the test part of a set."""
    folder = os.environ.get("LONGSCAN_DATA")
    if not folder:
        raise SystemExit("classification: LONGSCAN_DATA must be the folder that has uea/NAME/NAME_TRAIN.ts, got nothing")
    parts = [_read_part(Path(folder) / "uea" / name, name, part) for part in ("TRAIN", "TEST")]
    train, test = (Part([values.T for values in part.series], np.array(part.labels)) for part in parts)
    return train, test


def _read_part(folder: Path, name: str, part: str) -> Recordings:
    if (path := folder / f"{name}_{part}.ts").is_file():
        return read_ts(path)
    if (path := folder / f"{name}_{part}.arff").is_file():
        return read_arff(path)
    count = len(list(folder.glob(f"{name}Dimension*_{part}.arff")))
    if not count:
        raise SystemExit(f"classification: {folder} must have {name}_{part}.ts or .arff, got a folder without them")
    return read_arff_dimensions([folder / f"{name}Dimension{number}_{part}.arff" for number in range(1, count + 1)])


class Method(NamedTuple):
    """A method of the table.

    Attributes:
        build: returns the classifier for a seed.
        convert: converts the series of a part to what the classifier reads. longest: number of steps of the longest of all parts.
        random: whether the result depends on the seed.
        package: whose version is recorded, besides that of torch.
    """

    build: Callable[[int], Any]
    convert: Callable[[Series, int], Any] = lambda series, _: series
    random: bool = True
    package: str | None = None


def pad(series: Series, longest: int) -> np.ndarray:
    """Return the series as one array (n, C, longest), padded on the right with zeros."""
    padded = np.zeros((len(series), series[0].shape[1], longest))
    for row, values in zip(padded, series, strict=True):
        row[:, : len(values)] = values.T
    return padded


def _minirocket(seed: int) -> Any:
    from aeon.classification.convolution_based import MiniRocketClassifier

    return MiniRocketClassifier(random_state=seed)


def _multirocket_hydra(seed: int) -> Any:
    from aeon.classification.convolution_based import MultiRocketHydraClassifier

    return MultiRocketHydraClassifier(random_state=seed)


def _quant(seed: int) -> Any:
    from aeon.classification.interval_based import QUANTClassifier

    return QUANTClassifier(random_state=seed)


def _dtw(_seed: int) -> Any:
    from aeon.classification.distance_based import KNeighborsTimeSeriesClassifier

    return KNeighborsTimeSeriesClassifier(distance="dtw", n_neighbors=1)


def _default(seed: int) -> SSMClassifier:
    return SSMClassifier(random_state=seed, device="cpu")


def _stack(seed: int, *, spec: str) -> SSMClassifier:
    return SSMClassifier(spec, minutes=MINUTES, random_state=seed, device="cpu")


METHODS = {
    OURS: Method(_default),
    "constant": Method(lambda _: DummyClassifier(), lambda series, _: np.zeros((len(series), 1)), random=False),
    REFERENCE: Method(_minirocket, pad, package="aeon"),
    "MultiRocket-Hydra": Method(_multirocket_hydra, pad, package="aeon"),
    "QUANT": Method(_quant, pad, package="aeon"),
    "DTW-1NN": Method(_dtw, lambda series, _: [values.T for values in series], random=False, package="aeon"),
    **{f"trained {spec}": Method(partial(_stack, spec=spec)) for spec in SPECS},
}


@cache
def compile_kernels(name: str) -> None:
    """Fit a method to a few made-up series, so that the time that numba needs to compile is not measured."""
    series = list(np.random.default_rng(0).standard_normal((8, 40, 2)))
    X = METHODS[name].convert(series, 40)
    METHODS[name].build(0).fit(X, np.arange(8) % 2).predict(X)


def measure(data: str, name: str, seed: int) -> Row:
    """Fit a method to the training part of a set and return its row."""
    train, test = read_set(data)
    method = METHODS[name]
    if method.package is not None:
        compile_kernels(name)
    longest = max(map(len, train.series + test.series))
    X, X_test = method.convert(train.series, longest), method.convert(test.series, longest)
    labels, seconds = fit_and_predict(partial(method.build, seed), X, train.labels, X_test)
    return {
        "set": data,
        "method": name,
        "seed": seed,
        "accuracy": float(np.mean(labels == test.labels)),
        "n_train": len(train.series),
        "n_test": len(test.series),
        **seconds,
        **cpu_provenance(method.package),
    }


def rows_of(options: Any, *, name: str) -> Iterator[Row]:
    """Yield the rows of a method that are not in the file."""
    path = (options.out or ROOT / "results/classification") / f"{options.name or 'classification'}.jsonl"
    for seed in range(1 if not METHODS[name].random or options.quick else options.runs):
        for data in SETS[1:2] if options.quick else SETS:
            if time.perf_counter() < options.end and (options.quick or (data, name, seed) not in recorded_keys(path, KEY)):
                yield measure(data, name, seed)


def write_page(path: Path) -> None:
    """Write the table of a file of records into the page of the documentation."""
    write_section(path, PAGE, SECTION, table(read_records(path)))


def table(rows: Sequence[Record]) -> str:
    """Return a Markdown table with a line for each method: accuracies by set, means over the seeds, and seconds."""
    found: dict[str, dict[str, dict[int, Record]]] = {}
    for row in rows:
        found.setdefault(row["method"], {}).setdefault(row["set"], {})[row["seed"]] = row
    sets = [name for name in SETS if any(name in of_set for of_set in found.values())]
    reference = {name: _mean(of_seed, "accuracy") for name, of_seed in found.get(REFERENCE, {}).items()}
    names = ["Method", "Seeds", *sets, "Mean", f"Over {FAR} below {REFERENCE}", "Fit, s: mean, longest", "Predict, s: mean"]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for method in (name for name in METHODS if name in found):
        of_set = found[method]
        accuracies = {name: _mean(of_set[name], "accuracy") for name in sets if name in of_set}
        is_complete = len(accuracies) == len(sets)
        seeds = sorted({len(of_seed) for of_seed in of_set.values()})
        far = [name for name in accuracies if name in reference and accuracies[name] < reference[name] - FAR]
        fits = [_mean(of_seed, "fit_seconds") for of_seed in of_set.values()]
        cells = [
            f"`SSMClassifier({method.removeprefix('trained ')!r})`" if method.startswith("trained ") else method,
            str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}",
            *(f"{accuracies[name]:.3f}" if name in accuracies else "–" for name in sets),
            f"{np.mean(list(accuracies.values())):.3f}" if is_complete else "–",
            str(len(far)) if is_complete and reference.keys() >= accuracies.keys() else "–",
            f"{np.mean(fits):.1f}, {max(fits):.1f}",
            f"{np.mean([_mean(of_seed, 'predict_seconds') for of_seed in of_set.values()]):.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n" + mark_uncommitted(rows, "method")


def _mean(of_seed: dict[int, Record], field: str) -> float:
    return float(np.mean([row[field] for row in of_seed.values()]))


CASES = measurements("classification", METHODS, rows_of, write_page, folder="classification")
