"""Generation of tokens by a language model with a state, and outputs of a model for a sequence that comes in pieces."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import softmax

from longscan._errors import count_text
from longscan._types import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    checked_value,
    matches_type,
)
from longscan.layers.checks import check_is_tensor, require_tensor
from longscan.models.language_model import LanguageModel
from longscan.models.sequence_model import ModelState, SequenceModel, check_tokens, checked_token


def sample(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Sample a token for each row of logits.

    Args:
        logits: (B, V).
        temperature: divisor of the logits; with 0 the result is the most likely token.
        top_k: sample from the k most likely tokens only.
        top_p: sample from the smallest set of most likely tokens whose probabilities, after temperature and top_k, sum to this.
        min_p: sample only from tokens whose probability is at least this fraction of the largest one.
        generator: random number generator, on the device of the logits.

    Returns the tokens (B,). Raises ValueError naming an option that is out of its range, and for logits whose largest number in a
    row is not finite.
    """
    require_tensor("logits", logits)
    if logits.is_complex():
        raise ValueError(f"`logits` must be real numbers, got {logits.dtype}")
    if logits.ndim != 2 or not logits.shape[1]:
        raise ValueError(f"`logits` must have shape (batch, tokens >= 1), got {tuple(logits.shape)}")
    _check_sampling(temperature, top_k, top_p, min_p)
    _check_largest("`logits`", logits.amax(-1))
    return _sample(logits, temperature, top_k, top_p, min_p, generator)


def _check_sampling(temperature: float, top_k: int | None, top_p: float | None, min_p: float | None) -> None:
    """Raise ValueError naming an option of `sample` that is out of its range."""
    checked_value(temperature, NonNegativeFloat, "temperature")
    checked_value(top_k, PositiveInt | None, "top_k")
    checked_value(top_p, PositiveFraction | None, "top_p")
    checked_value(min_p, Fraction | None, "min_p")


def _check_largest(name: str, largest: Tensor) -> None:
    """Raise ValueError unless the largest of the logits of each row, (B,), is finite: no token is the most likely one then."""
    wrong = ~torch.isfinite(largest)
    if bool(wrong.any()):
        row = int(wrong.int().argmax())
        raise ValueError(f"{name} must have a finite largest number in each row, got {largest[row].item()} in row {row}")


def _check_decoded(largest: Sequence[Tensor]) -> None:
    """Raise ValueError unless the largest logits after the prompt and after each generated token, (B,) each, are finite."""
    finite = torch.isfinite(torch.stack([*largest])).all(1)
    if not bool(finite.all()):
        count = int(finite.int().argmin())
        _check_largest(f"the model's logits after {count_text(count, 'new token') if count else 'the prompt'}", largest[count])


