"""Bloom filters: sets of numbers in a fixed amount of memory, with false positives but no false negatives.

The size determines the rate of false positives.
"""

from dataclasses import dataclass
from math import ceil, log

import numpy as np
from numpy.typing import NDArray

from coa.distill.words import Hashes

_ONE, _HALF = np.uint64(1), np.uint64(32)


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a Bloom filter for a number of items and a false positive rate (Bloom, 1970)."""

    bits: int
    probes: int
    """Bits that are set for one number."""

    @classmethod
    def of(cls, items: int, error_rate: float) -> "Size":
        bits = ceil(items * -log(error_rate) / log(2) ** 2)
        return cls(8 * ceil(bits / 8), max(1, round(-log(error_rate) / log(2))))


class Bloom:
    """Several filters of one size: `keys[i]` is looked up in filter i and added to it. Keys are hashes. A single filter
    takes any number of keys at once."""

    def __init__(self, filters: int, size: Size) -> None:
        self._bits = np.uint64(size.bits)
        # Filled, not only reserved, so that a lack of memory shows at the start.
        self._bytes = np.full(filters * size.bits // 8, 0, np.uint8)
        self._begin = (np.arange(filters, dtype=np.uint64) * np.uint64(size.bits))[:, None]
        self._probe = np.arange(size.probes, dtype=np.uint64)

    @property
    def nbytes(self) -> int:
        return self._bytes.nbytes

    def holds(self, keys: Hashes) -> NDArray[np.bool_]:
        """bool [keys]: whether each key is in its filter; may be a false positive."""
        at = self._positions(keys)
        bits = self._bytes[at >> np.uint64(3)] >> (at & np.uint64(7)).astype(np.uint8) & np.uint8(1)
        return np.bitwise_and.reduce(bits, axis=1) == 1

    def add(self, keys: Hashes) -> None:
        at = self._positions(keys).ravel()
        bits = np.left_shift(np.uint8(1), (at & np.uint64(7)).astype(np.uint8))
        np.bitwise_or.at(self._bytes, at >> np.uint64(3), bits)

    def _positions(self, keys: Hashes) -> Hashes:
        """The positions of the keys' bits, [keys, probes], all derived from two hashes (Kirsch and Mitzenmacher,
        2006)."""
        first, step = keys[:, None], (keys >> _HALF | keys << _HALF | _ONE)[:, None]
        return self._begin + (first + self._probe * step) % self._bits
