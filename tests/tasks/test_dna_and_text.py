"""DNA and bytes: FASTA, strands, splits without leaks, windows, damaged files, real files where present."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from longscan.tasks.dna import DnaLanguage, Species
from longscan.tasks.dna.fasta import read_fasta, reverse_complement
from longscan.tasks.dna.tasks import _load
from longscan.tasks.language import ByteText
from made_up import MADE_UP


def test_fasta(tmp_path):
    path = tmp_path / "a.fa"
    path.write_bytes(b">chr1 a name\nACGT\r\nacgu\nNRY\n>two\n>three\nTT\n")
    records = read_fasta(path)
    assert [name for name, _ in records] == ["chr1", "three"]
    assert records[0][1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 4, 4]
    assert records[1][1].tolist() == [3, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.fa: is no FASTA file"),
        (b"ACGT\n", "a.fa: is no FASTA file"),
        (b">one\n>two\n", "a.fa: holds no sequence"),
        (b">one\nACGT\nAC\xffT\n", r"a.fa:3: b'\\xff' is no base"),
        (b">one\nACGT\n>two\nAC7\n", "a.fa:4: b'7' is no base"),
        (b">one\nACGT\n7C\n", "a.fa:3: b'7' is no base"),
    ],
)
def test_damaged_fasta(tmp_path, content, message):
    path = tmp_path / "a.fa"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_fasta(path)


def test_the_other_strand():
    bases = np.array([0, 0, 1, 4, 3])
    assert reverse_complement(bases).tolist() == [0, 4, 2, 3, 3]
    assert reverse_complement(reverse_complement(bases)).tolist() == bases.tolist()


@pytest.fixture
def folder(tmp_path):
    MADE_UP["species"](tmp_path)
    return tmp_path


def species(folder, **settings):
    return Species(**{"data_dir": str(folder), "window": 40, "valid_size": 40, "test_size": 60, **settings})


def where(folder, window):
    """The species and the relative places at which a window stands in the files."""
    found = set()
    for path in folder.glob("*.fa"):
        ((_, bases),) = read_fasta(path)
        place = bases.tobytes().find(window.astype(np.uint8).tobytes())
        if place >= 0:
            found.add((path.name.split(".")[0], place / len(bases), (place + len(window)) / len(bases)))
    return found


def test_splits_share_no_position(folder):
    task = species(folder)
    assert task.classes == ("cat", "dog", "eel")
    for split, low, high in (("train", 0, 0.7), ("valid", 0.7, 0.85), ("test", 0.85, 1)):
        batch = task.batch(split, 0, 40)
        for window, target in zip(batch.inputs.numpy(), batch.targets.tolist(), strict=True):
            ((kind, first, last),) = where(folder, window)
            assert kind == task.classes[target]
            assert low <= first < last <= high + 1e-9


def test_other_strands_are_read_in_training_alone(folder):
    task, plain = species(folder, reverse_complement=True), species(folder)
    assert torch.equal(task.batch("test", 0, 60).inputs, plain.batch("test", 0, 60).inputs)
    turned = 0
    for window in task.batch("train", 0, 60).inputs.numpy():
        if not where(folder, window):
            assert where(folder, reverse_complement(window))
            turned += 1
    assert 15 < turned < 45


def test_windows_of_n_are_drawn_again(tmp_path):
    for kind in ("a", "b"):
        (tmp_path / f"{kind}.x.fa").write_text(f">{kind}\n" + "N" * 3000 + "ACGT" * 750 + "\n")
    task = species(tmp_path, split="position", window=20)
    share = (task.batch("train", 0, 400).inputs == 4).all(1).float().mean()
    assert share < 0.4, "71 % of the places are N; four tries leave a quarter"


def test_chromosomes(tmp_path):
    for kind in ("human", "pig"):
        (tmp_path / kind).mkdir()
        for number, letter in ((2, "A"), (1, "C"), (5, "G")):
            (tmp_path / kind / f"chr{number}.fa").write_text(f">chr{number}\n" + letter * 200 + "\n")
    task = species(tmp_path, split="chromosome")
    assert task.classes == ("human", "pig")
    assert [task.batch(split, 0, 8).inputs.unique().tolist() for split in task.splits] == [[0], [1], [2]]
    language = DnaLanguage(data_dir=str(tmp_path), split="chromosome", window=16, valid_size=8, test_size=8)
    batch = language.batch("valid", 0, 8)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert language.constant_score("valid") > 5, "C never occurs in train"
    (tmp_path / "pig" / "chr5.fa").unlink()
    _load.cache_clear()
    with pytest.raises(ValueError, match=r"^window: pig has no range of 40 bases in split test by chromosome"):
        species(tmp_path, split="chromosome", test_size=61).batch("train", 0, 1)


def test_missing_genomes(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^data_dir: .* holds no FASTA files"):
        species(tmp_path).size("train")
    (tmp_path / "one.fa").write_text(">x\nACGT\n")
    with pytest.raises(ValueError, match=r"^data_dir: .* has files of 1 species, at least two are needed"):
        species(tmp_path, window=3).batch("train", 0, 1)


def test_a_users_sequences(folder, tmp_path):
    path = tmp_path / "new.fasta"
    path.write_text(">a\nACGTA\n>b\nGG\n")
    batch = species(folder).read_inputs(path)
    assert batch.inputs.tolist() == [[0, 1, 2, 3, 0], [2, 2, 4, 4, 4]]
    assert batch.valid.sum(1).tolist() == [5, 2]
    rows = DnaLanguage(data_dir=str(folder)).decode(torch.nn.functional.one_hot(batch.inputs, 5).float() * 9, batch)
    assert [row["next"] for row in rows] == ["A", "G"]


# Bytes.


def test_bytes_of_a_file(tmp_path):
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


def test_a_folder_of_texts_and_damaged_ones(tmp_path):
    for name, text in (("b", "two" * 400), ("a", "one" * 400)):
        (tmp_path / f"{name}.txt").write_text(text)
    task = ByteText(path=str(tmp_path), window=9)
    assert bytes(task.batch("test", 0, 1).inputs[0].tolist()).startswith(b"two")
    with pytest.raises(ValueError, match=r"^path: .* has 2400 bytes, too few for windows of 200"):
        ByteText(path=str(tmp_path), window=200).batch("train", 0, 1)
    with pytest.raises(FileNotFoundError, match=r"^path: .*none does not exist"):
        ByteText(path=str(tmp_path / "none")).batch("train", 0, 1)
    with pytest.raises(FileNotFoundError, match=r"^path: name a file"):
        ByteText().batch("train", 0, 1)
    (tmp_path / "empty").write_text("")
    with pytest.raises(ValueError, match="has 0 bytes"):
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
def test_impossible_settings(cls, settings, message):
    with pytest.raises(ValueError, match=message):
        cls(**settings)


ROOT = Path(os.environ.get("LONGSCAN_TEST_DATA", "/nowhere"))


@pytest.mark.skipif(not (ROOT / "dna").is_dir(), reason="LONGSCAN_TEST_DATA names no folder with dna/")
def test_real_genomes():
    task = Species(data_dir=str(ROOT / "dna" / "encode_MAY-2005"), window=1024)
    assert task.num_classes == 23
    batch = task.batch("train", 0, 64)
    assert (batch.inputs == 4).float().mean() < 0.2
    assert len(batch.targets.unique()) > 15


@pytest.mark.skipif(not (ROOT / "text").is_dir(), reason="LONGSCAN_TEST_DATA names no folder with text/")
def test_real_text():
    task = ByteText(path=str(ROOT / "text" / "tinyshakespeare"))
    assert 4.5 < task.constant_score() < 5.1
