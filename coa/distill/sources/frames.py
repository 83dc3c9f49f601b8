"""Texts that smolagents, and its fork OAgents, put around what an agent says and sees.

Observation:                                                what a tool returned, or a program showed
Execution logs:
Nora Lind was born in Berg.
Last output from code snippet:
None
Call id: call_3
Error:                                                      and what ended it
division by zero
Now let's retry: take care not to repeat previous errors! ...
"""

import re
from dataclasses import dataclass

LOGS, LAST = "Execution logs:", "Last output from code snippet:"
"""Headings of the interpreter for the printed text and for the value of the last statement."""
CALLING = "Calling tools:"
HEADING = "## Search Results\n"
"""Heading of the results of smolagents' own search tools."""
NOT_PARSED = ("Error in code parsing:", "Error while parsing tool call from model output:")
"""Errors of replies that called nothing, since they could not be parsed."""
OBSERVATION, _ERROR, _CALL_ID = "Observation:", "Error:", "Call id: "
RESPONSE = "FUNCTION RESPONSE:"
"""The mark of a result in Glaive's data."""
_NUMBERED = re.compile(rf"\A\s*(?:Observation \d+:|{RESPONSE})")
"""The same, or the mark of a result in the prompts of the ReAct paper."""
_NEXT_LABEL = re.compile(r"Thought(?: \d+)?:")
"""The label that an agent's loop puts after a result, for the model to go on from."""
_RETRY = "Now let's retry: take care not to repeat previous errors!"
_PLANNED, _FENCE = "Here are the facts I know and ", "```"
_STUCK = "An agent tried to answer a user query but it got stuck"
_FORCED = "Based on the above, please provide an answer to the following user"


@dataclass(frozen=True, slots=True)
class Seen:
    """The results that an agent saw after one of its replies."""

    text: str
    """The returned or printed text, with the interpreter's headings."""
    error: str = ""
    """The error that ended the calls or the program; empty if there was none."""

    @property
    def result(self) -> str:
        """Text and error, without headings."""
        failed = f"{_ERROR} {self.error}" if self.error else ""
        return "\n".join(part for part in (shown_by(self.text), failed) if part)


def read_seen(text: str) -> Seen:
    """Parses the message that shows an agent the result of its reply. Marks count at the start of the message only,
    since a page may contain one."""
    shown, text = "", _NUMBERED.sub(OBSERVATION, text).strip()
    retry = text.rfind(_RETRY)
    if retry >= 0 and "\n" not in text[retry:]:
        text = text[:retry].rstrip()
        ended = text.rfind(f"\n{_CALL_ID}")
        if text.startswith(OBSERVATION) and ended >= 0:
            shown, text = text[:ended], text[ended + 1 :]
    if text.startswith(_CALL_ID):
        text = text.partition("\n")[2].lstrip()
    if text.startswith(_ERROR):
        return Seen(shown.removeprefix(OBSERVATION).strip(), text.removeprefix(_ERROR).strip())
    return Seen(text.removeprefix(OBSERVATION).strip())


def is_marked(text: str, *marks: str) -> bool:
    """Whether a message is marked as the result of a reply, by any mark or by one of these."""
    return _NUMBERED.sub(OBSERVATION, text).lstrip().startswith(marks or (OBSERVATION, _ERROR, _CALL_ID))


def without_next(text: str) -> str:
    """A result without the label of the thought that the model is to write next."""
    head, mark, label = text.rstrip().rpartition("\n")
    return head if mark and _NEXT_LABEL.fullmatch(label.strip()) else text


def shown_by(text: str) -> str:
    """The output of a program, without the headings of smolagents' interpreter."""
    text = text.strip()
    if not text.startswith(LOGS):
        return text
    logs, headed, last = text.removeprefix(LOGS).rpartition(LAST)
    parts = (logs, "" if last.strip() == "None" else last) if headed else (last,)
    return "\n".join(part.strip() for part in parts if part.strip())


def plan_in(text: str) -> str | None:
    """The plan in a message that shows one to its author; None for another message."""
    begin = text.find(_PLANNED)
    fence = text.find(f"\n{_FENCE}\n", begin) if begin >= 0 else -1
    body = text.rstrip()
    if fence < 0 or not body.endswith(_FENCE):
        return None
    return body[fence + len(_FENCE) + 2 : -len(_FENCE)].strip()


def forces(system: str, asked: str) -> bool:
    """Whether a request, by its system prompt and last message, asks for the answer of an agent that is out of
    steps."""
    return _STUCK in system and _FORCED in asked


def before_forced(asked: str) -> str:
    """The text before the question in the last message of a request that forces an answer."""
    return asked[: asked.rfind(_FORCED)].rstrip()
