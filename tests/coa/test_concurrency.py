import asyncio
from itertools import islice

import pytest

from coa.concurrency import doubling, together, within


def test_pauses_double_up_to_the_longest() -> None:
    assert list(islice(doubling(0.5), 4)) == [0.5, 1, 2, 4]
    assert list(islice(doubling(20.0, 60.0), 4)) == [20, 40, 60, 60]
    assert list(islice(doubling(0.0), 2)) == [0, 0]


def test_pauses_come_to_the_patience_that_there_is() -> None:
    assert list(within(300.0, doubling(0.5, 60.0))) == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60, 56.5]
    assert list(within(3.75, doubling(0.5))) == [0.5, 1, 2, 0.25]
    assert list(within(0.0, doubling(0.5))) == []


def test_the_first_failure_ends_the_others_before_it_is_raised() -> None:
    ended: list[str] = []

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("first")

    async def last() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("last")

    with pytest.raises(ValueError, match="first"):
        asyncio.run(together([fail(), last()]))
    assert ended == ["last"]
