"""Plays one run to its end: all of its moves at the same time, then what they open.

The moves of one round are taken in their order, whoever was first, so that the same replies make the same run: that is
what lets an interrupted run be played again from the replies that were kept.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from coa.teachers.debate import DebateRun
from coa.teachers.planner import PlannerRun
from coa.teachers.refine import RefineRun
from coa.teachers.reply import objection, tidy
from coa.teachers.router import CallTool, Move, Speak
from coa.teachers.run import Assignment, Run
from coa.teachers.teams import Rules, TeamConfig
from coa.teachers.transcript import Message, Prompt, Reply, Transcript
from coa.tools.base import ToolCall

Ask = Callable[[Prompt], Awaitable[Reply]]
"""Raises InfrastructureError."""
Use = Callable[[ToolCall, str], Awaitable[str]]
"""use(call, key): the observation; the key names the call's place in the run. Raises InfrastructureError."""


def start(assignment: Assignment, team: TeamConfig, *, seed: int, layouts: tuple[str, ...]) -> Run:
    """A run that nobody has spoken in yet."""
    match team.rules:
        case Rules.PLANNER:
            return PlannerRun(assignment, team, seed=seed, layouts=layouts)
        case Rules.REFINE:
            return RefineRun(assignment, team, seed=seed, layouts=layouts)
        case Rules.DEBATE:
            return DebateRun(assignment, team, seed=seed, layouts=layouts, lines=team.debaters)


async def play(run: Run, ask: Ask, use: Use, models: tuple[tuple[str, str], ...] = ()) -> Transcript:
    """`models`: (role, model) of roles that language models play. Raises what the first move that failed met, once
    the others of its round are done."""
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


async def _make(run: Run, move: Move, ask: Ask, use: Use) -> Reply:
    if isinstance(move, CallTool):
        return Reply(await use(move.call, f"{move.line}/{run.lines[move.line].steps}"))
    return await _speak(run, move, ask)


async def _speak(run: Run, move: Speak, ask: Ask) -> Reply:
    """A reply that fits, if the agent has one after its corrections; its usage is that of all tries."""
    prompt = run.prompt(move)
    reply = await ask(prompt)
    if run.fits(move, reply.text):
        return reply
    usage, text = reply.usage, tidy(reply.text)
    for _ in range(run.team.corrections):
        if run.fits(move, text):
            break
        told = (Message("assistant", reply.text), Message("user", objection(move.agent, text)))
        prompt = replace(prompt, messages=(*prompt.messages, *told))
        reply = await ask(prompt)
        usage, text = usage + reply.usage, tidy(reply.text)
    return Reply(text, usage)
