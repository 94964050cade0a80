"""Where a swinging pendulum stands, from noisy pictures at irregular times (Becker et al., 2019; Schirmer et al., 2022)."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Arrays, stored
from longscan.tasks.base import TASKS, Split, check_request
from longscan.tasks.dynamics.series import SeriesArrays, SeriesRegression

FRAMES = 100
PIXELS = 24
_STEP, _INNER = 0.01, 100  # seconds between frames; Euler steps between frames
_GRAVITY, _INERTIA, _FRICTION = 9.81, 1 / 3, 0.1  # of a rod of length 1 and mass 1
_BLOCK = 250


@TASKS.register("pendulum")
@dataclass(frozen=True, kw_only=True)
class Pendulum(SeriesRegression):
    """Sine and cosine of a pendulum's angle, from noisy pictures at some of the times.

        ▁▁▁▁▁▂▁▁▂▁▁▁▃▅█▇▇▆▅▅▆▆▆▅ 576 channels x 50 steps | ▅▄▄▃▃▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▂▂▂

    A rod under gravity and friction, its velocity disturbed at each of 100 frames; no torque acts on it. `frames` of these are
    kept, chosen without replacement, and `elapsed` is the number of frames since the one before, 1 for the first. A picture is
    24 x 24 pixels in 0 .. 1, of which noise covers a share that wanders from frame to frame. The angle is measured from the
    vertical. The numbers are those of the published generator, drawn by another generator of random numbers.
    """

    name: ClassVar[str] = "pendulum"
    train_size: int = 2_000
    valid_size: int = 1_000
    test_size: int = 1_000
    frames: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting in ("train_size", "valid_size", "test_size"):
            if getattr(self, setting) < 1:
                raise ValueError(f"{setting}: must be positive, not {getattr(self, setting)}")
        if not 1 <= self.frames <= FRAMES:
            raise ValueError(f"frames: must lie in 1 .. {FRAMES}, not {self.frames}")

    @property
    def variables(self) -> tuple[str, ...]:
        """What is asked for."""
        return ("sine", "cosine")

    @property
    def shown_as(self) -> Literal["image"]:
        """Pictures, some of the steps side by side."""
        return "image"

    def size(self, split: Split) -> int:
        """Number of series."""
        check_request(self, split, 0, 1, 0)
        return {"train": self.train_size, "valid": self.valid_size, "test": self.test_size}[split]

    def _arrays(self) -> SeriesArrays:
        return _arrays(self)

    def _scaled(self, inputs: np.ndarray) -> np.ndarray:
        return (inputs / 255).astype(np.float32)


@lru_cache(maxsize=2)
def _arrays(task: Pendulum) -> SeriesArrays:
    parts, rows, start = [], {}, 0
    sizes: dict[Split, int] = {"train": task.train_size, "valid": task.valid_size, "test": task.test_size}
    for split, size in sizes.items():
        parts.append(_split(split, size, task.frames))
        rows[split] = np.arange(start, start + size)
        start += size
    images, targets, elapsed = (np.concatenate([part[name] for part in parts]) for name in ("images", "targets", "elapsed"))
    return SeriesArrays(images, targets, elapsed, rows)


def _split(split: Split, size: int, frames: int) -> Arrays:
    def make() -> Arrays:
        starts = range(0, size, _BLOCK)
        drawn = (CounterRNG(("pendulum", split, frames), index) for index in range(len(starts)))
        blocks = [_block(rng, min(_BLOCK, size - start)) for rng, start in zip(drawn, starts, strict=True)]
        return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}

    def _block(rng: CounterRNG, count: int) -> Arrays:
        angles = swing(rng, count)
        kept = np.sort(np.argsort(rng.uniform((count, FRAMES)), axis=1)[:, :frames], axis=1)
        noise = noise_share(rng, count)
        rows = np.arange(count)[:, None]
        clean = pictures(angles[rows, kept])
        share = noise[rows, kept][..., None]
        images = share * clean + (1 - share) * 255 * rng.uniform(clean.shape)
        elapsed = np.diff(kept, axis=1, prepend=kept[:, :1] - 1)
        targets = np.stack([np.sin(angles), np.cos(angles)], axis=-1)[rows, kept]
        return {"images": images.astype(np.uint8), "targets": targets.astype(np.float32), "elapsed": elapsed.astype(np.float32)}

    return stored("pendulum", [], (split, size, frames), make)


def swing(rng: CounterRNG, count: int) -> np.ndarray:
    """Angles (count, 100) from the vertical, in radian, -pi to pi."""
    angle = 2 * np.pi * rng.uniform(count)
    velocity = np.zeros(count)
    kicks = 0.1 * rng.normal((FRAMES, count))
    inner, pull = _STEP / _INNER, _GRAVITY / _INERTIA
    frames = []
    for kick in kicks:
        for _ in range(_INNER):
            velocity = velocity + inner * (pull * np.sin(angle) - _FRICTION * velocity)
            angle = angle + inner * velocity
        velocity = velocity + kick
        angle = angle % (2 * np.pi)
        frames.append(angle - np.pi)
    return np.stack(frames, axis=1)


def noise_share(rng: CounterRNG, count: int) -> np.ndarray:
    """How much of each frame is seen, (count, 100) in 0 .. 1: a walk between two random levels, 1 for the first five frames."""
    walk = np.empty((count, FRAMES))
    walk[:, 0] = rng.uniform(count)
    steps = 0.4 * rng.uniform((count, FRAMES)) - 0.2
    for frame in range(1, FRAMES):
        walk[:, frame] = np.clip(walk[:, frame - 1] + steps[:, frame], 0, 1)
    low, high = 0.25 * rng.uniform((count, 1)), 0.75 + 0.25 * rng.uniform((count, 1))
    share = np.clip((walk - low) / (high - low), 0, 1)
    share[:, :5] = 1
    return share


def pictures(angles: np.ndarray) -> np.ndarray:
    """Pictures (..., 576), 0 .. 255, of a line from the middle, 55/128 of the width long and 8/128 thick, with soft edges."""
    scale = PIXELS / 128
    places = np.stack(np.meshgrid(np.arange(PIXELS), np.arange(PIXELS), indexing="xy"), axis=-1).reshape(-1, 2) + 0.5 - 64 * scale
    direction = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    along = direction @ places.T
    across = np.abs(direction[..., :1] * places[:, 1] - direction[..., 1:] * places[:, 0])
    beyond = np.maximum(np.maximum(-along, along - 55 * scale), 0)
    return 255 * np.clip(4 * scale + 0.5 - np.hypot(across, beyond), 0, 1)
