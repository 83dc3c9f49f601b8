from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from actors.messages import CacheStats
from actors.weights.transport import Published
from coa.agent.records import EpisodeRecord, GroupRecord
from coa.learning.weights import Manifest, lay_out
from coa.types import Status, Task
from jobs.stages.reinforcement import rl_stats
from jobs.stages.reinforcement.rl_stats import NO_VARIANCE, RlStats, lengths, played, shown

EPISODE = EpisodeRecord(
    sample=0,
    reward=1.0,
    grade=1.0,
    correct=True,
    well_formed=True,
    repairs=(),
    status=Status.ANSWERED,
    answer="",
    text="",
    turns=1,
    tool_calls=("code",),
    tokens=100,
    policy_tokens=40,
    tokens_sent=100,
    oldest=0,
    newest=0,
)


def group(family: str, rewards: Sequence[float], **others: Any) -> GroupRecord:
    task = Task(id=family, question="?", answers=("1",), profile="code", family=family)
    episodes = tuple(replace(EPISODE, sample=n, reward=reward, **others) for n, reward in enumerate(rewards))
    return GroupRecord(group=0, task=task, episodes=episodes)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the learners report, at the least."""

    samples: int = 8
    tokens: int = 320
    loss: float = 0.5
    staleness_mean: float = 0.5
    staleness_max: int = 1
    logprob_max_diff: float = 1e-6


@dataclass(frozen=True, kw_only=True)
class LargerReport(Report):
    entropy: float = 0.25
    algorithm: dict[str, float]


def event(report: Report) -> Any:
    return SimpleNamespace(report=report, began=10.0, ended=12.0, waited=3.0, weights=None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(rl_stats, "time", SimpleNamespace(time=lambda: clock.now))
    return clock


def test_a_record_tells_of_episodes_learners_and_what_was_dropped_since_the_last_one(clock: Any) -> None:
    stats = RlStats()
    stats.begin()
    stats.played += [group("calc", [1, 0]), group("hops", [0.5, 0.5], status=Status.TRUNCATED, tokens=384)]
    stats.dropped["ToolDown"] += 2
    stats.dropped[NO_VARIANCE] += 1
    stats.retried += 2
    stats.syncs.append(SimpleNamespace(logprob_diff=0.5, pause_s=0.25, alarm=True))
    clock.now = 104.0
    now = event(Report())
    record = stats.record(now, stats.step(now))
    assert record == {
        "samples": 8,
        "tokens": 320,
        "loss": 0.5,
        "staleness_mean": 0.5,
        "staleness_max": 1,
        "logprob_max_diff": 1e-6,
        "reward": 0.5,
        "correct": 1.0,
        "well_formed": 1.0,
        "truncated_fraction": 0.5,
        "tool_calls": 1.0,
        "policy_tokens": 40.0,
        "length_p50": 100,
        "length_p90": 384,
        "length_p99": 384,
        "reward/calc": 0.5,
        "reward/hops": 0.5,
        "dropped/ToolDown": 2,
        "dropped/no_variance": 1,
        "rejected_fraction": 0.5,
        "retried": 2,
        "sync_alarms": 1,
        "groups": 2,
        "trajectories_s": 1.0,
        "tokens_s": 40.0,
        "sync_logprob_max_diff": 0.5,
        "sync_pause_s": 0.25,
        "seconds": 2.0,
        "waited": 3.0,
    }


def test_a_step_in_which_no_group_ended_has_no_means_and_no_old_counts(clock: Any) -> None:
    stats = RlStats()
    stats.begin()
    stats.dropped["ToolDown"] += 1
    for _ in range(2):
        clock.now += 1.0
        record = stats.record(event(Report()), stats.step(event(Report())))
    for name in ("reward", "length_p50", "rejected_fraction", "dropped/ToolDown"):
        assert name not in record, name
    assert (record["groups"], record["tokens_s"], record["retried"], record["sync_alarms"]) == (0, 0.0, 0, 0)


def test_what_an_algorithm_measures_is_under_its_own_names(clock: Any) -> None:
    report = LargerReport(algorithm={"value_loss": 0.125})
    record = RlStats().record(event(report), [])
    assert record["value_loss"] == 0.125
    assert record["entropy"] == 0.25
    assert "algorithm" not in record


def test_a_record_names_the_weights_that_the_step_made() -> None:
    manifest = Manifest(version=1, layout=lay_out([("a", "U8", (3,))], 64), digests=(b"0123456789abcdef",))
    made = event(Report())
    made.weights = Published(manifest=manifest, transport="host", place=None)
    assert RlStats().record(made, [])["weights"] == manifest.fingerprint


def test_a_stage_without_an_engine_at_its_end_has_a_summary(clock: Any) -> None:
    stats = RlStats()
    stats.begin()
    clock.now += 10.0
    assert stats.summary([])["busy"] == {"engine": 0.0, "learner": 0.0}
    assert stats.summary([[(100.0, 105.0)], [(95.0, 110.0), (100.0, 101.0)]])["busy"]["engine"] == 0.75


def test_quantiles_are_lengths_that_occurred() -> None:
    episodes = [replace(EPISODE, tokens=n) for n in range(1, 101)]
    assert lengths(episodes) == {"length_p50": 50, "length_p90": 90, "length_p99": 99}
    assert lengths(episodes[:1]) == {"length_p50": 1, "length_p90": 1, "length_p99": 1}


def test_groups_without_episodes_say_nothing() -> None:
    assert played([]) == {}
    assert played([group("calc", [])]) == {}


def test_the_terminal_shows_what_there_is() -> None:
    assert shown({"reward": 0.5, "kl_rollout": -0.000123, "groups": 3}) == {"reward": 0.5, "kl": "-1.2e-04"}


def test_what_engines_computed_again_is_told_since_the_last_step() -> None:
    stats = RlStats()
    assert stats.prefill(CacheStats(preemptions=2, prefill=200, recomputed=50)) == {
        "preemptions": 2,
        "recomputed_fraction": 0.25,
    }
    assert stats.prefill(CacheStats(preemptions=5, prefill=300, recomputed=60)) == {
        "preemptions": 3,
        "recomputed_fraction": 0.1,
    }
    assert stats.prefill(CacheStats(preemptions=5, prefill=300, recomputed=60)) == {"preemptions": 0}
