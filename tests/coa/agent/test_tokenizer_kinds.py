"""With any kind of tokenizer and any chat template, what is trained and sampled is what was brought, or one line says
why the model can't be used."""

import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from coa.agent.codec import Codec, read_tokenizer
from coa.agent.grammar import Span, render_span, tag_pattern
from coa.agent.profiles import profile
from coa.errors import UserError
from tests.support.tokenizer_kinds import KINDS, LAYOUTS, SPECIAL, WORDS, metaspace, prepending, with_words, write

LOST = "its tokenizer writes "
REFUSED_KINDS = {
    "unigram, NFKC": f"{LOST}'x² ½ ﬁ Ⅳ \uff41 ™ ' as 'x2 1\u20442 fi IV '",
    "bytes, NFKC": f"{LOST}'x² ½ ﬁ Ⅳ \uff41 ™ ' as 'x2 1\u20442 fi IV '",
    "bytes, lower case": f"{LOST}' Who ? ' as ' who ? '",
    "bytes, lossy": f"{LOST}' Who ? ' as 'Who?'",
    "unigram without bytes": f"{LOST}'  \\n\\nlines at b' as '  <unk>lines a'",
    "words": f"{LOST}",
}
REFUSED_LAYOUTS = {
    "begins a thought": "its chat template begins the assistant's message with <think>, which the policy has to write ",
    "header unfinished": "its chat template writes '<|end|><|start|>assistant<|channel|>final<|message|>' between a ",
    "parts": "its chat template writes a question in no place, or not as it is, expected once",
    "twice": "its chat template writes a question 2 times, expected once",
    "raises": "its chat template does not take a question as text: tools are needed",
    "broken": "its chat template does not take a question as text: Unexpected end of template",
}
PREFIXED = {"bytes, prefix", *(kind for kind in KINDS if kind.startswith(("metaspace", "prepend", "unigram")))} - {
    "metaspace never"
}
"""Kinds that set a blank before a text. With others, a question behind a blank of the prompt is a piece of its own: the
same text in other tokens."""
BLANK_BEFORE = ("instruction", "names")
QUESTIONS = ("Who owns Vexon Labs ?", "Where is Łódź ?", "is 3 < 4 (the) ?", "한국어 🙂", "print(1)\n\n  # two")
TEXTS = (
    *("", " ", "\n", "  two  ", "\n\n\tx\r\n", "if a < b:\n        c\n    d", "</p> (the) Vexon,Vexon  Berg"),
    *("\uff37² ﬀ", "שלום, 世界", "🏳️‍🌈 a🙂b", "\x00\x1b[0m", "a" + " " * 40 + "b", "<0x41> <0x0A>", "it 's . \\n"),
)


@cache
def tokenizer(kind: str) -> str:
    return KINDS[kind]().to_str()


def folder(path: Path, kind: str, layout: str) -> Path:
    return write(Tokenizer.from_str(tokenizer(kind)), path / "m", LAYOUTS[layout])


def own_prompt(theirs: Any, question: str) -> list[int]:
    message = {"role": "user", "content": question}
    return theirs.apply_chat_template([message], add_generation_prompt=True, tokenize=True, return_dict=False)


def same(one: str, other: str) -> bool:
    return unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", other)


def check(path: Path, kind: str, layout: str) -> None:
    """Everything is as it was brought, or the expected line says what is wrong."""
    model = folder(path, kind, layout)
    if expected := REFUSED_LAYOUTS.get(layout) or REFUSED_KINDS.get(kind):
        with pytest.raises(UserError) as caught:
            Codec.load(model)
        said = str(caught.value).removeprefix(f"{model}: ")
        assert said.startswith(expected), said
        assert "\n" not in said
        return
    codec, theirs = Codec.load(model), read_tokenizer(model)
    asked = profile("mhqa")
    for text in TEXTS:
        assert same(codec.decode(codec.span(Span("plan", text))), render_span(Span("plan", text))), text
    for instructed in (False, True):
        for question in QUESTIONS:
            own = own_prompt(theirs, (asked.preface() if instructed else "") + question)
            ours = codec.prompt(asked, question, instructed=instructed).tolist()
            assert codec.decode(ours) == codec.decode(own), question
            if kind in PREFIXED or not (instructed or layout in BLANK_BEFORE):
                assert ours == own, question
    for text in (*SPECIAL[1:], "<answer>", "</think> <s>"):
        ids = codec.text(f"a {text} b")
        assert not {theirs.backend_tokenizer.token_to_id(mark) for mark in SPECIAL[1:]} & set(ids), text
        assert tag_pattern().search(codec.decode(ids)) is None


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_trained_and_sampled_is_what_was_brought_whatever_the_template(tmp_path: Path, kind: str) -> None:
    for layout in LAYOUTS:
        check(tmp_path / layout, kind, layout)


