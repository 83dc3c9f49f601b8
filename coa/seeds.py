"""Seeds and draws that depend only on what they are for: not on order, time or the machine."""

import hashlib
from functools import lru_cache


def derive(*parts: object) -> int:
    """A 63-bit seed from the parts, the same in every process: derive(run_seed, task_id, sample, turn)."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def fraction(*parts: object) -> float:
    """A number in [0, 1) from the parts, for draws like "this person is held out"."""
    return (derive(*parts) >> 10) / 2**53  # as many bits as a float has: more would round up to 1


def shuffled(index: int, tasks: int, *seed: object) -> int:
    """Which of `tasks` is the index-th of a stream that goes through all again and again, each time shuffled."""
    number, place = divmod(index, tasks)
    return _order(tasks, derive(*seed, number))[place]


@lru_cache(maxsize=4)
def _order(tasks: int, seed: int) -> tuple[int, ...]:
    return tuple(sorted(range(tasks), key=lambda task: derive(seed, task)))
