"""Episodes of an untrained policy at temperature 1.5 under an enforced grammar, on a real engine: all of them are in
form, and nearly all reach an answer."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from actors.messages import EVALUATION, EpisodeId, EpisodeOrder
from actors.rollout.config import EngineConfig, SamplingConfig
from actors.rollout.engine import RolloutEngine
from coa.agent.chain_format import ChainFormat
from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig, Grammar, Limits
from coa.agent.grammar import OBSERVATION, TAGS, Fault, Span, parse
from coa.agent.profiles import PROFILES
from coa.agent.records import EpisodeRecord, record_of
from coa.grading.rewards import RewardConfig
from coa.tools.base import ToolCall
from coa.types import Status, Task
from tests.support.driver import Driver
from tests.support.executors import Answering
from tests.support.slow import NIGHTLY
from tests.support.tiny import make_model

AGENT = AgentConfig(
    instructed=False,
    grammar=Grammar.enforce,
    limits=Limits(max_turns=16, max_turn_tokens=160, max_observation_tokens=32, max_tokens=1536, max_tag_tokens=8),
)
HOT = SamplingConfig(temperature=1.5)
AT_ONCE = 64


async def answer(call: ToolCall) -> str:
    return f"{call.argument[:9]} <answer> 42</answer>"


def order(task: Task, sample: int = 0, *, agent: AgentConfig = AGENT) -> EpisodeOrder:
    return EpisodeOrder(id=EpisodeId(task.id, EVALUATION, sample), task=task, sampling=HOT, agent=agent)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.runner, self.folder = asyncio.Runner(), folder
        self.engine: Any = self.runner.run(self._start(folder))
        self.driver = Driver(self.engine)

    async def _start(self, folder: Path) -> RolloutEngine:
        config = EngineConfig(max_concurrent=AT_ONCE)
        engine = RolloutEngine(
            str(folder),
            config=config,
            agent=AGENT,
            reward=RewardConfig(),
            tools=Answering(answer),
            seed=0,
        )
        await engine.ready(0)
        return engine

    def episodes(self, profile: str, n: int, agent: AgentConfig = AGENT) -> list[EpisodeRecord]:
        async def play() -> list[EpisodeRecord]:
            room = asyncio.Semaphore(AT_ONCE)

            async def one(index: int) -> EpisodeRecord:
                task = Task(id=f"{profile}-{index}", question="Who ?", answers=("x",), profile=profile, family="f")
                async with room:
                    [scored] = await self.driver.play([order(task, agent=agent)])
                return record_of(scored)

            return list(await asyncio.gather(*(one(index) for index in range(n))))

        return self.runner.run(play())


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(make_model(tmp_path_factory.mktemp("model"), max_positions=2048))
    yield made
    made.engine.shutdown()
    made.runner.close()


def check(profile: str, episodes: Sequence[EpisodeRecord]) -> None:
    """Every chain parses and obeys its table, or is cut off within its budget with a valid beginning."""
    table = PROFILES[profile]
    statuses = Counter(episode.status for episode in episodes)
    assert set(statuses) <= {Status.ANSWERED, Status.TRUNCATED, Status.OUT_OF_TURNS}, statuses
    for episode in episodes:
        parsed = parse(episode.text)
        assert table.transitions_hold(parsed.chain), episode.text
        assert episode.repairs == ()
        if episode.status is Status.ANSWERED:
            assert parsed.fault is None
            assert episode.well_formed
        elif episode.status is Status.TRUNCATED:
            # Cut off inside a tag or inside a mark, never wrong before.
            assert parsed.fault in (Fault.UNCLOSED, None), episode.text
    assert statuses[Status.ANSWERED] >= 0.9 * len(episodes), statuses


@pytest.mark.parametrize("profile", ["code", "mhqa"])
def test_every_episode_is_in_form_and_nearly_all_reach_an_answer(bench: Bench, profile: str) -> None:
    check(profile, bench.episodes(profile, 32))


def test_the_white_space_between_tags_is_enforced(bench: Bench) -> None:
    form = ChainFormat(before="\n", opened="\n", closed="\n", after="\n", observed="\n\n")
    agent, codec = replace(AGENT, formats={"mhqa": form}), Codec.load(bench.folder)
    tasks = [Task(id=f"t-{at}", question="Who ?", answers=("x",), profile="mhqa", family="f") for at in range(16)]
    scored = bench.runner.run(bench.driver.play([order(task, agent=agent) for task in tasks]))
    check("mhqa", [record_of(one) for one in scored])
    gaps: set[tuple[bool, str]] = set()
    for one in (each.trajectory for each in scored):
        said = codec.decode(one.token_ids[one.prompt_length :])
        assert re.match(r"\n<(think|plan)>", said)
        gaps |= {(tag == OBSERVATION, gap) for tag, gap in re.findall(rf"</({'|'.join(TAGS)})>(\s*)<", said)}
    assert gaps == {(True, "\n\n\n"), (False, "\n\n")}


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_hundreds_of_episodes_are_in_form(bench: Bench, profile: str) -> None:
    check(profile, bench.episodes(profile, 1000 if NIGHTLY else 200))


def test_groups_to_learn_from_have_the_log_probs_of_the_constrained_choice(bench: Bench) -> None:
    task = Task(id="learn", question="Who ?", answers=("x",), profile="code", family="f")
    made = bench.runner.run(bench.driver.play([order(task, sample) for sample in range(4)]))
    assert [scored.trajectory.status for scored in made] == [Status.ANSWERED] * 4
    opening = Codec.load(bench.folder).span(Span("plan", ""))[0]
    # All failed alike, so nothing is to be learnt, but the tokens are as they were sampled.
    for scored in made:
        sample = scored.trajectory
        logprobs = sample.logprobs[sample.action_mask]
        assert (logprobs <= 0).all()
        first = sample.token_ids[sample.action_mask][0]
        # Only a plan or a thought may begin a chain.
        assert np.exp(logprobs[0]) > 0.2 or first != opening


def test_a_budget_that_is_too_small_cuts_a_valid_chain_off(bench: Bench) -> None:
    tight = replace(AGENT, limits=replace(AGENT.limits, max_turn_tokens=20))
    episodes = bench.episodes("web", 32, tight)
    assert {episode.status for episode in episodes} >= {Status.TRUNCATED}
    for episode in episodes:
        parsed = parse(episode.text)
        assert parsed.fault in (Fault.UNCLOSED, None)
        assert PROFILES["web"].transitions_hold(parsed.chain)


@pytest.mark.slow
def test_every_tag_closes_where_nothing_is_said_of_its_length(bench: Bench) -> None:
    """An untrained policy ends no tag by itself: each is as long as it may be."""
    plain = replace(AGENT, limits=replace(AGENT.limits, max_tag_tokens=None))
    episodes = [*bench.episodes("code", 64, plain), *bench.episodes("mhqa", 64, plain)]
    for episode in episodes:
        last_turn = parse(episode.text).chain[-7:]
        if episode.status is Status.TRUNCATED:
            # Seven tags of an eighth of a turn each have closed, and the eighth is cut off.
            assert len(last_turn) == 7
            assert OBSERVATION not in [span.tag for span in last_turn]
        else:
            assert parse(episode.text).fault is None
    assert fmean(episode.status is Status.ANSWERED for episode in episodes) >= 0.8


def test_without_the_constraint_the_same_policy_is_never_in_form(bench: Bench) -> None:
    free = replace(AGENT, grammar=Grammar.lenient)
    assert {episode.status for episode in bench.episodes("web", 32, free)} <= {Status.TRUNCATED, Status.MALFORMED}
