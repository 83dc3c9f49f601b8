"""Blocks of messages, as Anthropic's own client reads them."""

import itertools
from typing import Any

import pytest
from anthropic import types
from anthropic._models import construct_type
from anthropic.types.beta import BetaMCPToolResultBlock, BetaMCPToolUseBlock, BetaMessage

from coa.agent.grammar import TAGS
from coa.serving.chain import Closed, Opened
from coa.serving.detail import Detail
from coa.serving.events import Finished, Returned, ServedUsage
from coa.serving.protocols import messages
from coa.serving.protocols.messages import MessageWriter
from coa.tools.mcp.binding import McpBinding
from coa.tools.mcp.config import McpTagConfig
from coa.types import Status


def written(
    tag: str, text: str, said: str | None, mcp: McpBinding | None = None, detail: Detail = Detail.all, **end: Any
) -> dict[str, Any]:
    """The message of an episode that calls one tool, which says `said`, or nothing."""
    numbers = itertools.count()
    head = {"id": "msg_1", "model": "afm", "role": "assistant"}
    writer = MessageWriter(head, lambda name: f"{name}_{next(numbers)}", {tag: mcp} if mcp else {}, detail)
    writer.take(Opened(tag))
    writer.take(Closed(tag, text, 5))
    if said is not None:
        writer.take(Returned(tool=tag, text=said, seconds=0.1, tokens=2))
    writer.take(Finished(status=Status.OUT_OF_TURNS, answer="", usage=ServedUsage(), **end))
    return writer.whole()


def read(message: dict[str, Any]) -> types.Message:
    """As the client makes it of an answer; what is not of the types would come out as something else, silently."""
    found: Any = construct_type(type_=types.Message, value=message)
    assert [block.model_dump(mode="json", exclude_unset=True)["type"] for block in found.content] == [
        block["type"] for block in message["content"]
    ]
    return types.Message.model_validate(message)


def test_a_search_is_a_web_search_with_its_text() -> None:
    for tag in ("web_search", "wiki_search"):
        use, result = read(written(tag, " Arden", "Arden!")).content
        assert isinstance(use, types.ServerToolUseBlock)
        assert isinstance(result, types.WebSearchToolResultBlock)
        assert isinstance(result.content, list)
        [page] = result.content
        assert isinstance(page, types.WebSearchResultBlock)
        assert (page.title, page.model_dump()["coa:text"]) == ("Arden", "Arden!")


def test_a_page_is_a_fetched_document() -> None:
    use, result = read(written("crawl_page", "p12", "Berg is mayor")).content
    assert isinstance(use, types.ServerToolUseBlock)
    assert use.input == {"url": "p12"}
    assert isinstance(result, types.WebFetchToolResultBlock)
    assert isinstance(result.content, types.WebFetchBlock)
    assert isinstance(result.content.content.source, types.PlainTextSource)
    assert (result.content.url, result.content.content.source.data) == ("p12", "Berg is mayor")


def test_a_program_is_executed_code() -> None:
    _, result = read(written("code", "```py\nprint(7)\n```", "7")).content
    assert isinstance(result, types.CodeExecutionToolResultBlock)
    assert isinstance(result.content, types.CodeExecutionResultBlock)
    assert result.content.stdout == "7"


@pytest.mark.parametrize("tag", ["web_search", "crawl_page", "code"])
@pytest.mark.parametrize(("limit", "code"), [("max_tool_calls", "max_uses_exceeded"), ("max_seconds", "unavailable")])
def test_a_call_that_is_not_made_has_an_error_as_its_result(tag: str, limit: str, code: str) -> None:
    message = written(tag, "x", None, limit=limit)
    assert message["coa:limit"] == limit
    use, result = read(message).content
    assert isinstance(use, types.ServerToolUseBlock)
    error: Any = result
    assert error.tool_use_id == use.id
    assert error.content.error_code == ("unavailable" if tag == "code" else code)


@pytest.mark.parametrize(("argument", "given"), [("city", {"city": "Oslo"}), ("", {"input": "Oslo"})])
def test_a_tool_of_an_mcp_server_is_told_with_its_own_name_and_arguments(argument: str, given: dict[str, str]) -> None:
    called_as_one_of_anthropics = McpBinding("weather", "web_fetch", McpTagConfig(argument=argument))
    for said in ("rain", None):
        message = BetaMessage.model_validate(written("wiki_search", "Oslo", said, called_as_one_of_anthropics))
        use, result = message.content
        assert isinstance(use, BetaMCPToolUseBlock)
        assert isinstance(result, BetaMCPToolResultBlock)
        assert (use.server_name, use.name, use.input) == ("weather", "web_fetch", given)
        assert (result.tool_use_id, result.is_error) == (use.id, said is None)


@pytest.mark.parametrize("detail", Detail)
def test_a_text_has_no_empty_citations_which_strict_clients_take_for_a_list(detail: Detail) -> None:
    message = written("answer", "7", None, detail=detail)
    assert [set(block) for block in message["content"] if block["type"] == "text"] == [{"type", "text"}]


def test_a_message_names_the_versions_of_the_weights() -> None:
    assert written("code", "1", "1", versions=(4, 6))["coa:versions"] == [4, 6]
    assert "coa:versions" not in written("code", "1", "1", detail=Detail.standard, versions=(4, 6))


def test_a_tool_of_an_extension_is_one_of_mcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "TAGS", {**TAGS, "weather": TAGS["wiki_search"]})
    for said in ("rain", None):
        message = BetaMessage.model_validate(written("weather", "Oslo", said))
        use, result = message.content
        assert (use.type, result.type) == ("mcp_tool_use", "mcp_tool_result")
