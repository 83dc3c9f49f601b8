"""Which recorded call a request continues."""

from typing import Any

import pytest

from coa.agent.programs.conversation import Conversation, Conversations, normal
from tests.coa.agent.programs.test_tree import call

USER = {"role": "user", "content": "Hi"}
REPLY = {"role": "assistant", "content": "Yes"}


def conversation(*messages: Any, tools: Any = None) -> Conversation:
    return Conversation.of(messages, tools)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "user", "content": "Hi"}, {"role": "user", "content": [{"type": "text", "text": "Hi "}]}),
        ({"role": "assistant", "content": None}, {"role": "assistant", "content": "", "tool_calls": []}),
        ({"role": "tool", "tool_call_id": "a", "content": "5"}, {"role": "tool", "tool_call_id": "b", "content": "5"}),
        ({"role": "assistant", "reasoning": "hm", "content": "5"}, {"role": "assistant", "content": "5"}),
        (
            {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1,"b":2}'}}]},
            {"tool_calls": iter([{"id": "2", "function": {"name": "f", "arguments": '{"b": 2, "a": 1}'}}])},
        ),
    ],
)
def test_messages_are_equal_that_a_model_reads_as_equal(one: Any, other: Any) -> None:
    assert normal(one) == normal(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "user", "content": "Hi"}, {"role": "system", "content": "Hi"}),
        ({"content": "a b"}, {"content": "ab"}),
        ({"content": [{"text": "a"}, {"image_url": "x"}]}, {"content": [{"text": "a"}]}),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": "1"}}]},
            {"tool_calls": [{"function": {"name": "g", "arguments": "1"}}]},
        ),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": "no json"}}]},
            {"tool_calls": [{"function": {"name": "f", "arguments": '"no json"'}}]},
        ),
    ],
)
def test_others_are_not(one: Any, other: Any) -> None:
    assert normal(one) != normal(other) or "no json" in str(one)


def test_a_request_continues_the_call_of_which_it_has_most() -> None:
    known = Conversations()
    first, second = call(0, "u", "a"), call(1, "uat", "b")
    known.add(conversation(USER), REPLY, first)
    known.add(conversation(USER, REPLY, USER), REPLY, second)
    assert known.continued(conversation(USER)) is None
    assert known.continued(conversation(USER, REPLY)) == (1, first)
    assert known.continued(conversation(USER, REPLY, USER)) == (1, first)
    assert known.continued(conversation(USER, REPLY, USER, REPLY, USER, USER)) == (3, second)


def test_what_was_changed_or_is_offered_other_tools_continues_nothing() -> None:
    known = Conversations()
    known.add(conversation(USER), REPLY, call(0, "u", "a"))
    assert known.continued(conversation(USER, {**REPLY, "content": "No"}, USER)) is None
    assert known.continued(conversation({**USER, "content": "Ho"}, REPLY, USER)) is None
    tools = [{"type": "function"}]
    assert known.continued(conversation(USER, REPLY, USER, tools=tools)) is None
    with_tools = call(1, "v", "a")
    known.add(conversation(USER, tools=tools), REPLY, with_tools)
    assert known.continued(conversation(USER, REPLY, USER, tools=tools)) == (1, with_tools)


def test_of_two_calls_with_the_same_reply_the_later_one_is_continued() -> None:
    known = Conversations()
    later = call(1, "u", "a")
    for one in (call(0, "u", "a"), later):
        known.add(conversation(USER), REPLY, one)
    assert known.continued(conversation(USER, REPLY, USER)) == (1, later)
