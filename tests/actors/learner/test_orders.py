"""Orders to the ranks: one row for all, void once the learners start again."""

import asyncio
from dataclasses import replace

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
    Stop,
    Train,
    VoidEpoch,
    orders_of,
)
from tests.support.reports import a_report


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


@given(st.lists(st.sampled_from(["plan", "rank 0", "rank 1", "publish", "restart"]), max_size=60))
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


def make_buffer(**settings: int) -> TrajectoryBuffer:
    return TrajectoryBuffer(ranks=2, steps=settings.get("steps", 10), publish=True, checkpoint_every=100)


def test_a_second_batch_waits_until_a_rank_has_asked_for_the_first() -> None:
    async def main() -> None:
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

    asyncio.run(main())


def test_a_waiting_batch_is_refused_when_the_learners_start_again() -> None:
    async def main() -> None:
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

    asyncio.run(main())


def test_a_checkpoint_waits_until_the_driver_has_recorded_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
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

    asyncio.run(main())


def test_a_buffer_in_the_place_of_another_refuses_what_was_for_that() -> None:
    async def main() -> None:
        first, second = make_buffer(), make_buffer()
        epoch = await first.begin(0)
        assert not await second.put(train(0), epoch)
        with pytest.raises(VoidEpoch):
            await second.next_order(0, epoch, 0)
        assert await second.begin(0) != epoch
        assert not await second.put(train(0), epoch)

    asyncio.run(main())


def test_a_late_message_of_a_rank_whose_group_has_started_again_is_refused() -> None:
    """A host that was cut off is reached again before its rank is ended: its step is rolled back, and its weights are
    not those of the version that it names."""

    def started(epoch: int) -> Started:
        return Started(version=0, cursor=0, weights=None, probes=(), epoch=epoch)

    def stepped(loss: float) -> Stepped:
        report = replace(a_report(), loss=loss)
        return Stepped(version=1, report=report, weights=None, probes=(), began=0.0, ended=1.0, waited=0.0)

    async def main() -> None:
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

    asyncio.run(main())


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


def test_the_driver_hears_of_a_checkpoint_that_is_committed() -> None:
    async def main() -> None:
        row, told = make_buffer(), Committed(version=3, write_s=1.0, commit_s=2.0, size=5)
        await row.committed(told)
        assert await asyncio.wait_for(row.next_event(), 10) == told

    asyncio.run(main())


def test_learners_that_are_through_already_are_told_to_stop() -> None:
    async def main() -> None:
        row = make_buffer(steps=3)
        epoch = await row.begin(3)
        found = await row.next_order(0, epoch, 0)
        assert found is not None
        assert found.order == Stop()

    asyncio.run(main())
