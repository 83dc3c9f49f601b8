"""Questions are made by requests whose replies are all checked: what is asked, in which order, and what is dropped."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from coa.errors import EmptyCompletion, EndpointDown, RequestRefused
from coa.llm.ask import Message
from coa.tasks.made import maker as made
from coa.tasks.made import questions
from coa.tasks.made.maker import Maker, Refused
from coa.tasks.made.questions import Evidence, Kind, Question
from coa.tools.layouts import Passage

PASSAGES = (
    Passage("Arden mill", "The Arden mill was built by Nora Lind."),
    Passage("Berg", "Nora Berg owned the Arden mill until 1900."),
    Passage("Brook", "The mayor of Brook is Jo Ueda. The Arden mill stands there."),
)
LIND = Question(
    id="made-0-0",
    text="Who built the Arden mill ?",
    answers=("Nora Lind",),
    name="Arden mill",
    evidence=(Evidence(passage=0, title="Arden mill", quote=PASSAGES[0].text),),
)
UEDA = Question(
    id="made-2-0",
    text="Who is the mayor of Brook ?",
    answers=("Jo Ueda",),
    name="Brook",
    evidence=(Evidence(passage=2, title="Brook", quote="The mayor of Brook is Jo Ueda."),),
)
DESCRIBED = json.dumps(
    {"description": "the mill that Nora Berg owned", "other": "Nora Berg", "quote": PASSAGES[1].text}
)
DEEPER = "Who built the mill that Nora Berg owned ?"
MERGED = "Who built the Arden mill, and who is the mayor of Brook ?"
SPLIT = json.dumps([LIND.text, UEDA.text])
Reply = str | Exception


class Scripted:
    """A model that gives these replies, one after the other."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies)
        self.asked: list[tuple[str, int | None]] = []

    async def __call__(self, messages: Sequence[Message], attempt: int | None = None) -> str:
        self.asked.append((messages[-1]["content"], attempt))
        match self._replies.pop(0):
            case str(text):
                return text
            case error:
                raise error

    @property
    def left(self) -> int:
        return len(self._replies)


def maker(*replies: Reply, tries: int = 2, finds: int = 2) -> tuple[Maker, Scripted]:
    """finds: number of the passages that a search finds."""
    model = Scripted(*replies)

    async def find(query: str) -> Sequence[tuple[int, Passage]]:
        return list(enumerate(PASSAGES))[:finds]

    return Maker(ask=model, find=find, passages=PASSAGES, per_passage=2, tries=tries), model


def test_each_draft_of_a_passage_becomes_a_question_or_says_why_not() -> None:
    good = {"question": LIND.text, "answer": "Nora Lind", "name": "Arden mill", "quote": PASSAGES[0].text}
    bad = {**good, "quote": "It was built by Nora Lind."}
    one, model = maker(json.dumps([good, bad, good]))
    assert asyncio.run(one.propose(0)) == [LIND, Refused(questions.NOT_QUOTED)]
    assert model.asked == [("<passage>\nArden mill\nThe Arden mill was built by Nora Lind.\n</passage>", None)]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("[]", made.NO_QUESTION),
        ("I can't.", made.NO_QUESTION),
        (RequestRefused("no"), made.REFUSED),
        (EmptyCompletion("none"), made.REFUSED),
    ],
)
def test_a_passage_without_drafts_says_why(reply: Reply, why: str) -> None:
    assert asyncio.run(maker(reply)[0].propose(0)) == [Refused(why)]


@pytest.mark.parametrize(
    ("replies", "why"),
    [
        (("Nora Lind", "UNKNOWN", "Jo Berg"), None),
        (("Jo Berg",), made.NOT_ANSWERED),
        (("UNKNOWN",), made.NOT_ANSWERED),
        (("Nora Lind", "UNKNOWN", "It was Nora Lind"), made.KNOWN),
        (("Nora Lind", "nora lind"), made.KNOWN),
        ((RequestRefused("no"),), made.REFUSED),
        (("Nora Lind", EmptyCompletion("none")), made.REFUSED),
    ],
)
def test_a_question_is_answered_from_its_passage_and_not_from_memory(
    replies: tuple[Reply, ...], why: str | None
) -> None:
    one, model = maker(*replies)
    assert asyncio.run(one.flaw(LIND)) == why
    assert not model.left


def test_a_model_that_can_not_answer_has_not_said_that_something_is_unknown() -> None:
    one, _ = maker("UNKNOWN")
    assert asyncio.run(one.flaw(replace(LIND, answers=("unknown",)))) == made.NOT_ANSWERED


def test_the_model_alone_gets_no_passage_and_another_draw_at_each_try() -> None:
    one, model = maker("Nora Lind", "?", "?", "?", tries=3)
    asyncio.run(one.flaw(LIND))
    shown = "<passages>\nArden mill\nThe Arden mill was built by Nora Lind.\n</passages>\n\n"
    alone = f"<question>\n{LIND.text}\n</question>"
    assert model.asked == [(f"{shown}{alone}", None), (alone, 0), (alone, 1), (alone, 2)]


