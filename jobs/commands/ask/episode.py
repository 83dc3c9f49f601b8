"""One episode in this process, without Ray: vLLM, the tools and the runner are plain classes.

question ──► ServedAgent.play ──► events ──► lines_of ──► the terminal
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from actors.serving.agent import ServedAgent
from actors.tools.executor import ToolExecutor
from actors.tools.site import Site
from coa.agent.codec import Codec
from coa.errors import InfrastructureError
from coa.grading.toolset import needs_site
from coa.serving.chain import Closed
from coa.serving.events import Broke, Event, Finished, Returned
from coa.serving.requests import AgentRequest, Defaults
from coa.tools.client import ToolCaller
from coa.types import Status
from jobs.recipe.schema import Recipe
from jobs.recipe.worlds import world_of
from jobs.run.console import Console
from jobs.stages.services import caution_about, make_tools


async def ask_model(config: Recipe, console: Console, model: Path, question: str, profile: str) -> None:
    """Plays the episode greedily and prints its events; raises InfrastructureError if a part of the system failed."""
    if caution := caution_about(config.tools, world_of(config), (profile,)):
        console.say(caution)
    async with agent_of(config, console, model) as agent:
        await tell(agent, request_of(config, question, profile), console)


async def tell(agent: ServedAgent, request: AgentRequest, console: Console) -> None:
    """Plays an episode and prints its events."""
    began = time.monotonic()
    async for event in agent.play(request):
        for line in lines_of(event, time.monotonic() - began):
            console.say(line)
        if isinstance(event, Broke):
            raise InfrastructureError(event.message)


def request_of(config: Recipe, question: str, profile: str) -> AgentRequest:
    default = Defaults(config.agent)
    return AgentRequest(
        question=question,
        profile=profile,
        temperature=default.temperature,
        top_p=default.top_p,
        seed=config.seed,
        choices=1,
        samples=1,
        select="majority",
        streamed=True,
        agent=config.agent,
    )


@asynccontextmanager
async def agent_of(config: Recipe, console: Console, model: Path) -> AsyncIterator[ServedAgent]:
    """The agent on an engine of this process, with its tools; all of it ends with the context."""
    from actors.rollout.adapter import PolicyAdapter

    world, codec = world_of(config), Codec.load(model)
    async with AsyncExitStack() as stack:
        address = None
        if needs_site(config.tools) and (web := world.site) is not None:
            site = Site(web.pages, web.hits)
            address = await site.start()
            stack.push_async_callback(site.stop)
        executor = ToolExecutor(lambda: make_tools(config.tools, world, address), config.executor)
        stack.push_async_callback(executor.close)
        with console.waiting("engine", f"loading {model}"):
            policy = await asyncio.to_thread(
                PolicyAdapter,
                str(model.resolve()),
                config.engine,
                max_tokens=config.agent.limits.max_tokens,
                tag_tokens=codec.tag_tokens(),
            )
            stack.callback(policy.shutdown)
            await policy.name_version(0)
        yield ServedAgent(policy, ToolCaller(executor, "ask"), codec=codec, retry=config.executor.retry)


def lines_of(event: Event, seconds: float) -> Iterator[str]:
    """Yields the lines that the terminal shows of an event; seconds: since the question was asked."""
    match event:
        case Closed(tag, text):
            yield f"<{tag}> {text.strip()}"
        case Returned():
            yield f"  {event.tool}: {event.text.strip()} ({event.seconds:.2f} s)"
        case Finished():
            used = event.usage
            if event.status is not Status.ANSWERED:
                yield f"no answer: {event.status.value}" + (f", over the limit {event.limit}" if event.limit else "")
            yield (
                f"\n{_count(used.output_tokens, 'token')} sampled, {used.input_tokens} read, "
                f"{_count(used.tool_calls, 'tool call')}, {_count(used.turns, 'turn')}, {seconds:.1f} s"
            )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
