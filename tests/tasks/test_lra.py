"""Long Range Arena: generators and independent evaluators, formats, protocols, damaged files, and real files if present."""

import os
import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from longscan.tasks._images import read_image, to_grey
from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Ragged, cached_arrays
from longscan.tasks._text import Alphabet
from longscan.tasks.base import rows_of_step
from longscan.tasks.lra import ListOps, LraImage, LraRetrieval, LraText, Pathfinder, _generated
from longscan.tasks.lra._cifar10 import read_batch
from longscan.tasks.lra._listops import SYMBOLS, ExpressionLimits, generate_expressions
from longscan.tasks.lra._pathfinder_images import IMAGE_SETTINGS, _Canvas, _draw_batch, _two_snakes, draw_images, image_settings
from longscan.training import SettingError, parse_settings, train
from longscan.training.evaluate import predict
from longscan.training.run import build_model, first_model
from made_up import MADE_UP, cifar_batch

# Tests of ListOps.


def evaluate(tokens):
    """Return the value of an expression and remove its tokens from the list."""
    token = tokens.pop(0)
    if token.isdigit():
        return int(token)
    values = []
    while tokens[0] != "]":
        values.append(evaluate(tokens))
    tokens.pop(0)
    function = {"[MIN": min, "[MAX": max, "[MED": lambda x: int(np.median(x)), "[SM": lambda x: sum(x) % 10}[token]
    return function(values)


def test_listops_answers_equal_those_of_the_evaluator():
    task = ListOps(train_size=60, valid_size=20, test_size=20)
    batch = task.batch("train", 0, 60)
    for row in range(60):
        question, answer = task.describe(batch, row).split(" | ")
        tokens = question.split()
        assert 500 < len(tokens) < 2000
        assert evaluate(tokens) == int(answer)
        assert not tokens


@pytest.mark.parametrize(
    ("text", "value"),
    [("[MAX 4 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]", 5), ("[MED 1 2 ]", 1), ("[SM 9 9 9 ]", 7), ("[MED 3 4 9 9 ]", 6)],
)
def test_evaluator_gives_the_answers_of_the_paper(text, value):
    assert evaluate(text.split()) == value


def test_listops_trees_have_the_published_distribution():
    sequences, values = generate_expressions(CounterRNG(("trees",), 0), 3000, ExpressionLimits())
    assert abs(sequences.lengths.mean() - 1030) < 30
    frequencies = np.bincount(values, minlength=10) / 3000
    assert frequencies[0] == pytest.approx(0.17, abs=0.03)
    assert frequencies[9] == pytest.approx(0.163, abs=0.03)
    tokens = Counter(sequences.values.tolist())
    operators = sum(tokens[number] for number in range(10, 14))
    assert tokens[14] == operators
    for number in range(10, 14):
        assert tokens[number] / operators == pytest.approx(0.25, abs=0.01)


def test_listops_depend_on_the_seed_only():
    settings = {"train_size": 20, "valid_size": 5, "test_size": 5}
    first = ListOps(**settings).batch("train", 0, 20, seed=1)
    other_size = ListOps(**{**settings, "test_size": 7}).batch("train", 0, 20, seed=1)
    assert torch.equal(first.inputs, other_size.inputs)
    stream = ListOps(data="stream", **settings)
    assert stream.size("train") is None
    values, _ = generate_expressions(CounterRNG(("pinned",), 0), 1, ExpressionLimits(longer_than=5, shorter_than=30))
    assert " ".join(SYMBOLS[token] for token in values.values) == "[MED 0 0 0 8 5 ]"


