"""What a language model is trained on: the next token, forward or in reverse, or tokens that were masked (Devlin et al. 2019)."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longscan.blocks.reversal import flip_valid
from longscan.models.language_model import LanguageModel
from longscan.models.sequence_model import check_tokens


class TokenTargets(NamedTuple):
    """inputs, targets: tokens (B, L); scored: (B, L) bool, where the logits are held against the targets; valid as in models;
    ahead: whether a target stands among the inputs of later steps.
    """

    inputs: Tensor
    targets: Tensor
    scored: Tensor
    valid: Tensor | None
    ahead: bool


def next_tokens(tokens: Tensor, valid: Tensor | None = None, *, reverse: bool = False) -> TokenTargets:
    """Each token as the target of the one before it.

    Args:
        tokens: (B, L), L >= 2.
        valid: (B, L) bool, one run a row.
        reverse: read each row from its end, padding staying where it is: the objective of a model for the reverse direction.

    Returns TokenTargets of length L - 1: L - 1 targets in a row without padding, where 15 % masking has 0.15 L.
    """
    if tokens.ndim != 2 or tokens.shape[1] < 2:
        raise ValueError(f"tokens: got shape {tuple(tokens.shape)}, needed (batch, length) with a length of at least 2")
    if reverse:
        tokens = flip_valid(tokens, valid)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    scored = torch.ones_like(targets, dtype=torch.bool) if valid is None else valid[:, 1:] & valid[:, :-1]
    return TokenTargets(inputs, targets, scored, None if valid is None else valid[:, :-1], ahead=True)


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
    """Some tokens hidden, to be told from the rest: of those chosen 80 % become the mask, 10 % a random token, 10 % stay.

    Args:
        tokens: (B, L), below vocab_size where valid.
        mask_token: what stands in place of a hidden token.
        vocab_size: tokens are below it.
        special: tokens that are never chosen, and never drawn unless random_special; the mask is one of them anyway.
        valid: (B, L) bool, steps that may be chosen.
        share: of the tokens that are chosen.
        split: shares of the chosen ones that become the mask, and that become a random token.
        random_special: draw random tokens from the whole vocabulary, as the thesis's code does.
        generator: of the draws, on the CPU.
    """
    for name, part in (("share", share), ("split", sum(split)), ("split", min(split))):
        if not 0 <= part <= 1:
            raise ValueError(
                f"{name}: got {share if name == 'share' else split}, needed shares from 0 to 1, at most 1 together"
            )
    if not 0 <= mask_token < vocab_size:
        raise ValueError(f"mask_token: got {mask_token}, needed a token below vocab_size ({vocab_size})")
    check_tokens(tokens, valid, vocab_size, name="tokens")
    kept = torch.tensor(sorted({mask_token, *special}))
    eligible = ~torch.isin(tokens, kept.to(tokens.device))
    if valid is not None:
        eligible = eligible & valid
    chance, fate = (torch.rand(tokens.shape, generator=generator).to(tokens.device) for _ in range(2))
    chosen = eligible & (chance < share)
    pool = torch.arange(vocab_size)
    if not random_special:
        pool = pool[~torch.isin(pool, kept)]
    if not len(pool):
        raise ValueError(f"special: got all {vocab_size} tokens, needed some that are not")
    drawn = pool[torch.randint(len(pool), tokens.shape, generator=generator)].to(tokens.device)
    inputs = torch.where(chosen & (fate < split[0]), mask_token, tokens)
    inputs = torch.where(chosen & (fate >= split[0]) & (fate < sum(split)), drawn, inputs)
    return TokenTargets(inputs, tokens, chosen, valid, ahead=False)


def token_loss(model: LanguageModel, batch: TokenTargets, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
    """Cross-entropy in nats over the scored steps; 0 where there is none.

    Targets of `next_tokens` need a causal model: a bidirectional one would see them (ValueError).
    """
    if batch.ahead and not model.causal:
        raise ValueError("model: it is not causal and would see the next tokens that it is asked for; mask tokens instead")
    logits = model(batch.inputs, valid=batch.valid)
    scored = logits[batch.scored].float()
    total = cross_entropy(scored, batch.targets[batch.scored], reduction="sum")
    return total / max(1, len(scored)) if reduction == "mean" else total
