"""Encodes untrusted text with any tokenizer, so that it contains no special token and spells no tag.

<answer>      a tag: escaped
<tool_call>   a mark (an added token): encoded as plain characters
<ANSWER>      a look-alike that a normalizer (lower case, NFKC, no accents) turns into a tag: normalized, then escaped
<s>           a mark that is also a piece of the tokenizer's own model: escaped
<0x41>        the name of a byte, a piece of some models: encoded in two parts
Vexon         an added token that is a word, no mark: encoded as the tokenizer does
"""

import re
from collections.abc import Collection, Iterator
from itertools import islice

from tokenizers import AddedToken, Tokenizer, decoders, models

from coa.agent.grammar import TAGS, escape, tag_pattern
from coa.unicode import whole

_SPACE = "\u2581"
"""The character for a space in SentencePiece's vocabularies."""
_NOBODYS = "\U0010fffd"
"""A character that no vocabulary has."""
_BYTE_NAME = re.compile(r"(?<=<)(?=0x[0-9A-F]{2}>)")
"""Within the name of a byte, `<0x41>`, which is encoded in two parts where it would become the byte."""
_WIDE = {number: number + 0xFEE0 for number in range(0x21, 0x7F)}
"""Maps ASCII to the full-width characters that NFKC turns back into ASCII."""


class Untrusted:
    """Encodes text with a tokenizer, which it owns and changes: marks become special tokens, and no text is encoded as
    special tokens unless the owner switches `encode_special_tokens` off."""

    def __init__(self, tokenizer: Tokenizer, written: Collection[int] = ()) -> None:
        """written: the tokens that the chat template writes."""
        added = tokenizer.get_added_tokens_decoder()
        self.marks = {
            token.content: number
            for number, token in added.items()
            if _is_mark(token, tokenizer, written=number in written)
        }
        """The added tokens that only the chat template and a chain's tags may use: neither runs of blanks nor words."""
        tokenizer.add_special_tokens([_special(token) for token in added.values() if token.content in self.marks])
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._heads = frozenset(("<", *(mark[0] for mark in self.marks)))
        """The characters with which marks and tags begin."""
        self._longest_first = sorted(self.marks, key=len, reverse=True)
        # A byte-level decoder returns exactly the normalized text, so decoding can be skipped.
        self._by_bytes = isinstance(tokenizer.decoder, decoders.ByteLevel)
        # A Unigram model knows the names of its bytes as pieces.
        self._names_bytes = isinstance(tokenizer.model, models.Unigram)
        # The token for unknown characters is not a mark.
        self._ids = frozenset(self.marks.values()) - frozenset(self._raw(_NOBODYS))

    def ids(self, text: str) -> list[int]:
        """The tokens of a text."""
        text = whole(text)  # tokenizers reject half a surrogate pair
        safe = escape(text)
        ids = self._raw(safe)
        if self._is_plain(safe, ids):
            return ids
        safe = self.escaped(text)
        ids = self._raw(safe)
        return ids if self._is_plain(safe, ids) else self._raw(self._beheaded(safe))

    def escaped(self, text: str) -> str:
        r"""Text that contains no tag or mark, before and after normalization: `<s>` becomes `<\s>`, and so does `<S>`
        if the normalizer makes it lower case."""
        text = whole(text)
        normal = self._normalise(text)
        if not any(head in text or head in normal for head in self._heads):
            return text
        safe = self._escaped(text)
        shown = self._normalise(safe)
        found = tag_pattern().search(shown) or any(mark in shown for mark in self._longest_first)
        return self._escaped(shown) if found else safe

    def objection(self) -> str:
        """Why text can't be kept apart from marks and tags with this tokenizer; "" if it can."""
        for text in self._probes():
            ids = self.ids(text)
            if not self._ids.isdisjoint(ids) or tag_pattern().search(self._decoded(ids)):
                return f"its tokenizer makes a mark or a tag of {text!r}, whatever is escaped"
        return ""

    def _probes(self) -> Iterator[str]:
        for tag in TAGS.values():
            for text in (tag.open, tag.close):
                yield from (text, text.upper(), text.translate(_WIDE), f"< {text[1:-1]} >")
        for text in islice(self.marks, 100):  # some vocabularies have thousands of similar marks
            yield from (text, text.translate(_WIDE))

    def _raw(self, text: str) -> list[int]:
        if self._names_bytes:
            return [number for part in _BYTE_NAME.split(text) for number in self._encoded(part)]
        return self._encoded(text)

    def _encoded(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _decoded(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def _is_plain(self, text: str, ids: list[int]) -> bool:
        if not self._ids.isdisjoint(ids):
            return False
        if not self._by_bytes:
            return tag_pattern().search(self._decoded(ids)) is None
        return tag_pattern().search(self._normalise(text)) is None

    def _normalise(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def _escaped(self, text: str) -> str:
        for mark in self._longest_first:
            if mark in text:
                text = text.replace(mark, f"{mark[0]}\\{mark[1:]}")
        return escape(text)

    def _beheaded(self, text: str) -> str:
        """The normalized text without the characters with which marks and tags begin."""
        return "".join(one for one in self._normalise(text) if one not in self._heads)

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._tokenizer.encode_special_tokens = True  # pickling a tokenizer loses this flag


def _is_mark(token: AddedToken, tokenizer: Tokenizer, *, written: bool) -> bool:
    """Whether an added token stands for more than its text. One that the vocabulary has as a word keeps its number
    there, so that the word itself is encoded as this token."""
    if not token.content.strip(f" \t\r\n{_SPACE}"):
        return False
    if token.special or tag_pattern().fullmatch(token.content):
        return True
    enclosed = _is_enclosed(token.content)
    is_word = tokenizer.model.token_to_id(token.content) is not None
    return (enclosed or not is_word) if written else (enclosed and not is_word)


def _is_enclosed(text: str) -> bool:
    """Whether a text looks like a mark: `<tool_call>`, `[INST]`, `|||IP_ADDRESS|||`."""
    return text[0] in "<[{|" and text[-1] in ">]}|" and any(map(str.isalnum, text))


def _special(token: AddedToken) -> AddedToken:
    return AddedToken(
        token.content,
        special=True,
        normalized=token.normalized,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        single_word=token.single_word,
    )