def test_listops_reads_expressions_from_a_file(tmp_path):
    path = tmp_path / "expressions.txt"
    path.write_text("( ( ( [MAX 4 ) 3 ) ] )\n\n[MIN 1 2 X | 1\n")
    batch = ListOps().read_inputs(path)
    assert batch.inputs.tolist() == [[11, 4, 3, 14], [10, 1, 2, 14]]
    for text, message in (
        ("[MAX 1 2 ]\n[FIRST 1 2 ]\n", r"expressions.txt:2: each symbol must be one of .*, got '\[FIRST'"),
        ("[MAX 1 2\n", "expressions.txt:1: the line must be one expression whose brackets match"),
        ("[MAX 1 ] 2 ]\n", "expressions.txt:1: the line must be one expression whose brackets match"),
        ("[MAX 1 [MIN ] ]\n", r"expressions.txt:1: each operator must have an operand, got '\[MAX 1 \[MIN \] \]'$"),
        ("\n", "expressions.txt must contain expressions, got none"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            ListOps().read_inputs(path)


SCRIPT = """
from longscan.tasks import TASKS

task = TASKS["listops"](train_size=4200, valid_size=8, test_size=8, shorter_than=30, longer_than=10)
print("once", len(task.batch("train", 0, 4200).inputs))
"""


@pytest.mark.slow
def test_examples_are_generated_in_processes_that_do_not_run_the_script_again(tmp_path, monkeypatch):
    """A plain script, without `if __name__ == "__main__"`; the examples do not depend on the number of processes."""
    monkeypatch.setenv("LONGSCAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(_generated.os, "cpu_count", lambda: 2)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=False, timeout=200)
    assert done.stdout == "once 4200\n", done.stderr
    task = ListOps(train_size=4200, shorter_than=30, longer_than=10)
    whole = _generated._generate_split(task, "train", 4200)
    blocks = [_generated._generate_block((task, "train", number, min(256, 4200 - 256 * number))) for number in range(17)]
    assert np.array_equal(whole["values"], np.concatenate([sequences.values for sequences, _ in blocks]))
    assert np.array_equal(whole["targets"], np.concatenate([targets for _, targets in blocks]))


def test_bounds_without_expressions_raise():
    task = ListOps(max_depth=2, max_args=2, longer_than=20, shorter_than=30, train_size=100)  # a large set starts processes
    with pytest.raises(ValueError, match=r"^`longer_than` and `shorter_than` must allow expressions of .*, got 20 and 30"):
        task.batch("train", 0, 2)


# Tests of Pathfinder.


@pytest.mark.parametrize("size", IMAGE_SETTINGS)
def test_pathfinder_images_have_full_brightness_and_few_bright_pixels(size):
    drawing = IMAGE_SETTINGS[size]
    if size in (64, 128):  # these sizes rarely finish a pair of long snakes
        return
    labels = np.array([0, 1] * 8)
    images = draw_images(CounterRNG(("marks", size), 0), labels, drawing)
    assert images.shape == (16, size, size)
    assert images.dtype == np.uint8
    assert (images.max((1, 2)) == 255).all()
    assert 0.01 < (images > 60).mean() < 0.25


def make_canvas(count=2048):
    return _Canvas(count, IMAGE_SETTINGS[32], 1, CounterRNG(("board",), 0))


def test_long_snakes_do_not_touch():
    pairs = make_canvas()
    rows, paddles, tips = _two_snakes(pairs)
    assert len(rows) > 40
    # Each finished canvas has 14 paddles of each snake, and both ends lie on the image.
    assert len(paddles.added) == 28
    assert all(np.isin(rows, drawn).all() for drawn, _, _ in paddles.added)
    assert ((tips[rows] >= 0) & (tips[rows] < 32)).all()
    lengths = np.linalg.norm(tips[rows, :, 1] - tips[rows, :, 0], axis=-1)
    assert lengths.max() > 12
    starts = np.linalg.norm(tips[rows, 0, 0] - tips[rows, 1, 0], axis=-1)
    assert (np.abs(starts - 7) < 1).all(), "the seeds are seven pixels apart"


def test_discs_lie_at_the_ends_of_one_snake_if_the_label_is_one(monkeypatch):
    from longscan.tasks.lra import _pathfinder_images

    snakes = []
    original = _pathfinder_images._two_snakes

    def record_result(pairs):
        result = original(pairs)
        snakes.append(result)
        return result

    monkeypatch.setattr(_pathfinder_images, "_two_snakes", record_result)
    labels = np.array([0, 1] * 10)
    images = _draw_batch(CounterRNG(("discs",), 0), labels, IMAGE_SETTINGS[32], 1)
    tips = np.concatenate([result[2][result[0]] for result in snakes])[:20]
    for image, label, ends in zip(images, labels, tips, strict=True):
        bright = [all(image[tuple(position)] == 255 for position in (ends[first, 0], ends[second, 1])) for first, second in
                  ((0, 0), (1, 1), (0, 1), (1, 0))]  # fmt: skip
        assert any(bright[:2] if label else bright[2:])


def test_shorter_contours_do_not_change_the_published_images():
    easy, hard = Pathfinder(contour=6), Pathfinder()
    assert easy._rng_key("test") != hard._rng_key("test") == ("pathfinder", 32, "test")
    assert (image_settings(32, 6).contour_length, image_settings(32, 6).distractor_length) == (6, 2)
    assert image_settings(32, 14) == IMAGE_SETTINGS[32]
    brightness = [task._generate(CounterRNG(("ink",), 0), 40)[0].values.mean() for task in (easy, hard)]
    assert brightness[0] < 0.8 * brightness[1]


def test_released_shades_make_long_snakes_darker_than_short_ones():
    """The same drawing in both shades. An image's largest value becomes white, and a disc, of contrast 1, is darker than that."""
    labels, key = np.array([0, 1] * 8), ("shades",)
    white, released = (draw_images(CounterRNG(key, 0), labels, image_settings(32, 14, kind)) for kind in ("white", "released"))
    assert (released.max((1, 2)) == 255).all()
    long_only = replace(image_settings(32, 14), distractors=0)
    long = draw_images(CounterRNG(key, 0), labels, long_only)
    paddle = (white > 60) & (white < 255)
    of_long, of_short = paddle & (long == white), paddle & (long < 20)
    ratio = released[paddle] / white[paddle]
    in_long, in_short = (released[where] / white[where] for where in (of_long, of_short))
    assert np.median(in_long) / np.median(in_short) == pytest.approx(0.75, abs=0.06)
    assert ratio.max() < 2.1
    discs = released[white == 255]
    assert 160 < np.median(discs) < 230
    assert Pathfinder(shades="released")._rng_key("test") != Pathfinder()._rng_key("test")
    assert Pathfinder(shades="released", resolution=64)._rng_key("test") == Pathfinder(resolution=64)._rng_key("test")


@pytest.mark.parametrize(("contour", "folder"), [(2, None), (15, None), (6, "files")])
def test_invalid_contour_raises(contour, folder):
    with pytest.raises(ValueError, match=r"^`?contour"):
        Pathfinder(contour=contour, data_dir=folder)


def test_pathfinder_labels_are_balanced_and_pixels_scaled():
    task = Pathfinder(train_size=40, valid_size=20, test_size=40)
    batch = task.batch("train", 0, 40)
    assert 8 < batch.targets.sum() < 32
    assert batch.inputs.shape == (40, 1024, 1)
    assert (batch.inputs.min().item(), batch.inputs.max().item()) == (-1, 1)
    assert Pathfinder(train_size=40, valid_size=20, test_size=40, centred=False).batch("train", 0, 40).inputs.min() == 0
    tokens = Pathfinder(train_size=40, valid_size=20, test_size=40, pixels="categorical").batch("train", 0, 40).inputs
    assert torch.equal(tokens, ((batch.inputs[..., 0] + 1) * 127.5).round().long())


def write_pathfinder_files(folder, count=30):
    """Write files in the layout of the released Pathfinder data."""
    (folder / "metadata").mkdir(parents=True)
    draw = np.random.default_rng(0)
    for part in (0, 1):
        (folder / "imgs" / str(part)).mkdir(parents=True)
        lines = []
        for number in range(count // 2):
            pixels = draw.integers(0, 256, (32, 32), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "imgs" / str(part) / f"sample_{number}.png")
            lines.append(f"imgs/{part} sample_{number}.png {number} {number % 2} 1.0 14 4 2 0.5 1 1")
        (folder / "metadata" / f"{part}.npy").write_text("\n".join(lines) + "\n")
    return folder


def test_pathfinder_reads_the_released_files(tmp_path):
    folder = write_pathfinder_files(tmp_path)
    task = Pathfinder(data_dir=str(folder))
    assert [task.size(split) for split in task.splits] == [24, 3, 3]
    evaluated = torch.cat([task.batch(split, 0, 30).inputs for split in ("valid", "test")])
    image = np.asarray(Image.open(folder / "imgs" / "0" / "sample_0.png"))
    rows = torch.cat([evaluated, task.batch("train", 0, 30).inputs])[..., 0]
    expected = torch.from_numpy(image.reshape(-1) / 255 * 2 - 1).float()
    assert ((rows - expected).abs() < 1e-6).all(1).sum() == 1
    assert task.read_inputs(folder / "imgs" / "0").inputs.shape == (15, 1024, 1)


def test_damaged_pathfinder_files_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^`data_dir` must be a folder with .*, got .*, which is not a folder"):
        Pathfinder(data_dir=str(tmp_path / "none")).batch("train", 0, 1)
    with pytest.raises(FileNotFoundError, match=r"^`data_dir` must be a folder with .* without metadata"):
        Pathfinder(data_dir=str(tmp_path)).batch("train", 0, 1)
    folder = write_pathfinder_files(tmp_path / "a")
    listing = folder / "metadata" / "0.npy"
    lines = listing.read_text().splitlines()
    for line, message in (
        ("imgs/0 sample_0.png 0 7", r"0.npy:1: the line must be folder, name, index and a label of 0 or 1"),
        ("../../x sample_0.png 0 1", r"0.npy:1: the image must be a file below .*, got "),
        ("imgs/0 sample_99.png 0 1", r"sample_99.png cannot be read: No such file"),
    ):
        listing.write_text("\n".join([line, *lines[1:]]))
        with pytest.raises(ValueError, match=message):
            Pathfinder(data_dir=str(folder)).size("train")
    listing.write_text("\n".join(lines))
    image = folder / "imgs" / "0" / "sample_0.png"
    image.write_bytes(image.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"sample_0.png cannot be read: it is damaged"):
        Pathfinder(data_dir=str(folder), split_seed=1).size("train")
    Image.new("L", (31, 32)).save(image)
    with pytest.raises(ValueError, match=r"sample_0.png must have 32 x 32 pixels, got 31 x 32"):
        Pathfinder(data_dir=str(folder), split_seed=2).size("train")


# Tests of text and retrieval.


@pytest.fixture
def folder(request, tmp_path):
    return MADE_UP[request.param](tmp_path)["data_dir"]


@pytest.mark.parametrize("folder", ["lra_text"], indirect=True)
def test_lra_text_has_the_bytes_and_splits_of_the_reviews(folder):
    task = LraText(data_dir=folder)
    assert [task.size(split) for split in task.splits] == [54, 6, 60]
    batch = task.batch("test", 0, 60)
    texts = [bytes(token - 1 for token in row.tolist() if token).decode() for row in batch.inputs]
    assert all(text.startswith(("boring", "wonderful")[label]) for text, label in zip(texts, batch.targets.tolist(), strict=True))
    assert any("über" in text for text in texts)
    thesis = LraText(data_dir=folder, holdout="thesis")
    assert [thesis.size(split) for split in task.splits] == [60, 30, 30]
    first = Path(folder) / "aclImdb" / "test" / "neg" / "0_3.txt"
    assert texts[0] == first.read_text()
    short = LraText(data_dir=folder, longest=9)
    assert short.length == 9
    (first.parent.parent / "pos" / "9_9.txt").write_text("wonderful new")
    assert LraText(data_dir=folder, split_seed=3).size("test") == 61, "a changed directory is read again"


@pytest.mark.parametrize("folder", ["lra_text"], indirect=True)
def test_line_of_a_file_is_a_review_whatever_characters_it_has(folder, tmp_path):
    path = tmp_path / "new.txt"
    path.write_bytes("one \u0085 and \u2028 two \f three\r\n\nfour\n".encode())
    assert LraText(data_dir=folder).read_inputs(path).inputs.shape[0] == 2


@pytest.mark.parametrize("folder", ["lra_text"], indirect=True)
def test_characters_are_those_of_the_training_texts(folder, tmp_path):
    task = LraText(data_dir=folder, level="characters", longest=30)
    characters = task._alphabet.characters
    assert "ü" in characters
    assert "é" not in characters
    batch = task.batch("train", 0, 4)
    assert (batch.inputs[batch.valid].view(-1) < task.vocab_size).all()
    last = batch.valid.sum(1) - 1
    assert (batch.inputs[torch.arange(4), last] == 2).all(), "every text ends with the end symbol"
    path = tmp_path / "new.txt"
    path.write_text("éa\n")
    assert task.read_inputs(path).inputs[0].tolist() == [1, characters.index("a") + 3, 2]


def test_decoding_inverts_encoding_of_known_characters():
    bytes_ = Alphabet()
    assert bytes_.text(bytes_.encode(["naïve".encode()], 99)[0].tolist()) == "naïve"
    some = Alphabet(("a", "b"))
    assert some.text(some.encode([b"abc"], 99)[0].tolist()) == "ab�"
    assert len(bytes_.encode([b""], 9)[0]) == 1


@pytest.mark.parametrize("folder", ["lra_text"], indirect=True)
def test_missing_reviews_raise(folder):
    for path in (Path(folder) / "aclImdb" / "train" / "pos").glob("*.txt"):
        path.unlink()
    with pytest.raises(
        FileNotFoundError, match=r"^`data_dir` must be a folder with train/pos, train/neg.*, got no .txt files in .*train/pos"
    ):
        LraText(data_dir=folder, split_seed=9).size("train")
    with pytest.raises(
        FileNotFoundError, match=r"^`data_dir` must be a folder with train/pos.* unless LONGSCAN_DATA names a folder .*, got None"
    ):
        LraText().size("train")


def test_data_directory_can_come_from_the_environment(tmp_path, monkeypatch):
    (tmp_path / "lra").mkdir()
    MADE_UP["lra_text"](tmp_path / "lra")
    monkeypatch.setenv("LONGSCAN_DATA", str(tmp_path))
    assert LraText(split_seed=11).size("test") == 60


@pytest.mark.parametrize("folder", ["lra_retrieval"], indirect=True)
def test_lra_retrieval_joins_the_two_texts_of_a_pair(folder, tmp_path):
    task = LraRetrieval(data_dir=folder, longest=25)
    batch = task.batch("test", 0, 20)
    assert batch.targets.tolist() == [0, 1] * 10
    assert (batch.inputs == 257).sum(1).tolist() == [1] * 20
    assert batch.valid.sum(1).max() == 51
    path = tmp_path / "new.tsv"
    path.write_text("one text\tanother\n")
    assert task.describe(task.read_inputs(path)) == "one text / another 8 + 7 bytes"
    path.write_text("one text\n")
    with pytest.raises(ValueError, match=r"new.tsv:1: the line must be two texts, separated by a tab, got 1"):
        task.read_inputs(path)
    train = Path(folder) / "new_aan_pairs.train.tsv"
    train.write_text(train.read_text() + "2.0\ta\tb\tc\td\n")
    with pytest.raises(ValueError, match=r"train.tsv:21: the line must be a label of 0 or 1"):
        LraRetrieval(data_dir=folder, longest=26).size("train")


@pytest.mark.parametrize("folder", ["lra_retrieval"], indirect=True)
def test_lra_retrieval_gives_pairs_for_two_towers(folder, tmp_path):
    joined, task = LraRetrieval(data_dir=folder, longest=25), LraRetrieval(data_dir=folder, longest=25, layout="pair")
    batch, whole = task.batch("test", 0, 20), joined.batch("test", 0, 20)
    assert batch.inputs.shape == batch.valid.shape == (20, 2, 25)
    assert task.length == 25
    assert task.vocab_size == joined.vocab_size - 1 == 257
    assert batch.targets.tolist() == whole.targets.tolist()
    for row in range(20):
        parts = [batch.inputs[row, i][batch.valid[row, i]].tolist() for i in (0, 1)]
        assert [*parts[0], 257, *parts[1]] == whole.unpadded(row).tolist()
        assert task.describe(batch, row) == joined.describe(whole, row)
    path = tmp_path / "new.tsv"
    path.write_text("one text\tanother\n")
    assert task.describe(task.read_inputs(path)) == "one text / another 8 + 7 bytes"


@pytest.mark.parametrize("folder", ["lra_retrieval"], indirect=True)
def test_two_towers_train_on_pairs(folder, tmp_path):
    words = ["--task", "lra_retrieval", "--task.data_dir", folder, "--task.layout", "pair", "--task.longest", "12"]
    words += ["--model.spec", "mamba", "--model.d_model", "4", "--training.steps", "2", "--training.batch_size", "4"]
    with pytest.raises(
        SettingError, match=r"`model\.head` must be mlp for the pairs of sequences of task lra_retrieval, got 'linear'"
    ):
        build_model(parse_settings(words))
    settings = parse_settings([*words, "--model.head", "mlp", "--training.device", "cpu"])
    run = train(settings, tmp_path / "run")
    assert run.result["status"] == "finished"
    batch = settings.task.batch("test", 0, 3)
    model = run.model("last")
    together = predict(model, batch)
    apart = model(*batch.inputs.unbind(1), valid_first=batch.valid[:, 0], valid_second=batch.valid[:, 1])
    torch.testing.assert_close(together, apart)
    again = first_model(parse_settings([*words, "--model.head", "mlp", "--training.start_from", str(tmp_path / "run")]))
    torch.testing.assert_close(predict(again.eval(), batch), together)


# Tests of images.


@pytest.mark.parametrize("folder", ["lra_image"], indirect=True)
def test_lra_image_has_the_pixels_of_the_python_batches(folder):
    task = LraImage(data_dir=folder, pixels="categorical")
    assert [task.size(split) for split in task.splits] == [90, 10, 20]
    batch = task.batch("test", 0, 20)
    assert batch.targets.tolist() == list(range(10)) * 2
    raw = cifar_batch(5)[b"data"].reshape(20, 3, 32, 32).transpose(0, 2, 3, 1)
    assert torch.equal(batch.inputs[3], torch.from_numpy(np.array(Image.fromarray(raw[3]).convert("L")).reshape(-1)).long())
    colour = LraImage(data_dir=folder, colour=True).batch("test", 0, 2).inputs
    assert colour.shape == (2, 1024, 3)
    expected = (raw[1, 0, 5] / 255 - [0.4914, 0.4822, 0.4465]) / [0.247, 0.243, 0.261]
    assert torch.allclose(colour[1, 5].double(), torch.from_numpy(expected), atol=1e-6)


@pytest.mark.parametrize("folder", ["lra_image"], indirect=True)
@pytest.mark.parametrize("options", [{}, {"colour": True}, {"pixels": "categorical"}])
def test_batches_of_lra_image_are_rows_of_its_training_set(folder, options):
    task = LraImage(data_dir=folder, **options)
    whole = task.training_set()
    assert task.training_set_bytes() == whole.nbytes == whole.inputs.nbytes + whole.targets.nbytes
    for step in (0, 1, 7, 8, 11):  # 90 pictures in batches of 12: the eighth is smaller, and a second epoch follows
        batch, rows = task.batch("train", step, 12, 3), rows_of_step(90, "train", step, 12, 3)
        assert torch.equal(whole.inputs[rows], batch.inputs)
        assert whole.inputs.dtype == batch.inputs.dtype
        assert torch.equal(whole.targets[rows], batch.targets)
        assert whole.valid is None
        assert batch.valid is None


def test_to_grey_equals_pillow():
    colours = np.random.default_rng(0).integers(0, 256, (4, 9, 7, 3), dtype=np.uint8)
    for image, grey in zip(colours, to_grey(colours), strict=True):
        assert np.array_equal(grey, np.asarray(Image.fromarray(image).convert("L")))


def test_lra_image_reads_a_directory_of_images(tmp_path):
    from longscan.tasks.lra.image import CLASSES

    for part, count in (("train", 3), ("test", 2)):
        for number, kind in enumerate(CLASSES):
            (tmp_path / part / kind).mkdir(parents=True)
            for index in range(count):
                Image.new("RGB", (32, 32), (number * 20, index, 0)).save(tmp_path / part / kind / f"{index:04}.png")
    task = LraImage(data_dir=str(tmp_path))
    assert [task.size(split) for split in task.splits] == [27, 3, 20]
    assert task.batch("test", 0, 20).targets.tolist() == [number for number in range(10) for _ in range(2)]
    assert task.read_inputs(tmp_path / "test" / "frog").inputs.shape == (2, 1024, 1)
    for path in (tmp_path / "train" / "dog").iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"^`data_dir` must be a folder with .*, got no images in .*train/dog"):
        LraImage(data_dir=str(tmp_path), split_seed=1).size("train")


class CodeExecution:
    """An object whose pickle calls a function."""

    def __reduce__(self):
        return (os.mkdir, ("/tmp/longscan-must-not-exist",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(CodeExecution()), r"it asks for posix.mkdir"),
        (pickle.dumps({b"data": CodeExecution(), b"labels": []}, protocol=2), r"it asks for posix.mkdir"),
        (pickle.dumps({b"data": np.zeros((2, 3072), object), b"labels": [0, 1]}, protocol=2), "arrays must hold bytes"),
        (pickle.dumps({b"data": np.zeros((2, 3071), np.uint8), b"labels": [0, 1]}, protocol=2), r"shape \(images, 3072\)"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.float32), b"labels": [0, 1]}, protocol=2), "arrays must hold bytes"),
        (pickle.dumps({**cifar_batch(0), b"labels": [10] * 20}, protocol=2), "20 numbers from 0 to 9"),
        (pickle.dumps({**cifar_batch(0), b"labels": [1] * 19}, protocol=2), "20 numbers from 0 to 9"),
        (pickle.dumps([1, 2]), "must be a batch file of CIFAR-10, which is a dictionary, got a list"),
        (pickle.dumps(cifar_batch(0), protocol=2)[:-500], "must be a batch file of CIFAR-10"),
        (b"", "must be a batch file of CIFAR-10"),
        (b"not a pickle", "must be a batch file of CIFAR-10"),
    ],
    ids=range(11),
)
def test_damaged_pickle_raises_and_is_not_executed(tmp_path, content, message):
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_batch(path)
    assert not Path("/tmp/longscan-must-not-exist").exists()


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_pickles_of_protocols_up_to_four_are_read(tmp_path, protocol):
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(cifar_batch(3), protocol=protocol))
    if protocol == 5:  # with protocol 5 NumPy refers to functions that CIFAR-10's files do not contain
        with pytest.raises(ValueError, match="it asks for"):
            read_batch(path)
        return
    batch = read_batch(path)
    assert np.array_equal(batch.images.transpose(0, 3, 1, 2).reshape(20, 3072), cifar_batch(3)[b"data"])


