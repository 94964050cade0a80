"""Generation of tokens by a language model with a state, and outputs of a model for a sequence that comes in pieces."""

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
    """Sample a token for each row of logits.

    Args:
        logits: (B, V).
        temperature: divisor of the logits; 0 takes the most likely token.
        top_k: sample from the k most likely tokens only.
        top_p: sample from the smallest set of most likely tokens whose probabilities, after temperature and top_k, sum to this.
        generator: random number generator, on the device of the logits.

    Returns the tokens (B,). Raises ValueError naming an option that is out of its range.
    """
    if not temperature >= 0:
        raise ValueError(f"`temperature` must be at least 0, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"`top_k` must be at least 1, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"`top_p` must be a probability above 0, got {top_p}")
    if temperature == 0:
        return logits.argmax(-1)
    scores, order = (logits.float() / temperature).sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        scores[:, top_k:] = -torch.inf
    probabilities = softmax(scores, -1)
    if top_p is not None:
        before = probabilities.cumsum(-1) - probabilities
        probabilities = torch.where(before < top_p, probabilities, 0)
    return order.gather(-1, torch.multinomial(probabilities, 1, generator=generator)).squeeze(-1)


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
    """Generate tokens that follow the rows of a prompt, in memory that does not depend on their number.

    Args:
        model: a causal language model, in evaluation mode if it has dropout.
        prompt: tokens (B, L), L >= 1. With a state, the tokens that follow those of the state.
        steps: number of tokens to generate for each row.
        state: the state that an earlier call returned; None for the start of a sequence.
        valid: (B, L) bool, False for padding. Each row has one contiguous run of valid tokens.
        stop: token that ends a row. The rest of the row is filled with it.
        temperature, top_k, top_p, generator: see `sample`.

    Returns the tokens (B, steps), and the state after all of them except the last: `generate(model, tokens[:, -1:], steps,
    state=state)` continues. Raises ValueError naming an argument that does not fit, and if the model cannot run step by step.
    """
    model.backbone.require_streaming("`generate`")
    if prompt.ndim != 2 or not prompt.shape[1]:
        raise ValueError(f"`prompt` must have shape (batch, length >= 1), got {tuple(prompt.shape)}")
    if valid is not None and not bool(valid.any(1).all()):
        raise ValueError("`valid` must have at least one token in each row of the prompt, got a row without one")
    if steps < 0:
        raise ValueError(f"`steps` must be at least 0, got {steps}")
    if stop is not None and not 0 <= stop < model.vocab_size:
        raise ValueError(f"`stop` must be a token below vocab_size ({model.vocab_size}), got {stop}")
    logits, state = model(prompt, state, valid=valid, return_state=True)
    last = torch.full_like(prompt[:, 0], prompt.shape[1] - 1)
    if valid is not None:
        last = torch.where(valid, torch.arange(prompt.shape[1], device=prompt.device), 0).amax(1)
    current = logits[torch.arange(len(prompt), device=prompt.device), last]
    finished = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
    generated: list[Tensor] = []
    for index in range(steps):
        token = sample(current, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
        if stop is not None:
            token = torch.where(finished, stop, token)
            finished = finished | (token == stop)
        generated.append(token)
        if index + 1 < steps:
            current, state = model.step(token, state, active=None if stop is None else ~finished)
    return torch.stack(generated, 1) if generated else prompt[:, :0], state


@torch.no_grad()
def stream(model: SequenceModel | LanguageModel, pieces: Iterable[Tensor], state: ModelState | None = None) -> Iterator[Any]:
    """Yield the outputs of a model for the pieces of one sequence, with the state of the model carried from piece to piece.

    Args:
        model: a model whose blocks are all able to run step by step.
        pieces: consecutive pieces of the inputs, tokens (B, l) or vectors (B, l, d_input).
        state: the state before the first piece; None for the start of the sequence.

    Raises ValueError if a block of the model needs later steps.
    """
    backbone = model.backbone if isinstance(model, LanguageModel) else model
    backbone.require_streaming("`stream`")
    for piece in pieces:
        y, state = model(piece, state, return_state=True)
        yield y
