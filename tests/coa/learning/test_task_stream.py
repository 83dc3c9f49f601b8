"""Which task comes next, over any history of failures, batches and restarts."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from coa.learning.task_stream import TaskStream


def test_indices_come_in_order_and_a_failed_one_later() -> None:
    stream = TaskStream(apart=2)
    assert [stream.take() for _ in range(3)] == [0, 1, 2]
    assert stream.fail(1)
    assert [stream.take() for _ in range(4)] == [3, 4, 1, 5]


def test_a_task_that_always_fails_is_given_up_and_holds_nobody_up() -> None:
    stream, tried = TaskStream(tries=3), Counter[int]()
    for _ in range(12):
        index = stream.take()
        tried[index] += 1
        if index == 0:
            assert stream.fail(0) == (tried[0] < 3)
        else:
            stream.done(index)
    assert tried == {0: 3, **dict.fromkeys(range(1, 10), 1)}
    assert stream.cursor() == [10]


def test_failed_tasks_come_before_new_ones_once_there_is_no_room_for_more() -> None:
    stream = TaskStream(apart=10)
    assert [stream.take(room) for room in (5, 4, 3)] == [0, 1, 2]
    assert stream.fail(2)
    assert stream.fail(0)
    assert [stream.take(room) for room in (3, 2, 1)] == [3, 2, 0]


def test_a_failure_that_is_not_counted_uses_up_no_try() -> None:
    stream = TaskStream(apart=0, tries=2)
    for _ in range(5):
        assert stream.take() == 0
        assert stream.fail(0, counted=False)
    assert stream.take() == 0
    assert stream.fail(0)
    assert stream.take() == 0
    assert not stream.fail(0)


def test_a_restart_issues_first_what_was_in_flight() -> None:
    stream = TaskStream(7)
    assert [stream.take() for _ in range(4)] == [7, 8, 9, 10]
    stream.done(8)
    stream.fail(9)
    assert stream.cursor() == [11, 7, 9, 10]
    again = TaskStream(stream.cursor())
    assert [again.take() for _ in range(4)] == [7, 9, 10, 11]


STEPS = st.lists(st.sampled_from("ttttbbdfrc"), min_size=1, max_size=120)


@settings(derandomize=True, max_examples=400, deadline=None, database=None)
@given(steps=STEPS, data=st.data(), apart=st.integers(1, 3))
def test_no_task_is_skipped_and_none_is_committed_twice(steps: list[str], data: st.DataObject, apart: int) -> None:
    """take, batch of two, drop, fail, restart from the last checkpoint, checkpoint."""
    stream = TaskStream(apart=apart)
    flying: list[int] = []
    trained: list[int] = []
    ended: set[int] = set()
    """Dropped for good."""
    saved: tuple[list[int], list[int], set[int]] = (stream.cursor(), [], set())
    formed = saved
    for step in steps:
        match step:
            case "t":
                flying.append(stream.take())
            case "b" if len(flying) >= 2:
                for _ in range(2):
                    index = flying.pop(data.draw(st.integers(0, len(flying) - 1)))
                    stream.done(index)
                    trained.append(index)
                # A plan carries the cursor as it is when its batch is formed.
                formed = (stream.cursor(), list(trained), set(ended))
            case "d" if flying:
                index = flying.pop()
                stream.done(index)
                ended.add(index)
            case "f" if flying:
                index = flying.pop(0)
                if not stream.fail(index):
                    ended.add(index)
            case "c":
                saved = formed
            case "r":
                cursor, committed, dropped = saved
                stream, flying, formed = TaskStream(cursor, apart=apart), [], saved
                trained, ended = list(committed), set(dropped)
        cursor, committed, dropped = saved
        assert max(Counter(trained).values(), default=1) == 1
        # All below the next new index is trained, dropped for good, or will be issued by whoever restarts here.
        assert sorted([*committed, *dropped, *cursor[1:]]) == list(range(cursor[0]))
        assert [one.take() for one in [TaskStream(cursor)] for _ in cursor[1:]] == cursor[1:]


def test_tasks_whose_groups_were_cancelled_come_before_all_others_and_are_in_flight_until_then() -> None:
    stream = TaskStream(apart=3)
    assert [stream.take() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert stream.fail(0)
    stream.done(1)
    stream.stop([2, 3])
    assert stream.cursor() == [5, 0, 2, 3, 4]
    assert [stream.take() for _ in range(6)] == [2, 3, 5, 6, 7, 0]