# --- blanks that a tokenizer sets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["metaspace always", "metaspace first", "prepend", "bytes, prefix"])
def test_only_a_text_that_has_a_blank_is_encoded_with_one(kind: str) -> None:
    codec = Codec(KINDS[kind](), opening="<s>[INST] ", closing=" [/INST]")
    spelled = [codec.decode([one]) for one in codec.span(Span("answer", "Berg"))]
    assert "".join(spelled) == "<answer> Berg</answer>"
    assert spelled[0] == "<"
    assert codec.decode(codec.observation("", limit=9)) == "<observation> </observation>"
    said = codec.decode(codec.prompt(profile("direct"), "Who ?", instructed=False))
    assert said == ("<s>[INST] Who ? [/INST]" if kind == "metaspace first" else "<s> [INST] Who ? [/INST]")


def test_a_text_that_comes_piece_by_piece_keeps_its_first_blank() -> None:
    codec = Codec(prepending(), opening="", closing="")
    add = codec.stream()
    assert [add([one]) for one in codec.text(" Who ?")] == [" Who", " ", "?"]


def test_a_question_with_a_blank_in_front_has_the_templates_tokens_too(tmp_path: Path) -> None:
    for kind in ("metaspace always", "prepend"):
        for layout in ("instruction", "marks alone", "lines and ends"):
            model = folder(tmp_path / f"{kind} {layout}", kind, layout)
            ours = Codec.load(model).prompt(profile("direct"), "  Who ?", instructed=False)
            assert ours.tolist() == own_prompt(read_tokenizer(model), "  Who ?")


# --- added words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bytes, words added", "metaspace, words added"])
def test_an_added_word_is_no_mark_and_stays_its_token(kind: str) -> None:
    codec, plain = Codec(KINDS[kind](), opening="", closing=""), KINDS[kind]()
    for word in WORDS:
        assert codec.decode(codec.text(f"x {word} y")) == f"x {word} y"
        assert plain.token_to_id(word) in codec.text(f"x {word} y")
    assert not codec.has_mark("if a < b: </p> (the) Vexon")


def test_a_word_that_the_template_writes_is_no_mark_and_its_marks_are() -> None:
    made = with_words(metaspace("always"))
    made.add_tokens([AddedToken("<turn>", normalized=False), AddedToken("Human:", normalized=False)])
    codec = Codec(made, opening="<turn>Human: 1 < 2 ", closing="")
    texts = ("Vexon", "<", "<turn>", "Human:")
    assert [codec.has_mark(text) for text in texts] == [False, False, True, True]


def test_a_word_that_takes_blanks_away_is_refused(tmp_path: Path) -> None:
    made = KINDS["bytes"]()
    made.add_tokens([AddedToken("Vexon", rstrip=True)])
    with pytest.raises(UserError, match="its tokenizer writes 'a Vexon  bVexon") as caught:
        Codec.load(write(made, tmp_path, LAYOUTS["chat marks"]))
    assert str(caught.value).endswith("as 'a VexonbVexon.\\nVexo'")


# --- templates --------------------------------------------------------------------------------------------------------


def test_of_several_templates_the_default_one_is_taken(tmp_path: Path) -> None:
    model = write(KINDS["bytes"](), tmp_path, LAYOUTS["chat marks"])
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "rag.jinja").write_text("{{ 1 }}")
    codec = Codec.load(model)
    prompt = codec.prompt(profile("direct"), "Who ?", instructed=False)
    assert codec.decode(prompt) == "<|im_start|>user\nWho ?<|im_end|>\n<|im_start|>assistant\n"
    (model / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match=r": its tokenizer has chat templates named rag, and none named default$"):
        Codec.load(model)


def test_a_template_whose_header_comes_with_the_answer_alone_is_refused(tmp_path: Path) -> None:
    template = LAYOUTS["chat marks"].partition("{% if add_generation_prompt")[0]
    with pytest.raises(UserError) as caught:
        Codec.load(write(KINDS["bytes"](), tmp_path, template))
    assert str(caught.value).removeprefix(f"{tmp_path}: ") == (
        "its chat template writes '<|im_end|>\\n<|im_start|>assistant\\n' between a question and an answer, and "
        "'<|im_end|>\\n' where an answer is to begin: the second has to end with the whole header of the assistant's "
        "message, and no more"
    )
