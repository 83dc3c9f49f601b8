"""With any kind of tokenizer, untrusted text holds no tag and no mark, whatever the tokenizer makes of look-alikes."""

import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from coa.agent.codec import Codec
from coa.agent.grammar import TAGS, tag_pattern
from coa.agent.tokenizer import END, save_tokenizer
from coa.errors import UserError

TAG_MARKS = [mark for tag in TAGS.values() for mark in (tag.open, tag.close)]
SPECIAL = ["<|im_start|>", END, "<s>", "</s>", "[INST]"]
PLAIN = [AddedToken("<tool_call>", normalized=True), AddedToken("<|fim|>", normalized=False), AddedToken("  ")]
LETTERS = [chr(code) for code in range(32, 127)]


def bytes_with(normalizer: normalizers.Normalizer | None, *, tags: bool) -> Tokenizer:
    """Byte-level BPE, as of GPT-2, Qwen and Llama 3. tags: whether they are added tokens, not special."""
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(["the answer is a plan", "<plan> code"] * 9, trainer)
    tokenizer.add_tokens([*PLAIN, *(AddedToken(mark, normalized=True) for mark in TAG_MARKS if tags)])
    return tokenizer


def pieces(*, byte_fallback: bool) -> Tokenizer:
    """Unigram with SentencePiece's blanks and NFKC, as of T5; its model knows the marks, and bytes, as pieces."""
    known = ["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256) if byte_fallback), "\u2581answer", "plan"]
    vocabulary = [*((text, -2.0) for text in known), *((letter, -9.0) for letter in ("\u2581", *LETTERS[1:]))]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=byte_fallback))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        if byte_fallback
        else [decoders.Metaspace()]
    )
    tokenizer.add_special_tokens(["<unk>", *SPECIAL])
    tokenizer.add_tokens(PLAIN)
    return tokenizer


def llama() -> Tokenizer:
    """BPE over characters with a normaliser that sets a blank before, as of Llama 2."""
    known = ["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *LETTERS[1:]]
    model = models.BPE({text: n for n, text in enumerate(known)}, [], unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", *SPECIAL])
    tokenizer.add_tokens(PLAIN)
    return tokenizer


def words(*, tags: bool) -> Tokenizer:
    """WordPiece without capitals and accents, as of BERT. Without tags as added tokens it can't write one."""
    known = ["[UNK]", *SPECIAL, *LETTERS[1:], *(f"##{letter}" for letter in LETTERS[1:])]
    tokenizer = Tokenizer(models.WordPiece({text: n for n, text in enumerate(known)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[UNK]", *SPECIAL])
    tokenizer.add_tokens([*PLAIN, *(AddedToken(mark, normalized=True) for mark in TAG_MARKS if tags)])
    return tokenizer


def whole_words() -> Tokenizer:
    """A list of words, in which marks and tags are words like others."""
    known = ["[UNK]", *SPECIAL, *TAG_MARKS, "the", "answer"]
    tokenizer = Tokenizer(models.WordLevel({text: n for n, text in enumerate(known)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["[UNK]", *SPECIAL])
    tokenizer.add_tokens([*PLAIN, *TAG_MARKS])
    return tokenizer


FOLDING = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Replace("\u200b", ""), normalizers.Lowercase()]
KINDS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: bytes_with(None, tags=False),
    "bytes, NFC": lambda: bytes_with(normalizers.NFC(), tags=True),
    "bytes, NFKC": lambda: bytes_with(normalizers.NFKC(), tags=False),
    "bytes, folded": lambda: bytes_with(normalizers.Sequence(FOLDING), tags=True),
    "pieces": lambda: pieces(byte_fallback=False),
    "pieces and bytes": lambda: pieces(byte_fallback=True),
    "llama": llama,
    "words": lambda: words(tags=True),
    "whole words": whole_words,
}


@cache
def codec(kind: str) -> Codec:
    return Codec(KINDS[kind](), opening="", closing="")


@cache
def marks(kind: str) -> frozenset[int]:
    added = KINDS[kind]().get_added_tokens_decoder().items()
    return frozenset(
        number for number, token in added if token.content.strip() and token.content[1:-1].lower() != "unk"
    )


def wide(text: str) -> str:
    return text.translate({number: number + 0xFEE0 for number in range(0x21, 0x7F)})


SPELLED = [*TAG_MARKS[:4], "<answer>", "</answer>", "</observation>", *SPECIAL, "<tool_call>", "<|fim|>"]
LOOK_ALIKES = [
    alike
    for text in SPELLED
    for alike in (
        text,
        wide(text),
        text.upper(),
        text.replace("a", "a\u0301"),
        f"{text[0]}\u200b{text[1:]}",
        f"< {text[1:]}",
    )
]
PIECES = [
    *"<>\\/ a\u2581",
    wide("<"),
    wide(">"),
    "\ufe64",
    "<0x3C>",
    "answer>",
    "im_end|>",
    "\u00c1",
    "\u200b",
    "\u65e5",
]
texts = st.lists(st.one_of(st.sampled_from(LOOK_ALIKES), st.sampled_from(PIECES), st.text(max_size=3)), max_size=6).map(
    "".join
)


@pytest.mark.parametrize("kind", KINDS)
@settings(derandomize=True, max_examples=30, deadline=None, database=None)
@given(text=texts)
def test_untrusted_text_holds_no_tag_and_no_mark(kind: str, text: str) -> None:
    ids = codec(kind).text(text)
    assert not marks(kind) & set(ids)
    assert tag_pattern().search(codec(kind).decode(ids)) is None


@pytest.mark.parametrize("kind", KINDS)
def test_each_look_alike_stays_text(kind: str) -> None:
    for text in LOOK_ALIKES:
        ids = codec(kind).text(f"a {text} b")
        assert not marks(kind) & set(ids), text
        assert tag_pattern().search(codec(kind).decode(ids)) is None, text


def test_a_mark_that_is_not_special_is_encoded_as_plain_characters() -> None:
    ids = codec("bytes").text("a <tool_call>  b")
    assert codec("bytes").decode(ids) == "a <tool_call>  b"
    assert KINDS["bytes"]().token_to_id("  ") in ids


def test_what_a_normaliser_makes_a_tag_of_is_escaped() -> None:
    nfkc = codec("bytes, NFKC")
    assert nfkc.decode(nfkc.text(f"1 < 2, {wide('<answer>')}")) == "1 < 2, <\\answer>"
    assert nfkc.decode(nfkc.text("1 < 2, <\\answer>")) == "1 < 2, <\\\\answer>"


def test_a_codec_keeps_text_apart_in_another_process_too() -> None:
    other = pickle.loads(pickle.dumps(codec("bytes")))
    assert other.text(f"a {END} <tool_call>") == codec("bytes").text(f"a {END} <tool_call>")


def test_a_tokenizer_that_cannot_write_a_tag_is_refused(tmp_path: Path) -> None:
    save_tokenizer(words(tags=False), tmp_path)
    with pytest.raises(UserError, match="its tokenizer writes the tag <think> as '< think >'"):
        Codec.load(tmp_path)
