"""Formal languages: samples of the papers, answers of independent evaluators, lengths, balance, disjoint splits, files."""

import operator
from collections import Counter
from dataclasses import fields
from itertools import pairwise
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch

from longscan.tasks import TASKS
from longscan.tasks._random import CounterRNG
from longscan.tasks.base import rows_of_step
from longscan.tasks.formal import (
    BucketSort,
    CycleNavigation,
    FormalTask,
    Majority,
    MajorityCount,
    ModularArithmetic,
    ModularArithmeticBrackets,
    MultiQueryRecall,
    Parity,
    Repetition,
    Set,
    SolveEquation,
)
from longscan.tasks.formal._expressions import SymbolIds, generate_expressions
from longscan.tasks.formal.base import WordTask

FORMAL = [cls for cls in TASKS.values() if issubclass(cls, FormalTask)]


# Evaluators return the answer to a question as text. They share no code with the generators.


def parity_odd(question: str, modulus: int) -> str:
    return str(question.split().count("1") % 2)


def parity_even(question: str, modulus: int) -> str:
    return str((question.split().count("1") + 1) % 2)


def cycle(question: str, modulus: int) -> str:
    return str(sum({"+1": 1, "-1": -1, "STAY": 0}[move] for move in question.split()) % modulus)


def arithmetic(question: str, modulus: int) -> str:
    return str(eval(question.removesuffix("=")) % modulus)


def left_to_right(question: str, modulus: int) -> str:
    tokens = question.split()
    value = int(tokens[0])
    for name, digit in zip(tokens[1:-1:2], tokens[2:-1:2], strict=True):
        value = {"*": operator.mul, "-": operator.sub, "+": operator.add}[name](value, int(digit))
    return str(value % modulus)


def solve_modular(question: str, modulus: int) -> str:
    left, right = question.removesuffix(" ACT").split(" = ")
    solutions = [x for x in range(modulus) if (eval(left.replace("x", str(x))) - eval(right)) % modulus == 0]
    assert len(solutions) == 1, "the solution is unique"
    return str(solutions[0])


def solve_rational(question: str, modulus: int) -> str:
    import sympy

    left, right = question.removesuffix(" ACT").split(" = ")
    (solution,) = sympy.solve(sympy.sympify(f"({left}) - ({right})"), sympy.Symbol("x"))
    return str(int(solution) % modulus)


def copied(question: str, modulus: int) -> str:
    return question.removesuffix(" ACT")


def ordered(question: str, modulus: int) -> str:
    return " ".join(sorted(question.split()[:-1], key=int))


def distinct(question: str, modulus: int) -> str:
    return " ".join(sorted(set(question.split()[:-1]), key=int))


def first_occurrences(question: str, modulus: int) -> str:
    return " ".join(dict.fromkeys(question.split()[:-1]))


def majority(question: str, modulus: int) -> str:
    counts = Counter(map(int, question.split()))
    return str(min(letter for letter, count in counts.items() if count == max(counts.values())))


def majority_count(question: str, modulus: int) -> str:
    return str(min(max(Counter(question.split()).values()), modulus - 1))


EVALUATORS = [
    (Parity(), parity_odd),
    (Parity(suite="aussm"), parity_even),
    (Parity(suite="aussm", one_means="odd"), parity_odd),
    (CycleNavigation(), cycle),
    (CycleNavigation(suite="aussm", vocab_size=9), cycle),
    (ModularArithmetic(), arithmetic),
    (ModularArithmetic(vocab_size=10), arithmetic),
    (ModularArithmetic(precedence="left"), left_to_right),
    (ModularArithmetic(suite="aussm"), left_to_right),
    (ModularArithmetic(suite="aussm", precedence="standard"), arithmetic),
    (ModularArithmeticBrackets(), arithmetic),
    (ModularArithmeticBrackets(suite="aussm", vocab_size=14), arithmetic),
    (SolveEquation(), solve_modular),
    (SolveEquation(vocab_size=15), solve_modular),
    (SolveEquation(suite="aussm"), solve_rational),
    (SolveEquation(suite="aussm", vocab_size=14), solve_rational),
    (Repetition(), copied),
    (Repetition(suite="aussm"), copied),
    (BucketSort(), ordered),
    (BucketSort(suite="aussm", vocab_size=16), ordered),
    (Set(), distinct),
    (Set(order="first"), first_occurrences),
    (Majority(), majority),
    (Majority(suite="aussm", vocab_size=12), majority),
    (MajorityCount(), majority_count),
    (MajorityCount(suite="aussm", vocab_size=12), majority_count),
]


