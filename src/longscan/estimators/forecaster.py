"""The forecaster of series with scikit-learn's interface, `SSMForecaster`."""

import copy
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, Self, cast

import numpy as np
import pandas as pd
import torch
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.nn.functional import l1_loss

from longscan._devices import find_device
from longscan._errors import names_argument
from longscan._torch_defaults import torch_defaults
from longscan._types import NonNegativeFloat, PositiveFloat, PositiveInt, Probability, checked_value
from longscan.engine import Callback
from longscan.estimators.backtesting import build_frame, find_cutoffs
from longscan.estimators.clock import as_clock, check_unit, has_seconds, season_of, to_seconds
from longscan.estimators.covariates import CovariateEffect, fit_effect, read_covariates, split_columns
from longscan.estimators.even_steps import append_steps, even_length, fill_evenly, interpolate_forecasts
from longscan.estimators.fitting import (
    BlockOptions,
    Jobs,
    RandomState,
    Spec,
    Verbose,
    check_settings,
    check_takes_times,
    minimise,
    seeded,
)
from longscan.estimators.forecast_series import (
    History,
    common_step,
    last_known,
    quantile_frames,
    read_series,
    read_times_ahead,
    restore_form,
    stamps_after,
    truncate,
    unify_time_zones,
    usual_step,
)
from longscan.estimators.held_back import Validation, Windows, count_independent, first_lengths, first_part, later_starts
from longscan.estimators.limits import fill_codes, find_codes, find_limits, without_values
from longscan.estimators.linear import (
    FOLDS,
    LONG_WINDOW,
    WINDOWS,
    LinearForecast,
    Members,
    find_season,
    fit_early_and_whole,
    fit_linear,
    fit_short,
    usable_members,
    usable_windows,
)
from longscan.estimators.quantiles import Calibration, calibrate, pinball_loss
from longscan.estimators.reading import FittedChannels, Layout, copy_input, times_presence_error
from longscan.estimators.readout import MAX_CHANNELS, ReadoutChoice, StateReadout, choose_readout, fit_readout
from longscan.estimators.saving import SavedEstimator
from longscan.estimators.series import Collection, SeriesBatch, StandardisedSeries, check_predictions, cut_windows
from longscan.estimators.shifts import MAX_AGE, ShiftLimits, find_shifts, measure_errors, remove_shifts
from longscan.estimators.threads import choose_threads, limited_threads
from longscan.models import Forecaster

PATIENCE = 3  # number of epochs without an improvement after which training ends
CALIBRATION_VALUES = 4_000_000  # largest product of windows, horizon and channels from which quantiles are corrected
SMALLEST_UNIT = 1e-2  # added to the standard deviation of a window, in units of the channel's
MOST_FILLED = 3.0  # series at uneven times are interpolated to equal steps if there are at most so many for each step
MOST_HORIZONS = 4  # largest number of horizons of forecasts at uneven times, after which the last value is repeated
LARGEST_RATIO = 3.0  # largest ratio of the standard deviations of series that are standardised together
FORECAST_BATCH = 256  # number of windows that are forecast together
FLOAT32_ROUNDING = 1e-5  # bound of the rounding of the values of a channel, in units of its standard deviation
SEARCH_TIME = 0.4  # fraction of `minutes` for choosing the number of epochs; the final training takes up to 1.25 times as long
EPOCH_WINDOWS = 512  # largest number of windows in an epoch
SMALLEST_GAIN = 0.005  # smallest relative gain in the error on later steps for which covariates are used
FEWEST_FORECASTS = 10  # the blocks are trained only if so many forecasts without common steps fit into the held-back part
BLOCK_WINDOW = 96  # largest number of steps that the blocks read if there is a linear forecast

_log = logging.getLogger("longscan")


class _Choice(NamedTuple):
    """The blocks and the regression that are added to the linear forecast, chosen by errors on the held-back part.

    epochs: of the blocks, 0 without these. schedule_epochs: of the schedule of their learning rate. share: factor of their
    output. readout: how the regression from states is fitted, None without it.
    """

    epochs: int
    schedule_epochs: int
    share: float
    readout: ReadoutChoice | None


