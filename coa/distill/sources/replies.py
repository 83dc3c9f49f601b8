r"""Reads the texts of agents: our tags, thinking, programs, tool calls written as text, answers, names.

<think>...</think>                              a thought; so is what stands before a `</think>` alone
Action: search\nAction Input: Vexon Labs        a tool call (ReAct)
Action: Search[Vexon Labs]                      the same, as in the ReAct paper
Action: {"action": "search", "action_input": "Vexon Labs"}
<tool_call>{"name": "search", "arguments": {"query": "Vexon Labs"}}</tool_call>
<functioncall> {"name": "search", "arguments": '{"query": "Vexon Labs"}'} <|endoftext|>     (Glaive)
[search(query="Vexon Labs"), Other Tool(n=2)]                                               (ToolACE, Llama)
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from coa.agent.grammar import ANSWER, OBSERVATION, TAGS, THINK, Chain, Kind, parse
from coa.agent.lenient import read
from coa.distill.sources.foreign import Answer, Call, Piece, Reason, Refused, Remark, Thought
from coa.distill.sources.frames import RESPONSE
from coa.distill.sources.messages import ToolUse, json_in
from coa.json_object import Json

_THINKING = re.compile(
    r"(?:^|(?<=>))[ \t]*+(?:<(?:think|thinking|thought)>|<\|begin_of_thought\|>)"
    r"|(?P<closing></(?:think|thinking|thought)>|<\|end_of_thought\|>)",
    re.IGNORECASE | re.MULTILINE,
)
_PROGRAM = re.compile(
    # Starts only at the first of several blank lines, so that the search is not repeated at each of them.
    r"(?:\A|(?<!\s)[^\S\n]*\n)\s*+(?:Code:[ \t]*\n\s*+)?"
    r"(?:<code>|```(?:py(?:thon)?)?[ \t]*\n)(?P<program>.*?)(?:</code>|```|\Z)",
    re.DOTALL,
)
MARKS = re.compile(
    r"<end_(?:plan|code|action)>|<\|(?:begin|end)_of_solution\|>|<\|python_(?:start|end)\|>"
    r"|<\|(?:endoftext|im_end|eot_id|eom_id)\|>\s*+\Z"
)
"""Stop marks of smolagents' prompts and, at the end, of models, and marks of OpenThoughts' answers."""
_THOUGHT = re.compile(r"\A\s*[*_]*Thoughts?(?: \d+)?[*_]*:[*_]*\s*")
_FINAL = re.compile(
    r"(?:\A|\n)[*_#> \t]*final answer[*_]*[ \t]*:[*_]*+(?P<answer>(?:(?!\n[*_#> \t]*final answer).)*)\Z",
    re.DOTALL | re.IGNORECASE,
)
_NAMED = re.compile(
    r"\s*(?:you are|you're|act as|i am)\s+(?:(?:the|an?|our)\s+)?(?P<name>[\w-]+(?:[ ][\w-]+){0,3}?)"
    r"(?=\s+(?:of|that|who|which|for|in|on|with|at|and|whose|to)\b|\s*[^\w\s-]|\s*\n|\s*\Z)",
    re.IGNORECASE,
)
_ACTION = re.compile(r"^[*_#> \t]*+Action(?: \d+)?[*_]*[ \t]*:[*_ \t]*+", re.MULTILINE)
_INPUT = re.compile(r"^[*_#> \t]*+Action Input(?: \d+)?[*_]*[ \t]*:[*_ \t]*+", re.MULTILINE)
_OBSERVED = re.compile(r"^[*_#> \t]*+Observation(?: \d+)?[*_]*[ \t]*:", re.MULTILINE)
_BRACKETED = re.compile(r"(?P<name>[\w-]+(?: [\w-]+)?)\[(?P<input>[^\n]*)\][ \t]*")
_DECODER = json.JSONDecoder()
_GAP = re.compile(r"[\s,;]*+")
"""The gap between two values of JSON."""
_LISTED = re.compile(r"""(?:^|(?<=>))[ \t]*+\[\s*+(?=\w[\w .\-/:]*+\(\s*+(?:\)|["']|[\w\-]++\s*+=))""", re.MULTILINE)
_LISTED_CALL = re.compile(r"(?P<name>\w[\w .\-/:]*+)\((?P<arguments>.*)\)\Z", re.DOTALL)
_ARGUMENT = re.compile(r"(?:(?P<name>[\w\-]++)\s*+=(?!=))?(?P<value>.*)\Z", re.DOTALL)
_PIECE = re.compile(r"""(?:"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'|[^"'()\[\]{},])++|.""", re.DOTALL)
"""A text without brackets and commas, but in quotes; or one character."""
_QUOTED = re.compile(
    r"""\s*+\{\s*+"name":\s*+"(?P<name>[^"]++)",\s*+"arguments":\s*+'(?P<arguments>.*)'\s*+\}\s*+\Z""", re.DOTALL
)
"""Glaive's call, whose arguments are JSON in single quotes."""
_FENCE = re.compile(r"\s*```(?:json)?[ \t]*\n")
_NAMES = ("name", "action", "tool", "tool_name")
_INPUTS = ("arguments", "action_input", "tool_input", "parameters", "args", "input")
TOOL_CALL = re.compile(
    r"<(?P<tag>tool_call|functioncall)>(?P<body>[^<]*+(?:<(?!/?(?:tool_call|functioncall)>|\|endoftext\|>)[^<]*+)*+)"
    r"(?:</(?P=tag)>|<\|endoftext\|>|(?=<functioncall>)|\Z)"
)
TOOL_RESPONSE = re.compile(r"<tool_response>(?P<body>[^<]*+(?:<(?!/?tool_response>)[^<]*+)*+)</tool_response>")
_FUNCTION = re.compile(r"<function=(?P<name>[^<>\n]*+)>")
_PARAMETER = re.compile(r"<parameter=(?P<name>[^<>\n]*+)>(?P<value>[^<]*+(?:<(?!/?parameter\b)[^<]*+)*+)</parameter>")


@dataclass(frozen=True, slots=True)
class WrittenCalls:
    """Tool calls that an agent wrote in its text."""

    before: str
    """The text before the first of them, without the label `Thought:`."""
    uses: tuple[ToolUse, ...]


def written_calls(text: str) -> WrittenCalls | None:
    """The tool calls in an agent's text; None if it has none. Raises Refused for a text that also holds their result,
    which the model invented, and for calls that can't be read."""
    text = MARKS.sub("", text)
    if (first := TOOL_CALL.search(text)) is not None:
        blocks = [(block["body"], _in_block(block["body"])) for block in TOOL_CALL.finditer(text)]
        if not any(uses for _, uses in blocks):
            return None
        if (unread := next((body for body, uses in blocks if not uses), None)) is not None:
            raise Refused(Reason.UNREADABLE, f"a call beside others is {unread.strip()[:80]!r}")
        return _as_calls(text[: first.start()], [use for _, uses in blocks for use in uses])
    if (listed := next(reversed(list(_LISTED.finditer(text))), None)) and text.rstrip().endswith("]"):
        before, calls = text[: listed.start()], text[listed.end() :].rstrip()[:-1]
        try:
            return _as_calls(before, [_listed_call(one) for one in _divided(calls)])
        except ValueError as error:
            if not split_thinking(before)[1].strip():
                raise Refused(Reason.UNREADABLE, f"calls are {text.strip()[:80]!r}") from error
    action = _ACTION.search(text)
    uses = _of_action(text[action.end() :]) if action else []
    return _as_calls(text[: action.start()], uses) if action and uses else None


def _as_calls(before: str, uses: Sequence[ToolUse]) -> WrittenCalls:
    return WrittenCalls(_THOUGHT.sub("", before).strip(), tuple(uses))


def _listed_call(text: str) -> ToolUse:
    """The call in `search(query="Vexon Labs", n=2)`; raises ValueError."""
    if (call := _LISTED_CALL.match(text)) is None:
        raise ValueError(text)
    arguments: Json = {}
    for n, part in enumerate(_divided(call["arguments"]), start=1):
        name, value = _ARGUMENT.match(part).group("name", "value")  # type: ignore[union-attr]
        arguments[name or (f"input {n}" if n > 1 else "input")] = _literal(value)
    return ToolUse(call["name"].strip(), arguments)


def _divided(text: str) -> list[str]:
    """The parts of a text between commas that are in no brackets and no quotes."""
    parts, depth = [""], 0
    for piece in _PIECE.findall(text):
        depth += (piece in ("(", "[", "{")) - (piece in (")", "]", "}"))
        if piece == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts if part.strip()]


def _literal(text: str) -> object:
    """The value of JSON, or of a Python literal that could be JSON; raises ValueError."""
    if (found := json_in(text)) is not None or text.strip() == "null":
        return found
    try:
        return json.loads(json.dumps(ast.literal_eval(text.strip())))
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(text) from error


def _in_block(body: str) -> list[ToolUse]:
    """The calls in a `<tool_call>` or `<functioncall>`: JSON, the XML of Qwen's coders, the Python of Hermes' data, or
    Glaive's mixture of both."""
    if found := calls_in_json(body):
        return found
    if function := _FUNCTION.search(body):
        arguments = {found["name"].strip(): found["value"].strip() for found in _PARAMETER.finditer(body)}
        return [ToolUse(function["name"].strip(), arguments)]
    if quoted := _QUOTED.match(body):
        return [ToolUse(quoted["name"], quoted["arguments"].replace("\\'", "'"))]
    try:
        return _uses_in(_literal(body))
    except ValueError:
        return []


def _of_action(text: str) -> list[ToolUse]:
    observed = _OBSERVED.search(text)
    asked = text if observed is None else text[: observed.start()]
    entered = _INPUT.search(asked)
    if entered is not None:
        name = asked[: entered.start()].strip().strip("`*_\"'")
        found = [ToolUse(name, asked[entered.end() :].strip().strip("`").strip())] if name and "\n" not in name else []
    elif bracketed := _BRACKETED.match(asked):
        found = [ToolUse(bracketed["name"], bracketed["input"])]
    else:
        found = calls_in_json(asked)
    if found and observed is not None and text[observed.end() :].strip():
        raise Refused(Reason.OWN_OBSERVATION)
    return found


def _values_at(text: str) -> Iterator[object]:
    """The JSON values with which a text begins, one after the other, in a fence or without one."""
    fenced = _FENCE.match(text)
    at = _GAP.match(text, fenced.end() if fenced else 0).end()  # type: ignore[union-attr]
    while at < len(text):
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        yield value
        at = _GAP.match(text, end).end()  # type: ignore[union-attr]


def _uses_in(value: object) -> list[ToolUse]:
    """The calls of a JSON value, which is one call or a list of calls; none if it is something else."""
    uses = []
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, dict):
            return []
        one = one["function"] if isinstance(one.get("function"), dict) else one
        name = next((one[key] for key in _NAMES if isinstance(one.get(key), str)), "")
        entered = next((one[key] for key in _INPUTS if one.get(key) is not None), "")
        if not name:
            return []
        uses.append(ToolUse(name, entered if isinstance(entered, Mapping) else str(entered)))
    return uses


def calls_in_json(text: str) -> list[ToolUse]:
    """The calls in the JSON with which a text begins, as data sets write them; none if it is something else."""
    return [use for uses in takewhile(bool, map(_uses_in, _values_at(text))) for use in uses]


def responses_in(text: str) -> list[str]:
    """The tool results in a text that wraps each of them in `<tool_response>`; none for another text."""
    found = [one["body"].strip() for one in TOOL_RESPONSE.finditer(text)]
    return found if found and not TOOL_RESPONSE.sub("", text).strip() else []


def split_thinking(text: str) -> tuple[str, str]:
    """(thoughts, the rest of a text). What precedes a `</think>` without its opening is a thought, too, since some
    templates open it in the prompt; a thought that is not closed goes on to the end."""
    thoughts: list[str] = []
    rest: list[str] = []
    at, opened = 0, False
    for mark in _THINKING.finditer(text):
        if mark["closing"] and (opened or not (thoughts or rest)):
            thoughts.append(text[at : mark.start()].strip())
            at, opened = mark.end(), False
        elif not mark["closing"] and not opened:
            rest.append(text[at : mark.start()].strip())
            at, opened = mark.end(), True
    (thoughts if opened else rest).append(text[at:].strip())
    return "\n".join(filter(None, thoughts)), "\n".join(filter(None, rest)) if thoughts else text


def pieces_of(text: str, observed: str | None = None) -> Iterator[Piece]:
    """The pieces of an agent's text, which is parsed by our tags if it has any.

    observed: the next message to the agent; if the agent calls tools by tags, it is the result of the last call.
    Raises Refused for a text with an observation in it, which the model may have invented.
    """
    if not _tagged(text):
        thought, text = split_thinking(text)
        yield Thought(thought)
    chain = _tagged(text)
    for n, span in enumerate(chain, start=1):
        kind = TAGS[span.tag].kind
        if kind is Kind.ENVIRONMENT:
            raise Refused(Reason.OWN_OBSERVATION)
        if kind is Kind.TOOL:
            result = observed if n == len(chain) else None
            yield Call(span.tag, {"input": span.text}, None if result is None else unwrapped(result))
        else:
            yield {THINK: Thought, ANSWER: Answer}[span.tag](span.text) if span.tag in (THINK, ANSWER) else span
    if not chain:
        yield Remark(MARKS.sub("", text))


def calls_by_tag(text: str) -> bool:
    """Whether an agent's text ends with a tool call in our tags."""
    chain = _tagged(text) or _tagged(split_thinking(text)[1])
    return bool(chain) and TAGS[chain[-1].tag].kind is Kind.TOOL


def _tagged(text: str) -> Chain:
    """The chain of a text in our tags; empty for another text."""
    reading = read(text).parsed
    return reading.chain if reading.fault is None else ()


def split_program(text: str) -> tuple[str, str]:
    """Splits the reply of an agent that acts by programs into (text, program); the program is "" if there is none.

    split_program("Thought: add.\\n<code>\\nprint(1 + 1)\\n</code>") == ("add.", "print(1 + 1)")
    """
    found = _PROGRAM.search(text)
    said = text[: found.start()] if found else text
    return _THOUGHT.sub("", said).strip(), found["program"].strip() if found else ""


def answer_pieces(text: str) -> Iterator[Piece]:
    """The pieces of an agent's last text; the answer is the text after "Final answer:" at the start of a line, or else
    the whole text. Raises Refused for a call that is no answer."""
    said = split_thinking(text)[1]
    if (block := TOOL_CALL.search(said)) and block["body"].lstrip()[:1] in tuple("{[<"):
        raise Refused(Reason.UNREADABLE, f"a call is {block['body'].strip()[:80]!r}")
    for piece in pieces_of(text):
        if not isinstance(piece, Remark):
            yield piece
        elif final := _FINAL.search(piece.text):
            yield Remark(_THOUGHT.sub("", piece.text[: final.start()]))
            yield Answer(final["answer"].strip().strip("*_").strip())
        else:
            yield Answer(piece.text)


def unwrapped(text: str) -> str:
    """A tool result without what an agent's loop put around it."""
    if len(found := responses_in(text)) == 1:
        return found[0]
    chain = parse(text.strip()).chain
    return chain[0].text if len(chain) == 1 and chain[0].tag == OBSERVATION else text.removeprefix(RESPONSE).lstrip()


def agent_name(system: str, number: int) -> str:
    """The name of an agent, from its system prompt: "You are the search agent of ..." gives "search agent".

    Otherwise the prompt's first three words; without a prompt, "agent" and `number`.
    """
    if named := _NAMED.match(system):
        return named["name"].lower()
    words = re.findall(r"[\w-]+", system)[:3]
    return " ".join(words).lower() or f"agent {number}"
