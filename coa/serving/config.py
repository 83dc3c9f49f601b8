"""Settings of the server."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from coa.bounds import AtLeast1
from coa.serving.scaling import ScalingConfig
from coa.serving.store import StoreConfig


@dataclass(frozen=True)
class ServingConfig:
    """The server that `coa serve` starts."""

    host: str = "127.0.0.1"
    """Address at which the server listens: 127.0.0.1 can be reached from this machine only, 0.0.0.0 from every network
    of this machine."""
    port: int = 8000
    """TCP port that the server listens at."""
    name: str = ""
    """Name of the model for clients; "" takes the name of the model's folder."""
    profile: str = ""
    """Profile of the agent if a request names none; "" takes the one that the model was trained on, or `multi` if these
    are several."""
    profiles: tuple[str, ...] = ()
    """Profiles that a request may name; an empty list takes all profiles whose tools are set up."""
    keys: Path | None = None
    """File of the API keys (`coa keys`); None admits every client that reaches the port."""
    min_replicas: int = 1
    """Minimum number of engines. With 0, the first request starts an engine, and the last engine ends after
    `scaling.zero_after_s` without a request."""
    max_replicas: AtLeast1 = 1
    """Maximum number of engines; each replica of the server has one."""
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    """When replicas are added and removed between `min_replicas` and `max_replicas`."""
    max_requests: int = 256
    """Maximum running requests per replica; further requests wait."""
    max_queued: int = 512
    """Maximum requests that wait for a replica; further requests are refused with status 429. Requests that arrive at
    the same moment wait briefly even if the replica has room for them."""
    max_wait_s: float = 10.0
    """Maximum expected seconds that the tool calls of an answer wait for places (`executor.concurrency`), all of its
    calls together: while the wait is longer, further requests to the agent are refused with status 429."""
    max_background: int = 256
    """Maximum running background responses per replica; further ones are refused with status 429."""
    max_request_mib: float = 16.0
    """Maximum body of a request, in MiB; larger requests are refused with status 413."""
    connections_per_address: AtLeast1 = 4096
    """Maximum open connections from one address. Behind a reverse proxy, all clients have the proxy's."""
    cors_origins: tuple[str, ...] = ()
    """Origins, such as https://chat.example.org, whose pages may call the server from a browser; `*` lets all."""
    close_s: float = 60.0
    """Maximum seconds for requests under way to end when the server or a replica is stopped."""
    tool_parser: str = "hermes"
    """vLLM's tool parser for requests to the model alone (`NAME:plain`): the format in which the model calls the
    client's tools."""
    follow: Path | None = None
    """Folder of a run that is still training: the server loads its new weights as they are written (`coa serve
    --follow`)."""
    follow_every_s: Annotated[float, Ge(1)] = 5.0
    """Seconds between two checks for new weights of the run that `follow` names."""
    store: StoreConfig = field(default_factory=StoreConfig)

    def __post_init__(self) -> None:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas is {self.min_replicas}, more than max_replicas={self.max_replicas}")
