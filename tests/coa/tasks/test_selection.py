"""Which tasks are kept for reinforcement, and how a task is asked without tools."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig, Grammar, run_episode
from coa.agent.grammar import ANSWER, START, THINK, Chain, Span
from coa.agent.profiles import PROFILES, profile
from coa.grading.rewards import RewardConfig, score
from coa.tasks.selection import (
    LEARNT,
    NOT_DRAWN,
    SOLVED,
    TOO_EASY,
    UNSOLVED,
    Attempts,
    Learnt,
    Mode,
    Screen,
    SelectionConfig,
    as_attempted,
    draw,
    reason_to_drop,
    select,
)
from coa.types import Status, Task
from tests.support.fakes import CODECS, ROOMY, ScriptedPolicy, ScriptedTools
from tests.support.fakes import task as a_task

DEFAULT = SelectionConfig()


def task(name: str, *, profile: str = "web", question: str = "", family: str = "f", grader: str = "exact") -> Task:
    question = question or f"Who is {name} ?"
    return Task(id=name, question=question, answers=("x",), profile=profile, family=family, grader=grader)


# --- what the attempts say --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "reason"), [(0, None), (9, None), (10, TOO_EASY), (32, TOO_EASY)], ids=["0", "9", "10", "32"]
)
def test_what_a_model_knows_more_often_than_three_times_in_ten_is_dropped(right: int, reason: str | None) -> None:
    assert DEFAULT.direct == Screen(tries=32, max_rate=0.3)
    assert reason_to_drop(Attempts(right, 32), DEFAULT.direct) == reason


@pytest.mark.parametrize(("right", "reason"), [(0, None), (7, None), (8, SOLVED)])
def test_what_the_tuned_agent_always_solves_is_dropped(right: int, reason: str | None) -> None:
    assert DEFAULT.tuned == Screen(tries=8, drop_solved=True)
    assert reason_to_drop(Attempts(right, 8), DEFAULT.tuned) == reason


def test_what_is_out_of_reach_is_dropped_where_that_is_asked_for() -> None:
    reasoner = Screen(tries=16, drop_unsolved=True)
    assert [reason_to_drop(Attempts(right, 16), reasoner) for right in (0, 1, 16)] == [UNSOLVED, None, None]


@given(tries=st.integers(1, 64), hundredths=st.integers(0, 100))
def test_the_highest_rate_that_is_kept_is_exact(tries: int, hundredths: int) -> None:
    """In whole numbers, as no float can say it; 29 of 100 is not more than 0.29, though 0.29 * 100 is less than 29."""
    screen = Screen(tries=tries, max_rate=hundredths / 100)
    for right in range(tries + 1):
        kept = reason_to_drop(Attempts(right, tries), screen) is None
        assert kept == (right * 100 <= hundredths * tries)


def test_a_rate_on_the_edge_is_kept() -> None:
    assert reason_to_drop(Attempts(29, 100), Screen(tries=100, max_rate=0.29)) is None
    assert reason_to_drop(Attempts(30, 100), Screen(tries=100, max_rate=0.29)) == TOO_EASY


@pytest.mark.parametrize(("right", "tries"), [(3, 2), (0, 0)])
def test_attempts_that_cannot_be_are_refused(right: int, tries: int) -> None:
    with pytest.raises(ValueError, match=f"{right} right of {tries} tries"):
        Attempts(right, tries)


# --- what was taught before -------------------------------------------------------------------------------------------


def test_what_the_web_agent_was_taught_is_left_out_by_id_and_by_question() -> None:
    learnt = Learnt.of([task("a"), task("b", question="Where is the Arden?")])
    tasks = [
        task("a", question="Another ?"),
        task("c", question=" where is  arden"),
        task("d"),
        task("a2", profile="code", question="Where is the Arden?"),
    ]
    found = select(tasks, {"d": Attempts(0, 32), "a2": Attempts(0, 32)}, DEFAULT, Mode.DIRECT, learnt)
    assert [one.id for one in found.kept] == ["d", "a2"]
    assert [(one.id, reason) for one, reason in found.dropped] == [("a", LEARNT), ("c", LEARNT)]
    none = select(tasks, {one.id: Attempts(0, 32) for one in tasks}, replace(DEFAULT, disjoint=()), Mode.DIRECT, learnt)
    assert none.dropped == ()


def test_a_task_that_was_not_attempted_is_no_task_that_was_never_solved() -> None:
    with pytest.raises(KeyError, match="a"):
        select([task("a")], {}, DEFAULT, Mode.TUNED)


# --- the sample -------------------------------------------------------------------------------------------------------


def test_the_sample_is_the_seeds() -> None:
    names = [f"t{number}" for number in range(100)]
    drawn = [draw(names, 10, seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(some) == 10 for some in drawn)
    assert draw(names, 200, 0) == draw(names, None, 0) == frozenset(names)


def test_every_task_is_drawn_as_often_as_any_other() -> None:
    names = [f"t{number}" for number in range(20)]
    times = dict.fromkeys(names, 0)
    for seed in range(2000):
        for name in draw(names, 5, seed):
            times[name] += 1
    # 500 each; the standard deviation is 19.4.
    assert all(420 < n < 580 for n in times.values()), times


# --- all of it --------------------------------------------------------------------------------------------------------


@st.composite
def pools(draw_: st.DrawFn) -> tuple[list[Task], dict[str, Attempts], SelectionConfig, Mode, Learnt]:
    mode = draw_(st.sampled_from(list(Mode)))
    row = st.tuples(
        st.integers(0, 99), st.sampled_from(["web", "code"]), st.sampled_from(["f", "g"]), st.integers(0, 8)
    )
    rows = draw_(st.lists(row, max_size=20, unique_by=lambda each: each[0]))
    tasks = [task(str(name), profile=of, family=family) for name, of, family, _ in rows]
    attempts = {str(name): Attempts(right, 8) for name, _, _, right in rows}
    screen = Screen(
        tries=8, max_rate=draw_(st.sampled_from([0.3, 0.5, 1.0])), drop_solved=True, drop_unsolved=draw_(st.booleans())
    )
    config = SelectionConfig(
        direct=screen, tuned=screen, limit=draw_(st.none() | st.integers(1, 20)), seed=draw_(st.integers(0, 3))
    )
    learnt = Learnt.of(draw_(st.lists(st.sampled_from(tasks), max_size=5)) if tasks else [])
    return tasks, attempts, config, mode, learnt


@given(pools())
def test_every_task_is_kept_or_dropped_for_its_reason(pool: Any) -> None:
    tasks, attempts, config, mode, learnt = pool
    found = select(tasks, attempts, config, mode, learnt)
    assert sorted((*found.kept, *(one for one, _ in found.dropped)), key=tasks.index) == tasks
    assert list(found.kept) == [one for one in tasks if one in found.kept], "in their order"
    screen = config.screen(mode)
    for one, reason in (*((one, None) for one in found.kept), *found.dropped):
        right = attempts[one.id].right
        holds = {
            LEARNT: one.profile == "web" and one.id in learnt.ids,
            TOO_EASY: right > 8 * screen.max_rate,
            SOLVED: right == 8,
            UNSOLVED: right == 0 and screen.drop_unsolved,
        }
        if reason in (None, NOT_DRAWN):
            assert not any(holds.values())
        else:
            assert holds[reason]
    assert config.limit is None or len(found.kept) <= config.limit
    if NOT_DRAWN in found.counts()["dropped"]:
        assert len(found.kept) == config.limit


@given(pools())
def test_counts_come_to_all_tasks_and_families_to_all_counts(pool: Any) -> None:
    tasks, *_ = pool
    found = select(*pool)
    whole = found.counts()
    assert whole["tasks"] == len(tasks) == whole["kept"] + sum(whole["dropped"].values())
    parts = [found.counts(family) for family in ("f", "g")]
    assert sum(part["kept"] for part in parts) == whole["kept"]
    for reason, n in whole["dropped"].items():
        assert sum(part["dropped"].get(reason, 0) for part in parts) == n


@given(pools(), st.randoms(use_true_random=False), st.integers(0, 20))
def test_neither_order_nor_chunks_change_what_is_kept(pool: Any, random: Any, cut: int) -> None:
    tasks, attempts, config, mode, learnt = pool

    def kept(some: Sequence[Task]) -> list[Task]:
        return list(select(some, attempts, config, mode, learnt).kept)

    whole = kept(tasks)
    shuffled = random.sample(tasks, len(tasks))
    assert sorted(kept(shuffled), key=tasks.index) == whole
    assert kept([*kept(tasks[:cut]), *kept(tasks[cut:])]) == whole


# --- how a task is attempted ------------------------------------------------------------------------------------------


def test_a_direct_attempt_has_no_tools_and_no_judge() -> None:
    judged, program = task("j", grader="judge"), task("p", profile="code", grader="tests")
    assert as_attempted(judged, DEFAULT, Mode.DIRECT) == replace(judged, profile="direct", grader="exact")
    assert as_attempted(judged, replace(DEFAULT, judge=True), Mode.DIRECT) == replace(judged, profile="direct")
    assert as_attempted(program, DEFAULT, Mode.DIRECT) == replace(program, profile="direct")
    assert as_attempted(judged, DEFAULT, Mode.TUNED) is judged


def test_the_direct_agent_thinks_and_answers_and_is_told_so() -> None:
    direct = profile("direct")
    assert direct.tools == ()
    assert direct.stops == ("</answer>",)
    assert [tag.name for tag in direct.tags] == [THINK, ANSWER]
    assert direct.allows(START, ANSWER)
    assert not any(of.tools and tag.open in direct.instructions() for of in PROFILES.values() for tag in of.tools)
    assert list(PROFILES)[-1] == "direct", "a default is one of the agents"


def play_direct(codec: Codec, *turns: str | Chain, grammar: Grammar = Grammar.lenient) -> tuple[Status, bool, float]:
    """Status, whether the answer is right, and the reward."""
    agent = AgentConfig(grammar=grammar, limits=ROOMY)
    policy, tools, question = ScriptedPolicy(codec, turns), ScriptedTools(), a_task("direct", answers=("Berg",))

    async def go() -> tuple[Status, bool, float]:
        made = await run_episode(question, 0, codec=codec, generate=policy, use_tool=tools, agent=agent)
        scored = await score(made, question, RewardConfig(formula="grade * form"), budget=10**6, use_tool=tools)
        return made.status, scored.correct, scored.reward

    ended = asyncio.run(go())
    assert tools.calls == []
    assert all((constraint is None) == (grammar is Grammar.lenient) for constraint in policy.constraints)
    return ended


@pytest.mark.parametrize("codec", CODECS.values(), ids=list(CODECS))
@pytest.mark.parametrize("grammar", Grammar)
def test_the_ordinary_loop_and_graders_play_it(codec: Any, grammar: Grammar) -> None:
    right, wrong = ((Span(THINK, "towns"), Span(ANSWER, name)) for name in ("Berg", "Lind"))
    assert play_direct(codec(), right, grammar=grammar) == (Status.ANSWERED, True, 1.0)
    assert play_direct(codec(), right[1:], grammar=grammar) == (Status.ANSWERED, True, 1.0)
    assert play_direct(codec(), wrong, grammar=grammar) == (Status.ANSWERED, False, 0.0)


@pytest.mark.parametrize("said", ["Berg", "<think> a</think>", "<wiki_search> Berg</wiki_search>", "<plan> a</plan>"])
def test_it_calls_no_tool_and_plays_no_other_role(said: str) -> None:
    assert play_direct(CODECS["tags are text"](), said) == (Status.MALFORMED, False, 0.0)
