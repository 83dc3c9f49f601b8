"""Faults that stop nothing, injected into a run: the record of the step that has one names it, and no other record.

That a real learner measures them is shown in `tests/actors/learner/test_objectives.py`, and that a real runner of
episodes takes no empty completion and no reward that raises in `tests/actors/rollout/test_runner_failures.py`.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from actors.learner.step_report import StepReport
from actors.messages import EpisodeOrder, Publication, SyncReport
from coa.errors import EpisodeFailed, NotFinite, NothingLearnt
from coa.learning.algorithms import ALGORITHMS
from coa.learning.algorithms.grpo import Grpo
from coa.reporting.metrics import Record, read_metrics
from coa.storage.jsonl import read_lines
from coa.types import Floats, Sample, Scored
from jobs.run.console import Console
from jobs.stages.reinforcement import groups
from tests.support.engines import FakeWorld
from tests.support.registries import lend
from tests.support.reports import a_report
from tests.support.rl_loop import GROUPS, Remembering, make_run, reinforce
from tests.support.virtual_time import in_virtual_time

FAULTY, STEPS = 3, 6


def records(folder: Path, *settings: str, **injected: Any) -> tuple[list[Record], dict[str, Any]]:
    """Of every step, in order, and the stage's result."""
    played = in_virtual_time(reinforce(make_run(folder, *settings, steps=STEPS), FakeWorld(), **injected))
    found = [record for record in read_metrics(folder / "metrics.jsonl") if "loss" in record]
    assert [record["step"] for record in found] == list(range(1, STEPS + 1))
    return found, played.result


def reports(**wrong: Any) -> Any:
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


SKIPPED: dict[str, Any] = {
    "updates": 0,
    "skipped": 1,
    "not_finite": "3 advantages are not finite",
    "loss": math.nan,
    "logprob_max_diff": math.nan,
}
SAID = "nothing was learnt from the batch: 3 advantages are not finite"


def test_a_skipped_step_is_named_in_its_record_on_the_console_and_in_the_result_and_the_next_one_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(Console, "say", lambda self, line: lines.append(line))
    found, result = records(tmp_path, report=reports(**SKIPPED))
    assert {record["step"]: record["faults"] for record in found if "faults" in record} == {FAULTY: SAID}
    assert [record["skipped"] for record in found] == [0, 0, 1, 0, 0, 0]
    assert (result["faults"], result["skipped"], result["batches"]) == (1, 1, STEPS)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert lines == ["rl: alike", f"rl: step {FAULTY}: {SAID}"]


def test_steps_that_teach_nothing_one_after_the_other_end_the_stage_once_each_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(NothingLearnt, match=r"^5 steps in a row taught nothing; the last one: 3 advantages are not"):
        records(tmp_path, report=lambda version: replace(a_report(), **SKIPPED))
    found = read_metrics(tmp_path / "metrics.jsonl")
    assert [(record["step"], record["faults"]) for record in found] == [(step, SAID) for step in range(1, 6)]


class Blind:
    """A teacher that gives no number for the tokens of one group."""

    def __init__(self) -> None:
        self.asked = 0

    async def weigh(self, samples: Sequence[Sample]) -> tuple[float, Sequence[Sample]]:
        self.asked += 1
        if self.asked == FAULTY:
            raise NotFinite("2 of 7 log-probs of the teacher are not finite")
        return 0.25, samples


def test_a_group_that_a_teacher_cannot_score_is_played_again_and_counted(tmp_path: Path) -> None:
    teacher = Blind()
    found, result = records(tmp_path, scorer=teacher)
    assert sum(record.get("dropped/NotFinite", 0) for record in found) == 1
    assert (result["dropped"]["NotFinite"], result["retried"], result["given_up"]) == (1, 1, 0)
    assert {record["reverse_kl"] for record in found} == {0.25}
    lines = [line for line in read_lines(tmp_path / "ledger.jsonl") if line.get("reason") == "NotFinite"]
    assert len(lines) == 1
    assert teacher.asked > STEPS * GROUPS


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
