"""ListOps: evaluate nested list operations."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from longscan._errors import setting_error
from longscan._files import read_text
from longscan._types import Doc, NonNegativeInt, between
from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Ragged
from longscan.tasks.base import TASKS, Batch
from longscan.tasks.lra._generated import Block, GeneratedTask
from longscan.tasks.lra._listops import SYMBOLS, ExpressionLimits, generate_expressions

_NUMBERS = {symbol: number for number, symbol in enumerate(SYMBOLS)} | {"X": SYMBOLS.index("]")}


@TASKS.register("listops")
@dataclass(frozen=True, kw_only=True)
class ListOps(GeneratedTask):
    """Evaluate nested list operations, whose value is a digit.

        [MAX 4 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ] | 5

    Operators are minimum, maximum, median (rounded down) and sum modulo 10. Trees are those of the published generator: an
    operator has 2 .. max_args operands, each of which is an operator with probability 1/4 above the level max_depth. Lengths,
    without the round brackets of the published files, lie strictly between longer_than and shorter_than, about 1,030 on average;
    0 and 9 are the most frequent answers (about 17 % each). The published order of examples depends on a hash that differs from
    run to run, so no seed reproduces the published files.
    """

    vocab_size: ClassVar[int] = len(SYMBOLS) + 1
    d_input: ClassVar[None] = None
    num_classes: ClassVar[int] = 10
    classes: ClassVar[tuple[str, ...]] = SYMBOLS[:10]
    symbols: ClassVar[tuple[str, ...]] = (*SYMBOLS, "_")
    _padding_value: ClassVar[int] = len(SYMBOLS)
    _block_size: ClassVar[int] = 256
    max_depth: Annotated[int, between(2, 20), Doc("largest number of nested levels")] = 10
    max_args: Annotated[int, between(2, 20), Doc("largest number of operands of an operator")] = 10
    longer_than: Annotated[NonNegativeInt, Doc("expressions have more tokens than this")] = 500
    shorter_than: Annotated[int, Doc("expressions have fewer tokens than this")] = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longer_than > self.shorter_than - 2:
            raise setting_error("longer_than", self.longer_than, f"at most `shorter_than` - 2, {self.shorter_than - 2}")

    @property
    def length(self) -> int:
        """Steps of the longest expression of a fixed set; for a stream, of the longest that is allowed."""
        return self.shorter_than - 1 if self._is_stream else super().length

    def _generate(self, rng: CounterRNG, count: int) -> Block:
        limits = ExpressionLimits(self.max_depth, self.max_args, self.shorter_than, self.longer_than)
        return generate_expressions(rng, count, limits)

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Return an example as text: "expression | value"."""
        return self._append_class(" ".join(SYMBOLS[token] for token in batch.unpadded(row).tolist()), batch, row)

    def read_inputs(self, path: str | Path) -> Batch:
        """Read expressions from a text file, one per line; "(" and ")" are ignored, "X" means "]", text after "|" is ignored.

        Raises ValueError naming file and line for an unknown symbol, brackets that do not match, and operators without operands.
        """
        expressions = []
        for line, text in enumerate(read_text(path).splitlines(), 1):
            words = text.split("|")[0].replace("(", " ").replace(")", " ").split()
            unknown = next((word for word in words if word not in _NUMBERS), None)
            if unknown is not None:
                raise ValueError(f"{path}:{line}: each symbol must be one of {' '.join(SYMBOLS)}, got {unknown[:40]!r}")
            if not words:
                continue
            tokens = np.array([_NUMBERS[word] for word in words], np.uint8)
            depth = np.where(tokens == _NUMBERS["]"], -1, tokens >= _NUMBERS["[MIN"]).cumsum()
            if depth[-1] != 0 or (depth[:-1] < 1).any():
                raise ValueError(f"{path}:{line}: the line must be one expression whose brackets match, got {text[:60]!r}")
            if ((tokens[1:] == _NUMBERS["]"]) & (tokens[:-1] >= _NUMBERS["[MIN"]) & (tokens[:-1] != _NUMBERS["]"])).any():
                raise ValueError(f"{path}:{line}: each operator must have an operand, got {text[:60]!r}")
            expressions.append(tokens)
        if not expressions:
            raise ValueError(f"{path} must contain expressions, got none")
        return self._to_batch(Ragged.from_sequences(expressions))