def describe_examples(task, split, count, step=0):
    batch = task.batch(split, step, count)
    return [task.describe(batch, row).split(" | ") for row in range(count)]


@pytest.mark.parametrize(("task", "evaluate"), EVALUATORS, ids=lambda value: getattr(value, "__name__", type(value).__name__))
def test_answers_equal_those_of_an_independent_evaluator(task, evaluate):
    train, test = (10, 0) if evaluate is solve_rational else (200, 20)
    for question, answer in describe_examples(task, "train", train) + describe_examples(task, "test", max(test, 1))[:test]:
        assert answer == evaluate(question, task.num_classes), question


SAMPLES = [  # question | answer, its evaluator, and the modulus
    ("1 0 1 1 0 | 0", parity_even, 2),
    ("1 0 1 1 0 | 1", parity_odd, 2),
    ("+1 STAY -1 -1 -1 | 6", cycle, 8),
    ("3 * 5 - 2 + 0 = | 6", left_to_right, 7),
    ("3 * 5 - 2 + 0 = | 6", arithmetic, 7),
    ("2 + 3 * 4 - 0 = | 6", left_to_right, 7),
    ("2 + 3 * 4 - 0 = | 0", arithmetic, 7),
    ("( ( 3 * 4 ) - 2 ) = | 0", arithmetic, 5),
    ("( x + 1 ) = ( 2 * 2 ) ACT | 0", solve_rational, 3),
    ("( x * 2 ) = 1 ACT | 0", solve_rational, 3),
    ("( x * 2 ) = 1 ACT | 2", solve_modular, 3),
    ("( ( 3 ) - ( - 4 ) ) = | 2", arithmetic, 5),
    ("( ( x ) - ( - 2 ) ) = 1 ACT | 2", solve_modular, 3),
    ("5 2 9 2 ACT | 2 2 5 9", ordered, 10),
    ("5 2 9 2 ACT | 5 2 9 2", copied, 10),
    ("7 4 7 4 | 4", majority, 63),
    ("7 4 7 4 7 | 3", majority_count, 63),
    ("3 5 0 7 3 ACT | 3 5 0 7", first_occurrences, 10),
    ("3 5 0 7 3 ACT | 0 3 5 7", distinct, 10),
    ("45 56 51 43 51 34 10 46 54 44 56 | 51", majority, 63),
    ("45 56 51 43 51 34 10 46 54 44 56 | 2", majority_count, 63),
]


@pytest.mark.parametrize(("sample", "evaluate", "modulus"), SAMPLES)
def test_evaluator_gives_the_answers_of_the_papers(sample, evaluate, modulus):
    question, answer = sample.split(" | ")
    assert evaluate(question, modulus) == answer


@pytest.mark.parametrize("cls", FORMAL, ids=lambda cls: cls.name)
def test_docstrings_show_samples(cls):
    samples = {sample for sample, _, _ in SAMPLES}
    lines = [line.strip() for line in cls.__doc__.splitlines() if " | " in line]
    assert lines
    for line in lines:
        assert any(sample in line for sample in samples), line


def sequence_lengths(task, split, count):
    """Return the lengths of sequences, each of a question and its answer."""
    return (task.batch(split, 0, count).valid.sum(1) + 1).tolist()


@pytest.mark.parametrize("cls", FORMAL, ids=lambda cls: cls.name)
def test_lengths_cover_the_range_of_each_suite(cls):
    slack = {"solve_equation": 8, "set": 40, "modular_arithmetic_brackets": 3, "modular_arithmetic": 2}.get(cls.name, 2)
    for suite, low in (("clean", 5 if cls is SolveEquation else 3), ("aussm", 6)):
        task = cls(suite=suite, valid_size=600)
        train, valid = sequence_lengths(task, "train", 600), sequence_lengths(task, "valid", 600)
        assert low - slack <= min(train) <= low + 2
        assert 40 - slack - (2 if suite == "aussm" else 0) <= max(train) <= 40
        assert min(valid) >= (41 - slack if cls is not Set else 20)
        assert 240 <= max(valid) + (110 if cls is Set else 0) <= 256 + (110 if cls is Set else 0)
        assert task.batch("train", 0, 2).inputs.shape[1] == (37 if (cls, suite) == (CycleNavigation, "aussm") else 39)
        assert task.length == (253 if (cls, suite) == (CycleNavigation, "aussm") else 255)


