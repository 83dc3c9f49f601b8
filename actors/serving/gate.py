"""Access control of a server: API keys and quotas."""

import asyncio
from dataclasses import dataclass, field
from typing import TypeVar

from actors.serving.course import Course
from actors.serving.shared import AnyShared
from coa.concurrency import Work, beyond_caller
from coa.serving.faults import ApiError
from coa.serving.keys import Key, KeyFile
from coa.serving.limits.quotas import Quota

T = TypeVar("T")
ANYBODY = "anybody"
"""Key id of callers of a server without keys."""


@dataclass(frozen=True, slots=True)
class Caller:
    key: str
    """Id of the key."""
    metered: bool = False
    """Whether the key has a quota."""
    course: Course = field(default_factory=Course, compare=False)
    """That of the answer to this request."""

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
        if metered:
            _refuse(await self._shared.admit(key.id, key.quota))
        return Caller(key.id, metered)

    async def reserve(self, caller: Caller, tokens: int) -> None:
        """Reserves the tokens that a request may use at most; raises ApiError if the key's quota lacks them. Those of a
        request that is sent again are reserved already."""
        if caller.metered and not caller.course.origin.again:
            _refuse(await self._shared.reserve(caller.key, tokens))

    def _find(self, text: str) -> Key | None:
        """The key; None if the server needs no keys."""
        return None if self._keys is None else self._keys.require(text)

    async def reserved(self, caller: Caller, tokens: int, answer: Work[T]) -> T:
        """The answer, with the tokens reserved that it may use; they are given back if it fails."""
        try:
            await self.reserve(caller, tokens)
        except ApiError:
            answer.close()
            raise
        try:
            return await answer
        except BaseException:
            self.spend(caller, 0, reserved=tokens)
            raise

    def spend(self, caller: Caller, tokens: int, reserved: int) -> None:
        """Counts the tokens of a finished request, for which some were reserved; does not wait, since the client may be
        gone."""
        if caller.metered and tokens != reserved:
            spending = beyond_caller(self._shared.spend(caller.key, tokens - reserved))
            self._spending.add(spending)
            spending.add_done_callback(self._spending.discard)


def _refuse(wait_s: float) -> None:
    """Raises ApiError if a key has to wait."""
    if wait_s:
        message = f"the key's quota is used up for {wait_s:.0f} s"
        raise ApiError(429, "rate_limit_exceeded", message, retry_after_s=wait_s)
