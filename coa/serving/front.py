"""Settings and rules of the server's front: how long a client may take, and how much it may hold. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from coa.serving.config import ServingConfig

VARIABLE = "COA_SERVING_FRONT"
"""Environment variable with a FrontConfig as JSON."""
SERVE = {
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "cluster.serving.front:middlewares",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
}
"""Environment of Ray Serve's controller and proxies: what gives a proxy its middlewares, and the seconds between checks
of a proxy, which is replaced after three that failed. By default it would be gone for half a minute."""
HEAD_S = 10.0
"""Maximum seconds between a connection, or the first byte of a further request, and the end of the request's head."""
HEAD_BYTES = 64 * 2**10
"""Maximum bytes of a request's head."""
BODY_S, BODY_RATE = 10.0, 128 * 2**10
"""A body may take BODY_S seconds, and a second more for each BODY_RATE bytes that have arrived."""
UNREAD_S = 60.0
"""Maximum seconds for which a client may leave an answer unread; then its connection ends."""
SEND_BYTES = 128 * 2**10
"""Bytes of an answer that the system holds of each connection, half of what it takes for them. By itself it would hold
several MiB, of each client that does not read."""
HELD_BODIES = 64
"""Number of bodies of maximum size that one proxy holds together while they arrive."""


@dataclass(frozen=True)
class FrontConfig:
    """The server's front, in each of Ray Serve's proxies."""

    max_bytes: int
    """Maximum bytes of a request's body."""
    keys: Path | None
    """File of the API keys, as the proxies see it; None admits every client."""
    connections_per_address: int
    """Maximum open connections from one address."""
    cors_origins: tuple[str, ...]
    """Origins whose pages may call the server from a browser."""
    token: str
    """Secret with which the server's owner closes the front; "" lets nobody."""


def due_s(received: int) -> float:
    """Seconds after its head by which more of a body must have arrived."""
    return BODY_S + received / BODY_RATE


def variables(config: FrontConfig) -> dict[str, str]:
    """The environment of a Ray Serve whose proxies have this front."""
    keys = None if config.keys is None else str(config.keys)
    return {**SERVE, VARIABLE: json.dumps({**asdict(config), "keys": keys})}


def front_in(environment: Mapping[str, str]) -> FrontConfig:
    """The front in a process with this environment: that of a server with default settings, if it names none."""
    if (text := environment.get(VARIABLE)) is None:
        return front_of(ServingConfig())
    found = json.loads(text)
    keys = found["keys"] and Path(found["keys"])
    return FrontConfig(**{**found, "keys": keys, "cors_origins": tuple(found["cors_origins"])})


def front_of(config: ServingConfig, token: str = "") -> FrontConfig:
    """The front of a server with these settings."""
    return FrontConfig(
        max_bytes=int(config.max_request_mib * 2**20),
        keys=config.keys,
        connections_per_address=config.connections_per_address,
        cors_origins=config.cors_origins,
        token=token,
    )
