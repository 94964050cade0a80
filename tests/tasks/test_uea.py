"""Classification of recordings: protocols, statistics without leaks, padding, files of users, and real data if present."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score

from longscan.tasks import TASKS, Batch, read_ts
from longscan.tasks.timeseries import protocols
from longscan.tasks.timeseries._threefry import key_from_seed, permutation, split
from longscan.tasks.timeseries.uea import Uea

PROTOCOLS = ("clean", "linoss", "aussm")


def make_series(seed, count, channels=2, lengths=(5, 9)):
    random = np.random.default_rng(seed)
    return [random.normal(10, 3, (channels, int(random.integers(*lengths)))).round(3) for _ in range(count)]


def write_ts(path, series, labels, missing=()):
    rows = []
    for number, (item, label) in enumerate(zip(series, labels, strict=True)):
        columns = [["?" if (number, step) in missing else f"{value:g}" for step, value in enumerate(channel)] for channel in item]
        rows.append(":".join([*map(",".join, columns), label]))
    path.write_text("@classLabel true b a\n@data\n" + "\n".join(rows) + "\n")


@pytest.fixture
def folder(tmp_path):
    """Write a data set of 20 + 10 series of unequal lengths with two classes."""
    write_ts(tmp_path / "Mine_TRAIN.ts", make_series(0, 20), ["a", "b", "b", "a"] * 5)
    write_ts(tmp_path / "Mine_TEST.ts", make_series(1, 10, lengths=(5, 12)), ["b", "a"] * 5)
    return tmp_path


def whole_split(task, part):
    return task.batch(part, 0, 10_000)


def examples_as_bytes(batch):
    return {inputs.numpy().tobytes() for inputs in batch.inputs}


def test_data_set_is_found_in_the_uea_directory_or_in_aeon(tmp_path, monkeypatch):
    folder = tmp_path / "uea" / "Mine"
    folder.mkdir(parents=True)
    head = "@problemName Mine\n@classLabel true a b\n@data\n"
    for number, part in enumerate(("TRAIN", "TEST")):
        (folder / f"Mine_{part}.ts").write_text(head + "".join(f"{n},{number}:{'ab'[n % 2]}\n" for n in range(40)))
    monkeypatch.setenv("LONGSCAN_DATA", str(tmp_path))
    assert Uea(dataset="Mine").size("test") == 40
    assert Uea(dataset="BasicMotions").size("test") == 40, "data sets that are missing there are read from the package aeon"
    with pytest.raises(FileNotFoundError, match=r"uea/Nothing and the package aeon \(data_dir was not given\)"):
        Uea(dataset="Nothing").size("test")


def test_docstring_shows_the_first_example():
    assert Uea().example() in Uea.__doc__


def test_data_set_of_a_user_has_the_sizes_of_its_files(folder):
    task = Uea(dataset="Mine", data_dir=str(folder))
    assert task.classes == ("b", "a"), "in the order of the header"
    assert (task.d_input, task.num_classes, task.length) == (2, 2, 10)
    assert [task.size(part) for part in task.splits] == [16, 4, 10]
    batch = whole_split(task, "test")
    assert batch.targets.tolist() == [0, 1] * 5
    test = read_ts(folder / "Mine_TEST.ts").series
    assert batch.valid.sum(1).tolist() == [series.shape[1] for series in test]
    assert not batch.inputs[~batch.valid].any(), "padding is zero"


def test_data_set_can_be_in_a_subdirectory_of_its_name(tmp_path, folder):
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "Mine").symlink_to(folder)
    task = Uea(dataset="Mine", data_dir=str(tmp_path / "all"))
    assert task.size("test") == 10


def test_clean_statistics_come_from_the_training_split_only(folder):
    task = Uea(dataset="Mine", data_dir=str(folder))
    batch = whole_split(task, "train")
    values = batch.inputs[batch.valid].double()
    torch.testing.assert_close(values.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(values.std(0), torch.ones(2, dtype=torch.float64), atol=1e-6, rtol=0)
    write_ts(folder / "Mine_TEST.ts", [series * 1000 for series in make_series(1, 10)], ["b", "a"] * 5)
    other = Uea(dataset="Mine", data_dir=f"{folder}/")
    for part in ("train", "valid"):
        before, after = whole_split(task, part), whole_split(other, part)
        assert torch.equal(before.inputs[:, :8], after.inputs[:, :8]), "train and valid must not depend on test values"
    assert whole_split(other, "test").inputs.abs().max() > 1000


def test_clean_protocol_takes_valid_from_train(folder):
    task = Uea(dataset="Mine", data_dir=str(folder), valid_fraction=0.3)
    assert [task.size(part) for part in task.splits] == [14, 6, 10]
    assert whole_split(task, "valid").targets.bincount().tolist() == [3, 3], "both classes have the same fraction"
    assert examples_as_bytes(whole_split(task, "train")).isdisjoint(examples_as_bytes(whole_split(task, "valid")))
    other = Uea(dataset="Mine", data_dir=str(folder), valid_fraction=0.3, split_seed=1)
    assert whole_split(other, "valid").targets.bincount().tolist() == [3, 3]
    assert not torch.equal(whole_split(other, "valid").inputs, whole_split(task, "valid").inputs)
    tasks = [Uea(dataset="Mine", data_dir=str(folder), stratified=False, split_seed=seed) for seed in range(6)]
    counts_of_seeds = [whole_split(task, "valid").targets.bincount(minlength=2) for task in tasks]
    assert {int(counts.sum()) for counts in counts_of_seeds} == {3}
    assert len({tuple(counts.tolist()) for counts in counts_of_seeds}) > 1


def test_series_with_negative_zeros_are_equal_to_those_with_zeros(folder):
    train, test = make_series(0, 20), make_series(1, 10)
    for part in (train, test):
        part[0][0, 1] = 0.0
    train[0] = test[0].copy()
    train[0][0, 1] = -0.0
    write_ts(folder / "Mine_TRAIN.ts", train, ["a", "b"] * 10)
    write_ts(folder / "Mine_TEST.ts", test, ["b", "a"] * 5)
    task = Uea(dataset="Mine", data_dir=str(folder))
    assert task.size("train") + task.size("valid") == 19


def test_clean_protocol_removes_training_series_that_occur_in_test(folder, caplog):
    train, test = make_series(0, 20), make_series(1, 10)
    train[3], train[5] = test[7], train[4]
    write_ts(folder / "Mine_TRAIN.ts", train, ["a", "b", "b", "a"] * 5)
    write_ts(folder / "Mine_TEST.ts", test, ["b", "a"] * 5)
    with caplog.at_level(logging.WARNING, "longscan"):
        task = Uea(dataset="Mine", data_dir=str(folder))
        assert task.size("train") + task.size("valid") == 18
    assert caplog.messages == ["Mine: 2 training series occur in test, or twice, and are left out"]
    leaky = Uea(dataset="Mine", data_dir=str(folder), protocol="aussm")
    assert sum(leaky.size(part) for part in leaky.splits) == 30, "this protocol keeps repeated series"
    deduplicated = Uea(dataset="Mine", data_dir=str(folder), protocol="linoss")
    assert sum(deduplicated.size(part) for part in deduplicated.splits) == 28


def test_aussm_protocol_has_the_splits_and_statistics_of_its_code(folder):
    task = Uea(dataset="Mine", data_dir=str(folder), protocol="aussm", split_seed=5)
    all_series = make_series(0, 20) + make_series(1, 10, lengths=(5, 12))
    parts = torch.utils.data.random_split(range(30), [21, 4, 5], torch.Generator().manual_seed(5))
    values = torch.from_numpy(np.concatenate(all_series, 1))
    mean, std = values.mean(1), values.std(1)
    for part, indices in zip(task.splits, parts, strict=True):
        batch = whole_split(task, part)
        for row, index in enumerate(indices):
            expected = (torch.from_numpy(all_series[index].T) - mean) / std
            torch.testing.assert_close(batch.inputs[row][batch.valid[row]], expected.float())
    first = task.batch("train", 0, 6, seed=1)
    assert torch.equal(first.inputs, whole_split(task, "train").inputs[:6]), "batches are not shuffled"
    assert torch.equal(task.batch("train", 3, 6).inputs, whole_split(task, "train").inputs[18:]), "the last batch is not dropped"
    assert torch.equal(task.batch("train", 4, 6, seed=2).inputs, first.inputs)


def test_linoss_protocol_has_the_splits_and_batches_of_its_code(folder):
    equal = make_series(0, 20, lengths=(6, 7)), make_series(1, 10, lengths=(6, 7))
    equal[0][3] = equal[1][7]
    equal[1][2][:, 0] = equal[0][1][:, 0]  # so that a later step decides the order
    for name, series in zip(("TRAIN", "TEST"), equal, strict=True):
        write_ts(folder / f"Mine_{name}.ts", series, ["a", "b"] * (len(series) // 2))
    all_series = np.stack([*equal[0], *equal[1]]).transpose(0, 2, 1).astype(np.float32)
    _, rows = np.unique(all_series, axis=0, return_index=True)
    for order, expected in (("sorted", rows), ("file", np.sort(rows))):
        task = Uea(dataset="Mine", data_dir=str(folder), protocol="linoss", split_seed=2345, linoss_order=order)
        key = split(split(key_from_seed(2345), 4)[0])[0]
        expected = all_series[expected[permutation(key, 29)]]
        assert [task.size(part) for part in task.splits] == [20, 4, 5]
        assert torch.equal(whole_split(task, "valid").inputs, torch.from_numpy(expected[20:24]))
        assert torch.equal(whole_split(task, "test").inputs, torch.from_numpy(expected[24:]))
        assert examples_as_bytes(whole_split(task, "train")) == {row.tobytes() for row in expected[:20]}, (
            "values are not standardised"
        )
    assert task.num_batches("train", 5) == 3, "the last batch is always dropped"
    assert task.num_batches("train", 6) == 3
    assert [task.num_batches("valid", size) for size in (3, 4)] == [2, 1]
    assert task.num_batches("train", 20) == task.num_batches("train", 32) == 1
    assert len(task.batch("train", 7, 32).inputs) == 20
    epoch = [task.batch("train", step, 6, seed=4).inputs for step in range(6)]
    assert all(len(inputs) == 6 for inputs in epoch)
    assert len({row.numpy().tobytes() for inputs in epoch[:3] for row in inputs}) == 18
    assert len({row.numpy().tobytes() for inputs in epoch for row in inputs}) > 18, "another order in the next epoch"


def test_time_channel_has_the_relative_step(folder):
    plain = Uea(dataset="Mine", data_dir=str(folder), protocol="linoss")
    timed = Uea(dataset="Mine", data_dir=str(folder), protocol="linoss", time_channel=True)
    assert timed.d_input == 3
    before, after = whole_split(plain, "test"), whole_split(timed, "test")
    assert torch.equal(before.inputs, after.inputs[..., 1:])
    row = int(after.valid.sum(1).argmax())
    steps = int(after.valid[row].sum())
    torch.testing.assert_close(after.inputs[row, :steps, 0], torch.arange(steps) / timed.length)
    assert timed.describe(after, row).split(" ")[0] == plain.describe(before, row).split(" ")[0]


def test_missing_values_raise_by_default(folder):
    raw = read_ts(folder / "Mine_TRAIN.ts")
    write_ts(folder / "Mine_TRAIN.ts", raw.series, raw.labels, missing={(0, 2), (3, 1)})
    with pytest.raises(ValueError, match=r" has 4 missing values .* in 2 of its 20 series, the first in series 1, channel 1"):
        _ = Uea(dataset="Mine", data_dir=str(folder)).length
    with pytest.raises(ValueError, match=r"^`?missing\b.* one of refuse, fill, mask\b"):
        Uea(dataset="Mine", data_dir=str(folder), missing="mean")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_missing_values_are_filled_like_in_the_reader(folder, protocol):
    raw = read_ts(folder / "Mine_TRAIN.ts")
    write_ts(folder / "Mine_TRAIN.ts", raw.series, raw.labels, missing={(0, 2)})
    filled = read_ts(folder / "Mine_TRAIN.ts", "fill")
    assert not np.array_equal(filled.series[0], raw.series[0])
    task = Uea(dataset="Mine", data_dir=str(folder), protocol=protocol, missing="fill")
    filled_inputs = [whole_split(task, part).inputs for part in task.splits]
    write_ts(folder / "Mine_TRAIN.ts", filled.series, filled.labels)
    whole = Uea(dataset="Mine", data_dir=f"{folder}/", protocol=protocol)
    for inputs, part in zip(filled_inputs, task.splits, strict=True):
        torch.testing.assert_close(inputs, whole_split(whole, part).inputs, atol=1e-4, rtol=1e-4)  # the file has six digits


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_missing_values_are_marked_by_additional_channels(folder, protocol):
    raw = read_ts(folder / "Mine_TRAIN.ts")
    write_ts(folder / "Mine_TRAIN.ts", raw.series, raw.labels, missing={(0, 2)})
    task = Uea(dataset="Mine", data_dir=str(folder), protocol=protocol, missing="mask", time_channel=protocol != "aussm")
    first = int(protocol != "aussm")
    assert task.d_input == first + 4
    n_missing = 0
    for part in task.splits:
        batch = whole_split(task, part)
        assert batch.inputs.isfinite().all()
        valid = torch.ones(batch.inputs.shape[:2], dtype=torch.bool) if batch.valid is None else batch.valid
        observed = batch.inputs[..., first + 2 :]
        assert set(observed.unique().tolist()) <= {0, 1}
        assert not observed[~valid].any(), "padding is marked as not observed"
        missing = (observed == 0) & valid[..., None]
        n_missing += int(missing.sum())
        if protocol != "linoss":
            assert (batch.inputs[..., first : first + 2][missing].abs() < 1e-6).all(), "the standardised mean is zero"
    assert n_missing == 2
    path = folder / "new.csv"
    path.write_text("1,2\n3,\n")
    assert task.read_inputs(path).inputs[0, :, first + 2 :].tolist() == [[1, 1], [1, 0]]


def test_constant_score_is_that_of_the_largest_class_of_the_split(folder):
    write_ts(folder / "Mine_TRAIN.ts", make_series(0, 20), ["a"] * 15 + ["b"] * 5)
    write_ts(folder / "Mine_TEST.ts", make_series(1, 10), ["a"] * 2 + ["b"] * 8)
    task = Uea(dataset="Mine", data_dir=str(folder))
    assert task.constant_score("train") == pytest.approx(0.75, abs=0.03)
    assert task.constant_score() == pytest.approx(0.8)
    assert task.scaled(task.constant_score()) == pytest.approx(0.6)


def test_balanced_accuracy_and_f1_are_those_of_scikit_learn_without_a_class(folder):
    task = Uea(dataset="Mine", data_dir=str(folder))
    count = task.num_classes
    batch = Batch(inputs=torch.zeros(5, 1, 1), targets=torch.tensor([0, 0, 0, 0, 0]))
    answers = torch.tensor([0, 0, 0, 1, 1])
    metrics = task.metrics("valid")
    task.update(metrics, torch.nn.functional.one_hot(answers, count).float(), batch)
    with pytest.warns(UserWarning, match="y_pred contains classes not in y_true"):
        expected = balanced_accuracy_score(batch.targets, answers)
    assert metrics["balanced_accuracy"].compute().item() == pytest.approx(expected)
    assert metrics["macro_f1"].compute().item() == pytest.approx(f1_score(batch.targets, answers, average="macro"))


def test_confusion_matrix_has_one_row_for_each_class(folder):
    task = Uea(dataset="Mine", data_dir=str(folder))
    metrics = task.metrics("test")
    assert list(metrics) == ["accuracy", "balanced_accuracy", "macro_f1", "confusion"]
    assert list(task.metrics("valid")) == ["accuracy", "balanced_accuracy", "macro_f1"]
    assert list(task.metrics("train")) == ["accuracy"]
    batch = whole_split(task, "test")
    task.update(metrics, torch.tensor([[0.0, 1.0]]).expand(10, 2), batch)
    assert metrics["confusion"].compute().tolist() == [[0, 5], [0, 5]]


@pytest.mark.parametrize("ending", ["ts", "arff", "csv", "npy"])
def test_read_inputs_standardises_a_file_like_the_test_split(folder, tmp_path, ending):
    task = Uea(dataset="Mine", data_dir=str(folder), time_channel=True)
    expected = whole_split(task, "test")
    test = read_ts(folder / "Mine_TEST.ts").series
    path = tmp_path / f"new.{ending}"
    if ending == "ts":
        write_ts(path, test, ["unknown"] * 10)
        path.write_text(path.read_text().replace("@classLabel true b a\n", ""))
    elif ending == "arff":
        rows = ["'" + "\\n".join(",".join(f"{value:g}" for value in channel) for channel in series) + "',?" for series in test]
        path.write_text("@attribute all relational\n@data\n" + "\n".join(rows))
    elif ending == "csv":
        path.write_text("\n".join(",".join(f"{value:g}" for value in row) for row in test[0].T))
    else:
        np.save(path, test[0].T)
    batch = task.read_inputs(path)
    assert batch.targets is None
    for row in range(len(batch.inputs)):
        values = batch.inputs[row] if batch.valid is None else batch.inputs[row][batch.valid[row]]
        assert torch.equal(values, expected.inputs[row][expected.valid[row]])
    assert len(batch.inputs) == (10 if ending in ("ts", "arff") else 1)
    assert "|" not in task.describe(batch)
    rows = task.decode(torch.tensor([[0.0, 9.0]]).expand(len(batch.inputs), 2), batch)
    assert rows[0]["class"] == "a"
    assert rows[0]["probability"] > 0.99


def test_read_inputs_with_other_channels_raises(folder, tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("1,2,3\n")
    with pytest.raises(ValueError, match=r"new.csv must contain series of 2 channels, like Mine, got 3$"):
        Uea(dataset="Mine", data_dir=str(folder)).read_inputs(path)


def test_data_set_with_one_arff_file_per_channel(tmp_path):
    for part, count in (("TRAIN", 8), ("TEST", 4)):
        series = make_series(count, count, channels=3, lengths=(6, 7))
        for channel in range(3):
            rows = [",".join(f"{value:g}" for value in item[channel]) + f",{'ab'[row % 2]}" for row, item in enumerate(series)]
            (tmp_path / f"MineDimension{channel + 1}_{part}.arff").write_text("@relation x\n@data\n" + "\n".join(rows))
    task = Uea(dataset="Mine", data_dir=str(tmp_path))
    assert (task.d_input, task.length, task.size("test")) == (3, 6, 4)
    (tmp_path / "MineDimension2_TEST.arff").unlink()
    with pytest.raises(ValueError, match=r"MineDimension2_TEST.arff cannot be read: No such file"):
        _ = Uea(dataset="Mine", data_dir=f"{tmp_path}/").length


def test_arff_and_ts_files_give_the_same_batches(folder):
    from_ts = whole_split(Uea(dataset="Mine", data_dir=str(folder)), "test")
    for part in ("TRAIN", "TEST"):
        path = folder / f"Mine_{part}.ts"
        recordings = read_ts(path)
        cases = [r"\n".join(",".join(map(str, channel)) for channel in series) for series in recordings.series]
        rows = [f"'{case}',{label}" for case, label in zip(cases, recordings.labels, strict=True)]
        header = "@relation mine\n@attribute all relational\n@attribute class {b,a}\n@data\n"
        path.with_suffix(".arff").write_text(header + "\n".join(rows))
        path.unlink()
    from_arff = whole_split(Uea(dataset="Mine", data_dir=f"{folder}/"), "test")
    assert torch.equal(from_ts.inputs, from_arff.inputs)
    assert torch.equal(from_ts.targets, from_arff.targets)


def test_missing_data_without_aeon_raises(monkeypatch):
    monkeypatch.setattr("longscan.tasks.timeseries.uea.find_spec", lambda _: None)
    with pytest.raises(FileNotFoundError, match=r"^`data_dir` must be the folder of the files, got None; the package aeon"):
        _ = Uea(split_seed=77).length


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"protocol": "other"}, ValueError, r"^`?protocol\b.* one of clean, linoss, aussm\b"),
        ({"valid_fraction": 1.0}, ValueError, r"^`?valid_fraction\b.* a number above 0 and below 1\b"),
        ({"split_seed": -1}, ValueError, r"^`?split_seed"),
        ({"time_channel": True, "protocol": "aussm"}, ValueError, r"^`?time_channel\b.* false for the protocol aussm"),
        ({"dataset": "../x"}, ValueError, r"^`?dataset\b.* the NAME of NAME_TRAIN.ts"),
        (
            {"dataset": "Heartbeat"},
            FileNotFoundError,
            r"^`data_dir` must be a folder with Heartbeat_TRAIN.ts, .*, got the package aeon \(",
        ),
        ({"data_dir": "/none"}, FileNotFoundError, r"BasicMotions_TRAIN.arff .*, got /none and /none/BasicMotions without them"),
        (
            {"dataset": "Covid3Month"},
            ValueError,
            r"^`data_dir` must have at least two classes of Covid3Month, .*, got 156 different labels for 201 series",
        ),
    ],
)
def test_invalid_setting_or_missing_data_raises(settings, error, message):
    with pytest.raises(error, match=message) as caught:
        _ = Uea(**settings).length
    assert "\n" not in str(caught.value)


def test_missing_test_file_raises(folder):
    (folder / "Mine_TEST.ts").unlink()
    with pytest.raises(FileNotFoundError, match=r"a folder with Mine_TEST.ts, Mine_TEST.arff or MineDimension1_TEST.arff"):
        _ = Uea(dataset="Mine", data_dir=str(folder)).length


def test_both_parts_come_from_the_same_folder(folder):
    (folder / "Mine").mkdir()
    (folder / "Mine_TEST.ts").rename(folder / "Mine" / "Mine_TEST.ts")
    with pytest.raises(FileNotFoundError, match=r"a folder with Mine_TEST.ts, Mine_TEST.arff or MineDimension1_TEST.arff"):
        _ = Uea(dataset="Mine", data_dir=str(folder)).length


def test_damaged_data_set_raises(folder):
    write_ts(folder / "Mine_TEST.ts", make_series(1, 10, channels=3), ["b", "a"] * 5)
    with pytest.raises(ValueError, match=r"^`data_dir` must have as many channels in train as in test of Mine, got 2 and 3$"):
        _ = Uea(dataset="Mine", data_dir=str(folder)).length
    (folder / "Mine_TEST.ts").write_text("@classLabel false\n@data\n1,2:3,4\n")
    with pytest.raises(ValueError, match=r"^`data_dir` must have files of Mine with labels, got series without labels"):
        _ = Uea(dataset="Mine", data_dir=str(folder)).length
    write_ts(folder / "Mine_TEST.ts", make_series(1, 4), ["a", "b"] * 2)
    write_ts(folder / "Mine_TRAIN.ts", make_series(0, 1), ["a"])
    with pytest.raises(
        ValueError, match=r"^`valid_fraction` must leave series for training and for validation, got 0.15 of 1 series$"
    ):
        _ = Uea(dataset="Mine", data_dir=str(folder)).length
    with pytest.raises(ValueError, match=r"^`data_dir` must have enough series for a split 70/15/15, got 5$"):
        _ = Uea(dataset="Mine", data_dir=str(folder), protocol="aussm").length


def test_constant_channels_have_scale_one():
    flat = [np.array([[1.0, 1.0], [2.0, 4.0]])] * 2
    partition = protocols.aussm(flat * 10, seed=0)
    assert partition.scale[0] == 1
    assert partition.scale[1] == pytest.approx(np.std([2, 4] * 20, ddof=1))


def test_rounding_of_the_mean_does_not_scale_a_constant_channel():
    value = -0.15059799836040494
    train = [np.array([[value] * 700, np.arange(700.0) + row]) for row in range(6)]
    test = [np.array([[value + 0.01] * 700, np.arange(700.0)])]
    validation = protocols.ValidationSplit(seed=0, fraction=0.2, stratified=False)
    partition = protocols.clean(train, test, np.zeros(7, np.int64), validation)
    assert partition.scale[0] == 1, "a deviation of 3e-17 would make 4e14 of the difference of 0.01"


def test_permutations_equal_those_of_jax():
    # jax 0.10.2 with jax_threefry_partitionable=False: split(PRNGKey(seed), 4)[0], split(...)[0], permutation.
    def permute(seed, size):
        return permutation(split(split(key_from_seed(seed), 4)[0])[0], size).tolist()

    assert permute(0, 1) == [0]
    assert permute(0, 7) == [2, 4, 5, 0, 3, 1, 6]
    assert permute(2345, 7) == [5, 0, 4, 1, 6, 2, 3]
    assert permute(2345, 236)[:12] == [164, 8, 168, 32, 106, 26, 105, 232, 61, 234, 233, 85]
    assert permute(3456, 70000)[:5] == [30210, 16177, 19606, 59400, 15794], "two rounds of sorting"


AEON_FACTS = {
    "BasicMotions": (40, 40, 6, 100, 4),
    "JapaneseVowels": (270, 370, 12, 29, 9),
}  # train, test, channels, longest, classes
ARCHIVE_FACTS = {
    **AEON_FACTS,
    "UWaveGestureLibrary": (120, 320, 3, 315, 8),
    "FingerMovements": (316, 100, 28, 50, 2),
    "AtrialFibrillation": (15, 15, 2, 640, 3),
    "Handwriting": (150, 850, 3, 152, 26),
    "ERing": (30, 270, 4, 65, 6),
    "SelfRegulationSCP1": (268, 293, 6, 896, 2),
}


def assert_published_sizes_and_disjoint_splits(dataset, data_dir, facts, protocol):
    train, test, channels, longest, classes = facts
    task = TASKS["uea"](dataset=dataset, data_dir=data_dir, protocol=protocol)
    sizes = [task.size(part) for part in task.splits]
    assert (task.d_input, task.length, task.num_classes) == (channels, longest, classes)
    if protocol == "clean":
        assert sizes[2] == test
    assert sum(sizes) == train + test
    examples = [examples_as_bytes(whole_split(task, part)) for part in task.splits]
    assert sum(map(len, examples)) == len(set.union(*examples)) == train + test


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dataset", AEON_FACTS)
def test_data_sets_of_aeon_have_the_published_sizes(dataset, protocol):
    assert_published_sizes_and_disjoint_splits(dataset, None, AEON_FACTS[dataset], protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dataset", ARCHIVE_FACTS)
def test_data_sets_of_the_archive_have_the_published_sizes(dataset, protocol):
    root = os.environ.get("LONGSCAN_TEST_DATA")
    if root is None:
        pytest.skip("set LONGSCAN_TEST_DATA to a folder with uea/NAME/NAME_TRAIN.ts to test on the archive's own files")
    folder = Path(root) / "uea"
    if not (folder / dataset).is_dir():
        pytest.skip(f"{folder} has no {dataset}")
    assert_published_sizes_and_disjoint_splits(dataset, str(folder), ARCHIVE_FACTS[dataset], protocol)


def test_lexicographic_order_of_series_of_unequal_lengths():
    """Steps are compared first, then channels. Missing values and steps after the end come last and are equal."""
    nan = float("nan")
    series = [np.array([row], dtype=float) for row in ([1, 2, nan], [1, 2], [1, 2, 0], [0, 9, 9])]
    assert protocols._lexicographic_order(series).tolist() == [3, 2, 0, 1]
    channels = [np.array([[1.0, 5.0], [3.0, 0.0]]), np.array([[1.0, 4.0], [3.0, 9.0]]), np.array([[1.0], [2.0]])]
    assert protocols._lexicographic_order(channels).tolist() == [2, 1, 0]


def test_value_beyond_float32_after_scaling_raises(folder):
    series = [np.zeros_like(item) for item in read_ts(folder / "Mine_TEST.ts").series]
    labels = read_ts(folder / "Mine_TEST.ts").labels
    task = Uea(dataset="Mine", data_dir=str(folder))
    series[1][0, 2] = 3e38
    tiny = [item * 1e-6 for item in read_ts(folder / "Mine_TRAIN.ts").series]
    write_ts(folder / "Mine_TRAIN.ts", tiny, read_ts(folder / "Mine_TRAIN.ts").labels)
    write_ts(folder / "Mine_TEST.ts", series, labels)
    message = rf"Mine, train before test: scaled values .*, got .* from 3e\+38 in series {len(tiny) + 2}, channel 1, step 3"
    with pytest.raises(ValueError, match=message):
        task.size("test")
