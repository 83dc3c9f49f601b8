"""Tools of MCP servers, called through an executor: real servers of the official library, on loopback."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from actors.tools.executor import ExecutorConfig, ToolExecutor
from coa.agent.grammar import TAGS, Kind, Span
from coa.config import load
from coa.errors import ToolDown, UserError
from coa.grading.toolset import ToolsConfig, check_called, check_tools, searches_left_open, standard_tools
from coa.tools.base import ToolCall
from coa.tools.mcp.binding import McpBinding
from coa.tools.mcp.config import McpConfig, McpTagConfig
from coa.tools.mcp.connection import Connection, text_of
from jobs.recipe.schema import Recipe
from tests.support.mcp_server import PROGRAM, Served, weather
from tests.support.patience import PATIENCE_S
from tests.support.policies import Runner, order
from tests.support.runners import Saying, trajectory
from tests.support.servers import closed_port
from tests.support.virtual_time import leap, leaping

LIMIT_S = 100.0
TAG_OF = {"wiki_search": McpTagConfig(tool="get_forecast", argument="city"), "code": McpTagConfig(tool="add")}


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served()
    yield server
    server.stop()


def with_server(url: str | None = None, **settings: Any) -> ToolsConfig:
    tags = settings.pop("tags", TAG_OF)
    return ToolsConfig(mcp={"weather": McpConfig(url=url, tags=tags, **settings)})


def within(
    config: ToolsConfig, use: Callable[[ToolExecutor], Awaitable[Any]], limits: ExecutorConfig | None = None
) -> Any:
    async def go() -> Any:
        executor = ToolExecutor(lambda: standard_tools(config), limits)
        try:
            return await use(executor)
        finally:
            await executor.close()

    return leaping(go())


def asked(config: ToolsConfig, *calls: ToolCall, limits: ExecutorConfig | None = None) -> list[str | ToolDown]:
    return within(config, lambda executor: executor.call_many(calls), limits)


def forecast(city: str, **how: Any) -> ToolCall:
    return ToolCall("wiki_search", city, **how)


async def one(executor: ToolExecutor, call: ToolCall) -> str | ToolDown:
    [answer] = await executor.call_many([call])
    return answer


# --- what comes back --------------------------------------------------------------------------------------------------


def test_a_tag_is_answered_by_the_tool_that_it_is_mapped_to(served: Served) -> None:
    config = with_server(served.url)
    asks = [forecast("Lisbon"), forecast("Lisbon", layout="json"), ToolCall("code", '{"a": 2, "b": 3}')]
    assert asked(config, *asks) == [
        "Lisbon: rain for 1 days",
        '{"status": 0, "stdout": "Lisbon: rain for 1 days", "error": ""}',
        "5",
    ]


def test_what_the_tool_calls_an_error_is_an_observation(served: Served) -> None:
    found, in_json = asked(with_server(served.url), forecast("Atlantis"), forecast("Atlantis", layout="json"))
    assert found == "Error executing tool get_forecast: no such city"
    assert in_json == f'{{"status": 1, "stdout": "", "error": "{found}"}}'


def test_text_that_is_no_call_of_the_tool_is_an_observation_that_says_so(served: Served) -> None:
    found = asked(with_server(served.url), *(ToolCall("code", text) for text in ("2 + 3", "[2, 3]", '{"a": "x"}')))
    assert found[:2] == ["the call should hold a JSON object with a, b"] * 2
    assert isinstance(found[2], str)
    assert "2 validation errors" in found[2]


def test_a_long_result_is_cut(served: Served) -> None:
    tags = {"wiki_search": McpTagConfig(tool="get_forecast", max_chars=10)}
    [found] = asked(with_server(served.url, tags=tags), forecast("Babel"))
    assert found == "rain rain "


def test_fixed_arguments_win_over_those_of_a_call(served: Served) -> None:
    tags = {
        "wiki_search": McpTagConfig(tool="get_forecast", argument="city", arguments={"days": 3}),
        "code": McpTagConfig(tool="add", arguments={"c": 40}),
    }
    config = with_server(served.url, tags=tags)
    sum_of = ToolCall("code", '{"a": 1, "b": 1, "c": 5}')
    assert asked(config, forecast("Lisbon"), sum_of) == ["Lisbon: rain for 3 days", "42"]


def test_the_only_argument_that_is_left_gets_the_text_as_the_value_that_it_wants(served: Served) -> None:
    tags = {"code": McpTagConfig(tool="add", arguments={"b": 40})}
    assert asked(with_server(served.url, tags=tags), ToolCall("code", "2")) == ["42"]


def test_an_executor_says_what_answers_a_tag_also_where_the_server_has_gone(served: Served) -> None:
    tags = {"wiki_search": McpTagConfig(tool="get_forecast"), "code": McpTagConfig(tool="add")}

    async def bindings(executor: ToolExecutor) -> list[McpBinding]:
        before = (await executor.mcp())["wiki_search"]
        served.stop()
        return [before, (await executor.mcp())["wiki_search"]]

    before, after = within(with_server(served.url, tags=tags), bindings)
    assert (before.server, before.tool, before.arguments("Lisbon")) == ("weather", "get_forecast", {"city": "Lisbon"})
    assert after == before


def test_calls_run_each_time_unless_they_are_said_to_be_cached(served: Served) -> None:
    async def hits(executor: ToolExecutor) -> int:
        for _ in range(2):
            await one(executor, forecast("Lisbon"))
        return executor.stats()["wiki_search"].hits

    assert within(with_server(served.url), hits) == 0
    tags = {"wiki_search": McpTagConfig(tool="get_forecast", cached=True)}
    assert within(with_server(served.url, tags=tags), hits) == 1


def test_what_is_no_text_is_named() -> None:
    from mcp_types import CallToolResult, EmbeddedResource, ImageContent, ResourceLink, TextContent
    from mcp_types import TextResourceContents as Inner

    result = CallToolResult(
        content=[
            TextContent(type="text", text="a"),
            ImageContent(type="image", data="", mime_type="image/png"),
            EmbeddedResource(type="resource", resource=Inner(uri="x://y", text="b")),
            ResourceLink(type="resource_link", name="c", uri="x://z"),
        ]
    )
    assert text_of(result) == "a\n[image/png]\nb\n[c at x://z]"


def test_structured_content_is_shown_where_there_is_no_text() -> None:
    from mcp_types import CallToolResult, ImageContent, TextContent

    image, empty, text = (
        ImageContent(type="image", data="", mime_type="image/png"),
        TextContent(type="text", text=""),
        TextContent(type="text", text="rain"),
    )
    table = {"city": "Évora", "days": [1, None]}
    shown = '{"city": "Évora", "days": [1, null]}'
    assert text_of(CallToolResult(content=[], structured_content=table)) == shown
    assert text_of(CallToolResult(content=[empty], structured_content=table)) == shown
    assert text_of(CallToolResult(content=[image], structured_content=table)) == f"{shown}\n[image/png]"
    assert text_of(CallToolResult(content=[text], structured_content=table)) == "rain"
    assert text_of(CallToolResult(content=[])) == ""


TEXT, NUMBER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "null"}


@pytest.mark.parametrize(
    "schema",
    [
        TEXT,
        {},
        True,
        {"title": "Query"},
        {"type": ["string", "null"]},
        {"anyOf": [TEXT, NULL]},
        {"oneOf": [NULL, {"type": ["string"]}]},
        {"anyOf": [{"anyOf": [TEXT, NUMBER]}, NULL]},
        {"allOf": [TEXT, {"maxLength": 9}]},
        {"anyOf": [{"$ref": "#/$defs/Year"}, NULL]},
        {"$ref": "#/definitions/Year"},
        {"enum": ["2024", "2025", None]},
        {"const": "2024"},
        {"$ref": "#/$defs/Loop"},
        {"$ref": "#/$defs/Missing"},
        {"type": None, "anyOf": None},
    ],
)
def test_a_text_stays_a_text_wherever_the_tool_takes_one(schema: Any) -> None:
    defs = {"Year": {"enum": ["2024"], "type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}}
    root = {"properties": {"query": schema}, "required": ["query"], "$defs": defs, "definitions": defs}
    assert McpBinding("s", "t", McpTagConfig(), root).arguments("2024") == {"query": "2024"}


@pytest.mark.parametrize(
    "schema",
    [
        NUMBER,
        {"type": ["integer", "null"]},
        {"anyOf": [NUMBER, NULL]},
        {"oneOf": [NUMBER, NULL]},
        {"allOf": [NUMBER, {"minimum": 0}]},
        {"enum": [2024]},
        {"const": 2024},
    ],
)
def test_a_number_is_read_where_the_tool_takes_no_text(schema: Any) -> None:
    binding = McpBinding("s", "t", McpTagConfig(), {"properties": {"year": schema}})
    assert binding.arguments("2024") == {"year": 2024}
    assert binding.arguments("soon") == {"year": "soon"}


def test_a_program_is_passed_without_its_fence_and_arguments_are_read_in_one() -> None:
    one = McpBinding("s", "t", McpTagConfig(), {"properties": {"source": TEXT}, "required": None})
    assert one.arguments("```py\nprint(1)\n```") == {"source": "print(1)\n"}
    assert one.arguments("```\na note\n```") == {"source": "```\na note\n```"}
    two = McpBinding("s", "t", McpTagConfig(), {"properties": {"a": TEXT, "b": TEXT}})
    assert two.arguments('~~~json\n{"a": "x"}\n~~~') == {"a": "x"}
    nothing = McpBinding("s", "t", McpTagConfig(), {"properties": None})
    assert nothing.arguments("") == {}


# --- what fails -------------------------------------------------------------------------------------------------------


def test_a_call_that_hangs_ends_at_the_executors_limit_and_the_server_hears_of_it(served: Served) -> None:
    async def use(executor: ToolExecutor) -> tuple[Any, Any]:
        late = asyncio.ensure_future(one(executor, forecast("Limbo")))
        assert await asyncio.to_thread(served.hanging.wait, PATIENCE_S)
        leap(LIMIT_S)
        return await late, await one(executor, forecast("Lisbon"))

    limits = ExecutorConfig(call_s_of={"wiki_search": LIMIT_S})
    late, next_one = within(with_server(served.url), use, limits)
    assert isinstance(late, ToolDown)
    assert str(late) == f"wiki_search: nothing within {LIMIT_S:g} s"
    assert served.ended.wait(PATIENCE_S)
    assert next_one == "Lisbon: rain for 1 days"


def test_a_server_that_was_started_again_is_connected_to_again(served: Served) -> None:
    async def use(executor: ToolExecutor) -> list[Any]:
        found = [await one(executor, forecast("Lisbon"))]
        await asyncio.to_thread(served.stop)
        found += [await one(executor, forecast("Lisbon")) for _ in range(2)]
        await asyncio.to_thread(served.start)
        return [*found, *await executor.call_many([forecast("Porto"), forecast("Faro")])]

    before, *meanwhile, porto, faro = within(with_server(served.url), use)
    assert before == "Lisbon: rain for 1 days"
    assert all(isinstance(down, ToolDown) for down in meanwhile)
    assert [str(down) for down in meanwhile] == [
        f"{served.url}: get_forecast: Connection closed",
        f"no MCP server answers at {served.url}: All connection attempts failed",
    ]
    assert (porto, faro) == ("Porto: rain for 1 days", "Faro: rain for 1 days")


def test_a_session_that_the_server_has_forgotten_is_begun_again(served: Served) -> None:
    async def go() -> tuple[str, bool]:
        connection = Connection("weather", McpConfig(url=served.url), mode="legacy")  # before, there were sessions
        await connection.call("get_forecast", {"city": "Lisbon"})
        await asyncio.to_thread(served.stop)
        await asyncio.to_thread(served.start)
        found = await connection.call("get_forecast", {"city": "Lisbon"})
        await connection.close()
        return found

    assert asyncio.run(go()) == ("Lisbon: rain for 1 days", False)


def test_a_tool_that_the_server_has_no_more_is_down(served: Served) -> None:
    async def use(executor: ToolExecutor) -> Any:
        await one(executor, forecast("Lisbon"))
        await asyncio.to_thread(served.stop)
        less = weather()
        less.remove_tool("get_forecast")
        await asyncio.to_thread(served.start, less)
        return await one(executor, forecast("Lisbon"))

    down = within(with_server(served.url), use)
    assert isinstance(down, ToolDown)
    assert str(down) == f"{served.url} has no tool get_forecast; it has add"


def test_a_command_is_started_with_the_first_call_and_again_after_it_ended() -> None:
    async def use(executor: ToolExecutor) -> list[Any]:
        return [await one(executor, forecast(city)) for city in ("Lisbon", "Pompeii", "Lisbon")]

    before, down, after = within(with_server(command=PROGRAM), use)
    assert isinstance(down, ToolDown)
    assert str(down).endswith("get_forecast: Connection closed")
    assert before == after == "Lisbon: rain for 1 days"


def test_an_episode_is_played_with_such_a_tool(served: Served) -> None:
    policy = Saying((Span("plan", "p"), Span("wiki_search", "Lisbon")), (Span("answer", "rain"),))

    async def use(executor: ToolExecutor) -> str:
        runner = Runner(executor, policy=policy)
        await runner.play([order()])
        return trajectory(runner.runner.results[order().id]).text

    text = within(with_server(served.url), use)
    assert "<wiki_search> Lisbon</wiki_search><observation> Lisbon: rain for 1 days</observation>" in text


# --- mistakes of the operator -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["url=ftp://x"], "tools.mcp.w.url is ftp://x, expected an address such as http://127.0.0.1:9000/mcp"),
        ([], "tools.mcp.w: set url or command, one of the two"),
        (["url=http://h/mcp", "command=[python]"], "tools.mcp.w: set url or command, one of the two"),
        (["command=[no-such-program]"], "tools.mcp.w.command: there is no program no-such-program"),
        (["url=http://h/mcp", "key_env=NO_SUCH_KEY"], "the environment variable NO_SUCH_KEY is not set; set it to"),
        (["url=http://h/mcp", "tags.plan.tool=x"], "tools.mcp.w.tags.plan: no profile has such a tag"),
    ],
)
def test_a_mistake_in_a_recipe_is_one_line(overrides: list[str], said: str) -> None:
    base = ["tags.wiki_search.tool=x", *overrides]
    config = load(Recipe, None, [f"tools.mcp.w.{override}" for override in base]).tools
    with pytest.raises(UserError) as raised:
        check_tools(config, crawl_s=1000.0)
    assert str(raised.value).startswith(said)


def test_a_server_without_tags_and_a_tag_of_two_servers_are_mistakes() -> None:
    with pytest.raises(UserError, match=r"^tools\.mcp\.a answers no tag: set tools\.mcp\.a\.tags\.TAG\.tool=TOOL$"):
        check_tools(load(Recipe, None, ["tools.mcp.a.url=http://h/mcp"]).tools, crawl_s=1000.0)
    both = [f"tools.mcp.{name}.{key}" for name in "ab" for key in ("url=http://h/mcp", "tags.code.tool=x")]
    with pytest.raises(UserError, match=r"^tools\.mcp\.b\.tags\.code: tools\.mcp\.a has this tag already$"):
        check_tools(load(Recipe, None, both).tools, crawl_s=1000.0)


@pytest.mark.parametrize(
    ("tag", "said"),
    [
        (McpTagConfig(tool="forecast"), "tags.wiki_search: {url} has no tool forecast; it has get_forecast, add"),
        (
            McpTagConfig(tool="add", argument="d"),
            "tags.wiki_search: add has no argument d; it has a, b, c",
        ),
    ],
)
def test_a_tool_that_the_server_lacks_is_found_at_the_start(served: Served, tag: McpTagConfig, said: str) -> None:
    config = with_server(served.url, tags={"wiki_search": tag})
    mistake = within(config, lambda executor: executor.mistake())
    assert mistake == f"tools.mcp.weather.{said.format(url=served.url)}"
    assert within(with_server(served.url), lambda executor: executor.mistake()) == ""


def test_a_server_that_is_not_there_is_found_at_the_start() -> None:
    async def go() -> tuple[str, str]:
        async with closed_port() as url:
            executor = ToolExecutor(lambda: standard_tools(with_server(f"{url}/mcp")))
            return url, await executor.mistake()

    url, mistake = asyncio.run(go())
    assert mistake == f"tools.mcp.weather: no MCP server answers at {url}/mcp: All connection attempts failed"


def test_a_server_that_never_answers_is_given_up(served: Served) -> None:
    async def go() -> str:
        async def silent(reader: Any, writer: Any) -> None:
            await asyncio.sleep(3600)

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        executor = ToolExecutor(lambda: standard_tools(with_server(url, connect_s=0.2)))
        try:
            async with asyncio.timeout(PATIENCE_S):
                return (await executor.mistake()).replace(url, "URL")
        finally:
            server.close()

    assert asyncio.run(go()) == "tools.mcp.weather: no MCP server answers at URL: nothing within 0.2 s"


def test_a_mapped_tag_needs_nothing_else(served: Served) -> None:
    config = with_server(served.url)
    check_called({"wiki_search", "code"}, config, articles=False, site=False)
    assert searches_left_open(config) == ("web_search",)
    assert all(TAGS[tag].kind is Kind.TOOL for tag in config.mapped)
    check_tools(config, crawl_s=1000.0, named={"wiki_search"})
