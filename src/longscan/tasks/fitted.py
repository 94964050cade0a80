"""Simple methods that are fitted on the training series of a task: a ridge regression, and classifiers of the package aeon."""

import math
from collections.abc import Callable

import numpy as np

FitProgress = Callable[[str, int, int], object]  # called with the name of a method, its parts that are done, and all its parts

RIDGE_SERIES = 2000  # largest number of training series of the ridge regression
RIDGE_FEATURES = 4096  # largest number of its features
SMALLEST_SPREAD = 1e-9
RIDGE_PENALTIES = np.logspace(-3, 3, 13)  # in units of the mean eigenvalue of the Gram matrix
ROCKET_STEPS = 9  # shortest series that MiniRocket reads
WARPING_PARTS = 50  # parts of the test series between which the progress of the nearest neighbour is reported


def ignore_progress(_name: str, _done: int, _total: int) -> None:
    """Do nothing: the FitProgress of a caller that shows none."""


def resample(series: np.ndarray, n_steps: int) -> np.ndarray:
    """Return a series (L, C) at `n_steps` equal distances from its first to its last step, linearly interpolated."""
    steps, points = np.arange(len(series)), np.linspace(0, len(series) - 1, n_steps)
    return np.stack([np.interp(points, steps, channel) for channel in series.T], axis=1)


def ridge_predictions(train: np.ndarray, targets: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return predictions (N, K) of a ridge regression whose penalty has the lowest leave-one-out error.

    Args:
        train: (n, F) float64 features, which are standardised here.
        targets: (n, K) float64.
        test: (N, F).
    """
    mean, spread = train.mean(0), train.std(0)
    spread[spread < SMALLEST_SPREAD] = 1.0
    features, center = (train - mean) / spread, targets.mean(0)
    values, vectors = np.linalg.eigh(features @ features.T)
    values = values.clip(0)
    rotated = vectors.T @ (targets - center)
    best, weights = np.inf, np.zeros((features.shape[1], targets.shape[1]))
    for penalty in RIDGE_PENALTIES * max(float(values.mean()), SMALLEST_SPREAD):
        inverse = 1 / (values + penalty)
        dual = vectors @ (inverse[:, None] * rotated)
        # The diagonal of the hat matrix is that of the centred features and 1/n of the intercept.
        left = (1 - 1 / len(train) - vectors**2 @ (values * inverse)).clip(SMALLEST_SPREAD)
        error = float(((penalty * dual / left[:, None]) ** 2).mean())
        if error < best:
            best, weights = error, features.T @ dual
    result: np.ndarray = (test - mean) / spread @ weights + center
    return result


def aeon_accuracies(
    train: list[np.ndarray],
    labels: np.ndarray,
    test: list[np.ndarray],
    targets: np.ndarray,
    *,
    seed: int,
    largest_table: float,
    on_progress: FitProgress = ignore_progress,
) -> dict[str, float]:
    """Return the accuracy of aeon's MiniRocket and of the nearest neighbour by dynamic time warping, by name.

    Args:
        train, test: series (C, L) of any lengths. MiniRocket reads them padded with zeros and needs nine steps.
        labels, targets: numbers of the classes of train and test.
        seed: of MiniRocket.
        largest_table: number of cells of the tables of warping above which it is left out.
        on_progress: called before the first and after each part: fitting and prediction of MiniRocket, test series of warping.
    """
    longest = max(series.shape[1] for series in (*train, *test))
    scores = {}
    if longest >= ROCKET_STEPS:
        on_progress("minirocket", 0, 2)
        from aeon.classification.convolution_based import MiniRocketClassifier  # takes seconds, or minutes while numba compiles

        padded = [
            np.stack([np.pad(series, ((0, 0), (0, longest - series.shape[1]))) for series in part]) for part in (train, test)
        ]
        rocket = MiniRocketClassifier(random_state=seed).fit(padded[0], labels)
        on_progress("minirocket", 1, 2)
        scores["minirocket"] = float((rocket.predict(padded[1]) == targets).mean())
        on_progress("minirocket", 2, 2)
    if len(train) * len(test) * longest**2 <= largest_table:
        on_progress("dtw_1nn", 0, len(test))
        from aeon.classification.distance_based import KNeighborsTimeSeriesClassifier

        nearest = KNeighborsTimeSeriesClassifier(distance="dtw", n_neighbors=1).fit(train, labels)
        size, right = math.ceil(len(test) / WARPING_PARTS), 0
        for first in range(0, len(test), size):
            part = test[first : first + size]
            right += int((nearest.predict(part) == targets[first : first + size]).sum())
            on_progress("dtw_1nn", first + len(part), len(test))
        scores["dtw_1nn"] = right / len(test)
    return scores
