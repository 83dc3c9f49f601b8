"""Memory that a recipe certainly lacks ends it before anything starts; an estimate is a caution."""

from pathlib import Path

import pytest

from coa.config import load
from coa.errors import UserError
from jobs.recipe.find import find_recipe
from jobs.recipe.findings import Finding
from jobs.recipe.machine import memory_here, memory_of
from jobs.recipe.schema import Recipe

GIB = 2**30
NEW = ("model.hidden_size=1024", "model.layers=8", "session.address=null")


def found(gib: float, *settings: str, stages: tuple[str, ...] = ("sft",)) -> list[Finding]:
    return list(memory_of(load(Recipe, find_recipe("tiny"), (*NEW, *settings)), stages, int(gib * GIB)))


def estimate(one: Finding) -> float:
    """GiB that it names."""
    return float(one.what.partition("about ")[2].split()[0])


@pytest.mark.parametrize(
    ("stage", "settings", "gib"),
    [
        ("sft", (), 4.5),
        ("sft", ("sft.learner.ranks=1",), 2.5),
        ("rl", ("placement.engines=1",), 4.4),
        ("rl", ("placement.engines=3",), 7.5),
        ("rl", ("engine.kv_cache_gib=4",), 7.4),
        ("rl", ("placement.engine_gpus=1",), 3.3),
        ("rl", ("placement.learner_gpus=1",), 2.7),
    ],
)
def test_enough_memory_is_told_with_both_figures(
    stage: str, settings: tuple[str, ...], gib: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of processes on GPUs, only what is in the host's memory counts here."""
    monkeypatch.setattr("cluster.resources._gpus", lambda: 1)
    assert found(64, *settings, stages=(stage,))[0] == Finding(f"memory for {stage} (about {gib} GiB of 64.0 GiB)")


def test_too_little_for_weights_and_optimizer_is_refused_with_what_helps() -> None:
    with pytest.raises(UserError, match=r"^sft: 2 learner ranks need at least 1\.5 GiB of memory, more than the 512"):
        found(0.5, "sft.learner.ranks=2")


def test_what_only_an_estimate_exceeds_is_a_caution() -> None:
    [sft] = found(estimate(found(64)[0]) - 0.2)
    assert sft.caution.startswith("caution: sft may run out of memory: 2 learner ranks need an estimated ")


def test_engines_count_with_the_learners_of_the_same_time() -> None:
    both = found(64, "placement.engines=3", stages=("sft", "rl"))
    assert list(map(estimate, both))[:2] == [4.5, 7.5]
    with pytest.raises(UserError, match=r"^rl: 1 learner rank and 3 engines need at least 2\.5 GiB "):
        found(1, "placement.engines=3", stages=("rl",))
    assert found(0.001, stages=("distill",)) == []


def test_a_cache_that_holds_no_whole_episode_is_refused() -> None:
    wrong = ("engine.kv_cache_gib=0.001", "agent.limits.max_tokens=1024")
    with pytest.raises(UserError) as caught:
        found(64, *wrong, stages=("rl",))
    assert str(caught.value) == (
        "the KV cache of an engine holds 262 tokens, less than one episode of agent.limits.max_tokens=1024: raise "
        "engine.kv_cache_gib to 0.01"
    )
    assert len(found(64, "engine.kv_cache_gib=0.01", *wrong[1:], stages=("rl",))) == 2, "memory, and shared memory"
    assert len(found(64, *wrong, stages=("sft",))) == 1


def test_another_cluster_is_not_looked_at() -> None:
    [unseen] = found(0.001, "session.address=10.0.0.1:6379")
    assert (unseen.what, unseen.looked) == ("the memory of the cluster's nodes", False)


def test_a_machine_without_the_gpus_is_refused_for_these_and_not_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.resources._gpus", lambda: 0)
    [unseen] = found(0.001, "placement.learner_gpus=1")
    assert (unseen.what, unseen.looked) == ("memory, since this machine has no GPU", False)


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("max\n")
    machine = memory_here([str(limit)])
    assert machine > GIB // 4
    limit.write_text(f"{GIB // 4}\n")
    assert memory_here([str(limit), str(tmp_path / "none")]) == GIB // 4
