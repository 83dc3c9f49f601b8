"""Asking a scripted endpoint for completions, as the tests of the client do."""

from typing import Any

from coa.errors import (
    InfrastructureError,
    UserError,
)
from coa.llm.client import Endpoint, EndpointConfig
from coa.llm.completions import Completion
from coa.usage import Usage
from tests.support.endpoints import Script, serving
from tests.support.virtual_time import leaping

ASKED = [{"role": "system", "content": "You plan."}, {"role": "user", "content": "Who ?"}]
REPLY = "seed 7, 2 messages: Who ?"
PROMPT, COMPLETION = 5, 7
"""Tokens of both."""
WHOLE = Completion(REPLY, "stop", Usage(1, PROMPT, COMPLETION))
QUICK: dict[str, Any] = {"name": "m", "pause_s": 0.001, "max_pause_s": 0.01, "attempts": 4}


async def ask(url: str, endpoint: Endpoint | None = None, **config: Any) -> tuple[Any, dict[str, int]]:
    """A completion or what was raised, and what was counted."""
    endpoint = endpoint or Endpoint(EndpointConfig(url=url, **{**QUICK, **config}))
    try:
        answer: Any = await endpoint.complete(ASKED, seed=7)
    except (InfrastructureError, UserError) as error:
        answer = error
    await endpoint.close()
    return answer, dict(endpoint.http.counts)


def asked(*faults: str, script: dict[str, Any] | None = None, **config: Any) -> tuple[Any, dict[str, int], list[str]]:
    """The same of an endpoint with these faults, and how each request ended there."""

    async def go() -> tuple[Any, dict[str, int], list[str]]:
        async with serving(Script(faults=faults, **(script or {}))) as endpoint:
            answer, counts = await ask(endpoint.url, **config)
            return answer, counts, [seen.outcome for seen in endpoint.seen]

    return leaping(go())
