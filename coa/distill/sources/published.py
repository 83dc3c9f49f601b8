r"""Reads from the rows of a published fine-tuning set how a profile's prompt and chains are written there.

    {"instruction": "INSTRUCTIONS ...\n\nQuestion: QUESTION", "output": "\n<plan>\n...\n</plan>\n\n<web_search>\n..."}

    prompt    "INSTRUCTIONS ...\n\nQuestion: "        before "\n"   opened "\n"   closed "\n"   after "\n"   ...

Rows may differ in it, so the format is that of most of the first rows. A model begins its first tag and the one after
an observation alike; any further white space behind an observation is the environment's.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import asdict
from itertools import islice, pairwise
from pathlib import Path

from coa.agent.chain_format import ChainFormat
from coa.agent.grammar import OBSERVATION
from coa.agent.profiles import profile as find_profile
from coa.distill.sources.released import Unreadable, prompt_of, read_spans, split_prompt
from coa.distill.sources.rows import data_rows
from coa.errors import UserError
from coa.json_object import Json, JsonView

LOOKED_AT = 100
"""Rows at the beginning of a file that are looked at."""


def format_in(path: Path, name: str) -> Json:
    """The settings of `agent.formats.NAME`, from a file of released rows. Raises UserError if none of its first rows
    has them."""
    tags = {tag.name for tag in find_profile(name).tags}
    found: Counter[ChainFormat] = Counter()
    refused: Counter[str] = Counter()
    for _, row in islice(data_rows(path), LOOKED_AT):
        try:
            found[_format_of(row, tags)] += 1
        except Unreadable as error:
            refused[str(error)] += 1
    if not found:
        why = "; ".join(f"{text} ({count} of them)" for text, count in refused.most_common()) or "it has no rows"
        raise UserError(f"agent.formats.{name}: {path}: none of its first rows shows how {name} is written: {why}")
    [(form, _)] = found.most_common(1)
    return asdict(form)


def _format_of(row: JsonView, tags: Collection[str]) -> ChainFormat:
    prompt, output = prompt_of(row), row.get("output")
    if not isinstance(output, str):
        raise Unreadable("no `output`")
    spans = read_spans(output)
    if other := {one.tag for one in spans}.difference(tags):
        raise Unreadable(f"<{min(other)}> is no tag of this profile")
    if OBSERVATION in tags and not any(one.tag == OBSERVATION for one in spans):
        raise Unreadable("it calls no tool")
    instructions, question = split_prompt(prompt)
    if not instructions or not question:
        raise Unreadable("no instructions before a question")
    before, own = spans[0].before, [one.body for one in spans if one.tag != OBSERVATION]
    gaps = [(first.tag == OBSERVATION, second.before.removesuffix(before)) for first, second in pairwise(spans)]
    try:
        return ChainFormat(
            prompt=prompt[: prompt.index(question, len(instructions))],
            before=before,
            opened=_only(body[: len(body) - len(body.lstrip())] for body in own),
            closed=_only(body[len(body.rstrip()) :] for body in own),
            after=_only(gap for observed, gap in gaps if not observed),
            observed=_only(gap for observed, gap in gaps if observed),
        )
    except ValueError as error:
        raise Unreadable(str(error)) from error


def _only(spaces: Iterable[str]) -> str:
    """The white space that is the same everywhere; "" if there is none."""
    found = set(spaces)
    if len(found) > 1:
        raise Unreadable("its tags are not written alike")
    return found.pop() if found else ""
