"""Decides which role speaks next, from the profile, the last speaker and the tags of its reply. In a planner's team:

    plan ------------------> worker             reflection -> planner        suggested_answer -> verifier
    tool call -> tool -----> worker (critic,    double_check 1, 2 -> worker; 3, 4 -> planner
                             where only a       think: a planner's -> worker; anyone else's -> planner
                             reflection may     done -> critic
                             follow)            answer -> over

A worker is the role that calls the profile's tools. Any other reply makes the run malformed. With a thinker, the role
that the tags select is only a proposal: the thinker names the next role, among the roles that may write a tag now.

In debates and refinement, agents work alone up to an answer, and answers get scores.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from coa.agent.grammar import ANSWER, OBSERVATION, TAGS, THINK, Chain, Kind, Profile, Span, parse, render
from coa.teams.roles import CRITIC, DONE, DOUBLE_CHECK, PLANNER, THINKER, VERIFIER, allowed, worker_of
from coa.teams.transcript import Brief, Ending
from coa.tools.base import ToolCall

_SCORE = re.compile(r"[1-4]\b")
_NAMED = re.compile(r"next: *([a-z]+)\W*$", re.IGNORECASE)
GOOD_ENOUGH = 3
"""Minimum score of a double check that leads to the answer."""


@dataclass(frozen=True, slots=True)
class Speak:
    """The move of an agent that is to reply."""

    agent: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class CallTool:
    """The move of a tool that is to be called."""

    call: ToolCall
    line: int = 0


@dataclass(frozen=True, slots=True)
class Over:
    """The end of a run, in the place of a next move."""

    ending: Ending


Move = Speak | CallTool
Next = Move | Over

MALFORMED = Over(Ending.MALFORMED)
ANSWERED = Over(Ending.ANSWERED)


def score_of(double_check: str) -> int | None:
    """`score_of("2 may be outdated")` is 2; None if the text does not begin with a score."""
    match = _SCORE.match(double_check.strip())
    return int(match[0]) if match else None


def after_tool(profile: Profile, tool: str) -> Speak:
    """The role that speaks after a tool's result: the worker, or the critic if only a reflection may follow."""
    reflects = profile.transitions.get(tool) == ("reflection",)
    return Speak(CRITIC if reflects else worker_of(profile))


def after_reply(profile: Profile, agent: str, reply: str, tools: tuple[str, ...] = ()) -> Next:
    """The next step after an agent's reply; MALFORMED if the reply is not tag text of its role."""
    if reply.strip() == DONE:
        return Speak(CRITIC) if agent == worker_of(profile) else MALFORMED
    chain = spans_of(Brief(agent, tools=tools), profile, reply)
    if chain is None:
        return MALFORMED
    last = chain[-1]
    if TAGS[last.tag].kind is Kind.TOOL:
        return CallTool(ToolCall(last.tag, last.text.strip()))
    if last.tag == ANSWER:
        return ANSWERED
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
    """The spans of a reply that fits its role; else None. All tags must be the role's, and only the last span may be a
    call or an answer."""
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
    """The member that the thinker names, if it is one of the candidates; else MALFORMED."""
    chain = spans_of(Brief(THINKER), profile, reply)
    named = _NAMED.search(chain[-1].text) if chain else None
    return Speak(named[1].lower()) if named and named[1].lower() in candidates else MALFORMED


def may_speak(profile: Profile, said: Iterable[Span]) -> frozenset[str]:
    """The members of a planner's team that can write a tag that may follow the chain so far."""
    state = profile.state(said)
    return frozenset(
        role
        for role in (PLANNER, worker_of(profile), CRITIC, VERIFIER)
        if any(profile.allows(state, tag) for tag in allowed(role, profile.name) - {THINK})
    )


def replans(profile: Profile, said: Iterable[Span]) -> str | None:
    """The role that is asked when a new plan is due: the planner, or the critic if a reflection has to come first; None
    if the profile allows one plan only."""
    state = profile.state(said)
    if profile.allows(state, "plan"):
        return PLANNER
    return CRITIC if profile.allows(state, "reflection") and profile.allows("reflection", "plan") else None


def calls_since_plan(said: Iterable[Span]) -> int:
    """The number of observations since the last plan."""
    calls = 0
    for span in said:
        calls = 0 if span.tag == "plan" else calls + (span.tag == OBSERVATION)
    return calls


def after_solver(brief: Brief, profile: Profile, line: int, reply: str) -> Next:
    """The next step after a solver's reply: the tool that it calls, ANSWERED for an answer, else the solver again."""
    chain = spans_of(brief, profile, reply)
    if chain is None:
        return MALFORMED
    last = chain[-1]
    if TAGS[last.tag].kind is Kind.TOOL:
        return CallTool(ToolCall(last.tag, last.text.strip()), line)
    return ANSWERED if last.tag == ANSWER else Speak(brief.role, line)


def score_in(brief: Brief, profile: Profile, reply: str) -> int | None:
    """The score of a reply that judges an answer; None for any other reply."""
    chain = spans_of(brief, profile, reply)
    return score_of(chain[-1].text) if chain and chain[-1].tag == DOUBLE_CHECK else None


def outcome(answer: str, score: int, why: str) -> str:
    """The text of a step by which a team settles on an answer."""
    return render((Span(DOUBLE_CHECK, f"{score} {why}"), Span(ANSWER, answer)))
