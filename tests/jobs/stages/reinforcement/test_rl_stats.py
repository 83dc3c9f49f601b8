from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from actors.learner.buffer import Committed
from actors.messages import CacheStats, SyncReport
from actors.weights.manifest import Manifest, lay_out
from actors.weights.transport import Published
from coa.agent.records import EpisodeRecord, GroupRecord
from coa.types import Status, Task
from jobs.stages.reinforcement.rl_stats import NO_VARIANCE, RlStats, console_fields, episode_metrics, lengths
from jobs.stages.start import checkpoint_metrics

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
    fresh_tokens: int = 160
    logprob_max_diff: float | None = 1e-6


@dataclass(frozen=True, kw_only=True)
class LargerReport(Report):
    entropy: float = 0.25
    algorithm: dict[str, float]


def event(report: Report, version: int = 1) -> Any:
    return SimpleNamespace(version=version, report=report, began=10.0, ended=12.0, waited=3.0, weights=None)


def synced(*, diff: float, mean: float, pause_s: float, alarm: bool = False) -> SyncReport:
    return SyncReport(version=1, logprob_diff=diff, logprob_mean_diff=mean, pause_s=pause_s, alarm=alarm)


@pytest.fixture
def clock() -> Any:
    clock = SimpleNamespace(now=100.0)
    clock.read = lambda: clock.now
    return clock


def test_a_checkpoint_is_in_the_record_of_the_next_step_and_in_no_other(clock: Any) -> None:
    stats = RlStats()
    stats.begin()
    stats.committed = checkpoint_metrics(Committed(version=3, write_s=1.5, commit_s=4.0, size=2**29))
    first, second = (stats.record(event(Report()), []) for _ in range(2))
    told = {"checkpoint_write_s": 1.5, "checkpoint_commit_s": 4.0, "checkpoint_gib": 0.5}
    assert told.items() <= first.items()
    assert not told.keys() & second.keys()


def test_a_record_tells_of_episodes_learners_and_what_was_dropped_since_the_last_one(clock: Any) -> None:
    stats = RlStats(clock.read)
    stats.begin()
    stats.played += [group("calc", [1, 0]), group("hops", [0.5, 0.5], status=Status.TRUNCATED, tokens=384)]
    stats.dropped["ToolDown"] += 2
    stats.dropped[NO_VARIANCE] += 1
    stats.retried += 2
    stats.sync([synced(diff=0.75, mean=0.5, pause_s=1.0)])
    stats.sync([synced(diff=0.25, mean=0.0625, pause_s=0.5, alarm=True), synced(diff=0.5, mean=0.03125, pause_s=0.25)])
    clock.now = 104.0
    now = event(Report())
    record = stats.record(now, stats.step(now))
    assert record == {
        "samples": 8,
        "tokens": 320,
        "loss": 0.5,
        "staleness_mean": 0.5,
        "staleness_max": 1,
        "fresh_tokens": 160,
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
        "families_missing": 0,
        "failed_fraction": 0.0,
        "faults": "1 of 2 engines compute with other weights than those of version 1, which they report: log-probs are "
        "up to 0.25 nats from the learner's, 0.062 on average",
        "groups": 2,
        "trajectories_s": 1.0,
        "tokens_s": 40.0,
        "sync_logprob_max_diff": 0.5,
        "sync_logprob_mean_diff": 0.0625,
        "sync_pause_s": 0.5,
        "seconds": 2.0,
        "waited": 3.0,
    }


def test_a_step_in_which_no_group_ended_has_no_means_and_no_old_counts(clock: Any) -> None:
    stats = RlStats(clock.read)
    stats.begin()
    stats.dropped["ToolDown"] += 1
    for _ in range(2):
        clock.now += 1.0
        record = stats.record(event(Report()), stats.step(event(Report())))
    for name in ("reward", "length_p50", "rejected_fraction", "dropped/ToolDown", "sync_pause_s", "faults"):
        assert name not in record, name
    assert (record["groups"], record["tokens_s"], record["retried"], record["sync_alarms"]) == (0, 0.0, 0, 0)


def test_a_step_without_a_token_of_its_own_version_has_no_difference_of_log_probs(clock: Any) -> None:
    stats = RlStats()
    stats.begin()
    clock.now += 1.0
    now = event(Report(fresh_tokens=0, logprob_max_diff=None))
    record = stats.record(now, stats.step(now))
    assert stats.summary([])["batches"] == 1
    assert record["fresh_tokens"] == 0
    assert "logprob_max_diff" not in record
    assert stats.summary([])["train_logprob_max_diff"] == 0.0


def test_faults_are_counted_by_steps(clock: Any) -> None:
    stats = RlStats()
    stats.begin()
    clock.now += 1.0
    stats.suspect(["one", "another"])
    assert stats.record(event(Report(), 1), [])["faults"] == "one; another"
    assert "faults" not in stats.record(event(Report(), 2), [])
    stats.suspect(["a third"])
    stats.record(event(Report(), 3), [])
    assert stats.summary([])["faults"] == 2
    stats.suspect(["after the last step"])
    assert stats.summary([])["faults"] == 2, "it belongs to step 3, which has one already"
    stats.record(event(Report(), 1), [])  # again, after a restart
    assert stats.summary([])["faults"] == 2


def test_what_an_algorithm_measures_is_under_its_own_names(clock: Any) -> None:
    report = LargerReport(algorithm={"value_loss": 0.125})
    record = RlStats(clock.read).record(event(report), [])
    assert record["value_loss"] == 0.125
    assert record["entropy"] == 0.25
    assert "algorithm" not in record


def test_a_record_names_the_weights_that_the_step_made() -> None:
    manifest = Manifest(version=1, layout=lay_out([("a", "U8", (3,))], 64), digests=(b"0123456789abcdef",))
    made = event(Report())
    made.weights = Published(manifest=manifest, transport="host", place=None)
    assert RlStats().record(made, [])["weights"] == manifest.fingerprint


def test_a_stage_without_an_engine_at_its_end_has_a_summary(clock: Any) -> None:
    stats = RlStats(clock.read)
    stats.begin()
    clock.now += 10.0
    assert stats.summary([])["busy"] == {"engine": 0.0, "learner": 0.0}
    assert stats.summary([[(100.0, 105.0)], [(95.0, 110.0), (100.0, 101.0)]])["busy"]["engine"] == 0.75


def test_quantiles_are_lengths_that_occurred() -> None:
    episodes = [replace(EPISODE, tokens=n) for n in range(1, 101)]
    assert lengths(episodes) == {"length_p50": 50, "length_p90": 90, "length_p99": 99}
    assert lengths(episodes[:1]) == {"length_p50": 1, "length_p90": 1, "length_p99": 1}


def test_groups_without_episodes_say_nothing() -> None:
    assert episode_metrics([]) == {}
    assert episode_metrics([group("calc", [])]) == {}


def test_the_terminal_shows_what_there_is() -> None:
    assert console_fields({"reward": 0.5, "kl_rollout": -0.000123, "groups": 3}) == {"reward": 0.5, "kl": "-1.2e-04"}


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


def test_responses_of_programs_that_are_not_trained_are_counted_by_reason() -> None:
    groups = [
        group("calc", [0.0, 1.0], unused={"retried": 2}),
        group("calc", [1.0], unused={"retried": 1, "auxiliary": 4}),
    ]
    found = episode_metrics(groups)
    assert {name: value for name, value in found.items() if name.startswith("unused/")} == {
        "unused/auxiliary": 4,
        "unused/retried": 5,
    }
