"""Finds duplicates of runs that were kept before, in a fixed amount of memory: of tasks, and of chains for one task.

    another task:   the same question and answer, once both are normalised                      EXACT
                    or nearly: the same names and numbers, the same answer, and word shingles
                    whose Jaccard similarity is about the threshold or more                      NEAR
    the same task:  the same chain, or more chains than `solutions_per_task`                     SAME_CHAIN, ENOUGH

Different chains for one task are wanted, so tasks and chains are compared separately. Similarity is found by MinHash
(Broder, 1997), with a Bloom filter for each band instead of a table that would grow (LSHBloom, arXiv 2411.04257). The
filters do not store the texts, so candidates cannot be verified. Long questions from one template are all similar
although each asks something else; hence their names and numbers, the only parts that vary, are part of each band's key.
"""

from dataclasses import dataclass
from math import ceil, log

import numpy as np
from numpy.typing import NDArray

from coa.agent.grammar import Chain
from coa.bounds import AtLeast1, ProperShare, Share
from coa.distill.words import (
    Hashes,
    folded,
    grams,
    mixed,
    names_and_numbers,
    number_of,
    numbers_of,
    pseudo_random,
    words_of,
)
from coa.errors import UserError
from coa.grading.normalise import normalise

EXACT = "same question and answer as another task"
NEAR = "near-duplicate of another task"
SAME_CHAIN = "same chain for the same task"
ENOUGH = "more solutions than wanted"

REWRITTEN = frozenset({"reflection", "double_check"})
"""Tags whose texts may be rewritten later (`coa.distill.rewrite`), so they are ignored when chains are compared."""
HASHES = 128
"""Hash functions of a MinHash signature; more of them estimate the similarity more exactly."""
SHINGLE = 3
"""Words per shingle."""
ANSWER_WORDS = 20
"""Maximum words of an answer that is compared; a longer one (a program, hidden tests) does not identify a question."""

_ONE, _HALF = np.uint64(1), np.uint64(32)


@dataclass(frozen=True)
class DuplicateConfig:
    """Which runs count as duplicates of others."""

    threshold: Share | None = 0.9
    """Similarity (Jaccard, over word shingles) from which two questions count as the same; None or 0 disables the
    comparison of questions."""
    solutions_per_task: int = 0
    """Maximum number of different chains that are kept per task; 0 sets no limit. Equal chains are always dropped."""
    documents: AtLeast1 = 200_000
    """Maximum number of chains that can be kept. It determines the memory, about 30 bytes per chain."""
    error_rate: ProperShare = 1e-4
    """Maximum share of runs that are dropped as duplicates by mistake."""


class Duplicates:
    """Remembers runs: `take(..)` says why a run is a duplicate, and remembers it if it is none."""

    def __init__(self, config: DuplicateConfig) -> None:
        self._config = config
        self._remembered = 0
        self._bands, self._rows = bands_and_rows(config.threshold, HASHES) if config.threshold else (0, 0)
        # A run is looked up in each band, and by its task, its chain and its question; the error rates add up.
        rate = config.error_rate / (self._bands + 3)
        self._keys = Bloom(1, BloomSize.of(3 * config.documents, rate))
        self._near = Bloom(self._bands, BloomSize.of(config.documents, rate))
        self._factors, self._terms = _permutations(self._bands * self._rows)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._near.nbytes

    def take(self, task_id: str, question: str, answer: str, chain: Chain) -> str | None:
        """The first reason why the run is a duplicate; if there is none, remembers the run and returns None."""
        solutions = self._solutions(task_id)
        if solutions and self._knows(_chain_key(task_id, chain)):
            return SAME_CHAIN
        if solutions and solutions == self._config.solutions_per_task:
            return ENOUGH
        bands = None
        if not solutions and self._config.threshold:
            if self._knows(_question_key(question, answer)):
                return EXACT
            bands = self._band_keys(question, answer)
            if self._near.holds(bands).any():
                return NEAR
        self._write(task_id, question, answer, chain, solutions, bands)
        return None

    def remember(self, task_id: str, question: str, answer: str, chain: Chain) -> None:
        """Remembers a run that was kept, without checking whether it is a duplicate."""
        solutions = self._solutions(task_id)
        bands = self._band_keys(question, answer) if not solutions and self._config.threshold else None
        self._write(task_id, question, answer, chain, solutions, bands)

    def _write(
        self, task_id: str, question: str, answer: str, chain: Chain, solutions: int, bands: Hashes | None
    ) -> None:
        """Remembers a run. Raises UserError beyond `documents` runs, since too many new runs would be taken for
        duplicates."""
        if self._remembered == self._config.documents:
            raise UserError(
                f"the filter of duplicates is full after {self._remembered} runs: "
                "raise distill.filters.duplicates.documents"
            )
        self._remembered += 1
        keys = [_chain_key(task_id, chain), _task_key(task_id, solutions + 1)]
        if bands is not None:
            keys.append(_question_key(question, answer))
            self._near.add(bands)
        self._keys.add(np.array(keys, np.uint64))

    def _solutions(self, task_id: str) -> int:
        """The number of remembered chains of a task, counted up to `solutions_per_task`."""
        most = max(1, self._config.solutions_per_task)
        return next((count for count in range(most) if not self._knows(_task_key(task_id, count + 1))), most)

    def _knows(self, key: int) -> bool:
        return bool(self._keys.holds(np.array([key], np.uint64))[0])

    def _band_keys(self, question: str, answer: str) -> Hashes:
        compared = short(answer)
        shingles = grams(numbers_of(words_of(f"{question} {compared}")), SHINGLE)
        signature = minhash(shingles, self._factors, self._terms).reshape(self._bands, self._rows)
        same = number_of(compared, *names_and_numbers(question))
        return mixed(folded(signature) ^ np.uint64(same))


