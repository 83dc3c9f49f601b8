"""The stage of asynchronous reinforcement learning: starts engines, learners and teachers, and runs the loops of
`jobs.stages.reinforcement.loop` with them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import numpy as np

from actors.garbage import frozen_gc
from actors.learner.buffer import Committed, Finished, Started, Stepped
from actors.tools.remote import ToolClient
from cluster.learner_group import LearnerGroup
from cluster.pool import EnginePool
from coa.agent.codec import Codec
from coa.json_object import Json
from coa.tasks.worlds import tasks_sha256
from coa.types import Tokens
from jobs.recipe.forecast import bottleneck_of
from jobs.run.run_dir import RunDir
from jobs.stages.reinforcement.elastic import elastic_engines
from jobs.stages.reinforcement.loop import Reinforcement
from jobs.stages.reinforcement.rl_stats import STAGE
from jobs.stages.services import counts_since, tool_counts
from jobs.stages.start import checkpoint_metrics, keeping_of
from jobs.teachers.fallback import teacher_fallback
from jobs.teachers.scoring import scoring

Learners = TypeVar("Learners", bound=LearnerGroup)
PROBE_TOKENS = 256
"""Number of leading tokens of each sample that engines are probed with."""
LONG_PROBE_TOKENS = 4096
"""Number of tokens of the long probe, which tests what short ones can't: other attention kernels, sliding windows, and
distant positions."""


@asynccontextmanager
async def early_learners(run: RunDir) -> AsyncIterator[LearnerGroup | None]:
    """The stage's learners, which start while other work goes on before it. None if the stage is finished, or if
    engines and learners share GPUs: then `rl` starts them."""
    if run.result(STAGE) or run.config.engine.sleep_mode:
        yield None
        return
    check_tasks(run)
    async with learners_with_probes(run) as learning:
        yield learning


def check_tasks(run: RunDir) -> None:
    """Raises UserError if the tasks of a finite list have changed since the stage began."""
    from jobs.stages.start import check_unchanged

    if listed := run.world.listed_tasks():
        check_unchanged(run, STAGE, f"tasks of {run.world.name}", len(listed), tasks_sha256(listed))


async def rl(run: RunDir, pool: EnginePool, tools: ToolClient, early: LearnerGroup | None = None) -> Json:
    """Runs the stage and returns its result, at once if it is finished already. Leaves the engines at the last weight
    version. early: its learners, if they start already (`early_learners`)."""
    config = run.config.rl
    if done := run.result(STAGE):
        await pool.load(config.steps, run.model)
        return done
    from jobs.stages.start import finish_model

    check_tasks(run)
    before = await tool_counts(tools)
    if run.config.engine.sleep_mode:
        await pool.sleep()
    with run.console.stage("rl", config.steps) as stage:
        stage.phase(f"starting {config.learner.ranks} learners, loading the model")
        learning = early or learners_with_probes(run)
        async with scoring(run) as scorer, teacher_fallback(run, tools) as fallback, learning:
            elastic = elastic_engines(pool, run.config, run.console.say)
            loop = Reinforcement(run, pool, learning, stage, scorer, fallback, elastic)
            with frozen_gc():
                async for event in learning.events():
                    match event:
                        case Started():
                            await loop.start(event)
                        case Stepped():
                            await loop.stepped(event)
                        case Committed():
                            loop.stats.committed = checkpoint_metrics(event)
                        case Finished():
                            await loop.caught_up(event)
            result = {**await loop.result(), "tools": counts_since(before, await tool_counts(tools))}
            loop.close()
        stage.phase("loading the model that was written into the engines")
        loop.ledger.finish(config.steps)
        finish_model(run, run.model)
        await pool.load(config.steps, run.model)
        stage.phase("computing what it waited for")
        run.finish(STAGE, result)
        await asyncio.to_thread(find_bottleneck, run)
    return result


def find_bottleneck(run: RunDir) -> Json:
    """Returns what the stage waited for, and the setting that would help most; computed once."""
    return run.result("bottleneck") or run.finish("bottleneck", bottleneck_of(run.config, run.folder))


def tell_bottleneck(run: RunDir) -> None:
    found = find_bottleneck(run)
    run.console.say(" ".join(filter(None, (found["sentence"], found["advice"]))))


def learners_with_probes(run: RunDir) -> LearnerGroup:
    tokens = min(PROBE_TOKENS, run.config.agent.limits.max_tokens - 1)
    return learners_of(run, LearnerGroup, probe=probe_sequences(run), probe_tokens=tokens)


def learners_of(
    run: RunDir, kind: type[Learners], *, publish: bool = True, probe: tuple[Tokens, ...] = (), probe_tokens: int = 0
) -> Learners:
    """The stage's learners, which begin at the fine-tuned model."""
    config = run.config.rl
    return kind(
        STAGE,
        keeping=keeping_of(run, STAGE, config.checkpoint_every),
        placement=run.config.placement,
        model_dir=run.sft_model,
        model=run.config.model,
        learner=config.learner,
        objective=config.objective(),
        steps=config.steps,
        publish=publish,
        probe=probe,
        probe_tokens=probe_tokens,
        output=run.model,
        weights=config.weights,
        takes_turns=run.config.engine.sleep_mode,
        copy=run.copy,
        say=run.console.say,
    )


def probe_sequences(run: RunDir) -> tuple[Tokens, ...]:
    """The sequence that checks the engines before there are samples, and at every version: the prompts of the first
    tasks, concatenated and cut to LONG_PROBE_TOKENS or to what an engine accepts."""
    codec, agent = Codec.load(run.sft_model), run.config.agent
    length = min(LONG_PROBE_TOKENS, agent.limits.max_tokens - 1)  # a prompt must be shorter than the engine's context
    prompts: list[Tokens] = []
    while sum(map(len, prompts)) < length:
        task = run.training_task(STAGE, len(prompts))
        prompts.append(codec.prompt(agent.profile(task.profile), task.question, instructed=agent.instructed))
    return (np.concatenate(prompts)[:length],)
