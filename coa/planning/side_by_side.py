"""Several simulations at a time, in a process each: one takes seconds of a core, and a plan needs a dozen."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

from coa.planning.engine import Speeds
from coa.planning.simulation import Forecast, LoopShape, simulate
from coa.planning.workload import Workload


@dataclass(frozen=True, slots=True)
class Case:
    """The arguments of one call of `simulate`."""

    shape: LoopShape
    speeds: Speeds
    work: Workload
    warm: int = 0
    seed: int = 0


Play = Callable[[Sequence[Case]], Sequence[Forecast]]
"""The forecasts of some cases, in their order."""


def one_by_one(cases: Sequence[Case]) -> list[Forecast]:
    return [_play(case) for case in cases]


@contextmanager
def side_by_side() -> Iterator[Play]:
    """Plays cases of one workload and its speeds on all cores that this process may use, equal ones once."""
    known: dict[tuple[LoopShape, int, int], Future[Forecast]] = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn")) as pool:

        def begin(case: Case) -> Future[Forecast]:
            key = (case.shape, case.warm, case.seed)
            if key not in known:
                known[key] = pool.submit(_play, case)
            return known[key]

        yield lambda cases: [begun.result() for begun in list(map(begin, cases))]


def _play(case: Case) -> Forecast:
    return simulate(case.shape, case.speeds, case.work, warm=case.warm, seed=case.seed)
