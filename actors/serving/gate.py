"""Access control of a server: API keys and quotas."""

import asyncio
from dataclasses import dataclass

from actors.serving.shared import AnyShared
from coa.serving.faults import ApiError
from coa.serving.keys import Key, KeyFile
from coa.serving.quotas import Quota

ANYBODY = "anybody"
"""Key id of callers of a server without keys."""


@dataclass(frozen=True, slots=True)
class Caller:
    key: str
    """Id of the key."""
    metered: bool = False
    """Whether the key has a quota."""

    @property
    def salt(self) -> str:
        """Cache salt that separates the KV cache of different keys, since response times would reveal shared
        prefixes."""
        return f"-{self.key}"


class Gate:
    def __init__(self, keys: KeyFile | None, shared: AnyShared) -> None:
        """keys: None allows requests without a key."""
        self._keys, self._shared = keys, shared
        self._spending: set[asyncio.Future[None]] = set()

    async def know(self, text: str) -> Caller:
        """The caller with this key; raises ApiError if the key is missing, wrong or revoked."""
        key = self._find(text)
        return Caller(ANYBODY) if key is None else Caller(key.id, metered=key.quota != Quota())

    async def admit(self, text: str) -> Caller:
        """Counts a request that generates. Raises ApiError as `know` does, and if the quota is used up."""
        key = self._find(text)
        if key is None:
            return Caller(ANYBODY)
        metered = key.quota != Quota()
        if metered and (wait := await self._shared.admit(key.id, key.quota)):
            message = f"the key's quota is used up for {wait:.0f} s"
            raise ApiError(429, "rate_limit_exceeded", message, retry_after_s=wait)
        return Caller(key.id, metered)

    def _find(self, text: str) -> Key | None:
        """The key; None if the server needs no keys."""
        if self._keys is None:
            return None
        if not text:
            raise ApiError(401, "missing_api_key", "no API key; send Authorization: Bearer KEY")
        if (key := self._keys.find(text)) is None:
            raise ApiError(401, "invalid_api_key", "no such API key")
        return key

    def spend(self, caller: Caller, tokens: int) -> None:
        """Counts the tokens of a finished request; does not wait, since the client may be gone."""
        if caller.metered and tokens:
            spending = asyncio.ensure_future(self._shared.spend(caller.key, tokens))
            self._spending.add(spending)
            spending.add_done_callback(self._spending.discard)
