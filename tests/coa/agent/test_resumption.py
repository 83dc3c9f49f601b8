"""An episode that is broken off anywhere and resumed elsewhere ends as the undisturbed one does."""

import pickle
from collections.abc import Callable
from dataclasses import astuple, fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig, Episode, Grammar, Limits
from coa.agent.grammar import Chain, Profile, Span
from coa.agent.journal import Delta, Journal, Observed, Said
from coa.agent.profiles import profile
from coa.tools.base import ToolCall
from coa.types import Trajectory
from tests.support.fakes import (
    CODECS,
    ROOMY,
    answered_chains,
    plain_texts,
    profiles,
    said_of,
    spans_of,
    tag_codec,
    task,
    texts,
    tokens_of,
    turns_of,
)

PLAN, SEARCH, ANSWER = Span("plan", "Arden"), Span("wiki_search", "Berg"), Span("answer", "Berg")
Turn = str | Chain


class Script:
    """What a policy says and tools answer, by the number of the turn, so that it needs no memory of its own."""

    def __init__(self, codec: Codec, turns: list[Turn], answers: list[str]) -> None:
        self._codec, self._turns, self._answers = codec, turns, answers
        self.asked: list[tuple[int, list[int], str | None]] = []
        self.called: list[tuple[int, ToolCall]] = []

    def play(self, episode: Episode) -> Trajectory:
        while episode.status is None:
            if (call := episode.pending) is not None:
                self.called.append((episode.turns, call))
                episode.observe(self._answers[(episode.turns - 1) % len(self._answers)])
            else:
                ask = episode.ask()
                self.asked.append((ask.turn, ask.prompt.tolist(), ask.constraint))
                said = self._turns[ask.turn % len(self._turns)]
                ids = tokens_of(self._codec, said) if isinstance(said, str) else spans_of(self._codec, said)
                # Two versions sample each turn, where it is long enough for two.
                turn = said_of(ids, version=ask.turn, logprob=-0.5 - ask.turn, max_tokens=ask.max_tokens)
                n = len(turn.token_ids)
                episode.take_turn(replace(turn, versions=((ask.turn, n // 2), (ask.turn + 1, n - n // 2))))
        return episode.trajectory()


def assert_equal(one: Trajectory, other: Trajectory) -> None:
    for field in fields(Trajectory):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, np.ndarray):
            assert mine.dtype == theirs.dtype
            assert mine.tolist() == theirs.tolist(), field.name
        else:
            assert mine == theirs, field.name


def carried(journal: Journal) -> Journal:
    """As it arrives in another process."""
    return pickle.loads(pickle.dumps(journal))


def plain(delta: Delta) -> tuple[object, ...]:
    return type(delta), *(getattr(value, "tolist", lambda value=value: value)() for value in astuple(delta))


limits = st.builds(
    Limits,
    max_turns=st.integers(1, 5),
    max_turn_tokens=st.sampled_from([3, 12, 1000]),
    max_observation_tokens=st.sampled_from([2, 8, 1000]),
    max_tokens=st.sampled_from([20, 60, 100, 5000]),
    max_tag_tokens=st.just(8),
)


@pytest.mark.parametrize("made", CODECS.values(), ids=list(CODECS))
@settings(derandomize=True, max_examples=60, deadline=None, database=None)
@given(data=st.data(), of=profiles, limits=limits, grammar=st.sampled_from(Grammar))
def test_an_episode_broken_off_after_any_delta_ends_as_if_it_had_not_been(
    made: Callable[[], Codec], data: st.DataObject, of: Profile, limits: Limits, grammar: Grammar
) -> None:
    codec = made()
    turns, answers = turns_of(data.draw(answered_chains(of, st.one_of(plain_texts, texts))))
    said: list[Turn] = [*turns]
    if data.draw(st.booleans()):
        said.insert(data.draw(st.integers(0, len(said))), data.draw(st.sampled_from(["", "<plan> so", "no tags"])))
    agent = AgentConfig(instructed=False, grammar=grammar, limits=limits)
    one = task(of.name)
    undisturbed = Script(codec, said, answers or ["x"])
    episode = Episode(one, 3, codec=codec, agent=agent)
    whole = undisturbed.play(episode)
    for broken in range(len(episode.journal) + 1):
        script = Script(codec, said, answers or ["x"])
        resumed = Episode.resume(one, 3, carried(episode.journal[:broken]), codec=codec, agent=agent)
        assert_equal(script.play(resumed), whole)
        assert list(map(plain, resumed.journal)) == list(map(plain, episode.journal))
        # It goes on where it was: what was asked and called before is not asked and called again.
        before = sum(isinstance(delta, Said) for delta in episode.journal[:broken])
        seen = sum(isinstance(delta, Observed) for delta in episode.journal[:broken])
        assert script.asked == undisturbed.asked[before:]
        assert script.called == undisturbed.called[seen:]


def test_a_journal_costs_eight_bytes_a_token() -> None:
    codec = tag_codec()
    long = (Span("plan", "Arden " * 4000), SEARCH)
    script = Script(codec, [long, long, (ANSWER,)], ["Berg " * 4000])
    episode = Episode(task(), 0, codec=codec, agent=AgentConfig(instructed=False, limits=ROOMY))
    made = script.play(episode)
    tokens = len(made.token_ids) - made.prompt_length
    assert tokens > 15_000
    assert len(pickle.dumps(episode.journal, protocol=5)) <= 8.1 * tokens


def test_an_observation_without_room_is_told_whole_and_stands_in_the_context_as_far_as_it_fits() -> None:
    codec = tag_codec()
    room = len(codec.prompt(profile("mhqa"), "Who ?", instructed=False)) + 10
    agent = AgentConfig(instructed=False, limits=replace(ROOMY, max_tokens=room))
    episode = Episode(task(), 0, codec=codec, agent=agent)
    episode.take_turn(said_of(spans_of(codec, (PLAN, SEARCH)), version=0, logprob=0.0, max_tokens=99))
    episode.observe("Arden Berg " * 10)
    assert len(episode.trajectory().token_ids) == episode.length == room
    resumed = Episode.resume(task(), 0, carried(episode.journal), codec=codec, agent=agent)
    assert_equal(resumed.trajectory(), episode.trajectory())
    assert "Arden Berg Arden" in resumed.trajectory().text


def test_nobody_speaks_out_of_turn() -> None:
    codec = tag_codec()
    episode = Episode(task(), 0, codec=codec, agent=AgentConfig(instructed=False, limits=ROOMY))
    with pytest.raises(ValueError, match="the policy's turn"):
        episode.observe("x")
    with pytest.raises(ValueError, match="has not ended"):
        episode.trajectory()
    call = episode.take_turn(said_of(spans_of(codec, (PLAN, SEARCH)), version=0, logprob=0.0, max_tokens=99))
    assert call is episode.pending
    assert episode.tool_calls == 1
    with pytest.raises(ValueError, match="a tool's turn"):
        episode.ask()
    episode.observe("x")
    answer = said_of(spans_of(codec, (ANSWER,)), version=0, logprob=0.0, max_tokens=99)
    assert episode.take_turn(answer) is None
    with pytest.raises(ValueError, match="answered"):
        episode.take_turn(answer)


def test_the_version_of_each_token_follows_from_the_runs() -> None:
    def said(*versions: tuple[int, int]) -> Said:
        n = sum(count for _, count in versions)
        return Said(token_ids=np.zeros(n, np.int32), logprobs=np.zeros(n, np.float32), versions=versions, ended=True)

    assert said((4, 2), (5, 0), (6, 3)).version_of_tokens().tolist() == [4, 4, 6, 6, 6]
    assert said().version_of_tokens().tolist() == []
    assert said((4, 1)).version_of_tokens().dtype == np.int32
