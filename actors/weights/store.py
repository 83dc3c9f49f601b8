"""Storage of a run's published weights: one directory for the run, and a holder on each node that needs one.

    ranks ──write──► file in the holder's folder ──keep──► directory: newest version and the one before it
    engine ──path──► directory ──► holder of the engine's node ──buckets──► a holder that has the version
                                   (one copy for all engines of a node)

Both live outside the ranks, so the weights survive restarts of the learners. Both are plain classes; `cluster.weights`
makes them actors. A version is dropped once it is not one of the two newest and no engine is reading it.

A node gives a version to one other node at a time, and each node that has it gives it on: n nodes have it after
log2(n + 1) copies one after the other, and no node's network is shared by all.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from actors.handles import Handle
from actors.weights.holder import Ranges
from actors.weights.manifest import Manifest
from coa.errors import SyncError, WeightsLost

KEPT = 2
"""Number of newest versions that are always kept."""
LEASE_S = 600.0
"""Seconds after which an engine that has not acknowledged a version no longer counts as its reader."""
LOST_S = 600.0
"""Seconds for which lost weights raise WeightsLost, since restarted learners may still publish others; later,
SyncError."""


@dataclass(frozen=True, slots=True)
class Address:
    """The name and place of an engine, as transports and the storage of weights see it."""

    engine: str
    """Unique name of one start of one engine."""
    node: str
    workers: int = 1
    """Number of processes that take the weights."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A version that is complete on one node."""

    name: str
    node: str
    path: str
    manifest: Manifest


@dataclass
class Retention:
    """Decides which versions are kept. Pure: times are passed in."""

    names: list[str] = field(default_factory=list)
    leases: dict[tuple[str, str], float] = field(default_factory=dict)
    """Time at which each engine began to read a version, by (version's name, engine)."""

    def publish(self, name: str) -> None:
        self.names.append(name)

    def lease(self, name: str, engine: str, now: float) -> None:
        self.leases[name, engine] = now

    def acknowledge(self, name: str, engine: str) -> None:
        """Ends the engine's leases of this version, which it has loaded, and of all older versions."""
        for other in self.names[: self.names.index(name) + 1] if name in self.names else ():
            self.leases.pop((other, engine), None)

    def drop(self, now: float) -> dict[str, bool]:
        """Removes and returns the versions that are no longer needed, and whether each is unread: whether every engine
        that began to read it has acknowledged it."""
        read = {name for (name, _), since in self.leases.items() if now - since < LEASE_S}
        begun = {name for name, _ in self.leases}
        gone = {name: name not in begun for name in self.names[:-KEPT] if name not in read}
        self.names = [name for name in self.names if name not in gone]
        self.leases = {key: since for key, since in self.leases.items() if key[0] in self.names}
        return gone


class RankWeightStore(Protocol):
    """The store's interface for ranks. Every call has a timeout, which grows with the bytes it moves, and raises
    SyncError after it."""

    def folder(self, node: str) -> str:
        """Folder into which the ranks of a node write."""
        ...

    def check(self, node: str, folder: str) -> None:
        """Raises WeightsLost if `folder`, which `folder(node)` returned, is no longer kept: its holder has ended."""
        ...

    def merge(self, name: str, first: str, size: int, parts: Sequence[tuple[str, Ranges]]) -> None:
        """Copies byte ranges of a version's file from other nodes into the first node's file."""
        ...

    def keep(self, kept: Kept) -> None:
        """Records a complete version; raises WeightsLost if the holder of its file has ended."""
        ...

    def members(self) -> dict[str, int]:
        """Number of workers by engine, for engines that have taken weights before."""
        ...

    def absent(self, engines: Sequence[str]) -> None:
        """Records engines that did not come for the last version: senders no longer wait for them until they take
        weights again."""
        ...


class EngineWeightStore(Protocol):
    """The store's interface for engines, with the same timeouts."""

    async def path(self, name: str, address: Address, size: int = 0) -> str:
        """Path of a file with that version on the engine's node. size: of the version in bytes, which determines how
        long a copy to that node may take."""
        ...

    async def join(self, address: Address) -> None:
        """Makes senders expect the engine for later versions."""
        ...

    async def acknowledge(self, name: str, address: Address) -> None: ...


class WeightStore(RankWeightStore, EngineWeightStore, Protocol):
    """Both interfaces; a rank's `Published` carries the store to the engines."""


