"""Tokenizers that set a blank before each text that they encode, as SentencePiece does: `Who` becomes `▁Who`.

A prompt and a chain are encoded piece by piece, and each piece would get a blank of its own. So pieces are encoded
without it, and only a prompt has it, where the chat template's own tokens have it:

    template   <s>[INST] Who [/INST]     its tokens   <s> ▁[ INST ] ▁Who ▁[ / INST ]
    chain      <answer> Berg</answer>    its tokens   < answer > ▁Berg </ answer >
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers

from coa.json_object import Json

Part = normalizers.Normalizer | pre_tokenizers.PreTokenizer | decoders.Decoder
P = TypeVar("P", bound=Part)

_PROBE = "Who"
"""A question that shows what a tokenizer does between the template and the question's first word."""


class Blank(StrEnum):
    """White space between the template and a question."""

    NONE = "none"
    SET = "set"
    """A blank, also before a question that begins with one."""
    IF_NONE = "if none"
    """A blank, unless the question begins with one or is empty."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The tokens of a prompt before and after its question."""

    before: list[int]
    blank: Blank
    after: list[int]

    def around(self, question: str, ids: Callable[[str], list[int]]) -> list[int]:
        """The prompt's tokens. ids: encodes untrusted text without a blank."""
        has_one = not question or question.startswith(" ")
        bare = self.blank is Blank.NONE or (self.blank is Blank.IF_NONE and has_one)
        return [*self.before, *ids(question if bare else f" {question}"), *self.after]


class Template:
    """The chat template with the tokenizer as it came. `bare` encodes untrusted text without a blank."""

    def __init__(self, tokenizer: Tokenizer, bare: Callable[[str], list[int]]) -> None:
        self.tokenizer = tokenizer
        self._bare = bare

    def frame(self, opening: str, closing: str, trusted: Callable[[str], list[int]]) -> Frame:
        """The frame whose tokens are the template's own. trusted: encodes text with marks and tags in it, without a
        blank."""
        whole = self._ids(opening + _PROBE)
        before, blank = self._before(opening, whole)
        closed = self._ids(opening + _PROBE + closing)
        after = closed[len(whole) :] if closed[: len(whole)] == whole else trusted(closing)
        return Frame(before, blank, after)

    def _before(self, opening: str, whole: list[int]) -> tuple[list[int], Blank]:
        said = self._bare(f" {_PROBE}")
        if whole[-len(said) :] == said:
            before = whole[: -len(said)]
            twice = self._ids(f"{opening} {_PROBE}") == [*before, *self._bare(f"  {_PROBE}")]
            return before, Blank.SET if opening.endswith(" ") or twice else Blank.IF_NONE
        said = self._bare(_PROBE)
        return (whole[: -len(said)] if whole[-len(said) :] == said else self._ids(opening)), Blank.NONE

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids


def copied(tokenizer: Tokenizer) -> Tokenizer:
    return Tokenizer.from_str(tokenizer.to_str())


def take_prefix(tokenizer: Tokenizer) -> Tokenizer | None:
    """Makes a tokenizer set no blank before a text, nor leave one out when it decodes. Returns a copy of what it was;
    None if there is nothing to change."""
    normalizer, splitter, decoder = (
        _bare(part) for part in (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder)
    )
    if not (normalizer.changed or splitter.changed or decoder.changed):
        return None
    came = copied(tokenizer)
    if normalizer.changed:
        tokenizer.normalizer = normalizer.made(normalizers.NFC)
    if splitter.changed:
        tokenizer.pre_tokenizer = splitter.made(pre_tokenizers.Whitespace)
    if decoder.changed:
        tokenizer.decoder = decoder.made(decoders.Fuse)
    return came


@dataclass(frozen=True, slots=True)
class _Bare:
    """A part of a tokenizer without the blank, as its serialized state; None if nothing is left of it."""

    state: Json | None
    changed: bool

    def made(self, kind: Callable[[], P]) -> P | None:
        """kind: any part of the same family; its own kind is in the state."""
        if self.state is None:
            return None
        part = kind()
        part.__setstate__(json.dumps(self.state).encode())
        return part


def _bare(part: Part | None) -> _Bare:
    state = None if part is None else json.loads(part.__getstate__())
    bare = _without(state, decodes=isinstance(part, decoders.Decoder))
    return _Bare(bare, bare != state)


def _without(state: Json | None, *, decodes: bool) -> Json | None:
    match state:
        case {"type": "Sequence"}:
            kept = {
                name: [one for each in parts if (one := _without(each, decodes=decodes)) is not None]
                for name, parts in state.items()
                if name != "type"
            }
            return {**state, **kept}
        case {"type": "Prepend"}:
            return None
        case {"type": "Strip", "content": " "} if decodes:
            return {**state, "start": 0}
        case {"type": "Metaspace"}:
            return {**state, "prepend_scheme": "never"}
        case {"type": "ByteLevel", "add_prefix_space": True} if not decodes:
            return {**state, "add_prefix_space": False}
    return state
