"""A pyramid: questions are split, branches judged, and the head answers from their reports."""

import pytest

from coa.agent.grammar import render
from coa.distill import to_chain
from coa.distill.stages import interactions
from coa.teams.pyramid import branches_of
from coa.teams.teams import TeamConfig
from coa.teams.transcript import AgentStep, Ending, Transcript, prompt_of
from tests.support.teams import SEARCH, authors, play_replies

SPLIT = "<plan> 1. Where ?\n2. Who ?</plan>"
GOOD, BAD = "<double_check> 4 seen</double_check>", "<double_check> 1 guessed</double_check>"


def A(text: str) -> str:
    return f"<answer> {text}</answer>"


def play(*replies: str, rounds: int = 1, depth: int = 1) -> Transcript:
    return play_replies(TeamConfig(rules="pyramid", rounds=rounds, depth=depth, corrections=0), *replies)


def test_the_head_answers_from_the_reports_of_its_branches_and_all_of_it_is_one_chain() -> None:
    end = play(SPLIT, SEARCH, A("there"), GOOD, SEARCH.replace("a<", "b<"), A("x"), GOOD, A("x"))
    assert authors(end) == [
        *("head", "team 1", "leaf 1", "leaf 1", "judge 1", "team"),
        *("team 2", "leaf 2", "leaf 2", "judge 2", "team", "head"),
    ]
    assert (end.ending, end.answer, end.settled) == (Ending.ANSWERED, "x", (0,))
    assert render(to_chain(end)) == (
        "<plan> 1. Where ?\n2. Who ?</plan><think> Where ?</think><wiki_search> a</wiki_search>"
        "<observation> seen</observation><think> there</think><reflection> 4 seen</reflection><think> Who ?</think>"
        "<wiki_search> b</wiki_search><observation> seen</observation><think> x</think>"
        "<reflection> 4 seen</reflection><answer> x</answer>"
    )
    assert interactions(end) == 10


def test_a_branch_sees_its_question_and_the_reports_before_it_alone() -> None:
    end = play(SPLIT, A("there"), GOOD, A("x"), GOOD, A("x"))
    leaf, head = (
        next(n for n, step in reversed([*enumerate(end.steps)]) if isinstance(step, AgentStep) and step.agent == agent)
        for agent in ("leaf", "head")
    )
    assert prompt_of(end, leaf).messages[1].content == (
        "Question: Who ?\n\nWork so far:\nteam: <observation> 1. Where ?: there (score 4)</observation>"
        "<think> Who ?</think>"
    )
    assert prompt_of(end, head).messages[1].content == (
        f"Question: Who ?\n\nWork so far:\nhead: {SPLIT}\n"
        "team: <observation> 1. Where ?: there (score 4)</observation>\n"
        "team: <observation> 2. Who ?: x (score 4)</observation>"
    )


def test_a_branch_that_is_doubted_is_worked_on_again_while_there_are_rounds() -> None:
    end = play(SPLIT, A("here"), BAD, A("there"), BAD, A("x"), GOOD, A("x"))
    assert authors(end)[:7] == ["head", "team 1", "leaf 1", "judge 1", "leaf 1", "judge 1", "team"]
    assert authors(play(SPLIT, A("here"), BAD, A("x"), GOOD, A("x"), rounds=0)).count("leaf 1") == 1


def test_a_simple_question_is_not_split() -> None:
    end = play("<plan> look</plan>", SEARCH, A("x"), BAD, A("y"), GOOD)
    assert authors(end) == ["head", "leaf", "leaf", "judge", "leaf", "judge", "team"]
    assert end.answer == "y"
    assert branches_of("1. only one") == ()


def test_a_head_may_hand_a_question_to_another_head() -> None:
    inner = (SPLIT.replace("Where", "Which"), A("this"), GOOD, A("that"), GOOD, A("there"), GOOD)
    end = play(SPLIT, *inner, "<plan> look</plan>", A("x"), GOOD, A("x"), depth=2)
    assert authors(end) == [
        *("head", "team 1", "head 1", "team 2", "leaf 2", "judge 2", "team 1"),
        *("team 3", "leaf 3", "judge 3", "team 1", "head 1", "judge 1", "team"),
        *("team 4", "head 4", "leaf 4", "judge 4", "team", "head"),
    ]
    assert end.answer == "x"


@pytest.mark.parametrize(
    "said",
    [
        (A("x"),),
        ("<plan> " + "\n".join(f"{n}. Who ?" for n in range(6)) + "</plan>",),
        (SPLIT, A("there"), "<double_check> good</double_check>"),
        (SPLIT, A("there"), GOOD, A("x"), GOOD, SPLIT),
    ],
)
def test_a_reply_that_is_not_of_its_role_makes_the_run_malformed(said: tuple[str, ...]) -> None:
    assert play(*said).ending is Ending.MALFORMED
