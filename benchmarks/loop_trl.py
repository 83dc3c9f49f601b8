"""The loop against TRL's `GRPOTrainer` with tools: samples per second, same model, tasks, tool, group size and samples.

    python -m benchmarks.loop_trl [--smoke]

Both begin with the policy of `benchmarks/speed/bench_loop.yaml`, on both cores, and learn as many steps of as many
groups of 8 episodes (WORKS). With a tool that answers at once, their last policies then attempt the same held-out
tasks, on the same engines. With a tool that takes 300 ms in the median and 3 s in the 99th percentile, a step has few
groups, since TRL waits for one call after the other.

A side's speed is all its samples over all the time from its first step's beginning to its end; loading models and
starting processes is left out. In the loop this includes the first batch, which learners wait for, the last ones, which
engines play nothing beside, and, unlike in TRL, a checkpoint and the last weights' way to the engines. All of it is
measured ROUNDS times, each with a seed of its own for tasks, sampling and latencies: a ratio is the median of the
rounds' ratios, with the least and the greatest beside it. The difference in reward is that of the mean over rounds,
with its 95 % interval over tasks.

TRL has our format by a chat template and a parser of its calls. Its rewards are scaled by the batch and its loss is
DAPO's, which is what REINFORCE++ with a baseline does in the loop. It generates with transformers: its own use of vLLM
needs a GPU.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from benchmarks.harness import PEER, report, step_clock
from benchmarks.speed.rates import over_rounds, reward_difference, whole_rate
from benchmarks.speed.runs import AT_ONCE, SLOW, Bench, Latency, bench, measured, recipe
from coa.demo import World, WorldConfig
from coa.planning import workload
from coa.tools.base import ToolCall
from coa.tools.search.wiki import TitleLookup
from jobs.recipe.worlds import world_of

ROUNDS = 3
TASKS, SMOKE_TASKS, ATTEMPTS = 400, 20, 4
TARGETS = {"ratio_0ms": ">= 1.5", "ratio_slow": ">= 5", "reward_difference_high": ">= 0"}
"""No less reward: the interval of the difference, loop minus TRL, is not all below zero."""
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'user' %}<|im_start|>user\n{{ m['content'] }}<|im_end|>\n"
    "{% elif m['role'] == 'tool' %}<observation> {{ m['content'] }}</observation>"
    "{% else %}<|im_start|>assistant\n{{ m['content'] }}{% for call in m['tool_calls'] or [] %}"
    "<wiki_search> {{ call['function']['name'] }} {{ call['function']['arguments'] }}</wiki_search>{% endfor %}"
    "{% endif %}"
    "{% endfor %}{% if add_generation_prompt and messages[-1]['role'] == 'user' %}<|im_start|>assistant\n{% endif %}"
)
"""As the codec writes them; an assistant's message is only ever rendered to find where a tool's begins."""
CALL, ANSWER = re.compile(r"<wiki_search>\s*(.*?)\s*</wiki_search>"), re.compile(r"<answer>\s*(.*?)\s*</answer>")
Figures = dict[str, float]


@dataclass(frozen=True)
class Work:
    """What both sides do in a round."""

    latency: Latency
    steps: int
    groups: int
    """Of a step."""
    max_staleness: int
    """Of the loop: as little as keeps engines and learners busy at the same time. Episodes take as long as their
    calls, so slow ones need a wider window."""


WORKS = {"0ms": Work(AT_ONCE, 16, 32, 1), "slow": Work(SLOW, 6, 4, 4)}
SMOKE_WORKS = {"0ms": Work(AT_ONCE, 2, 2, 1), "slow": Work(SLOW, 2, 2, 4)}


# --- the peer, in a process of its own --------------------------------------------------------------------------------


def parsed(text: str) -> dict[str, Any]:
    """A turn as a message; one that ends with a call has it."""
    found = CALL.findall(text) if text.rstrip().endswith("</wiki_search>") else []
    calls = [
        {"type": "function", "function": {"name": "wiki_search", "arguments": {"query": query}}} for query in found[-1:]
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def rewards(completions: list[Any], answer: list[str], **_: Any) -> list[float | None]:
    """1 for the right answer in the last message."""
    said = (ANSWER.findall(completion[-1]["content"] or "") for completion in completions)
    return [float(bool(found) and found[-1] == right) for found, right in zip(said, answer, strict=True)]


def make_tool(latency: Latency) -> Any:
    import asyncio

    lookup, random = TitleLookup(World(WorldConfig()).wiki_pages), Random(latency.seed)
    drawn = workload.Latency(latency.median_s, latency.p99_s)

    async def wiki_search(query: str) -> str:
        """
        Finds an article.

        Args:
            query: its title

        Returns:
            The article.
        """
        await asyncio.sleep(drawn.draw(random))
        return await lookup(ToolCall("wiki_search", query))

    return wiki_search


def train(model: Path, folder: Path, work: Work, seed: int) -> list[float]:
    """Trains, and saves the model; seconds of each step."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.grpo_config import GRPOConfig  # pyright: ignore[reportMissingImports]
    from trl.trainer.grpo_trainer import GRPOTrainer  # pyright: ignore[reportMissingImports]

    took: list[float] = []
    config = recipe(folder, f"seed={seed}")
    group, rate, agent = config.rl.group, config.rl.learner.optimizer, config.agent.limits
    world = world_of(config)
    tasks = [world.training_task("rl", index, seed=config.seed) for index in range(work.steps * work.groups)]
    rows = [{"prompt": [{"role": "user", "content": t.question}], "answer": t.answers[0]} for t in tasks]
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template, tokenizer.eos_token = TEMPLATE, "</wiki_search>"
    tokenizer.response_template = {"fields": {}}
    tokenizer.parse_response = lambda ids, **_: parsed(tokenizer.decode(ids))
    policy: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ends = ("</wiki_search>", "</answer>", "<|im_end|>")
    policy.generation_config.eos_token_id = [tokenizer.convert_tokens_to_ids(end) for end in ends]
    policy.config.use_cache = True
    trainer = GRPOTrainer(
        model=policy,
        processing_class=tokenizer,
        reward_funcs=rewards,
        train_dataset=Dataset.from_list(rows),
        tools=[make_tool(work.latency)],
        callbacks=[step_clock(took)],
        args=GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=group * work.groups,
            num_generations=group,
            max_steps=work.steps,
            seed=seed,
            max_completion_length=agent.max_tokens - 64,
            max_tool_calling_iterations=agent.max_turns - 1,  # the first turn is none
            generation_kwargs={"max_new_tokens": agent.max_turn_tokens},  # else a turn may be as long as an episode
            temperature=1.0,
            beta=0.0,
            loss_type="dapo",
            epsilon=0.2,
            epsilon_high=0.28,
            scale_rewards="batch",
            learning_rate=rate.lr,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=rate.warmup_steps,
            adam_beta2=rate.beta2,
            max_grad_norm=rate.clip_norm,
            shuffle_dataset=False,
            **PEER,
        ),
    )
    trainer.train()
    policy.save_pretrained(folder / "model")
    return took


