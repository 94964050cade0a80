"""How often a compiled model, or what has become of its weights, is right: at every prefix of many words."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from longscan.automata.compiler import Compiled, words_up_to

LENGTHS = (64, 1024)
MOST_WORDS = 20_000


class Score(NamedTuple):
    """Shares over all prefixes of some words: right answers, right states, and right answers of the better constant one."""

    words: str
    prefixes: int
    accuracy: float
    states: float
    constant: float


def score(compiled: Compiled, words: Tensor, name: str = "words") -> Score:
    """Score the model on words (B, L) of letter numbers, after each letter."""
    states = torch.from_numpy(compiled.dfa.run(words.numpy()))
    accepted = torch.isin(states, torch.tensor(sorted(compiled.dfa.accept), dtype=torch.int64))
    right = same = done = 0
    for logits, stream in compiled.run(words):
        part = slice(done, done + logits.shape[1])
        right += int(((logits[..., 1] > logits[..., 0]) == accepted[:, part]).sum())
        same += int((compiled.read_states(stream) == states[:, part]).sum())
        done += logits.shape[1]
    count = words.numel()
    share = float(accepted.double().mean()) if count else 1.0
    return Score(name, count, right / max(count, 1), same / max(count, 1), max(share, 1 - share))


def random_words(compiled: Compiled, count: int, length: int, seed: int = 0, *, shun_sinks: bool = False) -> Tensor:
    """Uniform words (count, length). shun_sinks: each letter is uniform among those that lead to no sink, where there is one;
    uniform words of a language like (ab)* are in a sink after a few letters.
    """
    generator = torch.Generator().manual_seed(seed)
    dfa = compiled.dfa
    if not shun_sinks:
        return torch.randint(len(dfa.alphabet), (count, length), generator=generator)
    table = torch.from_numpy(dfa.table)
    open_letters = ~torch.isin(table, torch.tensor(dfa.sinks, dtype=torch.int64))
    weights = torch.where(open_letters.any(1, keepdim=True), open_letters, True).double()
    words, state = torch.empty(count, length, dtype=torch.int64), torch.full((count,), dfa.start)
    for t in range(length):
        words[:, t] = torch.multinomial(weights[state], 1, generator=generator)[:, 0]
        state = table[state, words[:, t]]
    return words


def scores(compiled: Compiled, lengths: Sequence[int] = LENGTHS, count: int = 100) -> list[Score]:
    """All words of the greatest length up to 8 that has at most 20,000 of them, then `count` random words of each length, and
    where there are sinks as many that keep out of them.
    """
    longest = max(n for n in range(1, 9) if len(compiled.dfa.alphabet) ** n <= MOST_WORDS or n == 1)
    result = [score(compiled, words_up_to(compiled.dfa, longest), f"all up to length {longest}")]
    for n in lengths:
        result.append(score(compiled, random_words(compiled, count, n), f"{count} of length {n}"))
        if compiled.dfa.sinks:
            words = random_words(compiled, count, n, shun_sinks=True)
            result.append(score(compiled, words, f"{count} of length {n}, out of sinks"))
    return result
