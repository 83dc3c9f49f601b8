"""The requests to the model that makes questions, and how its replies are read."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from coa.llm.ask import Message, messages_of, without_thoughts
from coa.tasks.made.questions import BETWEEN, Description, Draft, Question
from coa.tools.layouts import Passage

UNKNOWN = "UNKNOWN"
"""The reply of a model that can't answer."""
NESTED = 20
"""Maximum number of places at which JSON is looked for in a reply."""

PROPOSE = """\
You write questions that test whether somebody can find facts in a library. You get one passage of it. Write up to \
{most} questions, each about another fact of the passage.

- The answer is a name, a date, a number or another short phrase that stands in the passage, word for word.
- "name" is the thing or person the question is about, as the passage calls it; the question contains it.
- The question can be understood without the passage, has one right answer, and does not contain it.
- "quote" is the sentence of the passage that answers the question, copied word for word; the answer stands in it.

Reply with a JSON list alone, [] if the passage has no such fact:
[{{"question": "...", "answer": "...", "name": "...", "quote": "..."}}]"""

ANSWER = f"""\
Answer the question from the passages alone. Reply with the answer alone, in as few words as possible, without a \
sentence around it. If the passages do not say it, or if more than one answer would be right, reply {UNKNOWN}. If the \
question asks for several things, join their answers with{BETWEEN.rstrip()}."""

RECALL = f"""\
Answer the question from what you know; there is nothing to look up. Reply with the answer alone, in as few words as \
possible, or with {UNKNOWN} if you do not know it."""

DESCRIBE = """\
You get a name, and a passage in which it occurs. Write a description that can stand in a question in place of the \
name: what the passage says of it, so that only it fits, without the name itself. The description names something \
else by which one finds the passage; "other" is that name. "quote" is the sentence of the passage that the description \
rests on, copied word for word.

Reply with a JSON object alone, {} if the passage does not single the name out:
{"description": "the language that Nora Lind designed", "other": "Nora Lind", "quote": "..."}"""

IDENTIFY = f"""\
You get a description, and a passage. Reply with the name of what is described, as the passage calls it, alone. If \
something else could be meant as well, or if the passage does not say it, reply {UNKNOWN}."""

REPLACE = """\
You get a question, a name in it, and a description of what bears that name. Reply with the question alone, with the \
description in place of the name, in good English. Change nothing else, and add no fact."""

MERGE = """\
You get two questions. Reply with one question alone that asks for both things, in this order, and keeps every name \
and fact of both. It says nothing of their answers."""

SPLIT = """\
You get a question that asks for two things. Write it as two questions, in its order, each of which can be understood \
on its own. Reply with a JSON list of the two alone: ["...", "..."]"""


def shown(passages: Sequence[Passage]) -> str:
    return "\n\n".join(f"{passage.title}\n{passage.text}" for passage in passages)


def to_propose(passage: Passage, most: int) -> list[Message]:
    return messages_of(PROPOSE.format(most=most), {"passage": shown([passage])})


def to_answer(text: str, passages: Sequence[Passage]) -> list[Message]:
    return messages_of(ANSWER, {"passages": shown(passages), "question": text})


def to_recall(question: Question) -> list[Message]:
    return messages_of(RECALL, {"question": question.text})


def to_describe(name: str, passage: Passage) -> list[Message]:
    return messages_of(DESCRIBE, {"name": name, "passage": shown([passage])})


def to_identify(said: Description, passage: Passage) -> list[Message]:
    return messages_of(IDENTIFY, {"description": said.text, "passage": shown([passage])})


def to_replace(question: Question, said: Description) -> list[Message]:
    return messages_of(REPLACE, {"question": question.text, "name": question.name, "description": said.text})


def to_merge(one: Question, other: Question) -> list[Message]:
    return messages_of(MERGE, {"first": one.text, "second": other.text})


def to_split(question: Question) -> list[Message]:
    return messages_of(SPLIT, {"question": question.text})


def read_drafts(reply: str, most: int) -> list[Draft]:
    """The drafts of a reply, at most `most`; those without all four texts are left out."""
    match next(values_in(reply), None):
        case [*rows] | {"questions": [*rows]}:
            pass
        case row:
            rows = [row]
    found = (_texts(row, ("question", "answer", "name", "quote")) for row in rows if isinstance(row, dict))
    drafts = (Draft(question=texts[0], answer=texts[1], name=texts[2], quote=texts[3]) for texts in found if texts)
    return list(islice(drafts, most))


def read_description(reply: str) -> Description | None:
    """The description of a reply; None if there is none."""
    row = next((value for value in values_in(reply) if isinstance(value, dict)), {})
    texts = _texts(row, ("description", "other", "quote"))
    return Description(text=texts[0], name=texts[1], quote=texts[2]) if texts else None


def read_pair(reply: str) -> tuple[str, str] | None:
    """The two questions of a reply; None if there are not two."""
    for value in values_in(reply):
        match value:
            case [str(one), str(other)] if one.strip() and other.strip():
                return one, other
    return None


def read_text(reply: str) -> str:
    """A reply that is one line alone, without thoughts and quotation marks around it; "" if it has more lines."""
    text = without_thoughts(reply)
    if "\n" in text:
        return ""
    return text[1:-1].strip() if len(text) > 1 and text[0] == text[-1] == '"' else text


def values_in(reply: str) -> Iterator[Any]:
    """The JSON lists and objects in a reply, one after the other, whatever stands around them."""
    text, decoder = without_thoughts(reply), json.JSONDecoder()
    at = 0
    for _ in range(NESTED):
        starts = [place for place in (text.find("[", at), text.find("{", at)) if place >= 0]
        if not starts:
            return
        try:
            value, at = decoder.raw_decode(text, min(starts))
        except (ValueError, RecursionError):
            at = min(starts) + 1
            continue
        yield value


def _texts(row: dict[str, Any], keys: Sequence[str]) -> list[str]:
    """The texts under the keys, numbers written out; empty if one is missing or has no text."""
    found = [str(value) if isinstance(value := row.get(key), str | int | float) else "" for key in keys]
    return found if all(text.strip() for text in found) else []
