"""Features of series without training: outputs of two layers of random S4D systems, summarised over time.

    u = standardised channels and their differences from step to step           (L, 2 C)
    y = S4D(u P)        P, eigenvalues and readout of the systems are random     (L, outputs)
    h = relu((y' - mean) / deviation)        y': the first `hidden` columns of y
    z = S4D(h Q)        a second layer of systems with random parameters         (L, outputs / 2)

A feature is a number for each column of y and z: shares of steps above thresholds, the mean, the largest value, and the mean
position of the steps above a threshold. Thresholds are quantiles of the outputs for the series of the fit. A step counts by a
ramp from 0 to 1 around the threshold, `RAMP` deviations wide, so that rounding errors do not change features.

The time constants of the systems are log-uniform from `SHORTEST` steps to `LONGEST` times the length of the series, the
frequencies are uniform up to `CYCLES` half turns in a time constant, so that impulse responses are damped waves of all durations
and few cycles. Half of the systems read the series from its end to its start.
"""

import math
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from longscan.estimators.ridge import RidgeFit
from longscan.estimators.series import StandardisedSeries
from longscan.layers import S4D

GROUP = 64  # outputs that are computed together
HIDDEN = 128  # outputs of the first layer that the second reads
PAIRS = 2  # conjugate pairs of eigenvalues of a system
THRESHOLDS = 3
SHORTEST, LONGEST, CYCLES = 2.0, 2.0, 2.0
MIXED = 8  # columns at most that a system reads
RAMP = 0.05
OUTPUTS = 768  # of the first layer
FEWEST_OUTPUTS = 64
WORK = 4.6e8  # steps of all series times outputs from which outputs are fewer; two minutes on one thread
MANY_SERIES, THEIR_OUTPUTS = 3000, 320  # the cost of the regression grows with the cube of the smaller of series and features
STEPS_AT_ONCE = 8192  # of the series of a batch
CALIBRATION_STEPS = 32768
LARGEST_FEATURE = 20.0  # deviations from the mean; one that is nearly constant in the fit can be thousands elsewhere


class _Systems(nn.Module):
    """A group of single-input systems that read random mixtures of the columns of a series, forwards or backwards in time."""

    mixture: Tensor
    slope: Tensor
    offsets: Tensor

    def __init__(self, mixture: np.ndarray, length: int, reverse: bool, random: np.random.RandomState) -> None:
        super().__init__()
        count = mixture.shape[1]
        self.reverse = reverse
        self.layer = S4D(count, d_state=2 * PAIRS)
        time_constants = np.exp(random.uniform(np.log(SHORTEST), np.log(max(2 * SHORTEST, LONGEST * length)), count))
        spread = np.exp(random.uniform(-0.5, 0.5, (count, PAIRS)))
        angles = random.uniform(0, CYCLES * np.pi, (count, PAIRS))
        readout = random.standard_normal((count, PAIRS, 2))
        steps = np.minimum(angles / time_constants[:, None], np.pi) * time_constants[:, None]
        with torch.no_grad():
            self.layer.log_dt.copy_(torch.from_numpy(-np.log(time_constants)))
            self.layer.A_log.copy_(torch.from_numpy(np.log(spread)))
            self.layer.A_imag.copy_(torch.from_numpy(steps))
            self.layer.C.copy_(torch.from_numpy(readout))
            self.layer.D.zero_()
        self.register_buffer("mixture", torch.from_numpy(mixture.astype(np.float32)))
        self.register_buffer("slope", torch.ones(count))
        self.register_buffer("offsets", torch.zeros(THRESHOLDS, count))

    def forward(self, u: Tensor, valid: Tensor | None, elapsed: Tensor | None) -> Tensor:
        """Return the outputs (n, L, count) for columns u (n, L, columns)."""
        u = u @ self.mixture
        if not self.reverse:
            return cast("Tensor", self.layer(u, valid=valid, elapsed=elapsed))
        if elapsed is not None:  # the time to the following step, 1 at the last step
            elapsed = elapsed if valid is None else elapsed.where(valid, 1.0)
            elapsed = torch.cat([torch.ones_like(elapsed[:, :1]), elapsed[:, 1:].flip(1)], 1)
        y = self.layer(u.flip(1), valid=None if valid is None else valid.flip(1), elapsed=elapsed)
        return cast("Tensor", y.flip(1))

    def calibrate(self, values: Tensor, random: np.random.RandomState) -> None:
        """Choose the thresholds. values: (steps, count), outputs."""
        ordered = values.sort(0).values
        ranks = torch.from_numpy(random.uniform(size=(THRESHOLDS, values.shape[1]))) * (len(ordered) - 1)
        thresholds = ordered.gather(0, ranks.long().to(values.device))
        self.slope.copy_(1 / (RAMP * values.std(0, correction=0).clamp_min(1e-6)))
        self.offsets.copy_(0.5 - thresholds * self.slope)

    def summarise(self, y: Tensor, weights: Tensor, positions: Tensor, valid: Tensor | None) -> Tensor:
        """Return the features (n, (THRESHOLDS + 3) count) of outputs y (n, L, count).

        weights: (n, L), 1 / length, 0 in the padding. positions: (n, L), of the steps, from 0 to 1.
        """
        both = torch.stack([weights, weights * positions], 1)
        scaled = y * self.slope
        moments = both @ (scaled + self.offsets[0]).clamp(0, 1)
        share, position = moments[:, 0], moments[:, 1]
        features = [share, (position + 0.005) / (share + 0.01)]
        for offset in self.offsets[1:]:
            features.append((weights[:, None] @ (scaled + offset).clamp(0, 1))[:, 0])
        features.append((weights[:, None] @ y)[:, 0])
        features.append((y if valid is None else y.masked_fill(~valid[..., None], -math.inf)).amax(1))
        return torch.cat(features, 1)


