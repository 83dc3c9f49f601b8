"""What `coa plan` says fits is what fits."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean

import pyarrow.dataset as pads
import pytest

from actors.learner.sizes import architecture
from cluster.resources import node_of
from coa.agent.records import EpisodeRecord
from coa.config import load
from coa.errors import UserError
from coa.learning.algorithms import ALGORITHMS
from coa.planning.bottleneck import changes
from coa.planning.clusters import DEVICES, Node, parse_cluster
from coa.planning.memory import GIB, activation_bytes
from coa.planning.side_by_side import one_by_one
from coa.planning.workload import Replay
from coa.reporting.readable import in_bytes
from coa.types import Status, Task
from jobs.cli import main
from jobs.commands.plan.places import plan_of
from jobs.commands.plan.speed import speed_of, splits, too_large
from jobs.recipe.checks import check_engines
from jobs.recipe.devices import check_parts, check_turns
from jobs.recipe.find import RECIPES, find_recipe
from jobs.recipe.forecast import bottleneck_of, loop_assumed, loop_of_run, passes_of
from jobs.recipe.memory import processes
from jobs.recipe.needs import memory_of_rank, reinforcement_demands
from jobs.recipe.schema import Recipe
from jobs.run.trajectories import read_groups, write_episodes


def recipe(name: str, *overrides: str) -> Recipe:
    return load(Recipe, find_recipe(name), overrides)


def wrong(name: str, cluster: str, *overrides: str) -> list[str]:
    return plan_of(recipe(name, *overrides), parse_cluster(cluster))[1]


def test_what_runs_where() -> None:
    sections, mistakes, _ = plan_of(recipe("web_7b"), parse_cluster("2x8xH100"))
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
    sections, *_ = plan_of(recipe("web_32b"), parse_cluster("8x8xH200"))
    assert [row[0] for row in sections[0].rows] == ["1 to 4", "5 to 8"]


def test_too_few_gpus_are_told_with_what_there_is() -> None:
    [sentence] = wrong("web_32b", "4x8xH200")
    assert sentence == (
        "rl: no node has room for 32 learner ranks of 4 CPU and 1 GPU; the stage needs 64 GPUs, there are 32"
    )


@pytest.mark.parametrize(
    ("cluster", "override", "said"),
    [
        ("2x8xA100-40", "rl.learner.zero_stage=1", "a rl rank needs .* most is for gradients .* zero_stage=2"),
        (
            "2x8xH100",
            "rl.learner.gradient_checkpointing=false",
            "most is for activations .* gradient_checkpointing, shorter rows .row_tokens, max_tokens. or",
        ),
        (
            "2x8xH100",
            "engine.gpu_memory_utilization=0.19",
            "an engine needs 14.2 GiB for weights .* of the 15.0 GiB that",
        ),
        ("2x8xH100", "engine.gpu_memory_utilization=0.22", "the KV cache of an engine holds .* less than one episode"),
    ],
)
def test_memory_that_does_not_suffice_is_told_with_why(cluster: str, override: str, said: str) -> None:
    *_, sentence = wrong("web_7b", cluster, override)
    assert re.search(said, sentence), sentence


def test_a_sample_that_is_longer_than_a_row_is_counted_with_its_whole_length() -> None:
    """It has a row of its own, as long as the sample is."""
    long = "agent.limits.max_tokens=32768"
    early = (long, "rl.short_steps=10", "rl.short_tokens=8192")
    tokens = [activation_tokens("eight_gpus", *of) for of in ((), (long,), (long, "sft.max_tokens=20000"), early)]
    assert tokens == [(16384, 16384), (32768, 32768), (20000, 32768), (32768, 32768)]
    assert activation_tokens("eight_gpus", long, "rl.learner.packing.row_tokens=40000") == (32768, 40000)
    assert wrong("eight_gpus", "8xH100", "agent.limits.max_tokens=16384") == []
    assert "most is for activations" in wrong("eight_gpus", "8xH100", "agent.limits.max_tokens=131072")[-1]


def activation_tokens(name: str, *overrides: str) -> tuple[float, float]:
    """Tokens of which a rank of sft and one of rl keep activations, by the recipe's estimate."""
    config = recipe(name, *overrides)
    built = architecture(config.model)
    assert built is not None
    ranks = (("sft", config.sft.learner), ("rl", config.rl.learner))
    sft, rl = (
        memory_of_rank(config, stage, learner, built).device["activations"]
        / activation_bytes(built, learner, config.model.dtype, 1)
        for stage, learner in ranks
    )
    return sft, rl


