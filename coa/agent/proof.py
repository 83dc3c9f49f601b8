"""Whether a tokenizer says what it is given: texts come back from their tokens, prompts are the chat template's, and
engines see where a turn stops.

Some tokenizers lose blanks, lines, capitals or letters that they do not know. What a model was trained on would then be
another text than what was brought. Equal is what Unicode calls canonically equivalent (NFC), which several normalisers
make of a text, and SentencePiece's own character for a blank, U+2581, may come back as a blank.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from coa.agent.chat_template import ChatTemplate
from coa.agent.grammar import THINK, Profile, Span, parse
from coa.agent.profiles import profile
from coa.types import Tokens

_PLANES = (*range(0xA1, 0x800, 0x40), *range(0x800, 0xD800, 0x800), *range(0xF900, 0x10000, 0x200), 0x1F300, 0x20000)
TEXTS = (
    "",
    " Who ? ",
    "  \n\nlines at both ends\n \n",
    "\tif a < b:\r\n\t\treturn f'{c}\\n'\n\n\n    # 1 > 0\n",
    f"runs{' ' * 3}of{' ' * 17}blanks{chr(10) * 5}and lines",
    "It 's not , he said . do n't ! ( a ) [ b ] # c",
    "1234567890 3.14159 1,000 1e-9 0x1F",
    "CAPITALS and Ünïcödé, naïve façade, Straße, İı",
    "<0x41> <0x0A> \\x41 &lt; %20",
    "x² ½ ﬁ Ⅳ \uff41 ™ …",
    "日本語の文。 中文句子\uff01 한국어 ภาษาไทย हिन्दी עברית العربية ελληνικά русский հայերեն ქართული አማርኛ",
    "👩🏽‍🚀 🇩🇪 ❤️ 🙂🙂 \U0001d518\U0001d52b\U0001d526 \U0010fffd",
    "\x00\x01\x1b\x7f\x85\u00ad\u200b\u2028\u3000\ufeff\ufffd",
    "".join(map(chr, range(0x20, 0x7F))),
    "".join(map(chr, range(0x400, 0x440))),
    *("".join(chr(code) for code in range(start, start + 8)) for start in _PLANES),
)
"""Texts as they come: blanks and lines at both ends, code, numbers, scripts, emoji, control characters, and every byte
that UTF-8 has."""
QUESTIONS = (
    "Who ?",
    "7 + 35 = ?",
    "Wo liegt Zürich ?",
    "东京在哪里\uff1f",
    "(a) or [b] ?",
    "def f(x):\n    return 2 * x\n\nWhat is f(3) ?",
    "🙂 ?",
)
_PROFILE = profile("mhqa")
_ALL = profile("multi")
WORDS = 64
"""Maximum number of a tokenizer's added words that are tried, each within a text."""
_SHOWN = 12
"""Characters that are shown on both sides of a difference."""


class Coder(Protocol):
    """The part of a model's codec that is checked."""

    def span(self, span: Span) -> list[int]: ...
    def prompt(self, profile: Profile, question: str, *, instructed: bool) -> Tokens: ...
    def decode(self, token_ids: Sequence[int] | Tokens) -> str: ...
    def decode_stepwise(self, prompt: Tokens, token_ids: Sequence[int]) -> str: ...
    def has_mark(self, text: str) -> bool: ...
    def words(self) -> Iterable[str]: ...


def cases() -> Iterator[tuple[str, bool]]:
    """(question, instructed) of the prompts that are compared."""
    yield from ((question, False) for question in QUESTIONS)
    yield QUESTIONS[0], True


def own_prompts(template: ChatTemplate) -> list[list[int]]:
    """The template's own tokens of each case. The tokenizer has to be as it came."""
    return [template.ids((_PROFILE.preface() if instructed else "") + question) for question, instructed in cases()]


def flaw_of(codec: Coder, prompts: Sequence[list[int]]) -> str:
    """Describes a text or prompt that a tokenizer changes, or an end that it does not recognize; "" for none. prompts:
    those of `own_prompts`."""
    return _changed_text(codec) or _changed_prompt(codec, prompts) or _missed_stop(codec)


def says_the_same(one: Coder, other: Coder) -> bool:
    """Whether two codecs have the same tokens for the texts and prompts that are looked at."""
    spans = (Span(THINK, text) for text in TEXTS)
    return all(one.span(span) == other.span(span) for span in spans) and _prompts(one) == _prompts(other)


def _prompts(codec: Coder) -> list[list[int]]:
    return [codec.prompt(_PROFILE, question, instructed=instructed).tolist() for question, instructed in cases()]


def _changed_text(codec: Coder) -> str:
    words = (f"a {word}  b{word}.\n{word}" for word in islice(codec.words(), WORDS))
    for text in (*TEXTS, *words):
        if codec.has_mark(text):
            continue  # marks in a text are escaped
        written = codec.decode(codec.span(Span(THINK, text)))
        chain = parse(written).chain
        shown = chain[0].text if len(chain) == 1 else written
        if len(chain) != 1 or _canonical(shown) != _canonical(text):
            given, found = _difference(text, shown)
            return f"its tokenizer writes {given!r} as {found!r}"
    return ""


def _changed_prompt(codec: Coder, prompts: Sequence[list[int]]) -> str:
    for one, other in zip(_prompts(codec), prompts, strict=True):
        ours, theirs = codec.decode(one), codec.decode(other)
        if ours != theirs:
            own, found = _difference(theirs, ours)
            return f"its chat template's prompt has {own!r}, which is {found!r} when it is encoded piece by piece"
    return ""


def _missed_stop(codec: Coder) -> str:
    prompt = codec.prompt(_ALL, QUESTIONS[0], instructed=False)
    for mark in _ALL.stops:
        if not (told := codec.decode_stepwise(prompt, codec.span(Span(mark[2:-1], "Who ?")))).endswith(mark):
            return f"an engine reads {told!r} where a turn has to stop at {mark}"
    return ""


def _canonical(text: str) -> str:
    return unicodedata.normalize("NFC", text).replace("\u2581", " ")


def _difference(expected: str, found: str) -> tuple[str, str]:
    """The parts of two texts in which they differ, with a few characters around."""
    pairs = enumerate(zip(expected, found, strict=False))
    at = next((index for index, (one, other) in pairs if one != other), min(len(expected), len(found)))
    begin = max(0, at - _SHOWN)
    return expected[begin : at + _SHOWN], found[begin : at + _SHOWN]
