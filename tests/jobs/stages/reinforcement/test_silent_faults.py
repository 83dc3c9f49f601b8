"""Faults that stop nothing, injected into a run: the record of the step that has one names it, and no other record.

That a real learner measures them is shown in `tests/actors/learner/test_objectives.py`, and that a real runner of
episodes takes no empty completion and no reward that raises in `tests/actors/rollout/test_runner_failures.py`.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from actors.learner.step_report import StepReport
from actors.messages import EpisodeOrder, Publication, SyncReport
from coa.errors import EpisodeFailed
from coa.learning.algorithms import ALGORITHMS
from coa.learning.algorithms.grpo import Grpo
from coa.reporting.metrics import Record, read_metrics
from coa.types import Floats, Scored
from jobs.stages.reinforcement import groups
from tests.jobs.stages.test_reinforcement import GROUPS, Remembering, make_run, reinforce
from tests.support.engines import FakeWorld
from tests.support.registries import lend
from tests.support.reports import a_report
from tests.support.virtual_time import in_virtual_time

FAULTY, STEPS = 3, 6


def records(folder: Path, *settings: str, **injected: Any) -> tuple[list[Record], dict[str, Any]]:
    """Of every step, in order, and the stage's result."""
    played = in_virtual_time(reinforce(make_run(folder, *settings, steps=STEPS), FakeWorld(), **injected))
    found = [record for record in read_metrics(folder / "metrics.jsonl") if "loss" in record]
    assert [record["step"] for record in found] == list(range(1, STEPS + 1))
    return found, played.result


def reports(**wrong: float | None) -> Any:
    """Those of healthy steps, and one that is not."""
    healthy: dict[str, Any] = {"logprob_mean_diff": 1e-6, "logprob_gap": 1e-3, "logprob_shifted_gap": 0.8}

    def report(version: int) -> StepReport:
        return replace(a_report(), **{**healthy, **(wrong if version == FAULTY else {})})

    return report


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"logprob_gap": 0.8, "logprob_shifted_gap": 1e-3},
            "rollout log-probs are one token off: 0.8 nats from the learner's, 0.001 if shifted by one",
        ),
        (
            {"logprob_mean_diff": 0.03},
            "engine weights do not match their reported version: log-probs are 0.03 nats from the learner's",
        ),
        ({"unsampled": 7}, "7 trained tokens were not sampled by the policy: the loss mask is misaligned"),
        ({"untrained": 2}, "2 tokens that the policy sampled are not trained: the loss mask is misaligned"),
    ],
    ids=["log-probs one token off", "a stale version under the right name", "a mask one token off", "a mask too short"],
)
def test_what_learners_measure_is_named_in_the_record_of_the_step(
    wrong: dict[str, float], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found, result = records(tmp_path, report=reports(**wrong))
    assert {record["step"]: record["faults"] for record in found if "faults" in record} == {FAULTY: said}
    assert result["faults"] == 1
    assert said in caplog.messages


def test_engines_that_sample_with_an_old_cache_are_not_suspected_of_old_weights(tmp_path: Path) -> None:
    found, _ = records(tmp_path, "engine.kv_on_update=keep", report=reports(logprob_mean_diff=0.03))
    assert not any("faults" in record for record in found)


class Stale(Remembering):
    """One of its engines takes the name of a version without its weights."""

    async def sync(self, publication: Publication) -> list[SyncReport]:
        found = await super().sync(publication)
        if publication.version == FAULTY:
            found[0] = replace(found[0], logprob_diff=0.03, logprob_mean_diff=0.01, alarm=True)
        return found


@pytest.mark.parametrize("settings", [(), ("engine.kv_on_update=keep",)], ids=["recompute", "keep"])
def test_an_engine_with_other_weights_than_its_version_is_named_where_no_token_of_that_version_is_trained(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    """With staleness, a batch may be of older versions only."""
    blind = reports(logprob_mean_diff=None)
    found, result = records(tmp_path, "rl.window.max_staleness=2", *settings, pool_class=Stale, report=blind)
    named = {record["step"]: record["faults"] for record in found if "faults" in record}
    assert named == {
        FAULTY + 1: f"1 of 2 engines compute with other weights than those of version {FAULTY}, which they report: "
        "log-probs are up to 0.03 nats from the learner's, 0.01 on average"
    }
    assert result["faults"] == 1
    assert found[FAULTY]["sync_logprob_max_diff"] == 0.03
    assert "logprob_mean_diff" not in found[FAULTY - 1]


@dataclass(frozen=True)
class OnceOfAnotherGroup(Grpo):
    """One group gets the advantages of one in which others of its episodes were right."""

    informative: ClassVar[list[Floats]] = []
    """Advantages so far."""

    def advantages(self, group: Any) -> Floats:
        own = super().advantages(group)
        self.informative.append(own)
        return np.roll(own, 1) if len(self.informative) == FAULTY * GROUPS else own


def test_advantages_of_another_group_are_named_in_the_next_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OnceOfAnotherGroup, "informative", [])
    lend(monkeypatch, ALGORITHMS, "grpo", OnceOfAnotherGroup)
    monkeypatch.setattr(groups, "BUILT_IN", {"grpo": OnceOfAnotherGroup})
    found, result = records(tmp_path)
    named = {record["step"]: record["faults"] for record in found if "faults" in record}
    assert named.keys() == {FAULTY}, "every batch is played before its step, with nothing of the next one"
    assert named[FAULTY].endswith("do not follow its rewards: they are of another group")
    assert result["faults"] == 1


def of_interest(order: EpisodeOrder) -> bool:
    """The middle episode of the second group, of a few that say nothing too."""
    return order.id.group == 1 and order.id.sample == 1


class Mute(Remembering):
    """Its engines give one completion without a token."""

    async def play(self, order: EpisodeOrder) -> Scored:
        if of_interest(order):
            raise EpisodeFailed("EmptyCompletion", "turn 0 has no token", tokens=0, tool_calls=0)
        return await super().play(order)


def test_an_empty_completion_is_counted_by_its_name_in_the_next_record(tmp_path: Path) -> None:
    found, result = records(tmp_path, pool_class=Mute)
    assert [record.get("dropped/EmptyCompletion") for record in found] == [1, None, None, None, None, None]
    assert result["dropped"]["EmptyCompletion"] == 1
    assert {record["groups"] for record in found} >= {GROUPS}, "another group took its place"


class Miscounting(Remembering):
    """Its engines have a reward function with a mistake."""

    async def play(self, order: EpisodeOrder) -> Scored:
        if of_interest(order):
            raise KeyError("no such column")
        return await super().play(order)


def test_a_reward_that_raises_ends_the_stage_before_its_step(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="no such column"):
        records(tmp_path, pool_class=Miscounting)
    assert not any("loss" in record for record in read_metrics(tmp_path / "metrics.jsonl"))
