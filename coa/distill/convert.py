"""Team transcript to chain: the same spans that one policy is to write on its own (paper, section 3.2.1)."""

from coa.grammar import OBSERVATION, Chain, Span, parse
from coa.teachers.transcript import ToolStep, Transcript, is_routing


def to_chain(transcript: Transcript) -> Chain:
    """Each agent's output becomes its spans, each tool result an observation; messages that only route vanish.

    Of a malformed reply, the spans before its fault remain.
    """
    spans: list[Span] = []
    for step in transcript.steps:
        if isinstance(step, ToolStep):
            spans.append(Span(OBSERVATION, step.observation))
        elif not is_routing(step):
            spans.extend(parse(step.output).chain)
    return tuple(spans)
