"""Training objectives of language models: the next token, forward or in reverse, and masked tokens (Devlin et al. 2019)."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longscan.blocks.reversal import flip_valid
from longscan.layers.checks import check_steps
from longscan.models.language_model import LanguageModel
from longscan.models.sequence_model import check_tokens, checked_token, require_tokens


class TokenTargets(NamedTuple):
    """A batch for a training objective: inputs, targets, and which of them count.

    Attributes:
        inputs: tokens (B, L) that the model reads.
        targets: tokens (B, L) that it should predict.
        scored: (B, L) bool, the steps whose logits count in the loss.
        valid: (B, L) bool, False for padding; None if there is none.
        needs_causal: whether later inputs contain the targets, so that only causal models may be trained on the batch.
    """

    inputs: Tensor
    targets: Tensor
    scored: Tensor
    valid: Tensor | None
    needs_causal: bool


def next_tokens(tokens: Tensor, valid: Tensor | None = None, *, reverse: bool = False) -> TokenTargets:
    """Return a batch in which the target of each token is the next one.

    Args:
        tokens: (B, L), L >= 2.
        valid: (B, L) bool, False for padding. Each row has one contiguous run of valid tokens.
        reverse: reverse the valid tokens of each row, to train a model for the reverse direction. Padding stays in its place.

    Returns TokenTargets of length L - 1. Raises ValueError or TypeError naming an argument of another shape or dtype.
    """
    require_tokens("tokens", tokens)
    if tokens.shape[1] < 2:
        raise ValueError(f"`tokens` must have shape (batch, length >= 2), got {tuple(tokens.shape)}")
    check_steps((tokens.shape[0], tokens.shape[1]), None, valid, None)
    if reverse:
        tokens = flip_valid(tokens, valid)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    scored = torch.ones_like(targets, dtype=torch.bool) if valid is None else valid[:, 1:] & valid[:, :-1]
    return TokenTargets(inputs, targets, scored, None if valid is None else valid[:, :-1], needs_causal=True)


def masked_tokens(
    tokens: Tensor,
    *,
    mask_token: int,
    vocab_size: int,
    special: Sequence[int] = (),
    valid: Tensor | None = None,
    share: float = 0.15,
    split: tuple[float, float] = (0.8, 0.1),
    random_special: bool = False,
    generator: torch.Generator | None = None,
) -> TokenTargets:
    """Return a batch in which some tokens are replaced and are the targets.

    Of the chosen tokens 80 % are replaced by the mask token, 10 % by a random token, and 10 % are kept, unless `split` says
    otherwise.

    Args:
        tokens: (B, L), from 0 to vocab_size - 1 where valid.
        mask_token: the token that replaces chosen tokens.
        vocab_size: number of tokens.
        special: tokens that are never chosen, and never used as random tokens without random_special. The mask token is special.
        valid: (B, L) bool, False for padding, which is never chosen.
        share: probability that a token is chosen.
        split: probabilities that a chosen token is replaced by the mask token, and by a random token.
        random_special: sample random tokens from the whole vocabulary, as the thesis's code does.
        generator: random number generator on the CPU.

    Raises ValueError naming an argument that does not fit.
    """
    if len(split) != 2:
        raise ValueError(f"`split` must be two probabilities, got {len(split)}")
    for name, part in (("share", share), ("split", sum(split)), ("split", min(split))):
        if not 0 <= part <= 1:
            got = share if name == "share" else split
            raise ValueError(f"`{name}` must be probabilities from 0 to 1 with a sum of at most 1, got {got}")
    mask_token = checked_token("mask_token", mask_token, vocab_size)
    check_tokens(tokens, valid, vocab_size, name="tokens")
    check_steps((tokens.shape[0], tokens.shape[1]), None, valid, None)
    never_chosen = torch.tensor(sorted({mask_token, *(checked_token("special", token, vocab_size) for token in special)}))
    eligible = ~torch.isin(tokens, never_chosen.to(tokens.device))
    if valid is not None:
        eligible = eligible & valid
    choice, replacement = (torch.rand(tokens.shape, generator=generator).to(tokens.device) for _ in range(2))
    chosen = eligible & (choice < share)
    candidates = torch.arange(vocab_size)
    if not random_special:
        candidates = candidates[~torch.isin(candidates, never_chosen)]
    if not len(candidates):
        raise ValueError(f"`special` must leave at least one other token, got all {vocab_size}")
    random_tokens = candidates[torch.randint(len(candidates), tokens.shape, generator=generator)].to(tokens.device)
    inputs = torch.where(chosen & (replacement < split[0]), mask_token, tokens)
    inputs = torch.where(chosen & (replacement >= split[0]) & (replacement < sum(split)), random_tokens, inputs)
    return TokenTargets(inputs, tokens, chosen, valid, needs_causal=False)


def token_loss(model: LanguageModel, batch: TokenTargets, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
    """Return the cross-entropy in nats of a model's logits at the scored steps; 0 if no step is scored.

    Args:
        model: the language model; a causal one for batches of `next_tokens`.
        batch: inputs and targets, from `next_tokens` or `masked_tokens`.
        reduction: "mean" or "sum" over the scored steps.

    Raises ValueError if the model is not causal and the inputs of later steps contain the targets, and TypeError for a batch
    that is no TokenTargets.
    """
    if not isinstance(batch, TokenTargets):
        needed = "the TokenTargets of next_tokens or masked_tokens"
        raise TypeError(f"`batch` must be {needed}, got a {type(batch).__name__}")
    if batch.needs_causal and not model.causal:
        raise ValueError("`model` must be causal, as the inputs contain the targets, got one that is not; or use masked_tokens")
    logits = model(batch.inputs, valid=batch.valid)
    scored = logits[batch.scored].float()
    total = cross_entropy(scored, batch.targets[batch.scored].long(), reduction="sum")
    return total / max(1, len(scored)) if reduction == "mean" else total
