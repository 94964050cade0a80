"""Accuracy of a compiled model, perhaps with changed weights, at every prefix of many words."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from longscan.automata.compiler import CompiledAutomaton, all_words

LENGTHS = (64, 1024)
MOST_WORDS = 20_000


class Score(NamedTuple):
    """Fractions over all prefixes of some words: correct answers, correct states, and correct constant answers."""

    words: str
    prefixes: int
    accuracy: float
    states: float
    constant: float


def score(compiled: CompiledAutomaton, words: Tensor, name: str = "words") -> Score:
    """Score the model after each letter of words (B, L) of letter numbers. name: of the words in the result."""
    states = torch.from_numpy(compiled.dfa.run(words.numpy()))
    accepted = torch.isin(states, torch.tensor(sorted(compiled.dfa.accept), dtype=torch.int64))
    n_correct = n_same_state = done = 0
    for logits, stream in compiled.run(words):
        part = slice(done, done + logits.shape[1])
        n_correct += int(((logits[..., 1] > logits[..., 0]) == accepted[:, part]).sum())
        n_same_state += int((compiled.read_states(stream) == states[:, part]).sum())
        done += logits.shape[1]
    count = words.numel()
    accepted_fraction = float(accepted.double().mean()) if count else 1.0
    constant = max(accepted_fraction, 1 - accepted_fraction)
    return Score(name, count, n_correct / max(count, 1), n_same_state / max(count, 1), constant)


def random_words(compiled: CompiledAutomaton, count: int, length: int, seed: int = 0, *, avoid_sinks: bool = False) -> Tensor:
    """Return uniformly random words (count, length).

    avoid_sinks: each letter is uniform among those that do not lead to a sink, if there are such letters; without it, random
    words of a language like (ab)* reach a sink after a few letters.
    """
    generator = torch.Generator().manual_seed(seed)
    dfa = compiled.dfa
    if not avoid_sinks:
        return torch.randint(len(dfa.alphabet), (count, length), generator=generator)
    table = torch.from_numpy(dfa.table)
    open_letters = ~torch.isin(table, torch.tensor(dfa.sinks, dtype=torch.int64))
    weights = torch.where(open_letters.any(1, keepdim=True), open_letters, True).double()
    words, state = torch.empty(count, length, dtype=torch.int64), torch.full((count,), dfa.start)
    for t in range(length):
        words[:, t] = torch.multinomial(weights[state], 1, generator=generator)[:, 0]
        state = table[state, words[:, t]]
    return words


def scores(compiled: CompiledAutomaton, lengths: Sequence[int] = LENGTHS, count: int = 100) -> list[Score]:
    """Score a model on short and on random words.

    The short words are all words of the largest length up to 8 for which there are at most 20,000. There are `count` random words
    of each length, and if the automaton has sinks as many that avoid them.
    """
    longest = max(n for n in range(1, 9) if len(compiled.dfa.alphabet) ** n <= MOST_WORDS or n == 1)
    result = [score(compiled, all_words(compiled.dfa, longest), f"all up to length {longest}")]
    for n in lengths:
        result.append(score(compiled, random_words(compiled, count, n), f"{count} of length {n}"))
        if compiled.dfa.sinks:
            words = random_words(compiled, count, n, avoid_sinks=True)
            result.append(score(compiled, words, f"{count} of length {n}, out of sinks"))
    return result
