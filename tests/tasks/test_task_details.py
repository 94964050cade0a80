"""Functions of the tasks at the limits of their arguments: bounds, counts, rows of tables, sparklines, splits, baselines."""

import math
import re

import numpy as np
import pytest
import torch
import yaml
from torch.optim.optimizer import register_optimizer_step_pre_hook

from longscan.tasks import TASKS, Batch
from longscan.tasks._images import to_grey
from longscan.tasks._random import CounterRNG
from longscan.tasks._sparklines import shade_line, sparkline, truncate_text
from longscan.tasks._store import Ragged
from longscan.tasks._text import Alphabet, frequent_characters
from longscan.tasks.base import check_request, rows_of_step
from longscan.tasks.classification import majority_share, scored_outputs
from longscan.tasks.dna import DnaLanguage, Species
from longscan.tasks.dna.tasks import _split_ranges
from longscan.tasks.dynamics import Pendulum
from longscan.tasks.events import Events
from longscan.tasks.events.batching import bucketed_rows, pack_rows
from longscan.tasks.examples import split_off_validation
from longscan.tasks.forecasting import baselines
from longscan.tasks.forecasting.tables import read_dates
from longscan.tasks.formal import GroupWord
from longscan.tasks.formal._examples import Examples, concatenate_examples, next_token_batch, split_index, splitmix64
from longscan.tasks.language import ByteText
from longscan.tasks.listing import task_facts
from longscan.tasks.lra import LraText
from longscan.tasks.lra._listops import ExpressionLimits, generate_expressions
from longscan.tasks.timeseries import protocols
from longscan.training import Settings
from made_up import MADE_UP, draw_events, event_bytes


def make_listed_nmnist(folder, test):
    """Write the smaller N-MNIST of Intel, with lists of sample numbers and classes, and return its task."""
    root = folder / "deep" / "NMNISTsmall"
    root.mkdir(parents=True)
    for number in range(1, 7):
        (root / f"{number}.bs2").write_bytes(event_bytes(*draw_events(number, 10 + number, (34, 34))))
    (root / "train1K.txt").write_text("#sample class\n1 5\n2 0\n3 9\n4 1\n")
    (root / "test100.txt").write_text(test)
    return Events(data_dir=str(folder), valid_fraction=0.25)


def test_nmnist_reads_lists_of_samples(tmp_path):
    task = make_listed_nmnist(tmp_path / "whole", "5 2\n6 3\n")
    assert [task.size(split) for split in task.splits] == [3, 1, 2]
    assert task.batch("test", 0, 2).targets.tolist() == [2, 3]
    assert task.batch("test", 0, 2).valid.sum(1).tolist() == [15, 16]
    with pytest.raises(ValueError, match=r"NMNISTsmall: the class of 5.bs2 must be a digit, got 10"):
        make_listed_nmnist(tmp_path / "class", "5 10\n").size("train")
    with pytest.raises(
        FileNotFoundError, match=r"^`data_dir` must be a folder with all samples in its lists, got one without .*8.bs2"
    ):
        make_listed_nmnist(tmp_path / "missing", "8 3\n").size("train")


@pytest.mark.parametrize(("group", "size"), [("Z2", 2), ("Z9", 9), ("S2", 2), ("S6", 720), ("A3", 3), ("A6", 360)])
def test_smallest_and_largest_groups_have_the_right_order(group, size):
    assert GroupWord(group=group).num_classes == size


@pytest.mark.parametrize("group", ["Z1", "Z721", "S1", "S7", "A2", "A7", "D4", "Z", "3", "Z02x", ""])
def test_invalid_group_name_raises(group):
    with pytest.raises(ValueError, match=r"^`?group\b.* one of Z2 \.\. Z720, S2 \.\. S6 or A3 \.\. A6"):
        GroupWord(group=group)


