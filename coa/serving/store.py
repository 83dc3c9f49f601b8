"""Finished responses that a client may ask for again: bounded by number and by bytes, the oldest are dropped first."""

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Finished responses that clients may ask for again or continue from; the oldest are dropped first."""

    entries: int = 10_000
    """Maximum number of stored responses; 0 stores none."""
    gib: float = 0.25
    """Maximum memory for stored responses, in GiB."""


@dataclass(frozen=True, slots=True)
class Stored:
    response: Json
    conversation: tuple[Json, ...]
    """The input messages that led to the response, including those of the responses before it."""


class ResponseStore:
    """Responses by their owner and id: what one key has stored does not exist for another."""

    def __init__(self, config: StoreConfig) -> None:
        self._entries, self._bytes = config.entries, int(config.gib * 2**30)
        self._kept: OrderedDict[tuple[str, str], tuple[bytes, bytes]] = OrderedDict()
        self._used = 0

    def put(self, owner: str, stored: Stored) -> None:
        """Stores a response, unless it is larger than the whole store."""
        texts = json.dumps(stored.response).encode(), json.dumps(stored.conversation).encode()
        id = stored.response["id"]
        self.delete(owner, id)
        self._kept[owner, id] = texts
        self._used += _size(texts)
        while self._kept and (len(self._kept) > self._entries or self._used > self._bytes):
            _, oldest = self._kept.popitem(last=False)
            self._used -= _size(oldest)

    def get(self, owner: str, id: str) -> Stored | None:
        texts = self._kept.get((owner, id))
        return Stored(json.loads(texts[0]), tuple(json.loads(texts[1]))) if texts else None

    def delete(self, owner: str, id: str) -> bool:
        """Returns whether there was one."""
        texts = self._kept.pop((owner, id), None)
        self._used -= _size(texts) if texts else 0
        return texts is not None


def _size(texts: tuple[bytes, bytes]) -> int:
    return sum(map(len, texts))
