"""Makes questions of passages, each step a request to the model and a check of its reply.

    passage -> drafts -> answered from the passage, and not from memory
                      -> deeper: a name is replaced by what another passage says of it, once for each further hop
                      -> wider: two questions of different passages are merged

A deeper or wider question is answered from its passages together, and from none of them alone. What the team with its
tools makes of a question is asked elsewhere (`jobs.stages.tasks`).
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from coa.errors import EmptyCompletion, RequestRefused
from coa.grading.match import parts_of
from coa.llm.ask import Message
from coa.tasks.made import requests
from coa.tasks.made.questions import (
    NOT_NAMED,
    STILL_NAMED,
    Question,
    contains_answer,
    deeper,
    flaw_of_description,
    flaw_of_draft,
    flaw_of_text,
    folded,
    is_right,
    occurs,
    question_of,
    wider,
)
from coa.tasks.made.requests import UNKNOWN
from coa.tools.layouts import Passage

NO_QUESTION = "no question in the reply"
NOT_ANSWERED = "it is not answered from its evidence"
KNOWN = "the model knows the answer without tools"
ONE_IS_ENOUGH = "one of its passages is enough"
NOT_SPLIT = "it does not split into its two questions"
NOT_UNIQUE = "the description fits something else too"
NO_PASSAGE = "no other passage has the name"
NO_DESCRIPTION = "no description in the reply"
REFUSED = "the request was refused, or the reply was empty"
DESCRIBED = 3
"""Passages in which a description of a name is looked for."""


class Ask(Protocol):
    async def __call__(self, messages: Sequence[Message], attempt: int | None = None) -> str:
        """The reply's text. attempt: number of a try that is sampled anew; None for a reply as certain as the model
        can give. Raises InfrastructureError if there is none."""
        ...


Find = Callable[[str], Awaitable[Sequence[tuple[int, Passage]]]]
"""Finds passages for a query, best first, with their numbers."""


@dataclass(frozen=True, slots=True)
class Refused:
    """What did not become a question, and why."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    ask: Ask
    find: Find
    passages: Sequence[Passage]
    per_passage: int
    """Maximum drafts of a passage."""
    tries: int
    """Number of times that the model alone is asked."""

    async def propose(self, row: int) -> list[Question | Refused]:
        """The drafts of a passage, by its number."""
        passage = self.passages[row]
        try:
            reply = await self.ask(requests.to_propose(passage, self.per_passage))
        except (RequestRefused, EmptyCompletion):
            return [Refused(REFUSED)]
        drafts = requests.read_drafts(reply, self.per_passage)
        found: list[Question | Refused] = []
        for number, draft in enumerate(drafts):
            flaw = flaw_of_draft(draft, passage)
            found.append(Refused(flaw) if flaw else question_of(draft, row, number, passage))
        return found or [Refused(NO_QUESTION)]

    async def flaw(self, question: Question) -> str | None:
        """Why the question is of no use, as far as the model tells; None if it is answered from its passages, from each
        of them, and by nobody who can't look it up."""
        try:
            if not is_right(await self._answer(question, question.passages), question):
                return NOT_ANSWERED
            if len(question.passages) > 1:
                for row in question.passages:
                    if contains_answer(await self._answer(question, [row]), question):
                        return ONE_IS_ENOUGH
            for attempt in range(self.tries):
                if contains_answer(await self.ask(requests.to_recall(question), attempt), question):
                    return KNOWN
        except (RequestRefused, EmptyCompletion):
            return REFUSED
        return None

    async def deepen(self, question: Question) -> Question | Refused:
        """The question with its name replaced by what another passage says of it."""
        why = NO_PASSAGE
        try:
            for row, passage in await self._naming(question):
                described = await self._described(question, row, passage)
                if isinstance(described, Question):
                    why = await self.flaw(described)
                    if why is None:
                        return described
                else:
                    why = described.why
        except (RequestRefused, EmptyCompletion):
            why = REFUSED
        return Refused(why)

    async def widen(self, one: Question, other: Question) -> Question | Refused:
        """Both questions in one."""
        try:
            text = requests.read_text(await self.ask(requests.to_merge(one, other)))
            merged = wider(one, other, text)
            if flaw := _flaw_of_reply(merged):
                return Refused(flaw)
            pair = requests.read_pair(await self.ask(requests.to_split(merged)))
            for part, asked in zip(pair or (), (one, other), strict=False):
                reply = await self.ask(requests.to_answer(part, [self.passages[row] for row in asked.passages]))
                if not is_right(reply, asked):
                    return Refused(NOT_SPLIT)
        except (RequestRefused, EmptyCompletion):
            return Refused(REFUSED)
        if pair is None:
            return Refused(NOT_SPLIT)
        flaw = await self.flaw(merged)
        return Refused(flaw) if flaw else merged

    async def _described(self, question: Question, row: int, passage: Passage) -> Question | Refused:
        said = requests.read_description(await self.ask(requests.to_describe(question.name, passage)))
        if said is None:
            return Refused(NO_DESCRIPTION)
        if flaw := flaw_of_description(said, question, passage):
            return Refused(flaw)
        name = requests.read_text(await self.ask(requests.to_identify(said, passage)))
        if folded(name) != folded(question.name):
            return Refused(NOT_UNIQUE)
        text = requests.read_text(await self.ask(requests.to_replace(question, said)))
        if occurs(question.name, text):
            return Refused(STILL_NAMED)
        if text and not occurs(said.name, text):
            return Refused(NOT_NAMED)
        made = deeper(question, said, text, row, passage)
        flaw = _flaw_of_reply(made)
        return Refused(flaw) if flaw else made

    async def _naming(self, question: Question) -> list[tuple[int, Passage]]:
        """Passages that the question does not rest on, in which its name occurs."""
        found = await self.find(question.name)
        naming = [one for one in found if one[0] not in question.passages and occurs(question.name, one[1].text)]
        return naming[:DESCRIBED]

    async def _answer(self, question: Question, rows: Sequence[int]) -> str:
        reply = await self.ask(requests.to_answer(question.text, [self.passages[row] for row in rows]))
        text = requests.read_text(reply)
        return "" if text == UNKNOWN else text


def _flaw_of_reply(question: Question) -> str | None:
    """What makes a question's text useless that the model wrote."""
    return flaw_of_text(question.text, parts_of(question.answers[0])) if question.text else NO_QUESTION
