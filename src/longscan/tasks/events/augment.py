"""Augmentation of event streams, as in the training of event-ssm.

Units: pixels for positions, microseconds for times, fractions and probabilities as numbers from 0 to 1. Each function is pure;
its arguments are the stream, the strength, the size of the sensor, and the random number generator. The published code uses
standard deviations under the name variance, as here, and truncates shifts to whole pixels, while here they are rounded.
"""

from dataclasses import dataclass

import numpy as np

from longscan.tasks._random import CounterRNG
from longscan.tasks.events.files import Stream

Size = tuple[int, int]


@dataclass(frozen=True)
class Augmentation:
    """Strength of each augmentation; 0 (1 for factors) switches it off.

    drop: probability of removing an event. chunk: largest fraction of events that are removed as one run, with `probability`.
    space: standard deviation of the shift of x (and y, if the sensor has rows) in pixels. skew: times are multiplied by a factor
    in 1/skew .. skew. time: standard deviation of the shift of a time in microseconds. noise: largest number of random events
    that are added. roll: pixels, angle: degrees, scale: factor; each with `probability`. cutmix: probability for a batch.
    """

    drop: float = 0.0
    chunk: float = 0.0
    space: float = 0.0
    skew: float = 1.0
    time: float = 0.0
    noise: int = 0
    roll: int = 0
    angle: float = 0.0
    scale: float = 1.0
    cutmix: float = 0.0
    probability: float = 0.3


# The published values; N-MNIST has none and uses those of DVS-Gesture without the large movements.
PUBLISHED = {
    "shd": Augmentation(drop=0.1, chunk=0.02, space=0.55, skew=1.2, time=1.0, noise=35, cutmix=0.3),
    "ssc": Augmentation(drop=0.1, chunk=0.02, space=1.0, skew=1.05, time=3.0, noise=100, cutmix=0.3),
    "dvs_gesture": Augmentation(
        drop=0.05, chunk=0.02, space=0.3, skew=1.12, time=5.0, roll=32, angle=10.0, scale=1.2, cutmix=0.4
    ),
    "nmnist": Augmentation(drop=0.05, chunk=0.02, space=0.3, skew=1.12, time=5.0),
}


def augment_stream(stream: Stream, strengths: Augmentation, size: Size, rng: CounterRNG) -> Stream:
    """Apply all augmentations except CutMix; a stream that would lose every event keeps its first."""
    changed = drop(stream, strengths.drop, rng)
    if rng.uniform(1)[0] < strengths.probability:
        changed = drop_chunk(changed, strengths.chunk, rng)
    changed = jitter_space(changed, strengths.space, size, rng)
    changed = skew_time(changed, strengths.skew, rng)
    changed = jitter_time(changed, strengths.time, rng)
    changed = add_noise(changed, strengths.noise, size, rng)
    chances = rng.uniform(3) < strengths.probability
    if chances[0]:
        changed = roll(changed, strengths.roll, size, rng)
    if chances[1]:
        changed = rotate_and_scale(changed, strengths.angle, 1.0, size, rng)
    if chances[2]:
        changed = rotate_and_scale(changed, 0.0, strengths.scale, size, rng)
    return changed if len(changed.t) else stream.select(np.array([0]))


def drop(stream: Stream, probability: float, rng: CounterRNG) -> Stream:
    """Remove each event with a probability."""
    return stream.select(np.flatnonzero(rng.uniform(len(stream.t)) >= probability)) if probability else stream


def drop_chunk(stream: Stream, fraction: float, rng: CounterRNG) -> Stream:
    """Remove a run of events at a random position, with a uniform length up to a fraction of the stream."""
    count = len(stream.t)
    length = int(rng.uniform(1)[0] * fraction * count)
    start = int(rng.integers(0, count - length + 1, 1)[0])
    return stream.select(np.concatenate([np.arange(start), np.arange(start + length, count)]))