# Tests of the cache.


def test_cached_arrays_are_computed_again_when_a_file_changes(tmp_path):
    path, calls = tmp_path / "source", []
    path.write_text("1")

    def compute():
        calls.append(1)
        return {"x": np.arange(3)}

    for _ in range(2):
        assert cached_arrays("kept", [path], 1, compute)["x"].tolist() == [0, 1, 2]
    assert len(calls) == 1
    cached_arrays("kept", [path], 2, compute)
    path.write_text("12")
    assert isinstance(cached_arrays("kept", [path], 1, compute)["x"], np.memmap)
    assert len(calls) == 3


def test_arrays_stay_in_memory_if_the_cache_is_not_writable(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LONGSCAN_CACHE", str(tmp_path / "file" / "below"))
    assert cached_arrays("kept", [], 1, lambda: {"x": np.arange(3)})["x"].tolist() == [0, 1, 2]
    assert "cannot be cached" in caplog.text


def test_ragged_pads_sequences_of_unequal_lengths():
    ragged = Ragged.from_sequences([np.array([1, 2, 3]), np.array([4]), np.array([5, 6])])
    table, lengths = ragged.pad(np.array([2, 0]), 9)
    assert table.tolist() == [[5, 6, 9], [1, 2, 3]]
    assert lengths.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (ListOps, {"data": "files"}, "^`?data"),
        (ListOps, {"max_depth": 1}, "^`?max_depth"),
        (ListOps, {"longer_than": 1999}, "^`?longer_than"),
        (ListOps, {"train_size": 0}, "^`?train_size"),
        (Pathfinder, {"resolution": 48}, "^`?resolution.* one of 32, 64, 128, 256"),
        (Pathfinder, {"data": "stream", "data_dir": "x"}, "^`?data"),
        (LraText, {"longest": 1}, "^`?longest"),
        (LraText, {"valid_fraction": 1.0}, "^`?valid_fraction"),
        (LraRetrieval, {"longest": 0}, "^`?longest"),
        (LraImage, {"colour": True, "pixels": "categorical"}, "^`?colour"),
    ],
)
def test_invalid_setting_raises(cls, settings, message):
    with pytest.raises(ValueError, match=message):
        cls(**settings)


