"""Responses in the background, and what bounds an episode, asked over ASGI."""

import asyncio
from typing import Any

import pytest

from coa.agent.episode import AgentConfig
from coa.agent.grammar import Span
from coa.errors import ToolDown
from coa.serving.faults import ApiError
from coa.serving.resumption import HEADER, Origin
from coa.serving.shared import Shared
from coa.serving.store import StoreConfig, Stored
from coa.tools.base import ToolCall
from tests.support.agent_server import LOOP, Asking, make_server
from tests.support.policies import AGENT
from tests.support.runners import Saying, echo

TURNS = ((Span("think", "hm"), Span("plan", "find it"), Span("wiki_search", "Arden")), (Span("answer", "Berg"),))
ALL = {"detail": "all"}
ASKED = {"model": "afm", "input": "Who is the mayor of Arden ?", "background": True, "coa": ALL}


class Holding:
    """A tool that returns once it may; it counts those that wait for it."""

    def __init__(self) -> None:
        self.may, self.waiting = asyncio.Event(), 0

    async def __call__(self, call: ToolCall) -> str | ToolDown:
        self.waiting += 1
        try:
            await self.may.wait()
            return await echo(call)
        finally:
            self.waiting -= 1


@pytest.fixture
def tool() -> Holding:
    return Holding()


@pytest.fixture
def asking(tool: Holding) -> Asking:
    return Asking(make_server(Saying(*TURNS), tool))


LOOKS = 60_000
"""Of some milliseconds each: only what never happens takes all of them."""


def until(asking: Asking, id: str, status: str, items: int = 0) -> Any:
    """The response once it has the status, and so many items."""
    for _ in range(LOOKS):
        found = asking.request("GET", f"/v1/responses/{id}").json()
        asked = [item["queries"] for item in found["output"] if "queries" in item]
        if found["status"] == status and len(found["output"]) >= items and [] not in asked:
            return found
        LOOP.run(asyncio.sleep(0.005))
    raise AssertionError(found)


def idle(asking: Asking, tool: Holding) -> bool:
    """Whether nothing of any episode is left, soon."""
    for _ in range(LOOKS):
        if not asking.request("GET", "/v1/load").json()["episodes"] and not tool.waiting:
            return True
        LOOP.run(asyncio.sleep(0.005))
    return False


def test_a_response_in_the_background_is_read_while_it_is_made_and_after(asking: Asking, tool: Holding) -> None:
    begun = asking.post("/v1/responses", ASKED).json()
    assert (begun["status"], begun["background"], begun["output"]) == ("queued", True, [])
    half = until(asking, begun["id"], "in_progress", 3)
    assert half["output"][2]["status"] == "in_progress"
    assert half["output"][2]["queries"] == ["Arden"]
    assert half["usage"] is None
    follow = {"model": "afm", "input": "And ?", "previous_response_id": begun["id"]}
    assert "has not ended" in asking.post("/v1/responses", follow).json()["error"]["message"]
    tool.may.set()
    whole = until(asking, begun["id"], "completed")
    assert [item["type"] for item in whole["output"]] == ["reasoning", "coa:plan", "file_search_call", "message"]
    assert whole["output"][-1]["content"][0]["text"] == "Berg"
    assert asking.request("POST", f"/v1/responses/{begun['id']}/cancel").json() == whole, "it had ended"
    assert asking.post("/v1/responses", follow).json()["status"] == "completed"


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_a_response_that_is_cancelled_ends_its_episode_and_its_tool_call(
    asking: Asking, tool: Holding, how: str
) -> None:
    id = asking.post("/v1/responses", ASKED).json()["id"]
    until(asking, id, "in_progress", 3)
    assert tool.waiting == 1
    if how == "delete":
        assert asking.request("DELETE", f"/v1/responses/{id}").json()["deleted"] is True
        assert asking.request("GET", f"/v1/responses/{id}").status_code == 404
    else:
        cancelled = asking.request("POST", f"/v1/responses/{id}/cancel").json()
        assert cancelled["status"] == "cancelled"
        assert {item["type"]: item.get("status") for item in cancelled["output"]} == {
            "reasoning": None,
            "coa:plan": "completed",
            "file_search_call": "incomplete",
        }
    assert idle(asking, tool)
    if how == "cancel":
        assert asking.request("GET", f"/v1/responses/{id}").json() == cancelled


