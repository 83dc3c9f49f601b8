"""The published AFM fine-tuning sets, by path, as rows of ours.

    {"instruction": "INSTRUCTIONS ... Question: QUESTION", "input": "", "output": "<plan>\\n...\\n</answer>"}

The instructions of their prompts are cut off, since each profile has its own. The sets tell no accepted answers; their
runs are those that were right, so the answer given is the accepted one, but for a program, whose tests are not there.
(arXiv 2508.13167, section 3.2 and appendix D; the layout of the columns is LLaMA-Factory's `alpaca`.)
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coa.benchmarks.source import read_rows as read_file
from coa.data.brought import BREAKS_TABLE, Read
from coa.data.json_array import read_array
from coa.data.layout import Unreadable, read_chain
from coa.data.rows import Demonstration, interactions_of
from coa.distill.contamination import Contamination
from coa.graders import grader_of
from coa.grammar import Chain, render
from coa.latex import last_box
from coa.profiles import PROFILES
from coa.types import Task

SOURCE = "released"
_MARK = re.compile(r"^[ \t]*(?:Question|Task):[ \t]*\n?", re.MULTILINE)


def split_prompt(prompt: str) -> tuple[str, str]:
    """(instructions, question) of a prompt that speaks of `<answer>`: after the first `Question:` or `Task:` that
    begins a line, or where there is none the last paragraph. A prompt without instructions is the question."""
    told = prompt.find("<answer>")
    if told < 0:
        return "", _MARK.sub("", prompt, count=1).strip() if _MARK.match(prompt) else prompt.strip()
    if mark := _MARK.search(prompt, told):
        return prompt[: mark.start()], prompt[mark.end() :].strip()
    instructions, _, question = prompt.rstrip().rpartition("\n\n")
    return instructions, question.strip()


def profile_of(chain: Chain, instructions: str) -> str | None:
    """The smallest profile that has every tag of the chain, and, if it calls no tool, those that the instructions name.

    None where nothing tells. Programs and mathematics differ in the answer alone: a program stands in a fence.
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
    """Raises Unreadable for a row that makes none. A chain that breaks our table of transitions is told as such."""
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
    """LLaMA-Factory puts `input` on a line after `instruction`."""
    parts = [part for part in (row.get("instruction"), row.get("input")) if isinstance(part, str) and part.strip()]
    if not parts:
        raise Unreadable("no `instruction`")
    if row.get("history"):
        raise Unreadable("a conversation of several questions")
    return "\n".join(parts)


def _answers(given: str, profile: str) -> tuple[str, ...]:
    if profile == "code":
        return ()
    if profile == "math":
        return (last_box(given) or given,)
    return tuple(part.strip() for part in given.split("|") if part.strip())


def read_released(path: Path, contamination: Contamination | None = None) -> Iterator[Read]:
    """Each row of a `.json`, `.jsonl` or `.parquet` file, in order; memory does not grow with their number.

    contamination: of what is evaluated on, which makes nothing; None where nothing is.
    """
    rows = read_array(path) if path.suffix == ".json" else (row for _, row in read_file(path))
    for number, row in enumerate(rows, start=1):
        try:
            one = to_demonstration(row, number, path.stem)
            yield number, (contamination and _contaminated(row, one.task.question, contamination)) or one
        except Unreadable as error:
            yield number, str(error)


def _contaminated(row: dict[str, Any], question: str, contamination: Contamination) -> str | None:
    """A prompt that no `Question:` or `Task:` divides is looked through whole: its last paragraph may be no more than
    the end of the question."""
    prompt = _prompt(row)
    divided = _MARK.search(prompt, max(0, prompt.find("<answer>")))
    return contamination.reason(question) or (None if divided else contamination.reason(prompt))