def test_an_engine_and_a_rank_on_one_gpu_share_its_memory() -> None:
    half = ("placement.engines=1", "placement.engine_gpus=0.5", "placement.learner_gpus=0.5", "rl.learner.ranks=1")
    small = ("model.path=Qwen/Qwen2.5-0.5B-Instruct", "sft.learner.ranks=1", "rl.learner.packing.row_tokens=8192")
    settings = (*half, *small, "sft.learner.packing.row_tokens=8192")
    assert wrong("web_7b", "1x1xH100", *settings, "engine.gpu_memory_utilization=0.4") == []
    [sentence] = wrong("web_7b", "1x1xH100", *settings, "engine.gpu_memory_utilization=0.85")
    assert "beside an engine of 67.1 GiB" in sentence


def test_an_engine_and_a_rank_that_take_turns_each_have_what_the_other_does_not_keep() -> None:
    """Side by side the one GPU's recipe would not fit with a little more for the engine; in turns an engine is beside a
    rank that rests, which keeps its weights, and a rank beside an engine that sleeps."""
    cluster, more = "1x1xRTX4090", "engine.gpu_memory_utilization=0.7"
    assert wrong("one_gpu", cluster) == wrong("one_gpu", cluster, more) == []
    [sentence] = wrong("one_gpu", cluster, more, "engine.sleep_mode=false")
    assert "beside an engine of 16.1 GiB" in sentence
    [sentence] = wrong("one_gpu", cluster, "engine.gpu_memory_utilization=0.8")
    assert re.search(r"an engine needs 18\.4 GiB beside the .* of a waiting rl rank", sentence)
    sections, *_ = plan_of(recipe("one_gpu"), parse_cluster(cluster))
    rows = {row[0]: row[1:] for row in sections[-1].rows}
    _, rank, engine = rows["while another runs"]
    assert engine == "1.0 GiB"
    assert 3.0 < float(rank.removesuffix(" GiB")) < 4.5
    assert rows["memory of its node"][2] == rows["weights"][2], "the weights of an engine that sleeps"


@pytest.mark.parametrize("device", sorted(DEVICES))
def test_the_one_gpus_recipe_fits_every_card_that_is_known_with_a_gibibyte_to_spare(device: str) -> None:
    sections, mistakes, _ = plan_of(recipe("one_gpu"), parse_cluster(f"1x1x{device}"))
    assert mistakes == []
    usable = DEVICES[device].memory / GIB
    rows = {row[0]: [float(cell.split()[0]) for cell in row[1:] if "GiB" in cell] for row in sections[-1].rows}
    (_, rank, engine), (_, resting, asleep) = rows["in all"], rows["while another runs"]
    assert engine + resting < usable - 1
    assert rank + asleep < usable - 1


def test_what_is_not_known_is_said() -> None:
    config, nodes = recipe("web_7b", "model.path=nobody/has-this"), parse_cluster("2x8xH100")
    _, mistakes, [told] = plan_of(config, nodes)
    assert mistakes == []
    assert told.startswith("memory is not estimated: the configuration of nobody/has-this is neither on this machine")
    assert speed_of(config, nodes, None, None)[1][0].startswith("speed is not estimated: the model's sizes")
    _, mistakes, [told] = plan_of(recipe("web_7b"), (Node(8, None, 64.0),) * 2)
    assert mistakes == []
    assert "this kind of GPU is not known" in told


def test_nodes_of_ray() -> None:
    assert node_of({"CPU": 32.0, "GPU": 8.0, "accelerator_type:H200": 1.0}) == Node(8, DEVICES["H200"], 32.0)
    assert node_of({"CPU": 2.0, "memory": 8.0 * GIB}) == Node(0, None, 2.0)


