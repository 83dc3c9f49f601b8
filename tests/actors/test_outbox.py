"""What is said once arrives once, in order, also over a line that loses replies."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.outbox import Outbox, pace_of
from tests.support.virtual_time import in_virtual_time


@settings(derandomize=True, max_examples=200, deadline=None, database=None)
@given(steps=st.lists(st.sampled_from(["put", "poll", "lost poll", "poll twice"]), max_size=40))
def test_a_reader_that_asks_again_for_what_was_lost_has_everything_in_order(steps: list[str]) -> None:
    async def go() -> None:
        outbox: Outbox[int] = Outbox()
        said, had = 0, []
        for step in [*steps, "put", "poll"]:
            if step == "put":
                outbox.put(said)
                said += 1
            elif said > len(had):
                outbox.acknowledge(len(had))
                first, items = await outbox.next()
                if step == "poll twice":
                    assert (first, items) == await outbox.next()
                assert first == len(had)
                if step != "lost poll":
                    had += items
        assert had == list(range(said))
        assert outbox.end == said

    asyncio.run(go())


def test_a_poll_is_answered_at_the_first_item_and_brings_what_is_said_in_the_same_moment() -> None:
    async def go() -> None:
        outbox: Outbox[str] = Outbox()
        poll = asyncio.ensure_future(outbox.next())
        await asyncio.sleep(0)
        assert not poll.done()
        outbox.put("a")
        outbox.put("b")
        assert await poll == (0, ("a", "b"))
        assert list(outbox.acknowledge(1)) == ["a"]
        assert list(outbox.acknowledge(1)) == []
        assert await outbox.next() == (1, ("b",))

    asyncio.run(go())


def test_a_poll_that_waits_in_vain_is_answered_with_nothing() -> None:
    async def go() -> None:
        outbox: Outbox[str] = Outbox()
        assert await outbox.next(0.001) == (0, ())
        outbox.put("a")
        outbox.acknowledge(1)
        assert await outbox.next(0.001) == (1, ())

    asyncio.run(go())


def test_a_newer_poll_takes_the_place_of_an_older_one() -> None:
    async def go() -> None:
        outbox: Outbox[str] = Outbox()
        older, newer = (asyncio.ensure_future(outbox.next()) for _ in range(2))
        assert await older == (0, ())
        outbox.put("a")
        assert await newer == (0, ("a",))

    asyncio.run(go())


def test_a_failure_reaches_who_waits_and_who_asks_later() -> None:
    async def go() -> None:
        outbox: Outbox[str] = Outbox()
        poll = asyncio.ensure_future(outbox.next())
        await asyncio.sleep(0)
        outbox.fail(ZeroDivisionError("a defect"))
        for asked in (poll, outbox.next()):
            with pytest.raises(ZeroDivisionError, match="a defect"):
                await asked

    asyncio.run(go())


def test_what_was_never_said_can_not_be_acknowledged() -> None:
    outbox: Outbox[str] = Outbox()
    outbox.put("a")
    with pytest.raises(ValueError, match="2 items are acknowledged, there were 1"):
        outbox.acknowledge(2)


def test_the_pace_is_two_milliseconds_for_each_conversation_and_a_tenth_of_a_second_at_most() -> None:
    assert [pace_of(under_way) for under_way in (0, 1, 10, 50, 1280)] == [0.0, 0.002, 0.02, 0.1, 0.1]


def test_an_answer_no_longer_waits_once_nothing_more_is_under_way() -> None:
    async def go() -> None:
        under_way = 500
        outbox: Outbox[int] = Outbox(pace=lambda: pace_of(under_way))
        outbox.put(1)
        await outbox.next()
        outbox.acknowledge(1)
        loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        outbox.put(2)
        answer = asyncio.ensure_future(outbox.next())
        await asyncio.sleep(0.055)
        assert not answer.done()
        outbox.put(3)
        under_way = 0
        assert await answer == (1, (2, 3))
        assert loop.time() - began == pytest.approx(0.06)

    in_virtual_time(go())


def test_a_paced_outbox_answers_a_first_item_at_once_and_a_busy_sender_in_batches() -> None:
    async def go() -> None:
        outbox: Outbox[int] = Outbox(pace=lambda: 1.0)
        loop, answers, heard = asyncio.get_running_loop(), [], 0

        async def send() -> None:
            for number in range(8):
                outbox.put(number)
                await asyncio.sleep(0.3)

        sending, began = asyncio.ensure_future(send()), loop.time()
        while heard < 8:
            outbox.acknowledge(heard)
            first, items = await outbox.next()
            heard = first + len(items)
            answers.append((round(loop.time() - began, 1), items))
        await sending
        assert answers == [(0.0, (0,)), (1.0, (1, 2, 3)), (2.0, (4, 5, 6)), (3.0, (7,))]

    in_virtual_time(go())
