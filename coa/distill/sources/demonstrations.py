"""Reads data sets of other systems as rows of ours: released AFM files, and the formats of `coa.distill.sources.rows`.

A row names neither its task's profile nor its accepted answers. Its profile is the recipe's if the chain can be written
in it, else the smallest one whose table the chain follows. Such data sets are said to hold right runs only, so the
run's answer is the accepted one, except for programs, whose tests are missing.
"""

from collections.abc import Iterator
from pathlib import Path

from coa.agent.grammar import ANSWER, Profile
from coa.agent.profiles import PROFILES
from coa.distill.contamination import Contamination
from coa.distill.convert import to_chain
from coa.distill.dataset.external import ExternalCounts, Read
from coa.distill.dataset.rows import Demonstration
from coa.distill.sources.foreign import ForeignRun, Reason, Refused
from coa.distill.sources.messages import USER
from coa.distill.sources.released import (
    NO_ANSWER,
    Unreadable,
    demonstration_of,
    is_tagged,
    prompt_of,
    split_prompt,
    to_demonstration,
    undivided,
)
from coa.distill.sources.rows import ALPACA, EXPECTED, Row, data_rows, format_of, found_in, messages_of, run_of
from coa.distill.sources.tools import DEFAULTS
from coa.distill.sources.write import to_transcript
from coa.errors import UserError
from coa.teams.transcript import Ending, Transcript
from coa.types import Task

CHECKED = 1000
"""Rows that are looked at before a run starts."""


def read_data(path: Path, contamination: Contamination | None = None, profile: str | None = None) -> Iterator[Read]:
    """Yields each row that `data_rows` yields, in order, with constant memory.

    contamination: the tasks of evaluation sets, whose rows are dropped; None if there are none. profile: the first that
    is tried for a row that names none.
    """
    for number, (_, row) in enumerate(data_rows(path), start=1):
        try:
            one = demonstration_in(row, number, path.stem, profile)
        except (Unreadable, Refused) as error:
            yield number, str(error)
        else:
            asked = (one.task.question, *_prompts(row)) if contamination else ()
            yield number, next((why for text in asked if (why := contamination and contamination.reason(text))), one)


def check_data_file(path: Path, profile: str | None = None) -> None:
    """Raises UserError, with what was found, for a data set that cannot be read, or of which no row makes a
    demonstration. Reads the first `CHECKED` rows, or up to the first that does."""
    counts = ExternalCounts()
    for number, read in read_data(path, profile=profile):
        usable = isinstance(read, Demonstration)
        counts += ExternalCounts(rows=1, kept=usable, dropped={} if usable else {str(read): 1})
        if counts.kept and number >= CHECKED:
            break
    if not counts.kept:
        raise UserError(f"{path}: {counts.none_kept}")


def _prompts(row: Row) -> list[str]:
    """The texts of a row, besides its question, that may be a question of an evaluation set."""
    if _is_released(row):
        return [prompt for prompt in (prompt_of(row),) if undivided(prompt)]
    return [message.text for message in messages_of(row) if message.role == USER]


def _is_released(row: Row) -> bool:
    return format_of(row) == ALPACA and is_tagged(row.get("output")) and not row.get("history")


def demonstration_in(row: Row, number: int, family: str, profile: str | None = None) -> Demonstration:
    """The demonstration in a row; raises Unreadable or Refused if there is none. A chain that violates its profile's
    table of transitions is marked as such."""
    if _is_released(row):
        return to_demonstration(dict(row), number, family)
    if not (form := format_of(row)):
        raise Unreadable(f"{found_in(row)}, expected {EXPECTED}")
    transcript = _as_transcript(run_of(row, f"row {number}", DEFAULTS, form), f"{family}-{number}", family, profile)
    if transcript.ending is not Ending.ANSWERED:
        raise Unreadable(NO_ANSWER)
    return demonstration_of(to_chain(transcript), transcript.task, f"import:{form}")


def _as_transcript(run: ForeignRun, name: str, family: str, wanted: str | None) -> Transcript:
    """The run in the tags of the best profile: the first whose table holds, else the first that has all tags of the
    run. Raises Refused if there is none."""
    question = split_prompt(run.question)[1] or run.question
    refused: list[Refused] = []
    loose: list[Transcript] = []
    for profile in _profiles(wanted):
        task = Task(id=name, question=question, answers=(), profile=profile.name, family=family)
        try:
            transcript = to_transcript(run, task, 0, DEFAULTS)
        except Refused as error:
            refused.append(error)
            continue
        if profile.name == "code" != wanted and "```" not in transcript.answer:
            continue  # a result, as in mathematics, whose table is the same
        chain = to_chain(transcript)
        if {span.tag for span in chain} <= {tag.name for tag in profile.tags}:
            if profile.transitions_hold(chain):
                return transcript
            loose.append(transcript)
    if loose:
        return loose[0]
    raise next((error for error in refused if error.reason is not Reason.NOT_OF_PROFILE), refused[0])


def _profiles(wanted: str | None) -> list[Profile]:
    """The profiles in the order in which they are tried."""
    small = sorted(PROFILES.values(), key=lambda one: (one.name != wanted, len(one.tools), len(one.tags)))
    return [one for one in small if any(tag.name == ANSWER for tag in one.tags)]
