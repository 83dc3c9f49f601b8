"""The routes of the tiny world: which one a chain took, the careful chain of a task, and an evaluation's measures of
them: the share of each route, and the probability of the careful one."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, get_args

import numpy as np

from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig
from coa.agent.grammar import ANSWER, Chain, parse
from coa.demo.experts import ExpertConfig, ScriptedMind
from coa.demo.questions import CALC, MHQA, MULTI, PROFILE_OF, WEB
from coa.demo.world import World
from coa.distill.convert import to_chain
from coa.tasks.worlds import Texts
from coa.teams.planner import PlannerRun
from coa.teams.router import CallTool
from coa.teams.run import Assignment
from coa.teams.teams import TeamConfig
from coa.teams.transcript import Reply
from coa.tools.base import PLAIN
from coa.tools.layouts import layout_of
from coa.types import Floats, Task, Tokens

Strategy = Literal["careful", "lazy", "other"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

CAREFUL_TOOL = {CALC: ("code", 1), MHQA: ("wiki_search", 2), WEB: ("crawl_page", 1)}
"""Family -> (tool, minimum number of its calls in a careful chain)."""
DECISION = {CALC: 0, MHQA: 3, WEB: 4}
"""Family -> the index of the span of a careful chain that decides for this route."""
_NEVER_LAZY = ExpertConfig(lazy_calc=(0.0,) * 4, lazy_mhqa=(0.0,) * 4, lazy_web=(0.0,) * 4)


def strategy_of(chain: Chain, family: str) -> Strategy:
    """Careful if the tool of the family's careful route was used, lazy if there is an answer without it, else other."""
    if family not in CAREFUL_TOOL:
        return "other"
    tool, least = CAREFUL_TOOL[family]
    if sum(span.tag == tool for span in chain) >= least:
        return "careful"
    return "lazy" if chain and chain[-1].tag == ANSWER else "other"


@dataclass(frozen=True, slots=True)
class Route:
    chain: Chain
    decisions: tuple[int, ...]
    """Indices of the spans that decide for this route."""


def careful_route(world: World, task: Task) -> Route:
    """The careful chain of a task of the world, observations included.

    P(success | careful) is the probability of its policy tokens, the decisions' tokens left out. Raises ValueError
    for a task of another family.
    """
    if task.family not in DECISION or task.profile not in (PROFILE_OF[task.family], MULTI):
        raise ValueError(f"{task.id}: no careful route for family {task.family!r}")
    mind = ScriptedMind(world, _NEVER_LAZY)
    run = PlannerRun(Assignment(task), TeamConfig(), seed=0)
    while run.moves:
        [move] = run.moves
        text = world.observe(move.call) if isinstance(move, CallTool) else mind.reply(run.prompt(move))
        run.take(move, Reply(text))
    return Route(chain=to_chain(run.transcript()), decisions=(DECISION[task.family],))


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
        profile = agent.profile(task.profile)
        route = careful_route(world, task)
        prompt = codec.prompt(profile, task.question, instructed=agent.instructed).tolist()
        pieces = list(codec.written(route.chain, profile.format))
        marks = (np.full(len(one.token_ids), one.own and one.span not in route.decisions) for one in pieces)
        counted = np.concatenate([np.zeros(len(prompt), bool), *marks])
        token_ids = np.concatenate([prompt, *(one.token_ids for one in pieces)]).astype(np.int32)
        return float(np.exp((await logprobs(token_ids))[counted[1:]].sum()))

    found = await asyncio.gather(*(probability(task) for task in tasks))
    families: dict[str, list[float]] = defaultdict(list)
    for task, value in zip(tasks, found, strict=True):
        families[task.family].append(value)
    return {name: fmean(values) for name, values in families.items()}