def test_the_status_is_whether_it_fits(capfd: pytest.CaptureFixture[str]) -> None:
    small = ["rl.window.groups_per_batch=2", "rl.group=2", "agent.limits.max_turns=2"]
    assert main(["plan", "--recipe", "web_7b", "--cluster", "2x8xH100", *small]) == 0
    assert "does not fit" not in capfd.readouterr().out
    assert main(["plan", "--recipe", "web_7b", "--cluster", "8xH100", *small]) == 1
    assert "does not fit: rl: no node has room for 8 learner ranks" in capfd.readouterr().out
    assert main(["plan", "--recipe", "web_7b", "--cluster", "2x8xH100", "model.path=nobody/has-this"]) == 1
    said = capfd.readouterr().out
    assert "memory is not estimated: the configuration of nobody/has-this" in said
    assert "does not fit" not in said
    assert main(["plan", "--recipe", "web_7b", "--cluster", "8xH999"]) == 2
    with pytest.raises(UserError, match="8xH999"):
        parse_cluster("8xH999")


CPU = ("tiny", "own_tasks", "documents")
LINE = re.compile(r"^# Memory of a GPU, by estimate, on (\S+): (.*)\.$", re.MULTILINE)


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.yaml") if path.stem not in CPU))
def test_a_recipe_for_gpus_fits_the_machines_that_it_names_and_tells_its_memory(name: str) -> None:
    [(cluster, told)] = LINE.findall((RECIPES / f"{name}.yaml").read_text())
    config, nodes = recipe(name), parse_cluster(cluster)
    assert plan_of(config, nodes)[1] == []
    built = architecture(config.model)
    assert built is not None
    found = processes(config, built, nodes[0].device)
    assert told == ", ".join(f"{one.what} {in_bytes(one.total)}" for one in found)


def test_there_are_recipes_for_one_gpu_for_a_node_and_for_two() -> None:
    asked = {}
    for path in RECIPES.glob("*.yaml"):
        demands = reinforcement_demands(recipe(path.stem))
        asked[path.stem] = sum(demand.resources.get("GPU", 0) for demand in demands)
    assert (asked["one_gpu"], asked["eight_gpus"], asked["code_7b"]) == (1, 8, 16)


def test_how_fast_it_would_be_is_told_with_what_is_assumed() -> None:
    small = ("rl.window.groups_per_batch=4", "rl.group=2", "agent.limits.max_turns=2")
    sections, said = speed_of(recipe("eight_gpus", *small), parse_cluster("8xH100"), None, 32)
    titles = [section.title for section in sections]
    assert titles == [
        "the loop, simulated",
        "each setting alone",
        "8 GPUs, other divisions",
        "larger clusters, trained/s",
    ]
    simulated = {row[0]: row[1] for row in sections[0].rows}
    assert 0 < float(simulated["standard error, by the episodes drawn"].removesuffix(" %")) < 10
    split = [row[0] for row in sections[2].rows]
    assert "4 engines, 4 ranks" in split
    assert sum(row[2].startswith("best") for row in sections[2].rows) == 1
    best = next(at for at, row in enumerate(sections[2].rows) if row[2].startswith("best"))
    engines = [int(name.split()[0]) for name in split[max(0, best - 1) : best + 2]]
    assert engines == list(range(engines[0], engines[-1] + 1)), "the neighbours of the best were simulated"
    assert [(row[0], row[4]) for row in sections[3].rows] == [
        ("8", "simulated"),
        ("16", "simulated"),
        ("32", "simulated"),
    ]
    assert any("H100's memory bandwidth" in sentence for sentence in said)
    assert any("something is learnt from 60% of the groups" in sentence for sentence in said)


def test_divisions_whose_ranks_do_not_fit_their_gpus_are_left_out() -> None:
    small = ("rl.window.groups_per_batch=4", "rl.group=2", "agent.limits.max_turns=2")
    config, nodes = recipe("eight_gpus", *small), parse_cluster("8xH100")
    built = architecture(config.model)
    assert built is not None
    loop = loop_assumed(config, built, DEVICES["H100"])
    assert [too_large(config, nodes)(ranks) for ranks in (1, 2, 3, 4)] == [True, True, False, False]

    def ranks(rows: Iterable[tuple[str, ...]]) -> list[int]:
        return sorted(int(row[0].split()[-2]) for row in rows)

    fitting, every = splits(loop, too_large(config, nodes), one_by_one), splits(loop, lambda _: False, one_by_one)
    assert fitting is not None
    assert every is not None
    assert ranks(fitting.rows)[0] == 3
    assert ranks(every.rows)[0] == 1


