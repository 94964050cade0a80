"""What the formal languages share: splits, the layout of question and answer, scores by length, text files, and suites.

An example is a question, an answer of one or more tokens, and padding (the last token number). The model reads the sequence
without its last token and answers at the last token of the question and, for longer answers, at the steps after it. Tasks under
`FormalTask` come in suites; those right under `WordTask` hide their answers as `clean` does:

- `clean` (default): training sequences of 3-40 tokens, valid and test of 41-256; the answer is hidden in the input (the padding
  token stands at its places), so nothing can be copied from it and bidirectional models may be compared.
- `aussm`: the semantics of the published AUSSM repository, of which each class lists what matters to it: sequences of 6-40 and
  41-256 tokens, and the answer in the input (teacher forcing). Its loader delivered every batch four times; here none repeats.
- `chomsky`, where a class says so: the expressions of "Neural Networks and the Chomsky Hierarchy" (Delétang et al., ICLR 2023),
  and the rest as in `clean`; `chomsky_suite` has all tasks of that paper.

`data="stream"` gives an endless training stream, `data="samples"` `train_size` fixed training examples; valid and test are fixed
sets of `valid_size` and `test_size` examples either way.

The splits are disjoint by construction, whatever the seeds: a question as long as those of valid and test belongs to the one of
the three splits that its hash names, a shorter one to train. So the overlap is zero even where the length ranges meet. Within
one split short questions repeat (there are only 4 parity words of two bits).
"""

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
from torch import Tensor

from longscan._files import read_text
from longscan.tasks._random import Draws
from longscan.tasks.base import Batch, Split, check_request, rows_of_step
from longscan.tasks.classification import ClassificationTask
from longscan.tasks.formal._examples import Examples, joined, layout, owner

if TYPE_CHECKING:
    from torchmetrics import Metric

_BLOCK = 256  # examples of a fixed set that are drawn together
_ATTEMPTS = 100  # rounds of drawing after which a split counts as empty
# Settings that choose among the examples or lay them out, and leave what is drawn as it is.
_NOT_DRAWN = ("data", "train_lengths", "eval_lengths", "train_size", "valid_size", "test_size", "teacher_forcing")


