"""Episodes in numbers and text."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from coa.agent.episode import AgentConfig, Generate, Limits, run_episode
from coa.agent.grammar import Span, render
from coa.agent.records import EpisodeRecord, GroupRecord, record_of, tokens_sent
from coa.grading.rewards import RewardConfig, score
from coa.learning.algorithms.grpo import Grpo
from coa.learning.samples import to_samples
from coa.tools.base import UseTool
from coa.types import Scored, Status
from tests.support.fakes import ROOMY, ScriptedPolicy, ScriptedTools, tag_codec, task

PLAN, SEARCH, ANSWER = Span("plan", "Arden"), Span("wiki_search", "Berg"), Span("answer", "Berg")
RIGHT, WRONG = [(PLAN, SEARCH), (ANSWER,)], [(PLAN, SEARCH), (Span("answer", "Arden"),)]


def group(policies: Sequence[Generate], tools: UseTool, limits: Limits = ROOMY) -> list[Scored]:
    agent = AgentConfig(instructed=False, limits=limits)

    async def one(sample: int, policy: Generate) -> Scored:
        made = await run_episode(task(), sample, codec=tag_codec(), generate=policy, use_tool=tools, agent=agent)
        budget = limits.max_tokens - made.prompt_length
        return await score(made, task(), RewardConfig(), budget=budget, use_tool=tools)

    async def all_of_them() -> list[Scored]:
        return await asyncio.gather(*(one(sample, policy) for sample, policy in enumerate(policies)))

    return asyncio.run(all_of_them())


@pytest.mark.parametrize(
    ("action_mask", "sent"),
    [([0, 0, 1, 1, 0, 1], 4 + 6), ([0, 0], 0), ([], 0), ([0, 1, 0], 2), ([0, 1, 0, 1, 0, 0, 1, 1], 2 + 4 + 8)],
)
def test_each_call_sends_what_came_before_and_gets_its_turn(action_mask: list[int], sent: int) -> None:
    assert tokens_sent(np.array(action_mask, np.bool_)) == sent


def test_an_episode_is_told_in_numbers_and_text() -> None:
    [scored] = group([ScriptedPolicy(tag_codec(), RIGHT)], ScriptedTools("Arden"))
    n = scored.trajectory.prompt_length
    assert record_of(scored) == EpisodeRecord(
        sample=0,
        grade=1.0,
        reward=1.0,
        correct=True,
        repairs=(),
        well_formed=True,
        status=Status.ANSWERED,
        answer="Berg",
        text=render((PLAN, SEARCH, Span("observation", "Arden"), ANSWER)),
        turns=2,
        tool_calls=("wiki_search",),
        tokens=n + 12,
        policy_tokens=9,
        tokens_sent=(n + 6) + (n + 12),
        oldest=0,
        newest=1,
    )


def test_an_episode_without_a_turn_has_no_versions() -> None:
    [scored] = group([ScriptedPolicy(tag_codec(), [])], ScriptedTools(), limits=Limits(max_tokens=1))
    record = record_of(scored)
    assert (record.oldest, record.newest, record.policy_tokens, record.tokens_sent, record.turns) == (-1, -1, 0, 0, 0)
    assert (record.reward, record.status) == (0.0, Status.TRUNCATED)


def test_a_group_keeps_its_order_and_becomes_samples_with_its_credit() -> None:
    policies = [ScriptedPolicy(tag_codec(), turns) for turns in (WRONG, RIGHT)]
    made = group(policies, ScriptedTools("Arden", "Arden"))
    assert [scored.trajectory.sample for scored in made] == [0, 1]
    record = GroupRecord(group=5, task=task(), episodes=tuple(map(record_of, made)))
    assert record.rewards == [0.0, 1.0]
    samples = to_samples(made, Grpo(), 5)
    for sample, scored, sign in zip(samples, made, (-(0.5**0.5), 0.5**0.5), strict=True):
        assert sample.group == 5
        assert sample.loss_mask.tolist() == scored.trajectory.action_mask.tolist()
        assert sample.reinforce == pytest.approx(sign * scored.trajectory.action_mask, abs=1e-5)


def test_a_long_episode_is_fined_by_the_budget_without_its_prompt() -> None:
    codec = tag_codec()
    [scored] = group([ScriptedPolicy(codec, RIGHT)], ScriptedTools("Arden"))
    n = scored.trajectory.prompt_length
    # Twelve tokens of twelve: the whole fine.
    [fined] = group([ScriptedPolicy(codec, RIGHT)], ScriptedTools("Arden"), limits=Limits(max_tokens=n + 12))
    assert (fined.correct, fined.reward) == (True, 0.0)
    # Twelve of sixteen are below 7/8.
    [free] = group([ScriptedPolicy(codec, RIGHT)], ScriptedTools("Arden"), limits=Limits(max_tokens=n + 16))
    assert free.reward == 1.0
