"""Image files as arrays of pixels, and images as sequences."""

from pathlib import Path

import numpy as np

from longscan.tasks._store import Ragged

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp")
_LUMA = np.array([19595, 38470, 7471])  # ITU-R 601 in units of 2^-16, as Pillow rounds it


def read_image(path: Path, size: int | None = None, *, colour: bool = False) -> np.ndarray:
    """Pixels (H, W) uint8, or (H, W, 3) where `colour`; ValueError where it is no image, or not of `size` x `size` pixels."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            width, height = image.size
            fits = size is None or image.size == (size, size)
            pixels = np.asarray(image.convert("RGB" if colour else "L")) if fits else None
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is damaged or no image"
        raise ValueError(f"{path}: can not be read: {why}") from None
    if pixels is None:
        raise ValueError(f"{path}: has {width} x {height} pixels, {size} x {size} are needed")
    return pixels


def read_images(path: str | Path, size: int, *, colour: bool = False) -> np.ndarray:
    """The images (n, H, W[, 3]) of a folder in the order of their names, or the one of a file."""
    path = Path(path)
    paths = sorted(item for item in path.iterdir() if item.suffix.lower() in ENDINGS) if path.is_dir() else [path]
    if not paths:
        raise ValueError(f"{path}: holds no image ({', '.join(ENDINGS)})")
    return np.stack([read_image(item, size, colour=colour) for item in paths])


def grey(images: np.ndarray) -> np.ndarray:
    """Luma (..., H, W) uint8 of colours (..., H, W, 3)."""
    return ((images @ _LUMA + 2**15) >> 16).astype(np.uint8)


def image_sequence(images: np.ndarray) -> Ragged:
    """Images (n, H, W) or (n, H, W, C) as sequences of H W pixels, row by row."""
    count, pixels = len(images), images.shape[1] * images.shape[2]
    return Ragged(images.reshape(count * pixels, *images.shape[3:]), np.arange(count + 1) * pixels)
