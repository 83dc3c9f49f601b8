r"""Reads the published AFM fine-tuning sets as rows of our data sets, and their tag text into chains.

    {"instruction": "INSTRUCTIONS ... Question: QUESTION", "input": "", "output": "<plan>\n...\n</answer>"}

The instructions are cut off the prompts, since each profile has its own, or that of a file that `agent.formats` names
(`coa.distill.sources.published`). The sets contain no accepted answers, but only right runs, so a run's answer is the
accepted one, except for programs, whose tests are missing.
(arXiv 2508.13167, section 3.2 and appendix D; the layout of the columns is LLaMA-Factory's `alpaca`.)

    \n<think>\n...\n</think>\n\n<web_search>\n...\n</web_search>\n\n<observation>\n...\n</observation>\n\n\n<answer>...

Tags are on lines of their own, with blank lines between spans, and nothing is escaped, so a tool result may contain
tags too. An observation therefore ends at the first closing tag before a new tag or the end; any other span ends at its
closing tag, and contains no tag that begins or ends a span.
"""

import re
from dataclasses import dataclass, replace
from functools import cache

from coa.agent.grammar import ANSWER, OBSERVATION, TAGS, THINK, Chain, Fault, Span, render
from coa.agent.profiles import PROFILES
from coa.distill.dataset.external import BREAKS_TABLE
from coa.distill.dataset.rows import Demonstration, interactions_of
from coa.grading.graders import grader_of
from coa.grading.latex import last_box
from coa.grading.match import parts_of
from coa.json_object import Json, JsonView
from coa.tasks.loading import tools_in
from coa.types import Task

SOURCE = "released"
_MARK = re.compile(r"^[ \t]*(?:Question|Task):[ \t]*\n?", re.MULTILINE)

NO_ANSWER = "no answer at the end"
NO_TAGS = "no tags"


def split_prompt(prompt: str) -> tuple[str, str]:
    """(instructions, question) of a prompt. In one that mentions `<answer>`, the question follows the first `Question:`
    or `Task:` at the start of a line; without such a mark it is the last paragraph. Any other prompt is a question."""
    mention = prompt.find("<answer>")
    if mention < 0:
        return "", _MARK.sub("", prompt, count=1).strip() if _MARK.match(prompt) else prompt.strip()
    if mark := _MARK.search(prompt, mention):
        return prompt[: mark.start()], prompt[mark.end() :].strip()
    instructions, _, question = prompt.rstrip().rpartition("\n\n")
    return instructions, question.strip()


def profile_of(chain: Chain, instructions: str) -> str | None:
    """The smallest profile that has every tag of the chain, and, if it calls no tool, those that the instructions name.

    None if that is ambiguous. Chains of programs and of mathematics differ only in the answer: a program is fenced.
    """
    used = {span.tag for span in chain}
    every = {tool.name for profile in PROFILES.values() for tool in profile.tools}
    needed = used & every or tools_in(instructions)
    able = [one for one in PROFILES.values() if used | needed <= {tag.name for tag in one.tags}]
    able.sort(key=lambda one: (len(one.tools), len(one.tags)))
    if not able or not all(set(able[0].tools) <= set(one.tools) for one in able):
        return None
    if able[0].name in ("code", "math"):
        return "code" if "```" in chain[-1].text else "math"
    return able[0].name


def to_demonstration(row: Json, number: int, family: str) -> Demonstration:
    """The demonstration in a row; raises Unreadable if there is none. A chain that violates our table of transitions
    is marked as such."""
    if not (prompt := prompt_of(row)):
        raise Unreadable("no `instruction`")
    if row.get("history"):
        raise Unreadable("a conversation of several questions")
    if not isinstance(row.get("output"), str):
        raise Unreadable("no `output`")
    instructions, question = split_prompt(prompt)
    if not question:
        raise Unreadable("no question in `instruction`")
    chain = read_chain(row["output"])
    profile = profile_of(chain, instructions)
    if profile is None:
        raise Unreadable("its tags are no profile's")
    task = Task(id=f"{family}-{number}", question=question, answers=(), profile=profile, family=family)
    return demonstration_of(chain, task, SOURCE)


def demonstration_of(chain: Chain, task: Task, source: str) -> Demonstration:
    """The demonstration of a chain whose answer is right; task: without its accepted answers."""
    answers = answers_of(chain[-1].text, task.profile)
    return Demonstration(
        task=replace(task, answers=answers, grader=grader_of(task.profile, answers)),
        text=render(chain),
        source=source,
        interactions=interactions_of(chain),
        decisions=() if PROFILES[task.profile].transitions_hold(chain) else (BREAKS_TABLE,),
    )


