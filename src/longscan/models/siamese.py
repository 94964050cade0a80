"""`SiameseModel`: one output for two sequences, such as whether two documents are related (Tay et al. 2021, retrieval).

The same stack maps both sequences to pooled features a and b, and y = MLP([a, b, a * b, a - b]).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from longscan._types import PositiveInt
from longscan.blocks.residual import Norm
from longscan.models.base import PretrainedModel
from longscan.models.sequence_model import Padding, SequenceModel
from longscan.ops.dispatch import Backend


class SiameseModel(PretrainedModel):
    """A model that maps two batches of sequences to one output (B, d_output) for each pair.

    Args:
        blocks: the stack as a list of `{"layer", "block", "options"}`, see `longscan.models.parse_spec`.
        d_model: width of the stack.
        d_output: size of an output.
        vocab_size: number of tokens, for inputs (B, L) of tokens.
        d_input: size of the input vectors, for inputs (B, L, d_input). Exactly one of vocab_size and d_input is given.
        pooling: "mean" over the valid steps, or "last" for the last valid step.
        interaction: inputs of the MLP, [a, b, a * b, a - b] for "nli" (Long Range Arena) and [a, b] for "concat".
        norm: of the residual branches, as in `SequenceModel`.
        padding: "masked" or "read", as in `SequenceModel`.
        backend: backend of every op, "auto" to choose for each call.

    Raises ValueError naming an argument that does not fit.

    Attributes:
        backbone: the `SequenceModel` that both sequences pass through, inputs to features (B, d_model).
    """

    def __init__(
        self,
        blocks: Sequence[Mapping[str, Any]],
        *,
        d_model: PositiveInt,
        d_output: PositiveInt,
        vocab_size: PositiveInt | None = None,
        d_input: PositiveInt | None = None,
        pooling: Literal["mean", "last"] = "mean",
        interaction: Literal["nli", "concat"] = "nli",
        norm: Norm = "rms",
        padding: Padding = "masked",
        backend: Backend = "auto",
    ) -> None:
        super().__init__(blocks)
        self.d_output, self.interaction = d_output, interaction
        self.backbone = SequenceModel(
            blocks,
            d_model=d_model,
            d_output=d_model,
            vocab_size=vocab_size,
            d_input=d_input,
            pooling=pooling,
            head="none",
            norm=norm,
            padding=padding,
            backend=backend,
        )
        n_features = 4 if interaction == "nli" else 2
        self.head = nn.Sequential(nn.Linear(n_features * d_model, d_model), nn.GELU(), nn.Linear(d_model, d_output))

    def forward(
        self,
        first: Tensor,
        second: Tensor,
        *,
        valid_first: Tensor | None = None,
        valid_second: Tensor | None = None,
        elapsed_first: Tensor | None = None,
        elapsed_second: Tensor | None = None,
    ) -> Tensor:
        """Return the output (B, d_output) for each pair of sequences.

        Args:
            first, second: two batches of B sequences, tokens (B, L) or vectors (B, L, d_input). Their lengths may differ.
            valid_first, valid_second: (B, L) bool, False for padding.
            elapsed_first, elapsed_second: (B, L), time since the previous step; None for 1 at every step.

        Raises ValueError naming an argument that does not fit.
        """
        for name, inputs, elapsed, valid in (
            ("first", first, elapsed_first, valid_first),
            ("second", second, elapsed_second, valid_second),
        ):
            self.backbone.check_inputs(inputs, elapsed, valid, name=name, suffix=f"_{name}")
        if len(first) != len(second):
            raise ValueError(f"`second` must have {len(first)} sequences, as many as first, got {len(second)}")
        a = self.backbone(first, valid=valid_first, elapsed=elapsed_first)
        b = self.backbone(second, valid=valid_second, elapsed=elapsed_second)
        features = [a, b, a * b, a - b] if self.interaction == "nli" else [a, b]
        y: Tensor = self.head(torch.cat(features, -1))
        return y
