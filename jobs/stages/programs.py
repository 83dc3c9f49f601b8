"""The recipe's program as the agent: a gateway to whatever takes its turns, and the player of its episodes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

from actors.gateway.player import ProgramPlayer
from actors.gateway.session import TakeTurn
from actors.tools.remote import ToolClient
from coa.agent.codec import Codec
from coa.tools.client import ToolCaller
from jobs.recipe.schema import Recipe


@asynccontextmanager
async def program_player(
    config: Recipe, model: Path, tools: ToolClient, take_turn: TakeTurn, say: Callable[[str], None]
) -> AsyncIterator[ProgramPlayer]:
    """Serves the policy to the recipe's program, and plays its episodes. model: its tokenizer and chat template."""
    from actors.gateway.model import recorded_model
    from actors.gateway.server import NAME, Gateway

    codec, program, limits = Codec.load(model), config.agent.program, config.agent.limits
    served = await recorded_model(
        model, config.engine, codec, name=NAME, tool_parser=program.tool_parser, max_tokens=limits.max_tokens
    )
    gateway = Gateway(served)
    async with gateway.serving() as address:
        player = ProgramPlayer(
            gateway,
            address,
            take_turn,
            ToolCaller(tools, f"programs-{uuid4().hex}"),
            codec,
            reward=config.rl.reward,
            retry=config.executor.retry,
            at_once=program.at_once,
            say=say,
        )
        try:
            yield player
        finally:
            await player.close()
