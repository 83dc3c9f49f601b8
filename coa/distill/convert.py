"""Converts a team's transcript to a chain: the spans that a single policy learns to write (paper, section 3.2.1)."""

from coa.agent.grammar import ANSWER, OBSERVATION, START, THINK, Chain, Profile, Span, parse
from coa.agent.profiles import profile as find_profile
from coa.teams.kinds import KINDS
from coa.teams.roles import DOUBLE_CHECK, TEAM
from coa.teams.transcript import Step, ToolStep, Transcript, UserStep, is_routing

STAND_INS = {
    ANSWER: ("suggested_answer",),
    DOUBLE_CHECK: (DOUBLE_CHECK, "reflection"),
    "reflection": ("reflection",),
    "plan": ("plan",),
}
"""Substitutes for the tags of an answer that is not the last, a double check, a reflection and a plan: the first tag
that the profile allows at that position is used, or a thought if it allows none."""


def to_chain(transcript: Transcript) -> Chain:
    """The chain of a run: the spans of agents' outputs, and as observations the results of tools and what a user said;
    pure routing is left out.

    If a team works on several lines, the chain is the winner's, or for some kinds all lines together. Some kinds of
    teams use the same tags under every profile; one that the profile does not allow is replaced (`STAND_INS`). Of a
    malformed reply, the spans before the fault are kept.
    """
    spans: list[Span] = []
    for step in steps_of(transcript):
        if isinstance(step, ToolStep):
            spans.append(Span(OBSERVATION, step.observation))
        elif isinstance(step, UserStep):
            spans.append(Span(OBSERVATION, step.text))
        elif not is_routing(step):
            spans.extend(span for span in parse(step.output).chain if step.agent != TEAM or span.tag != OBSERVATION)
    if (kind := KINDS.get(transcript.team)) is not None and kind.any_tags:
        spans = _under(find_profile(transcript.task.profile), spans)
    return tuple(spans)


def steps_of(transcript: Transcript) -> tuple[Step, ...]:
    """The steps of a run that make its chain."""
    if (kind := KINDS.get(transcript.team)) is not None and kind.one_chain:
        return transcript.steps
    return tuple(step for step in transcript.steps if step.line == transcript.winner)


def _under(profile: Profile, spans: list[Span]) -> list[Span]:
    chain: list[Span] = []
    state = START
    for index, span in enumerate(spans):
        tag = span.tag
        if tag in STAND_INS and (tag != ANSWER or index < len(spans) - 1):
            tag = next((other for other in STAND_INS[tag] if profile.allows(state, other)), THINK)
        chain.append(Span(tag, span.text))
        state = profile.state((chain[-1],)) or state
    return chain
