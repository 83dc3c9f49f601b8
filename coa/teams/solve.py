"""Shared rules of debates and refinement: agents that work alone up to an answer, and scores of answers."""

from coa.agent.grammar import ANSWER, TAGS, Kind, Profile, Span, render
from coa.teams.roles import DOUBLE_CHECK
from coa.teams.router import MALFORMED, CallTool, Next, Over, Speak, score_of, spans_of
from coa.teams.transcript import Brief, Ending
from coa.tools.base import ToolCall

ANSWERED = Over(Ending.ANSWERED)


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
