"""`Forecaster`: a model that reads a series and forecasts the steps that follow.

Two modes:

- "queries": the model runs `horizon` further steps without input, from the state after the last step of the series. The output at
  the k-th of them is the forecast of step L + k.
- "offset": the output at step t is the forecast of step t + horizon (the head of the AUSSM paper's code). The forecast consists
  of the last `horizon` outputs, so the series needs at least that many steps, and the first output of a series of exactly that
  many depends on its first step only.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from longscan._types import NonNegativeInt, PositiveInt, Probability, checked_value
from longscan.distributed.collectives import gather_steps
from longscan.distributed.context import SequenceSplit, current_split, use_split
from longscan.layers.base import mask_padding
from longscan.layers.checks import check_is_tensor, check_step_shapes, require_tensor, values_unavailable
from longscan.models.base import PretrainedModel
from longscan.models.sequence_model import SequenceModel
from longscan.ops.dispatch import Backend

EPSILON = 1e-5


class Forecaster(PretrainedModel):
    """A model that maps series (B, L, d_input) to forecasts (B, horizon, d_input), and to quantiles of them.

    Series may have covariates: further values that are known at the steps of the series, and some of them, such as a calendar,
    also at the steps of the forecast.

    Args:
        blocks: the stack as a list of `{"layer", "block", "options"}`, see `longscan.models.parse_spec`. All blocks must be
            causal, and in mode "queries" they must be able to run step by step.
        d_model: width of the stack.
        d_input: number of channels of a series.
        horizon: number of steps of a forecast.
        mode: "queries", run `horizon` further steps without input from the state after the last step; or "offset", the output at
            step t is the forecast of step t + horizon.
        normalise: subtract the mean of each series and divide by its standard deviation, and undo both in the forecast.
        backend: backend of every op, "auto" to choose for each call.
        linear_window: number of last steps that a linear forecast reads, see `set_linear`. The forecast of the model is then the
            sum of the linear forecast and the output of the blocks, whose head is initialised with zeros, so that a new model
            returns the linear forecast. None for a model without a linear forecast.
        linear_channels: "shared", one linear map for all channels, or "own", one for each.
        quantiles: probabilities of the quantiles that are forecast, in increasing order; None for none.
        d_covariates: number of covariates at the steps of the series.
        d_covariates_ahead: how many of the covariates, the last ones, are known at the steps of the forecast, too. They need the
            mode "queries".
        linear_covariate_window: number of last steps of the series from which the linear forecast reads all covariates, in
            addition to those that are known at the steps of the forecast.
        blocks_window: number of last steps that the blocks read; None for all steps.

    Raises ValueError naming an argument that does not fit, and for blocks that are not causal, shorten the sequence, or in mode
    "queries" cannot run step by step.

    Attributes:
        backbone: the `SequenceModel` that makes the forecasts.
    """

    def __init__(
        self,
        blocks: Sequence[Mapping[str, Any]],
        *,
        d_model: PositiveInt,
        d_input: PositiveInt,
        horizon: PositiveInt,
        mode: Literal["queries", "offset"] = "queries",
        normalise: bool = False,
        backend: Backend = "auto",
        linear_window: PositiveInt | None = None,
        linear_channels: Literal["shared", "own"] = "shared",
        quantiles: Sequence[Probability] | None = None,
        d_covariates: NonNegativeInt = 0,
        d_covariates_ahead: NonNegativeInt = 0,
        linear_covariate_window: NonNegativeInt = 0,
        blocks_window: PositiveInt | None = None,
    ) -> None:
        super().__init__(blocks)
        self.quantiles = tuple(quantiles or ())
        if any(low >= high for low, high in pairwise(self.quantiles)):
            raise ValueError(f"`quantiles` must be in increasing order, got {list(self.quantiles)}")
        if d_covariates_ahead > d_covariates:
            raise ValueError(f"`d_covariates_ahead` must be at most `d_covariates`, {d_covariates}, got {d_covariates_ahead}")
        if mode == "offset" and d_covariates_ahead:
            raise ValueError(f"`d_covariates_ahead` must be 0 in mode 'offset', got {d_covariates_ahead}")
        self.horizon, self.mode, self.normalise, self.d_input = horizon, mode, normalise, d_input
        self.d_covariates, self.d_covariates_ahead = d_covariates, d_covariates_ahead
        if mode == "offset" and blocks_window is not None and blocks_window < horizon:
            raise ValueError(f"`blocks_window` must be at least the horizon, {horizon}, in mode 'offset', got {blocks_window}")
        self.blocks_window = blocks_window
        # One more channel than series and covariates have: 1 at the steps of the series, 0 at the steps of the forecast.
        self.backbone = SequenceModel(
            blocks,
            d_model=d_model,
            d_output=d_input * (1 + len(self.quantiles)),
            d_input=d_input + 1 + d_covariates,
            pooling="none",
            head="affine",
            backend=backend,
        )
        if not self.backbone.causal:
            raise ValueError("`blocks` must be causal, got blocks that are not")
        self.backbone.require_same_length("forecasts")
        if mode == "queries":
            self.backbone.require_streaming("mode 'queries'")
        self.linear_window = linear_window
        if linear_window is None and linear_channels != "shared":
            raise ValueError(f"`linear_channels` must be 'shared' without `linear_window`, got {linear_channels!r}")
        if linear_window is None and linear_covariate_window:
            raise ValueError(f"`linear_covariate_window` must be 0 without `linear_window`, got {linear_covariate_window}")
        if linear_window is not None:
            maps = 1 if linear_channels == "shared" else d_input
            self.linear_weight = nn.Parameter(torch.zeros(maps, horizon, linear_window))
            self.linear_level = nn.Parameter(torch.zeros(maps, horizon))
            self.linear_bias = nn.Parameter(torch.zeros(maps, horizon))
            self.linear_effect = nn.Parameter(torch.zeros(d_input, d_covariates_ahead))
            self.linear_covariates = nn.Parameter(torch.zeros(d_input, horizon, linear_covariate_window, d_covariates))
            for parameter in self.backbone.head.parameters():
                nn.init.zeros_(parameter)

    def set_linear(
        self, weight: Tensor, level: Tensor, bias: Tensor, effect: Tensor | None = None, covariates: Tensor | None = None
    ) -> None:
        """Set the linear forecast and exclude it from training.

        The linear forecast of step k after the last W = `linear_window` steps x_1 ... x_W of a channel, of mean m, is
        m + sum_j weight[k, j] (x_j - m) + level[k] m + bias[k]. Steps before the first one count as m. With covariates that are
        known ahead, x is the series less `effect` times these covariates, which is added to the forecast. The last steps of all
        covariates times `covariates` are added, too.

        Args:
            weight: (maps, horizon, W), where maps is 1 with `linear_channels="shared"` and d_input with "own".
            level: (maps, horizon).
            bias: (maps, horizon).
            effect: (d_input, d_covariates_ahead), None for 0.
            covariates: (d_input, horizon, linear_covariate_window, d_covariates), None for 0.

        Raises ValueError for another shape, and for a model without a linear forecast.
        """
        if self.linear_window is None:
            raise ValueError("`linear_window` must be a number of steps to set a linear forecast, got None")
        values = {"weight": weight, "level": level, "bias": bias, "effect": effect, "covariates": covariates}
        for name, given in values.items():
            parameter = self.get_parameter(f"linear_{name}")
            check_is_tensor(name, given)
            value = torch.zeros_like(parameter) if given is None else given
            if value.shape != parameter.shape:
                raise ValueError(f"`{name}` must have shape {tuple(parameter.shape)}, got {tuple(value.shape)}")
            with torch.no_grad():
                parameter.copy_(value)
            parameter.requires_grad_(False)

    def scale_blocks(self, factor: float) -> None:
        """Multiply what the blocks add to the linear forecast by `factor`. Quantiles keep their distances to the forecast.

        Raises ValueError for a model without a linear forecast, and for a factor that is not finite.
        """
        if self.linear_window is None:
            raise ValueError("`linear_window` must be a number of steps to scale what the blocks add, got None")
        checked_value(factor, float, "factor")
        with torch.no_grad():
            for parameter in self.backbone.head.parameters():
                parameter[: self.d_input] *= factor

    def forward(
        self,
        inputs: Tensor,
        *,
        elapsed: Tensor | None = None,
        valid: Tensor | None = None,
        elapsed_ahead: Tensor | None = None,
        covariates: Tensor | None = None,
        covariates_ahead: Tensor | None = None,
    ) -> Tensor:
        """Return the forecast (B, horizon, d_input) of a batch of series.

        Args:
            inputs: (B, L, d_input), L >= 1.
            elapsed: (B, L), time since the previous step; None for 1 at every step.
            valid: (B, L) bool, False for padding. Each row has one contiguous run of valid steps.
            elapsed_ahead: (B, horizon), time between the steps of the forecast, in mode "queries"; None for 1.
            covariates: (B, L, d_covariates), for a model with covariates.
            covariates_ahead: (B, horizon, d_covariates_ahead), for a model with covariates that are known ahead.

        Inside `longscan.distributed.context_parallel` arguments with L steps are pieces, the others are the same on all
        processes, and all processes return the whole forecast.

        The forecast is in the promotion of the dtypes of inputs and weights. Raises TypeError or ValueError naming an argument
        that does not fit.
        """
        return self._forecast(inputs, elapsed, valid, elapsed_ahead, covariates, covariates_ahead)[0]

    def forecast_quantiles(
        self,
        inputs: Tensor,
        *,
        elapsed: Tensor | None = None,
        valid: Tensor | None = None,
        elapsed_ahead: Tensor | None = None,
        covariates: Tensor | None = None,
        covariates_ahead: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the forecast (B, horizon, d_input) and its quantiles (B, horizon, d_input, Q), which do not decrease along Q.

        The arguments are those of `forward`. Losses of the quantiles have no gradient through the forecast that they surround.
        """
        return self._forecast(inputs, elapsed, valid, elapsed_ahead, covariates, covariates_ahead)

    def _forecast(
        self,
        inputs: Tensor,
        elapsed: Tensor | None,
        valid: Tensor | None,
        elapsed_ahead: Tensor | None,
        covariates: Tensor | None,
        covariates_ahead: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the forecast (B, horizon, d_input) and its quantiles (B, horizon, d_input, Q), see `forecast_quantiles`."""
        require_tensor("inputs", inputs)
        if inputs.ndim != 3 or inputs.shape[-1] != self.d_input or not inputs.shape[1]:
            raise ValueError(f"`inputs` must have shape (batch, length >= 1, {self.d_input}), got {tuple(inputs.shape)}")
        if inputs.is_complex():
            raise TypeError(f"`inputs` must be real numbers, got {inputs.dtype}")
        check_step_shapes((inputs.shape[0], inputs.shape[1]), elapsed, valid)
        self._check_ahead(elapsed_ahead, inputs.shape[0])
        split = current_split()
        if split is not None:  # the series, a few numbers for each step, are gathered; the blocks read pieces of them
            inputs = gather_steps(inputs, split)
            elapsed, valid, covariates = (
                part if part is None else gather_steps(part, split) for part in (elapsed, valid, covariates)
            )
        inputs = mask_padding(inputs.to(torch.promote_types(inputs.dtype, self.backbone.encoder.weight.dtype)), valid)
        covariates = self._checked_covariates("covariates", covariates, inputs, inputs.shape[1], self.d_covariates)
        ahead = self._checked_covariates("covariates_ahead", covariates_ahead, inputs, self.horizon, self.d_covariates_ahead)
        covariates = mask_padding(covariates, valid)
        linear = None
        if self.linear_window is not None:
            effect = self.linear_effect.T.to(inputs.dtype)
            inputs = inputs - covariates[..., self.d_covariates - self.d_covariates_ahead :] @ effect
            linear = self._linear(inputs, valid) + self._linear_of_covariates(covariates, valid) + ahead @ effect
        if self.blocks_window is not None and inputs.shape[1] > self.blocks_window:
            inputs, mask = _last_steps(inputs, valid, self.blocks_window)
            covariates, _ = _last_steps(covariates, valid, self.blocks_window)
            if elapsed is not None:
                elapsed = _last_steps(elapsed.unsqueeze(-1), valid, self.blocks_window)[0].squeeze(-1)
            valid = None if valid is None else mask.squeeze(-1).bool()
        mean, deviation = self._mean_and_deviation(inputs, valid)
        inputs = (inputs - mean) / deviation
        measured = torch.cat([inputs, torch.ones_like(inputs[..., :1]), covariates], -1)
        series = _piece(measured, split)
        elapsed, own_valid = (part if part is None else _piece(part, split) for part in (elapsed, valid))
        if self.mode == "queries":
            _, state = self.backbone(series, elapsed=elapsed, valid=own_valid, return_state=True)
            empty_steps = measured.new_zeros(inputs.shape[0], self.horizon, measured.shape[-1] - self.d_covariates_ahead)
            with use_split(None):  # every process has the state after the series, and all steps of the forecast
                y = self.backbone(torch.cat([empty_steps, ahead], -1), state, elapsed=elapsed_ahead)
        else:
            y = self.backbone(series, elapsed=elapsed, valid=own_valid)
            y = self._last_outputs(y if split is None else gather_steps(y, split), valid)
        forecast = y[..., : self.d_input] * deviation + (mean if linear is None else linear)
        if not self.quantiles:
            return forecast, forecast.new_zeros(*forecast.shape, 0)
        distances = y[..., self.d_input :].unflatten(-1, (self.d_input, len(self.quantiles))) * deviation.unsqueeze(-1)
        return forecast, (forecast.detach().unsqueeze(-1) + distances).sort(-1).values

    def _check_ahead(self, elapsed_ahead: Tensor | None, batch: int) -> None:
        """Raise TypeError or ValueError for times of the steps of the forecast that this model cannot use."""
        check_is_tensor("elapsed_ahead", elapsed_ahead)
        if elapsed_ahead is None:
            return
        if self.mode == "offset":
            raise ValueError("`elapsed_ahead` must be None in mode 'offset', which runs no further steps, got times")
        if elapsed_ahead.shape != (batch, self.horizon):
            raise ValueError(f"`elapsed_ahead` must have shape {(batch, self.horizon)}, got {tuple(elapsed_ahead.shape)}")
        if values_unavailable(elapsed_ahead):
            return
        wrong = ~(elapsed_ahead.isfinite() & (elapsed_ahead >= 0))
        if bool(wrong.any()):
            raise ValueError(f"`elapsed_ahead` must be finite times of at least 0, got {elapsed_ahead[wrong][0].item()}")

    def _checked_covariates(self, name: str, value: Tensor | None, inputs: Tensor, length: int, count: int) -> Tensor:
        """Return covariates (B, length, count) in the dtype of the inputs; for None a tensor without columns if `count` is 0.

        name: the argument, for errors. Raises TypeError or ValueError unless `value` is a tensor of real numbers of this shape.
        """
        shape = (inputs.shape[0], length, count)
        check_is_tensor(name, value)
        if value is None and not count:
            return inputs.new_zeros(shape)
        if value is None or value.shape != shape:
            raise ValueError(f"`{name}` must have shape {shape}, got {None if value is None else tuple(value.shape)}")
        if value.is_complex():
            raise TypeError(f"`{name}` must be real numbers, got {value.dtype}")
        return value.to(inputs.dtype)

    def _linear_of_covariates(self, covariates: Tensor, valid: Tensor | None) -> Tensor:
        """Return the linear forecast (B, horizon, d_input) from the last valid steps of the covariates (B, L, d_covariates)."""
        window = self.linear_covariates.shape[2]
        past, _ = _last_steps(covariates, valid, window)
        return torch.einsum("btp,chtp->bhc", past, self.linear_covariates[:, :, window - past.shape[1] :].to(past.dtype))

    def _linear(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """Return the linear forecast (B, horizon, d_input) from the last valid steps of x (B, L, d_input)."""
        window = self.linear_weight.shape[-1]
        past, mask = _last_steps(x, valid, window)
        count = mask.sum(1, keepdim=True).clamp(min=1)
        mean = past.sum(1, keepdim=True) / count
        own = (self.linear_weight[..., window - past.shape[1] :], self.linear_level, self.linear_bias)
        return apply_linear_forecast((past - mean) * mask, mean, *(parameter.to(x.dtype) for parameter in own))

    def _last_outputs(self, y: Tensor, valid: Tensor | None) -> Tensor:
        """Return the last `horizon` valid steps of y (B, L, d_input)."""
        shortest = y.shape[1] if valid is None or values_unavailable(valid) else int(valid.sum(1).min())
        if shortest < self.horizon:
            raise ValueError(f"`inputs` must have at least {self.horizon} steps, as many as the horizon, got {shortest}")
        if valid is None:
            return y[:, -self.horizon :]
        end = torch.where(valid, torch.arange(y.shape[1], device=y.device), 0).amax(1, keepdim=True)
        steps = end - torch.arange(self.horizon - 1, -1, -1, device=y.device)
        return y.gather(1, steps.unsqueeze(-1).expand(-1, -1, y.shape[-1]))

    def _mean_and_deviation(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of each series, (B, 1, d_input), or 0 and 1 without `normalise`."""
        if not self.normalise:
            return x.new_zeros(1), x.new_ones(1)
        mask = x.new_ones(*x.shape[:2], 1) if valid is None else valid.unsqueeze(-1).to(x.dtype)
        count = mask.sum(1, keepdim=True).clamp(min=1)
        mean = (x * mask).sum(1, keepdim=True) / count
        variance = ((x - mean).square() * mask).sum(1, keepdim=True) / count
        return mean, (variance + EPSILON).sqrt()


def apply_linear_forecast(centred: Tensor, mean: Tensor, weight: Tensor, level: Tensor, bias: Tensor) -> Tensor:
    """Return the linear forecast (B, K, C) of windows of T steps, see `Forecaster.set_linear`.

    Args:
        centred: the windows less their mean, (B, T, C), 0 at steps before the first one.
        mean: of the windows, (B, 1, C).
        weight: (maps, K, T), where maps is 1 or C.
        level: (maps, K).
        bias: (maps, K).
    """
    change = torch.einsum("btc,cht->bhc", centred, weight.expand(centred.shape[-1], -1, -1))
    return mean * (1 + level.T) + bias.T + change


def _last_steps(x: Tensor, valid: Tensor | None, window: int) -> tuple[Tensor, Tensor]:
    """Return the last valid steps of x (B, L, C), at most `window`, with 0 before the first one, and whether they are valid."""
    count = min(window, x.shape[1])
    if valid is None:
        return x[:, x.shape[1] - count :], x.new_ones(1, count, 1)
    steps = torch.arange(x.shape[1], device=x.device)
    end = torch.where(valid, steps, 0).amax(1, keepdim=True)
    taken = end - torch.arange(count - 1, -1, -1, device=x.device)
    clamped = taken.clamp(min=0)
    mask = (valid.gather(1, clamped) & (taken >= 0)).unsqueeze(-1).to(x.dtype)
    return x.gather(1, clamped.unsqueeze(-1).expand(-1, -1, x.shape[-1])) * mask, mask


def _piece(x: Tensor, split: SequenceSplit | None) -> Tensor:
    """Return this process's piece of x (B, L, ...), or x itself if sequences are not split.

    Raises ValueError if L is not a multiple of the number of pieces.
    """
    if split is None:
        return x
    if x.shape[1] % split.size:
        needed = f"a multiple of {split.size} steps that the blocks read, one piece for each process"
        raise ValueError(f"`inputs` must have {needed}, got {x.shape[1]} steps")
    return x.chunk(split.size, 1)[split.rank]
