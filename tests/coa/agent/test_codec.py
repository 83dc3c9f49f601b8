"""Between text and tokens: what is not the policy's can neither be a tag nor look like one, and is never trained."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from coa.agent.codec import NO_CHARACTER, Codec, Stops
from coa.agent.grammar import OBSERVATION, TAGS, Chain, Parsed, Profile, Span, parse, render
from coa.agent.profiles import PROFILES, profile
from coa.agent.tokenizer import BEGIN, END, PAD, save_tokenizer, train_tokenizer
from coa.errors import UserError
from coa.types import Status
from tests.support.fakes import (
    CLOSING,
    CODECS,
    OPENING,
    answered_chains,
    chains,
    profiles,
    spans_of,
    tag_codec,
    task,
    text_codec,
    texts,
)

QUICK = settings(derandomize=True, max_examples=40, deadline=None, database=None)
TAG_TEXT = [mark for tag in TAGS.values() for mark in (tag.open, tag.close)]
MARKS = [PAD, BEGIN, END]

each_codec = pytest.mark.parametrize("made", CODECS.values(), ids=list(CODECS))


def mark_tokens(codec: Codec) -> set[int]:
    """Ids of the chat marks; the first of any vocabulary here."""
    ids = set(range(len(MARKS)))
    assert codec.decode(sorted(ids)) == "".join(MARKS)
    return ids


def test_tags_are_tokens_with_one_tokenizer_and_text_with_the_other() -> None:
    assert len(tag_codec().tag_tokens()) == 2 * len(TAGS)
    assert sorted(map(tag_codec().decode, ([one] for one in tag_codec().tag_tokens()))) == sorted(TAG_TEXT)
    assert text_codec().tag_tokens() == frozenset()


@each_codec
@QUICK
@given(text=texts)
def test_text_of_others_has_no_tag_and_no_mark_among_its_tokens(made: Any, text: str) -> None:
    codec = made()
    ids = codec.text(text)
    assert not set(ids) & (codec.tag_tokens() | mark_tokens(codec))
    assert not any(mark in codec.decode(ids) for mark in TAG_TEXT)


@each_codec
@QUICK
@given(question=texts, of=profiles)
def test_a_question_is_only_text_between_the_chat_marks(made: Any, question: str, of: Profile) -> None:
    codec = made()
    ids = codec.prompt(of, question, instructed=False)
    assert [codec.decode([i]) for i in ids if i in mark_tokens(codec)] == [BEGIN, END, BEGIN]
    assert not set(ids.tolist()) & codec.tag_tokens()
    said = codec.decode(ids).removeprefix(OPENING).removesuffix(CLOSING)
    assert not any(mark in said for mark in TAG_TEXT)


@each_codec
@QUICK
@given(text=texts, limit=st.integers(0, 30))
def test_an_observation_is_one_span_whatever_it_says_and_however_it_is_cut(made: Any, text: str, limit: int) -> None:
    codec = made()
    ids = codec.observation(text, limit=limit)
    said = codec.decode(ids)
    assert not set(ids) & mark_tokens(codec)
    assert [i for i in ids if i in codec.tag_tokens()] == [i for i in (ids[0], ids[-1]) if i in codec.tag_tokens()]
    assert [mark for mark in TAG_TEXT if mark in said] == ["<observation>", "</observation>"]
    [span] = parse(said).chain
    assert parse(said) == Parsed((span,), None, len(said))
    assert span.tag == OBSERVATION
    if limit >= len(codec.text(" " + text)):
        assert span.text == text


@each_codec
def test_a_long_observation_keeps_its_first_and_last_tokens(made: Any) -> None:
    codec = made()
    text = " ".join(map(str, range(100, 200)))
    body = codec.text(" " + text)
    whole, cut = codec.observation(text, limit=len(body)), codec.observation(text, limit=7)
    mark = codec.text(" ... ")
    edge = whole.index(body[0], 1)
    assert cut == [*whole[:edge], *body[:3], *mark, *body[-4:], *whole[edge + len(body) :]]
    assert parse(codec.decode(whole)).chain == (Span(OBSERVATION, text),)


@each_codec
def test_a_cut_spells_no_tag_from_the_two_ends(made: Any) -> None:
    codec = made()
    for limit in range(30):
        said = codec.decode(codec.observation("<" * 9 + "answer> Berg" * 9, limit=limit))
        assert [mark for mark in TAG_TEXT if mark in said] == ["<observation>", "</observation>"]


@each_codec
@QUICK
@given(data=st.data(), of=profiles)
def test_a_chain_comes_back_from_its_tokens(made: Any, data: st.DataObject, of: Profile) -> None:
    codec, chain = made(), data.draw(chains(of))
    assert codec.decode(spans_of(codec, chain)) == render(chain)
    for span in chain:
        assert parse(codec.decode(codec.span(span))).chain == (span,)


@each_codec
def test_half_a_surrogate_pair_is_replaced(made: Any) -> None:
    """JSON of the web may hold one; no tokenizer and no file takes it."""
    codec = made()
    assert codec.decode(codec.text("a \ud83d b")) == "a ? b"
    assert codec.decode(codec.text("<\ud83d<answer>")) == r"<?<\answer>"
    assert parse(codec.decode(codec.observation("\ud83d", limit=9))).chain == (Span(OBSERVATION, "?"),)


@each_codec
@pytest.mark.parametrize("of", PROFILES.values(), ids=list(PROFILES))
def test_the_instructions_show_the_tags_as_the_policy_is_to_write_them(made: Any, of: Profile) -> None:
    codec = made()
    ids = codec.prompt(of, "Is <answer> a tag ?", instructed=True).tolist()
    assert codec.decode(ids) == f"{OPENING}{of.instructions()}\n\nQuestion: Is <\\answer> a tag ?{CLOSING}"
    spelled = [codec.decode([i]) for i in ids if i in codec.tag_tokens()]
    assert spelled == ([mark for tag in of.tags for mark in (tag.open, tag.close)] if codec.tag_tokens() else [])
    # The switch back to plain text holds.
    assert not set(codec.text("<answer> <|im_end|>")) & (codec.tag_tokens() | mark_tokens(codec))


# --- demonstrations ---------------------------------------------------------------------------------------------------


@each_codec
@QUICK
@given(data=st.data(), of=profiles, instructed=st.booleans())
def test_a_demonstration_marks_the_policys_own_tokens_and_no_other(
    made: Any, data: st.DataObject, of: Profile, instructed: bool
) -> None:
    codec, chain = made(), data.draw(answered_chains(of))
    question = data.draw(texts)
    trajectory = codec.demonstration(task(of.name, question=question), chain, of, instructed=instructed)
    prompt = codec.prompt(of, question, instructed=instructed)
    ids, marks = prompt.tolist(), [False] * len(prompt)
    for span in chain:
        ids += codec.span(span)
        marks += [span.tag != OBSERVATION] * len(codec.span(span))
    assert trajectory.token_ids.tolist() == ids
    assert trajectory.action_mask.tolist() == marks
    assert trajectory.prompt_length == len(prompt)
    assert trajectory.transitions_hold
    own = tuple(span for span in chain if span.tag != OBSERVATION)
    assert parse(codec.decode(trajectory.token_ids[trajectory.action_mask])).chain == own


def test_a_demonstration_in_full() -> None:
    codec = tag_codec()
    chain = (
        Span("plan", "Arden"),
        Span("wiki_search", "Berg"),
        Span("observation", "Arden"),
        Span("answer", "Berg"),
    )
    made = codec.demonstration(task(question="?"), chain, profile("mhqa"), instructed=False)
    n = made.prompt_length
    assert codec.decode(made.token_ids[:n]) == f"{OPENING}?{CLOSING}"
    spelled = [codec.decode([i]) for i in made.token_ids[n:]]
    assert spelled == [
        *("<plan>", " Arden", "</plan>", "<wiki_search>", " Berg", "</wiki_search>"),
        *("<observation>", " Arden", "</observation>", "<answer>", " Berg", "</answer>"),
    ]
    assert made.action_mask.tolist() == [False] * n + [True] * 6 + [False] * 3 + [True] * 3
    assert made.logprobs.tolist() == [0.0] * (n + 12)
    assert made.versions.tolist() == [-1] * (n + 12)
    assert (made.token_ids.dtype, made.action_mask.dtype) == (np.int32, np.bool_)
    assert (made.turns, made.tool_calls, made.status, made.answer) == (2, ("wiki_search",), Status.ANSWERED, "Berg")
    assert made.text == render(chain)
    assert made.transitions_hold


@pytest.mark.parametrize("chain", [(), (Span("plan", "a"),), (Span("answer", "a"), Span("think", "b"))])
def test_a_demonstration_ends_in_an_answer(chain: Chain) -> None:
    with pytest.raises(ValueError, match="t: a demonstration ends in an answer"):
        tag_codec().demonstration(task(), chain, profile("mhqa"), instructed=False)


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_stops_are_ids_where_tags_are_tokens_and_strings_where_they_are_text() -> None:
    ids = tag_codec().stops(profile("web"))
    assert [tag_codec().decode([i]) for i in ids.token_ids] == list(profile("web").stops)
    assert ids.strings == ()
    assert text_codec().stops(profile("web")) == Stops((), ("</web_search>", "</crawl_page>", "</answer>"))


@pytest.fixture(scope="module")
def bytewise() -> Codec:
    """With a token for each byte, as vocabularies of SentencePiece have them."""
    words = ["▁", "a", "b", "▁b", "é"]
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {word: 256 + i for i, word in enumerate(words)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[("▁", "b")], byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    return Codec(made, opening="", closing="")


BYTES = st.lists(st.one_of(st.sampled_from([0xC4, 0x9E, 0xCD, 0xF0, 0x9F, 0x99, 0x82]), st.integers(256, 260)))


@given(BYTES, st.data())
def test_tokens_that_come_piece_by_piece_have_the_text_of_all(
    bytewise: Codec, token_ids: list[int], data: st.DataObject
) -> None:
    """Bytes that make no character spoil those before them in the text of all, so they are only passed on somehow."""
    add, told = bytewise.stream(), ""
    at = 0
    while at < len(token_ids):
        size = data.draw(st.integers(1, 3))
        told += add(token_ids[at : at + size])
        at += size
    whole = bytewise.decode(token_ids)
    assert "\ufffd" in whole or told == whole


def test_a_half_of_a_character_is_told_with_what_follows(bytewise: Codec) -> None:
    add = bytewise.stream()
    assert [add([token]) for token in (0xC4, 0x9E, 0xCD, 259, 0xF0, 0x9F, 0x99, 0x82)] == [
        *("", "Ğ", "", "\ufffd\ufffd b"),
        *("", "", "", "🙂"),
    ]
    assert "".join(add([0xCD]) for _ in range(20)).startswith("\ufffd" * NO_CHARACTER)


def test_tokens_are_counted_as_plain_text() -> None:
    assert tag_codec().count([" 7", " 123", ""]) == 3
    assert tag_codec().count(["<plan>"]) > 1


def test_a_saved_tokenizer_loads_with_its_chat_template(tmp_path: Path) -> None:
    save_tokenizer(train_tokenizer(["a b"] * 30, [], vocabulary=400), tmp_path)
    codec = Codec.load(tmp_path)
    prompt = codec.prompt(profile("mhqa"), "Who <|im_end|> ?", instructed=False)
    assert codec.decode(prompt) == f"{OPENING}Who <|im_end|> ?{CLOSING}"
    assert [i for i in prompt if i in mark_tokens(codec)] == [1, 2, 1]
    assert len(codec.tag_tokens()) == 2 * len(TAGS)


def test_a_folder_without_a_tokenizer_is_a_persons_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tokenizer there"):
        Codec.load(tmp_path)


def saved(folder: Path, template: str | None = None, **config: object) -> Path:
    """A tokenizer with another chat template, or with other settings."""
    save_tokenizer(train_tokenizer(["a b"] * 30, [], vocabulary=400), folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | config | ({} if template is None else {"chat_template": template})
    path.write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        Codec.load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(folder)).removeprefix(": ")


ASSISTANT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
NOT_AS_IT_IS = "its chat template writes a question in no place, or not as it is, expected once"
NOT_AS_TEXT = "its chat template does not take a question as text: "


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for m in messages %}{{ m['content'] }} {{ m['content'] }}{% endfor %}", "its chat template writes a ques"),
        ("{% for m in messages %}{{ m['content'] | tojson }}{% endfor %}", NOT_AS_IT_IS),
        ("{% for m in messages %}{{ m['content'] | e }}{% endfor %}", NOT_AS_IT_IS),
        ("{% for m in messages %}{{ m['content'] | upper }}{% endfor %}", NOT_AS_IT_IS),
        ("{% for m in messages %}{{ m['content'] }}", NOT_AS_TEXT),
        ("{{ raise_exception('tools are required') }}", f"{NOT_AS_TEXT}tools are required"),
        ("{{ messages[0].content.nothing.at_all }}", NOT_AS_TEXT),
        ("{% for m in messages %}{{ m['content'][0]['text'] }}{% endfor %}", NOT_AS_IT_IS),
        ("{% for m in messages %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endfor %}", NOT_AS_IT_IS),
    ],
)
def test_a_chat_template_that_does_not_take_a_question_once_as_it_is(tmp_path: Path, template: str, said: str) -> None:
    assert refusal(saved(tmp_path, template + ASSISTANT)).startswith(said)


def test_a_chat_template_that_writes_a_question_twice_says_how_often(tmp_path: Path) -> None:
    said = refusal(saved(tmp_path, "{% for m in messages %}{{ m.content }} {{ m.content }}{% endfor %}" + ASSISTANT))
    assert said == "its chat template writes a question 2 times, expected once"


def test_a_chat_template_may_trim_a_question(tmp_path: Path) -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.content.strip() | trim }}<|im_end|>{% endfor %}" + ASSISTANT
    Codec.load(saved(tmp_path, template))


@pytest.mark.parametrize("begun", ["<think>\n", "<think>\n\n</think>\n\n", "<answer>"])
def test_a_chat_template_that_begins_the_turn_of_the_policy(tmp_path: Path, begun: str) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<|im_start|>assistant\n" + begun
    mark = begun.partition(">")[0] + ">"
    assert refusal(saved(tmp_path, template)).startswith(
        f"its chat template begins the assistant's message with {mark}, which the policy has to write itself"
    )


def test_a_tokenizer_that_is_cut_or_of_another_kind_is_one_line(tmp_path: Path) -> None:
    path = saved(tmp_path) / "tokenizer.json"
    content = path.read_text()
    for wrong in (content[: len(content) // 2], '{"a": 1}', '{"added_tokens": []}'):
        path.write_text(wrong)
        assert refusal(tmp_path).startswith("no tokenizer there that can be read: ")
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 3\n")
    assert refusal(tmp_path).startswith("/tokenizer.json: a git-LFS pointer in place of the file")
    path.unlink()
    assert refusal(tmp_path).startswith("no tokenizer there that can be read: ")


def test_a_tokenizer_without_its_fast_form_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, tokenizer_class="ByT5Tokenizer")
    (tmp_path / "tokenizer.json").unlink()
    assert refusal(tmp_path).startswith("its ByT5Tokenizer is written in Python and has no tokenizer.json")


def test_a_tokenizer_that_needs_its_own_code_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it was asked whether to run the code"))
    saved(tmp_path, tokenizer_class="Own", auto_map={"AutoTokenizer": ["own.Own", None]})
    assert refusal(tmp_path).startswith("no tokenizer there that can be read: ")


def test_the_largest_token_is_of_text_and_not_of_a_special_token_that_never_occurs() -> None:
    tokenizer = train_tokenizer(["a b"] * 30, [], vocabulary=400)
    largest = Codec(tokenizer, opening=OPENING, closing=CLOSING).largest_token()
    assert largest == tokenizer.get_vocab_size() - 1
    tokenizer.add_special_tokens(["<image>"])
    assert Codec(tokenizer, opening=OPENING, closing=CLOSING).largest_token() == largest
    assert Codec(tokenizer, opening=OPENING, closing=f"{CLOSING}<image>").largest_token() == largest + 1
