"""The actors of the teacher team, as plain objects with stand-ins for handles: waves, failures, ledgers, the budget."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actors.teachers.team import BudgetConfig, Played, TeacherTeam, TeachingConfig, Unfinished, request_of
from coa.distill.grade import grade
from coa.errors import CallLost, EmptyCompletion, EndpointDown, InfrastructureError, ReplyCutOff, ToolDown, UserError
from coa.llm.completions import Completion
from coa.teams.roles import ROLES
from coa.teams.routing import Routes
from coa.teams.run import Assignment, FailedRun
from coa.teams.teams import TeamConfig
from coa.teams.transcript import AgentStep, Graded, Prompt, Reply, ToolStep
from coa.tools.base import ToolCall
from coa.types import Task
from coa.usage import Usage
from tests.support.executors import Answering
from tests.support.expert_replies import reply
from tests.support.teams import MIND, TASKS, WORLD, play_one

MODELS = TeamConfig(model="m")
Calls = Sequence[ToolCall]


def remote(function: Any) -> Any:
    return SimpleNamespace(remote=function)


async def use_tools(calls: Calls) -> list[str | InfrastructureError]:
    return [WORLD.observe(call) for call in calls]


class Model:
    """A language model that answers as the experts do, and counts what it is asked."""

    def __init__(self, fails: Callable[[int], Exception | None] = lambda n: None) -> None:
        self.asked: Counter[str] = Counter()
        self._fails = fails

    async def complete(self, messages: list[dict[str, str]], seed: int) -> Completion | InfrastructureError:
        self.asked[f"{seed} {messages}"] += 1
        error = self._fails(self.asked.total())
        if isinstance(error, InfrastructureError):
            return error
        if error is not None:
            raise error
        return Completion(reply(messages, seed), "stop", Usage(1, 10, 2))


def team_of(
    call_many: Any = use_tools,
    *,
    executor: Answering | None = None,
    team: TeamConfig | None = None,
    mind: Any = MIND,
    models: tuple[tuple[str, str], ...] = (),
    routes: Routes | None = None,
    ledger: Path | None = None,
    **config: Any,
) -> TeacherTeam:
    calls = {name: remote(getattr(mind, name)) for name in ("replies", "complete") if hasattr(mind, name)}
    agents: Any = dict.fromkeys(ROLES, SimpleNamespace(**calls))

    async def answer(call: ToolCall) -> Any:
        [answered] = await call_many([call])
        return answered

    tools = executor or Answering(answer)
    settings = TeachingConfig(reissue_after_s=0.0, **config)
    fixed: Any = {"models": models, "routes": routes, "ledger": ledger}
    return TeacherTeam(team or TeamConfig(), agents, tools, settings, seed=0, **fixed)


def play(team: TeacherTeam, tasks: Sequence[Task], finished: Usage | None = None) -> Played:
    return asyncio.run(team.play([Assignment(task) for task in tasks], finished))


async def no_tool(call: ToolCall) -> str:
    raise AssertionError(call)


def expected(tasks: Sequence[Task]) -> list[Graded]:
    return [asyncio.run(grade(play_one(task), no_tool)) for task in tasks]


def test_runs_come_back_graded_in_the_order_of_their_assignments():
    played = play(team_of(), TASKS[:60])
    assert played == Played(outcomes=list(expected(TASKS[:60])), failures={})


def test_a_question_is_given_to_the_kind_of_team_that_its_routes_choose():
    weights = np.array([[[1.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]]])
    routes = Routes(kinds=("planner", "refine"), words=("current",), weights=weights, price=0.0)
    played = play(team_of(team=TeamConfig(learn_from=("a", "b")), routes=routes), TASKS[:30])
    of_family = {run.transcript.task.family: run.transcript.team for run in played.outcomes if isinstance(run, Graded)}
    assert of_family == {"web": "refine", "calc": "planner", "mhqa": "planner"}


def test_a_run_that_a_tool_ended_is_issued_again_and_comes_out_the_same():
    seen: set[ToolCall] = set()
    downs = 0

    async def first_time_down(calls: Calls) -> list[str | InfrastructureError]:
        nonlocal downs
        known = set(seen)
        seen.update(calls)
        downs += sum(call not in known for call in calls)
        return [WORLD.observe(call) if call in known else ToolDown("busy") for call in calls]

    played = play(team_of(first_time_down), TASKS[:40])
    assert played.outcomes == expected(TASKS[:40])
    assert played.failures == {"ToolDown": downs}


def test_the_first_issue_waits_for_nothing_and_each_other_one_twice_as_long_as_the_one_before():
    assert list(TeachingConfig(reissues=3, reissue_after_s=0.5).pauses()) == [0, 0.5, 1, 2]


def test_a_run_that_always_fails_is_given_up_with_its_reason():
    async def down(calls: Calls) -> list[str | InfrastructureError]:
        return [ToolDown("gone") for _ in calls]

    tasks = [task for task in TASKS[:60] if task.family == "web"]
    played = play(team_of(down, reissues=2), tasks)
    assert played.outcomes == [FailedRun(Assignment(task), "ToolDown", "gone") for task in tasks]
    assert played.failures == {"ToolDown": 3 * len(tasks)}


@pytest.mark.parametrize("failure", [ReplyCutOff, EmptyCompletion])
def test_a_run_that_would_fail_again_in_the_same_way_ends_at_once(failure: type[InfrastructureError]) -> None:
    model = Model(lambda n: failure("raise max_tokens"))
    played = play(team_of(team=MODELS, mind=model), TASKS[:2])
    assert played.outcomes == [FailedRun(Assignment(task), failure.__name__, "raise max_tokens") for task in TASKS[:2]]
    assert (played.failures, model.asked.total()) == ({failure.__name__: 2}, 2)


def test_what_a_failed_run_took_is_told_and_counts_once():
    took = Usage(6, 60, 0)
    down = EndpointDown("no reply")
    down.usage = took
    model = Model(lambda n: down if n in (3, 6) else None)
    team = team_of(team=MODELS, mind=model, reissues=1, budget=BudgetConfig(requests=9))
    [failed] = play(team, TASKS[:1]).outcomes
    assert failed == FailedRun(Assignment(TASKS[0]), "EndpointDown", "no reply", Usage(2, 20, 4) + took)
    [stopped] = play(team, TASKS[1:2]).outcomes
    assert stopped == Unfinished(Assignment(TASKS[1]), Usage(1, 10, 2)), "8 were spent before it, and not 16"


def test_models_that_played_are_told():
    played = play(team_of(team=MODELS, mind=Model(), models=(("planner", "m: big"),)), TASKS[:1])
    [one] = [outcome.transcript for outcome in played.outcomes if isinstance(outcome, Graded)]
    assert one.models == (("planner", "m: big"),)
    assert one.usage.requests == sum(step.usage.requests for step in one.steps if isinstance(step, AgentStep))


# Nothing twice.


def test_a_team_that_takes_over_joins_the_tool_calls_that_the_one_before_it_had_under_way(tmp_path: Path) -> None:
    called: Counter[ToolCall] = Counter()
    tasks = [task for task in TASKS[:40] if task.family == "web"]

    async def go() -> None:
        begun, released = asyncio.Event(), asyncio.Event()

        async def gated(call: ToolCall) -> str:
            called[call] += 1
            if called.total() == len(tasks):
                begun.set()
            await released.wait()
            return WORLD.observe(call)

        executor = Answering(gated)
        first, second = (team_of(executor=executor, ledger=tmp_path / name) for name in ("first", "second"))
        assignments = [Assignment(task) for task in tasks]
        dead = asyncio.ensure_future(first.play(assignments))
        await begun.wait()
        await executor.refuse([first._tools.name])
        taking_over = asyncio.ensure_future(second.play(assignments))
        for _ in range(100):
            await asyncio.sleep(0)
        released.set()
        assert (await taking_over).outcomes == found
        dead.cancel()

    found = expected(tasks)
    calls = Counter(step.call for one in found for step in one.transcript.steps if isinstance(step, ToolStep))
    asyncio.run(go())
    assert called.total() == calls.total(), "each call ran once"


def test_a_run_whose_tool_call_was_lost_twice_is_not_issued_again() -> None:
    called: Counter[ToolCall] = Counter()

    async def lost(calls: Calls) -> list[str | InfrastructureError]:
        called.update(calls)
        return [CallLost("twice") for _ in calls]

    [task] = [task for task in TASKS[:60] if task.family == "web"][:1]
    [outcome] = play(team_of(lost, reissues=5), [task]).outcomes
    assert isinstance(outcome, FailedRun)
    assert outcome.where == "CallLost"
    assert called.total() == 1


def test_observations_are_kept_and_not_asked_for_again(tmp_path: Path):
    called: Counter[ToolCall] = Counter()

    async def counted(calls: Calls) -> list[str | InfrastructureError]:
        called.update(calls)
        return await use_tools(calls)

    model = Model(lambda n: EndpointDown("away") if n == 30 else None)
    team = team_of(counted, team=MODELS, mind=model, ledger=tmp_path / "o", reissues=0)
    first = play(team, TASKS[:10])
    assert sum(isinstance(outcome, FailedRun) for outcome in first.outcomes) == 1
    before = called.copy()
    again = play(team_of(counted, team=MODELS, mind=Model(), ledger=tmp_path / "o"), TASKS[:10])
    assert [outcome.transcript.steps for outcome in again.outcomes if isinstance(outcome, Graded)] == [
        tuple(step for step in run.steps) for run in _with_usage(TASKS[:10])
    ]
    rest = called - before
    assert rest.total() < before.total()
    assert all(count == 1 for count in called.values())


def _with_usage(tasks: Sequence[Task]) -> list[Any]:
    played = play(team_of(team=MODELS, mind=Model()), tasks)
    return [outcome.transcript for outcome in played.outcomes if isinstance(outcome, Graded)]


# The budget.


def test_a_budget_stops_runs_and_finishes_none_of_them_wrongly():
    model = Model()
    budget = BudgetConfig(requests=25)
    played = play(team_of(team=MODELS, mind=model, budget=budget), TASKS[:10])
    done = [outcome for outcome in played.outcomes if isinstance(outcome, Graded)]
    stopped = [outcome for outcome in played.outcomes if isinstance(outcome, Unfinished)]
    assert len(done) + len(stopped) == 10
    assert stopped
    assert 25 <= model.asked.total() < 25 + 10  # what was under way is finished
    whole = {one.task.id: one for one in _with_usage(TASKS[:10])}
    assert all(one.transcript == whole[one.transcript.task.id] for one in done)


def test_what_was_spent_before_counts():
    model = Model()
    team = team_of(team=MODELS, mind=model, budget=BudgetConfig(tokens=1000))
    assert play(team, TASKS[:1], Usage(50, 900, 100)).outcomes == [Unfinished(Assignment(TASKS[0]))]
    assert not model.asked


def test_a_person_s_mistake_ends_the_stage_in_one_line():
    refused = Model(lambda n: UserError("http://127.0.0.1:1/v1: the key is refused: status 401"))
    with pytest.raises(UserError, match=r"^http://127.0.0.1:1/v1: the key is refused: status 401$"):
        play(team_of(team=MODELS, mind=refused), TASKS[:3])


# What a language model is sent.


def test_a_model_is_sent_the_messages_and_a_seed_of_their_own():
    prompts: list[Prompt] = []
    play_one(TASKS[0], ask=_noting(prompts))
    first, second = prompts[:2]
    messages, seed = request_of(first)
    assert messages == [{"role": message.role, "content": message.content} for message in first.messages]
    assert request_of(replace(first)) == (messages, seed)
    assert first.seed == second.seed
    assert len({seed, request_of(second)[1], request_of(replace(first, seed=7))[1]}) == 3


def _noting(prompts: list[Prompt]) -> Any:
    async def ask(prompt: Prompt) -> Reply:
        prompts.append(prompt)
        return Reply(MIND.reply(prompt))

    return ask
