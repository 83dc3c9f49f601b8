"""Ways for weights: host and collective give the same bytes, and who misses one takes the other."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.weights.collective import Offer, Rendezvous, take
from actors.weights.holder import WeightHolder, chunks, segment_path
from actors.weights.host import elsewhere
from actors.weights.segment import PREFIX, SegmentFolder, reading, write_pieces
from actors.weights.shelf import KEPT, LEASE_S, Kept, Retention, WeightDirectory
from actors.weights.transport import Address
from actors.weights.transports import find_sender
from coa.errors import DamagedWeights, DiskFull, SyncError, UserError
from coa.learning.weights import Manifest, digest, lay_out, seal
from tests.support.weights import FolderShelf, LocalActor, run_ranks

LAYOUT = lay_out([("a", "F32", (5000,)), ("b", "BF16", (777,))], 3000)


def model(folder: Path, name: str = "1") -> tuple[Path, Manifest, np.ndarray]:
    """A file of random weights."""
    data = np.random.default_rng(0).integers(0, 256, LAYOUT.nbytes, np.uint8)
    path = segment_path(str(folder), name)
    write_pieces(path, LAYOUT, iter([(0, data)]))
    return path, seal(1, LAYOUT, lambda start, stop: data[start:stop]), data


# --- the two ways, in processes of their own --------------------------------------------------------------------------

EITHER_WAY = """
import asyncio, time
from actors.learner.lora import Source
from actors.weights.parts import ModelParts
from actors.weights.ranks import Ranks
from actors.weights.transport import Address
from actors.weights.transports import find_receiver, find_sender
from coa.learning.weights import digest
from tests.support.weights import FolderShelf
import pickle

learners = dist.new_group([0, 1])
shelf = FolderShelf(str(folder), members={"engine": 1, "away": 1})
torch.manual_seed(0)
sources = [Source(f"t{i}", (torch.nn.Parameter(torch.randn(n, 7)),)) for i, n in enumerate((100, 3, 900))]
parts = ModelParts(sources, sharded=False, bucket_bytes=5000)
if rank < 2:
    import actors.weights.collective as collective, actors.weights.ranks as ranks_module
    collective.JOIN_S = 5.0
    real = dist.all_gather_object
    dist.all_gather_object = lambda found, value: real(found, value, group=learners)
    dist.get_world_size = lambda: 2
    ranks = Ranks("node")
    sender = find_sender("collective")(ranks, shelf)
    published = sender.send(parts, 3, "3-0")
    if rank == 0:
        (folder / "published.tmp").write_bytes(pickle.dumps(published))
        (folder / "published.tmp").rename(folder / "published")
        sender._offers[-1].join()
        result = {"taken": sender._offers[-1].taken, "digests": [d.hex() for d in published.manifest.digests]}
    else:
        result = None
else:
    while not (folder / "published").exists():
        time.sleep(0.05)
    published = pickle.loads((folder / "published").read_bytes())
    result = []
    for one in (published, published.fallback):
        receiver = find_receiver(one.transport)
        prepared = pickle.loads(pickle.dumps(asyncio.run(receiver.prepare(one, Address("engine", "node")))))
        with receiver.receive(one.manifest, prepared, 0) as data:
            one.manifest.check(data)
            layout = one.manifest.layout
            buckets = [layout.bucket(i) for i in range(layout.buckets)]
            result.append([one.transport, [digest(data[start:stop]).hex() for start, stop in buckets]])
(folder / f"{rank}.json").write_text(json.dumps(result))
"""


def test_host_and_collective_give_the_same_digests(tmp_path: Path) -> None:
    """Two ranks and an engine; another engine is expected and doesn't come."""
    sent, _, received = run_ranks(EITHER_WAY, 3, tmp_path)
    (by_group, first), (by_host, second) = received
    assert (by_group, by_host) == ("collective", "host")
    assert first == second == sent["digests"]
    assert sent["taken"] == ["engine/0"]
    assert json.loads((tmp_path / "absent").read_text()) == ["away"]


def offer(path: Path, members: dict[str, int], absent: list[str], join_s: float) -> Offer:
    return Offer(path, LAYOUT, members, absent.extend, address="127.0.0.1", join_s=join_s)


def meeting(offered: Offer) -> Rendezvous:
    return Rendezvous("127.0.0.1", offered.port, 5.0)


def test_who_is_not_expected_or_comes_too_late_is_told_so(tmp_path: Path) -> None:
    path, _, _ = model(tmp_path)
    absent: list[str] = []
    offered = offer(path, {"a": 1}, absent, 0.05)
    offered.join()
    assert absent == ["a"]
    with pytest.raises(SyncError, match="began without this worker"):
        take(meeting(offered), LAYOUT, "a/0")
    assert offered.taken == []


def test_an_offer_that_is_withdrawn_ends_at_once_and_says_so(tmp_path: Path) -> None:
    path, _, _ = model(tmp_path)
    absent: list[str] = []
    offered = offer(path, {"a": 1}, absent, 60.0)
    offered.withdraw()
    assert absent == []
    with pytest.raises(SyncError, match="began without this worker"):
        take(meeting(offered), LAYOUT, "a/0")


