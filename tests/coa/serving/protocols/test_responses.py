"""The Responses API as it is written: held against the published schema, and whole however its stream is cut."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import responses as openai
from openai.types.responses.response_item import McpCall
from openresponses_types import types as schema
from pydantic import BaseModel, ConfigDict

from coa.agent.grammar import ANSWER, OBSERVATION, TAGS, Kind
from coa.json_object import Json
from coa.serving.chain import Closed, Opened, Text
from coa.serving.detail import AsThought, Detail
from coa.serving.events import TOOL_DOWN, Broke, Event, Finished, Returned, ServedUsage
from coa.serving.faults import ApiError
from coa.serving.protocols.plain_responses import PlainWriter, chat_of
from coa.serving.protocols.resource import Resource
from coa.serving.protocols.responses import ResponseWriter
from coa.serving.protocols.schemas import CreateResponse
from coa.serving.requests import Defaults, fields_of
from coa.tools.mcp.binding import McpBinding
from coa.tools.mcp.config import McpTagConfig
from coa.types import Status
from tests.support.policies import AGENT

OF_TYPE: dict[str, type[BaseModel]] = {
    model.model_fields["type"].annotation: model  # type: ignore[misc]
    for model in vars(schema).values()
    if isinstance(model, type) and issubclass(model, BaseModel) and model.__name__.endswith("StreamingEvent")
}
EVENTS = {next(iter(kind)).value: model for kind, model in OF_TYPE.items()}  # type: ignore[call-overload]
"""The schema of each event, by its type."""
MCP_EVENTS: dict[str, type[BaseModel]] = {
    "response.mcp_call.in_progress": openai.ResponseMcpCallInProgressEvent,
    "response.mcp_call_arguments.delta": openai.ResponseMcpCallArgumentsDeltaEvent,
    "response.mcp_call_arguments.done": openai.ResponseMcpCallArgumentsDoneEvent,
    "response.mcp_call.completed": openai.ResponseMcpCallCompletedEvent,
    "response.mcp_call.failed": openai.ResponseMcpCallFailedEvent,
}
"""The same of OpenAI's events of tools of MCP servers, which the standard lacks."""
OPENAI: dict[str, type[BaseModel]] = {
    get_args(model.model_fields["type"].annotation)[0]: model
    for model in get_args(get_args(openai.ResponseStreamEvent)[0])
}
"""The events that OpenAI's client knows, by type."""
FORECAST = McpBinding("weather", "get_forecast", McpTagConfig(argument="city", arguments={"days": 3}))
ADD = McpBinding("sums", "add", McpTagConfig(), {"properties": {"a": {}, "b": {}}, "required": ["a", "b"]})
MCP = {"wiki_search": FORECAST, "code": ADD}


def resource(**said: Any) -> Resource:
    numbers = itertools.count()
    body = CreateResponse.model_validate({"model": "afm", "input": "Who ?", **said})
    return Resource(fields_of(body, Defaults(AGENT), "resp_1", 7), lambda name: f"{name}_{next(numbers)}", Detail.all)


def standard(event: Json) -> bool:
    """Whether the event, and the items that it shows, are of the standard alone, without OpenAI's tools and ours."""
    shown = [event.get("item"), *event.get("response", {}).get("output", ())]
    known = {"message", "function_call", "reasoning"}
    return event["type"] in EVENTS and all(item["type"] in known for item in shown if item)


