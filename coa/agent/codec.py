"""Encodes text as tokens and decodes it, and keeps tags apart from text.

The tokens of a tag come only from this module or from the policy. Untrusted text (a question, an observation) can
neither contain a tag's token nor spell a tag (`coa.agent.untrusted`).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer, decoders

from coa.agent.chain_format import OWN, ChainFormat
from coa.agent.chat_template import read_template, with_date
from coa.agent.constraint import turn_grammar
from coa.agent.grammar import OBSERVATION, TAGS, Chain, Profile, Span, render
from coa.agent.prefix import Frame, Template, take_prefix
from coa.agent.proof import flaw_of, own_prompts
from coa.agent.untrusted import Untrusted
from coa.errors import UserError
from coa.pretrained.reading import quiet, reading, require_content
from coa.types import ENVIRONMENT, Mask, Status, Task, Tokens, Trajectory

if TYPE_CHECKING:
    import transformers

NO_CHARACTER = 8
"""Number of tokens after which incomplete bytes are treated as invalid; a character has at most four bytes."""


@dataclass(frozen=True, slots=True)
class Stops:
    """Stops of the policy's turn, as an engine takes them: token ids if each stop is one token, strings otherwise."""

    token_ids: tuple[int, ...]
    strings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    span: int
    """Index of its span in the chain."""
    token_ids: list[int]
    own: bool
    """Whether the policy writes them."""


