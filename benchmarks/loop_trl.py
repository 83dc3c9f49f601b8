"""The loop against TRL's `GRPOTrainer` with tools: samples per second, same model, tasks, tool, group size and samples.

    python -m benchmarks.loop_trl [--smoke]

Both begin with the policy of `benchmarks/speed/bench_loop.yaml`, and take 32 groups of 8 episodes a step, on both
cores. With a tool that answers at once both learn STEPS steps, and their last policies attempt the same held-out tasks,
on the same engines. With a tool that takes 300 ms in the median and 3 s in the 99th percentile, TRL takes two steps of
SLOW_GROUPS groups, as it waits for one call after the other, and the second counts; the loop takes as many groups a
step, and more steps.

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
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.harness import PEER, report, step_clock
from benchmarks.speed.rates import loop_rate
from benchmarks.speed.runs import AT_ONCE, SLOW, STILL, Bench, Latency, bench, measured, recipe
from coa.demo import World, WorldConfig
from coa.planning import workload
from coa.tools.base import ToolCall
from coa.tools.search.wiki import TitleLookup
from jobs.recipe.worlds import world_of

STEPS, SLOW_STEPS, SLOW_GROUPS = 10, 2, 4
TASKS, ATTEMPTS = 100, 4
TARGETS = {"ratio_0ms": ">= 1.5", "ratio_slow": ">= 5"}
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

    lookup, random = TitleLookup(World(WorldConfig()).wiki_pages), Random(0)
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


def train(model: Path, folder: Path, latency: Latency, steps: int, groups: int) -> list[float]:
    """Trains, and saves the model; seconds of each step."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.grpo_config import GRPOConfig  # pyright: ignore[reportMissingImports]
    from trl.trainer.grpo_trainer import GRPOTrainer  # pyright: ignore[reportMissingImports]

    took: list[float] = []
    config = recipe(folder)
    group, rate, agent = config.rl.group, config.rl.learner.optimizer, config.agent.limits
    world = world_of(config)
    tasks = [world.training_task("rl", index, seed=config.seed) for index in range(steps * groups)]
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
        tools=[make_tool(latency)],
        callbacks=[step_clock(took)],
        args=GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=group * groups,
            num_generations=group,
            max_steps=steps,
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


def peer(model: Path, folder: Path, latency: Latency, steps: int, groups: int) -> float:
    """Samples per second of the peer's steps behind the first."""
    folder.mkdir(parents=True)
    told = json.dumps([str(model), str(folder), latency.median_s, latency.p99_s, steps, groups])
    command = [sys.executable, "-m", "benchmarks.loop_trl", "--peer", told]
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
    printed = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout
    took: list[float] = json.loads(printed.splitlines()[-1])
    return recipe(folder).rl.group * groups * (len(took) - 1) / sum(took[1:])


# --- both -------------------------------------------------------------------------------------------------------------


async def reward_of(ours: Bench, model: Path) -> float:
    await ours.pool.load(10**6, model)
    return await ours.reward(TASKS, ATTEMPTS)


async def measure(folder: Path, start: Path, console: Any, smoke: bool) -> Figures:
    steps, groups = (2, 2) if smoke else (STEPS, 32)
    model = start / "checkpoints" / "sft-model"
    figures: Figures = {}
    window = f"rl.window.groups_per_batch={groups}"
    figures["trl_0ms"] = peer(model, folder / "trl", AT_ONCE, steps, groups)
    async with bench(folder, start, console, AT_ONCE, window) as ours:
        ran = await ours.run("at_once", f"rl.steps={max(steps, 4)}")
        figures["reward"] = await ours.reward(TASKS, ATTEMPTS)
        figures["reward_trl"] = await reward_of(ours, folder / "trl" / "model")
    figures["loop_0ms"] = loop_rate(ran.records, ran.config.rl.window.max_staleness)
    groups = 2 if smoke else SLOW_GROUPS
    figures["trl_slow"] = peer(model, folder / "trl_slow", SLOW, SLOW_STEPS, groups)
    async with bench(folder, start, console, SLOW, f"rl.window.groups_per_batch={groups}", STILL) as ours:
        ran = await ours.run("slow", f"rl.steps={8 if smoke else 40}")
    figures["loop_slow"] = loop_rate(ran.records, ran.config.rl.window.max_staleness)
    return figures | {f"ratio_{tools}": figures[f"loop_{tools}"] / figures[f"trl_{tools}"] for tools in ("0ms", "slow")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true", help="two steps of two groups")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peer:
        model, folder, median_s, p99_s, steps, groups = json.loads(given.peer)
        print(json.dumps(train(Path(model), Path(folder), Latency(median_s, p99_s), steps, groups)))
        return
    began = time.monotonic()
    figures = measured(
        "loop_trl", given.smoke, lambda folder, start, console: measure(folder, start, console, given.smoke)
    )
    figures["took_s"] = time.monotonic() - began
    report("loop_trl" + "_smoke" * given.smoke, figures, TARGETS)


if __name__ == "__main__":
    main()