class SSMForecaster(SavedEstimator):
    """A forecaster of series: a stack of state space blocks that reads a window and predicts the next `horizon` steps.

    A series is an array (L,) or (L, C), a Series or a frame whose rows are the steps; `fit` also takes several: a list of these,
    an array (n, L, C), or a frame indexed by (case, time).

    The forecast is the sum of a linear forecast and of the output of the blocks. The linear forecast is an average of ridge
    regressions from windows of different length to the steps ahead, of each channel and of all channels. Penalties and weights
    are chosen by the errors on two or four later parts of the series. The blocks read at most the last 96 steps. They are trained
    on windows of the series, by the mean absolute error in units of each window's standard deviation. At first the last fifth of
    each series is held back, or the last `horizon` steps if these are more. The number of epochs and a factor from 0 to 1 for the
    output of the blocks are those with the lowest mean squared error on this held-back part. The blocks are left out unless the
    error is lower than that of the linear forecast by 10 % and by two standard errors of the difference. They are not trained if
    fewer than ten forecasts without common steps fit into the held-back part, because such a comparison is unreliable.

    With 2 to 32 channels, diagonal state space systems of up to five time constants read all of them, and a ridge regression from
    their states forecasts the errors of the linear forecast. It is used instead of the blocks if it lowers the error on the
    held-back part by 5 % and by two standard errors, and ten forecasts without common steps fit into that part, see
    `longscan.estimators.readout`.

    Then everything is fitted to the whole series. Series that are too short for windows of 336 steps are forecast also by
    regressions of their differences, from one season to the next, or from step to step. Their season is that of the clock, or
    without dates the lag of the highest autocorrelation. The forecast of a single series of less than five horizons without a
    season is the mean of that of the regressions and of its last value continued by its mean change, or the latter only if the
    series is too short to compare regressions. If several series, or one with a season, are too short, the last value is
    repeated. If `window` is set to more steps than can be compared, there is no linear forecast, and the blocks are trained for
    all `epochs`.

    With `times`, the series are interpolated linearly to equal steps of the median gap, which end at the last time and are
    forecast as above; forecasts at other times are interpolated, and those beyond `horizon` equal steps are made from the
    forecast. If this would need more than three equal steps for each step, or the series are too short for a linear forecast,
    the blocks read the steps with the times between them, forecast alone and are trained for all `epochs`.

    If the standard deviations of a channel in two series differ by more than a factor of three, each series is standardised by
    its own mean and deviation, because the series with the largest values would otherwise dominate the fit. The regressions then
    have no constants, so that the forecast of a series does not depend on its unit.

    The index of a Series or a frame is its clock, and forecasts are indexed by the time stamps that follow: an hourly
    series until noon gives a forecast indexed from 13:00 on, in its time zone. Clocks are numbers, dates, periods or durations.
    Without `times` steps must be equal: a clock with gaps, mixed frequencies, duplicates or times in another order raises
    ValueError.

    If the level of a channel shifts in the last 48 steps by more than any error of the linear forecast in `fit`, the forecast is
    made from the window without the shift, which is then added to it: see `longscan.estimators.shifts`. This needs a linear
    forecast and a series of a few hundred steps in `fit`.

    Numbers such as -9999, which consist of nines and are far from all other values of a channel, are read as missing values: the
    last value before them replaces them, and a warning is logged. If a channel reaches its smallest or largest value repeatedly,
    such as 0 for rain, forecasts do not cross it.

    Covariates are series that are known ahead, such as holidays, prices or a weather forecast. Their effect on each channel is
    linear, without a delay, and estimated by generalised least squares; the series without it are forecast as described above,
    and the effect of the steps ahead is added. It is used if it lowers the squared error of the linear forecast in later parts
    of the series by .5 %. Series that are not known ahead are channels of `y`.

    Args:
        horizon: steps of a forecast.
        window: largest number of steps that are read before the forecast, by the linear forecast and by the blocks. If the series
            of `fit` are shorter than `window` and `horizon` together, the window is shorter and a warning is logged. None: the
            largest of 12, 24, 96, 336 and 720 for which the series have enough steps, fewer for short ones, or at most 96 if
            the blocks forecast alone.
        spec: the blocks, by name or as a list, as in `longscan.SequenceModel.from_spec`; all must be causal.
        d_model: width of the stack.
        d_state: state size of the layers.
        block_options: more options by the name of a block in `spec`, for example `{"mamba": {"expand": 1}}`.
        epochs: number of epochs at most. An epoch shows each part of the series a few times, or 512 windows if these are fewer.
        batch_size: windows in an update.
        lr: largest learning rate, after a linear warm-up and before a cosine to 0.
        minutes: time after which `fit` stops to train the blocks; results then depend on the speed. The linear forecast is always
            fitted, and each of the two trainings makes one update at least.
        device: "cpu", "cuda", ..., or "auto".
        n_jobs: number of threads of torch in `fit` and `predict`, see `SSMClassifier`.
        random_state: a number, a `numpy.random.RandomState` or None; the same number gives the same model.
        layout: the axes of arrays: "nlc", (steps, channels) and (series, steps, channels), or "ncl", (channels, steps) and
            (series, channels, steps). None: "nlc"; more channels than steps raise ValueError. Rows of frames are always steps.
        quantiles: probabilities of the quantiles of `predict_quantiles` and `backtest`, in increasing order, such as (0.1, 0.5,
            0.9); None for none. The blocks are then trained by the pinball loss as well, and the quantiles of each step ahead are
            corrected by the errors on the part that is held back.
        callbacks: `longscan.engine.Callback`s, for both trainings: with a part held back, and on the whole series.
        verbose: True or 1 for a progress bar of each training, or a line for each epoch where there is no terminal.

    Attributes:
        model_: the fitted `Forecaster`.
        loss_curve_: mean loss of each epoch.
        n_epochs_: number of epochs, 0 if the blocks were left out.
        validation_curve_: mean squared error in the last fifth, in units of the channels' variance, of the linear forecast, with
            `state_readout_` if it is used, and after each epoch; None without a linear forecast.
        mean_, scale_: of the channels.
        own_scales_: whether each series is standardised by its own mean and deviation.
        time_unit_: the median time between steps.
        is_filled_: whether series with `times` are interpolated to equal steps.
        window_: the window that was used.
        time_zone_: of the dates of `fit`; "naive" where these have none, None without dates.
        step_: the time between the stamps of the series' clock, None without a clock or with `times`.
        n_channels_, channel_names_, has_times_: of the series in `fit`.
        shift_limits_: the errors in `fit` that a level shift must exceed, None if shifts are not looked for.
        state_readout_: the regression from states of all channels that is added to the linear forecast, None if it is not used.
        coverage_: with `quantiles`, the share of values of the held-back part that are at most as large as each of them, a
            Series by quantile, where one half of the part is corrected by the errors on the other.
        calibration_: the correction, None without quantiles.
        n_covariates_, covariate_names_: of the covariates in `fit`.
        covariate_effect_: their effect, with `weight` (K, C), the change of each channel for a change of a covariate by 1; None
            without covariates, or if they are left out.
    """

    state_readout_: StateReadout | None = None  # of files that an earlier version saved
    own_scales_ = False  # also of these
    is_filled_ = False  # also of these
    _times_are_seconds: bool | None = None  # of the times of fit; None without, and in these files
    shift_limits_: ShiftLimits | None = None  # also of these

    def __init__(
        self,
        horizon: PositiveInt = 24,
        window: PositiveInt | None = None,
        spec: Spec = "mamba",
        *,
        d_model: int = 64,
        d_state: int = 16,
        block_options: BlockOptions | None = None,
        epochs: PositiveInt = 50,
        batch_size: PositiveInt = 32,
        lr: NonNegativeFloat = 3e-3,
        minutes: PositiveFloat | None = None,
        device: str = "auto",
        n_jobs: Jobs | None = None,
        random_state: RandomState = None,
        layout: Layout | None = None,
        quantiles: Sequence[Probability] | None = None,
        callbacks: Sequence[Callback] | None = None,
        verbose: Verbose = 0,
    ) -> None:
        self.horizon = horizon
        self.window = window
        self.spec = spec
        self.d_model = d_model
        self.d_state = d_state
        self.block_options = block_options
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.minutes = minutes
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.layout = layout
        self.quantiles = quantiles
        self.callbacks = callbacks
        self.verbose = verbose

    def fit(self, y: Any, times: Any = None, covariates: Any = None) -> Self:
        """Fit to a series, or to a list of them.

        Args:
            y: the series. Columns of a long frame besides unique_id, ds and y are covariates.
            times: of the steps, (L,), or "index" of a frame; for a list, a list of these or "index".
            covariates: of the same steps, in the form of `y`: for a series an array (L,) or (L, K), a Series or a frame. They
                cannot be combined with `times`.

        Raises ValueError if no series is longer than the horizon, or if all are too short for a linear forecast and there are
        covariates.
        """
        check_settings(self)
        self.__dict__.pop("model_", None)  # if this fit fails, attributes of it would belong to a model of an earlier one
        self._fit_collection(self._read(y, times, covariates, fitting=True).collection, regular=times is None)
        self._last_fit_data = copy_input(y, "y"), copy_input(times, "times"), copy_input(covariates, "covariates")
        return self

    @torch_defaults()
    def _fit_collection(self, collection: Collection, *, regular: bool) -> None:
        """Fit to the series of a collection. regular: whether their steps must be equal."""
        start = monotonic()
        self.step_ = common_step(collection) if regular else None
        longest = int(collection.lengths.max())
        if longest <= self.horizon:
            raise ValueError(f"`y` must have a series of more steps than the horizon of {self.horizon}, got at most {longest}")
        random = check_random_state(self.random_state)
        collection = self._prepare(collection)
        self.covariate_effect_: CovariateEffect | None = None
        series = self._standardise(collection)
        early = first_part(series, self.horizon)
        if self.quantiles and early.lengths.max() <= self.horizon:
            raise ValueError(
                f"`y` must have a series of more than {2 * self.horizon} steps, twice the horizon, for quantiles, as a part "
                f"is held back, got at most {longest}"
            )
        members = self._members(early) if series.gaps is None else Members([], [])
        linear: LinearForecast | None = None
        final: LinearForecast | None = None
        if not self.n_covariates_:
            linear, final = self._fit_linear(series, early, members)
        elif members.largest:
            series, linear = self._choose_effect(collection, series, members)
        else:
            raise ValueError(
                f"`y` must have a series long enough for a linear forecast with a horizon of {self.horizon} and covariates, "
                f"got series of at most {longest} steps"
            )
        self.window_: int = self._longest_window(longest, early) if linear is None else linear.window
        self.validation_curve_: list[float] | None = None
        self.calibration_: Calibration | None = None
        self.state_readout_ = None
        self.shift_limits_ = None
        if linear is None:
            self._fit_blocks(series, random, start)
        else:
            choice = self._choose_blocks(series, linear, random, start)
            if self.covariate_effect_ is not None:
                self.covariate_effect_ = fit_effect(collection, collection.lengths)
                series = self._standardise(collection)
            if final is None:
                final = fit_linear(list(series.trimmed()), self.horizon, *members)
            self._fit_whole(series, final, choice, random, start)
        self.n_epochs_ = len(self.loss_curve_)

    def _prepare(self, collection: Collection) -> Collection:
        """Return series without codes of missing values, filled to equal steps if possible; set the attributes about them."""
        self.n_channels_, self.has_times_ = collection.channels, collection.times is not None
        self._times_are_seconds = has_seconds(collection.clocks[0]) if self.has_times_ and collection.clocks else None
        self.channel_names_ = collection.channel_names
        self.missing_codes_ = find_codes(collection)
        for channel, code in enumerate(self.missing_codes_):
            if code is not None:
                name = collection.channel_label(channel)
                count = int((collection.values[collection.valid][:, channel] == code).sum())
                _log.warning(
                    "y: %g in channel %s (%d steps) is read as a missing value, the last one before it", code, name, count
                )
        collection = fill_codes(collection, self.missing_codes_, np.zeros(collection.channels))
        self.time_unit_ = collection.time_unit()
        self.is_filled_ = self._can_fill(collection)
        if self.is_filled_:
            every = np.stack([np.arange(len(collection)), collection.lengths], 1)[collection.lengths > 0]
            collection = fill_evenly(collection, every, self.time_unit_)
        self.mean_, self.scale_ = collection.statistics()
        self.own_scales_ = len(collection) > 1 and _scales_differ(collection)
        self.limits_ = find_limits(collection, FLOAT32_ROUNDING * self.scale_)
        self.n_covariates_ = 0 if collection.covariates is None else int(collection.covariates.shape[2])
        self.covariate_names_ = collection.covariate_names
        return collection

    def _seconds_left(self, start: float, share: float) -> float | None:
        """Return a share of the time that is left of `minutes`, which began at `start`; None without a limit."""
        return None if self.minutes is None else share * (60 * self.minutes - (monotonic() - start))

    def _fit_linear(
        self, whole: StandardisedSeries, early: StandardisedSeries, members: Members
    ) -> tuple[LinearForecast | None, LinearForecast | None]:
        """Return the linear forecasts of series, of their first part and of all steps, both of one window; None without one.

        members: of the forecast of the first part, which has no covariates.
        """
        if members.largest and (self.window is not None or not self._is_short(members, len(whole.lengths))):
            series, first = list(whole.trimmed()), list(early.trimmed())
            return fit_early_and_whole(series, first, self.horizon, members.windows, constants=members.constants)
        if self.window is not None or whole.gaps is not None:
            return None, None
        linear, final = self._fit_short(early), self._fit_short(whole)
        return linear.widened(final.window), final.widened(linear.window)

    def _fit_blocks(self, series: StandardisedSeries, random: np.random.RandomState, start: float) -> None:
        """Set `model_` to blocks that forecast alone, trained for all epochs; quantiles are corrected on the held-back part.

        start: when `fit` began.
        """
        if self.quantiles:
            early = first_part(series, self.horizon)
            seconds = self._seconds_left(start, SEARCH_TIME)
            model, _ = self._train(early, None, self.epochs, copy.deepcopy(random), seconds=seconds)
            self._calibrate(model, series, later_starts(series.lengths, early.lengths, self.window_, self.horizon))
        self.model_, self.loss_curve_ = self._train(series, None, self.epochs, random, seconds=self._seconds_left(start, 1))

    def _choose_blocks(
        self, series: StandardisedSeries, linear: LinearForecast, random: np.random.RandomState, start: float
    ) -> _Choice:
        """Return the models that correct the linear forecast, chosen by their errors on the held-back part.

        Sets `validation_curve_`, the correction of the quantiles if any, and `state_readout_`, fitted to the first part.

        linear: the forecast of the first part. start: when `fit` began.
        """
        early = first_part(series, self.horizon)
        held = later_starts(series.lengths, early.lengths, self.window_, self.horizon)
        ends = held + np.array([0, self.window_])
        true = cut_windows(series.values, ends, self.horizon)
        validation = Validation(true, lambda model: self._run(model, series, ends, None)[0][..., 0])
        seconds, begin = self._seconds_left(start, SEARCH_TIME), monotonic()
        independent = int(count_independent(held, self.horizon)[-1])
        enough = independent >= FEWEST_FORECASTS
        readout: ReadoutChoice | None = None
        if enough and 1 < self.n_channels_ <= MAX_CHANNELS:
            past = cut_windows(series.values, held, self.window_).astype(np.float64)
            self.state_readout_, readout = choose_readout(list(early.trimmed()), linear, past, true, independent) or (None, None)
        has_windows = int(early.lengths.max()) >= self.window_ + self.horizon
        epochs = self.epochs if enough and has_windows and readout is None else 0
        # Without an epoch only the model is made, also where the first part has no window.
        trained_on = early if epochs else series
        model, losses = self._train(trained_on, linear, epochs, copy.deepcopy(random), validation.evaluate, seconds=seconds)
        spent = 0.0 if seconds is None else min(1.0, (monotonic() - begin) / max(seconds, 1e-9))
        schedule = self.epochs if spent == 0 else max(1, min(self.epochs, round(len(losses) / spent)))
        self.validation_curve_ = validation.curve
        best = validation.best_epoch(independent)
        if self.quantiles:
            if best == 0:
                model, _ = self._train(series, linear, 0, copy.deepcopy(random))
            model.scale_blocks(validation.shares[best])
            self._calibrate(model, series, held)
        return _Choice(best, schedule, validation.shares[best], readout)

    def _fit_whole(
        self,
        series: StandardisedSeries,
        linear: LinearForecast,
        choice: _Choice,
        random: np.random.RandomState,
        start: float,
    ) -> None:
        """Set `model_` to the linear forecast of the whole series and what was chosen to be added to it.

        start: when `fit` began.
        """
        values = list(series.trimmed())
        self.shift_limits_ = measure_errors(values, linear)
        if choice.readout is not None:
            self.state_readout_ = fit_readout(values, linear, self.horizon, choice.readout)
        self.model_, self.loss_curve_ = self._train(
            series, linear, choice.epochs, random, seconds=self._seconds_left(start, 1), schedule_epochs=choice.schedule_epochs
        )
        self.model_.scale_blocks(choice.share)
        # The first forecast of a model stores the form of its states, with which `predict` would change the estimator.
        longest = int(series.lengths.argmax())
        self._run(self.model_, series, np.array([[longest, series.lengths[longest]]]), None)

    def _can_fill(self, series: Collection) -> bool:
        """Return whether series at uneven times have a linear forecast after interpolation to equal steps, and not too many."""
        if series.times is None:
            return False
        pairs = zip(series.times, series.lengths, strict=True)
        lengths = np.array([even_length(times[:length], self.time_unit_) for times, length in pairs if length])
        windows = WINDOWS if self.window is None else (self.window,)
        is_sparse = lengths.sum() <= MOST_FILLED * series.lengths.sum()
        return bool(is_sparse and usable_windows(first_lengths(lengths, self.horizon), self.horizon, windows))

    def _choose_effect(
        self, collection: Collection, series: StandardisedSeries, members: Members
    ) -> tuple[StandardisedSeries, LinearForecast]:
        """Set the effect of the covariates if it lowers the error of the linear forecast; return what is left of the series.

        The effect that is compared is fitted to the steps before those that the linear forecast is compared on.

        Args:
            collection: the series with their covariates.
            series: as the model reads them, with the effect of the covariates.
            members: of the linear forecast.

        Returns:
            The series, without the effect if it is used, and the linear forecast of their first part.
        """
        early = first_part(series, self.horizon)
        linear = fit_linear(list(early.trimmed()), self.horizon, *members)
        before = np.floor(FOLDS[0] * early.lengths).astype(int)
        self.covariate_effect_ = fit_effect(collection, before if before.any() else early.lengths)
        compared = first_part(self._standardise(collection), self.horizon)
        found = fit_linear(list(compared.trimmed()), self.horizon, *members)
        if found.error >= (1 - SMALLEST_GAIN) * linear.error:
            self.covariate_effect_ = None
            _log.info("covariates: they lower the squared error by less than %g %% and are left out", 100 * SMALLEST_GAIN)
            return series, linear
        self.covariate_effect_ = fit_effect(collection, early.lengths)
        series = self._standardise(collection)
        return series, fit_linear(list(first_part(series, self.horizon).trimmed()), self.horizon, *members)

    def _members(self, series: StandardisedSeries) -> Members:
        """Return the inputs of the regressions of the linear forecast: windows of at most `window` steps if it is set."""
        if self.window is not None:
            members = Members(usable_windows(series.lengths, self.horizon, (self.window,)), [])
        else:
            members = usable_members(series.lengths, self.horizon, season_of(self.step_))
            if members.differences and not isinstance(self.step_, pd.offsets.BaseOffset):
                members = usable_members(series.lengths, self.horizon, find_season(list(series.trimmed())))
        if not self.own_scales_:
            return members
        return members._replace(constants=False, differences=[one for one in members.differences if one.lag > 1])

    @staticmethod
    def _is_short(members: Members, count: int) -> bool:
        """Return whether `count` series are forecast by `fit_short`, with these members of their first part."""
        return bool(members.differences) or (count == 1 and LONG_WINDOW not in members.windows)

    def _fit_short(self, series: StandardisedSeries) -> LinearForecast:
        """Return the linear forecast of short series."""
        values = list(series.trimmed())
        season = season_of(self.step_) if isinstance(self.step_, pd.offsets.BaseOffset) else find_season(values)
        return fit_short(values, self.horizon, self._members(series), season)

    def _longest_window(self, longest: int, early: StandardisedSeries) -> int:
        """Return the window for series of at most `longest` steps without a linear forecast; log it if it is shorter than set."""
        if self.quantiles:
            longest = int(early.lengths.max())
        wanted = 96 if self.window is None else self.window
        window = min(wanted, longest - self.horizon)
        if self.window is not None and window < wanted:
            _log.warning(
                "window: the longest series has %d steps, so windows of %d steps are read before the horizon of %d, not of %d",
                longest,
                window,
                self.horizon,
                wanted,
            )
        return window

    def _train(
        self,
        series: StandardisedSeries,
        linear: LinearForecast | None,
        epochs: int,
        random: np.random.RandomState,
        evaluate: Callable[[Forecaster], float] | None = None,
        *,
        seconds: float | None = None,
        schedule_epochs: int | None = None,
    ) -> tuple[Forecaster, list[float]]:
        """Return a model trained for a number of epochs, and the mean loss of each.

        Args:
            series: on which it is trained.
            linear: its linear forecast, None without one.
            epochs: number of epochs, at most.
            random: for the weights and the order of the windows.
            evaluate: returns the error of the model, before the first epoch and after each; training ends after `PATIENCE`
                epochs without a smaller one.
            seconds: time for the training, None for no limit.
            schedule_epochs: number of epochs of the learning rate's schedule, None for `self.epochs`.
        """
        length = self.window_ + self.horizon
        shown = Windows.between(np.zeros_like(series.lengths), series.lengths - length)
        # An epoch shows every part of the series a few times, not every window.
        count = min(math.ceil(shown.total / max(1, self.horizon // 4)), EPOCH_WINDOWS)
        n_threads, device = choose_threads(self.n_jobs, self.batch_size * self.window_ * self.d_model), find_device(self.device)
        with seeded(int(random.randint(2**31 - 1))), limited_threads(n_threads):
            model = self._build_model(linear).to(device)
            if series.gaps is not None:
                check_takes_times(model.backbone)
            if evaluate is not None and seconds is None:  # with a limit, `minimise` evaluates the model to measure the time
                evaluate(model)
            losses = minimise(
                model,
                lambda numbers: series.windows(shown.starts(numbers), length).batch(np.arange(len(numbers)), device),
                partial(self._loss, model),
                lambda random: random.choice(shown.total, count, replace=False),
                epochs=epochs,
                schedule_epochs=self.epochs if schedule_epochs is None else schedule_epochs,
                batch_size=self.batch_size,
                lr=self.lr,
                weight_decay=0.01,
                random=random,
                evaluate=None if evaluate is None else lambda: {"loss": evaluate(model)},
                patience=PATIENCE,
                seconds=seconds,
                callbacks=self.callbacks or (),
                verbose=self.verbose,
            )
        return model, losses

    def _build_model(self, linear: LinearForecast | None) -> Forecaster:
        """Return a model with a linear forecast, or without one if it is None, whose blocks are not trained."""
        try:
            model = Forecaster.from_spec(
                self.spec,
                d_model=self.d_model,
                d_state=self.d_state,
                block_options=self.block_options,
                d_input=self.n_channels_,
                horizon=self.horizon,
                normalise=True,
                linear_window=None if linear is None else self.window_,
                linear_channels="shared" if linear is None or len(linear.weight) == 1 else "own",
                quantiles=list(self.quantiles) if self.quantiles else None,
                blocks_window=None if linear is None or self.window is not None else BLOCK_WINDOW,
            )
        except ValueError as error:
            if not names_argument(error, "blocks"):
                raise
            raise ValueError(f"`spec` must be one whose blocks are causal, got {self.spec!r}") from None
        if linear is not None:
            model.set_linear(*(torch.from_numpy(part).float() for part in linear[:3]))
        return model

    def _loss(self, model: Forecaster, windows: SeriesBatch) -> Tensor:
        """Return the mean loss of a model on windows of `window_` and `horizon` steps, in units of their standard deviations."""
        values, _, elapsed = windows
        past, future = values[:, : self.window_], values[:, self.window_ :]
        before, ahead = (None, None) if elapsed is None else (elapsed[:, : self.window_], elapsed[:, self.window_ :])
        unit = past.std(1, keepdim=True, correction=0) + SMALLEST_UNIT
        if not self.quantiles:
            return l1_loss(model(past, elapsed=before, elapsed_ahead=ahead) / unit, future / unit)
        forecast, spread = model.forecast_quantiles(past, elapsed=before, elapsed_ahead=ahead)
        losses = pinball_loss(spread / unit.unsqueeze(-1), future / unit, self.quantiles)
        return l1_loss(forecast / unit, future / unit) + losses

    def _calibrate(self, model: Forecaster, series: StandardisedSeries, starts: np.ndarray) -> None:
        """Set the correction of the quantiles, from the forecasts of windows that the model was not fitted to."""
        quantiles, horizon = cast("Sequence[float]", self.quantiles), self.horizon
        starts = starts[:: math.ceil(len(starts) * horizon * self.n_channels_ / CALIBRATION_VALUES)]
        ends = starts + np.array([0, self.window_])
        gaps = None if series.gaps is None else cut_windows(series.gaps, ends, horizon)
        forecasts, unit = self._run(model, series, ends, gaps)
        true = cut_windows(series.values, ends, horizon)
        rank, count = _ranks(starts[:, 0])
        later = np.where(count > 1, 2 * rank >= count, starts[:, 0] % 2 == 1)
        independent = count_independent(starts, horizon)
        self.calibration_ = calibrate(forecasts[..., 1:], true, unit, quantiles, later, independent)
        self.coverage_ = pd.Series(self.calibration_.coverage, pd.Index(quantiles, name="quantile"), name="coverage")

    def predict(
        self,
        y: Any = None,
        times: Any = None,
        times_ahead: Any = None,
        covariates: Any = None,
        covariates_ahead: Any = None,
    ) -> Any:
        """Return the forecast of the `horizon` steps after the last step of each series.

        Args:
            y: the measured series, of which the last `window_` steps are read, and at most 48 before them to recognise a shift of
                the level, in any form of `fit`; None: those of `fit`.
            times: of its steps, if `fit` had times.
            times_ahead: (horizon,), the times of the forecast of one series; None: equal steps of `time_unit_`.
            covariates: of its steps, if `fit` had covariates, in any form of `fit`; None if `y` is None or a long frame that has
                them as columns.
            covariates_ahead: of the steps of the forecast, if `fit` had covariates: in the form of covariates, `horizon` steps of
                each series.

        Returns:
            For an array (horizon,) or (horizon, C). For a Series a Series of its name, for a frame a frame with its columns,
            indexed by the stamps that follow its last one: all lie ahead of the series. For several series a list, an array (n,
            horizon, C) or a frame indexed by (case, time), as they were given. For a long frame a frame with the columns
            unique_id, ds, forecast and, with `quantiles`, q0.1 and so on.
        """
        history, forecasts, stamps = self._predict(y, times, times_ahead, covariates, covariates_ahead)
        return restore_form(history, forecasts, stamps, self.quantiles or ())

    def predict_quantiles(
        self,
        y: Any = None,
        times: Any = None,
        times_ahead: Any = None,
        covariates: Any = None,
        covariates_ahead: Any = None,
    ) -> Any:
        """Return the quantiles of the forecast of the `horizon` steps after the last step of each series.

        The arguments are those of `predict`. Raises ValueError if the estimator has no `quantiles`.

        Returns:
            A frame indexed by the stamps that follow, or for arrays by the number of the step, with a column for each quantile,
            such as "q0.9", or for several channels with columns (channel, quantile). For several series a list of these, or a
            frame indexed by (case, time). For a long frame what `predict` returns.
        """
        check_is_fitted(self, "model_")
        self._check_as_fitted()
        if self.calibration_ is None:
            raise ValueError("`quantiles` must be probabilities such as (0.1, 0.5, 0.9) when the forecaster is fitted, got None")
        history, forecasts, stamps = self._predict(y, times, times_ahead, covariates, covariates_ahead)
        if history.form == "long":
            return restore_form(history, forecasts, stamps, self.quantiles or ())
        return quantile_frames(history, forecasts[..., 1:], stamps, self.quantiles or ())

    def _predict(
        self, y: Any, times: Any, times_ahead: Any, covariates: Any, covariates_ahead: Any
    ) -> tuple[History, np.ndarray, list[pd.Index | None]]:
        """Return series, their forecasts and quantiles (n, horizon, C, 1 + Q), and the time stamps of these."""
        check_is_fitted(self, "model_")
        self._check_as_fitted()
        if y is None:
            y, times, covariates = self._last_fit_data
        history = self._read(y, times, covariates, fitting=False)
        collection = history.collection
        for row, channel in without_values(collection, self.missing_codes_):
            _log.warning(
                "y: %s has only %g, the missing value, in channel %s; the mean of fit is read instead",
                collection.case_label(row),
                self.missing_codes_[channel],
                collection.channel_label(channel),
            )
        if times_ahead is not None and not self.has_times_:
            raise ValueError("`times_ahead` must be None, as fit had no times, got times")
        if times_ahead is not None and len(collection) > 1:
            raise ValueError(f"`times_ahead` must be None for several series, got times for {len(collection)} series")
        stamps = self._stamps_ahead(collection, times, times_ahead)
        gaps = None
        if collection.clocks is not None and times_ahead is not None:
            gaps = np.diff(to_seconds(as_clock(collection.clocks[0][-1:].append(stamps[0]), "`times_ahead`")))[None]
        ahead = None
        if (covariates_ahead is None) == (self.n_covariates_ > 0):
            raise self._presence_error("covariates_ahead")
        if covariates_ahead is not None:
            steps = np.full(len(collection), self.horizon)
            ahead = self._read_covariates(covariates_ahead, collection, stamps, steps, "covariates_ahead").values
        ends = np.stack([np.arange(len(collection)), collection.lengths], 1)
        return history, self._forecast(collection, ends, gaps, ahead), stamps

    def score(self, y: Any, times: Any = None, covariates: Any = None) -> float:
        """Return the skill over persistence, 1 - (mean absolute error) / (mean absolute error of repeating the last value).

        Forecasts start at every `horizon` steps of each series from `window_` on. Raises ValueError if a series is too short for
        one.
        """
        check_is_fitted(self, "model_")
        self._check_as_fitted()
        series = self._read(y, times, covariates, fitting=False).collection
        if times is None:
            common_step(series)
        ends = []
        for row, length in enumerate(series.lengths):
            if length <= self.horizon:
                raise ValueError(f"`y` must have more steps than the horizon of {self.horizon}, got {length}")
            first, last_cut = min(self.window_, length - self.horizon), length - self.horizon
            ends += [(row, cut) for cut in range(first, last_cut + 1, self.horizon)]
        starts = np.array(ends)
        true = cut_windows(series.values, starts, self.horizon) / self.scale_
        last = cut_windows(series.values, starts - [0, 1], 1) / self.scale_
        error = np.abs(self._forecast_from(series, starts)[..., 0] / self.scale_ - true).sum()
        persistence = np.abs(last - true).sum()
        return float(1 - error / persistence) if persistence else float(error == 0)

    def backtest(
        self,
        y: Any = None,
        times: Any = None,
        covariates: Any = None,
        *,
        start: Any = None,
        stride: PositiveInt | None = None,
        refit: bool = False,
        season: PositiveInt | None = None,
    ) -> pd.DataFrame:
        """Forecast a series from many of its steps, the cutoffs, and return the forecasts next to the values.

        Args:
            y: one or several series, as in `predict`; None: those of `fit`, from whose values the model was chosen.
            times: of the steps, if `fit` had times.
            covariates: of the steps, if `fit` had covariates; those of the steps ahead are known at each cutoff.
            start: the number of steps before the first forecast, or the time stamp of the first step that is forecast. None:
                `window_` steps, or with `refit` half of the shortest series.
            stride: steps from one cutoff to the next; None: the horizon, so that each step is forecast once.
            refit: fit a clone of the estimator to what is known at each cutoff, instead of using the present model for all.
            season: steps of a season of the seasonal naive forecast; None: those of a day for steps shorter than a day, of a week
                for days, of a year for weeks, months and quarters, and 1, the last value, for any other.

        Returns:
            A frame with a row for each cutoff, step ahead and channel, and the columns cutoff, the last step that is known, ds,
            the step that is forecast, channel, y, forecast, a column for each of `quantiles`, seasonal_naive, and naive_scale,
            the mean absolute difference of steps one season apart before the first cutoff; for several series also unique_id.
            Steps of arrays are numbered from 0. `score_forecasts` returns its errors.
        """
        check_is_fitted(self, "model_")
        if not refit:
            self._check_as_fitted()
        stride = self.horizon if stride is None else checked_value(stride, PositiveInt, "stride")
        if y is None:
            y, times, covariates = self._last_fit_data
        history = self._read(y, times, covariates, fitting=False)
        collection = history.collection
        step = common_step(collection, self.step_) if times is None else None
        season = season_of(step) if season is None else checked_value(season, PositiveInt, "season")
        if start is None:
            shortest = int(collection.lengths.min())
            start = shortest // 2 if refit else max(1, min(self.window_, shortest - self.horizon))
        cutoffs = find_cutoffs(collection, start, stride, self.horizon)
        if not refit:
            return build_frame(history, cutoffs, self._forecast_from(collection, cutoffs), self.quantiles or (), season)
        forecasts = np.zeros((len(cutoffs), self.horizon, self.n_channels_, 1 + len(self.quantiles or ())))
        moments = last_known(collection, cutoffs)
        for moment in moments.unique():
            model, chosen = clone(self), np.flatnonzero(moments == moment)
            model.time_zone_ = self.time_zone_
            model._fit_collection(truncate(collection, moment), regular=times is None)
            forecasts[chosen] = model._forecast_from(collection, cutoffs[chosen])
        return build_frame(history, cutoffs, forecasts, self.quantiles or (), season)

    def _read(self, y: Any, times: Any, covariates: Any, *, fitting: bool) -> History:
        """Return one or several series as a collection with their covariates, with clocks in the time zone of fit."""
        y, covariates = split_columns(y, covariates)
        known = None if fitting else FittedChannels(self.n_channels_, self.channel_names_)
        history = read_series(y, times, cast("Any", self.layout), known)
        zone = None if fitting else self.time_zone_
        collection, zone = unify_time_zones(history.collection, zone, fitting=fitting)
        if fitting:
            self.time_zone_: Any = zone
        elif (collection.times is not None) != self.has_times_:
            raise times_presence_error(self.has_times_)
        elif self.has_times_ and collection.clocks:
            check_unit(collection.clocks[0], self._times_are_seconds)
        if not fitting and (covariates is None) == (self.n_covariates_ > 0):
            raise self._presence_error("covariates")
        if covariates is not None:
            if times is not None:
                raise ValueError("`covariates` must be None with `times`, got both")
            stamps = collection.clocks or [None] * len(collection)
            found = self._read_covariates(covariates, collection, stamps, collection.lengths, "covariates", fitting=fitting)
            collection = replace(collection, covariates=found.values, covariate_names=found.channel_names)
        return history._replace(collection=collection)

    def _read_covariates(
        self,
        given: Any,
        series: Collection,
        stamps: Sequence[pd.Index | None],
        lengths: np.ndarray,
        argument: str,
        *,
        fitting: bool = False,
    ) -> Collection:
        known = None if fitting else FittedChannels(self.n_covariates_, self.covariate_names_)
        layout = cast("Any", self.layout)
        return read_covariates(given, series, stamps, lengths, layout=layout, known=known, argument=argument)

    def _check_as_fitted(self) -> None:
        """Raise ValueError if `horizon` or `quantiles` are no longer those with which the model was fitted."""
        fitted: dict[str, Any] = {"horizon": self.model_.horizon, "quantiles": list(self.model_.quantiles) or None}
        for name, value in fitted.items():
            given = list(self.quantiles or ()) or None if name == "quantiles" else self.horizon
            if given != value:
                raise ValueError(f"`{name}` must be {value} as in fit, or fit must be called again, got {given}")

    def _presence_error(self, argument: str) -> ValueError:
        """Return the error for covariates that are missing although `fit` had some, or given although it had none."""
        if not self.n_covariates_:
            return ValueError(f"`{argument}` must be None, as fit had no covariates, got some")
        names = self.covariate_names_ or (f"{self.n_covariates_} without names",)
        return ValueError(f"`{argument}` must be given, as fit had covariates ({', '.join(map(str, names))}), got None")

    def _forecast_from(self, series: Collection, ends: np.ndarray) -> np.ndarray:
        """Return forecasts and quantiles (n, horizon, C, 1 + Q) from steps within the series. ends: as in `_forecast`."""
        gaps = None if series.times is None else np.diff(cut_windows(series.times, ends - [0, 1], self.horizon + 1))
        ahead = None if series.covariates is None else cut_windows(series.covariates, ends, self.horizon)
        return self._forecast(series, ends, gaps, ahead)

    def _standardise(self, series: Collection) -> StandardisedSeries:
        """Return the series without codes of missing values and without the effect of covariates, in units of each channel."""
        return self._standardise_with_scales(series)[0]

    def _standardise_with_scales(self, series: Collection) -> tuple[StandardisedSeries, np.ndarray, np.ndarray]:
        """Return the standardised series, and the means and scales of their channels, (n, C)."""
        filled = fill_codes(series, self.missing_codes_, self.mean_)
        filled = filled if self.covariate_effect_ is None else self.covariate_effect_.remove(filled)
        if not self.own_scales_:
            mean, scale = (np.broadcast_to(part, (len(series), series.channels)) for part in (self.mean_, self.scale_))
            return filled.standardise(self.mean_, self.scale_, self.time_unit_, "y"), mean, scale
        mean, scale = filled.own_statistics()
        own = (filled.values - mean[:, None]) / scale[:, None]
        zeros, ones = np.zeros(series.channels), np.ones(series.channels)
        return replace(filled, values=own * filled.valid[..., None]).standardise(zeros, ones, self.time_unit_, "y"), mean, scale

    @torch_defaults()
    def _forecast(
        self, collection: Collection, ends: np.ndarray, gaps: np.ndarray | None, ahead: np.ndarray | None
    ) -> np.ndarray:
        """Return forecasts and corrected quantiles (n, horizon, C, 1 + Q) in the units of the series.

        ends: (n, 2), number of the series and of the steps that are known. gaps: (n, horizon) times between the steps of the
        forecasts, None for equal steps. ahead: (n, horizon, K), the covariates of these steps, None without any.
        """
        if self.is_filled_ and collection.times is not None:
            return self._forecast_filled(collection, ends, gaps)
        series, mean, scale = self._standardise_with_scales(collection)
        forecasts, unit = self._run(self.model_, series, ends, None if gaps is None else gaps / self.time_unit_)
        if self.shift_limits_ is not None:
            self._follow_shifts(self.shift_limits_, forecasts, unit, series, ends)
        if self.calibration_ is not None:
            forecasts[..., 1:] = self.calibration_.apply(forecasts[..., 1:], unit)
        read = np.minimum(ends[:, 1], self.window_)
        values = fill_codes(collection, self.missing_codes_, self.mean_).values
        windows = [values[row, end - count : end] for (row, end), count in zip(ends, read, strict=True)]
        smallest, largest = (np.stack([extreme(window, 0) for window in windows]) for extreme in (np.min, np.max))
        with np.errstate(over="ignore"):
            forecasts = forecasts * scale[ends[:, 0], None, :, None] + mean[ends[:, 0], None, :, None]
            if self.covariate_effect_ is not None:
                forecasts = forecasts + self.covariate_effect_.of(cast("np.ndarray", ahead))[..., None]
        return check_predictions(self.limits_.apply(forecasts, smallest, largest), "y")

    def _forecast_filled(self, collection: Collection, ends: np.ndarray, gaps: np.ndarray | None) -> np.ndarray:
        """Return the forecasts of series at uneven times, interpolated from those of equal steps; shapes as in `_forecast`.

        Steps later than the horizon are forecast from the forecast, with the distances of the quantiles of its last step.
        """
        most = np.full(len(ends), self.window_ + MAX_AGE)
        if self.own_scales_:  # they are those of the whole series, up to a gap that would need more steps than memory has
            most = np.maximum(most, np.floor(MOST_FILLED * ends[:, 1]).astype(int))
        even = fill_evenly(fill_codes(collection, self.missing_codes_, self.mean_), ends, self.time_unit_, most)
        rows = np.arange(len(even))
        last = even.values[rows, even.lengths - 1]
        forecasts = self._forecast(even, np.stack([rows, even.lengths], 1), None, None)
        if gaps is None:
            return forecasts
        positions = np.cumsum(gaps, 1) / self.time_unit_
        farthest = min(positions.max(), MOST_HORIZONS * self.horizon)
        while forecasts.shape[1] < farthest:
            even = append_steps(even, forecasts[:, -self.horizon :, :, 0])
            more = self._forecast(even, np.stack([rows, even.lengths], 1), None, None)
            more[..., 1:] = more[..., :1] + forecasts[:, -1:, :, 1:] - forecasts[:, -1:, :, :1]
            forecasts = np.concatenate([forecasts, more], 1)
        return interpolate_forecasts(forecasts, last, positions)

    def _follow_shifts(
        self, limits: ShiftLimits, forecasts: np.ndarray, unit: np.ndarray, series: StandardisedSeries, ends: np.ndarray
    ) -> None:
        """Replace the forecasts, and the units, of windows with a shift of the level by those without it, and add the shift."""
        count, model = len(limits.mean), self.model_
        parts = (model.linear_weight, model.linear_level, model.linear_bias)
        weight, level, bias = (part[:, :count].detach().cpu().double().numpy() for part in parts)
        linear = LinearForecast(weight, level, bias, math.nan)
        read = np.minimum(ends[:, 1], self.window_ + count)
        for length in np.unique(read[read > self.window_]):
            rows_of_length = np.flatnonzero(read == length)
            for first in range(0, len(rows_of_length), FORECAST_BATCH):
                rows = rows_of_length[first : first + FORECAST_BATCH]
                past = cut_windows(series.values, ends[rows] - [0, length], int(length)).astype(np.float64)
                ages, sizes = find_shifts(past, linear, limits)
                is_shifted = ages.any(1)
                if not is_shifted.any():
                    continue
                rows, ages, sizes = rows[is_shifted], ages[is_shifted], sizes[is_shifted]
                windows = remove_shifts(past[is_shifted, -self.window_ :], ages, sizes).astype(np.float32)
                lengths = np.full(len(rows), self.window_)
                own = np.stack([np.arange(len(rows)), lengths], 1)
                found, unit[rows] = self._run(model, StandardisedSeries(windows, lengths, None), own, None)
                forecasts[rows] = found + sizes[:, None, :, None]

    def _run(
        self, model: Forecaster, series: StandardisedSeries, ends: np.ndarray, gaps: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return forecasts and quantiles (n, horizon, C, 1 + Q) of a model, and the windows' standard deviations (n, C).

        gaps: (n, horizon), as the model reads them; None for 1.
        """
        device, count = next(model.parameters()).device, 1 + len(self.quantiles or ())
        forecasts = np.zeros((len(ends), self.horizon, self.n_channels_, count))
        unit = np.zeros((len(ends), self.n_channels_))
        read = np.minimum(ends[:, 1], self.window_)
        gaps = np.ones((len(ends), self.horizon)) if gaps is None else gaps
        for length in np.unique(read):
            rows_of_length = np.flatnonzero(read == length)
            for first in range(0, len(rows_of_length), FORECAST_BATCH):
                rows = rows_of_length[first : first + FORECAST_BATCH]
                past = series.windows(ends[rows] - [0, length], length)
                values, _, elapsed = past.batch(np.arange(len(rows)), device)
                ahead = None if elapsed is None else torch.from_numpy(gaps[rows].astype(np.float32)).to(device)
                n_threads = choose_threads(self.n_jobs, len(rows) * int(length) * self.d_model)
                with torch.no_grad(), limited_threads(n_threads):
                    if count == 1:
                        parts = [model(values, elapsed=elapsed, elapsed_ahead=ahead).unsqueeze(-1)]
                    else:
                        point, quantiles = model.forecast_quantiles(values, elapsed=elapsed, elapsed_ahead=ahead)
                        parts = [point.unsqueeze(-1), quantiles]
                forecasts[rows] = torch.cat(parts, -1).cpu().double().numpy()
                if self.state_readout_ is not None:
                    forecasts[rows] += self.state_readout_.of(past.values.astype(np.float64))[..., None]
                unit[rows] = past.values.std(1) + SMALLEST_UNIT
        return forecasts, unit

    def _stamps_ahead(self, collection: Collection, times: Any, times_ahead: Any) -> list[pd.Index | None]:
        """Return the time stamps of the forecast of each series, None for arrays without times."""
        if collection.clocks is None:
            return [None] * len(collection)
        if times_ahead is not None:
            return [read_times_ahead(times_ahead, collection.clocks[0], self.horizon)]
        if times is None:
            step = common_step(collection, self.step_)
            return [stamps_after(clock, step, self.horizon) for clock in collection.clocks]
        return [stamps_after(clock, usual_step(clock, self.time_unit_), self.horizon) for clock in collection.clocks]


def _scales_differ(series: Collection) -> bool:
    """Return whether the deviations of a channel in two series differ by more than `LARGEST_RATIO`, without constant ones."""
    deviations = series.own_statistics()[1]
    parts = zip(series.values, series.lengths, strict=True)
    constant = np.array([(values[: max(1, length)] == values[0]).all(0) for values, length in parts])
    smallest = np.where(constant, np.inf, deviations).min(0)
    return bool((np.where(constant, 0, deviations).max(0) > LARGEST_RATIO * smallest).any())


def _ranks(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the position of each element of a sorted array among the equal ones, and the number of these."""
    _, first, counts = np.unique(groups, return_index=True, return_counts=True)
    return np.arange(len(groups)) - np.repeat(first, counts), np.repeat(counts, counts)