@pytest.mark.parametrize(
    ("task", "length", "question", "answer"),
    [
        (Parity(suite="aussm"), 40, 39, 1),
        (Majority(suite="aussm"), 40, 39, 1),
        (BucketSort(suite="aussm"), 40, 20, 19),
        (Repetition(suite="aussm"), 40, 20, 19),
        (Repetition(suite="aussm"), 6, 3, 2),
        (ModularArithmetic(suite="aussm"), 40, 38, 1),
        (ModularArithmetic(suite="aussm"), 6, 4, 1),
        (ModularArithmeticBrackets(suite="aussm"), 6, 2, 1),
        (ModularArithmetic(), 3, 2, 1),
        (BucketSort(), 3, 2, 1),
        (SolveEquation(), 5, 4, 1),
    ],
)
def test_length_counts_question_and_answer(task, length, question, answer):
    one_length = type(task)(suite=task.suite, train_lengths=(length, length))
    batch = one_length.batch("train", 0, 20)
    assert set((batch.valid.sum(1) + 1).tolist()) == {question + answer}
    assert set(batch.loss_mask.sum(1).tolist()) == {answer}
    assert set(batch.loss_mask.int().argmax(1).tolist()) == {question - 1}


def test_answers_are_inputs_only_with_teacher_forcing():
    shown = BucketSort(suite="aussm", train_lengths=(11, 11)).batch("train", 0, 30)
    assert torch.equal(shown.inputs[:, 5:9], shown.targets[:, 4:8]), "each answer is the next input"
    hidden = BucketSort(train_lengths=(11, 11)).batch("train", 0, 30)
    assert (hidden.inputs[:, 6:] == 11).all(), "padding takes the place of the answer"
    assert hidden.valid.sum(1).eq(10).all()
    forced = BucketSort(train_lengths=(11, 11), teacher_forcing=True).batch("train", 0, 30)
    assert torch.equal(forced.inputs[:, 6:], forced.targets[:, 5:9])
    unforced = BucketSort(suite="aussm", train_lengths=(11, 11), teacher_forcing=False).batch("train", 0, 30)
    assert (unforced.inputs[:, 5:] == 11).all()


