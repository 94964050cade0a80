"""JAX's random permutation, to reproduce the splits of other projects that use it.

Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), and JAX's key splitting and
shuffling as they were before version 0.5 (`jax_threefry_partitionable=False`). A key is a pair of uint32.
"""

from math import ceil, log

import numpy as np

Key = tuple[int, int]
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_WORD = 0xFFFFFFFF


def key_from_seed(seed: int) -> Key:
    """Return `jax.random.PRNGKey(seed)` for 0 <= seed < 2^32."""
    return seed >> 32 & _WORD, seed & _WORD


def random_bits(key: Key, count: int) -> np.ndarray:
    """Return (count,) uint32, the cipher of 0, 1, ... under the key; word i of each half of the counters forms a pair."""
    counters = np.zeros(count + count % 2, np.uint32)
    counters[:count] = np.arange(count)
    first, second = np.split(counters, 2)
    keys = [np.uint32(word) for word in (*key, key[0] ^ key[1] ^ 0x1BD11BDA)]
    first, second = first + keys[0], second + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            first = first + second
            second = (second << np.uint32(rotation) | second >> np.uint32(32 - rotation)) ^ first
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + np.uint32(group + 1)
    return np.concatenate([first, second])[:count]


def split(key: Key, count: int = 2) -> list[Key]:
    """Return `jax.random.split(key, count)`, a list of keys."""
    words = random_bits(key, 2 * count).tolist()
    return list(zip(words[0::2], words[1::2], strict=True))


def permutation(key: Key, size: int) -> np.ndarray:
    """Return `jax.random.permutation(key, size)`, int64: repeated sorting by random words, so that ties are unlikely."""
    order = np.arange(size)
    for _ in range(ceil(3 * log(max(1, size)) / log(_WORD))):
        key, subkey = split(key)
        order = order[np.argsort(random_bits(subkey, size), kind="stable")]
    return order
