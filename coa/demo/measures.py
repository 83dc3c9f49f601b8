"""Measures of an evaluation on the tiny world: the share of each route, and the probability of the careful one."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from statistics import fmean

import numpy as np

from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig
from coa.agent.grammar import OBSERVATION, parse
from coa.agent.profiles import profile as find_profile
from coa.demo.strategy import STRATEGIES, careful_route, strategy_of
from coa.demo.world import World
from coa.tasks.worlds import Texts
from coa.tools.base import PLAIN
from coa.tools.layouts import layout_of
from coa.types import Floats, Task, Tokens


def strategies(tasks: Sequence[Task], said: Texts) -> dict[str, dict[str, float]]:
    """The share of episodes that took each route, by family."""
    routes: dict[str, Counter[str]] = defaultdict(Counter)
    for task in tasks:
        routes[task.family].update(strategy_of(parse(text).chain, task.family) for text in said[task.id])
    return {family: {name: counts[name] / counts.total() for name in STRATEGIES} for family, counts in routes.items()}


async def careful_success(
    world: World,
    tasks: Sequence[Task],
    codec: Codec,
    agent: AgentConfig,
    logprobs: Callable[[Tokens], Awaitable[Floats]],
) -> dict[str, float]:
    """The mean P(success | careful route): the probability of the policy's tokens of the careful chain under teacher
    forcing, without the tokens of the spans that decide for the route."""
    # The careful chains are written only in this layout.
    tasks = [task for task in tasks if layout_of(task.id, agent.layouts) == PLAIN]

    async def probability(task: Task) -> float:
        profile = find_profile(task.profile)
        route = careful_route(world, task)
        prompt = codec.prompt(profile, task.question, instructed=agent.instructed).tolist()
        pieces = [codec.span(span) for span in route.chain]
        counted = np.concatenate(
            [np.zeros(len(prompt), bool)]
            + [
                np.full(len(ids), span.tag != OBSERVATION and index not in route.decisions)
                for index, (span, ids) in enumerate(zip(route.chain, pieces, strict=True))
            ]
        )
        token_ids = np.concatenate([prompt, *pieces]).astype(np.int32)
        return float(np.exp((await logprobs(token_ids))[counted[1:]].sum()))

    found = await asyncio.gather(*(probability(task) for task in tasks))
    families: dict[str, list[float]] = defaultdict(list)
    for task, value in zip(tasks, found, strict=True):
        families[task.family].append(value)
    return {name: fmean(values) for name, values in families.items()}
