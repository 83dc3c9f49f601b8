"""A tool that fails for most groups, while the others are trained; tasks of which most teach nothing any more."""

import pytest

from coa.learning.spells import Spell, Spells, failing, uninformative

DOWN = "ToolDown: web_search: connection refused"
FAILING = failing()


def ended(spells: Spells, failures: int, of: int, version: int = 0) -> list[str]:
    """What is said while so many groups end, of which the last ones fail."""
    said: list[str] = []
    for number in range(of):
        spells.add(DOWN if number >= of - failures else "")
        said += spells.news(version)
    return said


def test_it_is_said_once_that_most_groups_fail_and_once_that_they_do_not() -> None:
    spells = failing()
    assert ended(spells, 11, of=20, version=3) == [
        f"most groups fail: 11 of the last 20 groups failed, most often by {DOWN}"
    ]
    assert spells.share == 0.55
    assert ended(spells, 5, of=5, version=4) == []
    assert ended(spells, 0, of=20, version=5) == ["most groups are played again: 5 of the last 20 groups failed"]
    assert spells.history == [Spell(DOWN, 3, 5)]
    assert ended(spells, 20, of=20, version=9)[0].startswith("most groups fail: 11 of the last 20")
    assert spells.history[1] == Spell(DOWN, 9)


@pytest.mark.parametrize(
    ("failures", "of"),
    [
        (FAILING.last - 1, FAILING.last - 1),
        (int(FAILING.most * FAILING.last), FAILING.last),
        (int(FAILING.most * FAILING.last), 100),
    ],
)
def test_a_few_groups_or_half_of_them_are_not_most(failures: int, of: int) -> None:
    spells = failing()
    assert ended(spells, failures, of=of) == []
    assert spells.history == []


def test_between_the_limits_nothing_changes() -> None:
    spells = failing()
    ended(spells, FAILING.last, of=FAILING.last)
    assert ended(spells, 0, of=FAILING.last - int(FAILING.few * FAILING.last) - 1) == []
    assert failing().share == 0.0


def test_the_reason_is_the_commonest_one_and_of_several_the_newest() -> None:
    spells = uninformative()
    for why in (*["all wrong"] * 12, *["all right"] * 18, *[""] * 9):
        spells.add(why)
    assert spells.news(4) == []
    spells.add("all right")
    assert spells.news(4) == ["most groups teach nothing: 31 of the last 40 are all equally good, most often all right"]
    for why in (*["all wrong"] * 20, *[""] * 10):
        spells.add(why)
    assert spells.news(5) == []
    for _ in range(10):
        spells.add("")
    assert spells.news(6) == ["more groups teach something again: 20 of the last 40 are all equally good"]
    assert spells.history == [Spell("all right", 4, 6)]
    tie = failing()
    for why in (*["one"] * 10, *["two"] * 10):
        tie.add(why)
    assert tie.news(1) == ["most groups fail: 20 of the last 20 groups failed, most often by two"]
