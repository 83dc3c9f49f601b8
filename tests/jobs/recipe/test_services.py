"""Each service gets one request before a stage that pays for it; what fails is one line that says how."""

import io
from collections.abc import Collection, Sequence

import pytest
from aiohttp import web

from coa.config import load
from coa.errors import UserError
from jobs.recipe.find import find_recipe
from jobs.recipe.findings import Service
from jobs.recipe.schema import Recipe
from jobs.recipe.services import Answer, answers_of, ask_all, services_of
from jobs.run.console import Console
from tests.support import servers
from tests.support.endpoints import Script, serving

DEAD = "http://127.0.0.1:1"

pytestmark = pytest.mark.anyio


def services(*settings: str, models: Collection[str] = (), tools: Collection[str] = ()) -> list[Service]:
    return list(services_of(load(Recipe, find_recipe("tiny"), settings), models, tools))


async def failures_of(asked: Sequence[Service]) -> list[str]:
    return [answer.failure for answer in await answers_of(asked)]


def teacher(url: str, name: str = "scripted", *settings: str) -> list[Service]:
    key = "models.m.endpoint"
    return services(f"{key}.url={url}", f"{key}.name={name}", *settings, models=["m"])


async def test_a_teacher_that_answers_gets_one_request_with_its_own_fields() -> None:
    async with serving() as endpoint:
        extra = "models.m.endpoint.extra={reasoning_effort: low}"
        [asked] = teacher(endpoint.url, "big", "models.m.endpoint.temperature=0.7", extra)
        assert (asked.what, asked.where) == ("models.m", f"big at {endpoint.url}")
        assert await failures_of([asked]) == [""]
        [body] = endpoint.bodies
        assert (body["model"], body["temperature"], body["reasoning_effort"], body["max_tokens"]) == (
            *("big", 0.7, "low"),
            4096,
        )


async def test_a_refused_connection_is_one_line() -> None:
    assert await failures_of(teacher(f"{DEAD}/v1")) == [
        f"models.m can't be used: {DEAD}/v1/chat/completions: connection refused"
    ]


async def test_a_wrong_key_is_told_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", "very-secret")
    async with serving(Script(key="right")) as endpoint:
        [said] = await failures_of(teacher(endpoint.url, "scripted", "models.m.endpoint.key_env=TEACHER_KEY"))
        assert said.startswith(
            f"models.m can't be used: {endpoint.url}/chat/completions: the key is refused: status 401"
        )
        assert "very-secret" not in said


async def test_a_model_that_is_not_there_is_told_with_those_that_are() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "big"}, {"id": "small"}]})
        return web.json_response({"error": {"message": "The model `bog` does not exist"}}, status=404)

    async with servers.serving(answer) as url:
        [said] = await failures_of(teacher(f"{url}/v1", "bog"))
        assert said == (
            f"models.m can't be used: {url}/v1/chat/completions: status 404: The model `bog` does not exist; it has no "
            "model 'bog', but big, small"
        )


@pytest.mark.parametrize("fault", ["*=thinking", "*=empty"])
async def test_a_reply_without_text_is_an_answer(fault: str) -> None:
    async with serving(Script(faults=[fault])) as endpoint:
        assert await answers_of(teacher(endpoint.url)) == [Answer()]
        assert len(endpoint.seen) == 1


@pytest.mark.parametrize("status", ["429", "500", "503"])
async def test_a_service_with_an_error_of_its_own_is_there_and_is_a_caution(status: str) -> None:
    async with serving(Script(faults=[f"*={status}"])) as endpoint:
        [answer] = await answers_of(teacher(endpoint.url))
        assert answer.failure == ""
        assert answer.caution.startswith("caution: models.m is there, but has an error of its own now: ")
        assert f"status {status}" in answer.caution
        assert len(endpoint.seen) == 1


@pytest.mark.parametrize("fault", ["*=reset", "*=malformed", "*=context"])
async def test_a_service_that_answers_as_no_language_model_does_can_not_be_used(fault: str) -> None:
    async with serving(Script(faults=[fault])) as endpoint:
        [answer] = await answers_of(teacher(endpoint.url))
        assert answer.failure.startswith(f"models.m can't be used: {endpoint.url}/chat/completions: ")


async def test_judge_and_summary_are_asked_with_the_fields_of_their_requests() -> None:
    async with serving() as endpoint:
        settings = (
            *(f"tools.judge.url={endpoint.url}", "tools.judge.model=j"),
            *(f"tools.crawl.summary.url={endpoint.url}", "tools.crawl.summary.model=s"),
        )
        asked = services(*settings, tools=["judge", "crawl_page"])
        assert [one.what for one in asked] == ["summaries of pages", "judge"]
        assert await failures_of(asked) == ["", ""]
        assert {body["model"]: body["max_tokens"] for body in endpoint.bodies} == {"s": 1024, "j": 1024}


async def test_search_services_that_do_not_answer_as_such_are_told() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/search":
            return web.Response(status=403)
        return web.json_response({"result": [[{"document": {"contents": '"A"\nb'}, "score": 1.0}]]})

    async with servers.serving(answer) as url:
        settings = (f"tools.search.url={url}/search", "tools.wiki.backend=retriever", f"tools.wiki.retriever={url}/r")
        asked = services(*settings, tools=["web_search", "wiki_search"])
        assert await failures_of(asked) == [f"web_search can't be used: {url}/search: status 403", ""]


async def test_a_server_of_tools_that_does_not_answer_is_told() -> None:
    settings = (f"tools.mcp.own.url={DEAD}/mcp", "tools.mcp.own.tags.wiki_search.tool=find")
    [said] = await failures_of(services(*settings, tools=["wiki_search"]))
    assert said.startswith(f"tools.mcp.own can't be used: no MCP server answers at {DEAD}/mcp: ")


def test_what_is_not_used_is_not_asked() -> None:
    settings: tuple[str, ...] = (f"tools.judge.url={DEAD}/v1", "tools.judge.model=j", f"tools.search.url={DEAD}")
    assert services(*settings, tools=["code"]) == []
    served = ("models.m.serve.model=./here",)
    assert services(*served, models=["m"]) == []


def test_all_failures_are_in_one_line() -> None:
    out = io.StringIO()
    settings = [f"models.{name}.endpoint.{key}" for name in "ab" for key in (f"url={DEAD}/v1", "name=x")]
    with pytest.raises(UserError) as caught:
        ask_all(services(*settings, models=["a", "b"]), Console(out, out))
    refused = f"can't be used: {DEAD}/v1/chat/completions: connection refused"
    assert str(caught.value) == f"models.a {refused}; models.b {refused}"
