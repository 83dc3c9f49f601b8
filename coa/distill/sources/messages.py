"""Reads chat messages: text with or without our tags, reasoning, programs, names of agents."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from coa.agent.grammar import ANSWER, OBSERVATION, TAGS, THINK, Kind, parse
from coa.agent.lenient import read
from coa.distill.sources.foreign import Answer, Call, Piece, Reason, Refused, Remark, Thought

_THINKING = re.compile(r"\s*<think(?:ing)?>(?P<thought>.*?)</think(?:ing)?>(?P<rest>.*)", re.DOTALL | re.IGNORECASE)
_PROGRAM = re.compile(
    # Starts only at the first of several blank lines, so that the search is not repeated at each of them.
    r"(?:\A|(?<!\s)[^\S\n]*\n)\s*+(?:Code:[ \t]*\n\s*+)?"
    r"(?:<code>|```(?:py(?:thon)?)?[ \t]*\n)(?P<program>.*?)(?:</code>|```|\Z)",
    re.DOTALL,
)
MARKS = re.compile(r"<end_(?:plan|code|action)>")
"""Stop marks of smolagents' prompts."""
_THOUGHT = re.compile(r"\A\s*Thoughts?:\s*")
_FINAL = re.compile(
    r"(?:\A|\n)[*_#> \t]*final answer[*_]*[ \t]*:[*_]*+(?P<answer>(?:(?!\n[*_#> \t]*final answer).)*)\Z",
    re.DOTALL | re.IGNORECASE,
)
_NAMED = re.compile(
    r"\s*(?:you are|you're|act as|i am)\s+(?:(?:the|an?|our)\s+)?(?P<name>[\w-]+(?:[ ][\w-]+){0,3}?)"
    r"(?=\s+(?:of|that|who|which|for|in|on|with|at|and|whose|to)\b|\s*[^\w\s-]|\s*\n|\s*\Z)",
    re.IGNORECASE,
)


def text_of(content: object) -> str:
    """The text of a message's content, which is a text or a list of parts, some of them texts."""
    match content:
        case str():
            return content
        case list():
            return "\n".join(part["text"] for part in content if isinstance(part, dict) and _is_text(part.get("text")))
    return ""


def pieces_of(text: str, observed: str | None = None) -> Iterator[Piece]:
    """The pieces of an agent's text, which is parsed by our tags if it has any.

    observed: the next message to the agent; if the agent calls tools by tags, it is the result of the last call.
    Raises Refused for a text with an observation in it, which the model may have invented.
    """
    reading = read(text).parsed
    if reading.fault is None and reading.chain:
        for n, span in enumerate(reading.chain, start=1):
            kind = TAGS[span.tag].kind
            if kind is Kind.ENVIRONMENT:
                raise Refused(Reason.OWN_OBSERVATION)
            if kind is Kind.TOOL:
                result = observed if n == len(reading.chain) else None
                yield Call(span.tag, {"input": span.text}, None if result is None else unwrapped(result))
            else:
                yield {THINK: Thought, ANSWER: Answer}[span.tag](span.text) if span.tag in (THINK, ANSWER) else span
    elif thinking := _THINKING.fullmatch(text):
        yield Thought(thinking["thought"])
        yield Remark(thinking["rest"])
    else:
        yield Remark(MARKS.sub("", text))


def split_program(text: str) -> tuple[str, str]:
    """Splits the reply of an agent that acts by programs into (text, program); the program is "" if there is none.

    split_program("Thought: add.\\n<code>\\nprint(1 + 1)\\n</code>") == ("add.", "print(1 + 1)")
    """
    found = _PROGRAM.search(text)
    said = text[: found.start()] if found else text
    return _THOUGHT.sub("", said).strip(), found["program"].strip() if found else ""


def answer_pieces(text: str) -> Iterator[Piece]:
    """The pieces of an agent's last text; the answer is the text after "Final answer:" at the start of a line, or else
    the whole text."""
    for piece in pieces_of(text):
        if not isinstance(piece, Remark):
            yield piece
        elif final := _FINAL.search(piece.text):
            yield Remark(piece.text[: final.start()])
            yield Answer(final["answer"].strip().strip("*_").strip())
        else:
            yield Answer(piece.text)


def unwrapped(text: str) -> str:
    """A tool result without the tags that an agent's loop put around it."""
    chain = parse(text.strip()).chain
    return chain[0].text if len(chain) == 1 and chain[0].tag == OBSERVATION else text


def reasoning_of(message: Mapping[str, Any]) -> str:
    """The model's reasoning, which some endpoints send in a separate field; "" for none."""
    return next((message[name] for name in ("reasoning_content", "reasoning") if _is_text(message.get(name))), "")


def agent_name(system: str, number: int) -> str:
    """The name of an agent, from its system prompt: "You are the search agent of ..." gives "search agent".

    Otherwise the prompt's first three words; without a prompt, "agent" and `number`.
    """
    if named := _NAMED.match(system):
        return named["name"].lower()
    words = re.findall(r"[\w-]+", system)[:3]
    return " ".join(words).lower() or f"agent {number}"


def _is_text(value: object) -> bool:
    return isinstance(value, str)
