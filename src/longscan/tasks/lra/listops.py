"""ListOps: the value of nested list operations."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from longscan._files import read_text
from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Ragged
from longscan.tasks.base import TASKS, Batch
from longscan.tasks.lra._drawn import Block, DrawnTask
from longscan.tasks.lra._listops import SYMBOLS, Bounds, draw_expressions

_NUMBERS = {symbol: number for number, symbol in enumerate(SYMBOLS)} | {"X": SYMBOLS.index("]")}


@TASKS.register("listops")
@dataclass(frozen=True, kw_only=True)
class ListOps(DrawnTask):
    """The digit that nested list operations come to.

        [MAX 4 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ] | 5

    Operators are minimum, maximum, median (cut to a whole number) and sum modulo 10. Trees are those of the published generator:
    an operator has 2 .. max_args operands, each an operator with probability 1/4 above the level max_depth. Lengths, without the
    brackets that only pair operands, lie strictly between longer_than and shorter_than, about 1,030 on average; 0 and 9 are the
    most frequent answers (about 17 % each). The published order of examples hangs on a hash that differs from run to run, so no
    seed gives its very files.
    """

    name: ClassVar[str] = "listops"
    max_depth: int = 10
    max_args: int = 10
    longer_than: int = 500
    shorter_than: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting in ("max_depth", "max_args"):
            if not 2 <= getattr(self, setting) <= 20:
                raise ValueError(f"{setting}: must lie in 2 .. 20, not {getattr(self, setting)}")
        if not 0 <= self.longer_than < self.shorter_than - 1:
            raise ValueError(f"longer_than: must lie in 0 .. shorter_than - 2 ({self.shorter_than - 2}), not {self.longer_than}")

    @property
    def vocab_size(self) -> int:
        """Digits, operators, the closing bracket, padding."""
        return len(SYMBOLS) + 1

    @property
    def d_input(self) -> None:
        """None: the inputs are tokens."""
        return

    @property
    def num_classes(self) -> int:
        """The digits."""
        return 10

    @property
    def classes(self) -> tuple[str, ...]:
        """The digits."""
        return SYMBOLS[:10]

    @property
    def symbols(self) -> tuple[str, ...]:
        """Digits, operators, the closing bracket, padding."""
        return (*SYMBOLS, "_")

    @property
    def _padding(self) -> int:
        return len(SYMBOLS)

    @property
    def _block_size(self) -> int:
        return 256

    @property
    def length(self) -> int:
        """Steps of the longest expression of a fixed set; of a stream, the longest allowed."""
        return self.shorter_than - 1 if self._streams else super().length

    def _draw(self, rng: CounterRNG, count: int) -> Block:
        bounds = Bounds(self.max_depth, self.max_args, self.shorter_than, self.longer_than)
        return draw_expressions(rng, count, bounds)

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Expression | value."""
        tokens = batch.inputs[row] if batch.valid is None else batch.inputs[row][batch.valid[row]]
        text = " ".join(SYMBOLS[token] for token in tokens.tolist())
        return text if batch.targets is None else f"{text} | {int(batch.targets[row])}"

    def read_inputs(self, path: str | Path) -> Batch:
        """Expressions from a text file, one a line; "(" and ")" are left out, "X" stands for "]", what follows "|" is dropped.

        Raises ValueError naming file and line for another symbol and for brackets that do not match.
        """
        expressions = []
        for line, text in enumerate(read_text(path).splitlines(), 1):
            words = text.split("|")[0].replace("(", " ").replace(")", " ").split()
            unknown = next((word for word in words if word not in _NUMBERS), None)
            if unknown is not None:
                raise ValueError(f"{path}:{line}: {unknown[:40]!r} is no symbol of listops, which has {' '.join(SYMBOLS)}")
            if not words:
                continue
            tokens = np.array([_NUMBERS[word] for word in words], np.uint8)
            depth = np.where(tokens == _NUMBERS["]"], -1, tokens >= _NUMBERS["[MIN"]).cumsum()
            if depth[-1] != 0 or (depth[:-1] < 1).any():
                raise ValueError(f"{path}:{line}: the brackets do not make one expression")
            expressions.append(tokens)
        if not expressions:
            raise ValueError(f"{path}: holds no expression")
        return self._arranged(Ragged.from_sequences(expressions), np.arange(len(expressions)))
