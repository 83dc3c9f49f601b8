"""The published AFM fine-tuning sets, by path, as rows of ours.

    {"instruction": "INSTRUCTIONS ... Question: QUESTION", "input": "", "output": "<plan>\\n...\\n</answer>"}

The instructions of their prompts are cut off, since each profile has its own. The sets tell no accepted answers; their
runs are those that were right, so the answer given is the accepted one, but for a program, whose tests are not there.
(arXiv 2508.13167, section 3.2 and appendix D; the layout of the columns is LLaMA-Factory's `alpaca`.)
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

from coa.benchmarks.source import read_rows as read_file
from coa.data.json_array import read_array
from coa.data.layout import Unreadable, read_chain
from coa.data.rows import Decision, Demonstration, interactions_of
from coa.data.shards import write_shard
from coa.distill.stages import VIOLATION
from coa.files import replacing
from coa.graders import grader_of
from coa.grammar import Chain, render
from coa.latex import last_box
from coa.profiles import PROFILES
from coa.types import Task

SOURCE = "released"
QUALITY = "quality"
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
        decisions=() if holds else (Decision(QUALITY, VIOLATION),),
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


Read = tuple[int, Demonstration | str]
"""The number of a row, from 1, and what it makes, or why it makes nothing."""


def read_released(path: Path) -> Iterator[Read]:
    """Each row of a `.json`, `.jsonl` or `.parquet` file, in order; memory does not grow with their number."""
    rows = read_array(path) if path.suffix == ".json" else (row for _, row in read_file(path))
    for number, row in enumerate(rows, start=1):
        try:
            yield number, to_demonstration(row, number, path.stem)
        except Unreadable as error:
            yield number, str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What became of rows; those of chunks add up."""

    rows: int = 0
    kept: int = 0
    violations: int = 0
    """Kept rows that break our table of transitions."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """By reason."""

    def __add__(self, other: "Imported") -> "Imported":
        return Imported(
            rows=self.rows + other.rows,
            kept=self.kept + other.kept,
            violations=self.violations + other.violations,
            dropped=dict(Counter(self.dropped) + Counter(other.dropped)),
        )


def import_released(path: Path, folder: Path, listing: Path, *, first: int = 0, shard_rows: int = 1000) -> Imported:
    """Writes a file's rows as shards from number `first` on, and {"row", "reason"} of each other one to `listing`.

    Raises UserError for a file that can't be read to its end; the shards before that place are there then.
    """
    told = Imported()
    read = read_released(path)
    with replacing(listing) as part, part.open("w", encoding="utf-8") as lines:
        for index in count(first):
            if not (rows := list(islice(read, shard_rows))):
                break
            kept, dropped = _sort(rows)
            lines.writelines(json.dumps({"row": row, "reason": reason}) + "\n" for row, reason in dropped)
            chunk = Imported(
                rows=len(rows),
                kept=len(kept),
                violations=sum(bool(one.decisions) for one in kept),
                dropped=Counter(reason for _, reason in dropped),
            )
            write_shard(folder, index, kept, {"rows": chunk.rows, "kept": chunk.kept, "dropped": dict(chunk.dropped)})
            told += chunk
    return told


def _sort(rows: Iterable[Read]) -> tuple[list[Demonstration], list[tuple[int, str]]]:
    kept: list[Demonstration] = []
    dropped: list[tuple[int, str]] = []
    for number, one in rows:
        if isinstance(one, str):
            dropped.append((number, one))
        else:
            kept.append(one)
    return kept, dropped