def test_a_learner_s_passes_are_those_of_its_algorithm() -> None:
    """One forward, two backward; one for layers that are computed again, one for scores, one for a reference."""
    several = "rl.learner.updates_per_batch=2"
    found = {
        override: passes_of(recipe("web_7b", *override.split()))
        for override in (
            "rl.learner.gradient_checkpointing=false",
            "seed=1",
            "rl.learner.lora.rank=8",
            "rl.algorithm_settings.kl_weight=0.1",
            "rl.algorithm=ppo",
            several,
            f"{several} rl.learner.loss.proximal=recomputed",
        )
    }
    assert list(found.values()) == [3, 4, 3, 5, 5, 4, 5]


def test_an_algorithm_that_keeps_every_group_is_told_to_train_on_all_of_them() -> None:
    small = ("rl.window.groups_per_batch=4", "rl.group=2", "agent.limits.max_turns=2")
    kept = {}
    for name in ("grpo", "ppo", "reinforce_pp"):
        config = recipe("eight_gpus", *small, f"rl.algorithm={name}")
        built = architecture(config.model)
        assert built is not None
        work = loop_assumed(config, built, DEVICES["H100"]).work
        kept[name] = fmean(work.draw(Random(seed)).kept for seed in range(200))
    assert kept == {"grpo": pytest.approx(0.6, abs=0.1), "ppo": 1.0, "reinforce_pp": 1.0}


def test_a_recorded_run_gives_lengths_and_speeds(tmp_path: Path) -> None:
    recorded_run(tmp_path)
    sections, said = speed_of(recipe("tiny", *BATCH), (Node(0, None, 2.0),), tmp_path, None)
    values = {row[0]: row[1] for row in sections[0].rows}
    assert values["measured in the run"] == "8"
    # Eight episodes of 10 tokens at 0.01 s each a version, and a second of learning beside them.
    assert float(values["trained trajectories a second"]) == pytest.approx(8.0, rel=0.05)
    assert any("episodes are those of the run" in sentence for sentence in said)
    told = bottleneck_of(recipe("tiny", *BATCH), tmp_path)
    assert (told["measured_s"], told["simulated_s"]) == (8.0, pytest.approx(8.0, rel=0.05))
    assert told["simulated_error"] == pytest.approx(0.0, abs=1e-9), "its episodes are all alike"
    with pytest.raises(UserError, match="not finished"):
        speed_of(recipe("tiny"), (), tmp_path / "nowhere", None)


def test_a_run_with_spare_groups_is_told_what_it_waited_for(tmp_path: Path) -> None:
    recorded_run(tmp_path)
    told = bottleneck_of(recipe("tiny", *BATCH, "rl.window.max_staleness=0", "rl.window.spares=2"), tmp_path)
    assert {gain["setting"] for gain in told["gains"]} >= {"placement.engines", "rl.learner.ranks"}


RANGE = ("placement.min_engines=1", "placement.max_engines=8")


@pytest.mark.parametrize(
    ("name", "overrides"), [*((path.stem, ()) for path in sorted(RECIPES.glob("*.yaml"))), ("web_7b", RANGE)]
)
def test_every_advised_setting_is_one_that_the_recipe_may_have(name: str, overrides: tuple[str, ...]) -> None:
    config = recipe(name, *overrides)
    built = architecture(config.model)
    assert built is not None
    shape = loop_assumed(config, built, DEVICES["H100"]).shape
    advised = list(changes(shape, recompute=True))
    assert advised
    for change in advised:
        value = "keep" if change.setting == KEEPING else f"{change.after:g}"
        changed = recipe(name, *overrides, f"{change.setting.split()[0]}={value}")
        check_engines(changed)
        check_turns(changed)
        check_parts(changed)


KEEPING = "engine.kv_on_update (1: recompute, 0: keep)"


def test_the_runs_algorithm_says_which_of_its_groups_are_trained(tmp_path: Path) -> None:
    rows = [(task_named("t"), group, episode(sample)) for group, right in ((1, 1), (2, 0)) for sample in (1, right)]
    write_episodes(tmp_path / "rl-00001.parquet", rows)
    kept = {name: ALGORITHMS[name]().keep for name in ("grpo", "reinforce_pp")}
    assert [group.kept for group in read_groups(tmp_path, kept["grpo"])] == [False, True]
    assert [group.kept for group in read_groups(tmp_path, kept["reinforce_pp"])] == [True, True]


