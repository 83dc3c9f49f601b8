"""SIGTERM while learners train: a last checkpoint, and then the interrupt, whatever becomes of it."""

import asyncio
import signal
from contextlib import suppress

import pytest

from cluster.learners.last_checkpoint import LastCheckpoint
from cluster.session import SessionConfig, run_interruptible, session


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.session.start", lambda **_: None)


def ended(version: int | None, committed: dict[float, int], grace_s: float = 5.0) -> tuple[list[str], list[int]]:
    """What is said until a process with such learners is interrupted, and the checkpoints of which it heard.

    version: of the last checkpoint. committed: versions by the seconds after the signal at which they are.
    """
    said, heard = list[str](), list[int]()

    async def body() -> None:
        async def ask() -> int | None:
            return version

        last = LastCheckpoint(grace_s, ask, said.append)
        last.committed(2)
        tasks: list[asyncio.Future[None]] = []
        with last.on_sigterm(lambda work: tasks.append(asyncio.ensure_future(work))):
            signal.raise_signal(signal.SIGTERM)
            for after, one in committed.items():
                await asyncio.sleep(after)
                heard.append(one)
                last.committed(one)
            await asyncio.sleep(30)

    with pytest.raises(KeyboardInterrupt), session(SessionConfig()):
        run_interruptible(body())
    return said, heard


def test_it_ends_once_the_last_checkpoint_is_committed() -> None:
    said, heard = ended(4, {0.05: 3, 0.06: 4, 20.0: 5})
    assert heard == [3, 4]
    assert said == ["SIGTERM: ending with a last checkpoint, within 5 s (a second SIGTERM ends at once)"]


@pytest.mark.parametrize("version", [None, 2])
def test_it_ends_at_once_if_there_is_nothing_new_to_write(version: int | None) -> None:
    assert ended(version, {20.0: 3})[1] == []


def test_it_ends_at_the_deadline() -> None:
    said, heard = ended(4, {0.05: 3, 20.0: 4}, grace_s=0.2)
    assert heard == [3]
    assert said[1:] == ["the last checkpoint was not written within 0.2 s (checkpoints.grace_s)"]


def test_without_time_for_one_it_ends_at_once() -> None:
    assert ended(4, {20.0: 4}, grace_s=0.0) == ([], [])


def test_learners_that_are_through_before_it_still_end_in_the_interrupt() -> None:
    async def body(last: LastCheckpoint, tasks: list[asyncio.Future[None]]) -> None:
        with last.on_sigterm(lambda work: tasks.append(asyncio.ensure_future(work))):
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0.05)
            tasks[0].cancel()
        await asyncio.sleep(30)

    with pytest.raises(KeyboardInterrupt), session(SessionConfig()):
        run_interruptible(body(LastCheckpoint(5.0, four, quiet), []))


def test_a_second_sigterm_interrupts_once() -> None:
    """A second interrupt would cut short what the first one ends in order."""
    cleaned: list[str] = []

    async def body(last: LastCheckpoint) -> None:
        tasks: list[asyncio.Future[None]] = []
        try:
            with last.on_sigterm(lambda work: tasks.append(asyncio.ensure_future(work))):
                signal.raise_signal(signal.SIGTERM)
                await asyncio.sleep(0.05)
                signal.raise_signal(signal.SIGTERM)
                await asyncio.sleep(30)
        finally:
            tasks[0].cancel()
            await asyncio.sleep(0.05)
            cleaned.append("all")

    with pytest.raises(KeyboardInterrupt), session(SessionConfig()):
        run_interruptible(body(LastCheckpoint(5.0, four, quiet)))
    assert cleaned == ["all"]


def test_a_stage_that_ends_in_the_moment_of_the_interrupt_gets_no_other_one() -> None:
    cleaned: list[str] = []

    async def body(last: LastCheckpoint) -> None:
        last.committed(4)
        with last.on_sigterm(asyncio.ensure_future), suppress(asyncio.CancelledError):
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(30)
        await asyncio.sleep(0.05)
        cleaned.append("all")

    with session(SessionConfig()):
        try:
            run_interruptible(body(LastCheckpoint(5.0, four, quiet)))
        except KeyboardInterrupt:  # it would end the tests
            pytest.fail("it was interrupted twice")
    assert cleaned == ["all"]


async def four() -> int | None:
    return 4


def quiet(_: str) -> None:
    pass