# Tests of real files.

ROOT = Path(os.environ.get("LONGSCAN_TEST_DATA", "/nowhere"))
needs_data = pytest.mark.skipif(not (ROOT / "lra").is_dir(), reason="LONGSCAN_TEST_DATA names no folder with lra/")


@needs_data
@pytest.mark.slow
def test_real_reviews_have_the_published_sizes():
    task = LraText(data_dir=str(ROOT / "lra"))
    assert [task.size(split) for split in task.splits] == [22_500, 2_500, 25_000]
    assert task.constant_score() == 0.5
    assert task.length == 4096
    assert 100 < LraText(data_dir=str(ROOT / "lra"), level="characters").vocab_size < 200


@needs_data
@pytest.mark.slow
def test_real_images_have_the_published_sizes():
    task = LraImage(data_dir=str(ROOT / "lra"))
    assert [task.size(split) for split in task.splits] == [45_000, 5_000, 10_000]
    assert task.constant_score() == pytest.approx(0.1)
    inputs = task.batch("train", 0, 500).inputs
    assert inputs.mean().abs() < 0.1
    assert inputs.std() == pytest.approx(1, abs=0.1)


GREY = np.arange(16, dtype=np.uint8).reshape(4, 4) * 16


@pytest.mark.parametrize(
    ("image", "needed"),
    [
        (Image.fromarray(GREY.astype(np.uint16) * 200), "an image of 8 bits for each colour, got the mode I;16 of Pillow"),
        (Image.fromarray(np.dstack([GREY] * 4)), "an image without transparency, got transparent pixels"),
        (Image.merge("LA", [Image.fromarray(GREY)] * 2), "an image without transparency, got transparent pixels"),
    ],
    ids=["16 bits", "RGBA", "LA"],
)
def test_images_that_eight_bits_do_not_tell_are_errors(image, needed, tmp_path):
    image.save(tmp_path / "a.png")
    with pytest.raises(ValueError, match=f"a.png must be {needed}"):
        read_image(tmp_path / "a.png", 4)


