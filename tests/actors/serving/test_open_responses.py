"""The seven cases of Open Responses' published compliance suite, for the model alone and for the agent: each answer by
the published schema of the whole resource, and each streamed event by its own."""

import pytest
from openresponses_types import types as schema

from coa.json_object import Json
from tests.actors.serving.test_server import TURNS
from tests.coa.serving.protocols.test_responses import EVENTS
from tests.support.agent_server import Asking, make_server
from tests.support.plain_model import ScriptedPlain
from tests.support.runners import Saying

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a place",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
CASES: dict[str, tuple[Json, list[str]]] = {
    "basic text": ({"input": [{"type": "message", "role": "user", "content": "Say hello."}]}, ["user"]),
    "system prompt": (
        {
            "input": [
                {"type": "message", "role": "system", "content": "You are a pirate."},
                {"type": "message", "role": "user", "content": "Say hello."},
            ]
        },
        ["system", "user"],
    ),
    "multi-turn": (
        {
            "input": [
                {"type": "message", "role": "user", "content": "I am Berg."},
                {"type": "message", "role": "assistant", "content": "Hello Berg."},
                {"type": "message", "role": "user", "content": "Who am I ?"},
            ]
        },
        ["user", "assistant", "user"],
    ),
}
TOOLS = {"input": [{"type": "message", "role": "user", "content": "Weather in Oslo ?"}], "tools": [WEATHER]}
IMAGE = {
    "input": [
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is this ?"},
                {"type": "input_image", "image_url": PIXEL},
            ],
        }
    ]
}


@pytest.fixture
def plain() -> ScriptedPlain:
    return ScriptedPlain()


@pytest.fixture
def asking(plain: ScriptedPlain) -> Asking:
    server = make_server(Saying(*TURNS))
    server.plain = plain  # type: ignore[assignment]
    return Asking(server)


def completed(asking: Asking, body: Json, model: str = "afm:plain") -> schema.ResponseResource:
    found = asking.post("/v1/responses", {"model": model, **body})
    assert found.status_code == 200, found.text
    made = schema.ResponseResource.model_validate(found.json())
    assert made.status == "completed"
    assert made.output
    return made


def streamed(asking: Asking, body: Json, model: str = "afm:plain") -> list[Json]:
    *events, done = asking.events("/v1/responses", {"model": model, **body})
    assert done == "[DONE]"
    for event in events:
        EVENTS[event["type"]].model_validate(event)
    assert schema.ResponseResource.model_validate(events[-1]["response"]).status == "completed"
    return events


@pytest.mark.parametrize("case", CASES)
def test_text_in_a_conversation_is_answered(asking: Asking, plain: ScriptedPlain, case: str) -> None:
    body, roles = CASES[case]
    made = completed(asking, body)
    assert made.model_dump(mode="json")["output"][0]["content"][0]["text"] == "It is."
    assert [message["role"] for message in plain.asked[0]["messages"]] == roles


def test_an_answer_is_streamed(asking: Asking) -> None:
    events = streamed(asking, CASES["basic text"][0])
    assert "".join(one["delta"] for one in events if one["type"] == "response.output_text.delta") == "It is."


@pytest.mark.parametrize("case", CASES)
def test_the_agent_answers_in_a_conversation_by_the_same_schema(asking: Asking, case: str) -> None:
    body, _ = CASES[case]
    whole = completed(asking, body, "afm").model_dump(mode="json")
    assert {item["type"] for item in whole["output"]} <= {"reasoning", "message", "function_call"}
    last = streamed(asking, body, "afm")[-1]["response"]
    for answer in (whole, last):
        assert answer["output"][-1]["type"] == "message"
        assert answer["output"][-1]["content"][0]["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_clients_tool_beside_the_agents_own_is_refused_in_one_line(asking: Asking, stream: bool) -> None:
    answer = asking.post("/v1/responses", {"model": "afm", "stream": stream, **TOOLS})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "tools")
    assert "\n" not in error["message"]


def test_a_clients_tool_is_called(asking: Asking) -> None:
    [call] = completed(asking, TOOLS).model_dump(mode="json")["output"]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "get_weather", '{"location": "Oslo"}')


def test_a_call_of_a_clients_tool_is_streamed(asking: Asking) -> None:
    events = streamed(asking, TOOLS)
    kinds = [event["type"] for event in events]
    for kind in ("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"):
        assert f"response.{kind}" in kinds
    [done] = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert (done["type"], done["arguments"]) == ("function_call", '{"location": "Oslo"}')


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["afm", "afm:plain"])
def test_an_image_is_refused_by_a_model_of_text(asking: Asking, plain: ScriptedPlain, model: str, stream: bool) -> None:
    answer = asking.post("/v1/responses", {"model": model, "stream": stream, **IMAGE})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    if model == "afm:plain":
        [message] = plain.asked[0]["messages"]
        assert message["content"][1] == {"type": "image_url", "image_url": {"url": PIXEL}}, "the handler decides"


def test_a_response_of_the_model_alone_in_the_background_is_one_of_the_schema(asking: Asking) -> None:
    begun = asking.post("/v1/responses", {"model": "afm:plain", "background": True, **CASES["basic text"][0]}).json()
    assert schema.ResponseResource.model_validate(begun).status == "queued"
    while (found := asking.request("GET", f"/v1/responses/{begun['id']}").json())["status"] != "completed":
        assert schema.ResponseResource.model_validate(found).status in ("queued", "in_progress")
    assert found["output"][0]["content"][0]["text"] == "It is."


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"input": []}, "the last message has to be the user's"),
        ({"input": "  "}, "the last message is empty"),
        ({"input": 3}, "input"),
        ({"input": [{"role": "emperor", "content": "x"}]}, "role: "),
        ({"input": [{"content": "x"}]}, "role: "),
        ({"input": [3]}, "input"),
        ({"input": "x", "text": "x"}, "text"),
        ({"input": "x", "tools": 5}, "tools"),
        ({"input": "x", "max_tool_calls": -1}, "max_tool_calls"),
        ({"input": "x", "background": "soon"}, "background"),
        ({"input": "x", "model": "other"}, "no model 'other'"),
        ({"input": "x", "previous_response_id": "resp_none"}, "no response 'resp_none'"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_mistake_in_a_response_is_told(asking: Asking, body: Json, told: str, stream: bool) -> None:
    answer = asking.post("/v1/responses", {"model": "afm", "stream": stream, **body})
    assert answer.status_code in (400, 404), answer.text
    assert told in answer.json()["error"]["message"]