@pytest.mark.parametrize(
    ("generators", "message"),
    [
        (((0, 1, 1),), r"generators.* permutations of 0 .. 2"),
        (((1, 0), (0, 2)), r"generators.* permutations of 0 .. 1"),
        (((0, 1),), "a group of at least two elements"),
        (((1, 2, 3, 4, 5, 6, 0), (1, 0, 2, 3, 4, 5, 6)), "a group of at most 720 elements"),
    ],
    ids=str,
)
def test_invalid_generators_raise(generators, message):
    with pytest.raises(ValueError, match=message):
        GroupWord(generators=generators)


def test_group_products_are_taken_from_left_to_right():
    group = GroupWord(group="S4")._group
    for first in range(0, 24, 5):
        for second in range(24):
            left, right = group.elements[first], group.elements[second]
            assert group.elements[group.table[first, second]] == tuple(right[image] for image in left)
    assert group.elements[0] == (0, 1, 2, 3)
    assert [group.elements[number] for number in group.generators] == [(1, 2, 3, 0), (1, 0, 2, 3)]


def test_byte_text_counts_and_decodes_bytes(tmp_path):
    """All bytes of train are counted, and the targets of valid and test."""
    (tmp_path / "x").write_bytes(b"a" * 60 + b"bbbbccccccccccccccdd" + b"efffffffffgggggggghh")
    task = ByteText(path=str(tmp_path / "x"), window=9, valid_fraction=0.2)
    assert [task.size(split) for split in task.splits] == [None, 2, 2]
    counts = {split: {chr(i): int(n) for i, n in enumerate(task._token_counts(split)) if n} for split in task.splits}
    assert counts == {"train": {"a": 60}, "valid": {"b": 3, "c": 14, "d": 1}, "test": {"f": 9, "g": 8, "h": 1}}
    assert all(len(task._token_counts(split)) == 256 for split in task.splits)
    assert task.constant_score("test") == pytest.approx(math.log2(316))
    assert task.constant_score("train") == pytest.approx(-math.log2(61 / 316))
    assert task.scaled(task.constant_score("test") / 4) == pytest.approx(0.75)
    output = torch.zeros(2, 9, 256)
    output[0, -1, 65], output[1, -1, 10], output[:, 0, 3] = 4.0, 6.0, 9.0
    rows = task.decode(output, task.batch("test", 0, 2))
    assert [row["next"] for row in rows] == ["b'A'", r"b'\n'"]
    probabilities = [math.exp(4) / (255 + math.exp(4)), math.exp(6) / (255 + math.exp(6))]
    assert [row["probability"] for row in rows] == pytest.approx(probabilities, rel=1e-5)
    (tmp_path / "y").write_bytes(b"hello world, again")
    assert bytes(task.read_inputs(tmp_path / "y").inputs[0].tolist()) == b"hello wor"
    (tmp_path / "y").write_bytes(b"")
    with pytest.raises(ValueError, match="y must contain bytes, got an empty file"):
        task.read_inputs(tmp_path / "y")
    with pytest.raises(ValueError, match="cannot be read"):
        task.read_inputs(tmp_path / "z")


def test_windows_of_bytes_start_at_any_position_of_train(tmp_path):
    (tmp_path / "x").write_bytes(bytes(range(100)))
    task = ByteText(path=str(tmp_path / "x"), window=20, valid_fraction=0.21)
    firsts = {int(start) for step in range(20) for start in task.batch("train", step, 32).inputs[:, 0]}
    assert (min(firsts), max(firsts)) == (0, 100 - 42 - 21)


@pytest.fixture(scope="module")
def genomes(tmp_path_factory):
    return MADE_UP["species"](tmp_path_factory.mktemp("genomes"))


def test_decode_gives_the_next_base_after_each_sequence(genomes):
    task = DnaLanguage(**genomes)
    output = torch.zeros(2, 4, 5)
    output[0, 3, 2], output[1, 3, 1], output[1, 1, 4], output[0, 2, 3] = 5.0, 5.0, 7.0, 8.0
    inputs = torch.zeros(2, 4, dtype=torch.int64)
    assert [row["next"] for row in task.decode(output, Batch(inputs))] == ["G", "C"]
    valid = torch.tensor([[True, True, True, False], [True, True, False, False]])
    rows = task.decode(output, Batch(inputs, valid=valid))
    assert [row["next"] for row in rows] == ["T", "N"]
    assert rows[0]["probability"] == pytest.approx(math.exp(8) / (math.exp(8) + 4), rel=1e-5)


