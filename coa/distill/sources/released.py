"""Reads the published AFM fine-tuning sets as rows of our data sets.

    {"instruction": "INSTRUCTIONS ... Question: QUESTION", "input": "", "output": "<plan>\\n...\\n</answer>"}

The instructions are cut off the prompts, since each profile has its own. The sets contain no accepted answers, but only
right runs, so a run's answer is the accepted one, except for programs, whose tests are missing.
(arXiv 2508.13167, section 3.2 and appendix D; the layout of the columns is LLaMA-Factory's `alpaca`.)
"""

import re
from dataclasses import replace

from coa.agent.grammar import Chain, render
from coa.agent.profiles import PROFILES
from coa.distill.dataset.external import BREAKS_TABLE
from coa.distill.dataset.rows import Demonstration, interactions_of
from coa.distill.sources.released_layout import Unreadable, read_chain
from coa.grading.graders import grader_of
from coa.grading.latex import last_box
from coa.grading.match import parts_of
from coa.json_object import Json, JsonView
from coa.tasks.loading import tools_in
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
