"""Shares of the slow tests: each commit runs a quarter of them, so that none can be red for long."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = ROOT / "tests" / "slow_seconds.json"
"""How long each file's slow tests take, one after another, on two quiet cores: `--share 0/1 --record` writes it."""
DEFAULT = 60.0
"""Seconds, of a file without a figure."""
NIGHTLY = "COA_FUZZ" in os.environ
"""Whether random inputs are as many as in `make nightly`."""
MAY_BE_MISSING = ("COA_BENCHMARKS", "need root", "needs a mount", "no cgroup")
"""What nothing can install: a slow test that is skipped for a reason with such words may be."""


def known_seconds() -> dict[str, float]:
    return json.loads(SECONDS.read_text())


def record(found: Mapping[str, float]) -> None:
    """Writes the figures of these files into the table."""
    table = {**known_seconds(), **{file: round(seconds) for file, seconds in found.items()}}
    SECONDS.write_text(json.dumps(dict(sorted(table.items())), indent=2) + "\n")


def parse_share(text: str) -> tuple[int, int]:
    """`K/N` as (K, N), shares counted from 0; raises ValueError for anything else."""
    share, _, shares = text.partition("/")
    found = int(share), int(shares)
    if not 0 <= found[0] < found[1]:
        raise ValueError(f"{text!r} is no share, expected one of 0/{found[1]} to {found[1] - 1}/{found[1]}")
    return found


def deal(files: Iterable[str], shares: int, seconds: Mapping[str, float]) -> list[set[str]]:
    """The files in shares that take about equally long: the longest first, each to the share with least so far. The
    known files are dealt too, asked for or not, so that a file's share is the same whichever others are asked for."""
    every = {file: seconds.get(file, DEFAULT) for file in {*files, *seconds}}
    dealt: list[set[str]] = [set() for _ in range(shares)]
    loads = [0.0] * shares
    for file in sorted(every, key=lambda file: (-every[file], file)):
        least = loads.index(min(loads))
        dealt[least].add(file)
        loads[least] += every[file]
    return dealt


def minutes(seconds: Mapping[str, float]) -> list[str]:
    """A table of minutes by file, longest first, with their sum."""
    rows = sorted(seconds.items(), key=lambda row: -row[1])
    return [f"{taken / 60:6.1f} min  {name}" for name, taken in [*rows, ("in all", sum(seconds.values()))]]


def may_be_skipped(reason: str) -> bool:
    return any(words in reason for words in MAY_BE_MISSING)