def test_what_the_replica_that_has_ended_has_done_is_not_missing_when_the_request_is_sent_again(
    asking: Asking, tool: Holding
) -> None:
    again = {HEADER: Origin("a" * 32, 0, again=True).header()}
    id = asking.post("/v1/responses", ASKED).json()["id"]
    path = f"/v1/responses/{id}"
    cancelled = asking.request("POST", f"{path}/cancel").json()
    assert asking.request("POST", f"{path}/cancel", headers=again).json() == cancelled
    deleted = asking.request("DELETE", path).json()
    assert asking.request("DELETE", path, headers=again).json() == deleted
    assert asking.request("DELETE", path).status_code == 404


def test_what_can_not_be_in_the_background_is_refused(asking: Asking, tool: Holding) -> None:
    for more, param in (({"stream": True}, "stream"), ({"store": False}, "background")):
        answer = asking.post("/v1/responses", {**ASKED, **more})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    without = Asking(make_server(store=StoreConfig(entries=0)))
    assert without.post("/v1/responses", ASKED).json()["error"]["param"] == "background"
    tool.may.set()
    plain = asking.post("/v1/responses", {**ASKED, "background": False}).json()
    assert asking.request("POST", f"/v1/responses/{plain['id']}/cancel").status_code == 400
    assert asking.request("GET", f"/v1/responses/{plain['id']}?stream=true").status_code == 400
    assert asking.request("POST", "/v1/responses/resp_none/cancel").status_code == 404


def test_a_replica_makes_so_many_responses_in_the_background_at_once(tool: Holding) -> None:
    asking = Asking(make_server(Saying(*TURNS), tool, max_background=2))
    ids = [asking.post("/v1/responses", ASKED).json()["id"] for _ in range(2)]
    refused = asking.post("/v1/responses", ASKED)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_responses")
    tool.may.set()
    for id in ids:
        until(asking, id, "completed")
    assert asking.post("/v1/responses", ASKED).status_code == 200


def test_a_tool_that_is_down_fails_a_response_in_the_background() -> None:
    async def down(call: ToolCall) -> ToolDown:
        return ToolDown("the index is gone")

    asking = Asking(make_server(Saying(*TURNS), down))
    id = asking.post("/v1/responses", ASKED).json()["id"]
    assert until(asking, id, "failed")["error"] == {"code": "tool_unavailable", "message": "the index is gone"}


THREE_SEARCHES = (*(((Span("wiki_search", f"w{number}"),)) for number in range(3)), (Span("answer", "Berg"),))


@pytest.mark.parametrize("most", range(5))
def test_as_many_calls_of_tools_are_made_as_max_tool_calls_says(most: int) -> None:
    calls: list[str] = []

    async def counted(call: ToolCall) -> str:
        calls.append(call.argument)
        return await echo(call)

    asking = Asking(make_server(Saying(*THREE_SEARCHES), counted, agent_config=AgentConfig(limits=AGENT.limits)))
    found = asking.post("/v1/responses", {"model": "afm", "input": "Who ?", "max_tool_calls": most, "coa": ALL}).json()
    assert calls == ["w0", "w1", "w2"][:most]
    assert found["status"] == ("completed" if most >= 3 else "incomplete")
    done = [item for item in found["output"] if item["type"] == "file_search_call" and item["status"] == "completed"]
    assert len(done) == len(calls)