def _task_key(task_id: str, solution: int) -> int:
    """The key that is remembered if the task has at least `solution` chains."""
    return number_of("task", task_id, str(solution))


def _chain_key(task_id: str, chain: Chain) -> int:
    return number_of("chain", task_id, identity(chain))


def _question_key(question: str, answer: str) -> int:
    return number_of("question", normalise(question), short(answer))


def minhash(shingles: Hashes, factors: Hashes, terms: Hashes) -> Hashes:
    """The minimum hash over the shingles for each permutation. The expected share of equal values of two sets is their
    Jaccard similarity."""
    if not len(shingles):
        return np.zeros(len(factors), np.uint64)
    return mixed((shingles[:, None] * factors + terms).min(axis=0))


def _permutations(count: int) -> tuple[Hashes, Hashes]:
    """Odd factors and terms of `count` permutations; deterministic."""
    numbers = pseudo_random(2 * count)
    return numbers[:count] | np.uint64(1), numbers[count:]


def bands_and_rows(threshold: float, hashes: int) -> tuple[int, int]:
    """(bands, rows): the longest bands of a signature that still find texts as similar as the threshold.

    Two texts of similarity s share a whole band with probability 1 - (1 - s^rows)^bands, which climbs steepest about
    s = (1 / bands)^(1 / rows). Of 128 hashes at 0.9: 7 bands of 18 find 68 % at 0.9, 97 % at 0.95, 1 % at 0.7.
    """
    cuts = [(hashes // rows, rows) for rows in range(1, hashes + 1)]
    fine = [(bands, rows) for bands, rows in cuts if (1 / bands) ** (1 / rows) <= threshold]
    return fine[-1] if fine else cuts[0]


def identity(chain: Chain) -> str:
    """A chain as a text to compare, with only the tag of a reflection and only the score of a double check."""
    parts = (
        (span.tag, span.text.strip()[:1] if span.tag == "double_check" else "")
        if span.tag in REWRITTEN
        else (span.tag, span.text.strip())
        for span in chain
    )
    return "\x1e".join(f"{tag} {text}" for tag, text in parts)


def short(answer: str) -> str:
    """The answer as it is compared: normalised; "" for one of more than ANSWER_WORDS."""
    normal = normalise(answer)
    return normal if len(normal.split()) <= ANSWER_WORDS else ""


@dataclass(frozen=True, slots=True)
class BloomSize:
    """The size of a Bloom filter, a set of numbers in a fixed amount of memory without false negatives, for a number
    of items and a rate of false positives (Bloom, 1970)."""

    bits: int
    probes: int
    """Bits that are set for one number."""

    @classmethod
    def of(cls, items: int, error_rate: float) -> "BloomSize":
        bits = ceil(items * -log(error_rate) / log(2) ** 2)
        return cls(8 * ceil(bits / 8), max(1, round(-log(error_rate) / log(2))))


class Bloom:
    """Several filters of one size: `keys[i]` is looked up in filter i and added to it. Keys are hashes. A single filter
    takes any number of keys at once."""

    def __init__(self, filters: int, size: BloomSize) -> None:
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
