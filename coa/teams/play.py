r"""Plays one team run to its end: makes all of its moves at the same time, then those that follow.

The replies of a round are taken in the order of its moves, not of their arrival. So the same replies give the same run,
and an interrupted run can be replayed from the stored replies.

A language model's reply is read as tag text: small errors of form are corrected, and all text after a call is cut off.

"Let me look.\n<Wiki_Search>Nora Lind</Wiki_Search>\n<observation> ..."   the model's own words
"<think> Let me look.</think><wiki_search> Nora Lind</wiki_search>"        what the team reads
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

from coa.agent.grammar import TAGS, THINK, Kind, Span, parse, render
from coa.agent.lenient import read
from coa.teams.roles import DONE
from coa.teams.router import CallTool, Move, Speak
from coa.teams.run import TeamRun
from coa.teams.transcript import Message, Prompt, Reply, Transcript
from coa.tools.base import ToolCall

Ask = Callable[[Prompt], Awaitable[Reply]]
"""Gives an agent's reply to a prompt; raises InfrastructureError."""
Use = Callable[[ToolCall, str], Awaitable[str]]
"""use(call, key) gives the observation; the key names the call's position in the run. Raises InfrastructureError."""

_FIRST_TAG = re.compile(rf"<[ \t]{{0,4}}(?:{'|'.join(TAGS)})[ \t]{{0,4}}>", re.IGNORECASE | re.ASCII)
_STOPS = (Kind.TOOL, Kind.TERMINAL)


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


def tidy(text: str) -> str:
    """The reply as tag text: words before the first tag become a thought, spans after the first call or answer are left
    out. A reply that is no tag text even then is returned as it is."""
    if text.strip().strip(".").lower() == DONE:
        return DONE
    first = _FIRST_TAG.search(text)
    if first is None:
        return text
    before, rest = text[: first.start()].strip(), _up_to_stop(text[first.start() :])
    chain = read(rest).parsed
    if chain.fault:
        return text
    thought = (Span(THINK, before),) if before else ()
    return render((*thought, *chain.chain))


def _up_to_stop(text: str) -> str:
    """The text up to the end of the first call or answer."""
    stops = "|".join(tag.name for tag in TAGS.values() if tag.kind in _STOPS)
    end = re.search(rf"<[ \t]{{0,4}}/[ \t]{{0,4}}(?:{stops})[ \t]{{0,4}}>", text, re.IGNORECASE | re.ASCII)
    return text[: end.end()] if end else text


def objection(role: str, reply: str) -> str:
    """The message to an agent whose reply its team can't use."""
    parsed = parse(reply)
    what = f"It has {parsed.fault.value}." if parsed.fault else "It has a function that is not yours, or lacks yours."
    return f"Your reply can't be used. {what} Reply again as the {role}, with your functions between their tags alone."
