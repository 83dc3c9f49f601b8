"""Ways for weights: host and collective give the same bytes, and who misses one takes the other."""

import asyncio
import json
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from actors.weights.collective import Offer, Rendezvous, take
from actors.weights.holder import segment_path
from actors.weights.segment import reading, write_pieces
from actors.weights.transport import Address
from actors.weights.transports import find_sender
from coa.errors import DiskFull, SyncError, UserError
from coa.learning.weights import Manifest, digest, lay_out, seal
from tests.support.weights import FolderShelf, run_ranks

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


def test_an_offer_listens_at_its_own_address_alone(tmp_path: Path) -> None:
    path, _, _ = model(tmp_path)
    offered = offer(path, {"a": 1}, [], 5.0)
    sockets = [one.laddr for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    assert {ip for ip, port in sockets if port == offered.port} == {"127.0.0.1"}
    offered.withdraw()


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


@pytest.mark.parametrize("gpus", [False, True])
def test_two_workers_of_an_engine_get_every_byte(gpus: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the host's memory, whether there are GPUs or not."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus)
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
    with pytest.raises(UserError, match="unknown weight transport 'hots': known are host, collective, ipc, on_disk"):
        find_sender("hots")
    with pytest.raises(UserError, match="'on_disk' can't publish weights"):
        find_sender("on_disk")


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
    parameter = torch.nn.Parameter(tensor.clone())
    parts = ModelParts([Source("t", (parameter,))], sharded=False, bucket_bytes=300)
    sender = find_sender("folder")(Ranks("node"), FolderShelf(str(tmp_path)))
    published = sender.send(parts, 5, "5-0")
    TRANSPORTS._entries.pop("folder")  # nothing of it is left for other tests
    assert published is not None
    receiver = find_receiver("on_disk")
    prepared = asyncio.run(receiver.prepare(published, Address("engine", "node")))
    with receiver.receive(published.manifest, prepared, 0) as data:
        published.manifest.check(data)
        assert np.array_equal(data.view(np.float32), tensor.numpy())
        with torch.no_grad():
            for version in (6, 7, 8):  # an engine that is slow to load what it has checked
                parameter.add_(1)
                sender.send(parts, version, f"{version}-0")
        published.manifest.check(data)
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["7-0.safetensors", "8-0.safetensors"]
