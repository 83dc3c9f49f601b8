"""Families of tasks that vanish from training while the rest goes on."""

import random

import pytest

from coa.learning.families import LOST, Families, Vanished

DOWN = "ToolDown: web_search: connection refused"


def test_a_family_whose_groups_all_fail_is_named_once_and_taken_back_once() -> None:
    families, said = Families(), []
    for group in range(0, 20, 2):
        families.issue(group, "web")
        families.issue(group + 1, "calc")
        families.play(group + 1)
        families.lose(group, DOWN)
        said.append(families.news(version=group))
    assert [len(news) for news in said] == [0] * (LOST - 1) + [1] + [0] * (10 - LOST)
    [sentence] = said[LOST - 1]
    assert (
        sentence
        == f"the family web has vanished from training: its last 3 groups came to nothing, the last one: {DOWN}"
    )
    assert families.metrics() == {"families_missing": 1, "missing/web": 1}

    families.issue(20, "web")
    families.play(20)
    assert families.news(version=21) == ["the family web is trained again"]
    assert families.news(version=22) == []
    assert families.metrics() == {"families_missing": 0, "missing/web": 0}
    [past] = families.history
    assert past == Vanished("web", past.why, since=2 * (LOST - 1), until=21)


def test_failures_with_a_success_in_between_are_no_alarm() -> None:
    families = Families()
    for group in range(30):
        families.issue(group, "web")
        families.play(group) if group % LOST == 0 else families.lose(group, DOWN)
        assert families.news(version=0) == []
    assert families.metrics() == {"families_missing": 0}


def test_a_family_of_which_no_task_is_issued_any_more_is_named() -> None:
    families = Families()
    for group in range(200):
        family = "web" if group < 100 and group % 2 else "calc"
        families.issue(group, family)
        families.play(group)
        if news := families.news(version=group):
            break
    assert news == [
        "the family web has vanished from training: none of the last 20 tasks is of it, while 50 of the 100 before were"
    ]
    families.issue(300, "web")
    assert families.news(version=9) == ["the family web is trained again"]


def test_a_rare_family_is_missed_only_when_chance_does_not_explain_it() -> None:
    for groups, missed_after in ((1, None), (3, 178), (10, 31)):
        families, said = Families(), []
        for group in range(300):
            families.issue(group, "rare" if group < 2 * groups and group % 2 == 0 else "calc")
            families.play(group)
            said += [group + 1 - (2 * groups - 1)] * len(families.news(version=0))
        assert said == ([] if missed_after is None else [missed_after]), groups


@pytest.mark.parametrize("count", [2, 20, 200])
def test_families_that_are_all_issued_by_chance_are_no_alarm(count: int) -> None:
    families, draw = Families(), random.Random(0)
    for group in range(1000):
        families.issue(group, f"f{draw.randrange(count)}")
        families.play(group)
        assert families.news(version=0) == []


def test_groups_of_a_start_that_is_over_do_not_count() -> None:
    families = Families()
    for group in range(LOST):
        families.issue(group, "web")
    families.void()
    for group in range(LOST):
        families.lose(group, DOWN)
    assert families.news(version=0) == []
