"""Random numbers that depend on a key and a counter alone, on every platform and with every version of numpy.

The bits are Philox's raw output, which numpy never changes; the distributions are made here, since numpy's own may change.
"""

import hashlib

import numpy as np


class CounterRNG:
    """The random numbers of one (key, counter): the same key and counter give the same numbers, others give unrelated ones.

    key: a tuple of strings, integers and tuples of these, hashed to Philox's 128-bit key. counter: the top word of its 256-bit
    counter, so that two counters never overlap.
    """

    def __init__(self, key: tuple[object, ...], counter: int) -> None:
        digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
        words = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
        self._bits = np.random.Philox(key=words, counter=[0, 0, 0, counter])

    def _words(self, count: int) -> np.ndarray:
        """(count,) uint32."""
        raw = self._bits.random_raw((count + 1) // 2)
        return np.concatenate([raw & np.uint64(0xFFFFFFFF), raw >> np.uint64(32)])[:count].astype(np.uint32)

    def integers(self, low: int, high: int | np.ndarray, shape: int | tuple[int, ...]) -> np.ndarray:
        """Int64 of the given shape, uniform on low..high - 1 (to 2^-32 times the range); `high` may be an array of that shape."""
        words = self._words(int(np.prod(shape))).reshape(shape).astype(np.uint64)
        span = np.asarray(high - low).astype(np.uint64)
        return ((words * span) >> np.uint64(32)).astype(np.int64) + low

    def uniform(self, shape: int | tuple[int, ...]) -> np.ndarray:
        """Float64 of the given shape, uniform on the multiples of 2^-32 plus half of one inside (0, 1)."""
        return (self._words(int(np.prod(shape))).reshape(shape) + 0.5) * 2.0**-32

    def normal(self, shape: int | tuple[int, ...]) -> np.ndarray:
        """Float64 of the given shape, normal with mean 0 and variance 1 (Box and Muller), equal everywhere but for rounding."""
        count = int(np.prod(shape))
        first, second = self.uniform((2, (count + 1) // 2))
        radius = np.sqrt(-2 * np.log(first))
        return np.concatenate([radius * np.cos(2 * np.pi * second), radius * np.sin(2 * np.pi * second)])[:count].reshape(shape)

    def permutation(self, size: int) -> np.ndarray:
        """A uniform permutation of 0..size - 1, int64."""
        return np.argsort(self._bits.random_raw(size), kind="stable")
