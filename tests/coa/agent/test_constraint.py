"""The constraint for decoding: whatever is drawn under it is a chain of the profile, and every such chain can be drawn.

The grammar is xgrammar's; tokens are drawn at random among those that it allows, as an untrained policy would.
"""

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.rollout import structured_outputs
from coa.agent.codec import Codec
from coa.agent.episode import well_formed_turn
from coa.agent.grammar import ANSWER, START, TAGS, THINK, Form, Span, parse, render_span
from coa.agent.profiles import PROFILES
from coa.teams.router import score_of
from coa.tools.code import read_program
from tests.support.fakes import CODECS

xgrammar = pytest.importorskip("xgrammar")
structured_outputs.register()
LIMIT = 6


@cache
def compiler(tokens: str) -> Any:
    """As vLLM makes it; one for all grammars, since what one leaves behind must not change another."""
    from transformers import PreTrainedTokenizerFast

    codec = CODECS[tokens]()
    hf = PreTrainedTokenizerFast(tokenizer_object=codec._tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    info = xgrammar.TokenizerInfo.from_huggingface(hf, vocab_size=codec.vocabulary)
    return xgrammar.GrammarCompiler(info), codec._tokenizer.token_to_id("<|im_end|>")


class Matcher:
    def __init__(
        self, tokens: str, profile: str, state: str = START, *, last: bool = False, limit: int = LIMIT
    ) -> None:
        self.codec: Codec = CODECS[tokens]()
        made, self.end = compiler(tokens)
        grammar = self.codec.constraint(PROFILES[profile], state, last=last, max_tag_tokens=limit)
        self._matcher = xgrammar.GrammarMatcher(made.compile_grammar(grammar), override_stop_tokens=[self.end])
        self._mask = xgrammar.allocate_token_bitmask(1, self.codec.vocabulary)

    def allowed(self) -> np.ndarray:
        self._matcher.fill_next_token_bitmask(self._mask, 0)
        bits = np.unpackbits(self._mask.numpy().view(np.uint8), bitorder="little")
        return np.flatnonzero(bits[: self.codec.vocabulary])

    def accept(self, token: int) -> bool:
        return self._matcher.accept_token(token)

    def draw(self, rng: np.random.Generator, most: int) -> list[int] | None:
        """A turn, its end mark left out; None where it is longer than `most`."""
        drawn: list[int] = []
        while len(drawn) < most:
            token = int(rng.choice(self.allowed()))
            assert self.accept(token)
            if token == self.end:
                return drawn
            drawn.append(token)
        return None


@pytest.mark.parametrize("tokens", CODECS)
@pytest.mark.parametrize("name", PROFILES)
def test_whatever_is_drawn_is_a_turn_of_the_profile(tokens: str, name: str) -> None:
    profile = PROFILES[name]
    rng = np.random.default_rng(0)
    finished = 0
    for state in profile.transitions:
        for _ in range(12):
            matcher = Matcher(tokens, name, state)
            drawn = matcher.draw(rng, 400)
            if drawn is None:
                continue
            finished += 1
            text = matcher.codec.decode(drawn)
            parsed = parse(text)
            assert well_formed_turn(parsed, profile), text
            before = "" if state == START else state
            for span in parsed.chain:
                assert profile.allows(before, span.tag), text
                before = before if span.tag == THINK else span.tag
                assert_has_form(span)
    assert finished > 10 * len(profile.transitions)


def assert_has_form(span: Span) -> None:
    form, text = TAGS[span.tag].form, span.text
    if form is not Form.FREE:
        assert text.strip(" \n\t\r")
    if form is Form.LINE:
        assert "\n" not in text.strip()
    if form is Form.SCORE:
        assert score_of(text) is not None
    if form is Form.PROGRAM:
        assert "```" not in read_program(text).source


@pytest.mark.parametrize("name", PROFILES)
def test_with_tags_as_tokens_each_tag_is_its_token(name: str) -> None:
    rng = np.random.default_rng(1)
    marks = CODECS["tags are tokens"]().tag_tokens()
    for _ in range(10):
        matcher = Matcher("tags are tokens", name)
        drawn = matcher.draw(rng, 400)
        if drawn:
            parsed = parse(matcher.codec.decode(drawn))
            assert sum(token in marks for token in drawn) == 2 * len(parsed.chain)


@pytest.mark.parametrize("name", PROFILES)
def test_the_last_turn_ends_in_an_answer_where_it_can(name: str) -> None:
    rng = np.random.default_rng(2)
    profile = PROFILES[name]
    for state in profile.transitions:
        drawn = Matcher("tags are tokens", name, state, last=True).draw(rng, 1000)
        assert drawn is not None
        last = parse(CODECS["tags are tokens"]().decode(drawn)).chain[-1].tag
        # Only here does no way lead to an answer without a search.
        assert (last == ANSWER) == (not (name == "mhqa" and state in (START, "plan")))


@pytest.mark.parametrize("tokens", CODECS)
@pytest.mark.parametrize(
    "span",
    [
        Span(ANSWER, "```py\nprint(1)\n```"),
        Span(ANSWER, "\\boxed{7}"),
        Span("code", "```py\nprint(input())\n```\n```sh\n7\n```"),
        Span("code", "\n```py\nprint(1 < 2)\n```"),
        Span("code", "print( 3 * 4 )"),
    ],
)
def test_a_program_may_be_given_in_its_fence(tokens: str, span: Span) -> None:
    matcher = Matcher(tokens, "code", "plan", limit=100)
    for token in matcher.codec.span(span):
        assert matcher.accept(token), matcher.codec.decode([token])
    assert matcher.allowed().tolist() == [matcher.end]


@pytest.mark.parametrize("blank", [" ", "\n", "\u00a0", "\u3000", "\x1f"])
def test_an_answer_is_more_than_a_blank(blank: str) -> None:
    matcher = Matcher("tags are tokens", "code", "plan")
    opening, *_, closing = matcher.codec.span(Span(ANSWER, ""))
    assert matcher.accept(opening)
    for token in matcher.codec.text(blank):
        if not matcher.accept(token):
            return
    assert closing not in matcher.allowed()


SHORT = st.text(alphabet="abc .<>\\/`'\"=+1é", min_size=1, max_size=LIMIT - 1)


@settings(derandomize=True, max_examples=60, deadline=None, database=None)
@given(text=SHORT, name=st.sampled_from(sorted(PROFILES)), tokens=st.sampled_from(sorted(CODECS)))
def test_a_thought_of_any_text_may_be_said(text: str, name: str, tokens: str) -> None:
    matcher = Matcher(tokens, name)
    said = [one for one in matcher.codec.span(Span(THINK, text)) if one != matcher.end]
    budget = len(said) <= LIMIT
    if budget and parse(render_span(Span(THINK, text))).chain == (Span(THINK, text),):
        assert all(matcher.accept(token) for token in said), text


@pytest.mark.parametrize("name", PROFILES)
def test_each_text_of_a_grammar_has_one_caller(name: str) -> None:
    """For a rule with several, xgrammar finds out at each token what may follow."""
    codec = CODECS["tags are tokens"]()
    rules = codec.constraint(PROFILES[name], START, last=False, max_tag_tokens=LIMIT).split("\n")
    texts = [rule.partition("[")[0] for rule in rules if "TagDispatch" in rule]
    called = [word for rule in rules for word in rule.partition("::=")[2].split()]
    assert texts
    assert [called.count(text) for text in texts] == [1] * len(texts)


def test_a_tag_ends_at_its_limit() -> None:
    matcher = Matcher("tags are tokens", "mhqa")
    codec = matcher.codec
    opening, closing = codec.span(Span(THINK, ""))[0], codec.span(Span(THINK, ""))[-1]
    word = codec.text("a")[0]
    for token in [opening, *[word] * LIMIT]:
        assert matcher.accept(token)
    assert matcher.allowed().tolist() == [closing]
