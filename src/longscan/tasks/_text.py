"""Texts as tokens: bytes, or the frequent characters of a training set."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from longscan._types import Doc

PADDING, UNKNOWN, END = 0, 1, 2
TokenLevel = Annotated[
    Literal["bytes", "characters"],
    Doc("tokens: 256 bytes and padding, or the characters that occur at least 15 times in the training texts, and an end token"),
]


@dataclass(frozen=True)
class Alphabet:
    """A mapping of texts to tokens; token 0 is padding.

    characters: None for bytes, whose tokens are their values plus 1 (LRA). Otherwise the characters of tokens 3, 4, ...; token 1
    stands for any other character, and token 2 ends every text (the preprocessing of LRA in S4 and S5).
    """

    characters: tuple[str, ...] | None = None

    @property
    def size(self) -> int:
        """Number of tokens."""
        return 257 if self.characters is None else 3 + len(self.characters)

    def encode(self, texts: Sequence[bytes], longest: int) -> list[np.ndarray]:
        """Return the tokens of UTF-8 texts, int16, at most `longest` each; an empty text is one token."""
        if self.characters is None:
            return [np.frombuffer(text[:longest] or b" ", np.uint8).astype(np.int16) + 1 for text in texts]
        numbers = {character: number for number, character in enumerate(self.characters, 3)}
        return [
            np.array([*(numbers.get(character, UNKNOWN) for character in _decode(text)[: longest - 1]), END], np.int16)
            for text in texts
        ]

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens without padding and end token."""
        if self.characters is None:
            return bytes(token - 1 for token in tokens if token).decode("utf-8", "replace")
        return "".join(self.characters[token - 3] if token > END else "�" for token in tokens if token not in (PADDING, END))


def frequent_characters(texts: Sequence[bytes], min_count: int) -> tuple[str, ...]:
    """Return the characters that occur at least `min_count` times, most frequent first, then in the order of their codes."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_decode(text))
    frequent = [character for character, count in counts.items() if count >= min_count]
    return tuple(sorted(frequent, key=lambda character: (-counts[character], character)))


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "replace")
