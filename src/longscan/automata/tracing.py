"""The states of an automaton and of its model after every letter of a word."""

from dataclasses import dataclass

from torch import Tensor

from longscan.automata.dfa import DFA

MAX_LISTED = 12  # largest number of states of a set that are listed


@dataclass(frozen=True)
class Step:
    """The values after one letter.

    state, accepted: of the automaton; chain: the sets P_H .. P_0 of the cascade; memories: counters and flip-flops by name;
    model_state: the state that the model represents.
    """

    letter: str
    state: int
    accepted: bool
    chain: tuple[tuple[int, ...], ...]
    memories: dict[str, int]
    model_state: int


@dataclass(frozen=True)
class Trace:
    """The steps of a word, and the model's residual stream (L, d_model) after its last block."""

    dfa: DFA
    steps: tuple[Step, ...]
    stream: Tensor

    def __str__(self) -> str:
        header = ("letter", "state", "answer", "model", "memories", "sets of the cascade")
        rows = [header]
        for step in self.steps:
            chain = " > ".join(map(_format_states, step.chain))
            memories = " ".join(f"{name}={value}" for name, value in step.memories.items())
            answer = "accept" if step.accepted else "reject"
            rows.append((step.letter, str(step.state), answer, str(step.model_state), memories, chain))
        widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _format_states(states: tuple[int, ...]) -> str:
    """Return a set of states as text, or only its size if it is large."""
    return "{" + ",".join(map(str, states)) + "}" if len(states) <= MAX_LISTED else f"{{{len(states)} states}}"
