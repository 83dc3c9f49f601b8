"""Calls that fail under the episode runner, and what becomes of their episodes."""

import asyncio
import random
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actors.messages import Ended, Failed
from coa.agent.episode import Ask, Episode
from coa.agent.journal import Said
from coa.errors import JudgeDown, ToolDown
from coa.grading.rewards import TERMS, RewardConfig
from coa.tools.base import ToolCall
from coa.tools.client import RetryConfig
from coa.types import Scored
from tests.support.executors import Answering
from tests.support.fakes import tag_codec
from tests.support.policies import Runner, SeededPolicy, order
from tests.support.registries import lend
from tests.support.runners import ANSWER, PLAN, SEARCHES, Saying, echo, journal_of, trajectory


class Silent(SeededPolicy):
    """An engine whose requests end at once, as if they were finished."""

    async def generate(self, ask: Ask, **how: Any) -> Said:
        nothing = np.zeros(0)
        return Said(token_ids=nothing.astype(np.int32), logprobs=nothing.astype(np.float32), versions=(), ended=True)


def failing(share: float, seed: int) -> tuple[Any, list[str]]:
    rng, failed = random.Random(seed), []

    async def answer(call: ToolCall) -> str | ToolDown:
        if rng.random() < share:
            failed.append(call.argument)
            return ToolDown("a glitch")
        return f"{call.argument}!"

    return answer, failed


@pytest.mark.parametrize("seed", range(3))
def test_failing_calls_do_not_select_what_is_sampled(seed: int) -> None:
    """1 % of calls fail, in episodes of 0 to 6 calls: the multiset of (task, sample, token ids) stays the same."""

    async def multiset(answer: Any) -> tuple[Counter[Any], Counter[int], int]:
        runner = Runner(Answering(answer))
        orders = [order(i, sample) for i in range(60) for sample in range(8)]
        ended = await runner.play(orders)
        assert not [event for event in ended if not isinstance(event, Ended)]
        made = {id: trajectory(result) for id, result in runner.runner.results.items()}
        tokens = Counter((id.task, id.sample, tuple(one.token_ids.tolist())) for id, one in made.items())
        return tokens, Counter(len(one.tool_calls) for one in made.values()), runner.runner.retried

    whole, lengths, none = asyncio.run(multiset(echo))
    answer, failed = failing(0.01, seed)
    assert asyncio.run(multiset(answer))[0::2] == (whole, len(failed))
    assert len(failed) > 5
    assert none == 0
    assert set(lengths) == set(range(7))


def test_where_retries_end_the_episode_fails_and_says_how_far_it_had_come() -> None:
    async def go() -> None:
        async def down(call: ToolCall) -> ToolDown:
            return ToolDown("gone")

        runner = Runner(Answering(down), policy=Saying(*SEARCHES), retry=RetryConfig(attempts=3, pause_s=0))
        [failed] = await runner.play([order()])
        [said] = journal_of(runner, order().id)
        task, agent = order().task, order().agent
        tokens = Episode(task, 0, codec=tag_codec(), agent=agent).length + len(said.token_ids)
        assert failed == Failed(id=order().id, where="ToolDown", why="gone", tokens=tokens, tool_calls=1)
        assert runner.runner.retried == 2
        assert len(runner.policy.seeds) == 1, "no turn is sampled again"
        assert runner.runner.results == {}
        runner.runner.start([order()])
        assert runner.running == 0, "an order that was sent before its sender knew of the failure"
        runner.acknowledge()
        runner.runner.start([order()])
        assert runner.running == 1, "a failed episode may be started again"
        await runner.runner.cancel([order().id])

    asyncio.run(go())


def test_pauses_between_attempts_double() -> None:
    assert list(RetryConfig(attempts=4, pause_s=0.5).pauses()) == [0.5, 1.0, 2.0]
    assert list(RetryConfig(attempts=1).pauses()) == []


def test_a_judge_that_is_down_for_a_moment_is_asked_again() -> None:
    async def go() -> None:
        asked: list[str] = []

        async def judge(call: ToolCall) -> str | ToolDown:
            asked.append(call.tool)
            return JudgeDown("mute") if len(asked) < 3 else '{"correct": true}'

        runner = Runner(Answering(judge), policy=Saying((PLAN, ANSWER)), reward=RewardConfig(formula="judge"))
        assert await runner.play([order()]) == [Ended(id=order().id)]
        assert asked == ["judge"] * 3
        scored = runner.runner.results[order().id]
        assert isinstance(scored, Scored)
        assert scored.reward == 1.0

    asyncio.run(go())


def test_a_turn_without_a_token_is_the_engines_failure_and_no_sample() -> None:
    async def go() -> None:
        runner = Runner(Answering(echo), policy=Silent())
        [failed] = await runner.play([order()])
        assert isinstance(failed, Failed)
        assert (failed.where, failed.why) == ("EmptyCompletion", "turn 0 has no token")
        assert runner.runner.results == {}

    asyncio.run(go())


@pytest.mark.parametrize("wrong", [np.nan, -np.inf])
def test_a_log_prob_that_is_not_finite_is_the_engines_failure_and_no_sample(wrong: float) -> None:
    class Broken(Saying):
        async def generate(self, ask: Ask, **how: Any) -> Said:
            said = await super().generate(ask, **how)
            logprobs = said.logprobs.copy()
            logprobs[1] = wrong
            return replace(said, logprobs=logprobs)

    async def go() -> None:
        runner = Runner(Answering(echo), policy=Broken((PLAN, ANSWER)))
        [failed] = await runner.play([order()])
        assert isinstance(failed, Failed)
        assert failed.where == "NotFinite"
        assert re.fullmatch(r"turn 0: 1 of \d+ log-probs of the engine are not finite", failed.why)
        assert runner.runner.results == {}
        await runner.play([ungraded := replace(order(), graded=False, id=replace(order().id, sample=1))])
        assert ungraded.id in runner.runner.results, "what is not learnt from needs no log-probs"

    asyncio.run(go())


def test_a_reward_that_raises_ends_the_stage_with_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(played: object) -> float:
        raise ValueError("no such column")

    lend(monkeypatch, TERMS, "broken", broken)

    async def go() -> None:
        runner = Runner(Answering(echo), policy=Saying((PLAN, ANSWER)), reward=RewardConfig(formula="broken"))
        runner.runner.start([order()])
        with pytest.raises(ValueError, match="no such column"):
            await runner.until_ended(1)
        assert runner.runner.results == {}

    asyncio.run(go())


def test_a_defect_is_raised_to_whoever_reads_the_events() -> None:
    async def go() -> None:
        async def broken(call: ToolCall) -> str:
            raise ZeroDivisionError

        runner = Runner(Answering(broken), policy=Saying(*SEARCHES))
        runner.runner.start([order()])
        with pytest.raises(RuntimeError, match="wiki_search: ZeroDivisionError"):
            await runner.until_ended(1)

    asyncio.run(go())
