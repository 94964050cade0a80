"""Measure by cross-validation what a trained stack adds to `SSMClassifier` without settings. Test parts are not read.

    LONGSCAN_DATA=/data python benchmarks/stack_share.py --specs s5 mamba --minutes 0.2

Three folds, the same for both. The probabilities of both are averaged with the weight of the stack that has the lowest log loss;
for the series of a fold it is chosen on those of the other folds.
"""

import argparse

import numpy as np
import torch
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold

from cases.classification import SETS, read_set
from longscan.estimators import SSMClassifier

WEIGHTS = np.linspace(0, 1, 21)
FOLDS = 3


def left_out_probabilities(data: str, spec: str | None, minutes: float) -> np.ndarray:
    """Return the probabilities (n, classes) of the series of the training part, each from a fit without its fold."""
    train, _ = read_set(data)
    found = np.zeros((len(train.labels), len(np.unique(train.labels))))
    for fitted, held in folds(train.labels):
        model = SSMClassifier(spec, minutes=None if spec is None else minutes, random_state=0, device="cpu")
        model.fit([train.series[row] for row in fitted], train.labels[fitted])
        found[held] = model.predict_proba([train.series[row] for row in held])
    return found


def folds(labels: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the rows that are fitted and those that are held back in each fold."""
    return list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(labels, labels))


def combine(default: np.ndarray, stack: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float]:
    """Return averaged probabilities (n, classes), and the mean weight of the stack."""
    combined, chosen = np.zeros_like(default), []
    classes = np.unique(labels)
    for others, held in folds(labels):
        losses = [log_loss(labels[others], mix(default, stack, weight)[others], labels=classes) for weight in WEIGHTS]
        chosen.append(WEIGHTS[int(np.argmin(losses))])
        combined[held] = mix(default, stack, chosen[-1])[held]
    return combined, float(np.mean(chosen))


def mix(default: np.ndarray, stack: np.ndarray, weight: float) -> np.ndarray:
    """Return the average of probabilities with the weight of the second, without zeros."""
    mixed = np.maximum((1 - weight) * default + weight * stack, 1e-12)
    return np.asarray(mixed / mixed.sum(1, keepdims=True))


def main() -> None:
    """Print a row of a Markdown table for each spec and set: accuracy / log loss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=["FingerMovements", "Handwriting", "JapaneseVowels", "ERing"])
    parser.add_argument("--specs", nargs="+", default=["s5", "mamba"])
    parser.add_argument("--minutes", type=float, default=0.2, help="of each fit of a stack")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| Set | Stack | Default | Stack alone | Both | Weight of the stack |\n|---|---|---|---|---|---|")
    for data in options.sets:
        labels = read_set(data)[0].labels
        numbers, classes = np.unique(labels, return_inverse=True)[1], np.unique(labels)
        default = left_out_probabilities(data, None, options.minutes)
        for spec in options.specs:
            stack = left_out_probabilities(data, spec, options.minutes)
            both, weight = combine(default, stack, labels)
            cells = [
                f"{np.mean(found.argmax(1) == numbers):.3f} / {log_loss(labels, mix(found, found, 0), labels=classes):.3f}"
                for found in (default, stack, both)
            ]
            print(f"| {data} | `{spec}` | {' | '.join(cells)} | {weight:.2f} |", flush=True)


if __name__ == "__main__":
    main()
