"""A tool that fails for most groups, while the others are trained."""

import pytest

from coa.learning.failing import FEW, LAST, MOST, Failing, Spell

DOWN = "ToolDown: web_search: connection refused"


def ended(failing: Failing, failures: int, of: int, version: int = 0) -> list[str]:
    """What is said while so many groups end, of which the last ones fail."""
    said: list[str] = []
    for number in range(of):
        failing.fail(DOWN) if number >= of - failures else failing.play()
        said += failing.news(version)
    return said


def test_it_is_said_once_that_most_groups_fail_and_once_that_they_do_not() -> None:
    failing = Failing()
    assert ended(failing, 11, of=20, version=3) == [
        f"most groups fail: 11 of the last 20 groups failed, the last one: {DOWN}"
    ]
    assert failing.metrics() == {"failed_fraction": 0.55}
    assert ended(failing, 5, of=5, version=4) == []
    assert ended(failing, 0, of=20, version=5) == ["most groups are played again: 5 of the last 20 groups failed"]
    assert failing.history == [Spell(DOWN, 3, 5)]
    assert ended(failing, 20, of=20, version=9)[0].startswith("most groups fail: 11 of the last 20")
    assert failing.history[1] == Spell(DOWN, 9)


@pytest.mark.parametrize(("failures", "of"), [(LAST - 1, LAST - 1), (int(MOST * LAST), LAST), (int(MOST * LAST), 100)])
def test_a_few_groups_or_half_of_them_are_not_most(failures: int, of: int) -> None:
    failing = Failing()
    assert ended(failing, failures, of=of) == []
    assert failing.history == []


def test_between_the_limits_nothing_changes() -> None:
    failing = Failing()
    ended(failing, LAST, of=LAST)
    assert ended(failing, 0, of=LAST - int(FEW * LAST) - 1) == []
    assert Failing().metrics() == {"failed_fraction": 0.0}
