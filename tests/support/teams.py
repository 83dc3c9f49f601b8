"""Teams for tests: scripted experts on the tiny world, without actors."""

import asyncio
from collections.abc import Callable

from coa.demo import World, WorldConfig, training_task
from coa.demo.experts import ExpertConfig, ScriptedMind
from coa.teams.kinds import start
from coa.teams.play import Ask, Use, play
from coa.teams.run import Assignment
from coa.teams.teams import TeamConfig
from coa.teams.transcript import AgentStep, Prompt, Reply, Transcript
from coa.tools.base import PLAIN, ToolCall
from coa.types import Task
from tests.support.executors import Answering

WORLD = World(WorldConfig())
MIND = ScriptedMind(WORLD, ExpertConfig())
TASKS = [training_task(WORLD, seed=0, purpose="sft", index=i) for i in range(3000)]


def asks(mind: ScriptedMind) -> Ask:
    async def ask(prompt: Prompt) -> Reply:
        return Reply(mind.reply(prompt))

    return ask


def says(reply: Callable[[Prompt], str]) -> Ask:
    async def ask(prompt: Prompt) -> Reply:
        return Reply(reply(prompt))

    return ask


LOOP = asyncio.Runner()
"""Of all runs: thousands of loops would take longer than what they run."""


def uses(tool: Callable[[ToolCall], str]) -> Use:
    async def use(call: ToolCall, key: str) -> str:
        return tool(call)

    return use


def play_one(
    task: Task,
    *,
    attempt: int = 0,
    team: TeamConfig | None = None,
    ask: Ask | None = None,
    use: Use | None = None,
) -> Transcript:
    run = start(Assignment(task, attempt), team or TeamConfig(), seed=0, layouts=(PLAIN,))
    return LOOP.run(play(run, ask or asks(MIND), use or uses(WORLD.observe)))


QUESTION = Task(id="t", question="Who ?", answers=("x",), profile="mhqa", family="f")
SEARCH = "<wiki_search> a</wiki_search>"


def play_replies(team: TeamConfig, *replies: str, task: Task = QUESTION) -> Transcript:
    """A run whose agents give these replies, in this order; every tool says "seen"."""
    rest = iter(replies)
    return play_one(task, team=team, ask=says(lambda _: next(rest)), use=uses(lambda _: "seen"))


def authors(transcript: Transcript) -> list[str]:
    """The authors of the agents' steps, with the line of those that are not on the first."""
    steps = (step for step in transcript.steps if isinstance(step, AgentStep))
    return [f"{step.agent}{f' {step.line}' * bool(step.line)}" for step in steps]


class WorldTools(Answering):
    """A tool executor that needs no sandbox: what the world's tools say."""

    def __init__(self) -> None:
        async def observe(call: ToolCall) -> str:
            return WORLD.observe(call)

        super().__init__(observe)
