"""Tasks that stand in an evaluation set, and tasks that only resemble one."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.distill.contamination import COMMON, EXACT, NGRAM, OWN_EXACT, OWN_NGRAM, REASONS, Contamination

LONG = "In which year did the town of Arden by the long river elect its very first mayor ?"  # 17 words
SHORT = "Who was the first mayor of Arden by the river ?"  # 10 words
TINY = "Who is it ?"
KNOWN = Contamination.of([LONG, SHORT, TINY])


@pytest.mark.parametrize(
    "question", [LONG, "in which  year did town of arden by long river elect its very first mayor"]
)
def test_a_question_of_the_evaluation_is_found_however_it_is_written(question: str):
    assert KNOWN.reason(question) == EXACT


def grams_apart(first: int, last: int) -> str:
    """Words first to last of LONG, in other surroundings."""
    return f"Say this: {' '.join(LONG.split()[first:last])} and nothing more"


def test_thirteen_words_in_a_row_give_it_away_and_twelve_do_not():
    assert KNOWN.reason(grams_apart(2, 15)) == NGRAM
    assert KNOWN.reason(grams_apart(2, 14)) is None
    assert Contamination.of([LONG], 12).reason(grams_apart(2, 14)) == NGRAM


def test_a_short_question_counts_as_a_whole():
    assert KNOWN.reason(f"Please answer: {SHORT} Be brief .") == NGRAM
    assert KNOWN.reason("Who was the first mayor of Arden by the lake ?") is None


def test_a_question_of_a_few_words_is_not_looked_for_in_others():
    assert KNOWN.reason("Who is it that rules Arden ?") is None
    assert KNOWN.reason("who is it") == EXACT
    eight, seven = "a1 a2 a3 a4 a5 a6 a7 a8", "b1 b2 b3 b4 b5 b6 b7"
    known = Contamination.of([eight, seven])
    assert [known.reason(f"x {question} y") for question in (eight, seven)] == [NGRAM, None]


def test_questions_as_long_as_each_other_share_their_one_gram_only_if_they_are_equal():
    """An article is a word of the gram, and none of the normal form."""
    assert Contamination.of(["Who rules the Arden"]).reason("who rules Arden") == EXACT
    assert Contamination.of(["x-1 of Arden"], 13).reason("x 1 of Arden") == NGRAM


def test_a_set_phrase_of_many_questions_gives_nothing_away():
    phrase = "can be written as a fraction where p and q are relatively prime positive integers find p plus q"
    many = [f"The odds of case {n} {phrase}" for n in range(COMMON + 1)]
    assert Contamination.of(many).reason(f"A chance that {phrase}") is None
    assert Contamination.of(many[:COMMON]).reason(f"A chance that {phrase}") == NGRAM
    assert Contamination.of(many[:1] * 50).reason(f"A chance that {phrase}") == NGRAM
    assert Contamination.of(many).reason(many[3]) == EXACT


def test_without_an_evaluation_everything_is_clean():
    assert Contamination.of([]).reason(LONG) is None
    assert Contamination.of([LONG]).reason("") is None
    assert Contamination.of([""]).reason("Who ?") is None


def test_an_n_gram_without_a_word_is_refused():
    with pytest.raises(ValueError, match="0 words"):
        Contamination.of([LONG], 0)


@settings(deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 4), st.integers(1, 14))
def test_n_grams_are_found_as_a_search_through_all_texts_finds_them(seed: int, count: int, n: int):
    """A reference: windows of words, compared one by one."""
    draw = Random(seed)
    known = [draw.choices("bcd", k=draw.randrange(20)) for _ in range(count)]
    asked = draw.choices("bcd", k=draw.randrange(20))
    if known and draw.random() < 0.5:
        asked[draw.randrange(len(asked) + 1) :] = known[0][draw.randrange(3) :]

    def shares(question: list[str]) -> bool:
        size = min(n, len(question))
        if size == 0 or (size < min(8, n) and size != len(asked)):
            return False
        windows = {tuple(question[at : at + size]) for at in range(len(question) - size + 1)}
        return any(tuple(asked[at : at + size]) in windows for at in range(len(asked) - size + 1))

    reason = Contamination.of((" ".join(question) for question in known), n).reason(" ".join(asked))
    if reason != EXACT:
        assert (reason == NGRAM) == any(map(shares, known))


def test_tasks_that_the_run_holds_out_itself_are_told_from_those_of_named_sets() -> None:
    both = Contamination.of([SHORT], own=Contamination.of([SHORT, LONG]))
    assert [both.reason(one) for one in (SHORT, LONG, f"Say: {LONG}")] == [EXACT, OWN_EXACT, OWN_NGRAM]
    assert both.reason("Who else ?") is None
    assert {EXACT, NGRAM, OWN_EXACT, OWN_NGRAM} == set(REASONS)
    assert OWN_EXACT == "in the held-out part of its own tasks: exact"
