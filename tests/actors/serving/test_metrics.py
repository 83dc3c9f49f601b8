"""What a replica tells Prometheus."""

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from actors.serving.metrics import LEFT, CountedRequests, FirstToken, ServingMetrics
from coa.errors import ToolDown
from coa.tools.base import ToolCall
from tests.support.agent_server import Asking, make_server
from tests.support.runners import SEARCHES, Saying

MESSAGES = [{"role": "user", "content": "Who ?"}]
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(text: str) -> Samples:
    families = text_string_to_metric_families(text)
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def metrics_of(asking: Asking) -> Samples:
    answer = asking.request("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return read(answer.text)


def test_requests_episodes_tokens_and_tool_calls_are_counted() -> None:
    asking = Asking(make_server(Saying(*SEARCHES)))
    usage = asking.post("/v1/chat/completions", {"model": "afm", "messages": MESSAGES}).json()["usage"]
    assert asking.post("/v1/messages", {"model": "nobody", "messages": MESSAGES, "max_tokens": 5}).status_code == 404
    assert asking.post("/v1/responses", {"input": 5}).status_code == 400
    found = metrics_of(asking)
    assert {key: value for key, value in found.items() if key[0] == "coa_requests_total"} == {
        ("coa_requests_total", (("protocol", "chat"), ("status", "200"))): 1,
        ("coa_requests_total", (("protocol", "messages"), ("status", "404"))): 1,
        ("coa_requests_total", (("protocol", "responses"), ("status", "400"))): 1,
    }
    assert found["coa_episodes_ended_total", (("status", "ANSWERED"),)] == 1
    assert found["coa_tool_calls_total", (("tool", "wiki_search"),)] == 1
    assert found["coa_policy_tokens_total", ()] == usage["completion_tokens"]
    assert found["coa_input_tokens_total", ()] == usage["prompt_tokens"]
    assert found["coa_first_token_seconds_count", ()] == 0, "nobody was told of a first token"
    assert found["coa_weight_version", ()] == 3
    assert found["coa_episodes", ()] == 0


def test_the_first_token_of_an_episode_that_is_streamed_is_timed() -> None:
    asking = Asking(make_server(Saying(*SEARCHES)))
    asking.post("/v1/chat/completions", {"model": "afm", "messages": MESSAGES, "stream": True})
    assert metrics_of(asking)["coa_first_token_seconds_count", ()] == 1


def test_a_defect_counts_as_one_and_not_as_a_client_that_left() -> None:
    server = make_server()
    server.target = lambda model: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    asking = Asking(server)
    assert asking.post("/v1/chat/completions", {"model": "afm", "messages": MESSAGES}).status_code == 500
    assert metrics_of(asking)["coa_requests_total", (("protocol", "chat"), ("status", "500"))] == 1


def test_a_call_that_failed_to_the_last_try_is_counted_once() -> None:
    async def down(call: ToolCall) -> ToolDown:
        return ToolDown("the index is gone")

    asking = Asking(make_server(Saying(*SEARCHES), down))
    assert asking.post("/v1/chat/completions", {"model": "afm", "messages": MESSAGES}).status_code == 503
    found = metrics_of(asking)
    assert found["coa_tool_failures_total", ()] == 1
    assert found["coa_episodes_ended_total", (("status", "ToolDown"),)] == 1


def test_only_the_first_token_of_an_episode_is_timed() -> None:
    metrics, times = ServingMetrics(), iter([10.0, 10.3, 99.0])
    first = FirstToken(metrics, lambda: next(times))
    first.came()
    first.came()
    found = read(metrics.text().decode())
    assert found["coa_first_token_seconds_sum", ()] == pytest.approx(0.3)
    assert found["coa_first_token_seconds_bucket", (("le", "0.25"),)] == 0
    assert found["coa_first_token_seconds_bucket", (("le", "0.5"),)] == 1


def test_a_replica_is_a_label_of_everything() -> None:
    metrics = ServingMetrics("r1")
    metrics.requests.labels("chat", "200").inc()
    found = read(metrics.text().decode())
    assert found["coa_requests_total", (("protocol", "chat"), ("replica", "r1"), ("status", "200"))] == 1
    assert all(("replica", "r1") in labels for _, labels in found)


def test_a_client_that_leaves_before_there_is_an_answer_is_counted_as_that() -> None:
    async def gone(*how: Any) -> None:
        raise asyncio.CancelledError

    async def go() -> None:
        never: Any = None
        await CountedRequests(gone, metrics)({"type": "http", "path": "/mcp/"}, never, never)

    metrics = ServingMetrics()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(go())
    assert read(metrics.text().decode())["coa_requests_total", (("protocol", "mcp"), ("status", LEFT))] == 1
