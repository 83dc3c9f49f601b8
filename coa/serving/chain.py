"""Reads a chain while it is being sampled: the open tag, and its text as far as it is certain.

tokens of a turn ──► ChainReader.feed ──► Opened(tag), Text(piece), Closed(tag), ...

Text is held back only if it may turn out to be a tag or an escaped tag, or white space of the format before one, so a
reader sees it at most a few characters late. The concatenated text of a tag does not depend on how the tokens are split
into pieces.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from coa.agent.chain_format import OWN, ChainFormat
from coa.agent.grammar import tag_pattern, unescape
from coa.types import Tokens

HELD = 48
"""Maximum characters after a "<" for which text is held back: tags, and escaped tags in practice, are shorter."""


@dataclass(frozen=True, slots=True)
class Opened:
    tag: str


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the open tag's text. Text outside of tags is left out: only white space is well-formed there."""

    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    tag: str
    text: str
    """The tag's whole text."""
    tokens: int
    """Number of tokens that the model sampled for the tag, including its marks."""


Mark = Opened | Text | Closed


class ChainReader:
    """Reads the tokens of one turn. It never raises: malformed text is passed on unchanged, and the episode's status
    tells what is wrong with it."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], tag: re.Pattern[str] | None = None, form: ChainFormat = OWN
    ) -> None:
        """decode: returns the text that further tokens add, special tokens included (`Codec.stream`). tag: the pattern
        of tags, as for `coa.agent.grammar.parse_with`; by default that of well-formed tags. The lenient pattern also
        matches tags that an episode would repair, except inside of another tag, where they are text."""
        self._decode, self._tag, self._form = decode, tag or tag_pattern(), form
        self._rest = ""
        """Decoded text that may still become a tag."""
        self._tokens = 0
        """Number of tokens since the last tag was closed."""
        self.latest = ""
        """The tag that was closed last."""
        self._open: str | None = None
        self._text: list[str] = []
        self._lead = ""
        """White space of the format that may still come before the open tag's text, and is no part of it."""

    def feed(self, token_ids: Tokens | Sequence[int]) -> list[Mark]:
        marks: list[Mark] = []
        for token in token_ids:
            self._tokens += 1
            self._rest += self._decode([int(token)])
            for mark in self._scan(whole=False):
                if isinstance(mark, Text) and marks and isinstance(last := marks[-1], Text):
                    marks[-1] = Text(last.text + mark.text)
                else:
                    marks.append(mark)
        return marks

    def end(self) -> list[Mark]:
        """Ends the turn: returns the marks of the text that was held back."""
        return list(self._scan(whole=True))

    def _scan(self, *, whole: bool) -> Iterator[Mark]:
        while found := next(filter(self._counts, self._tag.finditer(self._rest)), None):
            before, self._rest = self._rest[: found.start()], self._rest[found.end() :]
            yield from self._pass_on(before.removesuffix(self._form.closed))
            yield from self._meet(found[2].lower(), closing=bool(found[1]))
        keep = 0 if whole else self._held()
        text, self._rest = self._rest[: len(self._rest) - keep], self._rest[len(self._rest) - keep :]
        yield from self._pass_on(text)

    def _held(self) -> int:
        """Number of characters at the end of the text that may belong to a tag, or to the white space before it."""
        tag = partial_tag_length(self._rest)
        text, closed = self._rest[: len(self._rest) - tag], self._form.closed
        return tag + max(size for size in range(len(closed) + 1) if text.endswith(closed[:size]))

    def _counts(self, found: re.Match[str]) -> bool:
        """Whether the match is a tag: inside of another tag, a malformed tag is text, as an episode reads it."""
        closes = bool(found[1]) and found[2].lower() == self._open
        return self._open is None or closes or tag_pattern().fullmatch(found[0]) is not None

    def _meet(self, tag: str, *, closing: bool) -> Iterator[Mark]:
        if self._open is not None:
            yield Closed(self._open, "".join(self._text), self._tokens)
            self.latest, self._open, self._tokens = self._open, None, 0
        if not closing:
            self._open, self._text, self._lead = tag, [], self._form.opened
            yield Opened(tag)

    def _pass_on(self, text: str) -> Iterator[Mark]:
        if self._open is None or not text:
            return
        while self._lead and text:
            matches = text[0] == self._lead[0]
            text, self._lead = (text[1:], self._lead[1:]) if matches else (text, "")
        if text := unescape(text):
            self._text.append(text)
            yield Text(text)


def partial_tag_length(text: str) -> int:
    """Number of characters at the end of a text that may be the beginning of a tag, or of an escaped tag."""
    at = text.rfind("<", max(0, len(text) - HELD))
    return 0 if at < 0 or ">" in text[at:] else len(text) - at
