"""The route that a chain of the tiny world took, and the careful chain of a task."""

from dataclasses import dataclass
from typing import Literal, get_args

from coa.agent.grammar import ANSWER, Chain
from coa.demo.experts import ExpertConfig, ScriptedMind
from coa.demo.questions import CALC, MHQA, MULTI, PROFILE_OF, WEB
from coa.demo.world import World
from coa.distill.convert import to_chain
from coa.teams.planner import PlannerRun
from coa.teams.router import CallTool
from coa.teams.run import Assignment
from coa.teams.teams import TeamConfig
from coa.teams.transcript import Reply
from coa.types import Task

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
