"""Questions made of passages: what they rest on, what is wrong with one, and the task that comes of it.

draft             about one passage, as the model proposes it        What did the Arden mill grind ?
deeper            its name is replaced by what another passage says  What did the mill that Nora Lind built grind ?
wider             two questions merged, with both answers            ... and who is the mayor of Brook ?
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from unicodedata import east_asian_width

from coa.grading.graders import EXACT
from coa.grading.match import exact_match, parts_of
from coa.json_object import Json
from coa.tools.layouts import Passage
from coa.types import Task

ANSWER_CHARS = 80
"""Maximum characters of an answer."""
QUESTION_CHARS = 600
"""Maximum characters of a question."""
DESCRIPTION_CHARS = 240
"""Maximum characters of what stands in place of a name."""
BETWEEN = " | "
"""Between the answers of a merged question."""

NOT_QUOTED = "its evidence does not stand in the passage"
NOT_IN_EVIDENCE = "its answer does not stand in its evidence"
TOO_LONG = "too long"
GIVEN_AWAY = "it contains its answer"
NOT_NAMED = "it does not name what it is about"
STILL_NAMED = "the description contains the name"
POINTS = "it points at a text that the reader does not have"
_TEXTS = r"(?:passage|text|excerpt|paragraph|article|document|section|author)s?\b"
_POINTING = re.compile(
    rf"\b(?:this|these|above|following) {_TEXTS}|\baccording to the {_TEXTS}|\b(?:in|from|by) the {_TEXTS}(?! \w)|"
    r"\b(?:mentioned|described|stated|listed) (?:above|here)\b",
    re.IGNORECASE,
)


class Kind(StrEnum):
    """How a question was made; the family of its task."""

    ATOMIC = "atomic"
    DEEPER = "deeper"
    WIDER = "wider"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A sentence of a passage that a question rests on."""

    passage: int
    """Number of the passage in the corpus."""
    title: str
    quote: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    id: str
    text: str
    answers: tuple[str, ...]
    """Accepted answers; the first is the canonical one."""
    name: str
    """What the question names; a deeper question replaces it."""
    evidence: tuple[Evidence, ...]
    """That of the answer first; each further one says what the one before it is about."""
    kind: Kind = Kind.ATOMIC

    @property
    def passages(self) -> tuple[int, ...]:
        return tuple(evidence.passage for evidence in self.evidence)

    def task(self, profile: str) -> Task:
        return Task(
            id=self.id, question=self.text, answers=self.answers, profile=profile, family=self.kind.value, grader=EXACT
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A question as the model proposes it for a passage."""

    question: str
    answer: str
    name: str
    quote: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a passage says of a name, as the model writes it, to stand in its place."""

    text: str
    name: str
    """What the description itself names."""
    quote: str


def folded(text: str) -> str:
    return " ".join(text.split()).casefold()


def occurs(words: str, text: str) -> bool:
    """Whether the words stand in the text, as whole words, whatever their case and blanks.

    occurs("Nora  lind", "By Nora Lind.") and not occurs("art", "party")
    """
    found, within = folded(words), folded(text)
    at = within.find(found) if found else -1
    while at >= 0:
        end = at + len(found)
        if not _is_one_word(within[at - 1 : at], found[0]) and not _is_one_word(found[-1], within[end : end + 1]):
            return True
        at = within.find(found, at + 1)
    return False


def _is_one_word(left: str, right: str) -> bool:
    """Whether two neighbours are of one word, in a script that puts blanks between words."""
    return bool(left and right) and all(
        letter.isalnum() and east_asian_width(letter) not in ("W", "F") for letter in (left, right)
    )


def is_quoted(quote: str, passage: Passage) -> bool:
    """Whether the passage has the quotation, whatever its blanks and case."""
    return bool(quote.strip()) and folded(quote) in folded(f"{passage.title}\n{passage.text}")


def flaw_of_draft(draft: Draft, passage: Passage) -> str | None:
    """What makes the draft useless, as far as no model is needed to tell; None if nothing does."""
    if not is_quoted(draft.quote, passage):
        return NOT_QUOTED
    if not occurs(draft.answer, draft.quote):
        return NOT_IN_EVIDENCE
    if len(draft.answer) > ANSWER_CHARS:
        return TOO_LONG
    if not occurs(draft.name, draft.question):
        return NOT_NAMED
    return flaw_of_text(draft.question, (draft.answer,))


def flaw_of_text(question: str, answers: Sequence[str]) -> str | None:
    """What makes the text of a question useless."""
    if len(question) > QUESTION_CHARS:
        return TOO_LONG
    if any(occurs(answer, question) for answer in answers):
        return GIVEN_AWAY
    return POINTS if _POINTING.search(question) else None


def flaw_of_description(said: Description, question: Question, passage: Passage) -> str | None:
    """What makes the description useless in place of the question's name."""
    if not is_quoted(said.quote, passage):
        return NOT_QUOTED
    if not occurs(question.name, said.quote):
        return NOT_IN_EVIDENCE
    if len(said.text) > DESCRIPTION_CHARS:
        return TOO_LONG
    if occurs(question.name, said.text):
        return STILL_NAMED
    if not occurs(said.name, said.text):
        return NOT_NAMED
    return flaw_of_text(said.text, question.answers)


def question_of(draft: Draft, row: int, number: int, passage: Passage) -> Question:
    """The question of a draft; row: its passage's number; number: the draft's for this passage."""
    evidence = Evidence(passage=row, title=passage.title, quote=draft.quote.strip())
    return Question(
        id=f"made-{row}-{number}",
        text=draft.question.strip(),
        answers=(draft.answer.strip(),),
        name=draft.name.strip(),
        evidence=(evidence,),
    )


def deeper(question: Question, said: Description, text: str, row: int, passage: Passage) -> Question:
    """The question with `text` in place of its own, which has the description in place of the name."""
    evidence = Evidence(passage=row, title=passage.title, quote=said.quote.strip())
    return Question(
        id=f"{question.id}.{len(question.evidence) + 1}",
        text=text.strip(),
        answers=question.answers,
        name=said.name.strip(),
        evidence=(*question.evidence, evidence),
        kind=Kind.DEEPER,
    )


def wider(one: Question, other: Question, text: str) -> Question:
    """Both questions in one, which `text` asks."""
    return Question(
        id=f"{one.id}+{other.id}",
        text=text.strip(),
        answers=(f"{one.answers[0]}{BETWEEN}{other.answers[0]}",),
        name="",
        evidence=(*one.evidence, *other.evidence),
        kind=Kind.WIDER,
    )


def is_right(reply: str, question: Question) -> bool:
    """Whether a reply that is an answer alone is one of the question's."""
    return exact_match(reply, question.answers)


def contains_answer(reply: str, question: Question) -> bool:
    """Whether a reply of any form has the answer, or all answers of a merged question."""
    return all(occurs(part, reply) for part in parts_of(question.answers[0]))


def to_json(question: Question) -> Json:
    """The question as a line of made.jsonl."""
    return {**asdict(question), "kind": question.kind.value}
