"""Language models: token embedding, a stack, logits for every token; the head may be the embedding itself.

With causal blocks the logits at step t are about token t + 1; with bidirectional ones about token t where it was masked: that is
a matter of the objective, see `longscan.models.objectives`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from longscan.blocks.bidirectional import BidirectionalBlock
from longscan.blocks.gated import GatedBlock
from longscan.blocks.heads import HeadsBlock
from longscan.blocks.residual import Norm
from longscan.layers.parameters import mark
from longscan.models.base import PretrainedModel
from longscan.models.sequence_model import ModelState, SequenceModel, check_tokens


class LanguageModel(PretrainedModel):
    """embedding -> blocks -> norm -> logits (B, L, vocab_size).

    Starts as Mamba's language models do (Gu and Dao 2023, the authors' code): embedding N(0, 0.02^2), out_proj of the gated
    blocks uniform with variance 1 / (3 fan_in), divided by the root of the number of blocks.

    Args:
        blocks: the canonical list, see `longscan.models.parse_spec`.
        d_model: width of the stack.
        vocab_size: number of tokens.
        tied: the head is the embedding; otherwise a map of its own, without bias.
        pad_vocab_to: the embedding has a multiple of this many rows, which matrix units like; rows beyond vocab_size stand for
            no token and their logits are cut off.
        initial_state: "zero" or "learned", as in `SequenceModel`.
        norm: of the residual branches, as in `SequenceModel`.
        backend: of every op.

    Attributes:
        backbone: the `SequenceModel` under the head, (B, L) tokens to (B, L, d_model).
    """

    def __init__(
        self,
        blocks: Sequence[Mapping[str, Any]],
        *,
        d_model: int,
        vocab_size: int,
        tied: bool = True,
        pad_vocab_to: int = 8,
        initial_state: Literal["zero", "learned"] = "zero",
        norm: Norm = "rms",
        backend: str = "auto",
    ) -> None:
        super().__init__(
            blocks,
            d_model=d_model,
            vocab_size=vocab_size,
            tied=tied,
            pad_vocab_to=pad_vocab_to,
            initial_state=initial_state,
            norm=norm,
            backend=backend,
        )
        self.vocab_size, self.pad_vocab_to = vocab_size, pad_vocab_to
        rows = -(-vocab_size // pad_vocab_to) * pad_vocab_to
        self.backbone = SequenceModel(
            blocks,
            d_model=d_model,
            d_output=d_model,
            vocab_size=rows,
            pooling="none",
            head="none",
            initial_state=initial_state,
            norm=norm,
            backend=backend,
        )
        self.backbone.require_length("blocks")
        self.lm_head: nn.Parameter | None = None
        if not tied:
            self.lm_head = mark(nn.Parameter(torch.empty(rows, d_model).uniform_(-1, 1) / math.sqrt(d_model)), "dense")
        self._start()

    @torch.no_grad()
    def _start(self) -> None:
        nn.init.normal_(self.backbone.encoder.weight, std=0.02)
        for module in self.backbone.modules():
            if isinstance(module, (GatedBlock, HeadsBlock, BidirectionalBlock)):
                nn.init.kaiming_uniform_(module.out_proj.weight, a=math.sqrt(5))
                module.out_proj.weight /= math.sqrt(len(self.backbone.stack))

    @property
    def causal(self) -> bool:
        """Whether the logits of a step depend on the steps up to it alone."""
        return self.backbone.causal

    @property
    def streaming(self) -> bool:
        """Whether a state carries a sequence from step to step."""
        return self.backbone.streaming

    def forward(
        self,
        inputs: Tensor,
        state: ModelState | None = None,
        *,
        elapsed: Tensor | None = None,
        valid: Tensor | None = None,
        seq_idx: Tensor | None = None,
        return_state: bool = False,
    ) -> Any:
        """Logits (B, L, vocab_size) for tokens (B, L), zeros in the padding; or these and the state.

        The arguments are those of `SequenceModel.forward`.
        """
        check_tokens(inputs, valid, self.vocab_size)
        found = self.backbone(inputs, state, elapsed=elapsed, valid=valid, seq_idx=seq_idx, return_state=return_state)
        features, after = found if return_state else (found, None)
        logits = self.logits(features)
        return (logits, after) if return_state else logits

    def step(
        self, inputs: Tensor, state: ModelState, *, elapsed: Tensor | None = None, active: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """One step: tokens (B,), elapsed (B,), active (B,) bool. Returns logits (B, vocab_size) and the state."""
        check_tokens(inputs.unsqueeze(1), None if active is None else active.unsqueeze(1), self.vocab_size)
        features, after = self.backbone.step(inputs, state, elapsed=elapsed, active=active)
        return self.logits(features), after

    def logits(self, features: Tensor) -> Tensor:
        """(..., vocab_size) for what the backbone gives, (..., d_model)."""
        weight = self.backbone.encoder.weight if self.lm_head is None else self.lm_head
        return linear(features, weight)[..., : self.vocab_size]

    def initial_state(self, batch: int) -> ModelState:
        """The state before the first step of `batch` sequences."""
        return self.backbone.initial_state(batch)
