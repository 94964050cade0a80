"""Random numbers that depend only on a key and a counter, on every platform and with every version of numpy.

The bits are Philox's raw output, which numpy never changes; the distributions are computed here, since numpy's may change.
"""

import hashlib

import numpy as np


class CounterRNG:
    """Random number generator whose numbers depend on a key and a counter only.

    Equal keys and counters give equal numbers; if one of the two differs, the numbers are independent.

    Args:
        key: a tuple of strings, numbers and tuples of these, which is hashed to the 128-bit key of Philox. A number of NumPy
            gives the same key as the equal number of Python.
        counter: the highest of the four 64-bit words of Philox's counter, so that the numbers of two counters never overlap.
    """

    def __init__(self, key: tuple[object, ...], counter: int) -> None:
        digest = hashlib.blake2b(repr(_without_numpy(key)).encode(), digest_size=16).digest()
        words = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
        self._bits = np.random.Philox(key=words, counter=[0, 0, 0, counter])

    def _uint32(self, count: int) -> np.ndarray:
        """Return `count` random words, (count,) uint32."""
        raw = self._bits.random_raw((count + 1) // 2)
        return np.concatenate([raw & np.uint64(0xFFFFFFFF), raw >> np.uint64(32)])[:count].astype(np.uint32)

    def integers(self, low: int, high: int | np.ndarray, shape: int | tuple[int, ...]) -> np.ndarray:
        """Return integers of a shape, int64, uniform on low..high - 1 (up to 2^-32 times the range); `high` may be an array."""
        words = self._uint32(int(np.prod(shape))).reshape(shape).astype(np.uint64)
        span = np.asarray(high - low).astype(np.uint64)
        return ((words * span) >> np.uint64(32)).astype(np.int64) + low

    def uniform(self, shape: int | tuple[int, ...]) -> np.ndarray:
        """Return numbers of a shape, float64, uniform on (k + 1/2) 2^-32 for k = 0 .. 2^32 - 1."""
        return (self._uint32(int(np.prod(shape))).reshape(shape) + 0.5) * 2.0**-32

    def normal(self, shape: int | tuple[int, ...]) -> np.ndarray:
        """Return standard normal numbers of a shape, float64, by Box and Muller; platforms may round them differently."""
        count = int(np.prod(shape))
        first, second = self.uniform((2, (count + 1) // 2))
        radius = np.sqrt(-2 * np.log(first))
        return np.concatenate([radius * np.cos(2 * np.pi * second), radius * np.sin(2 * np.pi * second)])[:count].reshape(shape)

    def permutation(self, size: int) -> np.ndarray:
        """Return a uniformly random permutation of 0..size - 1, int64."""
        return np.argsort(self._bits.random_raw(size), kind="stable")


def _without_numpy(part: object) -> object:
    """Return a key with numbers of NumPy converted to those of Python, which have another repr."""
    if isinstance(part, tuple):
        return tuple(_without_numpy(item) for item in part)
    return part.item() if isinstance(part, np.generic) else part
