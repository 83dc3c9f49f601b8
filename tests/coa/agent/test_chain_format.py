"""Prompts and chains in another form than our own: what is played is what was demonstrated, byte by byte."""

import asyncio
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from coa.agent.chain_format import OWN, ChainFormat
from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig, Episode, run_episode
from coa.agent.grammar import OBSERVATION, Chain, Profile, Span, parse, render
from coa.agent.profiles import profile
from coa.agent.tokenizer import BEGIN, END, PAD
from coa.config import dump, from_plain, load
from coa.errors import UserError
from coa.types import Trajectory
from tests.support.fakes import (
    CLOSING,
    CODECS,
    OPENING,
    ROOMY,
    ScriptedPolicy,
    ScriptedTools,
    answered_chains,
    chains,
    plain_texts,
    profiles,
    said_of,
    tag_codec,
    task,
    text_codec,
    texts,
    tokens_of,
    turns_of,
)

LINES = ChainFormat(prompt="Do so:\n\nQuestion: ", before="\n", opened="\n", closed="\n", after="\n", observed="\n\n")
BLANKS = ChainFormat(before=" ", opened="  ", closed=" ", after="", observed="\n")
GAPS = ChainFormat(opened="", after="\n\n", observed="\n\n\n")
FORMS = {"own": OWN, "lines": LINES, "blanks": BLANKS, "gaps": GAPS}
CHAIN = (Span("plan", "Arden"), Span("wiki_search", "Berg"), Span(OBSERVATION, "Arden ."), Span("answer", "Berg"))


@dataclass(frozen=True)
class Section:
    agent: AgentConfig = field(default_factory=AgentConfig)


