"""The angle of a pendulum from noisy images at irregular times (Becker et al., 2019; Schirmer et al., 2022)."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import numpy as np

from longscan._types import Doc, between
from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Arrays, cached_arrays
from longscan.tasks.base import TASKS, Split
from longscan.tasks.dynamics.series import GeneratedSeries, SeriesArrays
from longscan.tasks.examples import consecutive_rows

FRAMES = 100
PIXELS = 24
_STEP, _SUBSTEPS = 0.01, 100  # seconds between frames; Euler steps between frames
_GRAVITY, _INERTIA, _FRICTION = 9.81, 1 / 3, 0.1  # for a rod of length 1 and mass 1
_BLOCK_SIZE = 250


@TASKS.register("pendulum")
@dataclass(frozen=True, kw_only=True)
class Pendulum(GeneratedSeries):
    """Estimate sine and cosine of the angle of a pendulum from noisy images at irregular times.

        ▁▁▁▁▁▂▁▁▂▁▁▁▃▅█▇▇▆▅▅▆▆▆▅ 576 channels x 50 steps | ▅▄▄▃▃▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▂▂▂

    A rod under gravity and friction without a torque, with a random change of its velocity at each of 100 frames. Some of these
    are selected without replacement, and `elapsed` is the number of frames since the previous one, 1 for the first. An
    image has 24 x 24 pixels in 0 .. 1; it is mixed with noise, whose fraction is a random walk over the frames. The angle is
    measured from the vertical. The constants are those of the published generator, the random numbers are not.
    """

    variables: ClassVar[tuple[str, ...]] = ("sine", "cosine")
    plot_kind: ClassVar[Literal["image"]] = "image"
    image_shape: ClassVar[tuple[int, int, int] | None] = (1, PIXELS, PIXELS)
    frames: Annotated[int, between(1, FRAMES), Doc("number of frames that are selected")] = 50

    def _arrays(self) -> SeriesArrays:
        return _arrays(self)

    def _to_inputs(self, inputs: np.ndarray) -> np.ndarray:
        return (inputs / 255).astype(np.float32)


@lru_cache(maxsize=2)
def _arrays(task: Pendulum) -> SeriesArrays:
    parts = [_generate_split(split, size, task.frames) for split, size in task._sizes.items()]
    images, targets, elapsed = (np.concatenate([part[name] for part in parts]) for name in ("images", "targets", "elapsed"))
    return SeriesArrays(images, targets, elapsed, consecutive_rows(task._sizes))


def _generate_split(split: Split, size: int, frames: int) -> Arrays:
    def generate() -> Arrays:
        rngs = (CounterRNG(("pendulum", split, frames), index) for index in range(-(-size // _BLOCK_SIZE)))
        blocks = [generate_block(rng, min(_BLOCK_SIZE, size - index * _BLOCK_SIZE)) for index, rng in enumerate(rngs)]
        return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}

    def generate_block(rng: CounterRNG, count: int) -> Arrays:
        angles = simulate_angles(rng, count)
        selected = np.sort(np.argsort(rng.uniform((count, FRAMES)), axis=1)[:, :frames], axis=1)
        visible = visible_fraction(rng, count)
        rows = np.arange(count)[:, None]
        clean = render_images(angles[rows, selected])
        weight = visible[rows, selected][..., None]
        images = weight * clean + (1 - weight) * 255 * rng.uniform(clean.shape)
        elapsed = np.diff(selected, axis=1, prepend=selected[:, :1] - 1)
        targets = np.stack([np.sin(angles), np.cos(angles)], axis=-1)[rows, selected]
        return {"images": images.astype(np.uint8), "targets": targets.astype(np.float32), "elapsed": elapsed.astype(np.float32)}

    return cached_arrays("pendulum", [], (split, size, frames), generate)


def simulate_angles(rng: CounterRNG, count: int) -> np.ndarray:
    """Simulate pendulums; return their angles from the vertical, (count, 100) in radian, -pi to pi."""
    angle = 2 * np.pi * rng.uniform(count)
    velocity = np.zeros(count)
    kicks = 0.1 * rng.normal((FRAMES, count))
    substep, pull = _STEP / _SUBSTEPS, _GRAVITY / _INERTIA
    frames = []
    for kick in kicks:
        for _ in range(_SUBSTEPS):
            velocity = velocity + substep * (pull * np.sin(angle) - _FRICTION * velocity)
            angle = angle + substep * velocity
        velocity = velocity + kick
        angle = angle % (2 * np.pi)
        frames.append(angle - np.pi)
    return np.stack(frames, axis=1)


def visible_fraction(rng: CounterRNG, count: int) -> np.ndarray:
    """Return the weight of the image against the noise in each frame, (count, 100) in 0 .. 1: a clipped random walk.

    It is scaled between two random levels and is 1 for the first five frames.
    """
    walk = np.empty((count, FRAMES))
    walk[:, 0] = rng.uniform(count)
    steps = 0.4 * rng.uniform((count, FRAMES)) - 0.2
    for frame in range(1, FRAMES):
        walk[:, frame] = np.clip(walk[:, frame - 1] + steps[:, frame], 0, 1)
    low, high = 0.25 * rng.uniform((count, 1)), 0.75 + 0.25 * rng.uniform((count, 1))
    fraction = np.clip((walk - low) / (high - low), 0, 1)
    fraction[:, :5] = 1
    return fraction


def render_images(angles: np.ndarray) -> np.ndarray:
    """Return images (..., 576), 0 .. 255, of an antialiased line from the centre, 55/128 of the width long and 8/128 thick."""
    scale = PIXELS / 128
    columns, rows = np.meshgrid(np.arange(PIXELS), np.arange(PIXELS), indexing="xy")
    positions = np.stack([columns, rows], axis=-1).reshape(-1, 2) + 0.5 - 64 * scale
    direction = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    along = direction @ positions.T
    across = np.abs(direction[..., :1] * positions[:, 1] - direction[..., 1:] * positions[:, 0])
    beyond = np.maximum(np.maximum(-along, along - 55 * scale), 0)
    return 255 * np.clip(4 * scale + 0.5 - np.hypot(across, beyond), 0, 1)
