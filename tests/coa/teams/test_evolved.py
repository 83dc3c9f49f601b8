"""A team that evolves: another way in each generation, and merged answers."""

import pytest

from coa.agent.grammar import render
from coa.distill import to_chain
from coa.teams.teams import TeamConfig
from coa.teams.transcript import Ending, Transcript
from tests.support.teams import SEARCH, authors, play_replies

WAY = "<reflection> look it up</reflection>"
NEW, OLD = "<double_check> 4 new</double_check>", "<double_check> 1 the same</double_check>"
FIRST = ("<plan> p</plan>" + SEARCH, "<answer> x</answer>")
SECOND = "<answer> y</answer>"
MERGED = "<double_check> 4 seen</double_check><answer> y</answer>"


def evolve(*replies: str, rounds: int = 1) -> Transcript:
    return play_replies(TeamConfig(rules="evolved", rounds=rounds, corrections=0), *replies)


def test_each_generation_goes_another_way_and_its_answer_is_merged() -> None:
    end = evolve(*FIRST, WAY, NEW, SEARCH.replace("a<", "b<"), SECOND, MERGED)
    assert authors(end) == ["generator", "generator", "evolver", "selector", "child", "child", "integrator"]
    assert (end.ending, end.answer) == (Ending.ANSWERED, "y")
    assert render(to_chain(end)) == (
        "<plan> p</plan><wiki_search> a</wiki_search><observation> seen</observation><think> x</think>"
        "<reflection> look it up</reflection><think> 4 new</think><wiki_search> b</wiki_search>"
        "<observation> seen</observation><think> y</think><reflection> 4 seen</reflection><answer> y</answer>"
    )
    assert evolve(*FIRST, rounds=0).answer == "x"


def test_a_way_that_is_refused_is_replaced_three_times_and_then_the_answer_stands() -> None:
    assert authors(evolve(*FIRST, WAY, OLD, WAY, NEW, SECOND, MERGED)).count("evolver") == 2
    end = evolve(*FIRST, WAY, OLD, WAY, OLD, WAY, OLD)
    assert authors(end)[-3:] == ["evolver", "selector", "team"]
    assert (end.ending, end.answer) == (Ending.ANSWERED, "x")


def test_the_next_generation_begins_from_the_merged_answer_with_tries_of_its_own() -> None:
    first, second = (WAY, OLD, WAY, OLD, WAY, NEW, SECOND, MERGED), (WAY, OLD, WAY, NEW, SECOND, MERGED)
    end = evolve(*FIRST, *first, *second, rounds=2)
    assert (end.answer, authors(end).count("integrator")) == ("y", 2)


@pytest.mark.parametrize(
    "said",
    [
        (WAY.replace("reflection", "plan"),),
        (WAY, "<double_check> fine</double_check>"),
        (WAY, NEW, SECOND, SECOND),
        (WAY, NEW, SECOND, "<double_check> sure</double_check><answer> y</answer>"),
    ],
)
def test_a_reply_that_is_not_of_its_role_makes_the_run_malformed(said: tuple[str, ...]) -> None:
    assert evolve(*FIRST, *said).ending is Ending.MALFORMED
