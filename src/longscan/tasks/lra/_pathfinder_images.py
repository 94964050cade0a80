"""Images of the Pathfinder task, generated for a whole batch together (Linsley et al., 2018; Tay et al., 2021).

An image has two long dashed contours ("snakes" of paddles), several short ones, and two discs. The discs lie on the two ends of
one long snake, label 1, or on ends of different ones, label 0. Random numbers are used for the same choices in the same order as
in the published generator: first paddles, then one paddle at a time for both snakes alternately. Two steps differ: the pixels of
a paddle at an angle are computed once and then copied, and a free position is found by at most `_TRIES` random trials instead of
a search of the whole image. As by the published writer of files, an image brighter than white is divided by its largest value.

The published settings for 32 pixels draw the short snakes with contrast 2 and the long ones with 1.5 (shades="released"), so that
the shade of a paddle tells whether it belongs to a long snake. With shades="white" all have contrast 1. At other sizes all snakes
of the released images have the same contrast.

Coordinates are (row, column), angles in radian from the column axis towards the row axis. L: paddle length, m: margin.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Literal, NamedTuple

import numpy as np

from longscan.tasks._random import CounterRNG

_TRIES = 64
MAX_CONTOUR = 14  # paddles of a long snake in the hard set
_SCALE = 2  # paddles are drawn at twice the resolution
_RETRIES = 3  # tries of a paddle
_SNAKE_RETRIES = 5  # tries of a short snake
_TOUCHES = 1.8  # the sum of two masks from which on they overlap


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """The published settings for an image size; lengths in pixels, contour and distractor lengths in paddles.

    contrast is that of all snakes, long_contrast a further factor for the two long ones.
    """

    window: int
    padding: int = 1
    margins: tuple[int, ...] = (1,)
    seed_distance: int
    marker_radius: float
    paddle_length: int = 5
    thickness: float
    continuity: float = 1.8
    contour_length: int = MAX_CONTOUR
    distractor_length: int = MAX_CONTOUR // 3
    distractors: int = 5
    contrast: float = 1.0
    long_contrast: float = 1.0


IMAGE_SETTINGS = {
    32: ImageSettings(window=32, seed_distance=7, marker_radius=1.5, paddle_length=2, thickness=0.5, continuity=1.0),
    64: ImageSettings(window=64, seed_distance=12, marker_radius=2.5, thickness=1, contrast=0.8),
    128: ImageSettings(window=128, margins=(2, 3), seed_distance=20, marker_radius=3, thickness=1.5, distractors=8, contrast=0.9),
    256: ImageSettings(window=256, padding=22, margins=(3,), seed_distance=27, marker_radius=5, thickness=2, distractors=7),
}


RELEASED_SHADES = {32: (2.0, 0.75)}  # contrast and long_contrast; the other sizes have those of IMAGE_SETTINGS


def image_settings(resolution: int, contour: int, shades: Literal["white", "released"] = "white") -> ImageSettings:
    """Return the settings for an image size with long snakes of `contour` paddles and short ones of contour // 3 paddles."""
    settings = replace(IMAGE_SETTINGS[resolution], contour_length=contour, distractor_length=contour // 3)
    if shades == "white" or resolution not in RELEASED_SHADES:
        return settings
    contrast, long_contrast = RELEASED_SHADES[resolution]
    return replace(settings, contrast=contrast, long_contrast=long_contrast)


class _Sprites(NamedTuple):
    """Precomputed images of paddles around their first pixel.

    images, masks: (360 + C, S, S), first the paddles at integer degrees, then those that end at the candidates of a step. solid:
    (360 + C, S, S) bool, where a mask is full. steps: (C, 2) candidates of a step, relative to the pivot; angles: (C,) of these.
    turn_weights: (360 + C, C), the weight of each candidate on a free pixel, after each of the paddles.
    """

    images: np.ndarray
    masks: np.ndarray
    solid: np.ndarray
    steps: np.ndarray
    angles: np.ndarray
    turn_weights: np.ndarray
    disc: np.ndarray
    margin: int


@lru_cache(maxsize=8)
def _sprites(settings: ImageSettings, margin: int) -> _Sprites:
    radius = settings.paddle_length + margin
    directions = np.arange(0, 360, 360 / (2 * radius * np.pi)) * np.pi / 180
    steps = np.unique(np.floor(radius * np.stack([np.sin(directions), np.cos(directions)], axis=1)).astype(int), axis=0)
    angles = np.arctan2(steps[:, 0], steps[:, 1])
    starts = np.concatenate([np.arange(-180, 180) * np.pi / 180, angles + np.pi])
    drawn = [_paddle(settings, margin, angle) for angle in starts]
    images, masks = (np.stack(part).astype(np.float32) for part in zip(*drawn, strict=True))
    before = np.concatenate([np.arange(-180, 180) * np.pi / 180, angles])
    turn = np.abs(angles - before[:, None]) % (2 * np.pi)
    turn = np.minimum(np.minimum(turn, 2 * np.pi - turn) * settings.continuity, np.pi / 2)
    return _Sprites(images, masks, masks > 254.5 / 255, steps, angles, np.cos(turn) ** 2, _disc_offsets(margin), margin)


def _paddle(settings: ImageSettings, margin: int, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Return image and mask, (S, S) each, of a paddle that starts at the centre."""
    reach = settings.paddle_length + ceil(settings.thickness) + margin
    fine = 2 * reach * _SCALE + 1
    start = np.array([reach * _SCALE, reach * _SCALE])
    end = np.ceil(start + settings.paddle_length * _SCALE * np.array([np.sin(angle), np.cos(angle)]) - 1e-9)
    positions = np.stack(np.meshgrid(np.arange(fine), np.arange(fine), indexing="ij"), axis=-1)
    along = np.clip(((positions - start) @ (end - start)) / ((end - start) @ (end - start)), 0, 1)
    distance = np.linalg.norm(positions - start - along[..., None] * (end - start), axis=-1)
    line = distance <= max(1.0, settings.thickness * _SCALE) / 2
    padded = np.pad(line, margin * _SCALE)
    mask = np.zeros_like(line)
    for row, column in _disc_offsets(margin * _SCALE) + margin * _SCALE:
        mask |= padded[row : row + fine, column : column + fine]
    resample = _lanczos(fine, 2 * reach + 1)
    image, covered = (np.clip(resample @ part.astype(float) @ resample.T, 0, 1) for part in (line, mask))
    return image, covered


@lru_cache(maxsize=32)
def _lanczos(size: int, smaller: int) -> np.ndarray:
    """Return the matrix (smaller, size) that downsamples a line of pixels with Lanczos's window of three lobes."""
    scale = size / smaller
    centres = (np.arange(smaller) + 0.5) * scale
    distance = (np.arange(size) + 0.5 - centres[:, None]) / scale
    weights = np.where(np.abs(distance) < 3, np.sinc(distance) * np.sinc(distance / 3), 0)
    return weights / weights.sum(1, keepdims=True)


def _disc_offsets(radius: int) -> np.ndarray:
    """Return the integer offsets (n, 2) within a radius."""
    rows, columns = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    return np.argwhere(rows**2 + columns**2 <= radius**2) - radius


class _SnakeEnds(NamedTuple):
    """The ends of n snakes: last pivots (n, 2) and angles (n,); sprites (n,) and positions (n, 2) of the last paddles."""

    pivots: np.ndarray
    angles: np.ndarray
    sprites: np.ndarray
    positions: np.ndarray


class _Canvas:
    """The occupied pixels of n images, (n, H, W) float32, with a frame around each image."""

    def __init__(self, count: int, settings: ImageSettings, margin: int, rng: CounterRNG) -> None:
        self.settings, self.rng, self.sprites = settings, rng, _sprites(settings, margin)
        self.reach = self.sprites.masks.shape[1] // 2
        self.frame = 3 * self.reach
        size = settings.window
        self.occupied = np.zeros((count, size + 2 * self.frame, size + 2 * self.frame), np.float32)
        self._mark_border(self.occupied, settings.padding)
        self.offsets = np.arange(-self.reach, self.reach + 1)
        width = self.occupied.shape[2]
        self.flat_offsets = (self.offsets[:, None] * width + self.offsets).reshape(-1)
        self.flat_disc = self.sprites.disc @ np.array([width, 1])

    def _mark_border(self, occupied: np.ndarray, width: int) -> None:
        inside = occupied[:, self.frame : self.frame + self.settings.window, self.frame : self.frame + self.settings.window]
        inside[:, :width], inside[:, -width:] = 1, 1
        inside[:, :, :width], inside[:, :, -width:] = 1, 1

    def _patch(self, rows: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the index of the pixels around positions (n, 2) in the images `rows`."""
        vertical = positions[:, 0, None] + self.offsets + self.frame
        horizontal = positions[:, 1, None] + self.offsets + self.frame
        return rows[:, None, None], vertical[:, :, None], horizontal[:, None, :]

    def _flat_index(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return the index in the flattened canvas of positions (n, ..., 2) in the images `rows`, (n, ...)."""
        _, height, width = self.occupied.shape
        first = (rows * (height * width) + self.frame * (width + 1)).reshape(-1, *[1] * (positions.ndim - 2))
        return first + positions[..., 0] * width + positions[..., 1]

    def inside(self, positions: np.ndarray) -> np.ndarray:
        """Return whether positions (..., 2) lie on the image."""
        rows, columns, size = positions[..., 0], positions[..., 1], self.settings.window
        return (rows >= 0) & (rows < size) & (columns >= 0) & (columns < size)

    def occupy(self, rows: np.ndarray, ends: _SnakeEnds) -> None:
        """Mark the pixels of the last paddles as occupied."""
        pixels = self.occupied.reshape(-1)
        where = self._flat_index(rows, ends.positions)[:, None] + self.flat_offsets
        masks = self.sprites.masks.reshape(len(self.sprites.masks), -1)
        pixels[where] = np.maximum(pixels.take(where), masks[ends.sprites])

    def seed(self, rows: np.ndarray, border: int) -> tuple[_SnakeEnds, np.ndarray]:
        """Return first paddles at random angles and free positions at least `border` from the edges; and for which rows."""

        def propose(missing: np.ndarray) -> tuple[_SnakeEnds, np.ndarray]:
            degrees = self.rng.integers(0, 360, len(missing))
            positions, free = self._find_free_positions(rows[missing], degrees, border)
            return self._seed_ends(degrees, positions), free

        return self._repeat_seeding(self._seed_ends(np.zeros(len(rows), int), np.zeros((len(rows), 2), int)), propose)

    def seed_near(self, positions: np.ndarray) -> tuple[_SnakeEnds, np.ndarray]:
        """Return first paddles on a circle around positions (n, 2), free or not, that lie on the image; and for which rows."""

        def propose(missing: np.ndarray) -> tuple[_SnakeEnds, np.ndarray]:
            degrees, directions = self.rng.integers(0, 360, (2, len(missing)))
            radian = directions * np.pi / 180
            shift = np.stack([np.sin(radian), np.cos(radian)], axis=1)
            near = positions[missing] + np.rint(self.settings.seed_distance * shift).astype(int)
            return self._seed_ends(degrees, near), self.inside(near)

        return self._repeat_seeding(self._seed_ends(np.zeros(len(positions), int), positions.copy()), propose)

    def _repeat_seeding(
        self, ends: _SnakeEnds, propose: Callable[[np.ndarray], tuple[_SnakeEnds, np.ndarray]]
    ) -> tuple[_SnakeEnds, np.ndarray]:
        """Replace `ends` by proposed first paddles that lie on the image, in several tries; return them, and which are found.

        propose: returns paddles for the rows with the given numbers, and which of them are allowed.
        """
        found = np.zeros(len(ends.sprites), bool)
        for _ in range(_RETRIES):
            missing = np.flatnonzero(~found)
            trial, allowed = propose(missing)
            is_valid = allowed & self.inside(self._tips(trial)) & self.inside(trial.pivots)
            for part, new in zip(ends, trial, strict=True):
                part[missing[is_valid]] = new[is_valid]
            found[missing[is_valid]] = True
        return ends, found

    def _seed_ends(self, degrees: np.ndarray, positions: np.ndarray) -> _SnakeEnds:
        angles = (degrees - 180) * np.pi / 180
        ends = _SnakeEnds(positions, angles, degrees, positions)
        return ends._replace(pivots=_move(self._tips(ends), angles + np.pi, self.settings.paddle_length + self.sprites.margin))

    def _tips(self, ends: _SnakeEnds) -> np.ndarray:
        return _move(ends.positions, ends.angles, self.settings.paddle_length)

    def _find_free_positions(self, rows: np.ndarray, degrees: np.ndarray, border: int) -> tuple[np.ndarray, np.ndarray]:
        """Return positions (n, 2) at which paddles at the given angles touch nothing, and for which rows one was found."""
        positions, found = np.zeros((len(rows), 2), int), np.zeros(len(rows), bool)
        solid, size = self.sprites.solid[degrees], self.settings.window
        for _ in range(_TRIES):
            missing = np.flatnonzero(~found)
            if not len(missing):
                break
            trial = self.rng.integers(border, size - border, (len(missing), 2))
            patch = self._patch(rows[missing], trial)
            edge = size - border + self.frame
            beyond = [(part < border + self.frame) | (part >= edge) for part in patch[1:]]
            blocked = (self.occupied[patch] > 0.3) | beyond[0] | beyond[1]
            free = ~(blocked & solid[missing]).any((1, 2))
            positions[missing[free]], found[missing[free]] = trial[free], True
        return positions, found

    def extend(self, rows: np.ndarray, ends: _SnakeEnds) -> tuple[_SnakeEnds, np.ndarray]:
        """Return the next paddle of each snake, and for which rows one was found; the previous paddle becomes occupied."""
        sprites, length = self.sprites, self.settings.paddle_length
        masks = sprites.masks.reshape(len(sprites.masks), -1)
        pivots = _move(ends.pivots, ends.angles, length + 2 * sprites.margin)
        candidates = pivots[:, None] + sprites.steps
        pixels, inside = self.occupied.reshape(-1), self.inside(candidates)
        centres = self._flat_index(rows, np.clip(candidates, 0, self.settings.window - 1))
        touched = pixels.take(centres + self.flat_disc[0])
        for offset in self.flat_disc[1:]:
            np.maximum(touched, pixels.take(centres + offset), out=touched)
        weights = np.where(inside, (1 - touched) * sprites.turn_weights[ends.sprites], 0).cumsum(1)
        found = np.zeros(len(rows), bool)
        possible = weights[:, -1] >= 1e-4
        chosen = np.zeros(len(rows), int)
        for number in self.rng.uniform((_RETRIES, len(rows))):
            trying = np.flatnonzero(possible & ~found)
            pick = (weights[trying] > (number[trying] * weights[trying, -1])[:, None]).argmax(1)
            where = self._flat_index(rows[trying], candidates[trying, pick])[:, None] + self.flat_offsets
            is_valid = (pixels.take(where) + masks[360 + pick]).max(1) < _TOUCHES
            chosen[trying[is_valid]], found[trying[is_valid]] = pick[is_valid], True
        extended = np.flatnonzero(found)
        self.occupy(rows[extended], _SnakeEnds(*(part[extended] for part in ends)))
        return _SnakeEnds(pivots, sprites.angles[chosen], 360 + chosen, candidates[np.arange(len(rows)), chosen]), found


def _move(positions: np.ndarray, angles: np.ndarray, distance: float) -> np.ndarray:
    """Return integer positions (n, 2) at a distance from others, rounded up as published."""
    return np.ceil(positions + distance * np.stack([np.sin(angles), np.cos(angles)], axis=1) - 1e-9).astype(int)


class _PaddleLog:
    """The paddles of a batch of images in the order in which they were added."""

    def __init__(self) -> None:
        self.added: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, rows: np.ndarray, ends: _SnakeEnds) -> None:
        self.added.append((rows, ends.sprites, ends.positions))


def draw_images(rng: CounterRNG, labels: np.ndarray, settings: ImageSettings) -> np.ndarray:
    """Generate images (n, H, W) uint8 for labels (n,) of 0 and 1; each uses one of the margins in the settings."""
    images = np.zeros((len(labels), settings.window, settings.window), np.uint8)
    margins = rng.integers(0, len(settings.margins), len(labels))
    for number, margin in enumerate(settings.margins):
        selected = np.flatnonzero(margins == number)
        if len(selected):
            images[selected] = _draw_batch(rng, labels[selected], settings, margin)
    return images


def _draw_batch(rng: CounterRNG, labels: np.ndarray, settings: ImageSettings, margin: int) -> np.ndarray:
    count = len(labels)
    canvas = _Canvas(count, settings, margin, rng)
    images = np.zeros(canvas.occupied.shape, np.float32)
    tips = np.zeros((count, 2, 2, 2), int)  # image, snake, (origin, terminal), coordinate
    done = 0
    while done < count:
        trial = _Canvas(_attempts(settings), settings, margin, rng)
        rows, paddles, trial_tips = _two_snakes(trial)
        rows = rows[: count - done]
        filled = np.arange(done, done + len(rows))
        canvas.occupied[filled], tips[filled] = trial.occupied[rows], trial_tips[rows]
        _paste_paddles(trial, images, paddles, dict(zip(rows.tolist(), filled.tolist(), strict=True)))
        done += len(rows)
    images *= settings.long_contrast
    for _ in range(settings.distractors):
        _short_snake(canvas, images)
    images *= settings.contrast
    origin = rng.integers(0, 2, count)
    terminal = np.where(labels == 1, origin, 1 - origin)
    disc = _marker_disc(settings)
    reach = len(disc) // 2
    images = np.pad(images, ((0, 0), (reach, reach), (reach, reach)))
    all_rows, offsets = np.arange(count), np.arange(2 * reach + 1) + canvas.frame
    for positions in (tips[all_rows, origin, 0], tips[all_rows, terminal, 1]):
        vertical, horizontal = positions[:, 0, None] + offsets, positions[:, 1, None] + offsets
        where = (all_rows[:, None, None], vertical[:, :, None], horizontal[:, None])
        images[where] = np.maximum(images[where], disc)
    start = canvas.frame + reach
    inside = images[:, start : start + settings.window, start : start + settings.window]
    brightest = np.maximum(inside.max((1, 2), keepdims=True), 1)
    return np.rint(255 * (inside / brightest)).astype(np.uint8)


def _attempts(settings: ImageSettings) -> int:
    """Return the number of trials that run together: at 32 pixels one in twenty completes both snakes, at larger sizes fewer."""
    return max(64, min(2048, 2**25 // (2 * settings.window) ** 2))


def _two_snakes(canvas: _Canvas) -> tuple[np.ndarray, _PaddleLog, np.ndarray]:
    """Draw both long snakes in every image; return the rows where they are complete, the paddles, and the tips (n, 2, 2, 2)."""
    count, settings = len(canvas.occupied), canvas.settings
    rows, paddles, tips = np.arange(count), _PaddleLog(), np.zeros((count, 2, 2, 2), int)
    first, found = canvas.seed(rows, 2 * settings.seed_distance)
    second, near = canvas.seed_near(first.positions)
    complete = found & near
    rows = rows[complete]
    snakes = [_SnakeEnds(*(part[complete] for part in ends)) for ends in (first, second)]
    for number, ends in enumerate(snakes):
        paddles.add(rows, ends)
        tips[rows, number, 0] = ends.positions
    for _ in range(settings.contour_length - 1):
        for number in (0, 1):
            ends, found = canvas.extend(rows, snakes[number])
            rows = rows[found]
            snakes[number] = ends
            snakes = [_SnakeEnds(*(part[found] for part in ends)) for ends in snakes]
            paddles.add(rows, snakes[number])
            tips[rows, number, 1] = snakes[number].positions
    canvas.occupy(rows, snakes[1])
    return rows, paddles, tips


def _short_snake(canvas: _Canvas, images: np.ndarray) -> None:
    """Add one short snake to each image that has space for it."""
    size = canvas.settings.window
    inner = canvas.occupied[:, canvas.frame : canvas.frame + size, canvas.frame : canvas.frame + size]
    pending = np.flatnonzero((inner <= 0.3).mean((1, 2)) >= 0.01)
    for _ in range(_SNAKE_RETRIES):
        before = canvas.occupied[pending].copy()
        ends, found = canvas.seed(pending, 1)
        rows, ends = pending[found], _SnakeEnds(*(part[found] for part in ends))
        paddles = _PaddleLog()
        paddles.add(rows, ends)
        for _ in range(canvas.settings.distractor_length - 1):
            ends, found = canvas.extend(rows, ends)
            rows, ends = rows[found], _SnakeEnds(*(part[found] for part in ends))
            paddles.add(rows, ends)
        canvas.occupy(rows, ends)
        failed = ~np.isin(pending, rows)
        canvas.occupied[pending[failed]] = before[failed]
        _paste_paddles(canvas, images, paddles, {row: row for row in rows.tolist()})
        pending = pending[failed]
        if not len(pending):
            return


def _paste_paddles(canvas: _Canvas, images: np.ndarray, paddles: _PaddleLog, image_of_row: dict[int, int]) -> None:
    """Draw paddles into images; image_of_row: the image of each row that is drawn."""
    target = np.full(len(canvas.occupied), -1)
    target[list(image_of_row)] = list(image_of_row.values())
    for rows, sprites, positions in paddles.added:
        selected = target[rows] >= 0
        where = canvas._patch(target[rows[selected]], positions[selected])
        images[where] = np.maximum(images[where], canvas.sprites.images[sprites[selected]])


@lru_cache(maxsize=8)
def _marker_disc(settings: ImageSettings) -> np.ndarray:
    """Return the image of a disc (S, S) around its central pixel."""
    reach = ceil(settings.marker_radius) + 3
    size = (2 * reach + 1) * _SCALE
    positions = np.arange(size) - reach * _SCALE
    disc = (positions[:, None] ** 2 + positions**2 <= (settings.marker_radius * _SCALE) ** 2).astype(float)
    resample = _lanczos(size, 2 * reach + 1)
    return np.clip(resample @ disc @ resample.T, 0, 1).astype(np.float32)
