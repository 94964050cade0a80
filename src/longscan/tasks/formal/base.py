"""Base classes of the formal languages: splits, the layout of question and answer, scores by length, text files, and suites.

An example is a question, an answer of one or more tokens, and padding (the last token number). The model reads the sequence
without its last token and answers at the last token of the question and, for longer answers, at the steps after it. Subclasses
of `FormalTask` come in suites; direct subclasses of `WordTask` hide their answers as the suite `clean` does:

- `clean` (default): training sequences of 3-40 tokens, valid and test of 41-256. The input has padding tokens in place of the
  answer, so nothing can be copied from it and bidirectional models may be compared.
- `aussm`: the semantics of the published AUSSM repository (the docstring of each class names the differences): sequences of 6-40
  and 41-256 tokens, and the answer in the input (teacher forcing). Its loader delivered every batch four times; here, once.
- `chomsky`, for classes that list it: the expressions of "Neural Networks and the Chomsky Hierarchy" (Delétang et al., ICLR
  2023), and the rest as in `clean`; `chomsky_suite` has all tasks of that paper.

`data="stream"` gives an endless training stream, `data="samples"` a fixed set of `train_size` training examples. In both cases
valid and test are fixed sets of `valid_size` and `test_size` examples.

The splits are disjoint by construction, for all seeds: a hash of the question assigns it to one of the three splits if it is as
long as those of valid and test; shorter questions belong to train. So the overlap is zero even if the length ranges meet. Within
one split short questions repeat (there are only 4 parity words of two bits).
"""

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from longscan._errors import cut, setting_error
from longscan._files import read_text
from longscan._types import Doc, Rule
from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Ragged
from longscan.tasks.base import Batch, Split, TestSize, TrainSize, ValidSize, check_request, rows_of_step
from longscan.tasks.classification import ClassificationTask
from longscan.tasks.formal._examples import PADDING, Examples, concatenate_examples, next_token_batch, split_index

if TYPE_CHECKING:
    from torchmetrics import Metric

_BLOCK_SIZE = 256  # examples of a fixed set that are generated together
_MAX_CACHED_STEPS = 2**19  # steps (words x length) of a validation set that is cached as tensors, of 18 bytes each
_MAX_ATTEMPTS = 100  # rounds of generation after which a split counts as empty
# Settings that select examples or change their layout, but not the random numbers; they are not part of the generator's key.
_SELECTION_SETTINGS = ("data", "train_lengths", "eval_lengths", "train_size", "valid_size", "test_size", "teacher_forcing")


LengthRange = Annotated[
    tuple[int, int],
    Rule(lambda lengths: lengths[0] <= lengths[1], "the shortest and the longest length, two whole numbers in order"),
]
EvalLengths = Annotated[LengthRange, Doc("lengths of the validation and test sequences")]


