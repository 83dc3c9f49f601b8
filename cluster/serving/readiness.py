"""Whether the server can answer, told also while none of its replicas is up.

Ray's proxy lets a request wait until there is a replica, and a probe that waits says nothing. So `/readyz` is an
application of its own: the proxy sends a request to the application with the longest matching prefix, and answers of
the model take no way round for it.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

VERSION_S = 2.0
"""Longest time to wait for a replica to name its weights."""


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    replicas: int
    """That are running."""
    status: str
    """Ray's word for the deployment's state."""


def readiness(replicas: int, status: str) -> Readiness:
    """A server without a replica is ready where it rests, since a request wakes it, and not while it starts."""
    return Readiness(replicas > 0 or status == "HEALTHY", replicas, status)


class Probe:
    """A plain class; `cluster.serving.deployment` makes a deployment of it."""

    def __init__(self, application: str, deployment: str) -> None:
        self._application, self._deployment = application, deployment

    async def __call__(self, request: Request) -> Response:
        found = await asyncio.to_thread(self._look)
        version = await self._version() if found.replicas else None
        if found.replicas and version is None:  # the last one may have gone to rest meanwhile
            found = await asyncio.to_thread(self._look)
        ready = found.ready and not (found.replicas and version is None)
        body = {"ready": ready, "replicas": found.replicas, "status": found.status, "version": version}
        return JSONResponse(body, 200 if ready else 503)

    def _look(self) -> Readiness:
        from ray import serve

        application = serve.status().applications.get(self._application)
        deployment = application and application.deployments.get(self._deployment)
        if not deployment:
            return readiness(0, "NOT_STARTED")
        # Both are enumerations of strings, and Ray hands out now the one, now the other.
        states = {str(getattr(state, "value", state)): count for state, count in deployment.replica_states.items()}
        return readiness(states.get("RUNNING", 0), str(getattr(deployment.status, "value", deployment.status)))

    async def _version(self) -> int | None:
        """The version of a replica's weights; None where none says so in time."""
        from ray import serve
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        handle: Any = serve.get_deployment_handle(self._deployment, self._application)
        try:
            return await asyncio.wait_for(handle.version.remote(), VERSION_S)
        except (TimeoutError, RayError, RayServeException):
            return None
