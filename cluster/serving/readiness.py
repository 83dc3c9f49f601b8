"""Readiness of the server, available even while no replica is up.

Ray's proxy lets a request wait until there is a replica, which makes a probe useless. Therefore `/readyz` is a separate
application: the proxy sends a request to the application with the longest matching prefix, so this adds no hop to the
server's other requests.
"""

import asyncio
import math
import time
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from coa.concurrency import beyond_caller

LOOK_EVERY_S = 0.5
"""Seconds after which the server's state is looked at again, if somebody asks."""
STALE_S = 5.0
"""Seconds after which a state is too old to be told."""
VERSION_S = 2.0
"""Maximum seconds to wait for a replica's weight version."""


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    replicas: int
    """Number of running replicas."""
    status: str
    """Ray's status of the deployment."""


def readiness(replicas: int, status: str) -> Readiness:
    """Readiness from the deployment's state. A server scaled to zero is ready, since a request wakes it; a server that
    is starting is not."""
    return Readiness(replicas > 0 or status == "HEALTHY", replicas, status)


class Probe:
    """A plain class; `cluster.serving.deployment` makes a deployment of it. It answers with what it saw last, so that a
    server that is busy, or many questions at once, delay no answer."""

    def __init__(self, application: str, deployment: str) -> None:
        self._application, self._deployment = application, deployment
        self._seen = readiness(0, "NOT_STARTED")
        self._seen_at = -math.inf
        self._version: int | None = None
        """Of a replica; None until one has answered, and while there is none."""
        self._looking: asyncio.Future[None] | None = None

    async def __call__(self, request: Request) -> Response:
        age = time.monotonic() - self._seen_at
        if age > LOOK_EVERY_S and (self._looking is None or self._looking.done()):
            self._looking = beyond_caller(self._refresh())
        if age > STALE_S and self._looking is not None:
            await asyncio.shield(self._looking)
        found = self._seen
        ready = found.ready and not (found.replicas and self._version is None)
        body = {"ready": ready, "replicas": found.replicas, "status": found.status, "version": self._version}
        return JSONResponse(body, 200 if ready else 503)

    async def _refresh(self) -> None:
        found = await asyncio.to_thread(self._look)
        version = await self._ask_version() if found.replicas else None
        if found.replicas and version is None:  # the server may have been scaled to zero meanwhile
            found = await asyncio.to_thread(self._look)
        # A replica that is too busy to answer in time has the weights that it had; Ray replaces one that is broken.
        self._version = (self._version if version is None else version) if found.replicas else None
        self._seen, self._seen_at = found, time.monotonic()

    def _look(self) -> Readiness:
        from ray import serve

        application = serve.status().applications.get(self._application)
        deployment = application and application.deployments.get(self._deployment)
        if not deployment:
            return readiness(0, "NOT_STARTED")
        # States are sometimes plain strings and sometimes enum members.
        states = {str(getattr(state, "value", state)): count for state, count in deployment.replica_states.items()}
        return readiness(states.get("RUNNING", 0), str(getattr(deployment.status, "value", deployment.status)))

    async def _ask_version(self) -> int | None:
        """Weight version of a replica; None if no replica answers in time."""
        from ray import serve
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        handle: Any = serve.get_deployment_handle(self._deployment, self._application)
        try:
            return await asyncio.wait_for(handle.version.remote(), VERSION_S)
        except (TimeoutError, RayError, RayServeException):
            return None
