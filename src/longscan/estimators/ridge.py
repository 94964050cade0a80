"""Ridge regression with the penalty of lowest leave-one-out error, in closed form, for scores of classes or for targets.

With features Z (n, F), less their means and divided by their deviations, and targets Y (n, K), the outputs are

    f(z) = mean(Y) + z (Z^T S Z + a I)^-1 Z^T S (Y - mean(Y))

S is the diagonal matrix of the weights of the examples, and means and deviations are weighted alike. With the hat matrix H of the
fit, row i of Y - f(Z), divided by 1 - H_ii, is the error at example i of a fit to the others. One eigendecomposition, of Z Z^T or
of Z^T Z, whichever is smaller, gives these errors for all penalties a.

Families of features may have different penalties: `choose_factors` minimises the leave-one-out error over factors of the
families, as in multiple kernel learning.
"""

import math
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

PENALTIES = tuple(10.0 ** (power / 2) for power in range(8, -9, -1))  # in units of the number of features
TEMPERATURES = tuple(2.0 ** (power / 2) for power in range(-4, 7))  # candidates for the factor of scores in logits

SEARCH_EXAMPLES = 300  # largest number of examples from which the factors of families of features are chosen
SEARCH_STEPS, SEARCH_LEARNING_RATE = 60, 0.15  # of the search for these factors by Adam
SEARCH_PENALTY = 0.2  # penalty on the squares of their logits in this search
FIRST_LOG_RATIO = 3.0  # logarithm of the first ratio of kernel and penalty
FIRST_LOG_SHARPNESS, MAX_LOG_SHARPNESS = 2.0, 4.0  # logarithms of the first and the largest factor from scores to logits
FEATURE_BLOCK = 512  # number of features that are standardised together if there are more features than examples
EIGEN_WORK, SEARCH_WORK = 40, 20  # operations of an eigendecomposition and of a search step, in units of the cube of the size
TIMED_SIZE = 512  # size of the matrix product from whose time that of a fit is estimated
STANDARD_ERRORS = 2.0  # further features are used if they lower the left-out cross-entropy by this many standard errors
TIE_TOLERANCE = 1e-5  # errors that differ by less are equal; the largest penalty is then chosen

Array = np.ndarray[Any, np.dtype[np.float64]]


class RidgeFit(NamedTuple):
    """A fitted ridge regression.

    Attributes:
        mean, scale: (F,); the regression reads (features - mean) * scale. scale is 0 for a constant feature.
        weight, bias: the coefficients (K, F) and constants (K,) of the outputs.
        left_out: (n, K), the outputs for each example of a fit to all other examples.
        error: the mean error of `left_out`, which the chosen penalty minimises.
        penalty: the chosen penalty, in units of the number of features.
    """

    mean: Array
    scale: Array
    weight: Array
    bias: Array
    left_out: Array
    error: float
    penalty: float


def fit_ridge(
    features: np.ndarray,
    targets: Array,
    loss: Callable[[Array], float],
    weights: Array | None = None,
    factors: Array | None = None,
) -> RidgeFit:
    """Fit a ridge regression with the penalty of lowest leave-one-out error.

    Args:
        features: (n, F).
        targets: (n, K).
        loss: the mean error of outputs (n, K) for the examples.
        weights: of the examples, (n,), positive; None for equal ones.
        factors: of the standardised features, (F,), by which their coefficients are penalised less; None for ones.
    """
    n, count = features.shape
    share = np.full(n, 1 / n) if weights is None else weights / weights.sum()
    root = np.sqrt(n * share)[:, None]
    of_feature = np.ones(count) if factors is None else factors
    is_wide = count > n
    blocks = [slice(first, min(first + FEATURE_BLOCK, count)) for first in range(0, count, FEATURE_BLOCK)]
    means, scale = np.zeros(count), np.zeros(count)
    for block in blocks:
        Z = features[:, block].astype(np.float64)
        means[block] = share @ Z
        deviations = np.sqrt(share @ (Z - means[block]) ** 2)
        varies = deviations > 1e-5 * np.abs(means[block]) + 1e-12
        scale[block] = np.where(varies, 1 / np.where(varies, deviations, 1), 0)

    def standardised(block: slice) -> Array:
        return np.asarray((features[:, block].astype(np.float64) - means[block]) * (scale[block] * of_feature[block]) * root)

    average = share @ targets
    Y = root * (targets - average)
    if is_wide:
        products = np.zeros((n, n))
        for block in blocks:
            Z = standardised(block)
            products += Z @ Z.T
    else:
        Z = standardised(slice(None))
        products = Z.T @ Z
    values, vectors = np.linalg.eigh(products)
    kept = values > 1e-10 * max(values[-1], 1e-30)
    values, vectors = values[kept], vectors[:, kept]
    basis = vectors if is_wide else Z @ vectors / np.sqrt(values)  # (n, rank), orthonormal
    projected = basis.T @ Y
    best: tuple[float, float, Array] | None = None
    for penalty in PENALTIES:
        shrinkage = values / (values + penalty * count)
        residual = Y - basis @ (shrinkage[:, None] * projected)
        leverage = basis**2 @ shrinkage + share
        left_out = targets - residual / root / np.maximum(1 - leverage, 1e-6)[:, None]
        error = loss(left_out)
        if best is None or error < best[0] - TIE_TOLERANCE:
            best = error, penalty, left_out
    assert best is not None
    error, penalty, left_out = best
    along = vectors @ (projected / (values + penalty * count)[:, None] * (1 if is_wide else np.sqrt(values)[:, None]))
    weight = np.concatenate([standardised(block).T @ along for block in blocks]).T if is_wide else along.T
    return RidgeFit(means, scale, weight * of_feature, average, left_out, float(error), penalty)


