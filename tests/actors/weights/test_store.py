"""Where published weights are kept: what goes when, copies on other nodes, and what a killed process leaves."""

import asyncio
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actors.weights import holder as holder_module
from actors.weights import store
from actors.weights.holder import SPARE, WeightHolder, chunks, reuse_spare, segment_path
from actors.weights.host import elsewhere
from actors.weights.manifest import seal
from actors.weights.segment import PREFIX, SegmentFolder, reading, write_pieces
from actors.weights.store import KEPT, LEASE_S, Address, Kept, Retention, WeightDirectory
from cluster import weights
from coa.errors import DamagedWeights, SyncError, WeightsLost
from tests.actors.weights.test_transports import LAYOUT, model
from tests.support.patience import PATIENCE_S, until
from tests.support.weights import LocalActor, Lost, Mortal

pytestmark = pytest.mark.anyio


def test_the_two_newest_versions_are_kept_and_older_ones_while_an_engine_reads_them() -> None:
    retention = Retention()
    for name in ("1", "2", "3"):
        retention.publish(name)
    retention.lease("1", "engine", 0.0)
    assert KEPT == 2
    assert retention.drop(1.0) == {}
    retention.lease("3", "engine", 2.0)
    retention.acknowledge("3", "engine")
    assert retention.leases == {}
    assert retention.drop(3.0) == {"1": True}
    assert retention.names == ["2", "3"]


def test_an_engine_that_died_while_reading_keeps_a_version_for_no_longer_than_its_lease() -> None:
    retention = Retention()
    for name in ("1", "2", "3"):
        retention.publish(name)
    retention.lease("1", "dead", 0.0)
    assert retention.drop(LEASE_S - 1) == {}
    assert retention.drop(LEASE_S) == {"1": False}, "it may still have it mapped"
    retention.acknowledge("1", "dead")  # it may still say so


def two_nodes(folder: Path) -> tuple[WeightDirectory, dict[str, WeightHolder]]:
    holders: dict[str, WeightHolder] = {}

    def make(node: str) -> Any:
        (folder / node).mkdir()
        holders[node] = WeightHolder(folder / node)
        return LocalActor(holders[node])

    return WeightDirectory(make), holders


async def test_another_node_gets_one_copy_and_old_versions_go_everywhere(tmp_path: Path) -> None:
    directory, _ = two_nodes(tmp_path)
    folder = await directory.folder("first")
    for name in ("1", "2", "3", "4"):
        path, manifest, _ = model(Path(folder), name)
        await directory.keep(Kept(name, "first", str(path), manifest))
        here = await directory.path(name, Address("one", "first"))
        assert here == str(path)
        there, again = await asyncio.gather(
            *(directory.path(name, Address(engine, "second")) for engine in ("two", "three"))
        )
        assert there == again != here
        assert Path(there).read_bytes() == path.read_bytes()
        for engine, node in (("one", "first"), ("two", "second"), ("three", "second")):
            await directory.acknowledge(name, Address(engine, node))
    assert sorted(p.stem for p in tmp_path.rglob("*.safetensors")) == ["3", "3", "4", "4", "spare"]
    assert await directory.members() == {"one": 1, "two": 1, "three": 1}
    await directory.absent(["two"])
    assert await directory.members() == {"one": 1, "three": 1}
    with pytest.raises(SyncError, match="1 are not kept any more"):
        await directory.path("1", Address("late", "first"))
    await directory.close()
    assert list(tmp_path.rglob("*.safetensors")) == []


def test_nodes_that_have_a_version_give_it_on_each_to_one_other_at_a_time(tmp_path: Path) -> None:
    """Seven others have it after three copies one after the other."""
    giving: dict[str, asyncio.Event] = {}
    rounds: list[int] = []

    class Waiting(WeightHolder):
        async def read(self, name: str, ranges: Any) -> Any:
            folder = await self.folder()
            assert folder not in giving
            giving[folder] = asyncio.Event()
            await giving[folder].wait()
            return await super().read(name, ranges)

    async def main() -> None:
        def make(node: str) -> Any:
            (tmp_path / node).mkdir()
            return LocalActor(Waiting(tmp_path / node))

        directory = WeightDirectory(make)
        path, manifest, _ = model(Path(await directory.folder("first")), "1")
        await directory.keep(Kept("1", "first", str(path), manifest))
        others = [f"node{n}" for n in range(7)]
        copies = [asyncio.ensure_future(directory.path("1", Address(node, node))) for node in others]
        while (done := sum(copy.done() for copy in copies)) < len(others):
            await until(lambda done=done: len(giving) == min(done + 1, len(others) - done))
            rounds.append(len(giving))
            for event in giving.values():
                event.set()
            giving.clear()
            await until(lambda done=done: sum(copy.done() for copy in copies) == done + rounds[-1])
        assert rounds == [1, 2, 4]
        assert {Path(copy.result()).read_bytes() for copy in copies} == {path.read_bytes()}
        await directory.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