def prompt_of(row: JsonView) -> str:
    """The prompt of a row; LLaMA-Factory puts `input` on a line after `instruction`."""
    parts = (row.get(name) for name in ("instruction", "input"))
    return "\n".join(part for part in parts if isinstance(part, str) and part.strip())


def answers_of(answer: str, profile: str) -> tuple[str, ...]:
    """The accepted answers of a task, from the answer of a run that is right."""
    if profile == "code":
        return ()
    if profile == "math":
        return (last_box(answer) or answer,)
    return tuple(parts_of(answer))


def undivided(prompt: str) -> bool:
    """Whether a prompt has no `Question:` or `Task:`, so that its last paragraph may be only the end of the
    question."""
    return _MARK.search(prompt, max(0, prompt.find("<answer>"))) is None


class Unreadable(Exception):
    """A row of a released file makes no demonstration; the text says why."""


@dataclass(frozen=True, slots=True)
class _Patterns:
    mark: re.Pattern[str]
    end_of_observation: re.Pattern[str]


@cache
def _patterns(names: tuple[str, ...]) -> _Patterns:
    any_name = "|".join(names)
    return _Patterns(
        mark=re.compile(rf"<(/?)({any_name})>"),
        end_of_observation=re.compile(rf"</{OBSERVATION}>(?=\s*(?:<(?:{any_name})>|\Z))"),
    )


def is_tagged(text: object) -> bool:
    """Whether a text is meant as tag text, though it may have faults: it begins with one of our tags, after thinking,
    or has an answer in its tag. A thought before plain text, as reasoning models write it, makes no tag text."""
    if not isinstance(text, str):
        return False
    _, closed, rest = text.rpartition(f"</{THINK}>")
    mark = _patterns(tuple(TAGS)).mark.match((rest if closed else text).lstrip())
    return f"<{ANSWER}>" in text or (mark is not None and (mark[2] != THINK or not closed))


def read_chain(text: str) -> Chain:
    """The chain of a text; raises Unreadable for a malformed text, and if it does not end in an answer."""
    return tuple(Span(one.tag, one.body.strip()) for one in read_spans(text))


@dataclass(frozen=True, slots=True)
class Written:
    """A span as it is written."""

    before: str
    """The white space before its opening tag."""
    tag: str
    body: str
    """All of the text between its tags."""


def read_spans(text: str) -> list[Written]:
    """The spans of a text; raises Unreadable for a malformed text, and if it does not end in an answer."""
    patterns = _patterns(tuple(TAGS))
    spans: list[Written] = []
    at = 0
    while text[at:].strip():
        mark = patterns.mark.search(text, at)
        before = text[at : mark.start()] if mark else ""
        if mark is None or before.strip():
            raise Unreadable(Fault.STRAY_TEXT if spans or mark else NO_TAGS)
        if mark[1]:
            raise Unreadable(Fault.STRAY_CLOSE)
        body, at = _body(text, mark.end(), mark[2], patterns)
        spans.append(Written(before, mark[2], body))
    if not spans:
        raise Unreadable(NO_TAGS)
    if spans[-1].tag != ANSWER:
        raise Unreadable(NO_ANSWER)
    return spans


def _body(text: str, begin: int, tag: str, patterns: _Patterns) -> tuple[str, int]:
    """(the text between a tag and its end, the position after it)."""
    closing = patterns.end_of_observation if tag == OBSERVATION else re.compile(rf"</{tag}>")
    end = closing.search(text, begin)
    if end is None:
        raise Unreadable(Fault.UNCLOSED)
    body = text[begin : end.start()]
    if tag != OBSERVATION and _holds_a_span(body, tag, patterns):
        raise Unreadable(Fault.NESTED)
    return body, end.end()


def _holds_a_span(body: str, tag: str, patterns: _Patterns) -> bool:
    """Whether a body contains a tag alone on its line, a whole span, or its own tag; any other tag within a line is
    text."""
    opened = {tag}
    for mark in patterns.mark.finditer(body):
        closing, name = mark.groups()
        before, after = body[: mark.start()].rpartition("\n"), body[mark.end() :].partition("\n")
        alone = bool(before[1]) and not before[2].strip() and not after[0].strip()
        if alone or name == tag or (closing and name in opened):
            return True
        opened.add(name)
    return False
