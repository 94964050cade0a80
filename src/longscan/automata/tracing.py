"""A word, letter by letter, through an automaton and its model."""

from dataclasses import dataclass

from torch import Tensor

from longscan.automata.dfa import DFA

MOST = 12  # states of a set that are listed


@dataclass(frozen=True)
class Step:
    """After one letter: the automaton's state and answer, the sets P_H .. P_0 of the cascade, counters and flip-flops by name,
    and the state that the model holds.
    """

    letter: str
    state: int
    accepted: bool
    chain: tuple[tuple[int, ...], ...]
    memories: dict[str, int]
    model_state: int


@dataclass(frozen=True)
class Trace:
    """The steps of a word, and the model's residual stream (L, d_model) behind its last block."""

    dfa: DFA
    steps: tuple[Step, ...]
    stream: Tensor

    def __str__(self) -> str:
        header = ("letter", "state", "answer", "model", "memories", "sets of the cascade")
        rows = [header]
        for step in self.steps:
            chain = " > ".join(map(_named, step.chain))
            memories = " ".join(f"{name}={value}" for name, value in step.memories.items())
            answer = "accept" if step.accepted else "reject"
            rows.append((step.letter, str(step.state), answer, str(step.model_state), memories, chain))
        widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _named(states: tuple[int, ...]) -> str:
    """A set of states, or its size where it is large."""
    return "{" + ",".join(map(str, states)) + "}" if len(states) <= MOST else f"{{{len(states)} states}}"
