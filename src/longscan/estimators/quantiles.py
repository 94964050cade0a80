"""Quantiles of forecasts: their loss, and their correction by the errors on windows that the model was not fitted to.

The correction is that of conformal prediction: a quantile q of the forecast of step k of a channel is shifted by the q-quantile
of the errors of that forecast on the windows that are held back. The fraction of later values below it is then about q for any
model, if their errors have the same distribution.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import norm, t
from torch import Tensor


class Calibration(NamedTuple):
    """Correction of quantiles: offsets (horizon, C, Q), and whether they are in units of each window's standard deviation.

    coverage: share of held-back values at most as large as each quantile (Q,), where each half of the windows is corrected by the
    errors on the other; NaN for less than two windows.
    """

    offsets: np.ndarray
    is_scaled: bool
    coverage: np.ndarray

    def apply(self, quantiles: np.ndarray, unit: np.ndarray) -> np.ndarray:
        """Return corrected quantiles (n, horizon, C, Q) that do not cross. unit: (n, C), standard deviations of the windows."""
        return _shift(quantiles, self.offsets, unit if self.is_scaled else np.ones_like(unit))


def pinball_loss(predicted: Tensor, true: Tensor, quantiles: Sequence[float]) -> Tensor:
    """Return the mean over the quantiles of the pinball loss. predicted: (..., Q); true: (...)."""
    levels = torch.stack([predicted.new_full((), level) for level in quantiles])  # a CUDA graph cannot copy them from the host
    error = true.unsqueeze(-1) - predicted
    return (levels * error).maximum((levels - 1) * error).mean()


def calibrate(
    predicted: np.ndarray,
    true: np.ndarray,
    unit: np.ndarray,
    quantiles: Sequence[float],
    second_half: np.ndarray,
    independent: np.ndarray,
) -> Calibration:
    """Return the correction of quantiles of windows that are held back.

    Errors are counted in units of each window's standard deviation if half of the windows, corrected by the other, then have a
    lower pinball loss.

    Args:
        predicted: (n, horizon, C, Q), quantiles of the model.
        true: (n, horizon, C), the values.
        unit: (n, C), standard deviations of the windows.
        quantiles: their Q probabilities.
        second_half: (n,) bool, the windows of the later half.
        independent: (horizon,), number of independent errors among the n of each step ahead, which overlap.
    """
    levels = np.asarray(quantiles)
    found = []
    for is_scaled in (False, True):
        units = unit if is_scaled else np.ones_like(unit)
        loss, covered = 0.0, np.zeros(len(levels))
        for chosen in (second_half, ~second_half):
            if not chosen.any() or chosen.all():
                offsets = _offsets(predicted, true, np.ones_like(unit), levels, independent)
                return Calibration(offsets, False, np.full(len(levels), np.nan))
            share = float((~chosen).mean())
            offsets = _offsets(predicted[~chosen], true[~chosen], units[~chosen], levels, share * independent)
            error = true[chosen][..., None] - _shift(predicted[chosen], offsets, units[chosen])
            loss += float(np.maximum(levels * error, (levels - 1) * error).sum())
            covered += (error <= 0).sum((0, 1, 2))
        found.append((loss, is_scaled, covered / true.size))
    _, is_scaled, coverage = min(found, key=lambda one: one[0])
    units = unit if is_scaled else np.ones_like(unit)
    return Calibration(_offsets(predicted, true, units, levels, independent), is_scaled, coverage)


def _offsets(
    predicted: np.ndarray, true: np.ndarray, unit: np.ndarray, levels: np.ndarray, independent: np.ndarray
) -> np.ndarray:
    """Return the quantiles (horizon, C, Q) of the errors, one for each probability, wider for few independent errors.

    The scale of a distribution is uncertain if it is estimated from few errors. For the next of n normal numbers, whose standard
    deviation is estimated from these, the quantile of Student's t distribution replaces that of the normal distribution. Offsets
    are moved away from the median by the difference of the two, times the root mean square error.
    """
    error = (true[..., None] - predicted) / unit[:, None, :, None]
    # With n errors the k-th smallest is the quantile k / (n + 1): as probable a bound for one more error.
    offsets = np.stack([np.quantile(error[..., k], level, 0, method="weibull") for k, level in enumerate(levels)], -1)
    count = np.maximum(independent, 1)[:, None]
    wider = t.ppf(levels, count) * np.sqrt(1 + 1 / count) - norm.ppf(levels)
    middle = np.abs(levels - 0.5).argmin()
    deviation = np.sqrt(np.square(error[..., middle]).mean(0))
    return np.asarray(offsets + wider[:, None] * deviation[..., None])


def _shift(predicted: np.ndarray, offsets: np.ndarray, unit: np.ndarray) -> np.ndarray:
    return np.asarray(np.sort(predicted + offsets * unit[:, None, :, None], -1))