class Codec:
    """Encodes prompts, spans and chains with one tokenizer.

    The codec owns the tokenizer and changes it. `opening` and `closing` are the chat template's text before and after
    the user's message; `closing` includes the beginning of the assistant's message.
    """

    def __init__(self, tokenizer: Tokenizer, *, opening: str, closing: str) -> None:
        self._tokenizer = tokenizer
        self._constraints: dict[tuple[str, ChainFormat, str, bool, int], str] = {}
        added = tokenizer.get_added_tokens_decoder().items()
        written = frozenset(tokenizer.encode(opening + closing, add_special_tokens=False).ids)
        came = take_prefix(tokenizer)
        self.untrusted = Untrusted(tokenizer, written)
        self._template = None if came is None else Template(came, self.untrusted.ids)
        self._around = (opening, closing)
        self._frames: dict[str, Frame] = {}
        specials = {token.content: number for number, token in added if token.special}
        self._specials = tuple(specials)
        self._added = tuple(token.content for _, token in added)
        marks = {mark for tag in TAGS.values() for mark in (tag.open, tag.close)}
        self._ends = {number for content, number in specials.items() if content not in marks}
        self._opening = self._ours(opening)
        self._closing = self._ours(closing)
        self._open = {name: self._ours(tag.open) for name, tag in TAGS.items()}
        self._close = {name: self._ours(tag.close) for name, tag in TAGS.items()}

    @classmethod
    def load(cls, model: Path | str, day: date | None = None) -> "Codec":
        """Loads from a Hugging Face model folder or hub name; the chat template gives the text around the question.
        day: the date of prompts (`coa.agent.chat_template`)."""
        tokenizer = read_tokenizer(model)
        tokenizer.chat_template = with_date(tokenizer.chat_template, day)
        template = read_template(tokenizer, str(model))
        with reading(f"{model}: its tokenizer fails"):
            prompts = own_prompts(template)
            codec = cls(tokenizer.backend_tokenizer, opening=template.opening, closing=template.closing)
            objection = codec._objection() or flaw_of(codec, prompts) or codec.untrusted.objection()
        if objection:
            raise UserError(f"{model}: {objection}")
        return codec

    def _objection(self) -> str:
        """Which tag this tokenizer can't write; "" if it can write all."""
        for tag in TAGS.values():
            for mark, ids in ((tag.open, self._open[tag.name]), (tag.close, self._close[tag.name])):
                if (written := self.decode(ids)) != mark:
                    return f"its tokenizer writes the tag {mark} as {written!r}"
        return ""

    def _raw(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _ours(self, text: str) -> list[int]:
        """Tokens of trusted text, in which tags and chat marks become tokens of their own."""
        self._tokenizer.encode_special_tokens = False
        ids = self._raw(text)
        # Everything else that is encoded is untrusted: special tokens in it are plain characters.
        self._tokenizer.encode_special_tokens = True
        return ids

    def text(self, text: str) -> list[int]:
        """Tokens of untrusted text."""
        return self.untrusted.ids(text)

    def has_mark(self, text: str) -> bool:
        """Whether an untrusted text has a mark in it, which is escaped."""
        return any(mark in text for mark in self.untrusted.marks)

    def words(self) -> Iterator[str]:
        """The added tokens that any text may have, since they are no marks."""
        return (text for text in self._added if text not in self.untrusted.marks)

    def prompt(self, profile: Profile, question: str, *, instructed: bool) -> Tokens:
        if self._template is not None:
            frame = self._frame(self._template, profile.preface() if instructed else "")
            return np.array(frame.around(question, self.text), np.int32)
        preface = self._ours(profile.preface()) if instructed else []
        return np.array([*self._opening, *preface, *self.text(question), *self._closing], np.int32)

    def _frame(self, template: Template, preface: str) -> Frame:
        if preface not in self._frames:
            opening, closing = self._around
            self._frames[preface] = template.frame(opening + preface, closing, self._ours)
        return self._frames[preface]

    def span(self, span: Span, form: ChainFormat = OWN) -> list[int]:
        """The tokens of a span, without the white space around it."""
        return [*self._begin(span.tag, form), *self._body(span.text, form), *self._end(span.tag)]

    def _begin(self, tag: str, form: ChainFormat) -> list[int]:
        return self._ours(TAGS[tag].open + form.lines) if form.lines else self._open[tag]

    def _end(self, tag: str, space: str = "") -> list[int]:
        return self._ours(TAGS[tag].close + space) if space else self._close[tag]

    def _body(self, text: str, form: ChainFormat) -> list[int]:
        return self.text(form.blanks + text + form.closed)

    def observation(self, text: str, *, limit: int, form: ChainFormat = OWN, behind: str = "") -> list[int]:
        """An observation's tokens, with the white space around it. If the text has more than `limit` tokens, only its
        beginning and end are kept. behind: the text of the turn that it follows."""
        body = self._body(text, form)
        if len(body) > limit:
            # The dots keep the beginning and the end from spelling a tag together.
            head, tail = limit // 2, limit - limit // 2
            body = [*body[:head], *self._raw(" ... "), *body[len(body) - tail :]]
        before = self._ours(rest) if (rest := form.rest(behind)) else []
        return [*before, *self._begin(OBSERVATION, form), *body, *self._end(OBSERVATION, form.observed)]

    def decode(self, token_ids: Sequence[int] | Tokens) -> str:
        return self._tokenizer.decode(list(map(int, token_ids)), skip_special_tokens=False)

    def decode_stepwise(self, prompt: Tokens, token_ids: Sequence[int]) -> str:
        """A turn's text as an engine decodes it, token by token after its prompt, and searches it for stops."""
        tokenizer = self._tokenizer if self._template is None else self._template.tokenizer
        stream = decoders.DecodeStream(ids=prompt.tolist(), skip_special_tokens=False)
        return "".join(stream.step(tokenizer, number) or "" for number in token_ids)

    def decode_turn(self, token_ids: Sequence[int] | Tokens) -> str:
        """A turn's text without the special tokens at its end that end a message."""
        ids = list(map(int, token_ids))
        while ids and ids[-1] in self._ends:
            ids.pop()
        return self.decode(ids)

    def stream(self) -> Callable[[Sequence[int]], str]:
        """A function that takes a turn's tokens piece by piece and returns the text that each piece adds, special
        tokens included. A character is returned with the last of its bytes, invalid bytes with the next character.

        (`tokenizers.decoders.DecodeStream` fails on such bytes if a vocabulary has a token for each byte.)
        """
        held: list[int] = []
        told = 0  # number of tokens at the beginning of `held` whose text was returned; kept as context for decoding

        def add(token_ids: Sequence[int]) -> str:
            nonlocal told
            held.extend(map(int, token_ids))
            before, text = self.decode(held[:told]), self.decode(held)
            if len(text) <= len(before) or (text.endswith("\ufffd") and len(held) - told < NO_CHARACTER):
                return ""
            del held[:told]
            told = len(held)
            return text[len(before) :]

        return add

    def count(self, texts: Iterable[str]) -> int:
        """Number of tokens in plain texts, for cost accounting."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return sum(len(encoding) for encoding in encodings)

    @property
    def vocabulary(self) -> int:
        return self._tokenizer.get_vocab_size()

    def largest_token(self) -> int:
        """The largest id that a prompt, a tag or any text can have. Special tokens that the chat template does not use
        never occur: Gemma 3 has one for images, beyond the embedding of its models of text."""
        ours = [self._opening, self._closing, *self._open.values(), *self._close.values()]
        special = {self._tokenizer.token_to_id(content) for content in self._specials}
        text = (number for number in self._tokenizer.get_vocab().values() if number not in special)
        return max([*text, *(number for ids in ours for number in ids)])

    def tag_tokens(self) -> frozenset[int]:
        """The ids of tags that are a token of their own; empty for a tokenizer in which tags are ordinary text."""
        ids = [*self._open.values(), *self._close.values()]
        return frozenset(one[0] for one in ids if len(one) == 1)

    def stops(self, profile: Profile) -> Stops:
        singles = [self._close[close[2:-1]] for close in profile.stops]
        if all(len(ids) == 1 for ids in singles):
            return Stops(tuple(ids[0] for ids in singles), ())
        return Stops((), profile.stops)

    def constraint(self, profile: Profile, state: str, *, last: bool, max_tag_tokens: int) -> str:
        """The grammar of a turn (`coa.agent.constraint`), written with this tokenizer's tokens."""
        which = (profile.name, profile.format, state, last, max_tag_tokens)
        if which not in self._constraints:
            marks = [mark for tag in TAGS.values() for mark in (tag.open, tag.close)]
            self._constraints[which] = turn_grammar(
                profile,
                state,
                mark=self._mark,
                forbidden=tuple(dict.fromkeys((*marks, *self._specials))),
                last=last,
                max_tag_tokens=max_tag_tokens,
            )
        return self._constraints[which]

    def _mark(self, mark: str) -> str:
        ids = self._ours(mark)
        return f"Token({ids[0]})" if len(ids) == 1 else json.dumps(mark)

    def written(self, chain: Chain, form: ChainFormat) -> Iterator[Piece]:
        """The tokens of a chain. A turn ends with the token in which its last tag ends, as if it had been sampled: with
        some tokenizers, line ends behind the tag are part of it."""
        for at, span in enumerate(chain):
            own = span.tag != OBSERVATION
            begins = at == 0 or chain[at - 1].tag == OBSERVATION
            before = self._ours(form.before) if own and begins and form.before else []
            ids = [*before, *self._begin(span.tag, form), *self._body(span.text, form)]
            if not own:
                yield Piece(at, [*ids, *self._end(span.tag, form.observed)], own)
            elif at == len(chain) - 1:
                yield Piece(at, [*ids, *self._end(span.tag)], own)
            elif chain[at + 1].tag == OBSERVATION:
                said, rest = self._cut(self._end(span.tag, form.between), TAGS[span.tag].close)
                yield Piece(at, [*ids, *said], own)
                yield Piece(at, rest, own=False)
            else:
                yield Piece(at, [*ids, *self._end(span.tag, form.between)], own)

    def _cut(self, ids: list[int], mark: str) -> tuple[list[int], list[int]]:
        """The tokens up to the one in which the mark ends, and the rest."""
        length = next(n for n in range(1, len(ids) + 1) if mark in self.decode(ids[:n]))
        return ids[:length], ids[length:]

    def demonstration(self, task: Task, chain: Chain, profile: Profile, *, instructed: bool) -> Trajectory:
        """A chain as the trajectory that the policy would have produced; `action_mask` marks the policy's own tokens.

        Raises ValueError for a chain that does not end in an answer.
        """
        if not chain or chain[-1].tag != "answer":
            raise ValueError(f"{task.id}: a demonstration ends in an answer")
        prompt = self.prompt(profile, task.question, instructed=instructed)
        pieces = list(self.written(chain, profile.format))
        token_ids: Tokens = np.concatenate([prompt, *(np.array(one.token_ids, np.int32) for one in pieces)])
        marks = (np.full(len(one.token_ids), one.own) for one in pieces)
        action_mask: Mask = np.concatenate([np.zeros(len(prompt), np.bool_), *marks])
        tools = tuple(span.tag for span in chain if TAGS[span.tag].close in profile.stops and span.tag != "answer")
        return Trajectory(
            task_id=task.id,
            sample=0,
            token_ids=token_ids,
            action_mask=action_mask,
            logprobs=np.zeros(len(token_ids), np.float32),
            versions=np.full(len(token_ids), ENVIRONMENT, np.int32),
            prompt_length=len(prompt),
            turns=len(tools) + 1,
            tool_calls=tools,
            status=Status.ANSWERED,
            answer=chain[-1].text.strip(),
            text=render(chain),
            transitions_hold=profile.transitions_hold(chain),
        )


def read_tokenizer(model: Path | str) -> "transformers.TokenizersBackend":
    """The tokenizer of a Hugging Face model folder or hub name; raises UserError if there is none that can be used."""
    from transformers import AutoTokenizer  # slow to import

    for path in sorted(Path(model).glob("tokenizer*.*")):
        require_content(path)
    with reading(f"{model}: no tokenizer there that can be read"), quiet():
        tokenizer = AutoTokenizer.from_pretrained(str(model), trust_remote_code=False)
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise UserError(
            f"{model}: its {type(tokenizer).__name__} is written in Python and has no tokenizer.json, which is needed"
        )
    return tokenizer
