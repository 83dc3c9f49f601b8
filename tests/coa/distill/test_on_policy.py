"""The policy's tokens weighed by a teacher, and what the team shows of tasks that fail altogether."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.learner.config import ModelConfig
from actors.learner.policy import PackedPolicy
from actors.learner.scorer import TeacherScorer
from coa.agent.codec import Codec
from coa.agent.grammar import parse
from coa.agent.records import GroupRecord
from coa.distill.fallback import failed_altogether, imitations
from coa.distill.filters import Kept
from coa.errors import NotFinite
from coa.learning.algorithms.on_policy import OnPolicyConfig, gaps, toward_teacher
from coa.teams.transcript import Ending, Transcript
from coa.types import Sample
from tests.support.fakes import played
from tests.support.families import made, tiny_config
from tests.support.tiny import AGENT, make_model, random_sample, sum_task

torch.set_num_threads(1)


def sample() -> Sample:
    return Sample(
        token_ids=np.array([1, 2, 3, 4, 8, 5], np.int32),
        loss_mask=np.array([0, 0, 1, 1, 0, 1], np.bool_),
        imitate=np.zeros(6, np.float32),
        reinforce=np.array([0, 0, 0.5, 0.5, 0, 0.5], np.float32),
        rollout_logprobs=np.array([0, 0, -0.5, -0.25, 0, -8], np.float32),
        versions=np.array([-1, -1, 0, 0, -1, 1], np.int32),
    )


def test_a_token_is_weighed_by_how_much_likelier_the_teacher_finds_it() -> None:
    teacher = np.array([-1.5, -0.125, -1.0], np.float32)
    weighed = toward_teacher(sample(), teacher, OnPolicyConfig(weight=2.0, limit=3.0))
    assert weighed.reinforce.tolist() == [0, 0, -2.0, 0.25, 0, 6.0]
    assert weighed.reinforce.dtype == np.float32


def test_rewards_count_beside_the_teacher_where_they_are_wanted() -> None:
    teacher = np.array([-1.5, -0.125, -8.0], np.float32)
    weighed = toward_teacher(sample(), teacher, OnPolicyConfig(reward=0.5))
    assert weighed.reinforce.tolist() == [0, 0, -0.75, 0.375, 0, 0.25]


def test_a_token_that_the_teacher_excludes_counts_with_the_limit() -> None:
    teacher = np.array([-1.5, -np.inf, -1.0], np.float32)
    assert gaps(sample(), teacher, 3.0).tolist() == [-1.0, -3.0, 7.0]
    weighed = toward_teacher(sample(), teacher, OnPolicyConfig(limit=3.0))
    assert weighed.reinforce.tolist() == [0, 0, -1.0, -3.0, 0, 3.0]


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_teacher_that_gives_no_number_fails(wrong: float) -> None:
    with pytest.raises(NotFinite, match=r"^1 of 3 log-probs of the teacher are not finite$"):
        toward_teacher(sample(), np.array([-1.5, wrong, -np.inf], np.float32), OnPolicyConfig())


def test_a_scorer_finds_the_models_own_log_probs_whatever_is_packed_together(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = make_model(tmp_path / "teacher")
    model = AutoModelForCausalLM.from_pretrained(folder)
    rng = np.random.default_rng(0)
    samples = [random_sample(rng, model.config.vocab_size) for _ in range(7)]
    scorer = TeacherScorer(folder, ModelConfig(), OnPolicyConfig(), row_tokens=128, threads=1)
    for one, found in zip(samples, scorer.logprobs(samples), strict=True):
        ids = torch.from_numpy(one.token_ids).long()[None]
        with torch.no_grad():
            all_logprobs = model(input_ids=ids).logits[0].float().log_softmax(-1)
        expected = all_logprobs[:-1].gather(1, ids[0, 1:, None])[:, 0].numpy()[one.loss_mask[1:]]
        assert found == pytest.approx(expected, abs=1e-5)
    divergence, weighed = asyncio.run(scorer.weigh(samples))
    flat = np.concatenate([found - (-6.0) for found in scorer.logprobs(samples)])
    assert divergence == pytest.approx(-flat.mean(), abs=1e-6)
    assert np.concatenate([w.reinforce[w.loss_mask] for w in weighed]) == pytest.approx(flat.clip(-5, 5), abs=1e-6)


def test_a_scorer_refuses_a_teacher_that_does_not_agree_with_itself(tmp_path: Path) -> None:
    made(tiny_config("electra"), tmp_path)
    scorer = TeacherScorer(tmp_path, ModelConfig(path=str(tmp_path)), OnPolicyConfig(), row_tokens=128, threads=1)
    assert re.match(r"ElectraForCausalLM can't be trained here: log-probs are [\d.]+ nats", scorer.mistake())


def test_a_scorer_computes_in_the_way_in_which_its_teacher_agrees_with_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Apart(PackedPolicy):
        def compared(self, samples: Any, run: Any) -> list[Any]:
            return [one + 1.0 * self.way.packed for one in super().compared(samples, run)]

    monkeypatch.setattr("actors.learner.scorer.PackedPolicy", Apart)
    folder = make_model(tmp_path / "teacher")
    scorer = TeacherScorer(folder, ModelConfig(), OnPolicyConfig(), row_tokens=128, threads=1)
    assert not scorer._policy.way.packed


def group(*correct: bool) -> GroupRecord:
    return GroupRecord(group=3, task=sum_task(0), episodes=tuple(map(played, correct)))


def test_only_a_group_without_any_success_has_failed_altogether() -> None:
    assert failed_altogether(group(False, False))
    assert not failed_altogether(group(False, True))
    right_in_the_wrong_form = GroupRecord(group=3, task=sum_task(0), episodes=(replace(played(True), reward=0.0),))
    assert failed_altogether(right_in_the_wrong_form)


CHAIN = "<think> 12 boxes </think> <code> print(12*3-14) </code> <observation> 22 </observation> <answer> 22 </answer>"


def kept(text: str, copies: int) -> Kept:
    transcript = Transcript(
        task=sum_task(0), attempt=0, seed=0, steps=(), ending=Ending.ANSWERED, team="planner", winner=0
    )
    return Kept(transcript=transcript, chain=parse(text).chain, copies=copies)


def test_a_run_of_the_team_is_imitated_as_often_as_it_was_kept(tmp_path: Path) -> None:
    codec = Codec.load(make_model(tmp_path / "model"))
    samples = list(imitations([kept(CHAIN, 2)], codec, AGENT, 0.5))
    assert len(samples) == 2
    one = samples[0]
    said = codec.decode(one.token_ids[one.loss_mask])
    assert "print(12*3-14)" in said
    assert "observation" not in said
    assert set(one.imitate[one.loss_mask].tolist()) == {0.5}
    assert not one.imitate[~one.loss_mask].any()
    assert not one.reinforce.any()


def test_a_run_longer_than_an_episode_is_not_imitated(tmp_path: Path) -> None:
    codec = Codec.load(make_model(tmp_path / "model"))
    long = CHAIN.replace("12 boxes", "12 boxes " * 100)
    assert list(imitations([kept(long, 1)], codec, AGENT, 1.0)) == []