@dataclass(frozen=True, kw_only=True)
class WordTask(ClassificationTask):
    """A language of questions and answers; see the module's text for what the settings mean.

    train_lengths, eval_lengths: shortest and longest sequence drawn, both included; None: the language's own. A length is that of
    the whole sequence, question and answer, unless the class says otherwise. Raises ValueError naming a setting that makes no
    sense.
    """

    data: Literal["stream", "samples"] = "stream"
    train_lengths: tuple[int, int] | None = None
    eval_lengths: tuple[int, int] = (41, 256)
    train_size: int = 10_000
    valid_size: int = 1_000
    test_size: int = 10_000

    def __post_init__(self) -> None:
        check_choice(self, "data", ("stream", "samples"))
        for setting in ("train_size", "valid_size", "test_size"):
            if getattr(self, setting) < 1:
                raise ValueError(f"{setting}: must be positive, not {getattr(self, setting)}")
        least = self._least_length
        for setting in ("train_lengths", "eval_lengths"):
            lengths = getattr(self, setting)
            if lengths is None:
                continue
            if len(lengths) != 2 or not least <= lengths[0] <= lengths[1]:
                need = f"(shortest, longest) with {least} <= shortest <= longest"
                raise ValueError(f"{setting}: {self._title} needs {need}, not {lengths}")
            object.__setattr__(self, setting, tuple(lengths))

    # What a language must say.

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """Number of tokens that may be an answer: 0 .. num_classes - 1."""

    @property
    @abstractmethod
    def symbols(self) -> tuple[str, ...]:
        """What the tokens are called; the last is the padding."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of tokens, the padding included."""

    @property
    @abstractmethod
    def _least_length(self) -> int:
        """The length of the shortest sequence."""

    @property
    @abstractmethod
    def _own_lengths(self) -> tuple[int, int]:
        """Shortest and longest training sequence where the settings name none."""

    @abstractmethod
    def _shortest_question(self, length: int) -> int:
        """The fewest question tokens in a sequence drawn at `length`; never falls as `length` grows."""

    @abstractmethod
    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        """Examples of at most `lengths` (n,) tokens each, question and answer."""

    def _answer_length(self, question: list[int]) -> int:  # noqa: ARG002
        """Number of answer tokens of a question."""
        return 1

    @property
    def _closing(self) -> int | None:
        """The token that ends every question, None where there is none."""
        return None

    @property
    def _title(self) -> str:
        """What messages call the task."""
        return self.name

    def _width(self, length: int) -> int:
        """The most tokens of a sequence drawn at `length`."""
        return length

    def _drawn_lengths(self, batch: Batch) -> Tensor:
        """The lengths (B,) that the examples of a batch count as when scores are given by length."""
        assert batch.valid is not None
        return batch.valid.sum(1) + 1

    def _length_range(self, split: Split) -> tuple[int, int]:
        """Shortest and longest sequence of a split."""
        if split != "train":
            return self.eval_lengths
        return self.train_lengths or self._own_lengths

    def _layout(self, examples: Examples, width: int | None, *, shows_answers: bool) -> Batch:
        """The examples as a model reads them, `width` steps wide or, where None, as wide as they need."""
        width = int((examples.question_lengths + examples.answer_lengths).max()) - 1 if width is None else width
        return layout(examples, width, self.padding, shows_answers=shows_answers)

    # The rest follows.

    @property
    def d_input(self) -> None:
        """None: the inputs are tokens."""
        return

    @property
    def per_step(self) -> bool:
        """True: the model answers where the loss mask is set."""
        return True

    @property
    def length(self) -> int:
        """Steps of the longest input of any split."""
        return max(self._width(self._length_range(split)[1]) for split in self.splits) - 1

    @property
    def classes(self) -> tuple[str, ...]:
        """The symbols that may be answers."""
        return self.symbols[: self.num_classes]

    @property
    def padding(self) -> int:
        """The token after the end, and at the places of a hidden answer."""
        return self.vocab_size - 1

    @property
    def shows_answers(self) -> bool:
        """Whether answer tokens stand in the input."""
        return False

    def size(self, split: Split) -> int | None:
        """Examples of a split, None for the training stream."""
        check_request(self, split, 0, 1, 0)
        if split == "train":
            return None if self.data == "stream" else self.train_size
        return self.valid_size if split == "valid" else self.test_size

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """The batch of a step: inputs and targets (B, L) int64, valid and loss_mask (B, L); targets are -100 where not scored.

        L is the same for every batch of a split: its longest sequence without the last token.
        """
        check_request(self, split, step, batch_size, seed)
        size = self.size(split)
        if size is None:
            examples = self._examples(split, ("stream", batch_size, seed), step, batch_size)
        else:
            rows = rows_of_step(size, split, step, batch_size, seed)
            examples = self._fixed_examples(split, rows, seed)
        return self._layout(examples, self._width(self._length_range(split)[1]) - 1, shows_answers=self.shows_answers)

    def metrics(self, split: Split) -> "dict[str, Metric]":
        """Token accuracy; on valid and test also of whole answers ("sequence_accuracy") and by length ("accuracy/41-64")."""
        from torchmetrics import MeanMetric

        metrics = super().metrics(split)
        if split != "train":
            metrics["sequence_accuracy"] = MeanMetric()
            metrics |= {f"accuracy/{low}-{high}": MeanMetric() for low, high in self._buckets()}
        return metrics

    def update(self, metrics: "dict[str, Metric]", output: Tensor, batch: Batch) -> None:
        """Enter a batch. output: (B, L, K)."""
        super().update(metrics, output, batch)
        if "sequence_accuracy" not in metrics:
            return
        assert batch.targets is not None
        assert batch.valid is not None
        assert batch.loss_mask is not None
        right = output.argmax(-1) == batch.targets
        metrics["sequence_accuracy"].update((right | ~batch.loss_mask).all(1).float())
        lengths = self._drawn_lengths(batch)
        for low, high in self._buckets():
            rows = (lengths >= low) & (lengths <= high)
            metrics[f"accuracy/{low}-{high}"].update(right[rows][batch.loss_mask[rows]].float())

    def constant_score(self, split: Split = "test") -> float:
        """The token accuracy of always giving the most frequent answer, counted over the split with seed 0.

        Exact for a fixed set; for the training stream, over its first 10,000 examples.
        """
        check_request(self, split, 0, 1, 0)
        return _constant_score(self, split)

    def at_length(self, length: int) -> Self:
        """The same task with training sequences of at most `length` tokens, question and answer."""
        low = self._length_range("train")[0]
        if length < low:
            raise ValueError(f"length: the shortest training sequence of {self.name} has {low} tokens, so none can be {length}")
        return replace(self, train_lengths=(low, length))

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Question | answer, in symbols."""
        question = " ".join(self.symbols[token] for token in self._question(batch, row))
        if batch.targets is None or batch.loss_mask is None:
            return question
        return f"{question} | {' '.join(self.symbols[token] for token in batch.targets[row][batch.loss_mask[row]].tolist())}"

    def read_inputs(self, path: str | Path) -> Batch:
        """Questions from a text file: one a line, symbols apart by spaces, as `example` prints them.

        What follows a "|" is dropped; the closing symbol ("=", "ACT") may be left out; empty lines are skipped. Raises ValueError
        naming file and line for a symbol that the language lacks, and where the answer would have to stand in the input.
        """
        numbers = {symbol: number for number, symbol in enumerate(self.symbols[:-1])}
        questions = []
        for line, text in enumerate(read_text(path).splitlines(), 1):
            words = text.split("|")[0].split()
            unknown = next((word for word in words if word not in numbers), None)
            if unknown is not None:
                raise ValueError(f"{path}:{line}: {unknown[:40]!r} is no symbol of {self.name}, which has {' '.join(numbers)}")
            question = [numbers[word] for word in words]
            if question and self._closing is not None and question[-1] != self._closing:
                question.append(self._closing)
            if question:
                questions.append(question)
        if not questions:
            raise ValueError(f"{path}: holds no question")
        question_lengths = np.array([len(question) for question in questions])
        answer_lengths = np.array([self._answer_length(question) for question in questions])
        if self.shows_answers and answer_lengths.max() > 1:
            why = "under teacher forcing it reads its answers in the input"
            raise ValueError(f"{path}: {self.name} can not answer new questions: {why}")
        table = np.full((len(questions), question_lengths.max()), self.padding)
        table[np.arange(table.shape[1]) < question_lengths[:, None]] = np.concatenate(questions)
        unknown_answers = np.full((len(questions), answer_lengths.max()), self.padding)
        examples = Examples(table, question_lengths, unknown_answers, answer_lengths)
        return self._layout(examples, None, shows_answers=False)._replace(targets=None)

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:
        """Question, answer and the probability that the model gives to the whole answer, a row an example."""
        assert batch.loss_mask is not None
        rows: list[dict[str, str | float]] = []
        for row, mask in enumerate(batch.loss_mask):
            best = output[row][mask].float().softmax(-1).max(-1)
            question = " ".join(self.symbols[token] for token in self._question(batch, row))
            answer = " ".join(self.symbols[token] for token in best.indices.tolist())
            rows.append({"question": question, "answer": answer, "probability": best.values.prod().item()})
        return rows

    def _question(self, batch: Batch, row: int) -> list[int]:
        """The question's tokens: everything up to the first scored step."""
        assert batch.loss_mask is not None
        return batch.inputs[row, : int(batch.loss_mask[row].int().argmax()) + 1].tolist()

    def _buckets(self) -> list[tuple[int, int]]:
        """Ranges of sequence lengths of valid and test, cut at multiples of a power of two, at most five."""
        low, high = self._length_range("test")
        width = 64
        while high > 4 * width:
            width *= 2
        edges = [low - 1, *range((low - 1) // width * width + width, high, width), high]
        return [(before + 1, last) for before, last in pairwise(edges)]

    def _examples(self, split: Split, kind: tuple[object, ...], counter: int, count: int) -> Examples:
        """`count` examples that belong to the split, a pure function of the arguments.

        Lengths are uniform over the split's range: what another split owns is drawn again at the same length.
        """
        options = tuple((field.name, getattr(self, field.name)) for field in fields(self) if field.name not in _NOT_DRAWN)
        low, high = self._length_range(split)
        draws = Draws((self.name, options, split, low, high, *kind), counter)
        lengths = draws.integers(low, high + 1, count)
        parts: list[Examples] = []
        places: list[np.ndarray] = []
        pending = np.arange(count)
        for attempt in range(_ATTEMPTS):
            copies = max(4, 2 * count // len(pending)) if attempt else 1 if split == "train" else 3
            candidates = self._draw(draws, np.repeat(lengths[pending], copies))
            mine = self._owned(candidates, split)
            mine = (mine if candidates.keep is None else mine & candidates.keep).reshape(-1, copies)
            found = mine.any(1)
            parts.append(candidates.select(np.flatnonzero(found) * copies + mine.argmax(1)[found]))
            places.append(pending[found])
            pending = pending[~found]
            if not len(pending):
                return joined(parts, self.padding).select(np.argsort(np.concatenate(places)))
            if attempt % 5 == 4:  # a length with so few questions that this split may own none
                lengths[pending] = draws.integers(low, high + 1, len(pending))
        setting = "train_lengths" if split == "train" else "eval_lengths"
        raise ValueError(f"{setting}: {low} to {high} tokens give too few questions of {self.name} for a split {split!r}")

    def _owned(self, examples: Examples, split: Split) -> np.ndarray:
        """(n,) bool: the question belongs to the split."""
        shared = examples.question_lengths >= self._shortest_question(self._length_range("test")[0])
        if not shared.any():
            return np.full(len(shared), split == "train")
        owners = np.zeros(len(shared), np.int64)
        owners[shared] = owner(examples.questions[shared], examples.question_lengths[shared])
        return owners == self.splits.index(split)

    def _fixed_examples(self, split: Split, rows: np.ndarray, seed: int) -> Examples:
        """The given rows of a fixed set."""
        size = self.size(split)
        assert size is not None
        if split == "train":
            return _all_blocks(self, split, seed, -(-size // _BLOCK)).select(rows)
        first, last = rows[0] // _BLOCK, rows[-1] // _BLOCK
        blocks = [_block(self, split, seed, int(index)) for index in range(first, last + 1)]
        return joined(blocks, self.padding).select(rows - first * _BLOCK)


@dataclass(frozen=True, kw_only=True)
class FormalTask(WordTask):
    """A language of the suites that the class names in `suites`.

    teacher_forcing: the answer stands in the input after it was due. None means the suite's choice.
    """

    suites: ClassVar[tuple[str, ...]] = ("clean", "aussm")
    suite: Literal["clean", "aussm", "chomsky"] = "clean"
    vocab_size: int = 12
    teacher_forcing: bool | None = None

    def __post_init__(self) -> None:
        check_choice(self, "suite", self.suites)
        super().__post_init__()
        if self.vocab_size < self._least_vocab:
            raise ValueError(f"vocab_size: {self.name} needs at least {self._least_vocab} tokens, not {self.vocab_size}")

    @property
    @abstractmethod
    def _least_vocab(self) -> int:
        """The smallest vocabulary."""

    @property
    def _own_lengths(self) -> tuple[int, int]:
        return max(self._least_length, 6 if self.suite == "aussm" else 3), 40

    @property
    def _title(self) -> str:
        return f"{self.name} of suite {self.suite!r}"

    @property
    def shows_answers(self) -> bool:
        """Whether answer tokens stand in the input: `teacher_forcing`, or the suite's choice."""
        return self.suite == "aussm" if self.teacher_forcing is None else self.teacher_forcing


def check_choice(task: WordTask, setting: str, choices: tuple[object, ...]) -> None:
    """ValueError where a setting is none of its choices."""
    if getattr(task, setting) not in choices:
        raise ValueError(f"{setting}: must be one of {', '.join(map(repr, choices))}, not {getattr(task, setting)!r}")


# Blocks of valid and test are read in order, so a few are enough; shuffled training samples are kept whole.
@lru_cache(maxsize=8)
def _block(task: WordTask, split: Split, seed: int, index: int) -> Examples:
    return task._examples(split, ("block", seed), index, _BLOCK)


@lru_cache(maxsize=2)
def _all_blocks(task: WordTask, split: Split, seed: int, count: int) -> Examples:
    return joined([_block.__wrapped__(task, split, seed, index) for index in range(count)], task.padding)


@lru_cache(maxsize=64)
def _constant_score(task: WordTask, split: Split) -> float:
    size = task.size(split) or 10_000
    counts = np.zeros(task.num_classes, np.int64)
    for start in range(0, size, _BLOCK):
        if task.size(split) is None:
            examples = task._examples(split, ("stream", _BLOCK, 0), start // _BLOCK, _BLOCK)
        else:
            examples = task._fixed_examples(split, np.arange(start, min(start + _BLOCK, size)), 0)
        counted = np.arange(examples.answers.shape[1]) < examples.answer_lengths[:, None]
        counts += np.bincount(examples.answers[counted], minlength=task.num_classes)
    return float(counts.max() / counts.sum())
