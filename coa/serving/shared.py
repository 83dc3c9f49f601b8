"""State that the replicas of a server share: finished and unfinished responses, and the usage of each key.

replica ── begin, update, finish ──► Shared ◄── get, cancel, delete ── any replica
replica ◄── cancellations: one long poll per replica ─── Shared

A plain class. A single replica has its own instance; several share an actor (`actors.serving.shared`). The long poll is
also the replicas' heartbeat: if a replica has not polled for `LOST_S`, its responses are reported as failed.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from coa.json_object import Json
from coa.serving.limits.quotas import Quota, Quotas
from coa.serving.store import ResponseStore, StoreConfig, Stored

POLL_S = 5.0
"""Maximum seconds until a poll is answered, even if nothing was cancelled."""
LOST_S = 30.0


@dataclass(slots=True)
class _Replica:
    heard: float
    """Time of the last poll."""
    cancelled: list[str] = field(default_factory=list)
    """Ids of responses that the replica has to end."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class Shared:
    def __init__(self, store: StoreConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._quotas, self._clock = ResponseStore(store), Quotas(), clock
        self._running: dict[tuple[str, str], tuple[Stored, str]] = {}
        """Responses in the background, by owner and id, each with its replica, which bounds how many it has."""
        self._replicas: dict[str, _Replica] = {}
        error = {"code": "server_error", "message": "the server ended while it made this response"}
        for owner, stored in self._store.running():
            self._store.put(owner, _broken_off(stored, status="failed", error=error))

    # --- quotas ---------------------------------------------------------------------------------------------------

    async def admit(self, key: str, quota: Quota) -> float:
        """Counts a request and returns 0, or returns the seconds after which the key may try again."""
        return self._quotas.admit(key, quota, self._clock())

    async def reserve(self, key: str, tokens: int) -> float:
        """Takes the tokens that a request may use, as `Quotas.reserve` does."""
        return self._quotas.reserve(key, tokens, self._clock())

    async def spend(self, key: str, tokens: int) -> None:
        """Counts the tokens of a request that has ended, without those that were reserved."""
        self._quotas.spend(key, tokens, self._clock())

    # --- responses that have ended --------------------------------------------------------------------------------

    async def put(self, owner: str, stored: Stored) -> None:
        self._store.put(owner, stored)

    async def get(self, owner: str, id: str) -> Stored | None:
        """The response; if it is unfinished, as of its last update."""
        self._give_up_lost()
        running = self._running.get((owner, id))
        return running[0] if running else self._store.get(owner, id)

    async def delete(self, owner: str, id: str) -> bool:
        """Deletes a response, cancelling it if it is unfinished; returns whether there was one."""
        await self.cancel(owner, id)
        return self._store.delete(owner, id)

    # --- responses that are being made ----------------------------------------------------------------------------

    async def begin(self, owner: str, stored: Stored, replica: str) -> None:
        self._of(replica)
        self._running[owner, stored.response["id"]] = stored, replica
        self._store.put(owner, stored, running=True)

    async def update(self, owner: str, response: Json) -> None:
        """Updates an unfinished response; ignored if it was cancelled."""
        if running := self._running.get((owner, response["id"])):
            stored, replica = running
            self._running[owner, response["id"]] = replace(stored, response=response), replica

    async def finish(self, owner: str, stored: Stored) -> None:
        """Stores a response that has ended; a response that was cancelled before stays cancelled."""
        if (owner, stored.response["id"]) in self._running:
            self._end(owner, stored)

    async def cancel(self, owner: str, id: str) -> Json | None:
        """Cancels a response and returns it, unchanged if it had ended before; None if there is none."""
        self._give_up_lost()
        if running := self._running.get((owner, id)):
            stored, replica = running
            cancelled = _broken_off(stored, status="cancelled")
            self._end(owner, cancelled)
            self._replicas[replica].cancelled.append(id)
            self._replicas[replica].wake.set()
            return cancelled.response
        stored = self._store.get(owner, id)
        return stored.response if stored else None

    async def cancellations(self, replica: str, wait_s: float = POLL_S) -> list[str]:
        """Ids of the replica's responses that were cancelled since it asked last; waits for the first one, or
        `wait_s` seconds."""
        state = self._of(replica)
        if not state.cancelled:
            with suppress(TimeoutError):
                await asyncio.wait_for(state.wake.wait(), wait_s)
        state.wake.clear()
        ids, state.cancelled = state.cancelled, []
        return ids

    def _of(self, replica: str) -> _Replica:
        self._give_up_lost()
        state = self._replicas.setdefault(replica, _Replica(0.0))
        state.heard = self._clock()
        return state

    def _give_up_lost(self) -> None:
        """Ends the responses of replicas that are gone."""
        lost = {name for name, one in self._replicas.items() if self._clock() - one.heard > LOST_S}
        if not lost:
            return
        error = {"code": "server_error", "message": "the replica that made this response is gone"}
        for (owner, _), (stored, replica) in list(self._running.items()):
            if replica in lost:
                self._end(owner, _broken_off(stored, status="failed", error=error))
        for name in lost:
            del self._replicas[name]

    def _end(self, owner: str, stored: Stored) -> None:
        del self._running[owner, stored.response["id"]]
        self._store.put(owner, stored)


def _broken_off(stored: Stored, **ended: object) -> Stored:
    """The response, ended, including its open item."""
    items = [
        {**item, "status": "incomplete"} if item.get("status") == "in_progress" else item
        for item in stored.response["output"]
    ]
    return replace(stored, response={**stored.response, "output": items, **ended})