def peer(model: Path, folder: Path, work: Work, seed: int) -> float:
    """Samples per second of the peer's steps, from the first's beginning to the last's end."""
    folder.mkdir(parents=True)
    told = json.dumps({"model": str(model), "folder": str(folder), "work": asdict(work), "seed": seed})
    command = [sys.executable, "-m", "benchmarks.loop_trl", "--peer", told]
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
    printed = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout
    took: list[float] = json.loads(printed.splitlines()[-1])
    if len(took) != work.steps:
        raise SystemExit(f"TRL took {len(took)} of {work.steps} steps")
    return recipe(folder).rl.group * work.groups * work.steps / sum(took)


def peer_main(told: str) -> None:
    read = json.loads(told)
    latency = Latency(**read["work"].pop("latency"))
    work = Work(latency=latency, **read["work"])
    print(json.dumps(train(Path(read["model"]), Path(read["folder"]), work, read["seed"])))


# --- both -------------------------------------------------------------------------------------------------------------


async def rewards_of(ours: Bench, model: Path, tasks: int) -> list[float]:
    """The mean reward of a model on each held-out task."""
    await ours.pool.load(10**6, model)
    return await ours.rewards(tasks, ATTEMPTS)


@dataclass(frozen=True)
class Round:
    figures: Figures
    ours: list[float]
    """By held-out task, the mean reward of the policy that the loop trained with a tool that answers at once."""
    trl: list[float]


async def one_round(folder: Path, start: Path, console: Any, works: Mapping[str, Work], tasks: int, seed: int) -> Round:
    figures: Figures = {}
    ours, trl = list[float](), list[float]()
    for name, each in works.items():
        work = replace(each, latency=replace(each.latency, seed=seed))
        trained = folder / f"trl-{name}-{seed}"
        figures[f"trl_{name}"] = peer(start / "checkpoints" / "sft-model", trained, work, seed)
        window = f"rl.window.groups_per_batch={work.groups}", f"rl.window.max_staleness={work.max_staleness}"
        async with bench(folder, start, console, work.latency, *window, f"seed={seed}") as loop:
            ran = await loop.run(f"{name}-{seed}", f"rl.steps={work.steps}")
            figures[f"loop_{name}"] = whole_rate(ran.records, ran.result["time"]["wall"])
            if name == "0ms":
                ours, trl = await loop.rewards(tasks, ATTEMPTS), await rewards_of(loop, trained / "model", tasks)
        figures[f"ratio_{name}"] = figures[f"loop_{name}"] / figures[f"trl_{name}"]
    return Round(figures, ours, trl)


def of_rounds(rounds: Sequence[Round]) -> Figures:
    figures = over_rounds([one.figures for one in rounds], spread=("ratio_0ms", "ratio_slow"))
    sides = ([one.ours for one in rounds], [one.trl for one in rounds])
    ours, trl = ([fmean(task) for task in zip(*side, strict=True)] for side in sides)
    return {
        **figures,
        "reward": fmean(ours),
        "reward_trl": fmean(trl),
        **reward_difference(ours, trl),
    }


async def measure(folder: Path, start: Path, console: Any, smoke: bool) -> Figures:
    works, tasks, rounds = (SMOKE_WORKS, SMOKE_TASKS, 1) if smoke else (WORKS, TASKS, ROUNDS)
    return of_rounds([await one_round(folder, start, console, works, tasks, seed) for seed in range(rounds)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true", help="one round, of two steps of two groups")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peer:
        peer_main(given.peer)
        return
    began = time.monotonic()
    figures = measured(
        "loop_trl", given.smoke, lambda folder, start, console: measure(folder, start, console, given.smoke)
    )
    figures["took_s"] = time.monotonic() - began
    report("loop_trl" + "_smoke" * given.smoke, figures, TARGETS)


if __name__ == "__main__":
    main()
