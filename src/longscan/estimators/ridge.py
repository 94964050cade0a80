"""Ridge regression with the penalty of lowest leave-one-out error, in closed form, for scores of classes or for targets.

With features Z (n, F), less their means and divided by their deviations, and targets Y (n, K), the outputs are

    f(z) = mean(Y) + z (Z^T S Z + a I)^-1 Z^T S (Y - mean(Y))

S is the diagonal matrix of the weights of the examples, and means and deviations are weighted alike. With the hat matrix H of the
fit, row i of Y - f(Z), divided by 1 - H_ii, is the error at example i of a fit to the others. One eigendecomposition, of Z Z^T or
of Z^T Z, whichever is smaller, gives these errors for all penalties a.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

PENALTIES = tuple(10.0 ** (power / 2) for power in range(8, -9, -1))  # in units of the number of features
TEMPERATURES = tuple(2.0 ** (power / 2) for power in range(-4, 7))  # factors of scores

TIE = 1e-5  # errors that differ by less are equal; the largest penalty is then chosen

Array = np.ndarray[Any, np.dtype[np.float64]]


class RidgeFit(NamedTuple):
    """A fitted ridge regression.

    Attributes:
        mean, scale: (F,); the regression reads (features - mean) scale. scale is 0 for a constant feature.
        weight, bias: of the outputs, (K, F) and (K,).
        left_out: outputs (n, K) for each example of a fit to the others.
        error: the mean error of `left_out`, by which the penalty was chosen.
        penalty: the chosen one, in units of the number of features.
    """

    mean: Array
    scale: Array
    weight: Array
    bias: Array
    left_out: Array
    error: float
    penalty: float


def fit_ridge(
    features: np.ndarray, targets: Array, loss: Callable[[Array], float], weights: Array | None = None
) -> RidgeFit:
    """Fit a ridge regression with the penalty of lowest leave-one-out error.

    Args:
        features: (n, F).
        targets: (n, K).
        loss: the mean error of outputs (n, K) for the examples.
        weights: of the examples, (n,), positive; None for equal ones.
    """
    n = len(features)
    share = np.full(n, 1 / n) if weights is None else weights / weights.sum()
    root = np.sqrt(n * share)[:, None]
    means = share @ features
    Z = features.astype(np.float64) - means
    deviations = np.sqrt(share @ Z**2)
    varies = deviations > 1e-5 * np.abs(means) + 1e-12
    scale = np.where(varies, 1 / np.where(varies, deviations, 1), 0)
    Z *= scale * root
    average = share @ targets
    Y = root * (targets - average)
    is_wide = Z.shape[1] > n
    values, vectors = np.linalg.eigh(Z @ Z.T if is_wide else Z.T @ Z)
    kept = values > 1e-10 * max(values[-1], 1e-30)
    values, vectors = values[kept], vectors[:, kept]
    basis = vectors if is_wide else Z @ vectors / np.sqrt(values)  # (n, rank), orthonormal
    projected = basis.T @ Y
    best: tuple[float, float, Array] | None = None
    for penalty in PENALTIES:
        shrinkage = values / (values + penalty * Z.shape[1])
        residual = Y - basis @ (shrinkage[:, None] * projected)
        leverage = basis**2 @ shrinkage + share
        left_out = targets - residual / root / np.maximum(1 - leverage, 1e-6)[:, None]
        error = loss(left_out)
        if best is None or error < best[0] - TIE:
            best = error, penalty, left_out
    assert best is not None
    error, penalty, left_out = best
    along = projected / (values + penalty * Z.shape[1])[:, None] * (1 if is_wide else np.sqrt(values)[:, None])
    weight = (Z.T @ (vectors @ along) if is_wide else vectors @ along).T
    return RidgeFit(means, scale, weight, average, left_out, float(error), penalty)


def fit_scores(features: np.ndarray, classes: np.ndarray, weights: Array | None = None) -> RidgeFit:
    """Fit logits of classes: scores of a ridge regression to 1 for the class and -1 for others, times a factor.

    The penalty and the factor are those of lowest cross-entropy. Squared errors would shrink the scores of many classes too far.

    classes: (n,), numbers from 0, each at least once.
    """
    count = int(classes.max()) + 1
    targets = np.where(classes[:, None] == np.arange(count), 1.0, -1.0)

    def loss(scores: Array) -> float:
        return min(_cross_entropy(factor * scores, classes, weights) for factor in TEMPERATURES)

    fit = fit_ridge(features, targets, loss, weights)
    factor = min(TEMPERATURES, key=lambda factor: _cross_entropy(factor * fit.left_out, classes, weights))
    return fit._replace(weight=factor * fit.weight, bias=factor * fit.bias, left_out=factor * fit.left_out)


def fit_values(features: np.ndarray, targets: Array, weights: Array | None = None) -> RidgeFit:
    """Fit targets (n, K) by squared errors."""

    def loss(outputs: Array) -> float:
        return float(np.average(np.mean((outputs - targets) ** 2, axis=1), weights=weights))

    return fit_ridge(features, targets, loss, weights)


def _cross_entropy(logits: Array, classes: np.ndarray, weights: Array | None) -> float:
    shifted = logits - logits.max(1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(classes)), classes]
    return float(np.average(losses, weights=weights))
