"""Messages in the forms of many endpoints, as one."""

import json
from typing import Any

import pytest

from coa.distill.sources.foreign import Reason, Refused
from coa.distill.sources.messages import Message, ToolUse, read_messages

SEARCH = {"name": "search", "arguments": '{"query": "a"}'}
USE = ToolUse("search", '{"query": "a"}', "c1")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"role": "assistant", "content": "Berg"}, Message("assistant", "Berg")),
        ({"role": "Assistant", "content": [{"type": "text", "text": "Berg"}]}, Message("assistant", "Berg")),
        ({"role": "assistant", "content": ["Be", "rg"]}, Message("assistant", "Be\nrg")),
        ({"role": "assistant", "content": None, "refusal": None}, Message("assistant")),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, Message("assistant", "No.")),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}, {"type": "text", "text": "Who ?"}]},
            Message("user", "Who ?", attached="image_url"),
        ),
        ({"role": "user", "content": [{"type": "input_image"}]}, Message("user", attached="input_image")),
        ({"role": "user", "content": [{"type": "image", "source": {}}]}, Message("user", attached="image")),
        ({"role": "user", "content": [{"type": "document", "text": "x"}]}, Message("user", attached="document")),
        ({"role": "user", "content": [{"inline_data": {}}]}, Message("user", attached="inline_data")),
        ({"role": "user", "content": [7]}, Message("user", attached="the value 7")),
        ({"role": "user", "content": {"type": "input_audio"}}, Message("user", attached="input_audio")),
        ({"role": "user", "content": "Who ?", "images": ["aGk="]}, Message("user", "Who ?", attached="images")),
        ({"role": "assistant", "content": None, "audio": {"id": "a"}}, Message("assistant", attached="audio")),
        ({"role": "user", "content": [{"type": "text", "text": None}, {"text": "x"}]}, Message("user", "x")),
        ({"role": "user", "content": [{"type": "text", "text": {"value": "x"}}]}, Message("user", attached="text")),
        ({"role": "user", "content": "x", "images": []}, Message("user", "x")),
        ({"role": "tool", "content": {"town": "Berg"}}, Message("tool", '{"town": "Berg"}')),
        ({"role": "tool", "content": [{"town": "Berg"}]}, Message("tool", '[{"town": "Berg"}]')),
        ({"role": "tool", "content": 7}, Message("tool", "7")),
        ({"role": "tool-response", "content": [{"type": "image"}]}, Message("tool", attached="image")),
        ({"role": "developer", "content": "Rules"}, Message("system", "Rules")),
        (
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": SEARCH}],
            },
            Message("assistant", uses=(USE,)),
        ),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
            Message("assistant", uses=(ToolUse("f", {"a": 1}),)),
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}]},
            Message("assistant", uses=(ToolUse("f", "x", "c"),)),
        ),
        (
            {"role": "assistant", "tool_calls": json.dumps([{"id": "c1", "function": SEARCH}])},
            Message("assistant", uses=(USE,)),
        ),
        ({"role": "assistant", "tool_calls": {"id": "c1", "function": SEARCH}}, Message("assistant", uses=(USE,))),
        (
            {"role": "assistant", "tool_calls": [json.dumps({"id": "c1", "function": SEARCH})]},
            Message("assistant", uses=(USE,)),
        ),
        ({"role": "assistant", "function_call": json.dumps(SEARCH)}, Message("assistant", uses=(ToolUse(**SEARCH),))),
        ({"role": "ipython", "content": "seen"}, Message("tool", "seen")),
        ({"role": "prompter", "content": "Who ?"}, Message("user", "Who ?")),
        (
            {"role": "assistant", "function_call": SEARCH},
            Message("assistant", uses=(ToolUse(**SEARCH),)),
        ),
        (
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "Look."},
                    {"type": "tool_use", "id": "c1", "name": "search", "input": {"query": "a"}},
                ],
            },
            Message("assistant", "Look.", "hm", (ToolUse("search", {"query": "a"}, "c1"),)),
        ),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
            Message("assistant", thought="hm"),
        ),
        ({"role": "assistant", "content": "x", "reasoning_content": "hm"}, Message("assistant", "x", "hm")),
        (
            {"role": "assistant", "content": "x", "reasoning": "hm"},
            Message("assistant", "x", "hm"),
        ),
        (
            {"role": "assistant", "content": "x", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
            Message("assistant", "x", "hm"),
        ),
        (
            {"role": "assistant", "content": "x", "thinking_blocks": [{"type": "thinking", "thinking": "hm"}]},
            Message("assistant", "x", "hm"),
        ),
        ({"role": "tool", "tool_call_id": "c1", "content": "seen"}, Message("tool", "seen", answers="c1")),
        ({"role": "function", "name": "search", "content": "seen"}, Message("tool", "seen", name="search")),
    ],
)
def test_a_message_is_read_in_whatever_form_it_comes(raw: dict[str, Any], message: Message) -> None:
    assert read_messages([raw]) == (message,)


def test_results_in_the_parts_of_a_users_message_are_messages_of_their_own() -> None:
    seen = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "seen"}]}
    told = {"type": "text", "text": "Go on."}
    assert read_messages(
        [{"role": "user", "content": [seen, {**seen, "tool_use_id": "c2", "content": "more"}, told]}]
    ) == (
        Message("tool", "seen", answers="c1"),
        Message("tool", "more", answers="c2"),
        Message("user", "Go on."),
    )
    assert read_messages([{"role": "user", "content": [seen]}]) == (Message("tool", "seen", answers="c1"),)


def test_a_picture_in_a_result_is_named() -> None:
    seen = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "image", "source": {}}]}
    assert read_messages([{"role": "user", "content": [seen]}]) == (Message("tool", answers="c1", attached="image"),)


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (None, "its messages are missing, not a list"),
        ("hello", "its messages are the text 'hello', not a list"),
        ({"role": "user"}, "its messages are an object with role, not a list"),
        ([{"role": "user"}, "hello"], "message 2 is the text 'hello', not an object"),
        ([{"role": "critic", "content": "x"}], "message 1 has the role 'critic', which is not known"),
        ([{"role": "assistant", "tool_calls": "search"}], "a tool call is the text 'search', not an object"),
        ([{"from": "human", "value": "x"}], "message 1 is an object with from, value, without a role"),
    ],
)
def test_what_is_no_list_of_messages_is_refused_with_what_it_is(raw: object, found: str) -> None:
    with pytest.raises(Refused) as caught:
        read_messages(raw)
    assert (caught.value.reason, caught.value.detail) == (Reason.UNREADABLE, found)