@pytest.mark.parametrize(
    ("limits", "coa", "told"),
    [
        ({}, {"max_seconds": 0.05}, "max_seconds"),
        ({}, {"max_turns": 1}, "max_turns"),
        ({}, {"max_tool_calls": 0}, "max_tool_calls"),
        ({"max_output_tokens": 1}, {}, "max_output_tokens"),
    ],
)
def test_an_answer_names_the_limit_that_ended_it_in_each_protocol(
    asking: Asking, tool: Holding, limits: dict[str, int], coa: dict[str, Any], told: str
) -> None:
    if told != "max_seconds":
        tool.may.set()
    found = asking.post("/v1/responses", {"model": "afm", "input": "Who ?", **limits, "coa": {**coa, **ALL}}).json()
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": told})
    assert found["usage"]["output_tokens"] > 0
    said = {"model": "afm", "messages": [{"role": "user", "content": "Who ?"}], "coa": {**coa, **ALL}}
    tokens = limits.get("max_output_tokens", 100)
    [choice] = asking.post("/v1/chat/completions", {**said, "max_tokens": tokens}).json()["choices"]
    assert (choice["finish_reason"], choice["coa:limit"]) == ("length", told)
    *_, last, _ = asking.events("/v1/chat/completions", {**said, "max_tokens": tokens})
    assert last["choices"][0]["coa:limit"] == told
    message = asking.post("/v1/messages", {**said, "max_tokens": tokens}).json()
    assert (message["stop_reason"], message["coa:limit"]) == ("max_tokens", told)
    for path in ("/v1/chat/completions", "/v1/messages"):
        assert "coa:" not in asking.post(path, {**said, "coa": coa, "max_tokens": tokens}).text, "not asked for"
    assert idle(asking, tool)


def test_an_answer_that_no_limit_ended_names_none(asking: Asking, tool: Holding) -> None:
    tool.may.set()
    said = {"model": "afm", "messages": [{"role": "user", "content": "Who ?"}], "coa": ALL}
    assert "coa:limit" not in asking.post("/v1/chat/completions", said).text


def test_tokens_of_a_turn_for_which_the_time_was_up_are_in_the_usage() -> None:
    class Slow(Saying):
        """Says its turn, and never ends it."""

        async def generate(self, ask: Any, *, on_tokens: Any, stream: bool, **named: Any) -> Any:
            said = await super().generate(ask, on_tokens=None, stream=stream, **named)
            try:
                await asyncio.Event().wait()
            finally:
                on_tokens(said.token_ids)

    asking = Asking(make_server(Slow(*TURNS)))
    found = asking.post("/v1/responses", {"model": "afm", "input": "Who ?", "coa": {"max_seconds": 1.0, **ALL}}).json()
    assert found["incomplete_details"] == {"reason": "max_seconds"}
    assert "coa_first_token_seconds_count 0.0" in asking.request("GET", "/metrics").text, "it was told at the end"
    body = {"model": "afm", "input": "Who ?", "coa": {"max_turns": 1}}
    whole = Asking(make_server(Saying(*TURNS))).post("/v1/responses", body)
    assert found["usage"]["output_tokens"] == whole.json()["usage"]["output_tokens"]


def test_a_stream_of_completions_ends_with_its_usage_where_it_is_asked_for(asking: Asking, tool: Holding) -> None:
    tool.may.set()
    body = {"model": "afm", "prompt": "Who ?"}
    *_, last, usage, done = asking.events("/v1/completions", body | {"stream_options": {"include_usage": True}})
    assert (last["choices"][0]["finish_reason"], done) == ("stop", "[DONE]")
    assert usage["usage"] == asking.post("/v1/completions", body).json()["usage"]
    assert usage["choices"] == []


class Away(Shared):
    """A store that keeps nothing new for now."""

    async def put(self, owner: str, stored: Stored) -> None:
        raise ApiError(503, "unavailable", "the store is away")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_can_not_be_stored_is_sent_and_says_so(stream: bool) -> None:
    asking = Asking(make_server(Saying(*TURNS), shared=Away(StoreConfig())))
    body = {"model": "afm", "input": "Who is the mayor of Arden ?"}
    if stream:
        *_, last, done = asking.events("/v1/responses", body)
        response = last["response"]
        assert done == "[DONE]"
    else:
        response = asking.post("/v1/responses", body).json()
    assert (response["status"], response["store"]) == ("completed", False)
    assert response["output"][-1]["content"][0]["text"] == "Berg"


def test_a_response_in_the_background_has_begun_before_its_first_turn_is_over() -> None:
    class Slow(Saying):
        may = asyncio.Event()

        async def generate(self, *args: Any, **named: Any) -> Any:
            await self.may.wait()
            return await super().generate(*args, **named)

    policy = Slow(*TURNS)
    asking = Asking(make_server(policy))
    id = asking.post("/v1/responses", ASKED).json()["id"]
    assert until(asking, id, "in_progress")["output"] == []
    policy.may.set()
    until(asking, id, "completed")
