"""The linear effect of covariates on a series by generalised least squares.

The effect of covariates x on a series y is a regression whose errors are themselves a series:

    y_t = x_t w + r_t.

Least squares of y on x would take a common trend or season for an effect, since neighbouring errors r are alike. The weights w
are therefore those of generalised least squares: an autoregression of r turns both sides into series whose errors are nearly
independent, and these are regressed on each other (Cochrane and Orcutt, 1949, with more than one lag).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

LAGS = 24  # largest number of lags of the autoregression
ROUNDS = 2  # number of alternations between autoregression and regression
COVARIANCE_RIDGE = 1e-6  # added to the variance of the errors, so that the autoregression is stable
SMALLEST_SINGULAR = 1e-8  # relative to the largest, below which combinations of covariates count as zero

Array = np.ndarray[Any, np.dtype[np.float64]]


def generalised_least_squares(y: Sequence[Array], x: Sequence[Array]) -> Array:
    """Return weights (K,) of x (L_i, K) for y (L_i,), whose errors are an autoregression."""
    from scipy.signal import lfilter  # here, since importing the tasks must not need SciPy

    weight = _least_squares(y, x)
    order = min(LAGS, max(map(len, y)) // 4)
    for _ in range(ROUNDS if order else 0):
        predictor = _autoregression([values - of @ weight for values, of in zip(y, x, strict=True)], order)
        whitening = np.append(1.0, -predictor)
        long = [row for row, values in enumerate(y) if len(values) > order]
        weight = _least_squares(*([lfilter(whitening, 1.0, part[row], axis=0)[order:] for row in long] for part in (y, x)))
    return weight


def _least_squares(y: Sequence[Array], x: Sequence[Array]) -> Array:
    """Return weights (K,) for series that have separate means; of weights that fit equally well, the smallest."""
    targets, features = (np.concatenate([values - values.mean(0) for values in part]) for part in (y, x))
    weights: Array = np.linalg.lstsq(features, targets, rcond=SMALLEST_SINGULAR)[0]
    return weights


def _autoregression(series: Sequence[Array], order: int) -> Array:
    """Return the coefficients (order,) of an autoregression of series (L_i,), by the Yule-Walker equations."""
    centred = [values - values.mean() for values in series]
    # A series of no more than `lag` steps has no products of that lag.
    products = [[values[lag:] @ values[: max(0, len(values) - lag)] for lag in range(order + 1)] for values in centred]
    covariance = np.sum(products, axis=0)
    if not covariance[0] > 0:
        return np.zeros(order)
    from scipy.linalg import solve_toeplitz

    column = covariance[:-1].copy()
    column[0] *= 1 + COVARIANCE_RIDGE
    coefficients: Array = solve_toeplitz(column, covariance[1:])
    return coefficients
