"""Client of the state that several replicas share, `coa.serving.shared.Shared` in a separate process."""

from collections.abc import Awaitable
from typing import TypeVar

from actors.handles import Handle
from coa.json_object import Json
from coa.serving.faults import ApiError
from coa.serving.limits.quotas import Quota
from coa.serving.shared import Shared
from coa.serving.store import Stored

T = TypeVar("T")


class RemoteShared:
    """Has the methods of `Shared`; each raises ApiError (503) while the process is unavailable."""

    def __init__(self, handle: Handle) -> None:
        """handle: handle of an actor or of a Ray Serve deployment."""
        self._handle = handle

    async def admit(self, key: str, quota: Quota) -> float:
        return await _reached(self._handle.admit.remote(key, quota))

    async def reserve(self, key: str, tokens: int) -> float:
        return await _reached(self._handle.reserve.remote(key, tokens))

    async def spend(self, key: str, tokens: int) -> None:
        await _reached(self._handle.spend.remote(key, tokens))

    async def put(self, owner: str, stored: Stored) -> None:
        await _reached(self._handle.put.remote(owner, stored))

    async def get(self, owner: str, id: str) -> Stored | None:
        return await _reached(self._handle.get.remote(owner, id))

    async def delete(self, owner: str, id: str) -> bool:
        return await _reached(self._handle.delete.remote(owner, id))

    async def begin(self, owner: str, stored: Stored, replica: str) -> None:
        await _reached(self._handle.begin.remote(owner, stored, replica))

    async def update(self, owner: str, response: Json) -> None:
        await _reached(self._handle.update.remote(owner, response))

    async def finish(self, owner: str, stored: Stored) -> None:
        await _reached(self._handle.finish.remote(owner, stored))

    async def cancel(self, owner: str, id: str) -> Json | None:
        return await _reached(self._handle.cancel.remote(owner, id))

    async def cancellations(self, replica: str) -> list[str]:
        return await _reached(self._handle.cancellations.remote(replica))


AnyShared = Shared | RemoteShared


async def _reached(answer: Awaitable[T]) -> T:
    from ray.exceptions import RayError, RayTaskError
    from ray.serve.exceptions import RayServeException

    try:
        return await answer
    except RayTaskError:
        raise
    except (RayError, RayServeException) as error:
        raise ApiError(503, "overloaded", "what the replicas share is away; try again", retry_after_s=1.0) from error
