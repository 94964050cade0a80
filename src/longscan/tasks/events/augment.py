"""Changes to event streams that keep what they show, as event-ssm trains with them.

Units: pixels for places, microseconds for times, shares and probabilities as numbers from 0 to 1. Each function is pure: the
stream, its strength, the sensor's size, and the random numbers. Where the published code says variance and means a standard
deviation, or cuts shifts to whole pixels towards zero, the standard deviation is used here and shifts are rounded.
"""

from dataclasses import dataclass

import numpy as np

from longscan.tasks._random import CounterRNG
from longscan.tasks.events.files import Stream

Size = tuple[int, int]


@dataclass(frozen=True)
class Strengths:
    """How strong each change is; 0 (1 for factors) leaves the stream alone.

    drop: probability of losing an event. chunk: largest share of events lost as one run, in `often` of the streams. space:
    standard deviation of the shift of x (and y, where the sensor has rows) in pixels. skew: times are stretched by a factor in
    1/skew .. skew. time: standard deviation of the shift of a time in microseconds. noise: largest number of random events
    added. roll: pixels, angle: degrees, scale: factor; each in `often` of the streams. cutmix: probability for a batch.
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
    often: float = 0.3


# The published values; N-MNIST has none, and takes those of DVS-Gesture without the large movements.
PUBLISHED = {
    "shd": Strengths(drop=0.1, chunk=0.02, space=0.55, skew=1.2, time=1.0, noise=35, cutmix=0.3),
    "ssc": Strengths(drop=0.1, chunk=0.02, space=1.0, skew=1.05, time=3.0, noise=100, cutmix=0.3),
    "dvs_gesture": Strengths(drop=0.05, chunk=0.02, space=0.3, skew=1.12, time=5.0, roll=32, angle=10.0, scale=1.2, cutmix=0.4),
    "nmnist": Strengths(drop=0.05, chunk=0.02, space=0.3, skew=1.12, time=5.0),
}


def augmented(stream: Stream, strengths: Strengths, size: Size, rng: CounterRNG) -> Stream:
    """All changes one after the other; a stream that would lose every event keeps its first."""
    changed = drop(stream, strengths.drop, rng)
    if rng.uniform(1)[0] < strengths.often:
        changed = drop_chunk(changed, strengths.chunk, rng)
    changed = jitter_space(changed, strengths.space, size, rng)
    changed = skew_time(changed, strengths.skew, rng)
    changed = jitter_time(changed, strengths.time, rng)
    changed = add_noise(changed, strengths.noise, size, rng)
    chances = rng.uniform(3) < strengths.often
    if chances[0]:
        changed = roll(changed, strengths.roll, size, rng)
    if chances[1]:
        changed = turn(changed, strengths.angle, 1.0, size, rng)
    if chances[2]:
        changed = turn(changed, 0.0, strengths.scale, size, rng)
    return changed if len(changed.t) else stream.select(np.array([0]))


def drop(stream: Stream, probability: float, rng: CounterRNG) -> Stream:
    """Each event is lost with the probability."""
    return stream.select(np.flatnonzero(rng.uniform(len(stream.t)) >= probability)) if probability else stream


def drop_chunk(stream: Stream, share: float, rng: CounterRNG) -> Stream:
    """A run of events is lost, uniformly long up to the share, anywhere."""
    count = len(stream.t)
    length = int(rng.uniform(1)[0] * share * count)
    start = int(rng.integers(0, count - length + 1, 1)[0])
    return stream.select(np.concatenate([np.arange(start), np.arange(start + length, count)]))


def jitter_space(stream: Stream, deviation: float, size: Size, rng: CounterRNG) -> Stream:
    """Events move by normally distributed shifts, rounded; those that leave the sensor are lost."""
    if not deviation:
        return stream
    shift = np.rint(deviation * rng.normal((2, len(stream.t)))).astype(np.int64)
    return _on_sensor(stream._replace(x=stream.x + shift[0], y=stream.y + (shift[1] if size[1] > 1 else 0)), size)


def skew_time(stream: Stream, factor: float, rng: CounterRNG) -> Stream:
    """Times are stretched by a factor, uniform on 1/factor .. factor."""
    stretch = 1 / factor + rng.uniform(1)[0] * (factor - 1 / factor)
    return stream._replace(t=np.rint(stream.t * stretch).astype(np.int64))


def jitter_time(stream: Stream, deviation: float, rng: CounterRNG) -> Stream:
    """Times move by normally distributed shifts; none lies before 0; the order is that of the new times."""
    if not deviation:
        return stream
    times = np.maximum(np.rint(stream.t + deviation * rng.normal(len(stream.t))).astype(np.int64), 0)
    return _sorted(stream._replace(t=times))


def add_noise(stream: Stream, most: int, size: Size, rng: CounterRNG) -> Stream:
    """Up to `most` events at uniform times and places."""
    count = int(rng.integers(0, most + 1, 1)[0]) if most and len(stream.t) else 0
    if not count:
        return stream
    last = int(stream.t[-1])
    noise = (rng.integers(0, last + 1, count), rng.integers(0, size[0], count), rng.integers(0, size[1], count))
    polarity = rng.integers(0, 2, count) if size[1] > 1 else np.zeros(count, np.int64)
    return _sorted(Stream(*(np.concatenate(pair) for pair in zip(stream, (*noise, polarity), strict=True))))


def roll(stream: Stream, most: int, size: Size, rng: CounterRNG) -> Stream:
    """All events move together by up to `most` pixels each way; those that leave the sensor are lost."""
    shift = rng.integers(-most, most + 1, 2)
    return _on_sensor(stream._replace(x=stream.x + shift[0], y=stream.y + shift[1]), size)


def turn(stream: Stream, degrees: float, factor: float, size: Size, rng: CounterRNG) -> Stream:
    """All events turn about the middle by up to `degrees`, and move away from it by a factor in 1/factor .. factor."""
    chance = rng.uniform(2)
    angle = np.deg2rad(degrees) * (2 * chance[0] - 1)
    stretch = 1 / factor + chance[1] * (factor - 1 / factor)
    x, y = stream.x - (size[0] - 1) / 2, stream.y - (size[1] - 1) / 2
    moved = (stretch * (x * np.cos(angle) - y * np.sin(angle)), stretch * (x * np.sin(angle) + y * np.cos(angle)))
    places = [np.rint(part + (length - 1) / 2).astype(np.int64) for part, length in zip(moved, size, strict=True)]
    return _on_sensor(stream._replace(x=places[0], y=places[1]), size)


def cut_and_mix(stream: Stream, partner: Stream, rng: CounterRNG) -> tuple[Stream, float]:
    """A run of the partner's events takes the place of the stream's events in its stretch of time; and the partner's share."""
    if len(partner.t) < 2:
        return stream, 0.0
    length = int(rng.integers(1, len(partner.t), 1)[0])
    start = int(rng.integers(0, len(partner.t) - length + 1, 1)[0])
    run = partner.select(np.arange(start, start + length))
    rest = stream.select(np.flatnonzero((stream.t < run.t[0]) | (stream.t > run.t[-1])))
    merged = _sorted(Stream(*(np.concatenate(pair) for pair in zip(rest, run, strict=True))))
    return merged, length / len(merged.t)


def _sorted(stream: Stream) -> Stream:
    return stream.select(np.argsort(stream.t, kind="stable"))


def _on_sensor(stream: Stream, size: Size) -> Stream:
    return stream.select(np.flatnonzero((stream.x >= 0) & (stream.x < size[0]) & (stream.y >= 0) & (stream.y < size[1])))