def fraction_of_zeros(task, count=8000):
    targets = [task.batch("test", step, 1000) for step in range(count // 1000)]
    answers = torch.cat([batch.targets[batch.loss_mask] for batch in targets])
    return (answers == 0).float().mean().item()


def test_balance_of_answers_is_that_of_the_published_generators():
    # The fractions come from a simulation of the published generators. Five standard errors for 8,000 samples are 0.028.
    assert fraction_of_zeros(ModularArithmetic(suite="aussm")) == pytest.approx(0.467, abs=0.028)
    assert fraction_of_zeros(ModularArithmetic(suite="aussm", vocab_size=10)) == pytest.approx(0.517, abs=0.028)
    assert fraction_of_zeros(ModularArithmeticBrackets(suite="aussm")) == pytest.approx(0.306, abs=0.028)
    assert fraction_of_zeros(ModularArithmetic()) == pytest.approx(1 / 7, abs=0.02)


def test_constant_score_on_the_scale_of_the_papers():
    arithmetic_task = ModularArithmetic(suite="aussm")
    assert arithmetic_task.scaled(arithmetic_task.constant_score()) == pytest.approx(0.38, abs=0.03)
    assert Parity().constant_score() == pytest.approx(0.5, abs=0.02)
    assert Parity().constant_score("train") == pytest.approx(0.5, abs=0.02), "for the first examples of the stream"
    assert Parity().scaled(0.75) == 0.5
    # Rows of the published table with five, two and four classes.
    for score, classes, scaled in ((0.95, 5, 0.9375), (0.758, 2, 0.516), (0.299, 4, 0.065)):
        task = CycleNavigation(vocab_size=classes + 4)
        assert task.scaled(score) == pytest.approx(scaled, abs=5e-4)


def test_bracket_lengths_have_the_published_frequencies():
    counts = Counter(length - 2 for length in sequence_lengths(ModularArithmeticBrackets(suite="aussm"), "train", 8000))
    assert set(counts) == set(range(1, 38, 4))
    assert counts[1] / 8000 == pytest.approx(1 / 35, abs=0.01)
    assert counts[37] / 8000 == pytest.approx(2 / 35, abs=0.015)
    assert counts[17] / 8000 == pytest.approx(4 / 35, abs=0.02)
    early = sequence_lengths(ModularArithmeticBrackets(suite="aussm"), "train", 8000)[:4000].count(39)
    assert early / 4000 == pytest.approx(2 / 35, abs=0.02), "questions that were sampled again keep their position"


def shape_probabilities(leaves: int) -> dict[str, float]:
    """Return the probabilities of bracketings if in each step a uniformly chosen leaf is replaced by two."""
    probabilities = {"d": 1.0}
    for _ in range(leaves - 1):
        grown: Counter[str] = Counter()
        for shape, probability in probabilities.items():
            positions = [position for position, letter in enumerate(shape) if letter == "d"]
            for position in positions:
                grown[f"{shape[:position]}(dd){shape[position + 1 :]}"] += probability / len(positions)
        probabilities = dict(grown)
    return probabilities


def test_trees_have_the_distribution_of_growth_by_leaves():
    count = 20_000
    ids = SymbolIds(closing=5, opening=6, times=7, padding=11)
    generated = generate_expressions(CounterRNG(("trees",), 0), np.full(count, 4), 5, ids)
    letters = np.array([*"ddddd)(***"])
    frequencies = Counter("".join(row).replace("*", "") for row in letters[generated.tokens])
    expected = shape_probabilities(5)
    assert set(frequencies) == set(expected)
    for shape, probability in expected.items():
        error = (probability * (1 - probability) / count) ** 0.5
        assert abs(frequencies[shape] / count - probability) < 5 * error


def test_large_solutions_of_the_published_equations_are_exact():
    # Products of many twos exceed 2^63.
    task = SolveEquation(suite="aussm", vocab_size=40, train_lengths=(400, 400), eval_lengths=(400, 400))
    for question, answer in describe_examples(task, "train", 5):
        left, right = question.removesuffix(" ACT").split(" = ")
        values = [eval(left.replace("x", str(x))) for x in (0, 1)]
        rest, slope = eval(right) - values[0], values[1] - values[0]
        quotient = abs(rest) // abs(slope) * (1 if rest * slope > 0 else -1)
        assert answer == str(quotient % 31)


@pytest.mark.parametrize(("cls", "suite"), [(cls, suite) for cls in FORMAL for suite in get_args(get_type_hints(cls)["suite"])])
def test_splits_with_the_same_lengths_have_no_common_question(cls, suite):
    task = cls(suite=suite, train_lengths=(12, 24), eval_lengths=(12, 24), valid_size=400, test_size=400)
    questions = [{question for question, _ in describe_examples(task, split, 400)} for split in task.splits]
    more = {question for question, _ in describe_examples(task, "train", 400, step=1)}
    assert len(questions[0]) > 100
    for first, second in ((questions[0] | more, questions[1]), (questions[0] | more, questions[2]), (questions[1], questions[2])):
        assert not first & second


@pytest.mark.parametrize("cls", [cls for cls in TASKS.values() if issubclass(cls, WordTask)])
def test_batch_of_a_fixed_training_set_is_the_layout_of_its_examples(cls):
    task = cls(**{"data": "samples", "train_size": 20} if "data" in {f.name for f in fields(cls)} else {})
    for step in (0, 2):  # the last batch of an epoch has four examples
        rows = rows_of_step(20, "train", step, 8, 3)
        assert len(rows) == (8 if step == 0 else 4)
        expected = task._lay_out(task._fixed_examples("train", rows, 3), "train")
        whole = task.training_set(3)
        assert whole is not None
        for part, all_rows, other in zip(task.batch("train", step, 8, 3), whole, expected, strict=True):
            torch.testing.assert_close(part, other, rtol=0, atol=0)
            torch.testing.assert_close(None if all_rows is None else all_rows[rows], other, rtol=0, atol=0)


def test_batch_of_a_validation_set_is_the_layout_of_its_examples():
    """Also after a batch was changed in place."""
    task = Parity(valid_size=20)
    rows = np.arange(8, 16)
    expected = task._lay_out(task._fixed_examples("valid", rows, 3), "valid")
    for _ in range(2):
        batch = task.batch("valid", 1, 8, 3)
        for part, other in zip(batch, expected, strict=True):
            torch.testing.assert_close(part, other, rtol=0, atol=0)
        batch.inputs.zero_()


def test_a_stream_has_no_training_set():
    assert Parity().training_set() is None
    assert Parity().training_set_bytes() == 0


def test_splits_of_few_parity_questions_are_disjoint_and_not_empty():
    task = Parity(train_lengths=(2, 5), eval_lengths=(2, 5), data="samples", train_size=200, valid_size=200, test_size=200)
    questions = [{question for question, _ in describe_examples(task, split, 200)} for split in task.splits]
    assert all(questions)
    assert set.union(*questions) == {" ".join(f"{number:0{bits}b}") for bits in range(1, 5) for number in range(2**bits)}
    assert sum(map(len, questions)) == 2 + 4 + 8 + 16


def test_split_without_questions_raises():
    # Both questions of one bit belong to test.
    task = Parity(train_lengths=(2, 2), eval_lengths=(2, 2))
    with pytest.raises(
        ValueError, match=r"^`eval_lengths` must give enough questions of parity for the split 'valid', got 2 to 2 tokens"
    ):
        task.batch("valid", 0, 4)
    with pytest.raises(ValueError, match=r"^`train_lengths` must give enough questions .*, got 2 to 2 tokens"):
        task.batch("train", 0, 4)
    assert task.batch("test", 0, 4).valid.all()


def test_valid_and_test_do_not_depend_on_training_settings():
    first, second = Parity(), Parity(train_lengths=(3, 9), data="samples")
    for split in ("valid", "test"):
        assert torch.equal(first.batch(split, 0, 50).inputs, second.batch(split, 0, 50).inputs)
        assert first.size(split) == second.size(split) == {"valid": 1_000, "test": 10_000}[split]


def test_stream_does_not_repeat_questions():
    task = CycleNavigation(train_lengths=(40, 40))
    rows = [tuple(row) for step in range(8) for row in task.batch("train", step, 64).inputs.tolist()]
    assert len(set(rows)) == len(rows)


def test_words_of_ten_seeds_that_take_turns_are_generated_once(monkeypatch):
    # Of seeds that train in one process. Generating them again at every turn took 100 times as long as making the batches.
    task = Parity(data="samples", train_size=512, valid_size=1000, train_lengths=(3, 39))
    generate, generated = Parity._examples, []

    def record(self, split, kind, counter, count):
        generated.append((split, kind, counter))
        return generate(self, split, kind, counter, count)

    monkeypatch.setattr(Parity, "_examples", record)
    for _ in range(2):
        for seed in range(10):
            task.batch("train", 0, 64, seed)
            for step in range(4):
                task.batch("valid", step, 256, seed)
    assert len(generated) == len(set(generated)) == 10 * (2 + 4)


def test_at_length_limits_training_sequences_only():
    task = Parity()
    short = task.at_length(7)
    assert max(sequence_lengths(short, "train", 200)) == 7
    assert short.batch("train", 0, 4).inputs.shape == (4, 6)
    assert torch.equal(short.batch("valid", 0, 4).inputs, task.batch("valid", 0, 4).inputs)
    with pytest.raises(ValueError, match=r"^`?length\b.* at least 3, the length of the shortest training sequence of"):
        task.at_length(2)
    with pytest.raises(ValueError, match=r"`length` must be left out, .*, got 10"):
        TASKS["uea"]().at_length(10)


def test_metrics_have_accuracies_by_length():
    task = Parity(test_size=600)
    metrics = task.metrics("test")
    ranges = ["41-64", "65-128", "129-192", "193-256"]
    assert [name for name in metrics if "/" in name] == [f"accuracy/{lengths}" for lengths in ranges]
    assert list(task.metrics("train")) == ["accuracy"]
    for step in range(3):
        batch = task.batch("test", step, 200)
        is_short = batch.valid.sum(1, keepdim=True) + 1 <= 128
        choice = torch.where(is_short, batch.targets, 1 - batch.targets).clamp(0, 1)
        task.update(metrics, torch.nn.functional.one_hot(choice, 2).float(), batch)
    values = {name: metric.compute().item() for name, metric in metrics.items()}
    assert [values[name] for name in metrics if "/" in name] == [1, 1, 0, 0]
    assert values["accuracy"] == values["sequence_accuracy"] == pytest.approx(88 / 216, abs=0.1)
    long = Parity(eval_lengths=(41, 5000)).metrics("test")
    assert [name for name in long if "/" in name][-1] == "accuracy/4097-5000"


def test_sequence_accuracy_requires_every_token():
    task = Repetition(valid_size=40)
    batch, metrics = task.batch("valid", 0, 40), task.metrics("valid")
    choice = batch.targets.clamp(min=0)
    first = batch.loss_mask.int().argmax(1)
    wrong = torch.arange(40) < 10
    choice[wrong, first[wrong]] = (choice[wrong, first[wrong]] + 1) % 10
    task.update(metrics, torch.nn.functional.one_hot(choice, 10).float(), batch)
    assert metrics["sequence_accuracy"].compute() == 0.75
    assert metrics["accuracy"].compute().item() == pytest.approx(1 - 10 / batch.loss_mask.sum().item())


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (Parity, {"vocab_size": 12}, r"^`?vocab_size\b.* 3\b"),
        (CycleNavigation, {"vocab_size": 5}, "^`?vocab_size.* at least 6"),
        (Parity, {"train_lengths": (9, 8)}, "^`?train_lengths.* the shortest and the longest length"),
        (ModularArithmetic, {"train_lengths": (2, 8)}, "^`?train_lengths.* lengths of at least 3"),
        (BucketSort, {"suite": "aussm", "eval_lengths": (3, 8)}, "^`?eval_lengths.* lengths of at least 4"),
        (Parity, {"eval_lengths": (41,)}, "^`?eval_lengths"),
        (Parity, {"train_size": 0}, "^`?train_size.* at least 1"),
        (Set, {"test_size": -1}, "^`?test_size"),
    ],
)
def test_invalid_setting_raises(cls, settings, message):
    with pytest.raises(ValueError, match=message):
        cls(**settings)