async def test_a_copy_is_taken_from_another_node_if_the_one_that_gives_it_is_lost(tmp_path: Path) -> None:
    handles: dict[str, Mortal] = {}

    def make(node: str) -> Any:
        (tmp_path / node).mkdir()
        handles[node] = Mortal(WeightHolder(tmp_path / node))
        return handles[node]

    directory = WeightDirectory(make, (Lost,))
    path, manifest, _ = model(Path(await directory.folder("first")), "1")
    await directory.keep(Kept("1", "first", str(path), manifest))
    await directory.path("1", Address("two", "second"))
    handles["second"].dead = True
    for engine, node in (("three", "third"), ("four", "fourth")):
        assert Path(await directory.path("1", Address(engine, node))).read_bytes() == path.read_bytes()
    await directory.close()


async def test_a_version_is_written_over_one_that_nobody_reads_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _ = two_nodes(tmp_path)
    folder = await directory.folder("first")
    files: dict[str, int] = {}

    async def publish(name: str) -> None:
        path = segment_path(folder, name)
        reuse_spare(path)
        _, manifest, data = model(Path(folder), name)
        files[name] = path.stat().st_ino
        await directory.keep(Kept(name, "first", str(path), manifest))
        for engine, node in (("one", "first"), ("two", "second")):
            there = await directory.path(name, Address(engine, node))
            assert Path(there).read_bytes()[-LAYOUT.nbytes :] == data.tobytes()
            files[f"{name} of {engine}"] = Path(there).stat().st_ino
            await directory.acknowledge(name, Address(engine, node))

    for name in ("1", "2", "3", "4"):
        await publish(name)
    assert files["4"] == files["1"]
    assert files["4 of two"] == files["2 of two"]
    assert Path(folder, SPARE).stat().st_ino == files["2"]
    monkeypatch.setattr(store, "LEASE_S", 0.0)
    await directory.path("4", Address("three", "first"))
    await publish("5")
    await publish("6")
    assert not Path(folder, SPARE).exists(), "the lease has lapsed, but the third engine may still read version 4"
    assert sorted(path.stem for path in Path(folder).glob("*.safetensors")) == ["5", "6"]
    await directory.close()


def test_bytes_that_change_between_two_nodes_are_found_and_copied_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        directory, holders = two_nodes(tmp_path)
        path, manifest, _ = model(Path(await directory.folder("first")), "1")
        await directory.keep(Kept("1", "first", str(path), manifest))
        real = holders["first"].read

        async def flipped(name: str, ranges: Any) -> Any:
            data, expected = await real(name, ranges)
            data[1] ^= 1
            return data, expected

        with monkeypatch.context() as patch:
            patch.setattr(holders["first"], "read", flipped)
            with pytest.raises(DamagedWeights, match="between two nodes"):
                await directory.path("1", Address("two", "second"))
        copy = await directory.path("1", Address("two", "second"))
        assert Path(copy).read_bytes() == path.read_bytes()
        await directory.close()

    asyncio.run(main())


async def test_parts_of_other_nodes_are_put_together_on_the_first(tmp_path: Path) -> None:
    directory, _ = two_nodes(tmp_path)
    data = np.random.default_rng(1).integers(0, 256, LAYOUT.nbytes, np.uint8)
    base, cut = len(LAYOUT.header()), 7000
    first, second = [segment_path(await directory.folder(node), "1") for node in ("first", "second")]
    write_pieces(first, LAYOUT, iter([(0, data[:cut])]))
    write_pieces(second, LAYOUT, iter([(cut, data[cut:])]))
    ranges = elsewhere([("first", [(base, base + cut)]), ("second", [(base + cut, base + LAYOUT.nbytes)])], "first")
    await directory.merge("1", "first", base + LAYOUT.nbytes, ranges)
    with reading(first, LAYOUT, base) as read:
        assert seal(1, LAYOUT, read) == seal(1, LAYOUT, lambda start, stop: data[start:stop])
    await directory.close()


async def test_a_holder_that_is_lost_stops_no_later_version_and_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles: list[tuple[str, Mortal]] = []

    def make(node: str) -> Any:
        (tmp_path / f"{len(handles)}").mkdir()
        handles.append((node, Mortal(WeightHolder(tmp_path / f"{len(handles)}"))))
        return handles[-1][1]

    directory = WeightDirectory(make, (Lost,))
    folder = Path(await directory.folder("first"))

    async def publish(name: str) -> None:
        path, manifest, _ = model(folder, name)
        await directory.keep(Kept(name, "first", str(path), manifest))

    await publish("1")
    await directory.path("1", Address("two", "second"))
    handles[1][1].dead = True
    for name in ("2", "3", "4", "5"):
        await publish(name)
    await directory.path("5", Address("two", "second"))
    assert [node for node, _ in handles] == ["first", "second", "second"]
    # Those that have the weights: they are waited for, and learners that start again publish others.
    handles[0][1].dead = handles[2][1].dead = True
    for _ in range(2):
        with pytest.raises(WeightsLost, match="5 were lost 0 s ago"):
            await directory.path("5", Address("three", "third"))
    with monkeypatch.context() as patch:
        patch.setattr(store, "LOST_S", 0.0)
        with pytest.raises(SyncError) as raised:
            await directory.path("5", Address("three", "third"))
        assert not isinstance(raised.value, WeightsLost)
    assert [node for node, _ in handles] == ["first", "second", "second", "third"], "not one on a lost node"
    again = Path(await directory.folder("first"))
    assert again != folder
    folder = again
    for name in ("6", "7", "8"):
        await publish(name)
        await directory.path(name, Address("three", "third"))
    assert [node for node, _ in handles] == ["first", "second", "second", "third", "first"]
    await directory.close()