def test_constant_scores_come_from_the_frequencies_of_targets(genomes):
    task = DnaLanguage(**genomes)
    for split in ("valid", "test"):
        targets = torch.cat([task.batch(split, step, 20).targets for step in range(task.num_batches(split, 20))])
        assert task._token_counts(split).tolist() == targets.flatten().bincount(minlength=5).tolist()
    assert task._token_counts("train").sum() == 1024 * 40
    species = Species(**genomes)
    targets = species.batch("test", 0, 60).targets
    assert species.constant_score("test") == pytest.approx(targets.bincount().max().item() / 60)
    assert species.constant_score("train") == pytest.approx(1 / 3)


def test_split_ranges_by_position_and_by_chromosome():
    assert _split_ranges("position", "x", 101) == {"train": (0, 70), "valid": (70, 85), "test": (85, 101)}
    names = {"chr5 a": "test", "chromosome 12": "valid", "chr2": "train", "chrX": "train", "chr15": "train", "part 5": "train"}
    names |= {f"chr{number}": "test" for number in (7, 9, 10, 11)} | {f"chr{number}": "valid" for number in (1, 3, 13)}
    names |= {f"chr{number}": "train" for number in (4, 6, 8, 14)}
    assert {name: next(iter(_split_ranges("chromosome", name, 30).items())) for name in names} == {
        name: (split, (0, 30)) for name, split in names.items()
    }