class StateFeatures(nn.Module):
    """Features of series: see the top of the file.

    Args:
        channels: number of channels, C.
        length: of the longest series.
        outputs: number of systems of the first layer; the second has half as many.
        random: generator of the parameters.

    `calibrate` must be called before `forward`.
    """

    difference_scale: Tensor
    hidden_mean: Tensor
    hidden_scale: Tensor

    def __init__(self, channels: int, length: int, outputs: int, random: np.random.RandomState) -> None:
        super().__init__()
        self.channels, self.outputs = channels, outputs
        hidden = min(HIDDEN, outputs)
        self.register_buffer("difference_scale", torch.ones(channels))
        self.register_buffer("hidden_mean", torch.zeros(hidden))
        self.register_buffer("hidden_scale", torch.ones(hidden))

        def systems(total: int, columns: Callable[[], np.ndarray]) -> nn.ModuleList:
            groups = nn.ModuleList()
            for number, first in enumerate(range(0, total, GROUP)):
                mixture = np.stack([columns() for _ in range(min(GROUP, total - first))], 1)
                groups.append(_Systems(mixture, length, bool(number % 2), random))
            return groups

        def of_channels() -> np.ndarray:
            column = _mixture(channels, random)
            nothing = np.zeros(channels)
            return np.concatenate([column, nothing] if random.uniform() < 0.5 else [nothing, column])

        self.first = systems(outputs, of_channels)
        self.second = systems(outputs // 2, lambda: _mixture(hidden, random))

    @property
    def n_features(self) -> int:
        """Number of features."""
        return sum((THRESHOLDS + 3) * group.mixture.shape[1] for group in self._groups())

    def _groups(self) -> list[_Systems]:
        return cast("list[_Systems]", [*self.first, *self.second])

    def forward(self, inputs: Tensor, valid: Tensor | None = None, elapsed: Tensor | None = None) -> Tensor:
        """Return the features (n, n_features) of series inputs (n, L, C). valid: (n, L) bool, padding on the right."""
        lengths = inputs.new_full((len(inputs), 1), inputs.shape[1]) if valid is None else valid.sum(1, keepdim=True).to(inputs)
        steps = torch.arange(inputs.shape[1], device=inputs.device).to(inputs)
        weights = (steps < lengths).to(inputs) / lengths
        positions = (steps + 0.5) / lengths
        found = [group.summarise(y, weights, positions, valid) for group, y in self._outputs(inputs, valid, elapsed)]
        return torch.cat(found, 1)

    @torch.no_grad()
    def calibrate(self, inputs: Tensor, valid: Tensor | None, elapsed: Tensor | None, random: np.random.RandomState) -> None:
        """Choose scales and thresholds by the outputs for some of the series of a fit; the arguments are those of `forward`."""
        steps = torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device) if valid is None else valid
        self.difference_scale.copy_(_deviation(self._differences(inputs, valid)[steps]))
        for group, y in self._outputs(inputs, valid, elapsed, calibrating=True):
            group.calibrate(y[steps], random)

    def _outputs(
        self, inputs: Tensor, valid: Tensor | None, elapsed: Tensor | None, calibrating: bool = False
    ) -> Iterator[tuple[_Systems, Tensor]]:
        """Yield each group of systems and its outputs (n, L, count). calibrating: choose mean and scale of the hidden ones."""
        u = torch.cat([inputs, self._differences(inputs, valid) / self.difference_scale], 2)
        hidden: list[Tensor] = []
        for group in cast("list[_Systems]", list(self.first)):
            y = group(u, valid, elapsed)
            if len(hidden) * GROUP < len(self.hidden_mean):
                hidden.append(y)
            yield group, y
        y = torch.cat(hidden, 2)[..., : len(self.hidden_mean)]
        if calibrating:
            values = y.flatten(0, 1) if valid is None else y[valid]
            self.hidden_mean.copy_(values.mean(0))
            self.hidden_scale.copy_(_deviation(values))
        h = ((y - self.hidden_mean) / self.hidden_scale).clamp(0, 3)
        if valid is not None:
            h = h * valid[..., None]
        for group in cast("list[_Systems]", list(self.second)):
            yield group, group(h, valid, elapsed)

    @staticmethod
    def _differences(inputs: Tensor, valid: Tensor | None) -> Tensor:
        """Return the change of each channel since the previous step, 0 at the first and in the padding."""
        changes = torch.cat([torch.zeros_like(inputs[:, :1]), inputs.diff(dim=1)], 1)
        return changes if valid is None else changes * valid[..., None]


