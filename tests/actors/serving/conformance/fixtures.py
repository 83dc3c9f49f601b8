"""What the conformance suite of MCP wants to find on a server: tools, resources and prompts that no product has."""

import asyncio
import base64
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp_types import (
    AudioContent,
    Completion,
    EmbeddedResource,
    ImageContent,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=="
IMAGE = ImageContent(type="image", data=PNG, mime_type="image/png")


def embedded(uri: str, kind: str, text: str) -> EmbeddedResource:
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, mime_type=kind, text=text))


def add_fixtures(server: MCPServer) -> None:
    add_plain_tools(server)
    add_talking_tools(server)
    add_resources(server)
    add_prompts(server)


def add_plain_tools(server: MCPServer) -> None:
    @server.tool(structured_output=False)
    def test_simple_text() -> str:
        """Text."""
        return "This is a simple text response for testing."

    @server.tool(structured_output=False)
    def test_image_content() -> list[ImageContent]:
        """An image."""
        return [IMAGE]

    @server.tool(structured_output=False)
    def test_audio_content() -> list[AudioContent]:
        """A sound."""
        return [AudioContent(type="audio", data=WAV, mime_type="audio/wav")]

    @server.tool(structured_output=False)
    def test_embedded_resource() -> list[EmbeddedResource]:
        """A resource."""
        return [embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")]

    @server.tool(structured_output=False)
    def test_multiple_content_types() -> list[Any]:
        """All kinds."""
        mixed = embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
        return [TextContent(type="text", text="Multiple content types test:"), IMAGE, mixed]

    @server.tool(structured_output=False)
    def test_error_handling() -> str:
        """An error."""
        raise ToolError("This tool intentionally returns an error for testing")


def add_talking_tools(server: MCPServer) -> None:
    """Tools that say or ask something while they run."""

    @server.tool(structured_output=False)
    async def test_tool_with_logging(ctx: Context) -> str:
        """Logs."""
        for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await ctx.info(text)
            await asyncio.sleep(0.05)
        return "done"

    @server.tool(structured_output=False)
    async def test_tool_with_progress(ctx: Context) -> str:
        """Progress."""
        for done in (0, 50, 100):
            await ctx.report_progress(done, 100)
            await asyncio.sleep(0.05)
        return "done"

    @server.tool(structured_output=False)
    async def test_sampling(prompt: str, ctx: Context) -> str:
        """Asks the client's model."""
        message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
        found = await ctx.session.create_message([message], max_tokens=100)
        return f"LLM response: {found.content}"


def add_resources(server: MCPServer) -> None:
    @server.resource("test://static-text", name="text", description="text", mime_type="text/plain")
    def text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", name="binary", description="bytes", mime_type="image/png")
    def binary() -> bytes:
        return base64.b64decode(PNG)

    @server.resource("test://template/{id}/data", name="template", description="t", mime_type="application/json")
    def template(id: str) -> str:
        return f'{{"id":"{id}","templateTest":true,"data":"Data for ID: {id}"}}'

    @server.completion()
    async def complete(ref: Any, argument: Any, context: Any) -> Completion:
        return Completion(values=[])


def add_prompts(server: MCPServer) -> None:
    @server.prompt()
    def test_simple_prompt() -> str:
        """Simple."""
        return "This is a simple prompt for testing."

    @server.prompt()
    def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        """Arguments."""
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.prompt()
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
        """A resource."""
        inner = embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
        return [UserMessage(inner), UserMessage("Please process the embedded resource above.")]

    @server.prompt()
    def test_prompt_with_image() -> list[UserMessage]:
        """An image."""
        return [UserMessage(IMAGE), UserMessage("Please analyze the image above.")]
