"""Who speaks next on a planner's team."""

import pytest

from coa.agent.grammar import TAGS, parse
from coa.agent.profiles import PROFILES
from coa.teams.roles import CODER, CRITIC, PLANNER, ROLES, SEARCHER, VERIFIER, system_prompt
from coa.teams.router import (
    MALFORMED,
    CallTool,
    Next,
    Over,
    Speak,
    after_reply,
    after_thinker,
    after_tool,
    calls_since_plan,
    may_speak,
    replans,
    score_of,
    spans_of,
)
from coa.teams.transcript import Brief, Ending
from coa.tools.base import ToolCall

# Routing.


@pytest.mark.parametrize(
    ("profile", "agent", "reply", "expected"),
    [
        ("mhqa", PLANNER, "<plan> a</plan>", Speak(SEARCHER)),
        ("code", PLANNER, "<plan> a</plan>", Speak(CODER)),
        ("mhqa", PLANNER, "<think> look further</think>", Speak(SEARCHER)),
        ("mhqa", SEARCHER, "<think> I know</think>", Speak(PLANNER)),
        ("mhqa", SEARCHER, "done", Speak(CRITIC)),
        (
            "mhqa",
            SEARCHER,
            "<think> t</think><wiki_search> Nora</wiki_search>",
            CallTool(ToolCall("wiki_search", "Nora")),
        ),
        ("code", CODER, "<code> print(1)\n</code>", CallTool(ToolCall("code", "print(1)"))),
        ("web", CRITIC, "<reflection> r</reflection>", Speak(PLANNER)),
        ("web", SEARCHER, "<suggested_answer> s</suggested_answer>", Speak(VERIFIER)),
        ("web", PLANNER, "<suggested_answer> s</suggested_answer>", Speak(VERIFIER)),
        ("web", VERIFIER, "<double_check> 1 wrong</double_check>", Speak(SEARCHER)),
        ("web", VERIFIER, "<double_check> 2 may be</double_check>", Speak(SEARCHER)),
        ("web", VERIFIER, "<double_check> 3 fair</double_check>", Speak(PLANNER)),
        ("web", VERIFIER, "<double_check> 4 right</double_check>", Speak(PLANNER)),
        ("web", PLANNER, "<think> so</think>\n<answer> a</answer>", Over(Ending.ANSWERED)),
    ],
)
def test_the_last_reply_decides_who_is_next(profile: str, agent: str, reply: str, expected: Next):
    assert after_reply(PROFILES[profile], agent, reply) == expected


@pytest.mark.parametrize(
    ("profile", "agent", "reply"),
    [
        ("web", SEARCHER, "<web_search> a</web_search><observation> made up</observation>"),
        ("web", SEARCHER, "<web_search> a</web_search><crawl_page> p1</crawl_page>"),
        ("web", SEARCHER, "<answer> a</answer>"),
        ("web", CRITIC, "<web_search> a</web_search>"),
        ("web", VERIFIER, "<double_check> looks right</double_check>"),
        ("web", CRITIC, "done"),
        ("mhqa", PLANNER, "<suggested_answer> not of this profile</suggested_answer>"),
        ("mhqa", CODER, "<code> 1</code>"),
        ("mhqa", PLANNER, "The answer is 7."),
        ("mhqa", PLANNER, "<plan> never closed"),
        ("mhqa", PLANNER, ""),
    ],
)
def test_a_reply_that_is_not_of_its_role_is_malformed(profile: str, agent: str, reply: str):
    assert after_reply(PROFILES[profile], agent, reply) == MALFORMED


def test_a_result_goes_back_to_its_caller_unless_only_a_reflection_may_follow():
    assert after_tool(PROFILES["web"], "crawl_page") == Speak(SEARCHER)
    assert after_tool(PROFILES["mhqa"], "wiki_search") == Speak(SEARCHER)
    assert after_tool(PROFILES["code"], "code") == Speak(CRITIC)


def test_a_score_is_the_first_thing_in_a_double_check():
    assert [score_of(text) for text in (" 2 may be", "4", "42", "so 3", "5 good")] == [2, 4, None, None, None]


def test_a_role_is_told_of_its_own_functions_only():
    for name, profile in PROFILES.items():
        for role in ROLES:
            prompt = system_prompt(role, name).split("nothing outside of tags:\n")[1]
            listed = {line.split(">")[0].removeprefix("- <") for line in prompt.splitlines() if line.startswith("- <")}
            for tag in TAGS.values():
                words = spans_of(Brief(role), profile, f"<{tag.name}> 4</{tag.name}>")
                assert (words is not None) == (tag.name in listed)


def test_a_role_may_be_given_some_of_the_tools_and_a_duty_of_its_own():
    prompt = system_prompt(SEARCHER, "web", "Find the page.", ("crawl_page",))
    assert "Find the page." in prompt
    assert "<crawl_page>" in prompt
    assert "<web_search>" not in prompt
    search = "<web_search> a</web_search>"
    assert after_reply(PROFILES["web"], SEARCHER, search, ("crawl_page",)) == MALFORMED
    assert after_reply(PROFILES["web"], SEARCHER, search) == CallTool(ToolCall("web_search", "a"))


# The thinker.


def test_a_thinker_names_who_may_write_something_now():
    profile = PROFILES["web"]
    searched = parse("<plan> p</plan><web_search> a</web_search><observation> b</observation>").chain
    assert may_speak(profile, ()) == {PLANNER}
    assert may_speak(profile, searched) == {PLANNER, SEARCHER, CRITIC}
    names = may_speak(profile, searched)
    assert after_thinker(profile, "<think> unclear. next: critic</think>", names) == Speak(CRITIC)
    assert after_thinker(profile, "<think> Next: Searcher.</think>", names) == Speak(SEARCHER)
    assert after_thinker(profile, "<think> next: verifier</think>", names) == MALFORMED
    assert after_thinker(profile, "<think> go on</think>", names) == MALFORMED
    assert after_thinker(profile, "<plan> next: critic</plan>", names) == MALFORMED


def test_a_new_plan_is_the_planners_the_critics_first_or_not_to_be_had():
    search = "<plan> p</plan><{0}> a</{0}><observation> b</observation>"
    assert replans(PROFILES["mhqa"], parse(search.format("wiki_search")).chain) == PLANNER
    assert replans(PROFILES["web"], parse(search.format("web_search")).chain) == CRITIC
    assert replans(PROFILES["code"], parse(search.format("code")).chain) is None


def test_calls_are_counted_from_the_last_plan():
    call = "<wiki_search> a</wiki_search><observation> b</observation>"
    plan = "<plan> p</plan>"
    assert [calls_since_plan(parse(text).chain) for text in (plan, plan + call * 3, plan + call * 2 + plan + call)] == [
        0,
        3,
        1,
    ]
