"""The grammar and its profiles: what is rendered is read back, faults are told, transitions are what the paper says."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.agent.grammar import (
    ANSWER,
    OBSERVATION,
    START,
    TAGS,
    THINK,
    Chain,
    Fault,
    Kind,
    Parsed,
    Span,
    Tag,
    escape,
    parse,
    render,
    unescape,
)
from coa.agent.profiles import PROFILES, profile, with_tools
from coa.errors import UserError
from tests.support.fakes import chains, profiles, texts

QUICK = settings(derandomize=True, max_examples=150, deadline=None, database=None)


@QUICK
@given(data=st.data(), of=profiles)
def test_what_is_rendered_is_read_back_and_rendered_the_same(data: st.DataObject, of: Any) -> None:
    chain = data.draw(chains(of))
    text = render(chain)
    assert parse(text) == Parsed(chain, None, len(text))
    assert render(parse(text).chain) == text


@QUICK
@given(text=texts)
def test_escaping_is_undone_and_leaves_no_tag(text: str) -> None:
    assert unescape(escape(text)) == text
    assert not any(mark in escape(text) for tag in TAGS.values() for mark in (tag.open, tag.close))


def test_each_escape_adds_one_backslash() -> None:
    assert escape("<answer>") == r"<\answer>"
    assert escape(r"<\answer>") == r"<\\answer>"
    assert escape("</answer> <b> <answers>") == r"<\/answer> <b> <answers>"
    assert unescape(r"<\answer> <\b>") == r"<answer> <\b>"


def test_one_blank_after_the_opening_tag_belongs_to_the_tag() -> None:
    assert render((Span("plan", " x "),)) == "<plan>  x </plan>"
    assert parse("<plan>  x </plan>").chain == (Span("plan", " x "),)
    assert parse("<plan>x</plan>").chain == (Span("plan", "x"),)


@pytest.mark.parametrize(
    ("text", "chain", "fault", "at"),
    [
        ("", (), None, 0),
        ("<plan> a</plan>\n <answer> b</answer> ", (Span("plan", "a"), Span("answer", "b")), None, 37),
        ("so <plan> a</plan>", (), Fault.STRAY_TEXT, 0),
        ("<plan> a</plan> so", (Span("plan", "a"),), Fault.STRAY_TEXT, 15),
        ("<plan> a</plan> so <plan>", (Span("plan", "a"),), Fault.STRAY_TEXT, 15),
        ("<plan> a", (), Fault.UNCLOSED, 6),
        ("<plan> a</plan><plan>", (Span("plan", "a"),), Fault.UNCLOSED, 21),
        ("<plan> a<code> b</code></plan>", (), Fault.NESTED, 8),
        ("<plan> a</answer>", (), Fault.NESTED, 8),
        ("<plan> a<plan>", (), Fault.NESTED, 8),
        (" </plan>", (), Fault.STRAY_CLOSE, 1),
    ],
)
def test_a_fault_is_told_with_its_place(text: str, chain: Chain, fault: Fault | None, at: int) -> None:
    assert parse(text) == Parsed(chain, fault, at)


@pytest.mark.parametrize("piece", ["<plan>", "</plan>", "<", "<\\", "\\", "<plan> </plan>", "<pla"])
@pytest.mark.parametrize("start", ["", "<plan>"])
def test_reading_takes_time_in_proportion_to_the_text(start: str, piece: str) -> None:
    text = start + piece * (1_000_000 // len(piece))
    began = time.process_time()
    parse(text)
    assert unescape(escape(text)) == text
    assert time.process_time() - began < 20, "a quadratic reading takes minutes"


# --- profiles ---------------------------------------------------------------------------------------------------------


def chain_of(tags: str) -> Chain:
    return tuple(Span(tag, "x") for tag in tags.split())


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("code", "plan answer"),
        ("code", "plan code observation reflection code observation reflection answer"),
        ("mhqa", "plan wiki_search observation answer"),
        ("mhqa", "think plan think wiki_search observation think reflection plan wiki_search observation answer"),
        ("web", "plan web_search observation crawl_page observation suggested_answer double_check answer"),
        ("web", "plan suggested_answer double_check plan suggested_answer double_check answer"),
        ("web", "plan web_search"),
        ("web", ""),
    ],
)
def test_these_chains_keep_their_profiles_transitions(name: str, tags: str) -> None:
    assert profile(name).transitions_hold(chain_of(tags))


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("code", "answer"),
        ("code", "plan plan"),
        ("code", "plan code observation answer"),
        ("code", "plan code observation code"),
        ("code", "plan wiki_search observation"),
        ("mhqa", "plan answer"),
        ("mhqa", "wiki_search observation"),
        ("mhqa", "plan wiki_search observation reflection reflection"),
        ("web", "plan web_search observation answer"),
        ("web", "plan suggested_answer answer"),
        ("web", "plan web_search observation double_check"),
        ("web", "plan suggested_answer double_check reflection"),
        ("web", "plan suggested_answer double_check answer plan"),
    ],
)
def test_these_chains_break_their_profiles_transitions(name: str, tags: str) -> None:
    assert not profile(name).transitions_hold(chain_of(tags))


@pytest.mark.parametrize(
    "tags",
    [
        "observation",
        "plan observation",
        "plan wiki_search reflection",
        "plan wiki_search think observation",
        "plan wiki_search observation observation",
        "plan wiki_search observation think observation",
        "plan wiki_search wiki_search observation",
    ],
)
def test_an_observation_follows_a_tool_call_and_nothing_else(tags: str) -> None:
    assert not profile("mhqa").transitions_hold(chain_of(tags))


@pytest.mark.parametrize("name", PROFILES)
def test_a_transition_table_speaks_only_of_its_profiles_own_tags(name: str) -> None:
    it = PROFILES[name]
    names = {tag.name for tag in it.tags}
    targets = {target for row in it.transitions.values() for target in row}
    assert set(it.transitions) <= {START} | names
    assert targets <= names - {OBSERVATION, THINK}
    # Nobody is led into a dead end: what can be reached goes on, or is the answer.
    assert targets - set(it.transitions) == {ANSWER}
    assert {THINK, ANSWER} <= names
    assert (OBSERVATION in names) == bool(it.tools)


@pytest.mark.parametrize(
    ("name", "tools", "stops"),
    [
        ("code", ["code"], ("</code>", "</answer>")),
        ("mhqa", ["wiki_search"], ("</wiki_search>", "</answer>")),
        ("web", ["web_search", "crawl_page"], ("</web_search>", "</crawl_page>", "</answer>")),
    ],
)
def test_a_turn_stops_after_a_tool_call_or_the_answer(name: str, tools: list[str], stops: tuple[str, ...]) -> None:
    assert [tag.name for tag in profile(name).tools] == tools
    assert profile(name).stops == stops


@pytest.mark.parametrize(
    ("tags", "state"),
    [("", START), ("think", START), ("plan think", "plan"), ("plan wiki_search observation think", "wiki_search")],
)
def test_thoughts_and_observations_leave_the_state_as_it_is(tags: str, state: str) -> None:
    assert profile("mhqa").state(chain_of(tags)) == state


def test_thinking_may_come_anywhere_and_observations_never_from_the_policy() -> None:
    for it in PROFILES.values():
        for state in (START, *(tag.name for tag in it.tags)):
            assert it.allows(state, THINK)
            assert not it.allows(state, OBSERVATION)


def test_the_instructions_name_every_tag_of_the_profile_and_no_other() -> None:
    for it in PROFILES.values():
        own = {tag.name for tag in it.tags}
        assert {name for name, tag in TAGS.items() if tag.open in it.instructions()} == own
        assert it.preface() == f"{it.instructions()}\n\nQuestion: "


def test_each_tags_kind_is_its_part_in_an_episode() -> None:
    of_kind = {kind: [name for name, tag in TAGS.items() if tag.kind is kind] for kind in Kind}
    assert of_kind[Kind.TOOL] == ["wiki_search", "web_search", "crawl_page", "code"]
    assert of_kind[Kind.ENVIRONMENT] == ["observation"]
    assert of_kind[Kind.TERMINAL] == ["answer"]


def test_an_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(UserError, match="unknown profile 'qa': known are code, math, mhqa, web, multi"):
        profile("qa")


def test_a_further_tool_is_called_where_the_profile_calls_one_already() -> None:
    forecast = Tag("forecast", Kind.TOOL, "ask for the weather")
    made = with_tools(profile("code"), "outdoors", forecast, guidance="Mind the rain.")
    assert made.transitions == {
        START: ("plan",),
        "plan": ("code", "answer", "forecast"),
        "code": ("reflection",),
        "reflection": ("code", "answer", "forecast"),
        "forecast": ("reflection",),
    }
    names = [tag.name for tag in made.tags]
    assert names == ["think", "plan", "code", "forecast", "observation", "reflection", "answer"]
    assert made.guidance.endswith(" in a ```py fence. Mind the rain.")
    with pytest.raises(ValueError, match="the profile direct calls no tool"):
        with_tools(profile("direct"), "x", forecast)