def test_lengths_can_be_lists():
    assert Parity(train_lengths=[3, 9]) == Parity(train_lengths=(3, 9))


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        (Parity(), "1 0 1\n\n1 2 0\n", r"questions.txt:3: each symbol must be one of the symbols 0 1, got '2'$"),
        (Parity(), " \n | 1\n", r"questions.txt must contain questions of parity, got none$"),
        (BucketSort(), "5 2\nACT\n", r"questions.txt:2: the line must be a question of bucket_sort with an answer, got 'ACT'$"),
        (MultiQueryRecall(), "k1 v1\n", r"questions.txt:1: the line must be a question of multi_query_recall with an answer"),
        (BucketSort(), "5 ACT 2\n", r"questions.txt:1: a question must have ACT once, at its end, got '5 ACT 2'$"),
        (BucketSort(), "5 ACT ACT\n", r"questions.txt:1: a question must have ACT once, at its end, got '5 ACT ACT'$"),
        (TASKS["induction_heads"](), "3 MARK\n", r"questions.txt:1: a question must have MARK twice, .*, got '3 MARK'$"),
        (TASKS["selective_copying"](), ". ACT\n", r"questions.txt:1: the line must be .* with an answer, got '\. ACT'$"),
        (
            BucketSort(suite="aussm"),
            "5 ACT\n5 2 ACT\n",
            r"questions.txt:2: the answer of a question must have one token, as a model that was trained by teacher forcing "
            r"reads the other tokens in its input, got '5 2 ACT', whose answer has 2 tokens$",
        ),
    ],
)
def test_damaged_question_file_raises(tmp_path, task, text, message):
    path = tmp_path / "questions.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        task.read_inputs(path)


