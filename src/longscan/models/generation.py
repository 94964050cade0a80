"""Tokens from a language model, one by one from a state: memory does not grow with what was written before."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softmax

from longscan.models.language_model import LanguageModel
from longscan.models.sequence_model import ModelState, SequenceModel


def sample(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Tokens (B,) drawn from logits (B, V).

    Args:
        logits: (B, V).
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: draw from the k likeliest tokens only.
        top_p: draw from the fewest likeliest tokens that together have this probability (after temperature and top_k).
        generator: of the draws.
    """
    if not temperature >= 0:
        raise ValueError(f"temperature: got {temperature}, needed at least 0")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k: got {top_k}, needed at least 1")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p: got {top_p}, needed a probability above 0")
    if temperature == 0:
        return logits.argmax(-1)
    scores, order = (logits.float() / temperature).sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        scores[:, top_k:] = -torch.inf
    chances = softmax(scores, -1)
    if top_p is not None:
        before = chances.cumsum(-1) - chances
        chances = torch.where(before < top_p, chances, 0)
    return order.gather(-1, torch.multinomial(chances, 1, generator=generator)).squeeze(-1)


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompt: Tensor,
    steps: int,
    *,
    state: ModelState | None = None,
    valid: Tensor | None = None,
    stop: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, ModelState]:
    """`steps` more tokens for each row of a prompt.

    Args:
        model: causal, in evaluation mode if it has dropout.
        prompt: (B, L), L >= 1; with a state what follows it, the last token alone if need be.
        steps: how many tokens to write.
        state: from an earlier call; None starts afresh.
        valid: (B, L) bool, one run a row, at least one step; the rest of the prompt is padding.
        stop: a row that writes this token is over, and filled up with it.
        temperature, top_k, top_p, generator: see `sample`.

    Returns the tokens (B, steps), and the state before the last of them, so that `generate(model, tokens[:, -1:], ...)` with
    this state goes on. ValueError where the model cannot go step by step.
    """
    model.backbone.require_streaming("generate")
    if prompt.ndim != 2 or not prompt.shape[1]:
        raise ValueError(f"prompt: got shape {tuple(prompt.shape)}, needed (batch, length) with at least one token")
    if valid is not None and not bool(valid.any(1).all()):
        raise ValueError("valid: a row of the prompt has no token, needed at least one")
    if steps < 0:
        raise ValueError(f"steps: got {steps}, needed at least 0")
    if stop is not None and not 0 <= stop < model.vocab_size:
        raise ValueError(f"stop: got {stop}, needed a token below vocab_size ({model.vocab_size})")
    logits, state = model(prompt, state, valid=valid, return_state=True)
    last = torch.full_like(prompt[:, 0], prompt.shape[1] - 1)
    if valid is not None:
        last = torch.where(valid, torch.arange(prompt.shape[1], device=prompt.device), 0).amax(1)
    current = logits[torch.arange(len(prompt), device=prompt.device), last]
    over = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
    written: list[Tensor] = []
    for index in range(steps):
        token = sample(current, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
        if stop is not None:
            token = torch.where(over, stop, token)
            over = over | (token == stop)
        written.append(token)
        if index + 1 < steps:
            current, state = model.step(token, state, active=None if stop is None else ~over)
    return torch.stack(written, 1) if written else prompt[:, :0], state


@torch.no_grad()
def stream(model: SequenceModel | LanguageModel, pieces: Iterable[Tensor], state: ModelState | None = None) -> Iterator[Any]:
    """The outputs of a sequence that comes in pieces (B, l, ...), one by one; between them a state of fixed size is kept.

    ValueError where a block of the model needs the steps to come, too.
    """
    backbone = model.backbone if isinstance(model, LanguageModel) else model
    backbone.require_streaming("stream")
    for piece in pieces:
        y, state = model(piece, state, return_state=True)
        yield y
