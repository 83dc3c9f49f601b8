"""Who speaks next: a pure function of the profile, of who spoke last and of the tags of what was said.

    plan ------------------> worker             reflection -> planner        suggested_answer -> verifier
    tool call -> tool -----> worker (critic,    double_check 1, 2 -> worker; 3, 4 -> planner
                             where only a       think: a planner's -> worker; anyone else's -> planner
                             reflection may     done -> critic
                             follow)            answer -> over

A worker is the role that calls the profile's tools. Any other reply makes the run malformed.
"""

import re
from dataclasses import dataclass

from coa.grammar import ANSWER, TAGS, THINK, Chain, Kind, Profile, parse
from coa.teachers.roles import CRITIC, DONE, PLANNER, VERIFIER, allowed, worker_of
from coa.teachers.transcript import Ending
from coa.tools.base import ToolCall

_SCORE = re.compile(r"[1-4]\b")
GOOD_ENOUGH = 3
"""The lowest score of a double check that leads to the answer."""


@dataclass(frozen=True, slots=True)
class Speak:
    agent: str


@dataclass(frozen=True, slots=True)
class UseTool:
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Over:
    ending: Ending


Next = Speak | UseTool | Over

MALFORMED = Over(Ending.MALFORMED)


def score_of(double_check: str) -> int | None:
    """`score_of("2 may be outdated")` is 2; None where the text does not begin with a score."""
    match = _SCORE.match(double_check.strip())
    return int(match[0]) if match else None


def after_tool(profile: Profile, tool: str) -> Speak:
    """Back to who called, unless only a reflection may follow."""
    reflects = profile.transitions.get(tool) == ("reflection",)
    return Speak(CRITIC if reflects else worker_of(profile))


def after_reply(profile: Profile, agent: str, reply: str) -> Next:
    """What follows an agent's reply; MALFORMED if the reply is not tag text of its role."""
    if reply.strip() == DONE:
        return Speak(CRITIC) if agent == worker_of(profile) else MALFORMED
    parsed = parse(reply)
    if parsed.fault or not _is_of_role(parsed.chain, agent, profile):
        return MALFORMED
    last = parsed.chain[-1]
    if TAGS[last.tag].kind is Kind.TOOL:
        return UseTool(ToolCall(last.tag, last.text.strip()))
    if last.tag == ANSWER:
        return Over(Ending.ANSWERED)
    if last.tag == "double_check":
        score = score_of(last.text)
        if score is None:
            return MALFORMED
        return Speak(PLANNER if score >= GOOD_ENOUGH else worker_of(profile))
    if last.tag == "suggested_answer":
        return Speak(VERIFIER)
    if last.tag == "plan" or (last.tag == THINK and agent == PLANNER):
        return Speak(worker_of(profile))
    return Speak(PLANNER)


def _is_of_role(chain: Chain, agent: str, profile: Profile) -> bool:
    """Spans of the role's tags, of which only the last may stop the team's talk."""
    mine = allowed(agent, profile.name)
    stops = (Kind.TOOL, Kind.TERMINAL)
    return (
        bool(chain)
        and all(span.tag in mine for span in chain)
        and not any(TAGS[span.tag].kind in stops for span in chain[:-1])
    )