def joining_codec() -> Codec:
    """Line ends are one token with the mark before them, as with the tokenizers of Qwen and Llama 3."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r"[^\s\p{L}\p{N}]+[\r\n]*|\p{L}+|\p{N}|\s+"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=[PAD, BEGIN, END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([render(CHAIN, LINES)] * 30, trainer)
    return Codec(tokenizer, opening=OPENING, closing=CLOSING)


EACH = {**CODECS, "line ends are joined": joining_codec}
each_codec = pytest.mark.parametrize("made", EACH.values(), ids=list(EACH))
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))


def played(codec: Codec, turns: list[Any], observations: list[str], of: str, form: ChainFormat) -> Trajectory:
    agent = AgentConfig(formats={of: form}, limits=ROOMY)
    policy, tools = ScriptedPolicy(codec, turns), ScriptedTools(*observations)
    episode = run_episode(task(of), 0, codec=codec, generate=policy, use_tool=tools, agent=agent)
    return asyncio.run(episode)


def test_a_chain_is_written_as_it_is_in_released_rows() -> None:
    assert render(CHAIN, LINES) == (
        "\n<plan>\nArden\n</plan>\n\n<wiki_search>\nBerg\n</wiki_search>\n"
        "\n<observation>\nArden .\n</observation>\n\n\n<answer>\nBerg\n</answer>\n"
    )


@each_form
@settings(derandomize=True, max_examples=50, deadline=None, database=None)
@given(chain=chains(profile("multi")))
def test_what_is_written_in_a_format_is_read_in_it(form: ChainFormat, chain: Chain) -> None:
    assert parse(render(chain, form), form).chain == chain


@each_form
@each_codec
@settings(derandomize=True, max_examples=25, deadline=None, database=None)
@given(data=st.data(), of=profiles)
def test_a_played_chain_is_its_demonstration(made: Any, form: ChainFormat, data: st.DataObject, of: Profile) -> None:
    codec: Codec = made()
    chain = data.draw(answered_chains(of, st.one_of(plain_texts, texts)))
    turns, observations = turns_of(chain)
    said = [[number for one in codec.written(turn, form) for number in one.token_ids] for turn in turns]
    shown = codec.demonstration(task(of.name), chain, replace(of, format=form), instructed=True)
    own = [one.token_ids for one in codec.written(chain, form) if one.own]
    assert sum(map(len, own)) == shown.action_mask.sum()
    episode = played(codec, said, observations, of.name, form)
    assert codec.decode(episode.token_ids) == codec.decode(shown.token_ids)
    for name in ("text", "answer", "tool_calls", "status", "prompt_length", "transitions_hold"):
        assert getattr(episode, name) == getattr(shown, name)


@each_codec
def test_the_bytes_are_those_of_the_prompt_and_of_the_chain(made: Any) -> None:
    codec: Codec = made()
    shown = codec.demonstration(task(), CHAIN, profile("mhqa", {"mhqa": LINES}), instructed=True)
    said = f"{OPENING}Do so:\n\nQuestion: Who ?{CLOSING}{render(CHAIN, LINES).removesuffix(LINES.after)}"
    assert codec.decode(shown.token_ids) == said


@each_codec
def test_a_turn_ends_with_the_token_in_which_its_last_tag_ends(made: Any) -> None:
    codec: Codec = made()
    shown = codec.demonstration(task(), CHAIN, profile("mhqa", {"mhqa": LINES}), instructed=False)
    said, lines = codec.decode(shown.token_ids[shown.action_mask]), len(codec.text(">\n\n")) == 1
    assert lines == (made is joining_codec)
    turn = "\n<plan>\nArden\n</plan>\n\n<wiki_search>\nBerg\n</wiki_search>"
    assert said == turn + "\n\n" * lines + "\n<answer>\nBerg\n</answer>"


def test_line_ends_that_the_policy_has_sampled_behind_its_turn_are_not_written_again() -> None:
    codec, form = text_codec(), LINES
    for sampled in ("", "\n", "\n\n"):
        turn = "\n<plan>\nArden\n</plan>\n\n<wiki_search>\nBerg\n</wiki_search>" + sampled
        made = played(codec, [turn, "\n<answer>\nBerg\n</answer>"], ["Arden ."], "mhqa", form)
        assert codec.decode(made.token_ids[made.prompt_length :]) == render(CHAIN, form).removesuffix("\n")
        assert (made.text, made.answer) == (render(CHAIN), "Berg")


def test_more_white_space_than_the_format_has_stays_as_it_was_sampled() -> None:
    assert [LINES.rest(said) for said in ("a", "a\n", "a\n\n", "a\n\n\n", "a ")] == ["\n\n", "\n", "", "", ""]
    assert OWN.rest("a\n") == ""


def test_an_episode_goes_on_from_its_journal_in_its_format() -> None:
    codec, agent = text_codec(), AgentConfig(formats={"mhqa": LINES}, limits=ROOMY)
    episode = Episode(task(), 0, codec=codec, agent=agent)
    ids = tokens_of(codec, "\n<plan>\nArden\n</plan>\n\n<wiki_search>\nBerg\n</wiki_search>\n")
    episode.take_turn(said_of(ids, version=0, logprob=-1.0, max_tokens=1000))
    halfway = Episode.resume(task(), 0, episode.journal, codec=codec, agent=agent)
    for one in (episode, halfway):
        one.observe("Arden .")
    assert halfway.ask().prompt.tolist() == episode.ask().prompt.tolist()


def test_without_instructions_the_prompt_is_the_question_alone() -> None:
    own = tag_codec().prompt(profile("mhqa"), "Who ?", instructed=False)
    assert tag_codec().prompt(profile("mhqa", {"mhqa": LINES}), "Who ?", instructed=False).tolist() == own.tolist()


def test_a_profile_without_a_format_is_written_our_own_way() -> None:
    assert AgentConfig(formats={"web": LINES}).profile("mhqa") is profile("mhqa")
    assert AgentConfig(formats={"web": LINES}).profile("web").format == LINES


@pytest.mark.parametrize("text", ["\t", "x", "\n" * 5, "\r\n"])
def test_only_a_few_blanks_and_line_ends_are_white_space(text: str) -> None:
    with pytest.raises(UserError, match=r"^agent\.formats\.web\.after is "):
        load(Section, None, [f"agent.formats.web.after={json.dumps(text)}"])


def test_a_format_of_no_profile_is_refused() -> None:
    with pytest.raises(UserError, match=r"agent\.formats: nobody; known are code, math"):
        load(Section, None, ["agent.formats.nobody.prompt=x"])


def test_a_recipe_keeps_what_it_has_read(tmp_path: Path) -> None:
    agent = AgentConfig(formats={"mhqa": LINES})
    kept = tmp_path / "config.yaml"
    kept.write_text(dump(agent))
    assert load(AgentConfig, kept) == agent
    assert from_plain(AgentConfig, json.loads(json.dumps(asdict(agent), default=lambda one: one.name)), "x") == agent
