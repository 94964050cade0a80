"""Tasks on DNA and bytes: FASTA files, strands, disjoint splits, windows, damaged files, and real files if present."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from longscan.tasks.dna import DnaLanguage, Species
from longscan.tasks.dna.fasta import read_fasta, reverse_complement
from longscan.tasks.dna.tasks import _load, _window_ranges
from longscan.tasks.language import ByteText
from made_up import MADE_UP


def test_fasta_records_are_read_as_base_indices(tmp_path):
    path = tmp_path / "a.fa"
    path.write_bytes(b">chr1 a name\nACGT\r\nacgu\nNRY\n>two\n>three\nTT\n")
    records = read_fasta(path)
    assert [header for header, _ in records] == ["chr1 a name", "two", "three"]
    assert [bases.tolist() for _, bases in records] == [[0, 1, 2, 3, 0, 1, 2, 3, 4, 4, 4], [], [3, 3]]
    path.write_bytes(b"> \nACGT\n>\nA\n")
    assert [header for header, _ in read_fasta(path)] == ["", ""]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.fa must be a FASTA file"),
        (b"ACGT\n", "a.fa must be a FASTA file"),
        (b">one\n>two\n", "a.fa must contain sequences, got none"),
        (b">one\nACGT\nAC\xffT\n", r"a.fa:3: each letter must be the code of a base, got b'\\xff'"),
        (b">one\nACGT\n>two\nAC7\n", "a.fa:4: each letter must be the code of a base, got b'7'"),
        (b">one\nACGT\n7C\n", "a.fa:3: each letter must be the code of a base, got b'7'"),
    ],
)
def test_damaged_fasta_raises(tmp_path, content, message):
    path = tmp_path / "a.fa"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_fasta(path)


def test_reverse_complement_is_its_own_inverse():
    bases = np.array([0, 0, 1, 4, 3])
    assert reverse_complement(bases).tolist() == [0, 4, 2, 3, 3]
    assert reverse_complement(reverse_complement(bases)).tolist() == bases.tolist()


@pytest.fixture
def folder(tmp_path):
    MADE_UP["species"](tmp_path)
    return tmp_path


def make_species(folder, **settings):
    return Species(**{"data_dir": str(folder), "window": 40, "valid_size": 40, "test_size": 60, **settings})


def find_window(folder, window):
    """Return the species, and the relative start and end of a window in each file that contains it."""
    matches = set()
    for path in folder.glob("*.fa"):
        ((_, bases),) = read_fasta(path)
        start = bases.tobytes().find(window.astype(np.uint8).tobytes())
        if start >= 0:
            matches.add((path.name.split(".")[0], start / len(bases), (start + len(window)) / len(bases)))
    return matches


def test_splits_are_disjoint_ranges_of_positions(folder):
    task = make_species(folder)
    assert task.classes == ("cat", "dog", "eel")
    for split, low, high in (("train", 0, 0.7), ("valid", 0.7, 0.85), ("test", 0.85, 1)):
        batch = task.batch(split, 0, 40)
        for window, target in zip(batch.inputs.numpy(), batch.targets.tolist(), strict=True):
            ((kind, first, last),) = find_window(folder, window)
            assert kind == task.classes[target]
            assert low <= first < last <= high + 1e-9


def test_reverse_complements_occur_in_training_only(folder):
    task, plain = make_species(folder, reverse_complement=True), make_species(folder)
    assert torch.equal(task.batch("test", 0, 60).inputs, plain.batch("test", 0, 60).inputs)
    n_reversed = 0
    for window in task.batch("train", 0, 60).inputs.numpy():
        if not find_window(folder, window):
            assert find_window(folder, reverse_complement(window))
            n_reversed += 1
    assert 15 < n_reversed < 45


def test_windows_of_n_are_sampled_again(tmp_path):
    for kind in ("a", "b"):
        (tmp_path / f"{kind}.x.fa").write_text(f">{kind}\n" + "N" * 3000 + "ACGT" * 750 + "\n")
    task = make_species(tmp_path, split="position", window=20)
    fraction = (task.batch("train", 0, 400).inputs == 4).all(1).float().mean()
    assert fraction < 0.4, "71 % of the positions are N; after four tries a quarter of the windows are"


def test_split_by_chromosome(tmp_path):
    for kind, header in (("human", "NC_00 Homo sapiens chromosome {}, primary"), ("pig", "CHR{}_random")):
        (tmp_path / kind).mkdir()
        for number, letter in ((2, "A"), (1, "C"), (5, "G")):
            (tmp_path / kind / f"part_{letter}.fa").write_text(f">{header.format(number)}\n" + letter * 200 + "\n")
    task = make_species(tmp_path, split="chromosome")
    assert task.classes == ("human", "pig")
    assert [task.batch(split, 0, 8).inputs.unique().tolist() for split in task.splits] == [[0], [1], [2]]
    language = DnaLanguage(data_dir=str(tmp_path), split="chromosome", window=16, valid_size=8, test_size=8)
    batch = language.batch("valid", 0, 8)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert language.constant_score("valid") > 5, "C does not occur in train"
    (tmp_path / "pig" / "part_G.fa").unlink()
    _load.cache_clear()
    with pytest.raises(
        ValueError, match=r"^`data_dir` must have a sequence of pig of at least 40 bases on chromosome 5 or 7 or 9 or 10 or 11"
    ):
        make_species(tmp_path, split="chromosome", test_size=61).batch("train", 0, 1)


def test_first_and_rest_are_the_training_ranges_in_two_parts(folder):
    """Each of the two files of a species has a training range of 1050 bases, so that the second one is divided."""
    parts = {part: make_species(folder, train_part=part, train_first=1200) for part in ("first", "rest")}
    ranges = {part: _window_ranges(task)["train"] for part, task in parts.items()}
    whole = _window_ranges(make_species(folder))
    for kind, species_ranges in enumerate(whole["train"]):
        assert ranges["first"][kind][:, 1].sum() == 1200
        assert sum(ranges[part][kind][:, 1].sum() for part in parts) == species_ranges[:, 1].sum()
        covered = [(start, start + length) for part in parts for start, length in ranges[part][kind].tolist()]
        assert sum(covered, ()) == tuple(sorted(sum(covered, ())))
    for task in parts.values():
        assert torch.equal(task.batch("test", 0, 20).inputs, make_species(folder).batch("test", 0, 20).inputs)
    with pytest.raises(ValueError, match=r"^`window` must be shorter than .*, part rest with train_first 1000000, got windows"):
        make_species(folder, train_part="rest").batch("train", 0, 1)


def test_only_named_species_are_used(folder):
    task = make_species(folder, species=["eel", "cat"])
    assert task.classes == ("cat", "eel")
    kinds = {kind for window in task.batch("train", 0, 30).inputs.numpy() for kind, _, _ in find_window(folder, window)}
    assert kinds == {"cat", "eel"}
    with pytest.raises(ValueError, match=r"^`species` must be names of species in the folder \(cat, dog, eel\), got 'cow'"):
        make_species(folder, species=["cat", "cow"]).batch("train", 0, 1)
    with pytest.raises(ValueError, match=r"^`species` must be at least two names of species, or none, got 'cat'"):
        make_species(folder, species=["cat"])
    language = DnaLanguage(data_dir=str(folder), species=("dog",), window=20)
    assert {kind for window in language.batch("train", 0, 9).inputs.numpy() for kind, _, _ in find_window(folder, window)} == {
        "dog"
    }


def test_reversed_windows_are_those_of_next_in_the_other_order(folder):
    tasks = [DnaLanguage(data_dir=str(folder), window=30, objective=objective) for objective in ("next", "reverse")]
    for split in ("train", "valid"):
        forward, backward = (task.batch(split, 0, 8) for task in tasks)
        whole = torch.cat([forward.inputs, forward.targets[:, -1:]], 1)
        assert torch.equal(backward.inputs, whole.flip(1)[:, :-1])
        assert torch.equal(backward.targets, whole.flip(1)[:, 1:])


def test_reverse_reads_files_in_the_other_order(folder, tmp_path):
    (tmp_path / "new.fa").write_text(">a\nACGTA\n>b\nGC\n")
    batch = DnaLanguage(data_dir=str(folder), objective="reverse").read_inputs(tmp_path / "new.fa")
    assert batch.inputs.tolist() == [[0, 3, 2, 1, 0], [1, 2, 4, 4, 4]]


@pytest.mark.parametrize("split", ["train", "test"])
def test_masked_bases_have_the_frequencies_of_the_paper(folder, split):
    """15 % are targets; 80 % of them are masked, 10 % kept and 10 % random, a fifth of which equals the base."""
    task = DnaLanguage(data_dir=str(folder), window=200, objective="masked", test_size=400)
    assert (task.vocab_size, task.symbols[5], task.num_classes, task.needs_causal) == (6, "?", 5, False)
    batch = task.batch(split, 0, 400)
    chosen = batch.loss_mask
    assert chosen.float().mean().item() == pytest.approx(0.15, abs=0.01)
    assert torch.equal(batch.inputs[~chosen], batch.targets[~chosen])
    inputs, targets = batch.inputs[chosen], batch.targets[chosen]
    assert (inputs == 5).float().mean().item() == pytest.approx(0.8, abs=0.02)
    assert (inputs == targets).float().mean().item() == pytest.approx(0.1 + 0.1 / 5, abs=0.02)


def test_masked_bases_of_a_row_do_not_depend_on_the_size_of_the_batch(folder):
    task = DnaLanguage(data_dir=str(folder), window=20, objective="masked", valid_size=300)
    whole = [torch.cat(parts) for parts in zip(*[task.batch("valid", step, 150)[:4:3] for step in range(2)], strict=True)]
    small = [torch.cat(parts) for parts in zip(*[task.batch("valid", step, 70)[:4:3] for step in range(5)], strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(whole, small, strict=True))
    assert whole[1].any(1).all(), "each window has a target"


def test_constant_score_of_masked_bases_comes_from_the_targets(folder):
    task = DnaLanguage(data_dir=str(folder), window=20, objective="masked", test_size=300)
    batch = task.batch("test", 0, 300)
    assert task._token_counts("test").tolist() == batch.targets[batch.loss_mask].bincount(minlength=5).tolist()
    assert task._token_counts("train").sum() == 1024 * 20


def test_missing_genomes_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^`data_dir` must be a folder with FASTA files"):
        make_species(tmp_path).size("train")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "one.fa").write_text(">x\nACGT\n")
    with pytest.raises(ValueError, match=r"^`data_dir` must have at least two species in .*, got 1 in "):
        make_species(tmp_path, window=3).batch("train", 0, 1)


def test_a_fasta_file_without_a_species_raises(folder):
    """The name of the folder itself is not a species."""
    (folder / "lambda_virus.fa").write_text(">x\nACGT\n")
    with pytest.raises(ValueError, match=r"^`data_dir` must be a folder .* got .*lambda_virus\.fa, which names no species$"):
        make_species(folder).batch("train", 0, 1)


def test_read_inputs_pads_sequences_of_a_fasta_file(folder, tmp_path):
    path = tmp_path / "new.fasta"
    path.write_text(">a\nACGTA\n>b\nGG\n")
    batch = make_species(folder).read_inputs(path)
    assert batch.inputs.tolist() == [[0, 1, 2, 3, 0], [2, 2, 4, 4, 4]]
    assert batch.valid.sum(1).tolist() == [5, 2]
    rows = DnaLanguage(data_dir=str(folder)).decode(torch.nn.functional.one_hot(batch.inputs, 5).float() * 9, batch)
    assert [row["next"] for row in rows] == ["A", "G"]
    path.write_text(">a\nACGTA\n>b\n>c\nGG\n")
    with pytest.raises(ValueError, match=r"new.fasta: each sequence must have bases, got none in sequence 2, 'b'$"):
        make_species(folder).read_inputs(path)


# Tests of bytes.


def test_byte_text_splits_a_file_into_windows(tmp_path):
    content = bytes(np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8))
    (tmp_path / "x").write_bytes(content)
    task = ByteText(path=str(tmp_path / "x"), window=50, valid_fraction=0.2)
    assert [task.size(split) for split in task.splits] == [None, 19, 19]
    test = task.batch("test", 0, 19)
    assert bytes(test.inputs.flatten().tolist()) == content[4000:4950]
    assert torch.equal(test.inputs[:, 1:], test.targets[:, :-1])
    train = task.batch("train", 3, 8)
    assert all(content[:3000].find(bytes(row.tolist())) >= 0 for row in train.inputs)
    assert 7.5 < task.constant_score() < 9


def test_byte_text_reads_a_folder_and_raises_for_missing_or_short_files(tmp_path):
    for name, text in (("b", "two" * 400), ("a", "one" * 400)):
        (tmp_path / f"{name}.txt").write_text(text)
    task = ByteText(path=str(tmp_path), window=9)
    assert bytes(task.batch("test", 0, 1).inputs[0].tolist()).startswith(b"two")
    with pytest.raises(ValueError, match=r"^`path` must have more than 200 bytes, .* with 120 of 2400 bytes in each"):
        ByteText(path=str(tmp_path), window=200).batch("train", 0, 1)
    with pytest.raises(ValueError, match=r"^`path` must have more than 200 bytes, a window, in train, .* with 96 of 2400"):
        ByteText(path=str(tmp_path), window=200, valid_fraction=0.48).batch("train", 0, 1)
    with pytest.raises(FileNotFoundError, match=r"^`path` must be a file or a folder of files, got .*none, which does not exist"):
        ByteText(path=str(tmp_path / "none")).batch("train", 0, 1)
    with pytest.raises(FileNotFoundError, match=r"^`path` must be a file or a folder of files to learn from .*, got None"):
        ByteText().batch("train", 0, 1)
    (tmp_path / "empty").write_text("")
    with pytest.raises(ValueError, match="with 0 of 0 bytes in each"):
        ByteText(path=str(tmp_path / "empty")).batch("train", 0, 1)


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (Species, {"window": 0}, "^`?window"),
        (Species, {"test_size": 0}, "^`?test_size"),
        (ByteText, {"window": 0}, "^`?window"),
        (ByteText, {"valid_fraction": 0.5}, "^`?valid_fraction"),
    ],
)
def test_invalid_setting_raises(cls, settings, message):
    with pytest.raises(ValueError, match=message):
        cls(**settings)


ROOT = Path(os.environ.get("LONGSCAN_TEST_DATA", "/nowhere"))


@pytest.mark.skipif(not (ROOT / "dna").is_dir(), reason="LONGSCAN_TEST_DATA names no folder with dna/")
def test_real_genomes_have_23_species():
    task = Species(data_dir=str(ROOT / "dna" / "encode_MAY-2005"), window=1024)
    assert task.num_classes == 23
    batch = task.batch("train", 0, 64)
    assert (batch.inputs == 4).float().mean() < 0.2
    assert len(batch.targets.unique()) > 15


@pytest.mark.skipif(not (ROOT / "text").is_dir(), reason="LONGSCAN_TEST_DATA names no folder with text/")
def test_constant_score_of_real_text():
    task = ByteText(path=str(ROOT / "text" / "tinyshakespeare"))
    assert 4.5 < task.constant_score() < 5.1


def test_every_byte_can_be_the_next_one(tmp_path):
    (tmp_path / "x").write_bytes(bytes(range(256)) * 4)
    task = ByteText(path=str(tmp_path / "x"), window=3, valid_fraction=0.2)
    batch = task.batch("test", 0, 4)
    output = torch.zeros(4, 3, 256)
    for row, byte in enumerate((0, 97, 254, 255)):
        output[row, -1, byte] = 9
    assert [row["next"] for row in task.decode(output, batch)] == [repr(bytes([byte])) for byte in (0, 97, 254, 255)]