@dataclass(frozen=True, kw_only=True)
class WordTask(ClassificationTask):
    """A language of questions and answers; the module's docstring explains the suites.

    A length counts the tokens of question and answer unless the docstring of the class defines it otherwise.
    """

    _extra_symbols: ClassVar[tuple[str, ...]] = ()  # names of the tokens after the classes and before the padding
    _end_symbol: ClassVar[str | None] = None  # the symbol at the end of every question, if the language has one
    _end_count: ClassVar[int] = 1  # how often that symbol is in a question
    data: Annotated[
        Literal["stream", "samples"], Doc("training examples: an endless stream, or a fixed set of train_size examples")
    ] = "stream"
    train_lengths: Annotated[LengthRange | None, Doc("lengths of the training sequences; None: the default of the language")] = (
        None
    )
    eval_lengths: EvalLengths = (41, 256)
    train_size: TrainSize = 10_000
    valid_size: ValidSize = 1_000
    test_size: TestSize = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting, lengths in (("train_lengths", self.train_lengths), ("eval_lengths", self.eval_lengths)):
            if lengths is not None and lengths[0] < self._min_length:
                raise setting_error(setting, lengths, f"lengths of at least {self._min_length}")

    # A language defines the next three members.

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """Number of tokens that may be an answer: 0 .. num_classes - 1."""

    @property
    @abstractmethod
    def _min_length(self) -> int:
        """Length of the shortest possible sequence."""

    @abstractmethod
    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        """Generate an example for each of `lengths` (n,): the largest number of tokens of question and answer together."""

    # A language overrides the following members if their defaults do not hold for it.

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the tokens in the order of their numbers; the last is the padding."""
        return (*map(str, range(self.num_classes)), *self._extra_symbols, PADDING)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including the padding."""
        return len(self.symbols)

    @property
    def _default_train_lengths(self) -> tuple[int, int]:
        """Shortest and longest training sequence if `train_lengths` is None."""
        return max(3, self._min_length), 40

    def _min_question_length(self, length: int) -> int:
        """Return the smallest number of question tokens in a sequence generated for `length`, a non-decreasing function."""
        return length - 1

    def _answer_length(self, question: list[int]) -> int:  # noqa: ARG002
        """Return the number of answer tokens of a question."""
        return 1

    @property
    def _end_of_question(self) -> int | None:
        """Number of the token that ends every question, None if the language has no such token."""
        return None if self._end_symbol is None else self.symbols.index(self._end_symbol)

    def _max_length_at(self, length: int) -> int:
        """Return the largest number of tokens of a sequence generated for `length`."""
        return length

    def _bucket_lengths(self, batch: Batch) -> Tensor:
        """Return the length (B,) of each example by which its score is put into a bucket."""
        assert batch.valid is not None
        return batch.valid.sum(1) + 1

    def _length_range(self, split: Split) -> tuple[int, int]:
        """Return the shortest and the longest sequence of a split."""
        if split != "train":
            return self.eval_lengths
        return self.train_lengths or self._default_train_lengths

    def _to_batch(self, examples: Examples, width: int | None, *, uses_teacher_forcing: bool) -> Batch:
        """Lay out examples as a model reads them, in `width` steps, or as few as they need if `width` is None."""
        width = int((examples.question_lengths + examples.answer_lengths).max()) - 1 if width is None else width
        return next_token_batch(examples, width, self.padding, uses_teacher_forcing=uses_teacher_forcing)

    # The following members are the same for all languages.

    d_input: ClassVar[None] = None  # the inputs are tokens
    per_step: ClassVar[bool] = True  # the model answers where the loss mask is set

    @property
    def length(self) -> int:
        """Steps of the longest input of any split."""
        return max(self._max_length_at(self._length_range(split)[1]) for split in self.splits) - 1

    @property
    def classes(self) -> tuple[str, ...]:
        """The symbols that may be answers."""
        return self.symbols[: self.num_classes]

    @property
    def padding(self) -> int:
        """Number of the token after the end of a sequence and in place of a hidden answer."""
        return self.vocab_size - 1

    @property
    def uses_teacher_forcing(self) -> bool:
        """Whether the input contains the answer tokens."""
        return False

    def _append_end(self, words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return words (n, W) with a column more, in which the token that ends a question follows each. lengths: (n,)."""
        questions = np.pad(words, ((0, 0), (0, 1)), constant_values=self.padding)
        questions[np.arange(len(words)), lengths] = self._end_of_question
        return questions

    def size(self, split: Split) -> int | None:
        """Return the number of examples of a split, None for the training stream."""
        check_request(self, split)
        if split == "train":
            return None if self.data == "stream" else self.train_size
        return self.valid_size if split == "valid" else self.test_size

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """Return the batch of a step: inputs and targets (B, L) int64, valid and loss_mask (B, L) bool.

        Targets at unscored steps are -100. L is the same for every batch of a split: its longest sequence without the last token.
        """
        check_request(self, split, step, batch_size, seed)
        size = self.size(split)
        if size is None:
            return self._lay_out(self._examples(split, ("stream", batch_size, seed), step, batch_size), split)
        rows = rows_of_step(size, split, step, batch_size, seed)
        if split == "train":
            chosen = torch.from_numpy(rows)
            whole = _load_training_set(self, seed)
            return Batch(*(None if part is None else part.index_select(0, chosen) for part in whole))  # type: ignore[arg-type]
        if split == "valid" and size * self._max_length_at(self._length_range(split)[1]) <= _MAX_CACHED_STEPS:
            part = _load_validation_set(self, seed).rows(int(rows[0]), len(rows))
            return Batch(*(None if tensor is None else tensor.clone() for tensor in part))  # type: ignore[arg-type]
        return self._lay_out(self._fixed_examples(split, rows, seed), split)

    def training_set(self, seed: int = 0) -> Batch | None:
        """Return the whole training set in the order of its row numbers, None for the training stream."""
        return None if self.size("train") is None else _load_training_set(self, seed)

    def _lay_out(self, examples: Examples, split: Split) -> Batch:
        """Return examples as a batch of the width of a split."""
        width = self._max_length_at(self._length_range(split)[1]) - 1
        return self._to_batch(examples, width, uses_teacher_forcing=self.uses_teacher_forcing)

    def metrics(self, split: Split) -> "dict[str, Metric]":
        """Return token accuracy; for valid and test also "sequence_accuracy" of whole answers and "accuracy/41-64" by length."""
        from torchmetrics import MeanMetric

        metrics = super().metrics(split)
        if split != "train":
            metrics["sequence_accuracy"] = MeanMetric()
            metrics |= {f"accuracy/{low}-{high}": MeanMetric() for low, high in self._length_buckets()}
        return metrics

    def update(self, metrics: "dict[str, Metric]", output: Tensor, batch: Batch) -> None:
        """Update the metrics with a batch. output: (B, L, K)."""
        super().update(metrics, output, batch)
        if "sequence_accuracy" not in metrics:
            return
        assert batch.targets is not None
        assert batch.valid is not None
        assert batch.loss_mask is not None
        # Only at scored steps: the argmax of all of them takes half of the time of a validation on the CPU.
        scored = batch.loss_mask.nonzero(as_tuple=True)
        correct = torch.zeros_like(batch.loss_mask)
        correct[scored] = output[scored].argmax(-1) == batch.targets[scored]
        metrics["sequence_accuracy"].update((correct | ~batch.loss_mask).all(1).float())
        lengths = self._bucket_lengths(batch)
        for low, high in self._length_buckets():
            rows = (lengths >= low) & (lengths <= high)
            metrics[f"accuracy/{low}-{high}"].update(correct[rows][batch.loss_mask[rows]].float())

    def constant_score(self, split: Split = "test") -> float:
        """Return the token accuracy of always giving the most frequent answer, counted over the split with seed 0.

        Exact for a fixed set; for the training stream, over its first 10,000 examples.
        """
        check_request(self, split)
        return _constant_score(self, split)

    def at_length(self, length: int) -> Self:
        """Return the same task with training sequences of at most `length` tokens, question and answer."""
        low = self._length_range("train")[0]
        if length < low:
            raise setting_error("length", length, f"at least {low}, the length of the shortest training sequence of {self.name}")
        return replace(self, train_lengths=(low, length))

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Return an example as text: "question | answer", in symbols separated by spaces."""
        question = " ".join(self.symbols[token] for token in self._question(batch, row))
        if batch.targets is None or batch.loss_mask is None:
            return question
        return f"{question} | {' '.join(self.symbols[token] for token in batch.targets[row][batch.loss_mask[row]].tolist())}"

    def read_inputs(self, path: str | Path) -> Batch:
        """Read questions from a text file: one per line, symbols separated by spaces, as `example` prints them.

        Text after a "|" is ignored; the symbol that ends a question ("=", "ACT") may be left out; empty lines are skipped. Raises
        ValueError naming file and line for an unknown symbol, an end symbol in another place, a question whose
        answer has no tokens, and one whose answer has several if the model was trained by teacher forcing.
        """
        questions = []
        for line, text in enumerate(read_text(path).splitlines(), 1):
            words = text.split("|")[0].split()
            if not words:
                continue
            try:
                questions.append(self._parse_question(words))
            except ValueError as error:
                raise ValueError(f"{path}:{line}: {error}") from None
        if not questions:
            raise ValueError(f"{path} must contain questions of {self.name}, got none")
        answer_lengths = np.array([self._answer_length(question) for question in questions])
        unknown_answers = np.full((len(questions), answer_lengths.max()), self.padding)
        examples = Examples(*Ragged.from_sequences(questions).pad(None, self.padding), unknown_answers, answer_lengths)
        return self._to_batch(examples, None, uses_teacher_forcing=False)._replace(targets=None)

    def _parse_question(self, words: list[str]) -> list[int]:
        """Return the symbols of a question as tokens, with the end symbol.

        Raises ValueError if they are no question with an answer.
        """
        numbers = {symbol: number for number, symbol in enumerate(self.symbols[:-1])}
        shown = repr(" ".join(words)[:60])
        unknown = next((word for word in words if word not in numbers), None)
        if unknown is not None:
            raise ValueError(f"each symbol must be one of the symbols {cut(' '.join(numbers))}, got {unknown[:40]!r}")
        question = [numbers[word] for word in words]
        end = self._end_of_question
        if end is not None:
            question += [] if question[-1] == end else [end]
            if question.count(end) != self._end_count:
                places = "once, at its end" if self._end_count == 1 else "twice, before the letter to recall and at its end"
                raise ValueError(f"a question must have {self._end_symbol} {places}, got {shown}")
        length = self._answer_length(question)
        if not length:
            raise ValueError(f"the line must be a question of {self.name} with an answer, got {shown}")
        if length > 1 and self.uses_teacher_forcing:
            raise ValueError(
                "the answer of a question must have one token, as a model that was trained by teacher forcing reads the other "
                f"tokens in its input, got {shown}, whose answer has {length} tokens"
            )
        return question

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:
        """Return question, answer and the probability that the model gives to the whole answer, a row for each example."""
        assert batch.loss_mask is not None
        rows: list[dict[str, str | float]] = []
        for row, mask in enumerate(batch.loss_mask):
            best = output[row][mask].float().softmax(-1).max(-1)
            question = " ".join(self.symbols[token] for token in self._question(batch, row))
            answer = " ".join(self.symbols[token] for token in best.indices.tolist())
            rows.append({"question": question, "answer": answer, "probability": best.values.prod().item()})
        return rows

    def _question(self, batch: Batch, row: int) -> list[int]:
        """Return the tokens of a question, which ends at the first scored step."""
        assert batch.loss_mask is not None
        return batch.inputs[row, : int(batch.loss_mask[row].int().argmax()) + 1].tolist()

    def _length_buckets(self) -> list[tuple[int, int]]:
        """Return at most five ranges of sequence lengths of valid and test, cut at multiples of a power of two."""
        low, high = self._length_range("test")
        width = 64
        while high > 4 * width:
            width *= 2
        edges = [low - 1, *range((low - 1) // width * width + width, high, width), high]
        return [(before + 1, last) for before, last in pairwise(edges)]

    def _examples(self, split: Split, kind: tuple[object, ...], counter: int, count: int) -> Examples:
        """Return `count` examples that belong to the split, a pure function of the arguments.

        Lengths are uniform over the split's range: a question of another split is generated again at the same length.
        """
        options = tuple((f.name, getattr(self, f.name)) for f in fields(self) if f.name not in _SELECTION_SETTINGS)
        low, high = self._length_range(split)
        rng = CounterRNG((self.name, options, split, low, high, *kind), counter)
        lengths = rng.integers(low, high + 1, count)
        accepted: list[Examples] = []
        accepted_rows: list[np.ndarray] = []
        pending = np.arange(count)
        for attempt in range(_MAX_ATTEMPTS):
            copies = max(4, 2 * count // len(pending)) if attempt else 1 if split == "train" else 3
            candidates = self._generate(rng, np.repeat(lengths[pending], copies))
            usable = self._belongs_to_split(candidates, split)
            usable = (usable if candidates.is_usable is None else usable & candidates.is_usable).reshape(-1, copies)
            done = usable.any(1)
            accepted.append(candidates.select(np.flatnonzero(done) * copies + usable.argmax(1)[done]))
            accepted_rows.append(pending[done])
            pending = pending[~done]
            if not len(pending):
                return concatenate_examples(accepted, self.padding).select(np.argsort(np.concatenate(accepted_rows)))
            if attempt % 5 == 4:  # a length with so few questions that perhaps none belongs to this split
                lengths[pending] = rng.integers(low, high + 1, len(pending))
        setting = "train_lengths" if split == "train" else "eval_lengths"
        raise ValueError(
            f"`{setting}` must give enough questions of {self.name} for the split {split!r}, got {low} to {high} tokens"
        )

    def _belongs_to_split(self, examples: Examples, split: Split) -> np.ndarray:
        """Return which questions belong to the split, (n,) bool."""
        hashed = examples.question_lengths >= self._min_question_length(self._length_range("test")[0])
        if not hashed.any():
            return np.full(len(hashed), split == "train")
        splits = np.zeros(len(hashed), np.int64)
        splits[hashed] = split_index(examples.questions[hashed], examples.question_lengths[hashed])
        return splits == self.splits.index(split)

    def _fixed_examples(self, split: Split, rows: np.ndarray, seed: int) -> Examples:
        """Return the given rows of a fixed set."""
        size = self.size(split)
        assert size is not None
        if split == "train":
            return _load_all_blocks(self, split, seed, -(-size // _BLOCK_SIZE)).select(rows)
        first, last = rows[0] // _BLOCK_SIZE, rows[-1] // _BLOCK_SIZE
        blocks = [_load_block(self, split, seed, int(index)) for index in range(first, last + 1)]
        return concatenate_examples(blocks, self.padding).select(rows - first * _BLOCK_SIZE)


SUITE_DOC = Doc("meaning and layout of the examples: of this package, or of a published suite")
AllSuites = Annotated[Literal["clean", "aussm", "chomsky"], SUITE_DOC]


@dataclass(frozen=True, kw_only=True)
class FormalTask(WordTask):
    """A language that belongs to suites; the annotation of the field `suite` lists them."""

    _min_vocab_size: ClassVar[int]
    suite: Annotated[Literal["clean", "aussm"], SUITE_DOC] = "clean"
    vocab_size: Annotated[int, Doc("number of tokens, including the padding")] = 12
    teacher_forcing: Annotated[
        bool | None,
        Doc("whether the input contains each answer token at the step after its prediction; None: the choice of the suite"),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab_size < self._min_vocab_size:
            raise setting_error("vocab_size", self.vocab_size, f"a whole number of at least {self._min_vocab_size}")

    @property
    def num_classes(self) -> int:
        """Number of tokens that may be an answer: 0 .. num_classes - 1."""
        return self.vocab_size - len(self._extra_symbols) - 1

    @property
    def _default_train_lengths(self) -> tuple[int, int]:
        return max(self._min_length, 6 if self.suite == "aussm" else 3), 40

    @property
    def uses_teacher_forcing(self) -> bool:
        """Whether the input contains the answer tokens: `teacher_forcing`, or the suite's choice."""
        return self.suite == "aussm" if self.teacher_forcing is None else self.teacher_forcing


# Training samples are shuffled, so they are cached as a whole, laid out as tensors, of which a batch takes rows. So are
# validation sets of usual size, which a training reads many times.
# The caches hold the words of ten seeds that train in one process, whose batches and validations take turns: four blocks of a
# validation set of the usual size for each seed.
@lru_cache(maxsize=64)
def _load_block(task: WordTask, split: Split, seed: int, index: int) -> Examples:
    return task._examples(split, ("block", seed), index, _BLOCK_SIZE)


@lru_cache(maxsize=2)
def _load_all_blocks(task: WordTask, split: Split, seed: int, count: int) -> Examples:
    return concatenate_examples([_load_block.__wrapped__(task, split, seed, index) for index in range(count)], task.padding)


@lru_cache(maxsize=16)
def _load_training_set(task: WordTask, seed: int) -> Batch:
    size = task.size("train")
    assert size is not None
    examples = _load_all_blocks.__wrapped__(task, "train", seed, -(-size // _BLOCK_SIZE))
    return task._lay_out(examples.select(np.arange(size)), "train")


@lru_cache(maxsize=16)
def _load_validation_set(task: WordTask, seed: int) -> Batch:
    size = task.size("valid")
    assert size is not None
    return task._lay_out(task._fixed_examples("valid", np.arange(size), seed), "valid")


@lru_cache(maxsize=64)
def _constant_score(task: WordTask, split: Split) -> float:
    size = task.size(split) or 10_000
    counts = np.zeros(task.num_classes, np.int64)
    for start in range(0, size, _BLOCK_SIZE):
        if task.size(split) is None:
            examples = task._examples(split, ("stream", _BLOCK_SIZE, 0), start // _BLOCK_SIZE, _BLOCK_SIZE)
        else:
            examples = task._fixed_examples(split, np.arange(start, min(start + _BLOCK_SIZE, size)), 0)
        is_answer = np.arange(examples.answers.shape[1]) < examples.answer_lengths[:, None]
        counts += np.bincount(examples.answers[is_answer], minlength=task.num_classes)
    return float(counts.max() / counts.sum())
