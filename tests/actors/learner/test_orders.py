"""Orders to the ranks: one row for all, void once the learners start again."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.learner import buffer
from actors.learner.buffer import Committed, Finished, Started, Stepped, TrajectoryBuffer
from coa.learning.orders import (
    Checkpoint,
    Export,
    Numbered,
    Order,
    OrderRow,
    Publish,
    RankProgress,
    Stop,
    Train,
    VoidEpoch,
    orders_of,
)
from coa.time_accounts import LearnerState
from tests.support.patience import PATIENCE_S
from tests.support.reports import a_report

pytestmark = pytest.mark.anyio


def train(version: int) -> Train:
    return Train(version=version, shares=((f"{version}-0",), (f"{version}-1",)), cursor=[version, [7]])


def test_a_batch_entails_what_belongs_behind_it() -> None:
    assert orders_of(train(0), steps=6, publish=True, checkpoint_every=2) == (train(0), Publish())
    assert orders_of(train(1), steps=6, publish=True, checkpoint_every=2) == (train(1), Publish(), Checkpoint())
    assert orders_of(train(1), steps=6, publish=False, checkpoint_every=5) == (train(1),)
    assert orders_of(train(4), steps=5, publish=True, checkpoint_every=2) == (train(4), Publish(), Checkpoint(), Stop())
    assert orders_of(train(5), steps=6, publish=False, checkpoint_every=2) == (train(5), Checkpoint(), Stop())


def test_a_model_is_exported_every_so_many_steps_but_for_the_last_one() -> None:
    def orders(version: int) -> tuple[Order, ...]:
        return orders_of(train(version), steps=6, publish=False, checkpoint_every=6, export_every=3)

    assert [orders(version) for version in (1, 2)] == [(train(1),), (train(2), Export())]
    assert orders(5) == (train(5), Checkpoint(), Stop())


def test_a_restart_voids_what_was_ordered_before() -> None:
    row = OrderRow(ranks=2)
    assert not row.add((Publish(),), 0), "nobody has begun"
    old = row.begin()
    assert row.add((Publish(), Stop()), old)
    new = row.begin()
    assert not row.add((Publish(),), old)
    assert row.ask(0, new, 0) is None
    with pytest.raises(VoidEpoch, match="epoch 1 is over: this is epoch 2"):
        row.ask(1, old, 0)


@given(st.lists(st.sampled_from(["plan", "rank 0", "rank 1", "publish", "checkpoint", "restart"]), max_size=60))
def test_all_ranks_see_one_row_and_at_most_one_batch_waits(actions: list[str]) -> None:
    row = OrderRow(ranks=2)
    epoch, version = row.begin(), 0
    seen: list[list[Numbered]] = [[], []]
    for action in actions:
        match action:
            case "plan" if row.has_room():
                row.add((train(version), Publish()), epoch)
                version += 1
            case "publish":
                row.add((Publish(),), epoch)
            case "checkpoint":
                row.checkpoint()
            case "restart":
                epoch, version, seen = row.begin(), 0, [[], []]
            case "rank 0" | "rank 1":
                rank = int(action[-1])
                if (found := row.ask(rank, epoch, len(seen[rank]))) is not None:
                    seen[rank].append(found)
    shorter, longer = sorted(seen, key=len)
    assert longer[: len(shorter)] == shorter
    both = max(0, min(*row.asked, len(row.orders)))
    assert [found.order for found in longer[both:]] == row.orders[both : len(longer)]
    kept = [order.shares for order in row.orders[:both] if isinstance(order, Train)]
    assert not any(kept), "samples that all ranks are through with are not held"
    assert all(found.epoch == epoch for found in longer)
    waiting = [order for order in row.orders[len(longer) :] if isinstance(order, Train)]
    assert len(waiting) <= 2  # one that a rank waits for already, and one more
    unasked = [order for order in row.orders[max(row.asked) + 1 :] if isinstance(order, Train)]
    assert len(unasked) <= 1


@pytest.mark.parametrize(
    ("orders", "asked", "after", "version"),
    [
        pytest.param((), [0, 0], (), None, id="nothing is trained yet"),
        pytest.param((train(4), Publish()), [2, 1], (train(4), Publish(), Checkpoint()), 5, id="they wait for a batch"),
        pytest.param(
            (train(4), Publish(), train(5), Publish()),
            [0, 0],
            (train(4), Publish(), Checkpoint(), train(5), Publish()),
            5,
            id="a batch waits",
        ),
        pytest.param(
            (train(4), Publish(), train(5), Publish()),
            [1, 2],
            (train(4), Publish(), train(5), Publish(), Checkpoint()),
            6,
            id="one rank has the next batch",
        ),
        pytest.param(
            (train(4), Checkpoint(), Export()), [3, 3], (train(4), Checkpoint(), Export()), 5, id="there is one"
        ),
        pytest.param((Stop(),), [0, 0], (Stop(),), None, id="they are through"),
    ],
)
def test_a_last_checkpoint_comes_before_the_next_batch(
    orders: tuple[Order, ...], asked: list[int], after: tuple[Order, ...], version: int | None
) -> None:
    row = OrderRow(ranks=2)
    epoch = row.begin()
    row.add(orders, epoch)
    row.asked = asked
    assert row.checkpoint() == version
    assert row.checkpoint() == version, "a second request asks for the same one"
    assert tuple(row.orders) == after


async def test_a_rank_that_waits_for_a_batch_gets_the_last_checkpoint() -> None:
    row = make_buffer(checkpoint_every=100)
    epoch = await row.begin(0)
    assert await row.put(train(0), epoch)
    for number in range(2):
        await asyncio.gather(*(row.next_order(rank, epoch, number) for rank in range(2)))
    waiting = asyncio.ensure_future(row.next_order(0, epoch, 2))
    await asyncio.sleep(0)
    assert await row.checkpoint() == 1
    found = await asyncio.wait_for(waiting, PATIENCE_S)
    assert found is not None
    assert found.order == Checkpoint()


def test_a_rank_gets_its_own_share_alone() -> None:
    row = OrderRow(ranks=2)
    epoch = row.begin()
    row.add((train(0), Stop()), epoch)
    found = [row.for_rank(Numbered(epoch, n, row.orders[n]), 1).order for n in range(2)]
    assert found[0] == Train(version=0, shares=((), ("0-1",)), cursor=[0, [7]])
    assert found[1] == Stop()


def test_ranks_that_share_rows_get_the_same_share() -> None:
    row = OrderRow(ranks=4)
    epoch = row.begin()
    row.add((train(0),), epoch)
    found = [row.for_rank(Numbered(epoch, 0, row.orders[0]), rank).order for rank in range(4)]
    first, second = ((("0-0",), ()), ((), ("0-1",)))
    assert [order.shares for order in found if isinstance(order, Train)] == [first, first, second, second]


def make_buffer(clock: Callable[[], float] = lambda: 0.0, **settings: int) -> TrajectoryBuffer:
    return TrajectoryBuffer(ranks=2, steps=settings.get("steps", 10), publish=True, checkpoint_every=100, clock=clock)


def started(epoch: int, samples_s: float = 0.0) -> Started:
    spent: dict[str, float] = {LearnerState.SAMPLES: samples_s}
    return Started(
        version=0, cursor=0, weights=None, probes=(), parity="", shares_prefixes=True, epoch=epoch, spent=spent
    )


def stepped(loss: float = 0.2, waited: float = 0.0) -> Stepped:
    report = replace(a_report(), loss=loss)
    return Stepped(version=1, report=report, weights=None, probes=(), began=0.0, ended=1.0, waited=waited)


async def test_learners_that_start_before_the_driver_looks_have_not_waited_for_it() -> None:
    now = 100.0
    row = make_buffer(lambda: now)
    epoch = await row.begin(0)
    await row.emit(started(epoch), epoch)
    now = 130.0
    assert await row.next_event() == started(epoch, samples_s=30.0)
    for _ in range(2):
        await row.emit(stepped(waited=32.0), epoch)
    assert [(await row.next_event()) for _ in range(2)] == [stepped(waited=2.0), stepped(waited=32.0)]


async def test_a_second_batch_waits_until_a_rank_has_asked_for_the_first() -> None:
    row = make_buffer()
    epoch = await row.begin(0)
    assert await row.put(train(0), epoch)
    second = asyncio.ensure_future(row.put(train(1), epoch))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not second.done()
    first = await row.next_order(1, epoch, 0)
    assert first is not None
    assert first.order == Train(version=0, shares=((), ("0-1",)), cursor=[0, [7]])
    assert await second
    published = await row.next_order(1, epoch, 1)
    assert published is not None
    assert published.order == Publish()


async def test_a_waiting_batch_is_refused_when_the_learners_start_again() -> None:
    row = make_buffer()
    epoch = await row.begin(0)
    assert await row.put(train(0), epoch)
    second = asyncio.ensure_future(row.put(train(1), epoch))
    asking = asyncio.ensure_future(row.next_order(0, epoch, 2))
    await asyncio.sleep(0)
    assert await row.begin(0) == epoch + 1
    assert not await second
    with pytest.raises(VoidEpoch):
        await asking


async def test_a_checkpoint_waits_until_the_driver_has_recorded_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    row = make_buffer()
    epoch = await row.begin(3)
    assert await row.has_recorded(3, epoch)
    waiting = asyncio.ensure_future(row.has_recorded(4, epoch))
    await row.recorded(4, epoch - 1)
    assert not waiting.done(), "it was the step of an epoch before"
    await row.recorded(4, epoch)
    assert await waiting
    monkeypatch.setattr(buffer, "POLL_S", 0.01)
    assert not await row.has_recorded(5, epoch)
    await row.begin(2)
    with pytest.raises(VoidEpoch):
        await row.has_recorded(2, epoch)


async def test_a_buffer_in_the_place_of_another_refuses_what_was_for_that() -> None:
    first, second = make_buffer(), make_buffer()
    epoch = await first.begin(0)
    assert not await second.put(train(0), epoch)
    with pytest.raises(VoidEpoch):
        await second.next_order(0, epoch, 0)
    assert await second.begin(0) != epoch
    assert not await second.put(train(0), epoch)


async def test_a_late_message_of_a_rank_whose_group_has_started_again_is_refused() -> None:
    """A host that was cut off is reached again before its rank is ended: its step is rolled back, and its weights are
    not those of the version that it names."""

    row = make_buffer()
    old = await row.begin(0)
    await row.emit(started(old), old)
    new = await row.begin(0)
    await row.emit(started(new), new)
    for late in (stepped(0.1), Finished(version=10)):
        with pytest.raises(VoidEpoch):
            await row.emit(late, old)
    await row.emit(stepped(0.2), new)
    told = [await row.next_event() for _ in range(3)]
    assert told == [started(old), started(new), stepped(0.2)]


def test_a_rank_that_says_nothing_is_named_also_where_all_wait_for_it() -> None:
    progress = RankProgress()
    progress.begin(0.0)
    assert progress.stalled({0: 3, 1: 3}, 1000.0, 120.0) == "", "ranks that start say nothing yet"
    for now in (0.0, 10.0, 20.0):
        progress.heartbeat(0, 7, now)
        progress.heartbeat(1, 7, now)
    progress.heartbeat(0, 7, 79.0)
    assert progress.stalled({0: 3, 1: 3}, 79.0, 120.0) == ""
    told = "learner rank 1 gave no sign of life for more than 60 s"
    assert progress.stalled({0: 3, 1: 3}, 80.0, 120.0) == told
    assert progress.stalled({}, 80.0, 120.0) == told, "and also where there is no batch"
    progress.begin(141.0)
    assert progress.stalled({0: 3, 1: 3}, 1000.0, 120.0) == ""


def test_a_rank_that_lives_and_does_not_get_on_with_its_step_is_named() -> None:
    progress = RankProgress()
    progress.begin(0.0)
    for now in (10.0, 70.0, 130.0):
        for rank, passes in ((0, 5), (1, 4), (2, 5), (3, 4)):
            progress.heartbeat(rank, passes, now)
    told = "learner ranks 1, 3 did not finish step 8: no forward pass began for more than 120 s"
    assert progress.stalled(dict.fromkeys(range(4), 8), 129.0, 120.0) == ""
    assert progress.stalled(dict.fromkeys(range(4), 8), 130.0, 120.0) == told
    assert progress.stalled({0: 8, 2: 8}, 130.0, 120.0).startswith("learner ranks 0, 2 "), "others have finished it"
    assert progress.stalled({}, 130.0, 120.0) == "", "they wait for a batch"
    progress.heartbeat(3, 5, 131.0)
    assert progress.stalled(dict.fromkeys(range(4), 8), 132.0, 120.0) == ""


async def test_the_buffer_knows_which_ranks_are_within_a_step_and_since_when(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(buffer, "time", SimpleNamespace(monotonic=lambda: clock.now))
    row = make_buffer()
    old = await row.begin(0)
    epoch = await row.begin(4)

    async def heartbeat(now: float) -> None:
        clock.now = now
        for rank in range(2):
            await row.heartbeat(rank, epoch, 3)

    await heartbeat(0.0)
    await heartbeat(1000.0)
    assert await row.stalled(60.0) == "", "there was no batch"
    assert await row.put(train(4), epoch)
    for rank in range(2):
        await row.next_order(rank, epoch, 0)
    await row.next_order(0, epoch, 1)  # it publishes
    await heartbeat(1060.0)
    await row.heartbeat(1, old, 9)
    assert await row.stalled(61.0) == "", "counted from its beginning"
    told = "learner rank 1 did not finish step 5: no forward pass began for more than 60 s"
    assert await row.stalled(60.0) == told


async def test_of_ranks_that_are_gone_no_sign_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(buffer, "time", SimpleNamespace(monotonic=lambda: clock.now))
    row = make_buffer()
    epoch = await row.begin(0)
    await row.heartbeat(0, epoch, 3)
    clock.now = 500.0
    assert await row.stalled(60.0) == "learner rank 0 gave no sign of life for more than 30 s"
    await row.gone()
    assert await row.stalled(60.0) == "", "others are being started, however long that takes"


def test_a_rank_that_waits_is_answered_in_time_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        row = make_buffer()
        epoch = await row.begin(0)
        assert await row.next_order(0, epoch, 0) is None
        assert not await row.released()
        await row.release()
        assert await row.released()

    monkeypatch.setattr(buffer, "POLL_S", 0.01)
    asyncio.run(main())


async def test_the_driver_hears_of_a_checkpoint_that_is_committed() -> None:
    row, told = make_buffer(), Committed(version=3, write_s=1.0, commit_s=2.0, size=5)
    await row.committed(told)
    assert await asyncio.wait_for(row.next_event(), PATIENCE_S) == told


async def test_learners_that_are_through_already_are_told_to_stop() -> None:
    row = make_buffer(steps=3)
    epoch = await row.begin(3)
    found = await row.next_order(0, epoch, 0)
    assert found is not None
    assert found.order == Stop()