async def test_what_killed_ranks_have_written_goes_when_others_begin(tmp_path: Path) -> None:
    directory, _ = two_nodes(tmp_path)
    folder = Path(await directory.folder("first"))
    path, manifest, _ = model(folder, "1")
    await directory.keep(Kept("1", "first", str(path), manifest))
    model(folder, "2")
    assert await directory.folder("first") == str(folder)
    assert [path.stem for path in folder.glob("*.safetensors")] == ["1"]
    await directory.close()


def test_weights_in_memory_are_private_and_a_saved_model_is_as_any_file_beside_it(tmp_path: Path) -> None:
    folder = SegmentFolder(tmp_path)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    folder.close()
    before = os.umask(0o022)
    try:
        write_pieces(tmp_path / "model.safetensors", LAYOUT, iter([]))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) == 0o644


class SlowSource:
    """A holder's handle whose reads take a moment; one of them may fail."""

    def __init__(self, holder: WeightHolder, failing: int | None = None) -> None:
        self.read, self._holder, self._failing = SimpleNamespace(remote=self._read), holder, failing
        self.reads, self.under_way, self.most = 0, 0, 0

    async def _read(self, name: str, ranges: Any) -> Any:
        self.reads += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.001)
        self.under_way -= 1
        if self.reads == self._failing:
            raise SyncError("lost")
        return await self._holder.read(name, ranges)


async def test_a_copy_has_a_few_reads_under_way_at_once_and_ends_with_the_first_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder_module, "CHUNK_BYTES", 500)
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    there, here = WeightHolder(tmp_path / "there"), WeightHolder(tmp_path / "here")
    path, _, _ = model(Path(await there.folder()))
    size = path.stat().st_size
    source: Any = SlowSource(there)
    copy = await here.take("1", source, size, [(0, size)])
    assert Path(copy).read_bytes() == path.read_bytes()
    assert source.most == holder_module.READS > 1
    failing: Any = SlowSource(there, failing=holder_module.READS)
    with pytest.raises(SyncError, match="lost"):
        await here.take("1", failing, size, [(0, size)])
    reads = failing.reads
    await asyncio.sleep(0.05)
    assert failing.reads == reads < source.reads
    await here.close()
    await there.close()


def test_a_merge_may_take_as_long_as_its_bytes_need(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    monkeypatch.setattr(weights.ray, "get", lambda _, timeout: limits.append(timeout))
    directory: Any = SimpleNamespace(merge=SimpleNamespace(remote=lambda *_: None))
    weights.RayWeightStore(directory).merge("1", "first", 65 * 10**9, [])
    assert limits == [weights.RPC_S + 650]


async def test_a_copy_to_another_node_may_take_as_long_as_its_bytes_need(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    async def wait_for(call: Any, timeout: float) -> str:  # noqa: ASYNC109
        limits.append(timeout)
        return await call

    async def path(*_: Any) -> str:
        return "there"

    monkeypatch.setattr(weights.asyncio, "wait_for", wait_for)
    directory: Any = SimpleNamespace(path=SimpleNamespace(remote=path))
    assert await weights.RayWeightStore(directory).path("1", Address("one", "first"), 65 * 10**9) == "there"
    assert limits == [weights.RPC_S + 650]


def test_ranges_are_sent_in_pieces_of_a_size() -> None:
    assert list(chunks([(0, 5), (10, 12), (20, 31)], 4)) == [
        [(0, 4)],
        [(4, 5), (10, 12), (20, 21)],
        [(21, 25)],
        [(25, 29)],
        [(29, 31)],
    ]
    assert list(chunks([], 4)) == []


def test_what_a_killed_process_left_in_shared_memory_is_removed_by_the_next(tmp_path: Path) -> None:
    left = tmp_path / f"{PREFIX}left"
    left.mkdir()
    (left / ".lock").touch()
    (left / "1.safetensors").touch()
    ours = SegmentFolder(tmp_path)
    assert not left.exists()
    another = SegmentFolder(tmp_path)
    assert ours.path.exists(), "it is locked by who uses it"
    ours.close()
    another.close()
    assert list(tmp_path.iterdir()) == []
