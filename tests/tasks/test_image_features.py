"""benchmarks/image_features.py, k-means features of images."""

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from longscan.tasks.lra.image import CLASSES


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    """The script, with few patches and passes of k-means."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    script = import_module("image_features")
    monkeypatch.setattr(script, "N_PATCHES", 300)
    monkeypatch.setattr(script, "ITERATIONS", 3)
    return script


def test_stripes_of_ten_widths_are_told_apart(script, tmp_path: Path) -> None:
    """Also after another compression, which the field `quality` states. Stripes have a width for each class."""
    random = np.random.default_rng(0)
    for part, number in (("train", 12), ("test", 3)):
        for kind, name in enumerate(CLASSES):
            folder = tmp_path / "data" / part / name
            folder.mkdir(parents=True)
            for i in range(number):
                shift = random.integers(32)
                stripes = 255 * ((np.arange(32) + shift) // (kind + 1) % 2)
                picture = np.broadcast_to(stripes[:, None, None], (32, 32, 3)).astype(np.uint8)
                Image.fromarray(np.ascontiguousarray(picture)).save(folder / f"{i}.png")
    out = tmp_path / "rows.jsonl"
    script.main(["--data", str(tmp_path / "data"), "--qualities", "0", "80", "--features", "24", "--out", str(out)])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["quality"] for row in rows] == [0, 80]
    assert all(row["test"] > 0.5 for row in rows)  # a constant has .1
    assert all(row["train"] > row["test"] - 0.1 for row in rows)


@pytest.mark.parametrize("arguments", [("--qualities", "101"), ("--qualities", "50", "-1"), ("--features", "1")])
def test_settings_out_of_range_are_errors(script, tmp_path: Path, arguments: tuple[str, ...], capsys) -> None:
    with pytest.raises(SystemExit):
        script.main(["--data", str(tmp_path), *arguments])
    assert f"{arguments[0]} must be" in capsys.readouterr().err


def test_distances_are_those_of_cdist(script) -> None:
    pictures = torch.randint(256, (5, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    features = script.Features(pictures, 4, torch.Generator().manual_seed(1))
    patches = torch.randn(7, 108, generator=torch.Generator().manual_seed(2)).to(features.centres)
    expected = torch.cdist(patches.double(), features.centres.double()) ** 2
    torch.testing.assert_close(features._distances(patches).double(), expected, rtol=1e-4, atol=1e-4)


def test_feature_is_the_sum_of_activations_over_a_quadrant(script) -> None:
    pictures = torch.randint(256, (3, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    features = script.Features(pictures, 4, torch.Generator().manual_seed(1))
    sums = torch.zeros(4, dtype=torch.float64)
    for row in range(14):
        for column in range(14, 27):
            patch = pictures[1, :, row : row + 6, column : column + 6].reshape(-1).double()
            patch = patch - patch.mean()
            patch = (patch / (patch.var() + 10).sqrt() - features.mean.cpu()) @ features.whiten.cpu().double()
            distances = torch.cdist(patch[None], features.centres.cpu().double())[0]
            sums += (distances.mean() - distances).clamp(min=0)
    torch.testing.assert_close(features(pictures)[1, 4:8].cpu().double(), sums, rtol=1e-4, atol=1e-3)