def test_a_name_is_replaced_by_what_another_passage_says_of_it() -> None:
    answers = ("Nora Lind", "UNKNOWN", "UNKNOWN", "?", "?")
    one, model = maker(DESCRIBED, "Arden mill", DEEPER, *answers)
    found = asyncio.run(one.deepen(LIND))
    assert isinstance(found, Question)
    assert (found.id, found.text, found.name, found.kind) == ("made-0-0.2", DEEPER, "Nora Berg", Kind.DEEPER)
    assert found.passages == (0, 1)
    together, first, second = (asked for asked, _ in model.asked[3:6])
    assert PASSAGES[0].text in together
    assert PASSAGES[1].text in together
    assert PASSAGES[1].text not in first
    assert PASSAGES[0].text not in second


@pytest.mark.parametrize(
    ("replies", "why"),
    [
        (("{}",), made.NO_DESCRIPTION),
        ((DESCRIBED.replace("until 1900", "for long"),), questions.NOT_QUOTED),
        ((DESCRIBED, "UNKNOWN"), made.NOT_UNIQUE),
        ((DESCRIBED, "mill"), made.NOT_UNIQUE),
        ((DESCRIBED, "Arden mill", "Who built the Arden mill that Nora Berg owned ?"), questions.STILL_NAMED),
        ((DESCRIBED, "Arden mill", "Who built that mill ?"), questions.NOT_NAMED),
        ((DESCRIBED, "Arden mill", "Who ?\nSo."), made.NO_QUESTION),
        ((DESCRIBED, "Arden mill", "Did Nora Lind build what Nora Berg owned ?"), questions.GIVEN_AWAY),
        ((DESCRIBED, "Arden mill", DEEPER, "UNKNOWN"), made.NOT_ANSWERED),
        ((DESCRIBED, "Arden mill", DEEPER, "Nora Lind", "Nora Lind"), made.ONE_IS_ENOUGH),
        ((DESCRIBED, "Arden mill", DEEPER, "Nora Lind", "UNKNOWN", "Lind, Nora Lind"), made.ONE_IS_ENOUGH),
        ((DESCRIBED, "Arden mill", DEEPER, "Nora Lind", "UNKNOWN", "UNKNOWN", "Nora Lind"), made.KNOWN),
        ((RequestRefused("no"),), made.REFUSED),
    ],
)
def test_a_question_that_does_not_get_deeper_says_why(replies: tuple[Reply, ...], why: str) -> None:
    one, model = maker(*replies)
    assert asyncio.run(one.deepen(LIND)) == Refused(why)
    assert not model.left


def test_another_passage_is_tried_where_the_first_says_too_little() -> None:
    stands = PASSAGES[2].text.rpartition(". ")[2]
    described = json.dumps({"description": "the mill in Brook", "other": "Brook", "quote": stands})
    answers = ("Nora Lind", "UNKNOWN", "UNKNOWN", "?", "?")
    one, model = maker("{}", described, "Arden mill", "Who built the mill in Brook ?", *answers, finds=3)
    found = asyncio.run(one.deepen(LIND))
    assert isinstance(found, Question)
    assert (found.passages, found.name) == ((0, 2), "Brook")
    assert not model.left


def test_a_name_that_no_other_passage_has_stays() -> None:
    one, model = maker()
    assert asyncio.run(one.deepen(replace(LIND, name="Nobody"))) == Refused(made.NO_PASSAGE)
    assert asyncio.run(one.deepen(replace(LIND, name="Nora Lind"))) == Refused(made.NO_PASSAGE)
    assert not model.asked


def test_two_questions_become_one_that_splits_into_them_again() -> None:
    one, model = maker(MERGED, SPLIT, "Nora Lind", "Jo Ueda", "Nora Lind | Jo Ueda", "Nora Lind", "Jo Ueda", "?", "?")
    found = asyncio.run(one.widen(LIND, UEDA))
    assert isinstance(found, Question)
    assert (found.id, found.text, found.kind, found.passages) == ("made-0-0+made-2-0", MERGED, Kind.WIDER, (0, 2))
    assert not model.left


@pytest.mark.parametrize(
    ("replies", "why"),
    [
        (("",), made.NO_QUESTION),
        (("Is Jo Ueda the mayor of Brook, and who built the Arden mill ?",), questions.GIVEN_AWAY),
        ((MERGED, "no"), made.NOT_SPLIT),
        ((MERGED, SPLIT, "Jo Ueda"), made.NOT_SPLIT),
        ((MERGED, SPLIT, "Nora Lind", "Nora Lind"), made.NOT_SPLIT),
        ((MERGED, SPLIT, "Nora Lind", "Jo Ueda", "Nora Lind"), made.NOT_ANSWERED),
        ((MERGED, SPLIT, "Nora Lind", "Jo Ueda", "Nora Lind | Jo Ueda", "Nora Lind, Jo Ueda"), made.ONE_IS_ENOUGH),
        ((MERGED, EmptyCompletion("none")), made.REFUSED),
    ],
)
def test_questions_that_do_not_merge_say_why(replies: tuple[Reply, ...], why: str) -> None:
    one, model = maker(*replies)
    assert asyncio.run(one.widen(LIND, UEDA)) == Refused(why)
    assert not model.left


@pytest.mark.parametrize("step", ["propose", "flaw", "deepen", "widen"])
def test_an_endpoint_that_is_down_is_no_fault_of_a_question(step: str) -> None:
    one, _ = maker(EndpointDown("away"))
    work = {
        "propose": lambda: one.propose(0),
        "flaw": lambda: one.flaw(LIND),
        "deepen": lambda: one.deepen(LIND),
        "widen": lambda: one.widen(LIND, UEDA),
    }[step]
    with pytest.raises(EndpointDown):
        asyncio.run(work())
