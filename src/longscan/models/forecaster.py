"""Forecasts of a series: read what was measured, then go on step by step for as long as asked.

    queries (default): the state after the last step is run on over `horizon` steps without input; step k answers for time L + k.
    offset: the output at step t is the forecast of step t + horizon, so an answer of horizon steps wants as many steps of input,
    and its first one has seen the first step alone (the head of the AUSSM paper's code).

No output ever depends on what comes after the input: there is nothing of it in the model's arguments.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from longscan.layers.checks import values_unavailable
from longscan.models.base import PretrainedModel
from longscan.models.sequence_model import SequenceModel

EPSILON = 1e-5


class Forecaster(PretrainedModel):
    """(B, L, d_input) to (B, horizon, d_input).

    Args:
        blocks: the canonical list, see `longscan.models.parse_spec`; all blocks causal, and able to stream in mode "queries".
        d_model: width of the stack.
        d_input: channels of the series.
        horizon: steps of a forecast.
        mode: "queries" or "offset", see the top of the file.
        normalise: each series is read in units of its own mean and standard deviation, and its forecast given in them.
        backend: of every op.
    """

    def __init__(
        self,
        blocks: Sequence[Mapping[str, Any]],
        *,
        d_model: int,
        d_input: int,
        horizon: int,
        mode: Literal["queries", "offset"] = "queries",
        normalise: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__(
            blocks,
            d_model=d_model,
            d_input=d_input,
            horizon=horizon,
            mode=mode,
            normalise=normalise,
            backend=backend,
        )
        self.horizon, self.mode, self.normalise, self.d_input = horizon, mode, normalise, d_input
        # One channel more than the series has: 1 where a step was measured, 0 where a forecast is asked for.
        self.backbone = SequenceModel(
            blocks, d_model=d_model, d_output=d_input, d_input=d_input + 1, pooling="none", head="affine", backend=backend
        )
        if not self.backbone.causal:
            raise ValueError("blocks: some are not causal, needed blocks that see no later steps")
        self.backbone.require_length("blocks")
        if mode == "queries":
            self.backbone.require_streaming("blocks")

    def forward(
        self,
        inputs: Tensor,
        *,
        elapsed: Tensor | None = None,
        valid: Tensor | None = None,
        elapsed_ahead: Tensor | None = None,
    ) -> Tensor:
        """The forecast (B, horizon, d_input).

        Args:
            inputs: (B, L, d_input), L >= 1.
            elapsed, valid: (B, L), as in `SequenceModel.forward`.
            elapsed_ahead: (B, horizon), times between the steps that are asked for, in mode "queries"; None: 1.
        """
        if inputs.ndim != 3 or inputs.shape[-1] != self.d_input or not inputs.shape[1]:
            raise ValueError(f"inputs: got shape {tuple(inputs.shape)}, needed (batch, length >= 1, {self.d_input})")
        if valid is not None:
            inputs = torch.where(valid.unsqueeze(-1), inputs, 0)
        mean, deviation = self._scale(inputs, valid)
        inputs = (inputs - mean) / deviation
        measured = torch.cat([inputs, torch.ones_like(inputs[..., :1])], -1)
        if self.mode == "queries":
            _, state = self.backbone(measured, elapsed=elapsed, valid=valid, return_state=True)
            asked = measured.new_zeros(inputs.shape[0], self.horizon, self.d_input + 1)
            y = self.backbone(asked, state, elapsed=elapsed_ahead)
        else:
            if elapsed_ahead is not None:
                raise ValueError("elapsed_ahead: a forecaster of mode 'offset' runs no steps ahead; leave it None")
            y = self._last(self.backbone(measured, elapsed=elapsed, valid=valid), valid)
        return y * deviation + mean

    def _last(self, y: Tensor, valid: Tensor | None) -> Tensor:
        """The last `horizon` valid steps."""
        shortest = y.shape[1] if valid is None or values_unavailable(valid) else int(valid.sum(1).min())
        if shortest < self.horizon:
            raise ValueError(f"inputs: got a series of {shortest} steps, needed at least the horizon's {self.horizon}")
        if valid is None:
            return y[:, -self.horizon :]
        end = torch.where(valid, torch.arange(y.shape[1], device=y.device), 0).amax(1, keepdim=True)
        steps = end - torch.arange(self.horizon - 1, -1, -1, device=y.device)
        return y.gather(1, steps.unsqueeze(-1).expand(-1, -1, y.shape[-1]))

    def _scale(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each series, (B, 1, d_input); 0 and 1 without `normalise`."""
        if not self.normalise:
            return x.new_zeros(1), x.new_ones(1)
        real = x.new_ones(*x.shape[:2], 1) if valid is None else valid.unsqueeze(-1).to(x.dtype)
        count = real.sum(1, keepdim=True).clamp(min=1)
        mean = (x * real).sum(1, keepdim=True) / count
        variance = ((x - mean).square() * real).sum(1, keepdim=True) / count
        return mean, (variance + EPSILON).sqrt()