def test_an_animation_is_an_error(tmp_path):
    frames = [Image.fromarray(GREY * factor) for factor in (1, 2)]
    frames[0].save(tmp_path / "a.png", save_all=True, append_images=frames[1:])
    with pytest.raises(ValueError, match=r"a\.png must be one image, got an animation of 2"):
        read_image(tmp_path / "a.png")


def test_first_image_of_a_photograph_with_previews_is_read(tmp_path):
    grey = np.repeat(np.repeat(GREY, 8, 0), 8, 1)
    photograph, preview = Image.fromarray(grey), Image.fromarray(grey[::2, ::2])
    photograph.save(tmp_path / "a.mpo", save_all=True, append_images=[preview], quality=100)
    (tmp_path / "a.mpo").rename(tmp_path / "a.jpg")
    np.testing.assert_allclose(read_image(tmp_path / "a.jpg", 32).astype(int), grey, atol=2)


def test_opaque_images_are_read_and_turned_as_their_camera_says(tmp_path):
    opaque = Image.merge("LA", [Image.fromarray(GREY), Image.new("L", (4, 4), 255)])
    for image in (Image.fromarray(GREY), opaque, Image.fromarray(GREY).convert("RGBA"), Image.fromarray(GREY).convert("P")):
        image.save(tmp_path / "a.png")
        assert np.array_equal(read_image(tmp_path / "a.png", 4), GREY)
    turned = Image.Exif()
    turned[0x112] = 6  # to be turned by 90 degrees
    Image.fromarray(GREY).save(tmp_path / "a.png", exif=turned)
    assert np.array_equal(read_image(tmp_path / "a.png", 4), np.rot90(GREY, -1))
