"""Words of texts, and numbers (hashes) of words, by which near-duplicates and contamination are found.

The numbers are the same in every process and on every machine, so that sets of them can be rebuilt anywhere.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_WORD = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """The words of a text in lower case: words_of("Who, in 1204?") == ["who", "in", "1204"]."""
    return _WORD.findall(text.lower())


def names_and_numbers(text: str) -> list[str]:
    """Words with a capital letter or a non-letter, in order, in lower case; questions of one template differ in
    these."""
    return [word.lower() for word in _WORD.findall(text) if word != word.lower() or not word.isalpha()]


def number_of(*parts: str) -> int:
    """A 64-bit hash of a text in parts."""
    text = "\x1f".join(parts).encode(errors="surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


_number_of_word = lru_cache(maxsize=2**14)(number_of)


def numbers_of(words: Iterable[str]) -> Hashes:
    return np.array([_number_of_word(word) for word in words], np.uint64)


def grams(numbers: Hashes, n: int) -> Hashes:
    """A hash for each n consecutive words; a single hash for fewer than n words, none for no words."""
    n = min(n, len(numbers))
    if n == 0:
        return numbers
    return folded(numbers[np.arange(len(numbers) - n + 1)[:, None] + np.arange(n)])


def folded(rows: Hashes) -> Hashes:
    """A hash of each row, which depends on its numbers and their order."""
    return mixed((rows * _weights(rows.shape[1])).sum(axis=1, dtype=np.uint64))


def pseudo_random(count: int) -> Hashes:
    """`count` pseudo-random numbers; deterministic."""
    return mixed(np.arange(1, count + 1, dtype=np.uint64) * _ODD)


def mixed(numbers: Hashes) -> Hashes:
    """A bijective mix of each number's bits (the finaliser of SplitMix64)."""
    numbers = (numbers ^ (numbers >> _SHIFTS[0])) * _FACTORS[0]
    numbers = (numbers ^ (numbers >> _SHIFTS[1])) * _FACTORS[1]
    return numbers ^ (numbers >> _SHIFTS[2])


_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = tuple(np.array((30, 27, 31), np.uint64))
_FACTORS = tuple(np.array((0xBF58476D1CE4E5B9, 0x94D049BB133111EB), np.uint64))


@lru_cache
def _weights(count: int) -> Hashes:
    """Odd weights, since multiplication by an odd number loses no bits."""
    return pseudo_random(count) | np.uint64(1)


def any_in(numbers: Hashes, ordered: Hashes) -> bool:
    """Whether any of the numbers is among the ordered ones."""
    if not len(ordered) or not len(numbers):
        return False
    at = np.minimum(np.searchsorted(ordered, numbers), len(ordered) - 1)
    return bool((ordered[at] == numbers).any())


def ordered(numbers: Sequence[Hashes], *, at_most: int) -> Hashes:
    """The distinct numbers of all arrays, sorted, without those that are in more than `at_most` arrays."""
    if not numbers:
        return np.zeros(0, np.uint64)
    found, counts = np.unique(np.concatenate([np.unique(one) for one in numbers]), return_counts=True)
    return found[counts <= at_most]