def test_question_file_of_another_encoding_raises(tmp_path):
    path = tmp_path / "questions.txt"
    path.write_bytes("1 0 1 é".encode("latin-1"))
    with pytest.raises(ValueError, match=r"questions.txt must be UTF-8 text, got the byte 0xe9 at position 6"):
        Parity().read_inputs(path)
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        Parity().read_inputs(tmp_path)


def test_byte_order_mark_of_a_question_file_is_no_symbol(tmp_path):
    path = tmp_path / "questions.txt"
    path.write_bytes(b"\xef\xbb\xbf1 0 1\r\n")
    assert Parity().read_inputs(path).inputs.tolist() == [[1, 0, 1]]


def test_closing_symbol_of_a_question_is_optional(tmp_path):
    path = tmp_path / "questions.txt"
    path.write_text("3 5 0 7 3\n5 2 ACT\n")
    batch = Set().read_inputs(path)
    assert batch.inputs.tolist() == [[3, 5, 0, 7, 3, 10, 11, 11, 11], [5, 2, 10, 11, 11, 11, 11, 11, 11]]
    assert batch.loss_mask.sum(1).tolist() == [4, 2]
    assert batch.valid.sum(1).tolist() == [9, 4]


def test_random_streams_are_fixed():
    # With other random numbers published seeds would give other data.
    assert CounterRNG(("key", 1), 2).integers(0, 100, 8).tolist() == [62, 81, 82, 12, 40, 18, 37, 35]
    assert CounterRNG(("key", 1), 3).integers(5, np.array([6, 7, 100]), 3).tolist() == [5, 5, 91]
    assert CounterRNG(("key", 2), 2).permutation(6).tolist() == [1, 3, 0, 4, 2, 5]
    assert Parity(train_lengths=(8, 8)).example() == "1 0 1 1 0 0 0 | 1"