class FeatureModel(nn.Module):
    """A linear map of standardised `StateFeatures`, which are limited to `LARGEST_FEATURE` on both sides of 0.

    Args:
        channels, outputs: of the features.
        d_output: number of outputs of the map.

    Attributes:
        config: the arguments.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, *, channels: int, outputs: int, d_output: int) -> None:
        super().__init__()
        self.config = {"channels": channels, "outputs": outputs, "d_output": d_output}
        self.features = StateFeatures(channels, 1, outputs, np.random.RandomState(0))
        size = self.features.n_features
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))
        self.head = nn.Linear(size, d_output)

    @classmethod
    def from_regression(cls, features: StateFeatures, fit: RidgeFit) -> Self:
        """Return the model of a regression from features; it contains `features`."""
        model = cls(channels=features.channels, outputs=features.outputs, d_output=len(fit.bias))
        model.features = features
        with torch.no_grad():
            model.mean.copy_(torch.from_numpy(fit.mean))
            model.scale.copy_(torch.from_numpy(fit.scale))
            model.head.weight.copy_(torch.from_numpy(fit.weight))
            model.head.bias.copy_(torch.from_numpy(fit.bias))
        return model

    def forward(self, inputs: Tensor, valid: Tensor | None = None, elapsed: Tensor | None = None) -> Tensor:
        """Return the outputs (n, d_output) for series inputs (n, L, C), see `StateFeatures.forward`."""
        features = (self.features(inputs, valid, elapsed) - self.mean) * self.scale
        return cast("Tensor", self.head(features.clamp(-LARGEST_FEATURE, LARGEST_FEATURE)))


def choose_outputs(count: int, length: int) -> int:
    """Return the number of outputs for `count` series of at most `length` steps."""
    outputs = min(OUTPUTS, int(WORK / (count * length)), OUTPUTS if count <= MANY_SERIES else THEIR_OUTPUTS)
    return max(FEWEST_OUTPUTS, outputs)


def calibrated_features(
    series: StandardisedSeries, device: torch.device, random: np.random.RandomState, seconds: float | None = None
) -> StateFeatures:
    """Return features for series, with scales and thresholds from some of them.

    seconds: time in which the features of all series are to be computed. None: no limit, and a result that does not depend on the
    speed.
    """
    count, length, channels = series.values.shape
    outputs = choose_outputs(count, length)
    rows = np.sort(random.permutation(count)[: max(2, CALIBRATION_STEPS // length)])
    seed = int(random.randint(2**31 - 1))
    while True:
        own = np.random.RandomState(seed)
        start = monotonic()
        features = StateFeatures(channels, length, outputs, own).to(device)
        features.calibrate(*series.batch(rows, device), own)
        expected = (monotonic() - start) * (1 + count / len(rows))
        if seconds is None or expected <= seconds or outputs == FEWEST_OUTPUTS:
            return features
        seconds -= monotonic() - start
        outputs = max(FEWEST_OUTPUTS, min(outputs // 2, int(0.8 * outputs * seconds / expected)))


def rows_at_once(length: int) -> int:
    """Return the number of series of `length` steps for which features are computed together."""
    return max(1, STEPS_AT_ONCE // length)


def _mixture(columns: int, random: np.random.RandomState) -> np.ndarray:
    """Return random weights (columns,), of which few are not 0: their number is log-uniform up to `MIXED`."""
    largest = min(columns, MIXED)
    count = min(largest, int((largest + 1) ** random.uniform()))
    weights = np.zeros(columns)
    weights[random.choice(columns, count, replace=False)] = random.standard_normal(count)
    return weights


def _deviation(values: Tensor) -> Tensor:
    """Return the standard deviation of each column of (steps, columns); 1 for a constant one."""
    deviation = values.std(0, correction=0)
    return deviation.where(deviation > 1e-6, 1.0)