def _sample(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    generator: torch.Generator | None,
) -> Tensor:
    """Return the tokens of `sample` for checked options: their checks would take a twentieth of the time of a token."""
    if temperature == 0:
        return logits.argmax(-1)
    scores, order = (logits.float() / temperature).sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        scores[:, top_k:] = -torch.inf
    probabilities = softmax(scores, -1)
    if top_p is not None:
        before = probabilities.cumsum(-1) - probabilities
        probabilities = torch.where(before < top_p, probabilities, 0)
    if min_p is not None:
        probabilities = torch.where(probabilities >= min_p * probabilities[:, :1], probabilities, 0)
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
    min_p: float | None = None,
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
        temperature, top_k, top_p, min_p, generator: see `sample`.

    Returns the tokens (B, steps), and the state after all of them except the last: `generate(model, tokens[:, -1:], steps,
    state=state)` continues. Raises ValueError naming an argument that does not fit, if the model cannot run step by step, and,
    after the last token, if its logits after a token have no finite largest number.
    """
    if not isinstance(getattr(model, "backbone", None), SequenceModel) or not hasattr(model, "vocab_size"):
        raise TypeError(f"`model` must be a LanguageModel, got a {type(model).__name__}")
    model.backbone.require_streaming("`generate`")
    check_is_tensor("valid", valid)
    prompt = _checked_prompt("prompt", prompt, valid, model.vocab_size)
    if valid is not None and valid.shape == prompt.shape and not bool(valid.any(1).all()):
        raise ValueError("`valid` must have at least one token in each row of the prompt, got a row without one")
    checked_value(steps, NonNegativeInt, "steps")
    _check_sampling(temperature, top_k, top_p, min_p)
    stop = None if stop is None else checked_token("stop", stop, model.vocab_size)
    ends = None if stop is None else torch.tensor([stop], device=prompt.device)
    generated: list[Tensor] = []
    if not steps:
        _, after = model(prompt, state, valid=valid, return_state=True)
        return prompt[:, :0], after
    choose = partial(_sample, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, generator=generator)
    for token, reached in _decode(model, prompt, steps, state, valid, ends, stop, choose):
        generated.append(token)
        after = reached
    return torch.stack(generated, 1), after


def _checked_prompt(name: str, prompt: Tensor, valid: Tensor | None, vocab_size: int) -> Tensor:
    """Return a prompt (B, L), L >= 1, as int64. Raises TypeError or ValueError unless it consists of integer tokens."""
    require_tensor(name, prompt)
    if prompt.ndim != 2 or not prompt.shape[1]:
        raise ValueError(f"`{name}` must have shape (batch, length >= 1), got {tuple(prompt.shape)}")
    check_tokens(prompt, valid, vocab_size, name)
    return prompt.long()


def _decode(
    model: LanguageModel,
    prompt: Tensor,
    steps: int,
    state: ModelState | None,
    valid: Tensor | None,
    ends: Tensor | None,
    fill: int | None,
    choose: Callable[[Tensor], Tensor],
    *,
    stop_early: bool = False,
) -> Iterator[tuple[Tensor, ModelState]]:
    """Yield, for each of `steps` tokens, the tokens (B,) and the state before them; with `stop_early` until all rows have ended.

    A row ends with one of the tokens `ends`; its later tokens are `fill`, and its state does not change any more. If `ends` is
    None, so is `fill`, and no row ends. `choose` takes the logits (B, V) of a step and returns the tokens (B,).

    Raises ValueError for logits whose largest number in a row is not finite: for those after the prompt before the first token,
    and for later ones after the last token, because a check of each token would wait for the GPU.
    """
    logits, state = model(prompt, state, valid=valid, return_state=True)
    last = torch.full_like(prompt[:, 0], prompt.shape[1] - 1)
    if valid is not None:
        last = torch.where(valid, torch.arange(prompt.shape[1], device=prompt.device), 0).amax(1)
    current = logits[torch.arange(len(prompt), device=prompt.device), last]
    largest = [current.amax(-1)]
    _check_decoded(largest)
    finished = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
    for remaining in reversed(range(steps)):
        try:
            token = choose(current)
        except RuntimeError:  # `torch.multinomial` checks the probabilities
            _check_decoded(largest)
            raise
        if ends is not None and fill is not None:
            token = torch.where(finished, fill, token)
            finished = finished | torch.isin(token, ends)
        yield token, state
        if not remaining or (stop_early and ends is not None and bool(finished.all())):
            break
        current, state = model.step(token, state, active=None if ends is None else ~finished)
        largest.append(current.amax(-1))
    _check_decoded(largest)


class Streamer(Protocol):
    """An object that receives tokens as they are generated, such as `transformers.TextStreamer`."""

    def put(self, value: Tensor) -> None:
        """Receive the prompt (B, L) in the first call, and then the tokens (B,) of each step, on the CPU."""

    def end(self) -> None:
        """Receive the end of the generation: no token follows."""


def _new_tokens(prompt: int, max_new_tokens: int | None, max_length: int | None) -> int:
    """Return the largest number of tokens after a prompt of `prompt` tokens."""
    max_new_tokens = checked_value(max_new_tokens, NonNegativeInt | None, "max_new_tokens")
    max_length = checked_value(max_length, NonNegativeInt | None, "max_length")
    if max_new_tokens is not None and max_length is not None:
        raise ValueError(f"`max_length` must be None if max_new_tokens is given ({max_new_tokens}), got {max_length}")
    if max_length is not None:
        if max_length < prompt:
            raise ValueError(f"`max_length` must be at least the length of the prompt ({prompt}), got {max_length}")
        return max_length - prompt
    return 20 if max_new_tokens is None else max_new_tokens


def _valid_tokens(attention_mask: Tensor | None, input_ids: Tensor) -> Tensor | None:
    """Return which tokens of the prompt are no padding, (B, L) bool; None without a mask."""
    if attention_mask is None:
        return None
    require_tensor("attention_mask", attention_mask)
    if attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"`attention_mask` must have the shape of input_ids {tuple(input_ids.shape)}, got {tuple(attention_mask.shape)}"
        )
    if not bool(((attention_mask == 0) | (attention_mask == 1)).all()):
        raise ValueError("`attention_mask` must have only the values 0 and 1, got others")
    valid = attention_mask.bool()
    if not bool(valid.any(1).all()):
        raise ValueError("`attention_mask` must have at least one token in each row, got a row without one")
    return valid


def _end_tokens(
    eos_token_id: int | Sequence[int] | None, pad_token_id: int | None, vocab_size: int
) -> tuple[list[int], int | None]:
    """Return the tokens that end a row, and the token after its end, None if neither argument is given."""
    given: Any = [] if eos_token_id is None else eos_token_id
    if not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0:  # one token, also a number of NumPy or a tensor
        given = [given]
    eos = [checked_token("eos_token_id", token, vocab_size) for token in given]
    if pad_token_id is None:
        return eos, next(iter(eos), None)
    return eos, checked_token("pad_token_id", pad_token_id, vocab_size)


def _occurrences(tokens: Tensor, valid: Tensor | None, vocab_size: int) -> Tensor:
    """Return which tokens occur in each row, (B, V) bool. valid: (B, L) bool, False for padding, of any value."""
    counted = torch.ones_like(tokens) if valid is None else valid.to(tokens.dtype)
    return tokens.new_zeros(len(tokens), vocab_size).scatter_add_(1, tokens * counted, counted) > 0


@torch.no_grad()
def generate_ids(
    model: LanguageModel,
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
    streamer: Streamer | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the prompt and the generated tokens; the arguments are described at `LanguageModel.generate`."""
    model.backbone.require_streaming("`generate`")
    require_tensor("input_ids", input_ids)
    valid = _valid_tokens(attention_mask, input_ids)
    input_ids = _checked_prompt("input_ids", input_ids, valid, model.vocab_size)
    steps = _new_tokens(input_ids.shape[1], max_new_tokens, max_length)
    if not matches_type(min_new_tokens, NonNegativeInt) or min_new_tokens > steps:
        raise ValueError(f"`min_new_tokens` must lie between 0 and the number of new tokens ({steps}), got {min_new_tokens}")
    checked_value(repetition_penalty, PositiveFloat, "repetition_penalty")
    num_return_sequences = checked_value(num_return_sequences, PositiveInt, "num_return_sequences")
    random_options = {"temperature": (temperature, 1.0), "top_k": (top_k, None), "top_p": (top_p, None), "min_p": (min_p, None)}
    for name, (value, default) in {**random_options, "num_return_sequences": (num_return_sequences, 1)}.items():
        if not do_sample and value != default:
            raise ValueError(f"`{name}` must be {default} unless do_sample=True, got {value}")
    _check_sampling(temperature, top_k, top_p, min_p)
    if streamer is not None and not (callable(getattr(streamer, "put", None)) and callable(getattr(streamer, "end", None))):
        raise TypeError(f"`streamer` must have the methods put and end, got a {type(streamer).__name__}")
    eos, fill = _end_tokens(eos_token_id, pad_token_id, model.vocab_size)
    ends = torch.tensor(eos, device=input_ids.device) if eos else None

    input_ids = input_ids.repeat_interleave(num_return_sequences, 0)
    valid = None if valid is None else valid.repeat_interleave(num_return_sequences, 0)
    occurred = None if repetition_penalty == 1 else _occurrences(input_ids, valid, model.vocab_size)
    generated = [input_ids]

    def choose(logits: Tensor) -> Tensor:
        if occurred is not None:
            lowered = torch.where(logits < 0, logits * repetition_penalty, logits / repetition_penalty)
            logits = torch.where(occurred, lowered, logits)
        if ends is not None and len(generated) <= min_new_tokens:  # The first of `generated` is the prompt.
            logits = logits.index_fill(-1, ends, -torch.inf)
        return _sample(logits, temperature if do_sample else 0.0, top_k, top_p, min_p, generator)

    if streamer is not None:
        streamer.put(input_ids.cpu())
    for token, _ in _decode(model, input_ids, steps, None, valid, ends, fill, choose, stop_early=True):
        generated.append(token[:, None])
        if occurred is not None:
            occurred.scatter_(1, token[:, None], True)
        if streamer is not None:
            streamer.put(token.cpu())
    if streamer is not None:
        streamer.end()
    return torch.cat(generated, 1)


@torch.no_grad()
def stream(model: SequenceModel | LanguageModel, pieces: Iterable[Tensor], state: ModelState | None = None) -> Iterator[Any]:
    """Yield the outputs of a model for the pieces of one sequence, with the state of the model carried from piece to piece.

    Args:
        model: a model whose blocks can all run step by step.
        pieces: consecutive pieces of the inputs, tokens (B, l) or vectors (B, l, d_input).
        state: the state before the first piece; None for the start of the sequence.

    Raises ValueError if a block of the model needs later steps.
    """
    backbone = model.backbone if isinstance(model, LanguageModel) else model
    backbone.require_streaming("`stream`")
    for piece in pieces:
        y, state = model(piece, state, return_state=True)
        yield y