def test_the_algorithm_that_is_planned_for_says_which_groups_of_another_run_are_trained(tmp_path: Path) -> None:
    recorded_run(tmp_path)
    rows = [(task_named("t"), group, episode(1)) for group in range(4, 8) for _ in range(2)]
    write_episodes(tmp_path / "trajectories" / "rl-00002.parquet", rows)
    kept = {}
    for name in ("grpo", "ppo"):
        work = loop_of_run(recipe("tiny", *BATCH, f"rl.algorithm={name}"), tmp_path).work
        assert isinstance(work, Replay)
        kept[name] = sum(group.kept for group in work.groups)
    assert kept == {"grpo": 4, "ppo": 8}


def test_calls_take_as_long_as_they_took_in_the_run(tmp_path: Path) -> None:
    recorded_run(tmp_path)
    loop, random = loop_of_run(recipe("tiny", *BATCH), tmp_path), Random(0)
    assert not any("take no time" in sentence for sentence in loop.assumptions), "no call was made in these episodes"
    calling = replace(episode(1), turns=2, tool_calls=("code", "wiki_search"))
    rows = [(task_named("t"), 9, calling)] * 2
    write_episodes(tmp_path / "trajectories" / "rl-00002.parquet", rows)
    loop = loop_of_run(recipe("tiny", *BATCH), tmp_path)
    assert "calls of wiki_search take no time: the run did not measure it" in loop.assumptions
    assert isinstance(loop.work, Replay)
    only = replace(loop.work, groups=[group for group in loop.work.groups if len(group.episodes[0].tools) == 2])
    turns = [one for _ in range(1000) for one in only.draw(random).episodes]
    code, wiki = ([one[at].tool_s for one in turns] for at in (0, 1))
    assert all(seconds == 0 or 1.448 / 2**0.5 <= seconds <= 1.448 for seconds in code)
    assert sum(seconds == 0 for seconds in code) / len(code) == pytest.approx(2 / 8, abs=0.03), "from a cache"
    assert set(wiki) == {0.0}


def test_a_step_in_which_no_episode_ended_is_a_table_like_the_others(tmp_path: Path) -> None:
    write_episodes(tmp_path / "rl-00001.parquet", [(task_named("t"), 1, episode(1))])
    write_episodes(tmp_path / "rl-00002.parquet", [])
    assert len(read_groups(tmp_path, ALGORITHMS["grpo"]().keep)) == 1
    assert pads.dataset(tmp_path).to_table().num_rows == 1


def test_without_a_gpu_and_a_run_no_speed_is_told() -> None:
    sections, [sentence] = speed_of(recipe("tiny"), (Node(0, None, 2.0),), None, None)
    assert sections == []
    assert "--run" in sentence


BATCH = ("rl.window.groups_per_batch=4", "rl.window.max_refills=0", "rl.group=2")


def recorded_run(folder: Path) -> None:
    """A run of four steps whose learners are the slower half: a batch of 8 episodes takes them a second."""
    (folder / "config.yaml").write_text("run_dir: runs/x\n")
    (folder / "checkpoints").mkdir()
    result = {
        "seconds": 4.0,
        "trajectories": 32,
        "decoding": [[1, 0.1, 10]],
        "time": {"learner": {}},
        "tools": {"code": {"calls": 8, "histogram": {"1.448": 6}}},
    }
    (folder / "checkpoints" / "rl.json").write_text(json.dumps(result))
    lines = [{"stage": "rl", "step": step, "tokens": 80, "seconds": 1.0} for step in range(1, 5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [(task_named("t"), group, episode(sample)) for group in range(4) for sample in range(2)]
    (folder / "trajectories").mkdir()
    write_episodes(folder / "trajectories" / "rl-00001.parquet", rows)


def task_named(name: str) -> Task:
    return Task(id=name, question="?", answers=("a",), profile="mhqa", family="f", grader="exact")


def episode(sample: int) -> EpisodeRecord:
    return EpisodeRecord(
        sample=sample,
        grade=float(sample),
        reward=float(sample),
        correct=bool(sample),
        well_formed=True,
        repairs=(),
        status=Status.ANSWERED,
        answer="a",
        text="",
        turns=1,
        tool_calls=(),
        tokens=15,
        policy_tokens=10,
        tokens_sent=15,
        oldest=0,
        newest=0,
    )
