"""`LanguageModel`: a token embedding, a stack of blocks, and logits for every token.

What the logits at step t predict depends on the objective that the model is trained with, see `longscan.models.objectives`: token
t + 1 for causal blocks, the masked token t for bidirectional ones.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from longscan._types import PositiveInt
from longscan.blocks.bidirectional import BidirectionalBlock
from longscan.blocks.gated import GatedBlock
from longscan.blocks.heads import HeadsBlock
from longscan.blocks.residual import Norm
from longscan.layers.parameters import mark
from longscan.models.base import PretrainedModel
from longscan.models.sequence_model import ModelState, SequenceModel
from longscan.ops.dispatch import Backend

if TYPE_CHECKING:
    from longscan.models.generation import Streamer


class LanguageModel(PretrainedModel):
    """A language model: tokens (B, L) to logits (B, L, vocab_size).

    The initialisation is that of Mamba's language models (Gu and Dao 2023, the authors' code): embedding N(0, 0.02^2), out_proj
    of the gated blocks uniform with variance 1 / (3 fan_in), divided by the square root of the number of blocks.

    Args:
        blocks: the stack as a list of `{"layer", "block", "options"}`, see `longscan.models.parse_spec`.
        d_model: width of the stack.
        vocab_size: number of tokens.
        tied: use the embedding as the head; otherwise the head is a separate linear map without bias.
        pad_vocab_to: the number of rows of the embedding is rounded up to a multiple of this, as GPUs multiply matrices of such
            sizes fastest. Rows beyond vocab_size belong to no token; their logits are not returned.
        initial_state: "zero" or "learned", as in `SequenceModel`.
        norm: of the residual branches, as in `SequenceModel`.
        backend: backend of every op, "auto" to choose for each call.

    Raises ValueError naming an argument that does not fit, and for blocks that shorten the sequence.

    Attributes:
        backbone: the `SequenceModel` below the head, tokens (B, L) to features (B, L, d_model).
    """

    def __init__(
        self,
        blocks: Sequence[Mapping[str, Any]],
        *,
        d_model: PositiveInt,
        vocab_size: PositiveInt,
        tied: bool = True,
        pad_vocab_to: PositiveInt = 8,
        initial_state: Literal["zero", "learned"] = "zero",
        norm: Norm = "rms",
        backend: Backend = "auto",
    ) -> None:
        super().__init__(blocks)
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
        self.backbone.vocab_size = vocab_size  # which tokens it accepts: the rows beyond it belong to no token
        self.backbone.require_same_length("a language model")
        self.lm_head: nn.Parameter | None = None
        if not tied:
            self.lm_head = mark(nn.Parameter(torch.empty(rows, d_model).uniform_(-1, 1) / math.sqrt(d_model)), "dense")
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        nn.init.normal_(self.backbone.encoder.weight, std=0.02)
        for module in self.backbone.modules():
            if isinstance(module, (GatedBlock, HeadsBlock, BidirectionalBlock)):
                nn.init.kaiming_uniform_(module.out_proj.weight, a=math.sqrt(5))
                module.out_proj.weight /= math.sqrt(len(self.backbone.stack))

    @property
    def causal(self) -> bool:
        """Whether no logits depend on later tokens."""
        return self.backbone.causal

    @property
    def streaming(self) -> bool:
        """Whether the model can run step by step."""
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
        """Return the logits (B, L, vocab_size) for tokens (B, L), zeros at padding; with return_state, (logits, state).

        The arguments are those of `SequenceModel.forward`.
        """
        arguments = {"elapsed": elapsed, "valid": valid, "seq_idx": seq_idx}
        if not return_state:
            return self.logits(self.backbone(inputs, state, **arguments))
        features, after = self.backbone(inputs, state, **arguments, return_state=True)
        return self.logits(features), after

    def step(
        self, inputs: Tensor, state: ModelState, *, elapsed: Tensor | None = None, active: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """Return the logits (B, vocab_size) for one token of each row, and the state after it.

        The arguments are those of `SequenceModel.step`, with tokens (B,) as inputs.
        """
        features, after = self.backbone.step(inputs, state, elapsed=elapsed, active=active)
        return self.logits(features), after

    def logits(self, features: Tensor) -> Tensor:
        """Return the logits (..., vocab_size) for features (..., d_model) of the backbone."""
        weight = self.backbone.encoder.weight if self.lm_head is None else self.lm_head
        return linear(features, weight)[..., : self.vocab_size]

    def initial_state(self, batch: int) -> ModelState:
        """Return the state before the first token of `batch` rows."""
        return self.backbone.initial_state(batch)

    def generate(
        self,
        input_ids: Tensor,
        *,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        min_new_tokens: int = 0,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        num_return_sequences: int = 1,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        attention_mask: Tensor | None = None,
        streamer: "Streamer | None" = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the prompt followed by generated tokens, with the argument names of transformers' `generate`.

        `longscan.models.generate` also takes and returns the state, so that a later call can continue.

        Args:
            input_ids: prompt, tokens (B, L) with L >= 1.
            max_new_tokens: largest number of tokens to generate; None for 20. The call ends earlier when every row has ended.
            max_length: the same limit including the tokens of the prompt, at least L. Only one of the two can be given.
            min_new_tokens: number of tokens before which no row ends.
            do_sample: sample the tokens; otherwise choose the most probable ones.
            temperature, top_k, top_p, min_p: see `longscan.models.sample`. They need do_sample=True. In transformers, top_k is
                50 unless it is given; here None means all tokens.
            repetition_penalty: divisor of positive logits, and factor of negative ones, of all tokens that have occurred in the
                row (CTRL, arXiv 1909.05858); padding does not count. 1 leaves the logits as they are.
            num_return_sequences: number of continuations of each row, which follow one another in the result. Above 1 needs
                do_sample=True.
            eos_token_id: token, or several, that end a row.
            pad_token_id: token after the end of a row; None for eos_token_id, or the first of them.
            attention_mask: (B, L), 0 at padding. Each row has one contiguous run of tokens.
            streamer: object whose `put` gets the prompt and then the tokens (B,) of each step, on the CPU, and whose `end` is
                called at the end, such as `transformers.TextStreamer`, which takes one row.
            generator: random number generator, on the device of the model.

        Returns tokens (B * num_return_sequences, L + n) with n <= max_new_tokens. Raises ValueError naming an argument that does
        not fit, if the model cannot run step by step, and if its logits after a token have no finite largest number (after the
        last token, as an earlier check would wait for the GPU at every token).
        """
        from longscan.models.generation import generate_ids

        return generate_ids(
            self,
            input_ids,
            max_new_tokens=max_new_tokens,
            max_length=max_length,
            min_new_tokens=min_new_tokens,
            do_sample=do_sample,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            num_return_sequences=num_return_sequences,
            eos_token_id=eos_token_id,
            pad_token_id=pad_token_id,
            attention_mask=attention_mask,
            streamer=streamer,
            generator=generator,
        )
