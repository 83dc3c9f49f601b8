"""The stage of asynchronous reinforcement learning: starts engines, learners and teachers, and runs the loops of
`jobs.stages.reinforcement.loop` with them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from coa.agent.codec import Codec
from coa.agent.profiles import profile as find_profile
from coa.planning.bottleneck import bottleneck
from coa.spent import added, shares
from coa.types import Tokens
from jobs.run.run_dir import RunDir
from jobs.stages.reinforcement.elastic import elastic_engines
from jobs.stages.reinforcement.loop import Reinforcement
from jobs.stages.reinforcement.rl_stats import STAGE
from jobs.teachers.fallback import teacher_fallback
from jobs.teachers.scoring import scoring

if TYPE_CHECKING:
    from cluster.learner_group import Learning

Learners = TypeVar("Learners", bound="Learning")
PROBE_TOKENS = 256
"""Of the beginnings of samples that engines are probed with."""
LONG_PROBE_TOKENS = 4096
"""Of the probe that shows what short ones can't: other kernels of attention, windows, and positions far apart."""


async def rl(run: RunDir, pool: Any, executors: Sequence[Any]) -> dict[str, Any]:
    """The stage; returns its result, at once if it is finished already. The engines end at the last version."""
    config = run.config.rl
    if done := run.result(STAGE):
        await pool.load(config.steps, run.model)
        return done
    from actors.learner.buffer import Finished, Started, Stepped
    from cluster.learner_group import Learning
    from jobs.stages.start import finish_model

    if run.config.engine.sleep_mode:
        await pool.sleep()
    with run.console.stage("rl", config.steps) as stage:
        stage.phase(f"starting {config.learner.ranks} learners, loading the model")
        tokens = min(PROBE_TOKENS, run.config.agent.limits.max_tokens - 1)
        learning = learners_of(run, Learning, probe=probe_sequences(run), probe_tokens=tokens)
        async with scoring(run) as scorer, teacher_fallback(run, executors) as fallback, learning:
            elastic = elastic_engines(pool, run.config, run.console.say)
            loop = Reinforcement(run, pool, learning, stage, scorer, fallback, elastic)
            async for event in learning.events():
                match event:
                    case Started():
                        await loop.start(event)
                    case Stepped():
                        await loop.stepped(event)
                    case Finished():
                        await loop.caught_up(event)
            result = await loop.result()
            loop.close()
    loop.ledger.finish(config.steps)
    spent = result["time"]
    run.console.say(bottleneck(shares(added(spent["engines"])), shares(spent["learner"])))
    finish_model(run, run.model)
    await pool.load(config.steps, run.model)
    return run.finish(STAGE, result)


def learners_of(
    run: RunDir, kind: type[Learners], *, publish: bool = True, probe: tuple[Tokens, ...] = (), probe_tokens: int = 0
) -> Learners:
    """The stage's learners, which begin at the fine-tuned model."""
    config = run.config.rl
    return kind(
        STAGE,
        checkpoints=run.checkpoints,
        placement=run.config.placement,
        model_dir=run.sft_model,
        model=run.config.model,
        learner=config.learner,
        objective=config.objective(),
        steps=config.steps,
        publish=publish,
        probe=probe,
        probe_tokens=probe_tokens,
        checkpoint_every=config.checkpoint_every,
        output=run.model,
        weights=config.weights,
        takes_turns=run.config.engine.sleep_mode,
        say=run.console.say,
    )


def probe_sequences(run: RunDir) -> tuple[Tokens, ...]:
    """What the engines are checked by before there are samples, and at every version: the prompts of the first tasks,
    one behind the other, as long as an engine takes them."""
    codec, agent = Codec.load(run.sft_model), run.config.agent
    length = min(LONG_PROBE_TOKENS, agent.limits.max_tokens - 1)  # an engine takes no prompt as long as its context
    prompts: list[Tokens] = []
    while sum(map(len, prompts)) < length:
        task = run.training_task(STAGE, len(prompts))
        prompts.append(codec.prompt(find_profile(task.profile), task.question, instructed=agent.instructed))
    return (np.concatenate(prompts)[:length],)
