"""Findings of the checks before a command, and questions that only a request can answer."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Service:
    """A service that a command will use: nobody has asked it yet."""

    what: str
    """The setting or tool that needs it."""
    where: str
    """Its address, without a password, and before it the name of a model."""
    key_env: str | None
    """Environment variable with its key."""
    ask: Callable[[], Awaitable[None]]
    """Sends it one request; raises UserError or InfrastructureError that says how it failed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, with nothing wrong."""

    what: str
    caution: str = ""
    """A possible fault, where an estimate does not decide; empty for none."""
    looked: bool = True
    """Whether it was looked at at all."""
    service: Service | None = None
    """The service that `what` is about; it was not asked."""

    @classmethod
    def unseen(cls, what: str) -> "Finding":
        """A thing that could not be looked at."""
        return cls(what, looked=False)

    @classmethod
    def unasked(cls, service: Service) -> "Finding":
        return cls(f"{service.what} ({service.where})", looked=False, service=service)


Findings = tuple[Finding, ...]


def services_in(findings: Iterable[Finding]) -> list[Service]:
    return [found.service for found in findings if found.service is not None]
