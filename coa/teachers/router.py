"""Who speaks next in a planner's team: a pure function of the profile, of who spoke last and of the tags of that.

    plan ------------------> worker             reflection -> planner        suggested_answer -> verifier
    tool call -> tool -----> worker (critic,    double_check 1, 2 -> worker; 3, 4 -> planner
                             where only a       think: a planner's -> worker; anyone else's -> planner
                             reflection may     done -> critic
                             follow)            answer -> over

A worker is the role that calls the profile's tools. Any other reply makes the run malformed. With a thinker, what the
tags say is a proposal: the thinker hears it and names who is next, of those who may write something now.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from coa.grammar import ANSWER, OBSERVATION, TAGS, THINK, Chain, Kind, Profile, Span, parse
from coa.teachers.roles import CRITIC, DONE, DOUBLE_CHECK, PLANNER, THINKER, VERIFIER, allowed, worker_of
from coa.teachers.transcript import Brief, Ending
from coa.tools.base import ToolCall

_SCORE = re.compile(r"[1-4]\b")
_NAMED = re.compile(r"next: *([a-z]+)\W*$", re.IGNORECASE)
GOOD_ENOUGH = 3
"""The lowest score of a double check that leads to the answer."""


@dataclass(frozen=True, slots=True)
class Speak:
    agent: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class CallTool:
    call: ToolCall
    line: int = 0


@dataclass(frozen=True, slots=True)
class Over:
    ending: Ending


Move = Speak | CallTool
Next = Move | Over

MALFORMED = Over(Ending.MALFORMED)


def score_of(double_check: str) -> int | None:
    """`score_of("2 may be outdated")` is 2; None where the text does not begin with a score."""
    match = _SCORE.match(double_check.strip())
    return int(match[0]) if match else None


def after_tool(profile: Profile, tool: str) -> Speak:
    """Back to who called, unless only a reflection may follow."""
    reflects = profile.transitions.get(tool) == ("reflection",)
    return Speak(CRITIC if reflects else worker_of(profile))


def after_reply(profile: Profile, agent: str, reply: str, tools: tuple[str, ...] = ()) -> Next:
    """What follows an agent's reply; MALFORMED if the reply is not tag text of its role."""
    if reply.strip() == DONE:
        return Speak(CRITIC) if agent == worker_of(profile) else MALFORMED
    chain = spans_of(Brief(agent, tools=tools), profile, reply)
    if chain is None:
        return MALFORMED
    last = chain[-1]
    if TAGS[last.tag].kind is Kind.TOOL:
        return CallTool(ToolCall(last.tag, last.text.strip()))
    if last.tag == ANSWER:
        return Over(Ending.ANSWERED)
    if last.tag == DOUBLE_CHECK:
        score = score_of(last.text)
        if score is None:
            return MALFORMED
        return Speak(PLANNER if score >= GOOD_ENOUGH else worker_of(profile))
    if last.tag == "suggested_answer":
        return Speak(VERIFIER)
    if last.tag == "plan" or (last.tag == THINK and agent == PLANNER):
        return Speak(worker_of(profile))
    return Speak(PLANNER)


def spans_of(brief: Brief, profile: Profile, reply: str) -> Chain | None:
    """The spans of a reply: of the role's tags, of which only the last may stop the team's talk; None otherwise."""
    parsed = parse(reply)
    mine = allowed(brief.role, profile.name, brief.tools)
    stops = (Kind.TOOL, Kind.TERMINAL)
    fits = (
        not parsed.fault
        and bool(parsed.chain)
        and all(span.tag in mine for span in parsed.chain)
        and not any(TAGS[span.tag].kind in stops for span in parsed.chain[:-1])
    )
    return parsed.chain if fits else None


def after_thinker(profile: Profile, reply: str, candidates: Iterable[str]) -> Speak | Over:
    """Whom the thinker names, if that one may write something now."""
    chain = spans_of(Brief(THINKER), profile, reply)
    named = _NAMED.search(chain[-1].text) if chain else None
    return Speak(named[1].lower()) if named and named[1].lower() in candidates else MALFORMED


def may_speak(profile: Profile, said: Iterable[Span]) -> frozenset[str]:
    """The members of a planner's team who can write a tag that may follow what was said."""
    state = profile.state(said)
    return frozenset(
        role
        for role in (PLANNER, worker_of(profile), CRITIC, VERIFIER)
        if any(profile.allows(state, tag) for tag in allowed(role, profile.name) - {THINK})
    )


def replans(profile: Profile, said: Iterable[Span]) -> str | None:
    """Who is asked where a new plan is due: the planner, or the critic where a reflection has to come first; None in a
    profile whose chains hold one plan."""
    state = profile.state(said)
    if profile.allows(state, "plan"):
        return PLANNER
    return CRITIC if profile.allows(state, "reflection") and profile.allows("reflection", "plan") else None


def calls_since_plan(said: Iterable[Span]) -> int:
    """Tool calls that were answered since the last plan."""
    calls = 0
    for span in said:
        calls = 0 if span.tag == "plan" else calls + (span.tag == OBSERVATION)
    return calls