def test_decode_gives_one_row_for_each_scored_step():
    task = Pendulum(train_size=2, valid_size=2, test_size=2, frames=4)
    output = torch.arange(12.0).reshape(2, 3, 2)
    inputs = torch.zeros(2, 3, 1)
    first, second = task.variables
    all_rows = [(row["example"], row["step"], row[first], row[second]) for row in task.decode(output, Batch(inputs))]
    assert all_rows == [(i // 3, i % 3, 2 * i, 2 * i + 1) for i in range(6)]
    mask = torch.tensor([[False, True, False], [True, False, True]])
    for batch in (Batch(inputs, valid=mask), Batch(inputs, loss_mask=mask, valid=~mask)):
        assert [(row["example"], row["step"]) for row in task.decode(output, batch)] == [(0, 1), (1, 0), (1, 2)]
    with pytest.raises(ValueError, match=r"zip\(\) argument 2 is longer"):
        task.decode(torch.zeros(2, 3, 3), Batch(inputs))
    with pytest.raises(ValueError, match=r"^`smoothing` must be 0, as pendulum has no classes, got 0.1"):
        task.loss(output, Batch(inputs, output), smoothing=0.1)


def test_scored_outputs_are_those_of_the_loss_mask():
    output = torch.arange(12.0).reshape(2, 2, 3)
    targets = torch.tensor([[0, 1], [2, 0]])
    logits, scored_targets = scored_outputs(output, Batch(torch.zeros(2, 2), targets))
    assert logits.tolist() == output.flatten(0, 1).tolist()
    assert scored_targets.tolist() == [0, 1, 2, 0]
    mask = torch.tensor([[False, True], [True, False]])
    logits, scored_targets = scored_outputs(output, Batch(torch.zeros(2, 2), targets, loss_mask=mask))
    assert logits.tolist() == [[3, 4, 5], [6, 7, 8]]
    assert scored_targets.tolist() == [1, 2]
    assert majority_share(np.array([[0, 2], [2, 1]])) == 0.5


def test_rows_of_a_step_follow_the_order_of_the_split():
    assert [rows_of_step(10, "test", step, 4, 0).tolist() for step in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    with pytest.raises(IndexError, match="`step` must be below 3, the number of batches of 4 in split 'valid', got 3"):
        rows_of_step(10, "valid", 3, 4, 0)
    epochs = [np.concatenate([rows_of_step(10, "train", 3 * epoch + step, 4, 1) for step in range(3)]) for epoch in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 2
    expected = [CounterRNG(("epoch", 10, 1), epoch).permutation(10) for epoch in (0, 1)]
    assert [epoch.tolist() for epoch in epochs] == [order.tolist() for order in expected]
    assert rows_of_step(1000, "test", np.uint8(2), np.uint8(200), 0).tolist() == list(range(400, 600))
    task = TASKS["parity"]()
    check_request(task, "train", 0, 1, 0)
    for arguments in (("other", 0, 1, 0), ("train", -1, 1, 0), ("train", 0, 0, 0), ("train", 0, 1, -1)):
        with pytest.raises(ValueError, match=r"split|a whole number of at least"):
            check_request(task, *arguments)


def test_split_off_validation_takes_the_rounded_fraction():
    for count, fraction, expected_size in ((10, 0.1, 1), (10, 0.25, 3), (10, 0.24, 2), (3, 0.01, 1), (2, 0.1, 1)):
        train, valid = split_off_validation(count, fraction, 0)
        assert len(valid) == expected_size
        assert sorted([*train, *valid]) == list(range(count))
        assert train.tolist() == sorted(train)
        assert valid.tolist() == sorted(valid)
    order = CounterRNG(("valid", 7), 0).permutation(10)
    assert split_off_validation(10, 0.3, 7)[1].tolist() == sorted(order[:3])
    for count, fraction in ((1, 0.1), (2, 0.75)):
        with pytest.raises(
            ValueError, match=f"^`valid_fraction` must leave an example for training, got {fraction:g} of {count} examples"
        ):
            split_off_validation(count, fraction, 0)
    for fraction in (0.001, 0.999):
        assert LraText(valid_fraction=fraction).valid_fraction == fraction
    for fraction in (0, 1, -0.1, 1.1):
        with pytest.raises(ValueError, match=r"valid_fraction.* a number above 0 and below 1"):
            LraText(valid_fraction=fraction)


def test_sparklines_and_shaded_lines_have_the_expected_characters():
    assert sparkline(torch.tensor([0.0, 1.0, 2.0, 7.0])) == "▁▂▃█"
    assert sparkline(torch.tensor([0.0, 2.0, 6.0, 8.0]), width=2) == "▁█"
    assert len(sparkline(torch.arange(81.0))) == 27
    assert sparkline(torch.full((3,), 5.0)) == "▁▁▁"
    image = torch.zeros(6, 16)
    image[2, 3], image[4, 8], image[5, 5], image[1, 6] = 4.0, 2.0, 9.0, 9.0
    assert shade_line(image) == "   █    ▒       "
    assert shade_line(image, 4) == "█ ▒ "
    assert truncate_text(" a\n b|c ") == "a b/c"
    assert truncate_text("x" * 60) == "x" * 60
    assert truncate_text("x" * 61) == "x" * 59 + "…"
    assert truncate_text("abcdef", 4) == "abc…"


def test_bucketed_rows_are_sorted_within_pools():
    lengths = tuple(int(number) for number in np.random.default_rng(0).permutation(70) + 1)
    epoch = [bucketed_rows(lengths, step, 2, 3) for step in range(35)]
    assert sorted(np.concatenate(epoch)) == list(range(70))
    sizes = [np.array(lengths)[rows] for rows in epoch]
    assert all(pair[0] < pair[1] for pair in sizes)
    pool = CounterRNG(("buckets", 70, 3), 0).permutation(70)[:32]
    inside = [rows for rows in epoch if set(rows) <= set(pool)]
    assert len(inside) == 16
    ranks = np.sort(np.array(lengths)[pool]).reshape(16, 2).tolist()
    assert sorted(np.array(lengths)[rows].tolist() for rows in inside) == ranks
    assert [rows.tolist() for rows in epoch] != sorted(rows.tolist() for rows in epoch)
    next_epoch = [bucketed_rows(lengths, 35 + step, 2, 3).tolist() for step in range(35)]
    assert next_epoch != [rows.tolist() for rows in epoch]
    layout = pack_rows([4, 1, 6, 2, 3])
    assert (layout.rows.tolist(), layout.starts.tolist()) == ([1, 2, 0, 1, 2], [0, 3, 0, 4, 0])
    assert (layout.height, layout.width) == (3, 6)


def test_ragged_keeps_dtype_and_offsets():
    ragged = Ragged.from_sequences([np.array([1, 2]), np.array([3]), np.array([4, 5, 6])], np.int16)
    assert ragged.values.dtype == np.int16
    assert ragged.offsets.tolist() == [0, 2, 3, 6]
    assert ragged.lengths.tolist() == [2, 1, 3]
    table, lengths = ragged.pad(np.array([1, 0]), 9)
    assert table.tolist() == [[3, 9], [1, 2]]
    assert lengths.tolist() == [1, 2]


def test_expression_lengths_lie_strictly_between_the_limits():
    bounds = ExpressionLimits(max_depth=4, max_args=4, shorter_than=12, longer_than=7)
    ragged, values = generate_expressions(CounterRNG(("some",), 0), 300, bounds)
    assert {int(length) for length in ragged.lengths} == {8, 9, 10, 11}
    assert len(values) == len(ragged.lengths) == 300
    assert values.min() >= 0
    assert values.max() <= 9


def test_alphabets_encode_bytes_and_frequent_characters():
    assert frequent_characters([b"abcab", "zcü".encode()], 2) == ("a", "b", "c")
    assert frequent_characters([b"bab"], 1) == ("b", "a")
    characters = Alphabet(("a", "b"))
    assert characters.size == 5
    assert [tokens.tolist() for tokens in characters.encode([b"abx", b""], 3)] == [[3, 4, 2], [2]]
    assert characters.encode([b"xba"], 4)[0].tolist() == [1, 4, 3, 2]
    assert characters.text([3, 1, 4, 2, 0]) == "a\N{REPLACEMENT CHARACTER}b"
    bytes_only = Alphabet()
    assert bytes_only.size == 257
    assert [tokens.tolist() for tokens in bytes_only.encode([b"ab\xff", b""], 2)] == [[98, 99], [33]]
    assert bytes_only.text([98, 0, 99]) == "ab"
    assert to_grey(np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [1, 2, 3]]], np.uint8)).tolist() == [
        [76, 150, 29, 255, 2]
    ]


def test_next_token_batch_places_answers_after_questions():
    first = Examples(np.array([[1, 2], [3, 9]]), np.array([2, 1]), np.array([[5], [6]]), np.array([1, 1]))
    second = Examples(np.array([[4, 4, 4]]), np.array([3]), np.array([[7, 8]]), np.array([2]))
    both = concatenate_examples([first, second], 9)
    assert both.questions.tolist() == [[1, 2, 9], [3, 9, 9], [4, 4, 4]]
    assert both.answers.tolist() == [[5, 9], [6, 9], [7, 8]]
    hidden, forced = (next_token_batch(both, 4, 9, uses_teacher_forcing=forcing) for forcing in (False, True))
    assert hidden.inputs.tolist() == [[1, 2, 9, 9], [3, 9, 9, 9], [4, 4, 4, 9]]
    assert forced.inputs.tolist() == [[1, 2, 5, 9], [3, 6, 9, 9], [4, 4, 4, 7]]
    assert hidden.targets.tolist() == [[-100, 5, -100, -100], [6, -100, -100, -100], [-100, -100, 7, 8]]
    assert hidden.valid.tolist() == [[True, True, False, False], [True, False, False, False], [True] * 4]
    assert torch.equal(hidden.loss_mask, hidden.targets >= 0)
    published = [16294208416658607535, 10451216379200822465, 10905525725756348110]
    assert splitmix64(np.array([0, 1, 2], np.uint64)).tolist() == published
    questions = np.array([[1, 2, 3], [1, 2, 0], [2, 1, 0], [0, 0, 0]])
    changed = questions.copy()
    changed[1:, 2] = 7
    assert split_index(changed, np.array([3, 2, 2, 1])).tolist() == split_index(questions, np.array([3, 2, 2, 1])).tolist()


def test_subset_sizes_splits_and_statistics_of_series():
    cases = ((10, 0.15), (10, 0.14), (2, 0.01), (2, 0.99), (1, 0.5), (4, 0.5))
    sizes = [protocols._subset_size(count, fraction) for count, fraction in cases]
    assert sizes == [2, 1, 1, 1, 0, 2]
    parts = protocols._split_rows(np.arange(10), [7, 8])
    assert {name: rows.tolist() for name, rows in parts.items()} == {"train": [*range(7)], "valid": [7], "test": [8, 9]}
    for bounds in ([0, 2], [2, 2]):
        with pytest.raises(ValueError, match=r"^`data_dir` must have enough series for a split 70/15/15, got 3"):
            protocols._split_rows(np.arange(3), bounds)
    series = [np.array([[1.0, 2.0], [5.0, 5.0], [np.nan, np.nan]]), np.array([[np.nan, 6.0], [5.0, 5.0], [np.nan, 4.0]])]
    mean, std = protocols._channel_statistics(series)
    assert mean.tolist() == [3, 5, 4]
    assert std.tolist() == pytest.approx([7**0.5, 1, 1])
    assert protocols._channel_statistics([np.full((1, 2), np.nan)])[0].tolist() == [0]


def test_aussm_protocol_has_the_splits_of_random_split():
    series = [np.full((2, 3), float(number)) for number in range(27)]
    partition = protocols.aussm(series, seed=4)
    order = torch.randperm(27, generator=torch.Generator().manual_seed(4)).tolist()
    assert [partition.rows[name].tolist() for name in ("train", "valid", "test")] == [order[:18], order[18:22], order[22:]]
    assert partition.shift.tolist() == [13, 13]
    assert partition.fill.tolist() == [13, 13]
    assert partition.scale[0] == pytest.approx(np.repeat(np.arange(27), 3).std(ddof=1))


def test_clean_protocol_removes_repeats_and_stratifies_validation():
    train = [np.full((1, 4), float(number)) for number in [*range(12), 3, 20]]
    test = [np.full((1, 4), 20.0), np.full((1, 4), 30.0)]
    labels = np.array([0] * 8 + [1] * 6 + [0, 1])
    partition = protocols.clean(train, test, labels, protocols.ValidationSplit(seed=1, fraction=0.25, stratified=True))
    assert partition.rows["test"].tolist() == [14, 15]
    assert sorted([*partition.rows["train"], *partition.rows["valid"]]) == list(range(12))
    assert np.bincount(labels[partition.rows["valid"]]).tolist() == [2, 1]
    order = CounterRNG(("valid", 1), 0).permutation(12)
    plain = protocols.clean(train, test, labels, protocols.ValidationSplit(seed=1, fraction=0.25, stratified=False))
    assert plain.rows["valid"].tolist() == sorted(order[:3])
    assert plain.shift[0] == pytest.approx(np.mean([train[row] for row in plain.rows["train"]]))
    with pytest.raises(
        ValueError, match=r"^`valid_fraction` must leave series for training and for validation, got 0.25 of 1 series"
    ):
        protocols.clean(train[:1], test, labels, protocols.ValidationSplit(1, 0.25, stratified=False))


def test_linoss_protocol_removes_repeated_series():
    series = [np.full((2, 3), float(number % 20)) for number in range(23)]
    sets = {order: protocols.linoss(series, seed=3, order=order).rows for order in ("file", "sorted")}
    for rows in sets.values():
        assert [len(rows[name]) for name in ("train", "valid", "test")] == [14, 3, 3]
        assert sorted(np.concatenate([*rows.values()])) == list(range(20))
    assert {name: rows.tolist() for name, rows in sets["file"].items()} == {n: r.tolist() for n, r in sets["sorted"].items()}
    partition = protocols.linoss(series[::-1], seed=3, order="sorted")
    assert (partition.shift.tolist(), partition.scale.tolist()) == ([0, 0], [1, 1])
    assert partition.fill[0] == pytest.approx(np.mean([series[::-1][row] for row in partition.rows["train"]]))
    assert partition.rows["train"].tolist() != sets["file"]["train"].tolist()


def test_dlinear_halves_its_learning_rate_and_stops_after_three_worse_epochs(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(80, 2)).astype(np.float32)
    errors, weights, rates = [5.0, 4.0, 4.0, 4.5, 3.0, 3.0, 3.5, 9.0, 1.0], [], []

    def next_error(model, windows, context):
        assert windows.shape == (11, 35, 2)
        assert context == 30
        weights.append(model.trend.weight.detach().clone())
        return errors[len(weights) - 1]

    monkeypatch.setattr(baselines, "_error", next_error)
    handle = register_optimizer_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    try:
        model = baselines.fitted_dlinear(rows, rows[:45], 30, 5, seed=0)
    finally:
        handle.remove()
    assert len(weights) == 8
    assert torch.equal(model.trend.weight, weights[4])
    assert not model.training
    assert rates == pytest.approx([1e-3 * 0.5**epoch for epoch in range(8) for _ in range(2)])


def test_dlinear_errors_are_means_over_windows():
    model = baselines.DLinear(26, 2)
    for layer in (model.trend, model.rest):
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.constant_(layer.bias, 0.5)
    windows = baselines._windows(np.arange(600.0).reshape(300, 2) / 100, 28)
    assert windows.shape == (273, 28, 2)
    assert windows[3, 5].tolist() == pytest.approx([0.16, 0.17])
    assert baselines._error(model, windows, 26) == pytest.approx(((windows[:, 26:] - 1) ** 2).mean().item(), rel=1e-5)
    fresh = baselines.DLinear(26, 2)
    assert fresh.trend.weight.unique().tolist() == pytest.approx([1 / 26])
    steps = torch.arange(26.0).view(1, 26, 1)
    torch.nn.init.eye_(model.trend.weight)
    padded = torch.cat([steps[:, :1].expand(-1, 12, -1), steps, steps[:, -1:].expand(-1, 12, -1)], 1)
    moving = torch.stack([padded[0, first : first + 25, 0].mean() for first in range(2)])
    torch.testing.assert_close(model(steps)[0, :, 0], moving + 1)


@pytest.mark.parametrize(
    ("dates", "following"),
    [
        (["2020-01-01", "2020-01-02"], ["2020-01-03 00:00:00", "2020-01-04 00:00:00"]),
        (["2020-01-01 00:00", "2020-01-01 00:30"], ["2020-01-01 01:00:00", "2020-01-01 01:30:00"]),
        (["1/30/2020 0:00", "1/31/2020 0:00"], ["2020-02-01 00:00:00", "2020-02-02 00:00:00"]),
        (["30.01.2020 00:00:00", "31.01.2020 00:00:00"], ["2020-02-01 00:00:00", "2020-02-02 00:00:00"]),
        (["1/1/2020 22:00", "1/1/2020 23:00"], ["2020-01-02 00:00:00", "2020-01-02 01:00:00"]),
        (["2020/11/30", "2020/12/31", "2021/1/31", "2021/2/28"], ["2021-03-31 00:00:00", "2021-04-30 00:00:00"]),
        (["2020-01", "2020-02", "2020-03"], ["2020-04-01 00:00:00", "2020-05-01 00:00:00"]),
        (["2020-01-02", "2020-01-03", "2020-01-06", "2020-01-07"], ["2020-01-08 00:00:00", "2020-01-09 00:00:00"]),
        (["2020-01-01T00:00:00+01:00", "2020-01-02T00:00:00+01:00"], ["2020-01-03 00:00:00+01:00", "2020-01-04 00:00:00+01:00"]),
        (["4", "6", "8"], ["10", "12"]),
        (["0.1", "0.2", "0.3"], ["0.4", "0.5"]),
    ],
    ids=str,
)
def test_read_dates_continues_the_dates_of_a_table(tmp_path, dates, following):
    path = tmp_path / "t.csv"
    path.write_text("date,v\n" + "".join(f"{date},1\n" for date in dates))
    result = read_dates(path, 2)
    assert len(result) == len(dates) + 2
    assert [date[:25] for date in result[-2:]] == following


@pytest.mark.parametrize(
    ("dates", "message"),
    [
        (["2020-01-02", "2020-01-01"], r"t.csv:3: the rows must be in the order of time, got 2020-01-01 after 2020-01-02"),
        (["2020-01-01", "2020-01-01"], r"t.csv:3: each time stamp must occur once, got 2020-01-01 twice$"),
        (
            ["2020-01-01", "2020-01-02", "2020-01-04"],
            r"t.csv:4: .* got 1 of 2 that differ from 1 day, 0:00:00, the first between 2020-01-02 and 2020-01-04",
        ),
        (
            ["2020-01-01", "2020-13-45 99:00"],
            r"t.csv:3: dates must be ISO 8601, .*, got '2020-13-45 99:00'",
        ),
        (["", "2020-01-01"], r"t.csv:2: dates must be ISO 8601, .*, got ''"),
        (["2020-01-01", "2020-01-02T00:00+00:00"], r"t.csv:3: dates must be .*, got '2020-01-02T00:00\+00:00'"),
        (
            ["1/2/2020 0:00", "1/2/2020 1:00"],
            r"dates must be in a form that can be read in one way, .*, which can be read as %m/%d/%Y %H:%M, %d/%m/%Y %H:%M$",
        ),
        (["1", "2", "nan"], r"t.csv:4: dates must be .* or numbers, the same in all lines, got 'nan'"),
        (["1", "2", "4"], r"t.csv:4: the steps must be equal, got 1 of 2 that differ from 1, the first between 2 and 4"),
        (["2020-01-01"], r"t.csv must have at least two rows, .*, got one"),
    ],
    ids=str,
)
def test_invalid_dates_raise(tmp_path, dates, message):
    path = tmp_path / "t.csv"
    path.write_text("date,v\n" + "".join(f"{date},1\n" for date in dates))
    with pytest.raises(ValueError, match=message):
        read_dates(path, 2)


def test_task_facts_of_known_and_missing_data(tmp_path):
    generated = task_facts(TASKS["parity"](train_size=5000, data="samples"))
    assert generated.sizes == (5000, 1000, 10000)
    assert (generated.classes, generated.length, generated.metric) == (2, 255, "accuracy")
    assert (generated.source, generated.available) == ("generated", "generated")
    assert 0.5 <= generated.constant < 0.6
    missing = task_facts(ByteText())
    assert (missing.sizes, missing.classes, missing.length, missing.constant) == (None, None, None, None)
    assert missing.available == "no"
    assert missing.missing.startswith("`path` must be a file or a folder of files to learn from")
    present = task_facts(ByteText(**MADE_UP["byte_text"](tmp_path)))
    assert (present.available, present.missing, present.classes) == ("yes", None, 256)


@pytest.mark.parametrize(("name", "setting"), [("lra_image", "data_dir"), ("byte_text", "path"), ("forecast", "data_dir")])
def test_directory_setting_can_be_a_path(tmp_path, name, setting):
    task = TASKS[name](**{setting: tmp_path})
    assert task == TASKS[name](**{setting: str(tmp_path)})
    assert yaml.safe_load(yaml.safe_dump(Settings(task=task).as_dict()))["task"][setting] == str(tmp_path)


@pytest.mark.parametrize("shape", [(2, 5, 1), (2, 1, 3), (2, 3), (1, 5, 3)])
def test_outputs_of_a_regression_that_have_another_shape_than_the_targets_raise(shape):
    """PyTorch repeats axes of size 1, with a warning."""
    task = Pendulum()
    batch = Batch(torch.zeros(2, 5, 4), torch.zeros(2, 5, 3))
    message = rf"^`output` must have the shape of the targets, \(2, 5, 3\), got {re.escape(str(shape))}$"
    with pytest.raises(ValueError, match=message):
        task.loss(torch.zeros(shape), batch)
    with pytest.raises(ValueError, match=message):
        task.update(task.metrics("test"), torch.zeros(shape), batch)
