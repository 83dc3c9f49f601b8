"""What `coa plan` says fits is what fits."""

import re

import pytest

from cluster.present import node_of
from coa.config import load
from coa.errors import UserError
from coa.planning.clusters import DEVICES, Node, parse_cluster
from coa.planning.memory import GIB
from jobs.cli import find_recipe, main
from jobs.commands.plan.places import plan_of
from jobs.recipe.schema import Recipe


def recipe(name: str, *overrides: str) -> Recipe:
    return load(Recipe, find_recipe(name), overrides)


def wrong(name: str, cluster: str, *overrides: str) -> list[str]:
    return plan_of(recipe(name, *overrides), parse_cluster(cluster))[1]


def test_what_runs_where() -> None:
    sections, mistakes = plan_of(recipe("web_7b"), parse_cluster("2x8xH100"))
    assert mistakes == []
    assert sections[1].title == "rl: what runs where, on 2 x 8 H100"
    assert sections[1].rows == (
        ("1", "8 rollout engines, 4 tool executors", "36", "8"),
        ("2", "8 learner ranks", "32", "8"),
    )
    memory = {row[0]: row[1:] for row in sections[2].rows}
    assert sections[2].columns == ("", "sft rank", "rl rank", "engine")
    assert memory["weights"] == ("3.6 GiB", "3.6 GiB", "14.2 GiB")
    assert memory["KV cache"][:2] == ("-", "-")


def test_nodes_that_hold_the_same_are_one_row() -> None:
    sections, _ = plan_of(recipe("web_32b"), parse_cluster("8x8xH200"))
    assert [row[0] for row in sections[0].rows] == ["1 to 4", "5 to 8"]


def test_too_few_gpus_are_told_with_what_there_is() -> None:
    [sentence] = wrong("web_32b", "4x8xH200")
    assert sentence == (
        "rl: no node has room for 32 learner ranks of 4 CPU and 1 GPU; the stage asks for 64 GPUs, there are 32"
    )


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rl.learner.zero_stage=1", "a rl rank needs .* most of it are gradients .* zero_stage=2"),
        ("rl.learner.gradient_checkpointing=false", "most of it are activations .* gradient_checkpointing or"),
        ("engine.gpu_memory_utilization=0.2", "an engine needs 14.2 GiB for weights .* of the 14.9 GiB that"),
        ("engine.gpu_memory_utilization=0.24", "the KV cache of an engine holds .* less than one episode"),
    ],
)
def test_memory_that_does_not_suffice_is_told_with_why(override: str, said: str) -> None:
    [sentence] = wrong("web_7b", "2x8xH100", override)
    assert re.search(said, sentence), sentence


def test_an_engine_and_a_rank_on_one_gpu_share_its_memory() -> None:
    half = ("placement.engines=1", "placement.engine_gpus=0.5", "placement.learner_gpus=0.5", "rl.learner.ranks=1")
    small = ("model.path=Qwen/Qwen2.5-0.5B-Instruct", "sft.learner.ranks=1", "rl.learner.packing.row_tokens=8192")
    settings = (*half, *small, "sft.learner.packing.row_tokens=8192")
    assert wrong("web_7b", "1x1xH100", *settings, "engine.gpu_memory_utilization=0.4") == []
    [sentence] = wrong("web_7b", "1x1xH100", *settings, "engine.gpu_memory_utilization=0.85")
    assert "beside an engine of 63.3 GiB" in sentence


def test_what_is_not_known_is_said() -> None:
    assert "neither on this machine" in wrong("web_7b", "2x8xH100", "model.path=nobody/has-this")[0]
    _, mistakes = plan_of(recipe("web_7b"), (Node(8, None, 64.0),) * 2)
    assert "this kind of GPU" in mistakes[0]


def test_nodes_of_ray() -> None:
    assert node_of({"CPU": 32.0, "GPU": 8.0, "accelerator_type:H200": 1.0}) == Node(8, DEVICES["H200"], 32.0)
    assert node_of({"CPU": 2.0, "memory": 8.0 * GIB}) == Node(0, None, 2.0)


def test_the_status_is_whether_it_fits(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--recipe", "web_7b", "--cluster", "2x8xH100"]) == 0
    assert "does not fit" not in capfd.readouterr().out
    assert main(["plan", "--recipe", "web_7b", "--cluster", "8xH100"]) == 1
    assert "does not fit: rl: no node has room for 8 learner ranks" in capfd.readouterr().out
    assert main(["plan", "--recipe", "web_7b", "--cluster", "8xH999"]) == 2
    with pytest.raises(UserError, match="8xH999"):
        parse_cluster("8xH999")