def check(events: Sequence[Json]) -> None:
    """Each event by its schema, where it has one; each item is added, told of and done in turn; the numbers have no
    gap."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    opened: str | None = None
    for event in events:
        if standard(event):
            EVENTS[event["type"]].model_validate(event)
        if event["type"] in MCP_EVENTS:
            MCP_EVENTS[event["type"]].model_validate(event)
        if event.get("item", {}).get("type") == "mcp_call":
            McpCall.model_validate(event["item"])
        match event["type"]:
            case "response.output_item.added":
                assert opened is None
                opened = event["item"]["id"]
            case "response.output_item.done":
                assert event["item"]["id"] == opened
                opened = None
            case _ if "item_id" in event:
                assert event["item_id"] == opened
    assert opened is None
    last = events[-1]["response"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert last["output"] == done
    if all(standard({"type": "response.completed", "item": item}) for item in done):
        schema.ResponseResource.model_validate(last)


SPOKEN = [name for name in TAGS if name != OBSERVATION]
TEXTS = st.lists(st.text(max_size=5), max_size=3)
STEPS = st.lists(st.tuples(st.sampled_from(SPOKEN), TEXTS, st.booleans()), max_size=5)
ENDS: st.SearchStrategy[Event] = st.sampled_from(
    [
        *(
            Finished(status=status, answer="", usage=ServedUsage(input_tokens=3, output_tokens=4), limit="max_turns")
            for status in Status
        ),
        Broke(code="server_error", message="gone"),
        Broke(code=TOOL_DOWN, message="gone"),
    ]
)


@given(STEPS, ENDS, st.sampled_from([MCP, {}]))
def test_every_course_of_an_episode_is_told_in_order_and_as_the_schema_has_it(
    steps: list[tuple[str, list[str], bool]], end: Event, mcp: Mapping[str, McpBinding]
) -> None:
    made = resource()
    writer, events = ResponseWriter(made, mcp), made.begin()
    for tag, texts, whole in steps:
        course: list[Event] = [Opened(tag), *map(Text, texts)]
        if whole:
            course.append(Closed(tag, "".join(texts), 5))
            if TAGS[tag].kind is Kind.TOOL:
                course.append(Returned(tool=tag, text="found", seconds=0.1, tokens=2))
        events += [told for event in course for told in writer.take(event)]
    events += writer.take(end)
    check(events)
    assert len(made.response["output"]) == len(steps)


CLOSED_SCHEMAS = {
    name: type(f"Closed{model.__name__}", (model,), {"model_config": ConfigDict(extra="forbid")})
    for name, model in EVENTS.items()
}


@given(STEPS, ENDS)
def test_by_default_an_episode_is_one_thought_and_an_answer_in_events_that_both_schemas_have(
    steps: list[tuple[str, list[str], bool]], end: Event
) -> None:
    body = CreateResponse.model_validate({"model": "afm", "input": "Who ?"})
    numbers = itertools.count()
    made = Resource(fields_of(body, Defaults(AGENT), "resp_1", 7), lambda name: f"{name}_{next(numbers)}")
    writer, thought, events = ResponseWriter(made, MCP), AsThought(), made.begin()
    course: list[Event] = []
    for tag, texts, whole in steps:
        course += [Opened(tag), *map(Text, texts)]
        if whole:
            course.append(Closed(tag, "".join(texts), 5))
            if TAGS[tag].kind is Kind.TOOL:
                course.append(Returned(tool=tag, text="found", seconds=0.1, tokens=2))
    for event in (*course, end):
        events += [told for shown in thought.take(event) for told in writer.take(shown)]
    check(events)
    assert "coa:" not in json.dumps(events).replace("<coa:", "")
    for event in events:
        CLOSED_SCHEMAS[event["type"]].model_validate(event)
        OPENAI[event["type"]].model_validate(event)
    schema.ResponseResource.model_validate(made.response)
    kinds = [item["type"] for item in made.response["output"]]
    assert set(kinds) <= {"reasoning", "message"}
    assert ("reasoning", "reasoning") not in itertools.pairwise(kinds)


def called(tag: str, text: str, *then: Event) -> tuple[Json, list[Json]]:
    """The item of a tool of an MCP server, and the events."""
    made = resource()
    writer, events = ResponseWriter(made, MCP), made.begin()
    for event in (Opened(tag), Text(text), Closed(tag, text, 5), *then):
        events += writer.take(event)
    check(events)
    [item] = made.response["output"]
    return item, events


ENDED = Finished(status=Status.TRUNCATED, answer="", usage=ServedUsage(), limit="max_seconds", versions=(4, 6))


def test_a_call_of_a_tool_of_an_mcp_server_is_openais_item_for_it() -> None:
    item, events = called(
        "wiki_search", "Lisbon", Returned(tool="wiki_search", text="rain", seconds=0.5, tokens=2), ENDED
    )
    arguments = '{"city": "Lisbon", "days": 3}'
    of_ours = {"coa:tokens": 5, "coa:seconds": 0.5, "coa:observed_tokens": 2}
    assert item == {
        "type": "mcp_call",
        "id": item["id"],
        "server_label": "weather",
        "name": "get_forecast",
        "approval_request_id": None,
        "arguments": arguments,
        "output": "rain",
        "error": None,
        "status": "completed",
        **of_ours,
    }
    told = [event for event in events if event["type"].startswith("response.mcp_call")]
    assert [event["type"].removeprefix("response.mcp_call") for event in told] == [
        ".in_progress",
        "_arguments.delta",
        "_arguments.done",
        ".completed",
    ]
    assert told[1]["delta"] == told[2]["arguments"] == arguments


def test_a_server_that_is_away_fails_the_call_and_the_response() -> None:
    item, events = called("wiki_search", "Lisbon", Broke(code=TOOL_DOWN, message="nobody answers"))
    error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "nobody answers"}]}
    assert (item["status"], item["error"], item["output"]) == ("failed", error, None)
    assert [event["type"] for event in events[-3:]] == [
        "response.mcp_call.failed",
        "response.output_item.done",
        "response.failed",
    ]


@pytest.mark.parametrize(("text", "arguments"), [('{"a": 1, "b": 2}', {"a": 1, "b": 2}), ("1 + 2", "1 + 2")])
def test_text_that_stands_for_no_arguments_is_told_as_it_is(text: str, arguments: Any) -> None:
    item, _ = called("code", text, ENDED)
    assert (json.loads(item["arguments"]), item["status"]) == (arguments, "incomplete")


def test_a_response_names_the_versions_of_the_weights_that_sampled_it() -> None:
    _, events = called("code", "1", ENDED)
    assert events[0]["response"]["coa:versions"] == []
    assert events[-1]["response"]["coa:versions"] == [4, 6]


def test_the_status_says_how_an_episode_ended() -> None:
    found = {}
    for status in Status:
        made = resource()
        limit = "max_seconds" if status in (Status.TRUNCATED, Status.OUT_OF_TURNS) else ""
        ResponseWriter(made).take(Finished(status=status, answer="", usage=ServedUsage(), limit=limit))
        found[status.value] = made.response["status"], (made.response["incomplete_details"] or {}).get("reason")
    assert found == {
        "answered": ("completed", None),
        "malformed": ("failed", None),
        "truncated": ("incomplete", "max_seconds"),
        "out_of_turns": ("incomplete", "max_seconds"),
    }


def chunk(finish: str | None = None, **delta: Any) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


USED = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}}


def test_text_of_the_model_alone_is_one_message() -> None:
    made = resource()
    writer, events = PlainWriter(made), made.begin()
    for one in (chunk(role="assistant", content=""), chunk(content="It "), chunk(content="is."), chunk("stop"), USED):
        events += writer.take(one)
    events += writer.end(9, 4)
    check(events)
    assert made.answer == "It is."
    assert made.response["usage"]["total_tokens"] == 11


def test_calls_of_a_clients_tools_are_items_with_their_arguments() -> None:
    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
    made = resource(tools=[tool])
    writer, events = PlainWriter(made), made.begin()

    def call(index: int, arguments: str, **first: Any) -> Json:
        name = {"name": first.pop("name")} if first else {}
        return chunk(tool_calls=[{"index": index, **first, "function": {**name, "arguments": arguments}}])

    said = (
        call(0, "", id="call_1", name="get_weather"),
        call(0, '{"location"'),
        call(0, ': "Oslo"}'),
        call(1, "{}", id="call_2", name="get_weather"),
        chunk("tool_calls"),
        USED,
    )
    for one in said:
        events += writer.take(one)
    events += writer.end(9, 4)
    check(events)
    calls = [(item["name"], item["call_id"], item["arguments"]) for item in made.response["output"]]
    assert calls == [("get_weather", "call_1", '{"location": "Oslo"}'), ("get_weather", "call_2", "{}")]
    kinds = [event["type"] for event in events]
    assert "response.function_call_arguments.delta" in kinds
    assert "response.function_call_arguments.done" in kinds


def test_what_was_cut_off_is_incomplete() -> None:
    made = resource()
    writer, events = PlainWriter(made), made.begin()
    for one in (chunk(content="It "), chunk("length"), USED):
        events += writer.take(one)
    events += writer.end(9, 4)
    check(events)
    assert made.response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert made.response["output"][0]["status"] == "incomplete"


def test_a_request_for_the_model_alone_is_one_of_chat() -> None:
    body = CreateResponse.model_validate(
        {
            "model": "afm:plain",
            "instructions": "Be short.",
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather ?"}]},
                {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "rain"},
            ],
            "tools": [{"type": "function", "name": "get_weather", "parameters": {}, "strict": None}],
            "tool_choice": {"type": "function", "name": "get_weather"},
            "text": {"format": {"type": "json_schema", "name": "w", "schema": {"type": "object"}}},
            "max_output_tokens": 7,
        }
    )
    chat = chat_of(body, [{"role": "user", "content": "Hi"}])
    assert [message["role"] for message in chat["messages"]] == ["system", "user", "user", "assistant", "tool"]
    assert chat["messages"][2]["content"] == [{"type": "text", "text": "Weather ?"}]
    assert chat["messages"][3]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": "{}"}
    assert chat["tools"] == [{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "get_weather"}}
    assert chat["response_format"]["json_schema"] == {"name": "w", "schema": {"type": "object"}}
    assert chat["max_completion_tokens"] == 7


def test_calls_in_a_row_are_of_one_message_and_each_has_its_result() -> None:
    call = {"type": "function_call", "name": "get_weather", "arguments": "{}"}
    parts = [{"type": "input_text", "text": "ra"}, {"type": "input_text", "text": "in"}]
    body = CreateResponse.model_validate(
        {
            "model": "afm:plain",
            "input": [
                {"role": "user", "content": "Weather ?"},
                {**call, "call_id": "a"},
                {**call, "call_id": "b"},
                {"type": "function_call_output", "call_id": "a", "output": parts},
                {"type": "function_call_output", "call_id": "b", "output": "sun"},
                {**call, "call_id": "c"},
            ],
        }
    )
    messages = chat_of(body, [])["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [one["id"] for one in messages[1]["tool_calls"]] == ["a", "b"]
    assert [(one["tool_call_id"], one["content"]) for one in messages[2:4]] == [("a", "rain"), ("b", "sun")]
    assert [one["id"] for one in messages[4]["tool_calls"]] == ["c"]


def test_of_allowed_tools_the_model_gets_no_others() -> None:
    tools = [{"type": "function", "name": name} for name in ("a", "b", "c")]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "b"}]}
    body = {"model": "afm:plain", "input": "x", "tools": tools}
    chat = chat_of(CreateResponse.model_validate({**body, "tool_choice": choice}), [])
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["b"]
    assert chat["tool_choice"] == "required"
    odd = {**choice, "tools": [{"type": "function", "name": "d"}]}
    with pytest.raises(ApiError, match="tool_choice allows 'd', which is not in tools"):
        chat_of(CreateResponse.model_validate({**body, "tool_choice": odd}), [])


def test_what_vllm_adds_to_the_protocol_is_passed_on() -> None:
    more = {"seed": 3, "stop": ["x"], "top_k": 5, "min_p": 0.1, "structured_outputs": {"choice": ["a", "b"]}}
    chat = chat_of(CreateResponse.model_validate({"model": "afm:plain", "input": "x", **more}), [])
    assert {name: chat[name] for name in more} == more


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}]},
            "text only",
        ),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input items of type 'item_reference'"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "the model reads text only"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools of type 'web_search' are the agent's"),
    ],
)
def test_what_chat_does_not_know_is_refused(said: Json, told: str) -> None:
    with pytest.raises(ApiError, match=told):
        chat_of(CreateResponse.model_validate({"model": "afm:plain", **said}), ())


def test_the_answer_is_the_last_message() -> None:
    made = resource()
    writer = ResponseWriter(made)
    for event in (Opened(ANSWER), Text("Be"), Text("rg"), Closed(ANSWER, "Berg", 3)):
        writer.take(event)
    assert made.answer == "Berg"
