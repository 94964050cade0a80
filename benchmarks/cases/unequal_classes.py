"""Measure the effect of `class_weight="balanced"` of `SSMClassifier` where classes have different numbers of series.

Three sets have such classes as they are: OSULeaf and Covid3Month_disc, which aeon contains, and Handwriting. In the others some
classes of the training part are thinned: only a random share of their series, drawn by the seed of the row, is fitted. Test parts
are whole. Balanced accuracy is the mean of the shares of right labels of the classes, so that it is 1 / classes for a constant
label, however frequent it is. All methods see the same series; no setting is chosen by test scores.

Rows that are in the file are not measured again: delete rows to replace them. The sets that aeon does not contain are read from
the folder LONGSCAN_DATA.
"""

import time
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import balanced_accuracy_score

from cases.classification import METHODS as OF_ARCHIVE
from cases.classification import Method, Part, compile_kernels, pad, read_set
from harness import ROOT, Row, cpu_provenance, fit_and_predict, measurements
from longscan.estimators import SSMClassifier
from longscan.report.records import Record, read_records
from page import mark_uncommitted, recorded_keys, write_section

KEY = ("set", "method", "seed")  # fields that tell rows apart
PAGE, SECTION = ROOT / "docs/howto/accuracy.md", "unequal classes"


class Thinned(NamedTuple):
    """A set, and the share of the series that is kept of each second class, in the order of the labels; 1 for all of them."""

    name: str
    of_aeon: bool = False
    kept: float = 1.0


SETS = {
    "OSULeaf": Thinned("OSULeaf", of_aeon=True),
    "Covid3Month_disc": Thinned("Covid3Month_disc", of_aeon=True),
    "Handwriting": Thinned("Handwriting"),
    "ItalyPowerDemand, thinned": Thinned("ItalyPowerDemand", of_aeon=True, kept=0.2),
    "FingerMovements, thinned": Thinned("FingerMovements", kept=0.2),
    "SelfRegulationSCP1, thinned": Thinned("SelfRegulationSCP1", kept=0.2),
    "JapaneseVowels, thinned": Thinned("JapaneseVowels", kept=0.2),
    "UWaveGestureLibrary, thinned": Thinned("UWaveGestureLibrary", kept=0.2),
}


def _balanced(seed: int) -> SSMClassifier:
    return SSMClassifier(class_weight="balanced", random_state=seed, device="cpu")


def _minirocket_balanced(seed: int) -> Any:
    from aeon.classification.convolution_based import MiniRocketClassifier

    return MiniRocketClassifier(class_weight="balanced", random_state=seed)


METHODS = {
    "SSMClassifier": OF_ARCHIVE["SSMClassifier"],
    "SSMClassifier, balanced": Method(_balanced),
    "MiniRocket": OF_ARCHIVE["MiniRocket"],
    "MiniRocket, balanced": Method(_minirocket_balanced, pad, package="aeon"),
    "constant": OF_ARCHIVE["constant"],
}


@cache
def read_aeon(name: str) -> tuple[Part, Part]:
    """Return the training and the test part of a set of one channel that aeon contains."""
    from aeon.datasets import load_classification

    train, test = (load_classification(name, split=split) for split in ("train", "test"))
    return Part(list(train[0].transpose(0, 2, 1)), train[1]), Part(list(test[0].transpose(0, 2, 1)), test[1])


def thin(part: Part, kept: float, seed: int) -> Part:
    """Return the part with a share of each second class, drawn by a seed, at least one series of each."""
    random, rows = np.random.default_rng(seed), []
    for number, label in enumerate(np.unique(part.labels)):
        own = np.flatnonzero(part.labels == label)
        rows.append(random.permutation(own)[: max(1, round(kept * len(own)))] if number % 2 else own)
    chosen = np.sort(np.concatenate(rows))
    return Part([part.series[row] for row in chosen], part.labels[chosen])


def measure(data: str, name: str, seed: int) -> Row:
    """Fit a method to the training part of a set, thinned if it must be, and return its row."""
    source, method = SETS[data], METHODS[name]
    train, test = read_aeon(source.name) if source.of_aeon else read_set(source.name)
    train = thin(train, source.kept, seed) if source.kept < 1 else train
    if method.package is not None:
        compile_kernels("MiniRocket")
    longest = max(map(len, train.series + test.series))
    X, X_test = method.convert(train.series, longest), method.convert(test.series, longest)
    labels, seconds = fit_and_predict(partial(method.build, seed), X, train.labels, X_test)
    counts = np.unique(train.labels, return_counts=True)[1]
    return {
        "set": data,
        "method": name,
        "seed": seed,
        "accuracy": float(np.mean(labels == test.labels)),
        "balanced_accuracy": float(balanced_accuracy_score(test.labels, labels)),
        "n_train": len(train.series),
        "n_test": len(test.series),
        "smallest_class": int(counts.min()),
        "largest_class": int(counts.max()),
        **seconds,
        **cpu_provenance(method.package),
    }


def rows_of(options: Any, *, name: str) -> Iterator[Row]:
    """Yield the rows of a method that are not in the file."""
    path = (options.out or ROOT / "results/classification") / f"{options.name or 'unequal_classes'}.jsonl"
    for seed in range(1 if options.quick else options.runs):
        for data in list(SETS)[1:2] if options.quick else SETS:
            is_needed = seed == 0 or METHODS[name].random or SETS[data].kept < 1
            is_new = options.quick or (data, name, seed) not in recorded_keys(path, KEY)
            if is_needed and is_new and time.perf_counter() < options.end:
                yield measure(data, name, seed)


def write_page(path: Path) -> None:
    """Write the table of a file of records into the page of the documentation."""
    write_section(path, PAGE, SECTION, table(read_records(path)))


def table(rows: Sequence[Record]) -> str:
    """Return a Markdown table with a line for each set: balanced accuracy / accuracy of each method, means over the seeds."""
    found: dict[tuple[str, str], list[Record]] = {}
    for row in rows:
        found.setdefault((row["set"], row["method"]), []).append(row)
    names = [name for name in METHODS if any(method == name for _, method in found)]
    lines = ["| Set | Smallest, largest class | " + " | ".join(names) + " |", "|" + "---|" * (2 + len(names))]
    means: dict[str, list[tuple[float, float]]] = {}
    for data in SETS:
        of_set = {name: found[data, name] for name in names if (data, name) in found}
        if not of_set:
            continue
        for name, of_seed in of_set.items():
            scores = tuple(float(np.mean([row[field] for row in of_seed])) for field in ("balanced_accuracy", "accuracy"))
            means.setdefault(name, []).append((scores[0], scores[1]))
        cells = [f"{means[name][-1][0]:.3f} / {means[name][-1][1]:.3f}" if name in of_set else "–" for name in names]
        first = next(iter(of_set.values()))[0]
        lines.append(f"| {data} | {first['smallest_class']}, {first['largest_class']} | " + " | ".join(cells) + " |")
    if len({len(of_method) for of_method in means.values()}) == 1:
        cells = ["{:.3f} / {:.3f}".format(*np.mean(means[name], 0)) for name in names]
        lines.append("| mean | | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n" + mark_uncommitted(rows, "method")


CASES = measurements("unequal_classes", METHODS, rows_of, write_page, folder="classification")
