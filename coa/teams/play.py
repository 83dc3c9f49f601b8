"""Plays one team run to its end: makes all of its moves at the same time, then those that follow.

The replies of a round are taken in the order of its moves, not of their arrival. So the same replies give the same run,
and an interrupted run can be replayed from the stored replies.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from coa.teams.debate import DebateRun
from coa.teams.planner import PlannerRun
from coa.teams.refine import RefineRun
from coa.teams.reply import objection, tidy
from coa.teams.router import CallTool, Move, Speak
from coa.teams.run import Assignment, TeamRun
from coa.teams.teams import Rules, TeamConfig
from coa.teams.transcript import Message, Prompt, Reply, Transcript
from coa.tools.base import ToolCall

Ask = Callable[[Prompt], Awaitable[Reply]]
"""Gives an agent's reply to a prompt; raises InfrastructureError."""
Use = Callable[[ToolCall, str], Awaitable[str]]
"""use(call, key) gives the observation; the key names the call's position in the run. Raises InfrastructureError."""


def start(assignment: Assignment, team: TeamConfig, *, seed: int, layouts: tuple[str, ...]) -> TeamRun:
    """A new run by the team's rules."""
    match team.rules:
        case Rules.PLANNER:
            return PlannerRun(assignment, team, seed=seed, layouts=layouts)
        case Rules.REFINE:
            return RefineRun(assignment, team, seed=seed, layouts=layouts)
        case Rules.DEBATE:
            return DebateRun(assignment, team, seed=seed, layouts=layouts, lines=team.debaters)


async def play(run: TeamRun, ask: Ask, use: Use, models: tuple[tuple[str, str], ...] = ()) -> Transcript:
    """Plays the run to its end and returns its transcript.

    models: (role, model) of roles that language models play. If moves fail, raises the first move's error once the
    other moves of its round are done.
    """
    while run.ending is None:
        moves = run.moves
        replies = await asyncio.gather(*(_make(run, move, ask, use) for move in moves), return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        for move, reply in zip(moves, replies, strict=True):
            if move in run.moves and isinstance(reply, Reply):
                run.take(move, reply)
    return replace(run.transcript(), models=models)


async def _make(run: TeamRun, move: Move, ask: Ask, use: Use) -> Reply:
    if isinstance(move, CallTool):
        return Reply(await use(move.call, f"{move.line}/{run.lines[move.line].steps}"))
    return await _speak(run, move, ask)


async def _speak(run: TeamRun, move: Speak, ask: Ask) -> Reply:
    """The agent's reply, requested again up to `corrections` times if it has the wrong form; with the usage of all
    tries."""
    prompt = run.prompt(move)
    reply = await ask(prompt)
    if run.fits(move, reply.text):
        return reply
    usage, text = reply.usage, tidy(reply.text)
    for _ in range(run.team.corrections):
        if run.fits(move, text):
            break
        correction = (Message("assistant", reply.text), Message("user", objection(move.agent, text)))
        prompt = replace(prompt, messages=(*prompt.messages, *correction))
        reply = await ask(prompt)
        usage, text = usage + reply.usage, tidy(reply.text)
    return Reply(text, usage)