def test_where_nobody_offers_anything_the_broadcast_is_missed_within_its_time() -> None:
    nowhere = Rendezvous("127.0.0.1", 1, 0.2)
    with pytest.raises(SyncError, match="the broadcast was missed"):
        take(nowhere, LAYOUT, "a/0")


def test_two_workers_of_an_engine_get_every_byte(tmp_path: Path) -> None:
    path, manifest, data = model(tmp_path)
    offered = offer(path, {"a": 2}, [], 20.0)
    found: dict[int, np.ndarray] = {}

    def run(worker: int) -> None:
        found[worker] = take(meeting(offered), LAYOUT, f"a/{worker}")

    threads = [threading.Thread(target=run, args=(worker,)) for worker in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    offered.join()
    for got in found.values():
        manifest.check(got)
        assert np.array_equal(got, data)
    assert offered.taken == ["a/0", "a/1"]


def test_a_way_that_is_not_there_and_one_that_publishes_nothing_are_the_persons_mistakes() -> None:
    with pytest.raises(UserError, match="unknown weight transport 'hots': known are host, collective, on_disk"):
        find_sender("hots")
    with pytest.raises(UserError, match="'on_disk' publishes nothing"):
        find_sender("on_disk")


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_the_two_newest_versions_are_kept_and_older_ones_while_an_engine_reads_them() -> None:
    retention = Retention()
    for name in ("1", "2", "3"):
        retention.publish(name)
    retention.lease("1", "engine", 0.0)
    assert KEPT == 2
    assert retention.drop(1.0) == []
    retention.lease("3", "engine", 2.0)
    retention.acknowledge("3", "engine")
    assert retention.leases == {}
    assert retention.drop(3.0) == ["1"]
    assert retention.names == ["2", "3"]


def test_an_engine_that_died_while_reading_keeps_a_version_for_no_longer_than_its_lease() -> None:
    retention = Retention()
    for name in ("1", "2", "3"):
        retention.publish(name)
    retention.lease("1", "dead", 0.0)
    assert retention.drop(LEASE_S - 1) == []
    assert retention.drop(LEASE_S) == ["1"]
    retention.acknowledge("1", "dead")  # it may still say so


def two_nodes(folder: Path) -> tuple[WeightDirectory, dict[str, WeightHolder]]:
    holders: dict[str, WeightHolder] = {}

    def make(node: str) -> Any:
        (folder / node).mkdir()
        holders[node] = WeightHolder(folder / node)
        return LocalActor(holders[node])

    return WeightDirectory(make), holders


def test_another_node_gets_one_copy_and_old_versions_go_everywhere(tmp_path: Path) -> None:
    async def main() -> None:
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
        assert sorted(p.stem for p in tmp_path.rglob("*.safetensors")) == ["3", "3", "4", "4"]
        assert await directory.members() == {"one": 1, "two": 1, "three": 1}
        await directory.absent(["two"])
        assert await directory.members() == {"one": 1, "three": 1}
        with pytest.raises(SyncError, match="1 are not kept any more"):
            await directory.path("1", Address("late", "first"))
        await directory.close()
        assert list(tmp_path.rglob("*.safetensors")) == []

    asyncio.run(main())


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


def test_parts_of_other_nodes_are_put_together_on_the_first(tmp_path: Path) -> None:
    async def main() -> None:
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

    asyncio.run(main())


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


def test_no_room_in_shared_memory_says_how_much_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import os

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskFull, match=r"no room for weights of 0\.00 GiB"):
        write_pieces(tmp_path / "file", LAYOUT, iter([]))


def test_digests_of_a_file_are_those_of_its_bytes(tmp_path: Path) -> None:
    path, manifest, data = model(tmp_path)
    with reading(path, LAYOUT, len(LAYOUT.header())) as read:
        assert digest(read(*LAYOUT.bucket(2))) == manifest.digests[2] == digest(data[6000:9000])


def test_a_transport_of_ones_own_is_one_file(one_rank: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from actors.learner.lora import Source
    from actors.weights.parts import ModelParts
    from actors.weights.ranks import Ranks
    from actors.weights.transports import TRANSPORTS, find_receiver

    monkeypatch.setenv("COA_EXTENSIONS", "docs.examples.folder_transport")
    monkeypatch.setenv("COA_WEIGHTS_FOLDER", str(tmp_path / "weights"))
    tensor = torch.arange(1000, dtype=torch.float32)
    parts = ModelParts([Source("t", (torch.nn.Parameter(tensor),))], sharded=False, bucket_bytes=300)
    published = find_sender("folder")(Ranks("node"), FolderShelf(str(tmp_path))).send(parts, 5, "5-0")
    TRANSPORTS._entries.pop("folder")  # nothing of it is left for other tests
    assert published is not None
    receiver = find_receiver("on_disk")
    prepared = asyncio.run(receiver.prepare(published, Address("engine", "node")))
    with receiver.receive(published.manifest, prepared, 0) as data:
        published.manifest.check(data)
        assert np.array_equal(data.view(np.float32), tensor.numpy())
