"""Features of series without training: outputs of random diagonal state space systems, summarised over time.

A group of systems has the states

    x_k = exp(lambda tau_k) x_{k-1} + (1 - |exp(lambda tau_k)|) (P u_k)          complex, one eigenvalue lambda for each state

of columns u_k: the standardised channels and their differences from step to step, or, in the second layer, some outputs of the
first, limited to 0 to 3. tau_k is 1 or, in every second group of a layer, the time since the step before, where it is known.
The outputs are y_k = Re(C x_k). Each output reads few states, and each state reads few columns, with random weights. The time
constants of a group are log-uniform between two bounds. Together the groups cover the time constants from
`SHORTEST_TIME_CONSTANT` steps to `LONGEST_PER_LENGTH` times the length of the series, at most `LONGEST_TIME_CONSTANT` steps. Half
of the states read the series from its end. The first group of a layer has no memory: there x_k = P u_k.

The features of an output, with shares of steps above a threshold, which are `THRESHOLDS` random quantiles of the outputs for the
series of the fit:

- distribution: the shares, and the deviation of the output;
- intervals: for the first threshold, the shares in the halves, quarters and eighths of the series;
- extremes: the largest and the smallest output;
- means: the mean of the output;
- part means: the means in the halves, quarters and eighths;
- ends: the outputs at the first and at the last step.

The last three kinds are linear in the outputs. Regressions use them, classifiers the first three.

Classifiers have further features where these lower the leave-one-out error beyond chance: the standardised channels themselves,
as means over equal parts of a series, each step of a series of up to `MOST_VALUES` steps. They find classes that depend on a
linear function of all steps, or on one of them.

Groups with long time constants are summarised at every k-th step, with `SAMPLES_PER_TIME_CONSTANT` of these steps in the
shortest time constant of the group.
The weight of a step in a share rises linearly from 0 to 1 around the threshold, over `RAMP` standard deviations, so that rounding
errors do not change features.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from time import monotonic
from typing import Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from longscan.estimators.ridge import RidgeFit, regression_seconds
from longscan.estimators.series import StandardisedSeries
from longscan.ops.linear_scan import linear_scan

FIRST_LAYER_GROUPS, SECOND_LAYER_GROUPS = 8, 4  # the first group of each layer has no memory
STATES_PER_GROUP = 16
THRESHOLDS = 6
TAIL = 0.002  # smallest share of steps above or below a threshold in the tails of the outputs
INTERVALS = (2, 4, 8)
SHORTEST_TIME_CONSTANT, LONGEST_TIME_CONSTANT = 0.5, 600.0  # steps
LONGEST_PER_LENGTH = 2.0  # longest time constant divided by the length of the series
MAX_HALF_TURNS = 2.0  # largest angle by which a state rotates in its time constant, in units of pi
MAX_FAN_IN = 8  # largest number of columns that a state reads, and of states that an output reads
RAMP = 0.05  # width of the transition at a threshold, in standard deviations
SAMPLES_PER_TIME_CONSTANT = 4.0  # number of outputs in the shortest time constant of a group
MAX_OUTPUTS = 640  # largest number of outputs of the first layer
FEWEST_SERIES = 300  # smallest number of series of a fit in a limited time
MIN_OUTPUTS = 64  # smallest number of outputs without a time limit; with one it is the number of groups
HIDDEN_OUTPUTS = 8  # number of outputs of each group of the first layer that the second layer reads
MAX_WORK = 4e9  # steps of all series times outputs; where `MAX_OUTPUTS` would exceed it, there are fewer outputs
# With more series than this there are at most so many outputs: the cost of the regression grows with the cube of the number of
# series or features, whichever is smaller.
MANY_SERIES, MANY_SERIES_OUTPUTS = 3000, 96
STEPS_AT_ONCE = 8192  # number of steps of the series of a batch
# Number of steps of the series from which thresholds are chosen: of all together, and of each at most.
CALIBRATION_STEPS, CALIBRATION_LENGTH = 8192, 1024
MOST_VALUES = 512  # largest number of values of a channel that are features themselves
VALUES_PER_OUTPUT = 8  # largest number of values of all channels for each output, so that the other features are more
LARGEST_FEATURE = 5.0  # in standard deviations; a feature that is nearly constant in the fit can be thousands elsewhere
SHAPE_KINDS = ("distribution", "intervals", "extremes")
LINEAR_KINDS = ("means", "part means", "ends")
KINDS = (*SHAPE_KINDS, *LINEAR_KINDS)


class _Group(nn.Module):
    """States with time constants in one range, and outputs that read them.

    Args:
        columns: function that returns the random weights (columns,) with which one state reads the columns.
        bounds: smallest and largest time constant, in steps; None for states without memory.
        outputs: number of outputs.
        random: generator of the parameters.
    """

    mixture: Tensor
    eigenvalues: Tensor
    readout: Tensor
    bias: Tensor
    thresholds: Tensor

    def __init__(
        self,
        columns: Callable[[], np.ndarray],
        bounds: tuple[float, float] | None,
        outputs: int,
        random: np.random.RandomState,
    ) -> None:
        super().__init__()
        self.has_memory = bounds is not None
        shortest, longest = bounds or (1.0, 1.0)
        self.stride = max(1, int(shortest / SAMPLES_PER_TIME_CONSTANT))
        time_constants = np.exp(random.uniform(np.log(shortest), np.log(longest), STATES_PER_GROUP))
        angles = random.uniform(0, 1, STATES_PER_GROUP) * np.minimum(MAX_HALF_TURNS * np.pi / time_constants, np.pi)
        readout = np.stack([_mixture(STATES_PER_GROUP, random) for _ in range(outputs)], 1)
        parts = 2 if self.has_memory else 1
        readout = readout[:, None] * random.standard_normal((STATES_PER_GROUP, parts, outputs))

        def register(name: str, values: np.ndarray) -> None:
            self.register_buffer(name, torch.from_numpy(values.astype(np.float32)))

        register("mixture", np.stack([columns() for _ in range(STATES_PER_GROUP)], 1))
        register("eigenvalues", np.stack([-1 / time_constants, angles], 1))
        register("readout", readout.reshape(parts * STATES_PER_GROUP, outputs))
        register("bias", np.zeros(outputs))
        register("thresholds", np.zeros((THRESHOLDS, outputs)))

    def forward(self, u: Tensor, elapsed: Tensor | None, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the outputs (outputs, n, l) at every `stride`-th step, and `HIDDEN_OUTPUTS` of them at all steps.

        Args:
            u: the columns that the states read, (n, L, columns).
            out: buffer, as large as the outputs at all steps, into which the first result is written; None for a new
                tensor.
        """
        x = self._states(u, elapsed)
        few = x[:, :: self.stride]
        written = _part_of(out, len(self.bias), few.shape[0] * few.shape[1])
        y = torch.addmm(self.bias[:, None], self.readout.T, few.flatten(0, 1).T, out=written).view(-1, *few.shape[:2])
        if few.shape == x.shape:
            return y, y[:HIDDEN_OUTPUTS]
        hidden = torch.addmm(self.bias[:HIDDEN_OUTPUTS, None], self.readout[:, :HIDDEN_OUTPUTS].T, x.flatten(0, 1).T)
        return y, hidden.view(-1, *x.shape[:2])

    def _states(self, u: Tensor, elapsed: Tensor | None) -> Tensor:
        """Return the real numbers of the states, (n, L, STATES_PER_GROUP) or (n, L, 2 STATES_PER_GROUP)."""
        driven = u @ self.mixture
        if not self.has_memory:
            return driven
        parts = []
        for reverse, own in ((False, slice(STATES_PER_GROUP // 2)), (True, slice(STATES_PER_GROUP // 2, None))):
            decay, angle = self.eigenvalues[own].unbind(1)
            if elapsed is not None:
                times = torch.cat([elapsed[:, 1:], torch.ones_like(elapsed[:, :1])], 1) if reverse else elapsed
                decay, angle = times[..., None] * decay, times[..., None] * angle
            size = decay.exp()
            factor = torch.stack([size * angle.cos(), size * angle.sin()], -1)
            drive = driven[..., own] * (1 - size)
            drive = torch.stack([drive, torch.zeros_like(drive)], -1)
            parts.append(linear_scan(factor, drive, pairs=True, reverse=reverse)[0])
        return torch.cat(parts, 2).flatten(2)

    def calibrate(self, u: Tensor, steps: Tensor, elapsed: Tensor | None, random: np.random.RandomState) -> None:
        """Choose scales and thresholds from the columns u of some series. steps: (n, L) bool, False at padding."""
        x = self._states(u, elapsed)[steps]
        self.readout.mul_(1 / _deviation(x)[:, None])
        y = (x @ self.readout).T
        scale = 1 / _deviation(y.T)
        self.readout.mul_(scale)
        self.bias.copy_(-y.mean(1) * scale)
        ordered = y.mul_(scale[:, None]).add_(self.bias[:, None]).cpu().numpy()
        ordered.sort(1)
        ranks = random.uniform(size=self.thresholds.shape)
        tails = np.exp(np.log(TAIL) + ranks * np.log(0.5 / TAIL))
        tails = np.where(random.uniform(size=tails.shape) < 0.5, tails, 1 - tails)
        ranks = np.concatenate([ranks[: THRESHOLDS // 2], tails[THRESHOLDS // 2 :]])
        chosen = np.take_along_axis(ordered, (ranks * (ordered.shape[1] - 1)).astype(np.int64).T, 1)
        self.thresholds.copy_(torch.from_numpy(chosen.T.copy()))

    def summarise(
        self,
        y: Tensor,
        weights: Tensor,
        padding: Tensor | None,
        kinds: Sequence[str] = KINDS,
        buffer: Tensor | None = None,
    ) -> list[Tensor]:
        """Return the features of each kind, (n, F), of outputs y (outputs, n, L).

        weights: (n, 1 + sum(INTERVALS), L), of the steps in the mean over the series and in those over its parts. padding: (n, L)
        bool, None without. kinds: `SHAPE_KINDS`, `LINEAR_KINDS` or both. buffer: as large as y, for intermediate values.
        """
        shapes = self._shapes(y, weights, padding, buffer) if SHAPE_KINDS[0] in kinds else []
        return [*shapes, *(_linear_summary(y, weights, padding) if LINEAR_KINDS[0] in kinds else [])]

    def _shapes(self, y: Tensor, weights: Tensor, padding: Tensor | None, buffer: Tensor | None) -> list[Tensor]:
        """Return the features of `SHAPE_KINDS`."""
        buffer = _part_of(buffer, *y.shape)

        def mean(values: Tensor) -> Tensor:  # (n, outputs)
            if padding is None:
                return values.mean(2).T
            return (weights[:, :1] @ values.permute(1, 2, 0))[:, 0]

        def above(threshold: Tensor) -> Tensor:
            return torch.add(0.5 - threshold[:, None, None] / RAMP, y, alpha=1 / RAMP, out=buffer).clamp_(0, 1)

        first = weights @ above(self.thresholds[0]).permute(1, 2, 0)  # (n, 1 + sum(INTERVALS), outputs)
        shares = [first[:, 0], *(mean(above(threshold)) for threshold in self.thresholds[1:])]
        difference = torch.sub(y, mean(y).T[..., None], out=buffer)
        variance = mean(torch.mul(difference, difference, out=buffer))
        deviation = variance.clamp_min(1e-30).sqrt()  # the gradient of a square root of 0 would be infinite
        largest = y if padding is None else y.masked_fill(padding, -math.inf)
        smallest = y if padding is None else y.masked_fill(padding, math.inf)
        extremes = [largest.amax(2).T, smallest.amin(2).T]
        return [torch.cat([*shares, deviation], 1), first[:, 1:].flatten(1), torch.cat(extremes, 1)]


def _linear_summary(y: Tensor, weights: Tensor, padding: Tensor | None) -> list[Tensor]:
    """Return the features of `LINEAR_KINDS`; the arguments are those of `_Group.summarise`."""
    means = weights @ y.permute(1, 2, 0)  # (n, 1 + sum(INTERVALS), outputs)
    if padding is None:
        last = y[:, :, -1].T
    else:
        at = (~padding).sum(1) - 1
        last = y.permute(1, 2, 0).take_along_dim(at[:, None, None], 1)[:, 0]
    return [means[:, 0], means[:, 1:].flatten(1), torch.cat([y[:, :, 0].T, last], 1)]


class StateFeatures(nn.Module):
    """Features of series: see the top of the file.

    Args:
        channels: number of channels, C.
        length: of the longest series.
        outputs: number of outputs of the first layer; the second has half as many.
        random: generator of the parameters.
        kinds: `SHAPE_KINDS`, `LINEAR_KINDS` or both.
        values: number of values of each channel that are features as well, means over as many equal parts of a series.

    Attributes:
        families: (n_features, 2), for each feature the index of its group and of its kind in `kinds`. Values of channels have a
            separate group and kind, with the next indices.

    `calibrate` must be called before `forward`.
    """

    difference_scale: Tensor

    def __init__(
        self,
        channels: int,
        length: int,
        outputs: int,
        random: np.random.RandomState,
        kinds: Sequence[str] = SHAPE_KINDS,
        values: int = 0,
    ) -> None:
        super().__init__()
        self.channels, self.length, self.outputs, self.values = channels, length, outputs, values
        self.register_buffer("difference_scale", torch.ones(channels))
        each = outputs // FIRST_LAYER_GROUPS
        hidden = min(HIDDEN_OUTPUTS, each)

        def of_channels() -> np.ndarray:
            column = _mixture(channels, random)
            nothing = np.zeros(channels)
            return np.concatenate([column, nothing] if random.uniform() < 0.5 else [nothing, column])

        def groups(count: int, columns: Callable[[], np.ndarray]) -> nn.ModuleList:
            bounds = np.geomspace(
                SHORTEST_TIME_CONSTANT,
                min(LONGEST_TIME_CONSTANT, max(4 * SHORTEST_TIME_CONSTANT, LONGEST_PER_LENGTH * length)),
                max(1, count),
            )
            ranges = [None, *pairwise(bounds)][:count]
            return nn.ModuleList(_Group(columns, bounds, each, random) for bounds in ranges)

        self.first = groups(FIRST_LAYER_GROUPS, of_channels)
        self.second = groups(SECOND_LAYER_GROUPS, lambda: _mixture(FIRST_LAYER_GROUPS * hidden, random))
        self.select(kinds)

    def select(self, kinds: Sequence[str]) -> None:
        """Set the kinds of the features."""
        parts = sum(INTERVALS)
        per_output = (THRESHOLDS + 1, parts, 2, 1, parts, 2)
        self.kinds = tuple(kinds)
        sizes = [per_output[KINDS.index(kind)] * (self.outputs // FIRST_LAYER_GROUPS) for kind in self.kinds]
        numbers = np.tile(np.repeat(np.arange(len(sizes)), sizes), FIRST_LAYER_GROUPS + SECOND_LAYER_GROUPS)
        of_outputs = np.stack([np.repeat(np.arange(FIRST_LAYER_GROUPS + SECOND_LAYER_GROUPS), sum(sizes)), numbers], 1)
        of_values = np.tile([FIRST_LAYER_GROUPS + SECOND_LAYER_GROUPS, len(sizes)], (self.values * self.channels, 1))
        self.families = np.concatenate([of_outputs, of_values])

    def leave_out_values(self) -> None:
        """Leave out the features that are values of the channels."""
        self.values = 0
        self.select(self.kinds)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.families)

    def forward(self, inputs: Tensor, valid: Tensor | None = None, elapsed: Tensor | None = None) -> Tensor:
        """Return the features (n, n_features) of series inputs (n, L, C). valid: (n, L) bool, padding on the right."""
        padding = None if valid is None else ~valid
        weights: dict[int, Tensor] = {}
        buffers: tuple[Tensor | None, Tensor | None] = (None, None)
        if not (torch.is_grad_enabled() and inputs.requires_grad):  # allocating new tensors takes longer than the computation
            of_outputs, of_values = inputs.new_empty(2, self.outputs // FIRST_LAYER_GROUPS, *inputs.shape[:2])
            buffers = of_outputs, of_values
        found: list[Tensor] = []
        for group, y in self._outputs(inputs, valid, elapsed, out=buffers[0]):
            stride = group.stride
            if stride not in weights:
                weights[stride] = _part_weights(inputs, valid, stride)
            known = None if padding is None else padding[:, ::stride]
            found += group.summarise(y, weights[stride], known, self.kinds, buffers[1])
        if self.values:
            found.append(_part_means(inputs, valid, self.values).flatten(1))
        return torch.cat(found, 1)

    @torch.no_grad()
    def calibrate(self, inputs: Tensor, valid: Tensor | None, elapsed: Tensor | None, random: np.random.RandomState) -> None:
        """Choose scales and thresholds from the outputs for some of the series of a fit; arguments are those of `forward`."""
        steps = torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device) if valid is None else valid
        self.difference_scale.copy_(_deviation(self._differences(inputs, valid)[steps]))
        for _ in self._outputs(inputs, valid, elapsed, lambda group, u, times: group.calibrate(u, steps, times, random)):
            pass

    def _outputs(
        self,
        inputs: Tensor,
        valid: Tensor | None,
        elapsed: Tensor | None,
        prepare: Callable[[_Group, Tensor, Tensor | None], None] | None = None,
        out: Tensor | None = None,
    ) -> Iterator[tuple[_Group, Tensor]]:
        """Yield each group of systems and its outputs (outputs, n, l), l steps of L.

        prepare: function of a group, its columns and its elapsed times, called before the group runs. out: buffer for the outputs
        of a group, which the next group overwrites.
        """
        if valid is not None:
            inputs = inputs.where(valid[..., None], 0.0)
            elapsed = None if elapsed is None else elapsed.where(valid, 1.0)
        u = torch.cat([inputs, self._differences(inputs, valid) / self.difference_scale], 2)
        hidden: list[Tensor] = []

        def run(groups: nn.ModuleList, u: Tensor) -> Iterator[tuple[_Group, Tensor, Tensor]]:
            for number, group in enumerate(cast("list[_Group]", list(groups))):
                times = elapsed if number % 2 else None
                if prepare is not None:
                    prepare(group, u, times)
                yield group, *group(u, times, out)

        for group, y, some in run(self.first, u):
            hidden.append(some.clamp(0, 3))
            yield group, y
        u = torch.cat(hidden).permute(1, 2, 0).contiguous()
        if valid is not None:
            u *= valid[..., None]
        for group, y, _ in run(self.second, u):
            yield group, y

    @staticmethod
    def _differences(inputs: Tensor, valid: Tensor | None) -> Tensor:
        """Return the change of each channel since the previous step, 0 at the first and in the padding."""
        changes = torch.cat([torch.zeros_like(inputs[:, :1]), inputs.diff(dim=1)], 1)
        return changes if valid is None else changes * valid[..., None]


class FeatureModel(nn.Module):
    """A linear map of standardised `StateFeatures`, which are clipped to +-`LARGEST_FEATURE`.

    Args:
        channels, length, outputs, kinds, values: of the features.
        d_output: number of outputs of the map.

    Attributes:
        config: the arguments.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, *, channels: int, length: int, outputs: int, kinds: Sequence[str], d_output: int, values: int = 0) -> None:
        super().__init__()
        self.config = {
            "channels": channels,
            "length": length,
            "outputs": outputs,
            "kinds": list(kinds),
            "values": values,
            "d_output": d_output,
        }
        self.features = StateFeatures(channels, length, outputs, np.random.RandomState(0), kinds, values)
        size = self.features.n_features
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))
        # First on "meta", which draws no numbers from torch's random generator: all threads have the same one.
        self.head = nn.Linear(size, d_output, device="meta").to_empty(device="cpu")
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @classmethod
    def from_regression(cls, features: StateFeatures, fit: RidgeFit) -> Self:
        """Return a model that computes `features` and applies a ridge regression that was fitted to them."""
        model = cls(
            channels=features.channels,
            length=features.length,
            outputs=features.outputs,
            kinds=features.kinds,
            values=features.values,
            d_output=len(fit.bias),
        )
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
    outputs = min(MAX_OUTPUTS, int(MAX_WORK / (count * length)), MAX_OUTPUTS if count <= MANY_SERIES else MANY_SERIES_OUTPUTS)
    return max(MIN_OUTPUTS, outputs)


def calibrated_features(
    series: StandardisedSeries,
    device: torch.device,
    random: np.random.RandomState,
    seconds: float | None = None,
    kinds: Sequence[str] = SHAPE_KINDS,
    *,
    with_values: bool = False,
) -> tuple[StateFeatures, int]:
    """Return calibrated features for series, and the number of series to which there is time to fit.

    seconds: time to compute the features and to fit the regression. If the smallest number of features takes longer for all
    series, the number of series is smaller, but at least `FEWEST_SERIES`. None: no limit, all series, and a result that does not
    depend on the speed. with_values: whether values of the channels are features as well, at most `MOST_VALUES` of each.
    """
    count, length, channels = series.values.shape
    outputs = choose_outputs(count, length)
    sample = _sample(series, random)
    share = sample.values.shape[0] * sample.values.shape[1] / (count * length)
    seed = int(random.randint(2**31 - 1))
    while True:
        own = np.random.RandomState(seed)
        start = monotonic()
        values = min(MOST_VALUES, int(np.median(series.lengths)), VALUES_PER_OUTPUT * outputs // channels) if with_values else 0
        features = StateFeatures(channels, length, outputs, own, kinds, values).to(device)
        batch = sample.batch(np.arange(len(sample.lengths)), device)
        features.calibrate(*batch, own)
        if seconds is None:
            return features, count
        calibrated = monotonic()
        with torch.no_grad():
            features(*batch).cpu()
        end = monotonic()
        of_features = (end - calibrated) / share
        # Two regressions are fitted: from linear kinds and from all kinds, or from features without values and from all features.
        fits = 2 if len(features.kinds) == len(KINDS) or values else 1
        of_fits = fits * regression_seconds(count, features.n_features)
        seconds -= end - start
        if of_features + of_fits <= seconds:
            return features, count
        if outputs == FIRST_LAYER_GROUPS:
            left = max(0.0, seconds - of_fits) / of_features
            return features, min(count, max(FEWEST_SERIES, int(left * count)))
        outputs = max(FIRST_LAYER_GROUPS, min(outputs // 2, int(0.8 * outputs * seconds / (of_features + of_fits))))


def _sample(series: StandardisedSeries, random: np.random.RandomState) -> StandardisedSeries:
    """Return windows of some series, of about `CALIBRATION_STEPS` steps together."""
    length = min(series.values.shape[1], CALIBRATION_LENGTH)
    rows = np.sort(random.permutation(len(series.lengths))[: max(2, CALIBRATION_STEPS // length)])
    starts = random.uniform(size=len(rows)) * np.maximum(series.lengths[rows] - length + 1, 0)
    windows = series.windows(np.stack([rows, starts.astype(np.int64)], 1), length)
    return windows._replace(lengths=np.minimum(series.lengths[rows], length))


def rows_at_once(length: int) -> int:
    """Return the number of series of `length` steps for which features are computed together."""
    return max(1, STEPS_AT_ONCE // length)


def _mixture(columns: int, random: np.random.RandomState) -> np.ndarray:
    """Return random weights (columns,), of which few are not 0: their number is log-uniform up to `MAX_FAN_IN`."""
    largest = min(columns, MAX_FAN_IN)
    count = min(largest, int((largest + 1) ** random.uniform()))
    weights = np.zeros(columns)
    weights[random.choice(columns, count, replace=False)] = random.standard_normal(count)
    return weights


def _deviation(values: Tensor) -> Tensor:
    """Return the standard deviation of each column of (steps, columns); 1 for a constant one."""
    deviation = values.std(0, correction=0)
    return deviation.where(deviation > 1e-6, 1.0)


def _part_of(buffer: Tensor | None, *shape: int) -> Tensor | None:
    """Return a view of a shape of the start of a buffer; None without a buffer."""
    return None if buffer is None else buffer.flatten()[: math.prod(shape)].view(shape)


def _part_means(inputs: Tensor, valid: Tensor | None, count: int) -> Tensor:
    """Return the means (n, count, C) of series (n, L, C) over `count` equal parts of each, whose ends may lie within a step."""
    n, length, channels = inputs.shape
    device = inputs.device
    lengths = torch.full((n,), length, device=device) if valid is None else valid.sum(1)
    known = inputs if valid is None else inputs.where(valid[..., None], 0.0)
    sums = torch.cat([known.new_zeros(n, 1, channels), known], 1).cumsum(1)
    ends = lengths[:, None] * torch.arange(count + 1, device=device)  # in units of 1 / count of a step
    before = (ends // count).clamp(max=length - 1)
    rows = before[..., None].expand(-1, -1, channels)
    at_ends = torch.lerp(sums.gather(1, rows), sums.gather(1, rows + 1), ((ends - before * count).to(inputs) / count)[..., None])
    return at_ends.diff(dim=1) * (count / lengths.to(inputs))[:, None, None]


def _part_weights(inputs: Tensor, valid: Tensor | None, stride: int) -> Tensor:
    """Return weights (n, 1 + sum(INTERVALS), l) of every `stride`-th step in means over a series and over its equal parts.

    A step is in the part of its middle; parts without steps, of series that are too short, have weights of 0.
    """
    n, length = inputs.shape[:2]
    lengths = inputs.new_full((n, 1, 1), length) if valid is None else valid.sum(1).to(inputs)[:, None, None]
    steps = torch.arange(0, length, stride, device=inputs.device).to(inputs)
    found = []
    for count in (1, *INTERVALS):
        parts = torch.arange(count, device=inputs.device)[:, None]
        member = (((steps + 0.5) * count / lengths).floor() == parts).to(inputs)
        found.append(member / member.sum(2, keepdim=True).clamp_min(1))
    return torch.cat(found, 1)
