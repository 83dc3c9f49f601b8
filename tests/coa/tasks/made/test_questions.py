"""Questions made of passages: what is wrong with one is found without a model where that is possible, and how replies
are read."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coa.tasks.made import questions
from coa.tasks.made.questions import (
    Description,
    Draft,
    Evidence,
    Kind,
    Question,
    contains_answer,
    deeper,
    flaw_of_description,
    flaw_of_draft,
    flaw_of_text,
    is_right,
    occurs,
    question_of,
    wider,
)
from coa.tasks.made.requests import read_description, read_drafts, read_pair, read_text, values_in
from coa.tools.layouts import Passage
from coa.types import Task

MILL = Passage("Arden mill", "The Arden mill was built by Nora  Lind in 1871. It ground barley.")
DRAFT = Draft(
    question="Who built the Arden mill ?",
    answer="Nora Lind",
    name="Arden mill",
    quote="The Arden mill was built by Nora Lind in 1871.",
)
LIND = Passage("Lind family", "The carpenter Nora Lind was born in Brook. Brook honours Nora Lind.")
ASKED = question_of(DRAFT, 3, 0, MILL)
SAID = Description(
    text="the mill that Nora Berg owned", name="Nora Berg", quote="Nora Berg owned the Arden mill until 1900."
)
BERG = Passage("Berg", "Nora Berg owned the Arden mill until 1900.")


@pytest.mark.parametrize(
    ("words", "text", "found"),
    [
        ("Nora  lind", "By Nora Lind.", True),
        ("art", "a party", False),
        ("art", "a party of art", True),
        ("C++", "in C++ .", True),
        ("1.5", "it is 11.5", False),
        ("東京", "彼は東京都に住む", True),
        ("", "anything", False),
        (" ", "anything at all", False),
    ],
)
def test_words_occur_as_whole_words(words: str, text: str, found: bool) -> None:
    assert occurs(words, text) is found


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({}, None),
        ({"quote": "the arden MILL was built by nora lind in 1871."}, None),
        ({"quote": "The Arden mill was built in 1871."}, questions.NOT_QUOTED),
        ({"quote": " "}, questions.NOT_QUOTED),
        ({"quote": "It ground barley."}, questions.NOT_IN_EVIDENCE),
        ({"answer": "Nora Lin"}, questions.NOT_IN_EVIDENCE),
        ({"name": "Brook mill"}, questions.NOT_NAMED),
        ({"question": "Who was Nora Lind of the Arden mill ?"}, questions.GIVEN_AWAY),
        ({"question": "Who built the Arden mill of this passage ?"}, questions.POINTS),
        ({"question": "According to the text, who built the Arden mill ?"}, questions.POINTS),
        ({"question": "Who built the Arden mill mentioned above ?"}, questions.POINTS),
        ({"question": f"Who built the Arden mill {'x' * 600} ?"}, questions.TOO_LONG),
    ],
)
def test_a_drafts_flaw_is_found_without_a_model(changes: dict[str, str], flaw: str | None) -> None:
    assert flaw_of_draft(replace(DRAFT, **changes), MILL) == flaw


def test_a_long_answer_is_no_answer() -> None:
    text = " ".join(["word"] * 30)
    draft = Draft(question="What does it say ?", answer=text, name="it", quote=text)
    assert flaw_of_draft(draft, Passage("it", text)) == questions.TOO_LONG


@pytest.mark.parametrize(
    "question",
    [
        "Which article of the document object model did Lind write ?",
        "Who wrote the text of the anthem ?",
        "Who is the author of Brook ?",
    ],
)
def test_texts_that_a_question_is_about_are_no_pointers(question: str) -> None:
    assert flaw_of_text(question, ("Berg",)) is None


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({}, None),
        ({"quote": "Nora Berg sold the Arden mill."}, questions.NOT_QUOTED),
        ({"text": "the Arden mill that Nora Berg owned"}, questions.STILL_NAMED),
        ({"text": "the mill that somebody owned"}, questions.NOT_NAMED),
        ({"text": "what Nora Lind built for Nora Berg"}, questions.GIVEN_AWAY),
        ({"text": f"the mill that Nora Berg {'x' * 240}"}, questions.TOO_LONG),
    ],
)
def test_a_descriptions_flaw_is_found_without_a_model(changes: dict[str, str], flaw: str | None) -> None:
    assert flaw_of_description(replace(SAID, **changes), ASKED, BERG) == flaw


def test_a_description_whose_evidence_does_not_have_the_name_is_none() -> None:
    berg = Passage("Berg", "Nora Berg owned a mill.")
    assert flaw_of_description(replace(SAID, quote=berg.text), ASKED, berg) == questions.NOT_IN_EVIDENCE


def test_questions_keep_their_evidence_and_have_ids_of_their_own() -> None:
    further = deeper(ASKED, SAID, " Who built the mill that Nora Berg owned ? ", 5, BERG)
    assert (
        Question(
            id="made-3-0",
            text="Who built the Arden mill ?",
            answers=("Nora Lind",),
            name="Arden mill",
            evidence=(Evidence(passage=3, title="Arden mill", quote=DRAFT.quote),),
        )
        == ASKED
    )
    assert (further.id, further.text, further.name) == (
        "made-3-0.2",
        "Who built the mill that Nora Berg owned ?",
        "Nora Berg",
    )
    assert (further.passages, further.kind, further.answers) == ((3, 5), Kind.DEEPER, ("Nora Lind",))
    other = replace(ASKED, id="made-4-1", answers=("1900",))
    merged = wider(further, other, "Who ... and when ?")
    assert (merged.id, merged.answers) == ("made-3-0.2+made-4-1", ("Nora Lind | 1900",))
    assert (merged.passages, merged.kind) == ((3, 5, 3), Kind.WIDER)
    assert merged.task("mhqa") == Task(
        id="made-3-0.2+made-4-1",
        question="Who ... and when ?",
        answers=("Nora Lind | 1900",),
        profile="mhqa",
        family="wider",
        grader="exact",
    )


def test_an_answer_alone_is_compared_as_the_grader_does_and_any_reply_that_has_it_contains_it() -> None:
    merged = wider(ASKED, replace(ASKED, id="b", answers=("1900",)), "...")
    assert is_right("nora lind.", ASKED)
    assert not is_right("It was Nora Lind", ASKED)
    assert contains_answer("It was Nora Lind, I think", ASKED)
    assert is_right("1900 | Nora Lind", merged)
    assert contains_answer("Nora Lind, in 1900", merged)
    assert not contains_answer("Nora Lind", merged)


def row(**changes: object) -> dict[str, object]:
    return {"question": "Q ?", "answer": "A", "name": "N", "quote": "N A", **changes}


@pytest.mark.parametrize(
    ("reply", "answers"),
    [
        (json.dumps([row(), row(answer=7)]), ["A", "7"]),
        (f"<think> [1] </think>Here:\n```json\n{json.dumps([row()])}\n```", ["A"]),
        (json.dumps({"questions": [row()]}), ["A"]),
        (json.dumps(row()), ["A"]),
        (
            json.dumps([row(), "text", row(answer=" "), {"question": "Q"}, row(answer=None), row(answer="B")]),
            ["A", "B"],
        ),
        (json.dumps([row(answer=str(n)) for n in range(9)]), ["0", "1", "2"]),
        ("[]", []),
        ("no", []),
        ("[{", []),
    ],
)
def test_drafts_are_read_from_whatever_stands_around_them(reply: str, answers: list[str]) -> None:
    assert [draft.answer for draft in read_drafts(reply, 3)] == answers


def test_other_replies_are_read_leniently_too() -> None:
    said = {"description": "the mill", "other": "Berg", "quote": "Berg's mill"}
    assert read_description(f"Sure: {json.dumps(said)}") == Description(
        text="the mill", name="Berg", quote="Berg's mill"
    )
    assert read_description("{}") is None
    assert read_description("[1]") is None
    assert read_pair('1. ["a ?", "b ?"]') == ("a ?", "b ?")
    assert read_pair('["a ?"]') is None
    assert read_pair('["a ?", " "]') is None
    assert read_text('<think>\nhm\n</think> "Who ?" ') == "Who ?"
    assert read_text("Who ?\nBecause") == ""


@given(st.text(st.sampled_from('[]{}",:a1 \n\\'), max_size=60))
def test_any_reply_can_be_read(reply: str) -> None:
    list(values_in(reply))
    read_drafts(reply, 3)
    read_description(reply)
    read_pair(reply)
    assert "\n" not in read_text(reply)
