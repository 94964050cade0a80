"""Images of the Pathfinder task, drawn for a whole batch at once (Linsley et al., 2018; Tay et al., 2021).

Two long dashed contours ("snakes" of paddles), several short ones, and two discs; the discs lie on the two ends of one long
snake, label 1, or on ends of different ones, label 0. Random numbers decide the same things in the same order as in the
published generator: seeds, then a paddle after the other for both snakes in turn. Two things are done in another way: what a
paddle at an angle covers is drawn once and then copied, and a free place is found by trying places, up to `_TRIES` times,
instead of by searching the whole image. Paddles brighter than white are cut to white, so that no snake stands out.

Coordinates are (row, column), angles in radian from the column axis towards the row axis. L: paddle length, m: margin.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np

from longscan.tasks._random import CounterRNG

_TRIES = 64
CONTOUR = 14  # paddles of a long snake in the hard set
_SCALE = 2  # paddles are drawn at twice the resolution
_RETRIES = 3  # tries of a paddle
_SNAKE_RETRIES = 5  # tries of a short snake
_TOUCHES = 1.8  # the sum of two masks from which on they overlap


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The published settings for a size of image; lengths in pixels, contour and distractor lengths in paddles."""

    window: int
    padding: int
    margins: tuple[int, ...]
    seed_distance: int
    marker_radius: float
    paddle_length: int = 5
    thickness: float
    continuity: float = 1.8
    contour_length: int = CONTOUR
    distractor_length: int = CONTOUR // 3
    distractors: int
    contrast: float = 1.0


DRAWINGS = {
    each.window: each
    for each in (
        Drawing(
            window=32,
            padding=1,
            margins=(1,),
            seed_distance=7,
            marker_radius=1.5,
            paddle_length=2,
            thickness=0.5,
            continuity=1.0,
            distractors=5,
        ),
        Drawing(
            window=64,
            padding=1,
            margins=(1,),
            seed_distance=12,
            marker_radius=2.5,
            thickness=1,
            distractors=5,
            contrast=0.8,
        ),
        Drawing(
            window=128,
            padding=1,
            margins=(2, 3),
            seed_distance=20,
            marker_radius=3,
            thickness=1.5,
            distractors=8,
            contrast=0.9,
        ),
        Drawing(window=256, padding=22, margins=(3,), seed_distance=27, marker_radius=5, thickness=2, distractors=7),
    )
}