def jitter_space(stream: Stream, deviation: float, size: Size, rng: CounterRNG) -> Stream:
    """Move events by normally distributed shifts, rounded to pixels; remove those outside the sensor."""
    if not deviation:
        return stream
    shift = np.rint(deviation * rng.normal((2, len(stream.t)))).astype(np.int64)
    return _drop_outside_sensor(stream._replace(x=stream.x + shift[0], y=stream.y + (shift[1] if size[1] > 1 else 0)), size)


def skew_time(stream: Stream, factor: float, rng: CounterRNG) -> Stream:
    """Multiply all times by a number that is uniform on 1/factor .. factor."""
    stretch = 1 / factor + rng.uniform(1)[0] * (factor - 1 / factor)
    return stream._replace(t=np.rint(stream.t * stretch).astype(np.int64))


def jitter_time(stream: Stream, deviation: float, rng: CounterRNG) -> Stream:
    """Shift times by normally distributed numbers, clip them at 0, and sort the events by the new times."""
    if not deviation:
        return stream
    times = np.maximum(np.rint(stream.t + deviation * rng.normal(len(stream.t))).astype(np.int64), 0)
    return _sort_by_time(stream._replace(t=times))


def add_noise(stream: Stream, max_count: int, size: Size, rng: CounterRNG) -> Stream:
    """Add up to `max_count` events at uniform times and positions."""
    count = int(rng.integers(0, max_count + 1, 1)[0]) if max_count and len(stream.t) else 0
    if not count:
        return stream
    last = int(stream.t[-1])
    noise = (rng.integers(0, last + 1, count), rng.integers(0, size[0], count), rng.integers(0, size[1], count))
    polarity = rng.integers(0, 2, count) if size[1] > 1 else np.zeros(count, np.int64)
    return _sort_by_time(Stream(*(np.concatenate(pair) for pair in zip(stream, (*noise, polarity), strict=True))))


def roll(stream: Stream, max_shift: int, size: Size, rng: CounterRNG) -> Stream:
    """Move all events together by up to `max_shift` pixels in each direction; remove those outside the sensor."""
    shift = rng.integers(-max_shift, max_shift + 1, 2)
    return _drop_outside_sensor(stream._replace(x=stream.x + shift[0], y=stream.y + shift[1]), size)


def rotate_and_scale(stream: Stream, degrees: float, factor: float, size: Size, rng: CounterRNG) -> Stream:
    """Rotate all events about the centre by up to `degrees`, and scale their distance from it by 1/factor .. factor."""
    numbers = rng.uniform(2)
    angle = np.deg2rad(degrees) * (2 * numbers[0] - 1)
    stretch = 1 / factor + numbers[1] * (factor - 1 / factor)
    x, y = stream.x - (size[0] - 1) / 2, stream.y - (size[1] - 1) / 2
    moved = (stretch * (x * np.cos(angle) - y * np.sin(angle)), stretch * (x * np.sin(angle) + y * np.cos(angle)))
    positions = [np.rint(part + (length - 1) / 2).astype(np.int64) for part, length in zip(moved, size, strict=True)]
    return _drop_outside_sensor(stream._replace(x=positions[0], y=positions[1]), size)


def cut_and_mix(stream: Stream, partner: Stream, rng: CounterRNG) -> tuple[Stream, float]:
    """Replace the events in an interval by a run of the partner's events; return the stream and the partner's fraction."""
    if len(partner.t) < 2:
        return stream, 0.0
    length = int(rng.integers(1, len(partner.t), 1)[0])
    start = int(rng.integers(0, len(partner.t) - length + 1, 1)[0])
    run = partner.select(np.arange(start, start + length))
    rest = stream.select(np.flatnonzero((stream.t < run.t[0]) | (stream.t > run.t[-1])))
    merged = _sort_by_time(Stream(*(np.concatenate(pair) for pair in zip(rest, run, strict=True))))
    return merged, length / len(merged.t)


def _sort_by_time(stream: Stream) -> Stream:
    return stream.select(np.argsort(stream.t, kind="stable"))


def _drop_outside_sensor(stream: Stream, size: Size) -> Stream:
    return stream.select(np.flatnonzero((stream.x >= 0) & (stream.x < size[0]) & (stream.y >= 0) & (stream.y < size[1])))
