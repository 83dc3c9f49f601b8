"""What several attempts are worth, and what they cost: every figure by hand."""

from dataclasses import replace
from itertools import combinations
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coa.agent.best_of import Choice
from coa.agent.records import EpisodeRecord
from coa.reporting.readable import number
from coa.reporting.scaling import rows, scaling
from coa.reporting.statistics import mean_at_k, paired_difference, pass_at_k
from coa.types import Status, Task
from tests.support.fakes import played


def task(number: int, family: str = "calc", grader: str = "exact") -> Task:
    return Task(id=f"{family}-{number}", question="?", answers=("x",), profile="mhqa", family=family, grader=grader)


def attempt(answer: str, score: str = "", *, tokens: int = 100, written: int = 10) -> EpisodeRecord:
    """An attempt that is right if its answer has an x; it checks its answer if there is a score."""
    check = f"<double_check> {score}</double_check>" if score else ""
    status = Status.ANSWERED if answer else Status.TRUNCATED
    record = played("x" in answer, answer=answer, status=status)
    text = f"<think> so</think>{check}<answer> {answer}</answer>"
    return replace(record, text=text, tokens_sent=tokens, policy_tokens=written)


TASKS = (task(0), task(1), task(2))
SAMPLED = {
    "calc-0": (attempt("y"), attempt("x", "3 fine"), attempt("The x !", "1 wrong")),
    "calc-1": (attempt("y", "4 good"), attempt("y"), attempt("x", "2 doubtful", tokens=400, written=40)),
    "calc-2": (attempt(""), attempt(""), attempt("x")),
}
GREEDY = {one.id: (attempt("x" if one.id == "calc-0" else "y", tokens=90, written=9),) for one in TASKS}
RIGHT = [[0, 1, 1], [0, 0, 1], [0, 0, 1]]


def test_each_way_to_answer_has_its_rate_and_its_price() -> None:
    judged = {"calc-0": Choice(2, 60), "calc-1": Choice(2, 30), "calc-2": Choice(0)}
    found = scaling(TASKS, GREEDY, SAMPLED, judged)
    assert list(found) == ["all"], "there is one family"
    ways = {way["name"]: way for way in found["all"]}
    # One attempt sends 1200 tokens over 9; majority takes x, y, x; checks take x (3), y (4), x (unchecked).
    once, thrice = pytest.approx(400 / 3), pytest.approx(400)
    expected: dict[str, tuple[float, Any, Any]] = {
        "greedy": (1 / 3, 90, 270),
        "pass@1": (4 / 9, once, 300),
        "best of 3 majority": (2 / 3, thrice, 600),
        "best of 3 double_check": (2 / 3, thrice, 600),
        "best of 3 judge": (2 / 3, pytest.approx(430), 645),
        "pass@2": (7 / 9, pytest.approx(800 / 3), pytest.approx(2400 / 7)),
        "pass@3": (1.0, thrice, 400),
    }
    assert list(ways) == list(expected)
    for name, (rate, tokens, price) in expected.items():
        assert ways[name]["rate"]["mean"] == pytest.approx(rate), name
        assert ways[name]["tokens_per_task"] == tokens, name
        assert ways[name]["tokens_per_success"] == pytest.approx(price), name
    assert ways["best of 3 judge"]["selector_tokens_per_task"] == 30
    assert ways["best of 3 majority"]["sampled_tokens_per_task"] == pytest.approx(40)
    assert ways["pass@1"]["rate"] == mean_at_k(RIGHT)
    assert ways["pass@2"]["rate"] == pass_at_k(RIGHT, 2)
    assert ways["best of 3 majority"]["rate"] == mean_at_k([[1], [0], [1]])
    assert ways["greedy"]["gain"] == paired_difference([1, 0, 0], [2 / 3, 1 / 3, 1 / 3])
    assert ways["best of 3 majority"]["gain"] == paired_difference([1, 0, 1], [2 / 3, 1 / 3, 1 / 3])


def test_a_selector_is_left_out_where_it_has_nothing_to_go_by() -> None:
    unchecked = {"calc-0": (attempt("x"), attempt("y"))}
    names = [way["name"] for way in scaling(TASKS[:1], {}, unchecked)["all"]]
    assert names == ["pass@1", "best of 2 majority", "pass@2"]
    program = replace(TASKS[0], grader="tests")
    [first, *_] = ways = scaling([program], {}, unchecked)["all"]
    assert [way["name"] for way in ways] == ["pass@1", "pass@2"], "programs are never the same text"
    assert first["gain"] is None, "one task has no spread"


def test_what_is_never_right_has_no_price_of_a_success() -> None:
    [way, *_] = scaling(TASKS[:1], {}, {"calc-0": (attempt("y"), attempt(""))})["all"]
    assert (way["rate"]["mean"], way["tokens_per_success"]) == (0.0, None)


def test_each_benchmark_and_each_family_has_its_part_and_all_fit_into_80_columns() -> None:
    tasks = [task(0), task(0, "gaia/level1", "judge"), task(1, "gaia/level2", "judge"), task(0, "livecodebench_v5")]
    sampled = {one.id: tuple(attempt("x", "3", tokens=123_456_789) for _ in range(16)) for one in tasks}
    found = scaling(tasks, {}, sampled, {one.id: Choice(0) for one in tasks})
    assert list(found) == ["all", "calc", "gaia", "livecodebench_v5"]
    assert found["gaia"][0]["rate"]["n"] == 2
    table = list(rows(found))
    assert table[0] == ["all, 4 tasks", "", "", ""]
    assert table[1] == ["  pass@1", "1.000  [0.510, 1.000]", number(123_456_789), number(123_456_789)]
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    assert sum(widths) + 2 * 3 <= 80


@given(st.lists(st.integers(0, 1), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_mean_over_all_choices_of_k_attempts(samples: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(samples)))
    expected = fmean(float(any(some)) for some in combinations(samples, k))
    assert pass_at_k([samples], k)["mean"] == pytest.approx(expected, abs=1e-12)
