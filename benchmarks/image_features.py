"""Classify CIFAR-10 by k-means features and a linear classifier, to see what JPEG files cost a method of known accuracy.

    python benchmarks/image_features.py --data FOLDER --out build/image_features.jsonl
    python benchmarks/image_features.py --data FOLDER --qualities 0 50 30 --features 1600

The method is that of Coates, Lee and Ng (AISTATS 2011), which has an accuracy of .796 on the original pictures with 4,000
features: patches of 6 x 6 pixels at all places, normalised and whitened, k-means, the activation max(0, mean distance - distance)
summed in four quadrants, and a linear support vector machine with squared hinge loss, whose strength is chosen on 5,000 training
pictures.
--qualities: 0 for the pictures as they are in the folder, otherwise the quality at which they are compressed again first, with
4:2:0 chroma subsampling.
"""

import argparse
import io
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from longscan.tasks.lra.image import LraImage
from longscan.training.run import commit, device_name
from row_files import write_row

SIDE, PATCH, PLACES = 32, 6, 27  # pixels of a picture and of a patch in each direction, and places of a patch
N_PATCHES, ITERATIONS = 400_000, 50  # of k-means
STRENGTHS = (3e-4, 1e-3, 3e-3, 1e-2)  # of the support vector machine
HALF = (slice(0, PLACES // 2 + 1), slice(PLACES // 2 + 1, PLACES))
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def compress(pictures: np.ndarray, quality: int) -> np.ndarray:
    """Return pictures (N, 32, 32, 3) after JPEG compression with a quality and chroma at half the resolution."""
    results = np.empty_like(pictures)
    for i, picture in enumerate(pictures):
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "JPEG", quality=quality, subsampling=2)
        results[i] = np.asarray(Image.open(file).convert("RGB"))
    return results


def normalise(patches: Tensor) -> Tensor:
    """Return patches (..., 108) with mean 0 and about unit variance; 10 is the constant of the paper."""
    patches = patches - patches.mean(-1, keepdim=True)
    return patches / (patches.var(-1, keepdim=True) + 10).sqrt()


class Features:
    """Features of pictures (N, 3, 32, 32) with values from 0 to 255: whitening and centres of k-means from `pictures`."""

    def __init__(self, pictures: Tensor, count: int, generator: torch.Generator) -> None:
        numbers = torch.randint(len(pictures), (N_PATCHES,), generator=generator).tolist()
        places = torch.randint(PLACES, (N_PATCHES, 2), generator=generator).tolist()
        cut = [pictures[i, :, a : a + PATCH, b : b + PATCH].reshape(-1) for i, (a, b) in zip(numbers, places, strict=True)]
        patches = normalise(torch.stack(cut).float().to(DEVICE))
        self.mean = patches.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov(patches.T))
        self.whiten = vectors @ torch.diag((values + 0.1) ** -0.5) @ vectors.T
        patches = (patches - self.mean) @ self.whiten
        self.centres = 0.1 * torch.randn(count, patches.shape[1], generator=generator).to(DEVICE)
        for _ in range(ITERATIONS):
            nearest = torch.cat([self._distances(part).argmin(1) for part in patches.split(20_000)])
            sums = torch.zeros_like(self.centres).index_add_(0, nearest, patches)
            sizes = torch.bincount(nearest, minlength=count)[:, None]
            self.centres = sums / sizes.clamp(min=1)

    def _distances(self, patches: Tensor) -> Tensor:
        """Return the squared distances of whitened patches from the centres."""
        centres = self.centres
        return (patches**2).sum(-1, keepdim=True) + (centres**2).sum(1) - 2 * patches @ centres.T

    def __call__(self, pictures: Tensor) -> Tensor:
        """Return the features (N, 4 count)."""
        patches = torch.nn.functional.unfold(pictures.float().to(DEVICE), PATCH).transpose(1, 2)
        distances = self._distances((normalise(patches) - self.mean) @ self.whiten).clamp(min=0).sqrt()
        active = (distances.mean(-1, keepdim=True) - distances).clamp(min=0).unflatten(1, (PLACES, PLACES))
        return torch.cat([active[:, a, b].sum((1, 2)) for a in HALF for b in HALF], 1)


def train(features: Tensor, labels: Tensor, strength: float) -> Tensor:
    """Return the weights (features, 10) of linear support vector machines, one against all, with squared hinge loss."""
    targets = 2.0 * torch.nn.functional.one_hot(labels, 10) - 1
    weights = torch.zeros(features.shape[1], 10, device=DEVICE, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, history_size=10, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = 0.5 * (weights**2).sum() + strength * ((1 - targets * (features @ weights)).clamp(min=0) ** 2).sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[arg-type]
    return weights.detach()


def measure(pictures: np.ndarray, labels: Tensor, n_train: int, count: int, seed: int) -> dict[str, Any]:
    """Return the accuracies of a row. pictures: (N, 32, 32, 3), the training pictures first."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()
    extract = Features(x[:n_train], count, generator)
    features = torch.cat([extract(part) for part in x.split(50)])
    scale = (features[:n_train].var(0) + 0.01).sqrt()
    features = (features - features[:n_train].mean(0)) / scale
    features = torch.cat([features, torch.ones_like(features[:, :1])], 1)
    labels = labels.to(DEVICE)

    def accuracy(weights: Tensor, rows: Tensor | slice) -> float:
        return round(((features[rows] @ weights).argmax(1) == labels[rows]).float().mean().item(), 4)

    order = torch.randperm(n_train, generator=generator).to(DEVICE)
    valid, rest = order[: n_train // 10], order[n_train // 10 :]
    scores = {strength: accuracy(train(features[rest], labels[rest], strength), valid) for strength in STRENGTHS}
    best = max(scores, key=lambda strength: scores[strength])
    weights = train(features[:n_train], labels[:n_train], best)
    found = {"test": accuracy(weights, slice(n_train, None)), "train": accuracy(weights, slice(0, n_train))}
    return {"strength": best, "valid": scores[best]} | found


def main(args: Sequence[str] | None = None) -> None:
    """Read the command line, measure each quality, and write a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of CIFAR-10, as the task lra_image takes it")
    parser.add_argument("--qualities", type=int, nargs="+", default=[0, 50, 30], help="JPEG qualities (default: %(default)s)")
    parser.add_argument("--features", type=int, default=4000, help="centres of k-means (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file to which the rows are appended")
    options = parser.parse_args(args)
    if not all(0 <= quality <= 100 for quality in options.qualities):
        parser.error(f"--qualities must be from 0 to 100, got {options.qualities}")
    if options.features < 2:
        parser.error(f"--features must be at least 2, got {options.features}")
    data = LraImage(data_dir=str(options.data), colour=True)._data()
    pictures = data.sequences.values.reshape(-1, SIDE, SIDE, 3).copy()  # writable, unlike the file in memory
    labels, n_train = torch.from_numpy(data.targets.astype(np.int64)), len(data.targets) - len(data.rows["test"])
    for quality in options.qualities:
        start = time.monotonic()
        row = measure(compress(pictures, quality) if quality else pictures, labels, n_train, options.features, options.seed)
        row |= {"data": "CIFAR-10", "files": sorted(os.listdir(options.data)), "quality": quality, "features": options.features}
        row |= {"seed": options.seed, "seconds": round(time.monotonic() - start)}
        row |= {"device": device_name(DEVICE), "commit": commit()}
        write_row(row, options.out)


if __name__ == "__main__":
    main()
