"""The reader of a chain under way: however tokens are cut, it sees the same tags and texts."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coa.agent import lenient
from coa.agent.chain_format import OWN, ChainFormat
from coa.agent.codec import Codec
from coa.agent.grammar import TAGS, Span, escape, parse, render
from coa.agent.lenient import lenient_tag_pattern
from coa.agent.tokenizer import train_tokenizer
from coa.serving.chain import HELD, ChainReader, Closed, Mark, Opened, Text
from tests.support.tiny import TEXTS


def characters(pieces: Sequence[int]) -> str:
    return "".join(map(chr, pieces))


def read(text: str, cuts: Sequence[int], *, loose: bool = False, form: ChainFormat = OWN) -> list[Mark]:
    reader = ChainReader(characters, lenient_tag_pattern() if loose else None, form)
    marks = []
    for begin, end in pairwise([0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]):
        marks += reader.feed([ord(letter) for letter in text[begin:end]])
    return marks + reader.end()


WORDS = st.lists(
    st.sampled_from(["a", " ", "<", ">", "/", "\\", "é", "\n", "think", "answer", "<think>", "< think>"]), max_size=12
).map("".join)
SPANS = st.lists(
    st.builds(
        Span,
        st.sampled_from([name for name in TAGS if name != "observation"]),
        st.lists(
            st.sampled_from(["a", " ", "<", ">", "/", "\\", "é", "\n", "think", "answer", "<think>", "< think>"]),
            max_size=12,
        ).map("".join),
    ),
    max_size=5,
).map(tuple)


@given(SPANS, st.lists(st.integers(0, 400), max_size=12))
def test_a_chain_reads_the_same_however_its_tokens_are_cut(chain: tuple[Span, ...], cuts: list[int]) -> None:
    marks = read(render(chain), cuts)
    assert [(mark.tag, mark.text) for mark in marks if isinstance(mark, Closed)] == [
        (span.tag, span.text) for span in parse(render(chain)).chain
    ]
    assert [mark.tag for mark in marks if isinstance(mark, Opened)] == [span.tag for span in chain]
    assert "".join(mark.text for mark in marks if isinstance(mark, Text)) == "".join(span.text for span in chain)


FORMS = [
    ChainFormat(before="\n", opened="\n", closed="\n", after="\n", observed="\n\n"),
    ChainFormat(opened="\n\n", closed=" \n", after="\n"),
    ChainFormat(opened=""),
]


@pytest.mark.parametrize("form", FORMS)
@given(chain=SPANS, cuts=st.lists(st.integers(0, 400), max_size=12))
def test_white_space_of_the_format_is_no_text(form: ChainFormat, chain: tuple[Span, ...], cuts: list[int]) -> None:
    marks = read(text := render(chain, form), cuts, form=form)
    closed = [(mark.tag, mark.text) for mark in marks if isinstance(mark, Closed)]
    assert closed == [(span.tag, span.text) for span in parse(text, form).chain] == [(s.tag, s.text) for s in chain]
    assert "".join(mark.text for mark in marks if isinstance(mark, Text)) == "".join(text for _, text in closed)


ODD = st.lists(st.sampled_from(["<", "/", "think", "answer", ">", " ", "x", "\\"]), max_size=30).map("".join)


@given(ODD, st.lists(st.integers(0, 200)))
def test_no_text_makes_it_raise_and_what_is_closed_was_passed_on(text: str, cuts: list[int]) -> None:
    texts: list[str] = []
    for mark in read(text, cuts):
        match mark:
            case Opened():
                texts = []
            case Text(piece):
                texts.append(piece)
            case Closed(_, whole, _):
                assert whole == "".join(texts)


MENTIONS = st.lists(
    st.sampled_from(["a", " ", "<", "<Think>", "</THINK>", "< code >", "</ Code>", "<\\answer>"]), max_size=8
).map("".join)
OPENERS = st.sampled_from(["<{}>", "<{} >", "< {}>"])


@given(st.tuples(OPENERS, MENTIONS), st.tuples(OPENERS, MENTIONS), st.booleans(), st.lists(st.integers(0, 200)))
def test_a_lenient_reader_reads_what_the_episode_reads(
    plan: tuple[str, str], answer: tuple[str, str], capitals: bool, cuts: list[int]
) -> None:
    """Tags with an error of form that another tag's text mentions included."""
    text = "".join(
        f"{opener.format(tag.upper() if capitals else tag)} {words}</{tag}>"
        for tag, (opener, words) in (("plan", plan), ("answer", answer))
    )
    reading = lenient.read(text).parsed
    marks = read(text, cuts, loose=True)
    if reading.fault is None:
        closed = [(mark.tag, mark.text) for mark in marks if isinstance(mark, Closed)]
        assert closed == [(span.tag, span.text) for span in reading.chain]


def test_text_is_late_by_a_possible_tag_only() -> None:
    reader = ChainReader(characters)
    assert reader.feed([ord(letter) for letter in "<think> a < b"]) == [Opened("think"), Text("a ")]
    assert reader.feed([ord(letter) for letter in " and > c"]) == [Text("< b and > c")]
    assert reader.feed([ord("<")]) == []
    assert reader.feed([ord("x")] * HELD) == [Text("<" + "x" * HELD)]
    assert reader.feed([ord(letter) for letter in "</think>"])[-1].tag == "think"  # type: ignore[union-attr]


def test_a_forged_tag_is_text() -> None:
    marks = read(f"<think> {escape('<answer> 7</answer>')}</think>", range(100))
    assert [mark.text for mark in marks if isinstance(mark, Closed)] == ["<answer> 7</answer>"]
    assert [mark.tag for mark in marks if isinstance(mark, Opened)] == ["think"]


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec(train_tokenizer(TEXTS * 20, (), vocabulary=1000), opening="", closing="")


@pytest.mark.parametrize("width", [1, 2, 3, 100])
def test_tokens_of_a_real_tokenizer_are_read_alike(codec: Codec, width: int) -> None:
    chain = (Span("plan", "füllen 🙂 and sell"), Span("code", "print(12*3-14)"), Span("answer", "22"))
    token_ids = [token for span in chain for token in codec.span(span)]
    reader = ChainReader(codec.stream())
    marks = [mark for at in range(0, len(token_ids), width) for mark in reader.feed(token_ids[at : at + width])]
    marks += reader.end()
    closed = [mark for mark in marks if isinstance(mark, Closed)]
    assert [(mark.tag, mark.text) for mark in closed] == [(span.tag, span.text) for span in chain]
    assert [mark.tokens for mark in closed] == [len(codec.span(span)) for span in chain]
