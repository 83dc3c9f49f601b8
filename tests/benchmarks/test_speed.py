"""What the benchmarks of speed make of what they measure."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.data import BYTES, growth
from benchmarks.engine import turns_of
from benchmarks.learner import surrogate
from benchmarks.loop_sync import compared
from benchmarks.loop_trl import TEMPLATE, parsed, rewards
from benchmarks.plan import WithLatency, calibrated
from benchmarks.speed import tools, updates
from benchmarks.speed.cores import ENGINES, OTHERS, Divided, bind, core_of, short
from benchmarks.speed.rates import intervals_overlap, limit, loop_error, loop_rate, mean_shares, rate, steady
from benchmarks.speed.runs import Ran, recipe
from benchmarks.table import ROWS
from coa.learning.losses import LossConfig
from coa.learning.packing import PackingConfig, pack
from coa.planning.workload import Latency, Recorded, RecordedEpisode
from coa.tools.base import ToolCall
from coa.types import Sample, Status, Trajectory


def test_the_stride_begins_when_the_window_has_filled_and_ends_before_engines_run_dry() -> None:
    assert steady(20, 4) == (5, 15)
    assert steady(6, 0) == (1, 5)
    assert steady(6, 4) == (1, 6), "too few steps for that: all but the first"
    with pytest.raises(ValueError, match="no stride"):
        steady(2, 0)


def test_a_rate_counts_what_ended_between_two_moments() -> None:
    assert rate([10.0, 11.0, 12.0, 14.0], 1, 3, each=8.0) == pytest.approx(2 * 8 / 3)
    records = [{"time": float(at), "samples": 100 + at, "engine/generating": 0.1 * at} for at in range(6)]
    # Of six steps at staleness 0, the second to the fifth.
    assert loop_rate(records, 0) == pytest.approx((101 + 102 + 103 + 104) / 4)
    assert loop_error(records, 0) == pytest.approx((5 / (4 * 3)) ** 0.5 / 102.5)
    assert mean_shares(records, 0, "engine") == {"engine/generating": pytest.approx(0.25)}


def test_a_loop_is_held_against_its_slower_half() -> None:
    assert limit(45.0, 50.0, 60.0) == {"ratio": pytest.approx(0.9), "halves": pytest.approx(1.2)}
    assert limit(45.0, 60.0, 50.0) == limit(45.0, 50.0, 60.0)


def test_rewards_are_alike_where_their_intervals_overlap() -> None:
    assert intervals_overlap([0.90, 0.92, 0.94], [0.93, 0.95, 0.97])
    assert not intervals_overlap([0.90, 0.901, 0.902], [0.95, 0.951, 0.952])
    # Two tasks and three seeds: at staleness 4 one task is worse by .03 in the mean, and the other as good.
    found = compared(
        [
            {"0": [0.8, 1.0], "4": [0.84, 1.0], "4_uncorrected": [0.5, 0.5]},
            {"0": [0.84, 1.0], "4": [0.75, 1.0], "4_uncorrected": [0.0, 0.0]},
            {"0": [0.82, 1.0], "4": [0.78, 1.0], "4_uncorrected": [0.1, 0.1]},
        ]
    )
    half = 1.96 * (0.03**2 / 2 / 2) ** 0.5
    assert found == {
        "reward_0": pytest.approx(0.91),
        "reward_4": pytest.approx(0.895),
        "reward_4_uncorrected": pytest.approx(0.2),
        "rewards_overlap": 1.0,
        "reward_difference": pytest.approx(-0.015),
        "reward_difference_low": pytest.approx(-0.015 - half, abs=1e-5),
        "reward_difference_high": pytest.approx(-0.015 + half, abs=1e-5),
    }


def test_engines_and_tools_have_a_core_and_all_else_the_other() -> None:
    titles = ["ray::RolloutEngine.events", "VLLM::EngineCore", "ray::ToolExecutor", "ray::RayTrainWorker", "raylet"]
    assert [core_of(title) for title in titles] == [ENGINES, ENGINES, ENGINES, OTHERS, OTHERS]
    assert [short(title) for title in titles[:2]] == ["RolloutEngine", "VLLM::EngineCore"]
    assert short("/usr/lib/ray/raylet --port=1") == "raylet"


def test_all_threads_of_a_process_are_bound() -> None:
    core = min(os.sched_getaffinity(0))
    script = "import threading, sys; threading.Thread(target=sys.stdin.read, daemon=True).start(); print(); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        bind(child.pid, core)
        threads = [int(path.name) for path in Path(f"/proc/{child.pid}/task").iterdir()]
        found = [os.sched_getaffinity(thread) for thread in threads]
        child.kill()
    assert len(threads) == 2
    assert found == [{core}, {core}]


def test_what_processes_computed_between_two_moments_is_a_share_of_a_core() -> None:
    cores = Divided()
    cores.seen = [(0.0, {"a": 1.0}), (10.0, {"a": 3.0, "b": 1.0}), (20.0, {"a": 8.0, "b": 1.01}), (30.0, {"a": 9.0})]
    assert cores.shares(5.0, 25.0) == {"a": pytest.approx(0.5)}
    assert cores.shares(25.0, 29.0) == {}


def trajectory(mask: list[int]) -> Trajectory:
    ids = np.arange(len(mask), dtype=np.int32)
    return Trajectory(
        task_id="t",
        sample=0,
        token_ids=ids,
        action_mask=np.array(mask, bool),
        logprobs=np.zeros(len(mask), np.float32),
        versions=ids,
        prompt_length=2,
        turns=2,
        tool_calls=(),
        status=Status.ANSWERED,
        answer="",
        text="",
        transitions_hold=True,
    )


def test_the_turns_of_an_episode_are_what_the_policy_was_asked() -> None:
    found = list(turns_of(trajectory([0, 0, 1, 1, 0, 1])))
    assert [(turn.number, turn.prompt.tolist(), turn.tokens) for turn in found] == [
        (0, [0, 1], 2),
        (1, [0, 1, 2, 3, 4], 1),
    ]


def test_growth_is_between_the_second_quarter_and_the_last() -> None:
    flat = growth([float(2**30)] * 8, 100)
    assert (flat["growth"], flat["driver_mb"]) == (0.0, 1024.0)
    kept = growth([100.0 * BYTES * step for step in range(8)], 100)
    assert kept["growth"] == pytest.approx(1.0), "all that went through it"


def test_the_bare_step_is_that_of_the_losses() -> None:
    """At the sampler's own log-probs the surrogate's gradient is minus the advantage."""
    import torch

    zeros = np.zeros(3, np.float32)
    sample = Sample(
        token_ids=np.array([5, 6, 7], np.int32),
        loss_mask=np.array([False, True, True]),
        imitate=zeros,
        reinforce=np.array([0.0, 2.0, -1.0], np.float32),
        rollout_logprobs=np.array([0.0, -1.0, -3.0], np.float32),
        versions=np.zeros(3, np.int32),
    )
    [batch] = pack([sample], PackingConfig(row_tokens=8, rows=1))
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    surrogate(logprobs, batch).backward()
    cap = LossConfig().correction_cap
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-2.0, cap])


def test_two_runs_calibrate_as_one_and_latencies_are_those_that_are_told(tmp_path: Path) -> None:
    from jobs.run.trajectories import write_episodes
    from tests.jobs.commands.test_plan import episode, task_named

    (tmp_path / "trajectories").mkdir()
    rows = [(task_named("t"), 0, episode(sample)) for sample in range(2)]
    write_episodes(tmp_path / "trajectories" / "rl-00001.parquet", rows)
    result: dict[str, Any] = {
        "decoding": [[2, 1.0, 100]],
        "time": {"learner": {"publishing": 1.0}},
        "sync_pause_mean_s": 0.1,
        "sync_mean_s": 0.3,
    }
    slower = {**result, "decoding": [[4, 2.0, 200]], "sync_pause_mean_s": 0.3, "sync_mean_s": 0.7}
    steps = [{"tokens": tokens, "seconds": 1.0 + 0.01 * tokens} for tokens in (100, 200, 300)]
    config = recipe(tmp_path)
    runs = [Ran(config, tmp_path, steps[:1], result), Ran(config, tmp_path, steps[1:], slower)]
    known = calibrated(runs)
    speeds = known.speeds
    assert (speeds.update_s, speeds.trained_token_s) == (pytest.approx(1.0), pytest.approx(0.01))
    assert [speeds.steps.of(requests) for requests in (2, 3, 4)] == pytest.approx([0.02, 0.03, 0.04])
    assert speeds.publish_s == pytest.approx(2.0 / 3)
    assert (speeds.pause_s, speeds.load_s) == (pytest.approx(0.2), pytest.approx(0.3))
    [group] = known.groups
    assert group.kept, "of REINFORCE++"
    one = Recorded((RecordedEpisode(tokens=30, sampled=10, turns=2, tools=("wiki_search",)),), kept=True)
    from random import Random

    drawn = WithLatency([one], Latency(0.5, 0.5)).draw(Random(0))
    assert [turn.tool_s for turn in drawn.episodes[0]] == [0.5, 0.0]


def test_an_update_is_held_against_the_reload_of_its_round_with_the_largest_model() -> None:
    small = {"mb": [50.0], "reload": [1.0], "host": [9.0], "host/pause": [9.0], "ipc": [9.0]}
    large = {
        "mb": [500.0],
        "reload": [1.0, 2.0, 1.0],
        "host": [1.5, 3.0, 9.0],
        "host/pause": [1.15, 2.25, 1.15],
        "ipc": [3.0, 6.0, 18.0],
    }
    found = updates.figures_of({50: small, 500: large})
    assert (found["update_to_reload"], found["ipc_to_host"]) == (1.5, 2.0)
    assert found["pause_to_reload"] == pytest.approx(1.1)
    assert (found["50/host"], found["500/host"], found["500/mb"]) == (9.0, 3.0, 500.0)


def test_the_updates_are_plotted_against_size_and_engines(tmp_path: Path) -> None:
    sides = ("mb", "reload", "host", "host/pause", "ipc")
    figures = {f"{size}/{side}": 1.0 for size in updates.SIZES for side in sides}
    several = {f"{updates.OF_ENGINES}/host/{count}": 2.0 for count in updates.ENGINES[1:]}
    updates.draw({**figures, **several}, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
    assert {row.figure for row in ROWS if "/host" in row.figure} <= {*figures, *several}


def test_the_peer_reads_calls_and_answers_in_our_format() -> None:
    call = parsed("<plan> find her</plan><wiki_search> Nora Lind</wiki_search>")
    assert call["tool_calls"][0]["function"] == {"name": "wiki_search", "arguments": {"query": "Nora Lind"}}
    told = parsed("<reflection> town</reflection><answer> Berg</answer>")
    assert "tool_calls" not in told
    assert rewards([[call, {"role": "tool"}, told], [told], [call]], ["Berg", "Lind", "Berg"]) == [1.0, 0.0, 0.0]


@pytest.mark.slow
def test_the_peer_is_asked_with_the_tokens_that_the_policy_is_asked_with(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from benchmarks.sft_learner import make_start
    from coa.agent.codec import Codec
    from coa.agent.profiles import profile

    make_start(tmp_path)
    codec, tokenizer = Codec.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.chat_template, tokenizer.eos_token = TEMPLATE, "</wiki_search>"
    question: Any = {"role": "user", "content": "Who is the mayor of the town where Nora Lind was born ?"}
    found = tokenizer.apply_chat_template([question], add_generation_prompt=True, return_dict=False)
    assert found == codec.prompt(profile("mhqa"), question["content"], instructed=False).tolist()
    call: Any = {
        "role": "assistant",
        "content": "",
        "tool_calls": parsed("<wiki_search> x</wiki_search>")["tool_calls"],
    }
    before = tokenizer.apply_chat_template([question, call], return_dict=False)
    after = tokenizer.apply_chat_template(
        [question, call, {"role": "tool", "content": "Nora Lind : Fall"}], add_generation_prompt=True, return_dict=False
    )
    assert after[: len(before)] == before
    assert after[len(before) :] == codec.observation("Nora Lind : Fall", limit=64)


@pytest.mark.slow
def test_the_grown_model_says_what_the_small_one_says(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from benchmarks.speed.grown import grow
    from tests.support.tiny import make_model

    small = make_model(tmp_path / "small")
    parameters = grow(small, tmp_path / "large")
    ids = torch.tensor([[5, 9, 3, 7, 11, 2, 4]])
    with torch.no_grad():
        one, other = (
            AutoModelForCausalLM.from_pretrained(folder)(ids).logits for folder in (small, tmp_path / "large")
        )
    assert parameters > 30e6
    assert torch.allclose(one, other, atol=1e-4)
    assert float(one.std()) > 1e-3


def test_a_step_of_the_recipe_is_32_groups_of_8_and_nothing_is_dropped() -> None:
    config = recipe(Path("runs/x")).rl
    assert (config.window.groups_per_batch, config.group) == (32, 8)
    assert config.algorithm_of().keep([])


def test_the_tool_takes_what_its_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(tools.asyncio, "sleep", sleep)
    monkeypatch.setenv(tools.VARIABLE, str(tmp_path / "tools.json"))
    call = ToolCall("wiki_search", "Nobody Atall")
    for median_s, p99_s in ((0.0, 0.0), (0.3, 3.0)):
        (tmp_path / "tools.json").write_text(json.dumps({"median_s": median_s, "p99_s": p99_s, "seed": 0}))
        tool = tools.SlowLookup()
        found = [asyncio.run(tool(call)) for _ in range(500)]
        assert set(found) == {"no result"}
        assert tool.key(call) is None
    assert len(slept) == 500
    assert np.median(slept) == pytest.approx(0.3, rel=0.15)
