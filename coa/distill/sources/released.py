"""Reads the published AFM fine-tuning sets as rows of our data sets.

    {"instruction": "INSTRUCTIONS ... Question: QUESTION", "input": "", "output": "<plan>\\n...\\n</answer>"}

The instructions are cut off the prompts, since each profile has its own. The sets contain no accepted answers, but only
right runs, so a run's answer is the accepted one, except for programs, whose tests are missing.
(arXiv 2508.13167, section 3.2 and appendix D; the layout of the columns is LLaMA-Factory's `alpaca`.)
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coa.agent.grammar import Chain, render
from coa.agent.profiles import PROFILES
from coa.distill.contamination import Contamination
from coa.distill.dataset.external import BREAKS_TABLE, Read
from coa.distill.dataset.rows import Demonstration, interactions_of
from coa.distill.sources.released_layout import Unreadable, read_chain
from coa.grading.graders import grader_of
from coa.grading.latex import last_box
from coa.storage.json_array import read_array
from coa.tasks.published.source import read_rows as read_file
from coa.types import Task

SOURCE = "released"
_MARK = re.compile(r"^[ \t]*(?:Question|Task):[ \t]*\n?", re.MULTILINE)


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
    needed = used & every or {tool for tool in every if re.search(rf"[<'\"`]{tool}\b", instructions)}
    able = [one for one in PROFILES.values() if used | needed <= {tag.name for tag in one.tags}]
    able.sort(key=lambda one: (len(one.tools), len(one.tags)))
    if not able or not all(set(able[0].tools) <= set(one.tools) for one in able):
        return None
    if able[0].name in ("code", "math"):
        return "code" if "```" in chain[-1].text else "math"
    return able[0].name


def to_demonstration(row: dict[str, Any], number: int, family: str) -> Demonstration:
    """The demonstration in a row; raises Unreadable if there is none. A chain that violates our table of transitions
    is marked as such."""
    prompt, output = _prompt(row), row.get("output")
    if not isinstance(output, str):
        raise Unreadable("no `output`")
    instructions, question = split_prompt(prompt)
    if not question:
        raise Unreadable("no question in `instruction`")
    chain = read_chain(output)
    profile = profile_of(chain, instructions)
    if profile is None:
        raise Unreadable("its tags are no profile's")
    answers = _answers(chain[-1].text, profile)
    holds = PROFILES[profile].transitions_hold(chain)
    return Demonstration(
        task=Task(
            id=f"{family}-{number}",
            question=question,
            answers=answers,
            profile=profile,
            family=family,
            grader=grader_of(profile, answers),
        ),
        text=render(chain),
        source=SOURCE,
        interactions=interactions_of(chain),
        decisions=() if holds else (BREAKS_TABLE,),
    )


def _prompt(row: dict[str, Any]) -> str:
    """The prompt of a row; LLaMA-Factory puts `input` on a line after `instruction`."""
    parts = [part for part in (row.get("instruction"), row.get("input")) if isinstance(part, str) and part.strip()]
    if not parts:
        raise Unreadable("no `instruction`")
    if row.get("history"):
        raise Unreadable("a conversation of several questions")
    return "\n".join(parts)


def _answers(answer: str, profile: str) -> tuple[str, ...]:
    if profile == "code":
        return ()
    if profile == "math":
        return (last_box(answer) or answer,)
    return tuple(part.strip() for part in answer.split("|") if part.strip())


def read_released(path: Path, contamination: Contamination | None = None) -> Iterator[Read]:
    """Yields each row of a `.json`, `.jsonl` or `.parquet` file, in order, with constant memory.

    contamination: the tasks of evaluation sets, whose rows are dropped; None if there are none.
    """
    rows = read_array(path) if path.suffix == ".json" else (row for _, row in read_file(path))
    for number, row in enumerate(rows, start=1):
        try:
            one = to_demonstration(row, number, path.stem)
            yield number, (contamination and _contaminated(row, one.task.question, contamination)) or one
        except Unreadable as error:
            yield number, str(error)


def _contaminated(row: dict[str, Any], question: str, contamination: Contamination) -> str | None:
    """Why a row is contaminated, or None. If a prompt has no `Question:` or `Task:`, the whole prompt is checked, since
    its last paragraph may be only the end of the question."""
    prompt = _prompt(row)
    divided = _MARK.search(prompt, max(0, prompt.find("<answer>")))
    return contamination.reason(question) or (None if divided else contamination.reason(prompt))
