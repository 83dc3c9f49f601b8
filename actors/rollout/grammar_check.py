"""Whether an enforced grammar and a model's tokenizer suit each other: the turns that fine-tuning teaches can be drawn,
and what can be drawn is a turn.

The grammar is compiled as vLLM does it. The turns that are drawn are random, as those of an untrained policy.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from actors.rollout.device import message_ends
from actors.rollout.structured_outputs import make_exact, write_by_pieces
from coa.agent.chain_format import ChainFormat
from coa.agent.codec import Codec, read_tokenizer
from coa.agent.episode import well_formed_turn
from coa.agent.grammar import START, TAGS, THINK, Chain, Form, Kind, Profile, Span, parse, render

if TYPE_CHECKING:
    import xgrammar

TURNS = 32
"""Maximum turns of a profile that are tried."""
DRAWN = 6
"""Turns that are drawn."""
LONGEST = 400
"""Maximum tokens of a drawn turn; one that is not finished by then is not looked at."""
_TEXTS = {
    Form.FREE: "Who, a < b ?\n\n  1. naïve 🙂 日本",
    Form.TEXT: "Berg (1881)",
    Form.LINE: "Vexon Labs, Zürich",
    Form.PROGRAM: "```py\nif 1 < 2:\n    print('a b')\n```",
    Form.SCORE: "4, since it is so",
}


@dataclass(frozen=True, slots=True)
class Grammars:
    """Compiles grammars for a tokenizer. `ends`: the tokens that end a turn. `rows`: of the model's output."""

    compiler: "xgrammar.GrammarCompiler"
    codec: Codec
    ends: tuple[int, ...]
    rows: int

    def matcher(self, profile: Profile, *, max_tag_tokens: int) -> "Matcher":
        """For the first turn of an episode."""
        import xgrammar

        grammar = self.codec.constraint(profile, START, last=False, max_tag_tokens=max_tag_tokens)
        compiled = self.compiler.compile_grammar(grammar)
        return Matcher(xgrammar.GrammarMatcher(compiled, override_stop_tokens=list(self.ends)), self)


class Matcher:
    """The state of a turn under a grammar."""

    def __init__(self, matcher: "xgrammar.GrammarMatcher", grammars: Grammars) -> None:
        import xgrammar

        self.accept = matcher.accept_token
        self._fill = matcher.fill_next_token_bitmask
        self._grammars = grammars
        self._mask = xgrammar.allocate_token_bitmask(1, grammars.rows)

    def allowed(self) -> np.ndarray:
        self._fill(self._mask, 0)
        bits = np.unpackbits(self._mask.numpy().view(np.uint8), bitorder="little")
        return np.flatnonzero(bits[: self._grammars.rows])

    def takes(self, turn: Chain, form: ChainFormat) -> bool:
        """Whether a turn can be drawn, and can end after its last span."""
        ids = [number for piece in self._grammars.codec.written(turn, form) for number in piece.token_ids]
        return all(map(self.accept, ids)) and self.accept(self._grammars.ends[0])

    def draw(self, rng: np.random.Generator) -> list[int] | None:
        """A random turn; None if it is not finished after `LONGEST` tokens."""
        drawn: list[int] = []
        while len(drawn) < LONGEST:
            token = int(rng.choice(self.allowed()))
            self.accept(token)
            if token in self._grammars.ends:
                return drawn
            drawn.append(token)
        return None


def grammars_of(model: Path, codec: Codec, rows: int) -> Grammars:
    """rows: of the model's output, which may be more than the tokenizer has tokens."""
    import xgrammar

    make_exact()
    write_by_pieces()
    tokenizer = read_tokenizer(model)
    own = tokenizer.eos_token_id
    ends = [*message_ends(model, codec.tag_tokens()), *([] if own is None or own in codec.tag_tokens() else [own])]
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=rows, stop_token_ids=ends or [0])
    return Grammars(xgrammar.GrammarCompiler(info), codec, tuple(dict.fromkeys(ends)), rows)


def misfit_of(grammars: Grammars, profiles: Iterable[Profile]) -> str:
    """How the grammar of one of the profiles does not suit the tokenizer; "" if they suit each other."""
    if not grammars.ends:
        return "names no token that ends a message (eos_token_id), without which no turn under a grammar ends"
    for profile in profiles:
        fresh = partial(grammars.matcher, profile)
        for turn in islice(turns_of(profile), TURNS):
            if not fresh(max_tag_tokens=256).takes(turn, profile.format):
                return f"has a tokenizer with which the grammar forbids {render(turn)!r}"
        rng = np.random.default_rng(0)
        for drawn in (fresh(max_tag_tokens=8).draw(rng) for _ in range(DRAWN)):
            if drawn is not None and not well_formed_turn(parse(text := grammars.codec.decode(drawn)), profile):
                return f"has a tokenizer with which the grammar allows {text!r}, which is no turn"
    return ""


def turns_of(profile: Profile) -> Iterator[Chain]:
    """First turns of an episode, each role at most once, that end in a tool call or in the answer."""

    def after(state: str, begun: Chain) -> Iterator[Chain]:
        for name in (THINK, *profile.transitions.get(state, ())):
            span = Span(name, _TEXTS[TAGS[name].form])
            if TAGS[name].kind is not Kind.ROLE:
                yield (*begun, span)
            elif span not in begun:
                yield from after(state if name == THINK else name, (*begun, span))

    return after(START, ())