def choose_factors(
    features: np.ndarray, targets: Array, families: np.ndarray, loss: Callable[[Tensor, Tensor, np.ndarray], Tensor]
) -> Array:
    """Return factors (F,) of features in families that approximately minimise the leave-one-out error of the regression.

    A family is a pair of indices (g, k). The squared factors of its features sum to v_g w_k F, where v and w are softmax
    functions of logits. The logits, which are 0 at first, and the penalty are optimised by `SEARCH_STEPS` steps of Adam on at
    most `SEARCH_EXAMPLES` examples. The error includes `SEARCH_PENALTY` times the sum of the squares of the logits, divided by
    the number of these examples. All examples have equal weights in the regression of this search; `loss` may weight their
    errors.

    Args:
        features: (n, F).
        targets: (n, K).
        families: (F, 2), indices from 0.
        loss: function of outputs (m, K), a factor of logits that is optimised as well, and examples (m,) that returns the mean
            error.
    """
    n = len(features)
    rows = np.arange(n) if n <= SEARCH_EXAMPLES else np.sort(np.random.RandomState(0).permutation(n)[:SEARCH_EXAMPLES])
    numbers, of_feature = np.unique(families, axis=0, return_inverse=True)
    of_feature = of_feature.reshape(-1)
    sizes = np.bincount(of_feature)
    products = torch.empty(len(numbers), len(rows), len(rows), device="cpu")
    for family in range(len(numbers)):
        Z = features[np.ix_(rows, np.flatnonzero(of_feature == family))].astype(np.float64)
        means, deviations = Z.mean(0), Z.std(0)
        Z = ((Z - means) / np.where(deviations > 1e-5 * np.abs(means) + 1e-12, deviations, np.inf)).astype(np.float32)
        products[family] = torch.from_numpy(Z @ Z.T / Z.shape[1])
    Y = torch.from_numpy(targets[rows])
    Y_mean, identity = Y.mean(0), torch.eye(len(rows), dtype=torch.float64, device="cpu")
    first, second = torch.from_numpy(numbers).unbind(1)
    parameters = [torch.zeros(int(index.max()) + 1, dtype=torch.float64, device="cpu") for index in (first, second)]
    parameters += [torch.tensor(value, dtype=torch.float64, device="cpu") for value in (FIRST_LOG_RATIO, FIRST_LOG_SHARPNESS)]
    optimizer = torch.optim.Adam([values.requires_grad_() for values in parameters], lr=SEARCH_LEARNING_RATE)

    def shares() -> Tensor:
        return parameters[0].softmax(0)[first] * parameters[1].softmax(0)[second]

    for _ in range(SEARCH_STEPS):
        with torch.enable_grad():
            level, sharpness = parameters[2:]
            kernel = torch.tensordot((shares() * level.exp()).float(), products, 1).double()
            inverse = torch.linalg.inv(kernel + identity)
            left_out = Y - inverse @ (Y - Y_mean) / (inverse.diagonal() - 1 / len(rows)).clamp_min(1e-6)[:, None]
            prior = sum((values**2).sum() for values in parameters[:2])
            error = loss(left_out, sharpness.clamp(max=MAX_LOG_SHARPNESS).exp(), rows) + SEARCH_PENALTY * prior / len(rows)
            optimizer.zero_grad()
            error.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    found = shares().detach().numpy()
    return np.asarray(np.sqrt(found / found.sum() / sizes * len(families))[of_feature])


