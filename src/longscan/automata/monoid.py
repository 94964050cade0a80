"""The transition monoid of an automaton: the actions of all words on its states."""

from longscan.automata.dfa import DFA
from longscan.automata.errors import LimitExceeded

MONOID_LIMIT = 30_000
Map = tuple[int, ...]


def transition_monoid(dfa: DFA, limit: int = MONOID_LIMIT) -> tuple[Map, ...]:
    """Return the maps of the states by all words, the identity first. Raises LimitExceeded if there are more than `limit`."""
    identity: Map = tuple(range(dfa.size))
    seen = {identity}
    for element in (elements := [identity]):
        for letter in dfa.maps:
            product = tuple([letter[x] for x in element])
            if product not in seen:
                if len(elements) == limit:
                    raise LimitExceeded("elements of the transition monoid", limit, limit + 1)
                seen.add(product)
                elements.append(product)
    return tuple(elements)
