"""Conversion of regular expressions to automata: Glushkov's positions, subset construction, minimisation.

    expression = term ("|" term)*      term = factor*      factor = atom ["*" | "+" | "?"]
    atom = letter | "." | "(" expression ")"

The meaning is that of `re.fullmatch`; an empty term is the empty word. (Glushkov, "The abstract theory of automata", 1961.)
"""

from typing import NamedTuple

from longscan._errors import setting_error
from longscan._types import checked_value
from longscan.automata.dfa import DFA, ordered_letters
from longscan.automata.errors import LimitExceeded, RegexError

STATE_LIMIT = 20_000
DEPTH_LIMIT = 100  # of parentheses; each level needs several of the interpreter's stack frames
_OPERATORS = "|*+?()."
_RESERVED = "[]{}^$\\"


class _Part(NamedTuple):
    """A subexpression: whether it matches the empty word, and its possible first and last positions as bit masks."""

    nullable: bool
    first: int
    last: int


class _Parser:
    """A parser that collects the letter of each position of a pattern and the positions that can follow it."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.index, self.depth = pattern, 0, 0
        self.letters: list[str] = []  # the letter at every position; "." is any letter
        self.follow: list[int] = []
        self.whole = self.expression()
        if self.index < len(pattern):
            raise RegexError(pattern, self.index + 1, "has a ')' that no '(' opens")

    def peek(self) -> str:
        return self.pattern[self.index : self.index + 1]

    def expression(self) -> _Part:
        part = self.term()
        while self.peek() == "|":
            self.index += 1
            other = self.term()
            part = _Part(part.nullable or other.nullable, part.first | other.first, part.last | other.last)
        return part

    def term(self) -> _Part:
        part = _Part(True, 0, 0)
        while self.peek() and self.peek() not in "|)":
            other = self.factor()
            self.connect(part.last, other.first)
            part = _Part(
                part.nullable and other.nullable,
                part.first | other.first if part.nullable else part.first,
                part.last | other.last if other.nullable else other.last,
            )
        return part

    def factor(self) -> _Part:
        if self.peek() in "*+?":
            raise RegexError(self.pattern, self.index + 1, f"has nothing to repeat before {self.peek()!r}")
        part = self.atom()
        sign = self.peek()
        if sign and sign in "*+?":
            self.index += 1
            if self.peek() and self.peek() in "*+?":
                raise RegexError(self.pattern, self.index + 1, f"has two repetitions, the second is {self.peek()!r},")
            if sign != "?":
                self.connect(part.last, part.first)
            part = part._replace(nullable=part.nullable or sign != "+")
        return part

    def atom(self) -> _Part:
        character = self.peek()
        self.index += 1
        if character == "(":
            opened = self.index
            self.depth += 1
            if self.depth > DEPTH_LIMIT:
                raise RegexError(self.pattern, opened, f"opens more than {DEPTH_LIMIT} parentheses inside one another")
            part = self.expression()
            if self.peek() != ")":
                raise RegexError(self.pattern, opened, "opens a '(' that no ')' closes")
            self.index += 1
            self.depth -= 1
            return part
        if character in _RESERVED:
            operators = " ".join(_OPERATORS)
            raise RegexError(self.pattern, self.index, f"has {character!r}, which is not one of the operators {operators},")
        position = 1 << len(self.letters)
        self.letters.append(character)
        self.follow.append(0)
        return _Part(False, position, position)

    def connect(self, before: int, after: int) -> None:
        for position in range(len(self.follow)):
            if before >> position & 1:
                self.follow[position] |= after


def from_regex(pattern: str, alphabet: str | tuple[str, ...] | None = None) -> DFA:
    """Return the minimal automaton of a regular expression.

    Args:
        pattern: literals and the operators | * + ? ( ) and . (any letter).
        alphabet: the letters; None for those of the pattern, sorted.

    Raises RegexError with the position of a syntax error or if more than 100 parentheses are inside one another, ValueError if
    the pattern uses a letter outside the alphabet, LimitExceeded beyond 20,000 states before minimisation.

    >>> from_regex("(ab)*").size
    3
    """
    checked_value(pattern, str, "pattern")
    parser = _Parser(pattern)
    used = {letter for letter in parser.letters if letter != "."}
    letters = tuple(sorted(used)) if alphabet is None else ordered_letters(alphabet)
    if not letters:
        needed = f"given for the pattern {pattern!r}, which has no letters" if alphabet is None else "at least one letter"
        raise setting_error("alphabet", alphabet, needed)
    if used - set(letters):
        raise setting_error("alphabet", alphabet, f"letters with {', '.join(sorted(used - set(letters)))} of the pattern")
    of_letter = [sum(1 << i for i, own in enumerate(parser.letters) if own in (letter, ".")) for letter in letters]

    begin = 1 << len(parser.letters)  # a position before the word, which is only in the start state
    final = parser.whole.last | (begin if parser.whole.nullable else 0)
    states, delta = {begin: 0}, []
    for state in (order := [begin]):
        after = parser.whole.first if state == begin else 0
        for position, follow in enumerate(parser.follow):
            if state >> position & 1:
                after |= follow
        row = []
        for mask in of_letter:
            target = after & mask
            if target not in states:
                states[target] = len(order)
                order.append(target)
                if len(order) > STATE_LIMIT:
                    raise LimitExceeded("states of the automaton", STATE_LIMIT, len(order))
            row.append(states[target])
        delta.append(tuple(row))
    accept = frozenset(number for state, number in states.items() if state & final)
    return DFA(letters, tuple(delta), 0, accept).minimise()
