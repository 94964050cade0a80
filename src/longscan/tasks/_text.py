"""Texts as tokens: bytes, or the characters that a training set shows often enough."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PADDING, UNKNOWN, END = 0, 1, 2


@dataclass(frozen=True)
class Alphabet:
    """Which tokens a text becomes; 0 is padding.

    characters: None for bytes, each its value plus 1 (LRA). Otherwise the characters that have tokens 3, 4, ..., any other
    being 1, and 2 closing every text (S4's and S5's preparation of LRA).
    """

    characters: tuple[str, ...] | None = None

    @property
    def size(self) -> int:
        """Number of tokens."""
        return 257 if self.characters is None else 3 + len(self.characters)

    def encoded(self, texts: Sequence[bytes], longest: int) -> list[np.ndarray]:
        """Tokens, int16, of UTF-8 texts, at most `longest` each; an empty text is one token."""
        if self.characters is None:
            return [np.frombuffer(text[:longest] or b" ", np.uint8).astype(np.int16) + 1 for text in texts]
        numbers = {character: number for number, character in enumerate(self.characters, 3)}
        return [
            np.array([*(numbers.get(character, UNKNOWN) for character in _decoded(text)[: longest - 1]), END], np.int16)
            for text in texts
        ]

    def text(self, tokens: Sequence[int]) -> str:
        """The text behind tokens, without padding and the end."""
        if self.characters is None:
            return bytes(token - 1 for token in tokens if token).decode("utf-8", "replace")
        return "".join(self.characters[token - 3] if token > END else "�" for token in tokens if token not in (PADDING, END))


def frequent_characters(texts: Sequence[bytes], least: int) -> tuple[str, ...]:
    """The characters that occur at least `least` times, most frequent first, then in the order of their codes."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_decoded(text))
    kept = [character for character, count in counts.items() if count >= least]
    return tuple(sorted(kept, key=lambda character: (-counts[character], character)))


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")