def drawing(resolution: int, contour: int) -> Drawing:
    """The settings for a size of image with long snakes of `contour` paddles; short ones have a third of that, rounded down."""
    return replace(DRAWINGS[resolution], contour_length=contour, distractor_length=contour // 3)


class _Sprites(NamedTuple):
    """What paddles cover around the pixel where they start.

    images, masks: (360 + C, S, S), first those that start at integer degrees, then those that end at a step's candidates. solid:
    (360 + C, S, S) bool, where a mask is full. steps: (C, 2) candidates of a step, relative to the pivot; angles: (C,).
    """

    images: np.ndarray
    masks: np.ndarray
    solid: np.ndarray
    steps: np.ndarray
    angles: np.ndarray
    disc: np.ndarray
    margin: int


@lru_cache(maxsize=8)
def _sprites(drawing: Drawing, margin: int) -> _Sprites:
    radius = drawing.paddle_length + margin
    turns = np.arange(0, 360, 360 / (2 * radius * np.pi)) * np.pi / 180
    steps = np.unique(np.floor(radius * np.stack([np.sin(turns), np.cos(turns)], axis=1)).astype(int), axis=0)
    angles = np.arctan2(steps[:, 0], steps[:, 1])
    starts = np.concatenate([np.arange(-180, 180) * np.pi / 180, angles + np.pi])
    drawn = [_paddle(drawing, margin, angle) for angle in starts]
    images, masks = (np.stack(part).astype(np.float32) for part in zip(*drawn, strict=True))
    return _Sprites(images, masks, masks > 254.5 / 255, steps, angles, _disc_offsets(margin), margin)


def _paddle(drawing: Drawing, margin: int, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Image and mask (S, S) of a paddle that starts at the centre."""
    reach = drawing.paddle_length + ceil(drawing.thickness) + margin
    fine = 2 * reach * _SCALE + 1
    start = np.array([reach * _SCALE, reach * _SCALE])
    end = np.ceil(start + drawing.paddle_length * _SCALE * np.array([np.sin(angle), np.cos(angle)]) - 1e-9)
    places = np.stack(np.meshgrid(np.arange(fine), np.arange(fine), indexing="ij"), axis=-1)
    along = np.clip(((places - start) @ (end - start)) / ((end - start) @ (end - start)), 0, 1)
    distance = np.linalg.norm(places - start - along[..., None] * (end - start), axis=-1)
    line = distance <= max(1.0, drawing.thickness * _SCALE) / 2
    padded = np.pad(line, margin * _SCALE)
    mask = np.zeros_like(line)
    for row, column in _disc_offsets(margin * _SCALE) + margin * _SCALE:
        mask |= padded[row : row + fine, column : column + fine]
    shrink = _lanczos(fine, 2 * reach + 1)
    image, covered = (np.clip(shrink @ part.astype(float) @ shrink.T, 0, 1) for part in (line, mask))
    return image, covered


@lru_cache(maxsize=32)
def _lanczos(size: int, smaller: int) -> np.ndarray:
    """The matrix (smaller, size) that shrinks a line of pixels with Lanczos's window of three lobes."""
    scale = size / smaller
    centres = (np.arange(smaller) + 0.5) * scale
    distance = (np.arange(size) + 0.5 - centres[:, None]) / scale
    weights = np.where(np.abs(distance) < 3, np.sinc(distance) * np.sinc(distance / 3), 0)
    return weights / weights.sum(1, keepdims=True)


def _disc_offsets(radius: int) -> np.ndarray:
    """(n, 2) whole offsets no further than `radius`."""
    rows, columns = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    return np.argwhere(rows**2 + columns**2 <= radius**2) - radius


class _Heads(NamedTuple):
    """Where n snakes stand: last pivots (n, 2) and angles (n,); the last paddles' sprites (n,) and places (n, 2)."""

    pivots: np.ndarray
    angles: np.ndarray
    sprites: np.ndarray
    places: np.ndarray


class _Board:
    """What is taken on n images, (n, H, W) float32 with a rim all round that is free."""

    def __init__(self, count: int, drawing: Drawing, margin: int, rng: CounterRNG) -> None:
        self.drawing, self.rng, self.sprites = drawing, rng, _sprites(drawing, margin)
        self.reach = self.sprites.masks.shape[1] // 2
        self.rim = 3 * self.reach
        size = drawing.window
        self.taken = np.zeros((count, size + 2 * self.rim, size + 2 * self.rim), np.float32)
        self._frame(self.taken, drawing.padding)
        self.around = np.arange(-self.reach, self.reach + 1)

    def _frame(self, taken: np.ndarray, width: int) -> None:
        inside = taken[:, self.rim : self.rim + self.drawing.window, self.rim : self.rim + self.drawing.window]
        inside[:, :width], inside[:, -width:] = 1, 1
        inside[:, :, :width], inside[:, :, -width:] = 1, 1

    def _patch(self, rows: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The index of the pixels around places (n, 2) of the boards `rows`."""
        vertical = places[:, 0, None] + self.around + self.rim
        horizontal = places[:, 1, None] + self.around + self.rim
        return rows[:, None, None], vertical[:, :, None], horizontal[:, None, :]

    def inside(self, places: np.ndarray) -> np.ndarray:
        """Whether places (..., 2) lie on the image."""
        return np.logical_and.reduce((places >= 0) & (places < self.drawing.window), axis=-1)

    def take(self, rows: np.ndarray, heads: _Heads) -> None:
        """Mark the last paddles as taken."""
        where = self._patch(rows, heads.places)
        self.taken[where] = np.maximum(self.taken[where], self.sprites.masks[heads.sprites])

    def seed(self, rows: np.ndarray, border: int) -> tuple[_Heads, np.ndarray]:
        """First paddles at random angles and free places, `border` or more from the edges; and the boards that got one."""
        heads = _Heads(*(np.zeros((len(rows), *rest), kind) for rest, kind in (((2,), int), ((), float), ((), int), ((2,), int))))
        found = np.zeros(len(rows), bool)
        for _ in range(_RETRIES):
            missing = np.flatnonzero(~found)
            turns = self.rng.integers(0, 360, len(missing))
            places, free = self._free_places(rows[missing], turns, border)
            trial = self._seed_heads(turns, places)
            fits = free & self.inside(self._tips(trial)) & self.inside(trial.pivots)
            for part, new in zip(heads, trial, strict=True):
                part[missing[fits]] = new[fits]
            found[missing[fits]] = True
        return heads, found

    def seed_near(self, places: np.ndarray) -> tuple[_Heads, np.ndarray]:
        """First paddles that start on a circle around other places; free or not, they only must lie on the image."""
        count, distance = len(places), self.drawing.seed_distance
        heads, found = self._seed_heads(np.zeros(count, int), places.copy()), np.zeros(count, bool)
        for _ in range(_RETRIES):
            missing = np.flatnonzero(~found)
            turns, around = self.rng.integers(0, 360, (2, len(missing)))
            radian = around * np.pi / 180
            shift = np.rint(distance * np.stack([np.sin(radian), np.cos(radian)], axis=1)).astype(int)
            trial = self._seed_heads(turns, places[missing] + shift)
            fits = self.inside(trial.places) & self.inside(self._tips(trial)) & self.inside(trial.pivots)
            for part, new in zip(heads, trial, strict=True):
                part[missing[fits]] = new[fits]
            found[missing[fits]] = True
        return heads, found

    def _seed_heads(self, turns: np.ndarray, places: np.ndarray) -> _Heads:
        angles = (turns - 180) * np.pi / 180
        heads = _Heads(places, angles, turns, places)
        return heads._replace(pivots=_moved(self._tips(heads), angles + np.pi, self.drawing.paddle_length + self.sprites.margin))

    def _tips(self, heads: _Heads) -> np.ndarray:
        return _moved(heads.places, heads.angles, self.drawing.paddle_length)

    def _free_places(self, rows: np.ndarray, turns: np.ndarray, border: int) -> tuple[np.ndarray, np.ndarray]:
        """Places (n, 2) at which paddles at the given angles touch nothing, and whether one was found."""
        places, found = np.zeros((len(rows), 2), int), np.zeros(len(rows), bool)
        solid, size = self.sprites.solid[turns], self.drawing.window
        for _ in range(_TRIES):
            missing = np.flatnonzero(~found)
            if not len(missing):
                break
            trial = self.rng.integers(border, size - border, (len(missing), 2))
            patch = self._patch(rows[missing], trial)
            edge = size - border + self.rim
            beyond = [(part < border + self.rim) | (part >= edge) for part in patch[1:]]
            blocked = (self.taken[patch] > 0.3) | beyond[0] | beyond[1]
            free = ~(blocked & solid[missing]).any((1, 2))
            places[missing[free]], found[missing[free]] = trial[free], True
        return places, found

    def extend(self, rows: np.ndarray, heads: _Heads) -> tuple[_Heads, np.ndarray]:
        """One paddle more for each snake, and for which one was found; the paddle before it is then taken."""
        sprites, length = self.sprites, self.drawing.paddle_length
        pivots = _moved(heads.pivots, heads.angles, length + 2 * sprites.margin)
        candidates = pivots[:, None] + sprites.steps
        near = np.clip(candidates[:, :, None] + sprites.disc, -self.rim, self.drawing.window + self.rim - 1) + self.rim
        free = 1 - self.taken[rows[:, None, None], near[..., 0], near[..., 1]].max(2)
        turn = np.abs(sprites.angles - heads.angles[:, None]) % (2 * np.pi)
        turn = np.minimum(np.minimum(turn, 2 * np.pi - turn) * self.drawing.continuity, np.pi / 2)
        weights = np.where(self.inside(candidates), free * np.cos(turn) ** 2, 0).cumsum(1)
        found = np.zeros(len(rows), bool)
        possible = weights[:, -1] >= 1e-4
        chosen = np.zeros(len(rows), int)
        for number in self.rng.uniform((_RETRIES, len(rows))):
            trying = np.flatnonzero(possible & ~found)
            pick = (weights[trying] > (number[trying] * weights[trying, -1])[:, None]).argmax(1)
            patch = self._patch(rows[trying], candidates[trying, pick])
            fits = (self.taken[patch] + sprites.masks[360 + pick]).max((1, 2)) < _TOUCHES
            chosen[trying[fits]], found[trying[fits]] = pick[fits], True
        kept = np.flatnonzero(found)
        self.take(rows[kept], _Heads(*(part[kept] for part in heads)))
        return _Heads(pivots, sprites.angles[chosen], 360 + chosen, candidates[np.arange(len(rows)), chosen]), found


def _moved(places: np.ndarray, angles: np.ndarray, distance: float) -> np.ndarray:
    """Whole places (n, 2) at a distance from others, rounded up as published."""
    return np.ceil(places + distance * np.stack([np.sin(angles), np.cos(angles)], axis=1) - 1e-9).astype(int)


class _Paddles:
    """Paddles in the order in which they were laid, each for some of the images."""

    def __init__(self) -> None:
        self.laid: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, rows: np.ndarray, heads: _Heads) -> None:
        self.laid.append((rows, heads.sprites, heads.places))


def draw_images(rng: CounterRNG, labels: np.ndarray, drawing: Drawing) -> np.ndarray:
    """Images (n, H, W) uint8 for labels (n,) of 0 and 1; each has one of the settings' margins."""
    images = np.zeros((len(labels), drawing.window, drawing.window), np.uint8)
    margins = rng.integers(0, len(drawing.margins), len(labels))
    for number, margin in enumerate(drawing.margins):
        mine = np.flatnonzero(margins == number)
        if len(mine):
            images[mine] = _draw(rng, labels[mine], drawing, margin)
    return images


def _draw(rng: CounterRNG, labels: np.ndarray, drawing: Drawing, margin: int) -> np.ndarray:
    count = len(labels)
    board = _Board(count, drawing, margin, rng)
    images = np.zeros(board.taken.shape, np.float32)
    tips = np.zeros((count, 2, 2, 2), int)  # image, snake, (origin, terminal), coordinate
    done = 0
    while done < count:
        trial = _Board(_attempts(drawing), drawing, margin, rng)
        rows, paddles, trial_tips = _two_snakes(trial)
        rows = rows[: count - done]
        filled = np.arange(done, done + len(rows))
        board.taken[filled], tips[filled] = trial.taken[rows], trial_tips[rows]
        _paste(trial, images, paddles, dict(zip(rows.tolist(), filled.tolist(), strict=True)))
        done += len(rows)
    for _ in range(drawing.distractors):
        _short_snake(board, images)
    images *= drawing.contrast
    origin = rng.integers(0, 2, count)
    terminal = np.where(labels == 1, origin, 1 - origin)
    disc = _marker(drawing)
    reach = len(disc) // 2
    images = np.pad(images, ((0, 0), (reach, reach), (reach, reach)))
    everyone, around = np.arange(count), np.arange(2 * reach + 1) + board.rim
    for places in (tips[everyone, origin, 0], tips[everyone, terminal, 1]):
        where = (everyone[:, None, None], (places[:, 0, None] + around)[:, :, None], (places[:, 1, None] + around)[:, None])
        images[where] = np.maximum(images[where], disc)
    start = board.rim + reach
    inside = images[:, start : start + drawing.window, start : start + drawing.window]
    return np.rint(255 * np.clip(inside, 0, 1)).astype(np.uint8)


def _attempts(drawing: Drawing) -> int:
    """Pairs of long snakes begun together: most run into something, one in twenty is finished at 32 pixels, fewer above."""
    return max(64, min(2048, 2**25 // (2 * drawing.window) ** 2))


def _two_snakes(board: _Board) -> tuple[np.ndarray, _Paddles, np.ndarray]:
    """Both long snakes on every board; the boards where that went well, the paddles, and the tips (n, 2, 2, 2)."""
    count, drawing = len(board.taken), board.drawing
    rows, paddles, tips = np.arange(count), _Paddles(), np.zeros((count, 2, 2, 2), int)
    first, found = board.seed(rows, 2 * drawing.seed_distance)
    second, near = board.seed_near(first.places)
    keep = found & near
    rows = rows[keep]
    snakes = [_Heads(*(part[keep] for part in heads)) for heads in (first, second)]
    for number, heads in enumerate(snakes):
        paddles.add(rows, heads)
        tips[rows, number, 0] = heads.places
    for _ in range(drawing.contour_length - 1):
        for number in (0, 1):
            heads, found = board.extend(rows, snakes[number])
            rows = rows[found]
            snakes[number] = heads
            snakes = [_Heads(*(part[found] for part in heads)) for heads in snakes]
            paddles.add(rows, snakes[number])
            tips[rows, number, 1] = snakes[number].places
    board.take(rows, snakes[1])
    return rows, paddles, tips


def _short_snake(board: _Board, images: np.ndarray) -> None:
    """One short snake more on each board that has room for it."""
    size = board.drawing.window
    inner = board.taken[:, board.rim : board.rim + size, board.rim : board.rim + size]
    pending = np.flatnonzero((inner <= 0.3).mean((1, 2)) >= 0.01)
    for _ in range(_SNAKE_RETRIES):
        before = board.taken[pending].copy()
        heads, found = board.seed(pending, 1)
        rows, heads = pending[found], _Heads(*(part[found] for part in heads))
        paddles = _Paddles()
        paddles.add(rows, heads)
        for _ in range(board.drawing.distractor_length - 1):
            heads, found = board.extend(rows, heads)
            rows, heads = rows[found], _Heads(*(part[found] for part in heads))
            paddles.add(rows, heads)
        board.take(rows, heads)
        failed = ~np.isin(pending, rows)
        board.taken[pending[failed]] = before[failed]
        _paste(board, images, paddles, {row: row for row in rows.tolist()})
        pending = pending[failed]
        if not len(pending):
            return


def _paste(board: _Board, images: np.ndarray, paddles: _Paddles, wanted: dict[int, int]) -> None:
    """Draw the paddles of the wanted rows into the images that these rows stand for."""
    target = np.full(len(board.taken), -1)
    target[list(wanted)] = list(wanted.values())
    for rows, sprites, places in paddles.laid:
        mine = target[rows] >= 0
        where = board._patch(target[rows[mine]], places[mine])
        images[where] = np.maximum(images[where], board.sprites.images[sprites[mine]])


@lru_cache(maxsize=8)
def _marker(drawing: Drawing) -> np.ndarray:
    """The disc (S, S) around the pixel at its centre."""
    reach = ceil(drawing.marker_radius) + 3
    size = (2 * reach + 1) * _SCALE
    places = np.arange(size) - reach * _SCALE
    disc = (places[:, None] ** 2 + places**2 <= (drawing.marker_radius * _SCALE) ** 2).astype(float)
    shrink = _lanczos(size, 2 * reach + 1)
    return np.clip(shrink @ disc @ shrink.T, 0, 1).astype(np.float32)
