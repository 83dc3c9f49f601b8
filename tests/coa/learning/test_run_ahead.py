"""How far engines run ahead: less where finished groups lie unused, and all the window allows where learners wait."""

import pytest

from coa.learning.window import RunAhead

SIZE, STALENESS = 4, 2


def held_back(*stocks: int, staleness: int = STALENESS) -> list[int]:
    """After each batch, with so many groups finished at its beginning; before the first, learners found none."""
    ahead = RunAhead(SIZE, staleness)
    ahead.begin_batch(0)
    found = []
    for stock in stocks:
        ahead.begin_batch(stock)
        found.append(ahead.held_back)
    return found


@pytest.mark.parametrize(("staleness", "begun"), [(0, 0), (1, 0), (2, SIZE), (4, 3 * SIZE)])
def test_engines_begin_with_one_batch_in_reserve_until_learners_want_more(staleness: int, begun: int) -> None:
    ahead = RunAhead(SIZE, staleness)
    assert ahead.held_back == begun
    for _ in range(9):
        ahead.begin_batch(2 * SIZE)
    assert ahead.held_back == begun
    ahead.begin_batch(SIZE - 1)
    assert ahead.held_back == 0


def test_what_was_left_over_for_a_whole_window_of_versions_is_held_back() -> None:
    # A batch to begin, one in reserve, and at least three more each time.
    assert held_back(13, 11, 12) == [0, 0, 3]


def test_one_batch_in_reserve_is_no_surplus() -> None:
    assert held_back(*[2 * SIZE] * 9) == [0] * 9
    assert held_back(12, 12, 8, 12, 12) == [0] * 5, "once in a window nothing was left over"


def test_what_is_held_back_shows_a_window_later_and_is_not_counted_twice() -> None:
    assert held_back(10, 10, 10, 10, 10, 8, 8) == [0, 0, 2, 2, 2, 2, 2]


def test_learners_that_find_less_than_a_batch_get_the_whole_window_at_once() -> None:
    assert held_back(11, 11, 11, SIZE, SIZE - 1, 11, 11, 11) == [0, 0, 3, 3, 0, 0, 0, 3]


def test_a_batch_can_always_be_filled() -> None:
    assert held_back(*[100] * 9)[-1] == STALENESS * SIZE
    assert held_back(100, 100, staleness=0) == [0, 0]
