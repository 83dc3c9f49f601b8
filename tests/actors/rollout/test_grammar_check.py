"""An enforced grammar and a tokenizer suit each other, whatever its kind: what is taught may be drawn, and what is
drawn is a turn."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from actors.rollout import structured_outputs
from actors.rollout.grammar_check import Grammars, grammars_of, misfit_of, turns_of
from coa.agent.codec import Codec
from coa.agent.episode import well_formed_turn
from coa.agent.grammar import Span, parse
from coa.agent.profiles import PROFILES, profile
from tests.support.tokenizer_kinds import KINDS, LAYOUTS, metaspace, pieces, replacing, write

pytest.importorskip("xgrammar")
TAKEN = [
    *("bytes, prefix", "bytes, one tag special", "bytes, words added", "metaspace always", "metaspace first"),
    *("metaspace, tags special", "prepend", "replace", "unigram with bytes"),
]
"""Kinds that differ in what a grammar sees of them."""


def made(folder: Path, tokenizer: Tokenizer) -> Grammars:
    model = write(tokenizer, folder, LAYOUTS["chat marks"])
    codec = Codec.load(model)
    return grammars_of(model, codec, codec.vocabulary)


@pytest.mark.parametrize("kind", TAKEN)
def test_each_demonstration_may_be_drawn_and_each_drawn_turn_is_one(tmp_path: Path, kind: str) -> None:
    assert misfit_of(made(tmp_path, KINDS[kind]()), [profile("code")]) == ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", TAKEN)
def test_each_profile_suits_each_kind(tmp_path: Path, kind: str) -> None:
    assert misfit_of(made(tmp_path, KINDS[kind]()), PROFILES.values()) == ""


def test_the_turns_that_are_tried_are_those_of_the_table() -> None:
    code = profile("code")
    turns = list(turns_of(code))
    assert all(code.transitions_hold(turn) for turn in turns)
    assert [[span.tag for span in turn] for turn in turns_of(profile("direct"))] == [["think", "answer"], ["answer"]]
    assert {turn[-1].tag for turn in turns} == {"code", "answer"}


def test_no_turn_has_a_character_as_a_byte_that_the_vocabulary_has_as_a_piece(tmp_path: Path) -> None:
    """`<0x3C>` behind half a character is decoded as none, and its tag is never closed."""
    grammars = made(tmp_path, replacing())
    rng = np.random.default_rng(0)
    turns = [grammars.matcher(profile("mhqa"), max_tag_tokens=8).draw(rng) for _ in range(40)]
    finished = [grammars.codec.decode(turn) for turn in turns if turn is not None]
    assert len(finished) > 30
    assert [text for text in finished if not well_formed_turn(parse(text), profile("mhqa"))] == []
    assert any("\ufffd" in text for text in finished), "halves of characters were drawn"


def test_bytes_that_a_text_needs_stay_allowed() -> None:
    spare = structured_outputs.spare_bytes({"<0x0A>": 1, "<0x20>": 2, "\u2581": 3, "<0x3C>": 4, "<": 5, "<0xE2>": 6})
    assert spare == {2, 4}


def test_a_vocabulary_that_has_a_tags_character_only_as_a_byte_does_not_suit(tmp_path: Path) -> None:
    made_of = metaspace("never")
    kept = {text: number for text, number in made_of.get_vocab().items() if text not in ("<", "\u2581<")}
    numbered = {text: number for number, text in enumerate(sorted(kept, key=kept.__getitem__))}
    made_of.model = models.BPE(numbered, [], unk_token="<unk>", byte_fallback=True)
    fresh = Tokenizer.from_str(made_of.to_str())
    misfit = misfit_of(made(tmp_path, fresh), [profile("mhqa")])
    assert misfit.startswith("has a tokenizer with which the grammar allows '<")
    assert misfit.endswith(", which is no turn")


def test_a_folder_without_an_end_does_not_suit(tmp_path: Path) -> None:
    grammars = made(tmp_path, pieces_of_blanks())
    without = Grammars(grammars.compiler, grammars.codec, (), grammars.rows)
    assert misfit_of(without, [profile("mhqa")]).startswith("names no token that ends a message (eos_token_id), ")


def pieces_of_blanks() -> Tokenizer:
    made_of = pieces()
    made_of.pre_tokenizer = metaspace("never").pre_tokenizer
    made_of.decoder = metaspace("never").decoder
    return made_of


# --- stops ------------------------------------------------------------------------------------------------------------


def stopped(codec: Codec, tokenizer: Any, turn: Sequence[int]) -> str | None:
    """The stop string at which vLLM's own decoding ends a turn, at its last token; None if it does not see it."""
    vllm = pytest.importorskip("vllm.v1.engine.detokenizer")
    from actors.rollout.adapter import _turn_params
    from actors.rollout.config import SamplingConfig

    params = _turn_params(SamplingConfig(), codec.stops(profile("mhqa")), False)
    prompt = codec.prompt(profile("mhqa"), "Who ?", instructed=False).tolist()
    request: Any = SimpleNamespace(sampling_params=params, prompt_token_ids=prompt, request_id="1")
    reading = vllm.FastIncrementalDetokenizer(tokenizer, request)
    seen = [reading.update([number], False) for number in turn]
    assert set(seen[:-1]) == {None}
    return seen[-1]


@pytest.mark.parametrize("kind", ["bytes, one tag special", "metaspace, one tag special", "prepend", "bytes, prefix"])
def test_an_engine_sees_each_stop_where_some_tags_are_special_tokens_and_some_are_text(
    tmp_path: Path, kind: str
) -> None:
    from transformers import AutoTokenizer

    model = write(KINDS[kind](), tmp_path, LAYOUTS["instruction"])
    codec, tokenizer = Codec.load(model), AutoTokenizer.from_pretrained(model)
    for tag in ("answer", "wiki_search"):
        assert stopped(codec, tokenizer, codec.span(Span(tag, "Berg"))) == f"</{tag}>"
