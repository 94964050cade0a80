"""Two sequences, one answer: whether one document cites the other (Long Range Arena's retrieval, Tay et al. 2021).

a, b = features of both, pooled, from one stack        y = MLP([a, b, a * b, a - b])
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from longscan.models.base import PretrainedModel
from longscan.models.sequence_model import SequenceModel


class SiameseModel(PretrainedModel):
    """Two batches of sequences to (B, d_output).

    Args:
        blocks: the canonical list, see `longscan.models.parse_spec`.
        d_model: width of the stack.
        d_output: size of an answer.
        vocab_size, d_input: tokens or vectors, as in `SequenceModel`: exactly one of them.
        pooling: "mean" or "last".
        interaction: "nli", [a, b, a * b, a - b] (Long Range Arena), or "concat", [a, b].
        backend: of every op.
    """

    def __init__(
        self,
        blocks: Sequence[Mapping[str, Any]],
        *,
        d_model: int,
        d_output: int,
        vocab_size: int | None = None,
        d_input: int | None = None,
        pooling: Literal["mean", "last"] = "mean",
        interaction: Literal["nli", "concat"] = "nli",
        backend: str = "auto",
    ) -> None:
        super().__init__(
            blocks,
            d_model=d_model,
            d_output=d_output,
            vocab_size=vocab_size,
            d_input=d_input,
            pooling=pooling,
            interaction=interaction,
            backend=backend,
        )
        self.d_output, self.interaction = d_output, interaction
        self.backbone = SequenceModel(
            blocks,
            d_model=d_model,
            d_output=d_model,
            vocab_size=vocab_size,
            d_input=d_input,
            pooling=pooling,
            head="none",
            backend=backend,
        )
        parts = 4 if interaction == "nli" else 2
        self.head = nn.Sequential(nn.Linear(parts * d_model, d_model), nn.GELU(), nn.Linear(d_model, d_output))

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
        """(B, d_output) for two batches of B sequences, (B, L) or (B, L, d_input), whose lengths may differ.

        valid and elapsed of either are those of `SequenceModel.forward`.
        """
        if len(first) != len(second):
            raise ValueError(f"second: got {len(second)} sequences, needed {len(first)}, as many as first has")
        a = self.backbone(first, valid=valid_first, elapsed=elapsed_first)
        b = self.backbone(second, valid=valid_second, elapsed=elapsed_second)
        parts = [a, b, a * b, a - b] if self.interaction == "nli" else [a, b]
        y: Tensor = self.head(torch.cat(parts, -1))
        return y