def test_integers_and_permutations_are_uniform():
    counts = np.bincount(CounterRNG(("uniform",), 0).integers(0, 7, 70_000), minlength=7)
    assert np.abs(counts - 10_000).max() < 5 * (70_000 / 7 * 6 / 7) ** 0.5
    firsts = np.bincount([CounterRNG(("uniform",), counter).permutation(4)[0] for counter in range(2000)], minlength=4)
    assert np.abs(firsts - 500).max() < 5 * 375**0.5


def test_selection_settings_are_fields_of_formal_tasks():
    from longscan.tasks.formal.base import _SELECTION_SETTINGS

    assert set(_SELECTION_SETTINGS) < {field.name for field in fields(FormalTask)}


def test_length_buckets_have_no_gaps():
    for low, high in ((41, 256), (2, 2), (64, 64), (65, 1000), (10, 65)):
        buckets = Parity(eval_lengths=(low, high))._length_buckets()
        assert buckets[0][0] == low
        assert buckets[-1][1] == high
        assert all(second[0] == first[1] + 1 for first, second in pairwise(buckets))
        assert len(buckets) <= 5


@pytest.mark.parametrize("cls", FORMAL, ids=lambda cls: cls.name)
def test_generated_lengths_are_those_that_the_language_declares(cls):
    """Questions have at least the declared length, questions with answers at most. Questions that never vary have exactly it.

    Equations outside of "chomsky" are the exception: how their symbols divide between the sides is random for other lengths only.
    """
    for suite in get_args(get_type_hints(cls)["suite"]):
        try:
            task = cls(suite=suite)
        except ValueError:
            continue
        for length in range(max(9, task._min_length), max(9, task._min_length) + 12):
            examples = task._generate(CounterRNG((cls.name, suite), length), np.full(64, length))
            questions, whole = examples.question_lengths, examples.question_lengths + examples.answer_lengths
            assert questions.min() >= task._min_question_length(length), (suite, length)
            assert whole.max() <= task._max_length_at(length), (suite, length)
            if (questions == questions[0]).all() and (cls is not SolveEquation or suite == "chomsky"):
                assert questions[0] == task._min_question_length(length), (suite, length)
