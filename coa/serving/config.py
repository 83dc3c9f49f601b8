"""Settings of the server."""

from dataclasses import dataclass, field
from pathlib import Path

from coa.serving.scaling import ScalingConfig
from coa.serving.store import StoreConfig


@dataclass(frozen=True)
class ServingConfig:
    host: str = "127.0.0.1"
    """Address that the server listens at; 0.0.0.0 is every one of this machine."""
    port: int = 8000
    """TCP port that the server listens at."""
    name: str = ""
    """The model's name for clients; "" takes that of its folder."""
    profile: str = ""
    """Profile of the agent where a request names none; "" takes what the model was trained on, of several `multi`."""
    profiles: tuple[str, ...] = ()
    """Profiles that a request may name; () takes those whose tools are set up."""
    keys: Path | None = None
    """File of the API keys (`coa keys`); None lets anybody ask who reaches the port."""
    min_replicas: int = 1
    """0 starts an engine at the first request only, and ends the last one where there is none for a while."""
    max_replicas: int = 1
    """Most engines that the server runs."""
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    """When there are more or fewer, within these bounds."""
    max_requests: int = 256
    """Requests under way at a replica, at most."""
    max_queued: int = 512
    """Requests that may wait for a replica; further ones are refused with 429."""
    max_background: int = 256
    """Responses in the background under way at a replica; further ones are refused with 429."""
    max_request_mib: float = 16.0
    """Of a request's body; larger ones are refused with 413."""
    tool_parser: str = "hermes"
    """How the model alone writes calls of a client's tools: a tool parser of vLLM."""
    follow: Path | None = None
    """A run's folder whose new weights are taken over while it trains (`coa serve --follow`)."""
    follow_every_s: float = 5.0
    """How often to look for them."""
    store: StoreConfig = field(default_factory=StoreConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas or self.max_replicas < 1:
            raise ValueError(f"serving: {self.min_replicas} to {self.max_replicas} replicas")
        if self.follow_every_s < 1:
            raise ValueError(f"serving.follow_every_s={self.follow_every_s:g} is less than a second")