def regression_seconds(examples: int, features: int) -> float:
    """Return an estimate of the time of `fit_scores` in seconds, from the time of a matrix product."""
    small, large = sorted((examples, features))
    compared = min(examples, SEARCH_EXAMPLES)
    work = 2 * small**2 * large + EIGEN_WORK * small**3 + 2 * compared**2 * features + SEARCH_STEPS * SEARCH_WORK * compared**3
    matrix = np.ones((TIMED_SIZE, TIMED_SIZE))
    start = monotonic()
    matrix @ matrix
    return work * (monotonic() - start) / (2 * TIMED_SIZE**3)


def fit_scores(
    features: np.ndarray, classes: np.ndarray, weights: Array | None = None, families: np.ndarray | None = None
) -> RidgeFit:
    """Fit logits of classes: scores of a ridge regression to 1 for the class and -1 for others, times a factor.

    The penalty and the factor are those of lowest cross-entropy. Squared errors would shrink the scores of many classes too far.

    Args:
        features: (n, F).
        classes: (n,), numbers from 0, each at least once.
        weights: of the examples, (n,), positive; None for equal ones.
        families: of the features, (F, 2), see `choose_factors`; None for one.
    """
    count = int(classes.max()) + 1
    targets = np.where(classes[:, None] == np.arange(count), 1.0, -1.0)

    def loss(scores: Array) -> float:
        return min(_cross_entropy(factor * scores, classes, weights) for factor in TEMPERATURES)

    def differentiable(scores: Tensor, factor: Tensor, rows: np.ndarray) -> Tensor:
        return _mean(cross_entropy(factor * scores, torch.from_numpy(classes[rows]), reduction="none"), weights, rows)

    factors = None if families is None else choose_factors(features, targets, families, differentiable)
    fit = fit_ridge(features, targets, loss, weights, factors)
    factor = min(TEMPERATURES, key=lambda factor: _cross_entropy(factor * fit.left_out, classes, weights))
    return fit._replace(weight=factor * fit.weight, bias=factor * fit.bias, left_out=factor * fit.left_out)


def lowers_cross_entropy(fit: RidgeFit, other: RidgeFit, classes: np.ndarray, weights: Array | None = None) -> bool:
    """Return whether the left-out cross-entropy of a fit is lower than that of another by `STANDARD_ERRORS` of the difference.

    The arguments are those of `fit_scores`, which has fitted both to the same examples.
    """
    gains = _losses(other.left_out, classes) - _losses(fit.left_out, classes)
    shares = np.full(len(gains), 1 / len(gains)) if weights is None else weights / weights.sum()
    mean = float(shares @ gains)
    return mean > STANDARD_ERRORS * math.sqrt(float(shares**2 @ (gains - mean) ** 2))


def fit_values(
    features: np.ndarray, targets: Array, weights: Array | None = None, families: np.ndarray | None = None
) -> RidgeFit:
    """Fit targets (n, K) by squared errors; the other arguments are those of `fit_scores`."""

    def loss(outputs: Array) -> float:
        return float(np.average(np.mean((outputs - targets) ** 2, axis=1), weights=weights))

    def differentiable(outputs: Tensor, _: Tensor, rows: np.ndarray) -> Tensor:
        return _mean(((outputs - torch.from_numpy(targets[rows])) ** 2).mean(1), weights, rows)

    factors = None if families is None else choose_factors(features, targets, families, differentiable)
    return fit_ridge(features, targets, loss, weights, factors)


def _mean(losses: Tensor, weights: Array | None, rows: np.ndarray) -> Tensor:
    """Return the mean of the losses of some examples, with their weights."""
    if weights is None:
        return losses.mean()
    own = torch.from_numpy(weights[rows])
    return (own * losses).sum() / own.sum()


def _cross_entropy(logits: Array, classes: np.ndarray, weights: Array | None) -> float:
    return float(np.average(_losses(logits, classes), weights=weights))


def _losses(logits: Array, classes: np.ndarray) -> Array:
    """Return the cross-entropy of each example, (n,)."""
    shifted = logits - logits.max(1, keepdims=True)
    return np.asarray(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(classes)), classes])
