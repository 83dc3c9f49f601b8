"""A holder of weights, or the directory, that dies alone while ranks and engines live: what was kept is published anew,
and nobody waits for ever."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any, cast

import pytest

from actors.weights import host, store
from actors.weights.holder import WeightHolder
from actors.weights.store import Address, Kept, WeightDirectory
from actors.weights.transports import find_sender
from coa.errors import SyncError, WeightsLost
from tests.actors.weights.test_transports import model
from tests.support.weights import FolderWeightStore, Lost, Mortal

pytestmark = pytest.mark.anyio

REMOTE, LOCAL = Address("two", "second"), Address("one", "first")


class Nodes:
    """A directory over holders that may die: `handles` has every one that was started, with its node."""

    def __init__(self, folder: Path) -> None:
        self.handles: list[tuple[str, Mortal]] = []
        self._folder = folder
        self.directory = self.started()

    def started(self) -> WeightDirectory:
        return WeightDirectory(self._make, (Lost,))

    def _make(self, node: str) -> Any:
        path = self._folder / f"{len(self.handles)}"
        path.mkdir()
        self.handles.append((node, Mortal(WeightHolder(path))))
        return self.handles[-1][1]

    async def publish(self, folder: str, name: str) -> str:
        path, manifest, _ = model(Path(folder), name)
        await self.directory.keep(Kept(name, "first", str(path), manifest))
        return str(path)


async def test_the_next_version_is_refused_if_its_holder_is_dead_and_ranks_that_start_again_publish_it(
    tmp_path: Path,
) -> None:
    nodes = Nodes(tmp_path)
    directory = nodes.directory
    folder = await directory.folder("first")
    for name in ("1", "2"):
        await nodes.publish(folder, name)
        await directory.path(name, REMOTE)
    nodes.handles[0][1].dead = True
    with pytest.raises(WeightsLost, match="the process that kept the weights in"):
        await nodes.publish(folder, "3")
    for address in (LOCAL, REMOTE, Address("three", "third")):
        with pytest.raises(WeightsLost, match="2 were lost 0 s ago"):
            await directory.path("2", address)
    folder = await directory.folder("first")
    for name in ("2-again", "3", "4", "5"):
        path = await nodes.publish(folder, name)
        assert await directory.path(name, LOCAL) == path
        assert Path(await directory.path(name, REMOTE)).read_bytes() == Path(path).read_bytes()
    assert [node for node, _ in nodes.handles] == ["first", "second", "first"]


async def test_ranks_that_wait_for_a_batch_notice_that_their_holder_is_dead(tmp_path: Path) -> None:
    """With `max_staleness: 0` no batch comes before every engine has the version that was lost."""
    nodes = Nodes(tmp_path)
    folder = await nodes.directory.folder("first")
    await nodes.publish(folder, "1")
    await nodes.directory.check("first", folder)
    nodes.handles[0][1].dead = True
    for _ in range(2):
        with pytest.raises(WeightsLost, match="has ended"):
            await nodes.directory.check("first", folder)
    await nodes.directory.holder("first")  # for another version's parts: not the folder that these ranks have
    with pytest.raises(WeightsLost, match="has ended"):
        await nodes.directory.check("first", folder)
    await nodes.directory.check("first", await nodes.directory.folder("first"))


async def test_an_engine_takes_another_copy_if_the_holder_of_its_node_died_with_the_first(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    path = await nodes.publish(await nodes.directory.folder("first"), "1")
    first = await nodes.directory.path("1", REMOTE)
    nodes.handles[1][1].dead = True
    with pytest.raises(WeightsLost):
        await nodes.directory.check("second", first)
    second = await nodes.directory.path("1", REMOTE)
    assert second != first
    assert Path(second).read_bytes() == Path(path).read_bytes()


async def test_a_directory_that_takes_the_place_of_another_has_the_ranks_publish_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(tmp_path)
    folder = await nodes.directory.folder("first")
    await nodes.publish(folder, "1")
    nodes.handles[0][1].dead = True
    nodes.directory = nodes.started()
    with pytest.raises(WeightsLost, match="1 were lost 0 s ago"):
        await nodes.directory.path("1", REMOTE)
    with monkeypatch.context() as patch:
        patch.setattr(store, "LOST_S", 0.0)
        with pytest.raises(SyncError) as raised:
            await nodes.directory.path("1", REMOTE)
        assert not isinstance(raised.value, WeightsLost)
    with pytest.raises(WeightsLost, match="has ended"):
        await nodes.directory.check("first", folder)
    await nodes.directory.acknowledge("1", REMOTE)
    path = await nodes.publish(await nodes.directory.folder("first"), "2")
    assert Path(await nodes.directory.path("2", REMOTE)).read_bytes() == Path(path).read_bytes()
    with pytest.raises(SyncError, match="1 are not kept any more"):
        await nodes.directory.path("1", REMOTE)


class CountingWeightStore(FolderWeightStore):
    checked = 0

    def check(self, node: str, folder: str) -> None:
        self.checked += 1


class OneRank:
    """In place of `Ranks`."""

    node, world = "first", 1

    def barrier(self) -> None:
        """There is nobody else."""


@pytest.mark.parametrize("transport", ["host", "ipc"])
def test_a_rank_asks_for_its_holder_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    ranks: Any = OneRank()
    counted = CountingWeightStore(str(tmp_path))
    sender = find_sender(transport)(ranks, counted)
    sender.check()
    assert counted.checked == 0
    monkeypatch.setattr(host, "CHECK_S", 0.0)
    sender.check()
    assert counted.checked == 1


@pytest.mark.slow
def test_a_killed_holder_and_a_killed_directory_are_replaced_and_ranks_are_told(
    ray_session: None, tmp_path: Path
) -> None:
    import ray

    from actors.weights.loader import own_node
    from cluster.weights import RayWeightStore, close_directory, start_directory

    def holders() -> list[int]:
        """Processes of Ray's workers that have a folder of weights of their own open."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                name = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if name.startswith(b"ray::WeightHolder"):
                found.append(int(process.name))
        return found

    others = set(holders())
    directory, node = start_directory(), own_node()
    kept = RayWeightStore(directory)

    def lost(folder: str) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                kept.check(node, folder)
            except WeightsLost:
                return
            time.sleep(0.1)
        pytest.fail("nobody noticed")

    folder = kept.folder(node)
    kept.check(node, folder)
    [holder] = set(holders()) - others
    os.kill(holder, signal.SIGKILL)
    lost(folder)
    again = kept.folder(node)
    assert again != folder
    path, manifest, _ = model(Path(again), "1")
    kept.keep(Kept("1", node, str(path), manifest))
    ray.kill(cast(Any, directory), no_restart=False)
    lost(again)
    with pytest.raises(WeightsLost, match="1 were lost"):
        asyncio.run(kept.path("1", Address("one", node)))
    folder = kept.folder(node)
    assert folder != again
    path, manifest, _ = model(Path(folder), "1-again")
    kept.keep(Kept("1-again", node, str(path), manifest))
    assert asyncio.run(kept.path("1-again", Address("one", node))) == str(path)
    asyncio.run(close_directory(directory))
    assert not Path(folder).exists()
