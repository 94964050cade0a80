"""FASTA files as numbered bases: A 0, C 1, G 2, T 3, and N 4 for any other code of a base; upper and lower case are equal."""

from pathlib import Path

import numpy as np

from longscan._files import read_bytes

BASES = ("A", "C", "G", "T", "N")
_OTHER = b"RYSWKMBDHVNX-*."  # codes for several bases, gaps
_CODES = np.full(256, 255, np.uint8)
for _letters in (_OTHER, _OTHER.lower()):
    _CODES[np.frombuffer(_letters, np.uint8)] = 4
for _number, _letters in enumerate((b"Aa", b"Cc", b"Gg", b"TtUu")):
    _CODES[np.frombuffer(_letters, np.uint8)] = _number


def read_fasta(path: Path) -> list[tuple[str, np.ndarray]]:
    """Return header and bases (n,) uint8 of each sequence in a file. Raises ValueError naming file and line for other content.

    A header is the text after ">". A sequence may have no bases, but one of them has some.
    """
    content = read_bytes(path)
    if not content.lstrip().startswith(b">"):
        raise ValueError(f"{path} must be a FASTA file, whose first line starts with '>', got {content[:20]!r}")
    records = []
    position = content.index(b">")
    while position < len(content):
        end = content.find(b"\n>", position)
        record = content[position : len(content) if end < 0 else end]
        name, _, body = record.partition(b"\n")
        letters = np.frombuffer(body, np.uint8)
        letters = letters[(letters != 10) & (letters != 13)]
        codes = _CODES[letters]
        if (codes == 255).any():
            wrong = letters[(codes == 255).argmax()]
            line = content.count(b"\n", 0, position + len(name) + 1 + body.find(bytes([wrong]))) + 1
            raise ValueError(f"{path}:{line}: each letter must be the code of a base, got {bytes([wrong])!r}")
        records.append((name[1:].strip().decode("utf-8", "replace"), codes))
        position = len(content) if end < 0 else end + 1
    if not any(len(codes) for _, codes in records):
        raise ValueError(f"{path} must contain sequences, got none")
    return records


def reverse_complement(bases: np.ndarray) -> np.ndarray:
    """Return the opposite strand in its own reading direction. bases: (..., L)."""
    flipped = bases[..., ::-1]
    return np.where(flipped < 4, 3 - flipped, flipped)
