"""`Forecaster`: a model that reads a series and forecasts the steps that follow.

Two modes:

- "queries": the model runs `horizon` further steps without input, from the state after the last step of the series. The output at
  the k-th of them is the forecast of step L + k.
- "offset": the output at step t is the forecast of step t + horizon (the head of the AUSSM paper's code). The forecast consists
  of the last `horizon` outputs, so the series needs at least that many steps, and the first output of a series of exactly that
  many depends on its first step only.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from longscan._types import PositiveInt
from longscan.layers.base import mask_padding
from longscan.layers.checks import values_unavailable
from longscan.models.base import PretrainedModel
from longscan.models.sequence_model import SequenceModel
from longscan.ops.dispatch import Backend

EPSILON = 1e-5


class Forecaster(PretrainedModel):
    """A model that maps series (B, L, d_input) to forecasts (B, horizon, d_input).

    Args:
        blocks: the stack as a list of `{"layer", "block", "options"}`, see `longscan.models.parse_spec`. All blocks are causal,
            and in mode "queries" able to run step by step.
        d_model: width of the stack.
        d_input: number of channels of a series.
        horizon: number of steps of a forecast.
        mode: "queries", run `horizon` further steps without input from the state after the last step; or "offset", the output at
            step t is the forecast of step t + horizon.
        normalise: subtract the mean of each series and divide by its standard deviation, and undo both in the forecast.
        backend: backend of every op, "auto" to choose for each call.
        linear_window: add a linear forecast from that number of steps to that of the blocks, see `set_linear`; None for none.
            With it the head of the blocks is initialised by 0, so that the linear forecast is the model's before training.
        linear_channels: "shared", one linear map for all channels, or "own", one for each.

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
    ) -> None:
        super().__init__(blocks)
        self.horizon, self.mode, self.normalise, self.d_input = horizon, mode, normalise, d_input
        # One more channel than the series has: 1 at the steps of the series, 0 at the steps of the forecast.
        self.backbone = SequenceModel(
            blocks, d_model=d_model, d_output=d_input, d_input=d_input + 1, pooling="none", head="affine", backend=backend
        )
        if not self.backbone.causal:
            raise ValueError("`blocks` must be causal, got blocks that are not")
        self.backbone.require_same_length("forecasts")
        if mode == "queries":
            self.backbone.require_streaming("mode 'queries'")
        self.linear_window = linear_window
        if linear_window is not None:
            maps = 1 if linear_channels == "shared" else d_input
            self.linear_weight = nn.Parameter(torch.zeros(maps, horizon, linear_window))
            self.linear_level = nn.Parameter(torch.zeros(maps, horizon))
            self.linear_bias = nn.Parameter(torch.zeros(maps, horizon))
            for parameter in self.backbone.head.parameters():
                nn.init.zeros_(parameter)

    def set_linear(self, weight: Tensor, level: Tensor, bias: Tensor) -> None:
        """Set the linear forecast and exclude it from training.

        The linear forecast of step k after the last W = `linear_window` steps x_1 ... x_W of a channel, of mean m, is
        m + sum_j weight[k, j] (x_j - m) + level[k] m + bias[k]. Steps before the first one count as m.

        Args:
            weight: (maps, horizon, W), where maps is 1 with `linear_channels="shared"` and d_input with "own".
            level: (maps, horizon).
            bias: (maps, horizon).

        Raises ValueError for another shape, and for a model without a linear forecast.
        """
        if self.linear_window is None:
            raise ValueError("`linear_window` must be a number of steps to set a linear forecast, got None")
        for name, value in (("weight", weight), ("level", level), ("bias", bias)):
            parameter = self.get_parameter(f"linear_{name}")
            if value.shape != parameter.shape:
                raise ValueError(f"`{name}` must have shape {tuple(parameter.shape)}, got {tuple(value.shape)}")
            with torch.no_grad():
                parameter.copy_(value)
            parameter.requires_grad_(False)

    def forward(
        self,
        inputs: Tensor,
        *,
        elapsed: Tensor | None = None,
        valid: Tensor | None = None,
        elapsed_ahead: Tensor | None = None,
    ) -> Tensor:
        """Return the forecast (B, horizon, d_input) of a batch of series.

        Args:
            inputs: (B, L, d_input), L >= 1.
            elapsed: (B, L), time since the previous step; None for 1 at every step.
            valid: (B, L) bool, False for padding. Each row has one contiguous run of valid steps.
            elapsed_ahead: (B, horizon), time between the steps of the forecast, in mode "queries"; None for 1.

        Raises ValueError naming an argument that does not fit.
        """
        if inputs.ndim != 3 or inputs.shape[-1] != self.d_input or not inputs.shape[1]:
            raise ValueError(f"`inputs` must have shape (batch, length >= 1, {self.d_input}), got {tuple(inputs.shape)}")
        inputs = mask_padding(inputs, valid)
        linear = None if self.linear_window is None else self._linear(inputs, valid)
        mean, deviation = self._scale(inputs, valid)
        inputs = (inputs - mean) / deviation
        measured = torch.cat([inputs, torch.ones_like(inputs[..., :1])], -1)
        if self.mode == "queries":
            _, state = self.backbone(measured, elapsed=elapsed, valid=valid, return_state=True)
            queries = measured.new_zeros(inputs.shape[0], self.horizon, self.d_input + 1)
            y = self.backbone(queries, state, elapsed=elapsed_ahead)
        else:
            if elapsed_ahead is not None:
                raise ValueError("`elapsed_ahead` must be None in mode 'offset', which runs no further steps, got times")
            y = self._last(self.backbone(measured, elapsed=elapsed, valid=valid), valid)
        return y * deviation + (mean if linear is None else linear)

    def _linear(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """Return the linear forecast (B, horizon, d_input) from the last valid steps of x (B, L, d_input)."""
        window = self.linear_weight.shape[-1]
        if valid is None:
            past = x[:, -window:]
            count = past.new_full((1, 1, 1), past.shape[1])
            mask = past.new_ones(1, past.shape[1], 1)
        else:
            steps = torch.arange(x.shape[1], device=x.device)
            end = torch.where(valid, steps, 0).amax(1, keepdim=True)
            taken = end - torch.arange(min(window, x.shape[1]) - 1, -1, -1, device=x.device)
            clamped = taken.clamp(min=0)
            mask = (valid.gather(1, clamped) & (taken >= 0)).unsqueeze(-1).to(x.dtype)
            past = x.gather(1, clamped.unsqueeze(-1).expand(-1, -1, x.shape[-1])) * mask
            count = mask.sum(1, keepdim=True).clamp(min=1)
        mean = past.sum(1, keepdim=True) / count
        centred = (past - mean) * mask
        weight = self.linear_weight[..., window - past.shape[1] :].expand(x.shape[-1], -1, -1)
        change = torch.einsum("btc,cht->bhc", centred, weight)
        return mean * (1 + self.linear_level.T) + self.linear_bias.T + change

    def _last(self, y: Tensor, valid: Tensor | None) -> Tensor:
        """Return the last `horizon` valid steps of y (B, L, d_input)."""
        shortest = y.shape[1] if valid is None or values_unavailable(valid) else int(valid.sum(1).min())
        if shortest < self.horizon:
            raise ValueError(f"`inputs` must have at least {self.horizon} steps, as many as the horizon, got {shortest}")
        if valid is None:
            return y[:, -self.horizon :]
        end = torch.where(valid, torch.arange(y.shape[1], device=y.device), 0).amax(1, keepdim=True)
        steps = end - torch.arange(self.horizon - 1, -1, -1, device=y.device)
        return y.gather(1, steps.unsqueeze(-1).expand(-1, -1, y.shape[-1]))

    def _scale(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of each series, (B, 1, d_input), or 0 and 1 without `normalise`."""
        if not self.normalise:
            return x.new_zeros(1), x.new_ones(1)
        mask = x.new_ones(*x.shape[:2], 1) if valid is None else valid.unsqueeze(-1).to(x.dtype)
        count = mask.sum(1, keepdim=True).clamp(min=1)
        mean = (x * mask).sum(1, keepdim=True) / count
        variance = ((x - mean).square() * mask).sum(1, keepdim=True) / count
        return mean, (variance + EPSILON).sqrt()
