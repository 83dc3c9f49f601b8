"""Rewards: the outcome, gated by form, less the fine for length."""

import numpy as np
import pytest

from coa.rewards import RewardConfig, exact_match, maths, normalise, overlong, score
from coa.types import Scored, Status, Task, Trajectory


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("Berg", True),
        (" the BERG. ", True),
        ("Nora  Berg", True),
        ("Berg | Nora Berg", True),
        ("Berg|", True),
        ("Berg | Lind", False),
        ("Berg Lind", False),
        ("Bergs", False),
        ("", False),
        (" | ", False),
        ("the", False),
        ("...", False),
    ],
)
def test_an_answer_is_right_if_each_of_its_parts_is_accepted(answer: str, right: bool) -> None:
    assert exact_match(answer, ("Berg", "Nora Berg")) is right


def test_articles_punctuation_case_and_blanks_do_not_count() -> None:
    assert normalise(" The  U.S. of  an Era ") == "us of era"
    assert normalise("theatre, again") == "theatre again"
    assert exact_match("1,000", ("1000",))


@pytest.mark.parametrize(("answer", "gold"), [("the", "A"), ("!", "?"), ("B", "A")])
def test_an_answer_of_which_nothing_else_is_left_counts_as_it_stands(answer: str, gold: str) -> None:
    assert not exact_match(answer, (gold,))
    assert exact_match(f" {gold.lower()} ", (gold,))


@pytest.mark.parametrize(("answer", "gold"), [("-5", "5"), ("35", "3.5"), ("5", "-5")])
def test_a_numbers_sign_and_point_are_not_punctuation(answer: str, gold: str) -> None:
    assert not exact_match(answer, (gold,))
    assert exact_match(f"{gold}.", (gold,))


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("0.5", r"\frac{1}{2}"),
        ("1/2", "0.5"),
        ("$x^2 + 2x + 1$", "(x+1)^2"),
        (r"\boxed{7}", "7"),
        ("$2\\sqrt{2}$", r"\sqrt{8}"),
        ("42", "42"),
    ],
)
def test_equal_expressions_are_the_same_answer(answer: str, gold: str) -> None:
    assert maths(answer, ("nothing", gold))


@pytest.mark.parametrize(("answer", "gold"), [("0.3", r"\frac{1}{3}"), ("41", "42"), ("", "42"), ("-7", "7")])
def test_unequal_expressions_are_not(answer: str, gold: str) -> None:
    assert not maths(answer, (gold,))


@pytest.mark.parametrize(
    ("length", "fine"), [(0, 0.0), (87, 0.0), (700, 0.0), (701, -0.01), (750, -0.5), (800, -1.0), (9999, -1.0)]
)
def test_the_fine_grows_over_the_last_eighth_of_the_budget(length: int, fine: float) -> None:
    assert overlong(length, 800, 0.125) == fine


def test_without_a_buffer_or_a_budget_there_is_no_fine() -> None:
    assert overlong(900, 800, 0.0) == 0.0
    assert overlong(0, 0, 0.125) == 0.0
    assert overlong(0, -5, 0.125) == 0.0


def scored(
    answer: str = "Berg",
    *,
    status: Status = Status.ANSWERED,
    holds: bool = True,
    need_form: bool = True,
    grader: str = "exact",
    length: int = 10,
) -> Scored:
    """Of a trajectory with 5 tokens of prompt and a budget of 80 after it."""
    n = 5 + length
    trajectory = Trajectory(
        task_id="t",
        sample=0,
        token_ids=np.zeros(n, np.int32),
        by_policy=np.arange(n) >= 5,
        logprobs=np.zeros(n, np.float32),
        versions=np.zeros(n, np.int32),
        prompt_length=5,
        turns=1,
        tool_calls=(),
        status=status,
        answer=answer,
        text="",
        transitions_hold=holds,
    )
    task = Task(id="t", question="?", answers=("Berg", "2"), profile="mhqa", family="f", grader=grader)
    return score(trajectory, task, RewardConfig(need_form=need_form), budget=80)


def verdict(it: Scored) -> tuple[bool, bool, float]:
    return it.correct, it.well_formed, it.reward


def test_a_right_answer_in_form_earns_one() -> None:
    assert verdict(scored()) == (True, True, 1.0)
    assert verdict(scored("Lind")) == (False, True, 0.0)


def test_a_right_answer_out_of_form_earns_nothing_unless_form_is_not_asked_for() -> None:
    assert verdict(scored(holds=False)) == (True, False, 0.0)
    assert verdict(scored(holds=False, need_form=False)) == (True, False, 1.0)


@pytest.mark.parametrize("status", [Status.MALFORMED, Status.TRUNCATED, Status.OUT_OF_TURNS])
def test_an_episode_without_an_answer_is_neither_right_nor_in_form(status: Status) -> None:
    assert verdict(scored(status=status)) == (False, False, 0.0)
    assert verdict(scored(status=status, need_form=False)) == (False, False, 0.0)


def test_the_fine_counts_tokens_after_the_prompt_and_falls_on_right_and_wrong_alike() -> None:
    assert verdict(scored(length=70)) == (True, True, 1.0)
    assert verdict(scored(length=75)) == (True, True, 0.5)
    assert verdict(scored(length=80)) == (True, True, 0.0)
    assert verdict(scored(length=80, status=Status.TRUNCATED)) == (False, False, -1.0)


def test_the_tasks_grader_decides() -> None:
    assert scored("4/2", grader="math").correct
    assert not scored("4/2", grader="exact").correct