class WeightDirectory:
    """Records which versions are published, where they are, and which engines read them. One per run; its methods run
    in one event loop."""

    def __init__(self, make_holder: Callable[[str], Handle], failed: tuple[type[Exception], ...] = ()) -> None:
        """make_holder: starts a `WeightHolder` on a node, whose methods are called with `.remote`. failed: exceptions
        that such a call raises if it fails, for example because the holder or its node is lost."""
        self._make_holder, self._failed = make_holder, failed
        self._holders: dict[str, Handle] = {}
        self._kept: dict[str, Kept] = {}
        self._lost: dict[str, float] = {}
        """Time of loss by kept version whose file is lost."""
        self._copies: dict[tuple[str, str], asyncio.Future[str]] = {}
        """Paths of copies on other nodes, by (version's name, node)."""
        self._sources: dict[str, asyncio.Queue[tuple[str, Handle]]] = {}
        """By version's name: nodes that have it and give it to no other right now, with their holders."""
        self._retention = Retention()
        self._members: dict[str, int] = {}
        self._began = time.monotonic()

    async def holder(self, node: str) -> Handle:
        if node not in self._holders:
            self._holders[node] = self._make_holder(node)
        return self._holders[node]

    async def folder(self, node: str) -> str:
        """Folder into which ranks of a node write; called before any of them writes, since files left behind by killed
        ranks are removed. A lost holder is replaced; on a lost node this fails."""
        await self._forget_lost([node])
        holder = await self.holder(node)
        await holder.keep_only.remote(list(self._retention.names))
        return await holder.folder.remote()

    async def check(self, node: str, folder: str) -> None:
        """Raises WeightsLost if `folder`, where ranks of a node write, belongs to a holder that has ended: what they
        write there reaches no other node, and is removed when another holder starts."""
        await self._forget_lost([node])
        holder = self._holders.get(node)
        if holder is None or await holder.folder.remote() != folder:
            raise WeightsLost(f"the process that kept the weights in {folder} has ended")

    async def merge(self, name: str, first: str, size: int, parts: Sequence[tuple[str, Ranges]]) -> None:
        target, sources = await self.holder(first), [await self.holder(node) for node, _ in parts]
        pairs = zip(sources, parts, strict=True)
        try:
            await asyncio.gather(*(target.take.remote(name, source, size, ranges) for source, (_, ranges) in pairs))
        except self._failed:
            await self._forget_lost([first, *(node for node, _ in parts)])
            raise

    async def _forget_lost(self, nodes: Sequence[str]) -> None:
        """Forgets holders that no longer answer and marks their versions as lost. A node that is still there gets a new
        holder with the next request."""
        for node in nodes:
            if (holder := self._holders.get(node)) is None:
                continue
            try:
                await holder.folder.remote()  # fails only if the holder is lost
            except self._failed:
                if self._holders.get(node) is holder:
                    del self._holders[node]
                for name in (name for name, kept in self._kept.items() if kept.node == node):
                    self._lost.setdefault(name, time.monotonic())
                self._copies = {key: copy for key, copy in self._copies.items() if key[1] != node}

    async def keep(self, kept: Kept) -> None:
        """Records a complete version; drops older versions that are no longer needed, on every node. Raises WeightsLost
        if the holder of its file has ended."""
        await self.check(kept.node, str(Path(kept.path).parent))
        self._kept[kept.name] = kept
        self._sources[kept.name] = asyncio.Queue()
        self._sources[kept.name].put_nowait((kept.node, self._holders[kept.node]))
        self._retention.publish(kept.name)
        for name, unread in self._retention.drop(time.monotonic()).items():
            del self._kept[name], self._sources[name]
            self._lost.pop(name, None)
            self._copies = {key: copy for key, copy in self._copies.items() if key[0] != name}
            await self._drop(name, unread)

    async def _drop(self, name: str, unread: bool) -> None:
        """Drops a version on every node; a lost holder is no error."""
        asked = dict(self._holders)
        drops = (holder.drop.remote(name, unread) for holder in asked.values())
        answers = await asyncio.gather(*drops, return_exceptions=True)
        failed = {node: one for node, one in zip(asked, answers, strict=True) if isinstance(one, BaseException)}
        await self._forget_lost(list(failed))
        for node, error in failed.items():
            if self._holders.get(node) is asked[node]:
                raise error

    async def path(self, name: str, address: Address) -> str:
        """Path of a file with that version on the engine's node. Raises SyncError if the version is no longer kept or
        was lost more than LOST_S ago, and WeightsLost if it was lost more recently."""
        kept = self._kept.get(name)
        if kept is None and not self._kept:
            raise lost_since(self._began, name)  # they were kept before this directory took the place of another
        if kept is None:
            raise SyncError(f"weights {name} are not kept any more")
        self._require(name)
        self._retention.lease(name, address.engine, time.monotonic())
        await self.join(address)
        if address.node == kept.node:
            return kept.path
        key = (name, address.node)
        copy = self._copies.get(key)
        if copy is None or (copy.done() and copy.exception() is not None):
            self._copies[key] = asyncio.ensure_future(self._copy(kept, address.node))
        return await asyncio.shield(self._copies[key])

    async def _copy(self, kept: Kept, node: str) -> str:
        sources, holder = self._sources[kept.name], await self.holder(node)
        layout = kept.manifest.layout
        size = len(layout.header()) + layout.nbytes
        while True:
            giver, source = await sources.get()
            if giver != kept.node and self._holders.get(giver) is not source:
                continue  # it was lost, and with it its copy
            try:
                self._require(kept.name)
                path = await holder.take.remote(kept.name, source, size, [(0, size)])
            except self._failed:
                await self._forget_lost([node, giver])
                self._require(kept.name)
                if self._holders.get(giver) is source:
                    raise
            else:
                sources.put_nowait((node, holder))
                return path
            finally:
                sources.put_nowait((giver, source))

    def _require(self, name: str) -> None:
        if (since := self._lost.get(name)) is not None:
            raise lost_since(since, name)

    async def acknowledge(self, name: str, address: Address) -> None:
        self._retention.acknowledge(name, address.engine)

    async def join(self, address: Address) -> None:
        """Makes senders expect the engine for later versions."""
        self._members[address.engine] = address.workers

    async def members(self) -> dict[str, int]:
        return dict(self._members)

    async def absent(self, engines: Sequence[str]) -> None:
        for engine in engines:
            self._members.pop(engine, None)

    async def close(self) -> None:
        """Removes every file."""
        await asyncio.gather(*(holder.close.remote() for holder in self._holders.values()), return_exceptions=True)


def lost_since(since: float, name: str) -> SyncError:
    """The error of a version that was lost at a time: WeightsLost while learners may still publish others."""
    for_s = time.monotonic() - since
    error = WeightsLost if for_s < LOST_S else SyncError
    return error(f"weights {name} were lost {for_s:.0f} s ago with the process that kept them")
