"""`coa verify --replay` of a real run: equal, unless one byte of what was recorded is another."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from coa.learning.batches import BatchStore
from coa.types import Sample
from tests.support.rl_runs import Ended, RlRun, rl_run

pytestmark = pytest.mark.slow

STEPS, CHANGED = 4, 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RlRun]:
    """Of an asynchronous run, whose batches depend on what arrived when."""
    with rl_run(tmp_path_factory.mktemp("replay") / "run", STEPS, "rl.window.max_staleness=2") as run:
        run.prepare().finish()
        yield run


def replayed(run: RlRun) -> Ended:
    return run.ended(run.type("verify", str(run.folder), "--replay"))


def flipped(sample: Sample) -> Sample:
    """With another byte in the advantage of its first trained token."""
    reinforce = sample.reinforce.copy()
    at = int(np.flatnonzero(sample.loss_mask & (reinforce != 0))[0])
    reinforce.view(np.uint8)[4 * at + 2] ^= 0x40
    return replace(sample, reinforce=reinforce)


def test_a_replay_is_equal_and_differs_once_one_byte_of_a_batch_does(run: RlRun) -> None:
    equal = replayed(run)
    assert equal.status == 0, equal
    assert f"steps 1 to {STEPS}: equal, bit for bit" in equal.out
    store = BatchStore(run.folder / "batches")
    recorded = store.path(CHANGED).read_bytes()
    damaged = bytearray(recorded)
    damaged[len(damaged) // 2] ^= 1
    store.path(CHANGED).write_bytes(damaged)
    found = replayed(run)
    assert found.status == 1
    assert f"{store.path(CHANGED)} was changed since it was recorded: its digest is " in found.out
    store.path(CHANGED).write_bytes(recorded)
    shares = [list(share) for share in store.read(CHANGED)]
    share = next(share for share in shares if share)
    share[0] = flipped(share[0])
    store.write(CHANGED, shares)
    found = replayed(run)
    assert found.status == 1, "the digest fits, but the learners' result is another one"
    assert f"step {CHANGED} differs: " in found.out
