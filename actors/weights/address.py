"""The name and place of an engine, as transports and the storage of weights see it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Address:
    """An engine as transports see it."""

    engine: str
    """Unique name of one start of one engine."""
    node: str
    workers: int = 1
    """Number of processes that take the weights."""
