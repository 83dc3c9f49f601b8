"""Which kind of team works on which question, learnt from what earlier runs gave and cost."""

import json
from collections.abc import Sequence
from itertools import chain

import numpy as np
import pytest

from coa.teams import routing
from coa.teams.routing import Routes, RunOutcome, Saving, features, learn, measure, outcome_of, tokens_of, words_in
from coa.teams.teams import TeamConfig
from coa.teams.transcript import AgentStep, Graded, Transcript
from coa.usage import Usage
from tests.support.teams import SEARCH, play_replies


def outcome(n: int, kind: str, successes: int, tokens: int, topic: str) -> RunOutcome:
    return RunOutcome(
        task_id=f"{topic}-{n}", question=f"What {topic} number {n}", kind=kind, successes=successes, tokens=tokens
    )


def of_topics(worth: dict[tuple[str, str], tuple[int, int]], count: int = 40) -> list[RunOutcome]:
    """worth: (successes, tokens) of each run, by topic and kind."""
    return [outcome(n, kind, *what, topic) for (topic, kind), what in worth.items() for n in range(count)]


MIXED = {
    ("sum", "planner"): (1, 100),
    ("sum", "debate"): (1, 400),
    ("town", "planner"): (0, 100),
    ("town", "debate"): (1, 150),
}


def test_each_question_goes_to_the_kind_that_gives_the_most_for_its_tokens() -> None:
    routes = learn(of_topics(MIXED))
    assert [routes.choose(f"A {topic} of another kind") for topic in ("sum", "town")] == ["planner", "debate"]
    assert 1 / 200 < routes.price < 2 / 250


def test_a_kind_that_succeeds_more_often_may_still_cost_too_much() -> None:
    dear = MIXED | {("town", "planner"): (1, 100), ("sum", "debate"): (2, 400), ("town", "debate"): (2, 400)}
    assert {learn(of_topics(dear)).choose(f"What {topic}") for topic in ("sum", "town")} == {"planner"}


def test_what_was_learnt_is_the_same_from_runs_in_another_order_and_from_a_file() -> None:
    outcomes = of_topics(MIXED)
    routes, again = learn(outcomes), learn(outcomes[::-1])
    assert (again.kinds, again.words) == (routes.kinds, routes.words)
    np.testing.assert_allclose(again.weights, routes.weights, atol=1e-9)
    read = Routes.from_json(json.loads(json.dumps(routes.to_json())))
    assert read.choose("What town") == "debate"
    np.testing.assert_array_equal(read.weights, routes.weights)


def test_what_is_written_without_blanks_is_taken_by_its_characters() -> None:
    assert words_in("Wer leitet Zürich, 東京 oder 서울 2024 ?") == {
        "wer",
        "leitet",
        "zürich",
        *"東京서울",
        "oder",
        "2024",
    }


def test_words_of_few_questions_or_of_all_are_no_features() -> None:
    words = learn(of_topics(MIXED)).words
    assert set(words) == {"sum", "town"}
    assert features(["the SUM, of a town?"], ("sum", "owner")).tolist() == [[1.0, 1.0, 0.0]]


def test_the_saving_is_measured_on_tasks_that_nothing_was_learnt_from() -> None:
    saving = measure(of_topics(MIXED))
    assert saving is not None
    assert saving == Saving(
        tasks=80,
        alone={"debate": 2 / 550, "planner": 1 / 200},
        routed=2 / 250,
        shares={"debate": 0.5, "planner": 0.5},
    )
    assert saving.best == "planner"


def test_no_task_is_learnt_from_where_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes, learnt_from = of_topics(MIXED), list[set[str]]()

    def learn_and_note(rest: Sequence[RunOutcome]) -> Routes:
        learnt_from.append({one.task_id for one in rest})
        return learn(rest)

    monkeypatch.setattr(routing, "learn", learn_and_note)
    assert measure(outcomes)
    tasks = {one.task_id for one in outcomes}
    held_out = [tasks - some for some in learnt_from]
    assert len(held_out) == routing.FOLDS
    assert sorted(chain(*held_out)) == sorted(tasks)


def test_runs_without_a_common_task_say_nothing_about_the_saving() -> None:
    apart = [one for one in of_topics(MIXED) if (one.kind == "planner") == (one.question.startswith("What sum"))]
    assert measure(apart) is None


def test_tokens_are_those_that_models_counted_or_the_words_of_scripted_experts() -> None:
    run = play_replies(TeamConfig(max_steps=2), "<plan> p</plan>", SEARCH)
    first, second = (len(step.output.split()) for step in run.steps if isinstance(step, AgentStep))
    assert tokens_of(run) > first + second
    paid = Transcript(
        task=run.task,
        attempt=0,
        seed=0,
        steps=(AgentStep("planner", "<plan> p</plan>", usage=Usage(1, 10, 2)),),
        ending=run.ending,
    )
    assert (tokens_of(paid), outcome_of(Graded(paid, True), 1).tokens) == (12, 12)
