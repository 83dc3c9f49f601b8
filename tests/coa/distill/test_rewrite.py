"""Reflections and double checks in other words: what may replace a text, and what may not."""

import asyncio
from collections.abc import Sequence

import pytest

from coa.agent.grammar import Chain, Span
from coa.distill import Kept
from coa.distill.rewrite import (
    CUT_OFF,
    DONE,
    EMPTY,
    MAX_CHARS,
    OTHER_SCORE,
    REFUSED,
    TAGS_INSIDE,
    TOO_LONG,
    rewrite,
    rewritten,
    shown_to_writer,
)
from coa.errors import ContextTooLong, EmptyCompletion, EndpointDown, ReplyCutOff, RequestRefused
from coa.llm.ask import Message
from coa.teams.transcript import Ending, Transcript
from coa.types import Task

CHAIN: Chain = (
    Span("plan", "p"),
    Span("web_search", "q"),
    Span("observation", "owned by Lind, 2019"),
    Span("reflection", "old"),
    Span("suggested_answer", "Lind"),
    Span("double_check", "2 old"),
    Span("web_search", "q 2025"),
    Span("observation", "owned by Berg, 2025"),
    Span("reflection", "new"),
    Span("suggested_answer", "Berg"),
    Span("double_check", "4 fine"),
    Span("answer", "Berg"),
)
TASK = Task(id="q", question="Who owns Vexon Labs ?", answers=("Berg",), profile="web", family="web")
KEPT = Kept(
    transcript=Transcript(task=TASK, attempt=0, seed=0, steps=(), ending=Ending.ANSWERED), chain=CHAIN, copies=2
)
REFLECTION, CHECK = CHAIN[3], CHAIN[5]


async def echo(messages: Sequence[Message]) -> str:
    """The step's text, and what it was shown to be about."""
    shown = messages[1]["content"]
    about, step = (part.split("\n")[1] for part in shown.split("\n\n")[1:])
    return f"{step}: {about}"


def test_texts_are_rewritten_in_view_of_what_they_are_about_and_nothing_else_changes():
    (kept,), counts = asyncio.run(rewrite([KEPT], echo))
    changed = {
        3: "old: owned by Lind, 2019",
        5: "2 old: Lind",
        8: "new: owned by Berg, 2025",
        10: "4 fine: Berg",
    }
    assert kept.chain == tuple(Span(span.tag, changed.get(at, span.text)) for at, span in enumerate(CHAIN))
    assert (kept.transcript, kept.copies) == (KEPT.transcript, 2)
    assert counts == {DONE: 4}


@pytest.mark.parametrize(
    ("span", "reply", "outcome"),
    [
        (REFLECTION, "", EMPTY),
        (REFLECTION, " \n", EMPTY),
        (REFLECTION, "<think>Hm .</think>", EMPTY),
        (CHECK, "2", EMPTY),
        (CHECK, "2  ", EMPTY),
        (REFLECTION, "x" * (MAX_CHARS + 1), TOO_LONG),
        (REFLECTION, "so <answer> Berg</answer>", TAGS_INSIDE),
        (REFLECTION, "so </reflection>", TAGS_INSIDE),
        (REFLECTION, "so <think>", TAGS_INSIDE),
        (CHECK, "3 old", OTHER_SCORE),
        (CHECK, "It is old", OTHER_SCORE),
        (CHECK, "20 years old", OTHER_SCORE),
    ],
)
def test_a_reply_that_breaks_a_rule_leaves_the_original(span: Span, reply: str, outcome: str):
    assert rewritten(span, reply) == (span, outcome)


@pytest.mark.parametrize(
    ("span", "reply", "text"),
    [
        (REFLECTION, "x" * MAX_CHARS, "x" * MAX_CHARS),
        (REFLECTION, "<think>Hm .</think>\n It is of 2019 ", "It is of 2019"),
        (REFLECTION, "2 < 3 and <b>", "2 < 3 and <b>"),
        (CHECK, "2 The page is of 2019", "2 The page is of 2019"),
        (CHECK, "2: of 2019", "2: of 2019"),
    ],
)
def test_a_reply_that_keeps_to_the_rules_takes_the_originals_place(span: Span, reply: str, text: str):
    assert rewritten(span, reply) == (Span(span.tag, text), DONE)


def test_originals_that_stay_are_counted_by_their_reason():
    async def terse(messages: Sequence[Message]) -> str:
        return "4 because it is so" if "begin with the same score" in messages[0]["content"] else ""

    (kept,), counts = asyncio.run(rewrite([KEPT], terse))
    assert counts == {EMPTY: 2, OTHER_SCORE: 1, DONE: 1}
    assert [span.text for span in kept.chain if span.tag == "double_check"] == ["2 old", "4 because it is so"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RequestRefused("400"), REFUSED),
        (ContextTooLong("400"), REFUSED),
        (ReplyCutOff("length"), CUT_OFF),
        (EmptyCompletion("no text"), EMPTY),
    ],
)
def test_a_text_that_the_model_will_not_rewrite_stays_and_the_others_do_not(error: Exception, outcome: str):
    async def picky(messages: Sequence[Message]) -> str:
        if "2019" in messages[1]["content"]:
            raise error
        return await echo(messages)

    (kept,), counts = asyncio.run(rewrite([KEPT], picky))
    assert counts == {DONE: 3, outcome: 1}
    assert [kept.chain[3], kept.chain[8]] == [CHAIN[3], Span("reflection", "new: owned by Berg, 2025")]


def test_a_model_that_nobody_reaches_is_no_reason_to_keep_originals():
    async def down(messages: Sequence[Message]) -> str:
        raise EndpointDown("refused")

    with pytest.raises(EndpointDown):
        asyncio.run(rewrite([KEPT], down))


def test_the_writer_is_told_the_question_the_score_and_the_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("coa.distill.rewrite.CONTEXT_CHARS", 3)
    system, user = shown_to_writer(TASK.question, CHAIN, 5)
    assert "at most 800 characters" in system["content"]
    assert "begin with the same score, 2," in system["content"]
    assert user["content"] == (
        "<question>\nWho owns Vexon Labs ?\n</question>\n\n"
        "<candidate>\nLin [cut]\n</candidate>\n\n<step>\n2 old\n</step>"
    )
    monkeypatch.undo()
    system, user = shown_to_writer(TASK.question, CHAIN[2:], 1)
    assert "score" not in system["content"]
    assert "<observation>\nowned by Lind, 2019\n</observation>" in user["content"]
