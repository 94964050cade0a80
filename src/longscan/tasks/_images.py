"""Image files as arrays of pixels, and images as sequences."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from longscan.tasks._store import Ragged, visible_paths

if TYPE_CHECKING:
    from PIL import Image

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
_LUMA = np.array([19595, 38470, 7471])  # ITU-R 601 in units of 2^-16, as Pillow rounds it


def read_image(path: Path, size: int | None = None, *, colour: bool = False) -> np.ndarray:
    """Return the pixels of an image file, (H, W) uint8, or (H, W, 3) if `colour`, rotated as its EXIF orientation says.

    Raises ValueError if the file is no image, if the image has not `size` x `size` pixels, and if its content would be lost in 8
    bits for each colour: more bits, transparency, several frames.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    pixels, problem = None, None
    try:
        with Image.open(path) as image:
            width, height = image.size
            if size is None or image.size == (size, size):
                problem = _image_problem(image)
                upright = ImageOps.exif_transpose(image) if problem is None else image
                pixels = np.asarray(upright.convert("RGB" if colour else "L"))
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is damaged or not an image"
        raise ValueError(f"{path} cannot be read: {why}") from None
    if problem is not None:
        raise ValueError(f"{path} must be {problem}")
    if pixels is None:
        raise ValueError(f"{path} must have {size} x {size} pixels, got {width} x {height}")
    return pixels


def _image_problem(image: "Image.Image") -> str | None:
    """Return why an image cannot be read without loss, as the end of the error "PATH must be ..."; None if it can be read."""
    if image.mode.startswith(("I", "F")):
        return f"an image of 8 bits for each colour, got the mode {image.mode} of Pillow"
    if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema() != (255, 255):
        return "an image without transparency, got transparent pixels, whose colour is that of a background"
    # Photographs of telephones are often MPO files: a JPEG image, after which smaller copies of it follow.
    frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
    return None if frames == 1 else f"one image, got an animation of {frames}"


def find_images(folder: Path) -> list[Path]:
    """Return the image files in a folder in the order of their names, without hidden ones."""
    return [item for item in visible_paths(folder, "*") if item.suffix.lower() in IMAGE_SUFFIXES]


def read_images(path: str | Path, size: int, *, colour: bool = False) -> np.ndarray:
    """Return the images (n, H, W[, 3]) of a folder in the order of their names, or the image of one file."""
    path = Path(path)
    paths = find_images(path) if path.is_dir() else [path]
    if not paths:
        raise ValueError(f"{path} must contain images ({', '.join(IMAGE_SUFFIXES)}), got none")
    return np.stack([read_image(item, size, colour=colour) for item in paths])


def to_grey(images: np.ndarray) -> np.ndarray:
    """Convert colour images (..., H, W, 3) to their luma, (..., H, W) uint8."""
    return ((images @ _LUMA + 2**15) >> 16).astype(np.uint8)


def image_sequence(images: np.ndarray) -> Ragged:
    """Flatten images (n, H, W) or (n, H, W, C) to sequences of H W pixels, row by row."""
    count, pixels = len(images), images.shape[1] * images.shape[2]
    return Ragged(images.reshape(count * pixels, *images.shape[3:]), np.arange(count + 1) * pixels)
